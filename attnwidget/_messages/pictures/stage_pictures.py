"""The small pictures of the stages view: every stage of a head, and the output.

The last ones drawn are reused when a changed rule, such as a scale being dragged, only multiplies their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import inf
from typing import Any

import torch
from torch import Tensor

from ..._engine import cost, overview
from ..._engine.base import Head
from ..._engine.level_cache import LevelKey
from ..._engine.matmul import exact, exactly, exp_
from ..._engine.overview import Overview
from ..._engine.pooling import larger_by_size, pool_first, pool_last
from ..._engine.regions import Region
from ..._engine.softmax import is_finite, output_rows, run_to_end, weigh
from ..._engine.sources import Stage
from ..._engine.stages import QUERIES, SIGNED, values
from ..._utils.indexing import cuts
from ...attention import Attention
from ..codec import encoding
from . import picture, sinks

SMALL_SIZE = 128  # rows and columns in a small picture, at most
SHOWN: tuple[Stage, ...] = ("scores", "scaled", "capped", "masked", "weights")  # if the head has them
MAX_EXACT_CELLS = 64 * 64  # cells; up to here a small picture is sent as exact numbers
MAX_OUTPUT_CELLS = 1 << 22  # queries × value size; a larger output is not drawn
MAX_EXACT_STAGE_CELLS = 1 << 32  # 65,536²; a larger head's stages stay sampled: exact ones would take minutes
CELLS_AT_ONCE = 1 << 18  # cells computed and pooled at a time
SLICE_SECONDS = 0.02
TOGETHER = 4  # the cost of a cell for all stages and the output together
SCALES = ("scale", "temperature")  # rules that multiply all scores by one factor
MAX_SCALED_CELLS = 1 << 20  # cells of a head whose scores are kept while its scale is dragged
ONE_THREAD_CELLS = 1 << 14  # above this, torch starts another thread, which is slow to wake while a browser draws

Picture = dict[str, Any]


class StagePictures:
    """Draws the stages of a head, and reuses the last ones if possible."""

    def __init__(self) -> None:
        self._scores: dict[tuple[Any, ...], Picture] = {}
        self._unscaled: dict[tuple[Any, ...], UnscaledStages] = {}

    def draw(self, att: Attention, batch: int, head: int, of: tuple[Any, ...], rules: Mapping[str, Any]) -> Picture:
        """Draw all stages of a head as small pictures with their ranges, and the output.

        Args:
            att: the attention, under the what-if rules.
            batch: the sample.
            head: the head.
            of: identifies the tensors.
            rules: the what-if rules.
        """
        of = (*of, batch, head, rules.get("dtype"))  # no other rule changes the raw scores
        others = (*of, repr(sorted((name, rule) for name, rule in rules.items() if name not in SCALES)))
        if others in self._unscaled and att.scale > 0:
            return self._unscaled[others].draw(att.scale)
        made = stages(att, batch, head, self._scores.get(of))
        first = made["pictures"][0]
        self._scores = {of: first} if first["stage"] == "scores" else {}
        self._unscaled = {others: UnscaledStages(att, batch, head, made)} if scales(att, batch, head, made) else {}
        return made


def stages(att: Attention, batch: int, head: int, scores: Picture | None = None) -> Picture:
    """Draw all stages of a head and the output; `scores` is the picture of the scores, if already drawn."""
    there = [stage for stage in SHOWN if stage in att.stages]
    known = {} if scores is None else {"scores": scores}
    output = None
    if att.v is not None and att.shape.Q * (att.shape.Dv or 0) <= MAX_OUTPUT_CELLS:
        long = _is_long(att, batch, head, "weights")
        output = _sampled_output(att, batch, head) if long else _output(att.output(batch, head))
    return {"pictures": [known.get(stage) or _stage(att, batch, head, stage) for stage in there], "output": output}


def _stage(att: Attention, batch: int, head: int, stage: Stage) -> Picture:
    """Draw a stage exactly; for a long head from one exact row per bin, `every` queries apart."""
    every = 1
    if _is_long(att, batch, head, stage):
        found = overview.sampled(att, batch, head, rows=SMALL_SIZE, columns=SMALL_SIZE, stage=stage)
        every = found.query_bin
    else:
        found = overview.overview(att, batch, head, size=SMALL_SIZE, stage=stage)
    return _drawn(att, batch, head, stage, found, every)


def _is_long(att: Attention, batch: int, head: int, stage: str) -> bool:
    """Whether all stages of a head take too long to wait for, so that rows are sampled."""
    Q, K = att.shape.Q, att.shape.K
    return Q > SMALL_SIZE and TOGETHER * cost.cells(att, batch, head, range(Q), range(K), stage) > cost.AT_ONCE


def _drawn(att: Attention, batch: int, head: int, stage: Stage, found: Overview, every: int = 1) -> Picture:
    """Encode the picture of a stage, exact or from rows that are `every` queries apart."""
    encoded = _encoded(found.values, picture.blocked_bins(found, stage), signed=stage in SIGNED)
    sampled = None if every == 1 else {"first": (att.shape.Q - 1) % every, "every": every, "exact": 0}
    sink = sinks.column(att, LevelKey(batch, head, stage, "max"), found.query_bin, sampled)
    bins = {"query_bin": found.query_bin, "key_bin": found.key_bin}
    return {"stage": stage, "every": every, **bins, **encoded, "sink": sink}


def _encoded(x: Tensor, blocked: Tensor | None, *, signed: bool) -> Picture:
    """Encode exact numbers if cells are large enough to tell apart, else one byte per cell."""
    if x.numel() <= MAX_EXACT_CELLS:
        return encoding.encode_picture(x, blocked, signed=signed)
    return {**encoding.encode_cells(x, blocked, signed=signed), "blocked": None}


def _output(output: Tensor) -> Picture:
    """Draw weights · v, (Q, Dv)."""
    found = SmallMatrix(*output.shape)
    found.add(range(found.rows), output)
    return _output_of(found)


def _output_of(found: SmallMatrix, rows: int | None = None, every: int = 1) -> Picture:
    """Draw weights · v for all queries, or for every `every`-th of `rows` queries."""
    encoded = _encoded(found.values(), None, signed=True)
    of = {"rows": found.rows if rows is None else rows, "columns": found.columns}
    return {"query_bin": found.row_bin * every, "value_bin": found.column_bin, **of, **encoded}


def _sampled_output(att: Attention, batch: int, head: int) -> Picture:
    """Draw weights · v for one query per bin."""
    Q = att.shape.Q
    every = max(1, -(-Q // SMALL_SIZE))
    steps = output_rows(att.head(batch, head), range((Q - 1) % every, Q, every))
    output, _ = run_to_end(exactly(att.device, steps))
    found = SmallMatrix(*output.shape)
    found.add(range(found.rows), output)
    return _output_of(found, Q, every)


def small(x: Tensor) -> Picture:
    """Return at most 128 × 128 numbers, the one with the largest absolute value in each bin, with the range of all."""
    found = SmallMatrix(*x.shape)
    for rows in cuts(range(found.rows), found.row_bin, max(1, CELLS_AT_ONCE // max(found.columns, 1))):
        found.add(rows, x[rows.start : rows.stop])
    return found.picture()


class SmallMatrix:
    """A matrix pooled to at most 128 × 128 bins as rows arrive: the largest absolute value in each bin.

    Args:
        rows, columns: the size of the matrix.

    Attributes:
        row_bin, column_bin: rows and columns per bin.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.row_bin, self.column_bin = (max(1, -(-n // SMALL_SIZE)) for n in (rows, columns))
        self._high: Tensor | None = None  # in each bin
        self._low: Tensor | None = None
        self._range: tuple[float, float] | None = None  # over all finite numbers

    def add(self, rows: range, x: Tensor) -> None:
        """Pool some rows, (rows, columns): several whole bins, or part of one."""
        if self._high is None or self._low is None:
            shape = -(-self.rows // self.row_bin), -(-self.columns // self.column_bin)
            self._high, self._low = x.new_full(shape, -inf), x.new_full(shape, inf)
        at = slice(rows.start // self.row_bin, -(-rows.stop // self.row_bin))
        high, low = (
            pool_first(pool_first(x, self.row_bin, reduce).mT, self.column_bin, reduce).mT
            for reduce in (torch.amax, torch.amin)
        )
        self._high[at], self._low[at] = torch.maximum(self._high[at], high), torch.minimum(self._low[at], low)
        bins = torch.cat([high.flatten(), low.flatten()])  # a non-finite number in x gives one here
        finite = bins if bool(bins.isfinite().all()) else x[x.isfinite()]
        if finite.numel():
            least, most = float(finite.min()), float(finite.max())
            before = self._range or (least, most)
            self._range = min(least, before[0]), max(most, before[1])

    def values(self) -> Tensor:
        """Return the bins."""
        if self._high is None or self._low is None:
            return torch.zeros(0, 0, device="cpu")
        return larger_by_size(self._high, self._low)

    def picture(self) -> Picture:
        """Return the picture, with the range of all numbers."""
        encoded = encoding.encode_picture(self.values(), None, signed=True)
        low, high = self._range or (None, None)
        bins = {"row_bin": self.row_bin, "column_bin": self.column_bin}
        return {**encoded, "low": low, "high": high, "rows": self.rows, "columns": self.columns, **bins}


# Made exact.


def exact_stages(att: Attention, batch: int, head: int, made: Picture) -> Iterator[Picture | None]:
    """Replace the sampled rows of a long head: make the output exact, then one stage after another, in slices.

    Yields:
        None after each slice, and all pictures so far after each stage.
    """
    queries, keys = range(att.shape.Q), range(att.shape.K)
    bins = -(-len(queries) // SMALL_SIZE), -(-len(keys) // SMALL_SIZE)
    if made["output"] is not None:
        found = SmallMatrix(len(queries), att.shape.Dv or 0)
        for rows in cuts(queries, found.row_bin, QUERIES):
            steps_of_rows = exactly(att.device, output_rows(att.head(batch, head), rows))
            while True:
                try:
                    next(steps_of_rows)
                except StopIteration as end:
                    found.add(rows, end.value[0])
                    break
                yield None
        made = {**made, "output": _output_of(found)}
        yield made
    pictures = list(made["pictures"])
    for at, one in enumerate(pictures):
        if one["every"] == 1:
            continue
        stage = one["stage"]
        steps = overview.OverviewPass(att, Region(batch, head, queries, keys, *bins), stage, "max", SLICE_SECONDS)
        for _ in steps:
            yield None
        pictures[at] = _drawn(att, batch, head, stage, steps.result)
        made = {**made, "pictures": list(pictures)}
        yield made


def becomes_exact(att: Attention, made: Picture) -> bool:
    """Whether stages were drawn from sampled rows and can be made exact within about a minute."""
    return any(one["every"] > 1 for one in made["pictures"]) and att.shape.Q * att.shape.K <= MAX_EXACT_STAGE_CELLS


def scales(att: Attention, batch: int, head: int, made: Picture) -> bool:
    """Whether a new scale only multiplies the pictures before the softmax; only their colors are sent."""
    plain = att.scores_are_products and not att.rules.biases and att.scale > 0 and not att.has_sinks
    small = att.shape.Q * att.shape.K <= MAX_SCALED_CELLS and is_finite(Head(att, batch, head), range(att.shape.Q))
    return plain and small and all(one["values"]["dtype"] == "uint8" for one in made["pictures"])


class UnscaledStages:
    """The stages of a head as drawn at one scale, ready to draw at others.

    This needs no product of q and k, and no new colors if only the range changes.

    Args:
        att: the attention.
        batch: the sample.
        head: the head.
        made: its stages, from `stages`.
    """

    def __init__(self, att: Attention, batch: int, head: int, made: Picture):
        self._att, self._batch, self._head, self._made = att, batch, head, made

    def draw(self, scale: float) -> Picture:
        """Draw the result of `stages` for the same attention at another scale."""
        weights = self._weights(scale)
        factor = scale / self._att.scale
        pictures = []
        for one in self._made["pictures"]:
            if one["stage"] == "weights":
                pictures.append(one | self._encoded(weights, one["query_bin"], one["key_bin"]))
            else:
                pictures.append(one if one["stage"] == "scores" else multiplied(one, factor))
        output = None
        if self._made["output"] is not None:
            with exact(self._att.device):
                v = values(Head(self._att, self._batch, self._head), range(self._att.shape.K))
                output = _output(weigh(weights.mT, v))
        return {"pictures": pictures, "output": output}

    @cached_property
    def _below(self) -> Tensor:
        """Masked scores minus their row's maximum, at a scale of 1: (Q, K); −∞ where blocked."""
        masked = self._att.block("masked", batch=self._batch, head=self._head)
        peak = masked.amax(1, keepdim=True)
        return masked.sub_(peak.masked_fill(peak == -torch.inf, 0)).div_(self._att.scale)

    def _weights(self, scale: float) -> Tensor:
        """Compute the weights at a scale, (Q, K), a few rows at a time."""
        found = torch.empty_like(self._below)
        for rows in cuts(range(len(found)), 1, max(1, ONE_THREAD_CELLS // max(1, found.shape[1]))):
            at = slice(rows.start, rows.stop)
            e = exp_(torch.mul(self._below[at], scale, out=found[at]))
            total = e.sum(1, keepdim=True)
            e /= total.masked_fill_(total == 0, 1)
        return found

    @cached_property
    def _blocked(self) -> Tensor | None:
        """Which bins of the picture of weights have no allowed cell, (rows, columns) bool; None if all have one."""
        weights = self._made["pictures"][-1]
        blocked = _maxima(self._below, weights["query_bin"], weights["key_bin"]) == -torch.inf
        return blocked if bool(blocked.any()) else None

    def _encoded(self, weights: Tensor, query_bin: int, key_bin: int) -> Picture:
        return _encoded(_maxima(weights, query_bin, key_bin), self._blocked, signed=False)


def _maxima(x: Tensor, query_bin: int, key_bin: int) -> Tensor:
    """Pool (Q, K) to the maximum of each bin, (rows, columns), a few rows at a time."""
    limit = max(1, ONE_THREAD_CELLS // max(1, x.shape[1]))
    rows = [
        pool_first(x[p.start : p.stop], query_bin, torch.amax)
        for p in cuts(range(len(x)), query_bin, max(query_bin, limit))
    ]
    return pool_last(torch.cat(rows), key_bin, torch.amax)


def multiplied(drawn: Picture, factor: float) -> Picture:
    """Return a picture whose numbers are multiplied by a factor: its colors stay the same."""
    low, high = (None if x is None else x * factor for x in (drawn["low"], drawn["high"]))
    scale = drawn["values"]["scale"]
    return drawn | {
        "low": low,
        "high": high,
        "values": drawn["values"] | {"scale": scale | {"high": scale["high"] * factor}},
    }
