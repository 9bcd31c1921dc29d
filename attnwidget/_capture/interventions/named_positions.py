"""Positions that an edit names (numbers, ranges and segments) in a text that may still grow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._segments.segments import Segments
from ..._utils.validation import nearest, told

ADVICE = "give numbers, ranges or slices of positions, or names of segments with segments="


class NamedPositions:
    """Positions of a text, from its first token; negative ones count from the end of what was read first.

    Args:
        given: an int, a slice, a range, a `Segment`, the name of a segment, or several of these; None: all.
        what: the name used in errors.
        segments: where names are looked up.

    Raises:
        TypeError, ValueError: anything else; no positions; a name that no segment has.

    >>> NamedPositions([0, slice(-2, None)], "drop_keys").mask(0, 6, 5).tolist()
    [True, False, False, True, True, True]
    """

    def __init__(self, given: Any, what: str, segments: Segments | None = None) -> None:
        self.given, self.what = given, what
        self._parts = [slice(None)] if given is None else list(_parts(given, what, segments))
        if not self._parts:
            raise ValueError(f"{what} is {told(given)}, which names no position: {ADVICE}")

    def __repr__(self) -> str:
        return repr(self.given)

    def mask(self, first: int, count: int, length: int, device: Any = None) -> Tensor:
        """Return which of `count` positions are named, bool (count,).

        Args:
            first: the first of these positions.
            count: their number.
            length: the length of the text that was read first; negative positions count from its end.
            device: the device of the result.
        """
        found = torch.zeros(count, dtype=torch.bool, device="cpu")
        for part in self._parts:
            named = torch.tensor(_positions(part, length, first + count), dtype=torch.int64, device="cpu") - first
            found[named[(named >= 0) & (named < count)]] = True
        return found.to(device)

    def missing(self, end: int, length: int) -> int | slice | None:
        """Return a named number that does not exist, or a slice that is empty; None if all is well.

        Args:
            end: the final number of positions.
            length: the length of the text that was read first; if the text has grown, ranges may extend beyond it.
        """
        for part in self._parts:
            if isinstance(part, slice):
                if not _positions(part, length, end):
                    return part
            elif part[0] < -length or part[0] >= end or (part[-1] >= end == length):
                return part[0] if part[0] < -length or part[0] >= end else max(end, part[0])
        return None


def _positions(part: range | slice, length: int, end: int) -> Sequence[int]:
    """Return positions before `end`; negative ones count from `length`, and an open slice extends to `end`."""
    if not isinstance(part, slice):
        if part[0] >= 0:
            return range(part.start, min(part.stop, end), part.step)
        return [at for at in (one + length if one < 0 else one for one in part) if 0 <= at < end]
    ends = (part.start or 0, end if part.stop is None else part.stop)
    start, stop = (max(0, x + length) if x < 0 else x for x in ends)
    return range(start, min(stop, end), part.step or 1)


def _parts(given: Any, what: str, segments: Segments | None) -> Iterator[range | slice]:
    """Yield slices, which may extend beyond the last position, and ranges, which may not."""
    if isinstance(given, Tensor | np.ndarray):
        given = given.tolist()
    if isinstance(given, str):
        yield from _named(given, what, segments)
    elif hasattr(given, "start") and hasattr(given, "stop"):  # a slice, a range, an entry of segments
        step = getattr(given, "step", None)
        if step is not None and step < 0:
            raise ValueError(f"{what} holds {told(given)}: give it in ascending order")
        part = given if isinstance(given, slice) else range(given.start, given.stop, 1 if step is None else step)
        if isinstance(part, slice) or part:
            yield part
    elif isinstance(given, Iterable):
        for one in given:
            yield from _parts(one, what, segments)
    elif hasattr(given, "__index__") and not isinstance(given, bool):
        yield range(int(given.__index__()), int(given.__index__()) + 1)
    else:
        raise TypeError(f"{what} holds {told(given)}: {ADVICE}")


def _named(name: str, what: str, segments: Segments | None) -> Iterator[range]:
    if segments is None:
        raise ValueError(f"{what} names the segment {name!r}, but there are no segments: give segments=")
    found = [range(one.start, one.stop) for one in segments if one.name == name]
    if not found:
        raise ValueError(
            f"no segment is called {name!r}: {nearest(name, segments.names)}there are "
            f"{', '.join(map(repr, dict.fromkeys(segments.names)))}"
        )
    yield from found
