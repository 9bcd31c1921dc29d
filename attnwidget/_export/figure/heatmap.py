"""Draw a heatmap: cells, labels, pins, legend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, floor, log10
from typing import Any, NamedTuple

import numpy as np

from ..._messages.codec import decoding
from ..._messages.codec.decoding import BLOCKED, MINUS_INF, NAN, NUMBER, PLUS_INF, DecodedMatrix
from ..._tokens.display import Label
from ..look import colors
from ..look.numbers import cell_number
from ..look.ranges import with_range
from . import recall, segment_names
from .canvas import LEAST
from .legend import RAMP, clipped_cells, legend
from .padding import padded_runs, veil
from .sheet import SINK, FigureContext

LARGEST = 44  # pixels: side of a cell
TALLEST = 1.5  # times the width, for a picture with more queries than keys
LABELS_FROM = 5  # pixels per cell; smaller cells have positions at ticks
ROUND_FROM = 12  # pixels; larger cells have gaps and round corners
NUMBERS_FROM = 18
SLASHES_FROM = 10
SUBSCRIPTS_FROM = 11  # letter size in pixels; smaller labels above have no subscripts
APART = LEAST / 0.86  # pixels between labels, at least
SLANTED = LEAST / 0.72
LARGEST_LABEL = 160
LARGEST_SLANTED = 108
MEASURED = 600  # labels measured for their width
SINK_GAP = 8  # pixels between the picture and the sink's column
LEAST_SINK = 8  # pixels: least width of the sink's column

Box = tuple[float, float, float, float]


class Place(NamedTuple):
    """Where a picture lies, and the size of its cells."""

    x: float
    y: float
    cell: float
    rows: int
    columns: int
    slant: int = 45  # degrees, of the labels above

    @property
    def width(self) -> float:
        return self.cell * self.columns

    @property
    def height(self) -> float:
        return self.cell * self.rows


def draw(context: FigureContext, top: float) -> float:
    """Draw the picture, its labels and its legend; return the lower end."""
    traits = context.traits
    matrix = with_range(decoding.of_picture(context.view.picture), traits)
    found = recall.recall_of(context, matrix.query_bin)
    axes, place = segment_names.segment_axes(context), placed(context, matrix, top)
    each = place.cell >= APART and matrix.query_bin == matrix.key_bin == 1  # whether every token has a label
    if axes is not None and not each:
        place = _placed_with_segments(context, matrix, axes, top)
    padded = padded_runs(context, matrix)
    cells(context, matrix, place, traits.color_scale, traits.color_range, padded=padded)
    if axes is not None:
        segment_names.lines(context, matrix, axes, place)
    if matrix.sink is not None:
        sink_column(context, matrix, place, (traits.color_scale, traits.color_range))
        _sink_name(context, matrix, place)
    if axes is not None and not each:
        segment_names.names(context, matrix, axes, place)
    else:
        labels(context, matrix, place)
    pins(context, matrix, place)
    end = legend(context, matrix, place.x, place.y + place.height + 14, has_padding=bool(padded))
    return end if found is None else _recall(context, found, (matrix, place), end)


def _recall(context: FigureContext, found: recall.Recall, at: tuple[DecodedMatrix, Place], end: float) -> float:
    """Draw the column of recall under a cache, its name, and its explanation at the bottom."""
    matrix, place = at
    left = context.left if context.right - place.x < RAMP else place.x
    if found.error is None:
        x = place.x + place.width + _sink_column_width(matrix, place.cell) + recall.GAP
        recall.column(context, found, (x, place.y), place.cell)
        slant = place.slant if place.cell >= LABELS_FROM and matrix.key_bin == 1 else 0
        size = _column_size(context, place.cell, place.slant)
        label = Label(recall.NAME, "", False)
        _above(context, x + recall.WIDTH / 2, place.y - (6 if slant else 24), label, size, slant, False)
    return recall.key(context, found, left, end + 6)


def placed(context: FigureContext, matrix: DecodedMatrix, top: float) -> Place:
    """Return where the picture lies: as large as fits next to its labels, which grow with it.

    Labels above slant, or stand upright if some would have no room otherwise.
    """
    place = _placed(context, matrix, top, 45)
    is_crowded = matrix.key_bin == 1 and LABELS_FROM <= place.cell < SLANTED
    return _placed(context, matrix, top, 90) if is_crowded else place


def _placed(context: FigureContext, matrix: DecodedMatrix, top: float, slant: int) -> Place:
    rows, columns = matrix.values.shape
    left, out, cell = context.left + 40.0, 0.0, 12.0
    for _ in range(5):  # slanted labels stick out on the right, and letters grow with the cells
        wide = context.right - left - out
        cell = min(LARGEST, wide / columns, TALLEST * (context.right - left) / rows)
        left = context.left + _query_labels_width(context, matrix, cell) + 8
        out = max(_overhang(context, matrix, cell, slant), _sink_width(context, matrix, cell), 0.0)
    cell = min(cell, (context.right - left - out) / columns)
    return Place(left, top + _key_labels_height(context, matrix, cell, slant), cell, rows, columns, slant)


def _placed_with_segments(
    context: FigureContext,
    matrix: DecodedMatrix,
    axes: tuple[segment_names.SegmentAxis, segment_names.SegmentAxis],
    top: float,
) -> Place:
    """Return where the picture lies between the names of segments."""
    rows, columns = matrix.values.shape
    cell, left, above = 4.0, context.left, 0.0
    for _ in range(3):  # nested names appear only if cells are large enough
        sizes = cell / matrix.query_bin, cell / matrix.key_bin
        wide, above = segment_names.rooms(context, axes, sizes)
        out = max(segment_names.overhang(context, axes[1], sizes[1], matrix.keys), _sink_width(context, matrix, cell))
        left, room = context.left + wide, context.right - context.left - wide - out
        cell = min(LARGEST, room / columns, TALLEST * (context.right - context.left) / rows)
    return Place(left, top + above, cell, rows, columns)


def sink_column(
    context: FigureContext,
    matrix: DecodedMatrix,
    place: Place,
    scale: tuple[str, Any],
    *,
    gap: float = SINK_GAP,
    least: float = LEAST_SINK,
) -> None:
    """Draw the learned sink's column right of the picture, in the same colors and at least `least` pixels wide."""
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
    """Return the matrix with its last columns capped at the row's other cells, which set the row's range."""
    numbers = np.where(matrix.kinds == NUMBER, np.abs(matrix.values), 0)[:, :-wide].max(axis=1, keepdims=True)
    return replace(matrix, values=np.clip(matrix.values, -numbers, numbers))


