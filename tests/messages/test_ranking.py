"""Ranked rows and columns at any length; the strongest pairs of a head."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from carrying import carrying
from hypothesis import given
from hypothesis import strategies as st
from tolerance import rounding, sums, together

from attnwidget import Attention
from attnwidget._engine.level_cache import LevelCache
from attnwidget._messages.answers import ranking


def check(values: list[float], blocked: list[bool], count: int) -> None:
    """Hold a ranking to what its parts mean; `tests/contract/test_rankings.py` holds it to the front-end's."""
    numbers = torch.tensor(values, dtype=torch.float32)
    found = ranking.rank(numbers, torch.tensor(blocked) if any(blocked) else None, count)
    row, hidden = numbers.double().numpy(), np.array(blocked)
    allowed = np.flatnonzero(~hidden & ~np.isnan(row))
    order = allowed[np.argsort(-row[allowed], kind="stable")]  # of equal ones the earlier
    assert found.positions.tolist() == order[:count].tolist()
    assert found.values.tolist() == row[order[:count]].tolist()
    counts = (len(allowed), hidden.sum(), (np.isnan(row) & ~hidden).sum())
    assert (found.allowed, found.blocked, found.nan) == counts
    assert found.max_entropy == near(math.log2(len(allowed)) if len(allowed) else 0.0)
    total = math.fsum(row[allowed])
    assert found.sum == near(total)
    if total == -math.inf:
        return
    assert found.rest_sum == near(max(0.0, math.fsum(row[order[count:]])))
    enough, reached = 0.9 * total - 1e-7, [math.fsum(row[order[:n]]) for n in (found.ninety, found.ninety - 1)]
    assert reached[0] >= enough - 1e-9 or found.ninety == len(order)
    assert found.ninety == 0 or reached[1] < enough + 1e-9
    if (row[allowed] >= 0).all():
        shares = row[allowed][row[allowed] > 0] / total
        assert found.entropy == near(-math.fsum(shares * np.log2(shares)))


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-9, abs=1e-9)


weights = st.floats(0, 1, width=32) | st.sampled_from([0.0, 0.25, 0.5, math.nan])


@given(st.lists(st.tuples(weights, st.booleans()), min_size=1, max_size=30), st.integers(1, 8))
def test_a_row_of_weights_is_ranked(cells: list[tuple[float, bool]], count: int) -> None:
    check([value for value, _ in cells], [out for _, out in cells], count)


@given(st.lists(st.floats(-9, 9, width=32) | st.just(-math.inf), min_size=1, max_size=30), st.integers(1, 8))
def test_scores_too(values: list[float], count: int) -> None:
    check(values, [False] * len(values), count)


