"""What each key receives: the mean of its column over the queries that may attend to it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tolerance import rounding
from torch.testing import assert_close

from attnwidget import Attention
from attnwidget._analysis import received


@pytest.mark.parametrize("queries", [None, 7])
@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"is_causal": True},
        {"mask": (torch.arange(40) > 3).expand(40, 40)},
        {"window": 5, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    ],
)
def test_it_is_the_mean_over_the_rows_that_may_see_the_key(
    rules: dict[str, Any], queries: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if queries is not None:
        monkeypatch.setattr(received, "QUERIES", queries)
    g = torch.Generator().manual_seed(0)
    att = Attention(*(torch.randn(2, 4, 40, 8, generator=g) for _ in range(3)), **rules)
    found = att.received(batch=-1)
    for head in range(4):
        weights, allowed = (att.block(stage, batch=1, head=head) for stage in ("weights", "allowed"))
        expected = weights.sum(0) / allowed.sum(0)
        assert_close(found[head], expected, equal_nan=True, **rounding(att).weights)
        assert_close(att.received(batch=1, head=head), found[head], equal_nan=True, rtol=0, atol=0)
    assert bool(found.isnan().any()) == ("mask" in rules)


def test_a_head_that_is_not_there_is_refused() -> None:
    with pytest.raises(IndexError, match="head 7 is not there"):
        Attention(*torch.randn(2, 3, 4)).received(head=7)


def test_given_weights_are_read_as_they_are() -> None:
    weights = torch.rand(2, 9, 6, generator=torch.Generator().manual_seed(1)).softmax(-1)
    assert_close(Attention.from_weights(weights[None]).received(), weights.mean(1), rtol=1e-6, atol=0)
