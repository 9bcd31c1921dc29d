"""Learned sinks: one more column of the softmax, beside the formula written out in float64, at any length."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from carrying import carrying
from hypothesis import given
from hypothesis import strategies as st
from reference import Case, cases, dense, pooled, with_sink
from tolerance import Rounding, eps, rounding, sums
from torch import Tensor, nn
from torch.testing import assert_close

from attnwidget import Attention, AttentionStack, ScaledDotProductAttention, scaled_dot_product_attention
from attnwidget._analysis.top_links import strongest
from attnwidget._engine.overview import overview, tile
from attnwidget._engine.regions import TileAddress
from attnwidget._engine.sources import CARRIED
from attnwidget.attention import STAGES
from attnwidget.stack import stack_layers
from examples import examples


@st.composite
def sinks(draw: st.DrawFn, longest: int = 40) -> tuple[Case, list[float]]:
    """A random attention, and a logit for each of its heads: ordinary ones, extreme ones, and none."""
    case = draw(cases(longest=longest))
    logits = [draw(st.sampled_from((0.0, 0.5, -3.0, 7.0, 80.0, -110.0, -math.inf))) for _ in range(case.q.shape[1])]
    case.keywords["sinks"] = torch.tensor(logits)
    return case, logits


def dense_of(case: Case, head: int, sink: float) -> dict[str, Any]:
    """Every stage of a head, in float64."""
    keywords = {name: value for name, value in case.keywords.items() if name != "sinks"}
    return with_sink(replace(case, keywords=keywords).dense(0, head), sink)


def bounds(case: Case, sink: float) -> Rounding:
    """What rounding may change: a sink's logit is one more score."""
    found = case.rounding()
    largest = max(found.score, abs(sink) if math.isfinite(sink) else 0.0)
    return replace(found, score=largest, keys=found.keys + 1)


@given(sinks())
@examples(60)
def test_every_stage_output_and_normalizer_is_that_of_one_more_column(drawn: tuple[Case, list[float]]) -> None:
    case, logits = drawn
    att = case.attention()
    for head, sink in enumerate(logits):
        wanted, near = dense_of(case, head, sink), bounds(case, sink)
        for stage in ("masked", "weights", "contribution"):
            found = att.block(stage, head=head).double()
            assert_close(found, wanted[stage], **near[stage])
            some = att.block(stage, head=head, keys=slice(0, None, 2)).double()
            assert_close(some, wanted[stage][:, ::2], **near[stage])
        assert_close(att.sink_weights(0, head).double(), wanted["sink"], **near.weights)
        assert_close(att.log_normalizer(0, head).double(), wanted["normalizer"], **near.normalizer)
        group = head // (case.q.shape[1] // case.k.shape[1])
        assert_close(att.output(0, head).double(), wanted["weights"] @ case.v[0, group].double(), **near.output)
        total = att.block(head=head).double().sum(1) + att.sink_weights(0, head).double()
        attends = wanted["allowed"].any(1) | (sink > -math.inf)
        assert_close(total, attends.double(), rtol=0, atol=near.keys * eps(case.q.dtype) + near.weights["rtol"])


@given(sinks(longest=50), st.integers(1, 60), st.sampled_from(STAGES), st.sampled_from(("max", "mean")))
@examples(100)
def test_every_bin_of_an_overview_knows_the_sink(
    drawn: tuple[Case, list[float]], size: int, stage: str, pool: str
) -> None:
    case, logits = drawn
    head = len(logits) - 1
    seen = case.attention().overview(head=head, size=size, pool=pool, stage=stage)
    values, allowed = pooled(dense_of(case, head, logits[head]), stage, pool, size)
    near = bounds(case, logits[head]).pooled(stage, seen.query_bin * seen.key_bin)
    assert_close(seen.values.double(), values, **near)
    assert torch.equal(seen.allowed, allowed)


