"""All heads of all layers: how many of their rows are measured, their metrics as records, one pair's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import nan
from typing import Any, Protocol

import torch
from torch import Tensor

from .._engine.base import AttentionBase, Shape, find_head
from .._engine.matmul import exact
from .._engine.softmax import exact_block, whole_rows
from .._engine.stages import QUERIES, streamed
from .._utils.indexing import Indices, as_index, cuts
from .head_kinds import HeadText, OwnMetric, measure_heads
from .head_sampling import HeadSampler, sample
from .metrics import NAMES, Metrics

MAX_EXACT_CELLS = 1 << 28  # of all heads together, up to which all rows are computed
MAX_SAMPLED_CELLS = 1 << 27  # else, of the rows of all heads; of very many or very long heads a single row each
MAX_SAMPLED_ROWS = 32  # of a head
MAX_WEIGHTS = 1 << 28  # weights of a layer that are returned as one tensor: 1 GiB of them


class LayerSource(Protocol):
    """The layers of a stack, each an attention."""

    def __len__(self) -> int: ...
    def __getitem__(self, layer: int, /) -> AttentionBase: ...


class RowPlan:
    """Which rows of each layer are computed, so that all heads together take no longer than a person waits.

    Args:
        shapes: of the layers.
        batch: which sample; a layer that has fewer has no heads.

    Attributes:
        heads: how many heads each layer has.
        whole: whether all rows of all heads are computed.
        queries: the rows of each layer.
    """

    def __init__(self, shapes: Sequence[Shape], batch: int) -> None:
        self.heads = [shape.H if batch < shape.B and shape.Q and shape.K else 0 for shape in shapes]
        counted = list(zip(shapes, self.heads, strict=True))
        self.whole = sum(heads * shape.Q * shape.K for shape, heads in counted) <= MAX_EXACT_CELLS
        row = sum(heads * shape.K for shape, heads in counted)
        most = max(1, min(MAX_SAMPLED_ROWS, MAX_SAMPLED_CELLS // max(1, row)))
        self.queries = [sample(shape.Q, shape.Q if self.whole else most) for shape in shapes]


def records(
    layers: LayerSource,
    names: Sequence[str],
    batches: Sequence[int] | None,
    rows: int | None,
    ids: Callable[[int, int], Tensor | None],
    kinds: Mapping[str, OwnMetric | None] | None = None,
) -> list[dict[str, Any]]:
    """Compute the metrics of all heads, one dict for each: see `AttentionStack.metrics`.

    Args:
        layers: the attentions.
        names: of the layers.
        batches: which samples; None for all.
        rows: how many queries of each head, evenly spread; None for as many as `RowPlan` says.
        ids: returns the tokens of a layer's and sample's positions as numbers, if they are known.
        kinds: of heads, names with functions of the user's own; as fields beside the metrics.
    """
    found: list[dict[str, Any]] = []
    shapes = [layers[layer].shape for layer in range(len(layers))]
    for layer, name in enumerate(names):
        for batch in range(shapes[layer].B):
            if batches is not None and batch not in batches:
                continue
            queries = RowPlan(shapes, batch).queries[layer] if rows is None else sample(shapes[layer].Q, rows)
            sampler = HeadSampler(layers[layer], batch, range(shapes[layer].H), queries, ids=ids(layer, batch))
            for _ in sampler.steps():
                pass
            where = {"layer": layer, "name": name, "batch": batch}
            others: dict[str, list[float | None]] = {}
            if kinds:
                text = HeadText(ids(layer, batch))
                others = as_columns(measure_heads(layers[layer], batch, kinds, text, queries).values)
            found += [
                {
                    **where,
                    **head_numbers(layers[layer], head),
                    **as_fields(one),
                    **{kind: column[head] for kind, column in others.items()},
                }
                for head, one in enumerate(sampler.means.records(len(queries)))
            ]
    return found


def as_columns(values: Mapping[str, Tensor]) -> dict[str, list[float | None]]:
    """Return numbers of heads by name as Python's own, None where nothing was measured."""
    return {name: [None if x != x else x for x in column.tolist()] for name, column in values.items()}


def numbers_of_heads(att: AttentionBase) -> tuple[int, ...] | None:
    """Return the numbers in the model of the heads that a capture kept; None where all are there."""
    return None if att.part is None else att.part.heads


def head_numbers(att: AttentionBase, head: int) -> dict[str, int]:
    """Return a head's number; of a part of a model's heads also its number there."""
    known = numbers_of_heads(att)
    return {"head": head} if known is None else {"head": head, "model_head": known[head]}


def as_fields(found: Metrics) -> dict[str, float | int | None]:
    """Return every metric by name, and how many rows it is of."""
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
