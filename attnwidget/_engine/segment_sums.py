"""Sum weights over groups of keys, block by block and exactly at any length; and count keys for uniform attention.

`summing_stage` does the same for the stages after the weights.

Sums of exp need no additional pass, because the softmax needs their total anyway. Heads that share a key head are
computed in one product.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._rules.rules import whole
from .._utils.indexing import Block, Indices, cuts, positions, take
from ..masks import BandLimits
from .base import AttentionBase, Head
from .by_attention import own_apart, sums_by_attention
from .logsumexp import LogSumExp
from .matmul import LOG2_E, Product, Scratch, exp_
from .softmax import is_small, normalizing, sink_weights
from .sources import Products
from .stages import KEYS, QUERIES, allowed_cells, blocks, new, streamed, valued

CELLS = QUERIES * KEYS  # in a block
MAX_KEYS = 4 * KEYS  # in a block
LONG_RUN = 128  # keys: from here on a run is summed in a tree, since rounding errors of equal numbers would add up
FAST_KEYS = 16  # a product is faster with a multiple of so many keys
LEAST_EXPONENT = -126.0  # 2^−126 is the smallest normal number of float32; smaller ones are slow
MAX_STRIPES, MAX_SUMS = 8, 1 << 18  # the most stripes and sums to average at once

OwnKeys = range | Tensor  # the key at each query's position: a range, or (queries,) int64 with -1 for none


class KeyGroups:
    """Groups of keys, each with any number of runs.

    Args:
        labels: (K,) the group of each key, from 0; -1 for none.
        count: the number of groups.
        device: of the sums.
    """

    def __init__(self, labels: np.ndarray[tuple[int], np.dtype[np.int64]], count: int, device: torch.device) -> None:
        self.count = count
        filled = np.where(labels < 0, count, labels)  # keys in no group count in the total
        edges = np.flatnonzero(np.diff(filled)) + 1
        self.starts = np.concatenate([[0], edges])
        self.stops = np.concatenate([edges, [len(filled)]])
        self.of_run = filled[self.starts]
        self.labels = torch.from_numpy(np.ascontiguousarray(filled)).to(device)
        self.rows = count + 1
        self._runs = list(zip(self.starts.tolist(), self.stops.tolist(), self.of_run.tolist(), strict=True))

    def queries_at_once(self, heads: int) -> int:
        """Return how many queries of some heads to sum before averaging: several stripes if there are few sums."""
        stripe = max(1, QUERIES // heads)
        return stripe * max(1, min(MAX_STRIPES, MAX_SUMS // (max(self.rows, len(self.starts)) * stripe * heads)))

    def of_keys(self, keys: OwnKeys) -> Tensor:
        """Return the group of each key, (n,); `count` for a key in no group, or for no key."""
        if isinstance(keys, range):
            return self.labels[keys.start : keys.stop]
        return self.labels[keys.clamp(min=0)].masked_fill(keys < 0, self.count)

    def runs_of(self, keys: range) -> slice:
        """Return the runs that contain some of the keys."""
        first, last = np.searchsorted(self.stops, keys.start, "right"), np.searchsorted(self.starts, keys.stop, "left")
        return slice(int(first), max(int(first), int(last)))

    def reached(self, keys: range) -> range:
        """Return the groups that contain some of the keys, from the first to the last."""
        numbers = self.of_run[self.runs_of(keys)]
        numbers = numbers[numbers < self.count]
        return range(int(numbers.min()), int(numbers.max()) + 1) if len(numbers) else range(0)

    def add_(self, sums: Tensor, keys: range, e: Tensor) -> None:
        """Add a block to sums by group.

        Args:
            sums: (groups, n), changed in place.
            keys: of the block.
            e: (keys, n).
        """
        short = keys.start  # the first key that is not added yet
        for start, stop, group in self._runs[self.runs_of(keys)]:
            start, stop = max(keys.start, start), min(keys.stop, stop)
            if stop - start < LONG_RUN:
                continue
            self._add_short(sums, range(short, start), keys, e)
            sums[group] += e[start - keys.start : stop - keys.start].sum(0)
            short = stop
        self._add_short(sums, range(short, keys.stop), keys, e)

    def _add_short(self, sums: Tensor, part: range, keys: range, e: Tensor) -> None:
        if len(part):
            rows = e[part.start - keys.start : part.stop - keys.start]
            sums.index_add_(0, self.labels[part.start : part.stop], rows)


class WeightSums(NamedTuple):
    """The weights of some queries of some heads, by group of keys.

    groups: the groups here; other groups have weight 0.
    others: (groups, heads, queries), the weights without a query's own key.
    own: (heads, queries), the weight of each query's own key; 0 if it has none.
    sink: (heads, queries), the weight of the learned sink; None if no head has one.
    """

    groups: range
    others: Tensor
    own: Tensor
    sink: Tensor | None


def summing(
    att: AttentionBase, batch: int, heads: range, rows: Indices, groups: KeyGroups, own: OwnKeys | None, *, small: bool
) -> Generator[int, None, WeightSums]:
    """Sum the weights of some queries by group of keys.

    Args:
        att: the attention.
        batch: which sample.
        heads: one head, or several that `together` allows in one product.
        rows: which queries.
        groups: of the keys.
        own: the key at each query's position; None if unknown.
        small: whether scores are so small that exp needs no maximum subtracted: see `all_small`.

    Yields:
        The number of cells in each block.
    """
    head = Head(att, batch, heads[0])
    if streamed(att, "weights") == "weights":
        return (yield from _summing_given(head, rows, groups, own))
    if all(sums_by_attention(att, Head(att, batch, one), rows) for one in heads):
        return (yield from _summing_by_attention(att, batch, heads, rows, groups, own))
    stripes: list[_RunningSums] = []
    for piece in cuts(range(len(rows)), 1, max(1, QUERIES // len(heads))):
        at = slice(piece.start, piece.stop)
        stripe = _RunningSums(att, heads, rows[at], groups, None if own is None else own[at])
        yield from _filling(stripe, batch, small=small)
        stripes.append(stripe)
    return _weights(stripes, reached(head, rows, groups))


def _summing_by_attention(
    att: AttentionBase, batch: int, heads: range, rows: Indices, groups: KeyGroups, own: OwnKeys | None
) -> Generator[int, None, WeightSums]:
    """Sum weights by torch's attention, with groups as classes of keys."""
    of = reached(Head(att, batch, heads[0]), rows, groups)
    others, of_own = new(att, len(of), len(heads), len(rows)), new(att, len(heads), len(rows))
    for place, one in enumerate(heads):
        for piece in cuts(range(len(rows)), 1, QUERIES):
            at = slice(piece.start, piece.stop)
            mine = None if own is None else own[at]
            mine = positions(mine, att.device) if isinstance(mine, range) else mine
            found = own_apart(Head(att, batch, one), rows[at], groups.labels - of.start, len(of), mine)
            others[:, place, at], of_own[place, at] = found
            yield len(piece) * att.shape.K
    return WeightSums(of, others, of_own, None)


