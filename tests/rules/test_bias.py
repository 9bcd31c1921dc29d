"""Biases and softcaps: ALiBi, T5 and Gemma 2 by their own formulas, as tensors and as functions, at any length."""

import math

import pytest
import torch
from reference import allowed, attention
from tolerance import rounding, sums
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.testing import assert_close

from attnwidget import masks
from attnwidget.attention import Attention

LOWEST = torch.finfo(torch.float32).min


def alibi_slopes(heads: int) -> torch.Tensor:
    """2^(−8 h / H) for h = 1 … H (Press et al. 2022, §3), H a power of two."""
    return 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)


def t5_bucket(distance: torch.Tensor, buckets: int = 32, furthest: int = 128) -> torch.Tensor:
    """The bucket of key − query in a T5 encoder (Raffel et al. 2020, §2.1): half of them for each direction, of these
    half one by one, the others ever wider."""
    side, exact = buckets // 2, buckets // 4
    far = exact + (torch.log(distance.abs().clamp(min=1) / exact) / math.log(furthest / exact) * (side - exact)).long()
    near = torch.where(distance.abs() < exact, distance.abs(), far.clamp(max=side - 1))
    return near + side * (distance > 0)


def test_alibi_is_the_same_as_function_and_as_tensor() -> None:
    slopes = alibi_slopes(8)
    apart = torch.arange(30) - torch.arange(20)[:, None]

    def alibi(
        score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor
    ) -> torch.Tensor:
        return score + slopes[h] * (kv_idx - q_idx)

    by_function = attention(2, 8, 20, 30, bias=alibi, is_causal=True)
    by_tensor = attention(2, 8, 20, 30, bias=slopes[:, None, None] * apart, is_causal=True)
    for head in (0, 7):
        where = {"batch": 1, "head": head}
        expected = by_function.block("scaled", **where) + slopes[head] * apart
        expected = expected.masked_fill(apart > 0, -torch.inf)
        within = rounding(by_function, added=30)
        assert_close(by_function.block("masked", **where), expected, **within.masked)
        assert_close(by_tensor.block("masked", **where), expected, **within.masked)
        assert_close(by_function.output(1, head), by_tensor.output(1, head), **within.output)
        seen = by_function.overview(1, head, size=7).values
        assert_close(seen, by_tensor.overview(1, head, size=7).values, **within.weights)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_computes_the_same_from_the_same_functions() -> None:
    slopes = alibi_slopes(4)

    def alibi(
        score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor
    ) -> torch.Tensor:
        return score + slopes[h] * (kv_idx - q_idx)

    mask = masks.and_masks(masks.causal, masks.sliding_window(5), masks.padding([7, 20]))
    att = attention(2, 4, 20, 20, bias=alibi, mask=mask)
    block_mask = create_block_mask(mask, 2, 4, 20, 20, device="cpu")
    expected = flex_attention(att.q, att.k, att.v, score_mod=alibi, block_mask=block_mask)
    for batch in range(2):
        assert_close(att.output(batch, 3), expected[batch, 3], **rounding(att, added=20).output)


def test_t5_relative_buckets_as_a_function() -> None:
    """T5 neither scales nor masks its encoder; a bucket is that of the distance."""
    assert t5_bucket(torch.tensor([0, -1, -7, -8, -15, -16, -127, -500, 1, 8, 128])).tolist() == [
        0, 1, 7, 8, 9, 10, 15, 15, 17, 24, 31,
    ]  # fmt: skip
    table = torch.randn(32, 4, generator=torch.manual_seed(5))

    def t5(
        score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor
    ) -> torch.Tensor:
        return score + table[t5_bucket(kv_idx - q_idx), h]

    att = attention(1, 4, 200, 200, bias=t5, scale=1.0)
    added = table[t5_bucket(torch.arange(200) - torch.arange(200)[:, None])].permute(2, 0, 1)  # (H, Q, K)
    for head in range(4):
        expected = att.q[0, head] @ att.k[0, head].mT + added[head]
        within = rounding(att, added=float(table.abs().max()))
        assert_close(att.block("masked", head=head), expected, **within.masked)
        assert_close(att.block(head=head), expected.softmax(1), **within.weights)
    alike = attention(1, 4, 200, 200, bias=added, scale=1.0)
    assert_close(alike.log_normalizer(head=3), att.log_normalizer(head=3), **within.normalizer)


def test_softcap_comes_before_bias_and_mask_as_in_gemma_2() -> None:
    bias = torch.randn(6, 6)
    att = attention(1, 1, 6, 6, scale=20.0, softcap=30.0, bias=bias, is_causal=True)
    capped = 30 * torch.tanh(att.block("scores") * 20 / 30)
    within = rounding(att, added=float(bias.abs().max()))
    assert_close(att.block("capped"), capped, **within.masked)
    assert att.block("capped").abs().max() < 30 < att.block("scaled").abs().max()
    causal = torch.ones(6, 6).tril().bool()
    assert_close(att.block("masked"), (capped + bias).masked_fill(~causal, -torch.inf), **within.masked)
    assert_close(att.block(), (capped + bias).masked_fill(~causal, -torch.inf).softmax(1), **within.weights)


def test_capped_equals_scaled_without_a_softcap_and_is_then_not_offered() -> None:
    att = attention(1, 1, 5, 5)
    assert torch.equal(att.block("capped"), att.block("scaled"))
    assert torch.equal(att.overview(stage="capped", size=2).values, att.overview(stage="scaled", size=2).values)
    assert "capped" not in att.stages
    assert attention(1, 1, 5, 5, softcap=2.0).stages == (
        "scores", "scaled", "capped", "masked", "weights", "contribution",
    )  # fmt: skip


