"""Scores or weights in hand, in the place of q and k: the same questions, the same answers, and what is not known."""

import pytest
import torch
from hypothesis import given
from reference import Case, cases, dense
from tolerance import exponentials, sums, together
from torch.testing import assert_close

from attnwidget.attention import Attention
from examples import examples


@given(cases(dtypes=(torch.float32, torch.float64)))
@examples(60)
def test_scores_in_hand_are_attention_as_from_q_and_k(case: Case) -> None:
    att = case.attention()
    times = case.q.shape[1] // case.k.shape[1]
    scores = case.q @ case.k.repeat_interleave(times, 1).mT
    keywords = {**case.keywords, "scale": att.scale}
    given_scores = Attention.from_scores(scores, case.v, **keywords)
    head = att.shape.H - 1
    expected, within = case.dense(0, head), case.rounding()
    for stage in given_scores.stages:
        seen = given_scores.block(stage, head=head)
        assert_close(seen.double(), expected[stage], **within[stage])
    assert_close(given_scores.output(0, head), att.output(0, head), **within.output)
    assert_close(given_scores.log_normalizer(0, head), att.log_normalizer(0, head), **within.normalizer)
    assert torch.equal(given_scores.block("allowed", head=head), att.block("allowed", head=head))
    for pool in ("max", "mean"):
        seen, wanted = (x.overview(0, head, size=5, pool=pool) for x in (given_scores, att))
        assert_close(seen.values, wanted.values, **within.pooled("weights", seen.query_bin * seen.key_bin))
        assert torch.equal(seen.allowed, wanted.allowed)


@given(cases(dtypes=(torch.float32, torch.float64)))
@examples(40)
def test_weights_in_hand_are_shown_as_those_that_are_computed(case: Case) -> None:
    att = case.attention()
    B, H = att.shape[:2]
    weights = torch.stack([torch.stack([att.block(batch=b, head=h) for h in range(H)]) for b in range(B)])
    known, within = Attention.from_weights(weights, case.v), case.rounding()
    head = H - 1
    assert known.stages == ("weights", "contribution")
    assert torch.equal(known.block(head=head), weights[0, head])
    contribution = (x.block("contribution", head=head) for x in (known, att))
    assert_close(*contribution, **within.contribution)
    assert_close(known.output(0, head), att.output(0, head), **within.output)
    for stage in known.stages:
        for pool in ("max", "mean"):
            seen, wanted = (x.overview(0, head, size=5, pool=pool, stage=stage) for x in (known, att))
            assert_close(seen.values, wanted.values, **within.pooled(stage, seen.query_bin * seen.key_bin))
    assert_close(known.statistics(0, head).entropy, att.statistics(0, head).entropy, **within.entropy)


def test_a_matrix_in_hand_is_never_copied_or_changed() -> None:
    scores = torch.randn(2, 3, 40, 50)
    before = scores.clone()
    for make in (Attention.from_scores, lambda x: Attention.from_weights(x.abs())):
        att = make(scores)
        att.overview(size=9, pool="mean")
        att.block()
        att.top_keys(3)
        att.statistics()
    assert torch.equal(scores, before)
    att = Attention.from_scores(scores, mask=torch.ones(40, 50).tril().bool(), softcap=2.0, bias=torch.ones(40, 50))
    assert att.source.matrix.data_ptr() == scores.data_ptr()
    att.overview()
    att.output() if att.v is not None else att.log_normalizer()
    assert torch.equal(scores, before)


def test_scores_are_logits_unless_a_scale_is_given() -> None:
    scores = torch.randn(3, 4)
    within = exponentials(float(scores.max() - scores.min()))
    assert_close(Attention.from_scores(scores).block(), scores.softmax(1), **within)
    assert_close(Attention.from_scores(scores, scale=0.5).block(), (scores / 2).softmax(1), **within)
    assert torch.equal(Attention.from_scores(scores, scale=0.5).block("scores"), scores)


def test_longer_than_a_block() -> None:
    scores = torch.randn(700, 5000)
    att = Attention.from_scores(scores, is_causal=True)
    expected = dense(scores, torch.eye(5000), scale=1.0, allowed=torch.ones(700, 5000).tril().bool())
    spread = float(scores.max() - scores.min())
    assert_close(att.block().double(), expected["weights"], **exponentials(spread))
    assert_close(att.log_normalizer().double(), expected["normalizer"], **exponentials(spread))
    weights = Attention.from_weights(expected["weights"].float(), torch.ones(5000, 1))
    assert_close(weights.output(), torch.ones(700, 1), **sums(5000, size=0))


