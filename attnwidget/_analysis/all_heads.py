"""All heads of all layers: the number of measured rows, metrics as records, and one pair's weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from math import nan
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .._engine.base import AttentionBase, Shape, find_head, with_sources
from .._engine.matmul import exact
from .._engine.parts import cells_of_a_task
from .._engine.softmax import exact_block, whole_rows
from .._engine.stages import QUERIES, streamed
from .._parallel.task import Subject, Task, named
from .._parallel.work import gather
from .._utils.indexing import Indices, as_index, cuts
from .head_kinds import HeadText, OwnMetric, measure_heads
from .head_sampling import HeadSampler, sample
from .metrics import NAMES, MetricMeans, Metrics
from .sampled_parts import joined_means, sampler_tasks

MAX_EXACT_CELLS = 1 << 28  # of all heads together; up to this size all rows are computed
MAX_SAMPLED_CELLS = 1 << 27  # in longer heads, for the rows of all heads; each head has at least one row
MAX_SAMPLED_ROWS = 32  # of a head
MAX_WEIGHTS = 1 << 28  # of a layer in one returned tensor: 1 GiB


class LayerSource(Protocol):
    """The layers of a stack, each an attention."""

    def __len__(self) -> int: ...
    def __getitem__(self, layer: int, /) -> AttentionBase: ...


class RowPlan:
    """The rows of each layer to compute, so that all heads together take no longer than a person waits.

    Args:
        shapes: of the layers.
        batch: the sample; a layer with fewer samples has no heads.
        worth: the cost of one cell of each layer, if some are slower than others.

    Attributes:
        heads: the number of heads in each layer.
        whole: whether all rows of all heads are computed.
        queries: the rows of each layer.
    """

    def __init__(self, shapes: Sequence[Shape], batch: int, worth: Sequence[int] | None = None) -> None:
        self.heads = [shape.H if batch < shape.B and shape.Q and shape.K else 0 for shape in shapes]
        counted = list(zip(shapes, self.heads, worth or [1] * len(shapes), strict=True))
        self.whole = sum(each * heads * shape.Q * shape.K for shape, heads, each in counted) <= MAX_EXACT_CELLS
        row = sum(each * heads * shape.K for shape, heads, each in counted)
        most = max(1, min(MAX_SAMPLED_ROWS, MAX_SAMPLED_CELLS // max(1, row)))
        self.queries = [sample(shape.Q, shape.Q if self.whole else most) for shape in shapes]


def records(
    layers: LayerSource,
    names: Sequence[str],
    batches: Sequence[int] | None,
    rows: int | None,
    ids: Callable[[int, int], Tensor | None],
    kinds: Mapping[str, OwnMetric | None] | None = None,
    texts: Callable[[int, int], HeadText] | None = None,
) -> list[dict[str, Any]]:
    """Compute the metrics of all heads, one dict for each: see `AttentionStack.metrics`.

    Args:
        layers: the attentions.
        names: of the layers.
        batches: the samples; None for all.
        rows: the number of queries of each head, evenly spread; None: as `RowPlan` decides.
        ids: returns the tokens of a layer's and sample's positions as numbers, if known.
        kinds: of heads, names with custom functions; fields beside the metrics.
        texts: returns the text of a layer's sample for these kinds; None: its ids.
    """
    found: list[dict[str, Any]] = []
    for one in _samples(layers, names, batches, rows, ids):
        sampler = HeadSampler(one.att, one.batch, range(one.att.shape.H), one.queries, ids=one.ids)
        for _ in sampler.steps():
            pass
        text = HeadText(one.ids) if texts is None else texts(one.layer, one.batch)
        others = kinds_of_heads((one.att, text, kinds), one.batch, one.queries) if kinds else {}
        found += _records(one, sampler.means, others)
    return found


class LayerSample(NamedTuple):
    """One sample of a layer, and its rows to measure."""

    layer: int
    name: str
    att: AttentionBase
    batch: int
    queries: range
    ids: Tensor | None

    @property
    def cells(self) -> int:
        """The number of cells in these rows, over all heads."""
        return self.att.shape.H * len(self.queries) * self.att.shape.K


def _samples(
    layers: LayerSource,
    names: Sequence[str],
    batches: Sequence[int] | None,
    rows: int | None,
    ids: Callable[[int, int], Tensor | None],
) -> Iterator[LayerSample]:
    """Yield the measurements for `records`."""
    shapes = [layers[layer].shape for layer in range(len(layers))]
    for layer, name in enumerate(names):
        for batch in range(shapes[layer].B):
            if batches is None or batch in batches:
                queries = RowPlan(shapes, batch).queries[layer] if rows is None else sample(shapes[layer].Q, rows)
                yield LayerSample(layer, name, layers[layer], batch, queries, ids(layer, batch))


def _records(
    one: LayerSample, means: MetricMeans, others: Mapping[str, Sequence[float | None]]
) -> list[dict[str, Any]]:
    where = {"layer": one.layer, "name": one.name, "batch": one.batch}
    return [
        {
            **where,
            **head_numbers(one.att, head),
            **as_fields(measured),
            **{kind: column[head] for kind, column in others.items()},
        }
        for head, measured in enumerate(means.records(len(one.queries)))
    ]


def records_by_workers(
    layers: LayerSource,
    names: Sequence[str],
    batches: Sequence[int] | None,
    rows: int | None,
    ids: Callable[[int, int], Tensor | None],
    kinds: Mapping[str, OwnMetric | None] | None,
    executor: Executor | None,
    progress: bool,
) -> list[dict[str, Any]]:
    """Compute the same as `records` by the workers of an executor."""
    samples = list(_samples(layers, names, batches, rows, ids))
    most = cells_of_a_task(executor, sum(one.cells for one in samples))
    each = [_tasks_of(one, most, kinds) for one in samples]
    results = iter(gather([task for its in each for task in its], executor, progress=progress, desc="metrics"))
    found: list[dict[str, Any]] = []
    for one, its in zip(samples, each, strict=True):
        its, of_kinds = (its[:-1], its[-1:]) if kinds else (its, [])
        means = joined_means(one.att.shape.H, its, [next(results) for _ in its])
        found += _records(one, means, next(results) if of_kinds else {})
    return found


def _tasks_of(one: LayerSample, most: float, kinds: Mapping[str, OwnMetric | None] | None) -> list[Task]:
    """Return the tasks of a sample; the last one is for the kinds, if there are any."""
    tasks = list(sampler_tasks(one.att, one.batch, one.queries, most, name=one.name, ids=one.ids))
    if kinds:
        att = with_sources(one.att, None)  # no worker needs the residual stream
        subject = Subject((att, HeadText(one.ids), kinds), f"{one.name}, or a kind of head")
        where = named(one.name, one.batch, range(one.att.shape.H))
        tasks.append(Task(kinds_of_heads, subject, (one.batch, one.queries), where, max(1, one.cells)))
    return tasks


def kinds_of_heads(
    value: tuple[AttentionBase, HeadText, Mapping[str, OwnMetric | None]], batch: int, queries: range
) -> dict[str, list[float | None]]:
    """Measure kinds of heads of a layer, in a worker or here."""
    att, text, kinds = value
    return as_columns(measure_heads(copy.copy(att), batch, kinds, text, queries).values)


def as_columns(values: Mapping[str, Tensor]) -> dict[str, list[float | None]]:
    """Return numbers of heads by name as Python's own, None if nothing was measured."""
    return {name: [None if x != x else x for x in column.tolist()] for name, column in values.items()}


