"""The small pictures of the stages view: every stage of a head, and the output. Those that were drawn last are used
again where another rule, such as a scale that is dragged, leaves their numbers as they are but for a factor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .._engine import overview
from .._engine.level_cache import LevelKey
from .._engine.matmul import exact, exp_
from .._engine.pooling import pool_first, pool_last
from .._engine.softmax import is_finite, weigh
from .._engine.stages import values
from .._utils.indexing import cuts
from ..attention import Attention
from . import encoding, picture

SIZE = 128  # rows and columns of a small picture, at most
SHOWN = ("scores", "scaled", "capped", "masked", "weights")  # of the stages that there are
MASKED = ("masked", "weights")  # the stages in which a blocked cell has no number of its own
EXACT_CELLS = 64 * 64
OUTPUT_CELLS = 1 << 22  # queries × value size, beyond which the output is not drawn
SCALES = ("scale", "temperature")  # what multiplies every score alike
KEPT = 1 << 20  # cells of a head whose scores are kept while its scale is dragged
ALONE = 1 << 14  # cells that torch goes through on one thread: another takes long to wake while a browser is drawing

Picture = dict[str, Any]


class StagePictures:
    """The stages of a head, and what of the last ones can be used again."""

    def __init__(self) -> None:
        self._scores: dict[tuple[Any, ...], Picture] = {}
        self._unscaled: dict[tuple[Any, ...], UnscaledStages] = {}

    def draw(self, att: Attention, batch: int, head: int, of: tuple[Any, ...], rules: Mapping[str, Any]) -> Picture:
        """All stages of a head, small, with their ranges, and the output.

        Args:
            of: what tells these tensors from others.
            rules: the other rules that the attention is under.
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
    """All stages of a head and the output; `scores` if their picture is there already."""
    there = [stage for stage in SHOWN if stage in att.stages]
    known = {} if scores is None else {"scores": scores}
    output = None
    if att.v is not None and att.shape.Q * (att.shape.Dv or 0) <= OUTPUT_CELLS:
        output = _output(att.output(batch, head))
    return {"pictures": [known.get(stage) or _stage(att, batch, head, stage) for stage in there], "output": output}


def _stage(att: Attention, batch: int, head: int, stage: str) -> Picture:
    """A stage, exact; of a long head from one exact row in each bin, `every` queries apart."""
    every = 1
    if picture.is_long(att, LevelKey(batch, head, stage, "max")):
        seen = overview.sampled(att, batch, head, rows=SIZE, columns=SIZE, stage=stage)
        every = seen.query_bin
    else:
        seen = overview.overview(att, batch, head, size=SIZE, stage=stage)
    blocked = ~seen.allowed if stage in MASKED and not bool(seen.allowed.all()) else None
    encoded = _encoded(seen.values, blocked, signed=stage != "weights")
    return {"stage": stage, "every": every, "query_bin": seen.query_bin, "key_bin": seen.key_bin, **encoded}


def _encoded(x: Tensor, blocked: Tensor | None, *, signed: bool) -> Picture:
    """Exact while it is small enough to tell cells apart; else a byte a cell, for its colour: a pair has exact ones."""
    if x.numel() <= EXACT_CELLS:
        return encoding.encode_picture(x, blocked, signed=signed)
    return {**encoding.encode_cells(x, blocked, signed=signed), "blocked": None}


def _output(output: Tensor) -> Picture:
    """weights · v, (Q, Dv), the number of largest size in each bin."""
    seen, query_bin, value_bin = pooled(output)
    rows, columns = output.shape
    encoded = _encoded(seen, None, signed=True)
    return {"query_bin": query_bin, "value_bin": value_bin, "rows": rows, "columns": columns, **encoded}


