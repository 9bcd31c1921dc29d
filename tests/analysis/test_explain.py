"""Every step of one weight against the reference, and what rules and biases are said to do."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import Case, cases
from tolerance import approx, rounding, sums, together

from attnwidget import Attention, masks


@given(cases(longest=12, dtypes=(torch.float64,)), st.integers(0, 1000), st.integers(0, 1000))
def test_every_step_is_that_of_the_reference(case: Case, query: int, key: int) -> None:
    att = case.attention()
    batch, head = att.shape.B - 1, att.shape.H - 1
    query, key = query % att.shape.Q, key % att.shape.K
    found, wanted = att.explain(query, key, batch=batch, head=head), case.dense(batch, head)
    pairs = [("score", "scores"), ("scaled", "scaled"), ("capped", "capped"), ("masked", "masked")]
    within = case.rounding()
    for name, stage in [*pairs, ("weight", "weights"), ("contribution", "contribution")]:
        assert getattr(found, name) == approx(float(wanted[stage][query, key]), within[stage]), name
    assert found.products is not None
    assert float(found.products.sum()) == approx(found.score, within.scores)
    assert found.allowed == bool(wanted["allowed"][query, key])
    if found.allowed:
        assert found.log_normalizer == approx(float(wanted["normalizer"][query]), within.normalizer)
        assert found.maximum == approx(float(wanted["masked"][query].max()), within.masked)
    assert any(effect.blocks for effect in found.effects) == (not found.allowed)
    parts = wanted["contribution"][query]
    share = {"rtol": 2 * within.contribution["rtol"], "atol": 0.0}  # of a part, and of the sum that it is divided by
    assert found.share == (approx(float(parts[key] / parts.sum()), share) if parts.sum() > 0 else None)
    torch.testing.assert_close(found.output, att.output(batch, head)[query], **within.output)


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
    assert adds == {"mask": -0.25, "bias slope": -1.0}
    assert found.masked == approx(found.capped - 1.25, together(sums(2), size=abs(found.capped) + 1.25))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_bias_adds_its_own_number_and_not_the_difference_of_two_rounded_scores(dtype: torch.dtype) -> None:
    """In float32, 1000 − 0.1 differs from 1000 by 0.0999756."""
    q, k = torch.full((3, 1), 1000.0).to(dtype), torch.ones(3, 1).to(dtype)
    added = torch.tensor([[-0.1, 0.3, 7.7]], dtype=torch.float64)

    def by_table(score, b, h, q_idx, kv_idx):
        return score + added[0, kv_idx]

    def by_formula(score, b, h, q_idx, kv_idx):
        return score - 0.5 * (q_idx - kv_idx).abs()

    rounded = added.to(torch.promote_types(dtype, torch.float32))[0].tolist()
    for key in range(3):
        for keywords, number in (
            ({"mask": added.expand(3, 3)}, added[0, key].item()),
            ({"bias": added.expand(3, 3)}, added[0, key].item()),
            ({"bias": by_table}, rounded[key]),
            ({"bias": by_formula}, -0.5 * (2 - key)),
        ):
            (effect,) = Attention(q, k, scale=1.0, **keywords).explain(2, key).effects
            assert (effect.adds, effect.blocks) == (number, False)


def test_a_function_that_does_more_than_add_is_told_by_the_difference_it_makes() -> None:
    q, k = torch.full((1, 1), 8.0), torch.ones(1, 1)
    for function, number in (
        (lambda score, *at: score * 0.25 + 1, -5.0),
        (lambda score, *at: torch.where(score > 1, score + 2, score - 3), 2.0),
        (lambda score, *at: 64 / score, 0.0),  # of 0 it makes infinity
        (lambda score, *at: score * 1.0, 0.0),
    ):
        (effect,) = Attention(q, k, scale=1.0, bias=function).explain(0, 0).effects
        assert (effect.adds, effect.blocks) == (number, False)
    (effect,) = Attention(q, k, scale=1.0, bias=lambda score, *at: score - torch.inf).explain(0, 0).effects
    assert (effect.adds, effect.blocks) == (-torch.inf, True)


def test_the_output_projection_changes_the_share() -> None:
    q, k, v = torch.randn(3, 5, 4)
    w_o = torch.randn(4, 7)
    att = Attention(q, k, v)
    parts = (att.block(queries=2)[0][:, None] * v @ w_o).norm(dim=1)
    found = att.explain(2, 3, w_o=w_o)
    size = float((v.abs() @ w_o.abs()).norm(dim=1).max())  # what cancels in weight · v · W_O
    within = together(rounding(att).weights, sums(4), size=size)
    assert found.contribution == approx(float(parts[3]), within)
    of_sum = together(within, within, size=0)["atol"] * 5 / float(parts.sum())
    assert found.share == approx(float(parts[3] / parts.sum()), {"rtol": 0, "atol": of_sum})
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