def _filling(stripe: _RunningSums, batch: int, *, small: bool) -> Generator[int, None, None]:
    """Add all blocks of a stripe's queries to its sums."""
    att, heads, rows = stripe.att, stripe.heads, stripe.rows
    if isinstance(att.source, Products) and not att.rules.biases:
        limits = att.rules.band_limits(batch) if small and isinstance(rows, range) and rows.step == 1 else None
        for keys, S in _products(att, batch, heads, rows, masked=limits is None):
            stripe.add(keys, S, small=small, limits=limits)
            yield S.numel()
            del S
    else:
        for keys, S, _ in blocks(Head(att, batch, heads[0]), rows, "masked"):
            stripe.add(keys, S.mul_(LOG2_E), small=False)
            yield S.numel()
            del S


def reached(head: Head, rows: Indices, groups: KeyGroups) -> range:
    """Return the groups that get weight from some queries, from the first to the last."""
    if streamed(head.att, "weights") == "weights":
        return range(groups.count)
    return groups.reached(head.att.rules.span(head.block(rows)))


def all_small(att: AttentionBase, batch: int, heads: Iterable[int], rows: Indices) -> bool:
    """Return whether the scores of some queries are so small that exp needs no maximum subtracted."""
    is_product = isinstance(att.source, Products) and not att.rules.biases
    return is_product and all(is_small(Head(att, batch, head), rows) for head in heads)


def together(att: AttentionBase) -> int:
    """Return how many heads may share one product; groups of heads begin at multiples of this number."""
    if isinstance(att.source, Products) and att.rules.same_for_heads and not att.rules.biases:
        return att.shape.H // att.shape.G
    return 1


def _summing_given(
    head: Head, rows: Indices, groups: KeyGroups, own: OwnKeys | None
) -> Generator[int, None, WeightSums]:
    """Sum given or derived weights, without normalizing them."""
    att = head.att
    sums = new(att, groups.rows, len(rows)).zero_()
    of_own = new(att, len(rows)).zero_()
    for keys, S, _ in blocks(head, rows, "weights", zeros=False):
        take_own_(of_own, own, keys, S)
        groups.add_(sums, keys, S)
        yield S.numel()
        del S
    sink = sink_weights(head, rows)
    of = range(groups.count)
    return WeightSums(of, sums[: groups.count, None], of_own[None], None if sink is None else sink[None])


