"""`figure` of a padded batch: rows of queries that are padding do not look like rows that were asked for."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
import torch

from attnwidget import AttentionWidget

pytest.importorskip("matplotlib")

WORDS = ["a", "dog", "ran", ".", "[PAD]", "[PAD]"]


def widget(words: list[str] | None, length: int = 6, keep: int = 4, **show: Any) -> AttentionWidget:
    q, k = torch.randn(2, 1, 1, length, 8, generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(length) < keep).long()[None]
    return AttentionWidget(q, k, mask=mask, mask_means="keep", tokens=words, **show)


def svg(w: AttentionWidget) -> str:
    page = io.StringIO()
    w.figure().savefig(page, format="svg")
    return page.getvalue()


def rows(w: AttentionWidget, many: int) -> np.ndarray[Any, Any]:
    """How strong the colors of each row of a drawn picture are, from the top: the spread of red, green and blue."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = w.figure(dpi=96)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[:, :, :3].astype(int)
    strong = (pixels.max(-1) - pixels.min(-1)).max(1)
    there = np.flatnonzero(strong[: int(len(strong) * 0.78)] > 20)
    parts = np.array_split(strong[there[0] : there[-1] + 1], many)
    return np.array([part[len(part) // 4 : -len(part) // 4].max() for part in parts])  # without the edges


@pytest.mark.parametrize("words", [WORDS, ["a", "dog", "ran", ".", "x", "x"]])
def test_rows_of_padding_are_veiled_and_named(words: list[str]) -> None:
    w = widget(words)
    assert "rows of padding" in svg(w)
    veiled, plain = rows(w, 6), rows(widget(None), 6)  # without tokens nothing tells that queries are padding
    assert (veiled[4:] < 0.6 * plain[4:]).all()
    assert (veiled[:4] > 0.9 * plain[:4]).all()


def test_where_nothing_tells_of_padding_no_row_is_veiled() -> None:
    for w in (widget(None), widget(WORDS[:4], 4), AttentionWidget(*torch.randn(2, 6, 8), tokens=list("abcdef"))):
        assert "rows of padding" not in svg(w)


def test_a_long_text_is_veiled_where_all_queries_of_a_row_are_padding() -> None:
    page = svg(widget([f"t{i}" for i in range(1500)], 1500, 1000))
    assert "rows of padding" in page
    assert re.search(r">\s*each cell: the maximum of", page)
