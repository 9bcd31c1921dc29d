"""What some queries give to groups of keys, row by row: what the masses of segments are means of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from .._analysis.all_heads import weights_of
from .._engine.base import AttentionBase, Head
from .._engine.softmax import sink_weights
from .._engine.stages import allowed_cells
from .._rules.rules import whole
from .._utils.indexing import Block

Numbers = np.ndarray[Any, np.dtype[np.float64]]


class KeyGroups:
    """The group of each key.

    Args:
        labels: (K,) of each key the number of its group.
        count: how many groups there are.
    """

    def __init__(self, labels: np.ndarray[Any, Any], count: int) -> None:
        self.labels, self.count = np.asarray(labels, np.int64), count
        edges = np.flatnonzero(np.diff(self.labels)) + 1
        self._starts = np.concatenate([[0], edges])
        self._of_run = np.zeros((len(self._starts), count))
        self._of_run[np.arange(len(self._starts)), self.labels[self._starts]] = 1

    def sums(self, cells: np.ndarray[Any, Any]) -> Numbers:
        """Return the sum over each group, (rows, count), of cells (rows, K)."""
        found: Numbers = np.add.reduceat(cells, self._starts, axis=1, dtype=np.float64) @ self._of_run
        return found


class RowMasses(NamedTuple):
    """What some queries of a head give to each group of keys, and to their own key.

    Attributes:
        mass: (rows, groups), what the own key gets in it, and last the learned sink where there is one.
        even: the same for even attention: the share of the allowed keys; 0 of the sink.
        own, own_even: (rows,) that of the query's own key; 0 where it has none.
        some: (rows,) whether the query may attend to anything.
    """

    mass: Numbers
    even: Numbers
    own: Numbers
    own_even: Numbers
    some: np.ndarray[Any, np.dtype[np.bool_]]


def row_masses(att: AttentionBase, batch: int, head: int, rows: Sequence[int], groups: KeyGroups) -> RowMasses:
    """Compute what some queries of a head give to groups of keys, exactly."""
    queries = torch.as_tensor(list(rows), device=att.device)
    weights = weights_of(att, batch, head, queries).cpu().numpy()  # (rows, K)
    cells = Block(batch, head, queries, range(att.shape.K))
    allowed = whole(allowed_cells(att, cells), queries, cells.keys, att.device).cpu().numpy()
    counts = allowed.sum(1, dtype=np.float64)
    some = counts > 0
    with np.errstate(all="ignore"):
        even = np.where(some[:, None], groups.sums(allowed) / counts[:, None], 0.0)
    mass = groups.sums(weights)
    mass[~some] = 0
    if att.has_sinks:
        found = sink_weights(Head(att, batch, head), queries)
        sink = np.zeros(len(counts)) if found is None else found.cpu().numpy().astype(np.float64)
        mass = np.concatenate([mass, np.where(some, sink, 0)[:, None]], 1)
        even = np.concatenate([even, np.zeros((len(counts), 1))], 1)
    own, own_even = _own(att, rows, weights, allowed, counts)
    return RowMasses(mass, even, own, own_even, some)


def own_keys(att: AttentionBase, rows: Sequence[int]) -> list[int]:
    """Return of each query the key at its own place; -1 where it has none."""
    every = att.own_keys(range(att.shape.Q))
    if every is None:
        return [-1] * len(rows)
    return [every[row] if 0 <= every[row] < att.shape.K else -1 for row in rows]


def _own(
    att: AttentionBase, rows: Sequence[int], weights: Numbers, allowed: np.ndarray[Any, Any], counts: Numbers
) -> tuple[Numbers, Numbers]:
    places = np.array(own_keys(att, rows))
    own, own_even = np.zeros(len(counts)), np.zeros(len(counts))
    there = np.flatnonzero((places >= 0) & (counts > 0))
    there = there[allowed[there, places[there]]]
    own[there], own_even[there] = weights[there, places[there]], 1 / counts[there]
    return own, own_even
