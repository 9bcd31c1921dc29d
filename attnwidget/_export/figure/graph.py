"""The graph on paper: queries on the left, keys on the right, bands as wide as their weights.

Geometry as js/src/views/graph/geometry.ts has it: of what is pinned whole rows of weights, of all other tokens their
strongest links.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..._analysis.top_links import strongest
from ..._tokens.display import Label, list_number
from .. import colors

if TYPE_CHECKING:
    from .figure import FigureContext

PITCHES = (22, 16, 12)  # pixels of a row, the largest that fit
TALL = 640
APART = 14  # pixels between two labels, at least
MOST_LABEL = 160
BESIDE = 10  # pixels between a label and the curves
STEM = 3  # pixels of the bar where bands begin
FULL, FULL_FAR, FAR_ROOM, THINNEST = (
    14.0,
    12.0,
    19.0,
    0.8,
)  # pixels of weight 1, as in views/graph/geometry.ts
OVERVIEW = 3  # links of each token where nothing is pinned
MOST_CURVES = 1500
LINK_CELLS = 4096 * 4096  # of a head, beyond which its links are not looked for
NEIGHBOURS = 2  # tokens around those that are kept, where a column is folded
LEAST_BAR = 0.01  # weights that have a bar


class Link(NamedTuple):
    """One weight: `head` is its place among the heads that are shown."""

    query: int
    key: int
    head: int
    weight: float


class Lane(NamedTuple):
    """One column: where each token stands, which of them are labelled, and gaps with how many are left out."""

    y: dict[int, float]
    labelled: list[int]
    gaps: list[tuple[float, int]]
    pitch: float
    height: float


def draw(sheet: FigureContext, top: float) -> float:
    """The graph of the widget's heads; returns where it ends."""
    widget, paper, look = sheet.widget, sheet.paper, sheet.look
    side = "query" if widget.query is not None else "key"
    place = widget.query if widget.query is not None else widget.key
    row = [] if place is None else _row(sheet, side, place)
    focus = _kept(sheet, row)
    lanes = _lanes(sheet, side, place, focus)
    queries, keys = lanes
    left_room = _room(sheet, sheet.queries, queries)
    right_room = _room(sheet, sheet.keys, keys)
    with_bars = place is not None and sheet.right - sheet.left > 460
    bar_room = 0.28 * (sheet.right - sheet.left) if with_bars else 0.0
    x0 = sheet.left + left_room + BESIDE
    x1 = sheet.right - right_room - BESIDE - (bar_room + 50 if with_bars else 0)
    head_colors = colors.head_colors(widget.theme)
    several = len(widget.heads) > 1
    fills = [head_colors[at % 12] if several else look.data for at in range(len(widget.heads))]
    for x, text, align in ((x0 - BESIDE, "Query", "right"), (x1 + BESIDE, "Key", "left")):
        paper.text(x, top + 8, text, size=12, color=look.ink2, align=align)
    y = top + 26
    _curves(sheet, lanes, (x0, x1), y, side, place, fills)
    _bands(sheet, lanes, (x0, x1), y, side, place, focus, fills)
    strong = {link.key if side == "query" else link.query for link in focus if link.weight >= 0.05}
    _labels(
        sheet,
        sheet.queries,
        queries,
        x0 - BESIDE,
        y,
        "right",
        place if side == "query" else None,
        strong if side == "key" else set(),
    )
    _labels(
        sheet,
        sheet.keys,
        keys,
        x1 + BESIDE,
        y,
        "left",
        place if side == "key" else None,
        strong if side == "query" else set(),
    )
    if with_bars and side == "query":
        _bars(sheet, keys, sheet.right - bar_room - 40, bar_room, top, y, row, fills)
    bottom = y + max(queries.height, keys.height)
    return _legend(sheet, bottom + 14, fills, several, place is not None)


