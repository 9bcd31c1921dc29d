"""Draw all heads: small, each with its own range and a metric below it, in the widget's order.

In a stage after the weights each picture shows that stage's numbers, and there are two more metrics: the sum over the
keys of the pinned query, or its mean over all queries, and the same for absolute values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from ..._analysis.metrics import NAMES
from ..._analysis.similar_heads import metric_distances, order_of, picture_distances
from ..._engine.stages import SIGNED
from ..._messages.codec import decoding
from ..._messages.codec.decoding import BLOCKED, NAN
from ..._messages.pictures import heads_overview
from ..._messages.pictures.heads_of_stage import STAGE_SUMS, StageSurvey
from ..._utils.assets import names as shared_names
from ..._utils.assets import stage_names
from ..look import colors
from ..look.effects import as_loss, loss_text
from ..look.numbers import brief_head, numbers_of_all
from ..view import WidgetView
from .canvas import LEAST
from .legend import legend_name
from .sheet import FigureContext

LARGEST = 58  # pixels: side of a picture
GUTTER = 30  # left of the rows, for layer numbers
HEADER = 22  # above the columns, for head numbers
BARS_FROM = 18  # pixels; larger pictures have a bar below them
NAMES_FROM = 20  # pixels; larger pictures have their name below them
UNDER = 9  # pixels for a picture's bar, and for its name
WORDS = {"bits": " bits", "tokens": " tokens", "weight": "", "share": " %"}


class Metric(NamedTuple):
    """A metric's name, and the kind of its numbers."""

    word: str
    kind: str


@dataclass(frozen=True)
class HeadsLayout:
    """Where each head is drawn; sizes are pixels.

    `places` has columns and rows, in the order of the layers' heads; None for a head left out.
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
    """Draw all heads of all layers; return the lower end."""
    survey = _survey(context)
    names = [(layer, head) for layer, one in enumerate(survey["layers"]) for head in range(one["heads"])]
    shares, words, signed = _shares(context, survey)
    y = context.words(context.left, top + 6, _caption(context, survey, names, words), context.look.ink2) - 2
    layout = _layout(context, survey, names, y)
    pictures = _pictures(survey)
    bottom = layout.top
    for (layer, head), place, picture, share in zip(names, layout.places, pictures, shares, strict=True):
        if place is None:
            continue
        column, row = place
        x, y = layout.left + column * layout.across, layout.top + row * layout.down
        _picture(context, picture, (x, y, layout.size, layout.size))
        if layout.bars:
            _bar(context, share, (x, y + layout.size + 4, layout.size), signed=signed)
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


def _survey(context: FigureContext) -> dict[str, Any]:
    """Return all heads with their stage: the ones shown, or computed now if they are incomplete."""
    survey = _survey_of_weights(context.view)
    return survey if context.stage == "weights" else {**survey, "stage": _stage_heads(context)}


def _survey_of_weights(view: WidgetView) -> dict[str, Any]:
    known = view.traits.survey
    if known is not None and known["error"] is None and len(known["pictures"]) == len(known["layers"]):
        return known
    batch = view.traits.batch
    ids = lambda layer: view.shown.ids(layer, batch)  # noqa: E731
    found = heads_overview.Survey(view.shown.layers, batch, ids, view.shown.kinds, view.shown.text)
    for _ in found:
        pass
    return found.message()


def _stage_heads(context: FigureContext) -> dict[str, Any]:
    """Return small pictures and sums of all heads in the chosen stage, from the widget or computed now."""
    traits, layers = context.traits, context.view.shown.layers
    known, of = traits.stage_heads, (traits.batch, context.stage, traits.query)
    is_it = known is not None and known["error"] is None and (known["batch"], known["stage"], known["query"]) == of
    if known is not None and is_it and len(known["pictures"]) == len(layers):
        return known
    found = StageSurvey(layers, traits.batch, context.stage)
    found.query = traits.query
    for _ in found:
        pass
    return found.message()


def _pictures(survey: dict[str, Any]) -> list[tuple[colors.Array, colors.Array] | None]:
    """Return each head's picture, in the order of the layers' heads; None in a layer without the stage."""
    sent = survey.get("stage", survey)["pictures"]
    found: list[tuple[colors.Array, colors.Array] | None] = []
    for layer, one in zip(survey["layers"], sent, strict=True):
        found += [None] * layer["heads"] if one is None else _decoded(one)
    return found


def _shares(context: FigureContext, survey: dict[str, Any]) -> tuple[list[float], str, bool]:
    """Return how full each head's bar is, its meaning as text, and whether it extends both ways from the middle.

    Empty if the metric is not available.
    """
    name = context.traits.bar
    values = _metric(context, survey, name)
    if values is None:
        return [0.0] * sum(one["heads"] for one in survey["layers"]), "", False
    word, kind = _named(name)
    there = values[np.isfinite(values)]
    if bool((there < 0).any()) and kind in ("stage", "nats", "own"):
        return _signed_shares(context, values, name)
    if name in STAGE_SUMS:
        word = _sum_words(context, name)
    high = 1.0
    if kind == "bits":
        high = math.log2(max(2, *(one["keys"] for one in survey["layers"])))
    elif kind in ("tokens", "nats", "own", "stage", "size"):
        high = float(there.max(initial=0.0)) or 1.0
    full = {
        "bits": f"{high:.2f}",
        "tokens": f"{high:,.1f}",
        "weight": "1",
        "share": "100",
        "nats": _loss_words(context, high),
    }.get(kind, f"{high:.3g}")
    shares = np.clip(np.nan_to_num(values / high, nan=0.0), 0, 1).tolist()
    return shares, f"the bar is {word}, 0 to {full}{WORDS.get(kind, '')}", False


def _signed_shares(context: FigureContext, values: colors.Array, name: str) -> tuple[list[float], str, bool]:
    """Return the same for a metric with negative numbers: from −1 to 1."""
    word, kind = _named(name)
    word = _sum_words(context, name) if name in STAGE_SUMS else word
    high = float(np.abs(values[np.isfinite(values)]).max())
    number = loss_text(high) if kind == "nats" else f"{high:.3g}"
    end = _loss_words(context, high) if kind == "nats" else number
    shares = np.clip(np.nan_to_num(values / high, nan=0.0), -1, 1).tolist()
    return shares, f"the bar is {word}, −{number} to {end}", True


def _sum_words(context: FigureContext, name: str) -> str:
    """Return the meaning of a sum, in the widget's words."""
    what = f"the {'sum' if name == 'stage_sum' else 'sum of the sizes'} of {stage_names(context.stage)['many']}"
    query = context.traits.query
    return f"{what} over {'the keys, mean over the queries' if query is None else f'the keys of query {query}'}"


