"""Heads seen from afar: every bin is that of the dense matrix, at any length, without ever building it."""

import itertools

import numpy as np
import pytest
import torch
from allocations import Largest
from carrying import carrying
from hypothesis import given
from hypothesis import strategies as st
from reference import Case, cases, dense, pooled
from tolerance import rounding
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from attnwidget import masks
from attnwidget._engine import (
    dense_masks,
    fused,
    fused_pass,
    overview,
    pooling,
    softmax,
    stages,
    stripe_choice,
    stripes,
)
from attnwidget._engine.regions import TileAddress
from attnwidget._rules import rules
from attnwidget.attention import STAGES, Attention
from examples import examples

POOLS = ("max", "mean")


@given(cases(longest=50), st.integers(1, 60), st.sampled_from(STAGES), st.sampled_from(POOLS))
@examples(100)
def test_every_bin_is_that_of_the_dense_matrix(case: Case, size: int, stage: str, pool: str) -> None:
    head = case.q.shape[1] - 1
    seen = case.attention().overview(head=head, size=size, pool=pool, stage=stage)
    values, allowed = pooled(case.dense(0, head), stage, pool, size)
    cells = seen.query_bin * seen.key_bin
    assert_close(seen.values.double(), values, **case.rounding().pooled(stage, cells))
    assert torch.equal(seen.allowed, allowed)
    assert max(seen.values.shape) <= size


@pytest.mark.parametrize(
    ("queries", "keys", "size"),
    [
        (11, 42, 8),  # several blocks both ways, ragged ends
        (11, 42, 1),  # bins larger than blocks
        (7, 45, 2),
        (1, 30, 25),
        (30, 1, 25),
        (5, 6, 100),  # a block and one more
        (4, 5, 100),
    ],
)
def test_blocks_and_bins_need_not_agree(queries: int, keys: int, size: int, tiny_blocks: None) -> None:
    q, k = torch.randn(queries, 4, generator=torch.manual_seed(1)), torch.randn(keys, 4)
    v = torch.randn(keys, 3)
    causal = torch.arange(keys) <= torch.arange(queries)[:, None]
    for is_causal, allowed in ((True, causal), (False, None)):
        expected = dense(q, k, v, scale=0.5, allowed=allowed)  # takes longer than all that it is compared with
        for stage, pool in itertools.product(STAGES, POOLS):
            case = f"{stage}, {pool}, {'causal' if is_causal else 'full'}"
            att = carrying(Attention(q, k, v, is_causal=is_causal))
            seen = att.overview(size=size, pool=pool, stage=stage)
            values, open_bins = pooled(expected, stage, pool, size)
            within = rounding(att).pooled(stage, seen.query_bin * seen.key_bin)
            assert_close(seen.values.double(), values, **within, msg=f"{case}: {{}}".format)
            assert torch.equal(seen.allowed, open_bins), case


