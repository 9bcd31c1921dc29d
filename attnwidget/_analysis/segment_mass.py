"""How much weight goes from segment to segment: mass, mass per token, and lift over even attention.

A stage after the weights is summed instead: its numbers have signs and are not shares.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import inf, nan
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._engine.base import AttentionBase, Head, find_head
from .._engine.matmul import exact, exactly
from .._engine.parts import cells_of_a_task, needed_for
from .._engine.segment_sums import (
    AllowedSums,
    KeyGroups,
    OwnKeys,
    WeightSums,
    all_small,
    counting,
    summing,
    summing_stage,
    together,
)
from .._engine.softmax import run_to_end
from .._engine.stages import NORMALIZED, QUERIES, streamed
from .._parallel.task import Subject, Task, named
from .._parallel.work import gather
from .._segments.named import FIRST, Labels
from .._segments.reading import segments
from .._segments.segments import Segments
from .._utils.indexing import Indices, as_indices, cuts
from .._utils.progress_bars import progress_bar
from .._utils.validation import as_choice, nearest, told
from .all_heads import LayerSource

MEASURES = ("mass", "per_token", "lift")
SUM_MEASURES = ("sum", "per_token")  # of a stage after the weights
NO_LIFT = 'lift is mass over the mass of even attention, and {stage} has none: give measure="sum", or stage="weights"'
NO_MASS = 'the numbers of {stage} are not shares that sum to 1: give measure="sum", or stage="weights"'
NO_SUM = 'weights summed over a segment are its mass: give measure="mass", or another stage, such as stage="logit"'
SINK = "learned sink"
SELF = "self"


# Raw sums.


class SegmentSums(NamedTuple):
    """Weights from rows to groups of keys, nothing excluded. A row is a query, or the mean over several.

    A fully masked query is in no mean; a row without any other query is NaN.

    others: (heads, rows, groups), the weight on the keys of each group, without a query's own key.
    even_others: (heads, rows, groups), the share of these keys among all allowed keys.
    own: (heads, rows, groups), the weight of a query's own key, in the group that has it.
    even_own: (heads, rows, groups), the share of that key.
    sink: (heads, rows), the weight of the learned sink; None if no head has one.
    """

    others: Tensor
    even_others: Tensor
    own: Tensor
    even_own: Tensor
    sink: Tensor | None

    @property
    def mass(self) -> Tensor:
        """The weight on all keys of each group, (heads, rows, groups)."""
        return self.others + self.own

    @property
    def even(self) -> Tensor:
        """The share of each group among the allowed keys, (heads, rows, groups)."""
        return self.even_others + self.even_own


class RowGroups(NamedTuple):
    """Queries, and the row of each.

    queries: (n,) int64, ascending.
    rows: (n,) int64, the number of its row.
    total: the number of rows.
    """

    queries: Labels
    rows: Labels
    total: int


def segment_sums(
    att: AttentionBase,
    batch: int,
    heads: Sequence[int],
    rows: RowGroups,
    labels: Labels,
    count: int,
    stage: str = "weights",
) -> Generator[int, None, SegmentSums]:
    """Sum the weights of some heads, or a stage after them, from rows to groups of keys.

    Args:
        att: the attention.
        batch: the sample.
        heads: ascending.
        rows: the queries and their rows.
        labels: (K,) int64, the group number of each key; -1 for a key in no group.
        count: the number of groups.
        stage: the weights, or a stage that multiplies them.

    Yields:
        After each block of about a million cells, its number of cells.
    """
    return (yield from exactly(att.device, summing_by_row(att, batch, heads, rows, labels, count, stage)))


def summing_by_row(
    att: AttentionBase,
    batch: int,
    heads: Sequence[int],
    rows: RowGroups,
    labels: Labels,
    count: int,
    stage: str = "weights",
) -> Generator[int, None, SegmentSums]:
    return (yield from _filling_means(att, batch, heads, rows, labels, count, stage)).result()


def _filling_means(
    att: AttentionBase,
    batch: int,
    heads: Sequence[int],
    rows: RowGroups,
    labels: Labels,
    count: int,
    stage: str,
    part: range | None = None,
    step: int | None = None,
) -> Generator[int, None, _Means]:
    """Sum weights as `segment_sums` does.

    Args:
        att, batch, heads, rows, labels, count, stage: as in `segment_sums`.
        part: the places of the queries to sum; None for all.
        step: the number of queries to sum at once; None for as many as fit.
    """
    groups = KeyGroups(labels, count, att.device)
    own_keys = own_keys_of(att)
    means = _Means(len(heads), rows.total, count, att)
    parts = _together(heads, together(att))
    step = _queries_at_once(att, groups, parts) if step is None else step
    among_many = len(rows.queries) >= QUERIES  # enough to make looking at all keys for the largest worthwhile
    small: dict[range, bool] = {}
    for piece in cuts(range(len(rows.queries)) if part is None else part, 1, step):
        queries = _as_indices(rows.queries[piece.start : piece.stop], att.device)
        own = None if own_keys is None else _as_own(own_keys[rows.queries[piece.start : piece.stop]], att.device)
        into = _ByRow(rows.rows[piece.start : piece.stop], att.device)
        own_groups = None if own is None else groups.of_keys(own)
        counts: AllowedSums | None = None
        for these in parts:
            if counts is None or not att.rules.same_for_heads:
                counts = yield from counting(Head(att, batch, heads[these.start]), queries, groups, own)
            of = range(heads[these.start], heads[these.stop - 1] + 1)
            if stage != "weights":
                found = yield from summing_stage(att, batch, of, queries, groups, own, stage)
            else:
                if these not in small:
                    small[these] = among_many and all_small(att, batch, of, _as_indices(rows.queries, att.device))
                found = yield from summing(att, batch, of, queries, groups, own, small=small[these])
            means.add(these, into, found, counts, own_groups)
    return means


def _queries_at_once(att: AttentionBase, groups: KeyGroups, parts: Sequence[range]) -> int:
    if streamed(att, "weights") != "masked":
        return QUERIES
    return groups.queries_at_once(max(map(len, parts)))


def _together(heads: Sequence[int], several: int) -> list[range]:
    """Return ranges of places in `heads` that are computed in one product: neighbors of one key head."""
    found: list[range] = []
    for at, head in enumerate(heads):
        last = found[-1] if found else range(0)
        joins = last and heads[last.stop - 1] == head - 1 and heads[last.start] // several == head // several
        if joins:
            found[-1] = range(last.start, at + 1)
        else:
            found.append(range(at, at + 1))
    return found


def _as_indices(queries: Labels, device: torch.device) -> Indices:
    if bool((np.diff(queries) == 1).all()):
        return range(int(queries[0]), int(queries[-1]) + 1)
    return torch.from_numpy(queries).to(device)


def _as_own(keys: Labels, device: torch.device) -> OwnKeys:
    """Return the keys of consecutive queries, as a range if they are consecutive too."""
    if len(keys) and keys[0] >= 0 and bool((np.diff(keys) == 1).all()):
        return range(int(keys[0]), int(keys[-1]) + 1)
    return torch.from_numpy(keys).to(device)


def own_keys_of(att: AttentionBase) -> Labels | None:
    """Return the key at each query's own place, (Q,) int64, -1 if there is none; None if all are unknown."""
    found = att.own_keys(range(att.shape.Q))
    if found is None:
        return None
    keys = np.arange(found.start, found.stop, found.step) if isinstance(found, range) else np.asarray(found, np.int64)
    return np.where(keys < att.shape.K, keys, -1)


