"""Many segments and nested ones in the segments view: names told apart, what is set aside, keys, and saved files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gallery import Gallery
from lab import OfflinePages
from lanes import mostly_thorough
from test_segments_view import heard, long_story, ready, story, text

from attnwidget import AttentionWidget

Show = Callable[..., Gallery]

NAMES = """(part) => [...document.querySelectorAll(part)].map((one) => ({
  title: one.title,
  text: one.querySelector("bdi").textContent,
  isCut: one.querySelector("bdi").parentElement.scrollWidth > one.querySelector("bdi").parentElement.clientWidth + 1,
}))"""
BEYOND = """() => {
  const all = document.querySelector(".attnwidget").getBoundingClientRect();
  return [...document.querySelectorAll(".aw-seg-aside, .aw-seg-aside-name")]
    .filter((one) => one.getBoundingClientRect().right > all.right + 0.5)
    .map((one) => one.textContent);
}"""


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    AttentionWidget.close_all()


@pytest.mark.parametrize("width", mostly_thorough(600, 340, 900))
def test_names_of_200_segments_are_told_apart(gallery: Show, width: int) -> None:
    w = long_story(200, 40)
    w.segment = "passage 107"
    shown = gallery(w, width=width, height=2400)
    ready(shown)
    shown.screenshot(f"segments-200-{width}")
    parts = ["button.aw-seg-row:not(.aw-seg-key)", *([".aw-seg-header > button"] if width > 500 else [])]
    for part in parts:
        names = shown.page.evaluate(NAMES, part)
        texts = [one["text"] for one in names]
        assert len(texts) > 4
        assert len({*texts}) == len(texts), texts
        assert [one["title"] for one in names if one["isCut"]] == []
        assert "passage 107" in [one["title"] for one in names], "the whole name is there on hover"
        if "header" in part:
            assert texts[:-1] == [one["title"] for one in names[:-1]], "aslant they are whole"


@pytest.mark.thorough
@pytest.mark.parametrize("width", [340, 600, 900])
def test_each_part_says_what_is_set_aside(gallery: Show, width: int) -> None:
    w = long_story(40, 40)
    w.aside = ["sink", "self", "passage 3"]
    shown = gallery(w, width=width, height=2400)
    ready(shown)
    for part in (".aw-seg-legend", ".aw-seg-rows", ".aw-seg-foot"):
        said = text(shown, part)
        assert "excluded: first token" in said, part
        assert "passage 3" in said, part
        assert "own key" in said, part
    assert shown.page.evaluate(BEYOND) == []


@pytest.mark.thorough
def test_where_nothing_is_set_aside_nothing_says_so(gallery: Show) -> None:
    shown = gallery(story(aside=[]), width=900)
    ready(shown)
    assert "all heads" not in text(shown, ".aw-seg-foot")
    for part in (".aw-seg-legend", ".aw-seg-rows", ".aw-seg-foot"):
        assert "aside" not in text(shown, part), part


FOCUSED = "() => document.activeElement?.dataset.aw ?? ''"


def tab_to(shown: Gallery, part: str, key: str) -> None:
    """Press Tab, or Shift and Tab, until a picture has the focus."""
    for _ in range(60):
        shown.page.keyboard.press(key)
        if shown.page.evaluate(FOCUSED) == part:
            return
    raise AssertionError(f"{key} does not lead to {part}")


def test_tab_leads_from_segments_to_tokens_to_heads_and_back(gallery: Show) -> None:
    w = story(layer=1, head=1, segment="doc 3")
    shown = gallery(w, width=900)
    ready(shown)
    page = shown.page
    page.locator("[data-aw=picture]").focus()
    page.keyboard.press("ArrowRight")
    assert heard(shown).startswith("answer token The 98, doc 3, mass .")
    tab_to(shown, "segment-matrix", "Tab")
    page.keyboard.press("ArrowUp")
    assert heard(shown).startswith("question, doc 3, mass .")
    page.keyboard.press("Enter")
    shown.wait_for_lines()
    assert w.asking == "question"
    tab_to(shown, "segment-heads", "Tab")
    page.keyboard.press("Home")
    assert ", question, doc 3, mass ." in heard(shown)
    page.keyboard.press("ArrowLeft")
    shown.wait_for_lines()
    assert w.segment == "doc 2"
    tab_to(shown, "segment-matrix", "Shift+Tab")
    page.keyboard.press("ArrowDown")
    assert heard(shown).startswith("answer, doc 2, mass .")
    tab_to(shown, "picture", "Shift+Tab")
    page.keyboard.press("End")
    assert heard(shown).startswith("question token ? 97, doc 2, mass .")


@pytest.mark.thorough
def test_a_saved_file_says_which_level_it_has_of_another_head(offline_page: OfflinePages, tmp_path: Path) -> None:
    path = story(layer=1, head=1, segment="doc 3").to_html(tmp_path / "saved.html", heads="all")
    page = offline_page(path, over="file", offline=True, width=900, height=2000, reduced_motion="reduce").page
    page.locator("button.aw-seg-row[title='doc 3']").click()
    page.wait_for_selector(".aw-seg-up")
    inside = page.locator("button.aw-seg-row:not(.aw-seg-key)").evaluate_all("(all) => all.map((one) => one.title)")
    assert "first sentence" in inside
    page.locator(".aw-heads button").nth(2).click()
    page.wait_for_selector("text=only the outermost segments are in the file")
    page.wait_for_function("() => document.querySelector('.aw-seg-up') === null")
    rows = page.locator("button.aw-seg-row:not(.aw-seg-key)").evaluate_all("(all) => all.map((one) => one.title)")
    assert {"doc 1", "doc 2", "doc 3", "answer"} <= {*rows}
    assert "Where did the answer look" in page.locator(".aw-seg-heading").first.inner_text()
