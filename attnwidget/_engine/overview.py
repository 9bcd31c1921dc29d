"""Heads seen from afar: stages pooled into uniform bins while they stream past; no (Q, K) tensor anywhere."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .._rules.rules import Allowed, Rules, whole
from .._utils.indexing import Block, as_index, cuts
from .._utils.validation import as_choice, as_size
from ..masks import BandLimits
from .base import AttentionBase
from .dense_masks import filled, rows_at_once, serves
from .logsumexp import LogSumExp
from .matmul import exact, exp_
from .softmax import SMALL, DirectSum, Softmax, is_finite, is_small, normalizing
from .stages import (
    KEYS,
    NORMALIZED,
    QUERIES,
    allowed_cells,
    blocks,
    by_value,
    exponentials,
    log_by_value,
    new,
    norms,
    streamed,
)

POOLS = ("max", "mean")
APART = 128  # queries of a sample, in whose blocks a mask cuts deep


@dataclass(frozen=True, eq=False)
class Overview:
    """A head seen from afar: bins of the matrix, `query_bin` × `key_bin` cells each, the last of them ragged.

    values: (rows, columns), the pooled stage, float32 or float64.
    allowed: (rows, columns) bool, True where any cell of the bin is allowed.
    """

    values: Tensor
    allowed: Tensor
    query_bin: int
    key_bin: int

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The values, for numpy, matplotlib and whatever takes arrays."""
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
    """A head pooled to at most size × size bins: see `Attention.overview`.

    >>> import torch, attnwidget.attention
    >>> att = attnwidget.attention.Attention(*torch.randn(2, 1000, 8), is_causal=True)
    >>> seen = overview(att, 0, 0, size=100)
    >>> seen.values.shape, seen.query_bin, seen.key_bin
    (torch.Size([100, 100]), 10, 10)
    """
    seen = passes(att, batch, head, size=size, pool=pool, stage=stage, seconds=0.1 if progress else inf)
    if not progress:
        return seen.whole()
    with progress_bar()(total=att.shape.Q, unit="query", unit_scale=True, desc="overview") as bar:
        for share in seen:
            bar.update(att.shape.Q * share - bar.n)
    return seen.result


def progress_bar() -> Any:
    """The bar of the surrounding: tqdm's, which draws a widget in a notebook and a line in a terminal."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress=True draws a bar with tqdm: pip install 'attnwidget[progress]'") from None
    return tqdm


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
    """A stage of exact queries, evenly spread up to the last, each pooled over the keys: at most `rows` × `columns`, or
    by bins, as in an overview.

    The cost is that of these rows alone: a thumbnail at any length. One query of each bin of an overview is taken;
    `query_bin` is the distance from one to the next.

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
    return OverviewPass(att, region.sample(att), stage, pool, inf).whole()


def _as_bin(width: Any, count: Any, n: int, name: str, counted: str) -> int:
    """The width of a bin, given as such or by how many bins there may be."""
    if (width is None) == (count is None):
        raise TypeError(f"{name} is {width!r} and {counted} is {count!r}: give one of them")
    return as_size(width, name) if count is None else ceil(n / as_size(count, counted))


def _check(att: AttentionBase, stage: str, pool: str) -> None:
    as_choice(pool, POOLS, "pool")
    att.check_stage(stage)


