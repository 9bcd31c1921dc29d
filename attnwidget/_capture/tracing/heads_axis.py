"""Follow which axis of a tensor holds heads, from the split of features into heads to the product of q and k.

Models that write attention out merge samples and heads into one axis, some with the heads of a sample side by side
(b · h), some with the samples of a head (h · b): only the history of the axis shows which.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ..call.observed_call import HeadsApart


@dataclass(frozen=True)
class HeadsAxis:
    """An axis of heads, alone or merged with others: its index is (before · heads + head) · inside + after."""

    axis: int
    heads: int
    inside: int = 1
    axes: int = 1  # 2: key heads, and the query heads that share each


class HeadsAxes:
    """Knows which axis of a model's living tensors holds heads."""

    def __init__(self) -> None:
        self._known: Any = WeakIdKeyDictionary()
        self._sources: Any = WeakIdKeyDictionary()  # of tensors with heads times a number, and the number
        self._slices: Any = WeakIdKeyDictionary()  # of an axis of heads, or of the first of three axes: that axis

    def of(self, x: Any) -> HeadsAxis | None:
        """Return what is known about a tensor; None if nothing."""
        return self._known.get(x) if isinstance(x, Tensor) and self._known else None

    def apart(self, x: Tensor) -> HeadsApart:
        """Return the axis of heads, alone or merged with samples, that x is a slice of, if that was seen."""
        found: HeadsApart | None = self._slices.get(x) if self._slices else None
        whole = x._base
        known = self.of(whole)
        if found is not None and (found.heads or whole is None or known is None):
            return found
        return HeadsApart(None) if whole is None or known is None or known.axes > 1 else _axis_in_memory(known, whole)

    def source_of(self, x: Tensor) -> tuple[Tensor, float]:
        """Return the tensor that was multiplied by a number to make x, and the number; x itself and 1 if none was."""
        found: tuple[Tensor, float] = self._sources.get(x, (x, 1.0)) if self._sources else (x, 1.0)
        return found

    def trace(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note one call of a function of torch, and its result."""
        step = HEADS_STEPS.get(func)
        if step is None or not args:
            return
        self._trace_slices(func, result, args, kwargs)
        if isinstance(result, tuple | list):
            self._trace_parts(func, result, args, kwargs)
        elif isinstance(result, Tensor):
            found = step(self.of(args[0]), result, args[0], func, args[1:], kwargs)
            if found is not None:
                self._known[result] = found
                factor = _factor_of(func, args)
                if factor is not None and args[0]._base is not None and result.dtype in WIDE:
                    self._sources[result] = args[0], factor

    def _trace_slices(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note slices along an axis of heads, or along the first of three axes, which may have heads."""
        x = args[0]
        if not isinstance(x, Tensor):
            return
        before = self._slices.get(x) if self._slices else None
        if func in SLICES:
            known = self.of(x)
            if (known is None and x.ndim != 3) or (known is not None and known.axes > 1):
                return
            axis = 0 if known is None else known.axis
            if _sliced_axis(func, x, args[1:], kwargs) == axis:
                found = HeadsApart(x.stride(0), entries=x.shape[0]) if known is None else _axis_in_memory(known, x)
                for part in result if isinstance(result, tuple | list) else (result,):
                    self._slices[part] = before if before is not None and not found.heads else found
                return
        if before is None or not isinstance(result, Tensor) or result.numel() != x.numel():
            return
        if result.data_ptr() == x.data_ptr():  # a view of all of it
            self._slices[result] = before

    def _trace_parts(self, func: Any, parts: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        known, place = self.of(args[0]), 1 if func in UNBINDS else 2
        if known is None or func not in UNBINDS | SPLITS:
            return
        axis = int(args[place] if len(args) > place else kwargs.get("dim", 0)) % args[0].ndim
        if len(parts) == 1 and func in SPLITS:
            self._known[parts[0]] = known
        elif axis != known.axis:
            left = func in UNBINDS and axis < known.axis
            for part in parts:
                self._known[part] = replace(known, axis=known.axis - left)


def _axis_in_memory(known: HeadsAxis, x: Tensor) -> HeadsApart:
    return HeadsApart(x.stride(known.axis), known.heads, known.inside, x.shape[known.axis])


def _sliced_axis(func: Any, x: Tensor, others: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Return the axis of x along which a function takes a slice or one entry; None if there are several."""
    if func not in TAKES:
        place = 0 if func in UNBINDS or func in WITH_AXIS_FIRST else 1
        return int(others[place] if len(others) > place else kwargs.get("dim", 0)) % x.ndim
    index = others[0] if isinstance(others[0], tuple) else (others[0],)
    if any(one is Ellipsis or not (one is None or type(one) is int or isinstance(one, slice)) for one in index):
        return None
    given = [one for one in index if one is not None]
    taken = [
        axis
        for axis, one in enumerate(given)
        if not isinstance(one, slice) or len(range(*one.indices(x.shape[axis]))) < x.shape[axis]
    ]
    return taken[0] if len(taken) == 1 else None


def _factor_of(func: Any, args: tuple[Any, ...]) -> float | None:
    """Return the number by which a function multiplies its first argument."""
    number = args[1] if len(args) == 2 else None
    if type(number) not in (int, float) or not number:
        return None
    return float(number) if func in PRODUCTS else 1 / float(number) if func in QUOTIENTS else None


def order_of(func: Any, axes: int, others: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Return how a function reorders axes: for each axis of the result, its number in the argument."""
    return tuple(
        size - 2 for size in func(torch.empty(tuple(range(2, axes + 2)), device="meta"), *others, **kwargs).shape
    )


# The effect of each function on an axis of heads; None: it has none, or the effect is unknown.


def _reshape(known: HeadsAxis | None, result: Tensor, x: Tensor, func: Any, *_: Any) -> HeadsAxis | None:
    before, after = tuple(x.shape), tuple(result.shape)
    if known is None and func in SPLITS_AXES and after == (*before[:-1], 1, *before[-1:]):
        return HeadsAxis(len(before) - 1, 1)
    if known is None:
        return _split(before, after)
    if before == after:
        return known
    size, first = before[known.axis], math.prod(before[: known.axis])
    each = size // (known.heads * known.inside)  # what comes before the heads in the same axis
    start = 1
    for j, n in enumerate(after):
        if start == first * each and n == known.heads and j < len(after) - 1:
            return HeadsAxis(j, known.heads)  # alone
        if start == first * each and 1 < n < known.heads and j + 2 < len(after) and n * after[j + 1] == known.heads:
            return HeadsAxis(j, known.heads, axes=2)  # key heads, and query heads of each
        if first % start == 0 and start * n % (first * size) == 0 and known.axes == 1:
            return HeadsAxis(j, known.heads, known.inside * (start * n // (first * size)))  # the same axis, or merged
        start *= n
    return None


def _split(before: tuple[int, ...], after: tuple[int, ...]) -> HeadsAxis | None:
    """Return the axis of heads, if the last axis, of features, is split."""
    n = len(before)
    if n < 2 or before[-1] == after[-1]:
        return None
    if len(after) > n and after[: n - 1] == before[:-1] and math.prod(after[n - 1 :]) == before[-1]:
        return HeadsAxis(len(after) - 2, after[-2])
    if n == len(after) == 3 and after[0] == before[0] and before[1] and after[1] % before[1] == 0:
        return HeadsAxis(1, after[1] // before[1])  # (positions, samples, features) to (positions, samples · heads, …)
    return None


def _permute(
    known: HeadsAxis | None, result: Tensor, x: Tensor, func: Any, others: tuple[Any, ...], kwargs: dict[str, Any]
) -> HeadsAxis | None:
    if known is None:
        return None
    order = order_of(func, x.ndim, others, kwargs)
    place = order.index(known.axis)
    is_together = known.axes == 1 or order[place + 1 : place + 2] == (known.axis + 1,)
    return replace(known, axis=place) if is_together else None


def _keep(known: HeadsAxis | None, result: Tensor, x: Any, *_: Any) -> HeadsAxis | None:
    return known if known is not None and result.shape == x.shape else None


def _take(
    known: HeadsAxis | None, result: Tensor, x: Tensor, func: Any, others: tuple[Any, ...], kwargs: dict[str, Any]
) -> HeadsAxis | None:
    """Follow x[i], x[:, :n] and x[:, None], if all heads are kept."""
    if known is None or not others or known.axes > 1:
        return None
    index = others[0] if isinstance(others[0], tuple) else (others[0],)
    if any(one is not None and type(one) is not int and not isinstance(one, slice) for one in index):
        return None
    axis, place = 0, 0  # of x, and of the result
    for one in (*index, *[slice(None)] * x.ndim):
        if one is not None and axis == known.axis:
            return (
                replace(known, axis=place) if isinstance(one, slice) and result.shape[place] == x.shape[axis] else None
            )
        axis += one is not None
        place += not isinstance(one, int)
    return None


def _nothing(*_: Any) -> None:
    """Return None: the axis of heads is not followed."""


def _join(
    _: Any, result: Tensor, parts: Any, func: Any, others: tuple[Any, ...], kwargs: dict[str, Any]
) -> HeadsAxis | None:
    """Follow chunks of the features, one for each head, that are concatenated along another axis."""
    axis = int(others[0] if others else kwargs.get("dim", 0))
    if not isinstance(parts, tuple | list) or len(parts) < 2 or not _are_chunks_of_features(parts):
        return None
    if result.ndim > parts[0].ndim:
        return HeadsAxis(axis % result.ndim, len(parts))
    axis %= result.ndim
    return HeadsAxis(axis, len(parts), parts[0].shape[axis]) if axis < result.ndim - 1 else None


def _are_chunks_of_features(parts: Sequence[Any]) -> bool:
    first = parts[0]
    if not all(isinstance(x, Tensor) and x.shape == first.shape and x.stride() == first.stride() for x in parts):
        return False
    step = first.shape[-1] * first.element_size()
    starts = [x.data_ptr() for x in parts]
    apart = all(other - one == step for one, other in itertools.pairwise(starts))
    return apart and first.ndim > 1 and first.stride(-1) == 1 and first.stride(-2) >= len(parts) * first.shape[-1]


def functions(*names: str) -> set[Any]:
    """Return the functions of torch that have these names, as functions and as methods."""
    owners = (torch, Tensor, F, torch.special)
    return {getattr(owner, name) for name in names for owner in owners if hasattr(owner, name)}


PERMUTATIONS = functions("transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "adjoint") | {
    getattr(Tensor, name).__get__ for name in ("mT", "T", "mH", "H")
}
PRODUCTS, QUOTIENTS = functions("mul", "__mul__", "__rmul__"), functions("div", "__truediv__")
WIDE = torch.float32, torch.float64  # a product in another type has lost digits
UNBINDS, SPLITS = functions("unbind"), functions("split", "chunk", "tensor_split")
TAKES, WITH_AXIS_FIRST = functions("__getitem__"), functions("narrow", "select")
SPLITS_AXES = functions("view", "reshape", "unflatten")
SLICES = TAKES | WITH_AXIS_FIRST | UNBINDS | SPLITS
Step = Callable[..., HeadsAxis | None]
HEADS_STEPS: dict[Any, Step] = {
    **dict.fromkeys(functions("view", "reshape", "unflatten", "flatten", "unsqueeze", "squeeze"), _reshape),
    **dict.fromkeys(PERMUTATIONS, _permute),
    **dict.fromkeys(functions("contiguous", "clone", "to", "float", "half", "bfloat16", "type_as", "dropout"), _keep),
    **dict.fromkeys(
        functions("mul", "__mul__", "__rmul__", "div", "__truediv__", "add", "__add__", "__itruediv__"), _keep
    ),
    **dict.fromkeys(
        functions("mul_", "__imul__", "div_", "normalize", "rms_norm", "layer_norm", "flip", "roll"), _keep
    ),
    **dict.fromkeys(TAKES, _take),
    **dict.fromkeys(WITH_AXIS_FIRST, _nothing),
    **dict.fromkeys(functions("cat", "concat", "stack"), _join),
    **dict.fromkeys(UNBINDS | SPLITS, _keep),
}
