"""Rows of padding queries, whose attention is meaningless: a veil is drawn over them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..._messages.codec.decoding import DecodedMatrix
from ..look import padding
from ..look.colors import rgb_of
from .sheet import FigureContext

VEIL = 0.62  # opacity of the page color over them
STEP = 7.0  # pixels between the veil's lines

Box = tuple[float, float, float, float]


def padded_runs(
    context: FigureContext,
    matrix: DecodedMatrix,
    places: tuple[Sequence[int] | None, Sequence[int] | None] = (None, None),
) -> list[range]:
    """Return the runs of rows whose queries are all padding.

    Args:
        places: the positions of the picture's queries and keys; None for all.
    """
    queries, keys = (
        labels if some is None else [labels[at] for at in some]
        for labels, some in zip((context.queries, context.keys), places, strict=True)
    )
    start = context.traits.picture.get("padding")
    if start is not None and places[0] is not None:
        start = sum(at < start for at in places[0])  # positions are in text order
    has_tokens, lengths = context.view.tokens("query") is not None, (len(queries), len(keys))
    padded = padding.padded_queries(lengths, queries, keys, start, has_tokens=has_tokens)
    return padding.runs(padding.padded_rows(padded, matrix.query_bin))


def veil(context: FigureContext, box: Box) -> None:
    """Draw a veil with slanted lines over a box."""
    x, y, width, height = box
    red, green, blue = (part / 255 for part in rgb_of(context.look.page))
    context.canvas.boxes([box], [(red, green, blue, VEIL)])
    starts = np.arange(STEP - height, width, STEP)  # where each line starts at the bottom, from the left edge
    left, right = np.clip(starts, 0, width), np.clip(starts + height, 0, width)
    below, above = y + height - (left - starts), y + height - (right - starts)
    lines = np.stack([np.stack([x + left, below], 1), np.stack([x + right, above], 1)], 1)
    context.canvas.lines(lines, 0.75, context.look.ink, 0.16)
