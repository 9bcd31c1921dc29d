"""Parts of a head in bins: where a tile lies, which levels there are, in which bins some places fall."""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

from .._utils.indexing import as_index
from .._utils.validation import as_size
from .base import AttentionBase


class Region(NamedTuple):
    """Some queries × some keys of a head, in bins of query_bin × key_bin cells, counted from the first of each."""

    batch: int
    head: int
    queries: range
    keys: range  # without gaps
    query_bin: int
    key_bin: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return ceil(len(self.queries) / self.query_bin), ceil(len(self.keys) / self.key_bin)

    @property
    def every(self) -> int:
        """How many queries it is from one row to the next."""
        return self.query_bin * self.queries.step

    def sample(self, att: AttentionBase) -> Region:
        """One query in the place of each bin: the last of the head, and those that lie whole bins before it, so that
        all tiles of a level, and the picture in these bins, show the same queries."""
        first = self.queries.start + (att.shape.Q - 1 - self.queries.start) % self.query_bin
        return self._replace(queries=range(first, self.queries.stop, self.query_bin), query_bin=1)

    def columns(self, keys: range) -> slice:
        """The bins in which some of the keys lie."""
        first = self.keys.start
        return bins(range(keys.start - first, keys.stop - first), self.key_bin)


def tile_region(
    att: AttentionBase, batch: int, head: int, *, level: int | tuple[int, int], row: int, column: int, size: int = 256
) -> Region:
    """Where a tile lies, for a `OverviewPass` over it in slices, or over a sample of it: see `tile`."""
    size, levels = as_size(size, "size"), as_levels(att, level)
    batch, head = att.find(batch, head)
    widths = [2**each for each in levels]
    queries, keys = (
        _span(at, size * width, n, what)
        for at, width, n, what in zip((row, column), widths, (att.shape.Q, att.shape.K), ("row", "column"), strict=True)
    )
    return Region(batch, head, queries, keys, *widths)


def _span(at: Any, step: int, n: int, what: str) -> range:
    """The positions of tile number `at`, of which each has `step`."""
    index = as_index(at, ceil(n / step), what, f"{what}s")
    return range(index * step, min((index + 1) * step, n))


def as_levels(att: AttentionBase, level: Any) -> tuple[int, int]:
    """The level of the rows and that of the columns; one number is both."""
    if not isinstance(level, tuple):
        return (as_level(att, level),) * 2
    if len(level) != 2:
        raise ValueError(f"level is {level!r:.60}: give an integer, or one for rows and one for columns")
    return as_level(att, level[0]), as_level(att, level[1])


def as_level(att: AttentionBase, level: Any) -> int:
    """A level of a head from 0, cell by cell, to the one where all of it is a single bin."""
    return as_index(level, top_level(att) + 1, "level", "levels")


def top_level(att: AttentionBase) -> int:
    """The level where all of a head is a single bin."""
    return (max(att.shape.Q, att.shape.K, 1) - 1).bit_length()


def bins(piece: range, width: int) -> slice:
    """Which bins a piece lies in."""
    return slice(piece.start // width, ceil(piece.stop / width))