def _row(sheet: FigureContext, side: str, place: int) -> list[Link]:
    """All weights of the pinned token, of every head that is shown."""
    widget, links = sheet.widget, []
    for at, head in enumerate(widget.heads):
        where: dict[str, Any] = {"batch": widget.batch, "head": head}
        if side == "query":
            values = sheet.selected.block("weights", **where, queries=place)[0]
        else:
            values = sheet.selected.block("weights", **where, keys=[place])[:, 0]
        values = values.detach().to("cpu", torch.float64).nan_to_num(0.0, 0.0, 0.0)
        top = values.topk(min(len(values), 64))
        for weight, other in zip(top.values.tolist(), top.indices.tolist(), strict=True):
            if weight > 0:
                links.append(Link(place, other, at, weight) if side == "query" else Link(other, place, at, weight))
    return links


def _kept(sheet: FigureContext, links: list[Link]) -> list[Link]:
    """As `top_k` and `threshold` say."""
    widget = sheet.widget
    kept = [link for link in links if link.weight >= widget.threshold]
    if widget.top_k is None:
        return kept
    ranks: dict[int, int] = {}
    found = []
    for link in kept:  # of each head strongest first
        ranks[link.head] = ranks.get(link.head, 0) + 1
        if ranks[link.head] <= widget.top_k:
            found.append(link)
    return found


def _lanes(sheet: FigureContext, side: str, place: int | None, focus: list[Link]) -> tuple[Lane, Lane]:
    shape = sheet.selected.shape
    strong = sorted(focus, key=lambda link: -link.weight)
    others = list(dict.fromkeys(link.key if side == "query" else link.query for link in strong))[:16]
    own = [] if place is None else [place]
    return tuple(  # type: ignore[return-value]
        _lane(count, None if place is None else (own if side == name else others))
        for name, count in (("query", shape.Q), ("key", shape.K))
    )


def _lane(count: int, keep: list[int] | None) -> Lane:
    """All tokens; or, where they have no room, those to keep and what is around them."""
    pitch = next((float(p) for p in PITCHES if count * p <= TALL), None)
    if pitch is not None or keep is None:
        each = pitch or TALL / count
        step = 1 if each >= PITCHES[-1] else ceil(APART / each)
        y = {index: (index + 0.5) * each for index in range(count)}
        return Lane(y, list(range(0, count, step)), [], each, count * each)
    near = {index + by for index in keep for by in range(-NEIGHBOURS, NEIGHBOURS + 1)}
    rows: list[tuple[int | None, int]] = []
    following = 0
    for index in sorted(near & set(range(count))):
        if index > following:
            rows.append((None, index - following))
        rows.append((index, 1))
        following = index + 1
    if following < count:
        rows.append((None, count - following))
    each = float(next((p for p in PITCHES if len(rows) * p <= TALL), PITCHES[-1]))
    middles = [(row, (at + 0.5) * each) for at, row in enumerate(rows)]
    y = {row[0]: middle for row, middle in middles if row[0] is not None}
    gaps = [(middle, row[1]) for row, middle in middles if row[0] is None]
    return Lane(y, list(y), gaps, each, len(rows) * each)


def _room(sheet: FigureContext, labels: Sequence[Label], lane: Lane) -> float:
    paper = sheet.paper
    size = _size(lane.pitch)
    widths = [paper.measure(labels[i].text, size, True) + _under(sheet, labels[i]) for i in lane.labelled[:512]]
    gaps = [paper.measure(_gap(count), 10) for _, count in lane.gaps]
    return min(MOST_LABEL, max([40.0, *widths, *gaps]) + 8)


def _under(sheet: FigureContext, label: Label) -> float:
    return sheet.paper.measure(label.subscript, 9) + 1 if label.subscript else 0


def _size(pitch: float) -> float:
    return 12 if pitch >= 16 else 10


def _gap(count: int) -> str:
    return f"⋯ {count:,} {'token' if count == 1 else 'tokens'}"


