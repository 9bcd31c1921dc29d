"""The bounds of tests: they let pass what another order of adding makes of a number, and nothing that is wrong."""

from __future__ import annotations

import math

import pytest
import torch
from reference import dense
from tolerance import (
    FEW,
    Bound,
    approx,
    assert_as_near,
    eps,
    exponentials,
    rounding,
    roundings,
    sums,
    together,
)
from torch import Tensor
from torch.testing import assert_close

from attnwidget import Attention

DTYPES = [torch.float32, torch.float64]


def beyond(wanted: Tensor, bound: Bound, ulps: float) -> Tensor:
    """What is off by the bound and so many ulps more."""
    allowed = bound["atol"] + bound["rtol"] * wanted.abs()
    return wanted + allowed + ulps * torch.finfo(wanted.dtype).eps * wanted.abs().clamp(min=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("terms", "size"), [(1, 0.0), (8, 1.0), (300, 40.0)])
def test_ten_ulps_more_than_the_bound_are_too_many(terms: int, size: float, dtype: torch.dtype) -> None:
    bound, wanted = sums(terms, size, dtype), torch.tensor([1.0, -3.0, 1000.0], dtype=dtype)
    assert_close(wanted + 0.9 * (bound["atol"] + bound["rtol"] * wanted.abs()), wanted, **bound)
    with pytest.raises(AssertionError):
        assert_close(beyond(wanted, bound, 10), wanted, **bound)
    assert wanted.tolist() == approx(wanted.tolist(), bound)
    assert beyond(wanted, bound, 10).tolist() != approx(wanted.tolist(), bound)


@pytest.mark.parametrize("terms", [2, 9, 64, 1000, 8192])
def test_a_sum_in_any_order_is_within_the_bound(terms: int) -> None:
    for seed in range(20):
        x = torch.randn(terms, generator=torch.Generator().manual_seed(seed))
        bound = sums(terms, float(x.abs().sum()))
        one_by_one = torch.tensor(0.0)
        for number in x.flip(0):
            one_by_one = one_by_one + number
        for found in (x.sum(), x.flip(0).cumsum(0)[-1], one_by_one, x @ torch.ones(terms)):
            assert float(found) == approx(float(x.double().sum()), bound)


def test_bounds_grow_with_the_length_and_for_long_sums_with_its_root() -> None:
    assert [roundings(n) for n in (1, 9, 36)] == [1, 9, 36]
    assert roundings(10_000) == 600
    assert eps(torch.bfloat16) == eps(torch.float32) == 2**-23
    assert eps(torch.float64) == 2**-52


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_every_stage_is_within_its_bound_and_what_is_wrong_is_not(spread: float, dtype: torch.dtype) -> None:
    """Wrong by little: a thousandth of the scale, one key left out of 200, a query in bfloat16."""
    q, k, v = torch.randn(3, 200, 16, dtype=dtype)
    q = q * spread
    att, wanted = Attention(q, k, v), dense(q, k, v, scale=0.25)
    within = rounding(att)
    for stage in ("scores", "scaled", "masked", "weights", "contribution"):
        assert_close(att.block(stage).double(), wanted[stage], **within[stage])
    assert_close(att.log_normalizer().double(), wanted["normalizer"], **within.normalizer)
    assert_close(att.output().double(), wanted["weights"] @ v.double(), **within.output)
    without = torch.arange(200) != 7
    for wrong in (
        Attention(q, k, v, scale=0.25 * 1.001),
        Attention(q, k, v, mask=without.expand(200, 200)),
        Attention(q.bfloat16().to(dtype), k, v),
    ):
        for found, right, bound in (
            (wrong.block(), wanted["weights"], within.weights),
            (wrong.block("contribution"), wanted["contribution"], within.contribution),
            (wrong.log_normalizer(), wanted["normalizer"], within.normalizer),
            (wrong.output(), wanted["weights"] @ v.double(), within.output),
            (wrong.statistics().entropy, -torch.xlogy(wanted["weights"], wanted["weights"]).sum(1) / math.log(2),
             within.entropy),
        ):  # fmt: skip
            with pytest.raises(AssertionError):
                assert_close(found.double(), right, **bound)


def test_a_softmax_of_the_same_scores_is_within_its_bound_by_any_way() -> None:
    scores = torch.randn(50, 3000) * 8
    bound = exponentials(float(scores.max() - scores.min()))
    exact = scores.double().softmax(1)
    above = (scores - scores.amax(1, keepdim=True)).exp()
    by_two = torch.exp2((scores - scores.amax(1, keepdim=True)) * math.log2(math.e))
    for found in (scores.softmax(1), above / above.sum(1, keepdim=True), by_two / by_two.sum(1, keepdim=True)):
        assert_close(found.double(), exact, **bound)
    with pytest.raises(AssertionError):
        assert_close((scores - torch.logsumexp(scores * 1.0001, 1, keepdim=True)).exp().double(), exact, **bound)


def test_errors_of_what_is_put_together_add_up() -> None:
    one: Bound = {"rtol": 0.25, "atol": 1.0}
    assert together(one, one, {"rtol": 0.5, "atol": 0.0}, size=4) == {"rtol": 0, "atol": 2 * (1 + 0.25 * 4) + 0.5 * 4}


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ours_may_be_twice_as_far_as_theirs_and_no_further(dtype: torch.dtype, each: bool) -> None:
    exact = torch.tensor([4.0, 1.0, 0.0], dtype=torch.float64)
    ulp = torch.finfo(dtype).eps
    theirs = exact.to(dtype).clone()
    theirs[0] += 4 * 3 * ulp  # three ulps
    right = exact.clone()
    right[0] += 4 * (2 * 3 + FEW) * ulp
    assert_as_near(right, theirs, exact, each=each)
    wrong = right.clone()
    wrong[0] += 4 * 10 * ulp
    with pytest.raises(AssertionError, match=r"weights: .* from float64, where at most"):
        assert_as_near(wrong, theirs, exact, "weights:", each=each)
    assert_as_near(theirs, theirs, exact, each=each)
    wrong = right.clone()
    wrong[1] = torch.nan
    with pytest.raises(AssertionError):
        assert_as_near(wrong, theirs, exact, each=each)
    small = exact.clone()
    small[1] += 2 * (2 * 3 + FEW) * ulp  # within what the largest number may be off, beyond what this one may
    if each:
        with pytest.raises(AssertionError):
            assert_as_near(small, theirs, exact, each=True)
    else:
        assert_as_near(small, theirs, exact)
