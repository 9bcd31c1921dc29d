"""Heads seen from afar: stages pooled into uniform bins while they stream past; no (Q, K) tensor anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil, inf

import torch
from torch import Tensor

from .call import Call
from .engine import Settled, Softmax
from .memory import Pair
from .places import Cells, cuts
from .precision import exact, exp_
from .rules import Allowed, Rules, whole
from .stages import (
    KEYS,
    NORMALIZED,
    QUERIES,
    allowed_cells,
    blocks,
    by_value,
    log_by_value,
    new,
    norms,
    streamed,
)
from .tensors import as_choice, as_size

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
    att: Call, batch: int, head: int, *, size: int = 512, pool: str = "max", stage: str = "weights"
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
    att.check_stage(stage)
    batch, head = att.find(batch, head)
    query_bin, key_bin = ceil(att.shape.Q / size), ceil(att.shape.K / size)
    with exact(att.device):
        if pool == "max":
            known = att.known_pair(batch, head)
            values, counts, pair = maxima(att, batch, head, range(att.shape.Q), query_bin, key_bin, stage, known)
        else:
            values, counts, pair = sums(att, batch, head, query_bin, key_bin, stage)
            cells = counts if stage == "masked" else count_cells(att, att.shape.Q, att.shape.K, query_bin, key_bin)
            values = (values / cells).masked_fill(cells == 0, -inf)
    if pair is not None:
        att.remember(batch, head, pair)
    return Overview(values, counts > 0, query_bin, key_bin)


def sampled(att: Call, batch: int, head: int, *, rows: int, columns: int) -> Overview:
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
        known = att.known_pair(batch, head)
        known = None if known is None else known.take(queries)
        values, counts, _ = maxima(att, batch, head, queries, 1, key_bin, "weights", known)
    return Overview(values, counts > 0, query_bin, key_bin)


def own_keys(att: Call, batch: int, head: int, seen: Overview) -> int:
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
            allowed = allowed_cells(att, Cells(batch, head, rows, keys))
            places = whole(allowed, rows, keys, att.device).any(0).nonzero()
            last = max(last, int(places[-1]) + 1 if len(places) else 0)
            if last == len(keys):
                break
    return start + last


def maxima(
    att: Call,
    batch: int,
    head: int,
    queries: range,
    query_bin: int,
    key_bin: int,
    stage: str,
    known: Pair | None = None,
) -> tuple[Tensor, Tensor, Pair | None]:
    """The maximum of a stage in each bin, how many cells of it are allowed, and the log-normalizers of the queries.

    The maximum of weights is exp of the maximum: the same, as exp is monotonic.
    """
    values = new(att, ceil(len(queries) / query_bin), ceil(att.shape.K / key_bin)).fill_(-inf)
    m, log_l = new(att, 2, len(queries))  # (queries,) each
    seen, base = Seen(att, len(queries), query_bin, key_bin), streamed(att, stage)
    logarithmic = base == "masked" and stage in NORMALIZED
    counting = base == "masked" and att.rules != Rules()
    for piece in cuts(range(len(queries)), query_bin, QUERIES):
        at = slice(piece.start, piece.stop)
        softmax = Softmax(att, len(piece)) if known is None else Settled(known.take(piece))
        peaks = new(att, values.shape[1], len(piece)).fill_(-inf)  # (columns, queries)
        for keys, S, allowed in blocks(att, batch, head, queries[at], base, key_bin):
            valued = log_by_value(S, norms(att, batch, head, keys)) if logarithmic and stage == "contribution" else S
            pooled = pool_first(valued, key_bin, torch.amax)  # (bins, queries)
            columns = bins(keys, key_bin)
            peaks[columns] = torch.maximum(peaks[columns], pooled)
            if counting:
                seen.add(piece, keys, allowed)
            if logarithmic:
                softmax.add(S, pooled.amax(0) if valued is S else S.amax(0))
        if logarithmic:
            pair = m[at], log_l[at] = softmax.pair()
            peaks = Pair(*pair).log_weights(peaks)
        rows = bins(piece, query_bin)
        values[rows] = torch.maximum(values[rows], pool_first(peaks.mT, query_bin, torch.amax))
    counts = seen.counts if counting else count_allowed(att, batch, head, queries, query_bin, key_bin)
    return (exp_(values), counts, Pair(m, log_l)) if logarithmic else (values, counts, None)


def sums(
    att: Call, batch: int, head: int, query_bin: int, key_bin: int, stage: str
) -> tuple[Tensor, Tensor, Pair | None]:
    """The sum of a stage in each bin, blocked cells left out, and then as `maxima`."""
    values = new(att, ceil(att.shape.Q / query_bin), ceil(att.shape.K / key_bin)).zero_()
    m, log_l = new(att, 2, att.shape.Q)  # (queries,) each
    seen, base = Seen(att, att.shape.Q, query_bin, key_bin), streamed(att, stage)
    normalized = base == "masked" and stage in NORMALIZED
    counting = base == "masked" and att.rules != Rules()
    for queries in cuts(range(att.shape.Q), query_bin, QUERIES):
        at = slice(queries.start, queries.stop)
        softmax = Softmax(att, len(queries))
        total = new(att, values.shape[1], len(queries)).zero_()  # (columns, queries)
        for keys, S, allowed in blocks(att, batch, head, queries, base, key_bin):
            if counting:
                seen.add(queries, keys, allowed)
            if normalized:
                S, shrink = softmax.add(S, S.amax(0))
                S = by_value(S, norms(att, batch, head, keys)) if stage == "contribution" else S
                total *= shrink
            elif allowed is not True:
                S = S.masked_fill_(whole(allowed, queries, keys, S.device).logical_not().mT, 0)
            total[bins(keys, key_bin)] += pool_first(S, key_bin, torch.sum)
        if normalized:
            pair = m[at], log_l[at] = softmax.pair()
            total *= exp_(-pair.log_l)
        values[bins(queries, query_bin)] += pool_first(total.mT, query_bin, torch.sum)
    rows = range(att.shape.Q)
    counts = seen.counts if counting else count_allowed(att, batch, head, rows, query_bin, key_bin)
    return values, counts, Pair(m, log_l) if normalized else None


class Seen:
    """How many cells of each bin are allowed, (rows, columns) int64, as blocks come in."""

    def __init__(self, att: Call, queries: int, query_bin: int, key_bin: int):
        self.counts = torch.zeros_like(count_cells(att, queries, att.shape.K, query_bin, key_bin))
        self._att, self._query_bin, self._key_bin = att, query_bin, key_bin

    def add(self, queries: range, keys: range, allowed: Allowed) -> None:
        """Take in a block: its queries counted from the first that is looked at, its keys from 0."""
        if allowed is False:
            return
        found = count_cells(self._att, len(queries), len(keys), self._query_bin, self._key_bin)
        if isinstance(allowed, Tensor):
            by_row = pool_first(allowed.expand(len(queries), len(keys)), self._query_bin, count)  # (rows, keys)
            found = pool_first(by_row.mT, self._key_bin, count).mT  # (rows, columns)
        self.counts[bins(queries, self._query_bin), bins(keys, self._key_bin)] += found


def count_allowed(att: Call, batch: int, head: int, queries: range, query_bin: int, key_bin: int) -> Tensor:
    """How many cells of each bin are allowed, (rows, columns) int64, without their scores if it can be."""
    if att.rules == Rules():
        return count_cells(att, len(queries), att.shape.K, query_bin, key_bin)
    seen = Seen(att, len(queries), query_bin, key_bin)
    for piece in cuts(range(len(queries)), query_bin, QUERIES):
        row = Cells(batch, head, queries[piece.start : piece.stop], range(att.shape.K))
        for keys in att.rules.pieces(row, key_bin, KEYS):
            seen.add(piece, keys, allowed_cells(att, row._replace(keys=keys)))
    return seen.counts


def count_cells(att: Call, queries: int, keys: int, query_bin: int, key_bin: int) -> Tensor:
    """How many cells each bin of a matrix has, (rows, columns) int64."""
    rows, columns = (
        torch.arange(0, n, width, device=att.device).sub_(n).neg_().clamp_(max=width)
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
