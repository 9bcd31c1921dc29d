"""Draw the graph: queries on the left, keys on the right, bands as wide as their weights.

In a stage after the weights, a band is as wide as its number is large, in the color of its sign.
The pinned token shows whole rows of weights, all other tokens their strongest links. `graph_geometry` computes where
rows, bands and curves lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from ..._analysis.top_links import LINK_CELLS, LINKS, strongest
from ..._engine.base import Head
from ..._engine.softmax import sink_weights
from ..._tokens.display import Label
from ..look import colors
from ..look.numbers import head_words, list_number
from . import graph_geometry as geometry
from .canvas import LEAST
from .graph_geometry import APART_LABELS, Lane, Link, Side
from .legend import legend_name
from .sheet import SINK, FigureContext

LARGEST_LABEL = 160  # pixels
BESIDE = 10  # pixels between a label and the curves
STEM = 3  # pixels: width of the bar where bands begin
MOST_CURVES = 1500
WHOLE = 4096  # weights of a token; of more, only the strongest are drawn
STRONGEST = 64
LEAST_BAR = 0.01  # smaller weights have no bar
BARS_FROM = 460  # pixels; wider figures have bars next to the keys
HEADINGS = {
    "weights": "Weight",
    "contribution": "Contribution",
    "value_norm": "Value norm",
    "logit": "Logit",
    "saliency": "Saliency",
}  # names of the numbers next to keys
PALE = {False: 0.045, True: 0.05}  # opacity of curves behind the bands, by whether the page is dark


@dataclass(frozen=True)
class Scene:
    """What is drawn, and where.

    side, pinned: the highlighted token; None if there is none.
    row: all its weights, in every head shown; focus: the weights drawn as bands.
    queries, keys: the columns; left, right, top: the sides and the top of the space between them.
    fills: the color of each head.
    curves: the strongest links of all other tokens.
    unit: the number drawn at the full band width, 1 for weights.
    signs: the colors of positive and negative numbers; None for unsigned numbers.
    """

    side: Side
    pinned: int | None
    row: list[Link]
    focus: list[Link]
    queries: Lane
    keys: Lane
    left: float
    right: float
    top: float
    fills: list[str]
    curves: list[Link]
    unit: float
    signs: tuple[str, str] | None

    def fill(self, link: Link) -> str:
        """Return the color of a link: by its sign, or by its head if there are no signs."""
        if self.signs is None:
            return self.fills[link.head]
        return self.signs[link.weight < 0]

    @property
    def strong(self) -> set[int]:
        """The partners of the pinned token whose labels are emphasized."""
        return {link.partner(self.side) for link in self.focus if link.size >= 0.05}


def draw(context: FigureContext, top: float) -> float:
    """Draw the graph of the widget's heads; return its lower end."""
    canvas, look = context.canvas, context.look
    scene = _scene(context, top + 26)
    ends = ((scene.left - BESIDE, "Query", "right"), (scene.right + BESIDE, "Key", "left"))
    for x, text, align in ends:
        canvas.text(x, top + 8, text, size=12, color=look.ink2, align=align)
    _draw_curves(context, scene)
    _draw_bands(context, scene)
    _draw_labels(context, scene, "query", ends[0][0], "right")
    _draw_labels(context, scene, "key", ends[1][0], "left")
    if _has_bars(context):
        _draw_bars(context, scene, top)
    bottom = scene.top + max(scene.queries.height, scene.keys.height)
    return _draw_legend(context, bottom + 14, scene)


def _scene(context: FigureContext, top: float) -> Scene:
    traits = context.traits
    side: Side = "key" if traits.query is None and traits.key is not None else "query"
    pinned = traits.query if side == "query" else traits.key
    row = [] if pinned is None else _row(context, side, pinned)
    others = _strongest_links(context, side, pinned)
    unit = 1.0 if context.stage == "weights" else max((link.size for link in [*row, *others]), default=0.0) or 1.0
    row, others = ([link._replace(unit=unit) for link in links] for links in (row, others))
    focus = geometry.keep_links(row, traits.top_k, traits.threshold)
    shape = context.selected.shape
    queries, keys = (
        geometry.lane(total, None if pinned is None else _kept(context, scene_side, side, pinned, focus))
        for scene_side, total in (("query", shape.Q), ("key", len(_key_labels(context))))
    )
    beside_keys = _bars_width(context) + 50 if _has_bars(context) else 0
    several = len(context.heads) > 1
    head_colors = colors.head_colors(context.theme)
    return Scene(
        side,
        pinned,
        row,
        focus,
        queries,
        keys,
        left=context.left + _labels_width(context, context.queries, queries) + BESIDE,
        right=context.right - _labels_width(context, _key_labels(context), keys) - BESIDE - beside_keys,
        top=top,
        fills=[head_colors[at % 12] if several else context.look.data for at in range(len(context.heads))],
        curves=_above(others, 0 if pinned is not None else traits.threshold),
        unit=unit,
        signs=context.sign_colors(context.stage),
    )


