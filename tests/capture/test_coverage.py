"""Every attention that ran is shown or named, and what is no attention is not named."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured import DECODERS, GPT2, Eager, assert_equal, batch, build, in_both, weights
from tolerance import sums
from torch import Tensor, nn

from attnwidget import capture

transformers = pytest.importorskip("transformers")


def split(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(y.unflatten(-1, (4, 8)).transpose(1, 2) for y in x.chunk(3, -1))


def merged(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class Plain(nn.Module):
    """A layer that is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        return merged(F.scaled_dot_product_attention(*split(self.qkv(x))))


class Scripted(nn.Module):
    """What torch.jit compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.softmax(q @ k.transpose(-2, -1), -1) @ v


@torch.library.custom_op("attnwidget_tests::attention", mutates_args=())
def _operator(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


class Operator(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return merged(torch.ops.attnwidget_tests.attention(*split(self.qkv(x))))


class OwnOperator(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return merged(_operator(*split(self.qkv(x))))


class LinearAttention(Plain):
    """No softmax over keys."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = split(self.qkv(x))
        return merged((F.elu(q) + 1) @ ((F.elu(k) + 1).mT @ v))


class Wrapped(nn.Module):
    """A module that is attention by its name only: what computes is in it."""

    def __init__(self, inner: type[nn.Module]) -> None:
        super().__init__()
        self.attention = nn.Sequential(inner())

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
@pytest.mark.parametrize(
    ("layer", "name", "why"),
    [
        (lambda: torch.jit.script(Scripted()), "1", "torch.jit compiled it"),
        (lambda: Wrapped(lambda: torch.jit.script(Scripted())), "1.attention.0", "torch.jit compiled it"),
        (Operator, "1", "it calls attnwidget_tests.attention"),
        (OwnOperator, "1", "it calls attnwidget_tests.attention"),
        (LinearAttention, "1", "it ran, but no softmax of a product of q and k"),
    ],
)
def test_what_cannot_be_seen_beside_what_is_seen_is_named(layer: Any, name: str, why: str) -> None:
    model, x = nn.Sequential(Plain(), layer(), Plain()).eval(), torch.randn(2, 7, 32)
    with torch.no_grad():
        plain = model(x)
        with capture(model) as cap:
            assert torch.equal(model(x), plain)
    assert list(cap.calls) == ["0", "2"]
    assert list(cap.skipped) == [name]
    assert why in cap.skipped[name]
    assert "1 skipped" in repr(cap)


@pytest.mark.filterwarnings("ignore:.*cap.skipped has it")
def test_layers_that_are_not_wanted_are_not_named() -> None:
    model, x = nn.Sequential(Plain(), LinearAttention(), LinearAttention()), torch.randn(2, 7, 32)
    for layers, skipped in (("0", []), (0, []), (["0", "2"], ["2"])):
        with torch.no_grad(), capture(model, layers=layers, strict=False) as cap:
            model(x)
        assert [name for name in cap.skipped if name in ("1", "2")] == skipped


def test_what_did_not_run_is_not_named() -> None:
    model = nn.ModuleList([Plain(), LinearAttention()])
    with torch.no_grad(), capture(model) as cap:
        model[0](torch.randn(2, 7, 32))
    assert cap.skipped == {}


# A forward that was replaced.


