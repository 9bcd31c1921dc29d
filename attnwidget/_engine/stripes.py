"""Stripes: some queries of a region, pooled along the keys block by block. Each class is one way to pool.

Only `stripe_choice.Stripes` chooses among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import torch
from torch import Tensor

from .._rules.rules import Allowed, whole
from .base import AttentionBase, Head
from .dense_masks import filled
from .fused import BLOCK, Library
from .fused_pass import Bins, FusedPass, LibraryRules
from .logsumexp import LogSumExp
from .matmul import exp_
from .pooling import larger_by_size, pool_by_size, pool_first, pool_last
from .regions import Region
from .softmax import SMALL, DirectSum, Softmax, is_small
from .stages import KEYS, blocks, exponentials, log_by_value, norms, streamed, valued


class Stripe:
    """Some queries, pooled along the keys block by block, for a stage that follows from single cells.

    Args:
        att: the attention.
        region: the region to pool.
        rows: the queries of this stripe.
        columns: the bins of keys that some of them may attend to; other bins are skipped.
        stage: the stage to pool.
        pool: "max" or "mean"; for a mean, the stripe pools sums.
        grid: (columns of the region, queries), memory that stripes share in turn.
    """

    logarithmic = False  # whether exp is taken at the end: the maximum of exp is exp of the maximum
    empty_value: float | None = None  # the pooled value of bins without allowed cells; None if it does not tell

    def __init__(
        self, att: AttentionBase, region: Region, rows: range, columns: slice, stage: str, pool: str, grid: Tensor
    ):
        self.att, self.region, self.rows, self.stage = att, region, rows, stage
        self.head = Head(att, region.batch, region.head)
        self.pool, self.reduce = pool, torch.amax if pool == "max" else torch.sum
        self.columns = columns
        self.grid = grid  # (columns of the region, queries)
        self.bins = grid[columns].fill_(self.start)  # (columns, queries)

    @property
    def start(self) -> float:
        """The value of a bin before any of its cells."""
        return -inf if self.pool == "max" else 0

    def blocks(self) -> Iterator[tuple[range, Tensor, Allowed]]:
        """Iterate over blocks along the region's keys: keys, numbers (keys, queries), and allowed cells.

        The next block may reuse the memory of the last one.
        """
        region, base = self.region, streamed(self.att, self.stage)
        return blocks(self.head, self.rows, base, region.key_bin, within=region.keys, zeros=False)

    def run(self) -> Iterator[tuple[range, Allowed]]:
        """Pool all blocks in turn; yield the keys and the allowed cells of each."""
        for keys, S, allowed in self.blocks():
            self.add(keys, S, allowed)
            del S  # so that the next block reuses its memory
            yield keys, allowed

    def add(self, keys: range, S: Tensor, allowed: Allowed) -> None:
        """Pool a block, (keys, queries), which it may overwrite."""
        if self.pool == "mean" and allowed is not True:
            S = S.masked_fill_(whole(allowed, self.rows, keys, S.device).logical_not().mT, 0)
        self.merge(keys, S)

    def merge(self, keys: range, x: Tensor) -> Tensor:
        """Pool numbers, (keys, queries), into the grid. Return their bins, (columns, queries)."""
        at, width = self.grid[self.region.columns(keys)], self.region.key_bin
        if width <= KEYS:  # blocks have whole bins, and each bin comes once
            return pool_first(x, width, self.reduce, at)
        found = pool_first(x, width, self.reduce)
        if self.pool == "max":
            torch.maximum(at, found, out=at)
        else:
            at += found
        return found

    def valued(self, keys: range, weights: Tensor) -> Tensor:
        """Return the stage for weights, (keys, queries)."""
        return valued(weights, self.head, self.rows, keys, self.stage)

    def norms(self, keys: range) -> Tensor:
        """Return ‖v‖ of some keys, (keys, 1)."""
        return norms(self.head, keys)

    def any_allowed(self) -> Tensor:
        """Return which bins have an allowed cell, (rows, columns) bool, from the numbers; call before `finish`."""
        return self.by_bin().ne(self.empty_value)  # type: ignore[arg-type]

    def finish(self) -> LogSumExp | None:
        """Compute the final numbers of the grid. Return the log-normalizers of the queries, if there are any."""
        return None

    def by_bin(self) -> Tensor:
        """Pool the grid over the queries: (rows, columns)."""
        return pool_last(self.bins, self.region.query_bin, self.reduce).mT

    def pooled(self) -> Tensor:
        """Return the final numbers, (rows, columns); call after `finish`."""
        return exp_(self.by_bin()) if self.logarithmic else self.by_bin()


class KnownStripe(Stripe):
    """Weights with known log-normalizers; for a maximum, exp is taken only of bins."""

    def __init__(self, known: LogSumExp, *about: Any):
        super().__init__(*about)
        self.known, self.logarithmic = known, self.pool == "max"
        self.empty_value = -inf if self.logarithmic else None

    def add(self, keys: range, S: Tensor, allowed: Allowed) -> None:
        """Pool a block of masked scores."""
        if not self.logarithmic:
            self.merge(keys, self.valued(keys, exp_(self.known.log_weights(S))))
        else:
            self.merge(keys, log_by_value(S, self.norms(keys)) if self.stage == "contribution" else S)

    def finish(self) -> LogSumExp:
        """Normalize the maxima."""
        if self.logarithmic:
            self.bins.sub_(self.known.m).sub_(self.known.log_l)
            if self.stage == "weights":
                self.bins.clamp_(max=0)  # above 1 by rounding alone
        return self.known


class CarriedStripe(Stripe):
    """A stage of `CARRIED`: the largest absolute value, with its sign, or the sum.

    Args:
        known: the log-normalizers; None for given weights.
        about: as in `Stripe`.
    """

    def __init__(self, known: LogSumExp | None, *about: Any):
        super().__init__(*about)
        self.known = known

    @property
    def start(self) -> float:
        """Value of a bin before any of its cells."""
        return 0

    def add(self, keys: range, S: Tensor, allowed: Allowed) -> None:
        """Pool a block of masked scores, or of the stage itself."""
        if self.known is not None:
            S = self.valued(keys, exp_(self.known.log_weights(S).clamp_(max=0)))
        if self.pool == "mean":
            self.merge(keys, S)
            return
        at, found = self.grid[self.region.columns(keys)], pool_by_size(S, self.region.key_bin)
        at.copy_(larger_by_size(at, found))

    def finish(self) -> LogSumExp | None:
        """Return the log-normalizers."""
        return self.known

    def by_bin(self) -> Tensor:
        """Pool the grid over the queries: (rows, columns)."""
        if self.pool == "mean":
            return super().by_bin()
        return pool_by_size(self.bins.mT, self.region.query_bin)


class FusedStripe(Stripe):
    """Weights of any scores, pooled by the compiled library.

    Args:
        library: the library.
        rules: the rules, if the library computes the scores itself.
        known: the log-normalizers, if they are known.
        about: as in `Stripe`.
    """

    def __init__(self, library: Library, rules: LibraryRules | None, known: LogSumExp | None, *about: Any):
        super().__init__(*about)
        self._rules = rules
        self.known, self.empty_value = known, -inf if self.pool == "max" else None
        width, columns = self.region.key_bin, self.columns
        used = columns.start * width // BLOCK * BLOCK // width  # where the library begins
        self.grid[used : columns.start].fill_(self.start)
        bins = Bins(self.grid, self.region.keys.start, width, used, mean=self.pool == "mean")
        self._pass = FusedPass(library, self.head, self.rows, bins)

    def run(self) -> Iterator[tuple[range, Allowed]]:
        """Pool all blocks in turn."""
        if self._rules is None:
            yield from super().run()
            return
        row = self.head.block(self.rows, self.region.keys)
        for keys in self._pass.multiply(self.att.rules.span(row), self._rules):
            yield keys, True

    def add(self, keys: range, S: Tensor, allowed: Allowed) -> None:
        """Pool a block of masked scores."""
        self._pass.add(keys, S)

    def finish(self) -> LogSumExp:
        """Compute the final numbers. Return the log-normalizers of the queries."""
        found = self._pass.log_normalizers() if self.known is None else self.known
        self._values = self._pass.pooled(self.columns, self.region.query_bin, found)
        return found

    def pooled(self) -> Tensor:
        """Return the final numbers, (rows, columns); call after `finish`."""
        return self._values


class SmallStripe(Stripe):
    """Weights of scores so small that exp needs no maximum subtracted; blocks hold exp(masked)."""

    empty_value = 0.0

    def __init__(self, *about: Any):
        super().__init__(*about)
        self.total = DirectSum(self.head, len(self.rows))

    @property
    def start(self) -> float:
        """Value of a bin before any of its cells."""
        return 0

    def blocks(self) -> Iterator[tuple[range, Tensor, Allowed]]:
        """Iterate over blocks of exp(masked)."""
        region = self.region
        return exponentials(self.head, self.rows, region.key_bin, within=region.keys)

    def add(self, keys: range, S: Tensor, allowed: Allowed) -> None:
        """Pool a block of exp(masked)."""
        if self.pool == "mean" and self.stage == "weights":
            self.total.l += self.merge(keys, S).sum(0)
        else:
            self.total.l += S.sum(0)
            self.merge(keys, self.valued(keys, S))

    def finish(self) -> LogSumExp:
        """Divide by the sums."""
        self.bins /= self.total.l.masked_fill(self.total.l == 0, 1)
        return self.total.logsumexp()


class OnlineStripe(Stripe):
    """Weights of any scores, with the online softmax during pooling."""

    def __init__(self, *about: Any):
        super().__init__(*about)
        self.softmax = Softmax(self.head, len(self.rows))


class OnlineMaximum(OnlineStripe):
    """The maximum of weights, in logarithms."""

    logarithmic, empty_value = True, -inf

    def add(self, keys: range, S: Tensor, allowed: Allowed) -> None:
        """Pool a block of masked scores."""
        if self.stage == "contribution":
            self.merge(keys, log_by_value(S, self.norms(keys)))
            self.softmax.add(S, S.amax(0))
        else:
            self.softmax.add(S, self.merge(keys, S).amax(0))

    def finish(self) -> LogSumExp:
        """Normalize the maxima."""
        found = self.softmax.logsumexp()
        self.bins.sub_(found.m).sub_(found.log_l)
        return found


class OnlineSum(OnlineStripe):
    """The sum of weights; earlier sums are rescaled as the running maximum grows."""

    def add(self, keys: range, S: Tensor, allowed: Allowed) -> None:
        """Pool a block of masked scores."""
        e, shrink = self.softmax.add(S, S.amax(0))
        if shrink is not None:
            self.bins *= shrink
        self.merge(keys, self.valued(keys, e))

    def finish(self) -> LogSumExp:
        """Divide by the sums."""
        self.bins /= self.softmax.l.masked_fill(self.softmax.m == -inf, 1)
        return self.softmax.logsumexp()


class DenseStripe(Stripe):
    """Weights of some queries over all keys at once, without blocks, for a dense mask or bias and any scores."""

    empty_value = 0.0

    def __init__(self, *about: Any):
        super().__init__(*about)
        small = is_small(self.head, self.rows, SMALL / 2)
        x = filled(self.head, self.rows, small=small)  # (queries, keys)
        if small:  # no weight is below the normal range
            total = DirectSum(self.head, len(self.rows))
            total.l += x.sum(1)
            self.l, self.found = total.l, total.logsumexp()
        else:
            self._allowed = self.by_key(pool_first(x, self.region.query_bin, torch.amax), torch.amax) != -inf
            softmax = Softmax(self.head, len(self.rows))
            softmax.add(x.mT, x.amax(1))
            self.l, self.found = softmax.l, softmax.logsumexp()
        x /= self.l.masked_fill(self.l == 0, 1)[:, None]
        self.weights = pool_first(x, self.region.query_bin, self.reduce)  # (rows, keys)
        if small:
            self._allowed = self.by_key(self.weights, self.reduce) != 0

    def by_key(self, x: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
        """Pool over the keys: (rows, keys) -> (rows, columns)."""
        return pool_last(x, self.region.key_bin, reduce)[:, self.columns]

    def blocks(self) -> Iterator[tuple[range, Tensor, Allowed]]:
        """Return no blocks."""
        return iter(())

    def any_allowed(self) -> Tensor:
        """Return which bins have an allowed cell, (rows, columns) bool."""
        return self._allowed

    def finish(self) -> LogSumExp:
        """Return the log-normalizers of the queries."""
        return self.found

    def pooled(self) -> Tensor:
        """Return the final numbers, (rows, columns)."""
        return self.by_key(self.valued(self.region.keys, self.weights.mT).mT, self.reduce)
