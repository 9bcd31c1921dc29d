"""Trace attention that a model writes out itself, from the product of q and k to its softmax, and on to v.

Operations on the scores in between are read as a scale, a softcap, a mask or a bias (`score_operations.py`). An
operation that cannot be read so is reported; if one is read wrongly, the output contradicts the record
(`verification.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..._utils.quietly import keep_from_model
from ..._utils.validation import FLOATS
from ..call.observed_call import FAILED, HeadsApart, ObservedCall, Unreadable
from ..call.pieces import may_be_piece
from ..verify.compared_output import compare_output
from ..verify.verification import DroppedWeights
from .einsum import read_equation, scores_of, values_of
from .heads_axis import PERMUTATIONS, HeadsAxis, functions
from .matrices import as_product, differs_by_query, einsum_axis, einsum_product, matrix_of
from .score_operations import ScoreOperations
from .slices import gather
from .traced_scores import (
    AddedTensor,
    Layout,
    RowNumbers,
    RowSums,
    SeenSoftmax,
    Sizes,
    Traced,
    TracedMatrix,
    TracedScores,
    TracedWeights,
    Unfollowed,
    WeightedValues,
    broadcast,
    expanded,
    layout_of,
    observed_call,
    with_queries_last,
)
from .traced_tensors import (
    BLOCKED_QUERIES,
    CHANGED_SCORES,
    MIN_AXES,
    NEGATIVE,
    NO_SOFTMAX,
    NO_VALUES,
    NOT_NORMALIZED,
    UNTRACED_SOFTMAX,
    VALUES_BY_QUERY,
    tensors_in,
)

UNKNOWN_WAY = TypeError, ValueError, IndexError, AttributeError, RuntimeError  # of functions called in an unknown way


class ScoreTracer(ScoreOperations):
    """Follows scores and weights, and reports a call where weights meet v."""

    def trace(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note one call of a function of torch, and its result."""
        for follow in self._heads.trace, self.order.trace, self._follow:
            try:
                follow(func, result, args, kwargs)
            except UNKNOWN_WAY as error:
                keep_from_model(error, functools.partial(self._fails, func, args))

    def _follow(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Follow scores and weights through a function."""
        step = STEPS.get(func)
        if step is None:
            if self._traced:
                self._lose(func, result, args, kwargs)
        elif self._traced or step in STARTS:
            self._take(step, func, result, args, kwargs)

    def _fails(self, func: Any, args: Sequence[Any], error: Exception) -> None:
        """Tell an error of following a function: it may have lost an attention, and has if it was given scores."""
        given = [*tensors_in(args)]
        starts = STEPS.get(func) in STARTS and any(x.ndim >= MIN_AXES for x in given)
        if starts or any(x in self._traced for x in given):
            self._reports.reading_failed(error)
        else:
            self._reports.report_unreadable(FAILED.format(type(error).__name__, error))

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
            except UNKNOWN_WAY as error:
                if step in STARTS and result.ndim >= MIN_AXES:
                    keep_from_model(error, self._reports.reading_failed)
                found = None
        if not isinstance(result, Tensor):
            return
        if found is not None:
            if isinstance(found, TracedScores) and (by := self.order.of(*args)) is not None:
                found = replace(found, reordered=by)
            self._note(result, found)
        elif self._traced:
            self._take_unknown(step, func, result, args, kwargs)

    def _take_unknown(
        self, step: Step, func: Any, result: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Note the result of a step that is neither scores nor weights of q and k."""
        before = self._traced.get(result)  # of a result in place
        if step not in PRODUCTS:
            self._lose(func, result, args, kwargs)
        if before is not None and self._traced.get(result) is before:
            self._traced.pop(result)

    # Steps: a function's result as scores or weights; None if it is neither. First products.

    def matmul(self, result: Tensor, x: Tensor, other: Tensor, **_: Any) -> Traced | None:
        one, two = self.of(x), self.of(other)
        if isinstance(one, TracedMatrix) or isinstance(two, TracedMatrix):
            return self._matmul_of_matrix(one, two, x, other, result)
        if isinstance(one, TracedWeights):
            if one.order is None:
                self._meet_values(one, x, other, result)
            elif one.part is None:
                self._meet_matrix(matrix_of(one), x, other, result)
            return None
        if isinstance(two, TracedWeights):
            if two.order is not None and two.order == _swapped(len(two.order)):  # vᵀ · weightsᵀ
                self._meet_values(replace(two, order=None), other.mT, x.mT, result.mT)
            return None
        if isinstance(one, Unfollowed) and not _is_parameter(other):
            self._meet_unfollowed(one, x, other, result)
        if isinstance(two, Unfollowed) and not _is_parameter(x):
            self._meet_unfollowed(two, other.mT, x.mT, result.mT)
        if x.ndim != other.ndim or x.ndim < 2 or _is_parameter(other) or result.dtype not in FLOATS:
            return None
        heads = self._heads_of(result, x, other)
        return TracedScores(x, other.mT, result.dtype, tuple(result.shape), heads=heads)

    def _matmul_of_matrix(
        self, one: Traced | None, two: Traced | None, x: Tensor, other: Tensor, result: Tensor
    ) -> TracedMatrix | None:
        """Follow the product of a matrix of weights and another tensor."""
        if isinstance(one, TracedMatrix) and one.axis == x.ndim - 1 and other.ndim > 1:
            self._meet_matrix(one, x, other, result)
        elif isinstance(two, TracedMatrix) and two.axis == other.ndim - 2 and x.ndim > 1 and two.axis >= 0:
            self._meet_matrix(two, other.mT, x.mT, result.mT)
        elif isinstance(one, TracedMatrix) and result.ndim == x.ndim > 2 and not _is_parameter(other):
            self._meet_matrix(one, x, other, result)  # normalized over the queries
        elif isinstance(one, TracedMatrix) and result.ndim == x.ndim:
            return one
        return None

    def linear(self, result: Tensor, x: Any, weight: Any, bias: Any = None) -> Traced | None:
        """Follow `F.linear` without parameters as a product, or as a linear map of weights along another axis."""
        if bias is None and not _is_parameter(weight):
            return self.matmul(result, x, weight.mT)
        known = self._matrix(x) if self._traced else None
        return known if known is not None and known.axis < x.ndim - 1 else None

    def _heads_of(self, result: Tensor, *tensors: Tensor) -> HeadsAxis | None:
        """Return the heads axis of a product of tensors; no heads may be repeated."""
        for x in tensors:
            found = self._heads.of(x)
            if found is None or found.axis + found.axes > x.ndim - 2:
                continue
            own = slice(found.axis, found.axis + found.axes)
            if x.shape[own] == result.shape[own]:
                return found
        return None

    def baddbmm(
        self, result: Tensor, x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1, **_: Any
    ) -> Traced | None:
        known = self.of(batch1)
        if isinstance(known, TracedWeights | TracedMatrix):
            if not beta and alpha == 1:
                return self.matmul(result, batch1, batch2)
            return None
        sizes, heads = tuple(result.shape), self._heads_of(result, batch1, batch2)
        added = (AddedTensor(x, sizes, float(beta)),) if beta else ()
        return TracedScores(batch1, batch2.mT, result.dtype, sizes, scale=float(alpha), added=added, heads=heads)

    def einsum(self, result: Tensor, equation: Any, *operands: Any) -> Traced | None:
        read = read_equation(equation, operands)
        if read is None:
            return None
        (one, two), out = read
        for (names, x), (others, y) in ((one, two), (two, one)):
            known = self.of(x)
            found = values_of(known, names, y, others, result, out) if isinstance(known, TracedWeights) else None
            if isinstance(known, TracedWeights) and found is not None:
                axes = known.order or tuple(range(x.ndim))
                weights = x.permute([axes.index(i) for i in range(x.ndim)])
                self._meet_values(replace(known, order=None), weights, *found)
                return None
            if self._matrix(x) is not None or isinstance(known, Unfollowed):
                return self._einsum_of_matrix((names, x), (others, y), (out, result))
        if _is_parameter(one[1]) or _is_parameter(two[1]):
            return None
        scores = scores_of(result, out, one, two)
        if scores is None:
            return None
        axes = scores.order or tuple(range(len(out)))
        for names, x in (one, two):
            heads = self._heads.of(x)
            place = -1 if heads is None else out.find(names[heads.axis : heads.axis + heads.axes])
            if heads is not None and place >= 0 and axes[place] < len(out) - 2:
                return replace(scores, heads=replace(heads, axis=axes[place]))
        return scores

    def _einsum_of_matrix(
        self, one: tuple[str, Tensor], two: tuple[str, Tensor], made: tuple[str, Tensor]
    ) -> TracedMatrix | None:
        """Follow an einsum of weights, or of scores that are not followed; each tensor has its letters."""
        (names, x), (others, y), (out, result) = one, two, made
        matrix, known = self._matrix(x), self.of(x)
        if matrix is None:
            product = einsum_product(names, x, others, y, out, result, x.ndim - 1)
            if product is not None and isinstance(known, Unfollowed):
                self._meet_unfollowed(known, *product)
            return None
        if differs_by_query(names, others, out) and not _is_parameter(y):
            if x.ndim > MIN_AXES:
                self._report_by_query(matrix, x)
            return None
        for axis in dict.fromkeys((matrix.axis, x.ndim - 1, x.ndim - 2)):
            product = None if _is_parameter(y) else einsum_product(names, x, others, y, out, result, axis)
            if product is not None:
                self._meet_matrix(matrix, *product)
                return None
        kept = einsum_axis(names, others, out, matrix.axis)
        return None if kept is None else matrix.moved(kept)

    # Then the softmax, at once or step by step, and the values.

    def softmax(self, result: Tensor, x: Any = None, dim: Any = None, *_: Any, **named: Any) -> Traced | None:
        known, dim = self.of(named.get("input", x)), named.get("dim", dim)
        if not isinstance(dim, int):
            return None
        axis = dim % result.ndim
        if isinstance(known, TracedScores):
            keys = (axis if known.order is None else known.order[axis]) - len(known.sizes)
            if keys == -1:
                return self._weights(known)
            if keys == -2:
                return self._weights(with_queries_last(known))
        if isinstance(known, TracedMatrix | TracedWeights):
            return None
        if result.shape[axis] < 2 or result.dtype not in FLOATS:
            return None
        by_column = axis < result.ndim - 1 and known is None
        if by_column and self._heads.of(named.get("input", x)) is not None:  # of keys: their features follow
            self._reports.report_unreadable(UNTRACED_SOFTMAX)
            return None
        square = result.ndim > MIN_AXES and result.shape[-1] == result.shape[-2] and axis == result.ndim - 1
        square = square and self._reports.is_over_positions(result.shape[axis], math.prod(result.shape[:-2]))
        caller = self._reports.caller()
        of_scores = isinstance(known, TracedScores | Unfollowed) and result.ndim >= MIN_AXES
        why = CHANGED_SCORES.format(known.why) if isinstance(known, Unfollowed) else UNTRACED_SOFTMAX
        found = SeenSoftmax(caller, certain=square or of_scores or caller.is_attention, origin=why)
        found.by_column = by_column
        if found.certain and result.ndim >= MIN_AXES:
            self._waiting[found] = None
        return TracedMatrix((found,), axis)

    def _weights(self, scores: TracedScores, *, is_normalized: bool = True) -> TracedWeights:
        softmax = SeenSoftmax(self._reports.caller())
        found = TracedWeights(scores, scores.sizes, softmax, scores.order, is_normalized, touched=scores.touched)
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

    def logsumexp(self, result: Tensor, x: Any = None, *_: Any, **named: Any) -> RowNumbers | None:
        return RowNumbers() if isinstance(self.of(named.get("input", x)), TracedScores) else None

    def exp(self, result: Tensor, x: Any) -> TracedWeights | None:
        known = self.of(x)
        return self._weights(known, is_normalized=False) if isinstance(known, TracedScores) else None

    def sum(self, result: Tensor, x: Any = None, dim: Any = None, keepdim: bool = False, **named: Any) -> Traced | None:
        known, dim = self.of(named.get("input", x)), named.get("dim", named.get("axis", dim))
        keepdim = bool(named.get("keepdim", keepdim))
        dim = dim[0] if isinstance(dim, tuple | list) and len(dim) == 1 else dim
        if isinstance(known, WeightedValues) and isinstance(dim, int):
            if dim % (result.ndim + (not keepdim)) == known.axis:
                self._meet_weighted(known, result, keepdim)
            return None
        if not isinstance(known, TracedWeights) or not isinstance(dim, int) or known.dropout:
            return None
        axes = known.order or tuple(range(len(known.sizes)))
        if axes[dim % len(axes)] != len(axes) - 1:
            return None
        if not known.is_normalized:  # exponentials that will be divided by it
            self._await_values(known)
        return RowSums(known)

    def layout_of_query(self, query: Tensor, key: Tensor) -> Layout | None:
        """Return which leading axes of q are samples and heads, if they are not (samples, heads), and it was seen."""
        heads = self._heads.of(query)
        if heads is None or query.ndim < 3 or heads.axis + heads.axes > query.ndim - 2:
            return None
        if query.ndim == 4 and (heads.axis, heads.heads, heads.inside, heads.axes) == (1, query.shape[1], 1, 1):
            return None
        batch = tuple(query.shape[:-2])
        try:
            if tuple(broadcast(batch, tuple(key.shape[:-2]))) != batch:
                return None
        except RuntimeError:  # grouped heads
            return None
        layout = layout_of(TracedScores(query, key, query.dtype, (*batch, 1, 1), heads=heads), heads, None)
        return None if tuple(layout.batch) == batch and layout.is_plain and len(batch) == 2 else layout

    def heads_apart(self, query: Tensor) -> HeadsApart:
        """Return the axis of heads, alone or merged with samples, that q is a slice of, if that was seen."""
        found = self._heads.apart(query)
        if found.entries > 1 and not found.heads and found.entries == self._reports.head_count():
            return found._replace(heads=found.entries)
        return found

    def _meet_values(self, known: TracedWeights, weights: Tensor, v: Tensor, result: Tensor) -> None:
        """Report a call, which is complete when weights are multiplied by v."""
        kind = result.dtype  # of the product: autocast may give it v in another than its own
        if not known.is_normalized and not known.dropout and not _adds_up(weights):
            if known.touched and known.part is None:  # a softmax, times 0 and 1
                self._meet_matrix(replace(matrix_of(replace(known, order=None)), adds_up=True), weights, v, result)
                return
            self._waiting.pop(known.softmax, None)
            self._reports.report_unreadable(NOT_NORMALIZED, certain=len(known.scores.sizes) >= MIN_AXES)
            return
        given = result if known.part is None else None
        may_differ = known.part is None and not known.dropout and (known.touched or weights.is_inference())
        if may_differ and not self._gives(known, v, result):
            self._meet_matrix(matrix_of(replace(known, order=None)), weights, v, result)
            return
        if known.part is not None:
            gathered = gather(known, weights, v, result)
            if gathered is None:
                return
            known, weights, v, result = gathered
        self._waiting.pop(known.softmax, None)
        batch = tuple(broadcast(known.sizes[:-2], tuple(v.shape[:-2])))
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
        known.softmax.met = True
        self._reports.record_traced(lambda: self._call_of(known, v.to(kind), layout), seen, written)

    def _call_of(self, known: TracedWeights, v: Tensor, layout: Layout) -> ObservedCall:
        """Return the call that has these weights; q without a number that only this part of it was multiplied by."""
        query, factor = self._heads.source_of(known.scores.q)
        if query is not known.scores.q:
            scores = replace(known.scores, q=query, scale=known.scores.scale * factor)
            call = observed_call(replace(known, scores=scores), v, layout)
            if may_be_piece(call):
                return replace(call, heads_apart=functools.partial(self.heads_apart, query))
        call = observed_call(known, v, layout)
        return replace(call, heads_apart=functools.partial(self.heads_apart, known.scores.q))

    def _gives(self, known: TracedWeights, v: Tensor, result: Tensor) -> bool:
        """Return whether softmax(q, k) under the rules, times v, is the result: whether no weight was changed."""
        if tuple(v.shape[:-2]) != known.sizes[:-2] or known.sizes != known.scores.sizes:
            return True  # verified later, in its final shape
        layout = layout_of(known.scores, None, None)
        with torch._C.DisableTorchFunction(), torch.no_grad():
            try:
                found = compare_output(observed_call(known, v, layout), layout.unmerge(result))
            except Unreadable:
                return False
        return found is None or not bool(found.differs)

    def _meet_matrix(self, known: TracedMatrix, weights: Tensor, v: Tensor, result: Tensor) -> None:
        """Report weights that are known by their numbers alone, when they are multiplied by values.

        Args:
            known: the weights.
            weights: (…, Q, K).
            v: (…, K, Dv).
            result: (…, Q, Dv).
        """
        if all(one.met for one in known.softmaxes) or _is_parameter(v) or v.shape[-1] == 0:
            return
        reasons = (reason for one in known.softmaxes for reason in (one.why, one.origin) if reason)
        why: str | None = next(reasons, UNTRACED_SOFTMAX)
        keys = weights.shape[-1]
        if any(one.by_column for one in known.softmaxes) and 1 < weights.shape[-2] == v.shape[-1]:
            return  # kᵀ · v of linear attention: its queries would be features
        if v.shape[-2] != keys or weights.ndim < 2 or result.dtype not in FLOATS:
            return
        batch = tuple(result.shape[:-2])
        certain = any(one.certain for one in known.softmaxes)
        if not certain and not self._reports.is_over_positions(keys, math.prod(batch)):
            return
        if not known.adds_up and not _adds_up(weights):
            why = NOT_NORMALIZED
        elif bool((weights < 0).any()):
            why = NEGATIVE
        else:
            self._take_matrix(weights.expand(*batch, *weights.shape[-2:]), v, result, why)
            why = None
        for one in known.softmaxes:
            one.why, one.met = why, one.met or not why
            if not why:
                self._waiting.pop(one, None)
        if why:
            self._reports.report_unreadable(why, known.softmaxes[0].caller, certain=True)

    def _meet_weighted(self, known: WeightedValues, result: Tensor, keepdim: bool) -> None:
        """Report weights times values, which the model has summed over the keys."""
        product = as_product(known, result, keepdim)
        if product is not None:
            self._meet_matrix(known.matrix, *product)
        elif known.weights.ndim > MIN_AXES + 1:  # samples, heads, queries, keys and features
            self._report_by_query(known.matrix, known.weights)

    def _report_by_query(self, known: TracedMatrix, weights: Tensor) -> None:
        """Report weights whose values differ by query, if an axis of theirs has the positions of the module's input."""
        sizes = [n for i, n in enumerate(weights.shape) if i != known.axis]
        cells = math.prod(sizes)
        certain = any(one.certain for one in known.softmaxes) or any(
            n > 1 and self._reports.is_over_positions(n, cells // n) for n in sizes
        )
        self._reports.report_unreadable(VALUES_BY_QUERY, known.softmaxes[0].caller, certain=certain)

    def _take_matrix(self, weights: Tensor, v: Tensor, result: Tensor, why: str | None) -> None:
        """Report weights (…, Q, K), values (…, K, Dv) and output (…, Q, Dv), with samples and heads apart."""
        batch = tuple(weights.shape[:-2])
        values = v.expand(*batch, *v.shape[-2:])
        heads = self._heads.of(v) if v.shape[:-2] == batch else None
        heads = None if heads is None or heads.axis >= len(batch) else heads
        like = TracedScores(weights, values, weights.dtype, tuple(weights.shape), heads=heads)
        layout = layout_of(like, heads, self._reports.head_count())
        with torch._C.DisableTorchFunction(), torch.no_grad():
            given = [layout.unmerge(x.detach()) for x in (weights, values, result)]
        with torch._C.DisableTorchFunction():
            written = layout.unmerge(result)
        self._reports.record_weights(given[0], given[1], given[2], written, why or UNTRACED_SOFTMAX)

    def _meet_unfollowed(self, known: Unfollowed, weights: Tensor, v: Tensor, result: Tensor) -> None:
        """Report scores that meet values after a step that is not followed, in the module of that step."""
        caller = self._reports.caller()
        if known.caller is not None and known.caller.name != caller.name:
            return
        rows = weights.shape[-2:] == known.shape[-2:] and weights.ndim >= MIN_AXES and v.shape[-2] == weights.shape[-1]
        if rows and bool((weights >= 0).all()) and _adds_up(weights):
            softmax = SeenSoftmax(caller, origin=NO_SOFTMAX.format(known.why))
            self._meet_matrix(TracedMatrix((softmax,), weights.ndim - 1), weights, v, result)
        else:
            why = NO_SOFTMAX.format(known.why)
            self._reports.report_unreadable(why, caller, certain=len(known.shape) >= MIN_AXES)


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
    ScoreTracer.logsumexp: ("logsumexp",),
    ScoreTracer.sum: ("sum",),
    ScoreTracer.linear: ("linear",),
    ScoreTracer.expose: ("numpy",),
}
PRODUCTS = {ScoreTracer.matmul, ScoreTracer.baddbmm, ScoreTracer.einsum, ScoreTracer.linear}
STARTS = {*PRODUCTS, ScoreTracer.softmax}  # while nothing is traced, only these matter
# Called as (func, result, args, kwargs).
TAKE_FUNCTION = {ScoreTracer.permute, ScoreTracer.take, ScoreTracer.setitem, ScoreTracer.expose}
STEPS: dict[Any, Step] = {
    **{function: step for step, names in STEPS_BY_NAME.items() for function in functions(*names)},
    **dict.fromkeys(PERMUTATIONS, ScoreTracer.permute),
    Tensor.data.__get__: ScoreTracer.expose,  # type: ignore[attr-defined]
}
