"""The widget in Firefox: on plain pages, as `audit.js` measures them, and in JupyterLab."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from firefox import find_firefox
from gallery import Gallery, show
from lab import Browser, Firefox, Lab, LabServer, OfflinePages
from test_saving import choose

from attnwidget import Attention, AttentionWidget, compare
from attnwidget.samples import load_sample

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def firefox(browser: Browser) -> Iterator[Firefox]:
    program = find_firefox()
    if program is None:
        pytest.skip("there is no Firefox: `sudo apt-get install -y firefox-esr`, or set ATTNWIDGET_FIREFOX")
    opened = Firefox(browser.playwright, program)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pages(firefox: Firefox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfflinePages]:
    with OfflinePages(firefox, tmp_path_factory.mktemp("firefox")) as opener:
        yield opener


def bank(**shown: object) -> AttentionWidget:
    q, k, v, tokens, mask = load_sample("bank")
    return AttentionWidget(q, k, v, tokens=tokens, mask=mask, layer=5, head=7, query=14, key=16, **shown)  # type: ignore[arg-type]


def patches(**shown: object) -> AttentionWidget:
    return AttentionWidget(*torch.randn(3, 1, 4, 17, 8), grid=(4, 4), grid_start=1, query=3, **shown)  # type: ignore[arg-type]


def parts(**shown: object) -> AttentionWidget:
    return bank(segments={"first": [(1, 7), {"one": (1, 4), "two": (4, 7)}], "answer": (12, 20)}, **shown)


def sides(**shown: object) -> AttentionWidget:
    q, k, v = torch.randn(3, 1, 2, 12, 8)
    return compare(Attention(q, k, v), Attention(q, k, v, is_causal=True), query=3, key=1, **shown)  # type: ignore[arg-type]


MAKES = {"image": patches, "segments": parts, "compare": sides}


@pytest.mark.parametrize(("width", "theme"), [(320, "light"), (900, "dark")])
@pytest.mark.parametrize("view", ["heatmap", "graph", "text", "image", "heads", "segments", "stages", "compare"])
def test_every_view_is_whole(pages: OfflinePages, view: str, theme: str, width: int) -> None:
    shown = show(pages, MAKES.get(view, bank)(view=view, theme=theme), width=width)
    shown.screenshot(f"firefox-{view}-{theme}-{width}")
    shown.check()
    pages.close()


def test_pointing_zooming_and_keys_reach_python(pages: OfflinePages) -> None:
    w = AttentionWidget(*torch.randn(3, 1, 4, 40, 8))
    shown: Gallery = show(pages, w)
    shown.hover(3, 8)
    shown.settle()
    assert "weight" in shown.page.locator("[data-aw=status]").inner_text().lower()
    shown.click(3, 8)
    shown.settle()
    assert (w.query, w.key) == (3, 8)
    shown.page.keyboard.press("ArrowDown")
    shown.settle()
    assert (w.query, w.key) == (4, 8)
    before = shown.pixels()
    shown.zoom(4, 8, 6)
    assert shown.pixels() != before
    shown.page.get_by_role("radio", name="head 2", exact=True).click()
    shown.settle()
    assert w.head == 2
    shown.check()
    pages.close()


SAVES = """() => {
  window.files = [];
  HTMLAnchorElement.prototype.click = function () {
    const { href, download } = this;
    fetch(href).then((file) => file.text()).then((text) => window.files.push([download, text.slice(0, 40)]));
  };
}"""


def test_files_are_made_and_the_call_is_copied(pages: OfflinePages) -> None:
    """Playwright sees no download of a Firefox that it drives by BiDi: what the link that is followed holds is read."""
    shown = show(pages, bank())
    shown.page.evaluate(SAVES)
    for count, item in enumerate(("as PNG", "as SVG", "as HTML"), 1):
        choose(shown, "Save", item)
        shown.page.wait_for_function("(count) => window.files.length === count", arg=count)
    (png, svg, html) = shown.page.evaluate("() => window.files")
    assert (png[0][-4:], png[1][1:4]) == (".png", "PNG")
    assert (svg[0][-4:], svg[1][:5]) == (".svg", "<?xml")
    assert (html[0][-5:], html[1][:15].lower()) == (".html", "<!doctype html>")
    choose(shown, "Copy", "as Python")
    shown.page.get_by_text("The call is on the clipboard").wait_for()
    choose(shown, "Copy", "picture")
    shown.page.get_by_text("The picture is on the clipboard").wait_for()
    shown.check()
    pages.close()


def test_in_jupyterlab_a_click_reaches_python_and_nothing_is_on_the_console(
    firefox: Firefox, lab_server: LabServer
) -> None:
    lab = Lab(firefox, lab_server)
    try:
        notebook = lab.open(
            [
                "from attnwidget import AttentionWidget\nimport torch",
                "w = AttentionWidget(*torch.randn(3, 1, 4, 8, 8))\nw",
            ]
        )
        notebook.run_all()
        page = notebook.page
        page.get_by_role("radio", name="head 2", exact=True).click()
        page.wait_for_function(
            "() => document.querySelector('.attnwidget [data-aw=status]').textContent.includes('head 2')"
        )
        assert notebook.evaluate("print(w.head)") == "2"
        picture = page.locator("[data-aw=picture]")
        picture.click(position={"x": 30, "y": 30})
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        notebook.wait_idle()
        query, key = notebook.evaluate("print(w.query, w.key)").split()
        assert (query, key) != ("None", "None")
        assert page.locator(".jp-CodeCell").count() == 2  # no key went on to the notebook
        notebook.set_theme("dark")
        page.wait_for_selector(".attnwidget[data-theme=dark]")
        assert not notebook.problems
        assert not notebook.blocked
    finally:
        lab.close()
