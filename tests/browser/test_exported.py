"""Saved files as a reader meets them: opened from file:// with the network off, in both themes and at any width."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gallery import AUDIT
from lab import LabNotebook, OfflinePages, Page
from lanes import mostly_thorough

from attnwidget import Attention, AttentionStack, AttentionWidget, compare, load_sample
from attnwidget._export.look.numbers import status_number
from attnwidget.results import HeadRows

PICTURE = "[data-aw=picture]"
STATUS = "[data-aw=status]"
PANEL = "[data-aw=panel]"

Opened = Callable[..., Page]


@pytest.fixture
def opened(offline_page: OfflinePages, tmp_path: Path) -> Opened:
    """Save a widget, and open the file; or open one that is saved. `keywords` are those of to_html."""

    def open_(widget: AttentionWidget | Path, *, scheme: str = "light", width: int = 960, **keywords: Any) -> Page:
        path = widget if isinstance(widget, Path) else widget.to_html(tmp_path / "saved.html", **keywords)
        page = offline_page(
            path, over="file", offline=True, color_scheme=scheme, width=width, height=900, reduced_motion="reduce"
        )
        page.page.wait_for_selector(f"{PICTURE}[aria-label]", timeout=20_000)
        page.rest()
        return page

    return open_


def place(page: Page, query: int, key: int, shape: tuple[int, int]) -> tuple[float, float]:
    box = page.page.locator(PICTURE).bounding_box()
    assert box is not None
    return box["x"] + box["width"] * (key + 0.5) / shape[1], box["y"] + box["height"] * (query + 0.5) / shape[0]


def check(page: Page) -> None:
    """Nothing on the console, nothing from outside, nothing that sticks out or is cut."""
    assert page.problems == []
    assert page.blocked == []
    assert page.page.evaluate(AUDIT) == []


def bank(**show: Any) -> AttentionWidget:
    sample = load_sample("bank")
    return AttentionWidget(sample.q, sample.k, sample.v, tokens=sample.tokens, layer=5, head=7, **show)


@pytest.fixture(scope="module")
def file_of_bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that several tests open: to save all views of 72 heads takes longer than the rest of a test."""
    return bank(query=14, key=16).to_html(tmp_path_factory.mktemp("saved") / "saved.html")


@pytest.mark.parametrize("scheme", mostly_thorough("light", "dark"))
@pytest.mark.parametrize("width", mostly_thorough(960, 600, 360))
def test_it_draws_offline_in_both_themes_and_at_any_width(
    opened: Opened, file_of_bank: Path, scheme: str, width: int
) -> None:
    page = opened(file_of_bank, scheme=scheme, width=width)
    assert page.page.locator(".attnwidget").get_attribute("data-theme") == scheme
    assert "0.228342" in page.page.locator(STATUS).inner_text()
    assert page.page.title() == "Attention"
    page.screenshot(f"exported-{scheme}-{width}")
    check(page)
    check_a_page_around_it_asks_for_its_theme(page)
    if width == 960:  # narrower, the menu is in another one
        page.page.locator(".aw-menu[aria-label='Show'] > button").click()
        page.page.get_by_role("menuitemradio", name="scores").click()
        page.rest()
        assert "score 25.1796" in page.page.locator(STATUS).inner_text()
        check(page)


def check_a_page_around_it_asks_for_its_theme(page: Page) -> None:
    """As the pages of the documentation do, whose theme is not always the system's."""
    root = page.page.locator(".attnwidget")
    for theme in ("dark", "light"):
        page.page.evaluate(f"location.hash = 'theme={theme}'")
        page.rest()
        assert root.get_attribute("data-theme") == theme
        shown = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", shown))) < 200) == (theme == "dark"), shown
    page.page.evaluate("location.hash = 'theme=<b>'")
    page.rest()
    assert root.get_attribute("data-theme") == "light", "as it was"
    check(page)


def test_hover_pins_and_heads(opened: Opened, file_of_bank: Path) -> None:
    w = bank()
    page = opened(file_of_bank)
    page.page.locator(PICTURE).press("Escape")
    page.page.mouse.move(*place(page, 14, 8, (20, 20)))
    page.rest()
    assert status_number(float(w.weights(14)[8])) in page.page.locator(STATUS).inner_text()
    page.page.mouse.click(*place(page, 14, 8, (20, 20)))
    page.rest()
    assert page.page.locator(PANEL).inner_text().startswith("bank")
    page.page.get_by_role("radio", name="head 2", exact=True).click()
    page.page.get_by_role("radio", name="layer 0").click()
    page.page.mouse.move(1, 1)
    page.rest()
    w.layer, w.head = 0, 2
    assert status_number(float(w.weights(14)[8])) in page.page.locator(STATUS).inner_text()
    assert "layer 0 · " in page.page.locator(STATUS).inner_text()
    page.page.locator(PICTURE).press("Escape")
    page.rest()
    assert "bank" not in page.page.locator(PANEL).inner_text()
    check(page)


