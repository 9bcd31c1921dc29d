"""Attention rollout beside a plain loop in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tolerance import sums

from attnwidget import Attention, AttentionStack, masks


def make(n: int = 9, layers: int = 4, **rules: Any) -> AttentionStack:
    g = torch.Generator().manual_seed(0)
    made = [Attention(*torch.randn(3, 2, 5, n, 8, generator=g) * 2, **rules) for _ in range(layers)]
    return AttentionStack(made)


def by_loop(stack: AttentionStack, batch: int, heads: Any, residual: float) -> Any:
    """Abnar & Zuidema 2020, §3, step by step."""
    found = None
    for att in stack:
        each = [att.block(batch=batch, head=head).double().numpy() for head in range(att.shape.H)]
        n = len(each[0])
        if heads == "mean":
            W = sum(each) / len(each)
        elif heads == "max":
            W = np.max(each, axis=0)
        else:
            W = sum(each[head] for head in heads) / len(heads)
        A = np.zeros((n, n))
        for i in range(n):
            row = W[i] / W[i].sum() if W[i].sum() > 0 else W[i]
            A[i] = (1 - residual) * row
            A[i, i] += residual
            A[i] /= A[i].sum()
        found = A if found is None else A @ found
    return found


@pytest.mark.parametrize("heads", ["mean", "max", [0, 3]])
@pytest.mark.parametrize("residual", [0.5, 0.2])
@pytest.mark.parametrize("rules", [{}, {"is_causal": True}, {"mask": masks.padding([9, 6])}])
def test_it_is_the_product_of_the_layers(heads: Any, residual: float, rules: Any) -> None:
    stack = make(**rules)
    for batch in (0, 1):
        found = stack.rollout(batch, heads, residual)
        within = sums(
            len(stack) * 9, size=0
        )  # of the same weights: a product of 9 terms and a row's sum, layer by layer
        np.testing.assert_allclose(found.block().numpy(), by_loop(stack, batch, heads, residual), **within)
        np.testing.assert_allclose(found.block().sum(1).numpy(), 1, **within)


def test_the_order_of_layers_matters_and_is_from_the_tokens_up() -> None:
    first, second = torch.zeros(3, 3), torch.zeros(3, 3)
    first[:, 0] = 1  # all tokens take from token 0, and only then everybody takes from token 2
    second[:, 2] = 1
    stack = AttentionStack([Attention.from_weights(first), Attention.from_weights(second)])
    assert stack.rollout(residual=0).block()[:, 0].tolist() == [1, 1, 1]


def test_what_cannot_be_rolled_out() -> None:
    square, longer = Attention(*torch.randn(2, 1, 4, 8)), Attention(*torch.randn(2, 1, 6, 8))
    cross = Attention(torch.randn(1, 4, 8), torch.randn(1, 5, 8))
    with pytest.raises(ValueError, match=r"decoder\.1 has 6 tokens but decoder\.0 has 4"):
        AttentionStack([square, longer], names=["decoder.0", "decoder.1"]).rollout()
    with pytest.raises(ValueError, match="layer 1 has 4 queries and 5 keys"):
        AttentionStack([square, cross]).rollout()
    long = AttentionStack([Attention(*torch.zeros(2, 1, 5000, 1))])
    with pytest.raises(ValueError, match="at most 4,096"):
        long.rollout()
    with pytest.raises(IndexError, match="layer 0: head 3 is not there"):
        AttentionStack([square]).rollout(heads=[3])
    with pytest.raises(ValueError, match="mean"):
        AttentionStack([square]).rollout(heads="median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="residual is 2"):
        AttentionStack([square]).rollout(residual=2)
    with pytest.raises(IndexError, match="batch 1"):
        AttentionStack([square]).rollout(1)
