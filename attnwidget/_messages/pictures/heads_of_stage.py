"""All heads in a stage after the weights: small signed pictures, and sums.

The sum of a head's logits over a query's keys is what the head adds to the token's logit there (direct logit
attribution): heads can be ordered by it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from math import ceil, isqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..._analysis.all_heads import LayerSource, RowPlan, stage_rows
from ..._engine.base import AttentionBase
from ..._engine.kept_levels import only_overviews
from ..._engine.pooling import pool_by_size, pool_first
from ..._engine.stages import SIGNED, allowed_cells, new
from ..._rules.rules import whole
from ..._utils.failures import sentence_of
from ..._utils.indexing import Block, cuts
from ..codec import encoding
from .heads_overview import LAYER_BYTES, MAX_WHOLE_CELLS, THUMBNAIL_SIZE

STAGE_HEADS = "all heads of a stage"  # the name of the background job
STAGE_SUMS = (
    "stage_sum",
    "stage_size",
)  # orders of heads: by the sum over a query's keys, and by the sum of absolute values
NUMBER_BYTES = 8  # for a head's sum and size


class HeadsOfStage(NamedTuple):
    """Some heads of a layer in one stage.

    Attributes:
        heads: for each head (rows, columns), the number with the largest absolute value in each bin, and
            (rows, columns) bool, whether any cell is allowed.
        sums: (heads,) the sum over a query's keys, averaged over the queries that may attend to something.
        sizes: (heads,) the same for absolute values.
        rows: how many queries of each head were read.
    """

    heads: list[tuple[Tensor, Tensor]]
    sums: Tensor
    sizes: Tensor
    rows: int


def stage_pictures(
    att: AttentionBase, batch: int, stage: str, queries: range, size: int, heads: range | None = None
) -> Generator[None, None, HeadsOfStage]:
    """Compute small pictures and sums of a layer's heads from some exact queries.

    Args:
        att: the layer.
        batch: the sample.
        stage: a stage after the weights.
        queries: the rows to read.
        size: rows and columns in a picture, at most.
        heads: the heads; None for all.

    Yields:
        After each block.

    Raises:
        ValueError: the layer has no such stage, or only overviews were kept.
    """
    if (kept := only_overviews(att)) is not None:
        raise kept.refusal(f"small pictures of {stage} are")
    att.check_stage(stage)
    K = att.shape.K
    bins = ceil(len(queries) / size), ceil(K / size)
    heads = range(att.shape.H) if heads is None else heads
    pictures, sums = [], torch.zeros(2, len(heads), dtype=torch.float64, device="cpu")
    for place, head in enumerate(heads):
        values = new(att, ceil(len(queries) / bins[0]), ceil(K / bins[1])).zero_()
        allowed = torch.zeros(values.shape, dtype=torch.bool, device=att.device)
        counted = 0
        for piece in cuts(range(len(queries)), bins[0], max(1, MAX_WHOLE_CELLS // max(1, K))):
            rows = queries[piece.start : piece.stop]
            numbers = stage_rows(att, batch, head, rows, stage)  # (queries, keys)
            found = allowed_cells(att, Block(batch, head, rows, range(K)))
            may = whole(found, rows, range(K), att.device).expand(len(rows), K)
            at = slice(piece.start // bins[0], ceil(piece.stop / bins[0]))
            values[at] = pool_by_size(pool_by_size(numbers.mT, bins[1]).mT, bins[0])
            by_key = pool_first(may.mT.to(torch.uint8), bins[1], torch.amax).mT
            allowed[at] = pool_first(by_key, bins[0], torch.amax).bool()
            counted += int(may.any(1).sum())
            sums[0, place] += float(numbers.double().sum())
            sums[1, place] += float(numbers.double().abs().sum())
            yield
        sums[:, place] /= counted or torch.nan
        pictures.append((values, allowed))
    return HeadsOfStage(pictures, sums[0], sums[1], len(queries))


def encoded(found: HeadsOfStage, stage: str) -> encoding.Envelope:
    """Encode the pictures, each on its own range."""
    if stage in SIGNED:
        return encoding.encode_signed_thumbnails(found.heads)
    return encoding.encode_thumbnails(found.heads)


class StageSurvey:
    """The heads of all layers in one stage, layer by layer; partial results can be sent at any time.

    Args:
        layers: the attentions.
        batch: the sample; a layer without it, or without the stage, shows no heads.
        stage: a stage after the weights.

    Attributes:
        query: the query whose sums are sent; None for the mean over all that were read.
        heads: the number of heads in each layer.
        queries: the number of queries in the layer with the most.
        cells: the number of cells of all heads.
    """

    def __init__(self, layers: LayerSource, batch: int, stage: str) -> None:
        self.stage, self.query, self.error, self.is_finding = stage, None, None, False
        self._layers, self._batch = layers, batch
        shapes = [layers[layer].shape for layer in range(len(layers))]
        plan = RowPlan(shapes, batch)
        self.heads, self._queries = plan.heads, plan.queries
        counted = list(zip(shapes, self.heads, strict=True))
        self.cells = sum(heads * shape.Q * shape.K for shape, heads in counted)
        self.queries = range(max((shape.Q for shape, heads in counted if heads), default=0))
        room = encoding.BUDGET - (LAYER_BYTES + NUMBER_BYTES) * len(shapes) - NUMBER_BYTES * sum(plan.heads)
        self._size = max(1, min(THUMBNAIL_SIZE, isqrt(max(0, room) // max(1, sum(plan.heads)))))
        self._ready: list[HeadsOfStage | None] = []
        self._of_query: dict[tuple[int, int], Tensor] = {}  # keyed by layer and query
        self._steps: Iterator[None] | None = None

    stage: str
    query: int | None
    error: str | None

    @property
    def finished(self) -> bool:
        """Whether all layers are ready."""
        return len(self._ready) == len(self._layers)

    @property
    def begun(self) -> bool:
        """Whether any layer is ready."""
        return bool(self._ready)

    def __iter__(self) -> Iterator[None]:
        """Iterate over the remaining steps; a later loop continues where one stopped."""
        if self._steps is None:
            self._steps = self._run(len(self._ready))
        return self._steps

    def close(self) -> None:
        """Stop computing and keep the results so far."""
        self._steps = None

    def _run(self, first: int) -> Generator[None, None, None]:
        for layer, heads in list(enumerate(self.heads))[first:]:
            att, found = self._layers[layer], None
            if heads and self.stage in att.stages:
                found = yield from stage_pictures(att, self._batch, self.stage, self._queries[layer], self._size)
            self._ready.append(found)
            yield
        self._steps = None

    def message(self) -> dict[str, Any]:
        """Return the results so far, for the front-end."""
        return {
            "batch": self._batch,
            "stage": self.stage,
            "pictures": [None if found is None else encoded(found, self.stage) for found in self._ready],
            "error": self.error,
            **self.numbers(self.query),
        }

    def numbers(self, query: int | None) -> dict[str, Any]:
        """Return each head's sum and size for a query as far as known; None gives the mean over queries."""
        numbers = np.full((2, sum(self.heads)), np.nan, np.float32)
        for layer, found in enumerate(self._ready):
            at = slice(sum(self.heads[:layer]), sum(self.heads[: layer + 1]))
            if found is not None:
                numbers[:, at] = encoding.to_numpy(self._sums(layer, found, query))
        return {"query": query, "sums": encoding.encode(numbers[0]), "sizes": encoding.encode(numbers[1])}

    def _sums(self, layer: int, found: HeadsOfStage, query: int | None) -> Tensor:
        """Return each head's sum and size, (2, heads)."""
        att = self._layers[layer]
        if query is None:
            return torch.stack([found.sums, found.sizes])
        if query >= att.shape.Q:
            return torch.full((2, att.shape.H), torch.nan, device="cpu")
        if (layer, query) not in self._of_query:
            self._look(layer, range(query, query + 1))
        return self._of_query[layer, query]

    def look_at_each_query(self) -> Generator[None, None, None]:
        """Compute the sums for every query in advance; yields after each layer."""
        for layer, found in enumerate(self._ready):
            if found is not None:
                self._look(layer, range(self._layers[layer].shape.Q))
            yield

    def _look(self, layer: int, queries: range) -> None:
        att, (H, K) = self._layers[layer], (self._layers[layer].shape.H, self._layers[layer].shape.K)
        both = torch.zeros(2, H, len(queries), dtype=torch.float64, device="cpu")
        for head in range(H):
            for piece in cuts(range(len(queries)), 1, max(1, MAX_WHOLE_CELLS // max(1, K))):
                rows = slice(piece.start, piece.stop)
                numbers = stage_rows(att, self._batch, head, queries[rows], self.stage).double()
                both[:, head, rows] = torch.stack([numbers.sum(1), numbers.abs().sum(1)]).cpu()
        for place, query in enumerate(queries):
            self._of_query[layer, query] = both[:, :, place]


def failed(error: Exception, batch: int, stage: str, query: int | None) -> dict[str, Any]:
    """Return a message with the reason why there are no pictures."""
    none = encoding.encode(np.zeros(0, np.float32))
    of = {"batch": batch, "stage": stage, "query": query}
    return {**of, "pictures": [], "sums": none, "sizes": none, "error": sentence_of(error)}