def test_all_views(opened: Opened, file_of_bank: Path) -> None:
    w = bank(query=14, key=16)
    page = opened(file_of_bank)
    page.page.get_by_role("tab", name="Graph").click()
    page.page.wait_for_selector(".aw-graph-row >> nth=0", state="attached")
    page.rest()
    page.page.get_by_role("checkbox", name="head 4", exact=True).click(modifiers=["Shift"])
    page.rest()
    assert "2 heads" in page.page.locator(STATUS).inner_text()
    page.screenshot("exported-graph")
    page.page.get_by_role("tab", name="Stages").click()
    page.page.wait_for_selector(".aw-steps-pair")
    assert f".{round(float(w.weights(14)[16]) * 10_000)}" in page.page.locator(".aw-steps-pair").inner_text()
    page.page.get_by_role("button", name="Gradients").click()
    page.page.wait_for_selector("[data-aw=section-gradients] canvas")
    page.screenshot("exported-stages")
    assert page.page.get_by_role("button", name="What if").count() == 0
    page.page.get_by_role("radio", name="layer 1").click()
    page.rest()
    assert "were not saved in this file" in page.page.locator(".aw-steps").inner_text()
    page.page.get_by_role("tab", name="Text").click()
    page.page.locator(".aw-word", has_text="river").first.click()
    page.page.get_by_text("attends to").first.wait_for()
    page.rest()
    page.screenshot("exported-text")
    page.page.get_by_role("tab", name="Heads").click()
    page.page.wait_for_selector(".aw-heads-board canvas")
    page.page.get_by_role("button", name="Bar").click()
    page.page.get_by_role("menuitemradio", name="First token", exact=True).click()
    page.rest()
    page.screenshot("exported-heads")
    check(page)


def near(rows: HeadRows) -> torch.Tensor:
    """The weight on the key before the query's own."""
    assert rows.own is not None
    found = rows.weights.gather(2, (rows.own - 1).clamp(0).expand(len(rows.weights), -1)[..., None])[..., 0]
    return found.masked_fill(rows.own < 1, torch.nan)


@pytest.mark.thorough
def test_a_file_has_metrics_of_ones_own_and_heads_like_one(opened: Opened) -> None:
    """Both are reached by their order, without Python: which head stands first is what Python says of all."""
    w = bank(view="heads", kinds={"near": near}, bar="near", order="similar")
    w.layer, w.head = 2, 3
    assert isinstance(w.attention, AttentionStack)
    page = opened(w)
    first = w.attention.similar(2, 3, top=None, tokens=w.tokens)[0]
    found = max(w.metrics(batch=0), key=lambda one: one["near"])
    assert "Most similar to layer 2, head 3 first" in page.page.locator(".aw-all-heads > .aw-prompt").inner_text()

    def card(number: int) -> str:
        box = page.page.locator(PICTURE).bounding_box()
        assert box is not None
        page.page.mouse.move(box["x"] + 29 + 74 * number, box["y"] + 29)
        page.rest()
        return " ".join(page.page.locator(".aw-head-card").inner_text().split())

    assert card(0).startswith("Layer 2 · head 3")  # itself
    assert card(1).startswith(f"Layer {first['layer']} · head {first['head']}")
    page.page.mouse.move(1, 1)
    page.page.get_by_role("button", name=re.compile("^Order")).first.click()
    page.page.get_by_role("menuitemradio", name=re.compile("^near", re.IGNORECASE)).first.click()
    page.rest()
    said = card(0)
    assert said.startswith(f"Layer {found['layer']} · head {found['head']}")
    assert said.endswith(f"near {found['near']:.3f} median of all 72 heads".replace(" 0.", " ."))
    check(page)


