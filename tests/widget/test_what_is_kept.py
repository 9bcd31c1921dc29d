"""What stays and what goes when the layer, the tensors, the tokens, the words or the rules become others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from front_end import FrontEnd, decode, decode_cells, decode_tokens
from tolerance import rounding

from attnwidget import Attention, AttentionStack, AttentionWidget, compare

ABC = ["a", "b", "c", "d", "e", "f", "g"]


def attention(B: int = 3, H: int = 8, Q: int = 5, K: int = 7, *, seed: int = 0, **rules: Any) -> Attention:
    make = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(B, h, n, d, generator=make) for h, n, d in ((H, Q, 4), (H // 2, K, 4), (H // 2, K, 6)))
    return Attention(q, k, v, **rules)


LESS = {"B": 2, "H": 4, "Q": 3, "K": 6}


def drawn(w: AttentionWidget) -> np.ndarray[Any, Any]:
    return decode_cells(w.picture["values"], w.picture["blocked"])[0]


# The selection.


@pytest.mark.parametrize("way", ["layer", "attention"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"batch": 1, "head": 3, "query": 2, "key": 5}, {"batch": 1, "head": 3, "query": 2, "key": 5}),
        ({"batch": 2, "head": 3, "query": 2, "key": 5}, {"batch": 0, "head": 3, "query": 2, "key": 5}),
        ({"batch": 1, "head": 4, "query": 2, "key": 5}, {"batch": 1, "head": 0, "query": 2, "key": 5}),
        ({"batch": 1, "head": 3, "query": 3, "key": 5}, {"batch": 1, "head": 3, "query": None, "key": 5}),
        ({"batch": 1, "head": 3, "query": 2, "key": 6}, {"batch": 1, "head": 3, "query": 2, "key": None}),
        ({"head": 3, "heads": [3, 4, 0]}, {"head": 3, "heads": [3, 0]}),
        ({"head": 4, "heads": [4, 3, 0]}, {"head": 0, "heads": [3, 0]}),
        ({"heads": [4, 3]}, {"head": 0, "heads": [0]}),
        ({"pins": [(2, 5), (3, 1), (1, 6), (None, 5)]}, {"pins": [(2, 5), (None, 5)], "query": None, "key": 5}),
        ({"pins": [(2, 5), (3, None)]}, {"pins": [], "query": None, "key": None}),
    ],
)
def test_what_is_still_there_stays_selected_to_the_last_place(
    before: dict[str, Any], after: dict[str, Any], way: str
) -> None:
    few = attention(**LESS)
    w = AttentionWidget.from_attention(AttentionStack([attention(), few]), **before)
    if way == "layer":
        w.layer = 1
    else:
        w.attention = few
    assert {name: getattr(w, name) for name in after} == after
    assert [w.picture[name] for name in ("layer", "batch", "head")] == [w.layer, w.batch, w.head]
    assert (w.picture["queries"], w.picture["keys"]) == (3, 6)


def test_fewer_layers_select_the_last() -> None:
    layers = [attention(seed=seed) for seed in range(4)]
    w = AttentionWidget.from_attention(AttentionStack(layers), layer=3, head=5)
    w.attention = AttentionStack(layers[:3])
    assert (w.layer, w.head) == (2, 5)
    w = AttentionWidget.from_attention(AttentionStack(layers), layer=3, head=5)
    w.attention = layers[1]
    assert (w.layer, w.head, w.facts["layers"]) == (0, 5, ["layer 0"])
    np.testing.assert_allclose(drawn(w), layers[1].block(head=5).numpy(), **rounding(layers[1]).weights)


def test_where_nothing_is_pinned_nothing_is_after_another_layer() -> None:
    w = AttentionWidget.from_attention(AttentionStack([attention(), attention(**LESS)]), head=2)
    w.layer = 1
    assert (w.query, w.key, w.pins, w.heads) == (None, None, [], [2])


# Tensors.


def test_a_title_of_ones_own_stays_and_one_that_tells_the_part_goes_with_it() -> None:
    part = attention().as_part((1, 4), None)
    w = AttentionWidget(part)
    assert w.title == "of the model: heads 1, 4"
    w.attention = attention()
    assert w.title == ""
    w.attention = part
    assert w.title == "of the model: heads 1, 4"
    w.title = "Mine"
    w.attention = attention()
    assert w.title == "Mine"


def test_layers_are_called_by_their_part() -> None:
    whole, part = attention(), attention(H=2).as_part((1, 4), None)
    w = AttentionWidget(AttentionStack([whole, part], names=["first", "second"]))
    assert w.facts["layers"] == ["first", "second (heads 1, 4)"]
    assert (w.facts["head_numbers"], w.facts["model_heads"]) == (None, [None, [1, 4]])
    assert w.title == "", "the layers have not all the same part"
    w.layer = 1
    assert w.facts["head_numbers"] == [1, 4]
    assert repr(w).startswith("AttentionWidget(layer 1 of 2, sample 0 of 3, head 0 of 2")
    assert AttentionWidget(whole).facts["model_heads"] is None


def test_an_update_that_is_refused_leaves_the_keywords_as_they_were() -> None:
    q, k, v = torch.randn(3, 4, 6)
    w = AttentionWidget(q, k, v, is_causal=True)
    with pytest.raises(ValueError, match="head size"):
        w.update(q, k[:, :2], v, is_causal=False)
    w.update(k, q, v)
    assert (w.attention.is_causal, w.attention.scale) == (True, 6**-0.5)  # type: ignore[union-attr]
    w.update(q, k, v, scale=-0.5)
    w.update(k, q, v)
    assert torch.equal(w.weights(3), Attention(k, q, v, is_causal=True, scale=-0.5).block(queries=3)[0])


def test_each_change_of_the_numbers_has_a_version_of_its_own() -> None:
    w = AttentionWidget(*torch.randn(3, 4, 6), tokens=["Ġa", "b", "Ġc", "d"])
    seen = [w.facts["version"]]
    for name, value in (("what_if", {"scale": 2.0}), ("pieces", "words"), ("what_if", {}), ("pieces", "pieces")):
        setattr(w, name, value)
        seen.append(w.facts["version"])
    w.update(*torch.randn(3, 4, 6))
    seen.append(w.facts["version"])
    assert seen == sorted(set(seen)), "tiles of one are never taken for those of another"


# Tokens and words.


def survey_of(w: AttentionWidget, name: str) -> Any:
    found = w.survey["metrics"][name]
    return None if found is None else decode(found).tolist()


@pytest.mark.parametrize("name", ["tokens", "key_tokens"])
def test_heads_are_measured_again_with_other_tokens(name: str) -> None:
    att = attention(Q=7)
    w = AttentionWidget(att, tokens=ABC, view="heads")
    assert np.isnan(survey_of(w, "same_token")).all() if survey_of(w, "same_token") else True
    others = ["a", "b", "a", "b", "c", "a", "c"]
    setattr(w, name, others)
    fresh = AttentionWidget(att, tokens=others, view="heads")
    assert survey_of(w, "same_token") == survey_of(fresh, "same_token")
    assert survey_of(w, "same_token") is not None
    assert [one["same_token"] for one in w.metrics(0)] == [one["same_token"] for one in fresh.metrics(0)]


def test_findings_follow_the_tokens() -> None:
    att = attention(B=1, H=2, Q=7)
    w = AttentionWidget(att, tokens=ABC)
    assert w.findings == AttentionWidget(att).findings
    padded = [*ABC[:5], "[PAD]", "[PAD]"]
    w.tokens = padded
    assert w.findings == AttentionWidget(att, tokens=padded).findings
    assert any("padding" in one["kind"] + one["message"] for one in w.findings)
    w.tokens = ABC
    assert w.findings == AttentionWidget(att).findings


def test_words_follow_the_tokens(front_end: FrontEnd) -> None:
    att = attention(Q=7)
    w = AttentionWidget(att, tokens=["Ġa", "b", "Ġc", "d", "e", "Ġf", "Ġg"], pieces="words")
    assert (w.facts["queries"], w.facts["keys"]) == (4, 4)
    w.tokens = ["Ġa", "Ġb", "Ġc", "d", "Ġe", "f", "Ġg"]
    merged = att.merge([0, 1, 2, 2, 3, 3, 4])
    assert w.facts["queries"] == 5
    np.testing.assert_allclose(drawn(w), merged.block().numpy(), **rounding(att).weights)
    assert decode_tokens(front_end.state(w)["tokens"]) == ["Ġa", "Ġb", "Ġcd", "Ġef", "Ġg"]


def test_words_of_each_sample_are_its_own(front_end: FrontEnd) -> None:
    att = attention(B=2, Q=7)
    samples = [["Ġa", "b", "Ġc", "d", "e", "Ġf", "Ġg"], ["Ġa", "Ġb", "Ġc", "d", "Ġe", "f", "Ġg"]]
    w = AttentionWidget(att, tokens=samples, pieces="words", batch=1, head=5)
    assert (decode_tokens(front_end.state(w)["tokens"]) or [])[:5] == ["Ġa", "Ġb", "Ġcd", "Ġef", "Ġg"]
    wanted = att.merge([0, 1, 2, 2, 3, 3, 4]).block(batch=1, head=5)
    np.testing.assert_allclose(drawn(w)[:5, :5], wanted.numpy(), **rounding(att).weights)
    w.batch = 0
    assert (decode_tokens(front_end.state(w)["tokens"]) or [])[:4] == ["Ġab", "Ġcde", "Ġf", "Ġg"]


def test_pins_go_to_words_and_back_to_their_first_pieces() -> None:
    queries, keys = ["Ġa", "b", "Ġc", "Ġd", "e"], ["Ġa", "Ġb", "c", "d", "Ġe", "Ġf", "g"]
    w = AttentionWidget(attention(), tokens=queries, key_tokens=keys, pins=[(1, 3), (None, 6), (4, 2)])
    w.pieces = "words"
    assert (w.facts["queries"], w.facts["keys"]) == (3, 4)
    assert w.pins == [(0, 1), (None, 3), (2, 1)]
    w.pieces = "pieces"
    assert w.pins == [(0, 1), (None, 5), (3, 1)]


def test_whether_there_are_pieces_is_told_of_either_side() -> None:
    whole, cut = ["Ġa", "Ġb", "Ġc", "Ġd", "Ġe"], ["Ġa", "Ġb", "c", "Ġd", "Ġe", "Ġf", "Ġg"]
    att = attention()
    assert AttentionWidget(att, tokens=whole, key_tokens=cut).facts["has_pieces"] is True
    assert AttentionWidget(att, tokens=whole).facts["has_pieces"] is False
    assert AttentionWidget(att).facts["has_pieces"] is False
    others = [whole, ["Ġa", "b", "Ġc", "Ġd", "Ġe"], whole]
    assert AttentionWidget(att, tokens=others).facts["has_pieces"] is True
    w = AttentionWidget(att, tokens=whole)
    w.tokens = others
    assert w.facts["has_pieces"] is True
    w.tokens = None
    assert w.facts["has_pieces"] is False


# Rules.


def test_pictures_under_other_rules_and_without_are_never_mixed() -> None:
    att = attention()
    w = AttentionWidget(att, head=5, heads=[5, 2], combine="mean")
    under = att.what_if({"scale": -1.0})
    for rules, of in (({"scale": -1.0}, under), ({}, att), ({"scale": -1.0}, under)):
        w.what_if = rules
        np.testing.assert_allclose(drawn(w), of.combine([5, 2]).block().numpy(), **rounding(under).weights)
        w.combine = "none"
        np.testing.assert_allclose(drawn(w), of.block(head=5).numpy(), **rounding(under).weights)
        w.combine = "mean"


def test_keys_that_are_dropped_by_negative_numbers_are_the_last_of_each_layer() -> None:
    stack = AttentionStack([attention(), attention(**LESS)])
    w = AttentionWidget.from_attention(stack, what_if={"drop_keys": [-1, 0]})
    assert w.what_if == {"drop_keys": [-1, 0]}
    for layer, last in ((0, 6), (1, 5)):
        w.layer = layer
        weights = w.weights(1)
        assert (float(weights[0]), float(weights[last])) == (0, 0)
        assert bool((weights[1:last] > 0).all())


def test_a_budget_of_all_keys_is_that_of_the_longest_layer() -> None:
    stack = AttentionStack([attention(Q=n, K=n, is_causal=True) for n in (6, 7, 5)])
    keep = {"keep": {"policy": "window", "budget": 1.0}}
    assert AttentionWidget.from_attention(stack, what_if=keep).what_if["keep"]["budget"] == 7


# A comparison.


def test_a_comparison_keeps_the_place_of_each_side() -> None:
    stack = AttentionStack([attention(seed=seed) for seed in range(3)])
    w = compare((stack, 0, 1), (stack, 1, 4), (stack, 2, 6))
    w.against_at = (0, 2, 7)
    w.against = "C"
    assert w.against_at == (2, 0, 6)
    w.against = "B"
    assert w.against_at == (0, 2, 7)
    w.against_at = None
    w.against = "C"
    w.against = "B"
    assert w.against_at is None


def test_other_tokens_bring_other_places_together() -> None:
    a, b = attention(B=1, Q=5), attention(B=1, Q=4, seed=1)
    keys = dict.fromkeys("AB", ABC)
    w = compare(a, b, tokens={"A": list("abcde"), "B": list("abxe")}, key_tokens=keys)
    assert decode(w.comparison["query_places"]["a"]).tolist() == [0, 1, 4]
    w.tokens = list("abxye")
    assert decode(w.comparison["query_places"]["a"]).tolist() == [0, 1, 2, 4]


# Image patches.


def test_patches_stand_where_the_selected_layer_has_them(front_end: FrontEnd) -> None:
    layers = AttentionStack([attention(B=2, Q=5, K=7), attention(B=2, Q=9, K=7), attention(B=2, Q=3, K=5)])
    images = [np.full((4, 6, 3), shade, np.uint8) for shade in (30, 200)]
    w = AttentionWidget.from_attention(layers, grid=(2, 3), image=images)
    sent = [front_end.state(w)["grid"]]
    for layer in (1, 2):
        w.layer = layer
        sent.append(front_end.state(w)["grid"])
    assert sent == [
        {"rows": 2, "columns": 3, "query": None, "key": 1},
        {"rows": 2, "columns": 3, "query": 3, "key": 1},
        None,
    ]
    w.layer, first = 1, front_end.state(w)["image"]
    w.batch = 1
    assert front_end.state(w)["image"] != first
    w.grid_start, w.grid_side = 2, "query"
    assert front_end.state(w)["grid"] == {"rows": 2, "columns": 3, "query": 2, "key": None}
    with pytest.raises(ValueError, match="patches after the first 2 but there are"):
        w.grid = (2, 4)
    assert (w.view, w.grid) == ("image", (2, 3))
    w.grid = None
    assert (w.view, front_end.state(w)["grid"], w.get_state("image")["image"]) == ("heatmap", None, None)


# Masses.


def test_the_masses_of_the_last_sixteen_places_are_kept(front_end: FrontEnd) -> None:
    w = AttentionWidget(attention(H=18, Q=7), segments={"a": (1, 3), "answer": (3, 7)}, view="segments")
    ids: dict[int, list[int]] = {}
    for head in (*range(16), 0, 16, 0, 2, 1):
        w.head = head
        ids.setdefault(head, []).append(w.mass["id"])
    assert ids[0] == [ids[0][0]] * 3, "the one that was looked at again and again stays"
    assert ids[2] == [ids[2][0]] * 2, "sixteen are kept"
    assert ids[1][0] != ids[1][1]
    each = {w.head_mass["id"], *(number for numbers in ids.values() for number in numbers)}
    assert len(each) == 19, "each has a number of its own"
    asked = {"kind": "segment_columns", "start": 0, "stop": 1}
    kept, gone = front_end.ask(w, {"id": "a", **asked, "of": ids[0][0]}, {"id": "b", **asked, "of": ids[1][0]})
    assert (kept["ok"], gone["error"]) == (True, "other segments are shown now: send the request again")
