"""Overviews of a head: a stage pooled into uniform bins, block by block, without any (Q, K) tensor.

`pooled` is the pass over a region: `PoolingPlan` plans it once, and it then runs over stripes of queries.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import ceil, inf
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from .._rules.rules import Rules, whole
from .._utils.indexing import Block, cuts
from .._utils.progress_bars import progress_bar
from .._utils.readable import Readable
from .._utils.validation import as_choice, as_size
from ..masks import BandLimits
from .base import AttentionBase, Head
from .dense_masks import rows_at_once, serves
from .kept_levels import only_overviews
from .logsumexp import LogSumExp
from .matmul import exact
from .pooling import AllowedCounts, bins_within, count_cells, counting, larger_by_size
from .regions import Region, TileAddress, bins, tile_region
from .softmax import is_finite, normalizing, passing, run_to_end
from .sources import CARRIED
from .stages import NORMALIZED, QUERIES, allowed_cells, excludes, new, streamed
from .stripe_choice import Stripes
from .stripes import Stripe

T = TypeVar("T")

POOLS = ("max", "mean")
COMBINED_QUERIES = 2048  # of combined heads to compute at once, all heads together
OF_WORDS = 4  # rows that one row of merged words counts for
LEAST_QUERIES = 16  # of each combined head to compute at once
SCATTERED_QUERIES = 128  # sampled queries to compute at once if rules exclude keys: fewer share more excluded keys


@dataclass(frozen=True, eq=False, repr=False)
class Overview(Readable):
    """A head pooled into bins of `query_bin` × `key_bin` cells; the last bins may be smaller.

    values: (rows, columns), the pooled stage, float32 or float64.
    allowed: (rows, columns) bool, True if any cell of the bin is allowed.

    >>> import torch
    >>> from attnwidget import Attention
    >>> att = Attention(torch.eye(3), torch.eye(3), torch.eye(3), is_causal=True)
    >>> found = att.overview(size=2)
    >>> found.values.shape, found.query_bin
    (torch.Size([2, 2]), 2)
    """

    values: Tensor
    allowed: Tensor
    query_bin: int
    key_bin: int

    @property
    def shape(self) -> torch.Size:
        """The number of bins: rows and columns."""
        return self.values.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return the values as an array, for numpy, matplotlib and others."""
        values = self.values.cpu().numpy()
        return values.astype(dtype, copy=bool(copy)) if dtype is not None or copy else values


def overview(
    att: AttentionBase,
    batch: int,
    head: int,
    *,
    size: int = 512,
    pool: str = "max",
    stage: str = "weights",
    progress: bool = False,
) -> Overview:
    """Pool a head to at most size × size bins: see `Attention.overview`.

    >>> import torch, attnwidget.attention
    >>> att = attnwidget.attention.Attention(*torch.randn(2, 1000, 8), is_causal=True)
    >>> found = overview(att, 0, 0, size=100)
    >>> found.values.shape, found.query_bin, found.key_bin
    (torch.Size([100, 100]), 10, 10)
    """
    steps = passes(att, batch, head, size=size, pool=pool, stage=stage, seconds=0.1 if progress else inf)
    if not progress:
        return steps.finish()
    with progress_bar()(total=att.shape.Q, unit="query", unit_scale=True, desc="overview") as bar:
        for share in steps:
            bar.update(att.shape.Q * share - bar.n)
    return steps.result


def sampled(
    att: AttentionBase,
    batch: int,
    head: int,
    *,
    rows: int | None = None,
    columns: int | None = None,
    query_bin: int | None = None,
    key_bin: int | None = None,
    stage: str = "weights",
    pool: str = "max",
) -> Overview:
    """Pool exact rows, evenly spread and including the last, over bins of keys: a thumbnail at any length.

    It computes only these rows, one for each bin of an overview. In the result, `query_bin` is their distance.

    Args:
        att: the attention.
        batch: which sample.
        head: which head.
        rows: the most queries; or
        query_bin: the distance between queries.
        columns: the most bins of keys; or
        key_bin: the keys in a bin.
        stage: the stage to pool.
        pool: "max" or "mean", over the keys of a bin.

    >>> import torch, attnwidget.attention
    >>> att = attnwidget.attention.Attention(*torch.randn(2, 1000, 8))
    >>> sampled(att, 0, 0, rows=16, columns=32).values.shape
    torch.Size([16, 32])
    >>> sampled(att, 0, 0, query_bin=8, key_bin=4).values.shape
    torch.Size([125, 250])
    """
    query_bin = _as_bin(query_bin, rows, att.shape.Q, "query_bin", "rows")
    key_bin = _as_bin(key_bin, columns, att.shape.K, "key_bin", "columns")
    _check(att, stage, pool)
    batch, head = att.find(batch, head)
    region = Region(batch, head, range(att.shape.Q), range(att.shape.K), query_bin, key_bin)
    kept = only_overviews(att)
    if kept is not None:
        widths = kept.whole_bins(query_bin, key_bin)
        return OverviewPass(att, region._replace(query_bin=widths[0], key_bin=widths[1]), stage, pool, inf).finish()
    return OverviewPass(att, region.sample(att), stage, pool, inf).finish()