def summing_stage(
    att: AttentionBase, batch: int, heads: range, rows: Indices, groups: KeyGroups, own: OwnKeys | None, stage: str
) -> Generator[int, None, WeightSums]:
    """Sum a stage after the weights, with signs, by group of keys; a learned sink has no part in it.

    Args:
        att: the attention.
        batch: which sample.
        heads: which heads.
        rows: which queries.
        groups: of the keys.
        own: the key at each query's position; None if unknown.
        stage: weights times a factor.

    Yields:
        The number of cells in each block.
    """
    sums = new(att, groups.rows, len(heads), len(rows)).zero_()
    of_own = new(att, len(heads), len(rows)).zero_()
    for place, one in enumerate(heads):
        head = Head(att, batch, one)
        for piece in cuts(range(len(rows)), 1, QUERIES):
            at = slice(piece.start, piece.stop)
            some = new(att, groups.rows, len(piece)).zero_()
            mine = None if own is None else own[at]
            for keys, S in _stage_blocks(head, rows[at], stage, (yield from _known(head, rows[at], stage))):
                take_own_(of_own[place, at], mine, keys, S)
                groups.add_(some, keys, S)
                yield S.numel()
                del S
            sums[:, place, at] = some
    return WeightSums(range(groups.count), sums[: groups.count], of_own, None)


def _known(head: Head, rows: Indices, stage: str) -> Generator[int, None, LogSumExp | None]:
    """Return the log-normalizers of some queries; None for given weights."""
    return (yield from normalizing(head, rows)) if streamed(head.att, stage) == "masked" else None


def _stage_blocks(head: Head, rows: Indices, stage: str, known: LogSumExp | None) -> Iterator[tuple[range, Tensor]]:
    """Iterate over blocks of a stage after the weights, (keys, queries), which the caller may overwrite."""
    for keys, S, _ in blocks(head, rows, streamed(head.att, stage), zeros=False):
        if known is not None:
            S = valued(exp_(known.log_weights(S).clamp_(max=0)), head, rows, keys, stage)
        yield keys, S


class _RunningSums:
    """Running sums of exp by group for some queries and heads, in powers of two; a learned sink is the first key."""

    def __init__(self, att: AttentionBase, heads: range, rows: Indices, groups: KeyGroups, own: OwnKeys | None) -> None:
        self.att, self.heads, self.rows, self.groups = att, heads, rows, groups
        self.queries = queries = len(rows)
        self.own = own.repeat(len(heads)) if isinstance(own, Tensor) else own
        n = len(heads) * queries
        self.sums = new(att, groups.rows, n).zero_()
        self.of_own, self.of_sink = new(att, 2, n).zero_()
        self.m = new(att, n).fill_(-inf)
        if att.sinks is not None:
            logits = att.sinks[heads.start : heads.stop].to(att.device, att.result_dtype) * LOG2_E
            self.m = logits.repeat_interleave(queries)
            self.of_sink.masked_fill_(self.m != -inf, 1.0)
        self.is_direct = False

    def add(self, keys: range, S: Tensor, *, small: bool, limits: BandLimits | None = None) -> None:
        """Add a block of masked scores times log₂ e.

        Args:
            keys: of the block.
            S: the block, (keys, n), which is overwritten.
            small: whether exp needs no maximum subtracted, from scores or from the sink.
            limits: limits still to apply to the block; only if `rows` is a range.
        """
        if small:
            self._begin_direct()
            e = S.exp2_()
            if limits is not None and isinstance(self.rows, range):
                for part in e.split(self.queries, 1):
                    limits.zero_(part, self.rows, keys)
        else:
            m = torch.maximum(self.m, S.amax(0))  # keeps NaN
            base = m.masked_fill(m == -inf, 0)
            shrink = torch.exp2(self.m - base)
            e = torch.threshold_(S.sub_(base), LEAST_EXPONENT, -inf).exp2_()
            for x in (self.sums, self.of_own, self.of_sink):
                x *= shrink
            self.m = m
        take_own_(self.of_own, self.own, keys, e)
        self.groups.add_(self.sums, keys, e)

    def _begin_direct(self) -> None:
        if not self.is_direct:
            self.of_sink = self.m.exp2()  # 0 without a sink
            self.is_direct = True