def numbers_of_heads(att: AttentionBase) -> tuple[int, ...] | None:
    """Return the numbers in the model of the heads that a capture kept; None if all were kept."""
    return None if att.part is None else att.part.heads


def head_numbers(att: AttentionBase, head: int) -> dict[str, int]:
    """Return a head's number; if only some heads of a model were kept, also its number in the model."""
    known = numbers_of_heads(att)
    return {"head": head} if known is None else {"head": head, "model_head": known[head]}


def as_fields(found: Metrics) -> dict[str, float | int | None]:
    """Return every metric by name, and its number of rows."""
    return {**{name: getattr(found, name) for name in NAMES}, "rows": found.rows}


def pair(layers: LayerSource, names: Sequence[str], query: int, key: int, batch: int) -> Tensor:
    """Compute the weight of one query on one key in all heads of all layers: see `AttentionStack.pair`."""
    most = max(layers[layer].shape.H for layer in range(len(layers)))
    found = torch.full((len(layers), most), nan, dtype=torch.float64, device="cpu")
    for layer, name in enumerate(names):
        att = layers[layer]
        try:
            sample_of = as_index(batch, att.shape.B, "batch", "batches")
            row = as_index(query, att.shape.Q, "query", "queries")
            column = as_index(key, att.shape.K, "key", "keys")
        except IndexError as error:
            raise IndexError(f"{name}: {error}") from error
        for head in range(att.shape.H):
            found[layer, head] = weights_of(att, sample_of, head, range(row, row + 1))[0, column]
    wide = max((layers[layer].result_dtype for layer in range(len(layers))), key=lambda dtype: dtype.itemsize)
    return found.to(wide)


def weights_of(att: AttentionBase, batch: int, head: int, queries: Indices) -> Tensor:
    """Return all weights of some queries of a head, (queries, K)."""
    return stage_rows(att, batch, head, queries, "weights")


def stage_rows(att: AttentionBase, batch: int, head: int, queries: Indices, stage: str) -> Tensor:
    """Return the weights of some queries of a head, or a stage after them, (queries, K)."""
    found = att.head(batch, head)
    cells = found.block(queries)
    with exact(att.device):
        if streamed(att, stage) == "masked":
            return whole_rows(att, cells, stage)
        return exact_block(att, cells, stage, None)


def weights(att: AttentionBase, batch: int | None, head: int | None) -> Tensor:
    """Compute all weights of a layer as one tensor: see `Attention.weights`."""
    B, H, _, Q, K, *_ = att.shape
    batches = range(B) if batch is None else [as_index(batch, B, "batch", "batches")]
    heads = range(H) if head is None else [find_head(att, head)]
    cells = len(batches) * len(heads) * Q * K
    if cells > MAX_WEIGHTS:
        one = "" if Q * K > MAX_WEIGHTS else ", or of one head: head=0, batch=0"
        raise ValueError(
            f"{len(batches)} × {len(heads)} heads of {Q:,} × {K:,} are {cells:,} weights, and one tensor holds at most "
            f"{MAX_WEIGHTS:,}: ask for a block, att.block(head=0, queries=slice(512)), or an overview{one}"
        )
    found = torch.empty(len(batches), len(heads), Q, K, dtype=att.result_dtype, device=att.device)
    for i, b in enumerate(batches):
        for j, h in enumerate(heads):
            for rows in cuts(range(Q), 1, QUERIES):
                found[i, j, rows.start : rows.stop] = weights_of(att, b, h, rows)
    if head is not None:
        found = found[:, 0]
    return found if batch is None else found[0]
