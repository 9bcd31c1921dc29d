"""Which keys of a cache are those of the call before and new ones, known from what transformers' cache did.

To compare the keys of each new token with all that are kept reads them all once more, in each layer. While a capture is
open, the layers of transformers' caches note what an update makes of which tensor, and torch counts changes in place:
where a layer held the very tensor of the call before, unchanged since, the keys of that call are the first of this one;
where the cache has a window, the last of them are. Whatever else puts keys together, or makes a tensor whose changes
torch does not count, is compared.
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


@dataclass(eq=False, slots=True)  # not frozen, which takes longer to make
class SeenKeys:
    """Keys as they were at one time.

    Attributes:
        keys: (B, G, positions, D).
        version: how often they had been changed in place.
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
        length: how many of the positions are filled.
        number: of this update, among all.
        before: the number of the update whose last keys are the first of these; None: it is not known.
        kept: how many keys of that update they are.
        cuts: whether the cache has a window, so that the next update may leave the first of these out.
        held: what the layer holds of them for its next update.
        held_version: how often that had been changed in place.
        counter: where the layer counts its keys, if that is a tensor, and how often that had been changed.
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
_known: dict[int, tuple[weakref.ref[Any], GrownKeys]] = {}  # by the identity of the cache's layer
_numbers = itertools.count()


def grown_keys(keys: Any) -> GrownKeys | None:
    """Return what is known of keys that a module attends to, if it has put them into a cache just before."""
    found = _latest.grown
    known = None if found is None else found.keys()
    if found is None or known is None or known is not keys:
        return None
    return found if known._version == found.version else None


class CacheWrapper:
    """Has the layers of transformers' caches note what their updates make, until it is removed."""

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


# What an update makes of the keys that a cache's layer holds: how many the layer says to hold before it; how many of
# these, the last, are the first of what it returns; and how many keys it returns that are filled.
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
        return last.length, last.length, last.length + new  # to read the counter takes longer
    held = int(counter)
    return held, held, held + new


def _written_in_window(layer: Any, new: int, last: GrownKeys | None) -> Lengths | None:
    """Return the lengths of a layer that writes into a buffer as long as its window, and moves that on by each key."""
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
        with torch._C.DisableTorchFunction():  # a mode that watches is told of each question to a tensor, which costs
            try:
                known = _known.get(id(self))
                last = known[1] if known is not None and known[0]() is self else None
                lengths = lengths_of(self, key_states.shape[-2], last)
                if last is not None and lengths is not None:
                    held = last.held()
                    if held is not None and self.keys is held and held._version == last.held_version:  # unchanged
                        before = last if lengths[0] == min(last.length, held.shape[-2]) else None
            except Exception:  # a layer of a kind that is not known here: its keys are compared
                lengths = None
        result = update(self, key_states, *arguments, **keywords)
        if lengths is not None:
            with torch._C.DisableTorchFunction():
                try:
                    _note(self, result[0], known, before, lengths, cuts)
                except Exception:
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
    """Note what an update has made: a tensor of all keys, or new keys in a buffer, which is one change of it.

    Args:
        layer: of the cache.
        keys: that it has returned.
        known: what was noted of a layer with this identity.
        before: of that the keys, if the layer has held them, unchanged.
        lengths: what the update was to make.
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
    """Return what forgets a cache's layer when that is gone, unless another has come in its place."""

    def forget_collected(gone: weakref.ref[Any]) -> None:
        known = _known.get(key)
        if known is not None and known[0] is gone:
            del _known[key]

    return forget_collected
