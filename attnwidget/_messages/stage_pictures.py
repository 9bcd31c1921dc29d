"""The small pictures of the stages view: every stage of a head, and the output.

Those that were drawn last are used again where another rule, such as a scale that is dragged, only multiplies their
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .._engine import overview
from .._engine.base import Head
from .._engine.level_cache import LevelKey
from .._engine.matmul import exact, exp_
from .._engine.pooling import pool_by_size, pool_first, pool_last
from .._engine.softmax import is_finite, weigh
from .._engine.stages import SIGNED, values
from .._utils.indexing import cuts
from ..attention import Attention
from . import encoding, picture, sinks

SMALL_SIZE = 128  # rows and columns of a small picture, at most
SHOWN = ("scores", "scaled", "capped", "masked", "weights")  # of the stages that there are
MAX_EXACT_CELLS = 64 * 64  # of a small picture that is sent as exact numbers
MAX_OUTPUT_CELLS = 1 << 22  # queries × value size, beyond which the output is not drawn
SCALES = ("scale", "temperature")  # rules that multiply every score alike
MAX_SCALED_CELLS = 1 << 20  # of a head whose scores are kept while its scale is dragged
ONE_THREAD_CELLS = 1 << 14  # beyond, torch starts another thread, which is slow to wake while a browser is drawing

Picture = dict[str, Any]


class StagePictures:
    """Draws the stages of a head, and keeps what of the last ones can be used again."""

    def __init__(self) -> None:
        self._scores: dict[tuple[Any, ...], Picture] = {}
        self._unscaled: dict[tuple[Any, ...], UnscaledStages] = {}

    def draw(self, att: Attention, batch: int, head: int, of: tuple[Any, ...], rules: Mapping[str, Any]) -> Picture:
        """Draw all stages of a head, small, with their ranges, and the output.

        Args:
            att: the attention, under the other rules.
            batch: which sample.
            head: which head.
            of: what tells these tensors from others.
            rules: the other rules.
        """
        of = (*of, batch, head, rules.get("dtype"))  # no other rule changes the scores
        others = (*of, repr(sorted((name, rule) for name, rule in rules.items() if name not in SCALES)))
        if others in self._unscaled and att.scale > 0:
            return self._unscaled[others].draw(att.scale)
        made = stages(att, batch, head, self._scores.get(of))
        first = made["pictures"][0]
        self._scores = {of: first} if first["stage"] == "scores" else {}
        self._unscaled = {others: UnscaledStages(att, batch, head, made)} if scales(att, batch, head, made) else {}
        return made


def stages(att: Attention, batch: int, head: int, scores: Picture | None = None) -> Picture:
    """Draw all stages of a head and the output; `scores` is their picture, if it is there already."""
    there = [stage for stage in SHOWN if stage in att.stages]
    known = {} if scores is None else {"scores": scores}
    output = None
    if att.v is not None and att.shape.Q * (att.shape.Dv or 0) <= MAX_OUTPUT_CELLS:
        output = _output(att.output(batch, head))
    return {"pictures": [known.get(stage) or _stage(att, batch, head, stage) for stage in there], "output": output}


def _stage(att: Attention, batch: int, head: int, stage: str) -> Picture:
    """Draw a stage exactly; of a long head from one exact row in each bin, `every` queries apart."""
    every = 1
    if picture.is_long(att, LevelKey(batch, head, stage, "max")):
        found = overview.sampled(att, batch, head, rows=SMALL_SIZE, columns=SMALL_SIZE, stage=stage)
        every = found.query_bin
    else:
        found = overview.overview(att, batch, head, size=SMALL_SIZE, stage=stage)
    encoded = _encoded(found.values, picture.blocked_bins(found, stage), signed=stage in SIGNED)
    sampled = None if every == 1 else {"first": (att.shape.Q - 1) % every, "every": every, "exact": 0}
    sink = sinks.column(att, LevelKey(batch, head, stage, "max"), found.query_bin, sampled)
    bins = {"query_bin": found.query_bin, "key_bin": found.key_bin}
    return {"stage": stage, "every": every, **bins, **encoded, "sink": sink}


def _encoded(x: Tensor, blocked: Tensor | None, *, signed: bool) -> Picture:
    """Encode exact numbers where cells can be told apart, else a byte a cell, for its colour."""
    if x.numel() <= MAX_EXACT_CELLS:
        return encoding.encode_picture(x, blocked, signed=signed)
    return {**encoding.encode_cells(x, blocked, signed=signed), "blocked": None}


def _output(output: Tensor) -> Picture:
    """Draw weights · v, (Q, Dv)."""
    pooled, query_bin, value_bin = pool_matrix(output)
    rows, columns = output.shape
    encoded = _encoded(pooled, None, signed=True)
    return {"query_bin": query_bin, "value_bin": value_bin, "rows": rows, "columns": columns, **encoded}


def pool_matrix(x: Tensor) -> tuple[Tensor, int, int]:
    """Pool a matrix to at most 128 × 128 bins, each the number of largest absolute value, with its sign.

    Returns:
        (rows, columns), and the rows and columns of a bin.
    """
    down, across = (max(1, -(-n // SMALL_SIZE)) for n in x.shape)
    return pool_by_size(pool_by_size(x, down).mT, across).mT, down, across


def scales(att: Attention, batch: int, head: int, made: Picture) -> bool:
    """Whether another scale only multiplies what is drawn before the softmax, and only its colours are sent."""
    plain = att.scores_are_products and not att.rules.biases and att.scale > 0 and not att.has_sinks
    small = att.shape.Q * att.shape.K <= MAX_SCALED_CELLS and is_finite(Head(att, batch, head), range(att.shape.Q))
    return plain and small and all(one["values"]["dtype"] == "uint8" for one in made["pictures"])


class UnscaledStages:
    """The stages of a head as they were drawn at one scale, to be drawn at others.

    This takes no product of q and k, and no new colours where only the range is another.

    Args:
        att: the attention.
        batch: which sample.
        head: which head.
        made: its stages, as `stages` draws them.
    """

    def __init__(self, att: Attention, batch: int, head: int, made: Picture):
        self._att, self._batch, self._head, self._made = att, batch, head, made

    def draw(self, scale: float) -> Picture:
        """Draw what `stages` draws of the same attention at another scale."""
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
        """Masked scores minus the maximum of their row, at a scale of 1: (Q, K); −∞ where blocked."""
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
        """Which bins of the picture of weights have no allowed cell, (rows, columns) bool; None if all have."""
        weights = self._made["pictures"][-1]
        blocked = _maxima(self._below, weights["query_bin"], weights["key_bin"]) == -torch.inf
        return blocked if bool(blocked.any()) else None

    def _encoded(self, weights: Tensor, query_bin: int, key_bin: int) -> Picture:
        return _encoded(_maxima(weights, query_bin, key_bin), self._blocked, signed=False)


def _maxima(x: Tensor, query_bin: int, key_bin: int) -> Tensor:
    """Pool (Q, K) to the maximum of each bin, (rows, columns), a few rows at a time."""
    limit = max(1, ONE_THREAD_CELLS // max(1, x.shape[1]))
    rows = [pool_first(x[p.start : p.stop], query_bin, torch.amax) for p in _bins(len(x), query_bin, limit)]
    return pool_last(torch.cat(rows), key_bin, torch.amax)


def _bins(n: int, width: int, limit: int) -> list[range]:
    """Cut n positions into pieces of whole bins."""
    return list(cuts(range(n), width, max(width, limit)))


def multiplied(drawn: Picture, factor: float) -> Picture:
    """Return the picture of numbers that are so many times as large: its colours are the same."""
    low, high = (None if x is None else x * factor for x in (drawn["low"], drawn["high"]))
    scale = drawn["values"]["scale"]
    return drawn | {
        "low": low,
        "high": high,
        "values": drawn["values"] | {"scale": scale | {"high": scale["high"] * factor}},
    }
