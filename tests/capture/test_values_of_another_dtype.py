"""Values in another dtype than q and k, as code has that computes scores in float32: shown exactly, v as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tolerance import sums
from torch import Tensor, nn

from attnwidget import Attention, Capture, capture, intervene

B, H, N, D = 2, 4, 9, 8
Way = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # the weights, and the output


def upcast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q.float() @ k.float().mT / D**0.5).softmax(-1)
    return weights, weights.to(v.dtype) @ v


def in_float64(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q.double() @ k.double().mT / D**0.5).softmax(-1)
    return weights, weights.to(v.dtype) @ v


def values_in_float64(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.mT / D**0.5).softmax(-1)
    return weights, weights.double() @ v.double()


def scores_outside_autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.mT / D**0.5).softmax(-1)
    with torch.autocast("cpu", torch.bfloat16):
        return weights, weights @ v


class Layer(nn.Module):
    def __init__(self, way: Way) -> None:
        super().__init__()
        self.way, self.qkv, self.out = way, nn.Linear(H * D, 3 * H * D), nn.Linear(H * D, H * D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (H, D)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        self.weights, output = self.way(q, k, v)
        self.v, self.of_heads = v.detach(), output.detach()
        return x + self.out(output.transpose(1, 2).flatten(2).to(x.dtype))


def model_and_input(way: Way, dtype: torch.dtype) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(Layer(way), Layer(way)).to(dtype).eval(), torch.randn(B, N, H * D).to(dtype)


WAYS = [
    (upcast, torch.bfloat16, torch.float32, torch.bfloat16),
    (upcast, torch.float16, torch.float32, torch.float16),
    (in_float64, torch.float32, torch.float64, torch.float32),
    (values_in_float64, torch.float32, torch.float32, torch.float64),
    (scores_outside_autocast, torch.float32, torch.float32, torch.bfloat16),
]


@pytest.mark.parametrize(("way", "dtype", "of_q", "of_v"), WAYS)
def test_weights_are_the_models_own_and_v_is_as_it_was(
    way: Way, dtype: torch.dtype, of_q: torch.dtype, of_v: torch.dtype, tmp_path: Path
) -> None:
    model, x = model_and_input(way, dtype)
    with torch.no_grad(), capture(model, sources=True) as cap:
        model(x)
    assert not cap.skipped
    assert len(cap.attention) == 2
    att = cap.attention[1]
    assert att.q is not None
    assert att.v is not None
    assert (att.q.dtype, att.v.dtype) == (of_q, of_v)
    weights, v = model[1].weights, model[1].v.to(of_v)
    bound = sums(D, dtype=of_q)
    for b, h in ((0, 0), (1, 2)):
        torch.testing.assert_close(att.block(batch=b, head=h), weights[b, h], **bound)
        exact, wide = weights[b, h].to(att.result_dtype), v[b, h].to(att.result_dtype)
        torch.testing.assert_close(att.output(b, h), exact @ wide, **sums(N * D, float(wide.abs().max()), of_q))
        torch.testing.assert_close(
            att.block("contribution", batch=b, head=h), exact * wide.norm(dim=1), **sums(N * D, 8.0, of_q)
        )
    assert not att.check()
    why = cap.why(1, 2, 5, 3)
    assert abs(float(why.terms.sum()) - why.score) < 0.02 * float(why.terms.abs().sum())
    cap.save(tmp_path / "run.safetensors")
    again = Capture.load(tmp_path / "run.safetensors").attention[1]
    assert again.v is not None
    assert again.v.dtype == of_v
    assert torch.equal(again.output(1, 2), att.output(1, 2))
    cap.widget(view="stages", layer=1, head=2)


def test_one_such_layer_leaves_the_others_and_every_way_to_keep_it() -> None:
    model, x = model_and_input(upcast, torch.bfloat16)
    model[0].way = lambda q, k, v: (q, (q @ k.mT / D**0.5).softmax(-1) @ v)
    whole = capture(model).run(x)
    exact = whole.attention[1]
    ways = [{"heads": [2]}, {"queries": slice(-3, None)}, {"values": False}, {"keep": "overview"}, {"clone": False}]
    for how in ways:
        cap = capture(model, **how).run(x)  # type: ignore[arg-type]
        assert not cap.skipped
        found = cap.attention[1]
        rows = slice(-3, None) if "queries" in how else slice(None)
        head = 0 if "heads" in how else 2
        torch.testing.assert_close(found.block(batch=1, head=head), exact.block(batch=1, head=2, queries=rows))
        assert len(cap.metrics()) == 2 * B * (1 if "heads" in how else H)


def test_an_edit_of_such_a_head_is_that_of_the_model() -> None:
    model, x = model_and_input(upcast, torch.bfloat16)

    def without(_: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        rest = given[0].clone()
        rest[..., D : 2 * D] = 0
        return (rest,)

    with torch.no_grad():
        hook = model[1].out.register_forward_pre_hook(without)
        wanted = model(x)
        hook.remove()
        with intervene(model, {(1, 1): "zero"}):
            assert torch.equal(model(x), wanted)


def test_results_have_the_type_of_q_and_k() -> None:
    q, k, v = torch.randn(3, 5, 6), torch.randn(3, 7, 6), torch.randn(3, 7, 4)
    for of_q, of_v, wanted in (
        (torch.float32, torch.float16, torch.float32),
        (torch.float32, torch.float64, torch.float32),
        (torch.float64, torch.bfloat16, torch.float64),
        (torch.bfloat16, torch.float32, torch.float32),
    ):
        att = Attention(q.to(of_q), k.to(of_q), v.to(of_v))
        assert att.v is not None
        exact = att.block(batch=1).double() @ att.v[1, 0].double()
        assert (att.block().dtype, att.output().dtype) == (wanted, wanted)
        torch.testing.assert_close(att.output(1).double(), exact, **sums(7, 8.0, wanted))
        assert repr(att).count("v in") == 1
    alone = Attention.from_weights(torch.eye(7)[None], v[:1].half())
    torch.testing.assert_close(alone.output(), v[0].half().float())
