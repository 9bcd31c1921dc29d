"""Rows of queries that are padding: nobody asked for what they attend to, so a veil is drawn over them.

The rules are those of js/src/state/padding.ts: said only where it is known, by tokens or by a mask.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ..._messages.decoding import DecodedMatrix
from ..colors import rgb_of
from .sheet import FigureContext

PADDING = re.compile(r"[\[<|]*_?pad(ding)?_?[\]>|]*", re.IGNORECASE)  # special tokens where a text has ended
LOOKED_AT = 1024  # of a longer axis tokens are not looked through
VEIL = 0.62  # how much of the page's color is over them
STEP = 7.0  # pixels from one line of the veil to the next

Box = tuple[float, float, float, float]


def padded_rows(context: FigureContext, matrix: DecodedMatrix) -> list[range]:
    """Return the runs of rows of a picture all of whose queries are padding."""
    padded = _padded(context, matrix)
    found: list[range] = []
    for row in range(len(matrix.values)):
        if not padded[row * matrix.query_bin : (row + 1) * matrix.query_bin].all():
            continue
        if found and found[-1].stop == row:
            found[-1] = range(found[-1].start, row + 1)
        else:
            found.append(range(row, row + 1))
    return found


def _padded(context: FigureContext, matrix: DecodedMatrix) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each query whether it is padding: its token says so, or a padding mask blocks its own key."""
    start, is_long = context.traits.picture.get("padding"), matrix.queries > LOOKED_AT
    queries, keys = context.queries, context.keys
    padded = np.zeros(matrix.queries, bool)
    if not is_long:
        padded[:] = [label.special and PADDING.fullmatch(label.text) is not None for label in queries]
    if start is None or matrix.queries != matrix.keys or context.view.tokens("query") is None:
        return padded
    if is_long:
        padded[start:] = queries[0].text == keys[0].text
    else:
        padded[start:] |= [query.text == key.text for query, key in zip(queries[start:], keys[start:], strict=True)]
    return padded


def veil(context: FigureContext, box: Box) -> None:
    """Draw a veil with slanting lines over a box."""
    x, y, width, height = box
    red, green, blue = (part / 255 for part in rgb_of(context.look.page))
    context.canvas.boxes([box], [(red, green, blue, VEIL)])
    starts = np.arange(STEP - height, width, STEP)  # where each line begins below, from the left edge
    left, right = np.clip(starts, 0, width), np.clip(starts + height, 0, width)
    below, above = y + height - (left - starts), y + height - (right - starts)
    lines = np.stack([np.stack([x + left, below], 1), np.stack([x + right, above], 1)], 1)
    context.canvas.lines(lines, 0.75, context.look.ink, 0.16)
