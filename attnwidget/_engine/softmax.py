"""The online softmax and other computations over whole rows, block by block, without any (Q, K) tensor.

The softmax follows Milakov & Gimelshein (2018) and FlashAttention (Dao et al. 2022), with log-normalizers in two parts:
`LogSumExp`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from math import inf
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from .._utils.indexing import Block, Indices, cuts, take
from .base import AttentionBase, Head, longest
from .fused import Library
from .fused_pass import Bins, FusedPass, LibraryRules, filled_up, library_for, rules_of
from .logsumexp import LogSumExp
from .matmul import LOG2_E, exp_
from .sources import CARRIED
from .stages import QUERIES, blocks, exponentials, keys_at_once, masked, new, plain, streamed, valued, values

T = TypeVar("T")
Y = TypeVar("Y")
R = TypeVar("R")

SMALL = 60.0  # |score|: e^±60, and sums of a million of them, are normal numbers of float32

# The online softmax.


class Softmax:
    """Running maximum m and sum l of exp(masked − m) for some queries, block by block.

    A learned sink is the first key: its logit in every row, without a value.
    """

    def __init__(self, head: Head, queries: int):
        sink = head.sink
        self.m = new(head.att, queries).fill_(-inf if sink is None else sink)  # (queries,)
        self.l = torch.full_like(self.m, 0.0 if sink is None else 1.0)  # (queries,)

    def add(self, S: Tensor, peak: Tensor) -> tuple[Tensor, Tensor | None]:
        """Add a block of keys.

        Args:
            S: masked, (keys, queries), which is overwritten.
            peak: (queries,), its maximum over the keys.

        Returns:
            exp(S − m), in the memory of S; and the factors that rescale earlier results, (queries,), None for 1.
        """
        m = torch.maximum(self.m, peak)  # keeps NaN
        base = m.masked_fill(m == -inf, 0)  # −∞ − (−∞) would be NaN in a row without keys so far
        e = exp_(S.sub_(base))  # (keys, queries)
        shrink = exp_(self.m - base)  # (queries,)
        self.m, self.l = m, self.l * shrink + e.sum(0)
        return e, shrink

    def logsumexp(self) -> LogSumExp:
        """Return the log-normalizers."""
        empty = self.m == -inf
        return LogSumExp(self.m.masked_fill(empty, 0), self.l.log().masked_fill(empty, inf))


class DirectSoftmax(Softmax):
    """The softmax for scores so small that exp needs no maximum subtracted, and no rescaling.

    The maximum is kept only for the log-normalizers.
    """

    def __init__(self, head: Head, queries: int):
        super().__init__(head, queries)
        self.l = self.m.mul(LOG2_E).exp2_()  # 0, or exp of the sink

    def add(self, S: Tensor, peak: Tensor) -> tuple[Tensor, Tensor | None]:
        """Add a block of keys like `Softmax.add`, but return exp(S)."""
        e = S.mul_(LOG2_E).exp2_()  # (keys, queries)
        self.m = torch.maximum(self.m, peak)
        self.l += e.sum(0)
        return e, None

    def logsumexp(self) -> LogSumExp:
        """Return the log-normalizers."""
        of_peak = self.m.mul(LOG2_E).exp2_()  # as in `add`, so that a row's only key has weight 1 to the last bit
        empty = self.m == -inf
        return LogSumExp(self.m.masked_fill(empty, 0), (self.l / of_peak).log_().masked_fill_(empty, inf))


class DirectSum:
    """Only the sum l = Σ exp(masked), for scores so small that exp needs no maximum subtracted."""

    def __init__(self, head: Head, queries: int):
        sink = head.sink
        self.l = new(head.att, queries).fill_(-inf if sink is None else sink).mul_(LOG2_E).exp2_()  # (queries,)

    def logsumexp(self) -> LogSumExp:
        """Return the log-normalizers."""
        m, empty = self.l.log(), self.l == 0
        return LogSumExp(m.masked_fill(empty, 0), (self.l / m.exp()).log_().masked_fill_(empty, inf))


def online(head: Head, queries: Indices) -> Callable[[Head, int], Softmax]:
    """Return the fastest softmax that is exact for some queries."""
    return DirectSoftmax if is_small(head, queries) else Softmax


def is_small(head: Head, queries: Indices, limit: float = SMALL) -> bool:
    """Return whether scores of some queries and the sink's logit are so small that exp needs no maximum subtracted.

    Scores with biases or a softcap never count as small.
    """
    att = head.att
    if not att.scores_are_products or att.rules.biases or abs(head.sink or 0.0) >= limit:
        return False
    return bound(head, queries) < limit  # NaN is not


def is_finite(head: Head, queries: Indices) -> bool:
    """Return whether masked scores of some queries are −∞ only in blocked cells, because nothing overflows."""
    rules = head.att.rules
    return not rules.by_score and len(rules.biases) < 2 and bound(head, queries) < 1e30  # NaN is not


def bound(head: Head, queries: Indices) -> float:
    """Return an upper bound of the scaled scores of some queries, |q · k| ≤ ‖q‖ · ‖k‖; ∞ or NaN if unknown."""
    if head.q is None:
        return inf
    return longest(take(head.q, queries, 0)) * head.att.longest_key(head.batch, head.group) * abs(head.att.scale)


def normalizing(head: Head, queries: Indices) -> Generator[int, None, LogSumExp]:
    """Compute and cache the log-normalizers of some queries, unless they are known.

    Yields:
        The number of cells in each block.

    Returns:
        The log-normalizers.
    """
    att, batch, index = head
    known = att.known_rows(batch, index, queries)
    if known is not None:
        return known
    versions = att.versions()
    m, log_l = new(att, 2, len(queries))  # (queries,) each
    compiled, rules = library_for(att) if isinstance(queries, range) else None, rules_of(att, batch)
    of_rows: Callable[[Head, Indices], Generator[int, None, LogSumExp]]
    if compiled is not None and rules is not None:
        of_rows = partial(_of_fused, compiled, rules)
    else:
        of_rows = _of_small if is_small(head, queries) else _of_any
    for piece in cuts(range(len(queries)), 1, QUERIES):
        at = slice(piece.start, piece.stop)
        found = att.known_rows(batch, index, queries[at])
        if found is None:
            found = yield from of_rows(head, queries[at])
            att.remember_rows(batch, index, queries[at], found, versions)
        m[at], log_l[at] = found
    return LogSumExp(m, log_l)


def _of_fused(compiled: Library, rules: LibraryRules, head: Head, queries: Indices) -> Generator[int, None, LogSumExp]:
    assert isinstance(queries, range)
    whole = new(head.att, 1, filled_up(len(queries))).fill_(-inf)
    found = FusedPass(compiled, head, queries, Bins(whole, 0, max(1, head.att.shape.K), 0, mean=False))
    for keys in found.multiply(head.att.rules.span(head.block(queries)), rules):
        yield len(queries) * len(keys)
    return found.log_normalizers()


def _of_small(head: Head, queries: Indices) -> Generator[int, None, LogSumExp]:
    total = DirectSum(head, len(queries))
    for _, e, _ in exponentials(head, queries):
        total.l += e.sum(0)
        yield e.numel()
        del e
    return total.logsumexp()


def _of_any(head: Head, queries: Indices) -> Generator[int, None, LogSumExp]:
    softmax = Softmax(head, len(queries))
    for _, S, _ in blocks(head, queries, "masked"):
        softmax.add(S, S.amax(0))
        yield S.numel()
        del S
    return softmax.logsumexp()


def normalizers(head: Head, queries: Indices) -> LogSumExp:
    """Return the log-normalizers of some queries, and cache them."""
    return run_to_end(normalizing(head, queries))


def head_logsumexp(head: Head) -> LogSumExp:
    """Return the log-normalizers of all queries of a head, and cache them."""
    return normalizers(head, range(head.att.shape.Q))


def passing(steps: Generator[Y, None, T], told: Callable[[Y], R]) -> Generator[R, None, T]:
    """Run a generator, yield told(item) for each item, and return its result."""
    while True:
        try:
            made = next(steps)
        except StopIteration as end:
            return cast(T, end.value)
        yield told(made)


def run_to_end(steps: Generator[Any, None, T]) -> T:
    """Run a generator to its end, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(T, end.value)


