"""Rows whose keys are all hidden by finite numbers have the model's own weights; rows hidden by −∞ have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnwidget import capture

N = 9
CAUSAL = torch.ones(N, N).bool().tril()
PADDED = torch.arange(N)[None, None, None] >= torch.tensor([0, 4])[:, None, None, None]  # on the left, (2, 1, 1, N)
OPEN = CAUSAL & PADDED


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / 8**0.5


def added(number: float) -> Callable[[Tensor, Tensor], Tensor]:
    hidden = torch.zeros(OPEN.shape).masked_fill(~OPEN, number)
    return lambda q, k: (scores(q, k) + hidden.to(q.dtype)).softmax(-1)


def filled(number: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda q, k: scores(q, k).masked_fill(~OPEN, number).softmax(-1)


def itself_last(q: Tensor, k: Tensor) -> Tensor:
    """As Reformer: a query attends to itself only if it has nothing else."""
    return scores(q, k).masked_fill(torch.eye(N).bool(), -5e4).masked_fill(~CAUSAL, -1e9).softmax(-1)


WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "added lowest": added(torch.finfo(torch.float32).min),
    "added -1e9": added(-1e9),
    "added -1e4": added(-1e4),
    "filled -1e9": filled(-1e9),
    "filled lowest": filled(torch.finfo(torch.float32).min),
    "itself last": itself_last,
}


class Layer(nn.Module):
    def __init__(self, way: Any) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.q, self.k, self.v, self.way = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32), way

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (4, 8)).transpose(1, 2) for f in (self.q, self.k, self.v))
        self.seen = self.way(q, k)
        return (self.seen @ v).transpose(1, 2).flatten(2)


def shown(model: nn.Module, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(2, N, 32, generator=torch.Generator().manual_seed(7)).to(dtype)
    with torch.no_grad(), capture(model) as cap:
        model(x)
    att = cap.attention[0]
    return torch.stack([torch.stack([att.block(batch=b, head=h) for h in range(4)]) for b in range(2)])


@pytest.mark.parametrize("way", WAYS)
def test_a_row_that_numbers_hide_has_the_weights_of_the_model(way: str) -> None:
    model = Layer(WAYS[way]).eval()
    found = shown(model)
    torch.testing.assert_close(found, model.seen, rtol=1e-4, atol=1e-6)
    assert (found.sum(-1) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_is_uniform_where_a_half_type_absorbs_the_scores(dtype: torch.dtype) -> None:
    model = Layer(added(torch.finfo(dtype).min)).eval().to(dtype)
    found = shown(model, dtype)
    torch.testing.assert_close(found, model.seen.float(), rtol=0.05, atol=0.01)


def test_a_row_that_infinity_hides_has_no_weights() -> None:
    class Fused(Layer):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (f(x).unflatten(-1, (4, 8)).transpose(1, 2) for f in (self.q, self.k, self.v))
            return F.scaled_dot_product_attention(q, k, v, OPEN).transpose(1, 2).flatten(2)

    found = shown(Fused(None).eval())
    assert (found[1, :, :4] == 0).all()
    assert (found[1, :, 4:].sum(-1) - 1).abs().max() < 1e-5


def test_lowest_numbers_given_to_a_fused_kernel_are_numbers() -> None:
    mask = torch.zeros(OPEN.shape).masked_fill(~OPEN, torch.finfo(torch.float32).min)

    class Fused(Layer):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (f(x).unflatten(-1, (4, 8)).transpose(1, 2) for f in (self.q, self.k, self.v))
            return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)

    found = shown(Fused(None).eval())
    assert (found[1, :, :4] - 1 / N).abs().max() < 1e-6


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("length", [197, 1024])
def test_values_that_are_nearly_alike_raise_no_alarm(seed: int, length: int) -> None:
    """A sum of terms of one sign is rounded at every step, at the size that it has reached: it is the larger error."""
    source = torch.Generator().manual_seed(seed)
    q, k = 0.05 * torch.randn(2, 2, 4, length, 64, generator=source)
    v = 1.4 + 0.01 * torch.randn(2, 4, length, 64, generator=source)
    att = nn.MultiheadAttention(256, 4, batch_first=True)  # only a module that the call is made in

    def forward(*_: Any, **__: Any) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v)

    att.forward = forward  # type: ignore[method-assign, assignment]
    with torch.no_grad(), capture(att) as cap:
        att()
    assert cap.skipped == {}
