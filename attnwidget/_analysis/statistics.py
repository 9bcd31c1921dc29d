"""Statistics of a head and of its rows, and the strongest keys of a row. Streamed: memory is O(Q + K)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from math import inf, log, nan

import torch
from torch import Tensor

from .._engine import cost
from .._engine.base import Head
from .._engine.logsumexp import LogSumExp
from .._engine.matmul import exact, exactly, exp_
from .._engine.softmax import Softmax, normalizing, passing, run_to_end, sink_weights
from .._engine.stages import KEYS, QUERIES, allowed_cells, blocks, new, plain, streamed
from .._rules.rules import whole
from .._utils.indexing import as_index, cuts
from .._utils.readable import Readable
from .._utils.validation import as_size

SATURATED = 0.99  # the least peak of a saturated row
UNIFORM = 1e-3  # the largest relative excess of the peak over equal weights


@dataclass(frozen=True, eq=False, repr=False)
class Statistics(Readable):
    """The numbers of one head: the spread of its scores, and the effect of the softmax.

    Variances are over all entries, with n − 1, as `torch.var`; those of scores are over the allowed cells. A variance
    is None without q and k, or v.

    q_variance, k_variance, v_variance: of the entries of q, k and v (Q·D, K·D and K·Dv of them).
    scores_variance: of QKᵀ; D in theory, if the entries of q and k are independent with mean 0 and
        variance 1 (Vaswani et al. 2017, footnote 4).
    scaled_variance: of the scaled scores; 1 in theory for the default scale.
    entropy: (Q,) bits, −Σ p log₂ p over the keys and the learned sink; 0 if one key has all the weight, log₂ n if n
        keys have equal weights.
    peak: (Q,) the largest weight of a key.
    sensitivity: (Q,) Σ p (1 − p) over the keys, 1 − Σ p² for weights that sum to 1: the trace of the softmax's Jacobian
        diag(p) − p pᵀ (Bridle 1990), by which gradients reach the scores; 0 if one key has all the weight.
    allowed: (Q,) int64, the number of allowed keys.
    total: (Q,) the sum of the keys' weights; with `sink` 1 up to rounding, 0 in a fully masked row.
    sink: (Q,) the weight of the learned sink; None without learned sinks.
    empty_rows: the number of fully masked queries.
    saturated_rows: the number of queries with a peak ≥ 0.99 and several allowed keys: almost no gradient.
    uniform_rows: the number of queries with several allowed keys, none with over 1.001 times their mean weight.

    >>> import torch
    >>> from attnwidget import Attention
    >>> att = Attention(torch.eye(3), torch.eye(3), torch.eye(3), is_causal=True)
    >>> found = att.statistics()
    >>> found.peak.tolist()[0], found.entropy.shape
    (1.0, torch.Size([3]))
    """

    q_variance: float | None
    k_variance: float | None
    v_variance: float | None
    scores_variance: float | None
    scaled_variance: float | None
    theory: int | None
    entropy: Tensor
    peak: Tensor
    sensitivity: Tensor
    allowed: Tensor
    total: Tensor
    sink: Tensor | None
    empty_rows: int
    saturated_rows: int
    uniform_rows: int


def statistics(head: Head) -> Statistics:
    """Return the statistics of a head: see `Attention.statistics`."""
    return run_to_end(exactly(head.att.device, computing_statistics(head, range(head.att.shape.Q))))


def worth_of_statistics(head: Head) -> int:
    """Return the cost of one statistic, in cells; combined heads are computed one by one."""
    return cost.STATISTICS - 1 + cost.worth_of_a_cell(*head)


def cells_of_statistics(head: Head, queries: range) -> int:
    """Return the cost of `computing_statistics`, in cells."""
    att, keys = head.att, range(head.att.shape.K)
    scored = 2 if "scores" in att.stages else 1
    every = sum(
        len(queries[at.start : at.stop]) * len(att.rules.span(head.block(queries[at.start : at.stop], keys)))
        for at in cuts(range(len(queries)), 1, QUERIES)
    )
    looked = every * (scored + (streamed(att, "weights") == "masked"))
    needed = att.source.rows_needed(head.batch, head.head, queries) or ()
    return looked * worth_of_statistics(head) + sum(len(rows) * one[0].shape.K for one, rows in needed)


def computing_statistics(head: Head, queries: range) -> Generator[int, None, Statistics]:
    """Compute the statistics of some queries of a head: the rows, and the variances of their scores.

    Yields:
        After each block, its cost in cells.
    """
    att = head.att
    entropy, peak, squares, total, allowed = yield from _rows(head, queries)
    sink = sink_weights(head, queries)
    entropy = entropy if sink is None else entropy - torch.xlogy(sink, sink) / log(2)
    several = allowed > 1
    scores = (yield from _scores_variance(head, queries)) if "scores" in att.stages else None
    return Statistics(
        q_variance=_variance(head.q),
        k_variance=_variance(head.k),
        v_variance=_variance(head.v),
        scores_variance=scores,
        scaled_variance=None if scores is None else scores * att.scale**2,
        theory=att.shape.D,
        entropy=entropy,
        peak=peak,
        sensitivity=(total - squares).clamp_(min=0),
        allowed=allowed,
        total=total,
        sink=sink,
        empty_rows=int((allowed == 0).sum()),
        saturated_rows=int((several & (peak >= SATURATED)).sum()),
        uniform_rows=int((several & (total > 0) & (peak * allowed <= total * (1 + UNIFORM))).sum()),
    )


def _rows(head: Head, queries: range) -> Generator[int, None, tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """Return entropy in bits, maximum, Σ p², Σ p and allowed keys of some rows, (queries,) each."""
    att, worth = head.att, worth_of_statistics(head)
    stage = streamed(att, "weights")
    entropy, peak, squares, total = new(att, 4, len(queries)).zero_()
    keys_allowed = torch.zeros(len(queries), dtype=torch.int64, device=att.device)
    for piece in cuts(range(len(queries)), 1, QUERIES):
        at, rows = slice(piece.start, piece.stop), queries[piece.start : piece.stop]
        yield from att.source.prepare(head.batch, rows)
        known = (yield from _worth(head, normalizing(head, rows))) if stage == "masked" else None
        for keys, S, allowed in blocks(head, rows, stage):
            log_p = _log(S) if known is None else known.log_weights(S)  # (keys, queries)
            p = S if known is None else exp_(log_p.clone())
            entropy[at] -= log_p.mul_(p).masked_fill_(p == 0, 0).sum(0)
            del log_p
            peak[at] = torch.maximum(peak[at], p.amax(0))
            squares[at] += p.square().sum(0)
            total[at] += p.sum(0)
            if isinstance(allowed, Tensor):
                keys_allowed[at] += allowed.expand(len(rows), len(keys)).sum(1)
            else:
                keys_allowed[at] += len(keys) * allowed
            del S, p
            yield len(rows) * len(keys) * worth
    return entropy / log(2), peak, squares, total, keys_allowed


def _worth(head: Head, steps: Generator[int, None, LogSumExp]) -> Generator[int, None, LogSumExp]:
    """Run steps that yield cells; yield their cost here."""
    worth = worth_of_statistics(head)
    return passing(steps, lambda cells: cells * worth)


def _log(weights: Tensor) -> Tensor:
    """Return the logarithms of weights, raised to the least normal number: the logarithm of 0 is slow."""
    return weights.clamp_min(torch.finfo(weights.dtype).tiny).log_()


def _variance(x: Tensor | None) -> float | None:
    if x is None:
        return None
    found = (0, 0.0, 0.0)
    for piece in x.split(KEYS):
        found = _merged(found, piece)
    return _of_sample(found[0], found[2])


def _scores_variance(head: Head, queries: range) -> Generator[int, None, float]:
    att, found, worth = head.att, (0, 0.0, 0.0), worth_of_statistics(head)
    for piece in cuts(range(len(queries)), 1, QUERIES):
        row = head.block(queries[piece.start : piece.stop])
        for keys in att.rules.pieces(row, 1, KEYS):
            cells = row._replace(keys=keys)
            allowed = allowed_cells(att, cells)
            if allowed is False:
                continue
            S = plain(att, cells, "scores")
            found = _merged(found, S[allowed.expand(len(piece), len(keys)).mT] if isinstance(allowed, Tensor) else S)
            yield len(piece) * len(keys) * worth
    return _of_sample(found[0], found[2])


def _merged(one: tuple[int, float, float], x: Tensor) -> tuple[int, float, float]:
    """Add numbers to count, mean and Σ (x − mean)² (Chan, Golub & LeVeque 1983), without differences of large sums."""
    count, mean, spread = one
    variance, here = (float(part) for part in torch.var_mean(x.double(), correction=0))
    both, apart = count + x.numel(), here - mean
    spread += variance * x.numel() + apart**2 * count * x.numel() / both
    return both, mean + apart * x.numel() / both, spread


def _of_sample(count: int, spread: float) -> float:
    return spread / (count - 1) if count > 1 else nan


def top_keys(head: Head, query: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the strongest keys of one query and their weights: see `Attention.top_keys`."""
    count = as_size(count, "count")
    query = as_index(query, head.att.shape.Q, "query", "queries")
    with exact(head.att.device):
        row, allowed, known = _row(head, range(query, query + 1))
        least = row.masked_fill(~allowed, -inf).topk(min(count, len(row))).values[-1]
        keys = (allowed & ~(row < least)).nonzero()[:, 0]  # ascending; more than count if some are equal
        keys = keys[row[keys].sort(descending=True, stable=True).indices[:count]]
        return keys, row[keys] if known is None else exp_(known.log_weights(row[keys]))


def _row(head: Head, queries: range) -> tuple[Tensor, Tensor, LogSumExp | None]:
    """Return the numbers that rank a query's keys (K,), its allowed keys (K,), and its log-normalizer, if needed."""
    att = head.att
    row = new(att, att.shape.K).fill_(-inf)
    may_attend = torch.zeros(att.shape.K, dtype=torch.bool, device=att.device)
    softmax, stage = Softmax(head, 1), streamed(att, "weights")
    for keys, S, allowed in blocks(head, queries, stage):
        at = slice(keys.start, keys.stop)
        row[at] = S[:, 0]
        may_attend[at] = allowed[0] if isinstance(allowed, Tensor) else allowed
        if stage == "masked":
            softmax.add(S, S.amax(0))
        elif att.rules.rules:  # weights of words; some may be blocked
            may_attend[at] = whole(att.rules.allowed(head.block(queries, keys)), queries, keys, att.device)[0]
    return row, may_attend, softmax.logsumexp() if stage == "masked" else None
