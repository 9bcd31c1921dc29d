"""Regions of a head in uniform bins: tiles, levels, and the bins of positions."""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

from .._utils.indexing import as_index
from .._utils.validation import as_size
from .base import AttentionBase


class Region(NamedTuple):
    """Some queries × some keys of a head, in bins of query_bin × key_bin cells; keys have no gaps."""

    batch: int
    head: int
    queries: range
    keys: range
    query_bin: int
    key_bin: int

    @property
    def shape(self) -> tuple[int, int]:
        """The number of bins: rows and columns."""
        return ceil(len(self.queries) / self.query_bin), ceil(len(self.keys) / self.key_bin)

    @property
    def query_stride(self) -> int:
        """The distance in queries from one row of bins to the next."""
        return self.query_bin * self.queries.step

    def sample(self, att: AttentionBase) -> Region:
        """Return the region with one query instead of each bin.

        The queries are the last of the head and those whole bins before it, so all tiles of a level and its picture
        show the same queries.
        """
        first = self.queries.start + (att.shape.Q - 1 - self.queries.start) % self.query_bin
        return self._replace(queries=range(first, self.queries.stop, self.query_bin), query_bin=1)

    def columns(self, keys: range) -> slice:
        """Return the columns of the bins that contain these keys."""
        first = self.keys.start
        return bins(range(keys.start - first, keys.stop - first), self.key_bin)


def bins(positions: range, width: int) -> slice:
    """Return the bins, `width` positions each, that contain a range."""
    return slice(positions.start // width, ceil(positions.stop / width))


class TileAddress(NamedTuple):
    """The address of a tile: at most size × size bins of 2^level × 2^level cells each.

    Tile (row, column) begins at query row · size · 2^level and key column · size · 2^level. So the tiles of a level
    cover the head, and four bins of one level make one bin of the next.

    level: of both axes, or (of the queries, of the keys).
    row: which row of tiles; negative counts from the end.
    column: which column of tiles; negative counts from the end.
    size: the most rows and columns of a tile.
    """

    level: int | tuple[int, int]
    row: int
    column: int
    size: int = 256

    def ranges(self, rows: int, columns: int, widths: tuple[int, int]) -> tuple[range, range]:
        """Return the positions of the tile along both axes; raise IndexError if it does not exist.

        Args:
            rows: the number of positions along the first axis.
            columns: the number of positions along the second axis.
            widths: positions in a bin, along each axis.
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
    """Read a level for rows and columns; one number stands for both."""
    if not isinstance(level, tuple):
        return (as_level(att, level),) * 2
    if len(level) != 2:
        raise ValueError(f"level is {level!r:.60}: give an integer, or one for rows and one for columns")
    return as_level(att, level[0]), as_level(att, level[1])


def as_level(att: AttentionBase, level: Any) -> int:
    """Read a level, from 0 (single cells) to the level where a head is a single bin."""
    return as_index(level, top_level(att) + 1, "level", "levels")


def top_level(att: AttentionBase) -> int:
    """Return the level where a head is a single bin."""
    return (max(att.shape.Q, att.shape.K, 1) - 1).bit_length()
