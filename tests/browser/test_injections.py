"""Texts that look like markup, and traits and replies of any kind, in a real page: nothing runs, nothing leaves."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gallery
import pytest
import torch
from gallery import portable, show, state_of
from lab import OfflinePages, Page
from payloads import PAYLOADS

from attnwidget import Attention, AttentionStack, AttentionWidget, compare

VIEWS: Any = ("heatmap", "graph", "text", "heads", "stages")
COUNT = len(PAYLOADS)
# What no text may ever become; `img` and `canvas` of the widget's own are made by it.
FOREIGN = "script, iframe, meta, base, link, style, object, form, marquee, video, details, math, [onerror], [onload], a"


def attentions() -> AttentionStack:
    q, k, v = torch.randn(3, 1, 2, COUNT, 4, generator=torch.Generator().manual_seed(0))
    return AttentionStack([Attention(q, k, v), Attention(k, q, v)], names=PAYLOADS[:2])


def stacks(**more: Any) -> AttentionWidget:
    return AttentionWidget.from_attention(
        {PAYLOADS[0]: attentions(), PAYLOADS[12]: attentions()}, tokens=PAYLOADS, title=PAYLOADS[13], query=3, key=5,
        **more,
    )  # fmt: skip


def heard(page: Page) -> list[str]:
    """What a page does that only markup could make it do."""
    found: list[str] = []

    def dismiss(dialog: Any) -> None:
        found.append(f"dialog {dialog.message}")
        dialog.dismiss()

    page.page.on("dialog", dismiss)
    page.page.on("framenavigated", lambda frame: found.append(f"went to {frame.url}"))
    page.page.on("popup", lambda popup: found.append(f"opened {popup.url}"))
    return found


def assert_nothing_ran(page: Page, found: list[str]) -> None:
    assert found == []
    assert page.blocked == []
    assert page.page.evaluate("() => window.ran ?? null") is None
    assert page.page.locator(".attnwidget").locator(FOREIGN).count() == 0
    assert page.problems == []


def put(shown: gallery.Gallery) -> None:
    """Bring the page to what the widget shows in Python."""
    shown.page.evaluate(
        "(state) => window.mounted[0].host.fromPython(attnwidgetHost.reviveState(state))",
        portable(state_of(shown.widgets[0])),
    )
    shown.settle()


def test_there_are_enough() -> None:
    assert len(set(PAYLOADS)) >= 60


def test_no_text_becomes_markup_in_any_view(offline_page: OfflinePages) -> None:
    shown = show(offline_page, stacks(), width=900)
    found, w = heard(shown.shown), shown.widgets[0]
    for view in VIEWS:
        w.view = view
        put(shown)
        for fraction in (0.1, 0.5, 0.9):
            box = shown.page.locator("[data-aw=picture]").first.bounding_box()
            assert box is not None
            shown.page.mouse.move(box["x"] + fraction * box["width"], box["y"] + fraction * box["height"])
            shown.page.wait_for_timeout(30)
        assert_nothing_ran(shown.shown, found)
    w.view = "heatmap"
    for payload in PAYLOADS:
        shown.page.evaluate(
            "(text) => { const { host } = window.mounted[0]; const facts = host.get('facts');"
            " host.fromPython({ title: text, errors: { thumbnails: text }, facts: { ...facts, layers: [text, text],"
            " dtype: text, device: text } }); host.tell({ refused: text }); }",
            payload,
        )
    shown.page.wait_for_timeout(200)
    assert_nothing_ran(shown.shown, found)


def test_no_name_of_a_side_becomes_markup(offline_page: OfflinePages) -> None:
    q, k, v = torch.randn(3, 1, 2, COUNT, 4)
    sides = {PAYLOADS[1]: Attention(q, k, v), PAYLOADS[12]: Attention(k, q, v)}
    shown = show(offline_page, compare(sides, tokens=PAYLOADS, title=PAYLOADS[0], query=3), width=900)
    found = heard(shown.shown)
    shown.hover(5, 5)
    shown.page.wait_for_timeout(100)
    assert_nothing_ran(shown.shown, found)


@pytest.mark.parametrize("view", VIEWS)
def test_no_text_becomes_markup_in_a_file(view: str, offline_page: OfflinePages, tmp_path: Path) -> None:
    name = "<img src=x onerror=window.ran=1>.html"
    path = stacks(view=view).to_html(tmp_path / name, title=PAYLOADS[12] + PAYLOADS[0])
    page = offline_page(path, over="file", offline=True, width=900, height=900, reduced_motion="reduce")
    found = heard(page)
    page.page.wait_for_selector("[data-aw=picture][aria-label]", timeout=20_000)
    page.rest()
    assert page.page.locator("meta[http-equiv=refresh]").count() == 0
    assert page.page.title() == PAYLOADS[12] + PAYLOADS[0]
    assert_nothing_ran(page, found)


GARBLE = """([names, rounds]) => {
  const { host } = window.mounted[0];
  const good = Object.fromEntries(names.map((name) => [name, host.get(name)]));
  const odd = [null, true, -1, 1.5, NaN, "", "x", [], [null], [[1, 2, 3]], {}, { length: -1 }, { layers: 3 },
    { values: { shape: null } }, { data: "", dtype: "float32", shape: [1e9, 1e9], deflated: false },
    { rows: 1e9, columns: 1e9, query: 0, key: 0 }, "<img src=x onerror=window.ran=1>"];
  let state = 7;
  const lot = (from) => from[(state = (Math.imul(state, 1664525) + 1013904223) >>> 0) % from.length];
  const thrown = [];
  for (let n = 0; n < rounds; n++) {
    try {
      host.fromPython({ [lot(names)]: lot(odd), [lot(names)]: lot(odd) });
      if (n % 5 === 0) host.fromPython(good);
    } catch (error) {
      thrown.push(String(error));
    }
  }
  host.fromPython(good);
  return thrown;
}"""


@pytest.mark.parametrize("view", VIEWS)
def test_traits_of_any_kind_leave_a_page_that_good_ones_draw(view: Any, offline_page: OfflinePages) -> None:
    w = AttentionWidget(*torch.randn(3, 1, 3, 12, 4), tokens=list("abcdefghijkl"), query=3, key=5, view=view)
    shown = show(offline_page, w, width=900)
    found = heard(shown.shown)
    names = [name for name in state_of(w) if name != "uid"]
    assert shown.page.evaluate(GARBLE, [names, 400]) == []
    shown.page.wait_for_timeout(300)
    assert shown.page.locator("[data-aw=broken]").count() == 0
    assert shown.page.locator("[data-aw=picture]").count() > 0
    assert_nothing_ran(shown.shown, found)


def garbling(seed: int, answerer_as_it_is: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return an `answerer` whose replies are of any kind."""
    dice = random.Random(seed)
    odd: list[Any] = [
        None,
        {},
        [],
        "x",
        -1,
        {"values": 3},
        {"values": {"dtype": "float32", "shape": [2, 2], "data": "AA=="}},
    ]

    def answerer(widgets: Any) -> Any:
        real = answerer_as_it_is(widgets)

        def answer(index: int, request: dict[str, Any]) -> Any:
            reply = real(index, request)
            if dice.random() < 0.5:
                return dice.choice(odd)
            return {name: dice.choice([inner, *odd]) for name, inner in reply.items()}

        return answer

    return answerer


@pytest.mark.parametrize("view", VIEWS)
def test_replies_of_any_kind_are_said_or_left_out(
    view: Any, offline_page: OfflinePages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "answerer", garbling(3, gallery.answerer))
    w = AttentionWidget(*torch.randn(3, 1, 3, 600, 4), is_causal=True, view=view)
    shown = show(offline_page, w, width=900)
    found = heard(shown.shown)
    for step in range(12):
        box = shown.page.locator("[data-aw=picture]").first.bounding_box()
        assert box is not None
        at = (step + 1) / 14
        shown.page.mouse.move(box["x"] + at * box["width"], box["y"] + (1 - at) * box["height"])
        if step % 3 == 0:
            shown.page.mouse.click(box["x"] + at * box["width"], box["y"] + at * box["height"])
        shown.page.wait_for_timeout(40)
    assert shown.page.locator("[data-aw=picture]").count() > 0
    assert_nothing_ran(shown.shown, found)
