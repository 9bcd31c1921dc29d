"""The picture of a head as it is sent: exact at once where that is quick, else sampled first and exact by and by."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._engine import cost, overview
from .._engine.base import AttentionBase, Shape
from .._engine.level_cache import CachedLevel, LevelCache, LevelKey
from .._engine.matmul import exact
from .._engine.overview import Overview
from .._engine.softmax import drained
from . import encoding

SIZE = 512  # cells along a side, at most
OFTEN = 0.25  # seconds from one band, or one word on the progress, to the next
TELLING = 0.5  # seconds of a pass before it says how long it will take
UNSIGNED = ("weights", "contribution")  # the stages that begin at 0
MASKED = ("masked", "weights", "contribution")  # the stages in which a blocked cell has no number of its own

OF = ("layer", "batch", "head", "stage", "pool")  # what a picture is of

Picture = dict[str, Any]
NOTHING: Picture = {
    "own_keys": None,
    "query_bin": 1,
    "key_bin": 1,
    "low": None,
    "high": None,
    "sampled": None,
    "values": None,
    "blocked": None,
}


class Frame(NamedTuple):
    """How the picture of a long head lies over the level that is kept: bins of the level to one of the picture."""

    down: int
    across: int
    query_bin: int
    key_bin: int


def frame(levels: LevelCache) -> Frame:
    """Bins that are whole bins of the level that is kept, so that the exact picture can be folded from it."""
    (row_level, column_level), (Q, K) = levels.finest, (levels.att.shape.Q, levels.att.shape.K)
    down, across = (ceil(ceil(n / (1 << level)) / SIZE) for n, level in ((Q, row_level), (K, column_level)))
    return Frame(down, across, down << row_level, across << column_level)


def is_long(att: AttentionBase, key: LevelKey) -> bool:
    """Whether a head's exact picture takes too long to wait for it, and longer than that of sampled rows."""
    Q, K = att.shape.Q, att.shape.K
    return Q > SIZE and cost.cells(att, key.batch, key.head, range(Q), range(K), key.stage) > cost.AT_ONCE


def exact_now(att: AttentionBase, key: LevelKey) -> Picture:
    """The exact picture, in one go."""
    batch, head, stage, pool = key
    seen = overview.overview(att, batch, head, size=SIZE, pool=pool, stage=stage)
    return encoded(seen, stage, overview.own_keys(att, batch, head, seen))


def from_level(levels: LevelCache, key: LevelKey, kept: CachedLevel) -> Picture:
    """The exact picture of a long head whose level is kept."""
    return drained(_folding(levels, key, kept))


def _folding(levels: LevelCache, key: LevelKey, kept: CachedLevel) -> Generator[None, None, Picture]:
    """The same, in slices."""
    att, lies = levels.att, frame(levels)
    with exact(att.device):
        seen = kept.fold(slice(0, kept.seen.values.shape[0]), slice(None), lies.down, lies.across)
        own = overview.finding_own_keys(att, key.batch, key.head, seen, range(att.shape.Q))
    while True:
        try:
            with exact(att.device):
                next(own)
        except StopIteration as end:
            return encoded(seen, key.stage, end.value, long=True)
        yield


def encoded(
    seen: Overview, stage: str, own: int, sampled: dict[str, int] | None = None, *, long: bool = False
) -> Picture:
    """What is sent of a picture; that of a long head is always quantised."""
    made: Picture
    if long:
        made = {
            **encoding.encode_cells(seen.values, hidden(seen, stage), signed=stage not in UNSIGNED),
            "blocked": None,
        }
    else:
        made = encoding.encode_picture(seen.values, hidden(seen, stage), signed=stage not in UNSIGNED)
    bins = {"query_bin": seen.query_bin, "key_bin": seen.key_bin}
    return {"own_keys": own, **bins, "sampled": sampled, **made, "error": None}


def labelled(made: Picture, of: Sequence[Any], shape: Shape) -> Picture:
    """Return a picture with what it is `OF`, and how many queries and keys that has: as the trait has it."""
    return {**dict(zip(OF, of, strict=True)), "queries": shape.Q, "keys": shape.K, **made}


def hidden(seen: Overview, stage: str) -> Tensor | None:
    """Which bins are drawn as blocked; None where none is."""
    return ~seen.allowed if stage in MASKED and not bool(seen.allowed.all()) else None


