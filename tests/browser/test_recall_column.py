"""The column of recall beside the heatmap: each row colored by what a cache keeps of it, its number, its legend."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from gallery import Gallery, show
from lab import OfflinePages
from lanes import mostly_thorough

from attnwidget import AttentionStack, AttentionWidget
from attnwidget._export.look.numbers import list_number
from attnwidget.samples import load_sample

RULES: dict[str, Any] = {"causal": True, "keep": {"policy": "heavy_hitters", "budget": 8}}


def bank(**more: Any) -> AttentionWidget:
    q, k, v, tokens, mask = load_sample("bank")
    return AttentionWidget(q, k, v, **{"tokens": tokens, "mask": mask, "layer": 5, "head": 7, "what_if": RULES, **more})


def text_of(shown: Gallery, part: str) -> str:
    return " ".join(shown.page.locator(f"[data-aw={part}]").first.inner_text().split())


@pytest.mark.parametrize("sinks", mostly_thorough(True, False))
@pytest.mark.parametrize("host", mostly_thorough("jupyter-light", "jupyter-dark", "jupyter-contrast"))
@pytest.mark.parametrize("width", mostly_thorough(900, 320, 600, 1600))
def test_rows_are_colored_by_recall(offline_page: OfflinePages, host: str, width: int, sinks: bool) -> None:
    w = bank(sinks=torch.linspace(-1, 4, 12)) if sinks else bank()
    shown = show(offline_page, [w], host=host, width=width)
    shown.wait_for_lines()
    assert isinstance(w.attention, AttentionStack)
    att = w.attention[5].what_if({"causal": True})
    exact = att.keep("heavy_hitters", 8, head=7).recall
    box = shown.page.locator("[data-aw=recall]").bounding_box()
    assert box is not None
    shown.screenshot(f"recall-{host}-{width}-{'sinks' if sinks else 'plain'}")
    shown.check()
    query = int(exact.argmin())
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] * (query + 0.5) / w.facts["queries"]
    shown.page.mouse.move(x, y)
    shown.settle()
    found = re.search(r"recall (\S+)", text_of(shown, "status"))
    assert found is not None
    assert float(found[1]) == pytest.approx(float(exact[query]), rel=1e-4)
    assert f"{float(exact.min()):.3f}"[1:4] in text_of(shown, "recall-legend")
    shown.page.mouse.click(x, y)
    shown.settle()
    assert (w.query, w.key) == (query, None)
    w.what_if = {}
    shown.finish()
    shown.settle()
    assert not shown.page.locator("[data-aw=recall]").is_visible()
    assert text_of(shown, "recall-legend") == ""
    shown.check()


LIGHT = """() => {
  const canvas = document.querySelector("[data-aw=recall]");
  const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, 0, 0);
  return [...Array($N).keys()].map((row) => {
    const [r, g, b] = context.getImageData(canvas.width / 2, canvas.height * (row + 0.5) / $N, 1, 1).data;
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  });
}"""


@pytest.mark.parametrize(("host", "sign"), mostly_thorough(("plain-light", -1), ("plain-dark", 1)))
def test_the_slider_of_the_budget_recolors_the_rows(offline_page: OfflinePages, host: str, sign: int) -> None:
    """Rows that keep more are darker on a light page, lighter on a dark one; of another budget they are others."""
    w = bank()
    shown = show(offline_page, [w], host=host, width=900)
    shown.wait_for_lines()
    assert isinstance(w.attention, AttentionStack)
    att = w.attention[5].what_if({"causal": True})
    lights = []
    for budget in (8, 14):
        if budget != 8:
            shown.menu("What if")
            shown.page.get_by_role("slider", name="Keys that the cache holds").fill(str(budget))
            shown.page.wait_for_function("() => document.querySelector('.aw-budget').textContent.includes('14 of')")
            shown.page.keyboard.press("Escape")
        exact = att.keep("heavy_hitters", budget, head=7).recall
        least = f"lowest {list_number(float(exact.min()), 'weights')}"
        shown.page.wait_for_function(
            "(text) => document.querySelector('[data-aw=recall-legend]').textContent.includes(text)", arg=least
        )
        shown.settle()
        lights.append(shown.page.evaluate(LIGHT.replace("$N", str(len(exact)))))
        for one in range(len(exact)):
            for other in range(len(exact)):
                if exact[one] - exact[other] > 0.03:
                    assert sign * (lights[-1][one] - lights[-1][other]) > 0, (budget, one, other)
        assert len({round(light) for light in lights[-1]}) > 2
    assert w.what_if == {"causal": True, "keep": {"policy": "heavy_hitters", "budget": 14}}
    assert lights[0] != lights[1]
    shown.check()


@pytest.mark.thorough
def test_of_the_largest_of_several_heads_a_sentence_stands_there_and_no_column(offline_page: OfflinePages) -> None:
    w = bank()
    w.set_trait("heads", [1, 7])
    w.combine = "mean"
    shown = show(offline_page, [w], width=900)
    shown.wait_for_lines()
    assert shown.page.locator("[data-aw=recall]").is_visible()
    assert "lowest" in text_of(shown, "recall-legend")
    w.combine = "max"
    shown.finish()
    shown.wait_for_lines()
    shown.page.wait_for_function(
        "() => document.querySelector('[data-aw=recall-legend]').textContent.includes('shares')"
    )
    assert not shown.page.locator("[data-aw=recall]").is_visible()
    assert "the largest weights of several heads are not shares of a row" in text_of(shown, "recall-legend")
    shown.check()


@pytest.mark.thorough
def test_a_saved_file_has_the_recall_of_each_head(offline_page: OfflinePages, tmp_path: Path) -> None:
    w = bank(head=7)
    path = tmp_path / "recall.html"
    w.to_html(path, layers="selected", heads=[7, 6])
    page = offline_page(path, over="file", offline=True, width=900, height=900).page
    page.wait_for_selector("[data-aw=recall]")
    legend = page.locator("[data-aw=recall-legend]")
    page.locator("[data-aw=picture]").focus()
    assert isinstance(w.attention, AttentionStack)
    for head, key in ((7, ""), (6, "[")):
        if key:
            page.keyboard.press(key)
        exact = w.attention[5].what_if({"causal": True}).keep("heavy_hitters", 8, head=head).recall
        least = f"lowest {list_number(float(exact.min()), 'weights')}"
        page.wait_for_function(
            "(text) => document.querySelector('[data-aw=recall-legend]').textContent.includes(text)", arg=least
        )
        assert legend.is_visible()