def _as_bin(width: Any, count: Any, n: int, name: str, counted: str) -> int:
    """Return the width of a bin, from the width or from the number of bins."""
    if (width is None) == (count is None):
        raise TypeError(f"{name} is {width!r} and {counted} is {count!r}: give one of them")
    return as_size(width, name) if count is None else ceil(n / as_size(count, counted))


def checked(att: AttentionBase, batch: Any, head: Any, size: Any, pool: str, stage: str) -> tuple[int, int, int]:
    """Check the arguments of `Attention.overview`; return sample and head, counted from 0, and the size."""
    size = as_size(size, "size")
    _check(att, stage, pool)
    return *att.find(batch, head), size


def _check(att: AttentionBase, stage: str, pool: str) -> None:
    as_choice(pool, POOLS, "pool")
    att.check_stage(stage)


class OverviewPass:
    """An overview computed in slices, so that callers stay responsive: an iterator of the share done, up to 1.

    It ends when `result` is available. Drop or `close` it to cancel. The log-normalizers of each finished row of blocks
    are cached, unless the tensors have changed meanwhile.

    Args:
        att: the attention.
        region: the region to pool.
        stage: the stage to pool.
        pool: "max" or "mean".
        seconds: the length of a slice; at least one block is computed.

    Attributes:
        region: as given.
        done: the number of finished queries.
        share: the finished share of the cells to compute.
        cells: once finished, (rows, columns) int32, the number of cells in each mean; None for the maximum.
    """

    def __init__(self, att: AttentionBase, region: Region, stage: str, pool: str, seconds: float):
        self.done, self.share = 0, 0.0
        self.cells: Tensor | None = None
        self.region = region
        self._att, self._seconds = att, seconds
        self._steps = pooled(att, region, stage, pool)
        self._result: Overview | None = None

    @property
    def result(self) -> Overview:
        """The overview; raises RuntimeError until it is finished."""
        if self._result is None:
            raise RuntimeError("the pass is not finished: iterate further, or start another")
        return self._result

    def __iter__(self) -> OverviewPass:
        return self

    def __next__(self) -> float:
        if self._result is not None:
            raise StopIteration
        until = perf_counter() + self._seconds
        with exact(self._att.device):
            while True:
                try:
                    self.done, self.share = next(self._steps)
                except StopIteration as end:
                    if end.value is None:
                        raise RuntimeError("the pass was cancelled: start another") from None
                    self._set_result(end.value)
                    return self.share
                if perf_counter() >= until:
                    return self.share

    def finish(self) -> Overview:
        """Compute the rest at once, and return the overview."""
        for _ in self:
            pass
        return self.result

    def close(self) -> None:
        """Cancel."""
        self._steps.close()

    def _set_result(self, found: PooledRegion) -> None:
        region, self.cells = self.region, found.cells
        self._result = Overview(found.values, found.allowed, region.query_stride, region.key_bin)


def passes(
    att: AttentionBase,
    batch: int,
    head: int,
    *,
    size: int = 512,
    pool: str = "max",
    stage: str = "weights",
    seconds: float = 0.02,
) -> OverviewPass:
    """Start an `overview` in slices of little more than `seconds`, and at least one block.

    >>> import torch, attnwidget.attention
    >>> att = attnwidget.attention.Attention(*torch.randn(2, 3000, 8))
    >>> slices = passes(att, 0, 0, seconds=0)
    >>> shares = list(slices)
    >>> len(shares) > 1, shares == sorted(shares), shares[-1], slices.result.values.shape
    (True, True, 1.0, torch.Size([500, 500]))
    """
    batch, head, size = checked(att, batch, head, size, pool, stage)
    queries, keys = range(att.shape.Q), range(att.shape.K)
    widths = ceil(len(queries) / size), ceil(len(keys) / size)
    kept = only_overviews(att)
    widths = widths if kept is None else kept.whole_bins(*widths)
    region = Region(batch, head, queries, keys, *widths)
    return OverviewPass(att, region, stage, pool, seconds)


