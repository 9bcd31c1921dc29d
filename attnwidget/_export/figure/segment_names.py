"""Segments along a heatmap's axes: names, brackets around outer segments, colors, and lines at boundaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil
from typing import Any, NamedTuple

from ..._messages.codec import decoding
from ..._messages.codec.decoding import DecodedMatrix
from ..look import colors
from ..view import SavedHead
from .sheet import FigureContext

NAME = 11  # letter size in pixels
APART = 12  # between names
SLANTED = 16
LEAST = 1.5  # pixels; shorter pieces have no name
MOST = 120  # pixels: longest name, also limited to a share of the figure's width
MOST_SHARE = 0.18
BRACKETS_FROM = 240  # pixels; wider figures have brackets
STRIP, BESIDE = 3, 3  # width of a color strip, and its distance from the picture
BRACKET = 5  # length of a bracket's ends


class SegmentPiece(NamedTuple):
    """One contiguous piece of a segment, in positions."""

    name: str
    start: int
    stop: int
    color: str


class SegmentAxis(NamedTuple):
    """The segments on one side: outer ones, and nested ones; `is_open` if the view has opened a segment."""

    pieces: list[SegmentPiece]
    inner: list[SegmentPiece]
    is_open: bool = False
    has_room: bool = True  # for the names of nested segments

    def drawn(self) -> list[SegmentPiece]:
        """Return the pieces with colors and boundaries: an open segment is replaced by its nested ones."""
        if not self.is_open:
            return self.pieces
        held = [one for one in self.pieces if any(one.start <= piece.start < one.stop for piece in self.inner)]
        return [*held, *(one for one in self.pieces if one not in held), *self.inner]

    def named(self, cell: float) -> tuple[list[SegmentPiece], list[SegmentPiece]]:
        """Return the pieces with names, and those with brackets: nested ones if there is room, and their outer ones."""
        is_apart = all((one.stop - one.start) * cell >= APART for one in self.inner)
        if not (self.inner and self.has_room and (self.is_open or is_apart)):
            return self.pieces, []
        held = [one for one in self.pieces if any(one.start <= piece.start < one.stop for piece in self.inner)]
        alone = [one for one in self.pieces if one not in held]
        return sorted([*self.inner, *alone], key=lambda one: one.start), held


def segment_axes(context: FigureContext) -> tuple[SegmentAxis, SegmentAxis] | None:
    """Return the segments of queries and keys; None if there are none, or none that fit."""
    traits = context.traits
    at = SavedHead(traits.layer, traits.batch, traits.head)
    queries, keys = (context.view.segments(side, at, traits.asking) for side in ("query", "key"))
    keys = queries if keys is None else keys
    if queries is None or keys is None or "error" in queries or "error" in keys:
        return None
    return _axis(context, queries), _axis(context, keys)


def _axis(context: FigureContext, sent: dict[str, Any]) -> SegmentAxis:
    path = tuple(context.traits.segment_path)
    outermost = dict(zip(sent["distinct"], sent["colors"], strict=True))
    below = _colors_below(context, path) if path else {}
    opened = {one for one in (path, _asked_inside(context)) if one}
    pieces: list[SegmentPiece] = []
    inner: list[SegmentPiece] = []
    for names, start, stop in _paths(sent):
        slot = below.get(names[len(path)], -1) if path and len(names) > len(path) and names[: len(path)] == path else -1
        shade = colors.segment_color(slot if path else outermost.get(names[0], -1), context.theme)
        piece = SegmentPiece(names[-1], start, stop, shade)
        if len(names) == 1:
            pieces.append(piece)
        elif names[:-1] in opened if opened else len(names) == 2:
            inner.append(piece)
    has_room = context.right - context.left >= BRACKETS_FROM
    return SegmentAxis(pieces, inner, bool(opened and inner), has_room)


def _paths(sent: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """Yield each piece's names from the outermost to its own, and where it lies."""
    names: tuple[str, ...] = ()
    starts, stops, levels = (decoding.decode(sent[name]).tolist() for name in ("starts", "stops", "levels"))
    for name, start, stop, level in zip(sent["names"], starts, stops, levels, strict=True):
        names = (*names[:level], name)
        yield names, start, stop


def _asked_inside(context: FigureContext) -> tuple[str, ...]:
    """Return the segments that contain the asking segment."""
    asking = context.traits.asking
    return () if asking is None or isinstance(asking, str) else tuple(asking[:-1])


def _colors_below(context: FigureContext, path: tuple[str, ...]) -> dict[str, int]:
    """Return the color slot of each segment inside a path, with the widget's rule."""
    known = context.traits.mass
    if known is None or known["error"] is not None or tuple(known["path"]) != path:
        traits = context.traits
        asking = tuple(traits.asking) if isinstance(traits.asking, list) else traits.asking
        head = SavedHead(traits.layer, traits.batch, traits.head)
        columns = context.view.mass(head, (asking, path, "weights")).wanted.columns
        return dict(zip(columns.names, columns.colors, strict=True))
    return dict(zip(known["keys"], known["key_colors"], strict=True))


