"""Answers in files: what was asked for stays, and what cannot be asked any more is said."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from attnwidget import Capture, capture
from attnwidget._analysis.why.reasons import run
from attnwidget._export.page import snapshot as snapshots
from attnwidget._export.view import SavedHead


@pytest.fixture
def cap() -> Capture:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    return capture(model, sources=True).run(torch.randn(2, 9, 16))


def test_what_was_asked_is_in_the_file(cap: Capture, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"layer": 1, "head": 1, "query": 8, "key": 3, "against": "others"}
    pair, row, composition = cap.why(**asked), cap.why_row(1, 0, 4, batch=1), cap.composition(at=5)
    cap.save(tmp_path / "run.safetensors")
    loaded = Capture.load(tmp_path / "run.safetensors")
    assert str(loaded.why(**asked)) == str(pair)
    assert torch.equal(loaded.why(**asked).terms, pair.terms)
    again = loaded.why_row(1, 0, 4, batch=1)
    assert (again.parts, again.rounding) == (row.parts, row.rounding)
    assert torch.equal(again.terms, row.terms)
    assert loaded.composition(at=5).records() == composition.records()
    with pytest.raises(
        ValueError, match="only the answers that were asked for before it was saved, 2 of them about this layer"
    ):
        loaded.why(1, 1, 8, 2)
    with pytest.raises(ValueError, match="only the answers"):
        loaded.composition()
    loaded.save(tmp_path / "again.safetensors")
    assert torch.equal(Capture.load(tmp_path / "again.safetensors").why(**asked).terms, pair.terms)


def test_a_file_of_a_capture_without_sources_says_how_to_get_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 5, 8)
    capture(model).run(x, x, x).save(tmp_path / "run.safetensors")
    with pytest.raises(ValueError, match="sources=True"):
        Capture.load(tmp_path / "run.safetensors").why(0, 0, 1, 2)


def test_the_bytes_of_the_sources_count(cap: Capture) -> None:
    hidden = 2 * 9 * 16 * 4
    qkv = 2 * 3 * hidden
    assert cap.nbytes == qkv + 6 * hidden  # the input in two orders of axes, and of each layer its heads and its MLP


def test_a_saved_page_has_the_answers(cap: Capture) -> None:
    """Those that were asked for, and those of the pinned pair."""
    w = cap.widget(layer=1, head=1, query=8, key=3, view="why")
    cap.why_row(1, 1, 2)
    cap.composition()
    view = w._export_view()
    steps = snapshots.saving(view, [SavedHead(layer, 0, head) for layer in range(2) for head in range(2)])
    saved = run(steps)
    of = {"batch": 0, "head": 1, "layer": 1}

    def name(**request: Any) -> str:
        return json.dumps(request, sort_keys=True, separators=(",", ":"))

    assert name(kind="why_row", query=8, keys=[], **of) in saved.replies
    assert name(kind="why_row", query=2, keys=[], **of) in saved.replies
    for against in ("others", "mean", None):
        assert name(kind="why", query=8, key=3, against=against, **of) in saved.replies
    assert name(kind="why_heads", batch=0, at=None) in saved.replies


def test_a_row_with_a_score_near_zero_has_its_parts(cap: Capture) -> None:
    """In the first layer a score is one part. If its dimensions cancel, only ‖q‖ ‖k‖ says how it is rounded."""
    for head, query in itertools.product(range(2), range(9)):
        row = cap.why_row(0, head, query)
        assert float((row.terms.sum(0) - row.scores).abs().max()) < 1e-5


FORGED: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {  # what an answer says, and what the refusal says
    "another question": ("answer to another one", lambda one: one.update(query=7)),
    "a question of another kind": ("has an answer of the kind", lambda one: one["asked"].__setitem__(0, "row")),
    "a question that is no list": ("is None, not a list", lambda one: one.update(asked=None)),
    "a key that is not there": ("key is 99", lambda one: (one.update(key=99), one["asked"].__setitem__(4, 99))),
    "true for a head": ("head is True", lambda one: (one.update(head=True), one["asked"].__setitem__(2, True))),
    "a list for a number": (r"weight is \[\], not a finite number", lambda one: one.update(weight=[])),
    "a number without end": ("score is inf", lambda one: one.update(score=float("inf"))),
    "no kind": ("'kind' is missing", lambda one: one.pop("kind")),
    "a tensor of another shape": ("in place of", lambda one: one["query_parts"].pop()),
    "a tensor of another type": ("holds int64", lambda one: one.update(terms="int")),
    "a tensor that is not finite": ("not finite", lambda one: one.update(terms="nan")),
    "a tensor that is not there": ("which is missing", lambda one: one.update(terms=["x"])),
    "a number for a name": ("is 5, not a text", lambda one: one["key_parts"][0].__setitem__(0, 5)),
    "a name of a megabyte": ("1,000,000 characters", lambda one: one["key_parts"][0].__setitem__(0, "a" * 10**6)),
    "a part of six": ("has 6 entries where 5", lambda one: one["key_parts"][0].append(1)),
}


def test_forged_answers_are_refused_when_a_file_is_loaded(cap: Capture, tmp_path: Path) -> None:
    cap.why(layer=1, head=1, query=8, key=3, against="mean")
    cap.composition()
    path = tmp_path / "run.safetensors"
    cap.save(path)
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        told = file.metadata()["attnwidget"]
    own = next(
        one
        for entry in json.loads(told)["forwards"][0]
        for one in entry["sources"]["answers"]
        if one["asked"][0] == "pair"
    )
    terms = tensors[own["terms"]]
    tensors |= {"int": terms.long(), "nan": terms * torch.nan}

    def refused(change: Callable[[list[dict[str, Any]]], Any]) -> str:
        metadata = json.loads(told)
        change([entry["sources"] for entry in metadata["forwards"][0]])
        save_file(tensors, path, {"attnwidget": json.dumps(metadata)})
        with pytest.raises(ValueError, match=r"give a file that Capture\.save wrote") as error:
            Capture.load(path)
        assert len(str(error.value)) < 500
        return str(error.value)

    for name, (words, change) in FORGED.items():
        said = refused(lambda of, change=change: change(of[1]["answers"][0]))
        assert re.search(words, said), (name, said)
    assert "two answers" in refused(lambda of: of[1]["answers"].append(of[1]["answers"][0]))
    assert "neither true nor false" in refused(lambda of: of[1]["layers"].update(other="yes"))
    assert "not among those" in refused(lambda of: of[1].update(name="other"))
    huge = refused(lambda of: of[0]["answers"][0]["heads"][1].__setitem__(1, 10**9))  # a page makes room for all heads
    assert "a head is 1000000000" in huge


def test_answers_that_are_not_finite_stay_out_of_a_file(cap: Capture, tmp_path: Path) -> None:
    found = cap.why(layer=1, head=1, query=8, key=3)
    cap.attention[1].sources.answers["pair", 0, 1, 8, 3, None] = replace(found, weight=float("nan"))
    cap.save(tmp_path / "run.safetensors")
    with pytest.raises(ValueError, match="none of them about this layer"):
        Capture.load(tmp_path / "run.safetensors").why(1, 1, 8, 3)
