"""Figures for papers: draw a widget's view with matplotlib."""

from __future__ import annotations

from typing import Any

from ..._engine.sources import Stage
from ..._engine.stages import MASKED
from ..._messages.codec import decoding
from ..._utils.validation import as_choice
from ..compared import is_comparison, names_of
from ..look import colors
from ..look.numbers import head_words, in_model, status_number
from ..view import WidgetView
from . import compare, graph, heads, heatmap, reading, segments, stages, why
from .canvas import Canvas
from .sheet import MARGIN, FigureContext

WIDTHS = (1.0, 100.0)  # inches
DPI = (10, 2400)
CAPTION = 11  # letter size in pixels
VIEWS = {
    "heatmap": heatmap.draw,
    "graph": graph.draw,
    "text": reading.draw,
    "image": reading.draw,
    "heads": heads.draw,
    "segments": segments.draw,
    "stages": stages.draw,
    "why": why.draw,
    "compare": compare.draw,
}


def figure_of(view: WidgetView, *, width: float, dpi: float, theme: str | None = None) -> Any:
    """Draw a widget's view; see `AttentionWidget.figure`.

    Args:
        view: the widget, as an export reads it.
        width: inches.
        dpi: dots per inch for parts made of pixels.
        theme: "light" or "dark"; None uses the widget's own.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: the widget shows nothing, width or dpi is out of range, or there is no such theme.
        TypeError: width or dpi is not a number.
    """
    _check("width", width, WIDTHS, "inches")
    _check("dpi", dpi, DPI, "dots per inch")
    theme = view.traits.theme if theme is None else as_choice(theme, ("auto", "light", "dark"), "theme")
    traits = view.traits
    if traits.picture.get("values") is None:
        raise ValueError(traits.picture.get("error") or "nothing has been computed yet: wait for the picture")
    canvas = Canvas(width, dpi, colors.look_of(theme))
    context = FigureContext(view, canvas, theme)
    top = _draw_title(context)
    bottom = VIEWS[traits.view](context, top)
    foot = _draw_footer(context, bottom + 14)
    return canvas.done(min(canvas.width, canvas.reached + MARGIN), foot + MARGIN)


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


def _draw_footer(context: FigureContext, top: float) -> float:
    """Write the pin and its number on the left and what the figure shows on the right, within the drawing's width."""
    canvas, look = context.canvas, context.look
    parts, facts = _pinned_parts(context), _facts_text(context)
    pinned = _fitted(context, "".join(parts), CAPTION)
    right = min(context.right, canvas.reached)
    beside = canvas.measure(pinned, CAPTION) + canvas.measure(facts, CAPTION) + 24 <= right - context.left
    y = top + 8
    if pinned:
        is_whole = pinned == "".join(parts)
        canvas.parts(context.left, y, parts if is_whole else [pinned], size=CAPTION, color=look.ink)
        y += 0 if beside else 16
    if beside:
        canvas.text(right, y, facts, size=CAPTION, color=look.ink3, align="right")
    else:
        canvas.text(context.left, y, _fitted(context, facts, CAPTION), size=CAPTION, color=look.ink3)
    return y + 8


def _fitted(context: FigureContext, text: str, size: float, bold: bool = False) -> str:
    return context.canvas.shorten(text, context.right - context.left, size, bold)


def _pinned_parts(context: FigureContext) -> list[str]:
    """Return the pin and its number as text; each token is a separate part."""
    traits = context.traits
    parts: list[str] = []
    for labels, at, side in ((context.queries, traits.query, "query"), (context.keys, traits.key, "key")):
        if at is not None:
            is_named = labels[at].text != f"{at:,}"
            parts += [" → "] if parts else []
            parts += [labels[at].text, f" {at:,}"] if is_named else [f"{side} {at:,}"]
    if traits.query is None or traits.key is None:
        return parts
    stage: Stage = "weights" if traits.view in ("stages", "compare") else traits.stage
    stage = context.stage if traits.view in ("graph", "heads") else stage
    where = {"queries": traits.query, "keys": traits.key}
    if stage in MASKED and not bool(context.block("allowed", context.head, **where)):
        return [*parts, "   masked in A" if is_comparison(traits) else "   masked"]
    word = "weight" if stage == "weights" else stage
    of_a = " in A" if is_comparison(traits) else ""
    return [*parts, f"   {word} {status_number(float(context.block(stage, context.head, **where)))}{of_a}"]


def _facts_text(context: FigureContext) -> str:
    traits, facts = context.traits, context.traits.facts
    several = traits.view == "graph" and len(context.heads) > 1
    numbers = facts["head_numbers"]
    head = head_words(context.head, numbers)
    if several:
        own = in_model((one for one in context.heads if isinstance(one, int)), numbers)
        head = f"heads {', '.join(map(str, context.heads))}{own}"
    every = decoding.of_picture(traits.picture).every
    sampled = f"1 of {every:,} rows" if every > 1 and traits.view == "heatmap" else ""
    a, b = names_of(traits) if is_comparison(traits) else ("", "")
    parts = [
        a,  # which all of this describes
        f"forward {traits.forward:,}" if traits.forwards > 1 else "",
        traits.stack,
        f"layer {traits.layer}" if len(facts["layers"]) > 1 else "",
        f"sample {traits.batch}" if facts["batches"] > 1 else "",
        head if facts["heads"] > 1 or numbers else "",
        f"{facts['queries']:,} × {facts['keys']:,}",
        "causal" if facts["is_causal"] else "",
        facts["dtype"],
        sampled,
        b if traits.view == "compare" else "",
    ]
    return " · ".join(part for part in parts if part)
