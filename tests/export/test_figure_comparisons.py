"""`figure` of a comparison: the colors that the widget gives it, and rows of padding under their veil."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from figure_text import texts

from attnwidget import Attention, AttentionWidget, compare
from attnwidget._export.figure import compare as drawing
from attnwidget._export.figure import heatmap
from attnwidget._export.figure.canvas import Canvas
from attnwidget._export.figure.sheet import FigureContext
from attnwidget._export.look import colors

pytest.importorskip("matplotlib")

A = torch.tensor([[1.0, 0.0], [0.3, 0.7]])
B = torch.tensor([[0.6, 0.4], [0.5, 0.5]])


def two(**show: Any) -> AttentionWidget:
    return compare({"a": Attention.from_weights(A), "b": Attention.from_weights(B)}, view="compare", **show)


def parts(w: AttentionWidget) -> list[drawing.DrawnPart]:
    context = FigureContext(w._export_view(), Canvas(3.3, 96, colors.look_of("light")), "light")
    comparison = drawing._comparison(w._export_view())
    assert comparison is not None
    return drawing._parts(context, comparison)


def on(values: torch.Tensor, most: Any) -> list[list[int]]:
    return np.floor(255 * np.clip(values.numpy() / np.asarray(most), 0, 1) + 0.5).astype(int).tolist()


@pytest.mark.parametrize(
    ("color_range", "most"),
    [
        ("head", 1.0),
        ("layer", 1.0),
        ("view", 1.0),
        ("unit", 1.0),
        ("row", [[1.0], [0.7]]),
        ((0.0, 0.5), 0.5),
    ],
)
def test_both_sides_have_the_range_that_was_chosen(color_range: Any, most: Any) -> None:
    a, b, _ = parts(two(color_range=color_range))
    assert np.abs(a.shades - np.array(on(A, most), int)).max() <= 1
    assert np.abs(b.shades - np.array(on(B, most), int)).max() <= 1


def test_changes_have_a_range_of_their_own_and_the_legend_says_which() -> None:
    assert parts(two())[2].shades[0].tolist() == [1, 255]  # −.4 and +.4, the largest
    assert parts(two(color_range=(0, 0.1)))[2].shades[0].tolist() == [1, 255]
    assert parts(two(color_range="unit"))[2].shades[0].tolist() == [round(1 + 127 * 0.6), round(128 + 127 * 0.4)]
    assert {"row's maximum", "each row has its own range, shared by A and B"} <= set(texts(two(color_range="row")))
    assert "above .5: 3 cells" in texts(two(color_range=(0, 0.5)))


def padded(keep: int, words: list[str], **more: Any) -> AttentionWidget:
    q, k = torch.randn(2, 1, 1, 6, 8, generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(6) < keep).long()[None]
    return AttentionWidget(q, k, mask=mask, mask_means="keep", tokens=words, **more)


WORDS = ["a", "dog", "ran", ".", "[PAD]", "[PAD]"]


def test_rows_of_padding_are_veiled_and_named() -> None:
    w = compare({"a": padded(4, WORDS), "b": padded(4, WORDS)}, view="compare", query=1, key=2)
    assert [one.padded for one in parts(w)] == [[range(4, 6)]] * 3
    assert "rows of padding" in texts(w)


def test_the_veil_is_drawn_over_each_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(heatmap, "veil", lambda _, box: drawn.append(box))
    compare({"a": padded(4, WORDS), "b": padded(4, WORDS)}, view="compare").figure()
    assert len({box[0] for box in drawn}) == 3
    assert len({box[1:] for box in drawn}) == 1


def test_rows_of_padding_of_one_side_are_said_to_be_its_own() -> None:
    others = ["a", "dog", "ran", "far", "away", "."]
    w = compare({"a": padded(4, WORDS), "b": padded(6, others)}, view="compare")
    assert [one.padded for one in parts(w)] == [[range(4, 6)], [], [range(4, 6)]]
    assert "rows of padding of A" in texts(w)


def test_places_of_texts_that_differ_have_their_veil_and_pin() -> None:
    q, k = torch.randn(2, 1, 1, 5, 8, generator=torch.Generator().manual_seed(2))
    shorter = AttentionWidget(q, k, tokens=["a", "ran", ".", "[PAD]", "[PAD]"])
    w = compare({"a": padded(4, WORDS), "b": shorter}, view="compare", query=2, key=3)
    assert parts(w)[0].padded == [range(3, 5)], "without the dog"
    comparison = drawing._comparison(w._export_view())
    assert comparison is not None
    context = FigureContext(w._export_view(), Canvas(3.3, 96, colors.look_of("light")), "light")
    assert drawing._pinned(context, comparison) == [(1, 2)]
    w.query = 1
    assert drawing._pinned(context, comparison) == []
    assert "5 × 5 positions shared by A and B" in texts(w)
