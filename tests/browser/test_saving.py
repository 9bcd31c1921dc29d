"""Saving and copying from the widget's menu: real files that open, or a sentence that says why not."""

from __future__ import annotations

import io
import xml.dom.minidom
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gallery import Gallery
from lab import SCREENSHOTS, OfflinePages, Page
from lanes import mostly_thorough
from playwright.sync_api import expect
from vscode import show_in_vscode

from attnwidget import AttentionWidget
from attnwidget._widget.front_end import requested_files

Show = Callable[..., Gallery]
TOKENS = ["the", "bank", "lent", "her", "money", "<b>", "日本", "."]


def widget(**more: object) -> AttentionWidget:
    q, k, v = torch.randn(3, 2, 1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return AttentionWidget(q, k, v, tokens=TOKENS, **more)  # type: ignore[arg-type]


def choose(shown: Gallery, section: str, item: str) -> None:
    shown.menu("More")
    group = shown.page.get_by_role("group", name=section, exact=True)
    group.get_by_role("menuitem", name=item).click()


def saved(shown: Gallery, item: str, folder: Path) -> Path:
    with shown.page.expect_download() as waiting:
        choose(shown, "Save", item)
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


@pytest.mark.parametrize("host", mostly_thorough("jupyter-light", "vscode-dark"))
def test_files_that_python_makes_open(gallery: Show, offline_page: OfflinePages, host: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    shown = gallery(widget(layer=1, head=2), host=host)
    shown.click(4, 1)
    shown.settle()
    png = saved(shown, "as PNG", tmp_path)
    assert png.name == "attention-layer-1-head-2.png"
    with image.open(png) as picture:
        assert picture.size[0] > 500
    svg = saved(shown, "as SVG", tmp_path).read_text(encoding="utf-8")
    xml.dom.minidom.parseString(svg)
    assert "money 4 → bank 1" in svg
    page = saved(shown, "as HTML", tmp_path)
    opened = offline_page(page.read_text(encoding="utf-8"), width=900, height=900).page
    opened.wait_for_selector("[data-aw=picture]")
    assert "layer 1" in opened.locator("[data-aw=status]").inner_text()
    given = shown.page.locator(".aw-notices").inner_text()
    assert "attention-layer-1-head-2.html" in given
    assert 'In a cell: w.to_html("attention.html")' in given
    shown.check()


@pytest.mark.thorough
def test_where_no_file_may_be_saved_the_line_to_write_is_said(offline_page: OfflinePages) -> None:
    """A frame that is not allowed to save or copy: the browser drops the file, and tells the page nothing."""
    shown = show_in_vscode(offline_page, widget(), sandbox="allow-scripts allow-same-origin")
    downloads: list[Any] = []
    shown.page.on("download", lambda download: downloads.append(download))

    def choose(section: str, item: str) -> None:
        shown.frame.locator(".aw-menu[aria-label='More'] > button").first.click()
        group = shown.frame.get_by_role("group", name=section, exact=True)
        group.get_by_role("menuitem", name=item).click()

    def said(text: str) -> None:
        shown.frame.locator(".aw-notices").get_by_text(text).wait_for()

    for kind, line in (
        ("PNG", 'w.figure().savefig("attention.png")'),
        ("SVG", 'w.figure().savefig("attention.svg")'),
        ("HTML", 'w.to_html("attention.html")'),
    ):
        choose("Save", f"as {kind}")
        said(f"If no file arrives, this page is not allowed to save files. In a cell: {line}")
    choose("Copy", "picture")
    said("This page is not allowed to copy pictures. Save it as PNG instead.")
    assert downloads == []
    shown.screenshot("saving-in-a-sandbox")


def test_without_a_kernel_a_picture_comes_from_the_page(gallery: Show, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    shown = gallery(widget(), host="jupyter-dark", width=700)
    shown.click(4, 1)
    shown.settle()
    shown.end_kernel()
    path = saved(shown, "as PNG", tmp_path)
    if Page.keeps_pictures:
        (SCREENSHOTS / "page-picture.png").write_bytes(path.read_bytes())
    assert path.name == "attention.png"
    with image.open(io.BytesIO(path.read_bytes())) as picture:
        width, height = picture.size
        colors = picture.convert("RGB").getcolors(maxcolors=1 << 24)
        corner = picture.convert("RGB").getpixel((1, 1))
    assert width > 1300
    assert height > 600
    assert len(colors) > 60  # cells, letters and the ramp: not a blank page
    assert corner == (17, 17, 17)
    choose(shown, "Save", "as SVG")
    shown.page.get_by_text('In a cell: w.figure().savefig("attention.svg")').wait_for()


@pytest.mark.thorough
def test_a_refusal_says_the_line_to_write(gallery: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnwidget._widget.front_end import requested_files

    monkeypatch.setattr(requested_files, "MOST_CELLS", 10)
    shown = gallery(widget())
    choose(shown, "Save", "as HTML")
    shown.page.get_by_text('w.to_html("attention.html") in a cell writes it').wait_for()
    shown.check()


def test_the_call_and_the_pinned_number_are_copied(gallery: Show) -> None:
    shown = gallery(widget(head=1, view="heatmap", color_scale="log"))
    shown.click(4, 1)
    shown.wait_for_lines()
    shown.page.evaluate(
        "() => { window.copied = null; navigator.clipboard.writeText = async (text) => { window.copied = text; }; }"
        if shown.page.evaluate("() => navigator.clipboard !== undefined")
        else "() => { document.execCommand = () => {"
        " window.copied = document.querySelector('textarea').value; return true; }; }"
    )
    choose(shown, "Copy", "as Python")
    shown.page.get_by_text("The call is on the clipboard.").wait_for()
    call, said = shown.page.evaluate("() => window.copied").split("\n")
    assert call == 'w = AttentionWidget(q, k, v, tokens=tokens, color_scale="log", head=1, pins=[(4, 1)])'
    assert said.startswith('# query 4 "money", key 1 "bank": weight 0.')
    q, k, v = torch.randn(3, 2, 1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    names: dict[str, object] = {"AttentionWidget": AttentionWidget, "q": q, "k": k, "v": v, "tokens": TOKENS}
    exec(call, names)
    again = names["w"]
    assert isinstance(again, AttentionWidget)
    assert (again.head, again.pins, again.color_scale) == (1, [(4, 1)], "log")
    assert float(said.rsplit(" ", 1)[1]) == pytest.approx(float(again.weights(4)[1]), rel=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("is_nested", [False, True])
def test_the_copied_call_makes_the_same_segments(gallery: Show, is_nested: bool) -> None:
    given: dict[str, Any] = {"doc 1": [(1, 3), (4, 5)], "answer": (5, 8)}
    if is_nested:
        given["answer"] = [(5, 8), {"end": (7, 8)}]
    w = widget(
        segments=given, view="segments", segment="doc 1", measure="lift", aside=["self"], only_heads=(0, None, 0.5)
    )
    shown = gallery(w)
    shown.page.evaluate(
        "() => Object.defineProperty(navigator, 'clipboard', "
        "{ value: { writeText: async (text) => { window.copied = text; } } })"
    )
    choose(shown, "Copy", "as Python")
    shown.page.get_by_text("The call is on the clipboard.").wait_for()
    call = shown.page.evaluate("() => window.copied").split("\n")[0]
    written = "segments" if is_nested else '{"doc 1": [(1, 3), (4, 5)], "answer": (5, 8)}'
    assert f"segments={written}, " in call
    q, k, v = torch.randn(3, 2, 1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    names: dict[str, Any] = {"AttentionWidget": AttentionWidget, "q": q, "k": k, "v": v, "tokens": TOKENS}
    exec(call, names | {"segments": given}, names)
    again = names["w"]
    assert again.mass["keys"] == w.mass["keys"]
    assert again.mass["key_sizes"] == w.mass["key_sizes"]
    for trait in ("view", "segment", "measure", "aside", "only_heads", "asking", "segment_path"):
        assert getattr(again, trait) == getattr(w, trait)


@pytest.mark.thorough
def test_where_nothing_may_be_copied_the_widget_says_so(gallery: Show) -> None:
    shown = gallery(widget())
    shown.page.evaluate(
        "() => { Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true });"
        " document.execCommand = () => false; }"
    )
    choose(shown, "Copy", "picture")
    shown.page.get_by_text("This page is not allowed to copy pictures. Save it as PNG instead.").wait_for()
    choose(shown, "Copy", "as Python")
    shown.page.get_by_text("This page is not allowed to copy. The call is: w = AttentionWidget(q, k, v").wait_for()
    shown.screenshot("saving-refused")
    shown.check()


@pytest.mark.thorough
def test_a_page_without_a_clipboard_copies_the_old_way(gallery: Show) -> None:
    """As one without https: what the command copies is what is selected."""
    shown = gallery(widget(head=1))
    shown.page.evaluate(
        "() => { Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true });"
        " document.execCommand = (what) => {"
        " const { value, selectionStart, selectionEnd } = document.activeElement;"
        " window.copied = what === 'copy' ? value.slice(selectionStart, selectionEnd) : null; return true; }; }"
    )
    choose(shown, "Copy", "as Python")
    shown.page.get_by_text("The call is on the clipboard.").wait_for()
    assert shown.page.evaluate("() => window.copied") == "w = AttentionWidget(q, k, v, tokens=tokens, head=1)"
    assert shown.page.locator("textarea").count() == 0
    shown.check()


@pytest.mark.thorough
def test_a_picture_is_copied(gallery: Show) -> None:
    shown = gallery(widget())
    shown.page.evaluate(
        """() => {
          window.ClipboardItem = class { constructor(types) { this.types = types; } };
          const clipboard = { write: async ([item]) => { window.copied = (await item.types["image/png"]).size; } };
          Object.defineProperty(navigator, "clipboard", { value: clipboard, configurable: true });
        }"""
    )
    choose(shown, "Copy", "picture")
    shown.page.get_by_text("The picture is on the clipboard.").wait_for()
    assert shown.page.evaluate("() => window.copied") > 5000


@pytest.mark.thorough
@pytest.mark.parametrize("host", ["jupyter-light", "vscode-dark"])
def test_the_menu_fits(gallery: Show, host: str) -> None:
    shown = gallery(widget(), host=host, width=360)
    shown.menu("More")
    shown.screenshot(f"saving-menu-{host}")
    shown.check()


def test_in_a_saved_file_there_is_a_picture_and_the_call(offline_page: OfflinePages, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    page = offline_page(widget().to_html(tmp_path / "a.html").read_text(encoding="utf-8"), width=900, height=900)
    opened = page.page
    opened.wait_for_selector("[data-aw=picture]")
    opened.locator(".aw-menu[aria-label='More'] > button").click()
    assert opened.get_by_role("group", name="Save", exact=True).get_by_role("menuitem").count() == 1
    with opened.expect_download() as waiting:
        opened.get_by_role("menuitem", name="as PNG").click()
    waiting.value.save_as(tmp_path / "a.png")
    with image.open(tmp_path / "a.png") as picture:
        assert len(picture.convert("RGB").getcolors(maxcolors=1 << 24)) > 60
    assert page.blocked == []


def test_a_file_that_takes_several_messages_is_asked_for_until_it_is_made(
    gallery: Show, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(requested_files, "SLICE_SECONDS", 0)  # a step to a message
    made: list[float] = []
    part = requested_files.RequestedFiles.part

    def noted(*asked: Any) -> Any:
        found = part(*asked)
        made.append(found.share)
        return found

    monkeypatch.setattr(requested_files.RequestedFiles, "part", noted)
    shown = gallery(widget())
    page = saved(shown, "as HTML", tmp_path)
    assert "attnwidget-data" in page.read_text(encoding="utf-8")
    assert made == sorted(made)
    assert len(made) > 10
    expect(shown.page.get_by_text("of the file is ready")).to_have_count(0)
    shown.check()
