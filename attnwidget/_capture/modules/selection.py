"""Which layers and heads a capture keeps: numbers, slices, names, globs and regexes, resolved as layers are seen."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..._utils.choices import Numbers, is_glob, matches_name
from ..._utils.validation import nearest
from ..call.observed_call import ObservedCall, ProcessHeads, Unreadable
from ..call.rule_slices import HEADS, key_heads, part_of_rule, take_part
from .layer_numbers import LayerOrder

Layer = Numbers | str | re.Pattern[str]
Heads = Numbers | dict[int | str | re.Pattern[str], Numbers]  # for all layers, or by layer number or name
ADVICE = (
    "give numbers, slices, names of modules or dotted parts of them, globs such as 'encoder.*', or compiled regexes"
)


def read_layers(given: Any) -> tuple[Layer, ...] | None:
    """Return a user's `layers`, checked; None for all.

    Raises:
        TypeError: it does not name layers.
        ValueError: it is empty.
    """
    if given is None:
        return None
    single = isinstance(given, str | slice | re.Pattern) or not isinstance(given, Iterable)
    found = [given] if single else list(given)
    if not found:
        raise ValueError("layers is empty: name one or more, or leave it out for all")
    return tuple(_read_one(one) for one in found)


def _read_one(one: Any) -> Layer:
    if isinstance(one, str | re.Pattern):
        return one
    if isinstance(one, slice) or (hasattr(one, "__index__") and not isinstance(one, bool)):
        return Numbers(one, "layers")
    raise TypeError(f"layers holds {one!r}: {ADVICE}")


class MissingLayer(NamedTuple):
    """A layer that was asked for and does not exist."""

    layer: str  # as given
    advice: str  # the nearest name, or nothing
    seen: list[str]  # the names of all layers that were seen


class LayerSelection:
    """The layers to keep, and which of them were found.

    The number of layers is known only after a forward pass. Until then, all layers that a negative number may mean are
    kept.

    Args:
        layers: as `read_layers` returns them.
    """

    def __init__(self, layers: tuple[Layer, ...] | None) -> None:
        self._layers = layers
        self.numbers = LayerOrder()

    @property
    def is_open(self) -> bool:
        """Whether a kept layer may turn out not to be wanted."""
        return any(isinstance(one, Numbers) and one.is_open for one in self._layers or ())

    @property
    def last_number(self) -> int | None:
        """The largest number of a layer to keep, beyond which none is counted; None if no layer is named by number."""
        numbers = [one.last for one in self._layers or () if isinstance(one, Numbers)]
        return max(numbers, default=None)

    def may_hold(self, name: str, cross: bool, running: str | None = None) -> bool:
        """Number a layer, and return whether it may be wanted.

        Args:
            name: of the layer.
            cross: whether it is cross-attention.
            running: a module that is running: its calls may turn out not to count.
        """
        number, names = self.numbers.of(name, cross), self.numbers.names(cross)
        count = sum(one.partition(" #")[0] != running for one in names) if running is not None else len(names)
        count = count if number is None else max(count, number + 1)
        return self._layers is None or any(_is_of(one, name, number, count) for one in self._layers)

    def holds(self, name: str, cross: bool) -> bool:
        """Return whether a layer is wanted, now that all have been seen."""
        if self._layers is None:
            return True
        number, count = self.numbers.of(name, cross), len(self.numbers.names(cross))
        return any(
            number in one.of(count) if isinstance(one, Numbers) else matches_name(one, name) for one in self._layers
        )

    def wants(self, name: str) -> bool:
        """Return whether a layer's name chooses it; a layer without a number yet may be chosen by number."""
        chosen = [one for one in self._layers or () if not isinstance(one, Numbers)]
        return self._layers is None or any(matches_name(one, name) for one in chosen)

    def unknown_name(self, names: Iterable[str]) -> tuple[str, str] | None:
        """Return a given name that no module has, with advice; None if there is none.

        Args:
            names: of all modules.
        """
        return _unknown_name(self._layers or (), list(names))

    def missing(self, layers: Iterable[Layer] | None = None) -> MissingLayer | None:
        """Return a layer that was not found; None if all were.

        Args:
            layers: to look for; None: those to keep.
        """
        names = [self.numbers.names(cross) for cross in (False, True)]
        seen, count = [name for own in names for name in own], max(map(len, names))
        for one in (self._layers or ()) if layers is None else layers:
            if isinstance(one, Numbers):
                absent: Any = one.missing(count)
                if not absent and (one.of(count) or not count):
                    continue
                return MissingLayer(repr(absent[0] if absent else one), "", seen)
            if not any(matches_name(one, name) for name in seen):
                return MissingLayer(shown(one), nearest_name(one, seen), seen)
        return None


def shown(one: str | re.Pattern[str]) -> str:
    """Return a name as the user gave it."""
    return repr(one.pattern) if isinstance(one, re.Pattern) else repr(one)


