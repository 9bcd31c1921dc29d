"""Figures of the graph, all heads and segments in the stages that weights carry: numbers, signs, units, themes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from captured import GPT2, batch, build
from figure_text import page, texts

from attnwidget import Attention, AttentionStack, AttentionWidget, Capture, capture
from attnwidget._export.figure.graph_geometry import Link, bands, keep_links, lane
from attnwidget._export.look import colors
from attnwidget._export.look.numbers import list_number
from attnwidget._utils.assets import stage_names

pytest.importorskip("matplotlib")

SIGNED = ("logit", "saliency")
CARRIED = (*SIGNED, "value_norm", "contribution")
SEGMENTS = {"system": (0, 3), "doc 1": (3, 6), "question": (6, 9), "answer": (9, 12)}
QUERY = 9


@pytest.fixture(scope="module")
def cap() -> Capture:
    found = capture(build(GPT2, "sdpa"), gradients=True).run(input_ids=batch()["input_ids"])
    found.backward()
    return found


def shown(cap: Capture, **show: Any) -> AttentionWidget:
    segments = {"segments": SEGMENTS} if show.get("view") == "segments" else {}
    w = cap.widget(**{"layer": 1, "batch": 1, **segments, **show})
    w.finish()
    return w


def ends(theme: str) -> tuple[str, str]:
    table = colors.table("diverging", "default", theme)
    return colors.hex_of(table[255]), colors.hex_of(table[0])


@pytest.mark.parametrize("stage", CARRIED)
def test_a_graph_has_the_numbers_of_the_stage_beside_the_keys(cap: Capture, stage: str) -> None:
    written = texts(shown(cap, view="graph", stage=stage, query=QUERY))
    row = cap.attention[1].block(stage, batch=1, head=0, queries=QUERY)[0]
    for value in row.tolist():
        if abs(value) > 0.02 * float(row.abs().max()):
            assert list_number(value, "scores") in written
    legend = " ".join(written)
    assert stage_names(stage)["legend"].split(",")[0].split(" of")[0] in legend
    assert "band width = size" in legend
    assert "band width = weight" not in legend


@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.thorough), "dark"])
def test_links_have_the_colors_of_the_two_ways_from_zero(cap: Capture, theme: str) -> None:
    w = shown(cap, view="graph", stage="logit", query=QUERY)
    row = cap.attention[1].block("logit", batch=1, head=0, queries=QUERY)[0]
    assert (row > 0).any()
    assert (row < 0).any()
    drawn = page(w, theme=theme)
    for color in ends(theme):
        assert drawn.count(color) >= 3  # bands, bars, legend
    w.stage = "weights"
    plain = page(w, theme=theme)
    assert not any(color in plain for color in ends(theme))


def test_a_band_is_as_wide_as_its_number_is_large_whatever_its_sign() -> None:
    links = [Link(0, 0, 0, -4.0, 4.0), Link(0, 1, 0, 2.0, 4.0), Link(0, 2, 0, 0.0, 4.0)]
    drawn, _ = bands(keep_links(links, None, 0), "query", lane(3, None), lane(3, None))
    widths = {band.link.key: band.width0 for band in drawn}
    assert set(widths) == {0, 1}
    assert widths[0] == pytest.approx(2 * widths[1])
    assert [link.key for link in keep_links(links, 1, 0)] == [0]
    assert [link.key for link in keep_links(links, None, 0.6)] == [0]


def test_a_learned_sink_is_no_key_of_what_weights_carry() -> None:
    q, k, v = torch.randn(3, 1, 2, 6, 4, generator=torch.Generator().manual_seed(1))
    w = AttentionWidget(Attention(q, k, v, sinks=torch.zeros(2)), view="graph", query=3)
    assert "sink" in texts(w)
    w.stage = "contribution"
    assert "sink" not in texts(w)


@pytest.mark.parametrize("stage", SIGNED)
def test_a_text_is_marked_in_the_colors_of_both_signs(cap: Capture, stage: str) -> None:
    query = cap.attention[1].shape.Q - 1  # of the loss, whose gradient is 0 in all others
    row = cap.attention[1].block(stage, batch=1, head=0, queries=query)[0]
    assert (row > 0).any()
    assert (row < 0).any()
    drawn = page(shown(cap, view="text", stage=stage, query=query))
    fills = {tuple(int(one[at : at + 2], 16) for at in (0, 2, 4)) for one in re.findall(r"fill: #([0-9a-f]{6})", drawn)}
    assert any(red - blue > 40 for red, _, blue in fills)  # orange: above 0
    assert any(blue - red > 40 for red, _, blue in fills)  # blue: below


@pytest.mark.parametrize("stage", SIGNED)
def test_pictures_of_all_heads_have_signs_and_their_sums(cap: Capture, stage: str) -> None:
    w = shown(cap, view="heads", stage=stage, query=QUERY, bar="stage_sum")
    said = " ".join(texts(w))
    assert "from − to + has its own color range" in said
    sums = [float(att.block(stage, batch=1, head=h, queries=QUERY).sum()) for att in cap.attention for h in range(4)]
    most = max(map(abs, sums))
    assert f"over the keys of query {QUERY}, −{most:.3g} to {most:.3g}" in said


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_picture_of_a_head_is_painted_by_the_diverging_ramp(cap: Capture, theme: str) -> None:
    from matplotlib.image import AxesImage

    w = shown(cap, view="heads", stage="logit")
    pictures = w.figure(theme=theme).findobj(AxesImage)
    assert len(pictures) == 8
    pixels = np.asarray(pictures[4].get_array())[..., :3]  # layer 1, head 0
    cells = cap.attention[1].block("logit", batch=1, head=0)
    largest = np.unravel_index(int(cells.abs().argmax()), cells.shape)
    table = colors.table("diverging", "default", theme)
    assert pixels.shape[:2] == cells.shape
    assert pixels[largest].tolist() == table[255 if cells[largest] > 0 else 1].tolist()


def test_heads_of_layers_without_the_stage_are_empty_and_counted() -> None:
    from matplotlib.image import AxesImage

    q, k, v = torch.randn(3, 1, 2, 6, 4, generator=torch.Generator().manual_seed(1))
    plain = Attention(q, k, v)
    known = plain.carrying(grad_output=torch.randn(1, 2, 6, 4, generator=torch.Generator().manual_seed(2)))
    w = AttentionWidget(AttentionStack([known, plain]), view="heads", stage="saliency")
    assert "2 heads have no saliencies: their pictures are empty." in texts(w)
    assert len(w.figure().findobj(AxesImage)) == 2


@pytest.mark.parametrize("stage", CARRIED)
def test_segments_have_sums_of_the_stage(cap: Capture, stage: str) -> None:
    w = shown(cap, view="segments", stage=stage, aside=[])
    written = texts(w)
    cells = cap.attention[1].block(stage, batch=1, head=0, queries=range(9, 12))
    for start, stop in SEGMENTS.values():  # the first token stands by itself
        assert list_number(float(cells[:, max(1, start) : stop].sum(1).mean()), stage) in written
    assert "not a share of 1" in written
    assert not any(text.startswith("×") for text in written)  # no lift
    signs = {"above the line +, below −"} if stage in SIGNED else set()
    assert signs <= set(written)
    assert "1" not in written  # their axis is no share's


def test_where_no_query_may_look_there_is_a_slash_and_no_tile(cap: Capture) -> None:
    w = shown(cap, view="segments", stage="logit", aside=["sink"])
    slash = colors.mixed(colors.look_of("light").page, colors.look_of("light").ink, 0.2)
    assert page(w).count(f"stroke: {slash}") == 6  # above the diagonal of 4 × 4


@pytest.mark.parametrize("view", ["graph", "heads", "segments"])
@pytest.mark.parametrize("width", [3.3, pytest.param(7, marks=pytest.mark.thorough)])
def test_nothing_sticks_out_of_a_signed_figure(cap: Capture, view: str, width: float) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = shown(cap, view=view, stage="logit", query=None if view == "segments" else QUERY).figure(width=width)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    across, _ = canvas.get_width_height()
    for text in figure.axes[0].texts:
        box = text.get_window_extent(canvas.get_renderer())
        assert -2 <= box.x0 <= box.x1 <= across + 2, text.get_text()


def test_stages_before_the_weights_are_drawn_and_called_as_weights(cap: Capture) -> None:
    w = shown(cap, view="graph", stage="scaled", query=QUERY)
    assert "band width = weight" in texts(w)
    w.view = "heads"
    assert any("Each picture is of weights" in text for text in texts(w))
