"""What the colors of a picture mean: the ramp with its ends, and every kind of cell that is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._engine.stages import BY_SIZE
from ..._messages.decoding import BLOCKED, MINUS_INF, NAN, NUMBER, PLUS_INF, DecodedMatrix
from .. import colors
from ..numbers import legend_name as _legend_name
from ..numbers import legend_ticks
from ..ranges import range_words
from .padding import veil
from .sheet import FigureContext

RAMP = 218
LEAST_RAMP = 96  # pixels; where there are fewer beside its name, it stands below
TICK_GAP = 0.2  # of a ramp, between two of its labels
PADDED = "padded"
ABOVE, BELOW = "above", "below"  # kinds of cells that a range of one's own cuts off


def legend(context: FigureContext, matrix: DecodedMatrix, x: float, y: float, *, has_padding: bool = False) -> float:
    """Draw the ramp with its labels, and every kind of cell that is there; return where it ends."""
    x = x if context.right - x >= RAMP else context.left
    log = context.traits.color_scale == "log" and matrix.kind == "sequential"
    ticks = _ticks(matrix, context.traits.color_scale, context.traits.color_range)
    right, y = ramp(context, matrix.kind, legend_name(matrix.stage, context) + (", log" if log else ""), ticks, (x, y))
    words = kind_texts(context, matrix)
    if has_padding:
        words.insert(sum(kind == BLOCKED for kind, _ in words), (PADDED, "rows of padding"))
    widths = [context.canvas.measure(text, 11) + (18 if kind else 0) + 16 for kind, text in words]
    fits = right + 20 + sum(widths) - 16 <= context.right
    at, line = (right + 20, y - 20) if fits else (x, y + 14)
    for (kind, text), width in zip(words, widths, strict=True):
        if not fits and at > x and at + width - 16 > context.right:
            at, line = x, line + 18
        if kind is not None:
            _swatch(context, kind, at, line - 6, context.table(matrix.kind))
        start = at + (18 if kind is not None else 0)
        text = context.canvas.shorten(text, context.right - start, 11)
        context.canvas.text(start, line, text, size=11, color=context.look.ink2)
        at += width
    return max(y, line + 8) if words else y


def ramp(
    context: FigureContext, kind: str, name: str, ticks: Sequence[tuple[float, str]], at: tuple[float, float]
) -> tuple[float, float]:
    """Draw a ramp, its name and its labels; return where it ends, on the right and below."""
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
    """Draw the texts of a ramp (x, y, width) at their shares of its width; the outermost stay within it."""
    x, y, width = along
    for at, text in ticks:
        align = "left" if at == 0 else "right" if at == 1 else "center"
        context.canvas.text(x + at * width, y, text, size=size, color=context.look.ink3, align=align)


def scale_ticks(scale: colors.Scale, stage: str, min_gap: float = TICK_GAP) -> list[tuple[float, str]]:
    """Return what a ramp is labeled with: (share of its width, text)."""
    ticks = legend_ticks(scale.low, scale.high, log=scale.log, stage=stage, min_gap=min_gap)
    at = scale.position(np.array([tick.value for tick in ticks], dtype=np.float64))
    return [(float(share), tick.text) for share, tick in zip(at, ticks, strict=True)]


def _ticks(matrix: DecodedMatrix, color_scale: str, color_range: Any) -> list[tuple[float, str]]:
    if color_range == "row":
        ends = ["− row's most", "0", "row's most"] if matrix.kind == "diverging" else ["0", "row's maximum"]
        return [(at / (len(ends) - 1), text) for at, text in enumerate(ends)]
    return scale_ticks(colors.matrix_scale(matrix, color_scale, color_range), matrix.stage)


def clipped_cells(matrix: DecodedMatrix, color_scale: str, color_range: Any) -> colors.Array:
    """Return where a color understates its number, (rows, columns) bool: beyond a range that was fixed."""
    beyond, below = _beyond(matrix, color_scale, color_range)
    return beyond | below


def _beyond(matrix: DecodedMatrix, color_scale: str, color_range: Any) -> tuple[colors.Array, colors.Array]:
    """Return the cells above a range (of those with signs: beyond either end), and those below it."""
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


def kind_texts(context: FigureContext, matrix: DecodedMatrix) -> list[tuple[int | str | None, str]]:
    """Return what there is beside numbers, and of what each cell is one."""
    kinds, color_range = matrix.kinds, context.traits.color_range
    found: list[tuple[int | str | None, str]] = [(BLOCKED, "masked")] if (kinds == BLOCKED).any() else []
    for kind, name in ((NAN, "NaN"), (PLUS_INF, "+∞"), (MINUS_INF, "−∞")):
        if many := int((kinds == kind).sum()):
            found.append((kind, f"{name}, {_cells(many)}"))
    found += _clipped_texts(matrix, context.traits.color_scale, color_range)
    if words := range_words(matrix, context.traits):
        found.append((None, words))
    if matrix.is_pooled:
        largest = "largest by size" if matrix.stage in BY_SIZE else "maximum"
        what = largest if matrix.pool == "max" else "mean"
        found.append((None, f"each cell: the {what} of {matrix.query_bin:,} × {matrix.key_bin:,}"))
    if matrix.every > 1:
        found.append((None, f"1 of {matrix.every:,} rows"))
    return found


def legend_name(stage: str, context: FigureContext) -> str:
    """Return what a legend calls the numbers of a stage, of a logit with its token."""
    carries = context.selected.carries
    if carries is None or carries.targets is None:
        return _legend_name(stage)
    target = carries.named(carries.targets[context.traits.batch])
    return _legend_name(stage, target, before_cap=carries.is_before_cap)


def _clipped_texts(matrix: DecodedMatrix, color_scale: str, color_range: Any) -> list[tuple[int | str | None, str]]:
    if isinstance(color_range, str) and color_range != "unit":
        return []
    beyond, below = (int(where.sum()) for where in _beyond(matrix, color_scale, color_range))
    scale = colors.matrix_scale(matrix, color_scale, color_range)
    low = color_range[0] if isinstance(color_range, list | tuple) else 0.0
    pooled = "pooled " if matrix.is_pooled else ""
    found: list[tuple[int | str | None, str]] = []
    if beyond:
        words = "beyond ±" if matrix.kind == "diverging" else "above "
        found.append((ABOVE, f"{words}{_end_text(scale.high, matrix.stage)}: {_cells(beyond, pooled)}"))
    if below:
        found.append((BELOW, f"below {_end_text(low, matrix.stage)}: {_cells(below, pooled)}"))
    return found


def _end_text(value: float, stage: str) -> str:
    return legend_ticks(value, value, log=False, stage=stage)[-1].text


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
