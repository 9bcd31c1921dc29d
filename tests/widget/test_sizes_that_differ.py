"""Every number that is shown is that of its own layer, sample, head, query and key: no two of the sizes are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from front_end import BLOCKED, FrontEnd, decode, decode_cells
from reference import dense
from tolerance import Rounding, rounding, sums
from torch import Tensor

from attnwidget import Attention, AttentionStack, AttentionWidget, compare, segments

L, B, H, G, Q, K, D, DV = 2, 3, 8, 4, 5, 7, 6, 9
SCALE, SOFTCAP = -0.5, 1.5
MASKED = ("masked", "weights", "contribution")  # stages in which a blocked cell has no number

Numbers = np.ndarray[Any, Any]


def tensors(layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values, and which cells are allowed: (B, H, Q, K); each row has its first key."""
    make = torch.Generator().manual_seed(layer)
    q, k, v = (torch.randn(B, h, n, d, generator=make) for h, n, d in ((H, Q, D), (G, K, D), (G, K, DV)))
    allowed = torch.rand(B, H, Q, K, generator=make) > 0.3
    allowed[..., 0] = True
    return q, k, v, allowed


GIVEN = [tensors(layer) for layer in range(L)]
STACK = AttentionStack([Attention(q, k, v, mask=allowed, scale=SCALE, softcap=SOFTCAP) for q, k, v, allowed in GIVEN])
WITHIN: list[Rounding] = [rounding(att) for att in STACK]


def exact(layer: int, batch: int, head: int) -> dict[str, Any]:
    q, k, v, allowed = GIVEN[layer]
    group = head // (H // G)
    of_head = q[batch, head], k[batch, group], v[batch, group]
    return dense(*of_head, allowed=allowed[batch, head], scale=SCALE, softcap=SOFTCAP)


def near(found: Any, wanted: Tensor, bound: Any) -> None:
    assert np.shape(found) == tuple(wanted.shape)
    np.testing.assert_allclose(np.asarray(found, np.float64), wanted.numpy(), **bound)


@pytest.fixture
def w() -> AttentionWidget:
    return AttentionWidget.from_attention(STACK)


def test_facts_name_each_size(w: AttentionWidget) -> None:
    sizes = ("batches", "heads", "groups", "queries", "keys", "head_size", "value_size")
    assert [w.facts[name] for name in sizes] == [B, H, G, Q, K, D, DV]
    assert w.facts["layers"] == ["layer 0", "layer 1"]
    assert w.facts["stages"] == ["scores", "scaled", "capped", "masked", "weights", "contribution"]


@pytest.mark.parametrize(
    ("layer", "batch", "head", "stage"),
    [(0, 2, 7, "weights"), (1, 0, 3, "scores"), (0, 1, 6, "scaled"), (1, 2, 1, "capped"), (1, 1, 5, "masked"),
     (0, 0, 2, "contribution")],
)  # fmt: skip
def test_the_picture_is_of_its_head(w: AttentionWidget, layer: int, batch: int, head: int, stage: str) -> None:
    w.layer, w.batch, w.head, w.stage = layer, batch, head, stage
    found, kinds = decode_cells(w.picture["values"], w.picture["blocked"])
    wanted = exact(layer, batch, head)
    hidden = ~wanted["allowed"] if stage in MASKED else torch.zeros(Q, K, dtype=torch.bool)
    assert np.array_equal(kinds == BLOCKED, hidden.numpy())
    near(np.nan_to_num(found), wanted[stage].masked_fill(hidden, 0), WITHIN[layer][stage])
    assert [w.picture[name] for name in ("layer", "batch", "head", "stage")] == [layer, batch, head, stage]
    assert (w.picture["queries"], w.picture["keys"]) == (Q, K)


def test_small_pictures_are_those_of_all_heads_of_the_layer_and_sample(w: AttentionWidget) -> None:
    w.layer, w.batch = 1, 2
    values, kinds = decode_cells(w.thumbnails["values"])
    assert values.shape == (H, Q, K)
    for head in range(H):
        weights, allowed = (exact(1, 2, head)[name] for name in ("weights", "allowed"))
        assert np.array_equal(kinds[head] == BLOCKED, ~allowed.numpy())
        near(np.nan_to_num(values[head]), weights / weights.max(), {"rtol": 0, "atol": 0.51 / 250})
        assert float(decode(w.thumbnails["highs"])[head]) == pytest.approx(float(weights.max()), rel=1e-5)


def test_rows_and_columns_that_are_asked_for_are_of_their_head(w: AttentionWidget, front_end: FrontEnd) -> None:
    w = AttentionWidget.from_attention(STACK, layer=1)
    at = {"layer": 0, "batch": 2, "head": 5, "stage": "weights"}
    row, column = front_end.ask(
        w, {"id": "row", "kind": "row", "query": 4, **at}, {"id": "column", "kind": "column", "key": 6, **at}
    )
    weights = exact(0, 2, 5)["weights"]
    near(decode(row["values"]).ravel(), weights[4], WITHIN[0].weights)
    near(decode(column["values"]).ravel(), weights[:, 6], WITHIN[0].weights)
    w.layer, w.batch, w.head = 0, 2, 5
    near(w.weights(-1), weights[Q - 1], WITHIN[0].weights)


