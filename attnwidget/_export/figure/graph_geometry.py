"""Geometry of the graph: rows that may be folded, and bands as wide as their numbers. Numbers in, numbers out.

The same as `js/src/views/graph/geometry.ts`; `tests/contract/graph.json` keeps both alike. Lengths are CSS pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil
from typing import Literal, NamedTuple

Side = Literal["query", "key"]

ROW = 22
PITCHES = (22, 16, 12)  # distances between rows; the largest that fits is used
TALL = 640
LEAST_PITCH = 12
ROWS_AT_FULL_PITCH = TALL // ROW  # a folded column with few tokens is filled up to this
APART_LABELS = 14  # between labels, at least

FULL = 14.0  # the width of weight 1 where the bands of a token begin
APART = 2.0  # between heads at that end
FULL_FAR = 12.0
FAR_HEIGHT = 19.0  # for all bands into one token, in a row of 22
THINNEST = 0.8


@dataclass(frozen=True)
class Row:
    """One row of a column: a token, or tokens left out.

    index: the token; None for a gap.
    count: how many tokens the row stands for.
    """

    index: int | None
    count: int = 1


@dataclass(frozen=True)
class Lane:
    """One column of tokens, and where each lies.

    total: how many tokens there are.
    rows: the rows of a folded column, from top to bottom; () if every token has its own place.
    step: one label every `step` rows.
    """

    total: int
    rows: tuple[Row, ...]
    pitch: float
    height: float
    step: int

    def y(self, index: int) -> float | None:
        """Return the middle of a token's row, or None if it is folded."""
        if self.rows:
            at = self._places.get(index)
            return None if at is None else (at + 0.5) * self.pitch
        return (index + 0.5) * self.pitch if 0 <= index < self.total else None

    @property
    def labeled(self) -> list[int]:
        """The tokens with a label."""
        return list(self._places) if self.rows else list(range(0, self.total, self.step))

    @property
    def gaps(self) -> list[tuple[float, int]]:
        """The middle of each row of left-out tokens, and their number."""
        rows = enumerate(self.rows)
        return [((at + 0.5) * self.pitch, row.count) for at, row in rows if row.index is None]

    @cached_property
    def _places(self) -> dict[int, int]:
        return {row.index: at for at, row in enumerate(self.rows) if row.index is not None}


class Link(NamedTuple):
    """A weight, or a number of a stage after the weights; `head` is its place among the heads shown.

    unit: the number drawn at the full band width, 1 for weights.
    """

    query: int
    key: int
    head: int
    weight: float
    unit: float = 1.0

    @property
    def size(self) -> float:
        """Its absolute size, 0 to 1."""
        return abs(self.weight) / self.unit

    def own(self, side: Side) -> int:
        """Return the link's query or key on this side."""
        return self.query if side == "query" else self.key

    def partner(self, side: Side) -> int:
        """Return the link's other end: its key for the query side, or its query."""
        return self.key if side == "query" else self.query


class LinkBand(NamedTuple):
    """A link as a band: from `y0` at the left edge to `y1` at the right, and its width at both."""

    link: Link
    y0: float
    y1: float
    width0: float
    width1: float
    opacity: float


class Stem(NamedTuple):
    """The bar next to the pinned token for one head with a band: from `start` to `end`."""

    head: int
    start: float
    end: float


def lane(total: int, keep: Sequence[int] | None) -> Lane:
    """Return a column of tokens: all of them if they fit, else those of `keep` with gaps between.

    >>> lane(20, None).pitch, lane(4000, [7]).y(3000)
    (22, None)
    """
    pitch = next((pitch for pitch in PITCHES if total * pitch <= TALL), None)
    if pitch is None and keep is not None:
        return _folded(total, keep)
    each = TALL / total if pitch is None else pitch
    step = 1 if each >= LEAST_PITCH else ceil(APART_LABELS / each)
    return Lane(total, (), each, total * each, step)


