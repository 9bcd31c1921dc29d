"""Letters of a still as pixels, drawn with nothing but numpy.

`glyphs.npz` holds Latin, Greek and Cyrillic letters, and signs; `tools/glyphs.py` draws them.
"""

from __future__ import annotations

import functools
import importlib.resources
import unicodedata
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
STEPS = 7  # of gray, from none to a letter's full color
ELLIPSIS = "…"


class _Letters(NamedTuple):
    places: dict[str, tuple[int, int]]  # each letter's columns in the pixels
    pixels: Array  # (rows, columns) uint8, 0 to STEPS


@functools.cache
def _letters() -> _Letters:
    with importlib.resources.files(__package__).joinpath("glyphs.npz").open("rb") as file, np.load(file) as found:
        ends = np.cumsum(found["widths"].astype(int)).tolist()
        names = [chr(code) for code in found["codes"].tolist()]
        return _Letters(dict(zip(names, zip([0, *ends[:-1]], ends, strict=True), strict=True)), found["pixels"])


def height() -> int:
    """Return the height of a line in pixels."""
    return len(_letters().pixels)


def written(text: str, most: int = 10_000) -> Array | None:
    """Return a text as grays, 0 to 7; None if a letter is missing here.

    Args:
        text: on one line.
        most: the largest width in pixels; a wider text keeps both ends, with an ellipsis between.

    Returns:
        (rows, columns) uint8.

    >>> written("bank").shape == (28, sum(written(letter).shape[1] for letter in "bank"))
    True
    >>> written("日本") is None
    True
    """
    letters = _letters()
    text = unicodedata.normalize("NFC", text if len(text) < 200 else f"{text[:90]}{ELLIPSIS}{text[-90:]}")
    places = [letters.places.get(one) for one in text]
    known = [place for place in places if place is not None]
    if len(known) < len(places) or not known:
        return None
    kept = len(known)
    while sum(stop - start for start, stop in known) > most and kept > 1:
        kept -= 1
        tail = kept // 2
        whole = [letters.places[one] for one in text]
        known = [*whole[: kept - tail], letters.places[ELLIPSIS], *(whole[-tail:] if tail else ())]
    return np.concatenate([letters.pixels[:, start:stop] for start, stop in known], axis=1)
