"""Rankings of rows and columns of any length: the strongest cells, how many hold nine tenths, the entropy.

The definitions are those of js/src/data/rank.ts, which answers for the rows that a front-end has.
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

STRONGEST_SORTED = 4096  # cells, in which most rows hold nine tenths: sorted before all others are
MAX_BINS_AT_ONCE = 1 << 19  # of a level, of which the largest are looked for
MAX_CELLS_AT_ONCE = 1 << 21  # of rows or columns that are read together


@dataclass(frozen=True, eq=False)
class Ranking:
    """The strongest cells of a row or column, and what all of them come to.

    positions: (count,) int64, of the strongest cells, strongest first, of equal ones the earlier; neither blocked nor
        NaN.
    values: (count,) float32, of the same cells.
    allowed: how many cells are neither blocked nor NaN.
    blocked: how many are blocked.
    nan: how many are NaN.
    sum: of the allowed cells.
    rest_sum: of the allowed cells that are not among the strongest.
    entropy: bits, of the allowed cells as shares of their sum.
    max_entropy: bits, if all allowed cells were alike.
    ninety: the fewest cells that hold nine tenths of the sum.
    sink: the number of the learned sink beside the cells of a row, which the entropies count as one more cell; None
        where there is none.
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
        blocked: (n,) bool; None where no cell is blocked.
        count: how many of the strongest cells to name, at most.
        sink: the number of the learned sink in a row, if there is one.
        by_size: whether the strongest are those of largest absolute value, and no entropy is asked for.

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
    """Read the numbers of some queries over all keys, or of some keys over all queries, as their mean or sum.

    Args:
        att: the attention.
        stage: the stage that is read.
        batch: which sample.
        head: which head.
        side: "queries" or "keys".
        places: which of them.
        mean: whether several come to their mean, or else to their sum.

    Returns:
        (n,) float32, and (n,) bool, which are blocked in all of them; None where none is.
    """
    length, others = (att.shape.K, "keys") if side == "queries" else (att.shape.Q, "queries")
    masked = stage in MASKED
    total = torch.zeros(length, dtype=torch.float64, device="cpu")
    any_allowed = torch.zeros(length, dtype=torch.bool, device="cpu")
    whole_rows = side == "queries"  # a query's weights are of all keys at once
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
    """Return the bins of largest size, (row, column); none of 0. Some rows at a time: a level is large."""
    values = level.overview.values
    columns = values.shape[1]
    best, places = values.new_zeros(0), torch.zeros(0, dtype=torch.int64, device=values.device)
    for piece in cuts(range(len(values)), 1, max(1, MAX_BINS_AT_ONCE // max(1, columns))):
        part = _sizes(values[piece.start : piece.stop])
        if skip_first:
            assert level.beside_first is not None  # every level pooled by maximum of which pairs are asked for has it
            part[:, 0] = _sizes(level.beside_first[piece.start : piece.stop])
        top, bins = part.flatten().topk(min(count, part.numel()))
        best, order = torch.cat([best, top]).sort(descending=True, stable=True)
        best, places = best[:count], torch.cat([places, bins + piece.start * columns])[order[:count]]
    return [divmod(place, columns) for place in places[best > 0].tolist()]


def _sizes(values: Tensor) -> Tensor:
    """Return how large numbers are; 0 of what is none, as where nothing is allowed."""
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
    """Find the strongest pairs of a head, no two of them in the same bin of a level.

    Of numbers with signs the largest by size, with their signs.

    Args:
        att: the attention.
        level: of the head's stage, pooled by maximum.
        batch: which sample.
        head: which head.
        count: how many pairs, at most.
        skip_first: whether key 0 is left out.
        stage: the weights, or a stage that they are multiplied to.

    Returns:
        (query, key, number), strongest first; none is 0.
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
