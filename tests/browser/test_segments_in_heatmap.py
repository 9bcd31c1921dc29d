"""Segments beside the pictures: names, colors and blocks in the heatmap, the small map, the text and the graph."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gallery import Gallery, show
from lab import OfflinePages
from lanes import mostly_thorough

from attnwidget import Attention, AttentionWidget

AXE = Path(__file__).parents[2] / "js" / "node_modules" / "axe-core" / "axe.min.js"
AXE_RUN = """async () => {
  const { violations } = await axe.run(".attnwidget", { resultTypes: ["violations"] });
  return violations.flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html.slice(0, 200)}`));
}"""

# fmt: off
WORDS = [
    "the", "key", "hangs", "on", "a", "nail", "beside", "kitchen", "door", "daughter",
    "put", "it", "there", "after", "flood", "of", "dark", "miller", ".",
]
# fmt: on
FLAT = {
    "system": (1, 23),
    "doc 1": (23, 61),
    "doc 2": (61, 128),
    "doc 3": (128, 168),
    "doc 4": (168, 202),
    "doc 5": (202, 240),
    "question": (240, 258),
    "answer": (258, 285),
}
DOCUMENTS = {name: FLAT[name] for name in ("doc 1", "doc 2", "doc 3", "doc 4", "doc 5")}
NESTED = {"system": (1, 23), "documents": DOCUMENTS, "question": (240, 258), "answer": (258, 285)}


def made(n: int = 285, segments: Any = FLAT, heads: int = 3, **more: Any) -> AttentionWidget:
    """A text whose tokens attend to the same words before them."""
    rng = np.random.default_rng(0)
    meaning = rng.normal(size=(len(WORDS), 16))
    words = rng.integers(0, len(WORDS), n)
    q, k = (meaning[words] + 0.3 * rng.normal(size=(1, heads, n, 16)) for _ in range(2))
    tokens = ["[CLS]", *(WORDS[at] for at in words[1:])]
    keywords = {"is_causal": True, "tokens": tokens, "segments": segments, **more}
    return AttentionWidget(q.astype(np.float32), k.astype(np.float32), **keywords)


def weights_of(w: AttentionWidget, queries: range) -> torch.Tensor:
    """The exact weights of some queries in head 0."""
    assert isinstance(w.attention, Attention)
    return w.attention.block(stage="weights", queries=queries).double()


def pinned(w: AttentionWidget) -> tuple[Any, ...]:
    return w.query, w.key, w.asking, w.segment


def name(shown: Gallery, text: str, side: str) -> Any:
    """The name of a segment on one axis: of the queries it stands left of the picture."""
    left = shown.page.locator("[data-aw=picture]").bounding_box()["x"]  # type: ignore[index]
    found = [
        one
        for one in shown.page.locator(".aw-segment-name").filter(has_text=text).all()
        if (one.bounding_box()["x"] < left) == (side == "query")  # type: ignore[index]
    ]
    assert found, f"there is no {text} among the names of the {side} axis"
    return found[0]


def names_of(shown: Gallery) -> list[str]:
    return [text.strip() for text in shown.page.locator(".aw-segment-name").all_inner_texts()]


def panel(shown: Gallery) -> str:
    return " ".join(shown.page.locator("[data-aw=panel]").inner_text().split())


def status(shown: Gallery) -> str:
    return " ".join(shown.page.locator("[data-aw=status]").inner_text().split())


def live(shown: Gallery) -> str:
    return " ".join(shown.page.locator("[aria-live]").all_inner_texts()).strip()


def is_zoomed(shown: Gallery) -> bool:
    return shown.page.locator(".aw-plot[data-zoomed]").count() == 1


def slots(shown: Gallery, within: str) -> set[str | None]:
    return {path.get_attribute("data-slot") for path in shown.page.locator(f"{within} .aw-segment-bars path").all()}


def pin_block(shown: Gallery, query: str, key: str) -> None:
    name(shown, query, "query").click()
    shown.settle()
    name(shown, key, "key").click()
    shown.wait_for_lines()


@pytest.mark.parametrize(
    "host", mostly_thorough("plain-light", "plain-dark", "jupyter-contrast", "vscode-contrast-light")
)
@pytest.mark.parametrize("width", mostly_thorough(900, 320, 600, 1600))
def test_names_stand_along_both_axes(offline_page: OfflinePages, host: str, width: int) -> None:
    w = made(segments=NESTED)
    shown = show(offline_page, w, host=host, width=width)
    shown.screenshot(f"segments-in-heatmap-{host}-{width}")
    shown.check()
    names = names_of(shown)
    for text in ("system", "doc 2", "doc 3", "answer"):
        assert names.count(text) == 2, (text, names)
    assert names.count("documents") == (1 if width == 320 else 2)  # narrow, its name is above alone
    assert shown.page.locator(".aw-bracket").count() == 2
    assert slots(shown, ".aw-figure") == {"0", "1", "2", "7"}
    pin_block(shown, "answer", "doc 3")
    shown.leave()
    shown.settle()
    shown.screenshot(f"segments-in-heatmap-pinned-{host}-{width}")
    shown.check()


@pytest.mark.thorough
def test_of_a_short_text_tokens_stand_there_until_segments_are_chosen(offline_page: OfflinePages) -> None:
    short = show(offline_page, made(n=20, segments={"one": (1, 9), "two": (9, 20)}), width=900)
    assert names_of(short) == []
    assert slots(short, ".aw-figure") == {"-1", "0", "7"}  # the margins are there
    short.choose("Labels", "segments")
    assert sorted(set(names_of(short))) == ["first token", "one", "two"]
    short.check()


@pytest.mark.thorough
def test_without_segments_nothing_is_there(offline_page: OfflinePages) -> None:
    shown = show(offline_page, made(segments=None), width=900)
    assert shown.page.locator(".aw-segment-name, .aw-segment-margin, .aw-segment-lines").count() == 0
    assert shown.page.locator(".aw-menu[aria-label=Labels]").count() == 0


def test_lines_stand_at_the_borders_of_segments_along_both_axes(offline_page: OfflinePages) -> None:
    shown = show(offline_page, made(), width=900)
    box = shown.page.locator("[data-aw=picture]").bounding_box()
    shape = shown.page.locator(".aw-segment-lines path").get_attribute("d")
    assert box is not None
    assert shape is not None
    rows = [float(at) for at in re.findall(r"M0 ([\d.]+)h", shape)]
    columns = [float(at) for at in re.findall(r"M([\d.]+) 0v", shape)]
    borders = [start for start, _ in FLAT.values()][1:]  # the first token is one pixel
    for lines, size in ((rows, box["height"]), (columns, box["width"])):
        assert lines[-len(borders) :] == pytest.approx([size * at / 285 for at in borders], abs=1)
    assert "doc 3" in names_of(shown)
    shown.choose("Labels", "tokens")
    assert shown.page.locator(".aw-segment-lines").count() == 0
    assert names_of(shown) == []
    shown.check()


def test_a_block_is_pinned_read_and_looked_at(offline_page: OfflinePages) -> None:
    w = made()
    shown = show(offline_page, w, width=900)
    name(shown, "answer", "query").click()
    shown.wait_for_lines()
    assert pinned(w)[2:] == ("answer", None)
    assert "answer as queries" in panel(shown)
    name(shown, "doc 3", "key").click()
    shown.wait_for_lines()
    assert pinned(w)[2:] == ("answer", "doc 3")

    weights = weights_of(w, range(258, 285))
    left = weights[:, 1:].sum() / 27
    mass = float(weights[:, 128:168].sum() / 27 / left)
    even = [1.0 / (at + 1) for at in range(258, 285)]
    share = sum(40 * one for one in even) / sum(at * one for at, one in zip(range(258, 285), even, strict=True))
    shown.leave()
    shown.settle()
    said = panel(shown)
    assert f"Mass {mass:.4f}".replace(" 0.", " .") in said
    assert f"Per token {mass / 40:.4f}".replace(" 0.", " .") in said
    assert f"Lift ×{mass / share:.2f}" in said
    assert f"answer 258–284 → doc 3 128–167 mass {mass:.6f}" in status(shown)
    assert "excluded: first token" in said

    block = weights[:, 128:168]
    best = int(block.argmax())
    query, key = 258 + best // 40, 128 + best % 40
    first = " ".join(shown.page.locator(".aw-block-cell").first.inner_text().split())
    assert f"{query} → " in first
    assert first.endswith(f"{float(block.max()):.4f}".removeprefix("0"))
    assert str(key) in first

    ring = shown.page.locator(".aw-block-ring").bounding_box()
    picture = shown.page.locator("[data-aw=picture]").bounding_box()
    assert ring is not None
    assert picture is not None
    assert ring["x"] - picture["x"] == pytest.approx(picture["width"] * 128 / 285, abs=2)
    assert ring["width"] == pytest.approx(picture["width"] * 40 / 285, abs=2)
    assert ring["y"] - picture["y"] == pytest.approx(picture["height"] * 258 / 285, abs=2)

    name(shown, "doc 3", "key").click()
    shown.wait_for_lines()
    shown.leave()
    shown.settle()
    assert is_zoomed(shown)
    shown.screenshot("segments-in-heatmap-cells")
    shown.check()
    facts = " ".join(shown.page.locator("[data-aw=minimap]").inner_text().split())
    assert "Keys doc 3" in facts
    assert "answer" in facts
    assert slots(shown, "[data-aw=minimap]") >= {"0", "3", "7"}
    outside = shown.page.locator(".aw-segment-name[data-outside]").all_inner_texts()
    assert any(text.startswith("doc 3 128–167") for text in outside)
    assert "answer" in outside
    assert shown.page.locator(".aw-label:not(.aw-segment-name)").count() > 20  # tokens

    shown.page.locator(".aw-block-cell").first.click()
    shown.wait_for_lines()
    assert (w.query, w.key) == (query, key)
    assert f"{query} →" in status(shown)
    assert ", doc 3 weight" in status(shown)
    marks = shown.page.locator(".aw-ranks .aw-segment-mark")
    assert marks.count() == shown.page.locator(".aw-ranks button.aw-rank").count()


def test_the_keyboard_goes_from_segment_to_segment_down_and_up(offline_page: OfflinePages) -> None:
    w = made()
    shown = show(offline_page, w, width=900)
    shown.page.locator("[data-aw=picture]").focus()

    def press(key: str) -> None:
        shown.page.keyboard.press(key)
        shown.wait_for_lines()

    press("ArrowDown")
    assert (w.asking, w.segment) == ("answer", "first token")
    press("Shift+ArrowRight")
    assert (w.asking, w.segment) == ("answer", "answer")
    press("ArrowLeft")
    press("ArrowUp")
    assert (w.asking, w.segment) == ("question", "question")
    press("Home")
    press("ArrowRight")
    press("ArrowRight")
    assert w.segment == "doc 1"
    assert live(shown).startswith("question, doc 1, mass .")
    assert live(shown).endswith("times even")
    press("Enter")
    assert is_zoomed(shown)
    press("ArrowDown")  # so close it moves the pinned cell
    assert w.query is not None
    press("Backspace")
    assert not is_zoomed(shown)
    press("Escape")
    assert pinned(w) == (None, None, "question", "doc 1")
    press("Escape")
    assert pinned(w)[2:] == (None, None)


def test_what_lies_inside_a_segment_is_pinned_by_its_path(offline_page: OfflinePages) -> None:
    w = made(segments=NESTED)
    shown = show(offline_page, w, width=900)
    pin_block(shown, "answer", "doc 3")
    assert (w.asking, w.segment, w.segment_path) == ("answer", "doc 3", ["documents"])
    weights = weights_of(w, range(258, 285))
    mass = float(weights[:, 128:168].sum() / weights[:, 1:].sum())
    shown.leave()
    shown.settle()
    assert f"Mass {mass:.4f}".replace(" 0.", " .") in panel(shown)
    name(shown, "doc 2", "query").click()  # asked about on its own level
    shown.wait_for_lines()
    assert w.asking == ["documents", "doc 2"]
    weights = weights_of(w, range(61, 128))
    mass = float(weights[:, 128:168].sum() / weights[:, 1:].sum())
    assert mass == 0.0, "what follows is masked"
    name(shown, "doc 1", "key").click()
    shown.wait_for_lines()
    mass = float((weights[:, 23:61].sum(1)).mean() / weights[:, 1:].sum(1).mean())
    shown.leave()
    shown.settle()
    assert f"Mass {mass:.4f}".replace(" 0.", " .") in panel(shown)
    assert f"doc 2 61–127 → doc 1 23–60 mass {mass:.6f}" in status(shown)


@pytest.mark.thorough
def test_pins_of_nested_segments_survive_going_up_and_down(offline_page: OfflinePages) -> None:
    w = made(segments=NESTED, view="segments", asking=["documents", "doc 4"])
    shown = show(offline_page, w, width=900, height=2400)
    shown.finish()
    shown.wait_for_lines()
    page = shown.page

    def click(name: str) -> None:
        page.locator(f".aw-seg-row[title='{name}']").click()
        shown.wait_for_lines()

    click("documents")
    click("documents")
    click("doc 2")
    assert (w.segment_path, w.segment) == (["documents"], "doc 2")
    page.locator(".aw-seg-up").click()
    shown.wait_for_lines()
    assert (w.segment_path, w.segment, w.asking) == ([], "documents", ["documents", "doc 4"])
    click("documents")
    assert (w.segment_path, w.segment, w.asking) == (["documents"], "doc 2", ["documents", "doc 4"])
    assert page.locator(".aw-seg-row[aria-current]").get_attribute("title") == "doc 2"


@pytest.mark.thorough
def test_a_margin_is_clicked_where_names_have_no_room(offline_page: OfflinePages) -> None:
    many = {f"paragraph {at}": (1 + 3 * at, 4 + 3 * at) for at in range(200)}
    w = made(n=601, segments=many)
    shown = show(offline_page, w, width=1100)
    shown.screenshot("segments-in-heatmap-200")
    shown.check()
    names = [int(text.split()[1]) for text in names_of(shown) if text.startswith("paragraph")]
    assert 60 <= len(names) < 200
    picture = shown.page.locator("[data-aw=picture]").bounding_box()
    assert picture is not None
    hidden = next(at for at in range(60, 200) if at not in names)
    across = picture["x"] + picture["width"] * (1 + 3 * hidden + 1.5) / 601
    shown.page.mouse.move(across, picture["y"] - 5)
    shown.settle()
    assert f"paragraph {hidden}" in names_of(shown)
    shown.page.mouse.click(across, picture["y"] - 5)
    shown.wait_for_lines()
    assert w.segment == f"paragraph {hidden}"
    shown.leave()
    shown.settle()
    assert f"paragraph {hidden}" in names_of(shown)  # pinned it keeps its name


@pytest.mark.thorough
def test_margins_follow_what_is_in_view_of_a_long_head(offline_page: OfflinePages) -> None:
    n = 131_072
    rng = np.random.default_rng(1)
    q, k = rng.normal(size=(2, 1, 1, n, 4)).astype(np.float32)
    chapters = {f"chapter {at}": (1 + at * 8191, 1 + (at + 1) * 8191) for at in range(16)}
    w = AttentionWidget(q, k, is_causal=True, segments=chapters, window=4096)
    shown = show(offline_page, w, width=900)
    assert "chapter 8" in names_of(shown)
    shown.zoom(100_000, 98_000, 8)
    shown.wait_for_lines()
    seen = {text for text in names_of(shown) if text.startswith("chapter")}
    assert seen
    assert seen < set(chapters)
    shown.screenshot("segments-in-heatmap-long")
    shown.check()
    assert shown.page.locator("[data-aw=minimap] .aw-segment-bars").count() == 2
    shown.page.get_by_role("button", name="Whole head").click()
    shown.wait_for_lines()
    assert "chapter 0" in names_of(shown)


@pytest.mark.thorough
@pytest.mark.parametrize("host", ["plain-light", "jupyter-dark"])
@pytest.mark.parametrize("width", [320, 900])
def test_the_text_has_a_stripe_and_names(offline_page: OfflinePages, host: str, width: int) -> None:
    w = made(view="text", query=270)
    shown = show(offline_page, w, host=host, width=width)
    shown.wait_for_lines()
    shown.screenshot(f"segments-in-text-{host}-{width}")
    shown.check()
    lines, stripes = shown.page.locator(".aw-line"), shown.page.locator(".aw-line-segment")
    assert lines.count() == stripes.count() > 5
    assert shown.page.locator(".aw-segment-start").all_inner_texts()[-1].strip() == "answer"
    starts = shown.page.evaluate(
        """() => [...document.querySelectorAll(".aw-segment-start")].map((name) =>
             [name.textContent.trim(), Number(name.parentElement.querySelector(".aw-word").dataset.at)])"""
    )
    assert all(FLAT[text][0] == at for text, at in starts)  # each begins a line
    titles = {stripe.get_attribute("title") for stripe in stripes.all()}
    assert {"question", "answer"} <= titles


@pytest.mark.thorough
def test_the_graph_has_margins_and_bundles_in_the_colors_of_segments(offline_page: OfflinePages) -> None:
    shown = show(offline_page, made(view="graph", query=270), width=900)
    shown.wait_for_lines()
    shown.screenshot("segments-in-graph")
    shown.check()
    titles = {one.get_attribute("title") for one in shown.page.locator(".aw-graph-segment").all()}
    assert "answer" in titles
    legend = shown.page.locator("[data-aw=legend]").inner_text()
    assert "in the color of each key's segment" in legend
    bars = shown.page.evaluate(
        "() => new Set([...document.querySelectorAll('.aw-graph-row > i')].map((i) => i.style.background)).size"
    )
    assert bars > 1
    plain = show(offline_page, made(view="graph", query=270, segments=None), width=900)
    assert plain.page.locator(".aw-graph-segment").count() == 0
    assert "segment" not in plain.page.locator("[data-aw=legend]").inner_text()


@pytest.mark.thorough
@pytest.mark.parametrize("view", ["heatmap", "text", "graph"])
@pytest.mark.parametrize("host", ["plain-light", "jupyter-contrast"])
def test_axe_finds_nothing(offline_page: OfflinePages, view: str, host: str) -> None:
    w = made(segments=NESTED, view=view)
    shown = show(offline_page, w, host=host, width=900)
    if view == "heatmap":
        pin_block(shown, "answer", "doc 3")
    shown.page.evaluate(AXE.read_text(encoding="utf-8"))
    assert shown.page.evaluate(AXE_RUN) == []


@pytest.mark.thorough
def test_forced_colors_keep_the_colors_of_segments(offline_page: OfflinePages) -> None:
    shown = show(offline_page, made(), width=900, forced_colors="active")
    shown.check()
    fills = shown.page.evaluate(
        """() => [...document.querySelectorAll(".aw-figure .aw-segment-bars path")]
             .map((path) => getComputedStyle(path).fill)"""
    )
    assert len(set(fills)) >= 8
    pin_block(shown, "answer", "doc 3")
    shown.screenshot("segments-in-heatmap-forced")
    shown.check()


def test_a_saved_page_has_names_and_colors(offline_page: OfflinePages, tmp_path: Path) -> None:
    w = made()
    w.asking, w.segment = "answer", "doc 3"
    path = tmp_path / "page.html"
    w.to_html(path)
    page = offline_page(path.read_text(encoding="utf-8"), over="file", width=916, height=1000)
    page.page.wait_for_selector(".aw-segment-name")
    page.page.wait_for_selector(".aw-block-ring")
    said = " ".join(page.page.locator("[data-aw=panel]").inner_text().split())
    assert "answer to doc 3 Mass ." in said
    assert page.problems == []
