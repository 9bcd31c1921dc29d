"""The legend of a picture: the ramp with its ends, and every kind of cell present."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._engine.stages import BY_SIZE
from ..._messages.codec.decoding import BLOCKED, MINUS_INF, NAN, NUMBER, PLUS_INF, DecodedMatrix
from ..look import colors
from ..look.numbers import legend_name as _legend_name
from ..look.numbers import legend_ticks, list_number, status_number
from ..look.ranges import range_words
from .padding import veil
from .sheet import FigureContext

RAMP = 218
LEAST_RAMP = 96  # pixels; with less room next to its name, the ramp goes below
TICK_GAP = 0.2  # between labels, as a share of the ramp
PADDED = "padded"
ABOVE, BELOW = "above", "below"  # kinds of cells outside a custom range

Kinds = list[tuple[int | str | None, str]]  # (a kind of cell, drawn as a swatch, or None; a text)


def legend(context: FigureContext, matrix: DecodedMatrix, x: float, y: float, *, has_padding: bool = False) -> float:
    """Draw the ramp with its labels, and every kind of cell present; return the lower end."""
    x = x if context.right - x >= RAMP else context.left
    log = context.traits.color_scale == "log" and matrix.kind == "sequential"
    ticks = range_ticks(matrix, context.traits.color_scale, context.traits.color_range)
    right, y = ramp(context, matrix.kind, legend_name(matrix.stage, context) + (", log" if log else ""), ticks, (x, y))
    words = [
        *cell_kinds(matrix, context.traits.color_scale, context.traits.color_range, has_padding=has_padding),
        *_picture_words(context, matrix),
    ]
    fits = right + 20 + sum(_widths(context, words)) - 16 <= context.right
    return (
        max(y, kinds_line(context, words, matrix.kind, (right + 20, y - 20) if fits else (x, y + 14))) if words else y
    )


def kinds_line(context: FigureContext, words: Kinds, ramp_kind: str, at: tuple[float, float]) -> float:
    """Draw kinds of cells, each next to its swatch, on as many lines as needed; return the lower end."""
    (left, y), x = at, at[0]
    for (kind, text), width in zip(words, _widths(context, words), strict=True):
        if x > left and x + width - 16 > context.right:
            x, y = left, y + 18
        if kind is not None:
            _swatch(context, kind, x, y - 6, context.table(ramp_kind))
        start = x + (18 if kind is not None else 0)
        text = context.canvas.shorten(text, context.right - start, 11)
        context.canvas.text(start, y, text, size=11, color=context.look.ink2)
        x += width
    return y + 8


def _widths(context: FigureContext, words: Kinds) -> list[float]:
    return [context.canvas.measure(text, 11) + (18 if kind is not None else 0) + 16 for kind, text in words]


def ramp(
    context: FigureContext, kind: str, name: str, ticks: Sequence[tuple[float, str]], at: tuple[float, float]
) -> tuple[float, float]:
    """Draw a ramp, its name and its labels; return its right and lower end."""
    canvas, look, (x, y) = context.canvas, context.look, at
    canvas.text(x, y + 4, name, size=11, color=look.ink2)
    start = x + canvas.measure(name, 11) + 12
    if start + LEAST_RAMP > context.right:
        start, y = x, y + 16
    width = min(RAMP, context.right - start)
    canvas.image(context.table(kind)[None], (start, y, width, 8))
    tick_labels(context, ticks, (start, y + 18, width), 10)
    return start + width, y + 24


def tick_labels(
    context: FigureContext, ticks: Sequence[tuple[float, str]], along: tuple[float, float, float], size: float
) -> None:
    """Draw a ramp's labels at their shares of its width (x, y, width); the outer ones stay within it."""
    x, y, width = along
    for at, text in ticks:
        align = "left" if at == 0 else "right" if at == 1 else "center"
        context.canvas.text(x + at * width, y, text, size=size, color=context.look.ink3, align=align)


def scale_ticks(scale: colors.Scale, stage: str, min_gap: float = TICK_GAP) -> list[tuple[float, str]]:
    """Return the labels of a ramp: (share of its width, text)."""
    ticks = legend_ticks(scale.low, scale.high, log=scale.log, stage=stage, min_gap=min_gap)
    at = scale.position(np.array([tick.value for tick in ticks], dtype=np.float64))
    return [(float(share), tick.text) for share, tick in zip(at, ticks, strict=True)]


def range_ticks(matrix: DecodedMatrix, color_scale: str, color_range: Any) -> list[tuple[float, str]]:
    """Return the labels of a matrix's ramp: (share of its width, text)."""
    if color_range == "row":
        ends = ["− row's max.", "0", "row's max."] if matrix.kind == "diverging" else ["0", "row's maximum"]
        return [(at / (len(ends) - 1), text) for at, text in enumerate(ends)]
    return scale_ticks(colors.matrix_scale(matrix, color_scale, color_range), matrix.stage)


def clipped_cells(matrix: DecodedMatrix, color_scale: str, color_range: Any) -> colors.Array:
    """Return which cells have colors that understate their numbers, beyond a fixed range, (rows, columns) bool."""
    beyond, below = _beyond(matrix, color_scale, color_range)
    return beyond | below


