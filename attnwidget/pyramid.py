"""Heads seen from afar: stages pooled into uniform bins while they stream past; no (Q, K) tensor anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .engine import KEYS, QUERIES, Pair, Softmax, blocks, cuts, exact, exp_, new
from .masks import Rules
from .places import Cells
from .tensors import as_choice, as_size

if TYPE_CHECKING:
    from .attention import Attention

STAGES = ("scores", "scaled", "masked", "weights")  # in the order of computation
POOLS = ("max", "mean")


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


def overview(
    att: Attention, batch: int, head: int, *, size: int = 512, pool: str = "max", stage: str = "weights"
) -> Overview:
    """A head pooled to at most size × size bins: see `Attention.overview`.

    >>> import torch, attnwidget.attention
    >>> att = attnwidget.attention.Attention(*torch.randn(2, 1000, 8), is_causal=True)
    >>> seen = overview(att, 0, 0, size=100)
    >>> seen.values.shape, seen.query_bin, seen.key_bin
    (torch.Size([100, 100]), 10, 10)
    """
    size = as_size(size, "size")
    as_choice(pool, POOLS, "pool")
    as_choice(stage, STAGES, "stage")
    batch, head = att.find(batch, head)
    query_bin, key_bin = ceil(att.shape.Q / size), ceil(att.shape.K / size)
    with exact(att.device):
        counts = count_allowed(att, batch, head, range(att.shape.Q), query_bin, key_bin)
        if pool == "max":
            values, pair = maxima(att, batch, head, range(att.shape.Q), query_bin, key_bin, stage)
        else:
            values, pair = sums(att, batch, head, query_bin, key_bin, stage)
            cells = counts if stage == "masked" else count_cells(att, att.shape.Q, att.shape.K, query_bin, key_bin)
            values = (values / cells).masked_fill(cells == 0, -inf)
    if pair is not None:
        att.remember(batch, head, pair)
    return Overview(values, counts > 0, query_bin, key_bin)


def sampled(att: Attention, batch: int, head: int, *, rows: int, columns: int) -> Overview:
    """Exact weights of at most `rows` queries, evenly spread up to the last, each pooled by maximum over the keys.

    The cost is that of these rows alone: a thumbnail at any length. One query of each bin of an overview is taken;
    `query_bin` is the distance from one to the next.

    >>> import torch, attnwidget.attention
    >>> att = attnwidget.attention.Attention(*torch.randn(2, 1000, 8))
    >>> sampled(att, 0, 0, rows=16, columns=32).values.shape
    torch.Size([16, 32])
    """
    rows, columns = as_size(rows, "rows"), as_size(columns, "columns")
    batch, head = att.find(batch, head)
    query_bin, key_bin = ceil(att.shape.Q / rows), ceil(att.shape.K / columns)
    queries = range((att.shape.Q - 1) % query_bin, att.shape.Q, query_bin)
    with exact(att.device):
        values, _ = maxima(att, batch, head, queries, 1, key_bin, "weights")
        counts = count_allowed(att, batch, head, queries, 1, key_bin)
    return Overview(values, counts > 0, query_bin, key_bin)


def maxima(
    att: Attention, batch: int, head: int, queries: range, query_bin: int, key_bin: int, stage: str
) -> tuple[Tensor, Pair | None]:
    """The maximum of a stage in each bin. That of weights is exp of the maximum: the same, as exp is monotonic."""
    values = new(att, ceil(len(queries) / query_bin), ceil(att.shape.K / key_bin)).fill_(-inf)
    m, log_l = new(att, 2, len(queries))  # (queries,) each
    for piece in cuts(range(len(queries)), query_bin, QUERIES):
        softmax = Softmax(att, len(piece))
        peaks = new(att, values.shape[1], len(piece)).fill_(-inf)  # (columns, queries)
        at = slice(piece.start, piece.stop)
        for keys, S in blocks(att, batch, head, queries[at], "masked" if stage == "weights" else stage, key_bin):
            pooled = pool_first(S, key_bin, torch.amax)  # (bins, queries)
            columns = bins(keys, key_bin)
            peaks[columns] = torch.maximum(peaks[columns], pooled)
            if stage == "weights":
                softmax.add(S, pooled.amax(0))
        if stage == "weights":
            pair = m[at], log_l[at] = softmax.pair()
            peaks = pair.log_weights(peaks)
        rows = bins(piece, query_bin)
        values[rows] = torch.maximum(values[rows], pool_first(peaks.mT, query_bin, torch.amax))
    return (exp_(values), Pair(m, log_l)) if stage == "weights" else (values, None)


def sums(att: Attention, batch: int, head: int, query_bin: int, key_bin: int, stage: str) -> tuple[Tensor, Pair | None]:
    """The sum of a stage in each bin, blocked cells left out."""
    values = new(att, ceil(att.shape.Q / query_bin), ceil(att.shape.K / key_bin)).zero_()
    m, log_l = new(att, 2, att.shape.Q)  # (queries,) each
    for queries in cuts(range(att.shape.Q), query_bin, QUERIES):
        softmax = Softmax(att, len(queries))
        total = new(att, values.shape[1], len(queries)).zero_()  # (columns, queries)
        at = slice(queries.start, queries.stop)
        for keys, S in blocks(att, batch, head, queries, "masked" if stage == "weights" else stage, key_bin):
            if stage == "weights":
                S, shrink = softmax.add(S, S.amax(0))
                total *= shrink
            elif stage == "masked":
                allowed = att.rules.allowed(Cells(batch, head, queries, keys))
                S = S if allowed is None else S.masked_fill_(allowed.logical_not().mT, 0)
            total[bins(keys, key_bin)] += pool_first(S, key_bin, torch.sum)
        if stage == "weights":
            pair = m[at], log_l[at] = softmax.pair()
            total *= exp_(-pair.log_l)
        values[bins(queries, query_bin)] += pool_first(total.mT, query_bin, torch.sum)
    return values, Pair(m, log_l) if stage == "weights" else None


def count_allowed(att: Attention, batch: int, head: int, queries: range, query_bin: int, key_bin: int) -> Tensor:
    """How many cells of each bin are allowed, (rows, columns) int64."""
    counts = count_cells(att, len(queries), att.shape.K, query_bin, key_bin)
    if att.rules == Rules():
        return counts
    counts.zero_()
    for piece in cuts(range(len(queries)), query_bin, QUERIES):
        part = queries[piece.start : piece.stop]
        row = Cells(batch, head, part, range(att.shape.K))
        for keys in cuts(att.rules.span(row), key_bin, KEYS):
            cells = row._replace(keys=keys)
            coverage = att.rules.coverage(cells)
            if coverage == "none":
                continue
            found = count_cells(att, len(part), len(keys), query_bin, key_bin)
            allowed = att.rules.allowed(cells) if coverage == "some" else None
            if allowed is not None:
                allowed = allowed.expand(len(part), len(keys))
                by_row = pool_first(allowed, query_bin, count)  # (rows, keys)
                found = pool_first(by_row.mT, key_bin, count).mT  # (rows, columns)
            counts[bins(piece, query_bin), bins(keys, key_bin)] += found
    return counts


def count_cells(att: Attention, queries: int, keys: int, query_bin: int, key_bin: int) -> Tensor:
    """How many cells each bin of a matrix has, (rows, columns) int64."""
    rows, columns = (
        torch.tensor([min(width, n - start) for start in range(0, n, width)], device=att.device)
        for n, width in ((queries, query_bin), (keys, key_bin))
    )
    return rows[:, None] * columns


count = partial(torch.sum, dtype=torch.int32)  # faster than any() over bools


def bins(piece: range, width: int) -> slice:
    """Which bins a piece lies in."""
    return slice(piece.start // width, ceil(piece.stop / width))


def pool_first(x: Tensor, width: int, reduce: Callable[..., Tensor]) -> Tensor:
    """Pool the first axis: (n, …) -> (⌈n / width⌉, …), the last bin ragged."""
    if width == 1:
        return x
    whole = len(x) // width
    parts = [reduce(x[: whole * width].reshape(whole, width, *x.shape[1:]), 1)] if whole else []
    if whole * width < len(x):
        parts.append(reduce(x[whole * width :], 0)[None])
    return parts[0] if len(parts) == 1 else torch.cat(parts)
