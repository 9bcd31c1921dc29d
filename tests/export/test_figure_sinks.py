"""A learned sink in figures: its column beside the pictures, its node in the graph."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from figure_text import texts

from attnwidget import AttentionWidget

pytest.importorskip("matplotlib")


def widget(n: int, sinks: Any = 1.0, **show: Any) -> AttentionWidget:
    q, k, v = torch.randn(3, 1, 3, n, 8, generator=torch.Generator().manual_seed(1))
    return AttentionWidget(q, k, v, sinks=sinks, **{"is_causal": True, **show})


@pytest.mark.parametrize("view", ["heatmap", "graph"])
@pytest.mark.parametrize("n", [1, 600])
def test_the_sink_is_named(view: Any, n: int) -> None:
    assert "sink" in texts(widget(n, view=view, query=n - 1))
    assert "sink" not in texts(widget(n, sinks=None, view=view, query=n - 1))


def test_its_numbers_are_written_beside_those_of_the_keys() -> None:
    q = torch.zeros(1, 4)
    w = AttentionWidget(q, torch.zeros(3, 4), sinks=torch.tensor([1.0986123]))  # log 3: as much as all three keys
    assert texts(w)[:4] == [".17", ".17", ".17", ".50"]


@pytest.mark.parametrize(
    ("color_range", "stage"), [("head", "scores"), ("row", "weights"), ("unit", "masked"), ([0.0, 0.5], "weights")]
)
def test_every_range_and_stage_is_drawn(color_range: Any, stage: Any) -> None:
    assert ("sink" in texts(widget(8, stage=stage, color_range=color_range))) == (stage != "scores")


def test_the_graph_says_what_goes_to_it() -> None:
    w = widget(6, sinks=torch.tensor([9.0, 9.0, 9.0]), view="graph", query=0, direction="key", heads=[0, 1])
    found = texts(w)
    assert found.count("sink") == 1
    assert max(text for text in found if re.fullmatch(r"\.?\d+\.?\d*", text)) is not None
    weights = w.attention[0] if hasattr(w.attention, "names") else w.attention
    mean = sum(float(weights.sink_weights(0, head)[0]) for head in (0, 1)) / 2
    assert f"{mean:.3f}".removeprefix("0") in found


@pytest.mark.parametrize("view", ["heatmap", "graph", "stages"])
@pytest.mark.parametrize("n", [2, 200])
def test_nothing_sticks_out(view: Any, n: int) -> None:
    figure = widget(n, tokens=[f"word{i}" for i in range(n)], query=n - 1, key=n // 2, view=view).figure()
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    width, height = canvas.get_width_height()
    for text in figure.axes[0].texts:
        box = text.get_window_extent(canvas.get_renderer())
        assert -1 <= box.x0 <= box.x1 <= width + 1, text.get_text()
        assert -1 <= box.y0 <= box.y1 <= height + 1, text.get_text()