KINDS: dict[str, dict[str, Any]] = {
    "small": {"is_causal": True},
    "small, all": {},
    "large": {"is_causal": True, "scale": 30.0},
    "cell by cell": {"mask": torch.rand(30, 30, generator=torch.Generator().manual_seed(5)) < 0.4},
    "cell by cell, large": {"bias": torch.randn(30, 30, generator=torch.Generator().manual_seed(6)) * 20},
    "softcap": {"softcap": 3.0, "window": 9},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sink", [1.5, 70.0])
def test_each_kind_of_stripe_and_every_tile(kind: str, sink: float, tiny_blocks: None) -> None:
    q, k, v = (torch.randn(30, d, generator=torch.Generator().manual_seed(d)) for d in (8, 8, 5))
    k = k.flip(0)
    keywords = KINDS[kind]
    att = Attention(q, k, v, sinks=sink, **keywords)
    allowed = att.block("allowed")
    bias = keywords.get("bias")
    plain = dense(q, k, v, allowed=allowed, bias=bias, scale=att.scale, softcap=att.softcap)
    wanted = with_sink(plain, sink)
    largest = max(sink, 0.0 if bias is None else float(bias.abs().max()))
    near = replace(rounding(att, added=largest), keys=31)
    for stage, pool in itertools.product(("weights", "contribution"), ("max", "mean")):
        for size in (30, 16, 3):
            fresh = Attention(q, k, v, sinks=sink, **keywords)
            for _ in range(2):  # the second time the log-normalizers are known
                seen = overview(fresh, 0, 0, size=size, pool=pool, stage=stage)
                values, open_bins = pooled(wanted, stage, pool, size)
                assert_close(seen.values.double(), values, **near.pooled(stage, seen.query_bin * seen.key_bin))
                assert torch.equal(seen.allowed, open_bins)
    part = tile(Attention(q, k, v, sinks=sink, **keywords), 0, 0, TileAddress(level=0, row=1, column=1, size=12))
    assert_close(part.values.double(), wanted["weights"][12:24, 12:24], **near.weights)


def test_what_has_no_key_to_attend_to_has_the_sink() -> None:
    att = Attention(*torch.randn(3, 4, 8), mask=torch.zeros(4, 4, dtype=torch.bool), sinks=-2.0)
    assert torch.equal(att.sink_weights(), torch.ones(4))
    assert torch.equal(att.block(), torch.zeros(4, 4))
    assert torch.equal(att.output(), torch.zeros(4, 8))
    assert torch.equal(att.log_normalizer(), torch.full((4,), -2.0))
    (finding,) = att.check()
    assert (finding.kind, "the learned sink has all the weight" in finding.message) == ("nothing allowed", True)


def test_a_head_with_minus_infinity_has_none() -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    att, plain = Attention(q, k, v, sinks=torch.tensor([-torch.inf, 0.0])), Attention(q, k, v)
    assert torch.equal(att.block(), plain.block())
    assert torch.equal(att.output(), plain.output())
    assert torch.equal(att.sink_weights(), torch.zeros(5))
    assert not torch.equal(att.block(head=1), plain.block(head=1))
    assert att.explain(0, 0).sink is None
    assert att.explain(0, 0).sink_weight is None


@pytest.mark.parametrize("stage", STAGES)
def test_the_column_of_each_stage(stage: str) -> None:
    att = Attention(*torch.randn(3, 1, 2, 5, 8), softcap=2.0, is_causal=True, sinks=torch.tensor([0.5, -1.5]))
    att = carrying(att)
    if stage == "scores":
        with pytest.raises(ValueError, match="a sink has no scores, because it has no key"):
            att.block(stage, keys="sink", head=1)
        return
    found = att.block(stage, keys="sink", head=1, queries=[0, 3])
    weights = att.sink_weights(head=1)[[0, 3]]
    nothing = dict.fromkeys(("contribution", *CARRIED), torch.zeros(2))
    wanted = {"weights": weights, **nothing}.get(stage, torch.full((2,), -1.5))
    assert_close(found, wanted[:, None], **sums(8))  # two rows, or all: a product of another shape
    assert att.block("allowed", keys="sink").tolist() == [[True]] * 5


def test_what_is_no_sink_is_refused() -> None:
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(ValueError, match=r"sinks has shape \(3,\) but there are 2 query heads: give one number for"):
        Attention(q, q, sinks=torch.zeros(3))
    with pytest.raises(ValueError, match=r"sinks holds NaN or \+∞: give finite numbers"):
        Attention(q, q, sinks=torch.tensor([0.0, torch.inf]))
    with pytest.raises(TypeError, match="sinks holds int64: attention needs floating point"):
        Attention(q, q, sinks=torch.zeros(2, dtype=torch.int64))
    with pytest.raises(TypeError, match="sinks is a str: give a torch tensor"):
        Attention(q, q, sinks="learned")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there are no learned sinks"):
        Attention(q, q).sink_weights()
    with pytest.raises(ValueError, match=r"give key numbers, or \"sink\""):
        Attention(q, q, sinks=0.0).block(keys="sinks")
    with pytest.raises(ValueError, match="there are no learned sinks"):
        Attention.from_weights(torch.ones(1, 1)).block(keys="sink")


def test_a_sink_that_changes_in_place_is_noticed() -> None:
    sink = nn.Parameter(torch.zeros(2))
    att = Attention(*torch.randn(2, 1, 2, 4, 8), sinks=sink)
    before = att.sink_weights()
    with torch.no_grad():
        sink += 3
    with pytest.warns(UserWarning, match="sinks changed in place"):
        after = att.sink_weights()
    assert bool((after > before).all())


# What is computed from weights.


def test_the_strongest_keys_and_queries_know_it() -> None:
    att = Attention(*torch.randn(3, 300, 8, generator=torch.manual_seed(2)), is_causal=True, sinks=2.0)
    weights = att.block()
    near = rounding(att, added=2.0).weights
    keys, found = att.top_keys(250, 5)
    assert_close(found, weights[250].sort(descending=True).values[:5], **near)
    assert_close(weights[250, keys], found, **near)
    for side, each in (("query", weights), ("key", weights.mT)):
        assert_close(strongest(att.head(0, 0), count=2, side=side).weights, each.topk(2, 1).values, **near)


@pytest.mark.parametrize("how", ["mean", "max"])
def test_heads_as_one_keep_a_column_of_their_own(how: str) -> None:
    att = Attention(
        *torch.randn(3, 2, 3, 20, 8, generator=torch.manual_seed(3)), sinks=torch.tensor([0.0, 3.0, -torch.inf])
    )
    each = torch.stack([att.sink_weights(1, head) for head in range(3)])
    one = att.combine(how=how)
    assert torch.equal(one.sink_weights(1), each.mean(0) if how == "mean" else each.amax(0))
    assert one.explain(4, 2, batch=1).sink_weight == pytest.approx(float(one.sink_weights(1)[4]), rel=eps(att.dtype))
    if how == "mean":
        within = rounding(att, added=3.0).weights["rtol"]
        assert_close(one.block(batch=1).sum(1) + one.sink_weights(1), torch.ones(20), rtol=0, atol=within)


def test_words_average_what_the_sink_takes_from_their_pieces() -> None:
    att = Attention(*torch.randn(2, 1, 2, 5, 8, generator=torch.manual_seed(4)), sinks=torch.tensor([1.0, 0.0]))
    words = att.merge([0, 0, 1, 2, 2])
    pieces = att.sink_weights(head=1)
    wanted = torch.stack([pieces[:2].mean(), pieces[2], pieces[3:].mean()])
    near = rounding(att, added=1.0).weights["rtol"]
    assert_close(words.sink_weights(head=1), wanted, rtol=near, atol=0)
    assert_close(words.block(head=1).sum(1) + wanted, torch.ones(3), rtol=0, atol=near)
    assert words.combine().has_sinks


def test_what_if_takes_sinks_away() -> None:
    q, k, v = torch.randn(3, 1, 2, 6, 8)
    att = Attention(q, k, v, is_causal=True, sinks=torch.tensor([1.0, 2.0]))
    without = att.what_if({"sinks": None})
    assert without.sinks is None
    assert torch.equal(without.block(head=1), Attention(q, k, v, is_causal=True).block(head=1))
    assert torch.equal(att.what_if({"sinks": True}).block(head=1), att.block(head=1))
    wider = att.what_if({"causal": False})
    assert wider.sinks is not None
    with pytest.raises(TypeError, match="give None or False to remove the learned sinks"):
        att.what_if({"sinks": 3})


def test_statistics_and_metrics_are_over_one_more_column() -> None:
    make = torch.Generator().manual_seed(7)
    q, k = torch.randn(2, 1, 4, 40, 8, generator=make, dtype=torch.float64)
    logits = torch.tensor([0.0, 4.0, -torch.inf, -200.0], dtype=torch.float64)
    allowed = torch.rand(40, 40, generator=make) < 0.5
    allowed[0] = True  # else queries that see no place of their own count as padding
    allowed.fill_diagonal_(True)
    allowed[3] = False
    for keywords in ({"is_causal": True}, {"mask": allowed}, {"bias": torch.randn(4, 40, 40, generator=make).double()}):
        att = Attention(q, k, sinks=logits, **keywords)
        for head in range(4):
            p, sink = att.block(head=head), att.sink_weights(head=head)
            there = att.block("allowed", head=head).any(1)
            columns = torch.cat([p, sink[:, None]], 1)
            entropy = -torch.xlogy(columns, columns).sum(1) / math.log(2)
            found, near = att.statistics(head=head), rounding(att, added=200.0)
            assert_close(found.entropy, entropy, **near.entropy)
            assert found.sink is not None
            assert_close(found.sink, sink, **near.weights)
            assert_close(found.total + found.sink, columns.sum(1), rtol=near.weights["rtol"], atol=0)
            assert_close(found.sensitivity, (p * (1 - p)).sum(1), rtol=0, atol=41 * near.weights["rtol"])
            metrics, relative = att.metrics(head=head), near.weights["rtol"]
            assert metrics.learned_sink == pytest.approx(float(sink[there].mean()), rel=relative, abs=1e-30)
            assert metrics.entropy == pytest.approx(float(entropy[there].mean()), **_named(near.entropy))
            assert metrics.itself == pytest.approx(
                float(p.diagonal()[there].mean()), rel=near.weights["rtol"], abs=1e-30
            )
    assert Attention(q, k).metrics().learned_sink is None
    assert Attention(q, k).statistics().sink is None
    mean = att.combine()
    assert mean.metrics().learned_sink == pytest.approx(float(mean.sink_weights().mean()), rel=1e-6)


def _named(bound: Any) -> dict[str, float]:
    return {"rel": bound["rtol"], "abs": bound["atol"]}


def test_a_query_between_sinks_far_above_every_key_still_counts() -> None:
    att = Attention(torch.zeros(3, 4), torch.zeros(3, 4), sinks=300.0, is_causal=True)
    found = att.metrics()
    assert (found.learned_sink, found.first_token, found.entropy) == (1.0, 0.0, 0.0)


def test_each_step_of_a_pair_is_told() -> None:
    att = Attention(*torch.randn(3, 4, 8, generator=torch.manual_seed(8)), sinks=0.75, is_causal=True)
    found = att.explain(3, 1)
    near = rounding(att, added=0.75)
    assert found.sink == 0.75
    assert found.sink_weight == pytest.approx(float(att.sink_weights()[3]), rel=near.weights["rtol"])
    assert found.log_normalizer is not None
    assert found.masked is not None
    assert found.weight == pytest.approx(math.exp(found.masked - found.log_normalizer), rel=near.weights["rtol"])
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines if line.startswith("sink")] == ["sink", "sink"]