def first_sight(levels: LevelCache, key: LevelKey) -> Picture:
    """The picture of a long head as it is at first: of one exact query in the place of each bin."""

    def unheard(*_: Any) -> None:
        """Nobody goes on with it."""

    return Refinement(levels, key, band=unheard, tell=unheard, done=unheard, failed=unheard).picture()


class Refinement:
    """The picture of a long head: sampled first, then exact by and by, in a job whose steps are slices of the pass.

    Args:
        levels, key: what it is of.
        band: is told of rows that are now exact: `start`, `stop`, and what was encoded of them.
        tell: is told the share that is done and the seconds that are left, or None.
        done: is given the exact picture, at the end.
        failed: is given what went wrong, instead.
    """

    def __init__(
        self,
        levels: LevelCache,
        key: LevelKey,
        *,
        band: Callable[[dict[str, Any]], None],
        tell: Callable[[float, float | None], None],
        done: Callable[[Picture], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.levels, self.key, self.frame = levels, key, frame(levels)
        self._band, self._tell, self._done, self._failed = band, tell, done, failed
        self._sent = 0  # rows of the picture
        self._low: float | None = None
        self._high: float | None = None
        att, (batch, head, stage, pool) = levels.att, key
        bins = {"query_bin": self.frame.query_bin, "key_bin": self.frame.key_bin}
        self._sampled = overview.sampled(att, batch, head, **bins, stage=stage, pool=pool)
        self._sample = range((att.shape.Q - 1) % self.frame.query_bin, att.shape.Q, self.frame.query_bin)
        self._own = overview.own_keys(att, batch, head, self._sampled, self._sample)
        self.visit = levels.visit(batch, head, stage=stage, pool=pool)

    @property
    def share(self) -> float:
        """Of the cells to compute, what is finished."""
        return self.visit.share

    @property
    def ready(self) -> int:
        """How many rows of the picture are exact."""
        return self.visit.rows // self.frame.down

    def picture(self) -> Picture:
        """The picture as far as it is known: exact rows, and below one exact query in the place of each bin."""
        rows, kept, seen = self.ready, self.visit.kept, self._sampled
        if rows and kept is not None:
            with exact(self.levels.att.device):
                top = self._fold(kept, 0, rows)
            values, allowed = (
                torch.cat([whole, part[rows:]])
                for whole, part in ((top.values, seen.values), (top.allowed, seen.allowed))
            )
            seen = Overview(values, allowed, seen.query_bin, seen.key_bin)
        sampled = {"first": self._sample.start, "every": self.frame.query_bin, "exact": rows}
        return encoded(seen, self.key.stage, self._own, sampled, long=True)

    def steps(self) -> Iterator[None]:
        """All that is left to do. What is taken up again goes on where it stopped."""
        try:
            yield from self._steps()
        except Exception as error:
            self._failed(error)

    def _steps(self) -> Iterator[None]:
        begun = told = time.monotonic()
        before = self.visit.share
        for share in self.visit:
            now = time.monotonic()
            if self.visit.changed:
                raise RuntimeError("the tensors changed while the exact picture was computed: try again")
            if now - told >= OFTEN:
                told = now
                self._send_rows()
                gained = share - before
                rate = gained / (now - begun) if now - begun >= TELLING else 0
                self._tell(share, (1 - share) / rate if rate > 0 else None)
            yield
        kept = self.visit.kept or self.levels.find(self.key)
        if kept is None:
            raise RuntimeError("the exact picture was forgotten before it could be drawn: try again")
        self._done((yield from _folding(self.levels, self.key, kept)))

    def _fold(self, kept: CachedLevel, start: int, stop: int) -> Overview:
        """Rows of the picture from rows of the level."""
        down, across = self.frame.down, self.frame.across
        return kept.fold(slice(start * down, stop * down), slice(None), down, across)

    def _send_rows(self) -> None:
        """Send what has become exact since the last time."""
        kept, ready = self.visit.kept, self.ready
        if kept is None or ready <= self._sent:
            return
        with exact(self.levels.att.device):
            seen = self._fold(kept, self._sent, ready)
        stage = self.key.stage
        made = encoding.encode_cells(seen.values, hidden(seen, stage), signed=stage not in UNSIGNED)
        self._low = min((low for low in (self._low, made["low"]) if low is not None), default=None)
        self._high = max((high for high in (self._high, made["high"]) if high is not None), default=None)
        self._band({"start": self._sent, "stop": ready, **made, "low": self._low, "high": self._high})
        self._sent = ready
