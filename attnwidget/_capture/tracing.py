"""Attention that a model writes out itself, traced from the product of q and k to its softmax, and on to v.

Operations on the scores in between are read as a scale, a softcap, a mask or a bias. Where one of them cannot be read
so, that is reported; where one is read wrongly, the output contradicts the record (`verification.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .._utils.validation import FLOATS
from .heads_axis import PERMUTATIONS, HeadsAxes, HeadsAxis, functions, order_of
from .records import ObservedCall
from .traced_parts import gather, is_all, marked, parts_of
from .traced_scores import (
    BLOCKING,
    AddedTensor,
    Index,
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
    part_of,
    scaled,
    with_queries_last,
    with_sizes,
)
from .tracing_einsum import read_equation, scores_of, values_of
from .verification import DroppedWeights

USE_RETURNED_WEIGHTS = (
    "call it with output_attentions=True, if it has that, and give output.attentions to AttentionWidget.from_weights"
)
UNTRACED_SOFTMAX = (
    "its softmax is not of a product of q and k with a scale, a mask and a bias (it may be sparse): "
    f"{USE_RETURNED_WEIGHTS}"
)
BLOCKED_QUERIES = f"its queries and keys are taken in blocks, which are no places in the text: {USE_RETURNED_WEIGHTS}"
CHANGED_SCORES = "its scores go through {}, which is no scale, mask or bias: " + USE_RETURNED_WEIGHTS
CHANGED_WEIGHTS = "its weights go through {} before they meet v: " + USE_RETURNED_WEIGHTS
NO_VALUES = f"its weights were not seen to meet v, or only a part of them: {USE_RETURNED_WEIGHTS}"
NOT_NORMALIZED = f"the rows of its weights do not add up to 1: {USE_RETURNED_WEIGHTS}"
NO_SOFTMAX = "its weights are made by {} and no softmax: " + USE_RETURNED_WEIGHTS
MIN_AXES = 3  # of what is taken for attention wherever it is computed


@dataclass(frozen=True)
class Caller:
    """The module, or function, that calls a function of torch.

    Attributes:
        name: under which its calls are recorded; None if it is not of the model.
        is_attention: whether its name, or that of its class, says so.
    """

    name: str | None
    is_attention: bool


class Reports(Protocol):
    """Takes what a tracer finds."""

    def record_traced(self, read: Callable[[], ObservedCall], output: Tensor | DroppedWeights) -> None:
        """Record a call, which `read` returns, and verify it by its output (B, H, Q, Dv)."""

    def report_unreadable(self, why: str, caller: Caller | None = None, *, certain: bool = False) -> None:
        """Note that a module, by default the calling one, may compute attention that cannot be read.

        Args:
            why: the reason.
            caller: the module.
            certain: it is attention; otherwise only a module that is named so computes it.
        """

    def caller(self) -> Caller:
        """Return the module that calls."""

    def head_count(self) -> int | None:
        """Return how many heads the calling module says it has."""


class ScoreTracer:
    """Knows which of a model's living tensors are scores or weights, and reports a call where weights meet v."""

    def __init__(self, reports: Reports) -> None:
        self._reports, self._heads = reports, HeadsAxes()
        self._traced: Any = WeakIdKeyDictionary()  # what is known of each tensor, and its version then
        self._waiting: dict[SeenSoftmax, None] = {}  # whose weights have not met their values yet

    def trace(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of one call of a function of torch, and of its result."""
        try:
            self._heads.trace(func, result, args, kwargs)
            step = STEPS.get(func)
            if step is None:
                if self._traced:
                    self._lose(func, result, args, kwargs)
            elif self._traced or step in STARTS:
                self._take(step, func, result, args, kwargs)
        except (TypeError, ValueError, IndexError, AttributeError, RuntimeError):
            return  # called in a way that is not known here: the model goes on

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
            self._traced.pop(result, None)  # a result in place: the tensor is no longer what it was
            if step not in PRODUCTS:
                self._lose(func, result, args, kwargs)

    def _follow_change(self, x: Tensor) -> bool:
        """Note that a tensor was changed in place by the function that is traced; return whether it was not before."""
        entry = self._traced.get(x)
        if entry is None or _version(x) - entry[1] not in (0, 1):
            return False
        self._traced[x] = entry[0], _version(x)
        return True

    def _note(self, x: Tensor, found: Traced) -> None:
        self._traced[x] = found, _version(x)

    def of(self, x: Any) -> Traced | None:
        """Return what is known of a tensor; None if it is neither scores nor weights nor made of them."""
        found = self._traced.get(x) if isinstance(x, Tensor) and self._traced else None
        if found is None:
            return None
        known, version = found
        if version == _version(x):
            return known
        if isinstance(known, TracedWeights):
            self._give_up(known, "a change in place")
            return None
        return Unfollowed(tuple(x.shape), "a change in place") if isinstance(known, TracedScores) else None

    def _lose(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that something was made of scores or weights that is not followed."""
        if not isinstance(result, Tensor) or result.dtype not in FLOATS or result.ndim < 2:
            return
        name = getattr(func, "__name__", str(func))
        if name in FRESH:
            return
        for x in _tensors((*args, *kwargs.values())):
            known = self._traced.get(x)
            known = None if known is None else known[0]
            if isinstance(known, TracedWeights):
                self._give_up(known, name)
            elif isinstance(known, TracedScores | Unfollowed) and (func in JOINS or _is_alike(result, known.shape)):
                why = known.why if isinstance(known, Unfollowed) else name
                self._note(result, Unfollowed(tuple(result.shape), why))

    def _give_up(self, known: TracedWeights, name: str) -> None:
        known.softmax.why = known.softmax.why or CHANGED_WEIGHTS.format(name)

    def finish(self) -> None:
        """Report weights that have met no values."""
        waiting, self._waiting = self._waiting, {}
        for softmax in waiting:
            self._reports.report_unreadable(softmax.why or NO_VALUES, softmax.caller, certain=True)

    # Steps: what a function of torch makes of its arguments, as scores or weights; None if neither. First products.

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
        """Return where the product of tensors has its heads, of which none may be repeated."""
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

    # Then what keeps all numbers, in the same shape or another.

    def reshape(self, result: Tensor, x: Any, *_: Any, **__: Any) -> Traced | None:
        """Follow a change of sizes or of type that keeps the rows."""
        known = self.of(x)
        if isinstance(known, RowSums):
            return known if result.numel() == x.numel() else None
        if not isinstance(known, TracedScores | TracedWeights):
            return None
        if result.shape == x.shape:
            return known
        if known.order is not None or tuple(result.shape[-2:]) != known.sizes[-2:] or result.numel() != x.numel():
            return None
        if isinstance(known, TracedWeights) and known.part is not None:
            return None
        return with_sizes(known, tuple(result.shape))

    def expand(self, result: Tensor, x: Any, *_: Any, **__: Any) -> Traced | None:
        known = self.of(x)
        if not isinstance(known, TracedWeights) or known.order is not None or known.part is not None:
            return known if result.shape == x.shape else None
        return replace(known, scores=expanded(known.scores, tuple(result.shape[:-2])), sizes=tuple(result.shape))

    def permute(
        self, func: Any, result: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TracedScores | TracedWeights | None:
        known = self.of(args[0])
        if not isinstance(known, TracedScores | TracedWeights):
            return None
        new = order_of(func, args[0].ndim, args[1:], kwargs)
        old = known.order or tuple(range(len(new)))
        order = tuple(old[i] for i in new)
        return replace(known, order=None if order == tuple(range(len(order))) else order)

    def take(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced | None:
        """Follow parts of scores and weights: x[…], x.chunk(…), x.unbind(…) and their like."""
        known = self.of(args[0])
        if not isinstance(known, TracedScores | TracedWeights):
            return None
        found = [
            (part, self._part(known, args[0], part, index))
            for part, index in parts_of(func, result, args[0], args[1:], kwargs)
        ]
        if isinstance(result, Tensor):
            return found[0][1] if found else None
        for part, one in found:
            if one is not None:
                self._note(part, one)
        return None

    def _part(self, known: TracedScores | TracedWeights, x: Tensor, part: Tensor, index: Index) -> Traced | None:
        if part.shape == known.shape and all(is_all(one) for one in index):
            return known
        if len(index) != len(known.shape) or None in index:
            return self.reshape(part, x) if None in index else None
        if known.order is not None:
            return None
        if isinstance(known, TracedScores):
            return part_of(known, index) or Unfollowed(tuple(part.shape), "an index")
        if known.part is not None or not is_all(index[-1]) or not isinstance(index[-2], slice):
            return None
        return replace(known, sizes=tuple(part.shape), part=index[:-1])

    # Then operations on scores and on weights.

    def dropout(
        self, result: Tensor, x: Any = None, p: float = 0.5, training: bool = True, *_: Any, **named: Any
    ) -> Traced | None:
        known = self.of(named.get("input", x))
        p = p if named.get("training", training) else 0.0
        if isinstance(known, TracedWeights):
            return replace(known, dropout=1 - (1 - known.dropout) * (1 - p))
        return None if p else known

    def mul(self, result: Tensor, x: Any, factor: Any, **_: Any) -> Traced | None:
        if self.of(x) is None:
            x, factor = factor, x
        known, number = self.of(x), _number(factor)
        if isinstance(known, TracedWeights):
            return known if number == 1 else self._masked_weights(known, factor, result)
        if not isinstance(known, TracedScores):
            return None
        if number is not None:
            return scaled(known, number)
        if tuple(result.shape) != known.shape or not isinstance(factor, Tensor):
            return None
        if factor.shape[-1] == 1 and known.is_product() and known.order is None:
            with torch.no_grad():  # a scale for each head, or for each query
                return replace(known, q=known.q * factor)
        return replace(known, factors=(*known.factors, known.given(factor)))

    def _masked_weights(self, known: TracedWeights, factor: Any, result: Tensor) -> TracedWeights | None:
        """Follow weights times 0 and 1, which are those of masked scores once they are divided by their sums."""
        if not isinstance(factor, Tensor) or tuple(result.shape) != known.shape or known.part is not None:
            return None
        if self.of(factor) is not None or known.sizes != known.scores.sizes or known.order != known.scores.order:
            return None
        scores = replace(known.scores, factors=(*known.scores.factors, known.scores.given(factor)))
        return replace(known, scores=scores, is_normalized=False)

    def div(self, result: Tensor, x: Any, divisor: Any, **named: Any) -> Traced | None:
        known, number = self.of(x), _number(divisor)
        if named.get("rounding_mode") is not None or isinstance(known, RowSums | Unfollowed | None):
            return None
        if isinstance(known, TracedWeights):
            sums = self.of(divisor)
            if isinstance(sums, RowSums) and sums.of.softmax is known.softmax and sums.of.part == known.part:
                return replace(known, is_normalized=True)
            return known if number == 1 else None
        if number is None and isinstance(divisor, Tensor) and divisor.shape[-1] == 1:
            return self.mul(result, x, divisor.reciprocal())
        return scaled(known, 1 / number) if number else None

    def add(self, result: Tensor, x: Any, other: Any, *, alpha: float = 1) -> Traced | None:
        known = self.of(x)
        if not isinstance(known, TracedScores | TracedWeights | RowSums):
            x, other, known = other, x, self.of(other)
        return self._added(known, other, result, float(alpha)) if x is not other else None

    def sub(self, result: Tensor, x: Any, other: Any, *, alpha: float = 1) -> Traced | None:
        return self._added(self.of(x), other, result, -float(alpha))

    def _added(self, known: Traced | None, other: Any, result: Tensor, factor: float) -> Traced | None:
        if isinstance(known, TracedWeights | RowSums):
            number = _number(other)  # a rounding error of numbers about 1
            return known if number is not None and abs(number) <= torch.finfo(result.dtype).eps else None
        if not isinstance(known, TracedScores) or tuple(result.shape) != known.shape:
            return None
        if not isinstance(other, Tensor) or other.numel() == 1:
            return known  # the same number to all scores changes no weight
        return replace(known, added=(*known.added, known.given(other, factor)))

    def tanh(self, result: Tensor, x: Any) -> TracedScores | None:
        known = self.of(x)
        return replace(known, softcap=1.0) if isinstance(known, TracedScores) and known.is_product() else None

    def masked_fill(self, result: Tensor, x: Any, mask: Any, value: Any) -> Traced | None:
        return self._filled(self.of(x), mask, _number(value), result)

    def _filled(self, known: Traced | None, mask: Tensor, number: float | None, result: Tensor) -> Traced | None:
        """Follow a number in place of some scores, or of some weights."""
        if number is None or known is None or isinstance(known, RowSums | Unfollowed):
            return None
        if tuple(result.shape) != known.shape:
            return None
        if isinstance(known, TracedScores):
            return replace(known, blocked=(*known.blocked, known.given(mask))) if number <= BLOCKING else None
        if known.is_normalized or number != 0 or known.order != known.scores.order or known.part is not None:
            return known if number == 0 else None
        return replace(known, scores=replace(known.scores, blocked=(*known.scores.blocked, known.scores.given(mask))))

    def where(self, result: Tensor, condition: Any, x: Any = None, other: Any = None) -> Traced | None:
        for one, another, keeps in ((x, other, True), (other, x, False)):
            known = self.of(one)
            if isinstance(known, TracedScores | TracedWeights):
                return self._filled(known, ~condition if keeps else condition, _one_number(another), result)
        return None

    def setitem(self, func: Any, result: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Follow scores[…] = −∞, which blocks keys."""
        x, index, value = args
        is_followed = self._follow_change(x)
        known = self.of(x)
        if known is None or isinstance(known, RowSums):
            return
        mask = marked(x, index) if isinstance(known, TracedScores) else None
        found = None
        if is_followed and mask is not None:
            found = self._filled(known, mask, _number(value), x)
        elif is_followed and isinstance(known, TracedWeights) and _number(value) == 0:
            found = known
        if found is not None:
            self._note(x, found)
        elif isinstance(known, TracedWeights):
            self._traced.pop(x)
            self._give_up(known, "an assignment")
        else:
            self._note(x, Unfollowed(tuple(x.shape), "an assignment"))

    def clamp(self, result: Tensor, x: Any, other: Any = None, *_: Any, **named: Any) -> Traced | None:
        """Follow a lower limit that only blocked scores, or sums of no weights, can reach."""
        known, number = self.of(x), _number(named.get("min", other))
        if number is None or named.get("max") is not None:
            return None
        if isinstance(known, TracedWeights | RowSums):
            return known if number <= torch.finfo(result.dtype).eps else None
        return known if number <= BLOCKING else None

    # Last the softmax, at once or step by step, and the values.

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
        softmax = SeenSoftmax(self._reports.caller())
        if len(scores.sizes) >= MIN_AXES or softmax.caller.is_attention:
            self._waiting[softmax] = None
        return TracedWeights(scores, scores.sizes, softmax, scores.order, is_normalized)

    def log_softmax(self, result: Tensor, x: Any = None, dim: Any = None, *_: Any, **named: Any) -> Traced | None:
        """Follow the scores less one number for each row, which changes no weight."""
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
        return RowSums(known) if axes[dim % len(axes)] == len(axes) - 1 else None

    def _meet_values(self, known: TracedWeights, weights: Tensor, v: Tensor, result: Tensor) -> None:
        """Report a call, which is complete where weights are multiplied by v."""
        if not known.is_normalized and not known.dropout and not _adds_up(weights):
            self._give_up(known, "a change of their sums")
            known.softmax.why = NOT_NORMALIZED
            return
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
        output = DroppedWeights(shown, known.dropout) if known.dropout else shown
        self._reports.record_traced(lambda: observed_call(known, v, layout), output)


def _version(x: Tensor) -> int:
    return -1 if x.is_inference() else x._version


def _tensors(given: Any) -> Iterator[Tensor]:
    for x in given:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, tuple | list):
            yield from (one for one in x if isinstance(one, Tensor))


def _is_alike(result: Tensor, shape: Sizes) -> bool:
    """Return whether a tensor may hold scores of the same queries and keys."""
    return tuple(result.shape[-2:]) == shape[-2:] or result.numel() == math.prod(shape)


def _is_parameter(x: Any) -> bool:
    """Return whether a tensor is a parameter of a module, or a view of one."""
    return isinstance(x, torch.nn.Parameter) or isinstance(getattr(x, "_base", None), torch.nn.Parameter)


def _swapped(n: int) -> Sizes:
    return (*range(n - 2), n - 1, n - 2)


def _number(x: Any) -> float | None:
    if isinstance(x, Tensor):
        return float(x) if x.numel() == 1 else None
    return float(x) if isinstance(x, int | float) else None


def _one_number(x: Any) -> float | None:
    """Return the number that a tensor, or number, is everywhere; the largest that is given where all block."""
    number = _number(x)
    if number is not None or not isinstance(x, Tensor) or not x.numel():
        return number
    low, high = (float(end) for end in torch.aminmax(x))
    return high if low == high or high <= BLOCKING else None


def _adds_up(weights: Tensor) -> bool:
    """Return whether the rows of weights add up to 1, beyond rounding, or to 0 where all is blocked."""
    with torch.no_grad():
        sums = weights.sum(-1, dtype=torch.promote_types(weights.dtype, torch.float32))
        slack = 8 * math.sqrt(weights.shape[-1]) * torch.finfo(weights.dtype).eps
        return bool((((sums - 1).abs() <= slack) | (sums == 0) | sums.isnan()).all())


RESHAPES = (
    "view", "reshape", "unflatten", "flatten", "squeeze", "unsqueeze", "contiguous", "to", "float", "half", "bfloat16",
    "double", "type", "type_as", "clone", "view_as", "reshape_as", "nan_to_num", "nan_to_num_", "detach", "detach_",
    "requires_grad_", "cpu", "cuda", "alias", "squeeze_", "unsqueeze_",
)  # fmt: skip
# Functions that make new numbers in the shape of scores.
FRESH = {f"{name}_like" for name in ("zeros", "ones", "empty", "full", "rand", "randn")} | {
    "new_zeros", "new_ones", "new_full", "new_empty", "new_tensor",
}  # fmt: skip
JOINS = functions("cat", "concat", "stack") | {F.pad}
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
STARTS = {*PRODUCTS, ScoreTracer.softmax}  # where nothing is traced yet, only these matter
TAKE_FUNCTION = {ScoreTracer.permute, ScoreTracer.take, ScoreTracer.setitem}  # called as (func, result, args, kwargs)
STEPS: dict[Any, Step] = {
    **{function: step for step, names in STEPS_BY_NAME.items() for function in functions(*names)},
    **dict.fromkeys(PERMUTATIONS, ScoreTracer.permute),
}