def _row(context: FigureContext, side: Side, pinned: int) -> list[Link]:
    """Return the pinned token's nonzero numbers in every head shown; only the strongest if there are many."""
    links = []
    for at, head in enumerate(context.heads):
        values = _numbers(context, side, pinned, head)
        count = len(values) if len(values) <= WHOLE else STRONGEST
        top = values.abs().topk(count).indices
        for weight, other in zip(values[top].tolist(), top.tolist(), strict=True):
            if weight != 0:
                query, key = (pinned, other) if side == "query" else (other, pinned)
                links.append(Link(query, key, at, weight))
        sinks = _sinks(context, head) if side == "query" else None
        if sinks is not None and sinks[pinned] > 0:
            links.append(Link(pinned, context.selected.shape.K, at, sinks[pinned]))
    return links


def _sinks(context: FigureContext, head: int | str) -> list[float] | None:
    """Return what each query gives to the learned sink, drawn as one more key; None without a sink."""
    if not _has_sink(context):
        return None
    found = sink_weights(_head(context, head), range(context.selected.shape.Q))
    return None if found is None else [float(weight) for weight in found.tolist()]


def _has_sink(context: FigureContext) -> bool:
    """Return whether the learned sink is drawn as a key: it gets weights, but contributes nothing downstream."""
    return context.selected.has_sinks and context.stage == "weights"


def _head(context: FigureContext, head: int | str) -> Head:
    att, number = context.of_head(head)
    return Head(att, context.traits.batch, number)


def _key_labels(context: FigureContext) -> Sequence[Label]:
    """Return the labels of the keys, and of the learned sink."""
    return [*context.keys, Label(SINK, "", False)] if _has_sink(context) else context.keys


def _numbers(context: FigureContext, side: Side, index: int, head: int | str) -> Tensor:
    """Return one query's numbers over all keys, or one key's over all queries, (n,) float64; 0 for NaN or ±∞."""
    if side == "query":
        values = context.block(context.stage, head, queries=index)[0]
    else:
        values = context.block(context.stage, head, keys=[index])[:, 0]
    return values.detach().to("cpu", torch.float64).nan_to_num(0.0, 0.0, 0.0)


def _kept(context: FigureContext, column: str, side: Side, pinned: int, focus: Sequence[Link]) -> list[int]:
    """Return the tokens of a column that are not folded, the most important first."""
    at = 0 if column == "query" else 1
    strong = sorted(focus, key=lambda link: -link.size)
    own = [pinned] if column == side else [link.partner(side) for link in strong]
    pins = [pin[at] for pin in context.traits.pins]
    own = [*own, context.selected.shape.K] if column == "key" and _has_sink(context) else own
    return list(dict.fromkeys([*own, *(-1 if pin is None else pin for pin in pins)]))


def _has_bars(context: FigureContext) -> bool:
    """Return whether there are bars next to the keys: the pinned query's weights."""
    return context.traits.query is not None and context.right - context.left > BARS_FROM


def _bars_width(context: FigureContext) -> float:
    return 0.28 * (context.right - context.left)


# Labels.


def _labels_width(context: FigureContext, labels: Sequence[Label], lane: Lane) -> float:
    size = _font_size(context, labels, lane)
    widths = [
        context.canvas.measure(labels[at].text, size, True) + _subscript_width(context, labels[at])
        for at in lane.labeled[:512]
    ]
    gaps = [context.canvas.measure(_gap_text(count), min(10, size)) for _, count in lane.gaps]
    return min(_most_wide(context), max([40.0, *widths, *gaps]) + 8)


def _most_wide(context: FigureContext) -> float:
    return min(LARGEST_LABEL, 0.3 * (context.right - context.left))


def _subscript_width(context: FigureContext, label: Label) -> float:
    return context.canvas.measure(label.subscript, 9) + 1 if label.subscript else 0


def _font_size(context: FigureContext, labels: Sequence[Label], lane: Lane) -> float:
    """Return the letter size: as large as rows and the longest label allow, but at least 6 pt."""
    tall = 12 if lane.pitch >= 16 else 10
    longest = max((context.canvas.measure(labels[at].text, tall, True) for at in lane.labeled[:512]), default=0)
    return max(LEAST, min(tall, tall * (_most_wide(context) - 16) / max(longest, 1)))