def _weights(stripes: Sequence[_RunningSums], of: range) -> WeightSums:
    """Return the weights of some groups, for the queries of all stripes."""
    heads = len(stripes[0].heads)
    sums = _joined([one.sums for one in stripes], heads)
    of_own, of_sink = (_joined(x, heads) for x in zip(*((one.of_own, one.of_sink) for one in stripes), strict=True))
    total = sums.sum(0) + of_own + of_sink
    total.masked_fill_(total == 0, 1)  # fully masked queries
    sink = None if stripes[0].att.sinks is None else of_sink / total
    return WeightSums(of, sums[of.start : of.stop] / total, of_own / total, sink)


def _joined(parts: Sequence[Tensor], heads: int) -> Tensor:
    """Concatenate numbers, (…, heads · queries) each, into (…, heads, all queries)."""
    split = [part.unflatten(-1, (heads, -1)) for part in parts]
    return split[0] if len(split) == 1 else torch.cat(split, -1)


def take_own_(sums: Tensor, own: OwnKeys | None, keys: range, e: Tensor) -> None:
    """Move the weights of own keys from a block (keys, n) into sums (n,), leaving 0.

    Subtracting sums would leave rounding errors if a query gives nearly all weight to its own key. A range of own keys
    holds for each head of the n columns.
    """
    if isinstance(own, range):
        here = range(max(keys.start, own.start), min(keys.stop, own.stop))
        if here:
            at, n = slice(here.start - own.start, here.stop - own.start), len(own)
            part = e[here.start - keys.start : here.stop - keys.start].unflatten(1, (-1, n))[:, :, at]
            found = part.diagonal(dim1=0, dim2=2)  # (heads, keys here)
            sums.view(-1, n)[:, at] += found
            found.zero_()
    elif own is not None:
        inside = (own >= keys.start) & (own < keys.stop)
        if bool(inside.any()):
            rows = (own - keys.start).clamp(0, len(keys) - 1)[None]
            found = e.gather(0, rows)
            sums += found[0].where(inside, 0)
            e.scatter_(0, rows, found.masked_fill(inside, 0))