def _named(name: str) -> Metric:
    """Return a metric's words and kind; a custom metric has its own name."""
    for metric in shared_names()["metrics"]:
        if metric["name"] == name:
            return Metric(metric["word"][0].lower() + metric["word"][1:], metric["kind"])
    return Metric(name, "own")


def _metric(context: FigureContext, survey: dict[str, Any], name: str) -> colors.Array | None:
    if name in STAGE_SUMS:
        return _stage_metric(context, survey, name)
    return _losses(context, survey) if name == "effect" else _sent_metric(survey, name)


def _stage_metric(context: FigureContext, survey: dict[str, Any], name: str) -> colors.Array | None:
    """Return each head's sum; None for weights; for unsigned stages the sums of absolute values."""
    sent = survey.get("stage")
    if sent is None or (name == "stage_sum" and context.stage not in SIGNED):
        return None
    values = decoding.decode(sent["sums" if name == "stage_sum" else "sizes"])
    return values.astype(np.float64) if np.isfinite(values).any() else None


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
    """Return the loss without each head, NaN if not run; None if there are no losses."""
    effects = context.traits.effects
    heads = None if effects is None else effects["heads"]
    if heads is None or heads["counts"] != [one["heads"] for one in survey["layers"]]:
        return None
    values = np.array([np.nan if (lost := as_loss(one)) is None else lost for one in heads["lost"]], np.float64)
    return values if np.isfinite(values).any() else None


def _limits(context: FigureContext, survey: dict[str, Any]) -> str:
    """Return which heads are drawn, as text."""
    first, last, above = context.traits.only_heads or (None, None, None)
    name = context.traits.bar
    end = len(survey["layers"]) - 1 if last is None else last
    layers = [] if first is None and last is None else [f"of layers {first or 0} to {end}"]
    known = above is not None and _metric(context, survey, name) is not None
    least = [f"with {_named(name).word} above {above:g}"] if known else []
    return "".join(f" {words}" for words in (*layers, *least))