def _labels(
    sheet: FigureContext,
    labels: Sequence[Label],
    lane: Lane,
    x: float,
    top: float,
    align: str,
    pinned: int | None,
    strong: set[int],
) -> None:
    paper, look = sheet.paper, sheet.look
    size = _size(lane.pitch)
    there = [*lane.labelled, *([pinned] if pinned is not None and pinned not in lane.labelled else [])]
    for index in there:
        label, y, is_pinned = labels[index], top + lane.y[index], index == pinned
        if pinned is not None and not is_pinned and abs(y - top - lane.y[pinned]) < APART - 2:
            continue
        bold = is_pinned or index in strong
        under = _under(sheet, label)
        text = paper.shorten(label.text, MOST_LABEL - under - 8, size, bold)
        width = paper.measure(text, size, bold) + under
        start = x - width if align == "right" else x
        color = look.page if is_pinned else look.ink if bold else look.ink3 if label.special else look.ink2
        if is_pinned:
            paper.boxes([(start - 5, y - 9, width + 10, 18)], [look.ink], 4)
        paper.text(start, y, text, size=size, color=color, bold=bold)
        if label.subscript:
            paper.text(start + width, y + 3, label.subscript, size=9, color=color if bold else look.ink3, align="right")
    for y, count in lane.gaps:
        paper.text(x, top + y, _gap(count), size=10, color=look.ink3, align=align)


def _curves(
    sheet: FigureContext,
    lanes: tuple[Lane, Lane],
    x: tuple[float, float],
    top: float,
    side: str,
    place: int | None,
    fills: Sequence[str],
) -> None:
    """Everybody's strongest links: pale where something is pinned, in the heads' colours where nothing is."""
    widget = sheet.widget
    shape = sheet.selected.shape
    if shape.Q * shape.K > LINK_CELLS:
        return
    queries, keys = lanes
    most = min(widget.top_k or OVERVIEW, OVERVIEW) if place is None else 1
    links = []
    for at, head in enumerate(widget.heads):
        found = strongest(sheet.selected.head(widget.batch, head), count=most, side=widget.direction)
        for index, (partners, weights) in enumerate(zip(found.partners.tolist(), found.weights.tolist(), strict=True)):
            for other, weight in zip(partners, weights, strict=True):
                query, key = (index, other) if widget.direction == "query" else (other, index)
                own = query if side == "query" else key
                if weight > 0 and weight >= widget.threshold and (place is None or own != place):
                    links.append(Link(query, key, at, weight))
    thin = max(1.0, min(queries.pitch, keys.pitch) / 4)
    for link in sorted(links, key=lambda link: link.weight)[-MOST_CURVES:]:
        if link.query not in queries.y or link.key not in keys.y:
            continue
        width = max(THINNEST, min(link.weight * 4, thin))
        color, alpha = (
            (fills[link.head], 0.35) if place is None else (sheet.look.ink, 0.05 if sheet.look.dark else 0.045)
        )
        ends = (top + queries.y[link.query], top + keys.y[link.key])
        sheet.paper.band(x, ends, (width, width), facecolor=color, alpha=alpha)


