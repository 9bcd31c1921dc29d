"""What the colors of a picture span, where a trait says more than the picture knows: all heads of the layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..._messages.codec.decoding import DecodedMatrix, decode
from ..view import TraitsView


def with_range(matrix: DecodedMatrix, traits: TraitsView) -> DecodedMatrix:
    """Return the matrix with the ends that its colors are to span: as `withRange` of `js/src/state/ranges.ts`.

    The range "view" is that of the whole, for an export shows the whole; "layer" that of the head, where no range of
    the layer is known.
    """
    high = _layer_high(matrix, traits)
    return matrix if high is None else replace(matrix, low=0.0, high=high)


def range_words(matrix: DecodedMatrix, traits: TraitsView) -> str | None:
    """Return which range the colors have, as the widget's legend says it; None for the head's own."""
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
    # Of long heads some rows were looked at: the picture may know a greater weight.
    return max(float(decode(small["highs"]).max(initial=0.0)), matrix.high or 0.0)


def _thumbnails(traits: TraitsView) -> dict[str, Any] | None:
    """Return the small pictures of the layer that is shown, if they know how far each head's weights go."""
    small = traits.thumbnails
    if small is None or small.get("highs") is None:
        return None
    return small if (small["layer"], small["batch"]) == (traits.layer, traits.batch) else None
