"""Segments in a file without a kernel: what can be looked at there, and what the page would ask."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from front_end import decode

from attnwidget import Attention, AttentionStack, AttentionWidget
from attnwidget._export.page import saved_segments, snapshot
from attnwidget._export.page.snapshot import Snapshot, key_of
from attnwidget._export.view import SavedHead

N = 24


@pytest.fixture(autouse=True)
def _no_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the steps of each pair, which take long and have no segments."""
    monkeypatch.setattr(snapshot, "MAX_PAIR_CELLS", 0)
    monkeypatch.setattr(snapshot, "MAX_JACOBIANS", 0)


SEGMENTS = {"documents": {"doc 1": (1, 6), "doc 2": (6, 14)}, "question": (14, 18), "answer": (18, N)}


def widget(n: int = N, given: Any = SEGMENTS, **show: Any) -> AttentionWidget:
    source = torch.Generator().manual_seed(0)
    layers = [Attention(*(torch.randn(1, 2, n, 8, generator=source) for _ in range(3)), is_causal=True) for _ in "ab"]
    return AttentionWidget.from_attention(AttentionStack(layers), segments=given, **{"view": "segments", **show})


def saved(w: AttentionWidget, heads: list[SavedHead]) -> Snapshot:
    steps = snapshot.saving(w._export_view(), heads)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Snapshot = end.value
            return found


HEADS = [SavedHead(layer, 0, head) for layer in (0, 1) for head in (0, 1)]


def test_every_saved_head_has_its_masses_and_the_shown_one_other_places_too() -> None:
    w = widget(layer=1, head=1)
    file = saved(w, HEADS)
    masses = file.derived["mass"]
    assert masses["by"] == ["layer", "batch", "head", "asking", "segment_path", "stage"]
    for head in HEADS:
        w.layer, w.head = head.layer, head.head
        kept = masses["values"][key_of([*head, None, [], "weights"])]
        np.testing.assert_array_equal(decode(kept["mass"]), decode(w.mass["mass"]))
    own = [1, 0, 1]
    assert masses["values"][key_of([*own, "question", [], "weights"])]["asking"] == "question"
    assert masses["values"][key_of([*own, None, ["documents"], "weights"])]["path"] == ["documents"]
    assert key_of([0, 0, 0, "question", [], "weights"]) not in masses["values"]
    assert file.derived["head_mass"]["values"][key_of([0, 0, None, [], "weights"])]["share"] == 1
    held = file.derived["segments"]["values"][key_of([1, 0, "question"])]
    assert dict(zip(held["distinct"], held["colors"], strict=True))["question"] == 7
    state = file.whole("")["state"]
    assert (state["mass"]["head"], state["head_mass"]["total"]) == (1, 6)


def test_the_strongest_keys_of_the_pinned_segment_are_answered_from_the_file() -> None:
    w = widget(segment="documents")
    file = saved(w, HEADS[:1])
    of = file.derived["mass"]["values"][key_of([0, 0, 0, None, [], "weights"])]["id"]
    asked = {"kind": "segment_keys", "of": of, "query": 20, "column": 1, "count": 64}
    reply = file.replies[json.dumps(asked, sort_keys=True, separators=(",", ":"))]
    weights = w.weights(20)[1:14].numpy()
    np.testing.assert_array_equal(decode(reply["values"]), np.sort(weights)[::-1])


def test_all_windows_of_a_long_answer_are_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnwidget._messages.segments import segment_answers, segment_mass

    monkeypatch.setattr(segment_mass, "MAX_COLUMN_NUMBERS", 8)
    monkeypatch.setattr(segment_answers, "MAX_WINDOW", 12)
    monkeypatch.setattr(saved_segments, "MAX_WINDOW", 12)
    w = widget()
    file = saved(w, HEADS[:1])
    asked = [json.loads(name) for name in file.replies]
    assert [(one["start"], one["stop"]) for one in asked if one["kind"] == "segment_columns"] == [(2, 3), (3, 6)]
    assert [one["column"] for one in asked if one["kind"] == "segment_line"] == [0, 1, 2, 3]


def test_saving_leaves_what_is_shown_as_it_is() -> None:
    w = widget()
    before, heads = w.mass, w.head_mass
    saved(w, HEADS[:2])
    assert (w.mass is before, w.head_mass is heads) == (True, True)
    assert w._masses.find(before["id"]).number == before["id"]


def test_without_segments_nothing_is_saved_of_them_and_what_fails_says_why() -> None:
    plain = saved(widget(given=None, view="heatmap"), HEADS[:1])
    assert not {"mass", "head_mass", "segments"} & {*plain.derived}
    q, k = torch.randn(2, 2, 9, 8)
    w = widget()
    stack = AttentionStack([w.attention[0], Attention(q, k)])  # type: ignore[index]
    other = AttentionWidget.from_attention(stack, segments=SEGMENTS, view="segments")
    file = saved(other, [SavedHead(0, 0, 0), SavedHead(1, 0, 0)])
    masses = file.derived["mass"]["values"]
    assert masses[key_of([0, 0, 0, None, [], "weights"])]["error"] is None
    assert "there are tokens 0 to 8" in masses[key_of([1, 0, 0, None, [], "weights"])]["error"]
