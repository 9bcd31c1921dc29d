"""A heatmap, drawn: cells, labels, pins, legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, floor, log10
from typing import Any, NamedTuple

import numpy as np

from ..._messages import decoding
from ..._messages.decoding import BLOCKED, MINUS_INF, NAN, NUMBER, PLUS_INF, DecodedMatrix
from ..._tokens.display import Label
from .. import colors
from ..numbers import cell_number, legend_ticks
from .sheet import SINK, FigureContext

LARGEST = 44  # pixels of a cell
TALLEST = 1.5  # times its width, of a picture with more queries than keys
LABELS_FROM = 5  # pixels of a cell; below, positions at ticks
ROUND_FROM = 12  # from here on cells have gaps and round corners
NUMBERS_FROM = 22
SLASHES_FROM = 10
SUBSCRIPTS_FROM = 16  # above the picture
APART = 14  # pixels between two labels
LARGEST_LABEL = 160
RAMP = 218
TICK_GAP = 0.2  # of a ramp, between two of its labels
SINK_GAP = 8  # pixels between the picture and that column
LEAST_SINK = 8  # pixels that it is wide, at least

# What a legend calls the numbers of a stage, as js/src/contract/stages.ts has it.
LEGENDS = {
    "scores": "Score",
    "scaled": "Scaled",
    "capped": "Capped",
    "masked": "Masked",
    "weights": "Weight",
    "contribution": "Contribution ‖weight · v‖",
}

Box = tuple[float, float, float, float]


class Place(NamedTuple):
    """Where a picture stands, and how large its cells are."""

    x: float
    y: float
    cell: float
    rows: int
    columns: int

    @property
    def width(self) -> float:
        return self.cell * self.columns

    @property
    def height(self) -> float:
        return self.cell * self.rows


def draw(context: FigureContext, top: float) -> float:
    """Draw the picture, its labels and its legend; return where they end."""
    traits = context.traits
    matrix = decoding.of_picture(context.view.picture)
    place = placed(context, matrix, top)
    cells(context, matrix, place, traits.color_scale, traits.color_range)
    if matrix.sink is not None:
        sink_column(context, matrix, place, (traits.color_scale, traits.color_range))
        _sink_name(context, matrix, place)
    labels(context, matrix, place)
    pins(context, matrix, place)
    return legend(context, matrix, place.x, place.y + place.height + 14)


def placed(context: FigureContext, matrix: DecodedMatrix, top: float) -> Place:
    """Return where the picture stands: as large as fits beside the labels, which take more space the larger it is."""
    rows, columns = matrix.values.shape
    left = context.left + _query_labels_width(context, matrix) + 8
    width = context.right - left
    for _ in range(3):  # slanting labels stick out on the right
        cell = min(LARGEST, width / columns, TALLEST * (context.right - left) / rows)
        out = max(_overhang(context, matrix, cell), _sink_width(context, matrix, cell))
        width = min(context.right - left, context.right - left - out)
    return Place(left, top + _key_labels_height(context, matrix, cell), cell, rows, columns)


def sink_column(
    context: FigureContext,
    matrix: DecodedMatrix,
    place: Place,
    scale: tuple[str, Any],
    *,
    gap: float = SINK_GAP,
    least: float = LEAST_SINK,
) -> None:
    """Draw the column of the learned sink, right of the picture and in its colours, at least so many pixels wide."""
    assert matrix.sink is not None
    wide = _sink_columns(place.cell, least)
    values = np.repeat(matrix.sink[:, None], wide, axis=1)
    kinds = np.where(np.isnan(values), NAN, NUMBER).astype(np.uint8)
    beside = replace(
        matrix, values=np.hstack([matrix.values, values]), kinds=np.hstack([matrix.kinds, kinds]), sink=None
    )
    index = colors.entries(beside if scale[1] != "row" else _within_rows(beside, wide), *scale)[:, -wide:]
    at = place._replace(x=place.x + place.width + gap, columns=wide)
    cells(context, replace(matrix, values=values, kinds=kinds), at, *scale, index=index)


def _within_rows(matrix: DecodedMatrix, wide: int) -> DecodedMatrix:
    """Return the same with the last columns no larger than the others of their row, which give it its range."""
    numbers = np.where(matrix.kinds == NUMBER, np.abs(matrix.values), 0)[:, :-wide].max(axis=1, keepdims=True)
    return replace(matrix, values=np.clip(matrix.values, -numbers, numbers))


def _sink_columns(cell: float, least: float = LEAST_SINK) -> int:
    """Return how many columns of a picture the sink is as wide as: one, or more of a hairline."""
    return max(1, ceil(least / cell))


def _sink_name(context: FigureContext, matrix: DecodedMatrix, place: Place) -> None:
    slant = place.cell >= LABELS_FROM and matrix.key_bin == 1
    x = place.x + place.width + SINK_GAP + place.cell * _sink_columns(place.cell) / 2
    label, size = Label(SINK, "", False), _size(place.cell)
    _above(context, x, place.y - (6 if slant else 24), label, size, slant, False, place.cell)


def cells(
    context: FigureContext,
    matrix: DecodedMatrix,
    place: Place,
    color_scale: str,
    color_range: Any,
    *,
    index: colors.Array | None = None,
) -> None:
    """Draw a tile for every number, none for what is masked; `index` is which of the table's colours each cell has."""
    table, look = context.table(matrix.kind), context.look
    index = colors.entries(matrix, color_scale, color_range) if index is None else index
    painted = table[index]
    page, ink, bad = (colors.rgb_of(color) for color in (look.page, look.ink, look.bad))
    tint = colors.rgb_of(colors.mixed(look.page, look.bad, 0.16))
    small = place.cell < 6
    special = {BLOCKED: page, NAN: bad if small else tint, PLUS_INF: ink, MINUS_INF: ink if small else page}
    for kind, color in special.items():
        painted[matrix.kinds == kind] = color
    if place.cell < ROUND_FROM:
        context.canvas.image(painted, (place.x, place.y, place.width, place.height))
    else:
        there = np.argwhere((matrix.kinds != BLOCKED) & (matrix.kinds != MINUS_INF))
        boxes = [_box(place, row, column) for row, column in there]
        fills = [colors.hex_of(painted[row, column]) for row, column in there]
        context.canvas.boxes(boxes, fills, _radius(place.cell))
    _marks(context, matrix, place)
    if place.cell >= NUMBERS_FROM:
        _numbers(context, matrix, place, table[index])


