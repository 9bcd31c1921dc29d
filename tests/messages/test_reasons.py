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
            tensors = {name: decode(reply[name], buffers) for name in ("terms", "apart") if name in reply}
            return {**reply, **tensors}


@pytest.fixture(scope="module")
def cap() -> Capture:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    return capture(model, sources=True).run(torch.randn(2, 60, 16))


def test_a_pair_is_its_largest_parts_and_the_rest(cap: Capture) -> None:
    found = ask_one(cap.attention, kind="why", layer=2, batch=1, head=3, query=50, key=7, against="others")
    own = cap.why(2, 3, 50, 7, against="others", batch=1)
    terms = found["terms"]
    assert (found["score"], found["subtracted"]) == (own.score, own.subtracted)
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
    assert found["mean"] == pytest.approx(float(means), abs=1e-4)
    others = cap.why_row(2, 1, 9, "others")
    assert others.subtracted is not None
    assert found["other_means"] == pytest.approx(others.subtracted[found["keys"]].tolist(), abs=1e-5)
    np.testing.assert_allclose(found["apart"].sum(0), others.scores[found["keys"]], atol=1e-4)


def test_the_sentence_about_each_key_has_its_largest_parts(cap: Capture) -> None:
    """Also where they are not among those of the largest keys, which are drawn."""
    found = ask_one(cap.attention, kind="why_row", layer=2, batch=0, head=0, query=30, keys=[3])
    labels = [part["label"] for part in found["parts"]]
    assert len(labels) > found["stacked"] == 8
    for against, of in (("none", None), ("others", "others"), ("mean", "mean"), ("3", 3)):
        row = cap.why_row(2, 0, 30, of)
        for key, leading in zip(found["keys"], found["leading"][against], strict=True):
            values = dict(zip([part.label for part in row.parts], row.terms[:, key].tolist(), strict=True))
            sizes = sorted(map(abs, values.values()), reverse=True)[:2]
            assert [abs(value) for _, value in leading] == pytest.approx(sizes, abs=1e-12)
            assert [values[labels[part]] for part, _ in leading] == pytest.approx(
                [value for _, value in leading], abs=1e-9
            )


def test_a_key_without_others_says_so(cap: Capture) -> None:
    """The first token of a text that looks back has only itself."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    mask = torch.nn.Transformer.generate_square_subsequent_mask(6)
    causal = capture(model, sources=True).run(torch.randn(1, 6, 16), mask=mask)
    with pytest.raises(ValueError, match="query 0 gives no weight to another key than 0"):
        causal.why(1, 2, 0, 0, "others")
    where = {"layer": 1, "batch": 0, "head": 2, "query": 0}
    pair = ask_one(causal.attention, kind="why", key=0, against="others", **where)
    assert (pair["ok"], "no mean of the other keys" in pair["nothing"]) == (True, True)
    row = ask_one(causal.attention, kind="why_row", keys=[], **where)
    assert np.isnan(row["apart"][:, 0]).all()
    assert (row["other_means"][0], row["leading"]["others"][0]) == (None, None)
    assert row["other_means"][1:] == pytest.approx([row["scores"][0]] * 5)
    masked = causal.why(1, 2, 0, 3, "others")
    assert masked.subtracted == pytest.approx(row["scores"][0], abs=1e-6)
    assert "does not look at" in masked.sentence


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
