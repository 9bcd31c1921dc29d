"""The strongest links equal a sort of the dense weights."""

from __future__ import annotations

import pytest
import torch
from carrying import carrying
from tolerance import rounding
from torch import Tensor

from attnwidget import Attention
from attnwidget._analysis.top_links import strongest
from attnwidget._engine.sources import CARRIED


def dense(att: Attention, side: str) -> Tensor:
    weights = att.block("weights", batch=0, head=1)
    return weights if side == "query" else weights.mT


@pytest.mark.parametrize("side", ["query", "key"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (5, 9), (600, 2500), (1, 4), (4, 1)])
def test_links_are_the_greatest_of_the_dense_weights(side: str, is_causal: bool, queries: int, keys: int) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(1, 2, queries, 8), torch.randn(1, 2, keys, 8)
    att = Attention(q, k, is_causal=is_causal)
    links = strongest(att.head(0, 1), count=3, side=side)
    whole = dense(att, side)
    wanted = whole.topk(min(3, whole.shape[1]), dim=1).values
    torch.testing.assert_close(links.weights, wanted, **rounding(att).weights)
    found = whole.gather(1, links.partners)
    torch.testing.assert_close(found * (links.weights > 0), links.weights, **rounding(att).weights)


def test_a_query_that_may_attend_to_nothing_has_links_of_weight_0() -> None:
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    att = Attention(*torch.randn(2, 1, 2, 4, 8), mask=mask)
    assert strongest(att.head(0, 0)).weights[2].tolist() == [0, 0, 0]
    assert strongest(att.head(0, 0), side="key").weights.isfinite().all()


@pytest.mark.parametrize("stage", ["contribution", *CARRIED])
@pytest.mark.parametrize("side", ["query", "key"])
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (600, 2500), (1, 4), (4, 1)])
def test_of_what_weights_carry_the_largest_by_size_have_their_signs(
    side: str, stage: str, queries: int, keys: int
) -> None:
    make = torch.Generator().manual_seed(0)
    q = torch.randn(1, 2, queries, 8, generator=make)
    k, v = torch.randn(2, 1, 2, keys, 8, generator=make)
    att = carrying(Attention(q, k, v, is_causal=True))
    links = strongest(att.head(0, 1), count=3, side=side, stage=stage)
    whole = att.block(stage, batch=0, head=1)
    whole = whole if side == "query" else whole.mT
    within = rounding(att)[stage]
    torch.testing.assert_close(whole.gather(1, links.partners) * (links.weights != 0), links.weights, **within)
    wanted = whole.abs().topk(min(3, whole.shape[1]), dim=1).values
    torch.testing.assert_close(links.weights.abs(), wanted, **within)
