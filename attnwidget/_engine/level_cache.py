"""Exact levels of the heads that were looked at, kept within a budget of bytes: coarser ones are folded from them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator
from dataclasses import dataclass
from math import ceil
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from .._utils.indexing import as_index, cuts
from .._utils.validation import as_choice, as_size
from . import cost
from .base import AttentionBase
from .matmul import exact
from .overview import POOLS, Overview, pooled, tile
from .pooling import pool_first
from .regions import Region, as_levels
from .stages import new

LARGEST = 2048  # rows and columns of a level that is kept, at most
BUDGET = 128 << 20  # bytes
STRIPE = 2048  # queries that are finished at a time


class LevelKey(NamedTuple):
    """What a level is of."""

    batch: int
    head: int
    stage: str
    pool: str


@dataclass(frozen=True, eq=False)
class CachedLevel:
    """A whole level, exact: bins of 2^row_level × 2^column_level cells.

    seen: its values, and where any cell is allowed.
    cells: (rows, columns) int32, what each mean is over; None for the maximum.
    beside_first: (rows,) the greatest of the first column's bins but for key 0; only of weights pooled by maximum.
    """

    row_level: int
    column_level: int
    seen: Overview
    cells: Tensor | None
    beside_first: Tensor | None

    @property
    def nbytes(self) -> int:
        tensors = (self.seen.values, self.seen.allowed, self.cells, self.beside_first)
        return sum(x.nbytes for x in tensors if x is not None)

    def fold(self, rows: slice, columns: slice, down: int, across: int) -> Overview:
        """Some of its bins, down × across of them made one."""

        def folded(x: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
            return pool_first(pool_first(x, down, reduce).mT, across, reduce).mT

        query_bin, key_bin = down << self.row_level, across << self.column_level
        values, allowed = self.seen.values[rows, columns], self.seen.allowed[rows, columns]
        any_allowed = folded(allowed.to(torch.uint8), torch.amax).bool()
        if self.cells is None:
            return Overview(folded(values, torch.amax).clone(), any_allowed, query_bin, key_bin)
        cells = self.cells[rows, columns]
        total, count = folded((values * cells).masked_fill(cells == 0, 0), torch.sum), folded(cells, torch.sum)
        return Overview((total / count).masked_fill(count == 0, -torch.inf), any_allowed, query_bin, key_bin)

    def has(self, level: tuple[int, int]) -> bool:
        """Whether a level can be folded from it."""
        return level[0] >= self.row_level and level[1] >= self.column_level

    def tile(self, level: tuple[int, int], row: int, column: int, size: int) -> Overview:
        """A tile of a level that it has: see `pyramid.tile`."""
        down, across = 1 << level[0] - self.row_level, 1 << level[1] - self.column_level
        rows, columns = (
            _part(at, -(-n // times), size, times, what)
            for at, n, times, what in zip(
                (row, column), self.seen.values.shape, (down, across), ("row", "column"), strict=True
            )
        )
        return self.fold(rows, columns, down, across)


class LevelStore:
    """Levels of several attentions, within a budget of bytes together: the one least recently asked for is forgotten
    first. Safe to share between threads."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[object, LevelKey], tuple[tuple[int, ...], CachedLevel]] = OrderedDict()

    def get(self, key: tuple[object, LevelKey], versions: tuple[int, ...]) -> CachedLevel | None:
        """A level, if it is of these versions of the tensors."""
        with self._lock:
            before, kept = self._kept.get(key, ((), None))
            if kept is None or before != versions:
                return None
            self._kept.move_to_end(key)
            return kept

    def put(self, key: tuple[object, LevelKey], versions: tuple[int, ...], kept: CachedLevel) -> None:
        """Keep a level; one that alone is above the budget is not kept."""
        with self._lock:
            self._kept.pop(key, None)
            if kept.nbytes > self._budget:
                return
            self._kept[key] = versions, kept
            while sum(one.nbytes for _, one in self._kept.values()) > self._budget:
                self._kept.popitem(last=False)

    def nbytes(self, owner: object) -> int:
        """How many bytes are kept of one attention."""
        with self._lock:
            return sum(kept.nbytes for (of, _), (_, kept) in self._kept.items() if of is owner)


