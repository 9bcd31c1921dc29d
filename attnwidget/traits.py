"""Trait types of the widget: each accepts what a user would write and refuses the rest in a sentence.

The errors are traitlets' own, so that several traits set at once roll back together, and Python's, so that users catch
what they expect.
"""

from __future__ import annotations

import operator
import reprlib
from typing import Any

import traitlets

from .tensors import as_choice, as_number, nearest


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
            raise WrongType(f"{self.name} is {reprlib.repr(value)}: give {wanted}") from None


class Text(traitlets.TraitType[Any, Any]):
    """A string that can be sent; None is an empty one."""

    default_value = ""

    def validate(self, obj: Any, value: Any) -> str:
        if not isinstance(value, str | None):
            raise WrongType(f"{self.name} is {reprlib.repr(value)}: give a string")
        return (value or "").encode("utf-8", "replace").decode()


class Choice(traitlets.TraitType[Any, Any]):
    """One of a few words."""

    def __init__(self, *words: str, **keywords: Any) -> None:
        self.words = words
        super().__init__(words[0], **keywords)

    def validate(self, obj: Any, value: Any) -> str:
        if not isinstance(value, str):
            raise WrongValue(f"{self.name} is {reprlib.repr(value)}: give one of {', '.join(self.words)}")
        try:
            return as_choice(value, self.words, str(self.name))
        except ValueError as error:
            raise WrongValue(str(error)) from None


class ColorRange(traitlets.TraitType[Any, Any]):
    """What the colours span: "head", "row", "unit" (0 to 1), or (low, high) of one's own."""

    words = ("head", "row", "unit")
    default_value = "head"

    def validate(self, obj: Any, value: Any) -> Any:
        if isinstance(value, str) and value in self.words:
            return value
        advice = f"give {', '.join(self.words)}, or two numbers (low, high)"
        if isinstance(value, str):
            raise WrongValue(f"no {self.name} is called {value!r}: {nearest(value, self.words)}{advice}")
        try:
            low, high = (as_number(bound, str(self.name)) for bound in value)
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise WrongValue(f"{self.name} is {reprlib.repr(value)}: {advice}, both finite") from None
        if low >= high:
            raise WrongValue(f"{self.name} is ({low:g}, {high:g}): the first must be less than the second")
        return (low, high)