def _unknown_name(layers: Iterable[Layer], names: Sequence[str]) -> tuple[str, str] | None:
    """Return a given name that no module has, with advice; None if there is none."""
    for one in layers:
        if isinstance(one, Numbers):
            continue
        plain = one if isinstance(one, re.Pattern) else re.sub(r" #\d+$", "", one)
        if not any(matches_name(plain, name) for name in names):
            return shown(one), nearest_name(one, names)
    return None


def _is_of(one: Layer, name: str, number: int | None, count: int) -> bool:
    if isinstance(one, Numbers):
        return number is not None and one.may_hold(number, count)
    return matches_name(one, name)


def nearest_name(one: str | re.Pattern[str], names: Iterable[str]) -> str:
    """Return "did you mean …? else " if a name, or a part of one, is close to the given name; else nothing."""
    if isinstance(one, re.Pattern) or is_glob(one):
        return ""
    return nearest(one, list(dict.fromkeys(part for name in names for part in (name, *name.split(".")))))


# The heads of each layer.


class HeadSelection:
    """The heads to keep of each layer.

    Args:
        heads: as `read_heads` returns them; a layer that is not in the mapping keeps all.
        number_of: returns the number of a seen layer from its name and whether it is cross-attention.
    """

    def __init__(self, heads: Heads | None, number_of: Callable[[str, bool], int | None]) -> None:
        self._heads, self._number_of = heads, number_of

    @property
    def _layers(self) -> list[Layer]:
        """The layers in the mapping."""
        named = self._heads if isinstance(self._heads, dict) else {}
        return [Numbers(layer, "heads") if isinstance(layer, int) else layer for layer in named]

    def unknown_name(self, names: Iterable[str]) -> tuple[str, str] | None:
        """Return the name of a layer that no module has: see `LayerSelection.unknown_name`."""
        return _unknown_name(self._layers, list(names))

    def not_among(self, names: Collection[str]) -> list[Layer]:
        """Return the layers in the mapping whose names are not among some names."""
        return [
            one
            for one in self._layers
            if isinstance(one, Numbers) or not any(matches_name(one, name) for name in names)
        ]

    def of(self, name: str, call: ObservedCall) -> list[int] | None:
        """Return the heads of a call to keep; None for all.

        Raises:
            Unreadable: it lacks some of them.
        """
        wanted = self._of_layer(name, bool(call.cross))
        if wanted is None:
            return None
        here = call.heads or ProcessHeads(0, call.q.shape[1], call.q.shape[1])
        found, missing = wanted.of(here.total), wanted.missing(here.total)
        if missing or not found:
            what = f"head {missing[0]} is" if missing else f"heads={wanted!r} are"
            raise Unreadable(
                f"{what} not there: it has heads 0 to {here.total - 1}: ask for these, or leave heads= out"
            )
        found = [head - here.first for head in found if head in here.numbers]
        if not found:
            raise Unreadable(f"heads={wanted!r} belong to other processes: this one has {here.describe()}")
        return None if len(found) == here.count else found

    def _of_layer(self, name: str, cross: bool) -> Numbers | None:
        if not isinstance(self._heads, dict):
            return self._heads
        number = self._number_of(name, cross)
        found = (
            heads
            for layer, heads in self._heads.items()
            if (layer == number if isinstance(layer, int) else matches_name(layer, name))
        )
        return next(found, None)


def with_heads(call: ObservedCall, heads: Sequence[int]) -> ObservedCall:
    """Return a call with some of its heads, and the key heads that these use."""
    groups = key_heads(heads, call.q.shape[1] // call.k.shape[1])
    return replace(
        call,
        q=take_part(call.q, HEADS, heads),
        k=take_part(call.k, HEADS, groups),
        v=None if call.v is None else take_part(call.v, HEADS, groups),
        mask=part_of_rule(call.mask, HEADS, heads),
        bias=part_of_rule(call.bias, HEADS, heads),
        sinks=None if call.sinks is None else call.sinks[list(heads)],
        weights=None if call.weights is None else take_part(call.weights, HEADS, heads),
    )


def read_heads(given: Any) -> Heads | None:
    """Return a user's `heads`, checked; None for all.

    Raises:
        TypeError, ValueError: it does not name heads, or is empty.
    """
    if not isinstance(given, Mapping):
        return None if given is None else Numbers(given, "heads")
    if not given:
        raise ValueError("heads is an empty mapping: give heads of one layer or more, or leave it out for all")
    for layer in given:
        if not isinstance(layer, int | str | re.Pattern) or isinstance(layer, bool):
            raise TypeError(f"heads has the layer {layer!r}: give a number, or the name of a module or a part of it")
        if isinstance(layer, int) and layer < 0:
            raise ValueError(
                f"heads has the layer {layer}, but the number of layers is known only after the model has run: count "
                "it from 0, or give its name"
            )
    return {layer: Numbers(heads, f"heads[{layer!r}]") for layer, heads in given.items()}