def _marks(context: FigureContext, matrix: DecodedMatrix, place: Place) -> None:
    """Draw a slash where nothing is allowed, a cross where a number is none."""
    canvas, look, cell = context.canvas, context.look, place.cell
    if cell >= SLASHES_FROM:
        reach = min(5.0, cell * 0.2)
        middle = _middles(place, np.argwhere(matrix.kinds == BLOCKED))
        slash = np.array([[-reach, reach], [reach, -reach]])
        if len(middle):
            canvas.lines(middle[:, None] + slash, 0.75, look.ink, 0.2)
    if cell >= 6:
        reach = min(4.0, cell * 0.25)
        middle = _middles(place, np.argwhere(matrix.kinds == NAN))
        for cross in ([[-reach, -reach], [reach, reach]], [[-reach, reach], [reach, -reach]]):
            if len(middle):
                canvas.lines(middle[:, None] + np.array(cross), 1.5, look.bad)
        for row, column in np.argwhere(matrix.kinds == MINUS_INF):
            canvas.frame(_box(place, row, column), 1, look.ink, _radius(cell))


def _numbers(context: FigureContext, matrix: DecodedMatrix, place: Place, painted: colors.Array) -> None:
    size = 9 if place.cell < 28 else 10 if place.cell < 34 else 11
    most = max(abs(matrix.low or 0), abs(matrix.high or 0)) or 1
    for row, column in np.argwhere(matrix.kinds == NUMBER):
        value = float(matrix.values[row, column])
        text = cell_number(value, matrix.stage)
        if text == "" or context.canvas.measure(text, size) > place.cell - 2:
            continue
        x, y = place.x + (column + 0.5) * place.cell, place.y + (row + 0.5) * place.cell
        ink = colors.ink_on(colors.hex_of(painted[row, column]))
        faint = 0.6 if abs(value) < 0.04 * most else 1.0
        context.canvas.text(x, y, text, size=size, color=ink, align="center", alpha=faint)