@pytest.mark.parametrize("direction", ["query", "key"])
def test_links_are_the_strongest_of_each_chosen_head(direction: str) -> None:
    chosen = [6, 1]
    w = AttentionWidget.from_attention(
        STACK, layer=1, batch=2, head=6, heads=chosen, view="graph", direction=direction, top_k=2
    )
    partners, numbers = decode(w.links["partners"]), decode(w.links["weights"])
    assert partners.shape == (2, Q if direction == "query" else K, 2)
    assert (w.links["heads"], w.links["side"]) == (chosen, direction)
    for at, head in enumerate(chosen):
        weights = exact(1, 2, head)["weights"]
        top = (weights if direction == "query" else weights.mT).topk(2)
        near(numbers[at], top.values, WITHIN[1].weights)
        there = top.values.numpy() > 0
        assert np.array_equal(partners[at][there], top.indices.numpy()[there])


def test_all_stages_and_the_pair_are_of_their_head(w: AttentionWidget) -> None:
    w.layer, w.batch, w.head, w.query, w.key = 1, 2, 7, 4, 6
    w.view = "stages"
    wanted = exact(1, 2, 7)
    for small in w.stages["pictures"]:
        stage = small["stage"]
        hidden = ~wanted["allowed"] if stage in MASKED else torch.zeros(Q, K, dtype=torch.bool)
        found = decode_cells(small["values"], small["blocked"])[0]
        near(np.nan_to_num(found), wanted[stage].masked_fill(hidden, 0), WITHIN[1][stage])
    q, k, v, _ = GIVEN[1]
    output = wanted["weights"] @ v[2, 3].double()
    near(decode(w.stages["output"]["values"]), output, WITHIN[1].output)
    assert (w.stages["output"]["rows"], w.stages["output"]["columns"]) == (Q, DV)
    near(decode(w.pair["products"]), q[2, 7, 4].double() * k[2, 3, 6].double(), sums(1))
    near(decode(w.pair["value"]), wanted["weights"][4, 6] * v[2, 3, 6].double(), WITHIN[1].output)
    near(decode(w.pair["output"]), output[4], WITHIN[1].output)
    near(decode(w.pair["row"]["values"]), wanted["weights"][4], WITHIN[1].weights)
    assert w.pair["scale"] == SCALE
    for name in ("score", "scaled", "capped"):
        stage = {"score": "scores"}.get(name, name)
        assert w.pair[name] == pytest.approx(float(wanted[stage][4, 6]), abs=WITHIN[1][stage]["atol"])
    assert w.pair["weight"] == pytest.approx(float(wanted["weights"][4, 6]), rel=1e-4)
    assert w.pair["allowed"] is bool(wanted["allowed"][4, 6])


def test_metrics_are_those_of_each_layer_sample_and_head(w: AttentionWidget) -> None:
    found = w.metrics()
    assert [(one["layer"], one["batch"], one["head"]) for one in found] == [
        (layer, batch, head) for layer in range(L) for batch in range(B) for head in range(H)
    ]
    w.view, w.batch = "heads", 2
    shown = {name: decode(w.survey["metrics"][name]) for name in ("entropy", "masked_share")}
    for one in found:
        wanted = exact(one["layer"], one["batch"], one["head"])
        entropy = float(torch.special.entr(wanted["weights"]).sum(1).mean()) / np.log(2)
        masked = float((~wanted["allowed"]).double().mean())
        bound = WITHIN[one["layer"]].entropy
        assert one["entropy"] == pytest.approx(entropy, abs=bound["atol"])
        assert one["masked_share"] == pytest.approx(masked, rel=1e-6)
        assert one["rows"] == Q
        if one["batch"] == 2:
            at = one["layer"] * H + one["head"]
            assert float(shown["entropy"][at]) == pytest.approx(entropy, abs=bound["atol"] + 1e-6)
            assert float(shown["masked_share"][at]) == pytest.approx(masked, rel=1e-6)
    assert [one["batch"] for one in w.metrics(1)] == [1] * (L * H)


