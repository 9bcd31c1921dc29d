"""`figure`: what a widget shows, drawn with matplotlib for a page of paper."""

from __future__ import annotations

from typing import Any

from ..._messages import decoding
from ..._tokens.display import Label, labels_of, status_number
from .. import colors
from ..view import TraitsView, WidgetView
from . import compare, graph, heatmap, stages
from .canvas import Canvas

MARGIN = 8  # pixels around everything
WIDTHS = (1.0, 100.0)  # inches
DPI = (10, 2400)
SMALL = 11  # pixels of captions
VIEWS = {
    "heatmap": heatmap.draw,
    "graph": graph.draw,
    "stages": stages.draw,
    "compare": compare.draw,
}


class FigureContext:
    """What the drawing of any view needs of a widget."""

    def __init__(self, view: WidgetView, paper: Canvas) -> None:
        self.view, self.widget, self.selected = view, view.traits, view.selected
        self.paper, self.look = paper, paper.look
        self.left, self.right = float(MARGIN), paper.width - MARGIN
        shape = self.selected.shape
        self.queries = labels_of(view.tokens("query"), shape.Q)
        self.keys = labels_of(view.tokens("key"), shape.K)
        self.named = view.tokens("query") is not None
        self.named_keys = view.tokens("key") is not None

    def table(self, kind: str) -> colors.Array:
        return colors.table(kind, self.widget.palette, self.widget.theme)


def figure_of(view: WidgetView, *, width: float, dpi: float) -> Any:
    """The figure; `AttentionWidget.figure` says more."""
    _check("width", width, WIDTHS, "inches")
    _check("dpi", dpi, DPI, "dots per inch")
    widget = view.traits
    if widget.picture.get("values") is None:
        raise ValueError(widget.picture.get("error") or "nothing has been computed yet")
    paper = Canvas(width, dpi, colors.look_of(widget.theme))
    sheet = FigureContext(view, paper)
    top = _title(sheet)
    draw, words = VIEWS.get(widget.view), ""
    if draw is None:
        draw, words = heatmap.draw, f"The {widget.view} view has no figure: this is the heatmap of its head."
    bottom = draw(sheet, top)
    return paper.done(_footer(sheet, bottom + 14, words) + MARGIN)


def _check(name: str, value: Any, bounds: tuple[float, float], unit: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {type(value).__name__}: give a number of {unit}")
    if not bounds[0] <= value <= bounds[1]:
        raise ValueError(f"{name} is {value}: give {bounds[0]:g} to {bounds[1]:g} {unit}")


def _title(sheet: FigureContext) -> float:
    title = sheet.widget.title
    if not title:
        return float(MARGIN)
    sheet.paper.text(sheet.left, MARGIN + 9, _fit(sheet, title, 13, bold=True), size=13, bold=True)
    return MARGIN + 30.0


def _footer(sheet: FigureContext, top: float, words: str) -> float:
    """What is pinned and its number on the left, of what all of it is on the right; below that what has to be said."""
    paper, look = sheet.paper, sheet.look
    said, facts = _pinned(sheet), _facts(sheet.widget)
    beside = paper.measure(said, SMALL) + paper.measure(facts, SMALL) + 24 <= sheet.right - sheet.left
    y = top + 8
    if said:
        paper.text(sheet.left, y, _fit(sheet, said, SMALL), size=SMALL, color=look.ink)
        y += 0 if beside else 16
    if beside:
        paper.text(sheet.right, y, facts, size=SMALL, color=look.ink3, align="right")
    else:
        paper.text(sheet.left, y, _fit(sheet, facts, SMALL), size=SMALL, color=look.ink3)
    if words:
        y += 16
        paper.text(sheet.left, y, _fit(sheet, words, SMALL), size=SMALL, color=look.ink2)
    return y + 8


def _fit(sheet: FigureContext, text: str, size: float, bold: bool = False) -> str:
    return sheet.paper.shorten(text, sheet.right - sheet.left, size, bold)


def _pinned(sheet: FigureContext) -> str:
    widget = sheet.widget
    places = [
        _place(labels[at], at, side, named)
        for labels, at, side, named in (
            (sheet.queries, widget.query, "query", sheet.named),
            (sheet.keys, widget.key, "key", sheet.named_keys),
        )
        if at is not None
    ]
    said = " → ".join(places)
    if widget.query is None or widget.key is None:
        return said
    stage = "weights" if widget.view in ("graph", "stages", "compare") else widget.stage
    where = {"batch": widget.batch, "head": widget.head, "queries": widget.query, "keys": widget.key}
    if stage in ("masked", "weights", "contribution") and not bool(sheet.selected.block("allowed", **where)):
        return f"{said}   masked"
    word = "weight" if stage == "weights" else stage
    return f"{said}   {word} {status_number(float(sheet.selected.block(stage, **where)))}"


def _place(label: Label, position: int, side: str, named: bool) -> str:
    return f"{label.text} {position:,}" if named else f"{side} {position:,}"


def _facts(widget: TraitsView) -> str:
    facts = widget.facts
    several = widget.view == "graph" and len(widget.heads) > 1
    head = f"heads {', '.join(map(str, widget.heads))}" if several else f"head {widget.head}"
    seen = decoding.of_picture(widget.picture)
    sampled = f"1 of {seen.every:,} rows" if seen.every > 1 and widget.view == "heatmap" else ""
    parts = [
        f"layer {widget.layer}" if len(facts["layers"]) > 1 else "",
        f"sample {widget.batch}" if facts["batches"] > 1 else "",
        head if facts["heads"] > 1 else "",
        f"{facts['queries']:,} × {facts['keys']:,}",
        "causal" if facts["is_causal"] else "",
        facts["dtype"],
        sampled,
    ]
    return " · ".join(part for part in parts if part)
