"""A comparison, drawn: A, B and B − A, one scale for the first two."""

from __future__ import annotations

from typing import Any

from ..._messages import decoding
from ..._messages.decoding import DecodedMatrix
from .. import colors
from ..view import WidgetView
from . import heatmap
from .heatmap import Place, cells
from .legend import scale_ticks, tick_labels
from .sheet import FigureContext

BETWEEN = 21  # pixels between two pictures
PARTS = ("a", "b", "change")


def draw(context: FigureContext, top: float) -> float:
    """Draw the three pictures side by side; return where they end."""
    traits: Any = context.traits
    canvas, look = context.canvas, context.look
    comparison = _comparison(context.view)
    if comparison is None or comparison.get("error"):
        return heatmap.draw(context, top)
    a, b, change = (_part(comparison, name) for name in PARTS)
    low = min(one.low or 0.0 for one in (a, b))
    high = max(one.high or 0.0 for one in (a, b))
    together: Any = [low, high] if a.kind == "diverging" else [0.0, max(high, 1e-12)]
    side = (context.right - context.left - 2 * BETWEEN) / 3
    rows, columns = a.values.shape
    cell = min(side / columns, 1.5 * side / rows, heatmap.LARGEST)
    names = (f"A  {traits.sides[0]}", f"B  {traits.against}", "B − A")
    y, ends = top + 24, []
    for at, (one, name) in enumerate(zip((a, b, change), names, strict=True)):
        place = Place(context.left + at * (side + BETWEEN), y, cell, rows, columns)
        canvas.text(place.x, top + 8, canvas.shorten(name, side, 12, True), size=12, bold=True)
        cells(context, one, place, traits.color_scale, together if at < 2 else "head")
        scale = colors.matrix_scale(one, traits.color_scale, together if at < 2 else "head")
        ends.append(_legend(context, one.kind, scale, place.x, y + place.height + 10, side))
    if comparison["query_places"] is None and comparison["key_places"] is None:
        return max(ends)
    words = f"{comparison['queries']:,} × {comparison['keys']:,} places that both have"
    canvas.text(context.left, max(ends) + 10, words, size=11, color=look.ink3)
    return max(ends) + 18


def _comparison(view: WidgetView) -> dict[str, Any] | None:
    """Return the comparison that is shown, or, where there is none yet, make it."""
    traits: Any = view.traits
    if traits.comparison is not None:
        found: dict[str, Any] = traits.comparison
        return found
    of = (traits.layer, traits.batch, traits.head, traits.stage, traits.pool, traits.against)
    comparison: dict[str, Any] | None = view.derived("comparison", *of)
    return comparison


def _part(comparison: dict[str, Any], name: str) -> DecodedMatrix:
    one = decoding.of_picture({**comparison, **comparison[name]})
    if name != "change":
        return one
    values = dict(vars(one), stage="scores")  # a change has two directions, whatever it is a change of
    return DecodedMatrix(**values)


def _legend(context: FigureContext, kind: str, scale: colors.Scale, x: float, y: float, side: float) -> float:
    width = min(side, 160)
    context.canvas.image(context.table(kind)[None], (x, y, width, 6))
    tick_labels(context, scale_ticks(scale, context.traits.stage), (x, y + 15, width), 10)
    return y + 22