def _sink_columns(cell: float, least: float = LEAST_SINK) -> int:
    """Return how many picture columns the sink's column is wide: one, or more if columns are hairlines."""
    return max(1, ceil(least / cell))


def _sink_name(context: FigureContext, matrix: DecodedMatrix, place: Place) -> None:
    slant = place.slant if place.cell >= LABELS_FROM and matrix.key_bin == 1 else 0
    x = place.x + place.width + SINK_GAP + place.cell * _sink_columns(place.cell) / 2
    label, size = Label(SINK, "", False), _column_size(context, place.cell, place.slant)
    _above(context, x, place.y - (6 if slant else 24), label, size, slant, False)


def cells(
    context: FigureContext,
    matrix: DecodedMatrix,
    place: Place,
    color_scale: str,
    color_range: Any,
    *,
    index: colors.Array | None = None,
    padded: Sequence[range] = (),
) -> None:
    """Draw a tile for every number; masked cells have none.

    Args:
        index: each cell's index in the color table.
        padded: the rows of padding queries, drawn under a veil.
    """
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
    if place.cell >= ROUND_FROM and color_range != "row":
        _cut_corners(context, clipped_cells(matrix, color_scale, color_range), place)
    for rows in padded:
        height = len(rows) * place.cell
        veil(context, (place.x, place.y + rows.start * place.cell, place.width, height))
    size = number_size(place.cell, matrix.kind == "diverging", context.canvas.measure)
    if size is not None:
        _numbers(context, matrix, place, table[index], size, padded)


def _marks(context: FigureContext, matrix: DecodedMatrix, place: Place) -> None:
    """Draw a slash in fully masked cells, and a cross where a number is NaN."""
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


def _cut_corners(context: FigureContext, clipped: colors.Array, place: Place) -> None:
    """Cut a corner off each cell whose color understates its number."""
    for row, column in np.argwhere(clipped):
        x, y, side, _ = _box(place, row, column)
        reach = min(6.0, side * 0.3)
        context.canvas.shape([(x + side - reach, y), (x + side, y), (x + side, y + reach)], context.look.page)


def number_size(cell: float, signed: bool, measure: Callable[[str, float], float]) -> float | None:
    """Return the letter size of numbers in cells, by the widget's rule; None if the widest has no room."""
    size = 9 if cell < 28 else 10 if cell < 34 else 11
    widest = "−.88" if signed else ".88"
    return size if cell >= NUMBERS_FROM and measure(widest, size) <= cell - 2 else None


