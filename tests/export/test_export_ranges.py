"""What the colors of figures and of the small picture span: what the widget's span, or words that say what else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from figure_text import texts

from attnwidget import AttentionWidget
from attnwidget._export.look import colors
from attnwidget._export.look.ranges import range_words, with_range
from attnwidget._export.still import preview
from attnwidget._messages.codec.decoding import of_picture

pytest.importorskip("matplotlib")


def two_heads(n: int = 6, **show: Any) -> AttentionWidget:
    """Head 0 attends evenly, head 1 to single keys: on its own range head 0 looks as strong."""
    q, k = torch.randn(2, 1, 2, n, 8, generator=torch.Generator().manual_seed(3))
    return AttentionWidget(q * torch.tensor([0.05, 9.0])[:, None, None], k, **show)


def strongest(w: AttentionWidget) -> int:
    """The color, of 256, of the selected head's greatest weight."""
    matrix = with_range(of_picture(w._export_view().picture), w)
    return int(colors.entries(matrix, w.color_scale, w.color_range).max())


def test_the_range_of_the_layer_is_that_of_its_strongest_head() -> None:
    alone, together = two_heads(), two_heads(color_range="layer")
    most = [float(together.attention.block("weights", head=head).max()) for head in (0, 1)]
    assert most[1] > 4 * most[0]
    assert strongest(alone) == 255
    assert strongest(together) == pytest.approx(255 * most[0] / most[1], abs=1)
    assert "range of the layer's heads" in texts(together)


def test_the_small_picture_has_the_range_of_the_layer_too() -> None:
    drawn = [
        preview.preview_of(two_heads(color_range=name, theme="light")._export_view()) for name in ("head", "layer")
    ]
    assert drawn[0] is not None
    assert drawn[1] is not None
    assert drawn[0].png != drawn[1].png
    words = preview._words_of(
        two_heads(color_range="layer")._export_view(), of_picture(two_heads()._export_view().picture)
    )
    assert "range of this head" not in words.lines[-1]
    assert words.lines[-1].endswith("range of the layer's heads")


def test_where_no_range_of_the_layer_is_known_the_legend_says_whose_it_is() -> None:
    scores = two_heads(color_range="layer", stage="scores")
    matrix = of_picture(scores._export_view().picture)
    assert with_range(matrix, scores) is matrix
    assert "range of this head" in texts(scores)


def test_a_figure_shows_the_whole_head_and_says_that_its_range_is_that() -> None:
    shown = two_heads(color_range="view")
    assert strongest(shown) == 255
    assert "range of the whole head" in texts(shown)


def test_of_long_heads_the_legend_says_how_many_rows_were_looked_at() -> None:
    w = two_heads(2048, color_range="layer")
    rows = w.thumbnails["rows"]
    assert rows < 2048
    words = range_words(of_picture(w._export_view().picture), w)
    assert words == f"range of the layer's heads, from {rows:,} rows per head"
    assert np.isfinite(with_range(of_picture(w._export_view().picture), w).high or np.nan)
