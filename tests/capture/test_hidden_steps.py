"""A step that q, k, v and the rules do not show contradicts the output in every precision; rounding does not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from attnwidget import capture

N = 48
CAUSAL = torch.ones(N, N).bool().tril()
PADDING = torch.arange(N) < torch.tensor([N, N // 2, N])[:, None, None, None]  # in the second sample of three
PRECISIONS = ("float32", "high", "bfloat16", "float16")


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / 4


def hidden_data(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    found = scores(q, k)
    found.data.masked_fill_(~mask, -torch.inf)
    return found.softmax(-1)


def one_cell(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    weights = scores(q, k).softmax(-1)
    strongest = weights[0, 2].flatten().argmax()
    weights.data[0, 2].view(-1)[strongest] = 0
    return weights


def normalized(x: Tensor) -> Tensor:
    return x / x.sum(-1, keepdim=True)


STEPS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "after the softmax": lambda q, k, mask: scores(q, k).softmax(-1).masked_fill(~mask, 0),
    "after it, normalized": lambda q, k, mask: normalized(scores(q, k).softmax(-1).masked_fill(~mask, 0)),
    "by .data": hidden_data,
    "clamped": lambda q, k, mask: scores(q, k).clamp(max=5.0).softmax(-1),
}


class Layer(nn.Module):
    def __init__(self, way: Callable[[Tensor, Tensor], Tensor], size: float) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.q, self.k, self.v = (nn.Linear(64, 64) for _ in range(3))
        self.way = way
        with torch.no_grad():
            self.q.weight.mul_(size)
            self.k.weight.mul_(size)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (4, 16)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return (self.way(q, k) @ v).transpose(1, 2).flatten(2)


@pytest.fixture(params=PRECISIONS)
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """The type of a model; "high" is float32 whose products torch may compute in TF32."""
    if request.param == "high":
        torch.set_float32_matmul_precision("high")
    yield torch.float32 if request.param == "high" else getattr(torch, request.param)
    torch.set_float32_matmul_precision("highest")


def captured(way: Callable[[Tensor, Tensor], Tensor], size: float, dtype: torch.dtype) -> dict[str, str]:
    model = Layer(way, size).eval().to(dtype)
    x = torch.randn(3, N, 64, generator=torch.Generator().manual_seed(7)).to(dtype)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # `skipped` has the same words
        with capture(model, strict=False) as cap:
            model(x)
    return cap.skipped


@pytest.mark.parametrize("size", [1, 3, 6])
@pytest.mark.parametrize("mask", [CAUSAL, PADDING], ids=["causal", "padding of one sample"])
@pytest.mark.parametrize("step", STEPS)
def test_a_hidden_step_is_not_shown(step: str, mask: Tensor, size: float, dtype: torch.dtype) -> None:
    if (step, size) == ("clamped", 1):
        return  # no score is above 5
    (why,) = captured(lambda q, k: STEPS[step](q, k, mask), size, dtype).values()
    assert why


@pytest.mark.parametrize("size", [0.3, 1, 3, 6, 30])
def test_rounding_is_not_taken_for_a_hidden_step(size: float, dtype: torch.dtype) -> None:
    assert captured(lambda q, k: scores(q, k).softmax(-1), size, dtype) == {}
    blocked = torch.finfo(dtype).min * (~CAUSAL).to(dtype)
    assert captured(lambda q, k: (scores(q, k) + blocked).softmax(-1), size, dtype) == {}
    wide = captured(lambda q, k: scores(q, k).softmax(-1, dtype=torch.float32).to(q.dtype), size, dtype)
    assert wide == {}


def test_one_cell_of_one_head_is_enough() -> None:
    (why,) = captured(lambda q, k: one_cell(q, k, CAUSAL), 3, torch.float32).values()
    assert "do not give its output" in why


def test_nan_where_float16_overflows_is_named_by_its_rows_and_any_other_contradicts_the_output() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            q = x[:, None]
            return torch.softmax(q @ q.mT / 8, -1) @ q

    x = torch.randn(1, 6, 64, generator=torch.Generator().manual_seed(1)).half()
    x[0, 2] *= 200
    model = Own()
    with capture(model) as cap:
        output = model(x)
    assert output[0, 0, 2].isnan().all()
    (found,) = (one for one in cap.attention[0].check() if one.kind == "scores beyond float16")
    assert (found.severity, found.query) == ("error", 2)
    assert "1 query has products of q and k beyond 65,504" in found.message
    assert "do not give its output" in next(iter(captured(lambda q, k: with_nan(q, k), 1, torch.float32).values()))


def with_nan(q: Tensor, k: Tensor) -> Tensor:
    weights = scores(q, k).softmax(-1)
    weights.data[0, 0, 0] = torch.nan
    return weights
