"""Queries and keys that an edit names: numbers, ranges and segments, as places of a text that may still grow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._segments.segments import Segments
from ..._utils.validation import nearest, told

ADVICE = "give numbers, ranges or slices of positions, or names of segments with segments="


class Places:
    """Positions of a text, counted from its first token, or from the end of what was read first if negative.

    Args:
        given: an int, a slice, a range, a `Segment`, the name of a segment, or several of these; None: all.
        what: how errors call it.
        segments: that names are looked up in.

    Raises:
        TypeError, ValueError: anything else; a name that no segment has.

    >>> Places([0, slice(-2, None)], "drop_keys").mask(0, 6, 5).tolist()
    [True, False, False, True, True, True]
    """

    def __init__(self, given: Any, what: str, segments: Segments | None = None) -> None:
        self.given, self.what = given, what
        self._parts = [slice(None)] if given is None else list(_parts(given, what, segments))

    def __repr__(self) -> str:
        return repr(self.given)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is named."""
        return not self._parts

    def mask(self, first: int, count: int, length: int, device: Any = None) -> Tensor:
        """Return which of some positions are named, bool (count,).

        Args:
            first: the first of them.
            count: how many there are.
            length: of the text that was read first, from whose end negative positions count.
            device: of the result.
        """
        found = torch.zeros(count, dtype=torch.bool, device="cpu")
        for part in self._parts:
            start, stop, step = _ends(part, length, first + count)
            named = torch.arange(start, max(start, min(stop, first + count)), step, device="cpu") - first
            found[named[named >= 0]] = True
        return found.to(device)

    def missing(self, end: int, length: int) -> int | None:
        """Return a number among them that no position has had; None if there is none.

        Args:
            end: how many positions there were at last.
            length: of the text that was read first.
        """
        numbers = (part for part in self._parts if not isinstance(part, slice))
        return next((part for part in numbers if not -length <= part < end), None)


def _ends(part: int | slice, length: int, end: int) -> tuple[int, int, int]:
    """Return start, stop and step of positions; negative ones count from `length`, an open slice goes on to `end`."""
    if not isinstance(part, slice):
        start = part + length if part < 0 else part
        return (start, start + 1, 1) if start >= 0 else (0, 0, 1)
    ends = (part.start or 0, end if part.stop is None else part.stop)
    start, stop = (max(0, x + length) if x < 0 else x for x in ends)
    return start, stop, part.step or 1


def _parts(given: Any, what: str, segments: Segments | None) -> Iterator[int | slice]:
    if isinstance(given, Tensor | np.ndarray):
        given = given.tolist()
    if isinstance(given, str):
        yield from _named(given, what, segments)
    elif hasattr(given, "start") and hasattr(given, "stop"):  # a slice, a range, an entry of segments
        step = getattr(given, "step", None)
        if step is not None and step < 0:
            raise ValueError(f"{what} holds {told(given)}: give it in ascending order")
        yield slice(given.start, given.stop, step)
    elif isinstance(given, Iterable):
        for one in given:
            yield from _parts(one, what, segments)
    elif hasattr(given, "__index__") and not isinstance(given, bool):
        yield int(given.__index__())
    else:
        raise TypeError(f"{what} holds {told(given)}: {ADVICE}")


def _named(name: str, what: str, segments: Segments | None) -> Iterator[slice]:
    if segments is None:
        raise ValueError(f"{what} names the segment {name!r}: give segments=, in which it is looked up")
    found = [slice(one.start, one.stop) for one in segments if one.name == name]
    if not found:
        raise ValueError(
            f"no segment is called {name!r}: {nearest(name, segments.names)}there are "
            f"{', '.join(map(repr, dict.fromkeys(segments.names)))}"
        )
    yield from found