MOST_RUNS = 32  # runs of queries of one row; each of so many is summed separately


class _ByRow:
    """Some queries by their row.

    Args:
        rows: (n,) the number of each query's row.
        device: of the sums.
    """

    def __init__(self, rows: Labels, device: torch.device) -> None:
        self.rows = torch.from_numpy(rows).to(device)
        edges = (np.flatnonzero(np.diff(rows)) + 1).tolist()
        starts = [0, *edges]
        self._runs = list(zip(starts, [*edges, len(rows)], rows[starts].tolist(), strict=True))
        first, last = int(rows[0]), int(rows[-1])
        self._each = slice(first, last + 1) if bool((np.diff(rows) == 1).all()) else None  # a row for each query

    def add(self, sums: Tensor, x: Tensor) -> None:
        """Add numbers of the queries, (…, n), to the sums of rows, (…, rows); not by a product, which spreads NaN."""
        if self._each is not None:
            sums[..., self._each] += x
        elif len(self._runs) <= MOST_RUNS:
            for start, stop, row in self._runs:
                sums[..., row] += x[..., start:stop].sum(-1)
        else:
            sums.index_add_(-1, self.rows, x.expand(*sums.shape[:-1], -1))

    def add_by_group(self, sums: Tensor, x: Tensor, groups: Tensor) -> None:
        """Add numbers of the queries, (n,), each to the sum of its row and a group, (rows, groups)."""
        there = groups < sums.shape[1]
        at = self.rows * sums.shape[1] + groups
        if not bool(there.all()):
            at, x = at[there], x[there]
        sums.view(-1).index_add_(0, at, x)


