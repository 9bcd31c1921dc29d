"""Named pieces of a text, and how they become the entries of a whole partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

FIRST, TEMPLATE, PADDING, OTHER = "first token", "template", "padding", "other"
RESERVED = (FIRST, TEMPLATE, PADDING, OTHER)
SET_ASIDE = (
    "sink",
    "self",
    "learned sink",
    "elsewhere",
)  # words of `by_segment`, which a segment's name must not be

Labels = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Segment(NamedTuple):
    """One contiguous piece of a segment: tokens start ≤ position < stop.

    Attributes:
        name: of the segment; pieces of one name on one level are one segment.
        start, stop: positions of tokens.
        level: 0 outermost; a piece of level n + 1 lies inside the last one of level n before it.

    >>> from attnwidget import segments
    >>> segments({"question": (0, 2), "answer": (2, 4)}, length=4)[1]
    Segment(name='question', start=1, stop=2, level=0)
    """

    name: str
    start: int
    stop: int
    level: int = 0


@dataclass
class Named:
    """The ranges of tokens of one name, and the names inside it."""

    name: str
    pieces: list[range]
    inside: list[Named] = field(default_factory=list)


def entries_of(named: Sequence[Named], own: Labels) -> list[Segment]:
    """Return the entries of a text; each token is in exactly one entry of level 0.

    Args:
        named: the pieces found; they must not overlap.
        own: each token's number in `RESERVED`, if it is a separate segment; else -1.

    Raises:
        ValueError: pieces overlap, lie outside the text, or have no token left.
    """
    found = list(_entries(named, own < 0, 0))
    rest = np.where(own < 0, RESERVED.index(OTHER), own)
    for one in found:
        if one.level == 0:
            rest[one.start : one.stop] = -1
    found += [Segment(RESERVED[kind], start, stop) for kind, start, stop in runs(rest) if kind >= 0]
    return sorted(found, key=lambda one: (one.start, one.level))


def _entries(named: Sequence[Named], free: Mask, level: int, at: int = 0) -> Iterator[Segment]:
    """Yield the entries of one level, and those inside them.

    Args:
        named: of this level.
        free: (n,), whether each token from `at` on is available.
        level: of the entries.
        at: the first token to look at: inside a segment, only its own part of the text.
    """
    labels = _labels(named, len(free), at)
    for number, one in enumerate(named):
        first = min(piece.start for piece in one.pieces)
        window = slice(first - at, max(piece.stop for piece in one.pieces) - at)
        held = labels[window] == number
        mine = held & free[window]
        if not mine.any():
            raise ValueError(
                f"{one.name!r} holds only the first token, padding or tokens of a template, which are separate "
                f"segments ({', '.join(map(repr, RESERVED[:3]))}): leave it out"
            )
        for is_mine, start, stop in runs(mine.astype(np.int64)):
            if is_mine:
                yield Segment(one.name, first + start, first + stop, level)
        _check_inside(one, held, first)
        if one.inside:
            yield from _entries(one.inside, mine, level + 1, first)


def _labels(named: Sequence[Named], length: int, at: int) -> Labels:
    """Return the number of the piece that holds each token from `at` on, -1 if none does."""
    labels = np.full(length, -1)
    for number, one in enumerate(named):
        check_name(one.name)
        for piece in one.pieces or [range(0)]:
            _check_piece(one.name, piece, at, at + length)
            held = labels[piece.start - at : piece.stop - at]
            taken = (held >= 0) & ((held != number) | (not one.inside))  # pieces inside one are checked there
            if taken.any():
                place = int(taken.argmax())
                other = named[int(held[place])].name
                raise ValueError(
                    f"{one.name!r} and {other!r} both hold token {piece.start + place:,}: give segments that do not "
                    f"overlap, or one inside the other, as {{{other!r}: {{{one.name!r}: (start, stop)}}}}"
                )
            held[:] = number
    return labels


def _check_piece(name: str, piece: range, first: int, stop: int) -> None:
    given = f"{name!r} is ({piece.start}, {piece.stop})"
    if piece.start < first or piece.stop > stop:
        wanted = f"{first:,} ≤ start < stop ≤ {stop:,}"
        raise ValueError(f"{given}, but there are tokens {first:,} to {stop - 1:,}: give {wanted}")
    if piece.stop <= piece.start:
        raise ValueError(f"{given}, which is empty: give start < stop, or leave it out")


def _check_inside(one: Named, held: Mask, at: int) -> None:
    """Raise ValueError if a piece inside one segment lies outside of it; `held` is for the tokens from `at` on."""
    for part in one.inside:
        for piece in part.pieces:
            start, stop = piece.start - at, piece.stop - at
            if start < 0 or stop > len(held) or not held[start:stop].all():
                ranges = ", ".join(f"({own.start}, {own.stop})" for own in one.pieces)
                raise ValueError(
                    f"{part.name!r} is ({piece.start}, {piece.stop}), which is not inside {one.name!r}, {ranges}: give "
                    "positions that count from the beginning of the text, as all others"
                )


def check_name(name: Any) -> None:
    """Raise TypeError or ValueError for a value that cannot be the name of a segment."""
    if not isinstance(name, str):
        raise TypeError(f"a segment is called {name!r}: give a string")
    if not name.strip():
        raise ValueError("a segment has no name: give each a string that can be read")
    if name in SET_ASIDE:
        raise ValueError(f"a segment is called {name!r}, which means something else in by_segment: give another name")


def runs(labels: Labels) -> Iterator[tuple[int, int, int]]:
    """Yield the runs of equal labels: label, start, stop.

    >>> list(runs(np.array([4, 4, 7])))
    [(4, 0, 2), (7, 2, 3)]
    """
    edges = np.flatnonzero(np.diff(labels)) + 1
    for start, stop in pairwise([0, *edges.tolist(), len(labels)]):
        if stop > start:
            yield int(labels[start]), start, stop
