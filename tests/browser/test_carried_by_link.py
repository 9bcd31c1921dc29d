"""What weights carry in the graph, by segment and by head: numbers, signs and names are those of the stage."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from captured import GPT2, build
from gallery import show
from lab import OfflinePages
from test_carried_view import TEXT, Words

from attnwidget import AttentionWidget, capture, segments

pytestmark = pytest.mark.thorough  # each commit has test_carried_places.py

PARTS = {"key": (0, 4), "small": (4, 7), "door": (7, 10)}


def widget(**show_: Any) -> AttentionWidget:
    model = build(GPT2, "sdpa")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 4 if parameter.ndim > 1 else 1
    cap = capture(model, gradients=True, tokenizer=Words())
    cap.run(input_ids=torch.arange(3, 3 + len(TEXT))[None])
    cap.backward()
    return cap.widget(segments=segments(PARTS, length=10), **show_)


SIZES = [(360, "light"), (600, "dark"), (900, "light"), (1600, "dark")]


def number(text: str) -> float:
    return float(text.replace("−", "-"))


@pytest.mark.parametrize(("width", "theme"), SIZES)
def test_links_of_a_logit_have_signs_and_their_own_numbers(offline_page: OfflinePages, width: int, theme: str) -> None:
    w = widget(stage="logit", view="graph", theme=theme, layer=1, query=9)
    page = show(offline_page, w, width=width)
    legend = page.page.locator(".aw-graph-legend").inner_text()
    assert f"Logit of {quoted(w)}" in legend
    assert "above 0" in legend
    assert "below" in legend
    shown = [number(text) for text in page.page.locator(".aw-graph-row > span").all_inner_texts()]
    wanted = w._shown.layers[1].block("logit", head=0, queries=9)[0].tolist()
    assert shown == pytest.approx(wanted, abs=6e-4)
    page.screenshot(f"carried-graph-{width}-{theme}")


def quoted(w: AttentionWidget) -> str:
    return f"“{w.facts['targets'][0]['text']}”"


def test_links_of_stages_before_the_weights_are_weights_and_say_so(offline_page: OfflinePages) -> None:
    page = show(offline_page, widget(stage="scores", view="graph"), width=700)
    legend = page.page.locator(".aw-graph-legend").inner_text()
    assert "links are weights: scores are in the heatmap, the text and the stages" in legend


@pytest.mark.parametrize("stage", ["logit", "value_norm"])
@pytest.mark.parametrize(("width", "theme"), SIZES)
def test_sums_by_segment_are_named_and_no_masses(
    offline_page: OfflinePages, width: int, theme: str, stage: str
) -> None:
    w = widget(stage=stage, view="segments", theme=theme, layer=1, segment="small", measure="lift")
    page = show(offline_page, w, width=width)
    wanted = w._shown.layers[1].by_segment("door", segments(PARTS, length=10), head=0, stage=stage)  # type: ignore[arg-type]
    pinned = page.page.locator(".aw-seg-row[aria-current] .aw-number").inner_text()
    assert number(pinned) == pytest.approx(float(wanted.sum[0, wanted.keys.index("small")]), abs=6e-4)
    said = page.page.locator(".aw-segments").inner_text()
    assert {"logit": "logit added", "value_norm": "‖v W_O‖ carried"}[stage] in said
    assert "not a share of 1" in said
    for word in ("even attention", "lift", "Where did"):
        assert word not in said
    page.screenshot(f"carried-segments-{stage}-{width}-{theme}")


@pytest.mark.parametrize(("width", "theme"), SIZES)
def test_heads_are_drawn_and_ordered_by_a_stage(offline_page: OfflinePages, width: int, theme: str) -> None:
    w = widget(stage="logit", view="heads", theme=theme, layer=1, query=9, bar="stage_sum", order="stage_sum")
    page = show(offline_page, w, width=width)
    caption = page.page.locator(".aw-all-heads .aw-prompt").inner_text()
    assert f"Logit of {quoted(w)}, direct path: each picture, − to +" in caption
    assert "the sum of logits over the keys of query 9" in caption
    page.screenshot(f"carried-heads-{width}-{theme}")
