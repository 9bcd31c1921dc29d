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


@pytest.mark.parametrize(("width", "theme"), SIZES)
def test_links_of_a_logit_have_signs(offline_page: OfflinePages, width: int, theme: str) -> None:
    w = widget(stage="logit", view="graph", theme=theme, layer=1)
    page = show(offline_page, w, width=width)
    page.screenshot(f"carried-graph-{width}-{theme}")
    w.query = 9
    page = show(offline_page, w, width=width)
    page.screenshot(f"carried-graph-pinned-{width}-{theme}")
    w.heads = [0, 1, 2]
    page = show(offline_page, w, width=width)
    page.screenshot(f"carried-graph-heads-{width}-{theme}")


@pytest.mark.parametrize("stage", ["logit", "value_norm"])
@pytest.mark.parametrize(("width", "theme"), SIZES)
def test_sums_by_segment(offline_page: OfflinePages, width: int, theme: str, stage: str) -> None:
    w = widget(stage=stage, view="segments", theme=theme, layer=1)
    page = show(offline_page, w, width=width)
    page.screenshot(f"carried-segments-{stage}-{width}-{theme}")
    w.segment, w.query = "small", 9
    page = show(offline_page, w, width=width)
    page.screenshot(f"carried-segments-{stage}-pinned-{width}-{theme}")


@pytest.mark.parametrize(("width", "theme"), SIZES)
def test_heads_are_drawn_and_ordered_by_a_stage(offline_page: OfflinePages, width: int, theme: str) -> None:
    w = widget(stage="logit", view="heads", theme=theme, layer=1, query=9, bar="stage_sum", order="stage_sum")
    page = show(offline_page, w, width=width)
    page.screenshot(f"carried-heads-{width}-{theme}")
