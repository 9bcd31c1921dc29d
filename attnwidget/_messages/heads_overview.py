"""All heads of all layers at a glance, as they are sent: small pictures and metrics, layer by layer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from math import inf, isqrt
from typing import Any, Protocol

import torch
from torch import Tensor

from .._analysis.head_sampling import HeadSampler, sample
from .._analysis.metrics import NAMES, MetricIndex, Metrics
from .._engine.base import AttentionBase
from .._utils.scheduler import Scheduler
from . import encoding

SIZE = 32  # rows and columns of a picture, at most
CELLS = 1 << 28  # of all heads together, up to which all rows are looked at
SAMPLED = 1 << 27  # else: so many rows, and of very many or very long heads a single one
ROWS = 32  # of a head, at most
FLOATS = 2048  # heads, up to which metrics are sent as float32; of more, in 250 steps
LAYER = 256  # bytes that a layer's names and numbers take
MOST = 240  # heads of one request for finer pictures
AT_FIRST = 0.1  # seconds that a person waits for what can be had at once
SECONDS = 0.02  # of a slice
ALL_HEADS = "all heads"  # the job that computes the rest

IdsOf = Callable[[int], Tensor | None]


class LayerSource(Protocol):
    """The layers of a stack, each an attention."""

    def __len__(self) -> int: ...
    def __getitem__(self, layer: int) -> AttentionBase: ...


class Plan:
    """Which rows of each layer are looked at, the same for metrics and pictures, and how large these are."""

    def __init__(self, layers: LayerSource, batch: int) -> None:
        shapes = [layers[layer].shape for layer in range(len(layers))]
        self.heads = [shape.H if batch < shape.B and shape.Q and shape.K else 0 for shape in shapes]
        counted = list(zip(shapes, self.heads, strict=True))
        self.total = sum(self.heads)
        self._shapes = shapes
        self._whole = sum(heads * shape.Q * shape.K for shape, heads in counted) <= CELLS
        row = sum(heads * shape.K for shape, heads in counted)
        most = max(1, min(ROWS, SAMPLED // max(1, row)))
        self.queries = [sample(shape.Q, shape.Q if self._whole else most) for shape in shapes]
        self.cells = sum(
            heads * len(queries) * shape.K for (shape, heads), queries in zip(counted, self.queries, strict=True)
        )
        numbers = len(NAMES) * self.total * (4 if self.total <= FLOATS else 1)
        room = encoding.BUDGET - LAYER * len(shapes) - numbers
        self.size = max(1, min(SIZE, isqrt(max(0, room) // max(1, self.total))))

    def finer(self, layer: int) -> range:
        """The rows of larger pictures: more of them, where not all are looked at."""
        if self._whole:
            return self.queries[layer]
        shape = self._shapes[layer]
        return sample(shape.Q, max(1, min(ROWS, SAMPLED // (MOST * shape.K))))


class Survey:
    """The heads of all layers for one sample, computed step by step; what is ready can be sent at any time.

    Args:
        layers: their attentions.
        batch: which sample; a layer that has fewer shows no heads.
        ids: of a layer, the tokens of its places as numbers, if they are known.
    """

    def __init__(self, layers: LayerSource, batch: int, ids: IdsOf) -> None:
        self.plan = Plan(layers, batch)
        self.error: str | None = None
        self._layers, self._batch, self._ids = layers, batch, ids
        self._pictures: list[Any] = []  # of the layers that are ready
        self._metrics: list[Tensor] = []  # (metrics, heads) of each
        self._marks: dict[tuple[Any, ...], MetricIndex] = {}
        self._steps = self._run()

    @property
    def finished(self) -> bool:
        return len(self._pictures) == len(self._layers)

    @property
    def begun(self) -> bool:
        """Whether there is anything to see."""
        return bool(self._pictures)

    def __iter__(self) -> Iterator[None]:
        """The steps that are left: whoever stops may go on later."""
        return self._steps

    def _run(self) -> Iterator[None]:
        for layer, heads in enumerate(self.plan.heads):
            glance = self._glance(layer, heads)
            yield from glance.steps()
            pictures = zip(glance.values, glance.allowed, strict=True)
            self._pictures.append(encoding.encode_thumbnails(pictures) if heads else None)
            self._metrics.append(glance.means.values)
            yield

    def _glance(self, layer: int, heads: int) -> HeadSampler:
        att, queries = self._layers[layer], self.plan.queries[layer]
        ids, size = self._ids(layer), self.plan.size
        return HeadSampler(att, self._batch, range(heads), queries, size=size, ids=ids, known=self._marks)

    def message(self) -> dict[str, Any]:
        """What is ready, for the front-end."""
        shapes = (self._layers[layer].shape for layer in range(len(self._layers)))
        layers = [
            {"heads": heads, "groups": shape.G, "queries": shape.Q, "keys": shape.K, "rows": len(queries)}
            for shape, heads, queries in zip(shapes, self.plan.heads, self.plan.queries, strict=True)
        ]
        ready = torch.cat(self._metrics, 1) if self._metrics else torch.zeros(len(NAMES), 0)
        named = zip(NAMES, ready, strict=True)
        metrics = {name: None if bool(values.isnan().all()) else _numbers(values) for name, values in named}
        return {
            "batch": self._batch,
            "layers": layers,
            "pictures": list(self._pictures),
            "metrics": metrics,
            "error": self.error,
        }


class Surveys:
    """The survey that is looked at: what is quick at once, the rest in slices on the event loop, told as it is ready.

    Args:
        slices: where the rest is computed.
        tell: is given the message again, with more layers in it.
    """

    def __init__(self, slices: Scheduler, tell: Callable[[dict[str, Any]], object]) -> None:
        self._slices, self._tell = slices, tell
        self._of: tuple[int, Survey] | None = None  # of which sample

    def forget(self) -> None:
        """The tensors, the rules or the tokens are others."""
        self._of = None
        self.leave()

    def leave(self) -> None:
        """Compute no more for now; what there is stays for the next look."""
        self._slices.drop(ALL_HEADS)

    def look(self, layers: LayerSource, batch: int, ids: IdsOf) -> dict[str, Any]:
        """The heads of a sample, as far as they can be had at once: all of them where no event loop runs."""
        self.leave()
        if self._of is None or self._of[0] != batch or self._of[1].error is not None:
            self._of = batch, Survey(layers, batch, ids)
        found = self._of[1]
        until = inf if self._slices.find_loop() is None else time.monotonic() + AT_FIRST
        for _ in found:
            if found.begun and time.monotonic() > until:
                self._slices.start(ALL_HEADS, self._rest(found))
                break
        return found.message()

    def finish(self) -> None:
        """Compute now what is left of what is looked at."""
        if ALL_HEADS in self._slices.names and self._of is not None:
            self.leave()
            for _ in self._of[1]:
                pass
            self._tell(self._of[1].message())

    def failed(self, error: Exception) -> dict[str, Any] | None:
        """What there is, and why no more."""
        if self._of is None:
            return None
        self._of[1].error = str(error) or type(error).__name__
        return self._of[1].message()

    def _rest(self, found: Survey) -> Iterator[None]:
        """What is ready is told now and then, each time after twice as long."""
        told = begun = time.monotonic()
        wait = 2 * AT_FIRST
        try:
            for _ in found:
                now = time.monotonic()
                if now - told >= wait:
                    told, wait = now, 2 * wait
                    self._tell(found.message())
                if now - begun >= SECONDS:
                    yield
                    begun = time.monotonic()
        except Exception as error:
            self._tell(self.failed(error) or found.message())
        else:
            self._tell(found.message())


def _numbers(values: Tensor) -> encoding.Envelope:
    """One metric of all heads; NaN where there is none."""
    return encoding.encode(encoding.to_numpy(values)) if len(values) <= FLOATS else encoding.encode_shares(values)


def finer(layers: LayerSource, plan: Plan, layer: int, batch: int, heads: range) -> encoding.Envelope:
    """Larger pictures of some heads."""
    glance = HeadSampler(layers[layer], batch, heads, plan.finer(layer), size=SIZE, measured=False)
    for _ in glance.steps():
        pass
    return encoding.encode_thumbnails(zip(glance.values, glance.allowed, strict=True))


def records(
    layers: LayerSource, names: Sequence[str], batches: Sequence[int] | None, rows: int | None, ids: Callable[..., Any]
) -> list[dict[str, Any]]:
    """The metrics of all heads, one dict for each: see `AttentionWidget.metrics`."""
    found: list[dict[str, Any]] = []
    for layer, name in enumerate(names):
        shape = layers[layer].shape
        for batch in range(shape.B):
            if batches is not None and batch not in batches:
                continue
            queries = Plan(layers, batch).queries[layer] if rows is None else sample(shape.Q, rows)
            glance = HeadSampler(layers[layer], batch, range(shape.H), queries, ids=ids(layer, batch))
            for _ in glance.steps():
                pass
            where = {"layer": layer, "name": name, "batch": batch}
            found += [
                {**where, "head": head, **as_fields(one)} for head, one in enumerate(glance.means.records(len(queries)))
            ]
    return found


def as_fields(found: Metrics) -> dict[str, float | int | None]:
    """Every metric by name, and of how many rows."""
    return {**{name: getattr(found, name) for name in NAMES}, "rows": found.rows}
