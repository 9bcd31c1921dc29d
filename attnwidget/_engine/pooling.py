"""Pool blocks into uniform bins, and count the allowed cells of each bin."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from .._rules.rules import Allowed
from .._utils.indexing import Block, cuts
from ..masks import BandLimits
from .base import AttentionBase
from .regions import Region, bins
from .stages import KEYS, QUERIES, allowed_cells

# Numbers.


def pool_first(x: Tensor, width: int, reduce: Callable[..., Tensor], out: Tensor | None = None) -> Tensor:
    """Pool the first axis; the last bin may be smaller.

    Args:
        x: (n, …).
        width: positions in a bin.
        reduce: torch.amax, torch.sum or another function that reduces an axis.
        out: (⌈n / width⌉, …), memory for the result.

    Returns:
        (⌈n / width⌉, …); x itself for bins of one position.
    """
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
    """Pool the last axis of a matrix: (n, m) -> (n, ⌈m / width⌉); the last bin may be smaller."""
    if reduce is torch.amax and 1 < width < 32 and x.shape[0] and x.device.type == "cpu":  # several times faster
        return F.max_pool1d(x, width, ceil_mode=True)
    return pool_first(x.mT, width, reduce).mT


def pool_by_size(x: Tensor, width: int) -> Tensor:
    """Pool the first axis to the number of largest absolute value, with its sign: (n, …) -> (⌈n / width⌉, …)."""
    return x if width == 1 else larger_by_size(pool_first(x, width, torch.amax), pool_first(x, width, torch.amin))


def larger_by_size(high: Tensor, low: Tensor) -> Tensor:
    """Return the element of `high` or `low` with the larger absolute value; NaN if one of them is."""
    return torch.where((high.abs() >= low.abs()) | high.isnan(), high, low)


# Allowed cells.


class AllowedCounts:
    """Counts the allowed cells of each bin, block by block.

    counts: (rows, columns) int64.
    """

    def __init__(self, att: AttentionBase, region: Region):
        self.counts = torch.zeros_like(count_cells(att, region))
        self._att, self._region = att, region

    def add(self, piece: range, keys: range, allowed: Allowed) -> None:
        """Count the allowed cells of a block.

        Args:
            piece: its queries, counted from the region's first.
            keys: its keys.
            allowed: broadcasts to (queries, keys).
        """
        if allowed is False:
            return
        part = self._region._replace(queries=piece, keys=keys)
        found = count_cells(self._att, part)
        if isinstance(allowed, Tensor):
            by_row = pool_first(allowed.expand(len(piece), len(keys)), part.query_bin, _count)  # (rows, keys)
            found = pool_first(by_row.mT, part.key_bin, _count).mT  # (rows, columns)
        self.counts[bins(piece, part.query_bin), self._region.columns(keys)] += found

    def mark(self, piece: range, columns: slice, any_allowed: Tensor) -> None:
        """Mark the bins that have an allowed cell, if their number is not needed.

        Args:
            piece: queries, counted from the region's first.
            columns: of the bins.
            any_allowed: (rows, columns) bool.
        """
        self.counts[bins(piece, self._region.query_bin), columns] += any_allowed


def counting(att: AttentionBase, region: Region) -> Generator[tuple[int, float], None, AllowedCounts]:
    """Count the allowed cells of each bin, without computing scores if possible.

    Yields:
        After each block, the progress as in `pooled`: all is done.

    Returns:
        The counts.
    """
    counts = AllowedCounts(att, region)
    for piece in cuts(range(len(region.queries)), region.query_bin, QUERIES):
        row = Block(region.batch, region.head, region.queries[piece.start : piece.stop], region.keys)
        for keys in att.rules.pieces(row, region.key_bin, KEYS):
            counts.add(piece, keys, allowed_cells(att, row._replace(keys=keys)))
            yield len(region.queries), 1.0
    return counts


def bins_within(att: AttentionBase, region: Region, limits: BandLimits) -> Tensor:
    """Return which bins have a cell within band limits, in a time that does not depend on the width of bins.

    The bands of adjacent queries have no gap between them, so a bin of adjacent queries is treated as one band. Sampled
    queries are treated one by one.

    Returns:
        (rows, columns) bool.
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
    if limits.low is not None and limits.high is not None and limits.low > limits.high:
        return pool_first(found.zero_(), region.query_bin // together.query_bin, torch.any)
    if limits.low is not None:
        found &= stop > (first + limits.low)[:, None]
    if limits.high is not None:
        found &= start <= (last + limits.high)[:, None]
    if limits.stop is not None:
        found &= start < limits.stop
        if limits.low is not None:
            found &= (first + limits.low < limits.stop)[:, None]
    return pool_first(found, region.query_bin // together.query_bin, torch.any)


def count_cells(att: AttentionBase, region: Region) -> Tensor:
    """Return how many cells each bin of a region has, (rows, columns) int64."""
    rows, columns = (
        torch.arange(0, n, width, device=att.device).sub_(n).neg_().clamp_(max=width)
        for n, width in ((len(region.queries), region.query_bin), (len(region.keys), region.key_bin))
    )
    return rows[:, None] * columns


_count = partial(torch.sum, dtype=torch.int32)  # faster than any() over bools
