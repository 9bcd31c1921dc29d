"""What a row comes down to: the strongest keys, exactly; and a head's numbers, as by the book."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import Case, cases
from tolerance import Bound, approx, rounding, sums, together
from torch.testing import assert_close

from attnwidget import masks
from attnwidget.attention import Attention
from examples import examples

# The strongest keys.


@given(cases(), st.integers(1, 50), st.data())
@examples(80)
def test_top_keys_are_those_of_the_dense_row(case: Case, count: int, data: st.DataObject) -> None:
    att = case.attention()
    query, head = data.draw(st.integers(0, att.shape.Q - 1)), data.draw(st.integers(0, att.shape.H - 1))
    keys, weights = att.top_keys(query, count, head=head)
    row = att.block("masked", head=head, queries=query)[0]
    there = att.block("allowed", head=head, queries=query)[0].nonzero()[:, 0].tolist()
    expected = sorted(there, key=lambda key: (-row[key].item(), key))[:count]
    assert keys.tolist() == expected
    assert_close(weights, att.block(head=head, queries=query)[0, keys], **case.rounding().weights)


def test_top_keys_are_found_in_any_block_and_among_equals_the_lower_comes_first() -> None:
    k = torch.zeros(9000, 1)
    k[[8500, 4, 4100, 2048]] = torch.tensor([[3.0], [1.0], [3.0], [2.0]])
    att = Attention(torch.ones(1, 1), k, scale=1.0)
    keys, weights = att.top_keys(0, 6)
    assert keys.tolist() == [4100, 8500, 2048, 4, 0, 1]
    assert_close(weights, att.block()[0, keys], **rounding(att).weights)
    assert keys.dtype is torch.int64
    assert att.top_keys(-1, 10**6)[0].tolist()[5:8] == [1, 2, 3]


def test_blocked_keys_are_never_among_the_top() -> None:
    att = Attention(torch.ones(4, 1), torch.ones(4, 1), is_causal=True)
    assert att.top_keys(1)[0].tolist() == [0, 1]
    att = Attention(torch.ones(4, 1), torch.ones(4, 1), mask=masks.padding([0]))
    keys, weights = att.top_keys(2)
    assert keys.tolist() == weights.tolist() == []


def test_top_keys_of_a_row_with_nan_are_nan() -> None:
    k = torch.ones(5, 1)
    k[3] = torch.nan
    keys, weights = Attention(torch.ones(1, 1), k).top_keys(0, 2)
    assert keys.tolist() == [3, 0]
    assert weights.isnan().all()


def test_top_keys_need_no_more_than_a_row() -> None:
    att = Attention(torch.randn(300_000, 2), torch.randn(300_000, 2).half().float())
    keys, weights = att.top_keys(17, 5)
    scores = att.q[0, 0, 17].double() @ att.k[0, 0].double().mT / math.sqrt(2)
    assert keys.tolist() == scores.topk(5).indices.tolist()
    assert_close(weights.double(), scores.softmax(0)[keys], **rounding(att).weights)


@pytest.mark.parametrize(
    ("query", "count", "error", "match"),
    [
        (5, 1, IndexError, "query 5 is not there: this attention has queries 0 to 2"),
        (0, 0, ValueError, "count is 0: give 1 or more"),
        (0, 2.5, TypeError, r"count is 2\.5: give an integer"),
        (None, 1, TypeError, "query is None: give an integer; the widget.s query is None until a cell is clicked"),
    ],
)
def test_what_is_not_there_is_named(query: object, count: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Attention(torch.zeros(3, 2), torch.zeros(3, 2)).top_keys(query, count)


# Statistics.


def of_variance(x: torch.Tensor) -> Bound:
    """The bound for the variance of given numbers: of sums of squares no larger than the mean square."""
    return {"rtol": 0, "atol": sums(2, float(x.double().square().mean()))["atol"]}


def same(found: float, wanted: float, bound: Bound) -> bool:
    """Whether both are NaN, or alike."""
    return math.isnan(found) if math.isnan(wanted) else found == approx(wanted, bound)


@given(cases())
@examples(80)
def test_statistics_are_those_of_the_dense_matrix(case: Case) -> None:
    att = case.attention()
    head = att.shape.H - 1
    seen, dense = att.statistics(0, head), case.dense(0, head)
    p, allowed = dense["weights"], dense["allowed"]
    within = case.rounding()
    of_sum = together(within.weights, sums(att.shape.K, dtype=att.dtype))  # of weights, which sum to 1
    assert_close(seen.entropy.double(), -torch.xlogy(p, p).sum(1) / math.log(2), **within.entropy)
    assert_close(seen.peak.double(), p.amax(1), **within.weights)
    assert_close(seen.sensitivity.double(), (p * (1 - p)).sum(1), **together(of_sum, of_sum))
    assert_close(seen.total.double(), allowed.any(1).double(), **of_sum)
    assert torch.equal(seen.allowed, allowed.sum(1))
    assert seen.empty_rows == int((~allowed.any(1)).sum())
    assert seen.theory == case.q.shape[3]
    for name, entries in (("scores", dense["scores"][allowed]), ("scaled", dense["scaled"][allowed])):
        expected = float(entries.var()) if entries.numel() > 1 else math.nan
        error, spread = within[name if name == "scores" else "masked"]["atol"], abs(expected) ** 0.5
        bound: Bound = {"rtol": 0, "atol": 4 * error * (spread + error)}  # Σ (x − mean)² / (n − 1), and x off by that
        assert same(getattr(seen, f"{name}_variance"), expected, bound)
    group = head // (att.shape.H // att.shape.G)
    for name, x in (("q", att.q[0, head]), ("k", att.k[0, group]), ("v", att.v[0, group])):
        expected = float(x.double().var()) if x.numel() > 1 else math.nan
        assert same(getattr(seen, f"{name}_variance"), expected, of_variance(x))


def test_rows_are_counted_by_what_became_of_them() -> None:
    scores = torch.tensor([[0.0, 0, 0, 0], [50, 0, 0, 0], [1, 2, 3, 4], [0, 0, 0, 0], [9, 0, 0, 0]])
    keep = torch.ones(5, 4).bool()
    keep[3], keep[4, 1:] = False, False
    seen = Attention.from_scores(scores, mask=keep).statistics()
    assert (seen.uniform_rows, seen.saturated_rows, seen.empty_rows) == (1, 1, 1)  # one key alone is neither
    assert_close(seen.entropy[[0, 1, 3, 4]], torch.tensor([2.0, 0, 0, 0]), **sums(4))
    assert_close(seen.sensitivity[[0, 1, 3, 4]], torch.tensor([0.75, 0, 0, 0]), **sums(4))
    assert seen.allowed.tolist() == [4, 4, 4, 0, 1]
    assert (seen.q_variance, seen.theory) == (None, None)


def test_variances_are_stable_where_the_mean_is_large() -> None:
    """Σ x² − n · mean² would lose all digits here."""
    scores = 30_000 + torch.randn(700, 3000, generator=torch.manual_seed(2))
    seen = Attention.from_scores(scores)
    # the scores themselves are exact: rounding is that of differences of size 1 to a mean of 30,000
    bound = {"rtol": 0, "atol": 4 * sums(1, 30_000)["atol"] / 700**0.5}
    assert seen.statistics().scores_variance == approx(float(scores.double().var()), bound)


def test_sensitivity_is_the_trace_of_the_jacobian_of_the_softmax() -> None:
    scores = torch.randn(1, 7, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda s: torch.softmax(s, 0), scores[0])
    assert_close(Attention.from_scores(scores).statistics().sensitivity[0], jacobian.trace())


def test_statistics_of_many_blocks() -> None:
    q, k = torch.randn(2, 3000, 16, generator=torch.manual_seed(3))
    seen = Attention(q, k, is_causal=True).statistics()
    allowed = torch.ones(3000, 3000).tril().bool()
    scores = (q.double() @ k.double().mT)[allowed]
    error = rounding(Attention(q, k)).scores["atol"]
    bound = {"rtol": 2 * error / float(scores.std()), "atol": 0.0}
    assert seen.scores_variance == approx(float(scores.var()), bound)
    assert seen.scaled_variance == approx(float(scores.var()) / 16, bound)
    assert seen.theory == 16
    assert torch.equal(seen.allowed, torch.arange(1, 3001))


def test_statistics_do_not_change() -> None:
    seen = Attention(torch.zeros(2, 2), torch.zeros(2, 2)).statistics()
    with pytest.raises(AttributeError):
        seen.peak = 1
    with pytest.raises(IndexError, match="head 3 is not there"):
        Attention(torch.zeros(2, 2), torch.zeros(2, 2)).statistics(head=3)
