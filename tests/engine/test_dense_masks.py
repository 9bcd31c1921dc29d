"""Masks and biases that are there cell by cell: whole rows at once, and the same numbers."""

import pytest
import torch
from reference import dense as by_the_book
from reference import pooled
from tolerance import rounding
from torch.testing import assert_close

from attnwidget._engine import dense_masks, overview
from attnwidget.attention import Attention

# In blocks of 4 queries and 5 keys: ragged at both ends, cell by cell, square, and bins wider than blocks.
SIZES = [(23, 31, 4), (11, 47, 100), (17, 17, 6), (7, 60, 2)]


@pytest.mark.parametrize("pool", ["max", "mean"])
@pytest.mark.parametrize("stage", ["weights", "contribution"])
@pytest.mark.parametrize("spread", [1.0, 40.0])  # scores on both sides of what needs the maximum taken off
@pytest.mark.parametrize(("queries", "keys", "size"), SIZES)
def test_a_dense_mask_and_bias_give_the_same_picture(
    queries: int, keys: int, size: int, spread: float, stage: str, pool: str, tiny_blocks: None
) -> None:
    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(n, d, generator=make) for n, d in ((queries, 8), (keys, 8), (keys, 3)))
    keep = torch.rand(queries, keys, generator=make) < 0.3
    keep[5] = False  # a query that may attend to nothing
    keep[:, keys // 2 :][: queries // 2] = False
    bias = torch.randn(queries, keys, generator=make)
    causal = torch.ones(queries, keys, dtype=torch.bool).tril()
    lowest = torch.finfo(torch.float32).min
    for keywords, allowed, added in (
        ({"mask": keep}, keep, None),
        ({"mask": keep, "is_causal": True}, keep & causal, None),
        ({"mask": bias.masked_fill(~keep, -torch.inf)}, keep, bias),
        ({"mask": bias.masked_fill(~keep, lowest)}, keep, bias),
        ({"bias": bias, "is_causal": True}, causal, bias),
        ({"bias": bias - 300.0}, None, bias - 300.0),
    ):
        att = Attention(q * spread, k, v, **keywords)
        assert dense_masks.serves(att.head(0, 0), range(queries), stage)
        seen = att.overview(size=size, pool=pool, stage=stage)
        matrix = by_the_book(q * spread, k, v, scale=8**-0.5, allowed=allowed, bias=added)
        values, opened = pooled(matrix, stage, pool, size)
        within = rounding(att, added=0.0 if added is None else float(added.abs().max()))
        assert_close(seen.values.double(), values, **within.pooled(stage, seen.query_bin * seen.key_bin))
        assert torch.equal(seen.allowed, opened)
        assert_close(att.log_normalizer().double(), matrix["normalizer"], **within.normalizer)


def test_nan_behind_a_dense_mask_stays_there() -> None:
    q, k = torch.randn(2, 60, 8)
    k[7] = torch.nan
    keep = torch.rand(60, 60) < 0.5
    keep[:30, 7], keep[30:, 7] = False, True
    seen = Attention(q, k, mask=keep).overview(size=6).values
    assert seen[:3].isfinite().all()
    assert seen[3:].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_block_a_cell_whatever_it_holds(dtype: torch.dtype) -> None:
    x = torch.tensor([[1.5, torch.nan, -torch.inf, torch.inf, -0.0, 7.0]] * 2, dtype=dtype)
    allowed = torch.tensor([[True] * 6, [False] * 6])
    found = x.clone()
    dense_masks.block_out(found, allowed)
    assert torch.equal(found[0].nan_to_num(99), x[0].nan_to_num(99))
    assert (found[1] == -torch.inf).all()


def test_where_nothing_is_there_cell_by_cell_blocks_go_the_usual_way() -> None:
    q, k = torch.randn(2, 50, 4)
    row = range(50)
    assert not dense_masks.serves(Attention(q, k, is_causal=True).head(0, 0), row, "weights")
    assert not dense_masks.serves(Attention(q, k, mask=torch.rand(1, 50) > 0.5).head(0, 0), row, "weights")
    mask = torch.rand(50, 50) > 0.5
    assert not dense_masks.serves(Attention(q, k, mask=mask).head(0, 0), row, "scores")
    assert not dense_masks.serves(Attention(q, k, mask=mask, softcap=2.0).head(0, 0), row, "weights")
    q[3] = torch.inf
    assert not dense_masks.serves(Attention(q, k, mask=mask).head(0, 0), row, "weights")


def test_a_pass_over_a_dense_mask_is_in_slices_too(tiny_blocks: None) -> None:
    att = Attention(*torch.randn(2, 30, 4), mask=torch.rand(30, 30) > 0.5)
    shares = list(overview.passes(att, 0, 0, seconds=0))
    assert len(shares) >= 30 * 30 // dense_masks.MAX_CELLS_AT_ONCE
    assert shares == sorted(shares)
    assert shares[-1] == 1
