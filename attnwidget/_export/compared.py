"""A comparison's contents, as figures and the small PNG read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .._messages.codec import decoding
from .._messages.codec.decoding import DecodedMatrix

Places = list[int] | None


def part_of(comparison: dict[str, Any], name: str) -> DecodedMatrix:
    """Decode "a", "b" or "change"; a change is signed, and shows the largest change in each bin, whatever the stage."""
    one = decoding.of_picture({**comparison, **comparison[name]})
    return one if name != "change" else replace(one, stage="scores", pool="max")


def places_of(comparison: dict[str, Any]) -> tuple[Places, Places]:
    """Return the compared queries and keys as positions in A; None means all."""
    queries, keys = (
        None if sent is None else decoding.decode(sent["a"]).tolist()
        for sent in (comparison["query_places"], comparison["key_places"])
    )
    return queries, keys


def range_of_change(color_range: Any) -> Any:
    """Return the color range of a change; a custom range applies only to A and B."""
    return "head" if isinstance(color_range, list | tuple) else color_range


def placed(pin: tuple[int | None, int | None], places: tuple[Places, Places]) -> tuple[int | None, int | None] | None:
    """Convert a pinned pair of A to compared places; None if B has no counterpart for any of it."""
    if any(at is not None and some is not None and at not in some for at, some in zip(pin, places, strict=True)):
        return None
    query, key = (at if at is None or some is None else some.index(at) for at, some in zip(pin, places, strict=True))
    return query, key


def is_comparison(traits: Any) -> bool:
    """Return whether these are the traits of a comparison, in any view."""
    return hasattr(traits, "sides")


def names_of(traits: Any) -> Sequence[str]:
    """Return the names of A and B, such as "A causal"; B's name includes its head if that differs from A's."""
    other = traits.against_at
    head = "" if other is None else f" (layer {other[0]}, head {other[2]})"
    return (f"A {traits.sides[0]}", f"B {traits.against}{head}")
