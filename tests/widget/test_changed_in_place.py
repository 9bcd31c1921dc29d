"""Tensors that are changed in place: what is looked at again is of the numbers as they are now, whatever was kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from front_end import decode, decode_cells
from tolerance import rounding, sums

from attnwidget import Attention, AttentionStack, AttentionWidget, compare, segments
from attnwidget._engine import cost

pytestmark = pytest.mark.filterwarnings("ignore:.*changed in place")
B, H, G, Q, D = 2, 4, 1, 7, 3
KEEP = {"keep": {"policy": "window", "budget": 2, "sinks": 1}}


def tensors(n: int = Q) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(B, h, n, d, generator=make) for h, d in ((H, D), (G, D), (G, 5)))
    return q, k, v


def go_and_come_back(w: AttentionWidget) -> None:
    w.head = 1
    w.head = 0


def kinds(w: AttentionWidget) -> set[str]:
    return {one["kind"] for one in w.findings}


def test_findings_and_parity_are_found_again() -> None:
    q, k, v = tensors()
    w = AttentionWidget(q, k, v)
    assert kinds(w) == set()
    before = w.deviation
    q[0, 0, 3, 1] = torch.nan
    go_and_come_back(w)
    assert any("NaN" in one["message"] for one in w.findings)
    assert w.deviation != before
    q.copy_(tensors()[0])
    go_and_come_back(w)
    assert (kinds(w), w.deviation) == (set(), before)


def test_findings_under_other_rules_are_not_those_without() -> None:
    q, k, v = tensors()
    w = AttentionWidget(q, k, v)
    plain = w.findings, w.deviation
    w.what_if = {"scale": 0.0}
    assert w.findings != plain[0], "all weights are alike"
    flat = w.findings
    w.what_if = {"scale": -2.0}
    fresh = AttentionWidget(q, k, v, what_if={"scale": -2.0})
    assert (w.findings, w.deviation) == (fresh.findings, fresh.deviation)
    assert w.findings != flat
    w.what_if = {}
    assert (w.findings, w.deviation) == plain
    w.what_if = {"scale": 0.0}
    assert w.findings == flat


def test_the_picture_and_the_row_are_of_the_new_numbers() -> None:
    q, k, v = tensors()
    w = AttentionWidget(q, k, v, is_causal=True)
    q.mul_(-2)
    go_and_come_back(w)
    att = Attention(q.clone(), k, v, is_causal=True)
    found = np.nan_to_num(decode_cells(w.picture["values"], w.picture["blocked"])[0])
    np.testing.assert_allclose(found, att.block().numpy(), **rounding(att).weights)
    np.testing.assert_allclose(w.weights(3).numpy(), att.block(queries=3)[0].numpy(), **rounding(att).weights)


def test_a_pair_beside_the_original_is_explained_again() -> None:
    q, k, v = tensors()
    w = AttentionWidget(q, k, v, view="stages", query=5, key=2, what_if={"scale": 2.0})
    before = w.pair["original"]["score"]
    q.mul_(3)
    w.what_if = {"scale": 4.0}
    assert w.pair["original"]["score"] == pytest.approx(3 * before, rel=1e-5)
    assert w.pair["original"]["score"] == w.pair["score"]


def test_the_stages_are_drawn_again() -> None:
    q, k, v = tensors()
    w = AttentionWidget(q, k, v, view="stages", what_if={"scale": 2.0})
    q.mul_(3)
    w.what_if = {"scale": 4.0}
    att = Attention(q.clone(), k, v, scale=4.0)
    for small in w.stages["pictures"]:
        wanted = att.block(small["stage"]).numpy()
        np.testing.assert_allclose(decode(small["values"]), wanted, **rounding(att)[small["stage"]])


def test_stages_that_are_scaled_are_drawn_again() -> None:
    """Of larger heads another scale only multiplies what was drawn."""
    q, k, v = tensors(80)
    w = AttentionWidget(q, k, v, view="stages", what_if={"scale": 2.0})
    w.what_if = {"scale": 1.0}
    q.mul_(3)
    w.what_if = {"scale": 0.5}
    fresh = AttentionWidget(q.clone(), k, v, view="stages", what_if={"scale": 0.5})
    for one, other in zip(w.stages["pictures"], fresh.stages["pictures"], strict=True):
        assert one["high"] == pytest.approx(other["high"], rel=1e-5), one["stage"]


def test_masses_of_a_head_are_summed_again() -> None:
    q, k, v = tensors()
    parts = segments({"a": (1, 3), "answer": (3, Q)}, length=Q)
    w = AttentionWidget(q, k, v, segments=parts, view="segments")
    k.mul_(-2)
    go_and_come_back(w)
    wanted = Attention(q, k.clone(), v).by_segment(parts, head=0).mass
    np.testing.assert_allclose(decode(w.mass["mass"]), wanted, **sums(Q))


def test_links_and_small_pictures_are_made_again() -> None:
    q, k, v = tensors()
    w = AttentionWidget(q, k, v, view="graph")
    q.mul_(-2)
    w.batch = 1
    w.batch = 0
    fresh = AttentionWidget(q.clone(), k, v, view="graph")
    assert w.links == fresh.links
    assert w.thumbnails == fresh.thumbnails


def test_what_a_cache_keeps_is_measured_again() -> None:
    q, k, v = tensors()
    w = AttentionWidget(q, k, v, is_causal=True, what_if=KEEP)
    q.mul_(-2)
    go_and_come_back(w)
    fresh = AttentionWidget(q.clone(), k, v, is_causal=True, what_if=KEEP)
    assert w.recall == fresh.recall


@pytest.fixture
def long_from_few_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "AT_ONCE", 1000)


@pytest.mark.usefixtures("long_from_few_cells")
def test_the_exact_picture_of_a_long_head_is_not_shown_for_other_numbers() -> None:
    q, k, _ = tensors(600)
    w = AttentionWidget(q, k)
    w.finish()
    go_and_come_back(w)
    assert w.picture["sampled"] is None, "it is kept"
    q.mul_(-2)
    go_and_come_back(w)
    assert w.picture["sampled"] is not None


@pytest.mark.usefixtures("long_from_few_cells")
@pytest.mark.parametrize("side", ["A", "B"])
def test_the_exact_comparison_of_long_heads_is_not_shown_for_other_numbers(side: str) -> None:
    (q, k, _), (p, m, _) = tensors(600), tensors(600)
    w = compare(Attention(q, k), Attention(p, m, is_causal=True))
    w.finish()
    go_and_come_back(w)
    assert w.comparison["sampled"] is None, "it is kept"
    {"A": q, "B": m}[side].mul_(-2)
    go_and_come_back(w)
    assert w.comparison["sampled"] is not None


def test_a_comparison_is_computed_again() -> None:
    (q, k, v), (p, m, u) = tensors(), tensors()
    w = compare(Attention(q, k, v), Attention(p, m, u), query=4)
    assert float(np.abs(decode(w.comparison["change"]["values"])).max()) == 0
    p.mul_(-2)
    go_and_come_back(w)
    wanted = Attention(p.clone(), m, u).block() - Attention(q, k, v).block()
    np.testing.assert_allclose(decode(w.comparison["change"]["values"]), wanted.numpy(), rtol=0, atol=1e-5)


def test_metrics_are_those_of_the_new_numbers() -> None:
    q, k, v = tensors()
    w = AttentionWidget(q, k, v)
    w.metrics()
    q.mul_(0)
    assert [one["entropy"] for one in w.metrics(0)] == pytest.approx([float(np.log2(Q))] * H, rel=1e-5)


def test_masses_of_all_heads_are_summed_again_whichever_layer_has_changed() -> None:
    (q, k, v), (p, m, u) = tensors(), tensors()
    parts = segments({"a": (1, 3), "answer": (3, Q)}, length=Q)
    w = AttentionWidget(AttentionStack([Attention(q, k, v), Attention(p, m, u)]), segments=parts, view="segments")
    m.mul_(-2)
    w.asking = "a"
    w.asking = None
    wanted = AttentionStack([Attention(q, k, v), Attention(p, m.clone(), u)]).by_segment("answer", parts).mass
    np.testing.assert_allclose(decode(w.head_mass["mass"]), wanted[:, :, 0].flatten(0, 1), **sums(Q))


@pytest.mark.parametrize("leaves_by", [{"batch": 1}, {"view": "heatmap"}])
def test_all_heads_are_measured_again_whichever_layer_has_changed(leaves_by: dict[str, Any]) -> None:
    (q, k, v), (p, m, u) = tensors(), tensors()
    shown = {"stage": "contribution", "view": "heads"}
    w = AttentionWidget.from_attention(AttentionStack([Attention(q, k, v), Attention(p, m, u)]), **shown)
    before, sums_before = decode(w.survey["metrics"]["entropy"]), decode(w.stage_heads["sums"])
    p.mul_(0)
    for name, other in leaves_by.items():
        own = getattr(w, name)
        setattr(w, name, other)
        setattr(w, name, own)
    found, sums_found = decode(w.survey["metrics"]["entropy"]), decode(w.stage_heads["sums"])
    np.testing.assert_allclose(found, [*before[:H], *[np.log2(Q)] * H], rtol=1e-5)
    np.testing.assert_allclose(sums_found[:H], sums_before[:H], rtol=1e-5)
    even = float(u[0, 0].norm(dim=-1).mean())  # what equal weights bring: the mean length of the values
    np.testing.assert_allclose(sums_found[H:], even, rtol=1e-5)