def _middles(place: Place, at: colors.Array) -> colors.Array:
    return np.stack([place.x + (at[:, 1] + 0.5) * place.cell, place.y + (at[:, 0] + 0.5) * place.cell], 1)


def _box(place: Place, row: int, column: int) -> Box:
    gap = 1 if place.cell >= ROUND_FROM else 0
    side = place.cell - gap
    return place.x + column * place.cell + gap / 2, place.y + row * place.cell + gap / 2, side, side


def _radius(cell: float) -> float:
    return 2.5 if cell >= 18 else 1.5 if cell >= ROUND_FROM else 0


# Labels: tokens where they fit, else positions.


def labels(context: FigureContext, matrix: DecodedMatrix, place: Place) -> None:
    """Draw the labels: queries on the left, keys above, slanting; a pinned one keeps others away."""
    traits = context.traits
    size = _size(place.cell)
    for row, label, pinned in _places(context.queries, traits.query, matrix.query_bin, place.cell, matrix.queries):
        _beside(context, place.x - 8, place.y + (row + 0.5) * place.cell, label, size, pinned)
    slant = place.cell >= LABELS_FROM and matrix.key_bin == 1
    y = place.y - (6 if slant else 10)
    apart = APART if slant else 2 * APART  # level words are wider than high
    for column, label, pinned in _places(context.keys, traits.key, matrix.key_bin, place.cell, matrix.keys, apart):
        _above(context, place.x + (column + 0.5) * place.cell, y, label, size, slant, pinned, place.cell)


def _places(
    labels: Sequence[Label], pinned: int | None, bin_: int, cell: float, count: int, apart: float = APART
) -> list[tuple[int, Label, bool]]:
    """The rows that are labelled, and which of them is the pinned one, which always is."""
    there = _labelled(labels, bin_, cell, count)
    if pinned is None:
        return [(row, label, False) for row, label in there]
    at = pinned // bin_
    others = [(row, label, False) for row, label in there if row != at and abs(row - at) * cell >= apart - 2]
    return [*others, (at, labels[pinned], True)]


def _beside(context: FigureContext, x: float, y: float, label: Label, size: float, pinned: bool) -> None:
    canvas, look = context.canvas, context.look
    under = canvas.measure(label.subscript, 9) + 1 if label.subscript else 0
    text = canvas.shorten(label.text, LARGEST_LABEL - under, size, pinned)
    width = canvas.measure(text, size, pinned) + under
    color = look.page if pinned else look.ink3 if label.special else look.ink2
    if pinned:
        canvas.boxes([(x - width - 5, y - 9, width + 10, 18)], [look.ink], 4)
    canvas.text(x - under, y, text, size=size, color=color, bold=pinned, align="right")
    if label.subscript:
        canvas.text(x, y + 3, label.subscript, size=9, color=look.page if pinned else look.ink3, align="right")


def _above(
    context: FigureContext, x: float, y: float, label: Label, size: float, slant: bool, pinned: bool, cell: float
) -> None:
    canvas, look = context.canvas, context.look
    color = look.ink if pinned else look.ink3 if label.special else look.ink2
    text = canvas.shorten(label.text, 108, size, pinned)
    if not slant:
        canvas.text(x, y, text, size=size, color=color, bold=pinned, align="center")
        return
    canvas.text(x, y, text, size=size, color=color, bold=pinned, rotation=45, baseline="baseline")
    if label.subscript and (pinned or cell >= SUBSCRIPTS_FROM):
        along = (canvas.measure(text, size, pinned) + 1) * 0.7071
        faint = color if pinned else look.ink3
        canvas.text(
            x + along + 2, y - along + 2, label.subscript, size=9, color=faint, rotation=45, baseline="baseline"
        )


def _size(cell: float) -> float:
    return 12 if cell >= 16 else 10


