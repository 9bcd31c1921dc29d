"""The picture of a head, ready to send: exact at once if that is quick, else from sampled rows first, then refined."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._engine import cost, overview
from ..._engine.base import AttentionBase, Shape
from ..._engine.kept_levels import only_overviews
from ..._engine.level_cache import CachedLevel, LevelCache, LevelKey
from ..._engine.matmul import exact
from ..._engine.overview import Overview
from ..._engine.regions import Region
from ..._engine.softmax import run_to_end
from ..._engine.stages import MASKED, SIGNED
from ..._rules.rules import Rule
from ..._utils.failures import sentence_of
from ..._utils.indexing import Block
from ..._utils.time_left import TimeLeft
from ..codec import encoding
from . import sinks

PICTURE_SIZE = 512  # bins along a side, at most
MAX_FIRST_CELLS = 1 << 24  # the cost of the sampled rows that come first: 15 ms of two cores
LEAST_ROWS = 4  # in the first picture
OF = ("layer", "batch", "head", "stage", "pool")  # the fields that identify a picture

Picture = dict[str, Any]
EMPTY_PICTURE: Picture = {
    "own_keys": None,
    "padding": None,
    "query_bin": 1,
    "key_bin": 1,
    "low": None,
    "high": None,
    "sampled": None,
    "values": None,
    "blocked": None,
    "sink": None,
}


@dataclass(frozen=True)
class Limits:
    """How often a refinement reports, in seconds.

    report: the interval between reports of exact rows, or of progress.
    estimate: how long its predictions must agree before it reports the time left.
    slice: the time for one step, or for one block if that takes longer.
    """

    report: float = 0.25
    estimate: float = 2.5
    slice: float = 0.01


LIMITS = Limits()


class PictureBins(NamedTuple):
    """How the bins of a long head's picture map onto the kept level.

    down: rows of the level in one row of the picture.
    across: columns of the level in one column of the picture.
    query_bin: queries in one row of the picture.
    key_bin: keys in one column of the picture.
    """

    down: int
    across: int
    query_bin: int
    key_bin: int


def picture_bins(levels: LevelCache) -> PictureBins:
    """Return bins made of whole bins of the kept level, so that the exact picture can be folded from it."""
    (row_level, column_level), (Q, K) = levels.finest, (levels.att.shape.Q, levels.att.shape.K)
    down, across = (ceil(ceil(n / (1 << level)) / PICTURE_SIZE) for n, level in ((Q, row_level), (K, column_level)))
    return PictureBins(down, across, down << row_level, across << column_level)


def is_long(att: AttentionBase, key: LevelKey) -> bool:
    """Whether a head's exact picture takes too long to wait for, and longer than a sampled one."""
    Q, K = att.shape.Q, att.shape.K
    return Q > PICTURE_SIZE and cost.cells(att, key.batch, key.head, range(Q), range(K), key.stage) > cost.AT_ONCE


def exact_now(att: AttentionBase, key: LevelKey) -> Picture:
    """Compute the exact picture at once."""
    batch, head, stage, pool = key
    found = overview.overview(att, batch, head, size=PICTURE_SIZE, pool=pool, stage=stage)
    made = encoded(found, stage, overview.own_keys(att, batch, head, found))
    return made | {"sink": sinks.column(att, key, found.query_bin), "padding": padding_from(att, batch)}


def padding_from(att: AttentionBase, batch: int) -> int | None:
    """Return the first key of a sample that a padding mask blocks; None if no mask is known to be a padding mask."""
    K = att.shape.K
    parts = [part for rule in att.rules.rules for part in rule.parts_of_all() if part.by_key]
    stop = min((_real_keys(part, batch, K) for part in parts), default=K)
    return stop if stop < K else None


def _real_keys(rule: Rule, batch: int, keys: int) -> int:
    """Return how many keys a rule allows if it blocks the keys at the end; all keys for any other rule."""
    limits = rule.band_limits(batch)
    if limits is not None and limits.stop is not None:
        return limits.stop
    if not rule.tensors() or not rule.same_for_heads:
        return keys
    allowed = rule.allowed(Block(batch, 0, range(1), range(keys)))
    if isinstance(allowed, bool):
        return keys
    row = allowed.expand(1, keys)[0]
    stop = int(row.sum())
    return stop if bool(row[:stop].all()) else keys


def from_level(levels: LevelCache, key: LevelKey, level: CachedLevel) -> Picture:
    """Fold the exact picture of a long head from its level."""
    return run_to_end(_folding(levels, key, level))


