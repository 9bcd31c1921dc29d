"""The patches of an image or a video, or the parts of a sound, among the positions of a call."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Windows(NamedTuple):
    """How an image is cut into windows, each a sample of its own, as Swin, SAM and MaxViT cut it.

    Attributes:
        height, width: rows and columns of a window.
        down, across: by how many rows and columns the image is rolled up and left before it is cut.
        spread: whether the patches of a window are spread evenly over the image, as in MaxViT's grid attention.
    """

    height: int
    width: int
    down: int = 0
    across: int = 0
    spread: bool = False

    def many(self, rows: int, columns: int) -> int:
        """Return the number of windows of an image of so many patches."""
        return -(-rows // self.height) * -(-columns // self.width)

    def checked(self) -> Windows:
        """Return these windows, of a file; raise ValueError if their sizes cannot be."""
        height, width = size_of_image(self.height), size_of_image(self.width)
        return Windows(height, width, int(self.down), int(self.across), bool(self.spread))

    def cells(self, rows: int, columns: int) -> list[list[int]]:
        """Return the cell (row · columns + column) of each patch of each window; -1 for padding.

        >>> Windows(2, 2).cells(2, 4)
        [[0, 1, 4, 5], [2, 3, 6, 7]]
        >>> Windows(2, 2, 1, 1).cells(2, 2)
        [[3, 2, 1, 0]]
        """
        return _cells(self, rows, columns)

    def _all_cells(self, rows: int, columns: int) -> list[list[int]]:
        down, across = -(-rows // self.height), -(-columns // self.width)
        height, width = down * self.height, across * self.width

        def cell(row: int, column: int) -> int:
            row, column = (row + self.down) % height, (column + self.across) % width
            return row * columns + column if row < rows and column < columns else -1

        inside = [(i, j) for i in range(self.height) for j in range(self.width)]
        if self.spread:
            return [[cell(i * down + r, j * across + c) for i, j in inside] for r in range(down) for c in range(across)]
        return [
            [cell(r * self.height + i, c * self.width + j) for i, j in inside]
            for r in range(down)
            for c in range(across)
        ]


@functools.lru_cache(maxsize=16)
def _cells(windows: Windows, rows: int, columns: int) -> list[list[int]]:
    """Return `Windows.cells`; layers and samples share them."""
    return windows._all_cells(rows, columns)  # noqa: SLF001


class PatchGrid(NamedTuple):
    """The patches of an image among the positions of a tower, after some tokens of the model.

    Attributes:
        rows, columns: of patches.
        before: the names of the model's tokens before the patches.
        block: patches come in squares of this side, each square row by row, because the model joins them later; 1: all
            patches come row by row; 0: their order is unknown.
        picture: the number of the image or frame in a call of the tower; None if they are not separate.
        frames: the number of images of this size in turn, as in a video.
        windows: how the image is cut into windows, which are the samples; None: a sample has all patches.
        after: the names of the tokens after the patches.
        seconds: from one position to the next, if these are the parts of a sound, in one row; None: it is an image.
    """

    rows: int
    columns: int
    before: tuple[str, ...] = ()
    block: int = 1
    picture: int | None = None
    frames: int = 1
    windows: Windows | None = None
    after: tuple[str, ...] = ()
    seconds: float | None = None

    @property
    def patches(self) -> int:
        """The number of patches in a sample."""
        if self.windows is not None:
            return self.windows.height * self.windows.width
        return self.frames * self.rows * self.columns

    @property
    def length(self) -> int:
        """The number of positions."""
        return len(self.before) + self.patches + len(self.after)

    @classmethod
    def of_entry(cls, entry: Sequence[Any] | None) -> PatchGrid | None:
        """Return a list from a file, which may be hostile; earlier versions wrote only the first few entries."""
        if entry is None:
            return None
        whole = cls(*entry)
        cut = None if whole.windows is None else Windows(*whole.windows)
        return cls(
            size_of_image(whole.rows),
            size_of_image(whole.columns),
            tuple(map(str, whole.before)),
            int(whole.block),
            None if whole.picture is None else int(whole.picture),
            size_of_image(whole.frames),
            None if cut is None else cut.checked(),
            tuple(map(str, whole.after)),
            None if whole.seconds is None else float(whole.seconds),
        )

    def names(self) -> Iterator[list[str]]:
        """Yield the labels of the positions: of every sample, or of each window of an image."""
        for cells in self._cells():
            yield [*self.before, *map(self._name, cells), *self.after]

    def _name(self, cell: int) -> str:
        if cell < 0:
            return "[PAD]"
        if self.seconds is not None:
            return f"{cell * self.seconds:.{2 if self.seconds >= 0.01 else 3}f} s"
        frame, place = divmod(cell, self.rows * self.columns)
        row, column = divmod(place, self.columns)
        if self.frames == 1:
            return f"row {row}, {column}"
        return f"frame {frame}: {row}, {column}" if self.rows * self.columns > 1 else f"frame {frame}"

    def _cells(self) -> list[list[int]]:
        if self.windows is not None:
            return self.windows.cells(self.rows, self.columns)
        if self.block <= 1:
            return [[*range(self.patches)]]
        return [[*self._by_blocks()]]

    def _by_blocks(self) -> Iterator[int]:
        block = self.block
        for i in range(self.patches):
            square, inside = divmod(i, block * block)
            down, across = divmod(square, self.columns // block)
            yield (down * block + inside // block) * self.columns + across * block + inside % block


MOST = 1 << 20  # rows, columns or frames of images in a file


def size_of_image(value: object) -> int:
    """Return a number of a file, which may be hostile."""
    if type(value) is not int or not 0 < value <= MOST:
        raise ValueError(f"a size of an image of {value!r:.40}: it must be 1 to {MOST:,}")
    return value
