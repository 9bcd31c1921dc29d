"""Which keys a cache evicts, query after query: one decision follows from the last, in steps of some queries each.

The scores of some queries on the keys that are there are made together; what is left for each query by itself is a sum,
a product and the least of as many numbers as the cache holds.
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
MOST_ROWS = 128  # queries of a step
MOST_CELLS = 1 << 21  # scores of a step, of all heads that decide together
LEAST_ROWS = 1
DECISION = 1 << 11  # weights that are gone through in the time of one decision, beside its own
LEAST_TOTAL = 1e-20  # of a row's exponentials: below, their largest has gone, and they are made again

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Places = np.ndarray[tuple[int], np.dtype[np.int64]]
Finding = Generator[float, None, Tensor]


@dataclass(frozen=True)
class Greedy:
    """How one key after the other is evicted.

    budget: keys that a query has at most, its own among them.
    protected: how many of the last keys are not evicted.
    sums: whether weights are summed over the queries so far; else those of the last query decide.
    """

    budget: int
    protected: int
    sums: bool


def evicting(att: AttentionBase, batch: int, heads: range, how: Greedy) -> Finding:
    """Go through the queries; where the cache is full, evict the key with the least weight: of equal ones the earliest.

    Args:
        att: causal self-attention with all its queries.
        batch: which sample.
        heads: whose weights, as a mean, decide together.
        how: what is evicted.

    Yields:
        After each step the share that is done.

    Returns:
        Of each key the first query that does not have it any more, (K,) int64 on the CPU; `NEVER` of those kept.
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
    """Return how many weights take as long as to go through so many queries, whose heads decide together."""
    return queries * (heads * (min(queries, budget) + MOST_ROWS // 2) + DECISION)


def _cells(rows: int, budget: int) -> float:
    """How many weights the first queries have together."""
    full = min(rows, budget)
    return full * (full + 1) / 2 + (rows - full) * budget


class _Step:
    """Some queries, and the keys that may be there.

    Args:
        att, batch, heads: as for `evicting`.
        rows: the queries.
        there: the keys that are there before, ascending.
        kept: the sum of the weights that each of them has had.
    """

    def __init__(self, att: AttentionBase, batch: int, heads: range, rows: range, there: Places, kept: Numbers) -> None:
        self.att, self.batch, self.heads, self.rows = att, batch, heads, rows
        self.before = len(there)
        self.places = np.concatenate([there, np.arange(rows.start, rows.stop)])  # of the columns, ascending
        self.kept = np.concatenate([kept, np.zeros(len(rows))])
        self.e = np.empty((len(heads), len(rows), len(self.places)))
        self.sink = np.zeros((len(heads), len(rows)))

    def exponentials(self) -> Generator[None, None, None]:
        """Compute e to the power of each score, less the largest of its row; yields after each head."""
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
        """Evict; return the keys that are there then, and what is kept of each."""
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
        """Compute the exponentials of one row, less the largest of the keys that are there."""
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