def test_axes_go_by_name() -> None:
    scores, v = torch.randn(5, 2, 7), torch.randn(7, 2, 3)
    att = Attention.from_scores(scores, v, dims="qhk")
    assert att.shape == (1, 2, 2, 5, 7, None, 3)
    within = together(exponentials(float(scores.max() - scores.min())), sums(7), size=float(v.abs().max()))
    assert_close(att.output(head=1), scores[:, 1].softmax(1) @ v[:, 1], **within)
    assert Attention.from_weights(torch.rand(4, 5, 7)).shape == (4, 1, 1, 5, 7, None, None)
    grouped = Attention.from_weights(torch.rand(1, 4, 5, 7), torch.randn(1, 2, 7, 3))
    size = 7 * float(grouped.v.abs().max())
    assert_close(grouped.output(head=3), grouped.block(head=3) @ grouped.v[0, 1], **sums(7, size))


def test_half_types_and_what_it_says() -> None:
    att = Attention.from_scores(torch.randn(2, 3).half(), is_causal=True)
    assert att.block().dtype is torch.float32
    assert repr(att) == "Attention(from scores, 1 sample × 1 head, 2 queries × 3 keys, no v, causal, float16, cpu)"
    att = Attention.from_weights(torch.ones(2, 3), torch.ones(3, 8))
    assert repr(att) == "Attention(from weights, 1 sample × 1 head, 2 queries × 3 keys, head size 8, float32, cpu)"


def test_rows_of_weights_are_taken_as_they_are() -> None:
    weights = torch.tensor([[1.25, 0.0], [0.0, torch.nan], [0.25, 0.25]])
    att = Attention.from_weights(weights)
    assert torch.equal(att.block()[[0, 2]], weights[[0, 2]])
    assert att.block()[1].isnan().tolist() == [False, True]
    assert att.block("allowed").all()
    assert att.overview().values[1, 1].isnan()
    assert att.statistics().total[[0, 2]].tolist() == [1.25, 0.5]


@pytest.mark.parametrize("stage", ["scores", "scaled", "capped", "masked"])
def test_what_weights_do_not_tell_is_refused(stage: str) -> None:
    att = Attention.from_weights(torch.ones(2, 3) / 3)
    for ask in (att.block, lambda stage: att.overview(stage=stage)):
        with pytest.raises(ValueError, match=f"only weights were given, so {stage} is not known: give Attention"):
            ask(stage)
    with pytest.raises(ValueError, match="only weights were given, so"):
        att.log_normalizer()


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: Attention.from_weights(torch.tensor([[0.5, -3.25]])), ValueError,
         r"weights go down to -3\.25: give the result of a softmax, or use Attention\.from_scores\(scores\)"),
        (lambda: Attention.from_weights(torch.tensor([[0.5, -1e-6]])), ValueError, "weights go down to -1e-06"),
        (lambda: Attention.from_weights(torch.ones(2, 3)).block("contribution"), ValueError,
         r"there is no v, so no contribution"),
        (lambda: Attention.from_scores(torch.ones(2, 3), torch.ones(4, 8)), ValueError,
         "v has 4 positions but scores has 3 keys: give each key its value"),
        (lambda: Attention.from_scores(torch.ones(2, 2, 3), torch.ones(1, 3, 8)), ValueError,
         "v has batch size 1 but scores has 2"),
        (lambda: Attention.from_scores(torch.ones(1, 3, 2, 3), torch.ones(1, 2, 3, 8)), ValueError,
         "v has 2 heads but scores has 3: the heads of scores must be a multiple"),
        (lambda: Attention.from_scores(torch.ones(2, 3), torch.ones(1, 3, 8)), ValueError, "v has 3 axes but scores"),
        (lambda: Attention.from_weights(torch.ones(2, 3).long()), TypeError, "weights holds int64"),
        (lambda: Attention.from_scores(torch.ones(2, 3), dims="qd"), ValueError,
         r"dims 'qd' has the letter 'd': use b \(batch\), h \(head\), q \(query\), k \(key\)"),
        (lambda: Attention.from_scores(torch.ones(2, 3), dims="qh"), ValueError, "must name k, and each axis"),
        (lambda: Attention.from_scores(torch.ones(2, 3), causal=True), TypeError, "did you mean 'is_causal'"),
        (lambda: Attention.from_scores(torch.ones(2, 0)), ValueError, "its key axis is empty"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(make: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()
