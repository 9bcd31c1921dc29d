"""A small PNG of an atlas, for places where no widget runs: a tile for each head, shaded by one metric."""

from __future__ import annotations

import io
from typing import Any

GRAY = (125, 131, 142, 255)  # readable on light and dark pages
DATA = (23, 127, 147)
TILE, GAP, LEFT, TOP = 34, 2, 28, 44
CURVE = 16  # pixels, of the weight by distance


def still_of(index: dict[str, Any]) -> bytes:
    """Return the PNG of an index, on a transparent page."""
    from PIL import Image, ImageDraw

    metric = index["metrics"][0]
    values = index["values"][metric["name"]]
    most = max((abs(one) for one in values if one is not None), default=1.0) or 1.0
    counts = index["counts"]
    width = max(LEFT + max(counts) * (TILE + GAP), 420)
    picture = Image.new("RGBA", (width, TOP + len(counts) * (TILE + GAP) + 4), (0, 0, 0, 0))
    draw = ImageDraw.Draw(picture, "RGBA")
    draw.text((0, 2), _plain(f"{index['title']}: {', '.join(index['facts'])}"), GRAY)
    draw.text((0, 20), _plain(f"Shade: {metric['label']}. Curve: weight by distance."), GRAY)
    at = 0
    for layer, count in enumerate(counts):
        y = TOP + layer * (TILE + GAP)
        draw.text((4, y + TILE // 2 - 6), str(layer), GRAY)
        for head in range(count):
            x = LEFT + head * (TILE + GAP)
            share = 0.0 if values[at] is None else min(1.0, abs(values[at]) / most)
            draw.rectangle((x, y, x + TILE - 1, y + TILE - 1), (*DATA, round(24 + 231 * share)))
            curve = [one or 0.0 for one in index["curves"][at]]
            highest = max(curve) or 1.0
            step = TILE / len(curve)
            for i, one in enumerate(curve):
                top = y + TILE - 1 - round(CURVE * one / highest)
                draw.rectangle((x + i * step, top, x + (i + 1) * step - 1, y + TILE - 1), (90, 96, 106, 150))
            at += 1
    file = io.BytesIO()
    picture.quantize(64).save(file, "PNG", optimize=True)
    return file.getvalue()


def _plain(text: str) -> str:
    """Return a text that the built-in font can write."""
    return text.encode("latin-1", "replace").decode("latin-1")
