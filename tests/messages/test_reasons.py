"""Requests about why a head looked there: the answers, their rest, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from front_end import Desk, decode

from attnwidget import Attention, AttentionStack, Capture, capture
from attnwidget._messages.answers import requests


def ask_one(stack: AttentionStack, **question: Any) -> dict[str, Any]:
    """Return the complete answer to a request, which may come in slices."""
    desk = Desk(stack)
    while True:
        answered = requests.answer(desk, {"requests": [{"id": "a", **question}]})
        assert answered is not None
        message, buffers = answered
        (reply,) = json.loads(json.dumps(message, allow_nan=False))["replies"]
        if reply.get("share", 1) == 1:
            return {**reply, "terms": decode(reply["terms"], buffers)} if "terms" in reply else reply


@pytest.fixture(scope="module")
def cap() -> Capture:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    return capture(model, sources=True).run(torch.randn(2, 60, 16))


def test_a_pair_is_its_largest_parts_and_the_rest(cap: Capture) -> None:
    found = ask_one(cap.attention, kind="why", layer=2, batch=1, head=3, query=50, key=7, against="mean")
    own = cap.why(2, 3, 50, 7, against="mean", batch=1)
    terms = found["terms"]
    assert found["share"] == 1
    assert terms.shape == (len(found["query_parts"]) + 1, len(found["key_parts"]) + 1) == (13, 13)
    assert float(terms.sum()) == pytest.approx(own.score, abs=1e-4)
    labels = [part.label for part in own.key_parts]
    sums = dict(zip(labels, own.by_key.tolist(), strict=True))
    drawn = terms.sum(0)[:-1].tolist()
    assert [sums[part["label"]] for part in found["key_parts"]] == pytest.approx(drawn, abs=1e-5)
    assert found["more"] == [len(own.query_parts) - 12, len(labels) - 12]
    heads = [part for part in found["key_parts"] if part["kind"] == "head"]
    assert all(part["label"] == f"{part['layer']}·{part['head']}" for part in heads)


def test_a_row_has_the_wanted_keys_and_those_of_largest_weight(cap: Capture) -> None:
    weights = cap.attention[2].block(batch=0, head=1, queries=9)[0]
    least = int(weights.argmin())
    found = ask_one(cap.attention, kind="why_row", layer=2, batch=0, head=1, query=9, keys=[least])
    row = cap.why_row(2, 1, 9)
    assert least in found["keys"]
    assert {*weights.topk(47).indices.tolist()} <= {*found["keys"]}
    assert len(found["keys"]) == 48
    assert found["others"] == 12
    np.testing.assert_allclose(found["terms"].sum(0), row.scores[found["keys"]], atol=1e-4)
    means = (row.terms @ row.weights).sum()
    assert sum(found["means"]) == pytest.approx(float(means), abs=1e-4)


def test_the_graph_has_the_edges_of_the_composition(cap: Capture) -> None:
    found = ask_one(cap.attention, kind="why_heads", batch=1, at=None)
    composition = cap.composition(batch=1)
    edges = {
        (e.source.label, e.layer, e.head, e.side): e.share for e in composition.edges if abs(e.share) >= found["least"]
    }
    sent = {
        (found["parts"][part]["label"], *into, side): share
        for part, into, side, share in zip(found["from"], found["into"], found["side"], found["shares"], strict=True)
    }
    assert sent == pytest.approx(edges)
    assert found["queries"] == 60


@pytest.mark.parametrize(
    ("request_of", "why"),
    [
        ({"kind": "why", "query": 0, "key": 99, "against": None}, "key 99 is out of range"),
        ({"kind": "why", "query": 0, "key": 1, "against": "max"}, "against 'max' is out of range"),
        ({"kind": "why_row", "query": 0, "keys": [70]}, "keys 70 is out of range"),
        ({"kind": "why_row", "query": 0, "keys": [0] * 25}, "at most 24 positions"),
        ({"kind": "why_heads", "at": 99}, "at 99 is out of range"),
    ],
)
def test_what_makes_no_sense_is_refused(cap: Capture, request_of: dict[str, Any], why: str) -> None:
    found = ask_one(cap.attention, **{"layer": 1, "batch": 0, "head": 0, **request_of})
    assert found["ok"] is False
    assert why in found["error"]


def test_an_attention_without_sources_says_how_to_get_them() -> None:
    plain = AttentionStack([Attention(*torch.zeros(2, 3, 4))])
    pair, row = {"kind": "why", "query": 0, "key": 0, "against": None}, {"kind": "why_row", "query": 0, "keys": []}
    for request_of in (pair, row, {"kind": "why_heads", "at": None}):
        assert "capture(model, sources=True)" in ask_one(plain, layer=0, batch=0, head=0, **request_of)["error"]
