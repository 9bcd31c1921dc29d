"""Which keys of a KV cache are old and which are new, as transformers' cache reports it.

Comparing each new token's keys with all kept keys would read them all again, in each layer. Instead, while a capture is
open, the layers of transformers' caches note what an update does to which tensor, and torch counts changes in place. If
a layer held the tensor of the last call, unchanged since, that call's keys come first in this call's keys; if the cache
has a window, only the last of them do. Keys that were joined in another way, or in tensors whose changes torch does not
count, are compared.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._utils.quietly import keep_from_model


@dataclass(eq=False, slots=True)  # not frozen, because that is slower to create
class SeenKeys:
    """Keys as they were at one time.

    Attributes:
        keys: (B, G, positions, D).
        version: its number of changes in place.
    """

    keys: weakref.ref[Tensor]
    version: int

    def are(self, keys: Any) -> bool:
        """Return whether a tensor is these keys, unchanged."""
        return isinstance(keys, Tensor) and self.keys() is keys and keys._version == self.version


@dataclass(eq=False, slots=True)
class GrownKeys(SeenKeys):
    """The keys of a cache's layer after an update.

    Attributes:
        length: the number of filled positions.
        number: of this update, among all.
        before: the number of the update whose last keys come first in these; None if unknown.
        kept: how many keys of that update these are.
        cuts: whether the cache has a window, so that the next update may drop the first keys.
        held: the tensor that the layer holds for its next update.
        held_version: its number of changes in place.
        counter: the layer's counter of keys, if that is a tensor, and its number of changes.
    """

    length: int
    number: int
    before: int | None
    kept: int
    cuts: bool
    held: weakref.ref[Tensor]
    held_version: int
    counter: tuple[weakref.ref[Tensor], int] | None = None


class _LatestUpdate(threading.local):
    grown: GrownKeys | None = None  # of this thread


_latest = _LatestUpdate()
_known: dict[int, tuple[weakref.ref[Any], GrownKeys]] = {}  # by identity of the cache's layer
_numbers = itertools.count()


def grown_keys(keys: Any) -> GrownKeys | None:
    """Return the cache's report on the keys of a module, if the module has put them into a cache just before."""
    found = _latest.grown
    known = None if found is None else found.keys()
    if found is None or known is None or known is not keys:
        return None
    return found if known._version == found.version else None


class CacheWrapper:
    """Makes the layers of transformers' caches report their updates, until it is removed."""

    def __init__(self) -> None:
        module = sys.modules.get("transformers.cache_utils")
        self._own: list[tuple[Any, Callable[..., Any]]] = []
        for name, lengths in LENGTHS.items():
            kind = getattr(module, name, None)
            update = vars(kind).get("update") if isinstance(kind, type) else None
            if kind is not None and callable(update):
                self._own.append((kind, update))
                kind.update = _noting(update, lengths, cuts="Sliding" in name)

    def remove(self) -> None:
        """Put transformers' own functions back."""
        for kind, update in self._own:
            kind.update = update
        _latest.grown = None


# What an update does to the keys in a cache's layer: the number of keys that the layer holds before; how many of these,
# the last ones, come first in the returned keys; and the number of filled keys that it returns.
Lengths = tuple[int, int, int]


def _joined(layer: Any, new: int, last: GrownKeys | None) -> Lengths | None:
    """Return the lengths of a layer that joins old and new keys in a new tensor."""
    keys = getattr(layer, "keys", None)
    held = keys.shape[-2] if isinstance(keys, Tensor) and keys.ndim == 4 else 0
    return None if getattr(layer, "record_past", False) else (held, held, held + new)


def _written(layer: Any, new: int, last: GrownKeys | None) -> Lengths | None:
    """Return the lengths of a layer that writes new keys into its buffer."""
    counter: Tensor = layer.cumulative_length
    counted = None if last is None else last.counter
    if last is not None and counted is not None and counted[0]() is counter and counter._version == counted[1]:
        return last.length, last.length, last.length + new  # faster than reading the counter
    held = int(counter)
    return held, held, held + new