class OverviewPass:
    """An overview in slices, so that whoever asks stays free between them: an iterator of the share that is done, up to
    1. It ends when `result` is there. Dropping it, or `close`, cancels. The log-normalizers of each row of blocks that
    is finished are remembered, unless the tensors have changed on the way.

    region: what it is of.
    done: queries that are finished.
    share: of the cells that are computed at all, what is finished.
    cells: once finished, (rows, columns) int32, what each mean is over; None for the maximum.
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
        """The overview; RuntimeError as long as it is not finished."""
        if self._result is None:
            raise RuntimeError("the pass is not finished: go on with it, or start another")
        return self._result

    @property
    def finished(self) -> bool:
        return self._result is not None

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
                    self._finish(end.value)
                    return self.share
                if perf_counter() >= until:
                    return self.share

    def whole(self) -> Overview:
        """All that is left of it, at once."""
        for _ in self:
            pass
        return self.result

    def close(self) -> None:
        """Give up."""
        self._steps.close()

    def _finish(self, found: PooledRegion) -> None:
        region, self.cells = self.region, found.cells
        self._result = Overview(found.values, found.allowed, region.every, region.key_bin)


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
    """`overview` in slices of little more than `seconds`: one product of a block is the least there is.

    >>> import torch, attnwidget.attention
    >>> att = attnwidget.attention.Attention(*torch.randn(2, 3000, 8))
    >>> slices = passes(att, 0, 0, seconds=0)
    >>> [round(share, 2) for share in slices][:2], slices.result.values.shape
    ([0.12, 0.17], torch.Size([500, 500]))
    """
    size = as_size(size, "size")
    _check(att, stage, pool)
    batch, head = att.find(batch, head)
    queries, keys = range(att.shape.Q), range(att.shape.K)
    region = Region(batch, head, queries, keys, ceil(len(queries) / size), ceil(len(keys) / size))
    return OverviewPass(att, region, stage, pool, seconds)


def tile(
    att: AttentionBase,
    batch: int,
    head: int,
    *,
    level: int | tuple[int, int],
    row: int,
    column: int,
    size: int = 256,
    stage: str = "weights",
    pool: str = "max",
) -> Overview:
    """One tile of a level, at most size × size bins of 2^level × 2^level cells each, ragged at the ends; or of a level
    of rows and another of columns.

    Tile (row, column) begins at query row · size · 2^level and key column · size · 2^level, so those of one level meet,
    and four bins of one level make one of the next. It is exact from the log-normalizers of the rows in view alone:
    those that are known, or else computed for it, and then known.

    >>> import torch, attnwidget
    >>> att = attnwidget.Attention(*torch.randn(2, 1000, 8))
    >>> tile(att, 0, 0, level=1, row=1, column=0).values.shape
    torch.Size([244, 256])
    >>> tile(att, 0, 0, level=(0, 2), row=0, column=0).values.shape
    torch.Size([256, 250])
    """
    _check(att, stage, pool)
    region = tile_region(att, batch, head, level=level, row=row, column=column, size=size)
    return OverviewPass(att, region, stage, pool, inf).whole()


def tile_region(
    att: AttentionBase, batch: int, head: int, *, level: int | tuple[int, int], row: int, column: int, size: int = 256
) -> Region:
    """Where a tile lies, for a `OverviewPass` over it in slices, or over a sample of it: see `tile`."""
    size, levels = as_size(size, "size"), as_levels(att, level)
    batch, head = att.find(batch, head)
    widths = [2**each for each in levels]
    queries, keys = (
        _span(at, size * width, n, what)
        for at, width, n, what in zip((row, column), widths, (att.shape.Q, att.shape.K), ("row", "column"), strict=True)
    )
    return Region(batch, head, queries, keys, *widths)


def _span(at: Any, step: int, n: int, what: str) -> range:
    """The positions of tile number `at`, of which each has `step`."""
    index = as_index(at, ceil(n / step), what, f"{what}s")
    return range(index * step, min((index + 1) * step, n))


def as_levels(att: AttentionBase, level: Any) -> tuple[int, int]:
    """The level of the rows and that of the columns; one number is both."""
    if not isinstance(level, tuple):
        return (as_level(att, level),) * 2
    if len(level) != 2:
        raise ValueError(f"level is {level!r:.60}: give an integer, or one for rows and one for columns")
    return as_level(att, level[0]), as_level(att, level[1])


def as_level(att: AttentionBase, level: Any) -> int:
    """A level of a head from 0, cell by cell, to the one where all of it is a single bin."""
    return as_index(level, top_level(att) + 1, "level", "levels")


def top_level(att: AttentionBase) -> int:
    """The level where all of a head is a single bin."""
    return (max(att.shape.Q, att.shape.K, 1) - 1).bit_length()


def own_keys(att: AttentionBase, batch: int, head: int, seen: Overview) -> int:
    """How many keys come before those at the end that no query may attend to: a padded sample's own length.

    >>> import torch, attnwidget
    >>> att = attnwidget.Attention(*torch.randn(2, 1, 6, 8), mask=attnwidget.masks.padding([4]))
    >>> own_keys(att, 0, 0, overview(att, 0, 0))
    4
    """
    open_bins = seen.allowed.any(0).nonzero()
    if len(open_bins) == 0:
        return 0
    start = int(open_bins[-1]) * seen.key_bin
    keys = range(start, min(start + seen.key_bin, att.shape.K))
    if len(keys) == 1:
        return keys.stop
    last = 0
    with exact(att.device):
        for rows in reversed(list(cuts(range(att.shape.Q), 1, QUERIES))):  # the last query of a causal mask sees most
            allowed = allowed_cells(att, Block(batch, head, rows, keys))
            places = whole(allowed, rows, keys, att.device).any(0).nonzero()
            last = max(last, int(places[-1]) + 1 if len(places) else 0)
            if last == len(keys):
                break
    return start + last


class Region(NamedTuple):
    """Some queries × some keys of a head, in bins of query_bin × key_bin cells, counted from the first of each."""

    batch: int
    head: int
    queries: range
    keys: range  # without gaps
    query_bin: int
    key_bin: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return ceil(len(self.queries) / self.query_bin), ceil(len(self.keys) / self.key_bin)

    @property
    def every(self) -> int:
        """How many queries it is from one row to the next."""
        return self.query_bin * self.queries.step

    def sample(self, att: AttentionBase) -> Region:
        """One query in the place of each bin: the last of the head, and those that lie whole bins before it, so that
        all tiles of a level, and the picture in these bins, show the same queries."""
        first = self.queries.start + (att.shape.Q - 1 - self.queries.start) % self.query_bin
        return self._replace(queries=range(first, self.queries.stop, self.query_bin), query_bin=1)

    def columns(self, keys: range) -> slice:
        """The bins in which some of the keys lie."""
        first = self.keys.start
        return bins(range(keys.start - first, keys.stop - first), self.key_bin)


class PooledRegion(NamedTuple):
    """What comes of a region: pooled values, and which bins have an allowed cell."""

    values: Tensor  # (rows, columns)
    allowed: Tensor  # (rows, columns) bool
    cells: Tensor | None  # (rows, columns) int32, what each mean is over; None for the maximum


def pooled(
    att: AttentionBase, region: Region, stage: str, pool: str
) -> Generator[tuple[int, float], None, PooledRegion]:
    """A stage of a region, pooled while its blocks stream past; yields after each how many queries are done, and which
    share of all cells that are computed.

    Log-normalizers that are not known come from the same pass where the region has all keys, else from one of their own
    over the rows in view; from then on they are known.
    """
    batch, head, queries = region[:3]
    base, whole_row = streamed(att, stage), region.keys == range(att.shape.K)
    normalized = base == "masked" and stage in NORMALIZED
    values = new(att, *region.shape).fill_(-inf if pool == "max" and not normalized else 0)
    grid = new(att, region.shape[1], min(len(queries), QUERIES))
    strip, averaged = att.rules.strip(batch), pool == "mean" and stage == "masked"  # over the allowed cells only
    seen = AllowedCounts(att, region) if base == "masked" and (strip is None or averaged) else None
    dense = whole_row and serves(att, batch, head, queries, stage)
    limit = rows_at_once(att, region.query_bin) if dense else QUERIES
    if queries.step > 1 and strip is not None and strip != BandLimits():
        limit = min(limit, APART)  # fewer of them have more keys in common
    tells = dense or (seen is not None and stage == "weights" and is_finite(att, batch, head, queries))
    pieces = list(cuts(range(len(queries)), region.query_bin, limit))
    rules = att.rules if base == "masked" else Rules()
    work = PassProgress(att, region, rules, [queries[piece.start : piece.stop] for piece in pieces], normalized)
    versions = att.versions()
    kind: type[Stripe] | None = None if normalized else Stripe
    for piece in pieces:
        rows, settled = queries[piece.start : piece.stop], None
        for _ in att.source.prepare(batch, rows):
            yield piece.start, work.share(0)
        if normalized and not dense and (not whole_row or (pool == "max" and region.key_bin > 1)):  # else of no use
            settled = att.known_rows(batch, head, rows)
        if normalized and settled is None and not whole_row:
            steps = normalizing(att, batch, head, rows)
            while settled is None:
                try:
                    yield piece.start, work.share(next(steps))
                except StopIteration as end:
                    settled = end.value
        if settled is None and kind is None:
            kind = DenseStripe if dense else stripe_of(pool, is_small(att, batch, head, queries))
        columns = region.columns(rules.span(Block(batch, head, rows, region.keys)))  # the others stay as they are
        about = att, region, rows, columns, stage, pool, grid[:, : len(piece)]
        stripe = KnownStripe(settled, *about) if settled is not None else (kind or Stripe)(*about)
        for keys, S, allowed in stripe.blocks():
            if seen is not None and not (tells and stripe.nothing is not None):
                seen.add(piece, keys, allowed)
            stripe.add(keys, S, allowed)
            del S  # the next one comes to lie where it was
            yield piece.start, work.share(len(piece) * len(keys))
        if seen is not None and tells and stripe.nothing is not None:
            seen.note(piece, columns, stripe.opened())
        pair = stripe.finish()
        if pair is not None and settled is None:
            att.remember_rows(batch, head, rows, pair, versions)
        found = values[bins(piece, region.query_bin), columns]  # (rows, columns)
        if pool == "max":
            torch.maximum(found, stripe.pooled(), out=found)
        else:
            found += stripe.pooled()
        yield piece.stop, work.share(len(piece) * len(region.keys) if dense else 0)
    if seen is None and strip is None:
        seen = yield from counting(att, region)
    cells = None
    if pool == "mean":
        cells = (seen.counts if seen is not None and averaged else count_cells(att, region)).to(torch.int32)
        values = (values / cells).masked_fill(cells == 0, -inf)
    if strip is not None and seen is None:
        open_bins = reached(att, region, strip)
    else:
        assert seen is not None  # counted on the way, or after it
        open_bins = seen.counts > 0
    return PooledRegion(values, open_bins, cells)


class PassProgress:
    """What there is to compute, in cells: those of the region, and of the rows whose log-normalizers are to be had
    first."""

    def __init__(self, att: AttentionBase, region: Region, rules: Rules, stripes: list[range], normalized: bool):
        self._done, self._all = 0, 0
        batch, head, whole_row = region.batch, region.head, range(att.shape.K)
        for rows in stripes:
            self._all += len(rows) * len(rules.span(Block(batch, head, rows, region.keys)))
            if normalized and region.keys != whole_row and att.known_rows(batch, head, rows) is None:
                self._all += len(rows) * len(rules.span(Block(batch, head, rows, whole_row)))

    def share(self, cells: int) -> float:
        """What is done once these have been computed as well: at most 1."""
        self._done += cells
        return min(self._done / max(1, self._all), 1.0)


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


class AllowedCounts:
    """How many cells of each bin are allowed, (rows, columns) int64, as blocks come in."""

    def __init__(self, att: AttentionBase, region: Region):
        self.counts = torch.zeros_like(count_cells(att, region))
        self._att, self._region = att, region

    def add(self, piece: range, keys: range, allowed: Allowed) -> None:
        """Take in a block: its queries counted from the region's first."""
        if allowed is False:
            return
        part = self._region._replace(queries=piece, keys=keys)
        found = count_cells(self._att, part)
        if isinstance(allowed, Tensor):
            by_row = pool_first(allowed.expand(len(piece), len(keys)), part.query_bin, count)  # (rows, keys)
            found = pool_first(by_row.mT, part.key_bin, count).mT  # (rows, columns)
        self.counts[bins(piece, part.query_bin), self._region.columns(keys)] += found

    def note(self, piece: range, columns: slice, any_allowed: Tensor) -> None:
        """Take in which of a row's bins have an allowed cell at all."""
        self.counts[bins(piece, self._region.query_bin), columns] += any_allowed