def _caption(context: FigureContext, survey: dict[str, Any], names: list[tuple[int, int]], words: str) -> list[str]:
    order, layers = context.traits.order, survey["layers"]
    if order == "similar":
        first = f"Most similar to {_name(context)} first, by metrics and picture."
    elif _metric(context, survey, order) is not None:
        first = f"Ordered by {_named(order).word}, largest first."
    else:
        whole = context.traits.only_heads is None
        first = (
            "The heads of the layer." if len(layers) == 1 else "Rows are layers, columns are heads." if whole else ""
        )
    looked = {(one["rows"], one["queries"]) for one in layers if one["heads"]}
    parts = [first, f"{_pictures_words(context)}{';' if words else '.'}", *([f"{words}."] if words else [])]
    if missing := sum(one is None for one in _pictures(survey)):
        parts.insert(1, f"{missing:,} heads have no {stage_names(context.stage)['many']}: their pictures are empty.")
    shown = len(_shown(context, survey, names))
    if shown < len(names):
        parts.insert(0, f"{shown:,} of {len(names):,} heads{_limits(context, survey)}.")
    if any(rows < queries for rows, queries in looked):
        (rows, queries), *others = looked
        same = f"From {rows:,} of {queries:,} queries per head, each exact."
        parts.append("From some of the queries of long heads, each exact." if others else same)
    return [part for part in parts if part]


def _pictures_words(context: FigureContext) -> str:
    """Return what the pictures show, as text."""
    stage, chosen = context.stage, context.traits.stage
    if stage == "weights":
        return (
            "Each picture has its own color range"
            if chosen == stage
            else "Each picture is of weights and has its own color range"
        )
    signs = " from − to +" if stage in SIGNED else ""
    return f"{legend_name(stage, context)}: each picture{signs} has its own color range"


def _layout(context: FigureContext, survey: dict[str, Any], names: list[tuple[int, int]], top: float) -> HeadsLayout:
    """Lay out one row per layer; with another order or a single layer, fill each row."""
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
    """Return the places of the heads to draw, limited by layers and number."""
    first, last, above = context.traits.only_heads or (None, None, None)
    values = _metric(context, survey, context.traits.bar)
    return {
        place
        for place, (layer, _) in enumerate(names)
        if (first or 0) <= layer <= (math.inf if last is None else last)
        and (above is None or values is None or values[place] > above)
    }


def _order(context: FigureContext, survey: dict[str, Any], names: list[tuple[int, int]]) -> list[int] | None:
    """Return the places of the heads in drawing order; None if ordered by layer."""
    if context.traits.order == "similar":
        return _nearest(survey, names.index((context.traits.layer, context.traits.head)))
    values = _metric(context, survey, context.traits.order)
    if values is None:
        return None
    found: list[int] = np.argsort(-np.nan_to_num(values, nan=-np.inf, neginf=-1e300), kind="stable").tolist()
    return found


def _nearest(survey: dict[str, Any], own: int) -> list[int]:
    """Return the heads most similar to one first, by the numbers and pictures sent, as on the page."""
    compared = [name for name in NAMES if survey["metrics"].get(name) is not None]
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
    context: FigureContext, picture: tuple[colors.Array, colors.Array] | None, box: tuple[float, float, float, float]
) -> None:
    look = context.look
    if picture is None:
        context.canvas.frame(box, 0.5, look.line)
        return
    values, kinds = picture
    ramp = "diverging" if context.stage in SIGNED else "sequential"
    pixels = context.table(ramp)[colors.scale_of(ramp, False, 0.0, 1.0).entry(values)]
    pixels[kinds == BLOCKED] = colors.rgb_of(look.page)
    pixels[kinds == NAN] = colors.rgb_of(look.bad)
    context.canvas.image(pixels, box)
    if (kinds == BLOCKED).any():  # else the edge of the picture is invisible
        context.canvas.frame(box, 0.5, look.line)


def _bar(context: FigureContext, share: float, place: tuple[float, float, float], *, signed: bool) -> None:
    """Draw a bar below a picture (x, y, width): from its left end, or with signs both ways from its middle."""
    (x, y, width), look = place, context.look
    context.canvas.boxes([(x, y, width, 2)], [look.line], 1)
    room, zero = (width / 2, x + width / 2) if signed else (width, x)
    if share != 0:
        long = max(0.5, room * abs(share))
        above, below = context.sign_colors("logit") or (look.ink2, look.ink2)
        color = look.ink2 if not signed else above if share > 0 else below
        context.canvas.boxes([(zero - long if share < 0 else zero, y, long, 2)], [color], 1)
    if signed:
        context.canvas.boxes([(zero - 0.25, y - 1, 0.5, 4)], [look.ink2])


def _axes(context: FigureContext, survey: dict[str, Any], layout: HeadsLayout) -> None:
    """Draw head numbers above and layer numbers on the left, as many as fit."""
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
