"""All heads of a layer from the same exact rows: a small picture and the metrics of each.

Heads that share a key head are computed in one product, all keys of some rows at once: a thousand heads of thousands of
tokens take as long as the exact picture of one head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from math import ceil, inf
from typing import Any

import torch
from torch import Tensor

from .._engine.base import AttentionBase, Head
from .._engine.kept_levels import KeptLevels, only_overviews
from .._engine.matmul import LOG2_E, Product, Scratch, exact
from .._engine.pooling import pool_first
from .._engine.regions import Region
from .._engine.softmax import sink_weights
from .._engine.sources import Products
from .._engine.stages import KEYS, allowed_cells, masked, new, plain
from .._rules.rules import Bias, cut, whole
from .._tokens.inputs import never_read
from .._utils.indexing import Block, cuts, take
from .._utils.validation import as_size
from .metrics import AllowedRows, MetricIndex, MetricMeans, Metrics, RealKeys, WeightRows, as_ids, measure

MAX_CELLS_AT_ONCE = 1 << 20  # unless one row is longer: 4 MiB
LEAST_EXPONENT = -126.0  # 2^−126 is the least normal number; smaller weights are 0
MAX_EXACT_CELLS = 1 << 26  # of a head; up to this size all its rows are computed
SAMPLED_ROWS = 64  # of a longer head
MAX_KEPT_INDICES = 4  # each is as large as a block


def sample(queries: int, rows: int) -> range:
    """Return at most so many queries, evenly spread, with the last one; all if there are no more.

    >>> sample(10, 3)
    range(1, 10, 4)
    """
    step = max(1, ceil(queries / rows))
    return range((queries - 1) % step, queries, step)


def metrics(
    att: AttentionBase, batch: int, head: int, tokens: Sequence[str] | None = None, rows: int | None = None
) -> Metrics:
    """Compute the metrics of one head: see `Attention.metrics`."""
    batch, head = att.find(batch, head)
    shape = att.shape
    most = (
        (shape.Q if shape.Q * shape.K <= MAX_EXACT_CELLS else SAMPLED_ROWS) if rows is None else as_size(rows, "rows")
    )
    if tokens is not None and len(tokens) != shape.K:
        hint = never_read(len(tokens), shape.K)
        raise ValueError(f"there are {len(tokens):,} tokens but {shape.K:,} keys: give one for each key{hint}")
    ids = None if tokens is None else as_ids(tokens)
    found = HeadSampler(att, batch, range(head, head + 1), sample(shape.Q, most), ids=ids)
    for _ in found.steps():
        pass
    return found.means.records(len(found.queries))[0]


class HeadSampler:
    """Computes some heads of a layer, step by step.

    Args:
        att: the layer.
        batch: the sample.
        heads: the heads.
        queries: the rows to compute.
        size: the most rows and columns of the small pictures; 0 for none.
        bins: rows and keys of a bin of the pictures, instead of a size.
        ids: the token of each position, for the metrics that compare tokens.
        measured: whether to compute metrics.
        ends: the first and the last of all rows, of all heads, if `queries` are only some; None: of `queries`.
        known: index tensors that layers of the same shape share, filled when created.

    Attributes:
        values: (heads, rows, columns), weights pooled by maximum.
        allowed: (heads, rows, columns) bool, whether each bin has an allowed cell.
        means: the metrics.
    """

    def __init__(
        self,
        att: AttentionBase,
        batch: int,
        heads: range,
        queries: range,
        *,
        size: int = 0,
        bins: tuple[int, int] | None = None,
        ids: Tensor | None = None,
        measured: bool = True,
        known: dict[tuple[Any, ...], MetricIndex] | None = None,
        ends: tuple[int, int] | None = None,
    ) -> None:
        self._ends = ends
        self.att, self.batch, self.heads, self.queries = att, batch, heads, queries
        self._ids, self._measured, self._known = ids, measured, {} if known is None else known
        self._kept = only_overviews(att)
        if self._kept is not None:
            self.queries = range(att.shape.Q)
        shape, n = att.shape, len(self.queries)
        if bins is None:
            bins = (ceil(n / size), ceil(shape.K / size)) if size else None
            if bins is not None and self._kept is not None:
                bins = self._kept.whole_bins(*bins)
        self._row_bin, self._key_bin = bins or (1, 1)
        sizes = (ceil(n / self._row_bin), ceil(shape.K / self._key_bin)) if bins else (0, 0)
        with exact(att.device):
            self.values = new(att, len(heads), *sizes).zero_()
            self.allowed = torch.zeros(len(heads), *sizes, dtype=torch.bool, device=att.device)
            self.means = MetricMeans(len(heads))

    def steps(self) -> Iterator[None]:
        """Compute all of it; yields after each block."""
        if not self.heads:
            return
        if self._kept is not None:
            with exact(self.att.device):
                self._take(self._kept)
            yield
            return
        att, real_of = self.att, self._real_keys()
        measures: list[tuple[Tensor, Tensor]] = []
        index: MetricIndex | None = None
        for piece, heads, together, found in weight_rows(att, self.batch, self.heads, self.queries, self._row_bin):
            with exact(att.device):
                if heads.start == self.heads.start:
                    measures, index = [], self._index(self.queries[piece.start : piece.stop], together)
                if self.values.numel():
                    self._picture(slice(heads.start - self.heads.start, heads.stop - self.heads.start), piece, found)
                if index is not None:
                    measures.append(measure(index, found, real_of(heads.start)))
                    if heads.stop == self.heads.stop:
                        self.means.add([*index.names, *(["learned_sink"] if att.has_sinks else [])], measures)
            yield

    def _take(self, kept: KeptLevels) -> None:
        """Use numbers that were computed while q and k existed."""
        part = slice(self.heads.start, self.heads.stop)
        self.means.restore(kept.metric_sums[self.batch][:, part], kept.metric_counts[self.batch][:, part])
        for i, head in enumerate(self.heads if self.values.numel() else ()):
            shape = self.att.shape
            region = Region(self.batch, head, range(shape.Q), range(shape.K), self._row_bin, self._key_bin)
            self.values[i], self.allowed[i] = kept.pooled(region, "weights", "max")

    def _index(self, rows: range, heads: int) -> MetricIndex | None:
        if not self._measured:
            return None
        att, shape = self.att, self.att.shape
        own = att.own_keys(rows)
        places = own if own is None or isinstance(own, range) else tuple(own)
        key = (rows, places, shape.K, heads, id(self._ids), att.result_dtype, att.device)
        if key not in self._known:
            if len(self._known) >= MAX_KEPT_INDICES:
                self._known.clear()
            self._known[key] = MetricIndex(shape.K, heads, self._ids, own, att.result_dtype, att.device)
        return self._known[key]

    def _real_keys(self) -> Callable[[int], RealKeys]:
        ends = self._ends
        if ends is None:
            ends = (*self.queries[:1], *self.queries[-1:]) if self._measured else ()
        return real_keys(self.att, self.batch, ends)

    def _picture(self, heads: slice, piece: range, found: WeightRows) -> None:
        at = slice(piece.start // self._row_bin, ceil(piece.stop / self._row_bin))
        by_key = pool_first(found.e, self._key_bin, torch.amax) / found.total.where(found.total != 0, 1)
        pooled = self._by_row(by_key)
        self.values[heads, at] = torch.maximum(self.values[heads, at], pooled)
        if found.allowed is None:
            self.allowed[heads, at] = True
        else:
            self.allowed[heads, at] |= self._by_row(found.allowed.pooled(self._key_bin)).bool()

    def _by_row(self, x: Tensor) -> Tensor:
        """Pool (columns, heads, rows) over the rows: (heads, rows, columns)."""
        return pool_first(x.permute(2, 1, 0), self._row_bin, torch.amax).transpose(0, 1)


# Rows.


def real_keys(att: AttentionBase, batch: int, ends: Iterable[int]) -> Callable[[int], RealKeys]:
    """Return a function that returns a head's keys that are not padding: those that some rows may attend to.

    Args:
        att: the layer.
        batch: the sample.
        ends: the rows: the first and the last.
    """
    rows, K, same = {*ends}, att.shape.K, att.rules.same_for_heads

    @cache
    def found(head: int) -> RealKeys:
        with exact(att.device):
            allowed = torch.zeros(K, dtype=torch.bool, device=att.device)
            for row in rows:
                cells = Block(batch, head, range(row, row + 1), range(K))
                allowed |= whole(allowed_cells(att, cells), cells.queries, cells.keys, att.device)[0]
            return RealKeys(allowed)

    return lambda head: found(0 if same else head)


def weight_rows(
    att: AttentionBase, batch: int, heads: range, queries: range, row_bin: int = 1
) -> Iterator[tuple[range, range, int, WeightRows]]:
    """Iterate over all weights of some queries, by blocks of rows and, in a block, over heads that share keys.

    Args:
        att: the layer.
        batch: the sample.
        heads: the heads.
        queries: the queries.
        row_bin: a block has whole bins of so many rows, or a part of one.

    Yields:
        The numbers of a block's queries among them; the heads; the most heads computed at once; and their weights,
        which the next block overwrites.
    """
    shape = att.shape
    is_plain = _is_plain(att)
    several = heads_at_once(att)
    limit = _most_rows(att)
    scratch = Scratch(max(MAX_CELLS_AT_ONCE, shape.K), att.result_dtype, att.device)
    for piece in cuts(range(len(queries)), row_bin, limit):
        rows = queries[piece.start : piece.stop]
        together = max(1, min(several, limit // len(rows)))
        with exact(att.device):
            shared = SharedRows(att, batch, heads[0], rows, together) if is_plain else None
        first = heads.start
        while first < heads.stop:
            stop = min(heads.stop, (first // several + 1) * several, first + together)
            with exact(att.device):
                found = rows_of(att, batch, range(first, stop), rows, shared, scratch)
            yield piece, range(first, stop), together, found
            first = stop


def rows_of_texts(att: AttentionBase, batches: range, rows: range) -> WeightRows | None:
    """Compute all weights of some queries in all heads of several samples at once, sample by sample.

    Returns:
        (keys, samples · heads, rows); None if samples have different masks, or scores are not products.
    """
    source = att.source
    if not _is_plain(att) or not isinstance(source, Products):
        return None
    with exact(att.device):
        shared = [SharedRows(att, batch, 0, rows, 1) for batch in batches]
        if not all(_same(one.added, shared[0].added) for one in shared[1:]):
            return None
        at, dtype = slice(batches.start, batches.stop), att.result_dtype
        capped = att.softcap
        q = take(source.q[at], rows, 2).to(dtype) * (att.scale * (LOG2_E if capped is None else 1))
        groups = [att.group(head) for head in range(att.shape.H)]
        k = source.k[at] if len(groups) == att.shape.G else source.k[at][:, groups]
        S = torch.bmm(k.to(dtype).flatten(0, 1), q.flatten(0, 1).mT).transpose(0, 1).contiguous()
        if capped is not None:
            S.div_(capped).tanh_().mul_(capped * LOG2_E)
        if shared[0].added is not None:
            S += shared[0].added
        sinks = _sinks(att, range(att.shape.H))
        scratch = Scratch(S.numel(), dtype, att.device)
        found = _softmax(S, shared[0].allowed, scratch, None if sinks is None else sinks.repeat(len(batches), 1))
    return found if bool(found.total.isfinite().all()) else None


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


def heads_at_once(att: AttentionBase) -> int:
    """Return the number of heads in one product: those of a key head."""
    return att.shape.H // att.shape.G if _is_plain(att) else 1


def rows_at_once(att: AttentionBase, row_bin: int) -> int:
    """Return the number of rows whose multiples may be computed separately, with the same blocks as all together."""
    return max(_most_rows(att) // row_bin, 1) * row_bin


def _most_rows(att: AttentionBase) -> int:
    return max(1, MAX_CELLS_AT_ONCE // max(1, att.shape.K))


class SharedRows:
    """Masks and biases of some queries, if the rules are the same for all heads.

    Attributes:
        allowed: the allowed cells; None if all are.
        added: (keys, heads, rows), the bias, by log 2, written out because that is several times faster.
    """

    def __init__(self, att: AttentionBase, batch: int, head: int, rows: range, heads: int) -> None:
        keys = range(att.shape.K)
        found = att.rules.allowed(Block(batch, head, rows, keys))
        self.allowed: AllowedRows | None = None
        self.added: Tensor | None = None
        if found is not True:
            self.allowed = AllowedRows(whole(found, rows, keys, att.device).mT[:, None].contiguous())
            blocked = torch.zeros_like(self.allowed.allowed, dtype=att.result_dtype)
            self.added = blocked.masked_fill_(~self.allowed.allowed, -inf)
        for bias in att.rules.biases:
            assert isinstance(bias, Bias)  # a function of the scores is asked head by head
            part = cut(bias.added, Block(batch, head, rows, keys)).mT[:, None].to(att.result_dtype) * LOG2_E
            self.added = part if self.added is None else self.added + part
        if self.added is not None:
            self.added = self.added.expand(len(keys), heads, len(rows)).contiguous()


def _is_plain(att: AttentionBase) -> bool:
    """Whether scores are products, and rules the same for all heads of a sample."""
    return isinstance(att.source, Products) and att.rules.same_for_heads


def rows_of(
    att: AttentionBase, batch: int, heads: range, rows: range, shared: SharedRows | None, scratch: Scratch
) -> WeightRows:
    """Compute all weights of some queries of heads that share a key head; of one head, if nothing is shared."""
    if att.source.gives == "weights":
        return _given(att, batch, heads[0], rows)
    if shared is None:
        return _softmax(*_masked(att, batch, heads[0], rows), scratch, _sinks(att, heads))
    found = _softmax(_products(att, batch, heads, rows, shared), shared.allowed, scratch, _sinks(att, heads))
    if bool(found.total.isfinite().all()):
        return found
    # A NaN or ∞ may belong to a blocked cell: blocking must come first, head by head.
    own = [Scratch(att.shape.K * len(rows), att.result_dtype, att.device) for _ in heads]
    each = [rows_of(att, batch, range(head, head + 1), rows, None, one) for head, one in zip(heads, own, strict=True)]
    return WeightRows(
        torch.cat([one.e for one in each], 1),
        torch.cat([one.total for one in each]),
        torch.cat([one.entropy for one in each]),
        None if found.sink is None else torch.cat([one.sink for one in each if one.sink is not None]),
        shared.allowed,
        found.scratch,
    )


def _sinks(att: AttentionBase, heads: range) -> Tensor | None:
    """Return the logits of the learned sinks of some heads, by log 2: (heads, 1), or None."""
    if att.sinks is None:
        return None
    return (att.sinks[heads.start : heads.stop].to(att.device, att.result_dtype) * LOG2_E)[:, None]


def _softmax(S: Tensor, allowed: AllowedRows | None, scratch: Scratch, sinks: Tensor | None) -> WeightRows:
    """Compute weights from masked scores by log 2, (keys, heads, rows), −∞ in blocked cells, which it overwrites."""
    of_keys = S.amax(0)  # (heads, rows); −∞ for a fully masked query
    peak = (of_keys if sinks is None else torch.maximum(of_keys, sinks)).clamp(min=torch.finfo(S.dtype).min)
    S -= peak
    S.clamp_(min=LEAST_EXPONENT)
    e = torch.exp2(S, out=scratch.cut(len(S), S[0].numel()).view(S.shape))
    e -= 2.0**LEAST_EXPONENT  # makes blocked cells 0; the others do not change
    total = e.sum(0)  # (heads, rows)
    sums = S.mul_(e).sum(0)
    if sinks is None:
        return WeightRows(e, total, total.log2() - sums / total, None, allowed, S)
    exponent = (sinks - peak).clamp(min=LEAST_EXPONENT)  # (heads, rows)
    of_sink = torch.exp2(exponent) - 2.0**LEAST_EXPONENT
    total = total + of_sink
    entropy = total.log2() - (sums + exponent * of_sink) / total
    return WeightRows(e, total.masked_fill(of_keys == -inf, 0), entropy, of_sink / total, allowed, S)


def _products(att: AttentionBase, batch: int, heads: range, rows: range, shared: SharedRows) -> Tensor:
    """Compute the masked scores of several heads, by log 2: (keys, heads, rows)."""
    source, capped = att.source, att.softcap
    assert isinstance(source, Products)
    q = take(source.q[batch, heads.start : heads.stop], rows, 1).to(att.result_dtype)  # (heads, rows, D)
    product = Product((q * (att.scale * (LOG2_E if capped is None else 1))).flatten(0, 1))
    k = source.k[batch, att.group(heads[0])]
    pieces = [product.of(take(k, keys, 0).to(att.result_dtype)) for keys in cuts(range(len(k)), 1, 4 * KEYS)]
    S = (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).view(len(k), len(heads), len(rows))
    if capped is not None:
        S.div_(capped).tanh_().mul_(capped * LOG2_E)
    return S if shared.added is None else S.add_(shared.added[:, : len(heads)])


def _masked(att: AttentionBase, batch: int, head: int, rows: range) -> tuple[Tensor, AllowedRows | None]:
    """Compute the masked scores of one head, by log 2: (keys, 1, rows), and the allowed cells."""
    parts, keeps = [], []
    for keys in cuts(range(att.shape.K), 1, KEYS):
        cells = Block(batch, head, rows, keys)
        S, allowed = masked(att, cells, att.rules.allowed(cells))
        parts.append(S * LOG2_E)
        keeps.append(whole(allowed, rows, keys, att.device).mT)
    return torch.cat(parts)[:, None], AllowedRows.of(torch.cat(keeps)[:, None])


def _given(att: AttentionBase, batch: int, head: int, rows: range) -> WeightRows:
    """Return given weights as they are, whatever they sum to."""
    cells = Block(batch, head, rows, range(att.shape.K))
    e = plain(att, cells, "weights")[:, None]
    allowed = whole(allowed_cells(att, cells), rows, cells.keys, att.device).mT[:, None]
    there, entropy = allowed.any(0).to(e.dtype), -torch.xlogy(e, e).sum(0) * LOG2_E
    found = sink_weights(Head(att, batch, head), rows)
    sink = None if found is None else found[None]
    entropy = entropy if sink is None else entropy - torch.xlogy(sink, sink) * LOG2_E
    return WeightRows(e, there, entropy, sink, AllowedRows.of(allowed), torch.empty_like(e))