class _Means:
    """Means over the queries of each row, summed in float64."""

    def __init__(self, heads: int, rows: int, groups: int, att: AttentionBase) -> None:
        self.dtype = att.result_dtype
        self.wide = torch.float64 if att.device.type != "mps" else self.dtype
        how: dict[str, Any] = {"dtype": self.wide, "device": att.device}
        self.others, self.even = torch.zeros(2, groups, heads, rows, **how)
        self.own, self.even_own = torch.zeros(2, heads, rows, groups, **how)
        self.sink = torch.zeros(heads, rows, **how) if att.has_sinks else None
        self.queries = torch.zeros(heads, rows, **how)

    @property
    def state(self) -> tuple[Tensor, ...]:
        """All sums."""
        sums = (self.others, self.even, self.own, self.even_own, self.queries)
        return sums if self.sink is None else (*sums, self.sink)

    def add_sums(self, heads: slice, state: Sequence[Tensor]) -> None:
        """Add the sums of some heads, over other queries."""
        axes = (1, 1, 0, 0, 0, 0)  # of the heads
        for mine, theirs, axis in zip(self.state, state, axes[: len(state)], strict=True):
            mine[(slice(None),) * axis + (heads,)] += theirs.to(mine.device)

    def add(
        self, heads: range, into: _ByRow, found: WeightSums, counts: AllowedSums, own_groups: Tensor | None
    ) -> None:
        """Add some queries of some heads; fully masked queries do not count.

        Args:
            heads: their places.
            into: the queries by row.
            found: the weights of these heads.
            counts: their keys.
            own_groups: (queries,) the group of each query's own key; None if unknown.
        """
        of, wide = slice(heads.start, heads.stop), self.wide
        kept = counts.total > 0
        is_all = bool(kept.all())
        others, own = ((x if is_all else x.where(kept, 0)).to(wide) for x in (found.others, found.own))
        share = counts.total.to(wide).where(kept, inf).reciprocal()  # 0 for queries without keys
        into.add(self.queries[of], kept.to(wide))
        into.add(self.others[found.groups.start : found.groups.stop, of], others)
        into.add(self.even[counts.groups.start : counts.groups.stop, of], (counts.others * share)[:, None])
        if self.sink is not None and found.sink is not None:
            into.add(self.sink[of], (found.sink if is_all else found.sink.where(kept, 0)).to(wide))
        if own_groups is not None:
            for at, head in enumerate(heads):
                into.add_by_group(self.own[head], own[at], own_groups)
                into.add_by_group(self.even_own[head], counts.own * share, own_groups)

    def result(self) -> SegmentSums:
        """Return the means."""
        count = self.queries.masked_fill(self.queries == 0, nan)
        others, even = self.others.permute(1, 2, 0), self.even.permute(1, 2, 0)  # (heads, rows, groups)
        each = [(x / count[..., None]).to(self.dtype).contiguous() for x in (others, even, self.own, self.even_own)]
        sink = None if self.sink is None else (self.sink / count).to(self.dtype)
        return SegmentSums(each[0], each[1], each[2], each[3], sink)


