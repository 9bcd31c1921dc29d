"""Gradients against autograd, for random shapes, masks, biases and softcaps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import Case, cases
from tolerance import sums

from attnwidget import Attention, masks
from attnwidget._analysis import gradients


def by_autograd(case: Case, batch: int, head: int, by_output: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same, dense, of one head, with everything before the softmax written out."""
    group = head // (case.q.shape[1] // case.k.shape[1])
    q, k, v = (
        x.double().clone().requires_grad_() for x in (case.q[batch, head], case.k[batch, group], case.v[batch, group])
    )
    scores = q @ k.mT
    scores.retain_grad()
    scale = case.keywords.get("scale")
    scaled = scores * (q.shape[1] ** -0.5 if scale is None else scale)
    softcap = case.keywords.get("softcap")
    capped = scaled if softcap is None else softcap * torch.tanh(scaled / softcap)
    allowed = case.allowed[batch, head]
    masked = (capped * case.factor + case.bias[batch, head]).masked_fill(~allowed, -1e300)
    weights = torch.softmax(masked, 1).masked_fill(~allowed, 0)
    weights = weights.masked_fill(~allowed.any(1, keepdim=True), 0)
    weights.retain_grad()
    (weights @ v).backward(by_output)
    return {"q": q.grad, "k": k.grad, "v": v.grad, "weights": weights.grad, "scores": scores.grad}


@given(cases(dtypes=(torch.float64,)), st.integers(0, 2**16))
def test_gradients_are_autograds(case: Case, seed: int) -> None:
    att = case.attention()
    batch, head = att.shape.B - 1, att.shape.H - 1
    make = torch.Generator().manual_seed(seed)
    by_output = torch.randn(att.shape.Q, att.shape.Dv, generator=make, dtype=torch.float64)
    found = att.gradients(by_output, batch=batch, head=head)
    for name, wanted in by_autograd(case, batch, head, by_output).items():
        # both in float64, where rounding is a ten-thousandth of this
        torch.testing.assert_close(getattr(found, name), wanted, rtol=1e-10, atol=1e-10, msg=name)


def test_stripes_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    att = Attention(*torch.randn(3, 50, 8, dtype=torch.float64), is_causal=True)
    whole = att.gradients()
    monkeypatch.setattr(gradients, "STRIPE", 7 * 50)
    for name in ("q", "k", "v", "weights", "scores"):
        one, other = getattr(att.gradients(), name), getattr(whole, name)
        size = 50 * 8 * float(other.abs().max())  # of what may cancel: a sum over queries or keys of sums over features
        torch.testing.assert_close(one, other, **sums(50 + 8, size, torch.float64))


def test_long_heads_keep_no_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "DENSE", 100)
    found = Attention(*torch.randn(3, 50, 8)).gradients()
    assert found.weights is None
    assert found.scores is None
    assert found.q is not None
    assert found.q.shape == (50, 8)


def test_half_types_in_float32() -> None:
    found = Attention(*torch.randn(3, 5, 8, dtype=torch.bfloat16)).gradients()
    assert found.q is not None
    assert found.q.dtype == torch.float32


def test_an_empty_row_has_no_gradient() -> None:
    q, k, v = torch.randn(3, 4, 8)
    found = Attention(q, k, v, mask=torch.tensor([[1, 1, 0, 0]] * 3 + [[0] * 4]).bool()).gradients()
    assert found.q is not None
    assert found.scores is not None
    assert found.q[3].eq(0).all()
    assert found.scores[:, 2:].eq(0).all()


def test_a_blocked_nan_does_not_reach_the_gradients() -> None:
    q, k, v = torch.randn(3, 4, 8)
    v[3] = torch.nan
    k[3] = torch.nan
    found = Attention(q, k, v, mask=masks.padding([3])).gradients()
    assert found.q is not None
    assert found.q.isfinite().all()
    assert found.scores is not None
    assert found.scores.isfinite().all()


def test_given_scores_and_given_weights() -> None:
    scores, v = torch.randn(4, 6, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    tracked = scores.clone().requires_grad_()
    (torch.softmax(tracked, 1) @ v).sum().backward()
    found = Attention.from_scores(scores, v).gradients()
    assert found.q is None
    assert found.k is None
    torch.testing.assert_close(found.scores, tracked.grad)
    given_weights = Attention.from_weights(torch.softmax(scores, 1), v).gradients()
    assert given_weights.scores is None
    torch.testing.assert_close(given_weights.weights, torch.ones(4, 3, dtype=torch.float64) @ v.mT)


def test_the_jacobian_is_autograds() -> None:
    att = Attention(*torch.randn(3, 6, 8, dtype=torch.float64), is_causal=True)
    masked = att.block("masked", queries=3)[0]
    wanted = torch.autograd.functional.jacobian(lambda s: torch.softmax(s, 0), masked[:4])
    found = att.jacobian(3)
    torch.testing.assert_close(found[:4, :4], wanted)
    assert found[4:].eq(0).all()
    assert found[:, 4:].eq(0).all()
    torch.testing.assert_close(found.sum(1), torch.zeros(6, dtype=torch.float64))


def test_what_cannot_be() -> None:
    att = Attention(*torch.randn(2, 4, 8))
    with pytest.raises(ValueError, match="no v"):
        att.gradients()
    with pytest.raises(ValueError, match=r"grad_output has shape \(4, 7\) but the output of a head is \(4, 8\)"):
        Attention(*torch.randn(3, 4, 8)).gradients(torch.ones(4, 7))
    with pytest.raises(IndexError):
        att.jacobian(4)
    with pytest.raises(ValueError, match="25,000,000"):
        Attention(torch.zeros(1, 1), torch.zeros(5000, 1)).jacobian(0)
