"""A comparison on paper: A, B and B − A, one scale for the first two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._messages import decoding
from ..._messages.decoding import DecodedMatrix
from ..._tokens.display import short_number
from ..view import WidgetView
from . import heatmap
from .heatmap import Place, cells

if TYPE_CHECKING:
    from .figure import FigureContext

BETWEEN = 21  # pixels between two pictures
PARTS = ("a", "b", "change")


def draw(sheet: FigureContext, top: float) -> float:
    """The three pictures side by side; returns where they end."""
    widget: Any = sheet.widget
    paper, look = sheet.paper, sheet.look
    made = _made(sheet.view)
    if made is None or made.get("error"):
        return heatmap.draw(sheet, top)
    a, b, change = (_part(made, name) for name in PARTS)
    low = min(one.low or 0.0 for one in (a, b))
    high = max(one.high or 0.0 for one in (a, b))
    together: Any = [low, high] if a.kind == "diverging" else [0.0, max(high, 1e-12)]
    side = (sheet.right - sheet.left - 2 * BETWEEN) / 3
    rows, columns = a.values.shape
    cell = min(side / columns, 1.5 * side / rows, heatmap.LARGEST)
    names = (f"A  {widget.sides[0]}", f"B  {widget.against}", "B − A")
    y, ends = top + 24, []
    for at, (one, name) in enumerate(zip((a, b, change), names, strict=True)):
        place = Place(sheet.left + at * (side + BETWEEN), y, cell, rows, columns)
        paper.text(place.x, top + 8, paper.shorten(name, side, 12, True), size=12, bold=True)
        cells(sheet, one, place, widget.color_scale, together if at < 2 else "head")
        ends.append(_legend(sheet, one, together if at < 2 else "head", place.x, y + place.height + 10, side))
    if made["query_places"] is None and made["key_places"] is None:
        return max(ends)
    words = f"{made['queries']:,} × {made['keys']:,} places that both have"
    paper.text(sheet.left, max(ends) + 10, words, size=11, color=look.ink3)
    return max(ends) + 18


def _made(view: WidgetView) -> dict[str, Any] | None:
    """The comparison that is shown, or, where it was not made yet, that of the same."""
    widget: Any = view.traits
    if widget.comparison is not None:
        found: dict[str, Any] = widget.comparison
        return found
    of = (widget.layer, widget.batch, widget.head, widget.stage, widget.pool, widget.against)
    made: dict[str, Any] | None = view.derived("comparison", *of)
    return made


def _part(made: dict[str, Any], name: str) -> DecodedMatrix:
    one = decoding.of_picture({**made, **made[name]})
    if name != "change":
        return one
    values = dict(vars(one), stage="scores")  # a change has two directions, whatever it is a change of
    return DecodedMatrix(**values)


def _legend(sheet: FigureContext, one: DecodedMatrix, color_range: Any, x: float, y: float, side: float) -> float:
    scale = decoding.scale_of(one, "linear", color_range)
    sheet.paper.image(sheet.table(one.kind)[None], (x, y, min(side, 160), 6))
    ends = ((x, scale.low, "left"), (x + min(side, 160), scale.high, "right"))
    for at, value, align in ends:
        sheet.paper.text(at, y + 15, short_number(value), size=10, color=sheet.look.ink3, align=align)
    return y + 22
