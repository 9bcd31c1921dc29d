"""Operations on scores and weights: their effect on scale, softcap, masks, biases and the order of axes.

Each method takes a function's result and its arguments, and returns a description of the result; None if it is not
followed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..call.hidden_rows import BLOCKING
from .heads_axis import order_of
from .matrices import TracedMatrices, matrix_of
from .slices import is_all, marked, parts_of
from .traced_scores import (
    Index,
    RowSums,
    Traced,
    TracedMatrix,
    TracedScores,
    TracedWeights,
    Unfollowed,
    expanded,
    part_of,
    scaled,
    with_sizes,
)


class ScoreOperations(TracedMatrices):
    """Follows operations on scores and on weights."""

    # Operations that keep all numbers, in the same shape or another.

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
        if isinstance(known, TracedMatrix):
            self._take_of_matrix(func, result, args, kwargs)
            found = self._traced.get(result) if isinstance(result, Tensor) else None
            return None if found is None else found[0]
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
            return part_of(known, index) or Unfollowed(tuple(part.shape), "an index", self._reports.caller())
        if known.part is not None or not is_all(index[-1]) or not isinstance(index[-2], slice):
            return None
        return replace(known, sizes=tuple(part.shape), part=index[:-1])

    # Operations on scores, then on weights.

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
        known, number = self.of(x), number_of(factor)
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
        """Follow weights times 0 and 1: after division by their sums they are weights of masked scores."""
        if not isinstance(factor, Tensor) or tuple(result.shape) != known.shape or known.part is not None:
            return None
        if self.of(factor) is not None or known.sizes != known.scores.sizes or known.order != known.scores.order:
            return None
        scores = replace(known.scores, factors=(*known.scores.factors, known.scores.given(factor)))
        return replace(known, scores=scores, is_normalized=False, touched=True)

    def div(self, result: Tensor, x: Any, divisor: Any, **named: Any) -> Traced | None:
        known, number = self.of(x), number_of(divisor)
        if named.get("rounding_mode") is not None or not isinstance(known, TracedScores | TracedWeights):
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
            number = number_of(other)  # a rounding error of numbers about 1
            return known if number is not None and abs(number) <= torch.finfo(result.dtype).eps else None
        if not isinstance(known, TracedScores) or tuple(result.shape) != known.shape:
            return None
        if not isinstance(other, Tensor) or other.numel() == 1:
            return known  # the same number added to all scores changes no weight
        return replace(known, added=(*known.added, known.given(other, factor)))

    def tanh(self, result: Tensor, x: Any) -> TracedScores | None:
        known = self.of(x)
        return replace(known, softcap=1.0) if isinstance(known, TracedScores) and known.is_product() else None

    def masked_fill(self, result: Tensor, x: Any, mask: Any, value: Any) -> Traced | None:
        return self._filled(self.of(x), mask, number_of(value), result)

    def _filled(self, known: Traced | None, mask: Tensor, number: float | None, result: Tensor) -> Traced | None:
        """Follow a number that replaces some scores, or some weights."""
        if number is None or not isinstance(known, TracedScores | TracedWeights) or tuple(result.shape) != known.shape:
            return None
        if isinstance(known, TracedScores):
            given = replace(known.given(mask), number=number)
            return replace(known, blocked=(*known.blocked, given)) if number <= BLOCKING else None
        if known.is_normalized or number != 0 or known.order != known.scores.order or known.part is not None:
            return replace(known, touched=True) if number == 0 else None
        return replace(known, scores=replace(known.scores, blocked=(*known.scores.blocked, known.scores.given(mask))))

    def where(self, result: Tensor, condition: Any, x: Any = None, other: Any = None) -> Traced | None:
        for one, another, keeps in ((x, other, True), (other, x, False)):
            known = self.of(one)
            if isinstance(known, TracedScores | TracedWeights):
                return self._filled(known, ~condition if keeps else condition, _onenumber_of(another), result)
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
            found = self._filled(known, mask, number_of(value), x)
        elif is_followed and isinstance(known, TracedWeights) and number_of(value) == 0:
            found = replace(known, touched=True)
        if found is not None:
            self._note(x, found)
        elif isinstance(known, TracedWeights) and known.part is None:
            self._give_up(known, "an assignment")
            self._note(x, matrix_of(known))
        elif isinstance(known, TracedWeights):
            self._traced.pop(x)
            self._give_up(known, "an assignment")
        elif isinstance(known, TracedScores):
            self._note(x, Unfollowed(tuple(x.shape), "an assignment", self._reports.caller()))

    def expose(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced | None:
        """Note that weights can now change without a count: by `.data`, or by an array of numpy."""
        storage = args[0].untyped_storage()._cdata
        for x, (known, version) in list(self._traced.items()):
            if isinstance(known, TracedScores | TracedWeights) and x.untyped_storage()._cdata == storage:
                self._traced[x] = replace(known, touched=True), version
        return self.of(args[0])

    def clamp(self, result: Tensor, x: Any, other: Any = None, *_: Any, **named: Any) -> Traced | None:
        """Follow a lower limit that only blocked scores, or sums of no weights, can reach."""
        known, number = self.of(x), number_of(named.get("min", other))
        if number is None or any(limit is not None for limit in (named.get("max"), *_)):
            return None
        if isinstance(known, TracedWeights | RowSums):
            return known if number <= torch.finfo(result.dtype).eps else None
        return known if number <= BLOCKING else None


def number_of(x: Any) -> float | None:
    if isinstance(x, Tensor):
        return float(x.detach()) if x.numel() == 1 else None
    return float(x) if isinstance(x, int | float) else None


def _onenumber_of(x: Any) -> float | None:
    """Return the number that a tensor, or number, is everywhere; of blocking numbers the largest."""
    number = number_of(x)
    if number is not None or not isinstance(x, Tensor) or not x.numel():
        return number
    low, high = (float(end) for end in torch.aminmax(x))
    return high if low == high or high <= BLOCKING else None
