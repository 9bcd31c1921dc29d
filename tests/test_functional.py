"""The teaching path: what tutorials write, with their shapes and their masks, exact and trainable."""

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from reference import Case, cases
from tolerance import rounding
from torch.testing import assert_close

from attnwidget import Attention, ScaledDotProductAttention, masks, scaled_dot_product_attention
from examples import examples


@given(cases(longest=12))
@examples(60)
def test_output_and_weights_are_those_of_the_dense_matrix(case: Case) -> None:
    output, weights = scaled_dot_product_attention(case.q, case.k, case.v, **case.keywords)
    within, half = case.rounding(), torch.finfo(case.q.dtype).eps  # the output is rounded to the dtype of the tensors
    assert output.dtype is case.q.dtype
    for batch, head in itertools.product(range(case.q.shape[0]), range(case.q.shape[1])):
        expected = case.dense(batch, head)["weights"]
        assert_close(weights[batch, head].double(), expected, **within.weights)
        group = head // (case.q.shape[1] // case.k.shape[1])
        wanted = expected @ case.v[batch, group].double()
        assert_close(output[batch, head].double(), wanted, rtol=half, atol=within.output["atol"])


@pytest.mark.parametrize(("lead", "dtype"), [((), np.float64), ((2,), np.float32), ((2, 3), np.float32)])
def test_arrays_in_arrays_out_with_any_leading_axes(lead: tuple[int, ...], dtype: type) -> None:
    make = np.random.default_rng(0)
    q, k, v = (make.normal(size=(*lead, n, d)).astype(dtype) for n, d in ((4, 8), (6, 8), (6, 5)))
    output, weights = scaled_dot_product_attention(q, k, v)
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(8)
    expected = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert type(output) is type(weights) is np.ndarray
    assert output.dtype == weights.dtype == dtype
    within = rounding(Attention(*(torch.from_numpy(x.reshape(-1, *x.shape[-2:])) for x in (q, k, v))))
    np.testing.assert_allclose(weights, expected, **within.weights)
    np.testing.assert_allclose(output, expected @ v, **within.output)


def test_axes_by_name_come_back_as_they_were_given() -> None:
    q, k, v = torch.randn(5, 2, 4), torch.randn(7, 2, 4), torch.randn(7, 2, 3)
    output, weights = scaled_dot_product_attention(q, k, v, dims="qhd")
    assert (output.shape, weights.shape) == ((5, 2, 3), (5, 2, 7))
    expected = F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in (q, k, v)))[0].transpose(0, 1)
    within = rounding(Attention(q, k, v, dims="qhd")).output
    assert_close(output, expected, **within)
    assert_close(torch.einsum("qhk,khd->qhd", weights, v), output, **within)


def test_the_three_conventions_of_masks_go_by_name() -> None:
    """0 hides, 1 hides, True hides: each tutorial has its own. What is not said is asked."""
    q = k = v = torch.randn(1, 3, 4)
    keep = torch.tensor([[[1, 1, 0], [1, 1, 0], [1, 0, 1]]])
    _, expected = scaled_dot_product_attention(q, k, v, mask=keep.bool())
    assert torch.equal(expected == 0, keep == 0)
    for mask, means in ((keep, "keep"), (1 - keep, "hide"), (~keep.bool(), "hide"), (keep.bool(), "keep")):
        assert torch.equal(scaled_dot_product_attention(q, k, v, mask=mask, mask_means=means)[1], expected)
        by_array = scaled_dot_product_attention(*(x.numpy() for x in (q, k, v)), mask=mask.numpy(), mask_means=means)[1]
        assert torch.equal(torch.from_numpy(by_array), expected)
    with pytest.raises(ValueError, match="say mask_means='keep' if 1 may be attended to"):
        scaled_dot_product_attention(q, k, v, mask=keep)


def test_everything_after_v_goes_by_name() -> None:
    q = torch.randn(2, 4)
    with pytest.raises(TypeError, match="takes 3 positional arguments but 4 were given"):
        scaled_dot_product_attention(q, q, q, torch.ones(2, 2).bool())
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        ScaledDotProductAttention(64)


