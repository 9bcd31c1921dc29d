"""Whatever is changed, all that is shown is as in a new widget that was made so: nothing of before is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attnwidget import Attention, AttentionStack, AttentionWidget, compare
from attnwidget._messages.codec.decoding import decode

B, H, G, Q, K, D, DV = 3, 4, 2, 5, 7, 6, 8
WORDS = ["Ġa", "b", "Ġc", "d", "Ġa"]
KEY_WORDS = ["Ġx", "Ġy", "z", "Ġx", "Ġu", "v", "[PAD]"]
DERIVED = ("picture", "thumbnails", "links", "findings", "deviation", "stages", "pair", "survey", "stage_heads", "mass",
           "head_mass", "recall", "facts", "errors")  # fmt: skip


def layer(seed: int, keys: int = K, **rules: Any) -> Attention:
    make = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(B, h, n, d, generator=make) for h, n, d in ((H, Q, D), (G, keys, D), (G, keys, DV)))
    return Attention(q, k, v, **rules)


def stack(seed: int) -> AttentionStack:
    return AttentionStack([layer(seed), layer(seed + 1, 6)])


def first_weight(rows: Any) -> Any:
    return rows.weights[..., 0]


def segments_of_the_keys(rows: Any) -> Any:
    return torch.full(rows.weights.shape[:-1], float(len(rows.segments or ())))


def without_number(name: str, made: Any) -> Any:
    """Return a message without the number by which others tell it from earlier ones."""
    left = {"mass": "id", "head_mass": "id", "facts": "version"}.get(name)
    return {key: value for key, value in made.items() if key != left} if isinstance(made, dict) else made


def alike(one: Any, other: Any) -> bool:
    """Return whether two messages say the same, numbers but for rounding: sums may be taken in another order."""
    if isinstance(one, dict) and "data" in one:
        a, b = decode(one), decode(other)
        step = 1 if a.dtype == np.uint8 else 0  # of what is quantised
        return a.shape == b.shape and np.allclose(a.astype(float), b.astype(float), 1e-4, max(step, 1e-5), True)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(alike(one[n], other[n]) for n in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, rel=1e-4, abs=1e-5, nan_ok=True)
    return bool(one == other)


def assert_as_new(w: Any, fresh: Any, names: tuple[str, ...], *said: Any) -> None:
    for name in names:
        assert alike(without_number(name, getattr(w, name)), without_number(name, getattr(fresh, name))), (name, *said)


CHANGES: list[dict[str, Any]] = [
    {"attention": stack(2)},
    {"tokens": ["Ġa", "Ġa", "Ġc", "d", "[PAD]"]},
    {"key_tokens": ["Ġx", "Ġx", "Ġx", "z", "Ġu", "[PAD]", "[PAD]"]},
    {"segments": {"one": (1, 3), "answer": (3, Q)}},
    {"key_segments": {"docs": {"doc 1": (1, 2), "doc 2": (2, 4)}, "rest": (4, 6)}},
    {"kinds": {"mine": first_weight}},
    {"what_if": {"scale": -0.75}},
    {"layer": 1},
    {"what_if": {"scale": -0.25}},
    {"attention": stack(4)},
    {"layer": 0},
    {"pieces": "words"},
    {"tokens": [*WORDS]},
    {"batch": 2},
    {"pieces": "pieces"},
    {"stage": "weights"},
    {"what_if": {"drop_keys": [1, -1]}},
    {"what_if": {}},
    {"head": 3},
    {"attention": stack(6)},
]


@pytest.mark.parametrize(
    "look",
    [
        {"view": "heatmap"},
        {"view": "graph", "heads": [0, 2], "top_k": 2},
        {"view": "stages", "query": 1, "key": 2},
        {"view": "heads", "stage": "contribution"},
        {"view": "segments"},
    ],
    ids=lambda look: look["view"],
)
def test_after_each_change_all_is_as_in_a_new_widget(look: dict[str, Any]) -> None:
    given: dict[str, Any] = {
        "attention": stack(0), "tokens": WORDS, "key_tokens": KEY_WORDS, "segments": {"answer": (2, Q)},
        "key_segments": {"docs": (1, 6)}, "kinds": {"mine": segments_of_the_keys}, **look,
    }  # fmt: skip
    w = AttentionWidget.from_attention(**given)
    for change in CHANGES:
        for name, value in change.items():
            setattr(w, name, value)
        now = {name: getattr(w, name) for name in ("query", "key", "head", "heads", "stage")}
        given |= {**now, **change, "layer": 0}
        fresh = AttentionWidget.from_attention(**given)
        fresh.layer = w.layer  # tokens are given for the first
        assert_as_new(w, fresh, DERIVED, look, change)
        fresh.close()


def test_a_comparison_too_whatever_is_changed() -> None:
    sides = {"one": stack(0), "two": stack(2), "three": stack(4)}
    tokens = {name: [*text] for name, text in zip(sides, ("abcde", "abxde", "abcye"), strict=True)}
    key_tokens = {name: [*text] for name, text in zip(sides, ("stuvwxy", "stuvwxy", "stuvwyx"), strict=True)}
    given: dict[str, Any] = {"tokens": tokens, "key_tokens": key_tokens}
    given |= {"query": 4, "key": 2}
    w = compare(sides, **given)
    changes: list[dict[str, Any]] = [
        {"tokens": list("abyde")}, {"against": "three"}, {"what_if": {"scale": -0.5}}, {"key": 3}, {"head": 2},
        {"against_at": (0, 2, 1)}, {"tokens": list("xbyde")}, {"query": None}, {"key_tokens": list("sruvwxx")},
        {"what_if": {"scale": 0.5}}, {"batch": 1}, {"against": "two"}, {"stage": "scores"}, {"against_at": (0, 1, 3)},
        {"what_if": {}},
    ]  # fmt: skip
    for change in changes:
        for name, value in change.items():
            setattr(w, name, value)
            given[name] = {**given[name], "one": value} if name in ("tokens", "key_tokens") else value
        given["against_at"] = w.against_at
        fresh = compare(sides, **given)
        assert_as_new(w, fresh, ("comparison", "changes", "picture", "facts", "errors"), change)
        fresh.close()


def test_labels_of_each_stack_are_its_own() -> None:
    both = {"one": stack(0), "two": AttentionStack([layer(1), layer(2), layer(3)])}
    w = AttentionWidget.from_attention(both, tokens={"one": WORDS}, layer=1, pins=[(1, 2)], head=3)
    w.segments = {"answer": (2, Q)}
    w.stack = "two"
    assert (w.layer, w.head, w.pins, w.tokens, w.segments) == (1, 3, [], None, None)
    w.layer, w.tokens = 2, [*"vwxyz"]
    w.stack = "one"
    assert (w.layer, w.tokens, w.segments) == (1, WORDS, {"answer": (2, Q)})
    w.stack = "two"
    assert (w.layer, w.tokens) == (1, [*"vwxyz"])
