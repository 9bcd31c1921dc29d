"""The first picture, drawn before the front-end is unpacked: the same pixels in the same place, and nothing moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gallery import HOSTS, MARGIN, answerer, front_end_files, portable, state_of, taker
from lab import OfflinePages, Page

from attnwidget import AttentionWidget, masks, segments
from attnwidget.samples import load_sample

SCRIPT = """
import * as module from "./widget.js";
const { mount, reviveState } = attnwidgetHost;
const seen = (root) => {
  const canvas = root.querySelector(".aw-plot canvas");
  const box = (node) => { const { x, y, width, height } = node.getBoundingClientRect(); return [x, y, width, height]; };
  const labels = [...root.querySelectorAll(".aw-figure :is(.aw-label, .aw-axis-title, .aw-tick)")].map((node) => {
    const { color, fontSize, fontWeight, backgroundColor } = getComputedStyle(node);
    return JSON.stringify([node.textContent, box(node), color, fontSize, fontWeight, backgroundColor]);
  });
  const title = root.querySelector(".aw-title");
  const [x, y, , height] = title ? box(title) : [];
  return { pixels: canvas.toDataURL(), place: box(canvas), labels, title: [title?.textContent, x, y, height] };
};
window.shifts = [];
new PerformanceObserver((list) => shifts.push(...list.getEntries().map(({ value }) => value))).observe({
  type: "layout-shift",
  buffered: true,
});
const el = document.querySelector(".mount");
new MutationObserver(() => {
  const root = el.querySelector("[data-first]");
  if (root?.querySelector(".aw-plot canvas") && !window.first) window.first = seen(root);
}).observe(el, { childList: true, subtree: true });
window.last = () => seen(el.querySelector(".attnwidget"));
window.start = (state) =>
  mount(module, el, reviveState(state), {
    answer: async (request) => reviveState(await window.answer(0, request)),
    take: (changes) => window.take(0, changes),
  });
"""


def open_page(offline_page: OfflinePages, w: AttentionWidget, host: str, width: int) -> Page:
    html = (
        '<!doctype html><meta charset="utf-8"><title>attnwidget</title><link rel="stylesheet" href="widget.css">'
        f"<style>html{{scrollbar-width:none}}body{{margin:{MARGIN}px}}</style>{HOSTS[host]}"
        f'<div class="mount"></div><script src="host.js"></script><script type="module">{SCRIPT}</script>'
    )
    page = offline_page(html, files=front_end_files(), width=width + 2 * MARGIN, height=1200, reduced_motion="reduce")
    page.expose("answer", answerer([w]))
    page.expose("take", taker([w]))
    page.page.wait_for_function("() => typeof window.start === 'function'")
    page.page.evaluate("(state) => window.start(state)", portable(state_of(w)))
    page.page.wait_for_function(
        "() => document.querySelector('[data-aw=picture]')?.style.width && !document.querySelector('[data-first]')"
    )
    page.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page


def bank(**more: Any) -> AttentionWidget:
    q, k, v, tokens, mask = load_sample("bank")
    return AttentionWidget(q, k, v, **{"tokens": tokens, "mask": mask, "layer": 5, "head": 7, **more})


def drawn(queries: int, keys: int | None = None, **more: Any) -> AttentionWidget:
    source = torch.Generator().manual_seed(queries)
    q, k = torch.randn(queries, 8, generator=source), torch.randn(keys or queries, 8, generator=source)
    return AttentionWidget(q, k, **more)


WIDGETS: dict[str, tuple[Callable[[], AttentionWidget], str, int]] = {
    "a sentence, all heads": (bank, "plain-light", 900),
    "a title, in larger text": (lambda: bank(title="The bank"), "jupyter-large", 1300),
    "numbers in cells": (lambda: drawn(5, tokens=list("abcab"), is_causal=True), "jupyter-dark", 1100),
    "scores on a diverging scale": (lambda: drawn(40, stage="scores"), "vscode-dark", 900),
    "few queries": (lambda: drawn(3, 60, palette="viridis", color_scale="log"), "plain-dark", 760),
    "positions": (lambda: drawn(300, mask=masks.padding([280]), color_range="row"), "jupyter-contrast", 1100),
    "padding": (
        lambda: drawn(12, tokens=["a"] * 9 + ["[PAD]"] * 3, mask=masks.padding([9])),
        "plain-light",
        900,
    ),
    "a long head": (lambda: drawn(1500, tokens=["word"] * 1500, is_causal=True), "plain-light", 1100),
}


@pytest.mark.parametrize("case", WIDGETS)
def test_it_is_the_widgets_own_and_nothing_moves(case: str, offline_page: OfflinePages) -> None:
    make, host, width = WIDGETS[case]
    page = open_page(offline_page, make(), host, width)
    first, last = page.page.evaluate("() => [window.first, window.last()]")
    assert first is not None
    assert first["place"] == last["place"]
    assert first["title"] == last["title"]
    assert len(first["labels"]) > 3
    assert set(first["labels"]) <= set(last["labels"])
    assert first["pixels"] == last["pixels"]
    assert page.page.evaluate("() => window.shifts") == []


PLAIN: dict[str, Any] = {"tokens": list("abcd")}


@pytest.mark.parametrize(
    ("make", "width"),
    [
        (lambda: drawn(4, **PLAIN, query=2), 900),
        (lambda: drawn(4, **PLAIN, view="graph"), 900),
        (lambda: drawn(4, **PLAIN, what_if={"temperature": 2.0}), 900),
        (lambda: drawn(4, **PLAIN, segments=segments({"one": (0, 2), "two": (2, 4)})), 900),
        (lambda: drawn(4, **PLAIN), 500),
    ],
    ids=["pinned", "another view", "what if", "segments", "narrow"],
)
def test_what_it_does_not_know_is_left_to_the_front_end(
    make: Callable[[], AttentionWidget], width: int, offline_page: OfflinePages
) -> None:
    page = open_page(offline_page, make(), "plain-light", width)
    assert page.page.evaluate("() => window.first") is None
