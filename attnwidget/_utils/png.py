"""PNG files, written with nothing but zlib (ISO/IEC 15948)."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

TRUE_COLOR, INDEXED = 2, 3  # color types
SUB = 1  # the filter that keeps each pixel's difference from the one before


def png_of_colors(pixels: Pixels) -> bytes:
    """Return a PNG of colors.

    Args:
        pixels: (height, width, 3) uint8, red, green and blue.

    >>> png_of_colors(np.zeros((2, 3, 3), np.uint8))[1:4]
    b'PNG'
    """
    height, width = pixels.shape[:2]
    rows = pixels.copy()
    rows[:, 1:] -= pixels[:, :-1]
    lines = np.concatenate([np.full((height, 1), SUB, np.uint8), rows.reshape(height, -1)], axis=1)
    return _file(_header(width, height, 8, TRUE_COLOR), (b"IDAT", zlib.compress(lines.tobytes(), 6)))


def png_of_indices(pixels: Pixels, palette: Pixels) -> bytes:
    """Return a PNG whose pixels are places in a palette, in as few bits a pixel as hold them.

    Args:
        pixels: (height, width) uint8.
        palette: (n, 3) uint8, at most 256 colors; (n, 4) where some let the page behind them through.

    >>> png_of_indices(np.zeros((2, 3), np.uint8), np.array([[255, 255, 255]], np.uint8))[1:4]
    b'PNG'
    """
    height, width = pixels.shape
    depth = next(bits for bits in (1, 2, 4, 8) if len(palette) <= 1 << bits)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), _packed(pixels, depth)], 1)  # indices are no gradients
    return _file(
        _header(width, height, depth, INDEXED),
        (b"PLTE", palette[:, :3].tobytes()),
        *([(b"tRNS", palette[:, 3].tobytes())] if palette.shape[1] == 4 else []),
        (b"IDAT", zlib.compress(lines.tobytes(), 6)),
    )


def _packed(pixels: Pixels, depth: int) -> Pixels:
    """Several pixels to a byte, the first in the highest bits; each row begins a byte."""
    if depth == 8:
        return pixels
    bits = np.unpackbits(pixels[:, :, None], axis=2)[:, :, 8 - depth :]
    return np.packbits(bits.reshape(len(pixels), -1), axis=1)


def _header(width: int, height: int, depth: int, color_type: int) -> tuple[bytes, bytes]:
    return b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, 0)


def _file(*chunks: tuple[bytes, bytes]) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, body) for name, body in (*chunks, (b"IEND", b"")))


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
