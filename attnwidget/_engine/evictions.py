"""Which keys a KV cache evicts, query by query, in chunks of queries.

The scores of a chunk on the cached keys are computed together. Each query then takes only a sum, a product and a
minimum over the cached keys.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .._utils.indexing import Block, Indices
from .base import AttentionBase
from .matmul import exact
from .softmax import exact_block

NEVER = torch.iinfo(torch.int64).max
MOST_ROWS = 128  # queries in a chunk
MOST_CELLS = 1 << 21  # scores in a chunk, of all heads that decide together
LEAST_ROWS = 1
DECISION = 1 << 11  # fixed cost of one decision, in weights
LEAST_TOTAL = 1e-20  # of a row's exponentials: below, their largest key is gone, so they are computed again

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Places = np.ndarray[tuple[int], np.dtype[np.int64]]
Finding = Generator[float, None, Tensor]


@dataclass(frozen=True)
class Greedy:
    """How to evict one key at a time.

    budget: the most keys for a query, its own included.
    protected: how many of the last keys are never evicted.
    sums: whether sums over the queries so far decide, or only the weights of the current query.
    """

    budget: int
    protected: int
    sums: bool


def evicting(att: AttentionBase, batch: int, heads: range, how: Greedy) -> Finding:
    """Go through the queries; when the cache is full, evict the (earliest) key with the smallest weight.

    Args:
        att: causal self-attention with all its queries.
        batch: which sample.
        heads: their mean weights decide.
        how: how to evict.

    Yields:
        The share done.

    Returns:
        The first query that no longer has each key, (K,) int64 on the CPU; `NEVER` for a key that is kept.
    """
    Q, K = att.shape.Q, att.shape.K
    until: Places = np.full(K, NEVER, dtype=np.int64)
    there: Places = np.empty(0, dtype=np.int64)
    kept: Numbers = np.zeros(0)
    whole, row = _cells(Q, how.budget), 0
    while row < Q:
        fits = MOST_CELLS // (len(heads) * (len(there) + MOST_ROWS))
        rows = range(row, min(Q, row + max(LEAST_ROWS, min(MOST_ROWS, fits))))
        step = _Step(att, batch, heads, rows, there, kept)
        for _ in step.exponentials():
            yield _cells(row, how.budget) / whole
        there, kept = step.decide(how, until)
        row = rows.stop
        yield _cells(row, how.budget) / whole
    return torch.from_numpy(until)


def cells_of_decisions(queries: int, budget: int, heads: int) -> int:
    """Return the cost of going through the queries, in weights; `heads` decide together."""
    return queries * (heads * (min(queries, budget) + MOST_ROWS // 2) + DECISION)


def _cells(rows: int, budget: int) -> float:
    """Return how many weights the first `rows` queries have together."""
    full = min(rows, budget)
    return full * (full + 1) / 2 + (rows - full) * budget


class _Step:
    """A chunk of queries, and the keys that they may have.

    Args:
        att, batch, heads: as for `evicting`.
        rows: the queries.
        there: the cached keys before them, ascending.
        kept: the sum of the weights of each cached key.
    """

    def __init__(self, att: AttentionBase, batch: int, heads: range, rows: range, there: Places, kept: Numbers) -> None:
        self.att, self.batch, self.heads, self.rows = att, batch, heads, rows
        self.before = len(there)
        self.places = np.concatenate([there, np.arange(rows.start, rows.stop)])  # of the columns, ascending
        self.kept = np.concatenate([kept, np.zeros(len(rows))])
        self.e = np.empty((len(heads), len(rows), len(self.places)))
        self.sink = np.zeros((len(heads), len(rows)))

    def exponentials(self) -> Generator[None, None, None]:
        """Compute exp(score − largest score of its row); yields after each head."""
        keys: Indices = range(self.rows.stop)
        if len(self.places) < len(keys):
            keys = torch.from_numpy(self.places).to(self.att.device)
        for at, head in enumerate(self.heads):
            with exact(self.att.device):
                scores = exact_block(self.att, Block(self.batch, head, self.rows, keys), "masked", None)
                peak = scores.amax(1, keepdim=True)
                if self.att.sinks is not None:
                    sink = self.att.sinks[head].to(scores)
                    peak = torch.maximum(peak, sink)
                    self.sink[at] = (sink - _finite(peak)).exp().cpu().numpy()[:, 0]
                self.e[at] = (scores - _finite(peak)).exp_().cpu().numpy()
            yield

    def decide(self, how: Greedy, until: Places) -> tuple[Places, Numbers]:
        """Evict keys; return the cached keys afterwards, and their sums."""
        alive, dead = np.ones(len(self.places)), np.zeros(len(self.places))
        count = self.before
        for at, row in enumerate(self.rows):
            count += 1
            if count < how.budget and not how.sums:
                continue
            e, sink = self.e[:, at], self.sink[:, at]
            total = e @ alive + sink  # (heads,)
            if (total < LEAST_TOTAL).any():
                e, total = self._again(at, alive)
            share = 1 / np.where(total == 0, 1, total) / len(self.heads)
            weights = share[0] * e[0] if len(self.heads) == 1 else share @ e
            if how.sums:
                self.kept += weights
            if count < how.budget:
                continue
            stop = int(np.searchsorted(self.places, row - how.protected, side="right"))
            held = self.kept if how.sums else weights
            gone = int((held[:stop] + dead[:stop]).argmin())
            alive[gone], dead[gone] = 0, np.inf
            until[self.places[gone]] = row + 1
            count -= 1
        left = alive > 0
        return self.places[left], self.kept[left]

    def _again(self, at: int, alive: Numbers) -> tuple[Numbers, Numbers]:
        """Compute the exponentials of one row again, relative to its largest cached key."""
        keys = torch.from_numpy(self.places).to(self.att.device)
        rows = self.rows[at : at + 1]
        found, totals = np.zeros((len(self.heads), len(self.places))), np.zeros(len(self.heads))
        for number, head in enumerate(self.heads):
            with exact(self.att.device):
                scores = exact_block(self.att, Block(self.batch, head, rows, keys), "masked", None)[0]
            score: Numbers = np.where(alive > 0, scores.double().cpu().numpy(), -np.inf)
            sink = -np.inf if self.att.sinks is None else float(self.att.sinks[head])
            peak = max(float(score.max()), sink)
            if peak == -np.inf:
                continue
            found[number] = np.exp(score - peak)
            totals[number] = found[number].sum() + np.exp(sink - peak)
        return found, totals


def _finite(peak: Tensor) -> Tensor:
    return peak.masked_fill(peak.isneginf(), 0)
