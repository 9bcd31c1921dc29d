"""Stripes of the fused pass: numba kernels read each block of scores while it is in the processor's cache.

The results equal those of `OnlineMaximum` and `OnlineSum` up to rounding: exp is another polynomial, and sums have
another order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf, nan
from typing import Any

import numpy as np
from torch import Tensor

from .._rules.rules import Allowed
from .._utils.indexing import cuts
from .fused import KEYS_AT_ONCE, Kernels, alone, block_keys, limits_of_block, shares, side_by_side
from .logsumexp import LogSumExp
from .matmul import Scratch, exp_
from .stages import capped, rows_of
from .stripes import OnlineMaximum, OnlineStripe, OnlineSum

Array = np.ndarray[Any, Any]


class FusedStripe(OnlineStripe):
    """Weights of any scores, with blocks pooled and summed by a kernel.

    Args:
        kernels: the compiled functions.
        about: as in `Stripe`.
    """

    def __init__(self, kernels: Kernels, *about: Any):
        alone(super().__init__, *about)
        self.kernels = kernels
        self.base = self.softmax.m.clone()  # (queries,); `softmax.l` is Σ exp(masked − base)
        self.arrays = [x.numpy() for x in (self.softmax.m, self.base, self.softmax.l)]  # the same memory
        self._grid = self.grid.numpy()
        rules = self.att.rules
        self._limits = rules.band_limits(self.region.batch)  # if there are only these, the kernel writes −∞ itself
        if rules.biases or self.rows.step > 1:
            self._limits = None

    def run(self) -> Iterator[tuple[range, Allowed]]:
        """Pool all blocks in turn; each thread computes and pools those of its own queries.

        The kernel handles band limits.
        """
        if self._limits is None:
            yield from super().run()
            return
        row, parts = self.head.block(self.rows, self.region.keys), shares(len(self.rows))
        scores: dict[int, Callable[[range], Array]] = {}
        for turn in _turns(cuts(self.att.rules.span(row), self.region.key_bin, block_keys())):

            def pool(part: slice, turn: Sequence[range] = turn) -> None:
                if part.start not in scores:
                    scores[part.start] = self._scores(part)
                for keys in turn:
                    self.add_part(keys, scores[part.start](keys), part.start, part)

            side_by_side(pool, parts)
            yield range(turn[0].start, turn[-1].stop), True

    def _scores(self, part: slice) -> Callable[[range], Array]:
        """Return a function that computes the scores of some queries and a block of keys, in its own memory."""
        att, rows = self.att, rows_of(self.head, self.rows[part], "capped")
        scratch = Scratch((part.stop - part.start) * block_keys(), att.result_dtype, att.device)

        def scores(keys: range) -> Array:
            S = rows.block(keys, scratch)
            return _array(S if att.softcap is None else capped(S, att.softcap))

        return scores

    def add(self, keys: range, S: Tensor, allowed: Allowed) -> None:
        """Pool a block of masked scores, and add it to the softmax."""
        array = _array(S)
        side_by_side(lambda part: self.add_part(keys, array, 0, part), shares(len(self.rows)))

    @abstractmethod
    def add_part(self, keys: range, S: Array, at: int, part: slice) -> None:
        """Pool a block of masked scores for some queries, and add it to the softmax.

        Args:
            keys: of the block.
            S: (keys, queries).
            at: the number of the first query in S.
            part: which queries to pool.
        """

    def any_allowed(self) -> Tensor:
        """Return which bins have an allowed cell, (rows, columns) bool, from the numbers; call before `finish`."""
        return alone(super().any_allowed)

    def finish(self) -> LogSumExp:
        """Compute the final numbers of the grid. Return the log-normalizers of the queries."""
        return alone(self.normalize)

    def pooled(self) -> Tensor:
        """Return the final numbers, (rows, columns); call after `finish`."""
        return alone(super().pooled)

    @abstractmethod
    def normalize(self) -> LogSumExp:
        """Do the work of `finish`."""

    def settle(self) -> None:
        """Bring the softmax into its usual form: restore NaN in the maximum, and rescale sums to exp(masked − m).

        Kernels skip NaN in comparisons, and their base follows the maximum only when that is far ahead.
        """
        softmax = self.softmax
        softmax.m.masked_fill_(softmax.l.isnan(), nan)
        empty = softmax.m == -inf
        softmax.l *= exp_(self.base.masked_fill(empty, 0) - softmax.m.masked_fill(empty, 0))


class FusedMaximum(FusedStripe, OnlineMaximum):
    """The maximum of weights, in logarithms."""

    def add_part(self, keys: range, S: Array, at: int, part: slice) -> None:
        """Raise bins to the largest score of a block."""
        before, limits = keys.start - self.region.keys.start, limits_of_block(self._limits, self.rows, keys)
        about = self._grid, before, self.region.key_bin, *self.arrays
        self.kernels.add_maxima(S, at, len(keys), *about, part.start, part.stop, *limits)

    def normalize(self) -> LogSumExp:
        """Normalize the maxima."""
        self.settle()
        return OnlineMaximum.finish(self)


class FusedSum(FusedStripe, OnlineSum):
    """The sum of weights; the grid holds sums of exp(masked − base)."""

    def add_part(self, keys: range, S: Array, at: int, part: slice) -> None:
        """Add exp(score − base) of a block to bins."""
        before, limits = keys.start - self.region.keys.start, limits_of_block(self._limits, self.rows, keys)
        about = self._grid, self.columns.start, before, self.region.key_bin, *self.arrays
        self.kernels.add_sums(S, at, len(keys), *about, part.start, part.stop, *limits)

    def normalize(self) -> LogSumExp:
        """Divide by the sums."""
        self.bins /= self.softmax.l.masked_fill(self.softmax.l == 0, 1)
        self.settle()
        return self.softmax.logsumexp()


def _array(S: Tensor) -> Array:
    """Return a block as an array, on the same memory if it is contiguous."""
    found: Array = S.contiguous().numpy()
    return found


def _turns(blocks: Iterable[range]) -> Iterator[list[range]]:
    """Group blocks to pool without yielding."""
    turn: list[range] = []
    for keys in blocks:
        if turn and keys.stop - turn[0].start > KEYS_AT_ONCE:
            yield turn
            turn = []
        turn.append(keys)
    if turn:
        yield turn