@pytest.mark.parametrize("kind", ["spread", "alike", "peaked", "cut off"])
def test_long_rows_too(kind: str) -> None:
    n = 20_000
    values = torch.rand(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = {"spread": values, "alike": values * 0 + 1, "peaked": values**60, "cut off": (values - 0.9).relu()}[kind]
    check((values / values.sum()).tolist(), [i % 7 == 0 for i in range(n)], 64)


def test_infinite_numbers_are_ranked_first_and_do_not_break_the_sums() -> None:
    found = ranking.rank(torch.tensor([1.0, math.inf, 2.0]), None, 2)
    assert found.positions.tolist() == [1, 2]
    assert (found.allowed, found.sum, found.ninety) == (3, math.inf, 1)


def attention(**keywords: Any) -> Attention:
    torch.manual_seed(0)
    return Attention(torch.randn(1, 2, 70, 8), torch.randn(1, 2, 50, 8), torch.randn(1, 2, 50, 3), **keywords)


@pytest.mark.parametrize("stage", ["scores", "masked", "weights", "contribution"])
@pytest.mark.parametrize("side", ["queries", "keys"])
@pytest.mark.parametrize("places", [[3], [0, 3, 49]])
@pytest.mark.parametrize("mean", [True, False])
def test_several_rows_or_columns_are_one(
    stage: str, side: str, places: list[int], mean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocked where all are, as js/src/components/ranking-panel.tsx combines them."""
    monkeypatch.setattr(ranking, "MAX_CELLS_AT_ONCE", 130)  # in several pieces
    att = attention(is_causal=True)
    values, blocked = ranking.line(att, stage, 0, 1, side, places, mean=mean)
    cells, allowed = att.block(stage, head=1), att.block("allowed", head=1)
    if stage != "scores":
        cells = cells.masked_fill(~allowed, 0)
    axis = 0 if side == "queries" else 1
    some = cells.index_select(axis, torch.tensor(places)).double()
    wanted = some.mean(axis) if mean else some.sum(axis)
    size = float(some.abs().nan_to_num(0, 0, 0).sum(axis).max())
    within = together(rounding(att)[stage], sums(len(places)), size=size)
    torch.testing.assert_close(values, wanted.float(), **within)
    hidden = ~allowed.index_select(axis, torch.tensor(places)).any(axis)
    if stage == "scores" or not hidden.any():
        assert blocked is None
    else:
        assert blocked is not None
        assert torch.equal(blocked, hidden)


def test_one_row_is_that_of_a_row_reply_to_the_last_bit() -> None:
    att = attention()
    values, _ = ranking.line(att, "weights", 0, 1, "queries", [7], mean=False)
    assert torch.equal(values, att.block(head=1, queries=7)[0])


@pytest.mark.parametrize("largest", [2048, 9])
@pytest.mark.parametrize("skip_first", [True, False])
def test_the_strongest_pairs_no_two_of_a_bin(largest: int, skip_first: bool) -> None:
    torch.manual_seed(1)
    q, k = 3 * torch.randn(70, 8), torch.randn(50, 8)
    k[0] += q.mean(0)
    att = Attention(q, k, is_causal=True)
    levels = LevelCache(att, largest=largest)
    list(levels.build(0, 0))
    kept = levels.find(levels.build(0, 0).key)
    assert kept is not None
    found = ranking.strongest_pairs(att, kept, 0, 0, count=12, skip_first=skip_first)
    weights = att.block().double().numpy().copy()
    if skip_first:
        weights[:, 0] = -1
    best: dict[tuple[int, int], tuple[float, int, int]] = {}
    for query, key in np.ndindex(*weights.shape):
        name = (query // kept.overview.query_bin, key // kept.overview.key_bin)
        best[name] = max(best.get(name, (-2.0, 0, 0)), (weights[query, key], query, key))
    wanted = sorted(best.values(), reverse=True)[:12]
    assert [(query, key) for query, key, _ in found] == [(query, key) for _, query, key in wanted]
    np.testing.assert_allclose(
        [weight for *_, weight in found], [weight for weight, *_ in wanted], **rounding(att).weights
    )


@pytest.mark.parametrize("stage", ["logit", "saliency", "value_norm", "contribution"])
@pytest.mark.parametrize("largest", [2048, 9])
@pytest.mark.parametrize("skip_first", [True, False])
def test_the_largest_pairs_of_what_weights_carry(stage: str, largest: int, skip_first: bool) -> None:
    torch.manual_seed(2)
    att = carrying(Attention(2 * torch.randn(70, 8), torch.randn(50, 8), torch.randn(50, 8), is_causal=True))
    levels = LevelCache(att, largest=largest)
    list(levels.build(0, 0, stage=stage))
    kept = levels.find(levels.build(0, 0, stage=stage).key)
    assert kept is not None
    found = ranking.strongest_pairs(att, kept, 0, 0, count=12, skip_first=skip_first, stage=stage)
    numbers = att.block(stage).double().numpy().copy()
    if skip_first:
        numbers[:, 0] = 0
    best: dict[tuple[int, int], tuple[float, int, int]] = {}
    for query, key in np.ndindex(*numbers.shape):
        name = (query // kept.overview.query_bin, key // kept.overview.key_bin)
        best[name] = max(best.get(name, (-1.0, 0, 0)), (abs(numbers[query, key]), query, key))
    wanted = sorted(best.values(), reverse=True)[:12]
    assert [(query, key) for query, key, _ in found] == [(query, key) for _, query, key in wanted]
    values = [value for *_, value in found]
    np.testing.assert_allclose(values, [numbers[query, key] for query, key, _ in found], **rounding(att)[stage])
    assert (min(values) < 0) >= (stage == "saliency")


def test_pairs_of_nothing_are_none() -> None:
    blocked = Attention(*torch.randn(2, 6, 4), mask=torch.zeros(6, 6, dtype=torch.bool))
    only_first = Attention(*torch.randn(2, 6, 4), mask=(torch.arange(6) < 1).expand(6, 6), mask_dims="qk")
    for att, skip in ((blocked, False), (only_first, True)):
        levels = LevelCache(att)
        list(levels.build(0, 0))
        kept = levels.find(levels.build(0, 0).key)
        assert kept is not None
        assert ranking.strongest_pairs(att, kept, 0, 0, count=5, skip_first=skip) == []
