"""Exact levels of the heads that were looked at, kept within a budget of bytes: coarser ones are folded from them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .call import Call
from .places import as_index
from .precision import exact
from .pyramid import POOLS, Overview, Pass, Region, as_level, pool_first, tile
from .tensors import as_choice, as_size

LARGEST = 2048  # rows and columns of a level that is kept, at most
BUDGET = 128 << 20  # bytes


class Kept(NamedTuple):
    """A whole level, exact."""

    level: int
    seen: Overview
    cells: Tensor | None  # (rows, columns) what each mean is over; None for the maximum

    @property
    def nbytes(self) -> int:
        tensors = (self.seen.values, self.seen.allowed, *(() if self.cells is None else (self.cells,)))
        return sum(x.nbytes for x in tensors)


Key = tuple[int, int, str, str]  # batch, head, stage, pool


class Levels:
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

    def __init__(self, att: Call, *, budget: int = BUDGET, largest: int = LARGEST):
        self.att, self._budget, self._largest = att, budget, as_size(largest, "largest")
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, tuple[tuple[int, ...], Kept]] = OrderedDict()

    @property
    def finest(self) -> int:
        """The finest level that is kept: 0 for at most 2,048 queries and keys."""
        longest = max(self.att.shape.Q, self.att.shape.K, 1)
        return (-(-longest // self._largest) - 1).bit_length()

    @property
    def nbytes(self) -> int:
        """How many bytes are kept."""
        with self._lock:
            return sum(kept.nbytes for _, kept in self._kept.values())

    def visit(
        self, batch: int, head: int, *, stage: str = "weights", pool: str = "max", seconds: float = 0.02
    ) -> Visit:
        """Compute the level to keep, in slices: an iterator of the share that is done; none where it is kept."""
        as_choice(pool, POOLS, "pool")
        self.att.check_stage(stage)
        batch, head = self.att.find(batch, head)
        return Visit(self, (batch, head, stage, pool), seconds)

    def tile(
        self,
        batch: int,
        head: int,
        *,
        level: int,
        row: int,
        column: int,
        size: int = 256,
        stage: str = "weights",
        pool: str = "max",
    ) -> Overview:
        """`pyramid.tile`, from the level that is kept where it can be."""
        size, level = as_size(size, "size"), as_level(self.att, level)
        as_choice(pool, POOLS, "pool")
        self.att.check_stage(stage)
        batch, head = self.att.find(batch, head)
        kept = self.find((batch, head, stage, pool))
        if kept is None or level < kept.level:
            return tile(self.att, batch, head, level=level, row=row, column=column, size=size, stage=stage, pool=pool)
        times = 2 ** (level - kept.level)
        rows, columns = (
            _part(at, -(-n // times), size, times, what)
            for at, n, what in zip((row, column), kept.seen.values.shape, ("row", "column"), strict=True)
        )
        with exact(self.att.device):
            return fold(kept, rows, columns, times, 2**level)

    def find(self, key: Key) -> Kept | None:
        """The level that is kept of a head, if the tensors have not changed."""
        with self._lock:
            versions, kept = self._kept.get(key, ((), None))
            if kept is None or versions != self.att.versions():
                return None
            self._kept.move_to_end(key)
            return kept

    def keep(self, key: Key, versions: tuple[int, ...], kept: Kept) -> None:
        """Keep a level, and forget others until the budget holds; one that alone is above it is not kept."""
        with self._lock:
            self._kept.pop(key, None)
            if kept.nbytes > self._budget:
                return
            self._kept[key] = versions, kept
            while sum(one.nbytes for _, one in self._kept.values()) > self._budget:
                self._kept.popitem(last=False)


class Visit:
    """The pass over a head whose level is to be kept; dropping it cancels."""

    def __init__(self, levels: Levels, key: Key, seconds: float):
        att, self._levels, self._key = levels.att, levels, key
        self._versions = att.versions()
        self._pass: Pass | None = None
        if levels.find(key) is None:
            (batch, head, stage, pool), width = key, 2**levels.finest
            region = Region(batch, head, range(att.shape.Q), range(att.shape.K), width, width)
            self._pass = Pass(att, region, stage, pool, seconds)

    def __iter__(self) -> Visit:
        return self

    def __next__(self) -> float:
        if self._pass is None:
            raise StopIteration
        share = next(self._pass)
        if self._pass.finished:
            kept = Kept(self._levels.finest, self._pass.result, self._pass.cells)
            self._levels.keep(self._key, self._versions, kept)
            self._pass = None
        return share

    def close(self) -> None:
        """Give up."""
        if self._pass is not None:
            self._pass.close()
            self._pass = None


def fold(kept: Kept, rows: slice, columns: slice, times: int, width: int) -> Overview:
    """Some bins of a level that is kept, times × times of them made one."""

    def folded(x: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
        return pool_first(pool_first(x, times, reduce).mT, times, reduce).mT

    values, allowed = kept.seen.values[rows, columns], kept.seen.allowed[rows, columns]
    any_allowed = folded(allowed.to(torch.uint8), torch.amax).bool()
    if kept.cells is None:
        return Overview(folded(values, torch.amax).clone(), any_allowed, width, width)
    cells = kept.cells[rows, columns]
    total, count = folded((values * cells).masked_fill(cells == 0, 0), torch.sum), folded(cells, torch.sum)
    return Overview((total / count).masked_fill(count == 0, -torch.inf), any_allowed, width, width)


def _part(at: int, bins: int, size: int, times: int, what: str) -> slice:
    """The bins of the level that is kept in tile number `at` of a level that has so many bins."""
    index = as_index(at, -(-bins // size), what, f"{what}s")
    return slice(index * size * times, (index + 1) * size * times)
