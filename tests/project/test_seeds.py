"""The experiments of five teaching notebooks: their numbers come out, and where a sentence was wrong, the truth."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from attnwidget import Attention, ScaledDotProductAttention, load_sample, scaled_dot_product_attention


def close(actual: torch.Tensor, expected: list[float], digits: int = 4) -> None:
    """Equal to printed numbers: half of their last digit, and what rounding may put beside it."""
    assert_close(actual, torch.tensor(expected), rtol=1e-5, atol=0.5 * 10**-digits + 1e-6)


def test_experiment_1_random_cross_attention() -> None:
    torch.manual_seed(42)
    q, k, v = torch.randn(1, 4, 8), torch.randn(1, 4, 8), torch.randn(1, 4, 8)
    output, weights = scaled_dot_product_attention(q, k, v)
    close(weights[0, 1], [0.0408, 0.6555, 0.0864, 0.2173])
    close(Attention(q, k, v).block(queries=1)[0], [0.0408, 0.6555, 0.0864, 0.2173])
    assert_close(Attention(q, k, v).output(), output[0])


def test_experiment_2_the_odd_token_does_not_give_itself_everything() -> None:
    x = torch.tensor([[[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]])
    att = Attention(x, x, x)
    close(att.block(queries=1)[0], [0.212, 0.576, 0.212], 3)
    for query in (0, 2):  # the two that are equal share equally, to the last bit
        row = att.block(queries=query)[0]
        assert row[0] == row[2] > row[1] > 0.15


def test_bank_shore_does_not_ignore_bank_finance() -> None:
    x = torch.tensor([[0.0, 1, 0, 0.5], [0, 1.2, 0, 0], [1.2, 0, 1, 0], [0.1, 0.9, 0, 1]])  # river, water, two banks
    att = Attention(x, x, x)
    close(att.block(queries=3)[0], [0.277, 0.236, 0.146, 0.341], 3)
    keys, weights = att.top_keys(3, 4)
    assert keys.tolist() == [3, 0, 1, 2]
    close(weights, [0.341, 0.277, 0.236, 0.146], 3)


def test_experiment_3_scaling_brings_the_variance_back() -> None:
    torch.manual_seed(42)
    q, k = torch.randn(1, 10, 512), torch.randn(1, 10, 512)
    seen = Attention(q, k).statistics()
    assert seen.scores_variance == pytest.approx(486.0, abs=0.05)
    assert seen.scaled_variance == pytest.approx(0.949, abs=0.0005)
    assert seen.theory == 512
    unscaled = Attention(q, k, scale=1.0).statistics()
    assert unscaled.sensitivity.mean() < 0.2 < 0.7 < seen.sensitivity.mean()
    assert unscaled.entropy.mean() < 1 < 2 < seen.entropy.mean()


def test_experiment_4_padding_is_blocked_and_scores_may_be_in_hand() -> None:
    torch.manual_seed(42)
    scores = torch.randn(1, 5, 5)
    keep = torch.tensor([[[1, 1, 1, 0, 0]]])
    att = Attention.from_scores(scores, mask=keep, mask_means="keep")
    assert_close(att.block(), scores[0].masked_fill(keep[0] == 0, -1e9).softmax(1))
    assert att.block("allowed").tolist() == [[True, True, True, False, False]] * 5
    assert_close(Attention.from_scores(scores).block(), scores[0].softmax(1))


def test_experiment_5_heads_of_a_model_are_views() -> None:
    torch.manual_seed(42)
    x = torch.randn(1, 6, 64)
    heads = x.view(1, 6, 8, 8).transpose(1, 2)
    output, weights = scaled_dot_product_attention(heads, heads, heads)
    by_name, _ = scaled_dot_product_attention(*[x.view(1, 6, 8, 8)] * 3, dims="bqhd")
    assert (output.shape, weights.shape) == ((1, 8, 6, 8), (1, 8, 6, 6))
    assert_close(output.transpose(1, 2).reshape(1, 6, 64), by_name.reshape(1, 6, 64))


def test_minus_a_billion_leaves_a_blocked_row_uniform_and_we_leave_it_empty() -> None:
    q, k, v = torch.randn(3, 1, 2, 4)
    hidden = torch.tensor([[[0, 0], [1, 1]]])
    uniform = torch.where(hidden == 0, q @ k.mT / 2, torch.tensor(-1e9)).softmax(-1)
    assert uniform[0, 1].tolist() == [0.5, 0.5]
    output, weights = scaled_dot_product_attention(q, k, v, mask=hidden, mask_means="hide")
    assert weights[0, 1].tolist() == [0, 0]
    assert output[0, 1].tolist() == [0] * 4
    assert_close(weights[0, 0], uniform[0, 0])


def test_arrays_with_one_meaning_hidden() -> None:
    make = np.random.RandomState(42)
    q, k, v = make.rand(1, 2), make.rand(3, 2), make.rand(3, 4)
    output, weights = scaled_dot_product_attention(q, k, v)
    assert (output.shape, weights.shape) == ((1, 4), (1, 3))
    np.testing.assert_allclose(weights, [[0.3789, 0.2416, 0.3795]], atol=5e-5)
    np.testing.assert_allclose(weights.sum(-1), 1)
    np.testing.assert_allclose(output, weights @ v)
    q, k, v = make.rand(2, 2, 4), make.rand(2, 3, 4), make.rand(2, 3, 5)
    hidden = np.zeros((2, 2, 3), dtype=int)
    hidden[0, 1, 2] = hidden[1, 0, 0] = 1
    output, weights = scaled_dot_product_attention(q, k, v, mask=hidden, mask_means="hide")
    assert (weights == 0).tolist() == (hidden == 1).tolist()
    assert output.shape == (2, 2, 5)


def test_her_finds_the_cat_in_one_head_and_not_on_the_mean() -> None:
    q, k, v, (tokens,), _ = load_sample("cat")
    her, cat, love = (tokens.index(word) for word in ("her", "cat", "love"))
    rows = [Attention(q[n], k[n], v[n]).block(head=head, queries=her)[0] for n in range(6) for head in range(12)]
    by_head = torch.stack(rows)  # (72, keys)
    close(by_head[5 * 12 + 11, [cat]], [0.824], 3)
    close(by_head.mean(0)[[0, cat, love]], [0.498, 0.087, 0.112], 3)
    assert (by_head.argmax(1) == cat).sum() == 5
    assert (by_head.argmax(1) == 0).sum() == 51


def test_without_the_scale_gradients_vanish_in_half_of_the_rows_and_not_in_all() -> None:
    starved, larger = [], []
    for seed in range(50):
        q, k, v, loss = torch.randn(4, 10, 512, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        scaled = Attention(q, k, v).gradients(loss).q.norm(dim=1)
        unscaled = Attention(q, k, v, scale=1.0).gradients(loss).q.norm(dim=1)
        starved.append(float((unscaled < 0.01 * scaled).sum()))
        larger.append(float(unscaled.norm() > scaled.norm()))
    assert 4 < sum(starved) / 50 < 6  # of 10
    assert sum(larger) / 50 > 0.7


def test_a_module_with_dropout_divides_by_the_root_of_the_querys_own_size() -> None:
    torch.manual_seed(42)
    q, k, v = (torch.randn(1, 8, 64) for _ in range(3))
    attention = ScaledDotProductAttention(dropout=0.1).eval()
    output, weights = attention(q, k, v)
    assert_close(weights, (q @ k.mT / 8).softmax(-1))
    assert_close(weights.sum(-1), torch.ones(1, 8))
    assert_close(output, weights @ v)
    hidden = torch.ones(8, 8).triu(1).bool()
    assert torch.equal(attention(q, k, v, hidden, mask_means="hide")[1] == 0, hidden[None])


def test_projections_of_tokens_times_ten_saturate_even_after_scaling() -> None:
    torch.manual_seed(42)
    w_query, w_key, w_value = (torch.nn.Linear(8, 8) for _ in range(3))
    tokens = torch.randn(10, 8) * 10.0
    q, k, v = w_query(tokens), w_key(tokens), w_value(tokens)
    att = Attention(q, k, v)
    seen = att.statistics()
    assert seen.q_variance == pytest.approx(21.7614, abs=1e-3)
    assert seen.k_variance == pytest.approx(31.7007, abs=1e-3)
    assert seen.scores_variance == pytest.approx(3491.7310, abs=0.05)
    assert seen.scaled_variance == pytest.approx(436.4664, abs=0.01)
    close(att.block(queries=0)[0], [0, 0.0372, 0, 0, 0, 0, 0, 0.9628, 0, 0])
    assert seen.scaled_variance > 400 * 1  # the 1 that ÷ √d_k promises is for entries of variance 1
    assert seen.saturated_rows >= 4
    assert att.scale == pytest.approx(1 / math.sqrt(8))
