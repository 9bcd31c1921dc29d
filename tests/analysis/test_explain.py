"""Every step of one weight against the reference, and what rules and biases are said to do."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import Case, cases

from attnwidget import Attention, masks


@given(cases(longest=12, dtypes=(torch.float64,)), st.integers(0, 1000), st.integers(0, 1000))
def test_every_step_is_that_of_the_reference(case: Case, query: int, key: int) -> None:
    att = case.attention()
    batch, head = att.shape.B - 1, att.shape.H - 1
    query, key = query % att.shape.Q, key % att.shape.K
    found, wanted = att.explain(query, key, batch=batch, head=head), case.dense(batch, head)
    pairs = [("score", "scores"), ("scaled", "scaled"), ("capped", "capped"), ("masked", "masked")]
    for name, stage in [*pairs, ("weight", "weights"), ("contribution", "contribution")]:
        assert getattr(found, name) == pytest.approx(float(wanted[stage][query, key]), rel=1e-9, abs=1e-12), name
    assert found.products is not None
    assert float(found.products.sum()) == pytest.approx(found.score)
    assert found.allowed == bool(wanted["allowed"][query, key])
    if found.allowed:
        assert found.log_normalizer == pytest.approx(float(wanted["normalizer"][query]))
        assert found.maximum == pytest.approx(float(wanted["masked"][query].max()))
    assert any(effect.blocks for effect in found.effects) == (not found.allowed)
    parts = wanted["contribution"][query]
    assert found.share == (pytest.approx(float(parts[key] / parts.sum())) if parts.sum() > 0 else None)
    torch.testing.assert_close(found.output, att.output(batch, head)[query])


def test_the_rule_that_blocks_is_named() -> None:
    q, k = torch.randn(2, 3, 6, 4)
    names = {
        "causal: key ≤ query": {"is_causal": True},
        "window 2: |query − key| < 2": {"window": 2},
        "padding: key < 3": {"mask": masks.padding([6, 6, 3])},
        "mask": {"mask": torch.eye(6).bool()},
        "mask: 1 blocks": {"mask": torch.ones(6, 6).int() - torch.eye(6).int(), "mask_means": "hide"},
        "mask own": {"mask": named("own")},
        "bias": {"bias": torch.full((6, 6), -torch.inf)},
        "causal: key ≤ query and window 2: |query − key| < 2 or padding: key < 0": {
            "mask": masks.or_masks(masks.and_masks(masks.causal, masks.sliding_window(2)), masks.padding([0, 0, 0]))
        },
    }
    for name, keywords in names.items():
        found = Attention(q, k, **keywords).explain(1, 5, batch=2)
        assert [(effect.name, effect.blocks) for effect in found.effects] == [(name, True)]
        assert found.weight == 0
        assert not found.allowed


def named(name: str):
    def mask(b, h, q_idx, kv_idx):
        return kv_idx < q_idx

    mask.__name__ = name
    return mask


def test_what_is_added_is_said() -> None:
    q, k = torch.randn(2, 6, 4)

    def slope(score, b, h, q_idx, kv_idx):
        return score - 0.5 * (q_idx - kv_idx)

    found = Attention(q, k, mask=torch.full((6, 6), -0.25), bias=slope).explain(4, 2)
    adds = {effect.name: effect.adds for effect in found.effects}
    assert adds == {"mask": pytest.approx(-0.25), "bias slope": pytest.approx(-1.0)}
    assert found.masked == pytest.approx(found.capped - 1.25)


def test_the_output_projection_changes_the_share() -> None:
    q, k, v = torch.randn(3, 5, 4)
    w_o = torch.randn(4, 7)
    att = Attention(q, k, v)
    parts = (att.block(queries=2)[0][:, None] * v @ w_o).norm(dim=1)
    found = att.explain(2, 3, w_o=w_o)
    assert found.contribution == pytest.approx(float(parts[3]), rel=1e-5)
    assert found.share == pytest.approx(float(parts[3] / parts.sum()), rel=1e-5)
    with pytest.raises(ValueError, match=r"w_o has shape \(3, 7\) but a value has 4 numbers"):
        att.explain(2, 3, w_o=torch.randn(3, 7))


def test_given_weights_have_no_steps_before() -> None:
    found = Attention.from_weights(torch.tensor([[0.25, 0.75]])).explain(0, 1)
    assert (found.score, found.masked, found.log_normalizer, found.value) == (None, None, None, None)
    assert found.weight == 0.75
    assert found.allowed


def test_a_place_that_is_not_there() -> None:
    with pytest.raises(IndexError, match="key 9 is not there"):
        Attention(torch.zeros(2, 2), torch.zeros(3, 2)).explain(0, 9)