# Questions of a user.


@dataclass(frozen=True, eq=False)
class SegmentMass:
    """How much weight goes from segments to segments, by one of three measures.

    *mass* M[s, t]: the mean, over the queries of s, of the weight on all keys of t; a row sums to 1 with the learned
    sink. *per token*: M[s, t] / |t|. *lift*: M[s, t] / E[s, t]. E[s, t], even attention, is the mean, over the same
    queries, of the share of t among the keys that each query may attend to. Weights without any preference have a lift
    of 1, so only lift is fair to short segments and under a causal mask. Excluded segments are taken off both M and
    E, and the rest is divided by its sum over the row, so a query that gives nearly all its weight to them counts for
    little. Fully masked queries are left out.

    For a stage after the weights, *sum* is the mean, over the same queries, of the sum of its numbers over the keys of
    t, with their signs: what t adds to a token's logit, for example. A sum is not a share: excluded segments are
    dropped, the rest is unchanged, there is no lift, and a learned sink, which has no value, has 0.

    Attributes:
        mass: (S, T), (H, S, T) or (L, H, S, T); NaN in a row without queries, and for a head that a layer lacks. For
            another stage than the weights, the sums.
        even: even attention, in the same shape.
        aside: (S,), (H, S) or (L, H, S): the excluded mass of each row.
        queries: the names of the rows.
        keys: the names of the columns, "learned sink" last if there is one.
        sizes: the number of keys in each column; 0 for the learned sink.
        measure: the measure of `values`.
        without: the excluded columns.
        layers: the names of the layers of a stack.
        stage: that was summed.

    >>> import torch
    >>> from attnwidget import Attention, segments
    >>> parts = segments({"question": (0, 2), "answer": (2, 4)}, length=4)
    >>> found = Attention(torch.zeros(4, 2), torch.zeros(4, 2)).by_segment("answer", parts)
    >>> found.keys, found.mass.tolist(), found.lift.tolist()
    (('first token', 'question', 'answer'), [[[0.25, 0.25, 0.5]]], [[[1.0, 1.0, 1.0]]])
    """

    mass: Tensor
    even: Tensor
    aside: Tensor
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    sizes: tuple[int, ...]
    measure: str = "mass"
    without: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    stage: str = "weights"

    @property
    def values(self) -> Tensor:
        """The numbers of the measure, in the shape of `mass`."""
        if self.measure == "per_token":
            return self.per_token
        return self.lift if self.measure == "lift" else self.mass

    @property
    def sum(self) -> Tensor:
        """The sums of another stage than the weights."""
        if self.stage == "weights":
            raise ValueError(NO_SUM)
        return self.mass

    @property
    def per_token(self) -> Tensor:
        """The mass, or the sum, of each segment divided by its number of keys; NaN for the learned sink."""
        sizes = torch.tensor(self.sizes, dtype=self.mass.dtype, device=self.mass.device)
        return self.mass / sizes.masked_fill(sizes == 0, nan)

    @property
    def lift(self) -> Tensor:
        """The mass divided by even attention; NaN if no query may attend to the segment."""
        if self.stage != "weights":
            raise ValueError(NO_LIFT.format(stage=self.stage))
        return self.mass / self.even.masked_fill(self.even == 0, nan)

    @property
    def shape(self) -> torch.Size:
        """Of `values`."""
        return self.mass.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return the values as an array, for numpy, matplotlib and others."""
        values = self.values.cpu().numpy()
        return values.astype(dtype, copy=bool(copy)) if dtype is not None or copy else values

    def records(self) -> list[dict[str, Any]]:
        """Return a dict for each number, ready for `pandas.DataFrame`.

        Returns:
            layer, name (in a stack), head (if several), query, key, mass, per_token, lift, even, aside, tokens. For
            another stage than the weights: stage and sum instead of mass, lift and even. None for NaN.

        >>> from attnwidget import Attention, segments
        >>> att = Attention(*torch.zeros(2, 4, 8), is_causal=True)
        >>> found = att.by_segment(segments({"a": (1, 3), "b": (3, 4)}), head=0)
        >>> [(one["query"], one["key"], round(one["mass"], 2)) for one in found.records() if one["query"] == "b"]
        [('b', 'first token', 0.25), ('b', 'a', 0.5), ('b', 'b', 0.25)]
        """
        each = {"sum": self.mass, "per_token": self.per_token}
        if self.stage == "weights":
            each = {"mass": self.mass, "per_token": self.per_token, "lift": self.lift, "even": self.even}
        of = {} if self.stage == "weights" else {"stage": self.stage}
        numbers = {name: x.cpu().numpy() for name, x in each.items()}
        aside = self.aside.cpu().numpy()
        found = []
        for at in np.ndindex(*self.mass.shape):
            *before, row, column = at
            record: dict[str, Any] = {}
            if len(before) == 2:
                record |= {"layer": before[0], "name": self.layers[before[0]]}
            record |= {"head": before[-1]} if before else {}
            record |= {"query": self.queries[row], "key": self.keys[column], **of}
            record |= {name: _number(x[at]) for name, x in numbers.items()}
            found.append({**record, "aside": _number(aside[at[:-1]]), "tokens": self.sizes[column]})
        return found

    def __repr__(self) -> str:
        rows, columns = f"{len(self.queries)} rows", f"{len(self.keys)} segments"
        without = f", without {', '.join(self.without)}" if self.without else ""
        of = self.measure if self.stage == "weights" else f"{self.measure} of {self.stage}"
        return f"SegmentMass({of}, {rows} × {columns}, {tuple(self.shape)}{without})"


def _number(x: Any) -> float | None:
    return None if np.isnan(x) else float(x)


class Question(NamedTuple):
    """The question to one attention: rows and groups of keys, with their names."""

    rows: RowGroups
    queries: tuple[str, ...]
    labels: Labels
    keys: tuple[str, ...]
    sizes: tuple[int, ...]


def by_segment(
    att: AttentionBase,
    queries: Any,
    keys: Segments | Mapping[str, Any] | None,
    *,
    batch: Any,
    head: Any,
    stage: str,
    measure: str | None,
    without: str | Iterable[str],
    progress: bool,
    executor: Executor | None,
) -> SegmentMass:
    """Measure one attention: see `Attention.by_segment`."""
    measure = _measure_of(measure, stage)
    att.check_stage(stage)
    batch, _ = att.find(batch, 0)
    heads = range(att.shape.H) if head is None else [find_head(att, head)]
    asked = question(att, queries, keys)
    aside = set_aside(without, asked.keys, has_sink=att.has_sinks)
    _check_self(aside, att)
    what = att, batch, heads, asked.rows, asked.labels, len(asked.keys), stage
    if executor is not None:
        (raw,) = _by_workers([Layer(None, att, batch, heads, asked)], stage, executor, progress)
    elif progress:
        raw = _run(segment_sums(*what), len(heads) * len(asked.rows.queries) * att.shape.K, progress)
    else:
        with exact(att.device):
            raw = run_to_end(summing_by_row(*what))
    found = reading(raw, asked, aside, measure, stage)
    if head is None:
        return found
    return replace(found, mass=found.mass[0], even=found.even[0], aside=found.aside[0])


def by_segment_of_layers(
    layers: LayerSource,
    names: Sequence[str],
    queries: Any,
    keys: Segments | Mapping[str, Any] | None,
    *,
    batch: Any,
    stage: str,
    measure: str | None,
    without: str | Iterable[str],
    progress: bool,
    executor: Executor | None,
) -> SegmentMass:
    """Measure all heads of all layers: see `AttentionStack.by_segment`."""
    measure = _measure_of(measure, stage)
    each = []
    atts = [layers[layer] for layer in range(len(layers))]
    for name, att in zip(names, atts, strict=True):
        _named(name, att.check_stage, stage)
    most = max(att.shape.H for att in atts)
    any_sink = any(att.has_sinks for att in atts)
    asked = [_named(name, question, att, queries, keys) for name, att in zip(names, atts, strict=True)]
    aside = set_aside(without, asked[0].keys, has_sink=any_sink)
    for name, att in zip(names, atts, strict=True):
        _named(name, _check_self, aside, att)
    counts = [att.shape.H * len(one.rows.queries) * att.shape.K for att, one in zip(atts, asked, strict=True)]

    def steps() -> Generator[int, None, None]:
        for name, att, one in zip(names, atts, asked, strict=True):
            where, _ = _named(name, att.find, batch, 0)
            what = att, where, range(att.shape.H), one.rows, one.labels, len(one.keys), stage
            each.append((yield from segment_sums(*what)))

    if executor is None:
        _run(steps(), sum(counts), progress)
    else:
        found = [_named(name, att.find, batch, 0)[0] for name, att in zip(names, atts, strict=True)]
        of = zip(names, atts, found, asked, strict=True)
        measured = [Layer(name, att, sample, range(att.shape.H), one) for name, att, sample, one in of]
        each += _by_workers(measured, stage, executor, progress)
    four = ([x for x in one[:4] if x is not None] for one in each)
    others, even_others, own, even_own = (_stacked(list(x), most) for x in zip(*four, strict=True))
    sink = _stacked([_sink_of(one) for one in each], most) if any_sink else None
    raw = SegmentSums(others, even_others, own, even_own, sink)
    return replace(reading(raw, asked[0], aside, measure, stage), layers=tuple(names))


def _measure_of(measure: str | None, stage: str) -> str:
    """Return the measure of a stage's sums, by default the sums themselves.

    Raises:
        ValueError: a stage that has no sums, or a measure that it does not have.
    """
    as_choice(stage, NORMALIZED, "stage")
    if stage == "weights":
        if measure == "sum":
            raise ValueError(NO_SUM)
        return "mass" if measure is None else as_choice(measure, MEASURES, "measure")
    if measure in ("mass", "lift"):
        raise ValueError((NO_LIFT if measure == "lift" else NO_MASS).format(stage=stage))
    return "sum" if measure is None else as_choice(measure, SUM_MEASURES, "measure")


class Layer(NamedTuple):
    """The question to one attention, for workers: layer name, sample and heads, rows and segments."""

    name: str | None
    att: AttentionBase
    batch: int
    heads: Sequence[int]
    asked: Question


def _by_workers(layers: Sequence[Layer], stage: str, executor: Executor, progress: bool) -> list[SegmentSums]:
    """Sum the weights of several layers by the workers of an executor."""
    cells = sum(len(one.heads) * len(one.asked.rows.queries) * one.att.shape.K for one in layers)
    most = cells_of_a_task(executor, cells)
    each = [list(_tasks(one, stage, most)) for one in layers]
    results = iter(gather([task for its in each for task in its], executor, progress=progress, desc="segments"))
    found = []
    for (_, att, _, heads, asked), its in zip(layers, each, strict=True):
        with exact(att.device):
            means = _Means(len(heads), asked.rows.total, len(asked.keys), att)
            for task in its:
                of: range = task.arguments[1]  # type: ignore[assignment]
                means.add_sums(slice(of.start, of.stop), next(results))
            found.append(means.result())
    return found


def _tasks(layer: Layer, stage: str, most: float) -> Iterator[Task]:
    """Yield tasks of some queries of heads that share a key head."""
    name, att, batch, heads, asked = layer
    whole, n = list(heads), len(asked.rows.queries)
    digest = blake2b(b"".join(np.ascontiguousarray(x).tobytes() for x in (*asked.rows[:2], asked.labels))).digest()
    value = needed_for(att, stage), batch, whole, asked.rows, asked.labels, len(asked.keys), stage
    subject = Subject(value, name or "this attention", att, (att.versions(), batch, tuple(whole), digest, stage))
    parts = _together(whole, together(att))
    step = _queries_at_once(att, KeyGroups(asked.labels, len(asked.keys), att.device), parts)
    for these in parts:
        rows = max(1, int(most / (len(these) * max(1, att.shape.K)) / step)) * step
        for part in cuts(range(n), 1, rows):
            at = asked.rows.queries[part.start : part.stop]
            where = named(name, batch, whole[these.start : these.stop], range(int(at[0]), int(at[-1]) + 1))
            yield Task(sums_of_part, subject, (step, these, part), where, len(these) * len(part) * att.shape.K)


def sums_of_part(value: tuple[Any, ...], step: int, these: range, part: range) -> tuple[Tensor, ...]:
    """Sum some queries of some heads in a worker."""
    att, batch, heads, rows, labels, count, stage = value
    att = copy.copy(att)
    with exact(att.device):
        steps = _filling_means(att, batch, heads[these.start : these.stop], rows, labels, count, stage, part, step)
        return run_to_end(steps).state


def question(att: AttentionBase, queries: Any, keys: Segments | Mapping[str, Any] | None) -> Question:
    """Read the question to one attention.

    Raises:
        TypeError, ValueError, KeyError, IndexError: it cannot be read, or does not fit the attention.
    """
    keys = segments(keys, length=att.shape.K) if isinstance(keys, Mapping) else keys
    if isinstance(queries, Mapping):
        of_text = keys is None or own_keys_of(att) is not None
        queries = segments(queries, length=att.shape.K if of_text else att.shape.Q)
    if keys is None:
        if not isinstance(queries, Segments):
            raise TypeError(f"queries is {told(queries)} and there are no keys: give keys=segments(…) as well")
        keys = queries
    if not isinstance(keys, Segments):
        raise TypeError(f"keys is {told(keys)}: give the result of segments(…), such as segments({{'doc 1': (1, 9)}})")
    K = att.shape.K
    if keys.length != K:
        raise ValueError(f"the segments have {keys.length:,} tokens, but there are {K:,} keys: {MADE_OF}")
    labels, names, sizes = keys.labels(), keys.distinct, keys.sizes
    if (labels < 0).any():
        labels = np.where(labels < 0, len(names), labels)
        names, sizes = (*names, ELSEWHERE), (*sizes, int((labels == len(names)).sum()))
    rows, row_names = _rows_of(att, queries, keys)
    return Question(rows, row_names, labels, names, sizes)


MADE_OF = "make them from the tokens of this attention, or give length="
ELSEWHERE = "elsewhere"  # keys in no segment, such as those outside `Segments.inside`


def _rows_of(att: AttentionBase, queries: Any, keys: Segments) -> tuple[RowGroups, tuple[str, ...]]:
    if isinstance(queries, Segments | str):
        found = keys if isinstance(queries, str) else queries
        labels, names = _labels_of_queries(att, found), found.distinct
        if isinstance(queries, str):
            found.positions(queries)  # raises if there is none
            labels, names = np.where(labels == names.index(queries), 0, -1), (queries,)
        chosen = np.flatnonzero(labels >= 0)
        return RowGroups(chosen, labels[chosen], len(names)), names
    indices = as_indices(queries, att.shape.Q, "query", "queries", torch.device("cpu"))
    places = np.asarray(indices, np.int64).reshape(-1)
    order = np.argsort(places, kind="stable")
    return RowGroups(places[order], order, len(places)), tuple(str(place) for place in places)


def _labels_of_queries(att: AttentionBase, found: Segments) -> Labels:
    """Return the segment number of each query by its place, -1 for none, if the segments are of the keys."""
    shape, labels = att.shape, found.labels()
    own = own_keys_of(att)
    if own is not None and found.length == shape.K:
        return np.where(own < 0, -1, labels[own.clip(0)])
    if found.length == shape.Q:
        return labels
    is_unknown = own is None and found.length == shape.K
    known = ", and their places among the keys are unknown" if is_unknown else ""
    raise ValueError(
        f"the segments have {found.length:,} tokens, but there are {shape.Q:,} queries{known}: give positions of "
        "queries, or other segments for them"
    )


def set_aside(without: str | Iterable[str], keys: Sequence[str], *, has_sink: bool) -> tuple[str, ...]:
    """Return the excluded columns, and "self".

    Raises:
        TypeError: they are not names.
        ValueError: no column has that name.

    >>> set_aside(("sink", "self"), ("first token", "a"), has_sink=True)
    ('first token', 'learned sink', 'self')
    """
    there = (*keys, *([SINK] if has_sink else []))
    found: dict[str, None] = {}
    if not isinstance(without, Iterable):
        raise TypeError(f"without is {told(without)}: give names of segments, 'sink' or 'self', or () for none")
    for name in (without,) if isinstance(without, str) else without:
        if name == "sink":
            found.update(dict.fromkeys(one for one in (FIRST, SINK) if one in there))
        elif name == SELF or name in there:
            found[name] = None
        else:
            known = ("sink", SELF, *there)
            raise ValueError(f"without has {name!r}: {nearest(name, known)}give some of {', '.join(known)}")
    return tuple(found)


def _check_self(aside: Sequence[str], att: AttentionBase) -> None:
    """Raise ValueError if each query's own key is to be excluded, and it is unknown."""
    is_cross = att.part is not None and att.part.elsewhere
    if SELF in aside and own_keys_of(att) is None and not is_cross:
        raise ValueError(
            f"without has 'self', each query's own key, but the places of the queries of {att!r} among the keys "
            "are unknown: leave 'self' out"
        )


