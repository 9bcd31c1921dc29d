"""A heatmap on paper: cells, labels, pins, legend, as LOOK has them for the screen."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..._messages import decoding
from ..._messages.decoding import BLOCKED, MINUS_INF, NAN, NUMBER, PLUS_INF, DecodedMatrix
from ..._tokens.display import Label, cell_number, short_number, ticks
from .. import colors

if TYPE_CHECKING:
    from .figure import FigureContext

LARGEST = 44  # pixels of a cell
TALLEST = 1.5  # times its width, of a picture with more queries than keys
LABELS_FROM = 5  # pixels of a cell; below, positions at ticks
ROUND_FROM = 12  # from here on cells have gaps and round corners
NUMBERS_FROM = 22
SLASHES_FROM = 10
SUBSCRIPTS_FROM = 16  # above the picture
APART = 14  # pixels between two labels
MOST_LABEL = 160
RAMP = 218

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


def draw(sheet: FigureContext, top: float) -> float:
    """The picture, its labels and its legend; returns where they end."""
    widget = sheet.widget
    seen = decoding.of_picture(sheet.view.picture)
    place = placed(sheet, seen, top)
    cells(sheet, seen, place, widget.color_scale, widget.color_range)
    labels(sheet, seen, place)
    pins(sheet, seen, place)
    return legend(sheet, seen, place.x, place.y + place.height + 14)


def placed(sheet: FigureContext, seen: DecodedMatrix, top: float) -> Place:
    """As large as there is room for it beside the labels, which need more of it the larger it is."""
    rows, columns = seen.values.shape
    left = sheet.left + _query_room(sheet, seen) + 8
    room = sheet.right - left
    for _ in range(3):  # slanting labels stick out on the right
        cell = min(LARGEST, room / columns, TALLEST * (sheet.right - left) / rows)
        out = _sticks_out(sheet, seen, cell)
        room = min(sheet.right - left, sheet.right - left - out)
    return Place(left, top + _key_room(sheet, seen, cell), cell, rows, columns)


def cells(sheet: FigureContext, seen: DecodedMatrix, place: Place, color_scale: str, color_range: Any) -> None:
    """A tile for every number, none for what is masked."""
    table, look = sheet.table(seen.kind), sheet.look
    index = decoding.indices(seen, color_scale, color_range)
    painted = table[index]
    page, ink, bad = (colors.rgb_of(color) for color in (look.page, look.ink, look.bad))
    tint = colors.rgb_of(colors.mixed(look.page, look.bad, 0.16))
    small = place.cell < 6
    special = {BLOCKED: page, NAN: bad if small else tint, PLUS_INF: ink, MINUS_INF: ink if small else page}
    for kind, color in special.items():
        painted[seen.kinds == kind] = color
    if place.cell < ROUND_FROM:
        sheet.paper.image(painted, (place.x, place.y, place.width, place.height))
    else:
        there = np.argwhere((seen.kinds != BLOCKED) & (seen.kinds != MINUS_INF))
        boxes = [_box(place, row, column) for row, column in there]
        fills = [colors.hex_of(painted[row, column]) for row, column in there]
        sheet.paper.boxes(boxes, fills, _radius(place.cell))
    _marks(sheet, seen, place)
    if place.cell >= NUMBERS_FROM:
        _numbers(sheet, seen, place, table[index])


def _marks(sheet: FigureContext, seen: DecodedMatrix, place: Place) -> None:
    """A slash where nothing is allowed, a cross where a number is none."""
    paper, look, cell = sheet.paper, sheet.look, place.cell
    if cell >= SLASHES_FROM:
        reach = min(5.0, cell * 0.2)
        middle = _middles(place, np.argwhere(seen.kinds == BLOCKED))
        slash = np.array([[-reach, reach], [reach, -reach]])
        if len(middle):
            paper.lines(middle[:, None] + slash, 0.75, look.ink, 0.2)
    if cell >= 6:
        reach = min(4.0, cell * 0.25)
        middle = _middles(place, np.argwhere(seen.kinds == NAN))
        for cross in ([[-reach, -reach], [reach, reach]], [[-reach, reach], [reach, -reach]]):
            if len(middle):
                paper.lines(middle[:, None] + np.array(cross), 1.5, look.bad)
        for row, column in np.argwhere(seen.kinds == MINUS_INF):
            paper.frame(_box(place, row, column), 1, look.ink, _radius(cell))


def _numbers(sheet: FigureContext, seen: DecodedMatrix, place: Place, painted: colors.Array) -> None:
    size = 9 if place.cell < 28 else 10 if place.cell < 34 else 11
    most = max(abs(seen.low or 0), abs(seen.high or 0)) or 1
    for row, column in np.argwhere(seen.kinds == NUMBER):
        value = float(seen.values[row, column])
        text = cell_number(value, seen.stage)
        if text == "" or sheet.paper.measure(text, size) > place.cell - 2:
            continue
        x, y = place.x + (column + 0.5) * place.cell, place.y + (row + 0.5) * place.cell
        ink = colors.ink_on(colors.hex_of(painted[row, column]))
        faint = 0.6 if abs(value) < 0.04 * most else 1.0
        sheet.paper.text(x, y, text, size=size, color=ink, align="center", alpha=faint)


def _middles(place: Place, at: colors.Array) -> colors.Array:
    return np.stack([place.x + (at[:, 1] + 0.5) * place.cell, place.y + (at[:, 0] + 0.5) * place.cell], 1)


def _box(place: Place, row: int, column: int) -> Box:
    gap = 1 if place.cell >= ROUND_FROM else 0
    side = place.cell - gap
    return place.x + column * place.cell + gap / 2, place.y + row * place.cell + gap / 2, side, side


def _radius(cell: float) -> float:
    return 2.5 if cell >= 18 else 1.5 if cell >= ROUND_FROM else 0


# Labels: tokens where there is room for them, else positions.


def labels(sheet: FigureContext, seen: DecodedMatrix, place: Place) -> None:
    """Queries on the left, keys above, slanting; beside a pinned one there is no room for another."""
    widget = sheet.widget
    size = _size(place.cell)
    for row, label, pinned in _places(sheet.queries, widget.query, seen.query_bin, place.cell, seen.queries):
        _beside(sheet, place.x - 8, place.y + (row + 0.5) * place.cell, label, size, pinned)
    slant = place.cell >= LABELS_FROM and seen.key_bin == 1
    y = place.y - (6 if slant else 10)
    apart = APART if slant else 2 * APART  # level words are wider than high
    for column, label, pinned in _places(sheet.keys, widget.key, seen.key_bin, place.cell, seen.keys, apart):
        _above(sheet, place.x + (column + 0.5) * place.cell, y, label, size, slant, pinned, place.cell)


def _places(
    labels: Sequence[Label], pinned: int | None, bin_: int, cell: float, count: int, apart: float = APART
) -> list[tuple[int, Label, bool]]:
    """The rows that are labelled, and which of them is the pinned one, which always is."""
    there = _shown_labels(labels, bin_, cell, count)
    if pinned is None:
        return [(row, label, False) for row, label in there]
    at = pinned // bin_
    others = [(row, label, False) for row, label in there if row != at and abs(row - at) * cell >= apart - 2]
    return [*others, (at, labels[pinned], True)]


def _beside(sheet: FigureContext, x: float, y: float, label: Label, size: float, pinned: bool) -> None:
    paper, look = sheet.paper, sheet.look
    under = paper.measure(label.subscript, 9) + 1 if label.subscript else 0
    text = paper.shorten(label.text, MOST_LABEL - under, size, pinned)
    width = paper.measure(text, size, pinned) + under
    color = look.page if pinned else look.ink3 if label.special else look.ink2
    if pinned:
        paper.boxes([(x - width - 5, y - 9, width + 10, 18)], [look.ink], 4)
    paper.text(x - under, y, text, size=size, color=color, bold=pinned, align="right")
    if label.subscript:
        paper.text(x, y + 3, label.subscript, size=9, color=look.page if pinned else look.ink3, align="right")


def _above(
    sheet: FigureContext, x: float, y: float, label: Label, size: float, slant: bool, pinned: bool, cell: float
) -> None:
    paper, look = sheet.paper, sheet.look
    color = look.ink if pinned else look.ink3 if label.special else look.ink2
    text = paper.shorten(label.text, 108, size, pinned)
    if not slant:
        paper.text(x, y, text, size=size, color=color, bold=pinned, align="center")
        return
    paper.text(x, y, text, size=size, color=color, bold=pinned, rotation=45, baseline="baseline")
    if label.subscript and (pinned or cell >= SUBSCRIPTS_FROM):
        along = (paper.measure(text, size, pinned) + 1) * 0.7071
        faint = color if pinned else look.ink3
        paper.text(x + along + 2, y - along + 2, label.subscript, size=9, color=faint, rotation=45, baseline="baseline")


def _size(cell: float) -> float:
    return 12 if cell >= 16 else 10


def _shown_labels(labels: Sequence[Label], bin_: int, cell: float, count: int) -> list[tuple[int, Label]]:
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


def _query_room(sheet: FigureContext, seen: DecodedMatrix) -> float:
    """What the longest label takes that is there at any size of the cells."""
    paper = sheet.paper
    own = sheet.queries if seen.query_bin == 1 and len(sheet.queries) <= 128 else sheet.queries[:1]
    own = own or [Label("0", "", False)]
    pinned = [sheet.queries[sheet.widget.query]] if sheet.widget.query is not None else []
    ends = [Label(f"{seen.queries:,}", "", False)]
    widths = [
        paper.measure(label.text, 12, bold) + (paper.measure(label.subscript, 9) + 1 if label.subscript else 0)
        for group, bold in ((own, False), (pinned, True), (ends, False))
        for label in group
    ]
    return min(MOST_LABEL, max(widths)) + (5 if pinned else 0)


def _key_room(sheet: FigureContext, seen: DecodedMatrix, cell: float) -> float:
    if cell < LABELS_FROM or seen.key_bin > 1:
        return 34
    longest = max((sheet.paper.measure(label.text, _size(cell), True) for label in sheet.keys), default=0)
    return min(96.0, longest * 0.7071 + 16)


def _sticks_out(sheet: FigureContext, seen: DecodedMatrix, cell: float) -> float:
    """How far the last slanting labels reach beyond the picture."""
    if cell < LABELS_FROM or seen.key_bin > 1:
        return 0
    count, out = len(sheet.keys), 0.0
    for column in range(max(0, count - 8), count):
        long = min(108.0, sheet.paper.measure(sheet.keys[column].text, _size(cell))) * 0.7071
        out = max(out, long + 6 - (count - column - 0.5) * cell)
    return out


def pins(sheet: FigureContext, seen: DecodedMatrix, place: Place) -> None:
    """A ring around each pinned cell; along the edges of the row and column of the last of them, lines."""
    widget, paper, look = sheet.widget, sheet.paper, sheet.look
    for query, key in widget.pins:
        last = (query, key) == widget.pins[-1]
        row = None if query is None else query // seen.query_bin
        column = None if key is None else key // seen.key_bin
        edges: list[Any] = []
        if row is not None and last:
            for y in (place.y + row * place.cell, place.y + (row + 1) * place.cell):
                edges.append([(place.x, y), (place.x + place.width, y)])
        if column is not None and last:
            for x in (place.x + column * place.cell, place.x + (column + 1) * place.cell):
                edges.append([(x, place.y), (x, place.y + place.height)])
        if edges:
            paper.lines(edges, 1 if place.cell >= 6 else 0.5, look.ink, 0.55)
        if row is not None and column is not None:
            side = max(place.cell, 7)
            x, y = place.x + (column + 0.5) * place.cell - side / 2, place.y + (row + 0.5) * place.cell - side / 2
            paper.frame((x - 1, y - 1, side + 2, side + 2), 4.5, look.page, _radius(side) + 1)
            paper.frame((x, y, side, side), 2 if last else 1.5, look.ink, _radius(side) + 1)


# The legend.


def legend(sheet: FigureContext, seen: DecodedMatrix, x: float, y: float, room: float | None = None) -> float:
    """The ramp with its ends, and every kind of cell that is there; returns where it ends."""
    paper, look, widget = sheet.paper, sheet.look, sheet.widget
    name = {"weights": "Weight", "contribution": "Contribution"}.get(seen.stage, seen.stage.capitalize())
    log = widget.color_scale == "log" and seen.kind == "sequential"
    name += ", log" if log else ""
    paper.text(x, y + 4, name, size=11, color=look.ink2)
    start = x + paper.measure(name, 11) + 12
    width = min(RAMP, (room or sheet.right - x) - (start - x) - 8)
    paper.image(sheet.table(seen.kind)[None], (start, y, width, 8))
    for at, text, end in _ticks(seen, widget.color_scale, widget.color_range):
        align = "right" if end else "left" if at == 0 else "center"
        paper.text(start + at * width, y + 18, text, size=10, color=look.ink3, align=align)
    words = _words(seen, widget.color_range)
    beside = start + width + 20
    total = sum(paper.measure(text, 11) + (18 if kind else 0) + 16 for kind, text in words)
    at, line = (beside, y + 4) if beside + total <= sheet.right else (x, y + 38)
    for kind, text in words:
        if kind is not None:
            _swatch(sheet, kind, at, line - 6)
            at += 18
        paper.text(at, line, text, size=11, color=look.ink2)
        at += paper.measure(text, 11) + 16
    return max(y + 24, line + 8)


def _ticks(seen: DecodedMatrix, color_scale: str, color_range: Any) -> list[tuple[float, str, bool]]:
    if color_range == "row":
        ends = ["− row's most", "0", "row's most"] if seen.kind == "diverging" else ["0", "row's maximum"]
        return [(i / (len(ends) - 1), text, i == len(ends) - 1) for i, text in enumerate(ends)]
    scale = decoding.scale_of(seen, color_scale, color_range)
    values = ticks(scale.low, scale.high, log=scale.log)
    at = scale.position(np.array(values, dtype=np.float64))
    return [
        (float(p), short_number(v), i > 0 and i == len(values) - 1)
        for i, (p, v) in enumerate(zip(at, values, strict=True))
    ]


def _words(seen: DecodedMatrix, color_range: Any) -> list[tuple[int | None, str]]:
    """What there is beside numbers, and of what each cell is one."""
    kinds = seen.kinds
    found: list[tuple[int | None, str]] = [(BLOCKED, "masked")] if (kinds == BLOCKED).any() else []
    for kind, name in ((NAN, "NaN"), (PLUS_INF, "+∞"), (MINUS_INF, "−∞")):
        if many := int((kinds == kind).sum()):
            found.append((kind, f"{name}, {many:,} {'cell' if many == 1 else 'cells'}"))
    if color_range == "row":
        found.append((None, "each row on its own range"))
    if seen.is_pooled:
        what = "maximum" if seen.pool == "max" else "mean"
        found.append((None, f"each cell: the {what} of {seen.query_bin:,} × {seen.key_bin:,}"))
    if seen.every > 1:
        found.append((None, f"1 of {seen.every:,} rows"))
    return found


def _swatch(sheet: FigureContext, kind: int, x: float, y: float) -> None:
    paper, look = sheet.paper, sheet.look
    box = (x, y, 12.0, 12.0)
    if kind == BLOCKED:
        paper.frame(box, 1, look.line, 2.5)
        paper.lines([[(x + 3.5, y + 8.5), (x + 8.5, y + 3.5)]], 0.9, look.ink3)
    elif kind == NAN:
        paper.boxes([box], [colors.mixed(look.page, look.bad, 0.16)], 2.5)
        cross = [[(x + 3, y + 3), (x + 9, y + 9)], [(x + 3, y + 9), (x + 9, y + 3)]]
        paper.lines(cross, 1.5, look.bad)
    elif kind == PLUS_INF:
        paper.boxes([box], [look.ink], 2.5)
    else:
        paper.frame(box, 1, look.ink, 2.5)