def _products(
    att: AttentionBase, batch: int, heads: range, rows: Indices, *, masked: bool
) -> Iterator[tuple[range, Tensor]]:
    """Iterate over blocks of scores times log₂ e, (keys, heads · queries), of heads that share a key head.

    Without `masked`, blocked cells keep their scores, and only keys outside the span are skipped.
    """
    source, capped = att.source, att.softcap
    assert isinstance(source, Products)
    q = take(source.q[batch, heads.start : heads.stop], rows, 1).to(att.result_dtype)  # (heads, queries, D)
    product = Product((q * (att.scale * (LOG2_E if capped is None else 1))).flatten(0, 1))
    k = source.k[batch, att.group(heads[0])]
    columns = len(heads) * len(rows)
    limit = max(KEYS, min(MAX_KEYS, CELLS // columns // KEYS * KEYS))
    scratch = Scratch(limit * columns, att.result_dtype, att.device)
    row = Block(batch, heads[0], rows, range(att.shape.K))
    span = att.rules.span(row)
    whole_span = range(span.start, min(att.shape.K, -(-span.stop // FAST_KEYS) * FAST_KEYS)) if span else span
    pieces = att.rules.pieces(row, 1, limit) if masked else cuts(whole_span, FAST_KEYS, limit)
    for keys in pieces:
        allowed = att.rules.allowed(row._replace(keys=keys)) if masked else True
        if allowed is False:
            continue
        S = product.of(take(k, keys, 0).to(att.result_dtype), scratch)
        if capped is not None:
            S.div_(capped).tanh_().mul_(capped * LOG2_E)
        if isinstance(allowed, Tensor):  # before exp, which stops NaN in blocked cells
            blocked = allowed.logical_not().mT.expand(len(keys), len(rows))
            S.view(len(keys), len(heads), len(rows)).masked_fill_(blocked[:, None], -inf)
        yield keys, S
        del S


# Uniform attention.


class AllowedSums(NamedTuple):
    """The number of keys that some queries may attend to, by group.

    groups: the groups here; other groups have none.
    others: (groups, queries) int64, without a query's own key.
    total: (queries,) int64, all keys, including those in no group.
    own: (queries,) int64, 1 if a query may attend to its own key.
    """

    groups: range
    others: Tensor
    total: Tensor
    own: Tensor


def counting(head: Head, rows: Indices, groups: KeyGroups, own: OwnKeys | None) -> Generator[int, None, AllowedSums]:
    """Count the keys that some queries may attend to, by group; from the ends of rows if the rules give them.

    Yields:
        The number of cells in each block that is evaluated cell by cell.
    """
    known = _ends(head, rows)
    if known is None:
        return (yield from _counting_cells(head, rows, groups, own))
    start, stop, is_open = known
    K, device = head.att.shape.K, head.att.device
    runs = groups.runs_of(head.att.rules.span(head.block(rows)))
    borders = torch.from_numpy(np.stack([groups.starts[runs], groups.stops[runs]])).to(device)[:, :, None]  # (2, runs)
    first, last = borders[0].clamp(min=start), borders[1].clamp(max=stop)  # (runs, queries)
    if is_open is None:
        found = (last - first).clamp_(min=0)
    else:
        up_to = torch.cat([torch.zeros(1, dtype=torch.int64, device=device), is_open.cumsum(0)])
        found = (up_to[last.clamp(0, K)] - up_to[first.clamp(0, K)]).clamp_(min=0)
    counts = torch.zeros(groups.rows, len(start), dtype=torch.int64, device=device)
    counts.index_add_(0, torch.from_numpy(groups.of_run[runs]).to(device), found)
    is_own = torch.zeros(len(start), dtype=torch.int64, device=device)
    total = counts.sum(0)
    if own is not None:
        places = own if isinstance(own, Tensor) else positions(own, device)
        here = (places >= start) & (places < stop) & (places >= 0)
        here &= True if is_open is None else is_open[places.clamp(0, K - 1)]
        is_own = here.long()
        counts.scatter_add_(0, groups.labels[places.clamp(0, K - 1)][None], -is_own[None])
    of = reached(head, rows, groups)
    return AllowedSums(of, counts[of.start : of.stop], total, is_own)


def _ends(head: Head, rows: Indices) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """Return the first and end key of each query, and the keys open to any query; None if rules are not that simple.

    Returns:
        (queries,) each, 0 ≤ start, stop ≤ K; (K,) bool, None for all keys.
    """
    att = head.att
    if att.rules.by_score:
        return None
    places = positions(rows, att.device)
    start, stop = torch.zeros_like(places), torch.full_like(places, att.shape.K)
    is_open: Tensor | None = None
    one = head.block(range(1))
    for part in (part for rule in att.rules.rules for part in rule.parts_of_all()):
        limits, ends = part.band_limits(head.batch), part.row_ends(head.block(rows))
        if limits is not None:
            start = start if limits.low is None else torch.maximum(start, places + limits.low)
            stop = stop if limits.high is None else torch.minimum(stop, places + limits.high + 1)
            stop = stop if limits.stop is None else stop.clamp(max=limits.stop)
        elif ends is not None:
            start, stop = torch.maximum(start, ends[0].to(att.device)), torch.minimum(stop, ends[1].to(att.device))
        elif part.by_key:
            found = whole(part.allowed(one), one.queries, one.keys, att.device)[0]
            is_open = found if is_open is None else is_open & found
        else:
            return None
    return start, stop, is_open


def _counting_cells(
    head: Head, rows: Indices, groups: KeyGroups, own: OwnKeys | None
) -> Generator[int, None, AllowedSums]:
    parts: list[tuple[Tensor, Tensor]] = []
    for piece in cuts(range(len(rows)), 1, QUERIES):
        at = slice(piece.start, piece.stop)
        parts.append((yield from _looking(head, rows[at], groups, None if own is None else own[at])))
    counts, of_own = (torch.cat(one, -1).to(torch.int64) for one in zip(*parts, strict=True))
    of = reached(head, rows, groups)
    return AllowedSums(of, counts[of.start : of.stop], counts.sum(0) + of_own, of_own)


def _looking(
    head: Head, rows: Indices, groups: KeyGroups, own: OwnKeys | None
) -> Generator[int, None, tuple[Tensor, Tensor]]:
    """Count allowed cells one by one: (groups, queries) for other keys, and (queries,) for the own key."""
    att = head.att
    counts = torch.zeros(groups.rows, len(rows), dtype=torch.float32, device=att.device)  # exact up to 2²⁴ keys
    of_own = torch.zeros(len(rows), dtype=torch.float32, device=att.device)
    for keys in cuts(range(att.shape.K), 1, KEYS):
        found = allowed_cells(att, head.block(rows, keys))
        if found is not False:
            cells = whole(found, rows, keys, att.device).mT.to(torch.float32)
            take_own_(of_own, own, keys, cells)
            groups.add_(counts, keys, cells)
        yield len(rows) * len(keys)
    return counts, of_own