def reading(
    raw: SegmentSums, asked: Question, aside: tuple[str, ...], measure: str, stage: str = "weights"
) -> SegmentMass:
    """Return the sums with some columns excluded."""
    is_self_aside = SELF in aside
    mass, even = (raw.others, raw.even_others) if is_self_aside else (raw.mass, raw.even)
    keys, sizes = asked.keys, asked.sizes
    if raw.sink is not None:
        mass = torch.cat([mass, raw.sink[..., None]], -1)
        even = torch.cat([even, raw.even_others[..., :1] * 0], -1)  # NaN in a row without queries
        keys, sizes = (*keys, SINK), (*sizes, 0)
    kept = [i for i, name in enumerate(keys) if name not in aside]
    gone = [i for i, name in enumerate(keys) if name in aside]
    off = mass[..., gone].sum(-1) + (raw.own.sum(-1) if is_self_aside else 0)
    mass, even = mass[..., kept], even[..., kept]
    if aside and stage == "weights":
        mass, even = (x / x.sum(-1, keepdim=True).where(x.sum(-1, keepdim=True) != 0, nan) for x in (mass, even))
    names = tuple(keys[i] for i in kept)
    return SegmentMass(mass, even, off, asked.queries, names, tuple(sizes[i] for i in kept), measure, aside, (), stage)


def _run(steps: Generator[int, None, Any], cells: int, progress: bool) -> Any:
    """Run steps to their end, with a progress bar if requested, and return their result."""
    if not progress:
        return run_to_end(steps)
    with progress_bar()(total=cells, unit="cell", unit_scale=True, desc="segments") as bar:
        while True:
            try:
                bar.update(next(steps))
            except StopIteration as end:
                bar.update(bar.total - bar.n)
                return end.value


def _named(name: str, ask: Any, *arguments: Any) -> Any:
    """Call a function, and name the layer in its errors."""
    try:
        return ask(*arguments)
    except (ValueError, IndexError) as error:
        raise type(error)(f"{name}: {error}") from error


def _sink_of(found: SegmentSums) -> Tensor:
    """Return the weight of the sink, (heads, rows); 0 for a layer without one, if others have one."""
    return found.own[..., 0] * 0 if found.sink is None else found.sink


def _stacked(each: Sequence[Tensor], heads: int) -> Tensor:
    """Return tensors (H, …) of all layers as one, (L, H, …); NaN if a layer has fewer heads."""
    found = each[0].new_full((len(each), heads, *each[0].shape[1:]), nan)
    for layer, x in enumerate(each):
        found[layer, : len(x)] = x
    return found
