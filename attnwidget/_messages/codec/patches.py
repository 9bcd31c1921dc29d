"""Where the patches of an image or a video lie among the positions."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any, NamedTuple, TypeAlias

from ..._utils.validation import as_size

SIDES = ("auto", "query", "key", "both")
FORMS = (
    "give (rows, columns) of patches, such as (14, 14); (frames, rows, columns) for a video; or a list with one of "
    "these, or None, for each layer"
)


class LayerGrid(NamedTuple):
    """The patches of one layer.

    Attributes:
        rows, columns, frames: of patches; an image has one frame.
        start: the position of the first patch; None: they are the last positions.
        side: "query", "key" or "both"; "auto" means every side with room for them.
        windows: the cell of each patch, frame by frame and row by row, in each sample that is a window of the image;
            -1 for padding. None: each sample has all patches in order.
    """

    rows: int
    columns: int
    frames: int = 1
    start: int | None = None
    side: str = "auto"
    windows: tuple[tuple[int, ...], ...] | None = None

    @property
    def many(self) -> int:
        """The number of patches in a sample."""
        return self.frames * self.rows * self.columns if self.windows is None else len(self.windows[0])

    def __repr__(self) -> str:
        size = f"({f'{self.frames}, ' if self.frames > 1 else ''}{self.rows}, {self.columns})"
        return size if self.windows is None else f"<{len(self.windows)} windows of {size}>"

    def __str__(self) -> str:
        if self.windows is not None:
            return f"windows of {self.many:,} patches"
        return f"{f'{self.frames} × ' if self.frames > 1 else ''}{self.rows} × {self.columns} = {self.many:,} patches"


OfLayers: TypeAlias = tuple[LayerGrid | None, ...]
Grid: TypeAlias = tuple[int, int] | tuple[int, int, int] | OfLayers


class Patches(NamedTuple):
    """A grid of patches, and the position of the first among queries and keys; None where it is absent.

    Attributes:
        rows, columns, frames, windows: as in `LayerGrid`.
        query, key: the position of the first patch.
    """

    rows: int
    columns: int
    query: int | None
    key: int | None
    frames: int = 1
    windows: tuple[tuple[int, ...], ...] | None = None

    def cells(self, batch: int) -> Sequence[int]:
        """Return the cell of each patch of a sample, frame by frame and row by row; -1 for padding."""
        windows = self.windows
        return range(self.frames * self.rows * self.columns) if windows is None else windows[batch % len(windows)]

    def message(self) -> dict[str, Any]:
        """Return it for the front-end, without what an image in one piece has not."""
        found = self._asdict()
        return {name: value for name, value in found.items() if value != Patches._field_defaults.get(name, "needed")}

    def names(self, batch: int) -> list[str]:
        """Return the label of each patch of a sample.

        >>> Patches(1, 2, 0, 0).names(0)
        ['row 0, 0', 'row 0, 1']
        """
        return [self._name(cell) for cell in self.cells(batch)]

    def _name(self, cell: int) -> str:
        frame, place = divmod(cell, self.rows * self.columns)
        if cell < 0:
            return "[PAD]"
        of_place = f"{place // self.columns}, {place % self.columns}"
        if self.frames == 1:
            return f"row {of_place}"
        return f"frame {frame}: {of_place}" if self.rows * self.columns > 1 else f"frame {frame}"


def as_grid(grid: Any) -> Grid:
    """Return rows and columns of patches, or frames before them, or a grid for each layer.

    Raises:
        TypeError, ValueError: it is anything else.

    >>> as_grid([14, 14])
    (14, 14)
    """
    try:
        entries = tuple(grid)
    except TypeError:
        raise TypeError(f"grid is {grid!r:.40}: {FORMS}") from None
    if entries and all(one is None or isinstance(one, Sequence) for one in entries):
        return tuple(None if one is None else _of_layer(one, layer) for layer, one in enumerate(entries))
    return _sizes(entries, "grid")


def _of_layer(entry: Any, layer: int) -> LayerGrid:
    if isinstance(entry, LayerGrid):
        return entry
    *frames, rows, columns = _sizes(tuple(entry), f"grid[{layer}]")
    return LayerGrid(rows, columns, frames[0] if frames else 1)


def _sizes(entries: tuple[Any, ...], name: str) -> tuple[int, int] | tuple[int, int, int]:
    if len(entries) not in (2, 3):
        raise TypeError(f"{name} is {entries!r:.40}: {FORMS}")
    *frames, rows, columns = entries
    sizes = as_size(rows, f"{name} rows"), as_size(columns, f"{name} columns")
    return (as_size(frames[0], f"{name} frames"), *sizes) if frames else sizes


def of_layer(grid: Grid, layer: int, start: int | None, side: str) -> LayerGrid | None:
    """Return the patches of a layer; None if it has none.

    Args:
        grid: as `as_grid` returns it.
        layer: the layer.
        start, side: of a grid that is one for all layers.
    """
    if not isinstance(grid[0], int):
        return grid[layer] if layer < len(grid) else None
    *frames, rows, columns = grid
    return LayerGrid(rows, columns, frames[0] if frames else 1, start, side)


def place(grid: LayerGrid, queries: int, keys: int) -> Patches:
    """Return where the patches of a layer lie.

    Args:
        grid: of the layer.
        queries, keys: how many positions there are.

    Raises:
        ValueError: they do not fit.

    >>> place(LayerGrid(14, 14), 197, 197)[:4]
    (14, 14, 1, 1)
    """
    many, lengths, side, start = grid.many, {"query": queries, "key": keys}, grid.side, grid.start
    needed = many + (start or 0)
    wanted = ("query", "key") if side in ("auto", "both") else (side,)
    fitting = [name for name in wanted if needed <= lengths[name]]
    if not fitting or (side != "auto" and len(fitting) < len(wanted)):
        there = " and ".join(f"{lengths[name]:,} {'queries' if name == 'query' else 'keys'}" for name in wanted)
        after = f" after the first {start}" if start else ""
        raise ValueError(f"grid is {grid}{after} but there are {there}: {_advice(max(lengths.values()))}")
    first = {name: lengths[name] - many if start is None else start for name in fitting}
    return Patches(grid.rows, grid.columns, first.get("query"), first.get("key"), grid.frames, grid.windows)


def fitting(grid: LayerGrid | None, queries: int, keys: int) -> Patches | None:
    """Return what `place` returns, or None if there are no patches or they do not fit."""
    try:
        return None if grid is None else place(grid, queries, keys)
    except ValueError:
        return None


def _advice(length: int) -> str:
    """Return advice, with a likely grid if the number of patches is a square after a few leading positions."""
    for special in (1, 0, 2, 5):
        side = isqrt(max(0, length - special))
        if side > 1 and side * side == length - special:
            return f"give the (rows, columns) into which the model cuts its image, here perhaps ({side}, {side})"
    return "give the (rows, columns) into which the model cuts its image"