def _folded(total: int, keep: Sequence[int]) -> Lane:
    rows: list[Row] = []
    following = 0
    for index in [*_with_neighbors(total, keep, TALL // LEAST_PITCH), total]:
        if index == following + 1:
            rows.append(Row(following))
        elif index > following:
            rows.append(Row(None, index - following))
        if index < total:
            rows.append(Row(index))
        following = index + 1
    pitch = next((pitch for pitch in PITCHES if len(rows) * pitch <= TALL), TALL / len(rows))
    return Lane(total, tuple(rows), pitch, TALL, 1)


def _with_neighbors(total: int, keep: Sequence[int], most_rows: int) -> list[int]:
    """Return the first of `keep` that fit, then tokens around them.

    Two on each side while they fit, more only while all keep their full distance. Each gap takes a row too.
    """
    chosen: dict[int, None] = {}  # in the order chosen
    for index in keep:
        if len(chosen) >= most_rows / 2:
            break
        if 0 <= index < total:
            chosen[index] = None
    first = list(chosen)
    for reach in range(1, ROWS_AT_FULL_PITCH + 1):
        most = most_rows if reach <= 2 else ROWS_AT_FULL_PITCH
        for near in (near for index in first for near in (index - reach, index + reach)):
            if near < 0 or near >= total or near in chosen:
                continue
            chosen[near] = None
            if _count_rows(chosen, total) > most:
                del chosen[near]
                return sorted(chosen)
    return sorted(chosen)


def _count_rows(chosen: Iterable[int], total: int) -> int:
    """Return how many rows some tokens take, including the gaps before, between and after them."""
    indices = sorted(chosen)
    between = sum(after > before + 1 for before, after in pairwise(indices))
    return len(indices) + between + (indices[0] > 0) + (indices[-1] < total - 1)


def bands(links: Sequence[Link], side: Side, queries: Lane, keys: Lane) -> tuple[list[LinkBand], list[Stem]]:
    """Return one token's bands, and a stem for each head that has one; heads are stacked in order.

    Args:
        links: the token's links.
        side: the token's side; its links go to the other.
        queries, keys: the columns.
    """
    near, far = (queries, keys) if side == "query" else (keys, queries)
    shown = [link for link in links if near.y(link.own(side)) is not None and far.y(link.partner(side)) is not None]
    if not shown:
        return [], []
    far_sums: dict[int, float] = {}
    for link in shown:
        far_sums[link.partner(side)] = far_sums.get(link.partner(side), 0.0) + link.size
    height = min(FAR_HEIGHT, max(8.0, far.pitch - (ROW - FAR_HEIGHT)))
    scale = min(FULL_FAR, height / max([*far_sums.values(), 1e-9]))
    heads = sorted({link.head for link in shown})
    sums = [sum(link.size for link in shown if link.head == head) for head in heads]
    # A key's weights may sum to more than 1: then the stems share the height of the column.
    apart, whole = APART * (len(heads) - 1), max(queries.height, keys.height)
    full = min(FULL / max(1.0, *sums), max(1.0, whole - apart) / sum(sums))
    tall = sum(sums) * full + apart
    at = max(0.0, min(whole - tall, _there(near, shown[0].own(side)) - tall / 2))  # within the picture
    arrived = {partner: -(size * scale) / 2 for partner, size in far_sums.items()}
    made, stems = [], []
    for head in heads:
        start = at
        for link in sorted((one for one in shown if one.head == head), key=lambda link: link.partner(side)):
            to = link.partner(side)
            widths = link.size * full, link.size * scale
            here, there = at + widths[0] / 2, _there(far, to) + arrived[to] + widths[1] / 2
            arrived[to] += widths[1]
            at += widths[0]
            made.append(_band(link, (here, there), widths, side))
        stems.append(Stem(head, start, max(at, start + THINNEST)))
        at += APART
    return made, stems


def _band(link: Link, ends: tuple[float, float], widths: tuple[float, float], side: Side) -> LinkBand:
    """Return a band between the pinned token and the other, ordered from left to right."""
    near, far = (max(THINNEST, width) for width in widths)
    opacity = min(0.9, 0.35 + 1.1 * link.size)
    if side == "query":
        return LinkBand(link, ends[0], ends[1], near, far, opacity)
    return LinkBand(link, ends[1], ends[0], far, near, opacity)


def _there(lane: Lane, index: int) -> float:
    y = lane.y(index)
    assert y is not None
    return y


def curves(links: Iterable[Link], queries: Lane, keys: Lane) -> list[LinkBand]:
    """Return thin curves for all tokens: as wide as the weight, at least a hairline."""
    most = max(1.0, min(queries.pitch, keys.pitch) / 4)
    made = []
    for link in links:
        y0, y1 = queries.y(link.query), keys.y(link.key)
        if y0 is not None and y1 is not None:
            width = max(THINNEST, min(link.size * 4, most))
            made.append(LinkBand(link, y0, y1, width, width, 0.35))
    return made


def strongest_last(links: Iterable[Link], most: int) -> list[Link]:
    """Return the `most` strongest links, weakest first, in drawing order."""
    return sorted(links, key=lambda link: -link.size)[:most][::-1]


def keep_links(links: Iterable[Link], top: int | None, threshold: float) -> list[Link]:
    """Return a token's links to keep: the strongest `top` of each head, none weaker than `threshold`."""
    strong = [link for link in links if link.size >= threshold and link.size > 0]
    if top is None:
        return strong
    of_head: dict[int, list[Link]] = {}
    for link in strong:
        of_head.setdefault(link.head, []).append(link)
    return [link for some in of_head.values() for link in sorted(some, key=lambda link: -link.size)[:top]]
