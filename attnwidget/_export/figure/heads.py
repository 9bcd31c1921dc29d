"""All heads, drawn: each small and on its own range, with a metric below it; ordered as the widget orders them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from ..._analysis.metrics import NAMES
from ..._analysis.similar_heads import metric_distances, order_of, picture_distances
from ..._messages import decoding, heads_overview
from ..._messages.decoding import BLOCKED, NAN
from .. import colors
from ..effects import as_loss, loss_text
from ..numbers import brief_head, numbers_of_all
from ..view import WidgetView
from .canvas import LEAST
from .sheet import FigureContext

LARGEST = 58  # pixels of a picture
GUTTER = 30  # left of the rows, for the layers' numbers
HEADER = 22  # above the columns, for the heads'
BARS_FROM = 18  # pixels of a picture that has a bar below it
NAMES_FROM = 20  # pixels of a picture with its name below it
UNDER = 9  # of a picture's bar, and of its name
WORDS = {"bits": " bits", "tokens": " tokens", "weight": "", "share": " %", "change": "", "own": ""}


class Metric(NamedTuple):
    """What a metric is called, as js/src/data/survey.ts has it, and what its numbers are of."""

    word: str
    kind: str


METRICS = {
    "entropy": Metric("entropy", "bits"),
    "first_token": Metric("first token", "weight"),
    "previous_token": Metric("previous token", "weight"),
    "itself": Metric("itself", "weight"),
    "same_token": Metric("same token elsewhere", "weight"),
    "last_token": Metric("last token", "weight"),
    "induction": Metric("induction", "weight"),
    "mean_distance": Metric("mean distance", "tokens"),
    "masked_share": Metric("masked", "share"),
    "learned_sink": Metric("learned sink", "share"),
    "sink": Metric("rows on the first token", "share"),
    "streaming": Metric("first and near tokens", "share"),
    "recall": Metric("kept by the cache", "share"),
    "effect": Metric("loss without it", "change"),
}


@dataclass(frozen=True)
class HeadsLayout:
    """Where each head stands: `places` are columns and rows, in the order of the layers' heads; None of one left out.

    Sizes are pixels.
    """

    places: list[tuple[int, int] | None]
    size: float
    across: float
    down: float
    left: float
    top: float
    named: bool
    bars: bool


def draw(context: FigureContext, top: float) -> float:
    """Draw all heads of all layers; return where they end."""
    survey = _survey(context.view)
    names = [(layer, head) for layer, one in enumerate(survey["layers"]) for head in range(one["heads"])]
    shares, words = _shares(context, survey)
    y = context.words(context.left, top + 6, _caption(context, survey, names, words), context.look.ink2) - 2
    layout = _layout(context, survey, names, y)
    pictures = [one for sent in survey["pictures"] if sent is not None for one in _decoded(sent)]
    bottom = layout.top
    for (layer, head), place, picture, share in zip(names, layout.places, pictures, shares, strict=True):
        if place is None:
            continue
        column, row = place
        x, y = layout.left + column * layout.across, layout.top + row * layout.down
        _picture(context, picture, (x, y, layout.size, layout.size))
        if layout.bars:
            _bar(context, share, x, y + layout.size + 4, layout.size)
        if layout.named:
            name = brief_head(layer, head, context.traits.facts)
            below = y + layout.size + (UNDER if layout.bars else 0) + 7
            color = context.look.ink if _is_selected(context, layer, head) else context.look.ink3
            context.canvas.text(x + layout.size / 2, below, name, size=LEAST, color=color, align="center")
        if _is_selected(context, layer, head):
            context.canvas.frame((x - 2, y - 2, layout.size + 4, layout.size + 4), 2, context.look.ink, 3)
        bottom = max(bottom, y + layout.down)
    if not layout.named:
        _axes(context, survey, layout)
    return bottom


def _name(context: FigureContext) -> str:
    layer, head = context.traits.layer, context.traits.head
    name = brief_head(layer, head, context.traits.facts)
    return name if len(context.traits.facts["layers"]) > 1 else f"head {name}"


def _is_selected(context: FigureContext, layer: int, head: int) -> bool:
    return (layer, head) == (context.traits.layer, context.traits.head)


def _survey(view: WidgetView) -> dict[str, Any]:
    """Return all heads, those that are shown or, where they are not all there yet, computed now."""
    known = view.traits.survey
    if known is not None and known["error"] is None and len(known["pictures"]) == len(known["layers"]):
        return known
    batch = view.traits.batch
    ids = lambda layer: view.shown.ids(layer, batch)  # noqa: E731
    found = heads_overview.Survey(view.shown.layers, batch, ids, view.shown.kinds, view.shown.text)
    for _ in found:
        pass
    return found.message()


def _shares(context: FigureContext, survey: dict[str, Any]) -> tuple[list[float], str]:
    """Return how full the bar of each head is, and what it is of, in words; nothing where the metric is not there."""
    name = context.traits.bar
    values = _metric(context, survey, name)
    if values is None:
        return [0.0] * sum(one["heads"] for one in survey["layers"]), ""
    word, kind = METRICS.get(name, Metric(name, "own"))
    there = values[np.isfinite(values)]
    high = 1.0
    if kind == "bits":
        high = math.log2(max(2, *(one["keys"] for one in survey["layers"])))
    elif kind in ("tokens", "change", "own"):
        high = float(there.max(initial=0.0)) or 1.0
    full = {
        "bits": f"{high:.2f}",
        "tokens": f"{high:,.1f}",
        "weight": "1",
        "share": "100",
        "own": f"{high:.3g}",
        "change": _loss_words(context, high),
    }[kind]
    shares = np.clip(np.nan_to_num(values / high, nan=0.0), 0, 1).tolist()
    return shares, f"the bar is {word}, 0 to {full}{WORDS[kind]}"


def _word(name: str) -> str:
    return METRICS[name].word if name in METRICS else name


def _metric(context: FigureContext, survey: dict[str, Any], name: str) -> colors.Array | None:
    return _losses(context, survey) if name == "effect" else _sent_metric(survey, name)


def _sent_metric(survey: dict[str, Any], name: str) -> colors.Array | None:
    sent = survey["metrics"].get(name) or survey["own"].get(name)
    if sent is None:
        return None
    values, kinds = decoding.decode_cells(sent, None)
    return np.where(kinds == NAN, np.nan, values).astype(np.float64)


def _loss_words(context: FigureContext, high: float) -> str:
    effects = context.traits.effects
    return loss_text(high) + (f" {effects['unit']}" if effects is not None else "")


def _losses(context: FigureContext, survey: dict[str, Any]) -> colors.Array | None:
    """Return what is lost without each head, NaN where that has not been run; None where nothing is known of them."""
    effects = context.traits.effects
    heads = None if effects is None else effects["heads"]
    if heads is None or heads["counts"] != [one["heads"] for one in survey["layers"]]:
        return None
    values = np.array([np.nan if (lost := as_loss(one)) is None else lost for one in heads["lost"]], np.float64)
    return values if np.isfinite(values).any() else None


def _limits(context: FigureContext, survey: dict[str, Any]) -> str:
    """Return which heads are drawn, in words."""
    first, last, above = context.traits.only_heads or (None, None, None)
    name = context.traits.bar
    end = len(survey["layers"]) - 1 if last is None else last
    layers = [] if first is None and last is None else [f"of layers {first or 0} to {end}"]
    least = [] if above is None or _metric(context, survey, name) is None else [f"with {_word(name)} above {above:g}"]
    return "".join(f" {words}" for words in (*layers, *least))


def _caption(context: FigureContext, survey: dict[str, Any], names: list[tuple[int, int]], words: str) -> list[str]:
    order, layers = context.traits.order, survey["layers"]
    if order == "similar":
        first = f"Heads like {_name(context)} first, by metrics and picture."
    elif _metric(context, survey, order) is not None:
        first = f"Ordered by {_word(order)}, largest first."
    else:
        whole = context.traits.only_heads is None
        first = (
            "The heads of the layer." if len(layers) == 1 else "Rows are layers, columns are heads." if whole else ""
        )
    sampled = next((one for one in layers if one["heads"] and one["rows"] < one["queries"]), None)
    parts = [first, f"Each picture on its own color range{';' if words else '.'}", *([f"{words}."] if words else [])]
    shown = len(_shown(context, survey, names))
    if shown < len(names):
        parts.insert(0, f"{shown:,} of {len(names):,} heads{_limits(context, survey)}.")
    if sampled is not None:
        parts.append(f"From {sampled['rows']:,} of {sampled['queries']:,} queries of each, exact.")
    return [part for part in parts if part]


def _layout(context: FigureContext, survey: dict[str, Any], names: list[tuple[int, int]], top: float) -> HeadsLayout:
    """Lay out a row for each layer; or, in another order or of a single layer, as many in a row as fit."""
    room, order = context.right - context.left, _order(context, survey, names)
    shown = _shown(context, survey, names)
    columns = max(1, *(one["heads"] for one in survey["layers"]))
    by_layer = order is None and len(survey["layers"]) > 1 and context.traits.only_heads is None
    left = context.left + (GUTTER if by_layer else 4)
    room -= left - context.left
    places: list[tuple[int, int] | None] = [None] * len(names)
    if by_layer:
        places = [(head, layer) for layer, head in names]
    else:
        least = NAMES_FROM + 14 if len(shown) * (NAMES_FROM + 14) ** 2 < room * 900 else NAMES_FROM + 4
        columns = max(1, min(len(shown), int(room // max(least, min(LARGEST + 16, room / columns)))))
        placed = range(len(names)) if order is None else order
        for number, place in enumerate(place for place in placed if place in shown):
            places[place] = number % columns, number // columns
    across = min(LARGEST * 1.25, room / columns)
    size = max(1.0, across - max(1.0, 0.2 * across))
    bars = size >= BARS_FROM
    down = size + (UNDER if bars else 0) + (0 if by_layer else 14) + (8 if bars else across - size)
    head = HEADER if by_layer else 6
    return HeadsLayout(places, size, across, down, left, top + head, not by_layer, bars)


def _shown(context: FigureContext, survey: dict[str, Any], names: list[tuple[int, int]]) -> set[int]:
    """Return the places of the heads that are drawn: of the layers, and above the number, that are asked for."""
    first, last, above = context.traits.only_heads or (None, None, None)
    values = _metric(context, survey, context.traits.bar)
    return {
        place
        for place, (layer, _) in enumerate(names)
        if (first or 0) <= layer <= (math.inf if last is None else last)
        and (above is None or values is None or values[place] > above)
    }


def _order(context: FigureContext, survey: dict[str, Any], names: list[tuple[int, int]]) -> list[int] | None:
    """Return the places of the heads in the order in which they stand; None where they stand by layer."""
    if context.traits.order == "similar":
        return _nearest(survey, names.index((context.traits.layer, context.traits.head)))
    values = _metric(context, survey, context.traits.order)
    if values is None:
        return None
    found: list[int] = np.argsort(-np.nan_to_num(values, nan=-np.inf, neginf=-1e300), kind="stable").tolist()
    return found


def _nearest(survey: dict[str, Any], own: int) -> list[int]:
    """Return the heads most like one first, by the numbers and pictures that are sent, as the page does."""
    compared = [name for name in METRICS if name in NAMES and survey["metrics"].get(name) is not None]
    metrics = np.stack([np.float64(_sent_metric(survey, name)) for name in compared], 1)
    pictures = [
        torch.from_numpy(np.where(np.isfinite(values), values, 0).astype(np.float64))
        for sent in survey["pictures"]
        if sent is not None
        for values, _ in _decoded(sent)
    ]
    by_metrics = metric_distances(torch.from_numpy(metrics), own)
    return order_of(by_metrics, picture_distances(pictures, own), own)


def _decoded(sent: dict[str, Any]) -> list[tuple[colors.Array, colors.Array]]:
    values, kinds = decoding.decode_cells(sent, None)
    return list(zip(values, kinds, strict=True))


def _picture(
    context: FigureContext, picture: tuple[colors.Array, colors.Array], box: tuple[float, float, float, float]
) -> None:
    values, kinds = picture
    table, look = context.table("sequential"), context.look
    pixels = table[colors.scale_of("sequential", False, 0.0, 1.0).entry(values)]
    pixels[kinds == BLOCKED] = colors.rgb_of(look.page)
    pixels[kinds == NAN] = colors.rgb_of(look.bad)
    context.canvas.image(pixels, box)
    if (kinds == BLOCKED).any():  # else nobody sees where a picture ends
        context.canvas.frame(box, 0.5, look.line)


def _bar(context: FigureContext, share: float, x: float, y: float, width: float) -> None:
    context.canvas.boxes([(x, y, width, 2)], [context.look.line], 1)
    if share > 0:
        context.canvas.boxes([(x, y, max(0.5, width * share), 2)], [context.look.ink2], 1)


def _axes(context: FigureContext, survey: dict[str, Any], layout: HeadsLayout) -> None:
    """Draw the numbers of the heads above and of the layers on the left, as many as fit."""
    canvas, look, traits = context.canvas, context.look, context.traits
    columns = max(one["heads"] for one in survey["layers"])
    numbers = numbers_of_all(traits.facts)
    size = max(LEAST, min(11.0, layout.size * 0.6))
    for many, each, is_head in ((columns, layout.across, True), (len(survey["layers"]), layout.down, False)):
        longest = f"{many - 1}{(numbers and f' ({max(numbers)})') or ''}"
        wide = canvas.measure(longest, size, True) + 3 if is_head else size * 1.1
        step = max(1, math.ceil(wide / each))
        own = traits.head if is_head else traits.layer
        for number in range(many):
            is_own = number == own
            if not is_own and (number % step or (abs(number - own) < step and step > 1)):
                continue
            middle = layout.size / 2 + number * each
            x, y = (layout.left + middle, layout.top - 10) if is_head else (layout.left - 10, layout.top + middle)
            color = look.ink if is_own else look.ink3
            align = "center" if is_head else "right"
            words = f"{number} ({numbers[number]})" if is_head and numbers else f"{number}"
            canvas.text(x, y, words, size=size, color=color, bold=is_own, align=align)