def tile(
    att: AttentionBase,
    batch: int,
    head: int,
    at: TileAddress,
    *,
    stage: str = "weights",
    pool: str = "max",
) -> Overview:
    """Pool one tile of a level exactly; tiles at the ends of the matrix may be smaller.

    It needs only the log-normalizers of the tile's rows, from the cache or computed and cached here.

    Args:
        att: the attention.
        batch: which sample.
        head: which head.
        at: which tile.
        stage: the stage to pool.
        pool: "max" or "mean".

    >>> import torch, attnwidget
    >>> att = attnwidget.Attention(*torch.randn(2, 1000, 8))
    >>> tile(att, 0, 0, TileAddress(level=1, row=1, column=0)).values.shape
    torch.Size([244, 256])
    >>> tile(att, 0, 0, TileAddress(level=(0, 2), row=0, column=0)).values.shape
    torch.Size([256, 250])
    """
    _check(att, stage, pool)
    region = tile_region(att, batch, head, at)
    return OverviewPass(att, region, stage, pool, inf).finish()


# Padding at the end.


def own_keys(att: AttentionBase, batch: int, head: int, found: Overview, queries: range | None = None) -> int:
    """Return the length of a sample without the keys at its end that no query may attend to (padding).

    Args:
        att: the attention.
        batch: which sample.
        head: which head.
        found: its overview.
        queries: the queries of the overview; None for all.

    >>> import torch, attnwidget
    >>> att = attnwidget.Attention(*torch.randn(2, 1, 6, 8), mask=attnwidget.masks.padding([4]))
    >>> own_keys(att, 0, 0, overview(att, 0, 0))
    4
    """
    with exact(att.device):
        return run_to_end(finding_own_keys(att, batch, head, found, range(att.shape.Q) if queries is None else queries))


def finding_own_keys(
    att: AttentionBase, batch: int, head: int, found: Overview, queries: range
) -> Generator[None, None, int]:
    """Find the length without keys at the end that none of the queries may attend to; yields after each block.

    Args:
        att: the attention.
        batch: which sample.
        head: which head.
        found: an overview of these queries and all keys; only its last bin with an allowed cell is examined.
        queries: which queries.

    Returns:
        The number of keys.
    """
    open_bins = found.allowed.any(0).nonzero()
    if len(open_bins) == 0:
        return 0
    start = int(open_bins[-1]) * found.key_bin
    keys = range(start, min(start + found.key_bin, att.shape.K))
    if len(keys) == 1:
        return keys.stop
    limits = att.rules.band_limits(batch)
    if limits is not None:
        ends = (keys.stop, None if limits.high is None else queries[-1] + limits.high + 1, limits.stop)
        return min(end for end in ends if end is not None)
    last = 0
    for piece in reversed(list(cuts(range(len(queries)), 1, QUERIES))):  # causal: the last query sees most
        rows = queries[piece.start : piece.stop]
        allowed = whole(allowed_cells(att, Block(batch, head, rows, keys)), rows, keys, att.device)
        places = allowed.any(0).nonzero()
        last = max(last, int(places[-1]) + 1 if len(places) else 0)
        yield
        if last == len(keys):
            break
    return start + last


# The pass over a region.


class PooledRegion(NamedTuple):
    """A pooled region.

    values: (rows, columns).
    allowed: (rows, columns) bool, which bins have an allowed cell.
    cells: (rows, columns) int32, the number of cells in each mean; None for the maximum.
    """

    values: Tensor
    allowed: Tensor
    cells: Tensor | None


def pooled(
    att: AttentionBase, region: Region, stage: str, pool: str, part: range | None = None
) -> Generator[tuple[int, float], None, PooledRegion]:
    """Pool a stage of a region, block by block.

    Unknown log-normalizers come from the same pass if the region has all keys, otherwise from an additional pass over
    the region's rows. They are cached.

    Args:
        att: the attention.
        region: the region to pool.
        stage: the stage to pool.
        pool: "max" or "mean".
        part: only these queries, from `parts_of`, with the same results as in a full pass; None for all.

    Yields:
        After each block, the number of finished queries, and the finished share of the cells to compute.

    Returns:
        The pooled region.
    """
    kept = only_overviews(att)
    if kept is not None:
        pooled_again = kept.pooled(region, stage, pool)
        yield len(region.queries), 1.0
        return PooledRegion(*pooled_again, None)
    plan = PoolingPlan(att, region, stage, pool, part)
    values, counts = plan.new_values(), plan.new_counts()
    yield from _stream(plan, stage, values, counts)
    if counts is None and plan.limits is None:
        counts = yield from counting(att, plan.part)
    return plan.result(values, counts)