def _folding(levels: LevelCache, key: LevelKey, level: CachedLevel) -> Generator[None, None, Picture]:
    """Do the same as `from_level`, in slices."""
    att, bins = levels.att, picture_bins(levels)
    with exact(att.device):
        found = level.fold(slice(0, level.overview.values.shape[0]), slice(None), bins.down, bins.across)
    steps = overview.finding_own_keys(att, key.batch, key.head, found, range(att.shape.Q))
    while True:
        try:
            with exact(att.device):
                next(steps)
        except StopIteration as end:
            made = encoded(found, key.stage, end.value, long=True)
            sink = sinks.column(att, key, found.query_bin)
            return made | {"sink": sink, "padding": padding_from(att, key.batch)}
        yield


def encoded(
    found: Overview, stage: str, own_keys: int, sampled: dict[str, int] | None = None, *, long: bool = False
) -> Picture:
    """Encode a picture.

    Args:
        found: its bins.
        stage: the stage shown.
        own_keys: the number of keys before padding.
        sampled: the queries of a sampled picture.
        long: whether the head is long, so that the picture is always quantised.
    """
    made: Picture
    blocked, signed = blocked_bins(found, stage), stage in SIGNED
    if long:
        made = {**encoding.encode_cells(found.values, blocked, signed=signed), "blocked": None}
    else:
        made = encoding.encode_picture(found.values, blocked, signed=signed)
    bins = {"query_bin": found.query_bin, "key_bin": found.key_bin}
    return {"own_keys": own_keys, **bins, "sampled": sampled, **made, "error": None}


def blocked_bins(found: Overview, stage: str) -> Tensor | None:
    """Return which bins are drawn as blocked, (rows, columns) bool; None if there are none."""
    return ~found.allowed if stage in MASKED and not bool(found.allowed.all()) else None


def labeled(made: Picture, of: Sequence[Any], shape: Shape) -> Picture:
    """Return a picture with the fields of the trait.

    Args:
        made: the picture.
        of: the values of `OF`; combined heads are identified by their name.
        shape: the shape of the attention, for the number of queries and keys.
    """
    return {**dict(zip(OF, of, strict=True)), "queries": shape.Q, "keys": shape.K, **made}


def failed(error: Exception, of: Sequence[Any], shape: Shape) -> Picture:
    """Return a message with the reason, in place of a picture that cannot be computed."""
    return labeled(EMPTY_PICTURE | {"error": sentence_of(error)}, of, shape)


def sampled_picture(levels: LevelCache, key: LevelKey) -> Picture:
    """Compute the picture of a long head from one exact query per bin."""

    def ignore(*_: Any) -> None:
        """Do nothing: this refinement is never advanced."""

    return Refinement(
        levels, key, on_sampled=ignore, on_rows=ignore, on_progress=ignore, on_done=ignore, on_error=ignore
    ).picture()