def _beyond(matrix: DecodedMatrix, color_scale: str, color_range: Any) -> tuple[colors.Array, colors.Array]:
    """Return the cells above a range (for signed stages: beyond either end), and those below it."""
    none = np.zeros(matrix.kinds.shape, bool)
    if isinstance(color_range, str) and color_range != "unit":
        return none, none
    scale = colors.matrix_scale(matrix, color_scale, color_range)
    there, slack = matrix.kinds == NUMBER, 1e-6 * (scale.high - scale.low)
    values = np.where(there, matrix.values, 0).astype(np.float64)
    if matrix.kind == "diverging":
        return there & (np.abs(values) > scale.high + slack), none
    own = isinstance(color_range, list | tuple)
    low = float(color_range[0]) if own else -np.inf
    return there & (values > scale.high + slack), there & (values < low)


def cell_kinds(matrix: DecodedMatrix, color_scale: str, color_range: Any, *, has_padding: bool) -> Kinds:
    """Return the kinds of cells without numbers, and those outside the range."""
    kinds = matrix.kinds
    found: Kinds = [(BLOCKED, "masked")] if (kinds == BLOCKED).any() else []
    found += [(PADDED, "rows of padding")] if has_padding else []
    for kind, name in ((NAN, "NaN"), (PLUS_INF, "+∞"), (MINUS_INF, "−∞")):
        if many := int((kinds == kind).sum()):
            found.append((kind, f"{name}, {_cells(many)}"))
    return found + _clipped_texts(matrix, color_scale, color_range)


def _picture_words(context: FigureContext, matrix: DecodedMatrix) -> Kinds:
    """Return the colors' range and the pooling, as text."""
    found: Kinds = []
    if words := range_words(matrix, context.traits):
        found.append((None, words))
    if matrix.is_pooled:
        found.append((None, f"each cell: the {pooled_words(matrix)}"))
    if matrix.every > 1:
        found.append((None, f"1 of {matrix.every:,} rows"))
    return found


def pooled_words(matrix: DecodedMatrix) -> str:
    """Return how a cell is pooled, such as `maximum of 4 × 4`."""
    largest = "largest by size" if matrix.stage in BY_SIZE else "maximum"
    return f"{largest if matrix.pool == 'max' else 'mean'} of {matrix.query_bin:,} × {matrix.key_bin:,}"


def legend_name(stage: str, context: FigureContext) -> str:
    """Return the legend's name for a stage's numbers; a logit includes its token."""
    return _legend_name(stage, context.selected.carries, context.traits.batch)


def _clipped_texts(matrix: DecodedMatrix, color_scale: str, color_range: Any) -> Kinds:
    if isinstance(color_range, str) and color_range != "unit":
        return []
    beyond, below = (int(where.sum()) for where in _beyond(matrix, color_scale, color_range))
    scale = colors.matrix_scale(matrix, color_scale, color_range)
    low = color_range[0] if isinstance(color_range, list | tuple) else 0.0
    pooled = "pooled " if matrix.is_pooled else ""
    found: Kinds = []
    if beyond:
        words = "beyond ±" if matrix.kind == "diverging" else "above "
        found.append((ABOVE, f"{words}{_end_text(scale.high, matrix.stage)}: {_cells(beyond, pooled)}"))
    if below:
        found.append((BELOW, f"below {_end_text(low, matrix.stage)}: {_cells(below, pooled)}"))
    return found


def _end_text(value: float, stage: str) -> str:
    """Return an end of a range, with as many digits as the count beside it needs: a rounded end is another one."""
    shortest = (legend_ticks(value, value, log=False, stage=stage)[-1].text, list_number(value, stage))
    is_same = (abs(float(text.replace("−", "-").replace(",", "")) - value) <= 1e-6 * abs(value) for text in shortest)
    return next((text for text, same in zip(shortest, is_same, strict=True) if same), status_number(value))


def _cells(many: int, pooled: str = "") -> str:
    return f"{many:,} {pooled}{'cell' if many == 1 else 'cells'}"


def _swatch(context: FigureContext, kind: int | str, x: float, y: float, table: colors.Array) -> None:
    canvas, look = context.canvas, context.look
    box = (x, y, 12.0, 12.0)
    if kind == BLOCKED:
        canvas.frame(box, 1, look.line, 2.5)
        canvas.lines([[(x + 3.5, y + 8.5), (x + 8.5, y + 3.5)]], 0.9, look.ink3)
    elif kind == PADDED:
        veil(context, box)
        canvas.frame(box, 1, look.line, 2.5)
    elif kind == NAN:
        canvas.boxes([box], [colors.mixed(look.page, look.bad, 0.16)], 2.5)
        cross = [[(x + 3, y + 3), (x + 9, y + 9)], [(x + 3, y + 9), (x + 9, y + 3)]]
        canvas.lines(cross, 1.5, look.bad)
    elif kind == PLUS_INF:
        canvas.boxes([box], [look.ink], 2.5)
    elif kind in (ABOVE, BELOW):
        color = colors.hex_of(table[255 if kind == ABOVE else 0])
        canvas.shape([(x, y), (x + 8, y), (x + 12, y + 4), (x + 12, y + 12), (x, y + 12)], color)
    else:
        canvas.frame(box, 1, look.ink, 2.5)
