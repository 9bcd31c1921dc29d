"""Some queries of a region, pooled along the keys as their blocks stream past: a way for each stage and pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import torch
from torch import Tensor

from .._rules.rules import Allowed, whole
from .base import AttentionBase
from .dense_masks import filled
from .logsumexp import LogSumExp
from .matmul import exp_
from .pooling import pool_first, pool_last
from .regions import Region
from .softmax import SMALL, DirectSum, Softmax, is_small
from .stages import KEYS, blocks, by_value, exponentials, log_by_value, norms, streamed


class Stripe:
    """Some queries, pooled along the keys as blocks come in: a stage that follows from each cell alone."""

    logarithmic = False  # whether exp is left for the end: the maximum of exp is exp of the maximum
    nothing: float | None = None  # what pools to this had no allowed cell; None if that does not tell

    def __init__(
        self, att: AttentionBase, region: Region, rows: range, columns: slice, stage: str, pool: str, grid: Tensor
    ):
        self.att, self.region, self.rows, self.stage = att, region, rows, stage
        self.pool, self.reduce = pool, torch.amax if pool == "max" else torch.sum
        self.columns = columns
        self.grid = grid  # (columns, queries)
        self.seen = grid[columns].fill_(self.start)  # the part of it that is used

    @property
    def start(self) -> float:
        """What a bin is before any of its cells."""
        return -inf if self.pool == "max" else 0

    def blocks(self) -> Iterator[tuple[range, Tensor, Allowed]]:
        """The blocks of the queries along the region's keys."""
        region, base = self.region, streamed(self.att, self.stage)
        return blocks(self.att, region.batch, region.head, self.rows, base, region.key_bin, within=region.keys)

    def add(self, keys: range, S: Tensor, allowed: Allowed) -> None:
        """Take in a block, (keys, queries), which it may overwrite."""
        if self.pool == "mean" and allowed is not True:
            S = S.masked_fill_(whole(allowed, self.rows, keys, S.device).logical_not().mT, 0)
        self.put(keys, S)

    def put(self, keys: range, x: Tensor) -> Tensor:
        """Pool a block, (keys, queries), into the grid. Returns the block's own bins."""
        at, width = self.grid[self.region.columns(keys)], self.region.key_bin
        if width <= KEYS:  # then blocks are cut at bins, and each bin comes once
            return pool_first(x, width, self.reduce, at)
        found = pool_first(x, width, self.reduce)
        if self.pool == "max":
            torch.maximum(at, found, out=at)
        else:
            at += found
        return found

    def valued(self, keys: range, weights: Tensor) -> Tensor:
        """Weights as they are, or as contributions."""
        return by_value(weights, self.norms(keys)) if self.stage == "contribution" else weights

    def norms(self, keys: range) -> Tensor:
        return norms(self.att, self.region.batch, self.region.head, keys)

    def opened(self) -> Tensor:
        """Which bins have an allowed cell, (rows, columns), as far as the numbers tell; before `finish`."""
        return self.by_bin().ne(self.nothing)  # type: ignore[arg-type]

    def finish(self) -> LogSumExp | None:
        """Bring the grid to its final numbers. Returns the log-normalizers, if there are any."""
        return None

    def by_bin(self) -> Tensor:
        """The grid, pooled over the queries: (rows, columns)."""
        return pool_last(self.seen, self.region.query_bin, self.reduce).mT

    def pooled(self) -> Tensor:
        """What it comes to, (rows, columns)."""
        return exp_(self.by_bin()) if self.logarithmic else self.by_bin()


class KnownStripe(Stripe):
    """Weights whose log-normalizers are known: a maximum needs no exp but that of its own bins."""

    def __init__(self, pair: LogSumExp, *about: Any):
        super().__init__(*about)
        self.pair, self.logarithmic = pair, self.pool == "max"
        self.nothing = -inf if self.logarithmic else None

    def add(self, keys: range, S: Tensor, allowed: Allowed) -> None:
        if not self.logarithmic:
            self.put(keys, self.valued(keys, exp_(self.pair.log_weights(S))))
        else:
            self.put(keys, log_by_value(S, self.norms(keys)) if self.stage == "contribution" else S)

    def finish(self) -> LogSumExp:
        if self.logarithmic:
            self.seen.sub_(self.pair.m).sub_(self.pair.log_l)
            if self.stage == "weights":
                self.seen.clamp_(max=0)  # above 1 by rounding alone
        return self.pair


