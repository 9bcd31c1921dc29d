"""Given weights without some keys: what is left of each row sums to 1 again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnwidget import Attention, AttentionWidget

W = torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(0)).softmax(-1)
LOWER = torch.ones(5, 5).bool().tril()


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"drop_keys": [0, 4]}, torch.tensor([False, True, True, True, False]).expand(5, 5)),
        ({"causal": True}, LOWER),
        ({"causal": "lower right", "window": 2}, LOWER & ~LOWER.tril(-2)),
        ({"drop_keys": [*range(5)]}, torch.zeros(5, 5).bool()),
    ],
)
def test_what_is_left_of_a_row_sums_to_one(changes: dict[str, Any], left: Tensor) -> None:
    kept = W[1, 2] * left
    expected = kept / kept.sum(-1, keepdim=True).clamp(min=1e-30)
    found = Attention.from_weights(W).what_if(changes)
    assert torch.allclose(found.block(batch=1, head=2), expected, atol=1e-7)
    w = AttentionWidget(W, ["[CLS]", "a", "b", "c", "[SEP]"], what_if=changes, batch=1, head=2)
    assert torch.allclose(w.attention.block(batch=1, head=2), W[1, 2])  # as given
    assert w.picture["high"] == pytest.approx(float(expected.max()), rel=1e-3)


@pytest.mark.parametrize("changes", [{"scale": 2.0}, {"temperature": 0.5, "drop_keys": [1]}, {"mask": False}])
def test_a_change_of_scores_is_refused_with_what_can_be_changed(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"only weights were given, so \w+ cannot be changed: give drop_keys, causal"):
        Attention.from_weights(W).what_if(changes)
