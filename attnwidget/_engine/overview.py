"""Heads seen from afar: stages pooled into uniform bins while they stream past; no (Q, K) tensor anywhere."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from math import ceil, inf
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._rules.rules import Rules, whole
from .._utils.indexing import Block, cuts
from .._utils.validation import as_choice, as_size
from ..masks import BandLimits
from .base import AttentionBase
from .combined_heads import prepared
from .dense_masks import rows_at_once, serves
from .matmul import exact
from .pooling import AllowedCounts, count_cells, counting, reached
from .regions import Region, bins, tile_region
from .softmax import is_finite, is_small, normalizing
from .stages import (
    NORMALIZED,
    QUERIES,
    allowed_cells,
    new,
    streamed,
)
from .stripes import DenseStripe, KnownStripe, Stripe, stripe_of

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
        for _ in prepared(att, batch, rows):
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