def _stream(
    plan: PoolingPlan, stage: str, values: Tensor, counts: AllowedCounts | None
) -> Generator[tuple[int, float], None, None]:
    """Pool the blocks of a plan; the memory for blocks is freed at the end.

    Args:
        plan: the plan.
        stage: as in `pooled`, like the yields.
        values: (rows, columns), memory for the result.
        counts: counter of the allowed cells; None to count none.
    """
    att, region = plan.att, plan.region
    stripes = Stripes(att, region, stage, plan.pool, dense=plan.dense)
    pieces = stripes.together(plan.pieces)
    progress, versions = PassProgress(plan, pieces), att.versions()
    for piece in pieces:
        rows = plan.part.queries[piece.start : piece.stop]
        known = yield from progress.through(piece.start, plan.log_normalizers(rows))
        stripe = stripes.of(rows, plan.columns(rows), known)
        reads_off = plan.reads_allowed_off(stripe)
        remaining = len(piece) * len(region.keys) if plan.dense else 0  # of a stripe without blocks
        for keys, allowed in stripe.run():
            remaining = 0
            if counts is not None and not reads_off:
                counts.add(piece, keys, allowed)
            yield piece.start, progress.share(len(piece) * len(keys))
        if counts is not None and reads_off:
            counts.mark(piece, stripe.columns, stripe.any_allowed())
        found = stripe.finish()
        if found is not None and known is None:
            att.remember_rows(region.batch, region.head, rows, found, versions)
        plan.merge(values[bins(piece, region.query_bin), stripe.columns], stripe.pooled())
        yield piece.stop, progress.share(remaining)


def parts_of(att: AttentionBase, region: Region, stage: str, pool: str, most: float) -> list[tuple[range, float]]:
    """Divide the queries of a region where a piece of its pass and a bin begin, so that parts give the same results.

    Args:
        att: the attention.
        region: the region to pool, with all keys.
        stage: the stage to pool.
        pool: "max" or "mean".
        most: the most cells of a part, unless a single bin or piece has more.

    Returns:
        The queries of each part, counted from the region's first, and its number of cells.
    """
    plan = PoolingPlan(att, region, stage, pool)
    found: list[tuple[range, float]] = []
    for piece in plan.pieces:
        rows = region.queries[piece.start : piece.stop]
        cells = len(rows) * len(plan.rules.span(Block(region.batch, region.head, rows, region.keys)))
        last, before = found[-1] if found else (range(0), most)
        if piece.start % region.query_bin == 0 and before + cells > most:
            found.append((piece, cells))
        else:
            found[-1] = range(last.start, piece.stop), before + cells
    return found


