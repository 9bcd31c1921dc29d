"""Make what a front-end sends plain and bounded: nothing else reaches a trait."""

from __future__ import annotations

import math
from typing import Any

from .validation import kind_of

MAX_DEPTH = 8  # lists in lists
MAX_ITEMS = 65_536  # of all lists and dicts together
MAX_TEXT = 10_000  # characters
MAX_WHOLE = 2**53  # the largest whole number that JavaScript holds


def as_plain(value: Any, name: str) -> Any:
    """Return a copy made of None, booleans, numbers, strings, lists and dicts by string, all of them bounded.

    Args:
        value: what came from a front-end.
        name: what errors call it.

    Raises:
        TypeError, ValueError: it holds anything else, or too much, or what JSON cannot carry.

    >>> as_plain({"scale": (0.5, None)}, "what_if")
    {'scale': [0.5, None]}
    """
    return _Reader(name).read(value, 0)


def sendable(text: str, most: int = 500) -> str:
    r"""Return a text as it can be sent: the beginning of a long one, "?" for half a surrogate pair.

    >>> sendable("half of a pair: \ud800")
    'half of a pair: ?'
    """
    return text[:most].encode("utf-8", "replace").decode()


class _Reader:
    """Reads one value, and counts what it holds."""

    def __init__(self, name: str) -> None:
        self._name, self._items = name, 0

    def read(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return self._whole(value)
        if isinstance(value, float):
            return self._finite(value)
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list | tuple | dict):
            return self._held(value, depth)
        raise TypeError(f"{self._name} holds {kind_of(value)}: give numbers, strings, lists or a dict")

    def _whole(self, value: int) -> int:
        if abs(value) > MAX_WHOLE:
            raise ValueError(f"{self._name} holds a whole number beyond ±2^53: give a smaller one")
        return int(value)

    def _finite(self, value: float) -> float:
        if not math.isfinite(value):
            raise ValueError(f"{self._name} holds {value}: give a finite number")
        return float(value)

    def _text(self, value: str) -> str:
        if len(value) > MAX_TEXT:
            raise ValueError(f"{self._name} holds a text of {len(value):,} characters: give at most {MAX_TEXT:,}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{self._name} holds half of a surrogate pair: give whole characters") from None
        return str(value)

    def _held(self, value: list[Any] | tuple[Any, ...] | dict[Any, Any], depth: int) -> Any:
        self._items += len(value)
        if self._items > MAX_ITEMS:
            raise ValueError(f"{self._name} holds more than {MAX_ITEMS:,} values: give fewer")
        if depth >= MAX_DEPTH:
            raise ValueError(f"{self._name} is nested more than {MAX_DEPTH} deep: give a flatter one")
        if not isinstance(value, dict):
            return [self.read(one, depth + 1) for one in value]
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"{self._name} has keys that are not strings: give strings")
        return {self._text(key): self.read(one, depth + 1) for key, one in value.items()}
