"""Steps that change scores or weights are followed in every precision; unseen steps contradict the output."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnwidget import Capture, capture

N = 48
CAUSAL = torch.ones(N, N).bool().tril()
PADDING = torch.arange(N) < torch.tensor([N, N // 2, N])[:, None, None, None]  # in the second sample of three
PRECISIONS = ("float32", "high", "bfloat16", "float16")


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / 4


def by_data(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    found = scores(q, k)
    found.data.masked_fill_(~mask, -torch.inf)
    return found.softmax(-1)


def by_numpy(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    found = scores(q, k).softmax(-1)
    if found.dtype is torch.bfloat16:  # which numpy lacks
        return found.masked_fill(~mask, 0)
    np.copyto(found.detach().numpy(), 0, where=~mask.numpy())
    return found


def by_view(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    found = scores(q, k).softmax(-1)
    found.view(-1, N)[~mask.expand(found.shape).reshape(-1, N)] = 0
    return found


def one_cell(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    weights = scores(q, k).softmax(-1)
    strongest = weights[0, 2].flatten().argmax()
    weights.data[0, 2].view(-1)[strongest] = 0
    return weights


def normalized(x: Tensor) -> Tensor:
    return x / x.sum(-1, keepdim=True)


Step = Callable[[Tensor, Tensor, Tensor], Tensor]
STEPS: dict[str, Step] = {
    "after the softmax": lambda q, k, mask: scores(q, k).softmax(-1).masked_fill(~mask, 0),
    "after it, normalized": lambda q, k, mask: normalized(scores(q, k).softmax(-1).masked_fill(~mask, 0)),
    "after it, by where": lambda q, k, mask: torch.where(mask, scores(q, k).softmax(-1), 0.0),
    "after it, by a product": lambda q, k, mask: scores(q, k).softmax(-1) * mask,
    "by .data": by_data,
    "by numpy": by_numpy,
    "by a view": by_view,
    "one cell": one_cell,
    "clamped": lambda q, k, mask: scores(q, k).clamp(max=5.0).softmax(-1),
    "clamped by position": lambda q, k, mask: scores(q, k).clamp(-1e4, 5.0).softmax(-1),
    "a power": lambda q, k, mask: (scores(q, k) / 8).pow(3).softmax(-1),
    "of heads mixed before": lambda q, k, mask: torch.einsum("bhqk,hg->bgqk", scores(q, k), mix(4)).softmax(-1),
    "of heads mixed after": lambda q, k, mask: torch.einsum("bhqk,hg->bgqk", scores(q, k).softmax(-1), mix(4)),
    "over the queries too": lambda q, k, mask: scores(q, k).softmax(-1) * scores(q, k).softmax(-2),
    "over the queries": lambda q, k, mask: normalized(scores(q, k).softmax(-2) + 1e-6),
    "softmin": lambda q, k, mask: F.softmin(scores(q, k), -1),
    "additive": lambda q, k, mask: (torch.tanh(q[..., :, None, :] + k[..., None, :, :]) @ mix(16)[0] * 4).softmax(-1),
    "the strongest": lambda q, k, mask: strongest(scores(q, k), 8),
}


def mix(n: int) -> Tensor:
    return torch.rand(n, n, generator=torch.Generator().manual_seed(3)).to(torch.get_default_dtype())


def strongest(found: Tensor, count: int) -> Tensor:
    top = found.topk(count, -1)
    return torch.zeros_like(found).scatter(-1, top.indices, top.values.softmax(-1))


def unseen(change: Callable[[Tensor, Tensor], object], *, before: bool) -> Step:
    """Return a step that changes the scores, or the weights, where no watcher of torch's functions sees it."""

    def step(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        found = scores(q, k) if before else scores(q, k).softmax(-1)
        with torch._C.DisableTorchFunction():
            change(found.data, mask)
        return found.softmax(-1) if before else found

    return step


UNSEEN: dict[str, Step] = {
    "scores": unseen(lambda x, mask: x.masked_fill_(~mask, -torch.inf), before=True),
    "weights": unseen(lambda x, mask: x.masked_fill_(~mask, 0), before=False),
    "clamped": unseen(lambda x, mask: x.clamp_(max=5.0), before=True),
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
        self.weights = self.way(q, k)
        return (self.weights @ v).transpose(1, 2).flatten(2)


@pytest.fixture(params=PRECISIONS)
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """The type of a model; "high" is float32 whose products torch may compute in TF32."""
    if request.param == "high":
        torch.set_float32_matmul_precision("high")
    yield torch.float32 if request.param == "high" else getattr(torch, request.param)
    torch.set_float32_matmul_precision("highest")


def capture_of(way: Callable[[Tensor, Tensor], Tensor], size: float, dtype: torch.dtype) -> tuple[Layer, Capture]:
    model = Layer(way, size).eval().to(dtype)
    x = torch.randn(3, N, 64, generator=torch.Generator().manual_seed(7)).to(dtype)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # `skipped` has the same words
        with capture(model, strict=False) as cap:
            model(x)
    return model, cap


def captured(way: Callable[[Tensor, Tensor], Tensor], size: float, dtype: torch.dtype) -> dict[str, str]:
    return capture_of(way, size, dtype)[1].skipped


@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_followed(step: str, dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    try:
        model, cap = capture_of(lambda q, k: STEPS[step](q, k, CAUSAL), 3, dtype)
    finally:
        torch.set_default_dtype(torch.float32)
    shown = torch.stack([cap.attention[0].block(batch=2, head=head) for head in range(4)])
    assert cap.skipped == {}
    assert (shown - model.weights[2].float()).abs().max() <= {torch.float32: 1e-5}.get(dtype, 0.03)


@pytest.mark.parametrize("size", [1, 3, 6])
@pytest.mark.parametrize("mask", [CAUSAL, PADDING], ids=["causal", "padding of one sample"])
@pytest.mark.parametrize("step", UNSEEN)
def test_an_unseen_step_is_not_shown(step: str, mask: Tensor, size: float, dtype: torch.dtype) -> None:
    if (step, size) == ("clamped", 1):
        return  # no score is above 5
    (why,) = captured(lambda q, k: UNSEEN[step](q, k, mask), size, dtype).values()
    assert "do not give its output" in why


@pytest.mark.parametrize("size", [0.3, 1, 3, 6, 30])
def test_rounding_is_not_taken_for_a_hidden_step(size: float, dtype: torch.dtype) -> None:
    assert captured(lambda q, k: scores(q, k).softmax(-1), size, dtype) == {}
    blocked = torch.finfo(dtype).min * (~CAUSAL).to(dtype)
    assert captured(lambda q, k: (scores(q, k) + blocked).softmax(-1), size, dtype) == {}
    wide = captured(lambda q, k: scores(q, k).softmax(-1, dtype=torch.float32).to(q.dtype), size, dtype)
    assert wide == {}


def test_nan_where_float16_overflows_is_shown_and_named_by_its_rows(tmp_path: Path) -> None:
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
    cap.save(tmp_path / "cap.safetensors")
    for one in (cap, Capture.load(tmp_path / "cap.safetensors")):
        assert one.attention[0].block().isnan().all(1).tolist() == [row == 2 for row in range(6)]
        assert [finding.kind for finding in one.attention[0].check() if finding.severity == "error"] == [found.kind]


def test_any_other_nan_contradicts_the_output() -> None:
    assert capture_of(with_nan, 1, torch.float32)[1].attention[0].block()[0].isnan().all()


def with_nan(q: Tensor, k: Tensor) -> Tensor:
    weights = scores(q, k).softmax(-1)
    weights.data[0, 0, 0] = torch.nan
    return weights