def written_out(self: Any, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    q, k, v = split(self.c_attn(hidden_states))
    scores = (q @ k.mT) * 8**-0.5
    scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    weights = scores.softmax(-1)
    return self.c_proj(merged(weights @ v)), weights


@pytest.fixture
def gpt2() -> Iterator[Any]:
    kind = transformers.models.gpt2.modeling_gpt2.GPT2Attention
    forward = kind.forward
    yield build(GPT2, "sdpa")
    kind.forward = forward


def test_a_forward_replaced_on_one_layer_is_seen(gpt2: Any) -> None:
    inputs = {"input_ids": batch()["input_ids"]}
    with torch.no_grad(), capture(gpt2):
        gpt2(**inputs)
    layer = gpt2.transformer.h[0].attn
    layer.forward = types.MethodType(written_out, layer)
    with torch.no_grad(), capture(gpt2) as cap:
        gpt2(**inputs)
    assert list(cap.calls) == ["transformer.h.0.attn", "transformer.h.1.attn"]
    assert_equal(cap.attention, Eager(build(GPT2, "eager"), **inputs).attentions)


def test_a_forward_replaced_on_a_class_after_a_capture_is_seen(gpt2: Any) -> None:
    inputs = {"input_ids": batch()["input_ids"]}
    with torch.no_grad(), capture(gpt2):
        gpt2(**inputs)
    type(gpt2.transformer.h[0].attn).forward = written_out
    with torch.no_grad(), capture(gpt2) as cap:
        gpt2(**inputs)
    assert_equal(cap.attention, Eager(build(GPT2, "eager"), **inputs).attentions)


def without_rotation(self: Any, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    """Attend to all positions, as Llama's module might without its interface."""
    q, k, v = (
        project(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        for project in (self.q_proj, self.k_proj, self.v_proj)
    )
    k, v = (x.repeat_interleave(self.num_key_value_groups, 1) for x in (k, v))
    self.seen = ((q @ k.mT) * self.scaling).softmax(-1)
    return self.o_proj((self.seen @ v).transpose(1, 2).flatten(2)), self.seen


def test_a_forward_replaced_on_a_class_that_was_not_watched_before_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = build(DECODERS["Llama"], "sdpa"), batch()["input_ids"]
    layers = [layer.self_attn for layer in model.model.layers]
    for replaced in (False, True):  # the code of the class is searched by the first capture
        if replaced:
            monkeypatch.setattr(type(layers[0]), "forward", without_rotation)
        with torch.no_grad(), capture(model) as cap:
            model(ids)
        assert cap.skipped == {}
        assert len(cap.calls) == len(layers)
    for att, layer in zip(cap.attention, layers, strict=True):
        torch.testing.assert_close(weights(att), layer.seen, **sums(64), check_dtype=False)


def in_a_kernel(self: Any, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    return self.c_proj(merged(_operator(*split(self.c_attn(hidden_states))))), None


def test_a_forward_replaced_by_what_cannot_be_seen_is_named(gpt2: Any) -> None:
    layer = gpt2.transformer.h[0].attn
    layer.forward = types.MethodType(in_a_kernel, layer)
    with torch.no_grad(), capture(gpt2) as cap:
        gpt2(batch()["input_ids"])
    assert (list(cap.skipped), list(cap.calls)) == (["transformer.h.0.attn"], ["transformer.h.1.attn"])


# No false alarm.


class Router(nn.Module):
    """Experts that are chosen for each position; a router's softmax is over experts."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.randn(7, 32))  # as many experts as positions
        self.experts, self.by_hand = nn.ModuleList(nn.Linear(32, 32) for _ in range(7)), by_hand

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ self.gate.T if self.by_hand else F.linear(x, self.gate)
        weights = scores.softmax(-1)
        top = weights.topk(2, -1)
        weights = torch.zeros_like(weights).scatter(-1, top.indices, top.values)
        return (torch.stack([expert(x) for expert in self.experts], -2) * weights[..., None]).sum(-2)


class Classifier(nn.Module):
    """Logits by tied embeddings, and contrastive ones between samples."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 32)

    def forward(self, x: Tensor) -> Tensor:
        words = (x @ self.words.weight.T).softmax(-1)
        pooled = F.normalize(x.mean(1), dim=-1)
        pairs = (pooled @ pooled.T / 0.07).softmax(-1)
        loss = F.cross_entropy((x @ self.words.weight.T).mT, torch.zeros(2, 7).long(), reduction="none")
        return words.sum() + pairs.sum() + loss.mean() + F.log_softmax(x @ x.mT, -1).mean()


class Twice(Plain):
    """Weights that are computed beside the call that gives the output, and a bottleneck that is named attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32))

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x)
        q, k, _ = split(self.qkv(x))
        self.weights = (q @ k.mT).softmax(-1).to(x.dtype)
        spread = torch.matmul(x, x.mT).exp() * torch.randn(7, 7)  # a product whose exponential is no weight
        return super().forward(x) + spread.sum()


class Blocked(nn.Module):
    """Products of three tensors, one of them of positions, and a norm named after what it stands before."""

    def __init__(self) -> None:
        super().__init__()
        self.attn_norm, self.attn_drop, self.attn_out = nn.LayerNorm(32), nn.Dropout(), nn.Linear(32, 32)
        self.inner = Plain()

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn_out(self.attn_drop(self.inner(self.attn_norm(x))))
        return (x @ x.mT) @ x + torch.einsum("bij,bjk,bkl->bil", x, x.mT, x)


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
@pytest.mark.parametrize(
    "layer", [lambda: Router(True), lambda: Router(False), Blocked, Twice], ids=["hand", "linear", "names", "twice"]
)
def test_what_is_no_attention_is_not_named(layer: Any, inference: bool) -> None:
    model, x = nn.Sequential(Plain(), layer(), Plain()).eval(), torch.randn(2, 7, 32)
    with torch.inference_mode(inference), torch.no_grad(), capture(model) as cap:
        model(x)
    assert cap.skipped == {}


def test_logits_and_losses_are_not_named() -> None:
    model, x = nn.Sequential(Plain(), Classifier()).eval(), torch.randn(2, 7, 32)
    with torch.no_grad(), capture(model) as cap:
        model(x)
    assert cap.skipped == {}


@pytest.mark.parametrize("name", DECODERS)
def test_models_of_transformers_skip_nothing(name: str) -> None:
    kind = DECODERS[name]
    for implementation in kind.implementations:
        model = build(kind, implementation)
        with torch.no_grad(), capture(model) as cap:
            model(**batch())
        assert cap.skipped == {}


# TransformerLens writes attention out between hook points.


class HookPoint(nn.Module):
    """Hands its input on, to whoever has hooked it."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Hooked(nn.Module):
    """The structure of TransformerLens's attention."""

    def __init__(self, einsum: bool) -> None:
        super().__init__()
        self.einsum = einsum
        self.W_Q, self.W_K, self.W_V, self.W_O = (nn.Parameter(torch.randn(4, 32, 8) / 6) for _ in range(4))
        self.register_buffer("mask", torch.ones(16, 16).tril().bool())
        self.register_buffer("IGNORE", torch.tensor(-torch.inf))
        for name in ("q", "k", "v", "z", "attn_scores", "pattern", "result"):
            setattr(self, f"hook_{name}", HookPoint())

    def forward(self, x: Tensor, padded: Tensor | None) -> Tensor:
        q, k, v = (torch.einsum("bpd,hde->bphe", x, w) for w in (self.W_Q, self.W_K, self.W_V))
        q, k, v = self.hook_q(q), self.hook_k(k), self.hook_v(v)
        if self.einsum:
            scores = torch.einsum("bqhe,bkhe->bhqk", q, k) / 8**0.5
        else:
            scores = q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1) / 8**0.5
        n = scores.shape[-1]
        mask = (
            self.mask[None, None, -n:, -n:]
            if padded is None
            else self.mask[None, None, :n, :n] & ~padded[:, None, None]
        )
        scores = self.hook_attn_scores(torch.where(mask, scores, self.IGNORE))
        pattern = F.softmax(scores, dim=-1)
        pattern = torch.where(torch.isnan(pattern), torch.zeros_like(pattern), pattern)
        self.pattern = pattern = self.hook_pattern(pattern).to(x.dtype)
        if self.einsum:
            z = torch.einsum("bkhe,bhqk->bqhe", v, pattern)
        else:
            z = (pattern @ v.permute(0, 2, 1, 3)).permute(0, 2, 1, 3)
        return torch.einsum("bqhe,hde->bqd", self.hook_z(z), self.W_O)


class HookedBlocks(nn.Module):
    def __init__(self, einsum: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"attn": Hooked(einsum), "hook_attn_out": HookPoint()}) for _ in range(2)
        )

    def forward(self, x: Tensor, padded: Tensor | None) -> Tensor:
        for block in self.blocks:
            x = x + block["hook_attn_out"](block["attn"](x, padded))
        return x


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("einsum", [False, True])
def test_attention_of_transformer_lens(einsum: bool, padded: bool) -> None:
    torch.manual_seed(0)
    model, x = HookedBlocks(einsum).eval(), torch.randn(2, 7, 32)
    left = torch.stack([torch.arange(7) < 0, torch.arange(7) < 2]) if padded else None
    if left is not None:
        model.blocks[0]["attn"].mask = model.blocks[1]["attn"].mask = torch.ones(7, 7).tril().bool()
    with torch.no_grad():
        plain = model(x, left)
        with capture(model) as cap:
            assert torch.equal(model(x, left), plain)
    assert (list(cap.calls), cap.skipped) == ([f"blocks.{i}.attn" for i in range(2)], {})
    for i in range(2):
        expected = in_both(lambda own, x, i=i: own(x, left) is not None and own.blocks[i]["attn"].pattern, model, x)
        assert_equal([cap.attention[i]], [expected])
