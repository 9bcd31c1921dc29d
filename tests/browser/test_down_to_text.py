"""From a segment down to its cells: the text turns to that page, scrolls there and marks both; and the way back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from gallery import Gallery
from lanes import mostly_thorough
from test_axe import found, look

from attnwidget import AttentionWidget

Show = Callable[..., Gallery]

WORDS = ["the", "key", "hangs", "on", "a", "nail", "beside", "kitchen", "door", "daughter", "put", "it", "there", "."]
SHORT = {"doc 1": (1, 200), "doc 2": (200, 420), "question": (420, 560), "answer": (560, 600)}
LONG = {"doc 1": (1, 9_000), "doc 2": (9_000, 9_050), "question": (9_050, 19_960), "answer": (19_960, 20_000)}


def made(segments: dict[str, tuple[int, int]]) -> AttentionWidget:
    """A text whose tokens attend to all before them."""
    n = segments["answer"][1]
    rng = np.random.default_rng(3)
    q, k = rng.normal(size=(2, 1, 2, n, 4)).astype(np.float32)
    tokens = ["[CLS]", *(WORDS[at] for at in rng.integers(0, len(WORDS), n - 1))]
    return AttentionWidget(q, k, is_causal=True, tokens=tokens, segments=segments, view="segments")


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    AttentionWidget.close_all()


def go_down(shown: Gallery, name: str) -> None:
    """Pin a segment in the list, and open it."""
    shown.page.locator(f".aw-seg-row[title='{name}']").click()
    shown.wait_for_lines()
    shown.page.locator(f".aw-seg-row[title='{name}']").click()
    shown.page.wait_for_selector(".aw-plot[data-zoomed]")
    shown.wait_for_lines()


def choose_view(shown: Gallery, name: str) -> None:
    shown.page.get_by_role("tab", name=name).click()
    shown.page.wait_for_selector(".aw-passages" if name == "Text" else ".aw-main")
    shown.wait_for_lines()


def marked(shown: Gallery, side: str) -> list[int]:
    """The positions of the marked tokens that are in sight."""
    at: list[int] = shown.page.evaluate(
        """(side) => {
          const box = document.querySelector(".aw-flow").getBoundingClientRect();
          return [...document.querySelectorAll(`.aw-line[data-marked=${side}] .aw-word`)]
            .filter((word) => { const { top, bottom } = word.getBoundingClientRect();
                                return top >= box.top - 1 && bottom <= box.bottom + 1; })
            .map((word) => Number(word.dataset.at));
        }""",
        side,
    )
    return at


def wait_for_marked(shown: Gallery, side: str, first: int) -> None:
    """Wait until the text is scrolled to where the mark of one side begins."""
    shown.page.wait_for_function(
        """([side, first]) => {
          const box = document.querySelector(".aw-flow")?.getBoundingClientRect();
          const word = document.querySelector(`.aw-line[data-marked=${side}] .aw-word[data-at='${first}']`);
          const at = word?.getBoundingClientRect();
          return at && at.top >= box.top - 1 && at.bottom <= box.bottom + 1;
        }""",
        arg=[side, first],
    )


@pytest.mark.parametrize("segments", mostly_thorough(SHORT, LONG), ids=["600 tokens", "20,000 tokens"])
@pytest.mark.parametrize("width", mostly_thorough(900, 360))
def test_the_text_is_scrolled_to_the_place_and_there_is_a_way_back(
    gallery: Show, segments: dict[str, tuple[int, int]], width: int
) -> None:
    w = made(segments)
    shown = gallery(w, width=width, height=1800)
    shown.finish()
    shown.wait_for_lines()
    go_down(shown, "doc 2")
    if width == 360:
        shown.choose("View", "Text")
        shown.wait_for_lines()
    else:
        choose_view(shown, "Text")
    start, stop = segments["doc 2"]
    wait_for_marked(shown, "key", start)
    assert set(marked(shown, "key")) <= set(range(start, stop))
    shown.screenshot(f"segments-text-marked-{segments['answer'][1]}-{width}")
    shown.check()
    legend = " ".join(shown.page.locator(".aw-marked").inner_text().split())
    first, last = segments["answer"]
    assert legend == f"marked: answer {first:,}–{last - 1:,} → doc 2 {start:,}–{stop - 1:,}"
    heard = shown.page.locator(".aw-column > [aria-live]").inner_text()
    assert heard.startswith(f"marked: queries {first:,}–{last - 1:,} of answer")

    shown.page.locator(".aw-marked button").first.click()  # to the queries, perhaps on another page
    shown.wait_for_lines()
    wait_for_marked(shown, "query", first)
    assert set(marked(shown, "query")) <= set(range(first, last))
    shown.page.locator(".aw-marked button").last.click()
    shown.wait_for_lines()
    wait_for_marked(shown, "key", start)

    shown.page.locator("[data-aw=picture]").focus()
    shown.page.keyboard.press("Escape")
    shown.page.wait_for_selector(".aw-seg-row[title='doc 2'][aria-current]")
    shown.wait_for_lines()
    assert (w.view, w.segment, w.segment_path) == ("segments", "doc 2", [])


@pytest.mark.thorough
def test_the_mark_leaves_with_the_next_pin(gallery: Show) -> None:
    w = made(SHORT)
    shown = gallery(w, width=900, height=1800)
    shown.finish()
    shown.wait_for_lines()
    go_down(shown, "doc 2")
    choose_view(shown, "Text")
    wait_for_marked(shown, "key", 200)
    shown.page.locator(".aw-word[data-at='205']").click()
    shown.wait_for_lines()
    assert w.query == 205
    assert shown.page.locator("[data-marked], .aw-marked").count() == 0
    shown.page.get_by_role("button", name="‹ segments").click()  # the way back stays
    shown.page.wait_for_selector(".aw-seg-row[title='doc 2']")
    assert w.view == "segments"


@pytest.mark.thorough
@pytest.mark.parametrize("theme", ["light", "dark", "contrast"])
def test_axe_finds_nothing_in_a_marked_text(gallery: Show, theme: str) -> None:
    shown = gallery(made(SHORT), width=600, height=1800)
    shown.finish()
    shown.wait_for_lines()
    go_down(shown, "doc 2")
    choose_view(shown, "Text")
    wait_for_marked(shown, "key", 200)
    look(shown, theme)
    assert found(shown) == []
    shown.screenshot(f"segments-text-marked-{theme}-600")


@pytest.mark.thorough
def test_in_forced_colors_the_marks_are_told_by_their_stripes(gallery: Show) -> None:
    shown = gallery(made(SHORT), width=600, height=1800, forced_colors="active")
    shown.finish()
    shown.wait_for_lines()
    go_down(shown, "doc 2")
    choose_view(shown, "Text")
    wait_for_marked(shown, "key", 200)
    wide = shown.page.evaluate(
        """() => [...document.querySelectorAll(".aw-line-segment")].map((stripe) =>
             [stripe.hasAttribute("data-marked"), stripe.getBoundingClientRect().width,
              getComputedStyle(stripe).backgroundColor])"""
    )
    marked_ones = [color for is_marked, width, color in wide if is_marked and width > 4]
    others = [color for is_marked, width, color in wide if not is_marked and width < 4]
    assert marked_ones
    assert others
    assert set(marked_ones) != set(others)
    shown.screenshot("segments-text-marked-forced")
    shown.check()


@pytest.mark.thorough
def test_the_heatmap_is_at_the_block_also_after_the_text(gallery: Show) -> None:
    shown = gallery(made(SHORT), width=900, height=1800)
    shown.finish()
    shown.wait_for_lines()
    go_down(shown, "doc 2")
    choose_view(shown, "Text")
    wait_for_marked(shown, "key", 200)
    choose_view(shown, "Heatmap")
    shown.page.wait_for_selector(".aw-plot[data-zoomed]")
    shown.wait_for_lines()
    facts = " ".join(shown.page.locator("[data-aw=minimap]").inner_text().split())
    queries, keys = re.findall(r"(\d+) – (\d+)", facts)
    assert int(queries[0]) <= 560 < 599 <= int(queries[1])
    assert 150 < int(keys[0]) <= 200 < 419 <= int(keys[1]) < 450


def test_on_the_way_back_nothing_has_moved(gallery: Show) -> None:
    segments = {"doc 1": (1, 100), "doc 2": (100, 200), "answer": (200, 1_400)}
    shown = gallery(made(segments), width=900, height=1800)
    shown.finish()
    shown.wait_for_lines()
    scroller = shown.page.locator(".aw-seg-tokens > .aw-seg-scroller")
    shown.page.locator(".aw-seg-row[title='doc 2']").click()
    shown.wait_for_lines()
    shown.page.locator(".aw-seg-labels button[title='answer']").last.click(modifiers=["Shift"])  # a second one
    shown.settle()
    before = shown.page.locator(".aw-seg-caption").first.inner_text()
    assert "doc 2 and answer" in before
    scroller.evaluate("(node) => { node.scrollTop = 1000; }")
    shown.wait_for_lines()
    shown.page.locator(".aw-seg-row[title='doc 2']").click()
    shown.page.wait_for_selector(".aw-plot[data-zoomed]")
    shown.wait_for_lines()
    shown.page.get_by_role("button", name="‹ segments").click()
    shown.page.wait_for_function(
        "() => document.querySelector('.aw-seg-tokens > .aw-seg-scroller')?.scrollTop === 1000"
    )
    shown.wait_for_lines()
    assert shown.page.locator(".aw-seg-caption").first.inner_text() == before