def output(head: Head) -> tuple[Tensor, LogSumExp | None]:
    """Compute weights · v of all queries, (Q, Dv), and their log-normalizers, if any."""
    att = head.att
    out, (m, log_l) = new(att, att.shape.Q, att.shape.Dv or 0), new(att, 2, att.shape.Q)
    for rows in cuts(range(att.shape.Q), 1, QUERIES):
        at = slice(rows.start, rows.stop)
        out[at], found = run_to_end(output_rows(head, rows))
        if found is not None:
            m[at], log_l[at] = found
    return out, LogSumExp(m, log_l) if streamed(att, "weights") == "masked" else None


def output_rows(head: Head, rows: Indices) -> Generator[int, None, tuple[Tensor, LogSumExp | None]]:
    """Compute weights · v of some queries, (queries, Dv), and their log-normalizers, if any.

    Yields:
        The number of cells in each block.
    """
    att, stage = head.att, streamed(head.att, "weights")
    total = new(att, len(rows), att.shape.Dv or 0).zero_()  # (queries, Dv)
    if stage == "weights":
        for keys, S, _ in blocks(head, rows, stage):
            total += weigh(S, values(head, keys))
            yield len(rows) * len(keys)
        return total, None
    softmax = Softmax(head, len(rows))
    for keys, S, _ in blocks(head, rows, stage):
        e, shrink = softmax.add(S, S.amax(0))
        total = weigh(e, values(head, keys)) + (total if shrink is None else total * shrink[:, None])
        del e, S
        yield len(rows) * len(keys)
    return (total / softmax.l[:, None]).masked_fill((softmax.m == -inf)[:, None], 0), softmax.logsumexp()