def _gap_text(count: int) -> str:
    return f"⋯ {count:,} {'token' if count == 1 else 'tokens'}"


def _draw_labels(context: FigureContext, scene: Scene, column: Side, x: float, align: str) -> None:
    labels, lane = (context.queries, scene.queries) if column == "query" else (_key_labels(context), scene.keys)
    pinned = scene.pinned if column == scene.side else None
    strong = scene.strong if column != scene.side else set()
    middle, size = None if pinned is None else lane.y(pinned), _font_size(context, labels, lane)
    for index in lane.labeled if pinned is None or pinned in lane.labeled else [*lane.labeled, pinned]:
        y = lane.y(index)
        is_crowded = middle is not None and index != pinned and y is not None and abs(y - middle) < APART_LABELS - 2
        if y is not None and not is_crowded:
            is_bold = index == pinned or index in strong
            _draw_label(context, labels[index], (x, scene.top + y), size, align, index == pinned, is_bold)
    for y, count in lane.gaps:
        context.canvas.text(
            x, scene.top + y, _gap_text(count), size=min(10, size), color=context.look.ink3, align=align
        )


def _draw_label(
    context: FigureContext,
    label: Label,
    at: tuple[float, float],
    size: float,
    align: str,
    is_pinned: bool,
    is_bold: bool,
) -> None:
    canvas, look, (x, y) = context.canvas, context.look, at
    under = _subscript_width(context, label)
    text = canvas.shorten(label.text, _most_wide(context) - under - 8, size, is_bold)
    width = canvas.measure(text, size, is_bold) + under
    start = x - width if align == "right" else x
    color = look.page if is_pinned else look.ink if is_bold else look.ink3 if label.special else look.ink2
    if is_pinned:
        canvas.boxes([(start - 5, y - size / 2 - 3, width + 10, size + 6)], [look.ink], 4)
    canvas.text(start, y, text, size=size, color=color, bold=is_bold)
    if label.subscript:
        below = color if is_bold else look.ink3
        canvas.text(start + width, y + 3, label.subscript, size=9, color=below, align="right")


# Between the columns.


def _draw_curves(context: FigureContext, scene: Scene) -> None:
    """Draw every token's strongest links: pale if a token is pinned, else in the heads' colors."""
    drawn = geometry.curves(geometry.strongest_last(scene.curves, MOST_CURVES), scene.queries, scene.keys)
    # If they would cover the whole height more than once, each is paler, so that many differ from few.
    covered = sum(curve.width0 for curve in drawn) / max(scene.queries.height, scene.keys.height)
    is_front = scene.pinned is None
    alpha = 0.35 / max(1.0, sqrt(covered)) if is_front else PALE[context.look.dark]
    for curve in drawn:
        color = scene.fill(curve.link) if is_front else context.look.ink
        _draw_band(context, scene, curve, color, alpha)


def _above(links: list[Link], threshold: float) -> list[Link]:
    return [link for link in links if link.size >= threshold]


def _strongest_links(context: FigureContext, side: Side, pinned: int | None) -> list[Link]:
    """Return the strongest links of every token except the pinned one."""
    traits, shape = context.traits, context.selected.shape
    if shape.Q * shape.K > LINK_CELLS:
        return []
    count = min(traits.top_k or LINKS, LINKS) if pinned is None else 1
    links = []
    for at, head in enumerate(context.heads):
        found = strongest(_head(context, head), count=count, side=traits.direction, stage=context.stage)
        partners = [
            list(zip(*row, strict=True)) for row in zip(found.partners.tolist(), found.weights.tolist(), strict=True)
        ]
        for own, row in enumerate(_with_sink(partners, _sinks(context, head), traits.direction, count, shape.K)):
            for other, weight in row:
                query, key = (own, other) if traits.direction == "query" else (other, own)
                link = Link(query, key, at, weight)
                if weight != 0 and (pinned is None or link.own(side) != pinned):
                    links.append(link)
    return links


def _with_sink(
    partners: list[list[tuple[int, float]]], sinks: list[float] | None, side: str, count: int, keys: int
) -> list[list[tuple[int, float]]]:
    """Add the learned sink as one more key to each token's strongest partners."""
    if sinks is None:
        return partners

    def few(row: list[tuple[int, float]]) -> list[tuple[int, float]]:
        return sorted(row, key=lambda one: -one[1])[:count]

    if side == "key":
        return [*partners, few(list(enumerate(sinks)))]
    return [few([*row, (keys, weight)]) for row, weight in zip(partners, sinks, strict=True)]


