"""Trait types of the widget: each accepts what a user would write and refuses the rest in a sentence.

The errors are traitlets' own, so that several traits set at once roll back together, and Python's, so that users catch
what they expect.
"""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Sequence
from typing import Any

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


def nearest(value: Any, words: Sequence[str]) -> str:
    """ ": did you mean …?" where one of the words is close to what was given, else nothing."""
    close = difflib.get_close_matches(value, words, 1) if isinstance(value, str) else []
    return f": did you mean {close[0]}?" if close else ""