def weigh(e: Tensor, v: Tensor) -> Tensor:
    """Return eᵀ · v, (queries, Dv); NaN and ∞ in v reach only queries that give them weight."""
    finite = v.isfinite()  # (keys, Dv)
    if bool(finite.all()):
        return e.mT @ v  # (queries, Dv)
    reached = e.mT @ (~finite).to(e.dtype) > 0  # (queries, Dv)
    return torch.where(reached, e.mT @ v, e.mT @ v.where(finite, 0))


# Blocks of any stage.


def exact_block(att: AttentionBase, cells: Block, stage: str, known: LogSumExp | None) -> Tensor:
    """Compute a stage of some cells.

    Args:
        att: the attention.
        cells: which cells.
        stage: which stage.
        known: the log-normalizers of the queries, if weights or later stages are computed from scores.

    Returns:
        (queries, keys).
    """
    out = new(att, len(cells.queries), len(cells.keys))
    for at in cuts(range(len(cells.keys)), 1, keys_at_once(att, len(cells.queries))):
        part = cells._replace(keys=cells.keys[at.start : at.stop])
        if streamed(att, stage) != "masked":
            S = plain(att, part, stage)
        else:
            S, _ = masked(att, part, att.rules.allowed(part))
        if known is not None:
            S = exp_(known.log_weights(S).clamp_(max=0))  # above 1 only by rounding
            S = valued(S, Head(att, part.batch, part.head), part.queries, part.keys, stage)
        out[:, at.start : at.stop] = S.mT
    return out


def whole_rows(att: AttentionBase, cells: Block, stage: str) -> Tensor:
    """Compute weights or a later stage of some queries over all keys, and normalize each row by its own scores.

    So a row's only key has weight exactly 1, and equal keys have exactly equal weights. Cached log-normalizers, from a
    product of another shape, may differ in the last bit.

    Returns:
        (queries, keys).
    """
    S = exact_block(att, cells, "masked", None).mT.contiguous()  # (keys, queries)
    head = Head(att, cells.batch, cells.head)
    softmax = Softmax(head, len(cells.queries))
    e, _ = softmax.add(S, S.amax(0))  # (keys, queries)
    weights = e / softmax.l.masked_fill(softmax.m == -inf, 1)
    return valued(weights, head, cells.queries, cells.keys, stage).mT.contiguous()


# Learned sinks.


def sink_weights(head: Head, queries: Indices) -> Tensor | None:
    """Compute the sink weights of some queries, 1 minus the sum of their other weights.

    Returns:
        (queries,), 0 if this head has no sink; None if no head has one.
    """
    att = head.att
    if att.sinks is None:
        return att.source.sink_weights(head.batch, head.head, queries)
    logit = new(att, len(queries)).fill_(-inf if head.sink is None else head.sink)
    return exp_(normalizers(head, queries).log_weights(logit).clamp_(max=0))


def sink_column(head: Head, queries: Indices, stage: str) -> Tensor | None:
    """Compute the sink's column of a stage, (queries,): its logit for "scaled" to "masked"; None if there is none."""
    if stage == "weights":
        return sink_weights(head, queries)
    sinks = head.att.sinks
    if sinks is None or stage == "scores":
        return None
    has_no_value = stage == "contribution" or stage in CARRIED
    return new(head.att, len(queries)).fill_(0.0 if has_no_value else float(sinks[head.head]))