def _labelled(labels: Sequence[Label], bin_: int, cell: float, count: int) -> list[tuple[int, Label]]:
    """The rows that are labelled: each, or every so many, or those at round positions."""
    rows = ceil(count / bin_)
    if cell >= ROUND_FROM and bin_ == 1:
        return list(enumerate(labels))
    if cell >= LABELS_FROM and bin_ == 1:
        return [(row, labels[row]) for row in range(0, rows, ceil(APART / cell))]
    wanted = 44 * bin_ / cell  # positions from one tick to the next, at least
    unit = 10 ** floor(log10(max(1.0, wanted)))
    step = next(int(f * unit) for f in (1, 2, 5, 10) if f * unit >= wanted)
    return [(at // bin_, Label(f"{at:,}", "", False)) for at in range(0, count, max(1, step))]


def _query_labels_width(context: FigureContext, matrix: DecodedMatrix) -> float:
    """What the longest label takes that is there at any size of the cells."""
    canvas = context.canvas
    own = context.queries if matrix.query_bin == 1 and len(context.queries) <= 128 else context.queries[:1]
    own = own or [Label("0", "", False)]
    pinned = [context.queries[context.traits.query]] if context.traits.query is not None else []
    ends = [Label(f"{matrix.queries:,}", "", False)]
    widths = [
        canvas.measure(label.text, 12, bold) + (canvas.measure(label.subscript, 9) + 1 if label.subscript else 0)
        for group, bold in ((own, False), (pinned, True), (ends, False))
        for label in group
    ]
    return min(LARGEST_LABEL, max(widths)) + (5 if pinned else 0)


def _key_labels_height(context: FigureContext, matrix: DecodedMatrix, cell: float) -> float:
    if cell < LABELS_FROM or matrix.key_bin > 1:
        return 34
    longest = max((context.canvas.measure(label.text, _size(cell), True) for label in context.keys), default=0)
    return min(96.0, longest * 0.7071 + 16)


def _overhang(context: FigureContext, matrix: DecodedMatrix, cell: float) -> float:
    """How far the last slanting labels reach beyond the picture."""
    if cell < LABELS_FROM or matrix.key_bin > 1:
        return 0
    count, out = len(context.keys), 0.0
    for column in range(max(0, count - 8), count):
        long = min(108.0, context.canvas.measure(context.keys[column].text, _size(cell))) * 0.7071
        out = max(out, long + 6 - (count - column - 0.5) * cell)
    return out


def _sink_width(context: FigureContext, matrix: DecodedMatrix, cell: float) -> float:
    """How far the column of the learned sink and its name reach beyond the picture."""
    if matrix.sink is None:
        return 0
    name = context.canvas.measure(SINK, _size(cell))
    return SINK_GAP + cell * _sink_columns(cell) + name


def pins(context: FigureContext, matrix: DecodedMatrix, place: Place) -> None:
    """Draw a ring around each pinned cell, and lines along the row and column of the last of them."""
    traits, canvas, look = context.traits, context.canvas, context.look
    for query, key in traits.pins:
        last = (query, key) == traits.pins[-1]
        row = None if query is None else query // matrix.query_bin
        column = None if key is None else key // matrix.key_bin
        edges: list[Any] = []
        if row is not None and last:
            for y in (place.y + row * place.cell, place.y + (row + 1) * place.cell):
                edges.append([(place.x, y), (place.x + place.width, y)])
        if column is not None and last:
            for x in (place.x + column * place.cell, place.x + (column + 1) * place.cell):
                edges.append([(x, place.y), (x, place.y + place.height)])
        if edges:
            canvas.lines(edges, 1 if place.cell >= 6 else 0.5, look.ink, 0.55)
        if row is not None and column is not None:
            side = max(place.cell, 7)
            x, y = place.x + (column + 0.5) * place.cell - side / 2, place.y + (row + 0.5) * place.cell - side / 2
            canvas.frame((x - 1, y - 1, side + 2, side + 2), 4.5, look.page, _radius(side) + 1)
            canvas.frame((x, y, side, side), 2 if last else 1.5, look.ink, _radius(side) + 1)


# The legend.


def legend(context: FigureContext, matrix: DecodedMatrix, x: float, y: float, space: float | None = None) -> float:
    """Draw the ramp with its labels, and every kind of cell that is there; return where it ends."""
    canvas, look, traits = context.canvas, context.look, context.traits
    name = LEGENDS[matrix.stage]
    log = traits.color_scale == "log" and matrix.kind == "sequential"
    name += ", log" if log else ""
    canvas.text(x, y + 4, name, size=11, color=look.ink2)
    start = x + canvas.measure(name, 11) + 12
    width = min(RAMP, (space or context.right - x) - (start - x) - 8)
    canvas.image(context.table(matrix.kind)[None], (start, y, width, 8))
    tick_labels(context, _ticks(matrix, traits.color_scale, traits.color_range), (start, y + 18, width), 10)
    words = _kind_texts(matrix, traits.color_range)
    beside = start + width + 20
    total = sum(canvas.measure(text, 11) + (18 if kind else 0) + 16 for kind, text in words)
    at, line = (beside, y + 4) if beside + total <= context.right else (x, y + 38)
    for kind, text in words:
        if kind is not None:
            _swatch(context, kind, at, line - 6)
            at += 18
        canvas.text(at, line, text, size=11, color=look.ink2)
        at += canvas.measure(text, 11) + 16
    return max(y + 24, line + 8)


def tick_labels(
    context: FigureContext, ticks: Sequence[tuple[float, str]], along: tuple[float, float, float], size: float
) -> None:
    """Draw the texts of a ramp (x, y, width) at their shares of its width; the outermost stay within it."""
    x, y, width = along
    for at, text in ticks:
        align = "left" if at == 0 else "right" if at == 1 else "center"
        context.canvas.text(x + at * width, y, text, size=size, color=context.look.ink3, align=align)


def scale_ticks(scale: colors.Scale, stage: str, min_gap: float = TICK_GAP) -> list[tuple[float, str]]:
    """Return what a ramp is labelled with: (share of its width, text)."""
    ticks = legend_ticks(scale.low, scale.high, log=scale.log, stage=stage, min_gap=min_gap)
    at = scale.position(np.array([tick.value for tick in ticks], dtype=np.float64))
    return [(float(share), tick.text) for share, tick in zip(at, ticks, strict=True)]


def _ticks(matrix: DecodedMatrix, color_scale: str, color_range: Any) -> list[tuple[float, str]]:
    if color_range == "row":
        ends = ["− row's most", "0", "row's most"] if matrix.kind == "diverging" else ["0", "row's maximum"]
        return [(at / (len(ends) - 1), text) for at, text in enumerate(ends)]
    return scale_ticks(colors.matrix_scale(matrix, color_scale, color_range), matrix.stage)


def _kind_texts(matrix: DecodedMatrix, color_range: Any) -> list[tuple[int | None, str]]:
    """What there is beside numbers, and of what each cell is one."""
    kinds = matrix.kinds
    found: list[tuple[int | None, str]] = [(BLOCKED, "masked")] if (kinds == BLOCKED).any() else []
    for kind, name in ((NAN, "NaN"), (PLUS_INF, "+∞"), (MINUS_INF, "−∞")):
        if many := int((kinds == kind).sum()):
            found.append((kind, f"{name}, {many:,} {'cell' if many == 1 else 'cells'}"))
    if color_range == "row":
        found.append((None, "each row on its own range"))
    if matrix.is_pooled:
        what = "maximum" if matrix.pool == "max" else "mean"
        found.append((None, f"each cell: the {what} of {matrix.query_bin:,} × {matrix.key_bin:,}"))
    if matrix.every > 1:
        found.append((None, f"1 of {matrix.every:,} rows"))
    return found


def _swatch(context: FigureContext, kind: int, x: float, y: float) -> None:
    canvas, look = context.canvas, context.look
    box = (x, y, 12.0, 12.0)
    if kind == BLOCKED:
        canvas.frame(box, 1, look.line, 2.5)
        canvas.lines([[(x + 3.5, y + 8.5), (x + 8.5, y + 3.5)]], 0.9, look.ink3)
    elif kind == NAN:
        canvas.boxes([box], [colors.mixed(look.page, look.bad, 0.16)], 2.5)
        cross = [[(x + 3, y + 3), (x + 9, y + 9)], [(x + 3, y + 9), (x + 9, y + 3)]]
        canvas.lines(cross, 1.5, look.bad)
    elif kind == PLUS_INF:
        canvas.boxes([box], [look.ink], 2.5)
    else:
        canvas.frame(box, 1, look.ink, 2.5)
