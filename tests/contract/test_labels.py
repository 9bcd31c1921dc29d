"""Figures write labels and numbers as the front-end does: its js/tests/contract/labels.test.ts writes `labels.json`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from attnwidget._engine.stages import SIGNED
from attnwidget._export.look.numbers import cell_number, legend_ticks, list_number, status_number
from attnwidget._export.still.glyphs import written
from attnwidget._tokens.display import Label, display, labels_of
from attnwidget._tokens.running import Piece, pieces_of
from attnwidget._tokens.tokenizers import Spelling, is_special
from attnwidget._utils.assets import names

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "labels.json").read_text(encoding="utf-8"))
SPELLINGS: dict[str | None, Spelling | None] = {None: None, "bytes": "bytes", "spaced": "spaced", "words": "text"}


def test_stages_with_signs_are_alike() -> None:
    assert {name for name, stage in names()["stages"].items() if stage["signed"]} == set(SIGNED)


def test_a_token_is_shown_alike_in_every_style() -> None:
    wanted = {token: (*labels, special) for token, labels, special in GOLDEN["tokens"]}
    found = {
        token: (*(display(token, style) for style in ("text", "bytes", "spaced", "words")), is_special(token))
        for token in wanted
    }
    assert found == wanted
    assert len(wanted) >= 200


@pytest.mark.parametrize("sample", GOLDEN["samples"], ids=lambda sample: sample["name"])
def test_a_sample_has_the_same_labels(sample: dict[str, Any]) -> None:
    tokens = sample["tokens"]
    wanted = [Label(*label) for label in sample["labels"]]
    assert labels_of(tokens, len(tokens), SPELLINGS[sample["spelling"]]) == wanted


@pytest.mark.parametrize("sample", GOLDEN["samples"], ids=lambda sample: sample["name"])
def test_a_sample_reads_as_the_same_running_text(sample: dict[str, Any]) -> None:
    wanted = [Piece(*piece) for piece in sample["pieces"]]
    assert pieces_of(sample["tokens"], SPELLINGS[sample["spelling"]]) == wanted


def test_a_number_is_written_alike_everywhere() -> None:
    wanted = {str(value): texts for value, *texts in GOLDEN["numbers"]}
    found = {
        text: [
            cell_number(float(text), "weights"),
            cell_number(float(text), "scores"),
            list_number(float(text), "weights"),
            list_number(float(text), "scores"),
            list_number(float(text), "logit"),
            status_number(float(text)),
        ]
        for text in wanted
    }
    assert found == wanted
    assert sum(map(len, wanted.values())) >= 100


@pytest.mark.parametrize(("of", "wanted"), GOLDEN["legends"], ids=lambda part: None)
def test_a_legend_is_labeled_alike(of: dict[str, Any], wanted: list[tuple[float, str]]) -> None:
    found = legend_ticks(of["low"], of["high"], log=of["scale"] == "log", stage=of["stage"], min_gap=of["gap"])
    assert [tick.text for tick in found] == [text for _, text in wanted]
    for tick, (value, _) in zip(found, wanted, strict=True):
        assert math.isclose(tick.value, value, rel_tol=1e-12, abs_tol=0)  # a step or two of rounding


def test_stills_have_letters_for_the_name_of_each_stage() -> None:
    assert [one["legend"] for one in names()["stages"].values() if written(one["legend"]) is None] == []