@pytest.mark.parametrize("blocked", [-torch.inf, LOWEST])
def test_a_bias_that_is_as_low_as_can_be_blocks_as_a_mask_does(blocked: float) -> None:
    """transformers' float masks: a row that is filled with the lowest number is empty, not uniform."""
    bias = torch.zeros(1, 1, 3, 4)
    bias[..., 1, 2], bias[..., 2, :] = blocked, blocked
    keep = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 1], [0, 0, 0, 0]]).bool()
    by_mask = attention(1, 1, 3, 4, mask=keep)

    def change(score: torch.Tensor, b: object, h: object, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        return torch.where(keep[q_idx, kv_idx], score, blocked)

    for att in (
        attention(1, 1, 3, 4, bias=bias),
        attention(1, 1, 3, 4, mask=bias),
        attention(1, 1, 3, 4, bias=change),
        attention(1, 1, 3, 4, bias=lambda s, b, h, q_idx, kv_idx: s + bias[b, h, q_idx, kv_idx]),
    ):
        assert torch.equal(allowed(att)[0, 0], keep)
        assert_close(att.block(), by_mask.block(), **rounding(att).weights)
        assert att.block()[2].tolist() == [0] * 4
        assert att.log_normalizer()[2] == -torch.inf
        assert att.output()[2].tolist() == [0] * 4
        for stage in ("scores", "masked", "weights"):
            for pool in ("max", "mean"):
                seen, expected = (x.overview(stage=stage, pool=pool, size=2) for x in (att, by_mask))
                assert torch.equal(seen.allowed, expected.allowed)
                assert_close(seen.values, expected.values, **rounding(att).pooled(stage, 4))


def test_a_bias_and_a_float_mask_are_both_added() -> None:
    bias, mask = torch.randn(3, 2, 4, 5), torch.randn(4, 5)
    att = attention(3, 2, 4, 5, bias=bias, mask=mask)
    within = rounding(att, added=float(bias.abs().max() + mask.abs().max()))
    wanted = att.block("scaled", batch=2, head=1) + bias[2, 1] + mask
    assert_close(att.block("masked", batch=2, head=1), wanted, **within.masked)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((4, 5), "qk"),
        ((1, 5), "qk"),
        ((3, 4, 5), "hqk"),
        ((2, 4, 5), "bqk"),
        ((2, 1, 4, 5), "bhqk"),
        ((1, 3, 1, 5), "bhqk"),
    ],
)
def test_the_axes_of_a_bias_are_those_that_fit(shape: tuple[int, ...], axes: str) -> None:
    bias = torch.randn(shape)
    att = attention(2, 3, 4, 5, bias=bias)
    added = bias[tuple(slice(None) if axis in axes else None for axis in "bhqk")].expand(2, 3, 4, 5)
    for batch in range(2):
        for head in range(3):
            where = {"batch": batch, "head": head}
            within = rounding(att, added=float(bias.abs().max())).masked
            assert_close(att.block("masked", **where), att.block("scaled", **where) + added[batch, head], **within)


@pytest.mark.parametrize(
    ("bias", "error", "match"),
    [
        (torch.randn(2, 4, 5), ValueError, r"bias has shape \(2, 4, 5\), which fits .* in two ways: give it 4 axes"),
        (torch.zeros(4, 5).bool(), TypeError, "bias holds bool: give float32, to be added .*, or pass it as mask="),
        (torch.zeros(4, 5).long(), TypeError, "bias holds int64"),
        (torch.zeros(4, 6), ValueError, r"bias has shape \(4, 6\), which does not fit \(B, H, Q, K\) = \(2, 2, 4, 5\)"),
        (torch.zeros(5), ValueError, r"bias has shape \(5,\), 1 axis: give \(Q, K\), \(H, Q, K\)"),
        (1.5, TypeError, "bias is a float: give a torch tensor or a numpy array"),
        (lambda score: score, ValueError, r"bias\(score, b, h, q_idx, kv_idx\) fails for sample 1, head 1"),
        (lambda score, b, h, q_idx, kv_idx: kv_idx <= q_idx, TypeError, "a function that returns bool: let it return"),
        (lambda score, b, h, q_idx, kv_idx: 1.0, TypeError, "bias is a function that returns float: let it"),
    ],
)  # fmt: skip
def test_a_bias_that_cannot_be_read_is_refused(bias: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        attention(2, 2, 4, 5, bias=bias)


@pytest.mark.parametrize(
    ("softcap", "error", "match"),
    [
        (0.0, ValueError, r"softcap is 0\.0: give a number above 0, or None for none"),
        (-1, ValueError, "give a number above 0"),
        ("50", TypeError, "softcap is '50': give a number"),
    ],
)
def test_a_softcap_is_a_number_above_zero(softcap: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        attention(1, 1, 2, 2, softcap=softcap)


def test_a_function_never_writes_into_what_it_was_given_or_gives() -> None:
    table = torch.zeros(5, 5)

    def change(score: torch.Tensor, b: object, h: object, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        return table[: len(q_idx), : kv_idx.shape[1]]

    att = attention(1, 1, 5, 5, bias=change)
    assert_close(att.block(), torch.full((5, 5), 0.2), **sums(5, size=0))
    att.overview(pool="mean")
    assert torch.equal(table, torch.zeros(5, 5))


def test_it_says_what_it_was_given() -> None:
    att = attention(
        1, 1, 2, 2, is_causal=True, window=7, mask=torch.ones(2, 2).bool(), bias=torch.zeros(2, 2), softcap=50
    )
    assert ", causal, window 7, masked, biased, softcap 50, float32" in repr(att)
    assert (att.window, att.softcap) == (7, 50.0)
    assert isinstance(att, Attention)
