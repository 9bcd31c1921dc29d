"""Weights with three axes and one list of tokens: heads, or one query for each head. The widget says which it read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnwidget import Attention, AttentionWidget

W = torch.rand(2, 4, 6, 6, generator=torch.Generator().manual_seed(0)).softmax(-1)
TEXT = list("abcdef")


@pytest.mark.parametrize(
    "make",
    [
        lambda x: AttentionWidget(x, TEXT),
        lambda x: AttentionWidget(x, tokens=TEXT),
        lambda x: AttentionWidget.from_weights(x, tokens=TEXT),
        lambda x: AttentionWidget(x.numpy(), TEXT),
    ],
)
def test_the_first_axis_of_a_squeezed_layer_is_heads(make: Any) -> None:
    w = make(W[1])
    assert "head 0 of 4" in repr(w)
    assert w.facts["axes_read"] == "hqk"
    assert torch.equal(w.attention.block(head=2), W[1, 2])


def test_the_last_token_s_row_is_one_query_of_each_head() -> None:
    w = AttentionWidget(W[:1, :, -1], TEXT)
    assert w.attention.shape[:5] == (1, 4, 4, 1, 6)
    assert (w.facts["axes_read"], w.key_tokens) == ("bhk", TEXT)
    assert torch.equal(Attention.from_weights(W[:, :, -1], dims="bhk").block(batch=1, head=3), W[1, 3, -1:])
    v = torch.randn(2, 4, 6, 3)
    assert torch.allclose(
        Attention.from_weights(W[:, :, -1], v, dims="bhk").output(1, 3), W[1, 3, -1:] @ v[1, 3], atol=1e-6
    )


@pytest.mark.parametrize("how", [{"tokens": [TEXT, TEXT]}, {"tokens": TEXT, "dims": "bqk"}, {}])
def test_texts_of_samples_or_named_axes_are_as_given(how: dict[str, Any]) -> None:
    w = AttentionWidget(W[:, 0], **how)
    assert "sample 0 of 2" in repr(w)
    assert w.facts["axes_read"] == (None if "dims" in how else "bqk")