@pytest.mark.parametrize("blocks", [(3, 5), (4, 4), (1, 1), (7, 2)])
def test_any_size_of_block_gives_the_same_picture(blocks: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = torch.randn(3, 2, 23, 4)
    mask = torch.rand(2, 23, 23) > 0.4
    expected = carrying(Attention(q, k, v, mask=mask, is_causal=True))
    wanted = [expected.overview(1, size=6, pool=pool, stage=stage) for pool in POOLS for stage in STAGES]
    output = expected.output(1)
    for module in (softmax, overview, pooling, stages):
        monkeypatch.setattr(module, "QUERIES", blocks[0])
    for module in (pooling, stripes, stages):
        monkeypatch.setattr(module, "KEYS", blocks[1])
    monkeypatch.setattr(rules, "MIN_INNER_KEYS", 1)
    att = carrying(Attention(q, k, v, mask=mask, is_causal=True))
    seen = [att.overview(1, size=6, pool=pool, stage=stage) for pool in POOLS for stage in STAGES]
    for n, (one, other) in enumerate(zip(seen, wanted, strict=True)):
        within = rounding(att).pooled(STAGES[n % len(STAGES)], one.query_bin * one.key_bin)
        assert_close(one.values, other.values, **within)
        assert torch.equal(one.allowed, other.allowed)
    assert_close(att.output(1), output, **rounding(att).output)


def test_a_short_head_is_shown_cell_by_cell() -> None:
    att = carrying(Attention(*torch.randn(3, 60, 8), is_causal=True))
    for stage in att.stages:
        seen = att.overview(stage=stage)
        assert (seen.query_bin, seen.key_bin) == (1, 1)
        assert_close(seen.values, att.block(stage), **rounding(att)[stage])
    assert torch.equal(seen.allowed, att.block("allowed"))


def test_a_single_strong_link_survives_pooling() -> None:
    q, k = torch.zeros(2, 3000, 2)
    q[1234], k[77] = 10, 10
    seen = Attention(q, k).overview(size=100)
    assert (seen.values == seen.values.max()).nonzero().tolist() == [[1234 // 30, 77 // 30]]
    assert seen.values.max() == 1


def test_a_query_that_is_nan_is_seen_in_the_picture() -> None:
    q, k = torch.randn(2, 100, 4)
    q[31] = torch.nan
    for pool in POOLS:
        seen = Attention(q, k, is_causal=True).overview(size=10, pool=pool).values
        assert seen[3].isnan().all()
        assert seen[[0, 1, 2, 4, 5, 6, 7, 8, 9]].isfinite().all()


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Cut blocks of 64 queries and 128 keys, larger than q and k of short attention; returns how many cells that is."""
    for module in (softmax, overview, pooling, stages, stripe_choice, dense_masks):
        monkeypatch.setattr(module, "QUERIES", 64)
    for module in (pooling, stripes, stages, dense_masks):
        monkeypatch.setattr(module, "KEYS", 128)
    monkeypatch.setattr(dense_masks, "PRODUCT_CELLS", 64 * 128)
    monkeypatch.setattr(stripe_choice, "MOST_QUERIES", 64)
    monkeypatch.setattr(fused_pass, "CELLS_AT_ONCE", 64 * 128)
    return 64 * 128


@pytest.mark.parametrize("is_causal", [False, True])
def test_memory_is_that_of_one_block_whatever_the_length(is_causal: bool, short_blocks: int) -> None:
    att = carrying(Attention(*torch.randn(3, 600, 2), is_causal=is_causal))
    with Largest() as largest:
        for pool in POOLS:
            for stage in STAGES:
                att.overview(pool=pool, stage=stage, size=60)
        att.output()
        att.log_normalizer()
        att.block(queries=-1)
        overview.sampled(att, 0, 0, rows=32, columns=32)
    assert 0 < largest.cells <= short_blocks < 600 * 600 // 30


def test_a_dense_mask_is_never_copied_whole(short_blocks: int) -> None:
    mask = torch.ones(700, 700, dtype=torch.uint8).tril()
    with Largest() as largest:
        att = Attention(*torch.randn(2, 700, 2), mask=mask.bool())
        att.overview()
    assert largest.cells == mask.numel()  # the mask itself, seen through views


def test_blocks_above_the_diagonal_are_not_computed(short_blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fused.VARIABLE, "0")
    products = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func._overloadpacket is torch.ops.aten.mm:
                products.append(args[0].shape[0] * args[1].shape[1])
            return func(*args, **(kwargs or {}))

    q, k = torch.randn(2, 900, 2)
    with Products():
        Attention(q, k, is_causal=True).overview()
    assert 0.5 * 900**2 < sum(products) < 0.6 * 900**2
    products.clear()
    with Products():
        Attention(q, k, mask=torch.ones(900, 900).tril().bool()).overview()
    assert 0.5 * 900**2 < sum(products) < 0.7 * 900**2


def test_log_normalizers_that_are_known_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch, a second picture of a head is a product and a maximum: no exponential but those of its own cells."""
    monkeypatch.setenv(fused.VARIABLE, "0")
    exponentials = []

    class Exponentials(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func._overloadpacket is torch.ops.aten.exp2_:
                exponentials.append(args[0].numel())
            return func(*args, **(kwargs or {}))

    att = Attention(*torch.randn(2, 1500, 4), is_causal=True)
    first = att.overview(size=50)
    with Exponentials():
        again = att.overview(size=50)
        assert 0 < sum(exponentials) <= 2500
        overview.sampled(att, 0, 0, rows=10, columns=10)
    assert 0 < sum(exponentials) <= 2600
    assert_close(again.values, first.values, **rounding(att).weights)


def test_a_querys_only_key_has_weight_1_and_none_has_more() -> None:
    q, k = torch.randn(2, 1, 3, 300, 8).unbind(0)
    att = Attention(q * 3, k, is_causal=True)
    for head in range(3):
        att.overview(head=head, size=32)  # now the log-normalizers are known
        assert att.overview(head=head).values[0, 0] == 1
        assert att.block(head=head, queries=0)[0, 0] == 1
        for seen in (overview.tile(att, 0, head, TileAddress(0, 0, 0)).values, att.block(head=head, keys=[0, 1])):
            assert seen.max() <= 1
            assert_close(seen[0, 0], torch.tensor(1.0), **rounding(att).weights)


def test_scores_know_no_mask() -> None:
    q, k = torch.randn(2, 30, 4)
    for stage in ("scores", "scaled"):
        with_mask = Attention(q, k, is_causal=True).overview(size=7, stage=stage)
        assert torch.equal(with_mask.values, Attention(q, k).overview(size=7, stage=stage).values)
        assert not with_mask.allowed.all()


def test_sampled_rows_are_exact_rows_evenly_spread() -> None:
    for queries, keys, rows in ((1000, 700, 16), (5, 9, 16), (33, 2500, 32), (1, 1, 1)):
        att = Attention(torch.randn(queries, 4), torch.randn(keys, 4), is_causal=True)
        seen = overview.sampled(att, 0, 0, rows=rows, columns=10)
        step = -(-queries // rows)
        where = torch.arange(queries)[(queries - 1) % step :: step]
        assert where[-1] == queries - 1
        assert (where // step).tolist() == list(range(-(-queries // step)))  # one in each bin of an overview
        full = att.block(queries=where)
        values = torch.stack([part.amax(1) for part in full.split(seen.key_bin, 1)], 1)
        allowed = torch.stack([part.any(1) for part in att.block("allowed", queries=where).split(seen.key_bin, 1)], 1)
        assert seen.query_bin == step
        assert_close(seen.values, values, **rounding(att).weights)
        assert torch.equal(seen.allowed, allowed)


def test_sampled_rows_cost_only_themselves() -> None:
    att = Attention(torch.randn(100_000, 2), torch.randn(100_000, 2))
    with Largest() as largest:
        assert overview.sampled(att, 0, 0, rows=16, columns=16).values.shape == (16, 16)
    assert largest.cells <= 200_000  # q and k themselves, seen through views


def test_what_cannot_be_shown_is_refused() -> None:
    att = Attention(*torch.randn(2, 3, 4))
    with pytest.raises(ValueError, match="no pool is called 'maximum': did you mean 'max'"):
        att.overview(pool="maximum")
    with pytest.raises(
        ValueError,
        match=r"no stage is called 'allowed': .*give one of scores, scaled, capped, masked, weights, contribution",
    ):
        att.overview(stage="allowed")
    with pytest.raises(ValueError, match="size is 0: give 1 or more"):
        att.overview(size=0)
    with pytest.raises(TypeError, match=r"size is 1\.5: give an integer"):
        att.overview(size=1.5)
    with pytest.raises(IndexError, match="head 1 is not there: this attention has head 0 only"):
        overview.sampled(att, 0, 1, rows=1, columns=1)


@pytest.mark.parametrize("size", [512, 7, 1])
@pytest.mark.parametrize("keys", [1, 6, 40])
def test_a_padded_samples_own_keys_are_counted_at_any_pooling(size: int, keys: int) -> None:
    q, k = torch.randn(2, 1, 40, 4), torch.randn(2, 1, 40, 4)
    for mask in (masks.padding([40, keys]), torch.arange(40) < torch.tensor([[40], [keys]])):
        att = Attention(q, k, mask=mask)
        for batch, own in ((0, 40), (1, keys)):
            seen = overview.overview(att, batch, 0, size=size)
            assert overview.own_keys(att, batch, 0, seen) == own
    causal = Attention(q, k, is_causal=True)
    assert overview.own_keys(causal, 0, 0, overview.overview(causal, 0, 0, size=size)) == 40
    nothing = Attention(q, k, mask=torch.zeros(2, 1, 40, 40, dtype=torch.bool))
    assert overview.own_keys(nothing, 0, 0, overview.overview(nothing, 0, 0, size=size)) == 0


def test_an_overview_is_an_array_to_numpy_and_torch() -> None:
    seen = Attention(*torch.randn(2, 40, 4)).overview(size=10)
    assert seen.shape == (10, 10)
    assert np.asarray(seen).shape == (10, 10)
    assert np.array(seen, dtype="float64").dtype == np.float64
    assert torch.equal(torch.as_tensor(np.asarray(seen)), seen.values)


def test_a_band_that_holds_no_cell_leaves_no_bin_open() -> None:
    """Each of two rules leaves some cells of a bin, and both together none."""
    att = Attention(*torch.randn(2, 40, 4), mask=masks.and_masks(masks.Band(low=5, high=None), masks.causal))
    seen = att.overview(size=5)
    assert not bool(seen.allowed.any())
    assert not bool(seen.values.any())