def test_what_is_not_in_it_is_said(opened: Opened) -> None:
    page = opened(bank(), layers="selected", heads=[2])
    assert page.page.get_by_role("radio", name="head 3", exact=True).is_disabled()
    assert page.page.get_by_role("radio", name="layer 1").is_disabled()
    assert "Saved from attnwidget: layer 5, heads 2, 7." in page.page.locator("footer").inner_text()
    page.page.locator(PICTURE).focus()
    page.page.locator(PICTURE).press("]")
    page.rest()
    assert "Not in this file" in page.page.locator(".aw-notices").inner_text()
    assert page.page.get_by_role("radio", name="head 7", exact=True).is_checked()
    page.page.get_by_role("radio", name="head 2", exact=True).click()
    page.rest()
    assert page.page.locator(".aw-notices").inner_text().strip() == ""
    check(page)


def test_a_long_head(opened: Opened) -> None:
    w = AttentionWidget(*torch.randn(2, 10_000, 4), query=9_000, key=3, is_causal=True)
    w.finish()
    page = opened(w)
    page.rest()  # it does not wait for a kernel either
    assert page.page.locator(".aw-notices").inner_text().strip() == ""
    assert "maximum of 20 × 20" in page.page.locator("[data-aw=legend]").inner_text()
    strongest = f"{float(w.weights(9_000).max()):.4f}".removeprefix("0")
    assert strongest in page.page.locator(PANEL).inner_text()
    page.page.mouse.move(*place(page, 400, 40, (500, 500)))
    page.page.keyboard.down("Control")
    for _ in range(6):
        page.page.mouse.wheel(0, -100)
    page.page.keyboard.up("Control")
    page.page.locator(".aw-plot[data-zoomed]").wait_for()
    page.rest()
    page.screenshot("exported-long")
    assert "maximum of 20 × 20" in page.page.locator("[data-aw=legend]").inner_text()  # there is nothing finer
    read = re.search(
        r"maximum ([.\d]+(?:e−\d+)?) at query ([\d,]+), key ([\d,]+)", page.page.locator(STATUS).inner_text()
    )
    assert read is not None
    query, key = (int(number.replace(",", "")) for number in read.groups()[1:])
    assert read[1] == status_number(float(w.weights(query)[key]))
    assert page.page.locator(".aw-notices").inner_text().strip() == ""
    assert page.problems == []


@pytest.mark.parametrize("at", [(1, 0, 0), pytest.param((0, 0, 1), marks=pytest.mark.thorough)])
def test_a_file_of_two_heads_of_one_stack_draws_both(opened: Opened, at: tuple[int, int, int]) -> None:
    q, k = torch.randn(2, 2, 1, 2, 20, 8, generator=torch.Generator().manual_seed(1))
    stack = AttentionStack([Attention(*one) for one in zip(q, k, strict=True)])
    w = compare((stack, 0, 0), (stack, at[0], at[2]), query=3, key=1)
    page = opened(w)
    numbers = [stack[layer].block(head=head)[3, 1].item() for layer, head in ((0, 0), (at[0], at[2]))]
    said = page.page.locator(STATUS).inner_text()
    assert [status_number(number) in said for number in numbers] == [True, True], said
    page.page.get_by_role("button", name=re.compile("Show weights")).click()
    page.page.get_by_role("menuitemradio", name="scaled").click()
    scores = [stack[layer].block("scaled", head=head)[3, 1].item() for layer, head in ((0, 0), (at[0], at[2]))]
    page.page.wait_for_function("document.querySelector('[data-aw=picture]').ariaLabel.startsWith('Attention scaled')")
    said = page.page.locator(STATUS).inner_text()
    assert [status_number(number) in said for number in scores] == [True, True], said
    page.screenshot(f"exported-heads-{at[0]}-{at[2]}")
    check(page)


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [960, 360])
def test_a_file_of_a_long_comparison_has_no_hole(opened: Opened, scheme: str, width: int) -> None:
    q, k = torch.randn(2, 1, 2, 1200, 8, generator=torch.Generator().manual_seed(1))
    heads = Attention(q, k)
    w = compare((heads, 0, 0), (heads, 0, 1))
    w.finish()
    page = opened(w, scheme=scheme, width=width)
    page.page.get_by_text("The largest differences are not known here. This was not saved").wait_for()
    page.screenshot(f"exported-long-compare-{scheme}-{width}")
    assert page.page.locator(".aw-changes").bounding_box()["height"] < 100  # type: ignore[index]
    check(page)