def rooms(
    context: FigureContext, axes: tuple[SegmentAxis, SegmentAxis], cells: tuple[float, float]
) -> tuple[float, float]:
    """Return the room that names take left of the picture and above it, in pixels.

    Args:
        context: the figure.
        axes: the segments of queries and keys.
        cells: pixels per query, and per key.
    """
    found = []
    for axis, cell, slope in zip(axes, cells, (1.0, 0.7071), strict=True):
        named, held = axis.named(cell)
        long = max((_width(context, one.name) for one in named), default=0.0)
        outer = max((_width(context, one.name) for one in held), default=0.0) if slope == 1 else 14.0
        found.append(BESIDE + STRIP + 6 + (long + NAME) * slope + (outer + BRACKET + 8 if held else 0))
    return found[0], found[1]


def _width(context: FigureContext, name: str) -> float:
    return min(_most(context), context.canvas.measure(name, NAME, True))


def _most(context: FigureContext) -> float:
    return min(MOST, MOST_SHARE * (context.right - context.left))


def lines(context: FigureContext, matrix: DecodedMatrix, axes: tuple[SegmentAxis, SegmentAxis], place: Any) -> None:
    """Draw lines at segment boundaries, and the segments' colors next to the picture."""
    canvas, look = context.canvas, context.look
    queries, keys = (place.cell / matrix.query_bin, place.cell / matrix.key_bin)
    down, across = (axis.drawn() for axis in axes)
    edges = [
        [(place.x, place.y + one.start * queries), (place.x + place.width, place.y + one.start * queries)]
        for one in down
        if one.start > 0
    ] + [
        [(place.x + one.start * keys, place.y), (place.x + one.start * keys, place.y + place.height)]
        for one in across
        if one.start > 0
    ]
    if edges:
        canvas.lines(edges, 0.75, look.ink, 0.28)
    out = BESIDE + STRIP
    for one in down:
        tall = max(0.75, (one.stop - one.start) * queries - 0.75)
        canvas.boxes([(place.x - out, place.y + one.start * queries, STRIP, tall)], [one.color], 1)
    for one in across:
        wide = max(0.75, (one.stop - one.start) * keys - 0.75)
        canvas.boxes([(place.x + one.start * keys, place.y - out, wide, STRIP)], [one.color], 1)


def names(context: FigureContext, matrix: DecodedMatrix, axes: tuple[SegmentAxis, SegmentAxis], place: Any) -> None:
    """Draw segment names along both axes instead of positions, and brackets around segments with nested ones."""
    canvas, look, traits = context.canvas, context.look, context.traits
    cell, out = place.cell / matrix.query_bin, BESIDE + STRIP + 4
    named, held = axes[0].named(cell)
    asking = traits.asking if traits.asking is None or isinstance(traits.asking, str) else traits.asking[-1]
    for one, y in _spread(named, lambda at: place.y + at * cell, APART, asking):
        bold = one.name == asking
        text = canvas.shorten(one.name, _most(context), NAME, bold)
        canvas.text(place.x - out, y, text, size=NAME, color=look.ink2, align="right", bold=bold)
    x = place.x - out - max((_width(context, one.name) for one in named), default=0.0) - 4
    for one in held:
        low, high = place.y + one.start * cell + 1, place.y + one.stop * cell - 1
        canvas.lines([[(x, low), (x - BRACKET, low), (x - BRACKET, high), (x, high)]], 1, look.ink3)
        text = canvas.shorten(one.name, _most(context), NAME)
        canvas.text(x - BRACKET - 4, (low + high) / 2, text, size=NAME, color=look.ink3, align="right")
    cell = place.cell / matrix.key_bin
    named, held = axes[1].named(cell)
    for one, x in _spread(named, lambda at: place.x + at * cell, SLANTED, traits.segment):
        text, bold = (
            canvas.shorten(one.name, _most(context), NAME, one.name == traits.segment),
            one.name == traits.segment,
        )
        canvas.text(x, place.y - out - 2, text, size=NAME, color=look.ink2, rotation=45, bold=bold, baseline="baseline")
    y = place.y - out - (max((_width(context, one.name) for one in named), default=0.0) + NAME) * 0.7071 - 4
    for one in held:
        low, high = place.x + one.start * cell + 1, place.x + one.stop * cell - 1
        canvas.lines([[(low, y), (low, y - BRACKET), (high, y - BRACKET), (high, y)]], 1, look.ink3)
        text = canvas.shorten(one.name, max(high - low, 24), NAME)
        canvas.text((low + high) / 2, y - BRACKET - 8, text, size=NAME, color=look.ink3, align="center")


def _spread(
    pieces: list[SegmentPiece], place_of: Callable[[float], float], apart: float, always: str | None
) -> list[tuple[SegmentPiece, float]]:
    """Return the pieces with room for a name, the longest first, and the middle of each."""
    found: list[tuple[SegmentPiece, float]] = []
    for one in sorted(pieces, key=lambda one: (one.name != always, one.start - one.stop)):
        if one.name != always and place_of(one.stop) - place_of(one.start) < LEAST:
            continue
        middle = place_of((one.start + one.stop) / 2)
        if all(abs(middle - other) >= apart for _, other in found):
            found.append((one, middle))
    return found


def overhang(context: FigureContext, axis: SegmentAxis, cell: float, count: int) -> float:
    """Return how far the last slanted names reach beyond the picture."""
    named, _ = axis.named(cell)
    out = 0.0
    for one in named[-ceil(MOST / APART) :]:
        out = max(out, _width(context, one.name) * 0.7071 + NAME - (count - (one.start + one.stop) / 2) * cell)
    return out