class SmallStripe(Stripe):
    """Weights of scores so small that exp needs no maximum taken off: of those, exp is what comes in."""

    nothing = 0.0

    def __init__(self, *about: Any):
        super().__init__(*about)
        self.total = DirectSum(self.att, len(self.rows))

    @property
    def start(self) -> float:
        return 0

    def blocks(self) -> Iterator[tuple[range, Tensor, Allowed]]:
        region = self.region
        return exponentials(self.att, region.batch, region.head, self.rows, region.key_bin, within=region.keys)

    def add(self, keys: range, S: Tensor, allowed: Allowed) -> None:
        if self.pool == "mean" and self.stage == "weights":
            self.total.l += self.put(keys, S).sum(0)
        else:
            self.total.l += S.sum(0)
            self.put(keys, self.valued(keys, S))

    def finish(self) -> LogSumExp:
        self.seen /= self.total.l.masked_fill(self.total.l == 0, 1)
        return self.total.pair()


class OnlineStripe(Stripe):
    """Weights of any scores: the online softmax beside it."""

    def __init__(self, *about: Any):
        super().__init__(*about)
        self.softmax = Softmax(self.att, len(self.rows))


class OnlineMaximum(OnlineStripe):
    """The maximum of weights, in logarithms."""

    logarithmic, nothing = True, -inf

    def add(self, keys: range, S: Tensor, allowed: Allowed) -> None:
        if self.stage == "contribution":
            self.put(keys, log_by_value(S, self.norms(keys)))
            self.softmax.add(S, S.amax(0))
        else:
            self.softmax.add(S, self.put(keys, S).amax(0))

    def finish(self) -> LogSumExp:
        pair = self.softmax.pair()
        self.seen.sub_(pair.m).sub_(pair.log_l)
        return pair


class OnlineSum(OnlineStripe):
    """The sum of weights: what came before shrinks as the running maximum grows."""

    def add(self, keys: range, S: Tensor, allowed: Allowed) -> None:
        e, shrink = self.softmax.add(S, S.amax(0))
        if shrink is not None:
            self.seen *= shrink
        self.put(keys, self.valued(keys, e))

    def finish(self) -> LogSumExp:
        self.seen /= self.softmax.l.masked_fill(self.softmax.m == -inf, 1)
        return self.softmax.pair()


def stripe_of(pool: str, small: bool) -> type[Stripe]:
    """The quickest way to pool weights whose log-normalizers are not known."""
    return SmallStripe if small else OnlineMaximum if pool == "max" else OnlineSum


class DenseStripe(Stripe):
    """Weights of a few queries over all keys at once, pooled over the queries first: where a mask or bias is there cell
    by cell, whatever the scores."""

    nothing = 0.0

    def __init__(self, *about: Any):
        super().__init__(*about)
        small = is_small(self.att, self.region.batch, self.region.head, self.rows, SMALL / 2)
        x = filled(self.att, self.region.batch, self.region.head, self.rows, small=small)  # (queries, keys)
        if small:  # so that no weight is below the normal range
            total = DirectSum(self.att, len(self.rows))
            total.l += x.sum(1)
            self.l, self.pair = total.l, total.pair()
        else:
            self.open = self.by_key(pool_first(x, self.region.query_bin, torch.amax), torch.amax) != -inf
            softmax = Softmax(self.att, len(self.rows))
            softmax.add(x.mT, x.amax(1))
            self.l, self.pair = softmax.l, softmax.pair()
        x /= self.l.masked_fill(self.l == 0, 1)[:, None]
        self.weights = pool_first(x, self.region.query_bin, self.reduce)  # (rows, keys)
        if small:
            self.open = self.by_key(self.weights, self.reduce) != 0

    def by_key(self, x: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
        return pool_last(x, self.region.key_bin, reduce)[:, self.columns]

    def blocks(self) -> Iterator[tuple[range, Tensor, Allowed]]:
        return iter(())

    def opened(self) -> Tensor:
        return self.open

    def finish(self) -> LogSumExp:
        return self.pair

    def pooled(self) -> Tensor:
        return self.by_key(self.valued(self.region.keys, self.weights.mT).mT, self.reduce)
