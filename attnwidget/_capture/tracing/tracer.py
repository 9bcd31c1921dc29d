"""Trace attention that a model writes out itself, from the product of q and k to its softmax, and on to v.

Operations on the scores in between are read as a scale, a softcap, a mask or a bias (`score_operations.py`). An
operation that cannot be read so is reported; if one is read wrongly, the output contradicts the record
(`verification.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..._utils.validation import FLOATS
from ..verify.verification import DroppedWeights
from .einsum import read_equation, scores_of, values_of
from .heads_axis import PERMUTATIONS, HeadsAxis, functions
from .score_operations import ScoreOperations
from .slices import gather
from .traced_scores import (
    AddedTensor,
    RowSums,
    SeenSoftmax,
    Sizes,
    Traced,
    TracedScores,
    TracedWeights,
    Unfollowed,
    expanded,
    layout_of,
    observed_call,
    with_queries_last,
)
from .traced_tensors import (
    BLOCKED_QUERIES,
    CHANGED_SCORES,
    MIN_AXES,
    NO_SOFTMAX,
    NO_VALUES,
    NOT_NORMALIZED,
    UNTRACED_SOFTMAX,
)


class ScoreTracer(ScoreOperations):
    """Follows scores and weights, and reports a call where weights meet v."""

    def trace(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note one call of a function of torch, and its result."""
        try:
            self._heads.trace(func, result, args, kwargs)
            step = STEPS.get(func)
            if step is None:
                if self._traced:
                    self._lose(func, result, args, kwargs)
            elif self._traced or step in STARTS:
                self._take(step, func, result, args, kwargs)
        except (TypeError, ValueError, IndexError, AttributeError, RuntimeError):
            return  # called in an unknown way: the model goes on

    def _take(self, step: Step, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if step in TAKE_FUNCTION:
            found = step(self, func, result, args, kwargs)
        elif not isinstance(result, Tensor) or not (args or kwargs):
            return
        else:
            if args and args[0] is result:
                self._follow_change(result)
            try:
                found = step(self, result, *args, **kwargs)
            except (TypeError, ValueError, IndexError, AttributeError, RuntimeError):
                found = None
        if not isinstance(result, Tensor):
            return
        if found is not None:
            self._note(result, found)
        elif self._traced:
            self._traced.pop(result, None)  # a result in place: the tensor has changed
            if step not in PRODUCTS:
                self._lose(func, result, args, kwargs)

    # Steps: a function's result as scores or weights; None if it is neither. First products.

    def matmul(self, result: Tensor, x: Tensor, other: Tensor, **_: Any) -> TracedScores | None:
        one, two = self.of(x), self.of(other)
        if isinstance(one, TracedWeights):
            if one.order is None:
                self._meet_values(one, x, other, result)
            return None
        if isinstance(two, TracedWeights):
            if two.order is not None and two.order == _swapped(len(two.order)):  # vᵀ · weightsᵀ
                self._meet_values(replace(two, order=None), other.mT, x.mT, result.mT)
            return None
        for known, values in ((one, other), (two, x)):
            if isinstance(known, Unfollowed) and not _is_parameter(values):
                why = NO_SOFTMAX.format(known.why)
                self._reports.report_unreadable(why, certain=len(known.shape) >= MIN_AXES)
        if x.ndim != other.ndim or x.ndim < 2 or _is_parameter(other) or result.dtype not in FLOATS:
            return None
        heads = self._heads_of(result, x, other)
        return TracedScores(x, other.mT, result.dtype, tuple(result.shape), heads=heads)

    def _heads_of(self, result: Tensor, *tensors: Tensor) -> HeadsAxis | None:
        """Return the heads axis of a product of tensors; no heads may be repeated."""
        for x in tensors:
            found = self._heads.of(x)
            if found is not None and found.axis < x.ndim - 2 and x.shape[found.axis] == result.shape[found.axis]:
                return found
        return None

    def baddbmm(
        self, result: Tensor, x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1, **_: Any
    ) -> TracedScores | None:
        known = self.of(batch1)
        if isinstance(known, TracedWeights):
            if not beta and alpha == 1:
                self._meet_values(known, batch1, batch2, result)
            return None
        sizes, heads = tuple(result.shape), self._heads_of(result, batch1, batch2)
        added = (AddedTensor(x, sizes, float(beta)),) if beta else ()
        return TracedScores(batch1, batch2.mT, result.dtype, sizes, scale=float(alpha), added=added, heads=heads)

    def einsum(self, result: Tensor, equation: Any, *operands: Any) -> TracedScores | None:
        read = read_equation(equation, operands)
        if read is None:
            return None
        (one, two), out = read
        for (names, x), (others, y) in ((one, two), (two, one)):
            known = self.of(x)
            if isinstance(known, TracedWeights):
                found = values_of(known, names, y, others, result, out)
                if found is not None:
                    axes = known.order or tuple(range(x.ndim))
                    weights = x.permute([axes.index(i) for i in range(x.ndim)])
                    self._meet_values(replace(known, order=None), weights, *found)
                return None
            if isinstance(known, Unfollowed):
                why = NO_SOFTMAX.format(known.why)
                self._reports.report_unreadable(why, certain=len(known.shape) >= MIN_AXES)
                return None
        if _is_parameter(one[1]) or _is_parameter(two[1]):
            return None
        scores = scores_of(result, out, one, two)
        if scores is None:
            return None
        axes = scores.order or tuple(range(len(out)))
        for names, x in (one, two):
            heads = self._heads.of(x)
            place = -1 if heads is None else out.find(names[heads.axis])
            if heads is not None and place >= 0 and axes[place] < len(out) - 2:
                return replace(scores, heads=replace(heads, axis=axes[place]))
        return scores

    # Then the softmax, at once or step by step, and the values.

    def softmax(self, result: Tensor, x: Any = None, dim: Any = None, *_: Any, **named: Any) -> TracedWeights | None:
        known, dim = self.of(named.get("input", x)), named.get("dim", dim)
        last = isinstance(dim, int) and dim % result.ndim == result.ndim - 1
        if isinstance(known, TracedScores) and isinstance(dim, int):
            axis = dim % result.ndim if known.order is None else known.order[dim % result.ndim]
            keys = axis - len(known.sizes)
            if keys == -1:
                return self._weights(known)
            if keys == -2:
                return self._weights(with_queries_last(known))
        square = result.ndim > MIN_AXES and result.shape[-1] == result.shape[-2] and last
        if isinstance(known, TracedScores | Unfollowed):
            why = CHANGED_SCORES.format(known.why) if isinstance(known, Unfollowed) else UNTRACED_SOFTMAX
            self._reports.report_unreadable(why, certain=result.ndim >= MIN_AXES)
        elif result.ndim >= MIN_AXES and result.shape[-1] > 1:
            self._reports.report_unreadable(UNTRACED_SOFTMAX, certain=square)
        return None

    def _weights(self, scores: TracedScores, *, is_normalized: bool = True) -> TracedWeights:
        found = TracedWeights(scores, scores.sizes, SeenSoftmax(self._reports.caller()), scores.order, is_normalized)
        if is_normalized:
            self._await_values(found)
        return found

    def _await_values(self, known: TracedWeights) -> None:
        """Report weights at the end if they meet no values until then."""
        if len(known.scores.sizes) >= MIN_AXES or known.softmax.caller.is_attention:
            self._waiting[known.softmax] = None

    def log_softmax(self, result: Tensor, x: Any = None, dim: Any = None, *_: Any, **named: Any) -> Traced | None:
        """Follow the scores minus one number for each row, which changes no weight."""
        known = self.of(named.get("input", x))
        last = named.get("dim", dim) in (-1, result.ndim - 1)
        return known if isinstance(known, TracedScores) and known.order is None and last else None

    def exp(self, result: Tensor, x: Any) -> TracedWeights | None:
        known = self.of(x)
        return self._weights(known, is_normalized=False) if isinstance(known, TracedScores) else None

    def sum(self, result: Tensor, x: Any = None, dim: Any = None, keepdim: bool = False, **named: Any) -> Traced | None:
        known, dim = self.of(named.get("input", x)), named.get("dim", named.get("axis", dim))
        dim = dim[0] if isinstance(dim, tuple | list) and len(dim) == 1 else dim
        if not isinstance(known, TracedWeights) or not isinstance(dim, int) or known.dropout:
            return None
        axes = known.order or tuple(range(len(known.sizes)))
        if axes[dim % len(axes)] != len(axes) - 1:
            return None
        if not known.is_normalized:  # exponentials that will be divided by it
            self._await_values(known)
        return RowSums(known)

    def _meet_values(self, known: TracedWeights, weights: Tensor, v: Tensor, result: Tensor) -> None:
        """Report a call, which is complete when weights are multiplied by v."""
        if not known.is_normalized and not known.dropout and not _adds_up(weights):
            self._waiting.pop(known.softmax, None)
            self._reports.report_unreadable(NOT_NORMALIZED, certain=len(known.scores.sizes) >= MIN_AXES)
            return
        given = result if known.part is None else None
        if known.part is not None:
            gathered = gather(known, weights, v, result)
            if gathered is None:
                return
            known, weights, v, result = gathered
        self._waiting.pop(known.softmax, None)
        batch = tuple(torch.broadcast_shapes(known.sizes[:-2], v.shape[:-2]))
        if batch != known.sizes[:-2] and known.sizes == known.scores.sizes:
            sizes = (*batch, *known.sizes[-2:])
            known, weights = replace(known, scores=expanded(known.scores, batch), sizes=sizes), weights.expand(sizes)
        if len(known.scores.sizes) > 4 and known.scores.sizes[-1] != known.scores.sizes[-2]:
            self._reports.report_unreadable(BLOCKED_QUERIES)
            return
        heads = known.scores.heads or (self._heads.of(v) if v.shape[:-2] == known.scores.sizes[:-2] else None)
        layout = layout_of(known.scores, heads, self._reports.head_count())
        shown = weights if known.dropout else result
        if math.prod(shown.shape[:-2]) != layout.samples * layout.heads:
            self._reports.report_unreadable(NO_VALUES, certain=True)
            return
        shown = layout.unmerge(shown)
        seen = DroppedWeights(shown, known.dropout) if known.dropout else shown
        is_whole = given is not None and math.prod(given.shape[:-2]) == layout.samples * layout.heads
        written = layout.unmerge(given) if given is not None and is_whole else None
        self._reports.record_traced(lambda: observed_call(known, v, layout), seen, written)


def _is_parameter(x: Any) -> bool:
    """Return whether a tensor is a parameter of a module, or a view of one."""
    return isinstance(x, torch.nn.Parameter) or isinstance(getattr(x, "_base", None), torch.nn.Parameter)


def _swapped(n: int) -> Sizes:
    return (*range(n - 2), n - 1, n - 2)


def _adds_up(weights: Tensor) -> bool:
    """Return whether the rows of weights sum to 1 beyond rounding, or to 0 if the row is fully masked."""
    with torch.no_grad():
        sums = weights.sum(-1, dtype=torch.promote_types(weights.dtype, torch.float32))
        slack = 8 * math.sqrt(weights.shape[-1]) * torch.finfo(weights.dtype).eps
        return bool((((sums - 1).abs() <= slack) | (sums == 0) | sums.isnan()).all())


RESHAPES = (
    "view", "reshape", "unflatten", "flatten", "squeeze", "unsqueeze", "contiguous", "to", "float", "half", "bfloat16",
    "double", "type", "type_as", "clone", "view_as", "reshape_as", "nan_to_num", "nan_to_num_", "detach", "detach_",
    "requires_grad_", "cpu", "cuda", "alias", "squeeze_", "unsqueeze_",
)  # fmt: skip
Step = Callable[..., Traced | None]
STEPS_BY_NAME: dict[Step, tuple[str, ...]] = {
    ScoreTracer.matmul: ("matmul", "bmm", "mm", "__matmul__"),
    ScoreTracer.baddbmm: ("baddbmm",),
    ScoreTracer.einsum: ("einsum",),
    ScoreTracer.reshape: RESHAPES,
    ScoreTracer.expand: ("expand", "expand_as", "broadcast_to"),
    ScoreTracer.take: ("__getitem__", "narrow", "select", "chunk", "split", "unbind", "tensor_split"),
    ScoreTracer.setitem: ("__setitem__",),
    ScoreTracer.dropout: ("dropout", "dropout_"),
    ScoreTracer.mul: ("mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__"),
    ScoreTracer.div: ("div", "div_", "divide", "true_divide", "__div__", "__truediv__", "__idiv__", "__itruediv__"),
    ScoreTracer.add: ("add", "add_", "__add__", "__radd__", "__iadd__"),
    ScoreTracer.sub: ("sub", "sub_", "subtract", "__sub__", "__isub__"),
    ScoreTracer.tanh: ("tanh", "tanh_"),
    ScoreTracer.masked_fill: ("masked_fill", "masked_fill_"),
    ScoreTracer.where: ("where",),
    ScoreTracer.clamp: ("clamp", "clamp_", "clamp_min", "clamp_min_", "clip", "max", "maximum"),
    ScoreTracer.softmax: ("softmax", "_softmax"),
    ScoreTracer.log_softmax: ("log_softmax", "_log_softmax"),
    ScoreTracer.exp: ("exp", "exp_"),
    ScoreTracer.sum: ("sum",),
}
PRODUCTS = {ScoreTracer.matmul, ScoreTracer.baddbmm, ScoreTracer.einsum}
STARTS = {*PRODUCTS, ScoreTracer.softmax}  # while nothing is traced, only these matter
TAKE_FUNCTION = {ScoreTracer.permute, ScoreTracer.take, ScoreTracer.setitem}  # called as (func, result, args, kwargs)
STEPS: dict[Any, Step] = {
    **{function: step for step, names in STEPS_BY_NAME.items() for function in functions(*names)},
    **dict.fromkeys(PERMUTATIONS, ScoreTracer.permute),
}
