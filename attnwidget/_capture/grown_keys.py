"""Which keys of a cache are those of the call before and new ones, known from what transformers' cache did.

To compare the keys of each new token with all that are kept reads them all once more, in each layer. While a capture is
open, the layers of transformers' caches note what an update makes of which tensor, and torch counts changes in place:
where a layer held the very tensor of the call before, unchanged since, the keys of that call are the first of this one.
Whatever else puts keys together, or makes a tensor whose changes torch does not count, is compared.
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
        before: the number of the update whose keys are the first of these; None: it is not known.
    """

    length: int
    number: int
    before: int | None


class _LatestUpdate(threading.local):
    grown: GrownKeys | None = None  # of this thread


_latest = _LatestUpdate()
_known: dict[int, tuple[weakref.ref[Any], GrownKeys]] = {}  # by the identity of the cache's layer
_numbers = itertools.count()


def grown_keys(keys: Any) -> GrownKeys | None:
    """Return what is known of keys that a module attends to, if it has put them into a cache just before."""
    found = _latest.grown
    return found if found is not None and found.are(keys) else None


class CacheWrapper:
    """Has the layers of transformers' caches note what their updates make, until it is removed."""

    def __init__(self) -> None:
        module = sys.modules.get("transformers.cache_utils")
        self._own: list[tuple[Any, Callable[..., Any]]] = []
        for name, length_before in (("DynamicLayer", _length_of_all), ("StaticLayer", _length_so_far)):
            kind = getattr(module, name, None)
            update = vars(kind).get("update") if isinstance(kind, type) else None
            if kind is not None and callable(update):
                self._own.append((kind, update))
                kind.update = _noting(update, length_before)

    def remove(self) -> None:
        """Put transformers' own functions back."""
        for kind, update in self._own:
            kind.update = update
        _latest.grown = None


def _length_of_all(layer: Any) -> int:
    """Return how many keys a layer holds that joins old and new ones in a new tensor."""
    keys = getattr(layer, "keys", None)
    return int(keys.shape[-2]) if isinstance(keys, Tensor) and keys.ndim == 4 else 0


def _length_so_far(layer: Any) -> int | None:
    """Return how many keys a layer has written into its buffer; None where it does not tell."""
    length = getattr(layer, "cumulative_length", None)
    return None if length is None else int(length)


def _noting(update: Callable[..., Any], length_before: Callable[[Any], int | None]) -> Callable[..., Any]:
    @functools.wraps(update)
    def noting(self: Any, key_states: Any, *arguments: Any, **keywords: Any) -> Any:
        _latest.grown = None
        start: int | None = None
        known: tuple[weakref.ref[Any], GrownKeys] | None = None
        before: GrownKeys | None = None
        with torch._C.DisableTorchFunction():  # a mode that watches is told of each question to a tensor, which costs
            try:
                start, known = length_before(self), _known.get(id(self))
                if known is not None:
                    is_own, last = known[0]() is self, known[1]
                    before = last if is_own and last.length == start and last.are(self.keys) else None
            except Exception:  # a layer of a kind that is not known here: its keys are compared
                before = None
        result = update(self, key_states, *arguments, **keywords)
        if start is not None:
            with torch._C.DisableTorchFunction():
                try:
                    if result[0] is self.keys and not self.keys.is_inference():
                        _note(self, known, before, start + key_states.shape[-2])
                except Exception:
                    _latest.grown = None
        return result

    return noting


def _note(layer: Any, known: tuple[weakref.ref[Any], GrownKeys] | None, before: GrownKeys | None, length: int) -> None:
    """Note what an update has made: a tensor of all keys, or new keys in a buffer, which is one change of it.

    Args:
        layer: of the cache.
        known: what was noted of a layer with this identity.
        before: of that the keys, if these are the first of those that it has now.
        length: how many there are.
    """
    keys: Tensor = layer.keys
    version, room, number = keys._version, keys.shape[-2], next(_numbers)
    if before is not None and before.keys() is keys:
        continues = version == before.version + 1 and length <= room
    else:
        continues = before is not None and length == room
    own = known[0] if known is not None and known[0]() is layer else weakref.ref(layer, _forget(id(layer)))
    grown = GrownKeys(
        weakref.ref(keys), version, length, number, None if before is None or not continues else before.number
    )
    _known[id(layer)] = own, grown
    _latest.grown = grown


def _forget(key: int) -> Callable[[Any], None]:
    """Return what forgets a cache's layer when that is gone, unless another has come in its place."""

    def forget_collected(gone: weakref.ref[Any]) -> None:
        known = _known.get(key)
        if known is not None and known[0] is gone:
            del _known[key]

    return forget_collected
