"""What each query gives to segments of keys; the masses sent are means over queries."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ..._analysis.segment_mass import RowGroups, SegmentSums, own_keys_of, segment_sums
from ..._engine.base import AttentionBase

Numbers = np.ndarray[Any, np.dtype[np.float64]]
Labels = np.ndarray[Any, np.dtype[np.int64]]


class RowMasses(NamedTuple):
    """What rows give to each segment, then to the learned sink if there is one: (heads, rows, columns).

    Attributes:
        mass, even: from the weights, and from even attention.
        self, self_even: the part of each that goes to the queries' own keys.
        some: (heads, rows) whether any query of the row may attend to anything; otherwise the row is 0.
    """

    mass: Numbers
    even: Numbers
    self: Numbers
    self_even: Numbers
    some: np.ndarray[Any, np.dtype[np.bool_]]


def row_masses(
    att: AttentionBase,
    batch: int,
    heads: Sequence[int],
    queries: Sequence[int],
    labels: Labels,
    count: int,
    *,
    together: bool = False,
    stage: str = "weights",
) -> Generator[int, None, RowMasses]:
    """Compute what some queries of some heads give to segments of keys, exactly, in steps.

    Args:
        att: the attention.
        batch: the sample.
        heads: the heads, ascending.
        queries: the queries, ascending.
        labels: (K,) the segment number of each key.
        count: the number of segments.
        together: return one row, the mean over all queries; otherwise one row per query.
        stage: the stage to sum.
    """
    places = np.asarray(queries, np.int64)
    rows = np.zeros(len(places), np.int64) if together else np.arange(len(places))
    groups = RowGroups(places, rows, 1 if together else len(places))
    found = yield from segment_sums(att, batch, heads, groups, labels, count, stage)
    return _as_arrays(found, att)


def _as_arrays(found: SegmentSums, att: AttentionBase) -> RowMasses:
    even = _array(found.even)
    some: np.ndarray[Any, np.dtype[np.bool_]] = np.asarray(np.isfinite(even).all(2))
    parts = [_array(found.mass), even, _array(found.own), _array(found.even_own)]
    parts = [np.where(some[..., None], part, 0.0) for part in parts]
    if att.has_sinks:
        sink = np.zeros(some.shape) if found.sink is None else np.where(some, _array(found.sink), 0.0)
        last = [sink[..., None], *[np.zeros((*some.shape, 1))] * 3]
        parts = [np.concatenate(both, 2) for both in zip(parts, last, strict=True)]
    return RowMasses(parts[0], parts[1], parts[2], parts[3], some)


def _array(x: Tensor) -> Numbers:
    found: Numbers = x.detach().cpu().double().numpy()
    return found


def own_columns(att: AttentionBase, queries: Sequence[int], labels: Labels) -> Labels:
    """Return the segment of each query's own key; -1 if it has none."""
    keys = own_keys_of(att)
    if keys is None:
        return np.full(len(queries), -1)
    own = keys[np.asarray(queries, np.int64)]
    return np.where(own >= 0, labels[np.maximum(own, 0)], -1)
