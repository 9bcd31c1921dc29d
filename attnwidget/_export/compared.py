"""What a comparison holds, as figures and the small PNG read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .._messages.codec import decoding
from .._messages.codec.decoding import DecodedMatrix

Places = list[int] | None


def part_of(comparison: dict[str, Any], name: str) -> DecodedMatrix:
    """Decode "a", "b" or "change"; a change is signed, and the largest of each bin, whatever it is a change of."""
    one = decoding.of_picture({**comparison, **comparison[name]})
    return one if name != "change" else replace(one, stage="scores", pool="max")


def places_of(comparison: dict[str, Any]) -> tuple[Places, Places]:
    """Return the queries and the keys of A that are compared; None: all."""
    queries, keys = (
        None if sent is None else decoding.decode(sent["a"]).tolist()
        for sent in (comparison["query_places"], comparison["key_places"])
    )
    return queries, keys


def range_of_change(color_range: Any) -> Any:
    """Return the range of the colors of a change: one of the user's own is one of A and B."""
    return "head" if isinstance(color_range, list | tuple) else color_range


def placed(pin: tuple[int | None, int | None], places: tuple[Places, Places]) -> tuple[int | None, int | None] | None:
    """Return a pinned pair of A by its places; None where B has nothing of it."""
    if any(at is not None and some is not None and at not in some for at, some in zip(pin, places, strict=True)):
        return None
    query, key = (at if at is None or some is None else some.index(at) for at, some in zip(pin, places, strict=True))
    return query, key


def is_comparison(traits: Any) -> bool:
    """Return whether these are the traits of a comparison, in whichever view."""
    return hasattr(traits, "sides")


def names_of(traits: Any) -> Sequence[str]:
    """Return what A and B are called, such as "A causal"; of B also its head, where that is another than A's."""
    other = traits.against_at
    head = "" if other is None else f" (layer {other[0]}, head {other[2]})"
    return (f"A {traits.sides[0]}", f"B {traits.against}{head}")