def _numbers(
    context: FigureContext,
    matrix: DecodedMatrix,
    place: Place,
    painted: colors.Array,
    size: float,
    padded: Sequence[range],
) -> None:
    most = max(abs(matrix.low or 0), abs(matrix.high or 0)) or 1
    for row, column in np.argwhere(matrix.kinds == NUMBER):
        value = float(matrix.values[row, column])
        text = cell_number(value, matrix.stage)
        if text == "" or context.canvas.measure(text, size) > place.cell - 2:
            continue
        x, y = place.x + (column + 0.5) * place.cell, place.y + (row + 0.5) * place.cell
        is_veiled = any(row in rows for rows in padded)
        ink = context.look.ink3 if is_veiled else colors.ink_on(colors.hex_of(painted[row, column]))
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


# Labels: tokens if they fit, else positions.


def labels(context: FigureContext, matrix: DecodedMatrix, place: Place) -> None:
    """Draw the labels: queries on the left, keys slanted above; a pinned label displaces its neighbors."""
    traits, cell = context.traits, place.cell
    size, room = _row_size(context, matrix, cell), _label_room(context)
    for row, label, pinned in _places(context.queries, traits.query, matrix.query_bin, cell, matrix.queries):
        _beside(context, (place.x - 8, place.y + (row + 0.5) * cell), label, (size, room, max(cell, APART)), pinned)
    slant = place.slant if cell >= LABELS_FROM and matrix.key_bin == 1 else 0
    size, y = _column_size(context, cell, place.slant), place.y - (6 if slant else 10)
    apart = {0: 2 * APART, 45: SLANTED, 90: APART}[slant]  # horizontal words are wider than high
    for column, label, pinned in _places(context.keys, traits.key, matrix.key_bin, cell, matrix.keys, apart):
        _above(context, place.x + (column + 0.5) * cell, y, label, size, slant, pinned)


def _row_size(context: FigureContext, matrix: DecodedMatrix, cell: float) -> float:
    """Return the letter size on the left: as large as rows and the longest label allow, but at least 6 pt."""
    tall = 12 if cell >= 16 else max(LEAST, min(12, cell * 0.86))
    own = context.queries if matrix.query_bin == 1 and cell >= LABELS_FROM else []
    longest = max((_width(context, label, 12, False) for label in own[:MEASURED]), default=0)
    return max(LEAST, min(tall, 12 * _label_room(context) / max(longest, 1)))


def _column_size(context: FigureContext, cell: float, slant: int = 45) -> float:
    """Return the letter size of slanted labels: as large as columns and the longest label allow, but at least 6 pt."""
    wide = 12 if cell >= 16 else max(LEAST, min(12, cell * (0.86 if slant == 90 else 0.72)))
    own = context.keys[:MEASURED] if cell >= LABELS_FROM else []
    longest = max((context.canvas.measure(label.text, 12) for label in own), default=0)
    return max(LEAST, min(wide, 12 * _slanted_room(context) / max(longest, 1)))


def _label_room(context: FigureContext) -> float:
    return min(LARGEST_LABEL, 0.3 * (context.right - context.left))


def _slanted_room(context: FigureContext) -> float:
    return min(LARGEST_SLANTED, 0.3 * (context.right - context.left))


def _width(context: FigureContext, label: Label, size: float, bold: bool) -> float:
    under = context.canvas.measure(label.subscript, _under(size)) + 1 if label.subscript else 0
    return context.canvas.measure(label.text, size, bold) + under


def _under(size: float) -> float:
    """Return the size of a subscript."""
    return max(LEAST, 0.75 * size)


def _places(
    labels: Sequence[Label], pinned: int | None, bin_: int, cell: float, count: int, apart: float = APART
) -> list[tuple[int, Label, bool]]:
    """Return the labeled rows, always including the pinned one, and which of them is pinned."""
    there = _labeled(labels, bin_, cell, count, apart)
    if pinned is None:
        return [(row, label, False) for row, label in there]
    at = pinned // bin_
    others = [(row, label, False) for row, label in there if row != at and abs(row - at) * cell >= apart - 0.5]
    return [*others, (at, labels[pinned], True)]


def _beside(
    context: FigureContext, at: tuple[float, float], label: Label, look_of: tuple[float, float, float], pinned: bool
) -> None:
    size, room, pitch = look_of
    canvas, look, (x, y) = context.canvas, context.look, at
    under = canvas.measure(label.subscript, _under(size)) + 1 if label.subscript else 0
    text = canvas.shorten(label.text, room - under, size, pinned)
    width = canvas.measure(text, size, pinned) + under
    color = look.page if pinned else look.ink3 if label.special else look.ink2
    if pinned:
        tall = min(size + 6.0, max(size + 2.0, 2 * pitch - size))
        canvas.boxes([(x - width - 5, y - tall / 2, width + 10, tall)], [look.ink], 4)
    canvas.text(x - under, y, text, size=size, color=color, bold=pinned, align="right")
    if label.subscript:
        below = look.page if pinned else look.ink3
        canvas.text(x, y + size / 4, label.subscript, size=_under(size), color=below, align="right")


