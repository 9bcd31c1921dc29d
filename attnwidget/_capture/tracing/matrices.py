"""Weights that no q, k and rules describe, from their softmax to their values: their own numbers are kept."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..._utils.validation import FLOATS
from .heads_axis import PERMUTATIONS, functions, order_of
from .slices import is_all, parts_of
from .traced_scores import Sizes, Traced, TracedMatrix, TracedWeights, WeightedValues
from .traced_tensors import CHANGED_WEIGHTS, JOINS, TracedTensors, tensors_in

DROPOUTS, PRODUCTS_OF_CELLS = functions("dropout", "dropout_"), functions("mul", "__mul__", "__rmul__", "multiply")
REDUCTIONS = functions("sum", "mean", "amax", "logsumexp", "norm")
LINEAR = {torch.nn.functional.linear} | functions("matmul", "__matmul__", "bmm")
SCATTERS = functions("scatter", "scatter_")


class TracedMatrices(TracedTensors):
    """Follows the axis of keys of weights through operations that change their numbers."""

    def _lose(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found = None
        if isinstance(result, Tensor) and result.dtype in FLOATS:
            found = self._matrix_after(func, result, args, kwargs)
        super()._lose(func, result, args, kwargs)
        if found is not None:
            self._note(result, found)

    def _changed(self, x: Tensor, known: Traced) -> Traced | None:
        found = super()._changed(x, known)
        if isinstance(known, TracedWeights) and known.part is None:
            found = matrix_of(known)
            self._note(x, found)
        return found

    def _matrix_after(
        self, func: Any, result: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TracedMatrix | WeightedValues | None:
        """Return how a function's result is made from weights; None if it is not, or in an unknown way."""
        given = [x for x in tensors_in((*args, *kwargs.values())) if x.ndim]
        known = [(x, one) for x in given if (one := self._matrix(x)) is not None]
        if not known or (func in DROPOUTS and not _is_off(args, kwargs)):
            return None
        x, first = known[0]
        softmaxes = tuple(dict.fromkeys(one for _, matrix in known for one in matrix.softmaxes))
        made = TracedMatrix(softmaxes, first.axis, all(matrix.adds_up for _, matrix in known))
        other = next((y for y in given if y is not x), None)
        if func in PRODUCTS_OF_CELLS and other is not None and len(known) == 1 and result.shape != x.shape:
            axis = first.axis - x.ndim + result.ndim
            if other.ndim + axis - result.ndim >= 0 and other.shape[axis - result.ndim] == x.shape[first.axis] > 1:
                return WeightedValues(made, x, other, axis)
        place = _axis_after(func, result, x, first.axis, args, kwargs)
        return None if place is None else made.moved(place)

    def _matrix(self, x: Any) -> TracedMatrix | None:
        """Return what is known about weights, as a matrix; None for other tensors."""
        known = self.of(x)
        if isinstance(known, TracedMatrix):
            return known
        return matrix_of(known) if isinstance(known, TracedWeights) and known.part is None else None

    def _take_of_matrix(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Follow parts of a matrix: x[…], x.chunk(…), x.unbind(…) and their like."""
        known = self._matrix(args[0])
        if known is None:
            return
        for part, index in parts_of(func, result, args[0], args[1:], kwargs):
            places = [i for i, one in enumerate(index) if one is not None]
            if len(places) != args[0].ndim or not is_all(index[places[known.axis]]):
                for one in known.softmaxes:  # unless the whole meets values too
                    one.why = one.why or CHANGED_WEIGHTS.format("a slice of its keys")
                continue
            before = index[: places[known.axis]]
            self._note(part, known.moved(sum(not isinstance(one, int) for one in before)))


def matrix_of(known: TracedWeights) -> TracedMatrix:
    """Return weights of q and k as a matrix of numbers."""
    last = len(known.sizes) - 1
    axis = last if known.order is None else known.order.index(last)
    return TracedMatrix((known.softmax,), axis, known.is_normalized)


def _is_off(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    return not p or not kwargs.get("training", args[2] if len(args) > 2 else True)


def _axis_after(
    func: Any, result: Tensor, x: Tensor, axis: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> int | None:
    """Return the axis of the keys in a function's result; None if it has none, or it is unknown."""
    if func in PERMUTATIONS:
        return order_of(func, x.ndim, args[1:], kwargs).index(axis)
    if func in REDUCTIONS:
        return _after_reduction(x, axis, args, kwargs)
    if func in LINEAR and axis == x.ndim - 1:
        return None  # the keys are summed
    if func in JOINS:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
        dim = dim % result.ndim if isinstance(dim, int) else None
        if result.ndim > x.ndim:  # stack
            return None if dim is None else axis + (dim <= axis)
        return None if dim == axis else axis  # other keys, or the same twice
    if func in SCATTERS and result.ndim == x.ndim:
        return axis
    if result.ndim == x.ndim and result.shape[axis] == x.shape[axis]:
        alike = sum(a != b for a, b in zip(result.shape, x.shape, strict=True))
        if alike <= 1 or result.numel() != x.numel():
            return axis
    return _after_reshape(tuple(x.shape), tuple(result.shape), axis)


def _after_reduction(x: Tensor, axis: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    keeps = bool(kwargs.get("keepdim", args[2] if len(args) > 2 else False))
    axes = [int(one) % x.ndim for one in (dim if isinstance(dim, tuple | list) else [dim])] if dim is not None else []
    if not axes or axis in axes:
        return None
    return axis if keeps else axis - sum(one < axis for one in axes)


def _after_reshape(before: Sizes, after: Sizes, axis: int) -> int | None:
    """Return the axis of the same numbers after a change of sizes; None if it is split or merged."""
    if math.prod(before) != math.prod(after):
        return None
    first = math.prod(before[:axis])
    for place, size in enumerate(after):
        if size == before[axis] and math.prod(after[:place]) == first:
            return place
    return None


def as_product(one: WeightedValues, summed: Tensor, keeps: bool) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return weights (…, Q, K), v (…, K, Dv) and the output (…, Q, Dv) of weights times values, summed over the keys.

    Args:
        one: the product before the sum.
        summed: its sum over the keys.
        keeps: whether the sum keeps an axis of size 1.
    """
    n = max(one.weights.ndim, one.values.ndim)
    w, v = (x[(None,) * (n - x.ndim)] for x in (one.weights, one.values))
    out = summed if keeps else summed.unsqueeze(one.axis)
    others = [i for i in range(n) if i != one.axis]
    features = [i for i in others if w.shape[i] == 1 < v.shape[i]]
    queries = [i for i in others if v.shape[i] == 1 < w.shape[i]]
    batch = [i for i in others if i not in features and i not in queries]
    if not features or out.ndim != n or (not queries and sum(w.shape[i] > 1 for i in others) > 1):
        return None  # or values that differ by query, such as those of experts
    batch, query = [*batch, *queries[:-1]], queries[-1:]
    sizes = [out.shape[i] for i in batch]
    axes = (*batch, *query, one.axis)
    rows = math.prod(out.shape[i] for i in query)
    shapes = [w.shape[i] for i in batch], [v.shape[i] for i in batch]
    weights = w.permute(*axes, *features).reshape(*shapes[0], rows, -1).expand(*sizes, -1, -1)
    values = v.permute(*batch, *query, one.axis, *features).reshape(*shapes[1], w.shape[one.axis], -1)
    return weights, values, out.permute(*batch, *query, one.axis, *features).reshape(*sizes, rows, -1)


def einsum_axis(names: str, others: str, out: str, axis: int) -> int | None:
    """Return the axis of the keys in the result of an einsum that keeps it; None if it is summed."""
    key = names[axis]
    return out.index(key) if key in out and key not in others else None


def differs_by_query(names: str, others: str, out: str) -> bool:
    """Return whether in an einsum all axes of weights but one are axes of the values too: no query shares them."""
    return len(names) > 2 and sum(one in others and one in out for one in names) == len(names) - 1


def einsum_product(
    names: str, x: Tensor, others: str, y: Tensor, out: str, result: Tensor, axis: int
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return weights (…, Q, K), v (…, K, Dv) and the output (…, Q, Dv) of an einsum that sums over the keys.

    Args:
        names, x: the weights, and the letters of their axes.
        others, y: the values.
        out, result: the result.
        axis: of the keys, in the weights.
    """
    key = names[axis]
    if differs_by_query(names, others, out):
        return None
    features = [one for one in others if one not in names]
    queries = [one for one in names if one not in others and one != key]
    batch = [one for one in names if one in others and one != key]
    beside = [one for one in names if one != key][-1:]
    if queries and beside[0] in batch:
        return None  # values that differ by query, such as relative positions
    if key not in others or key in out or not features or sorted(out) != sorted([*features, *queries, *batch]):
        return None
    batch, query = [*batch, *queries[:-1]], queries[-1:]
    sizes = [result.shape[out.index(one)] for one in batch]
    rows = math.prod(result.shape[out.index(one)] for one in query)
    weights = x.permute([names.index(one) for one in (*batch, *query, key)]).reshape(*sizes, rows, x.shape[axis])
    there = [one for one in batch if one in others]
    v = y.permute([others.index(one) for one in (*there, key, *features)])
    v = v.reshape(*(y.shape[others.index(one)] if one in there else 1 for one in batch), x.shape[axis], -1)
    output = result.permute([out.index(one) for one in (*batch, *query, *features)]).reshape(*sizes, rows, -1)
    return weights, v, output