@pytest.mark.parametrize("how", ["bool", "float", "lowest", "function", "causal"])
def test_a_query_that_may_attend_to_nothing_has_no_output_and_no_gradient_that_is_nan(how: str) -> None:
    keep = torch.tensor([[True, False, True], [False, False, False]])
    q, k, v = (torch.randn(n, 4, dtype=torch.float64, requires_grad=True) for n in (2, 3, 3))
    zeros, lowest = torch.zeros(2, 3), torch.finfo(torch.float32).min
    keywords = {
        "bool": {"mask": keep},
        "float": {"mask": zeros.masked_fill(~keep, -torch.inf)},
        "lowest": {"mask": zeros.masked_fill(~keep, lowest)},
        "function": {"bias": lambda score, b, h, q_idx, kv_idx: score.masked_fill(~keep[q_idx, kv_idx], -torch.inf)},
        "causal": {"mask": masks.and_masks(masks.padding([0]), masks.causal)},
    }
    output, weights = scaled_dot_product_attention(q, k, v, **keywords[how])
    assert output[1].tolist() == [0] * 4
    assert weights[1].tolist() == [0] * 3
    (output.square().sum() + weights.square().sum()).backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))
    assert q.grad[1].tolist() == [0] * 4


KEYWORDS = {
    "plain": {},
    "causal": {"is_causal": True},
    "empty row": {"mask": torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])},
    "padding": {"mask": masks.padding([3, 4])},
    "window": {"window": 2, "is_causal": True},
    "softcap": {"softcap": 1.5, "scale": -2.0},
    "function": {"bias": lambda score, b, h, q_idx, kv_idx: torch.sin(score) + 0.1 * (kv_idx - q_idx) * (h + 1)},
}


@pytest.mark.parametrize("case", KEYWORDS)
def test_gradients_are_those_of_finite_differences(case: str) -> None:
    make = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(2, h, n, d, generator=make, dtype=torch.float64, requires_grad=True)
        for h, n, d in ((6, 3, 1), (3, 4, 1), (3, 4, 5))
    )
    module = ScaledDotProductAttention()
    assert torch.autograd.gradcheck(lambda *x: module(*x, **KEYWORDS[case]), (q, k, v))


def test_gradients_are_those_of_the_formula_written_out() -> None:
    q, k, v = (torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3))
    causal = torch.ones(5, 5).tril().bool()
    by_hand = ((q @ k.mT) / 2).masked_fill(~causal, -torch.inf).softmax(-1) @ v
    expected = torch.autograd.grad(by_hand.square().sum(), (q, k, v))
    output, _ = ScaledDotProductAttention()(q, k, v, causal)
    for ours, theirs in zip(torch.autograd.grad(output.square().sum(), (q, k, v)), expected, strict=True):
        assert_close(ours, theirs)  # torch's default bound for the dtype


def test_a_bias_is_trained() -> None:
    q, k, v = torch.randn(3, 2, 3, 4, dtype=torch.float64)
    bias = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda bias: scaled_dot_product_attention(q, k, v, bias=bias), (bias,))