def test_gradients_are_those_of_autograd() -> None:
    make = torch.Generator().manual_seed(9)
    q, k, v = (torch.randn(6, 4, generator=make, dtype=torch.float64, requires_grad=True) for _ in range(3))
    sink = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    grad = torch.randn(6, 4, generator=make, dtype=torch.float64)
    output, weights = scaled_dot_product_attention(q, k, v, is_causal=True, sinks=sink)
    output.backward(grad)
    found = Attention(q, k, v, is_causal=True, sinks=sink).gradients(grad)
    assert found.sink is not None
    assert sink.grad is not None
    for ours, theirs in ((found.q, q.grad), (found.k, k.grad), (found.v, v.grad), (found.sink, sink.grad[0])):
        assert ours is not None
        assert_close(ours, theirs, rtol=0, atol=1e4 * eps(torch.float64))
    att = Attention(q, k, v, is_causal=True, sinks=sink)
    assert_close(att.block(), weights.detach(), **rounding(att, added=0.5).weights)
    p = att.block()[4]
    assert_close(att.jacobian(4).sum(1), p * att.sink_weights()[4], rtol=0, atol=1e3 * eps(torch.float64))
    assert Attention(q, k, v).gradients().sink is None


def test_the_output_is_compared_with_torch() -> None:
    q, k, v = torch.randn(3, 64, 16, generator=torch.manual_seed(10))
    assert Attention(q, k, v, is_causal=True, sinks=1.0).check() == []
    assert Attention(q, k, v, sinks=30.0).check() == []


