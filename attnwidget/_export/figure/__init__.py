"""Figures for papers: what a widget shows, drawn with matplotlib."""

from __future__ import annotations

from typing import Any

from ..._messages import decoding
from .. import colors
from ..numbers import status_number
from ..view import TraitsView, WidgetView
from . import compare, graph, heatmap, stages
from .canvas import Canvas
from .sheet import MARGIN, FigureContext

WIDTHS = (1.0, 100.0)  # inches
DPI = (10, 2400)
CAPTION = 11  # pixels of its letters
VIEWS = {
    "heatmap": heatmap.draw,
    "graph": graph.draw,
    "stages": stages.draw,
    "compare": compare.draw,
}


def figure_of(view: WidgetView, *, width: float, dpi: float) -> Any:
    """Draw what a widget shows; `AttentionWidget.figure` says more.

    Args:
        view: of the widget.
        width: inches.
        dpi: dots per inch of what is made of pixels.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: the widget shows nothing, or width or dpi is out of range.
        TypeError: width or dpi is no number.
    """
    _check("width", width, WIDTHS, "inches")
    _check("dpi", dpi, DPI, "dots per inch")
    traits = view.traits
    if traits.picture.get("values") is None:
        raise ValueError(traits.picture.get("error") or "nothing has been computed yet")
    canvas = Canvas(width, dpi, colors.look_of(traits.theme))
    context = FigureContext(view, canvas)
    top = _draw_title(context)
    draw, words = VIEWS.get(traits.view), ""
    if draw is None:
        draw, words = heatmap.draw, f"The {traits.view} view has no figure: this is the heatmap of its head."
    bottom = draw(context, top)
    return canvas.done(_draw_footer(context, bottom + 14, words) + MARGIN)


def _check(name: str, value: Any, bounds: tuple[float, float], unit: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {type(value).__name__}: give a number of {unit}")
    if not bounds[0] <= value <= bounds[1]:
        raise ValueError(f"{name} is {value}: give {bounds[0]:g} to {bounds[1]:g} {unit}")


def _draw_title(context: FigureContext) -> float:
    title = context.traits.title
    if not title:
        return float(MARGIN)
    context.canvas.text(context.left, MARGIN + 9, _fitted(context, title, 13, bold=True), size=13, bold=True)
    return MARGIN + 30.0


def _draw_footer(context: FigureContext, top: float, words: str) -> float:
    """What is pinned and its number on the left, of what all of it is on the right; below that what has to be said."""
    canvas, look = context.canvas, context.look
    parts, facts = _pinned_parts(context), _facts_text(context.traits)
    pinned = _fitted(context, "".join(parts), CAPTION)
    beside = canvas.measure(pinned, CAPTION) + canvas.measure(facts, CAPTION) + 24 <= context.right - context.left
    y = top + 8
    if pinned:
        is_whole = pinned == "".join(parts)
        canvas.parts(context.left, y, parts if is_whole else [pinned], size=CAPTION, color=look.ink)
        y += 0 if beside else 16
    if beside:
        canvas.text(context.right, y, facts, size=CAPTION, color=look.ink3, align="right")
    else:
        canvas.text(context.left, y, _fitted(context, facts, CAPTION), size=CAPTION, color=look.ink3)
    if words:
        y += 16
        canvas.text(context.left, y, _fitted(context, words, CAPTION), size=CAPTION, color=look.ink2)
    return y + 8


def _fitted(context: FigureContext, text: str, size: float, bold: bool = False) -> str:
    return context.canvas.shorten(text, context.right - context.left, size, bold)


def _pinned_parts(context: FigureContext) -> list[str]:
    """What is pinned, and its number; each token is a part of its own."""
    traits = context.traits
    parts: list[str] = []
    for labels, at, side in ((context.queries, traits.query, "query"), (context.keys, traits.key, "key")):
        if at is not None:
            is_named = labels[at].text != f"{at:,}"
            parts += [" → "] if parts else []
            parts += [labels[at].text, f" {at:,}"] if is_named else [f"{side} {at:,}"]
    if traits.query is None or traits.key is None:
        return parts
    stage = "weights" if traits.view in ("graph", "stages", "compare") else traits.stage
    where = {"batch": traits.batch, "head": traits.head, "queries": traits.query, "keys": traits.key}
    if stage in ("masked", "weights", "contribution") and not bool(context.selected.block("allowed", **where)):
        return [*parts, "   masked"]
    word = "weight" if stage == "weights" else stage
    return [*parts, f"   {word} {status_number(float(context.selected.block(stage, **where)))}"]


def _facts_text(traits: TraitsView) -> str:
    facts = traits.facts
    several = traits.view == "graph" and len(traits.heads) > 1
    head = f"heads {', '.join(map(str, traits.heads))}" if several else f"head {traits.head}"
    every = decoding.of_picture(traits.picture).every
    sampled = f"1 of {every:,} rows" if every > 1 and traits.view == "heatmap" else ""
    parts = [
        f"forward {traits.forward:,}" if traits.forwards > 1 else "",
        traits.stack,
        f"layer {traits.layer}" if len(facts["layers"]) > 1 else "",
        f"sample {traits.batch}" if facts["batches"] > 1 else "",
        head if facts["heads"] > 1 else "",
        f"{facts['queries']:,} × {facts['keys']:,}",
        "causal" if facts["is_causal"] else "",
        facts["dtype"],
        sampled,
    ]
    return " · ".join(part for part in parts if part)