class Refinement:
    """The picture of a long head: from sampled rows first, then exact row by row, in a job of short slices.

    Args:
        levels: where the exact level is kept.
        key: the head, stage and pooling of the picture.
        on_sampled: called with a finer sampled picture, if a rougher one came first.
        on_rows: called with newly exact rows: `start`, `stop`, and their encoding.
        on_progress: called with the share done and the seconds left, None if not known.
        on_done: called with the exact picture, at the end.
        on_error: called with the error, instead.
        executor: its workers compute the exact rows; None for this process.
    """

    def __init__(
        self,
        levels: LevelCache,
        key: LevelKey,
        *,
        executor: Executor | None = None,
        on_sampled: Callable[[Picture], None],
        on_rows: Callable[[dict[str, Any]], None],
        on_progress: Callable[[float, float | None], None],
        on_done: Callable[[Picture], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self.levels, self.key, self.bins = levels, key, picture_bins(levels)
        self._on_sampled = on_sampled
        self._on_rows, self._on_progress, self._on_done, self._on_error = on_rows, on_progress, on_done, on_error
        self._sent = 0  # rows sent
        self._low: float | None = None
        self._high: float | None = None
        self._limits = LIMITS
        att, (batch, head, stage, pool) = levels.att, key
        self._query_bin = self._first_bin()  # the distance between sampled queries
        bins = {"query_bin": self._query_bin, "key_bin": self.bins.key_bin}
        self._take(overview.sampled(att, batch, head, **bins, stage=stage, pool=pool))
        self.build = levels.build(batch, head, stage=stage, pool=pool, seconds=self._limits.slice, executor=executor)

    def _first_bin(self) -> int:
        """Return the distance between the first picture's queries: one bin, or several if that takes too long."""
        att, (batch, head, stage, _), width = self.levels.att, self.key, self.bins.query_bin
        if only_overviews(att) is not None:
            return width
        queries = range((att.shape.Q - 1) % width, att.shape.Q, width)
        needed = cost.cells(att, batch, head, queries, range(att.shape.K), stage)
        return width * min(ceil(len(queries) / LEAST_ROWS), ceil(needed / MAX_FIRST_CELLS))

    def _take(self, found: Overview) -> None:
        """Draw these exact queries."""
        att, (batch, head, *_) = self.levels.att, self.key
        self._sampled = found
        self._queries = range((att.shape.Q - 1) % self._query_bin, att.shape.Q, self._query_bin)
        self._own_keys = overview.own_keys(att, batch, head, found, self._queries)

    @property
    def share(self) -> float:
        """The share of the cells that is finished."""
        return self.build.share

    @property
    def exact_rows(self) -> int:
        """How many rows of the picture are exact."""
        return self.build.rows // self.bins.down

    def picture(self) -> Picture:
        """Return the picture so far: exact rows, then one query per bin below them."""
        rows, level, found = self.exact_rows, self.build.level, self._sampled
        if rows and level is not None:
            with exact(self.levels.att.device):
                top = self._fold(level, 0, rows)
            values, allowed = (
                torch.cat([whole, part[rows:]])
                for whole, part in ((top.values, found.values), (top.allowed, found.allowed))
            )
            found = Overview(values, allowed, found.query_bin, found.key_bin)
        sampled = {"first": self._queries.start, "every": self._query_bin, "exact": rows}
        made = encoded(found, self.key.stage, self._own_keys, sampled, long=True)
        sink = sinks.column(self.levels.att, self.key, found.query_bin, sampled)
        return made | {"sink": sink, "padding": padding_from(self.levels.att, self.key.batch)}

    def steps(self) -> Iterator[None]:
        """Do all the remaining work in slices; called again, it continues where it stopped."""
        try:
            yield from self._steps()
        except Exception as error:
            self._on_error(error)

    def _steps(self) -> Iterator[None]:
        if self._query_bin > self.bins.query_bin:
            yield from self._look_closer()
        reported = time.monotonic()
        left = TimeLeft(reported, self.build.share, self._limits.estimate)
        for share in self.build:
            now = time.monotonic()
            self._check_unchanged()
            if now - reported >= self._limits.report:
                reported = now
                self._send_rows()
                self._on_progress(share, left.at(now, share))
            yield
        level = self.build.level or self.levels.find(self.key)
        if level is None:
            raise RuntimeError("the exact picture was dropped from memory before it could be drawn: try again")
        self._on_done((yield from _folding(self.levels, self.key, level)))

    def _look_closer(self) -> Iterator[None]:
        """Compute one exact query for each bin of the final picture, in slices."""
        att, (batch, head, stage, pool), (_, _, width, key_bin) = self.levels.att, self.key, self.bins
        region = Region(batch, head, range(att.shape.Q), range(att.shape.K), width, key_bin).sample(att)
        steps = overview.OverviewPass(att, region, stage, pool, self._limits.slice)
        for _ in steps:
            self._check_unchanged()
            yield
        self._query_bin = width
        self._take(steps.result)
        self._on_sampled(self.picture())

    def _check_unchanged(self) -> None:
        if self.build.changed:
            raise RuntimeError("the tensors changed while the exact picture was being computed: try again")

    def _fold(self, level: CachedLevel, start: int, stop: int) -> Overview:
        """Fold rows of the picture from rows of the level."""
        down, across = self.bins.down, self.bins.across
        return level.fold(slice(start * down, stop * down), slice(None), down, across)

    def _send_rows(self) -> None:
        """Report the rows that have become exact since the last report."""
        level, stop = self.build.level, self.exact_rows
        if level is None or stop <= self._sent:
            return
        with exact(self.levels.att.device):
            found = self._fold(level, self._sent, stop)
        stage = self.key.stage
        made = encoding.encode_cells(found.values, blocked_bins(found, stage), signed=stage in SIGNED)
        self._low = min((low for low in (self._low, made["low"]) if low is not None), default=None)
        self._high = max((high for high in (self._high, made["high"]) if high is not None), default=None)
        self._on_rows({"start": self._sent, "stop": stop, **made, "low": self._low, "high": self._high})
        self._sent = stop
