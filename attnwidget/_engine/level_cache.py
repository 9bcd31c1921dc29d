"""A cache of exact levels of heads, within a memory budget; coarser levels are pooled from cached ones."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from math import ceil
from time import perf_counter
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from .._parallel.task import Subject, Task, named
from .._parallel.work import Work
from .._utils.indexing import cuts
from .._utils.validation import as_choice, as_size
from . import cost
from .base import AttentionBase
from .logsumexp import LogSumExp
from .matmul import exact
from .overview import POOLS, Overview, PooledRegion, pooled, tile
from .parts import needed_for
from .pooling import larger_by_size, pool_first
from .regions import Region, TileAddress, as_levels
from .softmax import passing, run_to_end
from .sources import Stage
from .stages import BY_SIZE, NORMALIZED, new

T = TypeVar("T")

LARGEST_LEVEL = 2048  # the most rows and columns of a cached level
MAX_LEVEL_BYTES = 128 << 20  # of all cached levels together
QUERIES_PER_STEP = 2048  # to finish at a time
ROWS_PER_STEP = 512  # the most rows of bins at a time: they are in memory twice until they are copied


class LevelKey(NamedTuple):
    """The identity of a level: a stage of a head, and how it is pooled."""

    batch: int
    head: int
    stage: Stage
    pool: str

    @property
    def has_pairs(self) -> bool:
        """Whether the level has strongest pairs: weights and later stages, pooled by maximum."""
        return self.stage in NORMALIZED and self.pool == "max"


@dataclass(frozen=True, eq=False)
class CachedLevel:
    """A whole exact level of a head, in bins of 2^row_level × 2^column_level cells.

    overview: its values, and which bins have an allowed cell.
    cells: (rows, columns) int32, the number of cells in each mean; None for the maximum.
    beside_first: (rows,) the first column of bins without key 0; only for levels with `has_pairs`.
    by_size: whether "max" means the largest absolute value.
    """

    row_level: int
    column_level: int
    overview: Overview
    cells: Tensor | None
    beside_first: Tensor | None
    by_size: bool = False

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        tensors = (self.overview.values, self.overview.allowed, self.cells, self.beside_first)
        return sum(x.nbytes for x in tensors if x is not None)

    def fold(self, rows: slice, columns: slice, down: int, across: int) -> Overview:
        """Pool some of its bins further.

        Args:
            rows: which rows of this level.
            columns: which columns of this level.
            down: how many rows to pool into one.
            across: how many columns to pool into one.

        Returns:
            (⌈rows / down⌉, ⌈columns / across⌉).
        """

        def folded(x: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
            return pool_first(pool_first(x, down, reduce).mT, across, reduce).mT

        query_bin, key_bin = down << self.row_level, across << self.column_level
        values, allowed = self.overview.values[rows, columns], self.overview.allowed[rows, columns]
        any_allowed = folded(allowed.to(torch.uint8), torch.amax).bool()
        if self.cells is None:
            largest = folded(values, torch.amax).clone()
            largest = larger_by_size(largest, folded(values, torch.amin)) if self.by_size else largest
            return Overview(largest, any_allowed, query_bin, key_bin)
        cells = self.cells[rows, columns]
        total, count = folded((values * cells).masked_fill(cells == 0, 0), torch.sum), folded(cells, torch.sum)
        return Overview((total / count).masked_fill(count == 0, -torch.inf), any_allowed, query_bin, key_bin)

    def has(self, level: tuple[int, int]) -> bool:
        """Return whether a level, (of rows, of columns), can be folded from this one."""
        return level[0] >= self.row_level and level[1] >= self.column_level

    def tile(self, level: tuple[int, int], at: TileAddress) -> Overview:
        """Fold a tile; `level` is the level of its address, (of rows, of columns)."""
        down, across = 1 << level[0] - self.row_level, 1 << level[1] - self.column_level
        rows, columns = at.ranges(self.overview.shape[0], self.overview.shape[1], (down, across))
        return self.fold(slice(rows.start, rows.stop), slice(columns.start, columns.stop), down, across)


class LevelStore:
    """Levels of several attentions within one memory budget; least recently used levels go first. Thread-safe."""

    def __init__(self, budget: int = MAX_LEVEL_BYTES) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._levels: OrderedDict[tuple[object, LevelKey], tuple[tuple[int, ...], CachedLevel]] = OrderedDict()

    def get(self, key: tuple[object, LevelKey], versions: tuple[int, ...]) -> CachedLevel | None:
        """Return a level, if it was computed from these versions of the tensors."""
        with self._lock:
            before, level = self._levels.get(key, ((), None))
            if level is None or before != versions:
                return None
            self._levels.move_to_end(key)
            return level

    def put(self, key: tuple[object, LevelKey], versions: tuple[int, ...], level: CachedLevel) -> None:
        """Cache a level, unless it alone is above the budget."""
        with self._lock:
            self._levels.pop(key, None)
            if level.nbytes > self._budget:
                return
            self._levels[key] = versions, level
            while sum(one.nbytes for _, one in self._levels.values()) > self._budget:
                self._levels.popitem(last=False)

    def nbytes(self, owner: object) -> int:
        """Return the size of all levels of one attention, in bytes."""
        with self._lock:
            return sum(level.nbytes for (of, _), (_, level) in self._levels.items() if of is owner)


class LevelCache:
    """The levels of one attention.

    For each head that was built, it caches the finest level with at most 2,048 × 2,048 bins. Coarser levels are folded
    from it; finer tiles are computed one by one. Levels from before a change of the tensors are not used. Thread-safe.

    Args:
        att: the attention.
        budget: bytes, for its own store.
        largest: the most rows and columns of a cached level.
        store: a store shared with other attentions; None for its own.

    >>> import torch, attnwidget
    >>> levels = LevelCache(attnwidget.Attention(*torch.randn(2, 5000, 8)))
    >>> for share in levels.build(0, 0):  # in slices
    ...     pass
    >>> levels.tile(0, 0, TileAddress(level=4, row=0, column=0)).values.shape  # folded from the cached level
    torch.Size([256, 256])
    """

    def __init__(
        self,
        att: AttentionBase,
        *,
        budget: int = MAX_LEVEL_BYTES,
        largest: int = LARGEST_LEVEL,
        store: LevelStore | None = None,
    ):
        self.att, self._largest = att, as_size(largest, "largest")
        self._store = LevelStore(budget) if store is None else store
        self._owner = object()  # marks its levels in a shared store

    @property
    def finest(self) -> tuple[int, int]:
        """The cached level, (of rows, of columns): 0 for at most 2,048 queries or keys."""
        rows, columns = (
            (-(-max(n, 1) // self._largest) - 1).bit_length() for n in (self.att.shape.Q, self.att.shape.K)
        )
        return rows, columns

    @property
    def nbytes(self) -> int:
        """The size of all its levels, in bytes."""
        return self._store.nbytes(self._owner)

    def build(
        self,
        batch: int,
        head: int,
        *,
        stage: Stage = "weights",
        pool: str = "max",
        seconds: float = 0.02,
        executor: Executor | None = None,
    ) -> LevelBuild:
        """Compute the level to cache, in slices: an iterator of the share done, empty if it is cached."""
        as_choice(pool, POOLS, "pool")
        self.att.check_stage(stage)
        return LevelBuild(self, LevelKey(*self.att.find(batch, head), stage, pool), seconds, executor)

    def tile(self, batch: int, head: int, at: TileAddress, *, stage: Stage = "weights", pool: str = "max") -> Overview:
        """Return a tile like `overview.tile`, folded from the cached level if possible."""
        levels = as_levels(self.att, at.level)
        as_choice(pool, POOLS, "pool")
        self.att.check_stage(stage)
        batch, head = self.att.find(batch, head)
        kept = self.find(LevelKey(batch, head, stage, pool))
        if kept is None or not kept.has(levels):
            return tile(self.att, batch, head, at, stage=stage, pool=pool)
        with exact(self.att.device):
            return kept.tile(levels, at)

    def find(self, key: LevelKey) -> CachedLevel | None:
        """Return the cached level of a head, if the tensors have not changed."""
        return self._store.get((self._owner, key), self.att.versions())

    def keep(self, key: LevelKey, versions: tuple[int, ...], level: CachedLevel) -> None:
        """Cache a level that was computed from these versions of the tensors."""
        self._store.put((self._owner, key), versions, level)


class LevelRows(NamedTuple):
    """Some rows of a level.

    pooled: values and allowed bins.
    beside_first: as in `CachedLevel`, for these rows.
    normalizers: the log-normalizers of their queries, if there are any.
    """

    pooled: PooledRegion
    beside_first: Tensor | None
    normalizers: LogSumExp | None


def level_rows(
    att: AttentionBase, key: LevelKey, queries: range, bins: tuple[int, int]
) -> Generator[float, None, LevelRows]:
    """Compute some rows of a level.

    Args:
        att: the attention.
        key: which level.
        queries: in whole bins.
        bins: queries and keys in a bin.

    Yields:
        After each block, the share done.
    """
    (batch, head, stage, pool), (width, key_bin) = key, bins
    steps = pooled(att, Region(batch, head, queries, range(att.shape.K), width, key_bin), stage, pool)
    while True:
        try:
            _, share = next(steps)
        except StopIteration as end:
            found: PooledRegion = end.value
            break
        yield share
    beside = (yield from _beside_first(att, key, queries, bins)) if key.has_pairs else None
    return LevelRows(found, beside, None)


def computed_rows(att: AttentionBase, key: LevelKey, queries: range, bins: tuple[int, int]) -> LevelRows:
    """Compute some rows of a level in a worker."""
    att = copy.copy(att)
    with exact(att.device):
        found = run_to_end(level_rows(att, key, queries, bins))
    return found._replace(normalizers=att.known_rows(key.batch, key.head, queries))


def _beside_first(
    att: AttentionBase, key: LevelKey, queries: range, bins: tuple[int, int]
) -> Generator[float, None, Tensor]:
    """Return the first column of bins without key 0, (rows,); yields 1."""
    width, key_bin = bins
    keys = range(1, min(key_bin, att.shape.K))
    if not keys:
        return new(att, ceil(len(queries) / width)).fill_(-torch.inf)
    steps = pooled(att, Region(key.batch, key.head, queries, keys, width, 1), key.stage, "max")
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Tensor = end.value.values  # (rows, keys)
            most = found.amax(1)
            return larger_by_size(most, found.amin(1)) if key.stage in BY_SIZE else most
        yield 1.0


def _shares(steps: Generator[float, None, T], before: float, here: float) -> Generator[float, None, T]:
    """Run steps that yield their own share, and yield `before` + `here` · share instead."""
    return passing(steps, lambda part: before + here * part)


class LevelBuild:
    """Computes the level of a head to cache, row by row from the top: an iterator of the share done.

    Drop it to cancel; log-normalizers found so far stay cached. After an error or interrupt it resumes after the last
    finished step.

    Args:
        levels: the cache for the level.
        key: which level.
        seconds: the length of a slice; at least one block is computed.
        executor: whose workers compute it; None for this process.

    Attributes:
        workers: how many workers compute it now; None for this process.
        wait: seconds that a slice waits for a worker's result; 0 on an event loop, which must not block.
        level: its first `rows` rows are exact; None if it was already cached.
        rows: how many rows of the level are exact.
        share: the finished share of the cells to compute.
    """

    def __init__(self, levels: LevelCache, key: LevelKey, seconds: float, executor: Executor | None = None):
        self.att, self.key, self._levels, self._seconds = levels.att, key, levels, seconds
        self._versions, self._executor = self.att.versions(), executor
        row_level, column_level = levels.finest
        self._bins = 1 << row_level, 1 << column_level
        self._beforehand: dict[int, int] = {}  # finished steps after a gap: first query to end row
        self.rows, self.share = 0, 0.0
        self.workers: int | None = None
        self.wait = 0.0
        self.level: CachedLevel | None = None
        self._steps: Generator[float, None, None] | None = None
        if levels.find(key) is None:
            with exact(self.att.device):
                self.level = self._empty()
            self._steps = self._from(0)

    @property
    def changed(self) -> bool:
        """Whether the tensors have changed meanwhile, so that the level is invalid."""
        return self._versions != self.att.versions()

    @property
    def cells_left(self) -> float:
        """The number of cells still to compute."""
        if self._steps is None:
            return 0.0
        everything = range(self.att.shape.Q), range(self.att.shape.K)
        return (1 - self.share) * cost.cells(self.att, self.key.batch, self.key.head, *everything, self.key.stage)

    @property
    def finished_queries(self) -> int:
        """The number of finished queries."""
        return 0 if self.level is None else min(self.rows << self.level.row_level, self.att.shape.Q)

    def __iter__(self) -> LevelBuild:
        return self

    def __next__(self) -> float:
        if self._steps is None:
            raise StopIteration
        until = perf_counter() + self._seconds
        try:
            with exact(self.att.device):
                for share in self._steps:
                    self.share = share
                    if perf_counter() >= until or self.workers is not None:
                        self._catch_up()
                        return self.share
        except BaseException:
            self._steps = self._from(self.rows)
            raise
        self.share, self._steps = 1.0, None
        if self.level is not None:
            self._levels.keep(self.key, self._versions, self.level)
        return self.share

    def give_to(self, executor: Executor | None) -> None:
        """Let the workers of an executor compute the rest; None for this process."""
        if executor is self._executor:
            return
        self._executor = executor
        if self._steps is not None:
            self._steps.close()
            self._steps = self._from(self.rows)

    def close(self) -> None:
        """Cancel, and drop the unfinished level."""
        if self._steps is not None:
            self._steps.close()
            self._steps = self.level = None

    def _empty(self) -> CachedLevel:
        (row_level, column_level), (Q, K) = self._levels.finest, (self.att.shape.Q, self.att.shape.K)
        rows, columns = ceil(Q / (1 << row_level)), ceil(K / (1 << column_level))
        allowed = torch.zeros(rows, columns, dtype=torch.bool, device=self.att.device)
        overview = Overview(new(self.att, rows, columns), allowed, 1 << row_level, 1 << column_level)
        is_mean = self.key.pool == "mean"
        cells = torch.zeros(rows, columns, dtype=torch.int32, device=self.att.device) if is_mean else None
        beside_first, by_size = new(self.att, rows) if self.key.has_pairs else None, self.key.stage in BY_SIZE
        return CachedLevel(row_level, column_level, overview, cells, beside_first, by_size)

    def _from(self, row: int) -> Generator[float, None, None]:
        """Fill the level from a row on; yields the share done after each block."""
        if self._executor is not None:
            yield from self._by_workers(self._executor, row)
            return
        att, (batch, head, stage, _) = self.att, self.key
        remaining = range(row * self._width, att.shape.Q)
        steps, scale = self._steps_of(remaining), self._scale(remaining)
        for queries in steps:
            before = self.share
            here = scale * cost.cells(att, batch, head, queries, range(att.shape.K), stage)
            if queries.start not in self._beforehand:
                found = yield from _shares(level_rows(att, self.key, queries, self._bins), before, here)
                self._put(queries, found)
            self._count_rows()
            yield before + here

    def _by_workers(self, executor: Executor, row: int) -> Generator[float, None, None]:
        """Fill the level from a row on with the results of workers; yields the share done after each poll."""
        att, (batch, head, stage, _) = self.att, self.key
        subject = Subject(needed_for(att, stage), "this head", att, self._versions)
        everything = range(row * self._width, att.shape.Q)
        remaining = [queries for queries in self._steps_of(everything) if queries.start not in self._beforehand]
        before, left, tasks = self.share, 1 - self.share, []
        for queries in remaining:
            cells = cost.cells(att, batch, head, queries, range(att.shape.K), stage)
            where = named(None, batch, head, queries)
            tasks.append(Task(computed_rows, subject, (self.key, queries, self._bins), where, max(cells, 1)))
        work = Work(tasks, executor)
        try:
            while work.left:
                for number, found in work.step(self.wait):
                    self._put(remaining[number], found)
                self._count_rows()
                self.workers = work.workers
                yield before + left * work.share
        finally:
            self.workers = None
            work.close()

    @property
    def _width(self) -> int:
        return self._bins[0]

    def _steps_of(self, queries: range) -> Iterator[range]:
        """Yield the queries of each step, the same for this process and for workers."""
        most = min(QUERIES_PER_STEP, ROWS_PER_STEP * self._width)
        return cuts(queries, self._width, max(most, self._width))

    def _scale(self, remaining: range) -> float:
        """Return the share of the level that one cell of the rest is worth."""
        batch, head, stage, _ = self.key
        return (1 - self.share) / max(1, cost.cells(self.att, batch, head, remaining, range(self.att.shape.K), stage))

    def _put(self, queries: range, found: LevelRows) -> None:
        """Copy finished rows into the level, in any order."""
        assert self.level is not None
        at, device = slice(queries.start // self._width, ceil(queries.stop / self._width)), self.att.device
        with exact(device):
            self.level.overview.values[at] = found.pooled.values.to(device)
            self.level.overview.allowed[at] = found.pooled.allowed.to(device)
            if self.level.cells is not None and found.pooled.cells is not None:
                self.level.cells[at] = found.pooled.cells.to(device)
            if self.level.beside_first is not None and found.beside_first is not None:
                self.level.beside_first[at] = found.beside_first.to(device)
        if found.normalizers is not None:
            numbers = LogSumExp(*(x.to(device) for x in found.normalizers))
            self.att.remember_rows(self.key.batch, self.key.head, queries, numbers, self._versions)
        self._beforehand[queries.start] = at.stop

    def _count_rows(self) -> None:
        """Count the finished rows from the top, up to the first gap."""
        while self.rows * self._width in self._beforehand:
            self.rows = self._beforehand.pop(self.rows * self._width)

    def _catch_up(self) -> None:
        """Wait for an asynchronous device, so that a slice takes the time it should."""
        if self.level is not None and self.att.device.type != "cpu":
            self.level.overview.values[:1, :1].cpu()
