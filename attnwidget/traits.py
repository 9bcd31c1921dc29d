"""Trait types of the widget: each accepts what a user would write and refuses the rest in a sentence.

The errors are traitlets' own, so that several traits set at once roll back together, and Python's, so that users catch
what they expect.
"""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Sequence
from typing import Any, ClassVar

import traitlets


class WrongValue(traitlets.TraitError, ValueError):
    """A trait's value is not one of those it may have."""


class WrongType(traitlets.TraitError, TypeError):
    """A trait was given something of another kind."""


class NotThere(traitlets.TraitError, IndexError):
    """A layer, batch, head, query or key that the attention does not have."""


class Index(traitlets.TraitType[Any, Any]):
    """A whole number (numpy's and torch's too), or None where nothing may be chosen; the widget checks its bounds."""

    default_value = 0

    def validate(self, obj: Any, value: Any) -> int | None:
        if value is None and self.allow_none:
            return None
        try:
            if isinstance(value, bool):
                raise TypeError
            return operator.index(value)
        except TypeError:
            wanted = "a whole number or None" if self.allow_none else "a whole number"
            raise WrongType(f"{self.name} is {value!r}: give {wanted}") from None


class Choice(traitlets.TraitType[Any, Any]):
    """One of a few words."""

    def __init__(self, *words: str, **keywords: Any) -> None:
        self.words = words
        super().__init__(words[0], **keywords)

    def validate(self, obj: Any, value: Any) -> str:
        if isinstance(value, str) and value in self.words:
            return value
        raise WrongValue(f"{self.name} is {value!r}: give one of {', '.join(self.words)}{nearest(value, self.words)}")


class ColorRange(traitlets.TraitType[Any, Any]):
    """What the colours span: "head", "row", "unit" (0 to 1), or (low, high) of one's own."""

    words = ("head", "row", "unit")
    default_value = "head"

    def validate(self, obj: Any, value: Any) -> Any:
        if isinstance(value, str):
            if value in self.words:
                return value
            wanted = f"{', '.join(self.words)}, or two numbers (low, high){nearest(value, self.words)}"
            raise WrongValue(f"{self.name} is {value!r}: give {wanted}")
        try:
            low, high = (float(bound) for bound in value)
        except (TypeError, ValueError):
            raise WrongValue(f"{self.name} is {value!r}: give head, row, unit, or two numbers (low, high)") from None
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise WrongValue(f"{self.name} is ({low:g}, {high:g}): low must be less than high, and both finite")
        return (low, high)


class Heads(traitlets.TraitType[Any, Any]):
    """Several heads, in the order in which they were chosen; bounds are the widget's to check."""

    default_value: ClassVar[list[int]] = [0]

    def validate(self, obj: Any, value: Any) -> list[int]:
        try:
            heads = list(dict.fromkeys(operator.index(head) for head in value))
        except TypeError:
            raise WrongType(f"{self.name} is {value!r}: give a list of heads, such as [0, 4]") from None
        if not heads:
            raise WrongValue(f"{self.name} is empty: give at least one head")
        return heads


class Pins(traitlets.TraitType[Any, Any]):
    """Several pinned places (query, key), the last the one that is shown; None where only one side is pinned."""

    default_value: ClassVar[list[tuple[int | None, int | None]]] = []

    def validate(self, obj: Any, value: Any) -> list[tuple[int | None, int | None]]:
        try:
            return [self._pair(*pair) for pair in value]
        except TypeError:
            raise WrongType(
                f"{self.name} is {value!r}: give a list of pairs (query, key), such as [(14, 16)]"
            ) from None

    @staticmethod
    def _pair(query: Any, key: Any) -> tuple[int | None, int | None]:
        if query is None and key is None:
            raise TypeError
        return (None if query is None else operator.index(query), None if key is None else operator.index(key))


class Threshold(traitlets.TraitType[Any, Any]):
    """A weight from 0 to 1."""

    default_value = 0.02

    def validate(self, obj: Any, value: Any) -> float:
        try:
            threshold = float(value)
        except (TypeError, ValueError):
            raise WrongType(f"{self.name} is {value!r}: give a weight from 0 to 1") from None
        if not 0 <= threshold <= 1:
            raise WrongValue(f"{self.name} is {threshold:g}: give a weight from 0 to 1")
        return threshold


def nearest(value: Any, words: Sequence[str]) -> str:
    """ ": did you mean …?" where one of the words is close to what was given, else nothing."""
    close = difflib.get_close_matches(value, words, 1) if isinstance(value, str) else []
    return f": did you mean {close[0]}?" if close else ""
