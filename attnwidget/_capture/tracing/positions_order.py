"""Find positions that a model puts into another order, such as a reversed text: its tokens then label other rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .heads_axis import functions

FLIPS, ROLLS, INDEX_SELECTS = functions("flip"), functions("roll"), functions("index_select")
GATHERS, GETITEMS, SORTS = functions("gather", "take_along_dim"), functions("__getitem__"), functions("sort")
SHUFFLES = FLIPS | ROLLS | INDEX_SELECTS | GATHERS | GETITEMS | SORTS
OF_FIRST = functions("matmul", "__matmul__", "bmm", "mm") | {F.linear, F.scaled_dot_product_attention}
OF_FIRST |= {F.multi_head_attention_forward}
Order = tuple[int, ...]


@dataclass(frozen=True)
class Reordered:
    """How positions were put into another order."""

    by: str  # the function
    order: Order | None  # the earlier place of each position; None: unknown


class PositionOrder:
    """Knows which of a model's living tensors have positions in another order than its text."""

    def __init__(self) -> None:
        self._known: Any = WeakIdKeyDictionary()

    def of(self, *tensors: Any) -> str | None:
        """Return the function that put positions of any of the tensors into another order; None if none has."""
        if not self._known:
            return None
        found = (self._known.get(x) for x in tensors if isinstance(x, Tensor))
        return next((one.by for one in found if one is not None), None)

    def trace(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note one call of a function of torch, and its result."""
        found = _reordered(func, result, args, kwargs) if func in SHUFFLES else None
        if found is not None:
            self._shuffle(result[0] if isinstance(result, tuple) else result, args[0], found)
        elif self._known:
            self._pass_on(func, result, args, kwargs)

    def _shuffle(self, result: Tensor, x: Tensor, found: Reordered) -> None:
        before = self._known.get(x)
        if before is not None:
            a, b = before.order or (), found.order or ()
            found = Reordered(before.by, tuple(a[i] for i in b) if len(a) == len(b) else None)
        if found.order is None or found.order != tuple(range(len(found.order))):
            self._known[result] = found

    def _pass_on(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = (*args[:1],) if func in OF_FIRST and args else (*args, *kwargs.values())
        flat = [y for x in given for y in (x if isinstance(x, tuple | list) else (x,))]
        found = next((one for x in flat if isinstance(x, Tensor) and (one := self._known.get(x)) is not None), None)
        if found is None:
            return
        for x in result if isinstance(result, tuple | list) else (result,):
            if isinstance(x, Tensor) and x.is_floating_point() and x.ndim > 1:
                self._known[x] = found


def _reordered(func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reordered | None:
    """Return how a function puts positions into another order; None if it does not."""
    x = args[0]
    if not isinstance(x, Tensor) or x.ndim < 3 or not x.is_floating_point() or isinstance(x, torch.nn.Parameter):
        return None
    name = getattr(func, "__name__", "an index").strip("_")
    if func in GETITEMS:
        order = _order_of_index(x, args[1])
        return None if order is None or result.shape != x.shape else Reordered("an index", order)
    first = args[1] if len(args) > 1 else kwargs.get("dims", kwargs.get("shifts", kwargs.get("dim")))
    if func in FLIPS:
        axes = [int(one) % x.ndim for one in (first if isinstance(first, Sequence) else args[1:])]
        return _of_axes(name, x, axes, lambda places: places.flip(0))
    if func in ROLLS:
        dims = args[2] if len(args) > 2 else kwargs.get("dims")
        axes = [int(one) % x.ndim for one in (dims if isinstance(dims, Sequence) else [dims or 0])]
        shift = first[0] if isinstance(first, Sequence) else first
        return _of_axes(name, x, axes, lambda places: places.roll(shift))
    axis = int(first) % x.ndim if isinstance(first, int) else None if func not in SORTS else x.ndim - 1
    if axis is None or axis == x.ndim - 1 or (result[0] if func in SORTS else result).shape != x.shape:
        return None
    index = args[2] if len(args) > 2 else kwargs.get("index")
    order = tuple(index.tolist()) if func in INDEX_SELECTS and isinstance(index, Tensor) else None
    return Reordered(name, order)


def _of_axes(name: str, x: Tensor, axes: list[int], change: Any) -> Reordered | None:
    """Return the order after a change along some axes; None if these are features alone."""
    own = [axis for axis in axes if axis < x.ndim - 1]
    if not own:
        return None
    order = None if len(own) > 1 else tuple(change(torch.arange(x.shape[own[0]], device="cpu")).tolist())
    return Reordered(name, order)


def _order_of_index(x: Tensor, index: Any) -> Order | None:
    """Return the order of x[…, index, …]; None unless the index has a number for each place of an axis."""
    entries = index if isinstance(index, tuple) else (index,)
    axis = 0
    for i, one in enumerate(entries):
        if one is Ellipsis:
            axis = x.ndim - sum(other is not None for other in entries[i + 1 :])
            continue
        numbers = isinstance(one, list) or (isinstance(one, Tensor) and one.ndim == 1 and one.dtype is not torch.bool)
        if numbers and axis < x.ndim - 1 and len(one) == x.shape[axis]:
            size = x.shape[axis]
            return tuple(int(place) % size for place in (one.tolist() if isinstance(one, Tensor) else one))
        axis += one is not None
    return None
