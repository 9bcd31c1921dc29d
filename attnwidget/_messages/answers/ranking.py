"""Rank rows and columns of any length: strongest cells, how many hold nine tenths of the sum, entropy.

js/src/data/rank.ts has the same definitions, for the rows that a front-end has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isinf, isnan, log2
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._engine.level_cache import CachedLevel
from ..._engine.sources import Stage
from ..._engine.stages import MASKED
from ..._utils.indexing import cuts
from ...attention import Attention

STRONGEST_SORTED = 4096  # cells sorted first: most rows reach nine tenths within them
MAX_BINS_AT_ONCE = 1 << 19  # bins of a level searched at a time
MAX_CELLS_AT_ONCE = 1 << 21  # cells of rows or columns read at a time


@dataclass(frozen=True, eq=False)
class Ranking:
    """The strongest cells of a row or column, and totals over all its cells.

    positions: (count,) int64, the strongest cells, strongest first, earlier first among equals; none is blocked or NaN.
    values: (count,) float32, their values.
    allowed: the number of cells that are neither blocked nor NaN.
    blocked: the number of blocked cells.
    nan: the number of NaN cells.
    sum: the sum of the allowed cells.
    rest_sum: the sum of the allowed cells that are not in `positions`.
    entropy: bits, of the allowed cells as shares of their sum.
    max_entropy: bits, if all allowed cells were equal.
    ninety: the fewest cells that hold nine tenths of the sum.
    sink: the learned sink's value in a row, counted as one more cell in the entropies; None if there is no sink.
    """

    positions: Tensor
    values: Tensor
    allowed: int
    blocked: int
    nan: int
    sum: float
    rest_sum: float
    entropy: float
    max_entropy: float
    ninety: int
    sink: float | None


def rank(
    values: Tensor, blocked: Tensor | None, count: int, sink: float | None = None, *, by_size: bool = False
) -> Ranking:
    """Rank a row or column.

    Args:
        values: (n,) float32.
        blocked: (n,) bool; None if no cell is blocked.
        count: the number of strongest cells to return, at most.
        sink: the learned sink's value in a row, if there is one.
        by_size: rank by absolute value, and compute no entropy.

    >>> found = rank(torch.tensor([0.1, 0.6, 0.3, 0.0]), torch.tensor([False, False, False, True]), 2)
    >>> found.positions, found.allowed, found.ninety
    (tensor([1, 2]), 3, 2)
    """
    nan = values.isnan()
    allowed = ~(nan if blocked is None else nan | blocked)
    many = int(allowed.sum())
    positions = _strongest(values.abs() if by_size else values, allowed, min(count, many))
    top, finite = values[positions], values[allowed].double()
    total = float(finite.sum())
    sum_of_top = float(top[~top.isneginf()].double().sum())
    rest = total - sum_of_top
    if total == inf:  # ∞ − ∞ would be NaN whatever is left
        others = allowed.index_fill(0, positions, False)
        rest = float(values[others].double().sum())
    blocked_cells = 0 if blocked is None else int(blocked.sum())
    return Ranking(
        positions=positions,
        values=top,
        allowed=many,
        blocked=blocked_cells,
        nan=len(values) - many - blocked_cells,
        sum=total,
        rest_sum=rest if isnan(rest) or by_size else max(0.0, rest),
        entropy=0.0 if by_size else _entropy(finite, total, sink or 0.0),
        max_entropy=log2(many + (sink is not None)) if many else 0.0,
        ninety=0 if by_size else _ninety(finite.numpy(), total),
        sink=sink,
    )


def _strongest(values: Tensor, allowed: Tensor, count: int) -> Tensor:
    if count == 0:
        return torch.zeros(0, dtype=torch.int64, device=values.device)
    least = values.masked_fill(~allowed, -inf).topk(count).values[-1]
    above = (allowed & (values > least)).nonzero()[:, 0]  # fewer than count
    above = above[values[above].sort(descending=True, stable=True).indices]
    return torch.cat([above, (allowed & (values == least)).nonzero()[: count - len(above), 0]])


def _entropy(values: Tensor, total: float, sink: float) -> float:
    values, total = torch.cat([values, values.new_tensor([sink])]), total + sink
    shares = values[(values > 0) & ~values.isinf()]
    entropy = -float((shares * shares.log2()).sum())
    return max(0.0, entropy / total + log2(total)) if 0 < total < inf else entropy


def _ninety(values: np.ndarray[tuple[int], np.dtype[np.float64]], total: float) -> int:
    target = 0.9 * total - 1e-7
    if not target > 0:
        return 0
    if isinf(total):
        return 1
    few = (
        np.partition(values, len(values) - STRONGEST_SORTED)[len(values) - STRONGEST_SORTED :]
        if len(values) > 2 * STRONGEST_SORTED
        else values
    )
    for some in (few, values):
        reached = np.cumsum(np.sort(some)[::-1]) >= target
        if reached.any():
            return int(reached.argmax()) + 1
    return len(values)


def line(
    att: Attention, stage: Stage, batch: int, head: int, side: str, places: Sequence[int], *, mean: bool
) -> tuple[Tensor, Tensor | None]:
    """Read the mean or sum of some queries over all keys, or of some keys over all queries.

    Args:
        att: the attention.
        stage: the stage to read.
        batch: the sample.
        head: the head.
        side: "queries" or "keys".
        places: positions along `side`.
        mean: return the mean; otherwise the sum.

    Returns:
        (n,) float32, and (n,) bool, the cells blocked in every row or column read; None if there are none.
    """
    length, others = (att.shape.K, "keys") if side == "queries" else (att.shape.Q, "queries")
    masked = stage in MASKED
    total = torch.zeros(length, dtype=torch.float64, device="cpu")
    any_allowed = torch.zeros(length, dtype=torch.bool, device="cpu")
    whole_rows = side == "queries"  # a query's weights need all its keys at once
    some = max(1, MAX_CELLS_AT_ONCE // length) if whole_rows else len(places)
    pieces = [range(length)] if whole_rows else list(cuts(range(length), 1, max(1, MAX_CELLS_AT_ONCE // len(places))))
    for first in range(0, len(places), some):
        for piece in pieces:
            where: dict[str, Any] = {
                side: list(places[first : first + some]),
                others: piece,
                "batch": batch,
                "head": head,
            }
            axis, at = (0, slice(None)) if whole_rows else (1, slice(piece.start, piece.stop))
            values = att.block(stage, **where)
            if masked:
                allowed = att.block("allowed", **where)
                values = values.masked_fill(~allowed, 0)
                any_allowed[at] |= allowed.any(axis).cpu()
            total[at] += values.float().double().sum(axis).cpu()
    values = (total / len(places) if mean else total).float()
    return values, ~any_allowed if masked and not bool(any_allowed.all()) else None


def _strongest_bins(level: CachedLevel, count: int, *, skip_first: bool) -> list[tuple[int, int]]:
    """Return the bins with the largest absolute values, (row, column), without zeros; reads a few rows at a time."""
    values = level.overview.values
    columns = values.shape[1]
    best, places = values.new_zeros(0), torch.zeros(0, dtype=torch.int64, device=values.device)
    for piece in cuts(range(len(values)), 1, max(1, MAX_BINS_AT_ONCE // max(1, columns))):
        part = _sizes(values[piece.start : piece.stop])
        if skip_first:
            assert level.beside_first is not None  # levels pooled by maximum have it for stages with pairs
            part[:, 0] = _sizes(level.beside_first[piece.start : piece.stop])
        top, bins = part.flatten().topk(min(count, part.numel()))
        best, order = torch.cat([best, top]).sort(descending=True, stable=True)
        best, places = best[:count], torch.cat([places, bins + piece.start * columns])[order[:count]]
    return [divmod(place, columns) for place in places[best > 0].tolist()]


def _sizes(values: Tensor) -> Tensor:
    """Return absolute values, with 0 for NaN and ±∞."""
    return values.nan_to_num(0.0, 0.0, 0.0).abs()


def strongest_pairs(
    att: Attention,
    level: CachedLevel,
    batch: int,
    head: int,
    *,
    count: int,
    skip_first: bool,
    stage: Stage = "weights",
) -> list[tuple[int, int, float]]:
    """Find the strongest pairs of a head, at most one in each bin of a level.

    Signed numbers are ranked by absolute value and keep their sign.

    Args:
        att: the attention.
        level: the head's stage, pooled by maximum.
        batch: the sample.
        head: the head.
        count: the number of pairs, at most.
        skip_first: leave out key 0.
        stage: the weights, or a stage after them.

    Returns:
        (query, key, number), strongest first, without zeros.
    """
    pairs = []
    for row, column in _strongest_bins(level, count, skip_first=skip_first):
        queries, keys = (
            range(at * width, min((at + 1) * width, n))
            for at, width, n in (
                (row, level.overview.query_bin, att.shape.Q),
                (column, level.overview.key_bin, att.shape.K),
            )
        )
        keys = keys[1:] if skip_first and column == 0 else keys
        block = att.block(stage, batch=batch, head=head, queries=queries, keys=keys)
        query, key = divmod(int(_sizes(block).argmax()), len(keys))
        pairs.append((queries[query], keys[key], float(block[query, key])))
    return sorted(pairs, key=lambda pair: (-abs(pair[2]), pair[0], pair[1]))
