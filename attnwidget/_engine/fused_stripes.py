"""Stripes of the fused pass: each block of scores is read while it lies in the cache, by kernels that numba compiled.

The numbers are those of `OnlineMaximum` and `OnlineSum` but for the last bits: exp is another polynomial, and sums have
another order.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan
from typing import Any

from torch import Tensor

from .._rules.rules import Allowed
from .._utils.indexing import cuts
from .fused import KEYS, KEYS_AT_ONCE, Kernels, limits_of_block, shared_out
from .logsumexp import LogSumExp
from .matmul import Scratch, exp_
from .stages import capped, rows_of
from .stripes import OnlineMaximum, OnlineStripe, OnlineSum


class FusedStripe(OnlineStripe):
    """Weights of any scores, whose blocks are pooled and summed by a kernel.

    Args:
        kernels: what is compiled.
        about: as of `Stripe`.
    """

    def __init__(self, kernels: Kernels, *about: Any):
        super().__init__(*about)
        self.kernels = kernels
        self.base = self.softmax.m.clone()  # (queries,), of which `softmax.l` is Σ exp(masked − base)
        self.arrays = [x.numpy() for x in (self.softmax.m, self.base, self.softmax.l)]  # the same memory
        self._grid = self.grid.numpy()
        rules = self.att.rules
        self._last: tuple[Tensor, Any] | None = None
        self._limits = rules.band_limits(self.region.batch)  # the kernel writes −∞ itself where these are all
        if rules.biases or self.rows.step > 1:
            self._limits = None

    def run(self) -> Iterator[tuple[range, Allowed]]:
        """Pool one block after the other; of what band limits block, the kernel takes care."""
        if self._limits is None:
            yield from super().run()
            return
        att, region = self.att, self.region
        row, rows = self.head.block(self.rows, region.keys), rows_of(self.head, self.rows, "capped")
        scratch = Scratch(len(self.rows) * KEYS, att.result_dtype, att.device)
        start = None  # of the blocks since others had a turn
        for keys in cuts(att.rules.span(row), region.key_bin, KEYS):
            S = rows.block(keys, scratch)
            self.add(keys, S if att.softcap is None else capped(S, att.softcap), True)
            del S
            start = keys.start if start is None else start
            if keys.stop - start >= KEYS_AT_ONCE:
                yield range(start, keys.stop), True
                start = None
        if start is not None:
            yield range(start, keys.stop), True

    def scores(self, S: Tensor) -> Any:
        """Return a block as an array of the same memory."""
        if self._last is None or self._last[0] is not S:
            self._last = S, S.contiguous().numpy()
        return self._last[1]

    def settle(self) -> None:
        """Bring the softmax to what it is elsewhere: NaN, which a kernel's comparison passes over; and exp(masked − m).

        What is taken off each score follows the maximum only when that is far ahead.
        """
        softmax = self.softmax
        softmax.m.masked_fill_(softmax.l.isnan(), nan)
        empty = softmax.m == -inf
        softmax.l *= exp_(self.base.masked_fill(empty, 0) - softmax.m.masked_fill(empty, 0))


class FusedMaximum(FusedStripe, OnlineMaximum):
    """The maximum of weights, in logarithms."""

    def add(self, keys: range, S: Tensor, allowed: Allowed) -> None:
        """Pool a block of masked scores, and add it to the softmax."""
        before, limits = keys.start - self.region.keys.start, limits_of_block(self._limits, self.rows, keys)
        about = (self.scores(S), len(keys), self._grid, before, self.region.key_bin, *self.arrays)
        shared_out(self.kernels.add_maxima, about, len(self.rows), limits)

    def finish(self) -> LogSumExp:
        """Normalize the maxima."""
        self.settle()
        return super().finish()


class FusedSum(FusedStripe, OnlineSum):
    """The sum of weights: the grid is of exp(masked − base)."""

    def add(self, keys: range, S: Tensor, allowed: Allowed) -> None:
        """Pool a block of masked scores, and add it to the softmax."""
        before, limits = keys.start - self.region.keys.start, limits_of_block(self._limits, self.rows, keys)
        about = (self.scores(S), len(keys), self._grid, self.columns.start, before, self.region.key_bin, *self.arrays)
        shared_out(self.kernels.add_sums, about, len(self.rows), limits)

    def finish(self) -> LogSumExp:
        """Divide by the sums."""
        self.bins /= self.softmax.l.masked_fill(self.softmax.l == 0, 1)
        self.settle()
        return self.softmax.logsumexp()