def test_it_trains() -> None:
    """To copy the token before: only attention to the last position but one can."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 5, (64, 8))
    x = torch.cat([F.one_hot(tokens, 5), torch.eye(8).expand(64, 8, 8)], 2).float()
    to_q, to_k = torch.nn.Linear(13, 8), torch.nn.Linear(13, 8)
    attention = ScaledDotProductAttention(dropout=0.05)
    parameters = [*to_q.parameters(), *to_k.parameters()]
    optimizer, losses = torch.optim.Adam(parameters, 0.1), []
    for _ in range(40):
        output, _ = attention(to_q(x), to_k(x), x[:, :, :5], masks.causal)
        losses.append(F.mse_loss(output[:, 1:], x[:, :-1, :5]))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] / 5
    weights = attention.eval()(to_q(x), to_k(x), x, masks.causal)[1]
    assert weights[:, 1:].diagonal(0, 1, 2).mean() > 0.8


def test_weights_are_dropped_only_in_training_and_shown_whole() -> None:
    q, k, v = torch.randn(3, 2, 6, 4)
    attention = ScaledDotProductAttention(dropout=0.5)
    output, weights = attention(q, k, v)
    within = rounding(Attention(q, k, v))
    assert_close(weights.sum(-1), torch.ones(2, 6), **within.weights)
    assert not torch.allclose(output, weights @ v)
    output, weights = attention.eval()(q, k, v)
    assert_close(output, weights @ v, **within.output)


def test_the_scale_is_that_of_the_query_not_of_the_model() -> None:
    """Eight heads of a model of 64: √8, where a module told d_model = 64 would divide by 8."""
    q, k, v = torch.randn(3, 1, 8, 5, 8)
    expected = F.scaled_dot_product_attention(q, k, v)
    assert_close(ScaledDotProductAttention()(q, k, v)[0], expected, **rounding(Attention(q, k, v)).output)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_under_autocast_are_computed_in_float32(dtype: torch.dtype) -> None:
    q, k, v = torch.randn(3, 1, 40, 64).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, weights = scaled_dot_product_attention(q, k, v)
    expected = torch.softmax(q.double() @ k.double().mT / 8, -1)
    assert (output.dtype, weights.dtype) == (dtype, torch.float32)
    assert_close(weights.double(), expected, **rounding(Attention(q, k, v)).weights)


def test_tensors_of_inference_mode_and_without_gradients_stay_so() -> None:
    q, k, v = torch.randn(3, 4, 8)
    assert not scaled_dot_product_attention(q, k, v)[0].requires_grad
    with torch.inference_mode():
        assert scaled_dot_product_attention(q, k, v)[0].is_inference()


@pytest.mark.parametrize(
    ("dropout", "error", "match"),
    [
        (1.5, ValueError, r"dropout is 1\.5: give a probability, from 0 to 1"),
        (-0.1, ValueError, "give a probability"),
        ("0.1", TypeError, "dropout is '0.1': give a number"),
    ],
)
def test_a_dropout_is_a_probability(dropout: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        ScaledDotProductAttention(dropout=dropout)


@pytest.mark.parametrize(
    ("q", "keywords", "error", "match"),
    [
        (np.ones((2, 4), int), {}, TypeError, "q holds int64: attention needs floating point: convert it to float32"),
        ([[1.0]], {}, TypeError, "q is a list: give a torch tensor or a numpy array"),
        (np.ones((2, 4)), {"softcap": 0}, ValueError, "softcap is 0.0: give a number above 0"),
        (np.ones((2, 4)), {"scale": "big"}, TypeError, "scale is 'big': give a number"),
        (np.ones((2, 4)), {"is_causal": 1}, TypeError, "is_causal is 1: give True or False"),
    ],
)
def test_what_cannot_be_read_is_refused(
    q: object, keywords: dict[str, object], error: type[Exception], match: str
) -> None:
    x = np.ones((2, 4))
    with pytest.raises(error, match=match):
        scaled_dot_product_attention(q, x, x, **keywords)
    with pytest.raises(TypeError, match="v is None: give a torch tensor or a numpy array"):
        scaled_dot_product_attention(x, x, None)


@pytest.mark.parametrize("array", [torch.tensor, np.array])
def test_a_mask_of_floats_0_and_1_comes_with_a_warning_at_the_callers_line(array: Any) -> None:
    mask = array([[1.0, 0.0], [1.0, 1.0]])
    q, k, v = (array([[1.0, 2.0], [3.0, 4.0]]) for _ in range(3))
    with pytest.warns(
        UserWarning, match=r"only 0 and 1 was added to the scores; nothing is hidden by it\. .*bool"
    ) as said:
        _, weights = scaled_dot_product_attention(q, k, v, mask=mask)
    assert said[0].filename == __file__
    assert bool((weights > 0).all())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled_dot_product_attention(q, k, v, mask=mask != 0)
        scaled_dot_product_attention(q, k, v, bias=mask)
    if array is torch.tensor:
        with pytest.warns(UserWarning, match="only 0 and 1") as said:
            ScaledDotProductAttention()(q, k, v, mask)
        assert said[0].filename == __file__