def pooled(x: Tensor) -> tuple[Tensor, int, int]:
    """At most 128 × 128 of the numbers, of each bin that of largest size with its sign; rows and columns of a bin."""
    down, across = (max(1, -(-n // SIZE)) for n in x.shape)
    return _largest(_largest(x, down).mT, across).mT, down, across


def _largest(x: Tensor, width: int) -> Tensor:
    """Of each `width` rows the number of largest size, with its sign: (n, m) -> (⌈n / width⌉, m)."""
    if width == 1:
        return x
    high = pool_first(x, width, torch.amax)
    low = pool_first(x, width, torch.amin)
    return torch.where(high.abs() >= low.abs(), high, low)


def scales(att: Attention, batch: int, head: int, made: Picture) -> bool:
    """Whether another scale only multiplies what is drawn up to the softmax, and colours are all that is sent of it."""
    plain = att.softcap is None and not att.rules.biases and att.q is not None and att.scale > 0
    small = att.shape.Q * att.shape.K <= KEPT and is_finite(att, batch, head, range(att.shape.Q))
    return plain and small and all(one["values"]["dtype"] == "uint8" for one in made["pictures"])


class UnscaledStages:
    """The stages of a head as they were drawn at one scale, to be drawn at others: without a product of q and k, and
    without looking for colours again where the range alone is another."""

    def __init__(self, att: Attention, batch: int, head: int, made: Picture):
        self._att, self._batch, self._head, self._made = att, batch, head, made

    def draw(self, scale: float) -> Picture:
        """As `stages` of the same attention at another scale."""
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
                v = values(self._att, self._batch, self._head, range(self._att.shape.K))
                output = _output(weigh(weights.mT, v))
        return {"pictures": pictures, "output": output}

    @cached_property
    def _below(self) -> Tensor:
        """How far the masked scores are below the greatest of their row, at a scale of 1: (Q, K); −∞ where blocked."""
        masked = self._att.block("masked", batch=self._batch, head=self._head)
        greatest = masked.amax(1, keepdim=True)
        return masked.sub_(greatest.masked_fill(greatest == -torch.inf, 0)).div_(self._att.scale)

    def _weights(self, scale: float) -> Tensor:
        """The weights, (Q, K), a few rows at a time."""
        found = torch.empty_like(self._below)
        for rows in cuts(range(len(found)), 1, max(1, ALONE // max(1, found.shape[1]))):
            at = slice(rows.start, rows.stop)
            e = exp_(torch.mul(self._below[at], scale, out=found[at]))
            total = e.sum(1, keepdim=True)
            e /= total.masked_fill_(total == 0, 1)
        return found

    @cached_property
    def _blocked(self) -> Tensor | None:
        """Which bins of the picture of weights have no allowed cell; None if all have."""
        weights = self._made["pictures"][-1]
        blocked = _greatest(self._below, weights["query_bin"], weights["key_bin"]) == -torch.inf
        return blocked if bool(blocked.any()) else None

    def _encoded(self, weights: Tensor, query_bin: int, key_bin: int) -> Picture:
        return _encoded(_greatest(weights, query_bin, key_bin), self._blocked, signed=False)


def _greatest(x: Tensor, query_bin: int, key_bin: int) -> Tensor:
    """The greatest number of each bin: a few rows at a time."""
    limit = max(1, ALONE // max(1, x.shape[1]))
    rows = [pool_first(x[p.start : p.stop], query_bin, torch.amax) for p in _bins(len(x), query_bin, limit)]
    return pool_last(torch.cat(rows), key_bin, torch.amax)


def _bins(n: int, width: int, limit: int) -> list[range]:
    """Pieces of whole bins."""
    return list(cuts(range(n), width, max(width, limit)))


def multiplied(drawn: Picture, factor: float) -> Picture:
    """A picture in colours of numbers that are so many times as large: the colours are the same."""
    low, high = (None if x is None else x * factor for x in (drawn["low"], drawn["high"]))
    scale = drawn["values"]["scale"]
    return drawn | {
        "low": low,
        "high": high,
        "values": drawn["values"] | {"scale": scale | {"high": scale["high"] * factor}},
    }