@pytest.mark.thorough
def test_a_comparison(opened: Opened) -> None:
    q, k, v = torch.randn(3, 1, 2, 6, 8)
    sides = {
        "no mask": Attention(q, k, v),
        "causal": Attention(q, k, v, is_causal=True),
        "window": Attention(q, k, v, window=2),
    }
    w = compare(sides, view="compare", query=3, key=1)
    page = opened(w)
    page.page.locator(".aw-menu[aria-label='Against'] > button").click()
    page.page.get_by_role("menuitemradio", name="window").click()
    page.rest()
    page.screenshot("exported-compare")
    assert page.page.locator(".aw-changes").count() > 0
    assert page.page.locator(".aw-notices").inner_text().strip() == ""
    assert page.problems == []


def test_tokens_are_text_and_nothing_is_reached(opened: Opened) -> None:
    evil = ["</script><script>document.title='run'</script>", "<img src=https://example.org/x>", "&lt;b&gt;"]
    page = opened(AttentionWidget(*torch.randn(3, 3, 8), tokens=evil), title="<b>A title</b>")
    assert page.page.title() == "<b>A title</b>"
    assert page.page.locator(".aw-title").inner_text() == "<b>A title</b>"
    assert page.page.locator("img").count() == 0
    assert page.page.evaluate("() => fetch('https://example.org').then(() => 'reached', () => 'refused')") == "refused"
    refused = [message.text for message in page.problems]
    assert len(refused) >= 1
    assert all("Content Security Policy" in text or "Content-Security-Policy" in text for text in refused)


def test_without_scripts_a_picture_is_left(offline_page: OfflinePages, file_of_bank: Path) -> None:
    page = offline_page(file_of_bank, over="file", scripts=False)
    box = page.page.locator("noscript img").bounding_box()
    assert box is not None
    assert box["width"] > 200


# The picture beside the widget.


NOTEBOOK = [
    "import torch, attnwidget as aw\nw = aw.AttentionWidget(*torch.randn(3, 12, 8))",
    "w",
]


@pytest.mark.thorough
def test_in_jupyterlab_the_widget_is_drawn_and_not_the_picture(lab: Any) -> None:
    notebook: LabNotebook = lab.open(NOTEBOOK)
    notebook.run_all()
    notebook.page.wait_for_selector(".attnwidget canvas[data-aw=picture]")
    assert notebook.page.locator(".jp-OutputArea-output img").count() == 0
    assert notebook.problems == []


@pytest.mark.thorough
def test_nbconvert_without_widget_state_shows_the_picture(offline_page: OfflinePages) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbconvert = pytest.importorskip("nbconvert")
    made = bank()._repr_mimebundle_()
    assert made is not None
    data, metadata = made
    output = nbformat.v4.new_output("display_data", data=data, metadata=metadata)
    cell = nbformat.v4.new_code_cell("w", outputs=[output])
    html, _ = nbconvert.HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    assert f"data:image/png;base64,{data['image/png']}" in html


@pytest.mark.thorough
def test_nbconvert_that_executes_shows_the_picture_with_the_network_off(
    offline_page: OfflinePages, tmp_path: Path
) -> None:
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbconvert")
    cells = [
        "import torch\nfrom attnwidget import AttentionWidget",
        "AttentionWidget(*torch.randn(3, 6, 8), query=2)",
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata=kernel)
    nbformat.write(made, tmp_path / "page.ipynb")
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--execute", "page.ipynb"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)  # with its own settings
    page = offline_page(tmp_path / "page.html", over="file", offline=True)
    still = page.page.locator("[id^=attnwidget-still] img")
    still.wait_for(timeout=20_000)  # visible
    assert "The widget did not start on this page" in page.page.locator("body").inner_text()


OLD = sorted((Path(__file__).parents[1] / "fixtures").glob("*/page.html"))


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.parent.name)
def test_pages_of_earlier_versions_still_draw(path: Path, offline_page: OfflinePages) -> None:
    """As `tests/fixtures/make.py` has saved them: layer 1, head 1, query 4, key 1."""
    weights = json.loads(path.with_name("weights.json").read_text(encoding="utf-8"))["weights"]
    page = offline_page(path, over="file", offline=True)
    page.page.wait_for_selector(f"{PICTURE}[aria-label]", timeout=20_000)
    page.rest()
    assert status_number(weights[1][1][4][1]) in page.page.locator(STATUS).inner_text()
    assert page.problems == []
    for view in ("Graph", "Heads", "Segments", "Stages"):
        page.page.get_by_role("tab", name=view).click()
        page.rest()
        assert page.page.locator(".aw-notice").count() == 0, view
    assert page.problems == []
