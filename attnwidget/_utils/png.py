"""PNG files, written by Pillow (ISO/IEC 15948)."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def png_of_colors(pixels: Pixels) -> bytes:
    """Return a PNG of colors.

    Args:
        pixels: (height, width, 3) uint8, red, green and blue.

    >>> png_of_colors(np.zeros((2, 3, 3), np.uint8))[1:4]
    b'PNG'
    """
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def png_of_indices(pixels: Pixels, palette: Pixels) -> bytes:
    """Return a PNG whose pixels are numbers of colors in a palette.

    Args:
        pixels: (height, width) uint8.
        palette: (n, 3) uint8, at most 256 colors; (n, 4) with an alpha channel.

    >>> png_of_indices(np.zeros((2, 3), np.uint8), np.array([[255, 255, 255]], np.uint8))[1:4]
    b'PNG'
    """
    from PIL import Image

    image = Image.fromarray(pixels)
    image.putpalette(palette[:, :3].tobytes())
    file = io.BytesIO()
    alpha = {"transparency": palette[:, 3].tobytes()} if palette.shape[1] == 4 else {}
    image.save(file, "PNG", optimize=True, **alpha)
    return file.getvalue()
