"""Trait types of the widget: each accepts what a user would write, and refuses the rest with a sentence.

Errors are traitlets' own, so that several traits set at once roll back together, and Python's, so that users can catch
the usual types.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex, TypeVar, cast

import traitlets

from ..._analysis.head_kinds import read_names
from ..._analysis.metrics import SURVEYED
from ..._utils.validation import as_choice, as_number, nearest, told

W = TypeVar("W", bound=str)

MAX_COUNT = 2**31 - 1
MAX_PINS = 1000


class WrongValue(traitlets.TraitError, ValueError):
    """Raised for an invalid value of a trait."""


class WrongType(traitlets.TraitError, TypeError):
    """Raised for a value of the wrong type."""


class NotThere(traitlets.TraitError, IndexError):
    """Raised for a layer, batch, head, query or key that the attention does not have."""


class refusing:  # noqa: N801 - it stands in `with`, as a function does
    """Raise errors from within as a trait raises them: the same sentence, in an error of the same kind.

    Not a generator with `contextmanager`: from Python 3.12 on, its frame and the traceback of an error hold each other,
    so that everything named there, such as a closed widget's tensors, would wait for the garbage collector.
    """

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        """Raise an error as a trait does."""
        if error is None or isinstance(error, traitlets.TraitError):
            return
        if isinstance(error, IndexError):
            raise NotThere(str(error)) from None
        if isinstance(error, TypeError | ImportError):
            raise WrongType(str(error)) from None
        if isinstance(error, ValueError):
            raise WrongValue(str(error)) from None
        if isinstance(error, ArithmeticError):
            raise WrongValue(f"this cannot be computed: {error}") from None


Whole = traitlets.TraitType[int, SupportsIndex]
WholeOrNone = traitlets.TraitType[int | None, SupportsIndex | None]  # for checkers, the types of an `Index`


class Index(traitlets.TraitType[Any, Any]):
    """A whole number (numpy's and torch's too), or None if no choice is possible; the widget checks its bounds."""

    default_value = 0

    def validate(self, obj: Any, value: Any) -> int | None:
        if value is None and self.allow_none:
            return None
        try:
            return _whole(value)
        except TypeError:
            wanted = "a whole number or None" if self.allow_none else "a whole number"
            raise WrongType(f"{self.name} is {told(value)}: give {wanted}") from None


class Count(Index):
    """A whole number of at least 1, or None for all there are."""

    def validate(self, obj: Any, value: Any) -> int | None:
        count = super().validate(obj, value)
        if count is not None and not 1 <= count <= MAX_COUNT:
            raise WrongValue(f"{self.name} is {told(count)}: give 1 to {MAX_COUNT:,}, or None for all")
        return count


class Text(traitlets.TraitType[str, str | None]):
    """A string that can be sent; None is an empty one."""

    default_value = ""

    def validate(self, obj: Any, value: Any) -> str:
        if not isinstance(value, str | None):
            raise WrongType(f"{self.name} is {told(value)}: give a string")
        return (value or "").encode("utf-8", "replace").decode()


def derived(summary: str) -> traitlets.Dict[str, Any]:
    """Return a trait that only the widget sets, from others; None until it is computed."""
    return traitlets.Dict(default_value=None, allow_none=True, help=summary).tag(sync=True, role="derived")


class Choice(traitlets.TraitType[W, W]):
    """One of a few words; editors know them by their `Literal` type."""

    def __init__(self, *words: W, **keywords: Any) -> None:
        self.words = words
        super().__init__(words[0], **keywords)

    def validate(self, obj: Any, value: Any) -> W:
        if not isinstance(value, str):
            raise WrongValue(f"{self.name} is {told(value)}: give one of {', '.join(self.words)}")
        try:
            return cast(W, as_choice(value, self.words, str(self.name)))
        except ValueError as error:
            raise WrongValue(str(error)) from None


MAX_KINDS = 8  # custom metrics: all numbers of all heads go in one message


class MetricChoice(Choice[str]):
    """A metric of all heads, possibly a custom one."""

    def validate(self, obj: Any, value: Any) -> str:
        own = tuple(getattr(obj, "kinds", None) or ())
        return str(value) if isinstance(value, str) and value in own else super().validate(obj, value)


class Kinds(traitlets.Dict):
    """Custom metrics by name: functions of exact rows, or names of kinds."""

    def validate(self, obj: Any, value: Any) -> dict[str, Any]:
        if value is None or (isinstance(value, Mapping | list | tuple) and not value):
            return {}
        try:
            found = read_names(value, str(self.name))
        except (TypeError, ValueError) as error:
            raise (WrongType if isinstance(error, TypeError) else WrongValue)(str(error)) from None
        if len(found) > MAX_KINDS:
            raise WrongValue(f"{self.name} has {len(found)} metrics, and at most {MAX_KINDS} are shown: give fewer")
        there = [name for name in found if name in (*SURVEYED, "layer", "similar", "effect", "stage_sum", "stage_size")]
        if there:
            raise WrongValue(f"{self.name} has {told(there[0])}, which exists already: give it another name")
        return found


class ColorRange(traitlets.TraitType[str | tuple[float, float], str | Sequence[float]]):
    """The range of the colors: "head", "row", "layer", "view", "unit" (0 to 1), or your own (low, high)."""

    words = ("head", "row", "layer", "view", "unit")
    default_value = "head"

    def validate(self, obj: Any, value: Any) -> Any:
        if isinstance(value, str) and value in self.words:
            return value
        advice = f"give {', '.join(self.words)}, or two numbers (low, high)"
        if isinstance(value, str):
            raise WrongValue(f"no {self.name} is called {value!r}: {nearest(value, self.words)}{advice}")
        try:
            low, high = (as_number(bound, str(self.name)) for bound in _listed(value))
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise WrongValue(f"{self.name} is {told(value)}: {advice}, both finite") from None
        if low >= high:
            raise WrongValue(f"{self.name} is ({low:g}, {high:g}): the first must be less than the second")
        return (low, high)


class LayerIndex(Index):
    """A layer; "mean" and "max" show all layers as one, which sets `across`."""

    def validate(self, obj: Any, value: Any) -> int | None:
        if isinstance(value, str) and value in ("mean", "max"):
            obj.across = value
            return 0
        return super().validate(obj, value)


class Heads(traitlets.TraitType[list[int], Iterable[SupportsIndex]]):
    """Several heads, each once; the widget checks their bounds."""

    default_value: Any = (0,)

    def validate(self, obj: Any, value: Any) -> list[int]:
        try:
            heads = list(dict.fromkeys(_whole(head) for head in _listed(value)))
        except (TypeError, RecursionError):
            raise WrongType(f"{self.name} is {told(value)}: give a list of heads, such as [0, 4]") from None
        if not heads:
            raise WrongValue(f"{self.name} is empty: give at least one head")
        return heads


Place = tuple[int, int, int]


class HeadPlace(traitlets.TraitType[Place | None, Sequence[SupportsIndex] | None]):
    """A head by its layer, sample and number, or None; the widget checks their bounds."""

    default_value = None

    def validate(self, obj: Any, value: Any) -> Place | None:
        if value is None:
            return None
        try:
            layer, batch, head = map(_whole, _listed(value))
        except (TypeError, ValueError, RecursionError):
            advice = "give (layer, batch, head), such as (2, 0, 9), or None for those of A"
            raise WrongType(f"{self.name} is {told(value)}: {advice}") from None
        return layer, batch, head


Pin = tuple[int | None, int | None]


class Pins(traitlets.TraitType[list[Pin], Iterable[Sequence[SupportsIndex | None]]]):
    """Several pinned places (query, key), the last one displayed; None if only one side is pinned."""

    default_value: Any = ()

    def validate(self, obj: Any, value: Any) -> list[Pin]:
        try:
            pins = [self._pin(*_listed(pin)) for pin in _listed(value)]
        except (TypeError, RecursionError):
            advice = "give a list of pairs (query, key), such as [(14, 16)]"
            raise WrongType(f"{self.name} is {told(value)}: {advice}") from None
        if len(pins) > MAX_PINS:
            raise WrongValue(f"{self.name} are {len(pins):,} places: pin at most {MAX_PINS:,}")
        return pins

    @staticmethod
    def _pin(query: Any, key: Any) -> Pin:
        if query is None and key is None:
            raise TypeError
        return (None if query is None else _whole(query), None if key is None else _whole(key))


class Names(traitlets.TraitType[list[str], Iterable[str]]):
    """Several names, each once."""

    default_value: Any = ()

    def validate(self, obj: Any, value: Any) -> list[str]:
        try:
            names = list(dict.fromkeys(_listed(value)))
        except (TypeError, RecursionError):
            names = [None]
        if not all(isinstance(name, str) for name in names):
            raise WrongType(f"{self.name} is {told(value)}: give a list of names, such as ['doc 1']")
        if len(names) > MAX_PINS:
            raise WrongValue(f"{self.name} are {len(names):,} names: give at most {MAX_PINS:,}")
        return [name.encode("utf-8", "replace").decode() for name in names]


class WhatIf(traitlets.Dict):
    """Other rules for the tensors, as `Attention.what_if` takes them; the widget checks whether they are possible."""

    def validate(self, obj: Any, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise WrongType(f"{self.name} is {told(value)}: give a dict such as {{'scale': 1.0}}")
        return dict(value)


Limit = float | None


class OnlyHeads(traitlets.TraitType["tuple[Limit, Limit, Limit] | None", "Sequence[Limit] | None"]):
    """The heads to show: (first layer, last layer, least value of the metric), each None for no limit; or None."""

    default_value = None

    def validate(self, obj: Any, value: Any) -> Any:
        if value is None:
            return None
        advice = "give (first layer, last layer, least value of `bar`), each of them or None, such as (8, 12, None)"
        try:
            limits = [None if limit is None else as_number(limit, str(self.name)) for limit in _listed(value)]
            first, last, above = limits
            layers = [None if layer is None else int(layer) for layer in (first, last)]
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise WrongValue(f"{self.name} is {told(value)}: {advice}") from None
        if layers != [first, last] or min((layer for layer in layers if layer is not None), default=0) < 0:
            raise WrongValue(f"{self.name} is {told(value)}: layers are whole numbers from 0 on; {advice}")
        return None if limits == [None, None, None] else (*layers, above)


class Threshold(traitlets.TraitType[float, float]):
    """A weight from 0 to 1."""

    default_value = 0.02
    is_called = "a weight"

    def validate(self, obj: Any, value: Any) -> float:
        try:
            threshold = as_number(value, str(self.name))
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise WrongType(f"{self.name} is {told(value)}: give {self.is_called} from 0 to 1") from None
        if not 0 <= threshold <= 1:
            raise WrongValue(f"{self.name} is {threshold:g}: give {self.is_called} from 0 to 1")
        return threshold


class Opacity(Threshold):
    """An opacity from 0 (clear) to 1 (opaque)."""

    default_value = 0.55
    is_called = "an opacity"


def _listed(value: Any) -> Iterable[Any]:
    """Return an iterable value, but not a text or a dict, which are not lists."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping):
        raise TypeError
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)