def test_a_row_of_large_negative_numbers_is_the_sinks() -> None:
    bias = torch.zeros(4, 4)
    bias[2] = -1e9
    q, k = torch.randn(2, 4, 8)
    assert "masked row made uniform" in [one.kind for one in Attention(q, k, bias=bias).check()]
    att = Attention(q, k, bias=bias, sinks=0.0)
    assert att.check() == []
    assert att.sink_weights()[2] == 1


def test_rollout_divides_what_a_sink_takes() -> None:
    q, k = torch.randn(2, 1, 2, 6, 8)
    stack = AttentionStack([Attention(q, k, is_causal=True, sinks=1.0)] * 2)
    rows = stack.rollout().block().sum(1)
    assert_close(rows, torch.ones(6), rtol=0, atol=1e2 * eps(torch.float32))


# The teaching path and stacks.


@pytest.mark.parametrize("dims", [None, "bqhd"])
def test_the_teaching_path(dims: str | None) -> None:
    make = torch.Generator().manual_seed(11)
    q, k, v = (torch.randn(2, *shape, generator=make) for shape in ((4, 3, 8), (1, 5, 8), (1, 5, 6)))
    q, k, v = (q, k, v) if dims is None else (x.transpose(1, 2) for x in (q, k, v))
    logits = torch.tensor([0.5, -torch.inf, 3.0, -1.0])
    mask = torch.tensor([[True, False, False, True, False], [False] * 5, [True] * 5])
    output, weights = scaled_dot_product_attention(q, k, v, mask=mask, dims=dims, sinks=logits)
    att = Attention(q, k, v, mask=mask, dims=dims, sinks=logits)
    for batch, head in itertools.product(range(2), range(4)):
        at: Any = (batch, head) if dims is None else (batch, slice(None), head)
        near = rounding(att, added=3.0)
        assert_close(weights[at], att.block(batch=batch, head=head), **near.weights)
        assert_close(output[at], att.output(batch, head), **near.output)
    module = ScaledDotProductAttention()
    assert torch.equal(module(q, k, v, mask, dims=dims, sinks=logits)[1], weights)


