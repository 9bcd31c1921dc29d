"""Choices of numbers and of names, made before it is known how many numbers, or which names, there are."""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

ADVICE = "give integers, a slice, a range, or a list of integers"


class Numbers:
    """Some of the numbers 0, 1, … of a sequence whose length becomes known later; negative ones count from its end.

    Args:
        given: an int, a slice, a range, or a sequence or 1-D tensor of ints, as a user gives it.
        name: what errors call it.

    Raises:
        TypeError: something else.
        ValueError: an empty list.

    >>> last = Numbers(slice(-2, None), "queries")
    >>> last.of(5), last.may_hold(2, 3), last.may_hold(2, 5)
    ([3, 4], True, False)
    """

    def __init__(self, given: Any, name: str) -> None:
        self.given = given
        self._parts = [_checked(given, name)] if isinstance(given, slice) else _integers(given, name)
        if not self._parts:
            raise ValueError(f"{name} is empty: name one or more, or leave it out for all")
        self._asked: tuple[tuple[int, int], list[int]] | None = (
            None  # the numbers that were asked for last, and of these
        )

    def of(self, count: int) -> list[int]:
        """Return those among `count` numbers, each once, ascending; what is not there is left out."""
        found: set[int] = set()
        for part in self._parts:
            if isinstance(part, slice):
                found.update(range(*part.indices(count)))
            elif -count <= part < count:
                found.add(part % count)
        return sorted(found)

    def missing(self, count: int) -> list[int]:
        """Return the integers that name no number among `count`."""
        return [part for part in self._parts if not isinstance(part, slice) and not -count <= part < count]

    def may_hold(self, number: int, count: int) -> bool:
        """Return whether a number may be among those of a sequence that is at least `count` long."""
        return any(_may_hold(part, number, count) for part in self._parts)

    def may_hold_of(self, first: int, count: int) -> list[int]:
        """Return which of the last numbers of a sequence of so many or more, from `first` on, may be among those.

        They are counted from `first`. What was asked last is known: layers ask for the same.
        """
        known = self._asked
        if known is None or known[0] != (first, count):
            known = (first, count), [i - first for i in range(first, count) if self.may_hold(i, count)]
            self._asked = known
        return [*known[1]]

    @property
    def last(self) -> int:
        """The largest of them; sys.maxsize if it depends on the length."""
        if self.is_open:
            return sys.maxsize
        stops = [sys.maxsize if p.stop is None else p.stop - 1 for p in self._parts if isinstance(p, slice)]
        return max([*stops, *(p for p in self._parts if not isinstance(p, slice))])

    @property
    def is_open(self) -> bool:
        """Whether it depends on the length, as -1 and slice(-3, None) do."""
        ends = [x for p in self._parts for x in ((p.start, p.stop, p.step) if isinstance(p, slice) else (p,))]
        return any(x is not None and x < 0 for x in ends)

    def __repr__(self) -> str:
        return repr(self.given)


def _checked(given: slice, name: str) -> int | slice:
    try:
        given.indices(0)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} is {given!r} ({error}): {ADVICE}") from None
    return given


def _integers(given: Any, name: str) -> list[int | slice]:
    if isinstance(given, Tensor | np.ndarray):
        given = given.tolist()
    many = isinstance(given, Iterable) and not isinstance(given, str | bytes)
    found = list(given) if many else [given]
    for one in found:
        if isinstance(one, bool) or not (isinstance(one, int) or hasattr(one, "__index__")):
            raise TypeError(f"{name} holds {one!r}: {ADVICE}" if many else f"{name} is {one!r}: {ADVICE}")
    return [int(one) for one in found]


def _may_hold(part: int | slice, number: int, count: int) -> bool:
    if not isinstance(part, slice):
        return part == number if part >= 0 else number >= count + part
    start, stop, step = part.start, part.stop, 1 if part.step is None else part.step
    if step < 0:
        return True  # counted from the end: any may be among them
    if start is not None and (number < start if start >= 0 else number < count + start):
        return False
    if stop is not None and 0 <= stop <= number:
        return False
    return (start is not None and start < 0) or (number - (start or 0)) % step == 0


# Names, dotted as those of modules are.

GLOB = re.compile(r"[*?\[]")


def is_glob(name: str) -> bool:
    """Return whether a name stands for several, as "encoder.*" does."""
    return GLOB.search(name) is not None


def matches_name(wanted: str | re.Pattern[str], name: str) -> bool:
    """Return whether a name, or a dotted part of it, is the one that is wanted, or one of those.

    Args:
        wanted: a name or dotted part ("h.5" is one of "transformer.h.5.attn", "h" not of "h5"), a glob of these
            ("encoder.*", whose * stands for anything), or a compiled regular expression, which is searched for.
        name: dotted.

    >>> [matches_name(wanted, "transformer.h.5.attn") for wanted in ("h.5", "h.[0-5].*", re.compile("attn$"), "attn.c")]
    [True, True, True, False]
    """
    if isinstance(wanted, re.Pattern):
        return wanted.search(name) is not None
    if is_glob(wanted):
        return fnmatch.fnmatchcase(f".{name}.", f"*.{wanted}.*")
    return f".{wanted}." in f".{name}."