def _written_in_window(layer: Any, new: int, last: GrownKeys | None) -> Lengths | None:
    """Return the lengths of a layer that writes into a buffer as long as its window, and shifts it by each key."""
    held, room = layer.cumulative_length_int, layer.max_cache_len
    if held >= room:
        return (room, room - 1, room) if new == 1 else None
    return (held, held, held + new) if held + new <= room or not held else None


LengthsOf = Callable[[Any, int, GrownKeys | None], Lengths | None]
LENGTHS: dict[str, LengthsOf] = {
    "DynamicLayer": _joined,
    "StaticLayer": _written,
    "DynamicSlidingWindowLayer": _joined,
    "StaticSlidingWindowLayer": _written_in_window,
}


def _noting(update: Callable[..., Any], lengths_of: LengthsOf, cuts: bool) -> Callable[..., Any]:
    @functools.wraps(update)
    def noting(self: Any, key_states: Any, *arguments: Any, **keywords: Any) -> Any:
        _latest.grown = None
        lengths: Lengths | None = None
        known: tuple[weakref.ref[Any], GrownKeys] | None = None
        before: GrownKeys | None = None
        with torch._C.DisableTorchFunction():  # a watching mode would see each question to a tensor, which is slow
            try:
                known = _known.get(id(self))
                last = known[1] if known is not None and known[0]() is self else None
                lengths = lengths_of(self, key_states.shape[-2], last)
                if last is not None and lengths is not None:
                    held = last.held()
                    if held is not None and self.keys is held and held._version == last.held_version:  # unchanged
                        before = last if lengths[0] == min(last.length, held.shape[-2]) else None
            except Exception as error:  # an unknown kind of layer: its keys are compared
                keep_from_model(error)
                lengths = None
        result = update(self, key_states, *arguments, **keywords)
        if lengths is not None:
            with torch._C.DisableTorchFunction():
                try:
                    _note(self, result[0], known, before, lengths, cuts)
                except Exception as error:
                    keep_from_model(error)
                    _latest.grown = None
        return result

    return noting


def _note(
    layer: Any,
    keys: Tensor,
    known: tuple[weakref.ref[Any], GrownKeys] | None,
    before: GrownKeys | None,
    lengths: Lengths,
    cuts: bool,
) -> None:
    """Note the result of an update: a tensor of all keys, or new keys in a buffer, which is one change of it.

    Args:
        layer: of the cache.
        keys: that it has returned.
        known: the last report of a layer with this identity.
        before: its keys, if the layer has held them, unchanged.
        lengths: the expected result of the update.
        cuts: whether the layer has a window.
    """
    held: Tensor = layer.keys
    if held.is_inference() or (keys is not held and not cuts):
        return
    version, number = held._version, next(_numbers)
    _, kept, after = lengths
    if before is None or before.held() is held:
        continues = before is not None and version == before.held_version + 1 and after <= keys.shape[-2]
        continues = continues and keys is held
    else:
        continues = after == keys.shape[-2] and (keys is held or held._base is keys)
    if before is not None and before.length < kept:
        continues = False
    own = known[0] if known is not None and known[0]() is layer else weakref.ref(layer, _forget(id(layer)))
    of_keys = weakref.ref(keys)
    of_held, own_version = (of_keys, version) if keys is held else (weakref.ref(held), keys._version)
    previous = before.number if before is not None and continues else None
    counter = None if cuts else getattr(layer, "cumulative_length", None)
    counted = None
    if counter is not None and isinstance(counter, Tensor) and not counter.is_inference():
        counted = weakref.ref(counter), counter._version
    how = after, number, previous, kept, cuts, of_held, version, counted
    grown = GrownKeys(of_keys, own_version, *how)
    _known[id(layer)] = own, grown
    _latest.grown = grown


def _forget(key: int) -> Callable[[Any], None]:
    """Return a function that forgets a cache's layer when it is deleted, unless another has taken its place."""

    def forget_collected(gone: weakref.ref[Any]) -> None:
        known = _known.get(key)
        if known is not None and known[0] is gone:
            del _known[key]

    return forget_collected
