"""Color ranges that need more than the picture itself, such as the range of all heads in a layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..._messages.codec.decoding import DecodedMatrix, decode
from ..view import TraitsView


def with_range(matrix: DecodedMatrix, traits: TraitsView) -> DecodedMatrix:
    """Return the matrix with the ends its colors should span: `withRange` in `js/src/state/ranges.ts`.

    The range "view" is the whole matrix, because an export shows all of it; "layer" is the head's own range if the
    layer's is not known.
    """
    high = _layer_high(matrix, traits)
    return matrix if high is None else replace(matrix, low=0.0, high=high)


def range_words(matrix: DecodedMatrix, traits: TraitsView) -> str | None:
    """Return the color range as the widget's legend words it; None for the head's own."""
    chosen = traits.color_range
    if chosen == "row":
        return "each row has its own range"
    if chosen == "view":
        return "range of the whole head"
    if chosen != "layer":
        return None
    small = _thumbnails(traits)
    if small is None or _layer_high(matrix, traits) is None:
        return "range of this head"
    rows = small.get("rows") or matrix.queries
    return "range of the layer's heads" + (f", from {rows:,} rows per head" if rows < matrix.queries else "")


def _layer_high(matrix: DecodedMatrix, traits: TraitsView) -> float | None:
    small = _thumbnails(traits)
    if traits.color_range != "layer" or matrix.stage != "weights" or small is None:
        return None
    # Only some rows of long heads were read: the picture may know a greater weight.
    return max(float(decode(small["highs"]).max(initial=0.0)), matrix.high or 0.0)


def _thumbnails(traits: TraitsView) -> dict[str, Any] | None:
    """Return the layer's small pictures, if they include each head's range."""
    small = traits.thumbnails
    if small is None or small.get("highs") is None:
        return None
    return small if (small["layer"], small["batch"]) == (traits.layer, traits.batch) else None