class LevelCache:
    """The levels of one attention. The finest level of at most 2,048 × 2,048 bins is kept of every head that was
    visited, the one least recently asked for forgotten first; coarser levels are folded from it, and finer tiles
    computed where they are looked at. What was computed before the tensors changed is not used. Safe to share between
    threads.

    >>> import torch, attnwidget
    >>> levels = Levels(attnwidget.Attention(*torch.randn(2, 5000, 8)))
    >>> for share in levels.visit(0, 0):  # in slices
    ...     pass
    >>> levels.tile(0, 0, level=4, row=0, column=0).values.shape  # folded from the level that is kept
    torch.Size([256, 256])
    """

    def __init__(
        self, att: AttentionBase, *, budget: int = BUDGET, largest: int = LARGEST, shelf: LevelStore | None = None
    ):
        self.att, self._largest = att, as_size(largest, "largest")
        self._shelf = LevelStore(budget) if shelf is None else shelf
        self._mark = object()  # whose levels they are, on a shelf that others use too

    @property
    def finest(self) -> tuple[int, int]:
        """The level of rows and that of columns that is kept: 0 for at most 2,048 queries, or keys."""
        rows, columns = (
            (-(-max(n, 1) // self._largest) - 1).bit_length() for n in (self.att.shape.Q, self.att.shape.K)
        )
        return rows, columns

    @property
    def nbytes(self) -> int:
        """How many bytes are kept."""
        return self._shelf.nbytes(self._mark)

    def visit(
        self, batch: int, head: int, *, stage: str = "weights", pool: str = "max", seconds: float = 0.02
    ) -> LevelBuild:
        """Compute the level to keep, in slices: an iterator of the share that is done; none where it is kept."""
        as_choice(pool, POOLS, "pool")
        self.att.check_stage(stage)
        return LevelBuild(self, LevelKey(*self.att.find(batch, head), stage, pool), seconds)

    def tile(
        self,
        batch: int,
        head: int,
        *,
        level: int | tuple[int, int],
        row: int,
        column: int,
        size: int = 256,
        stage: str = "weights",
        pool: str = "max",
    ) -> Overview:
        """`pyramid.tile`, from the level that is kept where it can be."""
        size, levels = as_size(size, "size"), as_levels(self.att, level)
        as_choice(pool, POOLS, "pool")
        self.att.check_stage(stage)
        batch, head = self.att.find(batch, head)
        kept = self.find(LevelKey(batch, head, stage, pool))
        if kept is None or not kept.has(levels):
            return tile(self.att, batch, head, level=levels, row=row, column=column, size=size, stage=stage, pool=pool)
        with exact(self.att.device):
            return kept.tile(levels, row, column, size)

    def find(self, key: LevelKey) -> CachedLevel | None:
        """The level that is kept of a head, if the tensors have not changed."""
        return self._shelf.get((self._mark, key), self.att.versions())

    def keep(self, key: LevelKey, versions: tuple[int, ...], kept: CachedLevel) -> None:
        """Keep a level, computed when the tensors were of some version."""
        self._shelf.put((self._mark, key), versions, kept)


class LevelBuild:
    """The pass over a head whose level is to be kept, row by row from the top; dropping it cancels, and log-normalizers
    that were found stay known. After an error or an interrupt it goes on where the last whole stripe ended.

    kept: the level, of which the first `rows` rows are exact; None where it was kept before.
    share: of the cells that are computed at all, what is finished.
    """

    def __init__(self, levels: LevelCache, key: LevelKey, seconds: float):
        self.att, self.key, self._levels, self._seconds = levels.att, key, levels, seconds
        self._versions = self.att.versions()
        self.rows, self.share = 0, 0.0
        self.kept: CachedLevel | None = None
        self._steps: Generator[float, None, None] | None = None
        if levels.find(key) is None:
            self.kept = self._empty()
            self._steps = self._from(0)

    @property
    def changed(self) -> bool:
        """Whether the tensors have changed on the way, so that what was computed belongs to none."""
        return self._versions != self.att.versions()

    @property
    def left(self) -> float:
        """How many cells are still to be computed."""
        if self._steps is None:
            return 0.0
        everything = range(self.att.shape.Q), range(self.att.shape.K)
        return (1 - self.share) * cost.cells(self.att, self.key.batch, self.key.head, *everything, self.key.stage)

    @property
    def queries(self) -> int:
        """How many queries are finished."""
        return 0 if self.kept is None else min(self.rows << self.kept.row_level, self.att.shape.Q)

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
                    if perf_counter() >= until:
                        self._catch_up()
                        return self.share
        except BaseException:
            self._steps = self._from(self.rows)
            raise
        self.share, self._steps = 1.0, None
        if self.kept is not None:
            self._levels.keep(self.key, self._versions, self.kept)
        return self.share

    def close(self) -> None:
        """Give up."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None

    def _empty(self) -> CachedLevel:
        (row_level, column_level), (Q, K) = self._levels.finest, (self.att.shape.Q, self.att.shape.K)
        rows, columns = ceil(Q / (1 << row_level)), ceil(K / (1 << column_level))
        allowed = torch.zeros(rows, columns, dtype=torch.bool, device=self.att.device)
        seen = Overview(new(self.att, rows, columns), allowed, 1 << row_level, 1 << column_level)
        counted, weighed = self.key.pool == "mean", self.key.stage == "weights" and self.key.pool == "max"
        cells = torch.zeros(rows, columns, dtype=torch.int32, device=self.att.device) if counted else None
        return CachedLevel(row_level, column_level, seen, cells, new(self.att, rows) if weighed else None)

    def _from(self, row: int) -> Generator[float, None, None]:
        """Fill the level from a row on; yields after each block which share is done."""
        att, (batch, head, stage, pool) = self.att, self.key
        assert self.kept is not None
        width, key_bin, keys = self.kept.seen.query_bin, self.kept.seen.key_bin, range(att.shape.K)
        todo = range(row * width, att.shape.Q)
        left = max(1, cost.cells(att, batch, head, todo, keys, stage))
        scale = (1 - self.share) / left
        for queries in cuts(todo, width, max(STRIPE, width)):
            before, here = self.share, scale * cost.cells(att, batch, head, queries, keys, stage)
            steps = pooled(att, Region(batch, head, queries, keys, width, key_bin), stage, pool)
            while True:
                try:
                    _, part = next(steps)
                except StopIteration as end:
                    found = end.value
                    break
                yield before + here * part
            at = slice(queries.start // width, ceil(queries.stop / width))
            self.kept.seen.values[at], self.kept.seen.allowed[at] = found.values, found.allowed
            if self.kept.cells is not None:
                self.kept.cells[at] = found.cells
            if self.kept.beside_first is not None:
                self.kept.beside_first[at] = yield from self._beside_first(queries, width, key_bin, before + here)
            self.rows = at.stop
            yield before + here

    def _beside_first(self, queries: range, width: int, key_bin: int, share: float) -> Generator[float, None, Tensor]:
        """The greatest weights of the first bins but for key 0, (rows,)."""
        keys = range(1, min(key_bin, self.att.shape.K))
        if not keys:
            return new(self.att, ceil(len(queries) / width)).fill_(-torch.inf)
        steps = pooled(self.att, Region(self.key.batch, self.key.head, queries, keys, width, 1), "weights", "max")
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: Tensor = end.value.values  # (rows, keys)
                return found.amax(1)
            yield share

    def _catch_up(self) -> None:
        """Wait for a device that only queues what it is told, so that a slice is as long as it seems."""
        if self.kept is not None and self.att.device.type != "cpu":
            self.kept.seen.values[:1, :1].cpu()


def _part(at: int, bins: int, size: int, times: int, what: str) -> slice:
    """The bins of the level that is kept in tile number `at` of a level that has so many bins."""
    index = as_index(at, -(-bins // size), what, f"{what}s")
    return slice(index * size * times, (index + 1) * size * times)
