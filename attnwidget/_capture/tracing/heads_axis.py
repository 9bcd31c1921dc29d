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


@dataclass(frozen=True)
class HeadsAxis:
    """An axis of heads, alone or merged with others: its index is (before · heads + head) · inside + after."""

    axis: int
    heads: int
    inside: int = 1


class HeadsAxes:
    """Knows which axis of a model's living tensors holds heads."""

    def __init__(self) -> None:
        self._known: Any = WeakIdKeyDictionary()

    def of(self, x: Any) -> HeadsAxis | None:
        """Return what is known about a tensor; None if nothing."""
        return self._known.get(x) if isinstance(x, Tensor) and self._known else None

    def trace(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note one call of a function of torch, and its result."""
        step = HEADS_STEPS.get(func)
        if step is None or not args:
            return
        try:
            if isinstance(result, tuple | list):
                self._trace_parts(func, result, args, kwargs)
            elif isinstance(result, Tensor):
                found = step(self.of(args[0]), result, args[0], func, args[1:], kwargs)
                if found is not None:
                    self._known[result] = found
        except (TypeError, ValueError, IndexError, AttributeError, RuntimeError):
            return  # called in an unknown way

    def _trace_parts(self, func: Any, parts: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        known = self.of(args[0])
        if known is None or func not in UNBINDS:
            return
        axis = int(args[1] if len(args) > 1 else kwargs.get("dim", 0)) % args[0].ndim
        if axis != known.axis:
            for part in parts:
                self._known[part] = replace(known, axis=known.axis - (axis < known.axis))


def order_of(func: Any, axes: int, others: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Return how a function reorders axes: for each axis of the result, its number in the argument."""
    return tuple(
        size - 2 for size in func(torch.empty(tuple(range(2, axes + 2)), device="meta"), *others, **kwargs).shape
    )


# The effect of each function on an axis of heads; None: it has none, or the effect is unknown.


def _reshape(known: HeadsAxis | None, result: Tensor, x: Tensor, *_: Any) -> HeadsAxis | None:
    before, after = tuple(x.shape), tuple(result.shape)
    if known is None:
        return _split(before, after)
    if before == after:
        return known
    for j in range(len(before) - 1):
        if after == (*before[:j], before[j] * before[j + 1], *before[j + 2 :]):
            inside = known.inside * (before[j + 1] if known.axis == j else 1)
            return HeadsAxis(known.axis - (known.axis > j), known.heads, inside)
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
    return replace(known, axis=order_of(func, x.ndim, others, kwargs).index(known.axis))


def _keep(known: HeadsAxis | None, result: Tensor, x: Any, *_: Any) -> HeadsAxis | None:
    return known if known is not None and result.shape == x.shape else None


def _take(
    known: HeadsAxis | None, result: Tensor, x: Tensor, func: Any, others: tuple[Any, ...], kwargs: dict[str, Any]
) -> HeadsAxis | None:
    """Follow x[i], which drops the first axis."""
    if known is None or not others or type(others[0]) is not int or known.axis == 0:
        return None
    return replace(known, axis=known.axis - 1)


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
UNBINDS = functions("unbind")
Step = Callable[..., HeadsAxis | None]
HEADS_STEPS: dict[Any, Step] = {
    **dict.fromkeys(functions("view", "reshape", "unflatten", "flatten"), _reshape),
    **dict.fromkeys(PERMUTATIONS, _permute),
    **dict.fromkeys(functions("contiguous", "clone", "to", "float", "half", "bfloat16", "type_as", "dropout"), _keep),
    **dict.fromkeys(functions("mul", "__mul__", "div", "__truediv__", "add", "__add__", "__itruediv__"), _keep),
    **dict.fromkeys(functions("mul_", "__imul__", "div_", "normalize", "rms_norm", "layer_norm"), _keep),
    **dict.fromkeys(functions("__getitem__"), _take),
    **dict.fromkeys(functions("cat", "concat", "stack"), _join),
    **dict.fromkeys(UNBINDS, _keep),
}