def counting(att: AttentionBase, region: Region) -> Generator[tuple[int, float], None, AllowedCounts]:
    """How many cells of each bin are allowed, without their scores if it can be; yields after each block."""
    seen = AllowedCounts(att, region)
    for piece in cuts(range(len(region.queries)), region.query_bin, QUERIES):
        row = Block(region.batch, region.head, region.queries[piece.start : piece.stop], region.keys)
        for keys in att.rules.pieces(row, region.key_bin, KEYS):
            seen.add(piece, keys, allowed_cells(att, row._replace(keys=keys)))
            yield len(region.queries), 1.0
    return seen


def reached(att: AttentionBase, region: Region, strip: BandLimits) -> Tensor:
    """Which bins have a cell in a strip, (rows, columns) bool, whatever the length.

    Of neighbouring queries at most one key apart, what they reach together has no gaps; of others each counts.
    """
    together = region if region.queries.step == 1 else region._replace(query_bin=1)
    rows, columns = (
        torch.arange(0, len(places), width, device=att.device)
        for places, width in ((region.queries, together.query_bin), (region.keys, region.key_bin))
    )
    first = region.queries.start + rows * region.queries.step  # (rows,) queries
    last = torch.clamp(first + (together.query_bin - 1), max=region.queries[-1])
    start = region.keys.start + columns  # (columns,) keys
    stop = torch.clamp(start + region.key_bin, max=region.keys.stop)
    found = torch.ones(len(rows), len(columns), dtype=torch.bool, device=att.device)
    if strip.low is not None and strip.high is not None and strip.low > strip.high:
        return pool_first(found.zero_(), region.query_bin // together.query_bin, torch.any)
    if strip.low is not None:
        found &= stop > (first + strip.low)[:, None]
    if strip.high is not None:
        found &= start <= (last + strip.high)[:, None]
    if strip.stop is not None:
        found &= start < strip.stop
        if strip.low is not None:
            found &= (first + strip.low < strip.stop)[:, None]
    return pool_first(found, region.query_bin // together.query_bin, torch.any)


def count_cells(att: AttentionBase, region: Region) -> Tensor:
    """How many cells each bin of a region has, (rows, columns) int64."""
    rows, columns = (
        torch.arange(0, n, width, device=att.device).sub_(n).neg_().clamp_(max=width)
        for n, width in ((len(region.queries), region.query_bin), (len(region.keys), region.key_bin))
    )
    return rows[:, None] * columns


count = partial(torch.sum, dtype=torch.int32)  # faster than any() over bools


def bins(piece: range, width: int) -> slice:
    """Which bins a piece lies in."""
    return slice(piece.start // width, ceil(piece.stop / width))


def pool_first(x: Tensor, width: int, reduce: Callable[..., Tensor], out: Tensor | None = None) -> Tensor:
    """Pool the first axis: (n, …) -> (⌈n / width⌉, …), the last bin ragged."""
    if width == 1:
        return x if out is None else out.copy_(x)
    n = x.shape[0] // width
    bins, rest = x[: n * width].reshape(n, width, *x.shape[1:]), x[n * width :]
    if out is None:
        parts = ([reduce(bins, 1)] if n else []) + ([reduce(rest, 0)[None]] if rest.shape[0] else [])
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    if n:
        reduce(bins, 1, out=out[:n])
    if rest.shape[0]:
        reduce(rest, 0, out=out[n])
    return out


def pool_last(x: Tensor, width: int, reduce: Callable[..., Tensor]) -> Tensor:
    """Pool the last axis of a matrix: (n, m) -> (n, ⌈m / width⌉), the last bin ragged."""
    if reduce is torch.amax and 1 < width < 32 and x.shape[0] and x.device.type == "cpu":  # several times faster
        return F.max_pool1d(x, width, ceil_mode=True)
    return pool_first(x.mT, width, reduce).mT
