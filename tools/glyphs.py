"""Draw the letters of stills, `attnwidget/_export/still/glyphs.npz`, in eight grays: DejaVu Sans of matplotlib.

Run it where other letters are wanted; needs matplotlib. The font is free (Bitstream Vera license).
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font

SIZE = 22  # pixels, which are 11 on a page of two pixels to one
ASCENT, DESCENT = 21, 7
RANGES = ((0x20, 0x7E), (0xA1, 0x17F), (0x391, 0x3C9), (0x410, 0x44F))
OTHERS = "–—‘’“”„…·‐−→×÷∅↵⇥⋯√∞∂‖≥≤€"
TARGET = Path(__file__).parents[1] / "attnwidget" / "_export" / "still" / "glyphs.npz"


def main() -> None:
    """Write the file."""
    font = FT2Font(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf")
    font.set_size(SIZE, 72)
    there = {*range(0x20, 0x7F), *(code for low, high in RANGES for code in range(low, high + 1)), *map(ord, OTHERS)}
    codes = sorted(there & set(font.get_charmap()))
    columns, widths = [], []
    for code in codes:
        columns.append(drawn(font, code))
        widths.append(columns[-1].shape[1])
    pixels = np.concatenate(columns, axis=1)
    np.savez_compressed(
        TARGET, codes=np.array(codes, np.uint16), widths=np.array(widths, np.uint8), pixels=pixels.astype(np.uint8)
    )
    print(f"{len(codes)} letters, {TARGET.stat().st_size:,} bytes")


def drawn(font: FT2Font, code: int) -> np.ndarray:
    """Return a letter on its advance, (rows, columns) in steps of 0 to 7."""
    font.set_text(chr(code), 0.0)
    width = max(1, round(font.load_char(code).linearHoriAdvance / 65536))
    font.set_text(chr(code), 0.0)
    font.draw_glyphs_to_bitmap(antialiased=True)
    bitmap = np.asarray(font.get_image())
    glyph = font.load_char(code)
    left, top = glyph.horiBearingX // 64, ASCENT - glyph.horiBearingY // 64
    page = np.zeros((ASCENT + DESCENT, width + 40), np.uint8)
    page[max(0, top) : max(0, top) + bitmap.shape[0], 20 + left : 20 + left + bitmap.shape[1]] = bitmap[
        : len(page) - max(0, top)
    ]
    return np.rint(page[:, 20 : 20 + width] / 255 * 7)


if __name__ == "__main__":
    main()
