"""All heads at once, ready to send: small pictures of one layer's heads, and all layers with their metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from inspect import GEN_CLOSED, GEN_RUNNING, getgeneratorstate
from math import inf, isqrt
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from ..._analysis.all_heads import MAX_SAMPLED_ROWS, LayerSource, RowPlan
from ..._analysis.head_kinds import HeadText, OwnMetric, measuring
from ..._analysis.head_sampling import HeadSampler, sample
from ..._analysis.keep import recall_of_heads
from ..._analysis.metrics import SURVEYED, MetricIndex
from ..._engine import cost, overview
from ..._engine.base import AttentionBase
from ..._engine.cache_policies import finding_evictions, kept_keys
from ..._engine.level_cache import LevelKey
from ..._utils.failures import log_told, sentence_of
from ..._utils.scheduler import Scheduler, in_slices
from ..codec import encoding
from .picture import PICTURE_SIZE, is_long

LEAST_SIZE = 4  # rows and columns in a picture; rather than smaller ones, fewer metrics are sent
THUMBNAIL_SIZE = 32  # rows and columns in a small picture, at most
MAX_FLOAT_HEADS = 2048  # up to here metrics are sent as float32, above it in 250 steps
LAYER_BYTES = 256  # for a layer's names and numbers
MAX_HEADS_PER_REQUEST = 240  # for finer pictures
MAX_FINER_CELLS = cost.MAX_CELLS // cost.SMALL_PICTURE  # cells in the rows of the heads in one message
FIRST_SECONDS = 0.1  # computed at once, while the user waits
MOST_SECONDS = 0.4  # the limit for the first layer, if it alone takes longer
SLICE_SECONDS = 0.02
MAX_WHOLE_CELLS = 1 << 20  # cells in a head's rows that are held at once; larger ones are read in blocks
MAX_AT_ONCE = 1 << 22  # cells of the rows for small pictures that are drawn at once
MAX_LAYER_CELLS = 1 << 26  # cells in the sampled rows of a layer's heads; very long heads have fewer rows
ALL_HEADS = "all heads"  # the name of the background job

log = logging.getLogger(__name__)

IdsOf = Callable[[int], Tensor | None]
OwnMetrics = Mapping[str, OwnMetric | None]  # functions of exact rows, or names of kinds


# The heads of one layer.


class Thumbnails(NamedTuple):
    """The heads of one layer as small pictures.

    Attributes:
        heads: for each head (rows, columns), weights pooled by maximum, and (rows, columns) bool, whether any cell is
            allowed.
        rows: how many queries of each head were read.
    """

    heads: list[tuple[Tensor, Tensor]]
    rows: int


def thumbnail_plan(att: AttentionBase) -> tuple[range, int]:
    """Return which queries of a layer's heads to read, and the most rows a small picture may have."""
    shape = att.shape
    size = min(THUMBNAIL_SIZE, isqrt(encoding.BUDGET // shape.H))
    is_whole = shape.Q * shape.K <= PICTURE_SIZE * PICTURE_SIZE
    return sample(shape.Q, shape.Q if is_whole else _most_rows(att, size)), size


def _most_rows(att: AttentionBase, size: int) -> int:
    """Return how many rows of each head in a long layer to read."""
    row = cost.worth_of_a_cell(att, 0, 0) * att.shape.H * att.shape.K
    return max(1, min(size, MAX_LAYER_CELLS // max(1, row)))


def take_long(att: AttentionBase, batch: int) -> bool:
    """Return whether the small pictures of a layer come after the picture of one head, which a person waits for."""
    read = att.shape.H * len(thumbnail_plan(att)[0]) * att.shape.K * cost.worth_of_a_cell(att, 0, 0)
    return read > MAX_AT_ONCE or is_long(att, LevelKey(batch, 0, "weights", "max"))


def drawing_thumbnails(att: AttentionBase, batch: int) -> Generator[None, None, Thumbnails]:
    """Draw a small picture of every head in a layer: complete, or for long heads from evenly spaced exact queries.

    It yields after some of the work.
    """
    shape = att.shape
    queries, size = thumbnail_plan(att)
    most = _most_rows(att, size)
    if most * shape.K > MAX_WHOLE_CELLS:
        long = []
        for head in range(shape.H):
            found = overview.sampled(att, batch, head, rows=most, columns=size)
            long.append((found.values, found.allowed))
            yield
        return Thumbnails(long, most)
    sampler = HeadSampler(att, batch, range(shape.H), queries, size=size, measured=False)
    for _ in sampler.steps():
        yield
    return Thumbnails(list(zip(sampler.values, sampler.allowed, strict=True)), len(queries))


# The heads of all layers.


class Plan:
    """Which rows of each layer are computed, for metrics and pictures alike, and the size of the pictures.

    Args:
        layers: the attentions.
        batch: the sample; a layer without it shows no heads.
        own: the number of custom metrics.

    Attributes:
        heads: how many heads each layer shows.
        total: how many heads all layers show.
        queries: the rows of each layer.
        cells: the number of cells in all these rows.
        size: rows and columns in a picture, at most.
        metrics: the names of the metrics sent.
    """

    def __init__(self, layers: LayerSource, batch: int, own: int = 0) -> None:
        self._own = own
        every = [layers[layer] for layer in range(len(layers))]
        shapes = [att.shape for att in every]
        self._worth = [cost.worth_of_a_cell(att, 0, 0) for att in every]
        rows = RowPlan(shapes, batch, self._worth)
        self.heads, self.queries, self._whole = rows.heads, rows.queries, rows.whole
        self.total = sum(self.heads)
        self._shapes = shapes
        counted = zip(shapes, self.heads, self.queries, strict=True)
        self.cells = sum(heads * len(queries) * shape.K for shape, heads, queries in counted)
        absent = {
            "learned_sink": not any(att.has_sinks for att in every),
            "recall": all(kept_keys(att) is None for att in every),
        }
        self.metrics = [name for name in SURVEYED if not absent.get(name)]
        self.size = self._size()
        if self.size < LEAST_SIZE:  # with very many heads, pictures matter more than metrics
            self.metrics = [name for name in self.metrics if name not in ("sink", "streaming")]
            self.size = self._size()

    def _size(self) -> int:
        """Return how large pictures can be, given the bytes for metrics."""
        numbers = len(self.metrics) * self.total * (4 if self.total <= MAX_FLOAT_HEADS else 1)
        numbers += 4 * self._own * self.total
        left = encoding.BUDGET - LAYER_BYTES * len(self._shapes) - numbers
        return max(1, min(THUMBNAIL_SIZE, isqrt(max(0, left) // max(1, self.total))))

    def finer(self, layer: int) -> range:
        """Return the rows for larger pictures of a layer: more of them, if not all were computed."""
        if self._whole:
            return self.queries[layer]
        shape = self._shapes[layer]
        row = self._worth[layer] * MAX_HEADS_PER_REQUEST * shape.K
        return sample(shape.Q, max(1, min(MAX_SAMPLED_ROWS, MAX_FINER_CELLS // row)))

    def worth(self, layer: int, heads: range) -> int:
        """Return the cost, in cells, of larger pictures of some heads in a layer."""
        cells = len(heads) * len(self.finer(layer)) * self._shapes[layer].K
        return cost.SMALL_PICTURE * self._worth[layer] * cells


class Survey:
    """The heads of all layers for one sample, computed in steps; partial results can be sent at any time.

    Args:
        layers: the attentions.
        batch: the sample; a layer without it shows no heads.
        ids: returns the token ids at a layer's positions, if known.
        own: custom metrics, by name.
        texts: returns the known text of a layer and sample, for custom metrics; None: its ids.
    """

    def __init__(
        self,
        layers: LayerSource,
        batch: int,
        ids: IdsOf,
        own: OwnMetrics | None = None,
        texts: Callable[[int, int], HeadText] | None = None,
    ) -> None:
        self.plan = Plan(layers, batch, len(own or {}))
        self._texts = texts
        self._own_metrics = dict(own or {})
        self._own: dict[str, list[Tensor]] = {name: [] for name in self._own_metrics}  # (heads,) for each layer
        self.problems: dict[str, str] = {}  # why a custom metric has no numbers
        self.error: str | None = None
        self.is_finding = False  # whether it is finding what a cache evicts in a layer, which comes first
        self._layers, self._batch, self._ids = layers, batch, ids
        self._pictures: list[Any] = []  # one for each finished layer
        self._metrics: list[Tensor] = []  # (metrics, heads) for each
        self._indices: dict[tuple[Any, ...], MetricIndex] = {}
        self._steps: Generator[None, None, None] | None = None

    @property
    def finished(self) -> bool:
        """Whether all layers are ready."""
        return len(self._pictures) == len(self._layers)

    @property
    def begun(self) -> bool:
        """Whether any layer is ready."""
        return bool(self._pictures)

    def __iter__(self) -> Iterator[None]:
        """Iterate over the remaining steps; a later loop continues where one stopped or was interrupted."""
        if self._steps is None or getgeneratorstate(self._steps) == GEN_CLOSED:
            self._steps = self._run(len(self._pictures))
        return self._steps

    def close(self) -> None:
        """Stop computing, and release the steps, which refer to the survey."""
        if self._steps is not None and getgeneratorstate(self._steps) != GEN_RUNNING:
            self._steps.close()
        self._steps = None

    def _run(self, first: int) -> Generator[None, None, None]:
        for layer, heads in list(enumerate(self.plan.heads))[first:]:
            if heads:
                self.is_finding = True
                for _ in finding_evictions(self._layers[layer], self._batch):
                    yield
                self.is_finding = False
            sampler = self._sampler(layer, heads)
            yield from sampler.steps()
            pictures = zip(sampler.values, sampler.allowed, strict=True)
            made = encoding.encode_thumbnails(pictures) if heads else None
            recall = torch.zeros(0, dtype=torch.float64, device="cpu")
            if heads:
                recall = yield from recall_of_heads(self._layers[layer], self._batch, self.plan.queries[layer])
            for name, metric in self._own_metrics.items():
                found = yield from self._measuring(layer, heads, name, metric)
                self._own[name][layer:] = [found]
            self._metrics[layer:] = [torch.cat([sampler.means.values, recall[None, :heads]])]
            self._pictures.append(made)  # last: this makes the layer ready
            yield

    def _measuring(self, layer: int, heads: int, name: str, metric: OwnMetric | None) -> Generator[None, None, Tensor]:
        """Compute a custom metric in one layer; NaN if it raises, with the reason in `problems`."""
        nothing = torch.full((heads,), torch.nan, dtype=torch.float64, device="cpu")
        if not heads or name in self.problems:
            return nothing
        try:
            text = HeadText(self._ids(layer)) if self._texts is None else self._texts(layer, self._batch)
            of = self._layers[layer], self._batch, {name: metric}, text, self.plan.queries[layer]
            return (yield from measuring(*of)).values[name].double().cpu()
        except Exception as error:
            log_told(log, f"the metric {name}", error)
            self.problems[name] = f"layer {layer}: {sentence_of(error)}"
            return nothing

    def _sampler(self, layer: int, heads: int) -> HeadSampler:
        att, queries = self._layers[layer], self.plan.queries[layer]
        ids, size = self._ids(layer), self.plan.size
        return HeadSampler(att, self._batch, range(heads), queries, size=size, ids=ids, known=self._indices)

    def message(self) -> dict[str, Any]:
        """Return the results so far, for the front-end."""
        shapes = (self._layers[layer].shape for layer in range(len(self._layers)))
        layers = [
            {"heads": heads, "groups": shape.G, "queries": shape.Q, "keys": shape.K, "rows": len(queries)}
            for shape, heads, queries in zip(shapes, self.plan.heads, self.plan.queries, strict=True)
        ]
        ready = torch.cat(self._metrics, 1) if self._metrics else torch.zeros(len(SURVEYED), 0, device="cpu")
        named = zip(SURVEYED, ready, strict=True)
        sent = self.plan.metrics
        metrics = {
            name: None if name not in sent or bool(values.isnan().all()) else _numbers(values) for name, values in named
        }
        return {
            "batch": self._batch,
            "layers": layers,
            "pictures": list(self._pictures),
            "metrics": metrics,
            "own": {name: _floats(found) for name, found in self._own.items()},
            "problems": dict(self.problems),
            "error": self.error,
        }


class AnySurvey(Protocol):
    """Computes something for all heads, layer by layer."""

    error: str | None
    is_finding: bool  # still preparing, with no results yet

    @property
    def begun(self) -> bool: ...
    def __iter__(self) -> Iterator[None]: ...
    def close(self) -> None: ...
    def message(self) -> dict[str, Any]: ...


S = TypeVar("S", bound=AnySurvey)


class Surveys(Generic[S]):
    """The survey shown: quick parts are computed at once, the rest in slices on the event loop, sent as they finish.

    Args:
        slices: where the rest is computed.
        tell: called with the message again, with more layers in it.
        job: the name of the background job.
    """

    def __init__(self, slices: Scheduler, tell: Callable[[dict[str, Any]], object], job: str = ALL_HEADS) -> None:
        self._slices, self._tell, self._job = slices, tell, job
        self._shown: tuple[Any, S] | None = None  # what it is about, such as the sample, and the survey

    def forget(self) -> None:
        """Drop the results, because the tensors, rules or tokens have changed."""
        self.leave()
        if self._shown is not None:
            self._shown[1].close()
        self._shown = None

    def leave(self) -> None:
        """Stop computing for now, and keep the results for next time."""
        self._slices.drop(self._job)

    def look(self, of: Any, make: Callable[[], S], change: Callable[[S], object] = lambda _: None) -> dict[str, Any]:
        """Return the heads that can be computed at once: all of them if no event loop runs.

        Args:
            of: identifies the survey, for example by its sample; a new value makes a new survey.
            make: makes the survey.
            change: called with the survey before any results are returned.
        """
        self.leave()
        if self._shown is None or self._shown[0] != of or self._shown[1].error is not None:
            self._shown = of, make()
        found = self._shown[1]
        change(found)
        begun = inf if self._slices.find_loop() is None else time.monotonic()
        for _ in found:
            is_enough = found.begun or found.is_finding
            if time.monotonic() > begun + (FIRST_SECONDS if is_enough else MOST_SECONDS):
                self._slices.start(self._job, self._rest(found))
                break
        return found.message()

    def finish(self) -> None:
        """Compute the rest of the survey shown now."""
        if self._job in self._slices.names and self._shown is not None:
            for _ in self._shown[1]:
                pass
            self.leave()  # first, so that an interrupted survey can continue later
            self._tell(self._shown[1].message())

    def failed(self, error: Exception) -> dict[str, Any] | None:
        """Return the results so far, and why there are no more."""
        if self._shown is None:
            return None
        self._shown[1].error = sentence_of(error)
        return self._shown[1].message()

    def _rest(self, found: S) -> Iterator[None]:
        """Compute the rest, and send partial results at intervals that double each time."""
        try:
            yield from in_slices(
                found, lambda: self._tell(found.message()), slice_seconds=SLICE_SECONDS, first=2 * FIRST_SECONDS
            )
        except Exception as error:
            log_told(log, "the overview of all heads", error)
            self._tell(self.failed(error) or found.message())
        else:
            if self._shown is not None and self._shown[1] is found:
                self._tell(found.message())


def _numbers(values: Tensor) -> encoding.Envelope:
    """Encode one metric of all heads, (heads,); NaN for none."""
    return (
        encoding.encode(encoding.to_numpy(values)) if len(values) <= MAX_FLOAT_HEADS else encoding.encode_shares(values)
    )


def _floats(found: list[Tensor]) -> encoding.Envelope | None:
    """Encode a custom metric, whose values may have any size; None until a layer is ready."""
    return encoding.encode(encoding.to_numpy(torch.cat(found).float())) if found else None


def finer(layers: LayerSource, plan: Plan, layer: int, batch: int, heads: range) -> encoding.Envelope:
    """Draw larger pictures of some heads in a layer."""
    sampler = HeadSampler(layers[layer], batch, heads, plan.finer(layer), size=THUMBNAIL_SIZE, measured=False)
    for _ in sampler.steps():
        pass
    return encoding.encode_thumbnails(zip(sampler.values, sampler.allowed, strict=True))