def _above(context: FigureContext, x: float, y: float, label: Label, size: float, slant: int, pinned: bool) -> None:
    canvas, look = context.canvas, context.look
    color = look.ink if pinned else look.ink3 if label.special else look.ink2
    text = canvas.shorten(label.text, _slanted_room(context), size, pinned)
    if not slant:
        canvas.text(x, y, text, size=size, color=color, bold=pinned, align="center")
        return
    right, up = (0.7071, 0.7071) if slant == 45 else (0.0, 1.0)
    x += 0.35 * size * (1 - right / 0.7071)  # an upright baseline lies right of the middle
    canvas.text(x, y, text, size=size, color=color, bold=pinned, rotation=slant, baseline="baseline")
    if label.subscript and (pinned or size >= SUBSCRIPTS_FROM):
        along = canvas.measure(text, size, pinned) + 3
        at, faint = (x + along * right + 2, y - along * up + 2 * right), color if pinned else look.ink3
        canvas.text(*at, label.subscript, size=_under(size), color=faint, rotation=slant, baseline="baseline")


def _labeled(
    labels: Sequence[Label], bin_: int, cell: float, count: int, apart: float = APART
) -> list[tuple[int, Label]]:
    """Return the labeled rows: all, or every n-th, or the rows at round positions."""
    rows = ceil(count / bin_)
    if cell >= LABELS_FROM and bin_ == 1:
        return [(row, labels[row]) for row in range(0, rows, max(1, ceil(apart / cell - 0.05)))]
    wanted = 44 * bin_ / cell  # positions between ticks, at least
    unit = 10 ** floor(log10(max(1.0, wanted)))
    step = next(int(f * unit) for f in (1, 2, 5, 10) if f * unit >= wanted)
    return [(at // bin_, Label(f"{at:,}", "", False)) for at in range(0, count, max(1, step))]


def _query_labels_width(context: FigureContext, matrix: DecodedMatrix, cell: float) -> float:
    """Return the width of the longest query label."""
    size = _row_size(context, matrix, cell)
    there = _places(context.queries, context.traits.query, matrix.query_bin, cell, matrix.queries)
    longest = max(_width(context, label, size, pinned) for _, label, pinned in there[-MEASURED:])
    return min(_label_room(context), longest) + (5 if context.traits.query is not None else 0)


def _key_labels_height(context: FigureContext, matrix: DecodedMatrix, cell: float, slant: int) -> float:
    if cell < LABELS_FROM or matrix.key_bin > 1:
        return 34
    size = _column_size(context, cell, slant)
    longest = max((context.canvas.measure(label.text, size, True) for label in context.keys[:MEASURED]), default=0)
    under = 10 if size >= SUBSCRIPTS_FROM or context.traits.key is not None else 4
    return (min(_slanted_room(context), longest) + size) * (0.7071 if slant == 45 else 1) + under


def _overhang(context: FigureContext, matrix: DecodedMatrix, cell: float, slant: int) -> float:
    """Return how far the last slanted labels reach beyond the picture."""
    if cell < LABELS_FROM or matrix.key_bin > 1 or slant == 90:
        return 0
    count, out, size = len(context.keys), 0.0, _column_size(context, cell)
    for column in range(max(0, count - 24), count):
        long = min(_slanted_room(context), context.canvas.measure(context.keys[column].text, size, True)) * 0.7071
        out = max(out, long + size * 0.75 - (count - column - 0.5) * cell)
    return out


def _sink_width(context: FigureContext, matrix: DecodedMatrix, cell: float) -> float:
    """Return how far the columns of the learned sink and of recall, with their names, reach beyond the picture."""
    beside, size = _sink_column_width(matrix, cell), _column_size(context, cell)
    reach = 0.0 if matrix.sink is None else beside + context.canvas.measure(SINK, size)
    if context.traits.recall is not None and context.traits.view == "heatmap":
        reach = max(reach, beside + recall.GAP + recall.WIDTH + context.canvas.measure(recall.NAME, size))
    return reach


def _sink_column_width(matrix: DecodedMatrix, cell: float) -> float:
    return 0.0 if matrix.sink is None else SINK_GAP + cell * _sink_columns(cell)


def pins(
    context: FigureContext,
    matrix: DecodedMatrix,
    place: Place,
    pinned: Sequence[tuple[int | None, int | None]] | None = None,
) -> None:
    """Draw a ring around each pinned cell, and lines along the row and column of the last of them.

    Args:
        pinned: the pinned pairs; None uses the widget's.
    """
    canvas, look = context.canvas, context.look
    pinned = context.traits.pins if pinned is None else pinned
    for query, key in pinned:
        last = (query, key) == pinned[-1]
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
