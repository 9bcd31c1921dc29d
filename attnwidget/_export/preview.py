"""A small PNG of what a widget shows, for where no widget runs: on GitHub, in nbviewer, in a mail.

It needs nothing but zlib: indexed colours, no text; the words are in `text/plain` beside it.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from .._messages.decoding import BLOCKED, MINUS_INF, NAN, PLUS_INF, DecodedMatrix, of_picture
from .._utils.png import png_of_indices
from . import colors
from .view import WidgetView

MOST_BYTES = 48 * 1024  # of the file: as base64 it is at most 64 KiB of a notebook
SIDE = 320  # pixels of the longer side, about
LARGEST_CELL = 16  # pixels
GAP_FROM = 8  # pixels of a cell from which there is a gap between cells
BESIDE = 4  # pixels of page around the picture

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]


def preview_of(widget: WidgetView) -> bytes | None:
    """Return a small PNG of the picture that a widget shows; None where there is none."""
    traits = widget.traits
    if traits.picture.get("values") is None:
        return None
    try:
        return png_of(
            of_picture(widget.picture),
            color_scale=traits.color_scale,
            color_range=traits.color_range,
            palette=traits.palette,
            theme=traits.theme,
        )
    except Exception:  # displaying a widget must not fail for want of a picture of it
        log.warning("the small picture beside a widget could not be drawn", exc_info=True)
        return None


def png_of(matrix: DecodedMatrix, *, color_scale: str, color_range: Any, palette: str, theme: str) -> bytes:
    """Return the picture as a PNG of at most 48 KiB, in the colours of the widget."""
    look = colors.look_of(theme)
    table = colors.table(matrix.kind, palette, theme)
    table = np.concatenate([table, [colors.rgb_of(color) for color in (look.page, look.bad, look.ink)]]).astype(int)
    cells = colors.entries(matrix, color_scale, color_range).astype(int)
    for kind, place in ((BLOCKED, 256), (NAN, 257), (PLUS_INF, 258), (MINUS_INF, 256)):
        cells[matrix.kinds == kind] = place
    step = -(-max(cells.shape) // SIDE)
    while True:
        small = _pooled(cells, step, signed=matrix.kind == "diverging")
        made = png_of_indices(*_palette_of(_drawn(small), table))
        if len(made) <= MOST_BYTES or max(small.shape) <= 32:
            return made
        step += 1


def _pooled(cells: Array, step: int, *, signed: bool) -> Array:
    """Keep of each step × step cells the one whose colour stands out most, so that no single strong link is lost."""
    if step == 1:
        return cells
    down, across = (-(-n // step) for n in cells.shape)
    padded = np.full((down * step, across * step), 256)
    padded[: cells.shape[0], : cells.shape[1]] = cells
    blocks = padded.reshape(down, step, across, step).swapaxes(1, 2).reshape(down, across, step * step)
    strength = np.where(blocks == 257, 300, np.where(blocks == 256, -1, abs(blocks - 128) if signed else blocks))
    picked: Array = np.take_along_axis(blocks, strength.argmax(2)[:, :, None], 2)[:, :, 0]
    return picked


def _drawn(cells: Array) -> Array:
    """Return cells as pixels, with gaps between them where they are large enough."""
    rows, columns = cells.shape
    side = max(1, min(LARGEST_CELL, SIDE // max(rows, columns)))
    pixels = np.repeat(np.repeat(cells, side, 0), side, 1)
    if side >= GAP_FROM:
        pixels[side - 1 :: side] = 256
        pixels[:, side - 1 :: side] = 256
    return np.pad(pixels, BESIDE, constant_values=256)


def _palette_of(pixels: Array, table: Array) -> tuple[Array, Array]:
    """Return the pixels by the colours that occur, at most 256: of two that nobody could tell apart, one."""
    used = np.unique(pixels)
    if len(used) > 256:
        pixels = np.where(pixels < 256, pixels & ~1, pixels)
        used = np.unique(pixels)
    places = np.zeros(len(table), np.uint8)
    places[used] = np.arange(len(used))
    return places[pixels], table[used].astype(np.uint8)