def test_softmax_of_one_more_is_a_sink_of_zero() -> None:
    """softmax₁(x) = exp(x) / (1 + Σ exp(x)), of Miller 2023."""
    q, k, v = torch.randn(3, 1, 2, 5, 8, generator=torch.manual_seed(12))
    scores = q @ k.mT / math.sqrt(8)
    wanted = scores.exp() / (1 + scores.exp().sum(-1, keepdim=True))
    att = Attention(q, k, v, sinks=0.0)
    assert_close(att.block(head=1), wanted[0, 1], **rounding(att).weights)


def test_layers_have_their_own() -> None:
    q = torch.randn(2, 1, 3, 4, 8)
    by_layer: Tensor = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    for given_sinks in (by_layer, list(by_layer)):
        stack = stack_layers(q, q, sinks=given_sinks)
        assert [layer.sinks.tolist() for layer in stack if layer.sinks is not None] == by_layer.tolist()
    mixed = stack_layers(q, q, sinks=[None, 1.0])
    assert [layer.has_sinks for layer in mixed] == [False, True]
    with pytest.raises(ValueError, match="sinks has 3 layers but q has 2"):
        stack_layers(q, q, sinks=torch.zeros(3, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_heads_in_half_types(dtype: torch.dtype, tiny_blocks: None) -> None:
    length = 150
    q, k, v = (torch.randn(1, 1, length, 8, generator=torch.manual_seed(13 + i)).to(dtype) for i in range(3))
    att = Attention(q, k, v, is_causal=True, sinks=torch.tensor([4.0], dtype=dtype))
    rows = [0, 77, length - 1]
    allowed = torch.arange(length) <= torch.tensor(rows)[:, None]
    wanted = with_sink(dense(q[0, 0, rows], k[0, 0], v[0, 0], allowed=allowed, scale=att.scale), 4.0)
    near = rounding(att, added=4.0)
    assert_close(att.block(queries=rows).double(), wanted["weights"], **near.weights)
    assert_close(att.sink_weights()[rows].double(), wanted["sink"], **near.weights)
    seen = att.overview(size=50)  # bins of 3 × 3
    near = near.pooled("weights", 1)
    assert_close(seen.values[:, 0], att.block(keys=slice(3)).view(50, 3, 3).amax((1, 2)), **near)


def test_minus_infinity_for_all_heads_is_no_sink() -> None:
    q, k = torch.randn(2, 2, 4, 8, generator=torch.Generator().manual_seed(0))[:, None]
    att = Attention(q, k, sinks=-torch.inf)
    assert not att.has_sinks
    assert torch.equal(att.block(head=1), Attention(q, k).block(head=1))
    with pytest.raises(ValueError, match="sinks is inf: give a finite number"):
        Attention(q, k, sinks=torch.inf)
