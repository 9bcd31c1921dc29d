"""Attention rollout: how much each token reaches each other through all layers (Abnar & Zuidema 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._engine.base import AttentionBase
from .._engine.combined_heads import HOW, combined
from .._engine.matmul import exact
from .._engine.softmax import exact_block
from .._utils.indexing import as_index
from .._utils.validation import as_number

MAX_TOKENS = 4096  # tokens: the product is dense, and its time grows with n³


def rollout(layers: Sequence[AttentionBase], names: Sequence[str], batch: int, heads: Any, residual: float) -> Tensor:
    """Multiply the weights of all layers: see `AttentionStack.rollout`.

    Returns:
        (n, n) for n tokens; each row sums to 1.
    """
    residual = as_number(residual, "residual")
    if not 0 <= residual <= 1:
        raise ValueError(f"residual is {residual:g}: give the share of the residual connection, 0 to 1, such as 0.5")
    _check_lengths(layers, names)
    found: Tensor | None = None
    for name, att in zip(names, layers, strict=True):
        try:
            A = _mixed(att, as_index(batch, att.shape.B, "batch", "batches"), heads, residual)
        except (IndexError, TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from error
        found = A if found is None else A.to(found) @ found  # the first layer is nearest to the tokens
    assert found is not None
    return found


def _check_lengths(layers: Sequence[AttentionBase], names: Sequence[str]) -> None:
    """Raise ValueError unless all layers have the same tokens as queries and keys, and not too many."""
    n = layers[0].shape.Q
    for name, att in zip(names, layers, strict=True):
        Q, K = att.shape.Q, att.shape.K
        if Q != K:
            raise ValueError(
                f"{name} has {Q:,} queries and {K:,} keys: rollout follows tokens through self-attention, "
                "so give a stack of layers with as many of both"
            )
        if n != Q:
            raise ValueError(
                f"{name} has {Q:,} tokens but {names[0]} has {n:,}: give a stack of layers of one length, "
                "such as a slice"
            )
    if n > MAX_TOKENS:
        raise ValueError(
            f"there are {n:,} tokens, and rollout multiplies whole matrices: give at most {MAX_TOKENS:,}, such as "
            "a part of the text"
        )


def _mixed(att: AttentionBase, batch: int, heads: Any, residual: float) -> Tensor:
    """Return the matrix of a layer and its residual connection, (n, n); each row sums to 1."""
    one = combined(att, None, heads) if isinstance(heads, str) and heads in HOW else _listed(att, heads)
    with exact(one.device):
        W = exact_block(one, one.head(batch, 0).block(range(one.shape.Q)), "weights", None)
    W = W / W.sum(1, keepdim=True).masked_fill(W.sum(1, keepdim=True) == 0, 1)
    A = residual * torch.eye(len(W), dtype=W.dtype, device=W.device) + (1 - residual) * W
    return A / A.sum(1, keepdim=True).masked_fill(A.sum(1, keepdim=True) == 0, 1)


def _listed(att: AttentionBase, heads: Any) -> AttentionBase:
    if isinstance(heads, str) or heads is None:
        raise ValueError(f'heads is {heads!r}: give "mean", "max", or a list of heads to take the mean of')
    return combined(att, heads, "mean")
