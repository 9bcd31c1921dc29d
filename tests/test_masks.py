"""Masks never guess: what each kind means, how its axes are read, and what is asked where two readings fit."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from attnwidget.attention import Attention
from attnwidget.masks import Causal
from attnwidget.places import Cells

CPU = torch.device("cpu")


def attention(B: int, H: int, Q: int, K: int, **keywords: object) -> Attention:
    make = torch.Generator().manual_seed(0)
    q, k = (torch.randn(B, H, n, 4, generator=make) for n in (Q, K))
    return Attention(q, k, k, **keywords)


def allowed(att: Attention) -> torch.Tensor:
    B, H = att.shape[:2]
    return torch.stack([torch.stack([att.block("allowed", batch=b, head=h) for h in range(H)]) for b in range(B)])


# What a mask means.


def test_true_in_a_bool_mask_may_be_attended_to_as_in_torch() -> None:
    mask = torch.tensor([[True, True, False], [True, False, True]])
    att = attention(1, 1, 2, 3, mask=mask)
    assert torch.equal(allowed(att)[0, 0], mask)
    assert_close(att.output(), F.scaled_dot_product_attention(att.q, att.k, att.v, attn_mask=mask)[0, 0])
    assert torch.equal(allowed(attention(1, 1, 2, 3, mask=mask, mask_means="hide"))[0, 0], ~mask)
    assert torch.equal(allowed(attention(1, 1, 2, 3, mask=mask, mask_means="keep"))[0, 0], mask)


def test_a_float_mask_is_added_and_its_lowest_number_blocks() -> None:
    mask = torch.tensor([[0.5, -1e9, -torch.inf], [torch.finfo(torch.float32).min, 0.0, -3.0]])
    att = attention(1, 1, 2, 3, mask=mask)
    assert allowed(att)[0, 0].tolist() == [[True, True, False], [False, True, True]]
    expected = (att.block("scaled") + mask).masked_fill(~allowed(att)[0, 0], -torch.inf)
    assert_close(att.block("masked"), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_blocks_is_the_lowest_number_of_the_dtype_of_the_mask(dtype: torch.dtype) -> None:
    mask = torch.zeros(1, 3, dtype=dtype)
    mask[0, 1], mask[0, 2] = torch.finfo(dtype).min, torch.finfo(torch.float16).min
    att = attention(1, 1, 1, 3, mask=mask)
    assert allowed(att)[0, 0].tolist() == [[True, False, dtype is not torch.float16]]


def test_numbers_below_float32_block_scores_in_float32() -> None:
    att = attention(1, 1, 1, 2, mask=torch.tensor([[0.0, -1e300]], dtype=torch.float64))
    assert att.block("allowed").tolist() == [[True, False]]
    assert att.block().tolist() == [[1, 0]]


def test_nan_in_a_float_mask_is_seen() -> None:
    att = attention(1, 1, 2, 2, mask=torch.tensor([[0.0, torch.nan], [0.0, 0.0]]))
    assert att.block().isnan().all(1).tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.int32, np.uint16, np.int8])
def test_an_integer_mask_means_what_it_is_said_to_mean(dtype: torch.dtype | type) -> None:
    ones = [[1, 0, 1]]
    mask = torch.tensor(ones, dtype=dtype) if isinstance(dtype, torch.dtype) else np.array(ones, dtype)
    with pytest.raises(ValueError, match=r"say mask_means='keep' if 1 may be attended to .*'hide' if 1 is blocked"):
        attention(1, 2, 4, 3, mask=mask)
    kept = allowed(attention(1, 2, 4, 3, mask=mask, mask_means="keep"))
    assert torch.equal(kept, torch.tensor([True, False, True]).expand(1, 2, 4, 3))
    assert torch.equal(allowed(attention(1, 2, 4, 3, mask=mask, mask_means="hide")), ~kept)


def test_a_mask_and_causal_both_apply() -> None:
    mask = torch.rand(5, 5) > 0.3
    att = attention(1, 1, 5, 5, mask=mask, is_causal=True)
    assert torch.equal(allowed(att)[0, 0], mask.tril())
    bias = torch.randn(5, 5)
    att = attention(1, 1, 5, 5, mask=bias, is_causal=True)
    assert_close(
        att.block("masked"), (att.block("scaled") + bias).masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf)
    )


# How its axes are read.


@pytest.mark.parametrize(
    ("shape", "dims", "sizes"),
    [
        ((2, 3, 4, 5), None, "bhqk"),
        ((2, 1, 1, 5), None, "bhqk"),
        ((1, 3, 4, 1), None, "bhqk"),
        ((2, 4, 5), None, "bqk"),
        ((3, 4, 5), None, "hqk"),
        ((3, 1, 5), "hqk", "hqk"),
        ((4, 5), None, "qk"),
        ((4, 1), None, "qk"),
        ((2, 5), None, "bk"),
        ((1, 5), None, "qk"),
        ((1, 5), "bk", "bk"),
        ((1, 4, 5), None, "bqk"),
        ((1, 1), None, "qk"),
    ],
)
def test_the_axes_are_those_that_fit(shape: tuple[int, ...], dims: str | None, sizes: str) -> None:
    mask = torch.rand(shape, generator=torch.manual_seed(3)) > 0.5
    at = tuple(slice(None) if axis in sizes else None for axis in "bhqk")
    assert torch.equal(allowed(attention(2, 3, 4, 5, mask=mask, mask_dims=dims)), mask[at].expand(2, 3, 4, 5))


def test_two_readings_that_differ_are_asked_about() -> None:
    padding = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    with pytest.raises(ValueError, match=r"fits .* in two ways: say mask_dims='qk' or mask_dims='bk'"):
        attention(3, 2, 3, 3, mask=padding)
    by_query = allowed(attention(3, 2, 3, 3, mask=padding, mask_dims="qk"))
    by_batch = allowed(attention(3, 2, 3, 3, mask=padding, mask_dims="bk"))
    assert torch.equal(by_query, padding[None, None].expand(3, 2, 3, 3))
    assert torch.equal(by_batch, padding[:, None, None].expand(3, 2, 3, 3))
    mask = torch.rand(2, 3, 3) > 0.5
    with pytest.raises(ValueError, match="in two ways: say mask_dims='bqk' or mask_dims='hqk'"):
        attention(2, 2, 3, 3, mask=mask)
    assert torch.equal(allowed(attention(2, 2, 3, 3, mask=mask, mask_dims="hqk"))[1, 0], mask[0])


def test_two_readings_that_say_the_same_are_not_asked_about() -> None:
    same = torch.tensor([[True, True, False]]).expand(3, 3)
    assert torch.equal(allowed(attention(3, 1, 3, 3, mask=same)), same.expand(3, 1, 3, 3))


@pytest.mark.parametrize(
    ("mask", "keywords", "error", "match"),
    [
        (torch.zeros(3, 7), {}, ValueError,
         r"mask has shape \(3, 7\), which does not fit \(B, H, Q, K\) = \(2, 3, 4, 5\) as \(Q, K\) or \(B, K\)"),
        (torch.zeros(2, 5), {"mask_dims": "qk"}, ValueError, r"does not fit .* as \(Q, K\): give it those sizes, or 1"),
        (torch.zeros(5), {}, ValueError, r"mask has shape \(5,\), 1 axis: give \(Q, K\), \(B, K\)"),
        (torch.zeros(1, 1, 1, 1, 1), {}, ValueError, "5 axes: give"),
        (torch.zeros(4, 5), {"mask_dims": "bqk"}, ValueError, "2 axes: mask_dims 'bqk' names 3"),
        (torch.zeros(4, 5), {"mask_dims": "kq"}, ValueError, "no mask_dims is called 'kq': .*give one of qk, bk, bqk"),
        (torch.zeros(4, 5), {"mask_means": "keep"}, ValueError,
         "mask holds float32, which is added to the scores: leave mask_means out, or give a bool mask"),
        (torch.ones(4, 5).bool(), {"mask_means": "kept"}, ValueError, "did you mean 'keep'"),
        (torch.full((4, 5), 2), {"mask_means": "keep"}, ValueError, "mask holds int64 other than 0 and 1"),
        (torch.zeros(4, 5).to(torch.complex64), {}, TypeError, "mask holds complex64: give bool, or float32"),
        ([[True]], {}, TypeError, "mask is a list: give a torch tensor or a numpy array"),
        (torch.zeros(4, 5, device="meta"), {}, TypeError, "mask is without data"),
        (None, {"mask_means": "keep"}, ValueError, "mask_means is 'keep' but there is no mask: give mask= as well"),
        (None, {"mask_dims": "qk"}, ValueError, "mask_dims is 'qk' but there is no mask"),
    ],
)  # fmt: skip
def test_a_mask_that_cannot_be_read_is_refused(
    mask: object, keywords: dict[str, str], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        attention(2, 3, 4, 5, mask=mask, **keywords)


# The internal form.


@given(*[st.integers(0, 12)] * 2, *[st.integers(1, 12)] * 2, st.integers(1, 3))
def test_coverage_of_causal_is_true(query: int, key: int, queries: int, keys: int, step: int) -> None:
    cells = Cells(0, 0, range(query, query + queries, step), range(key, key + keys))
    causal = Causal(CPU)
    inside = causal.allowed(cells)
    wanted = "all" if inside.all() else "some" if inside.any() else "none"
    assert causal.coverage(cells) == wanted
    outside = [i for i, k in enumerate(cells.keys) if k not in causal.span(cells)]
    assert not inside[:, outside].any()


@pytest.mark.parametrize(
    "mask", [torch.ones(6, 6).tril().bool(), torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)]
)
def test_coverage_of_a_tensor_is_true(mask: torch.Tensor) -> None:
    rules = attention(1, 1, 6, 6, mask=mask).rules
    assert rules.coverage(Cells(0, 0, range(4, 6), range(2))) == "all"
    assert rules.coverage(Cells(0, 0, range(2), range(4, 6))) == "none"
    assert rules.coverage(Cells(0, 0, range(6), range(6))) == "some"
