"""Regions of a head in uniform bins: where a tile lies, which levels there are, which bins some positions fall into."""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

from .._utils.indexing import as_index
from .._utils.validation import as_size
from .base import AttentionBase


class Region(NamedTuple):
    """Some queries × some keys of a head, in bins of query_bin × key_bin cells, counted from the first of each.

    keys: without gaps.
    """

    batch: int
    head: int
    queries: range
    keys: range
    query_bin: int
    key_bin: int

    @property
    def shape(self) -> tuple[int, int]:
        """How many bins there are: rows and columns."""
        return ceil(len(self.queries) / self.query_bin), ceil(len(self.keys) / self.key_bin)

    @property
    def query_stride(self) -> int:
        """Distance in queries from one row of bins to the next."""
        return self.query_bin * self.queries.step

    def sample(self, att: AttentionBase) -> Region:
        """Return the region with one query in the place of each bin.

        These are the last query of the head and those that lie whole bins before it, so that all tiles of a level, and
        the picture in these bins, show the same queries.
        """
        first = self.queries.start + (att.shape.Q - 1 - self.queries.start) % self.query_bin
        return self._replace(queries=range(first, self.queries.stop, self.query_bin), query_bin=1)

    def columns(self, keys: range) -> slice:
        """Return the columns of bins into which some of the keys fall."""
        first = self.keys.start
        return bins(range(keys.start - first, keys.stop - first), self.key_bin)


def bins(positions: range, width: int) -> slice:
    """Return the bins of so many positions each into which a range falls."""
    return slice(positions.start // width, ceil(positions.stop / width))


class TileAddress(NamedTuple):
    """Which tile of which level, of at most size × size bins of 2^level × 2^level cells each.

    Tile (row, column) begins at query row · size · 2^level and key column · size · 2^level, so tiles of one level meet,
    and four bins of one level make one of the next.

    level: of both axes, or (of the queries, of the keys).
    row: which row of tiles; negative counts from the end.
    column: which column of tiles; negative counts from the end.
    size: rows and columns of a tile, at most.
    """

    level: int | tuple[int, int]
    row: int
    column: int
    size: int = 256

    def ranges(self, rows: int, columns: int, widths: tuple[int, int]) -> tuple[range, range]:
        """Return what lies in the tile along both axes; IndexError if it is not there.

        Args:
            rows: how many positions there are along the first axis.
            columns: how many there are along the second.
            widths: positions to a bin, along each.
        """
        size = as_size(self.size, "size")
        return (
            _tile_range(self.row, size * widths[0], rows, "row"),
            _tile_range(self.column, size * widths[1], columns, "column"),
        )


def _tile_range(tile: Any, step: int, n: int, what: str) -> range:
    """Return the positions of a tile along an axis of n positions, `step` to a tile."""
    index = as_index(tile, ceil(n / step), what, f"{what}s")
    return range(index * step, min((index + 1) * step, n))


def tile_region(att: AttentionBase, batch: int, head: int, at: TileAddress) -> Region:
    """Return the region of a tile, for an `OverviewPass` over it or over a sample of it."""
    row_level, column_level = as_levels(att, at.level)
    batch, head = att.find(batch, head)
    widths = 1 << row_level, 1 << column_level
    return Region(batch, head, *at.ranges(att.shape.Q, att.shape.K, widths), *widths)


def as_levels(att: AttentionBase, level: Any) -> tuple[int, int]:
    """Read a level as that of the rows and that of the columns; one number is both."""
    if not isinstance(level, tuple):
        return (as_level(att, level),) * 2
    if len(level) != 2:
        raise ValueError(f"level is {level!r:.60}: give an integer, or one for rows and one for columns")
    return as_level(att, level[0]), as_level(att, level[1])


def as_level(att: AttentionBase, level: Any) -> int:
    """Read a level: from 0, cell by cell, to the one where all of a head is a single bin."""
    return as_index(level, top_level(att) + 1, "level", "levels")


def top_level(att: AttentionBase) -> int:
    """Return the level where all of a head is a single bin."""
    return (max(att.shape.Q, att.shape.K, 1) - 1).bit_length()