def _bands(
    sheet: FigureContext,
    lanes: tuple[Lane, Lane],
    x: tuple[float, float],
    top: float,
    side: str,
    place: int | None,
    focus: list[Link],
    fills: Sequence[str],
) -> None:
    """The links of the pinned token: heads one below the other where they begin, together where they end."""
    if place is None or not focus:
        return
    near, far = lanes if side == "query" else lanes[::-1]

    def partner(link: Link) -> int:
        return link.key if side == "query" else link.query

    shown = [link for link in focus if partner(link) in far.y]
    sums: dict[int, float] = {}
    for link in shown:
        sums[partner(link)] = sums.get(partner(link), 0.0) + link.weight
    room = min(FAR_ROOM, max(8.0, far.pitch - (PITCHES[0] - FAR_ROOM)))
    scale = min(FULL_FAR, room / max([*sums.values(), 1e-9]))
    heads = sorted({link.head for link in shown})
    totals = [sum(link.weight for link in shown if link.head == head) for head in heads]
    apart = 2.0 * (len(heads) - 1)
    whole = max(near.height, far.height)
    full = min(FULL / max(1.0, *totals), max(1.0, whole - apart) / sum(totals)) if totals else FULL
    tall = sum(totals) * full + apart
    at = max(0.0, min(whole - tall, near.y[place] - tall / 2))
    arrived: dict[int, float] = {}
    stems, stem_colors = [], []
    for head in heads:
        start = at
        for link in sorted((one for one in shown if one.head == head), key=partner):
            to = partner(link)
            before = arrived.get(to, -sums[to] * scale / 2)
            here, there = at + link.weight * full / 2, far.y[to] + before + link.weight * scale / 2
            arrived[to] = before + link.weight * scale
            at += link.weight * full
            widths = max(THINNEST, link.weight * full), max(THINNEST, link.weight * scale)
            ends = (top + here, top + there)
            if side == "key":
                ends, widths = ends[::-1], widths[::-1]
            sheet.paper.band(x, ends, widths, facecolor=fills[head], alpha=min(0.9, 0.35 + 1.1 * link.weight))
        bar_x = x[0] - STEM if side == "query" else x[1]
        stems.append((bar_x, top + start, float(STEM), max(at - start, THINNEST)))
        stem_colors.append(fills[head])
        at += 2.0
    sheet.paper.boxes(stems, stem_colors)


def _bars(
    sheet: FigureContext,
    lane: Lane,
    x: float,
    room: float,
    head: float,
    top: float,
    row: list[Link],
    fills: Sequence[str],
) -> None:
    """Beside each key its weight by head, and the mean over the heads."""
    paper, look, heads = sheet.paper, sheet.look, len(fills)
    paper.text(x, head + 8, "Weight by head" if heads > 1 else "Weight", size=12, color=look.ink2)
    if heads > 1:
        paper.text(sheet.right, head + 8, "Mean", size=12, color=look.ink2, align="right")
    most = max((link.weight for link in row), default=1.0) or 1.0
    of_key: dict[int, list[Link]] = {}
    for link in row:
        of_key.setdefault(link.key, []).append(link)
    thick = min(8.0 if heads == 1 else 3.0, (lane.pitch - 2) / heads - 1)
    for key, links in of_key.items():
        if key not in lane.y:
            continue
        y = top + lane.y[key]
        for link in links:
            if link.weight < LEAST_BAR or thick < 0.5:
                continue
            offset = (link.head - (heads - 1) / 2) * (thick + 1)
            bar = (x, y + offset - thick / 2, max(1.5, (room - 24) * link.weight / most), thick)
            paper.boxes([bar], [fills[link.head]], 1)
        mean = sum(link.weight for link in links) / heads
        if mean >= 0.0005:
            color = look.ink if mean >= 0.02 else look.ink3
            text = list_number(mean, "scores").removeprefix("0")  # three decimals: four would say more than bars do
            paper.text(sheet.right, y, text, size=_size(lane.pitch), color=color, align="right")


def _legend(sheet: FigureContext, y: float, fills: Sequence[str], several: bool, pinned: bool) -> float:
    """Which colour is which head, and what a width says."""
    paper, look, x = sheet.paper, sheet.look, sheet.left
    if several:
        for head, fill in zip(sheet.widget.heads, fills, strict=True):
            text = f"head {head}"
            wide = 18 + paper.measure(text, 11) + 16
            if x + wide > sheet.right:
                x, y = sheet.left, y + 18
            paper.boxes([(x, y - 2, 12, 12)], [fill], 2.5)
            paper.text(x + 18, y + 4, text, size=11, color=look.ink2)
            x += wide
    what = "band width = weight" if pinned else "the strongest links of each token, width = weight"
    wide = paper.measure(what, 11)
    if x + wide > sheet.right:
        x, y = sheet.left, y + 18
    paper.text(x, y + 4, what, size=11, color=look.ink3)
    return y + 10
