"""Draw a comparison: A, B and B − A, with one scale for A and B."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..._messages.codec.decoding import DecodedMatrix
from ..compared import part_of, placed, places_of, range_of_change
from ..look import colors
from ..view import WidgetView
from . import heatmap
from .heatmap import Place, cells
from .legend import Kinds, cell_kinds, kinds_line, pooled_words, range_ticks, scale_ticks, tick_labels
from .padding import padded_runs
from .sheet import FigureContext

BETWEEN = 21  # pixels between pictures
PARTS = ("a", "b", "change")


class DrawnPart(NamedTuple):
    """One of the three pictures: its numbers, their indices in the color table, the range, and rows of padding."""

    matrix: DecodedMatrix
    shades: colors.Array
    range: Any
    padded: list[range]


def draw(context: FigureContext, top: float) -> float:
    """Draw the three pictures side by side; return their lower end."""
    traits: Any = context.traits
    canvas = context.canvas
    comparison = _comparison(context.view)
    if comparison is None or comparison.get("error"):
        return heatmap.draw(context, top)
    parts = _parts(context, comparison)
    side = (context.right - context.left - 2 * BETWEEN) / 3
    rows, columns = parts[0].matrix.values.shape
    cell = min(side / columns, 1.5 * side / rows, heatmap.LARGEST)
    names = (f"A  {traits.sides[0]}", f"B  {traits.against}", "B − A")
    y, ends, pinned = top + 24, [], _pinned(context, comparison)
    for at, (one, name) in enumerate(zip(parts, names, strict=True)):
        place = Place(context.left + at * (side + BETWEEN), y, cell, rows, columns)
        canvas.text(place.x, top + 8, canvas.shorten(name, side, 12, True), size=12, bold=True)
        cells(context, one.matrix, place, traits.color_scale, one.range, index=one.shades, padded=one.padded)
        heatmap.pins(context, one.matrix, place, pinned)
        ends.append(_legend(context, one, place.x, y + place.height + 10, side))
    words = _words(context, comparison, parts)
    return kinds_line(context, words, parts[0].matrix.kind, (context.left, max(ends) + 10)) if words else max(ends)


def _comparison(view: WidgetView) -> dict[str, Any] | None:
    """Return the comparison shown, or make it if there is none yet."""
    traits: Any = view.traits
    if traits.comparison is not None:
        found: dict[str, Any] = traits.comparison
        return found
    of = (traits.layer, traits.batch, traits.head, traits.stage, traits.pool, traits.against, traits.against_at)
    comparison: dict[str, Any] | None = view.derived("comparison", *of)
    return comparison


def _parts(context: FigureContext, comparison: dict[str, Any]) -> list[DrawnPart]:
    """Return A, B and their difference, with the colors of js/src/views/compare/mappers.ts."""
    traits = context.traits
    a, b, change = (part_of(comparison, name) for name in PARTS)
    low, high = (pick(getattr(one, end) or 0.0 for one in (a, b)) for pick, end in ((min, "low"), (max, "high")))
    a, b = (replace(one, low=low, high=high) for one in (a, b))
    beside = replace(a, values=np.hstack([a.values, b.values]), kinds=np.hstack([a.kinds, b.kinds]))
    index = np.hsplit(
        colors.entries(beside, traits.color_scale, traits.color_range), 2
    )  # a row's range covers both sides
    padded = padded_runs(context, a, places_of(comparison))  # in A
    of_b = [] if comparison["differ"][0] else padded  # else its rows are different queries
    own = range_of_change(traits.color_range)
    return [
        DrawnPart(a, index[0], traits.color_range, padded),
        DrawnPart(b, index[1], traits.color_range, of_b),
        DrawnPart(change, colors.entries(change, "linear", own), own, padded),
    ]


def _pinned(context: FigureContext, comparison: dict[str, Any]) -> list[tuple[int | None, int | None]]:
    """Return the pinned pairs as compared places, without those that B lacks."""
    places = places_of(comparison)
    found = (placed(pin, places) for pin in context.traits.pins)
    return [pin for pin in found if pin is not None]


def _words(context: FigureContext, comparison: dict[str, Any], parts: list[DrawnPart]) -> Kinds:
    """Return the text below all three: kinds of cells, the range of a row, and how cells are pooled."""
    traits, (a, b, change) = context.traits, parts
    sides = a.matrix, b.matrix
    together = replace(
        a.matrix, values=np.vstack([one.values for one in sides]), kinds=np.vstack([one.kinds for one in sides])
    )
    found = cell_kinds(together, traits.color_scale, traits.color_range, has_padding=bool(a.padded))
    if a.padded and not b.padded:
        found = [(kind, f"{text} of A" if kind == "padded" else text) for kind, text in found]
    if traits.color_range == "row":
        found.append((None, "each row has its own range, shared by A and B"))
    if a.matrix.is_pooled:
        bins = f"{change.matrix.query_bin:,} × {change.matrix.key_bin:,}"
        found.append((None, f"A, B: the {pooled_words(a.matrix)}; B − A: the largest of {bins}"))
    if a.matrix.every > 1:
        found.append((None, f"1 of {a.matrix.every:,} rows"))
    if comparison["query_places"] is not None or comparison["key_places"] is not None:
        words = f"{comparison['queries']:,} × {comparison['keys']:,} positions shared by A and B"
        found.append((None, words))
    return found


def _legend(context: FigureContext, one: DrawnPart, x: float, y: float, side: float) -> float:
    width = min(side, 160)
    context.canvas.image(context.table(one.matrix.kind)[None], (x, y, width, 6))
    color_scale = context.traits.color_scale
    if one.range == "row":
        ticks = range_ticks(one.matrix, color_scale, "row")
    else:
        ticks = scale_ticks(colors.matrix_scale(one.matrix, color_scale, one.range), context.traits.stage)
    tick_labels(context, ticks, (x, y + 15, width), 10)
    return y + 22
