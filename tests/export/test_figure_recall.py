"""The column of recall in figures: its colors are those of the numbers, and what it means stands below."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

from attnwidget import Attention, AttentionWidget
from attnwidget._export.look import colors
from attnwidget._export.look.numbers import list_number

N = 40
KEEP = {"keep": {"policy": "tova", "budget": 9}}


def widget(**show: Any) -> AttentionWidget:
    q, k = torch.randn(2, 1, 2, N, 8, generator=torch.Generator().manual_seed(5)) * 2
    return AttentionWidget(q, k, is_causal=True, what_if=KEEP, **show)


def texts(w: AttentionWidget, **keywords: Any) -> str:
    return " ".join(text.get_text() for text in w.figure(**keywords).axes[0].texts)


def column(w: AttentionWidget) -> np.ndarray[Any, Any]:
    """Return the colors of the column, which is drawn as boxes one below the other: (rows, 3)."""
    each = [one for one in w.figure(theme="light").axes[0].collections if len(one.get_facecolors()) == N]
    (found,) = [one for one in each if len({round(path.vertices[:, 0].min(), 3) for path in one.get_paths()}) == 1]
    return np.array([to_rgb(color) for color in found.get_facecolors()])


def test_each_row_has_the_color_of_its_recall() -> None:
    w = widget(head=1)
    recall = Attention(w.attention.q, w.attention.k, is_causal=True).keep("tova", 9, head=1).recall.numpy()  # type: ignore[union-attr]
    assert recall.min() < 0.9
    table = colors.table("sequential", w.palette, "light")
    np.testing.assert_allclose(column(w), table[np.rint(recall * 255).astype(int)] / 255, atol=1.01 / 255)
    said = f"lowest {list_number(float(recall.min()), 'weights')}, mean {list_number(float(recall.mean()), 'weights')}"
    assert said in texts(w)


@pytest.mark.parametrize("width", [3.0, 8.0])
def test_the_largest_of_several_heads_have_none_and_the_picture_says_why(width: float) -> None:
    w = widget()
    w.set_trait("heads", [0, 1])
    w.combine = "max"
    assert "Recall of the rows: the largest weights of several heads are not shares of a row" in texts(w, width=width)
    w.combine = "mean"
    assert "share of the row's weight on keys in the cache: lowest" in texts(w, width=width)
    w.what_if = {}
    assert "ecall" not in texts(w, width=width)