class PoolingPlan:
    """How to pool a region: all decisions before its first block.

    Args:
        att: the attention.
        region: the region to pool.
        stage: the stage to pool.
        pool: "max" or "mean".
        part: only these queries, counted from the region's first; None for all. Decisions do not depend on it.

    Attributes:
        part: the region of only these queries.
        rules: the rules that apply to the blocks.
        limits: the attention's rules as band limits, if they are that simple; they then tell which bins have an allowed
            cell.
        normalized: whether the stage needs log-normalizers.
        carried: whether the stage is one of `CARRIED`, which need log-normalizers in advance.
        whole_rows: whether the region has all keys, so that the pass itself finds the log-normalizers.
        dense: whether to compute whole rows at once, for a dense mask or bias.
        pieces: the queries of each stripe, counted from the part's first: whole bins or a part of one.
    """

    def __init__(self, att: AttentionBase, region: Region, stage: str, pool: str, part: range | None = None):
        self.att, self.region, self.pool = att, region, pool
        self.head, queries = Head(att, region.batch, region.head), region.queries
        self._masked = masked = streamed(att, stage) == "masked"
        self._excludes = excludes(att, streamed(att, stage))
        self.rules = att.rules if self._excludes else Rules()
        self.limits = att.rules.band_limits(region.batch)
        self.normalized, self.carried = masked and stage in NORMALIZED, stage in CARRIED
        self.whole_rows = region.keys == range(att.shape.K)
        self.dense = self.whole_rows and serves(self.head, queries, stage)
        self._over_allowed = pool == "mean" and stage == "masked"  # otherwise a mean is over all cells of its bin
        self._counts = masked and (self.limits is None or self._over_allowed)
        self._numbers_tell = self._counts and (self.dense or (stage == "weights" and is_finite(self.head, queries)))
        pieces = cuts(range(len(queries)), region.query_bin, self._queries_at_once())
        part = range(len(queries)) if part is None else part
        self.part = region._replace(queries=queries[part.start : part.stop])
        self.pieces = [
            range(piece.start - part.start, piece.stop - part.start) for piece in pieces if piece.start in part
        ]

    def _queries_at_once(self) -> int:
        limit = rows_at_once(self.att, self.region.query_bin) if self.dense else QUERIES
        limited = self.limits is not None and self.limits != BandLimits()
        limit = min(limit, SCATTERED_QUERIES) if self.region.queries.step > 1 and limited else limit
        heads = self.att.source.heads_in_cells(self.region.batch, self.region.head)
        worth = sum(OF_WORDS if one[0].source.derived else 1 for one in heads)
        return limit if worth < 2 else max(LEAST_QUERIES, min(limit, COMBINED_QUERIES // worth))

    def new_values(self) -> Tensor:
        """Return (rows, columns), filled with the value of a bin without computed cells."""
        outside = 0 if self.normalized or self.carried or (self._excludes and not self._masked) else -inf
        return new(self.att, *self.part.shape).fill_(outside if self.pool == "max" else 0)

    def new_counts(self) -> AllowedCounts | None:
        """Return a counter of allowed cells; None if they need not be counted."""
        return AllowedCounts(self.att, self.part) if self._counts else None

    def reads_allowed_off(self, stripe: Stripe) -> bool:
        """Return whether a stripe's numbers show which bins have an allowed cell, so that it needs no counting."""
        return self._numbers_tell and stripe.empty_value is not None

    def columns(self, rows: range) -> slice:
        """Return the bins of keys that some of the queries may attend to."""
        region = self.region
        return region.columns(self.rules.span(Block(region.batch, region.head, rows, region.keys)))

    def log_normalizers(self, rows: range) -> Generator[int, None, LogSumExp | None]:
        """Return the log-normalizers of some queries; None if the stripe needs none or finds them itself.

        First prepares a derived source. Yields after each block its number of cells in this head.
        """
        att, (batch, head, *_) = self.att, self.region
        for _ in att.source.prepare(batch, rows):
            yield 0
        if not self.normalized or self.dense:
            return None
        if self.whole_rows and not self.carried and (self.pool != "max" or self.region.key_bin == 1):
            return None  # not needed, even if known
        known = att.known_rows(batch, head, rows)
        if known is None and (self.carried or not self.whole_rows):
            known = yield from normalizing(self.head, rows)
        return known

    def merge(self, values: Tensor, found: Tensor) -> None:
        """Merge a stripe's result into the values of its bins, (rows, columns) both."""
        if self.pool == "max" and self.carried:
            values.copy_(larger_by_size(values, found))
        elif self.pool == "max":
            torch.maximum(values, found, out=values)
        else:
            values += found

    def result(self, values: Tensor, counts: AllowedCounts | None) -> PooledRegion:
        """Return the result, from pooled values and counted cells, if any."""
        cells = None
        if self.pool == "mean":
            counted = counts.counts if counts is not None and self._over_allowed else None
            cells = (count_cells(self.att, self.part) if counted is None else counted).to(torch.int32)
            values = (values / cells).masked_fill(cells == 0, -inf)
        if counts is not None:
            return PooledRegion(values, counts.counts > 0, cells)
        assert self.limits is not None  # otherwise cells were counted
        return PooledRegion(values, bins_within(self.att, self.part, self.limits), cells)


class PassProgress:
    """The finished share of the cells of a pass, including those for separate log-normalizers."""

    def __init__(self, plan: PoolingPlan, pieces: Sequence[range]):
        self._done, self._all = 0, 0
        att, region, row = plan.att, plan.part, range(plan.att.shape.K)
        for piece in pieces:
            rows = region.queries[piece.start : piece.stop]
            cells = Block(region.batch, region.head, rows, region.keys)
            self._all += len(rows) * len(plan.rules.span(cells))
            first = plan.normalized and (plan.carried or not plan.whole_rows)
            if first and att.known_rows(region.batch, region.head, rows) is None:
                self._all += len(rows) * len(plan.rules.span(cells._replace(keys=row)))

    def share(self, cells: int) -> float:
        """Count so many more cells, and return the share done, at most 1."""
        self._done += cells
        return min(self._done / max(1, self._all), 1.0)

    def through(self, done: int, steps: Generator[int, None, T]) -> Generator[tuple[int, float], None, T]:
        """Run steps that yield numbers of cells, and yield the progress instead."""
        return passing(steps, lambda cells: (done, self.share(cells)))