def _draw_bands(context: FigureContext, scene: Scene) -> None:
    """Draw the pinned token's links: heads stacked where they begin, joined where they end."""
    drawn, stems = geometry.bands(scene.focus, scene.side, scene.queries, scene.keys)
    for band in sorted(drawn, key=lambda band: band.link.size):
        _draw_band(context, scene, band, scene.fill(band.link), band.opacity)
    x = scene.left - STEM if scene.side == "query" else scene.right
    boxes = [(x, scene.top + stem.start, float(STEM), stem.end - stem.start) for stem in stems]
    context.canvas.boxes(boxes, [scene.fills[stem.head] for stem in stems])


def _draw_band(context: FigureContext, scene: Scene, band: geometry.LinkBand, color: str, alpha: float) -> None:
    ends = (scene.top + band.y0, scene.top + band.y1)
    context.canvas.band((scene.left, scene.right), ends, (band.width0, band.width1), facecolor=color, alpha=alpha)


def _draw_bars(context: FigureContext, scene: Scene, top: float) -> None:
    """Draw each key's number by head, and the mean over heads; negative numbers extend to the left."""
    canvas, look, heads, lane = context.canvas, context.look, len(scene.fills), scene.keys
    width = _bars_width(context)
    x = context.right - width - 40
    what = HEADINGS[context.stage]
    canvas.text(x, top + 8, f"{what} by head" if heads > 1 else what, size=12, color=look.ink2)
    if heads > 1:
        canvas.text(context.right, top + 8, "Mean", size=12, color=look.ink2, align="right")
    most = max((link.size for link in scene.row), default=1.0) or 1.0
    long, zero = (width - 24, x) if scene.signs is None else ((width - 24) / 2, x + (width - 24) / 2)
    if scene.signs is not None:
        canvas.boxes([(zero - 0.25, scene.top, 0.5, lane.height)], [look.line])
    thick = min(8.0 if heads == 1 else 3.0, (lane.pitch - 2) / heads - 1)
    of_key: dict[int, list[Link]] = {}
    for link in scene.row:
        of_key.setdefault(link.key, []).append(link)
    for key, links in of_key.items():
        middle = lane.y(key)
        if middle is None:
            continue
        y = scene.top + middle
        for link in links if thick >= 0.5 else ():
            if link.size >= LEAST_BAR:
                offset = (link.head - (heads - 1) / 2) * (thick + 1)
                wide = max(1.5, long * link.size / most)
                left = zero - wide if link.weight < 0 else zero
                shade = scene.fill(link) if heads == 1 else scene.fills[link.head]
                canvas.boxes([(left, y + offset - thick / 2, wide, thick)], [shade], 1)
        mean = sum(link.weight for link in links) / heads
        if abs(mean) / scene.unit >= 0.0005:
            color = look.ink if abs(mean) / scene.unit >= 0.02 else look.ink3
            # Weights have three decimals: bars are not more exact.
            text = list_number(mean, "scores")
            text = text.removeprefix("0") if context.stage == "weights" else text
            canvas.text(context.right, y, text, size=12 if lane.pitch >= 16 else 10, color=color, align="right")


def _draw_legend(context: FigureContext, y: float, scene: Scene) -> float:
    """Draw which color is which head or sign, and what the widths mean."""
    canvas, look, x = context.canvas, context.look, context.left
    names = [head_words(head, context.traits.facts["head_numbers"]) for head in context.heads]
    bars = _has_bars(context) or scene.signs is None  # with several heads and signs, only bars have the heads' colors
    keys = [*zip(names, scene.fills, strict=True)] if len(context.heads) > 1 and bars else []
    keys += [] if scene.signs is None else [*zip(("above 0", "below 0"), scene.signs, strict=True)]
    for text, fill in keys:
        width = 18 + canvas.measure(text, 11) + 16
        if x + width > context.right:
            x, y = context.left, y + 18
        canvas.boxes([(x, y - 2, 12, 12)], [fill], 2.5)
        canvas.text(x + 18, y + 4, text, size=11, color=look.ink2)
        x += width
    if context.stage != "weights":
        what = "band width" if scene.pinned is not None else "the largest links of each token, width"
        most = list_number(scene.unit, context.stage)
        name, end = legend_name(context.stage, context), f"widest {'' if scene.signs is None else '±'}{most}"
        x, y = (context.left, y + 18) if keys else (x, y)
        return context.words(x, y + 4, [f"{name}:", f"{what} = size", end], look.ink3) - 10
    parts = (
        ["band width = weight"] if scene.pinned is not None else ["the strongest links of each token, width = weight"]
    )
    if x + canvas.measure(parts[0], 11) > context.right:
        x, y = context.left, y + 18
    if x + canvas.measure(parts[0], 11) > context.right:
        parts = parts[0].split(", ")
    return context.words(x, y + 4, parts, look.ink3) - 10
