"""Rules that exist twice are alike: js/tests/contract/rules.test.ts writes `rules.json`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnwidget._export.look.effects import as_loss, disagreement, largest_first, loss_text, scales_of
from attnwidget._export.look.padding import padded_queries, padded_rows, runs
from attnwidget._tokens.display import labels_of
from attnwidget._widget.derived.selection import heads_with, pins_with

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "rules.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", GOLDEN["effects"])
def test_scales_and_words_of_effects(case: dict[str, Any]) -> None:
    masses, losses = [float(one) for one in case["masses"]], [as_loss(one) for one in case["losses"]]
    scales = scales_of(masses, losses, in_nats=case["nats"])
    assert list(scales) == pytest.approx(case["scales"], rel=1e-9)
    assert [scales.place(share) for share in (-1, -0.2, 0, 0.3, 1, 2)] == pytest.approx(case["places"], abs=1e-9)
    assert [disagreement(scales, *pair) for pair in zip(masses, losses, strict=True)] == case["words"]
    things = [SimpleNamespace(at=at, lost=lost) for at, lost in enumerate(losses)]
    assert [one.at for one in largest_first(things)] == case["order"]


def test_the_text_of_a_loss() -> None:
    assert [loss_text(as_loss(lost)) for lost, _ in GOLDEN["losses"]] == [text for _, text in GOLDEN["losses"]]


@pytest.mark.parametrize("case", GOLDEN["padding"])
def test_queries_that_are_padding(case: dict[str, Any]) -> None:
    queries, keys = (
        labels_of(case[side], length) for side, length in zip(("queries", "keys"), case["lengths"], strict=True)
    )
    has_tokens = case["queries"] is not None
    padded = padded_queries(tuple(case["lengths"]), queries, keys, case["start"], has_tokens=has_tokens)
    assert padded.tolist() == case["padded"]
    assert [[one.start, one.stop] for one in runs(padded_rows(padded, case["each"]))] == case["runs"]


def test_heads_and_pins_that_are_shown() -> None:
    assert [heads_with(head, heads) for head, heads, _ in GOLDEN["heads"]] == [shown for *_, shown in GOLDEN["heads"]]
    for query, key, pins, shown in GOLDEN["pins"]:
        assert pins_with(query, key, [tuple(pin) for pin in pins]) == [tuple(pin) for pin in shown]
