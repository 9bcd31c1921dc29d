"""The column next to the heatmap that colors each row by its recall: the share of its weights that a cache keeps."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..._messages.codec import decoding
from ..look.colors import Array, hex_of
from ..look.numbers import list_number
from .legend import ramp
from .sheet import FigureContext

NAME = "recall"
WIDTH, GAP = 12, 8  # pixels: width of the column, and the gap next to it


class Recall(NamedTuple):
    """The recall of each drawn row; NaN if it is fully masked or not known yet.

    Attributes:
        values: (rows,), the lowest recall of the queries in a row; empty if there is an error.
        words: the lowest and the mean recall, and the share known.
        error: the reason why there is none, or None.
    """

    values: Array
    words: str
    error: str | None


def recall_of(context: FigureContext, query_bin: int) -> Recall | None:
    """Return the recall of the picture's rows; None if no cache is shown."""
    sent = context.traits.recall
    if sent is None or context.traits.view != "heatmap":
        return None
    values = decoding.decode(sent["values"]).astype(np.float64)
    if sent["error"] is not None:
        return Recall(values[:0], "", sent["error"])
    queries = context.selected.shape.Q
    rows = [
        _least(values, start, min(queries, start + query_bin), sent["every"]) for start in range(0, queries, query_bin)
    ]
    return Recall(np.array(rows), _summary(values, sent["every"], sent["share"]), None)


def _least(values: Array, start: int, stop: int, every: int) -> float:
    some = values[start // every : -(-stop // every)]
    return float(np.nanmin(some)) if not np.isnan(some).all() else float("nan")


def _summary(values: Array, every: int, share: float) -> str:
    """Return a text such as "lowest .412, mean .934", worded as in js/src/views/heatmap/recall.tsx."""
    known = values[~np.isnan(values)]
    so_far = f", of {math.floor(100 * share)} % of the rows so far" if share < 1 else ""
    if not len(known):
        return so_far[2:] if so_far else "every row is fully masked"
    mean = "" if every > 1 else f", mean {list_number(float(known.mean()), 'weights')}"
    return f"lowest {list_number(float(known.min()), 'weights')}{mean}{so_far}"


def column(context: FigureContext, recall: Recall, at: tuple[float, float], cell: float) -> None:
    """Draw a tile for each row with a number, from 0 to 1."""
    (x, y), table = at, context.table("sequential")
    gap = 1 if cell >= 12 else 0
    there = np.flatnonzero(~np.isnan(recall.values))
    boxes = [(x, y + row * cell + gap / 2, WIDTH, cell - gap) for row in there.tolist()]
    fills = [hex_of(table[round(recall.values[row] * 255)]) for row in there.tolist()]
    context.canvas.boxes(boxes, fills, 1.5 if gap else 0)


def key(context: FigureContext, recall: Recall, x: float, y: float) -> float:
    """Draw the meaning of the column's colors, or why it is empty; return the lower end."""
    if recall.error is not None:
        return _wrapped(context, f"Recall of the rows: {recall.error}", x, y + 8)
    _, below = ramp(context, "sequential", "Recall", [(0.0, "0"), (1.0, "1")], (x, y))
    sink = " and on the sink" if context.traits.facts.get("has_sinks") else ""
    return _wrapped(context, f"share of the row's weight on keys in the cache{sink}: {recall.words}", x, below + 8)


def _wrapped(context: FigureContext, text: str, x: float, y: float) -> float:
    """Draw a sentence on as many lines as it needs; return the lower end."""
    line = ""
    for word in [*text.split(), ""]:
        longer = f"{line} {word}".strip()
        if not word or (line and x + context.canvas.measure(longer, 11) > context.right):
            context.canvas.text(x, y, line, size=11, color=context.look.ink2)
            y, line = y + 16, word
        else:
            line = longer
    return y - 8
