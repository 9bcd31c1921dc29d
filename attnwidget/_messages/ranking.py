"""What a person asks of one row or column, however long: which are strongest, how many matter, how spread out it is.

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

from .._engine.level_cache import CachedLevel
from .._utils.indexing import cuts
from ..attention import Attention
from .picture import MASKED

SORTED = 4096  # of which most rows hold nine tenths
CELLS = 1 << 21  # of rows or columns that are read at a time


@dataclass(frozen=True, eq=False)
class Ranking:
    """positions, values: the strongest, strongest first, of equal ones the earlier; blocked and NaN are not among them.

    allowed, blocked, nan: how many cells are neither blocked nor NaN, and how many are.
    sum: of the allowed; rest_sum: of those of them that are not among the strongest.
    entropy, max_entropy: in bits, of the allowed as shares of their sum; and if all were alike.
    ninety: the fewest cells that hold nine tenths of the sum.
    """

    positions: Tensor  # (count,) int64
    values: Tensor  # (count,) float32
    allowed: int
    blocked: int
    nan: int
    sum: float
    rest_sum: float
    entropy: float
    max_entropy: float
    ninety: int


def rank(values: Tensor, blocked: Tensor | None, count: int) -> Ranking:
    """Rank a row or column, (n,) float32.

    >>> found = rank(torch.tensor([0.1, 0.6, 0.3, 0.0]), torch.tensor([False, False, False, True]), 2)
    >>> found.positions, found.allowed, found.ninety
    (tensor([1, 2]), 3, 2)
    """
    nan = values.isnan()
    hidden = nan if blocked is None else nan | blocked
    allowed = ~hidden
    many = int(allowed.sum())
    positions = _strongest(values, allowed, min(count, many))
    top, finite = values[positions], values[allowed].double()
    total = float(finite.sum())
    held = float(top[~top.isneginf()].double().sum())
    rest = total - held
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
        rest_sum=rest if isnan(rest) else max(0.0, rest),
        entropy=_entropy(finite, total),
        max_entropy=log2(many) if many else 0.0,
        ninety=_ninety(finite.numpy(), total),
    )


def _strongest(values: Tensor, allowed: Tensor, count: int) -> Tensor:
    if count == 0:
        return torch.zeros(0, dtype=torch.int64)
    least = values.masked_fill(~allowed, -inf).topk(count).values[-1]
    above = (allowed & (values > least)).nonzero()[:, 0]  # fewer than count
    above = above[values[above].sort(descending=True, stable=True).indices]
    return torch.cat([above, (allowed & (values == least)).nonzero()[: count - len(above), 0]])


def _entropy(values: Tensor, total: float) -> float:
    shares = values[(values > 0) & ~values.isinf()]
    entropy = -float((shares * shares.log2()).sum())
    return max(0.0, entropy / total + log2(total)) if 0 < total < inf else entropy


def _ninety(values: np.ndarray[tuple[int], np.dtype[np.float64]], total: float) -> int:
    wanted = 0.9 * total - 1e-7
    if not wanted > 0:
        return 0
    if isinf(total):
        return 1
    few = np.partition(values, len(values) - SORTED)[len(values) - SORTED :] if len(values) > 2 * SORTED else values
    for some in (few, values):
        reached = np.cumsum(np.sort(some)[::-1]) >= wanted
        if reached.any():
            return int(reached.argmax()) + 1
    return len(values)


def line(
    att: Attention, stage: str, batch: int, head: int, side: str, places: Sequence[int], *, mean: bool
) -> tuple[Tensor, Tensor | None]:
    """The numbers of some queries over all keys, or of some keys over all queries, several as their mean or sum: (n,)
    float32, and which of them are blocked, if any; of several, those that are blocked in all."""
    length, others = (att.shape.K, "keys") if side == "queries" else (att.shape.Q, "queries")
    masked = stage in MASKED
    total = torch.zeros(length, dtype=torch.float64)
    is_open = torch.zeros(length, dtype=torch.bool)
    whole_rows = side == "queries"  # a query's weights are of all keys at once
    some = max(1, CELLS // length) if whole_rows else len(places)
    pieces = [range(length)] if whole_rows else list(cuts(range(length), 1, max(1, CELLS // len(places))))
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
                is_open[at] |= allowed.any(axis).cpu()
            total[at] += values.float().double().sum(axis).cpu()
    values = (total / len(places) if mean else total).float()
    return values, ~is_open if masked and not bool(is_open.all()) else None


def strongest_pairs(
    att: Attention, kept: CachedLevel, batch: int, head: int, *, count: int, skip_first: bool
) -> list[tuple[int, int, float]]:
    """The strongest pairs of a head, (query, key, weight), strongest first, no two of the same bin of a level of
    weights pooled by maximum; none has weight 0, nor key 0 if that is left out."""
    values = kept.seen.values
    if skip_first:
        assert kept.beside_first is not None  # every level of weights pooled by maximum has it
        values = values.clone()
        values[:, 0] = kept.beside_first
    flat = values.nan_to_num(nan=0.0).flatten()
    top, bins = flat.topk(min(count, len(flat)))
    pairs = []
    for bin_ in bins[top > 0].tolist():
        row, column = divmod(bin_, values.shape[1])
        queries, keys = (
            range(at * width, min((at + 1) * width, n))
            for at, width, n in ((row, kept.seen.query_bin, att.shape.Q), (column, kept.seen.key_bin, att.shape.K))
        )
        keys = keys[1:] if skip_first and column == 0 else keys
        block = att.block("weights", batch=batch, head=head, queries=queries, keys=keys).nan_to_num(nan=0.0)
        query, key = divmod(int(block.argmax()), len(keys))
        pairs.append((queries[query], keys[key], float(block[query, key])))
    return sorted(pairs, key=lambda pair: (-pair[2], pair[0], pair[1]))
