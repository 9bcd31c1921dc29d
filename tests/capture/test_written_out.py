"""Attention in the forms that people write it in: each is shown as the model computes it, or is named as skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured import assert_equal, in_both
from torch import Tensor, nn

from attnwidget import capture

Form = Callable[[Any, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # (module, q, k, v): weights, output
LOWER = torch.ones(7, 7).tril().bool()
SHOWN: dict[str, Form] = {}
TOLD: dict[str, Form] = {}


def shown(form: Form) -> Form:
    SHOWN[form.__name__] = form
    return form


def told(form: Form) -> Form:
    TOLD[form.__name__] = form
    return form


class Mixer(nn.Module):
    """An attention whose name does not say that it is one."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.qkv, self.form, self.num_heads = nn.Linear(32, 96), form, 4
        self.over_heads = nn.Parameter(torch.eye(4) + 0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        self.weights, output = self.form(self, q, k, v)
        return output.transpose(1, 2).flatten(2)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT) * 8**-0.5


def masked(q: Tensor, k: Tensor) -> Tensor:
    return scores_of(q, k).masked_fill(~LOWER, -torch.inf)


# Between the product and the softmax.


@shown
def all_but_causal_set(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores_of(q, k)
    scores[..., ~LOWER] = -torch.inf
    w = scores.softmax(-1)
    return w, w @ v


@shown
def set_by_index_and_mask(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores_of(q, k)
    scores[:, :, ~LOWER] = float("-inf")
    scores[:, 1, 2:, 0] = torch.tensor(-torch.inf)
    w = scores.softmax(-1)
    return w, w @ v


@shown
def set_by_whole_mask(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores_of(q, k)
    scores[(~LOWER).expand_as(scores)] = -1e9
    w = scores.softmax(-1)
    return w, w @ v


@shown
def set_by_slices(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores_of(q, k)
    for i in range(6):
        scores[:, :, i, i + 1 :] = -torch.inf
    w = scores.softmax(-1)
    return w, w @ v


@shown
def set_to_a_number(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores_of(q, k)
    scores[..., 0] = 1.0
    w = scores.softmax(-1)
    return w, w @ v


@shown
def added_to_a_part(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores_of(q, k)
    scores[..., 1:, 1:] += 1.0
    w = scores.softmax(-1)
    return w, w @ v


@shown
def filled_through_a_view(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores_of(q, k)
    scores[:, :, 0].zero_()
    w = scores.softmax(-1)
    return w, w @ v


@shown
def heads_mixed_before(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = torch.einsum("bhij,hg->bgij", scores_of(q, k), self.over_heads).softmax(-1)
    return w, w @ v


@shown
def heads_mixed_by_a_linear(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = F.linear(scores_of(q, k).permute(0, 2, 3, 1), self.over_heads).permute(0, 3, 1, 2).softmax(-1)
    return w, w @ v


@shown
def only_the_best_keys(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores_of(q, k)
    best = scores.topk(3, -1)
    w = torch.full_like(scores, -torch.inf).scatter(-1, best.indices, best.values).softmax(-1)
    return w, w @ v


@shown
def keys_before_queries(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = (k @ q.mT) * 8**-0.5
    w = scores.masked_fill(~LOWER.T, -torch.inf).softmax(-2)
    return w.mT, (v.mT @ w).mT


@shown
def einsum_of_another_order(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch.einsum("bhid,bhjd->bijh", q, k).masked_fill(~LOWER[..., None], -torch.inf)
    w = scores.softmax(2)
    return w.permute(0, 3, 1, 2), torch.einsum("bijh,bhjd->bhid", w, v)


@shown
def einsum_with_heads_last(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    w = torch.einsum("bqhd,bkhd->bqhk", q, k).softmax(-1)
    return w.transpose(1, 2), torch.einsum("bqhk,bkhd->bhqd", w, v)


@shown
def permuted_back_and_forth(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).permute(1, 0, 2, 3).softmax(-1).transpose(0, 1)
    return w, w @ v


# The softmax.


@shown
def torch_softmax_out(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = torch.empty_like(q @ k.mT)
    torch.softmax(masked(q, k), -1, out=w)
    return w, w @ v


@shown
def below_torch_softmax(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = torch._softmax(masked(q, k), -1, False)
    return w, w @ v


@shown
def special_softmax(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = torch.special.softmax(masked(q, k), -1)
    return w, w @ v


@shown
def exp_over_sum(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    e = masked(q, k).exp()
    w = e / e.sum(-1, keepdim=True)
    return w, w @ v


@shown
def exp_over_sum_of_the_largest(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores_of(q, k)
    e = torch.exp(scores - scores.max(dim=-1, keepdim=True).values) * LOWER
    w = e / (e.sum(dim=-1).unsqueeze(-1) + 1e-8)
    return w, w @ v


@shown
def log_softmax_exp(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).log_softmax(-1).exp()
    return w, w @ v


@shown
def less_logsumexp(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = masked(q, k)
    w = (scores - scores.logsumexp(-1, keepdim=True)).exp()
    return w, w @ v


@told
def exp_without_sum(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = scores_of(q, k).exp()
    return w, w @ v


@told
def softmax_of_one_more(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    e = scores_of(q, k).exp()
    w = e / (1 + e.sum(-1, keepdim=True))
    return w, w @ v


@told
def with_a_column_more(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = masked(q, k).flatten(0, 1)
    w = torch.cat([scores, torch.zeros_like(scores[..., :1])], -1).softmax(-1)[..., :-1].unflatten(0, (2, 4))
    return w, w @ v


@told
def of_padded_scores(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = F.pad(masked(q, k), (1, 0)).softmax(-1)[..., 1:]
    return w, w @ v


@told
def sigmoid(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = scores_of(q, k).sigmoid()
    return w, w @ v


@told
def rectified(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = F.relu(scores_of(q, k)) / 7
    return w, torch.einsum("bhij,bhjd->bhid", w, v)


@shown
def over_the_queries(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = scores_of(q, k).softmax(1)
    return w, w @ v


# Between the softmax and the values.


@shown
def zero_where_not_a_number(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1)
    w = torch.where(torch.isnan(w), torch.zeros_like(w), w)
    return w, w @ v


@shown
def zero_where_not_a_number_by_number(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1)
    w = torch.where(w.isnan(), 0.0, w).nan_to_num(0)
    w[w.isnan()] = 0
    return w, w @ v


@shown
def normalized_again(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1)
    w = w / w.sum(-1, keepdim=True)
    return w, w @ v


@shown
def masked_and_normalized(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = scores_of(q, k).softmax(-1) * LOWER
    w = w / w.sum(-1, keepdim=True)
    return w, w @ v


@shown
def masked_after(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = scores_of(q, k).softmax(-1) * LOWER
    return w, w @ v


@shown
def more_by_a_constant(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1) + 0.01
    return w, w @ v


@shown
def more_by_rounding(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1) + 1e-9
    return w, w @ v


@shown
def detached_and_copied(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1).detach().clone().contiguous()
    return w, w @ v


@shown
def all_of_it(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k)[..., :].softmax(-1)[:, :, :, :][..., :]
    return w, w @ v


@shown
def broadcast(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1)
    return w, w.expand(2, -1, -1, -1) @ v


@shown
def values_first(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1)
    return w, (v.mT @ w.mT).mT


@shown
def values_first_transposed_by_name(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1)
    return w, torch.matmul(v.transpose(-2, -1), w.transpose(-2, -1)).transpose(-2, -1)


@shown
def head_by_head(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1)
    return w, torch.stack([w[:, h] @ v[:, h] for h in range(4)], 1)


@shown
def in_chunks_of_heads(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1)
    return w, torch.cat([a @ b for a, b in zip(w.chunk(2, 1), v.chunk(2, 1), strict=True)], 1)


@shown
def unbound(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1)
    return w, torch.stack([a @ b for a, b in zip(w.unbind(0), v.unbind(0), strict=True)])


@shown
def some_queries_at_a_time(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1)
    return w, torch.cat([part @ v for part in w.split(3, 2)], 2)


@shown
def sample_by_sample(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1)
    return w, torch.stack([torch.matmul(w[b], v[b]) for b in range(2)])


@told
def only_some_heads(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1)
    return w, torch.stack([w[:, h] @ v[:, h] for h in (0, 1, 2, 2)], 1)


@shown
def heads_mixed_after(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = torch.einsum("bhij,hg->bgij", masked(q, k).softmax(-1), self.over_heads)
    return w, w @ v


@shown
def mean_over_heads(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1).mean(1, keepdim=True)
    return w.expand(-1, 4, -1, -1), w @ v


@shown
def squared(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1) ** 2
    return w, w @ v


@told
def some_keys(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1)
    return w, w[..., :6] @ v[..., :6, :]


@shown
def by_a_sum(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = masked(q, k).softmax(-1)
    return w, (w[..., None] * v[..., None, :, :]).sum(-2)


@pytest.mark.parametrize("form", SHOWN)
def test_it_is_shown_as_the_model_computes_it(form: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Mixer(SHOWN[form]), Plain()).eval(), torch.randn(2, 7, 32)
    with torch.no_grad():
        plain = model(x)
        with capture(model) as cap:
            assert torch.equal(model(x), plain)
    assert cap.skipped == {}
    assert list(cap.calls) == ["0", "1"]
    assert_equal([cap.calls["0"]], [in_both(lambda own, x: own(x) is not None and own[0].weights, model, x)])


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
@pytest.mark.parametrize("form", TOLD)
def test_it_is_told_that_it_is_not_shown(form: str, inference: bool) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Mixer(TOLD[form]), Plain()).eval(), torch.randn(2, 7, 32)
    with torch.inference_mode(inference), torch.no_grad():
        plain = model(x)
        with capture(model) as cap:
            assert torch.equal(model(x), plain)
    assert list(cap.skipped) == ["0"]
    assert list(cap.calls) == ["1"]


@pytest.mark.parametrize("form", SHOWN)
def test_it_is_verified_under_dropout_and_where_no_values_are_kept(form: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Mixer(SHOWN[form]), Plain()).train(), torch.randn(2, 7, 32)
    with torch.inference_mode(), capture(model, values=False, clone=False) as cap:
        model(x)
    assert (cap.skipped, list(cap.calls)) == ({}, ["0", "1"])
