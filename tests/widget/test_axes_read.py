"""Three axes without names are a batch, and whoever meant heads is told."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from attnwidget import Attention, AttentionStack, AttentionWidget, compare

Q = torch.randn(4, 6, 8)
W = torch.randn(4, 6, 6).softmax(-1)


@pytest.mark.parametrize(
    ("made", "read"),
    [
        (lambda: AttentionWidget(Q, Q, Q), "bqd"),
        (lambda: AttentionWidget([Q, Q], [Q, Q]), "bqd"),
        (lambda: AttentionWidget(W), "bqk"),
        (lambda: AttentionWidget.from_weights(W.numpy()), "bqk"),
        (lambda: AttentionWidget.from_attention(Attention.from_scores(W)), "bqk"),
        (lambda: AttentionWidget(AttentionStack([Attention(Q, Q)])), "bqd"),
        (lambda: compare(Attention(Q, Q), Attention(Q, Q, is_causal=True)), "bqd"),
        (lambda: AttentionWidget(copy.copy(Attention(Q, Q))), "bqd"),
        (lambda: AttentionWidget(pickle.loads(pickle.dumps(Attention(Q, Q)))), "bqd"),
        (lambda: AttentionWidget(Q, Q, what_if={"scale": 1.0}), "bqd"),
        (lambda: AttentionWidget(Q, Q, dims="bqd"), None),
        (lambda: AttentionWidget(Q, Q, dims="hqd"), None),
        (lambda: AttentionWidget(W, dims="hqk"), None),
        (lambda: AttentionWidget(Q[:1], Q[:1]), None),
        (lambda: AttentionWidget(Q[0], Q[0]), None),
        (lambda: AttentionWidget(Q[:, None], Q[:, None]), None),
    ],
)
def test_the_front_end_is_told_how_three_axes_were_read(made: Any, read: str | None) -> None:
    assert made().facts["axes_read"] == read


def test_other_tensors_say_it_anew() -> None:
    w = AttentionWidget(Q, Q)
    w.update(Q[None], Q[None])
    assert w.facts["axes_read"] is None
    assert (w.facts["batches"], w.facts["heads"]) == (1, 4)


def test_the_repr_tells_samples_and_heads() -> None:
    assert repr(AttentionWidget(Q, Q)) == (
        "AttentionWidget(layer 0 of 1, sample 0 of 4, head 0 of 1, 6 queries × 6 keys)"
    )
    assert repr(AttentionWidget(Q, Q, dims="hqd", head=3)) == (
        "AttentionWidget(layer 0 of 1, head 3 of 4, 6 queries × 6 keys)"
    )
    assert "sample 1 of 4, head 0 of 1" in repr(compare(Attention(Q, Q), Attention(Q, Q), batch=1))
    assert repr(Attention(Q, Q)).startswith("Attention(4 samples × 1 head, 6 queries")
    assert repr(Attention(Q, Q, dims="hqd")).startswith("Attention(1 sample × 4 heads, 6 queries")