def test_masses_are_those_of_each_segment_and_head() -> None:
    ours = segments({"a": (1, 2), "answer": (2, Q)}, length=Q)
    theirs = segments({"x": (1, 3), "y": (3, 4), "z": (4, K)}, length=K)
    rows, columns = [[0], [1], [2, 3, 4]], [[0], [1, 2], [3], [4, 5, 6]]
    w = AttentionWidget.from_attention(
        STACK, layer=1, batch=2, head=5, segments=ours, key_segments=theirs, view="segments"
    )
    assert (w.mass["rows"], w.mass["keys"]) == (["first token", "a", "answer"], ["first token", "x", "y", "z"])

    def sums_of(layer: int, head: int) -> Tensor:
        weights = exact(layer, 2, head)["weights"]
        return torch.stack([torch.stack([weights[row][:, own].sum(1).mean() for own in columns]) for row in rows])

    near(decode(w.mass["mass"]), sums_of(1, 5), sums(K))
    of_heads = torch.stack([sums_of(layer, head)[2] for layer in range(L) for head in range(H)])
    near(decode(w.head_mass["mass"]), of_heads, sums(K))
    w.asking = "a"
    near(decode(w.head_mass["mass"])[H + 5], sums_of(1, 5)[1], sums(K))


def test_several_heads_as_one_are_of_the_layer_and_sample() -> None:
    w = AttentionWidget.from_attention(STACK, layer=1, batch=2, head=7, heads=[7, 2, 4])
    w.combine = "mean"
    w.layer = 0
    of_first = torch.stack([exact(0, 2, head)["weights"] for head in (7, 2, 4)]).mean(0)
    near(np.nan_to_num(decode_cells(w.picture["values"], w.picture["blocked"])[0]), of_first, WITHIN[0].weights)
    w.layer = 1
    each = torch.stack([exact(1, 2, head)["weights"] for head in (7, 2, 4)])
    allowed = torch.stack([exact(1, 2, head)["allowed"] for head in (7, 2, 4)]).any(0)
    for how, wanted in (("mean", each.mean(0)), ("max", each.amax(0))):
        w.combine = how
        found, kinds = decode_cells(w.picture["values"], w.picture["blocked"])
        near(np.nan_to_num(found), wanted, WITHIN[1].weights)
        assert np.array_equal(kinds == BLOCKED, ~allowed.numpy())
        assert w.picture["head"] == f"{how} 2 4 7"
    w.stage = "scores"
    assert (w.picture["head"], w.picture["error"]) == (7, None), "only weights are put together"
    w.stage, w.view = "weights", "stages"
    assert (w.picture["head"], w.stages["head"]) == (7, 7)
    w.view, w.heads = "heatmap", [4]
    assert w.picture["head"] == 4


def test_a_comparison_is_of_the_place_of_each_side() -> None:
    w = compare((STACK, 0, 6), (STACK, 1, 1), query=4)
    w.against_at = (1, 2, 3)
    a, b = exact(0, 0, 6), exact(1, 2, 3)
    both = a["allowed"] | b["allowed"]
    found, kinds = decode_cells(w.comparison["change"]["values"], w.comparison["change"]["blocked"])
    assert np.array_equal(kinds == BLOCKED, ~both.numpy())
    bound = {"rtol": 0, "atol": WITHIN[0].weights["rtol"] + WITHIN[1].weights["rtol"] + 1e-7}
    near(np.nan_to_num(found), (b["weights"] - a["weights"]).masked_fill(~both, 0), bound)
    places = decode(w.changes["places"]).astype(int)
    near(decode(w.changes["b"]["values"]), b["weights"][4, places], WITHIN[1].weights)


def test_a_widget_that_went_through_all_is_as_one_made_there(w: AttentionWidget) -> None:
    """Nothing of another layer, sample or head is left under a like number."""
    for layer, batch, head in ((1, 1, 1), (0, 2, 2), (1, 2, 4), (0, 1, 7)):
        w.layer, w.batch, w.head = layer, batch, head
        fresh = AttentionWidget.from_attention(STACK, layer=layer, batch=batch, head=head)
        for view in ("graph", "stages", "heads", "heatmap"):
            w.view = fresh.view = view
            for name in ("picture", "thumbnails", "survey", "links", "stages", "findings", "deviation", "facts"):
                assert getattr(w, name) == getattr(fresh, name), (name, view, layer, batch, head)
        fresh.close()


def test_questions_about_several_heads_as_one_are_answered_of_them_alone(front_end: FrontEnd) -> None:
    w = AttentionWidget.from_attention(STACK, layer=1, batch=2, head=7, heads=[7, 2, 4], combine="mean")
    at = {"layer": 1, "batch": 2, "head": "mean 2 4 7", "stage": "weights"}
    row, other, elsewhere = front_end.ask(
        w,
        {"id": "row", "kind": "row", "query": 4, **at},
        {"id": "other", "kind": "row", "query": 4, **at, "head": "mean 2 4"},
        {"id": "pass", "kind": "pass", "action": "stop", **at, "layer": 0},
    )
    wanted = torch.stack([exact(1, 2, head)["weights"][4] for head in (2, 4, 7)]).mean(0)
    near(decode(row["values"]).ravel(), wanted, WITHIN[1].weights)
    assert other["error"] == "other heads are selected now"
    assert elsewhere["error"] == "another picture is selected now"
