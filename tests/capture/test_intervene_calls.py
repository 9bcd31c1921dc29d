"""Edits of attention in a model's own code: every kind of call, gradients, nesting, and what is left as it was."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tolerance import sums
from torch import Tensor, nn
from torch.testing import assert_close

from attnwidget import capture, intervene

B, H, Q, D, DV, E = 3, 4, 7, 5, 6, 20  # all differ; E is H · D, as torch's own module needs it
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def causal(q: Tensor, k: Tensor) -> Tensor:
    return torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()


def by_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def by_masked_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=causal(q, k))


def by_sdpa_of_five_axes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]


def by_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~causal(q, k), -torch.inf)
    return scores.softmax(-1) @ v


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q * q.shape[-1] ** -0.5, k)
    weights = torch.softmax(scores.masked_fill(~causal(q, k), -torch.inf), dim=-1)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


def by_bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b = q.shape[0]
    q_, k_, v_ = (x.flatten(0, 1) for x in (q, k, v))
    scores = torch.baddbmm(torch.zeros(1, 1, 1), q_, k_.mT, beta=0, alpha=q.shape[-1] ** -0.5)
    weights = scores.masked_fill(~causal(q, k), -torch.inf).softmax(-1)
    return torch.bmm(weights, v_).unflatten(0, (b, H))


def by_transposed_product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~causal(q, k), -torch.inf)
    return (v.mT @ scores.softmax(-1).mT).mT


WAYS: dict[str, Attend] = {
    one.__name__: one
    for one in (by_sdpa, by_masked_sdpa, by_sdpa_of_five_axes, by_softmax, by_einsum, by_bmm, by_transposed_product)
}


class Attention(nn.Module):
    """Causal self-attention, in the way that is given."""

    def __init__(self, way: Attend) -> None:
        super().__init__()
        self.way, self.qkv, self.out = way, nn.Linear(E, H * (2 * D + DV)), nn.Linear(H * DV, E)
        self.heads: Tensor | None = None  # what the heads gave

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).split([H * D, H * D, H * DV], -1)
        self.heads = self.way(*(one.unflatten(-1, (H, -1)).transpose(1, 2) for one in parts))
        return self.out(self.heads.transpose(1, 2).flatten(-2))


class Layers(nn.Module):
    """Two layers with a residual stream."""

    def __init__(self, way: Attend) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Attention(way) for _ in range(2)])
        with torch.no_grad():
            for layer in self.layers:
                layer.qkv.weight *= 4  # type: ignore[operator]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def text(positions: int = Q) -> Tensor:
    return torch.randn(B, positions, E, generator=torch.Generator().manual_seed(1))


def without_key(q: Tensor, k: Tensor, v: Tensor, head: int, key: int) -> Tensor:
    """`by_softmax`, one of whose heads does not attend to a key."""
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~causal(q, k), -torch.inf)
    scores[:, head, :, key] = -torch.inf
    return scores.softmax(-1).nan_to_num() @ v


def by_hand(model: Layers, layer: int, head: int, key: int) -> Layers:
    """A copy of a model in which one head of one layer does not attend to a key."""
    copied = Layers(by_softmax)
    copied.load_state_dict(model.state_dict())
    copied.layers[layer].way = lambda q, k, v: without_key(q, k, v, head, key)  # type: ignore[assignment]
    return copied


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_compute_attention_is_edited(way: str, grad: bool) -> None:
    model, x = Layers(WAYS[way]), text()
    with torch.set_grad_enabled(grad):
        model(x)
        plain = [layer.heads for layer in model.layers]
        with intervene(model, {(1, 2): {"drop_keys": [1]}}) as run:
            output = model(x)
        wanted = by_hand(model, 1, 2, 1)(x)
    assert run.edited == {"layers.1": (2,)}
    assert_close(output, wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(model.layers[0].heads, plain[0])  # type: ignore[arg-type]
    for head in range(H):
        same = torch.equal(model.layers[1].heads[:, head], plain[1][:, head])  # type: ignore[index]
        assert same is (head != 2)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_the_edited_model(way: str) -> None:
    model, x = Layers(WAYS[way]), text().requires_grad_()
    other, y = by_hand(model, 0, 3, 2), text().requires_grad_()
    with intervene(model, {(0, 3): {"drop_keys": [2]}}):
        output = model(x)
    output.square().sum().backward()
    other(y).square().sum().backward()
    bound = sums(H * Q * E, size=float(y.grad.abs().max()))  # type: ignore[union-attr]
    assert_close(x.grad, y.grad, rtol=1e-4, atol=16 * bound["atol"])
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert_close(one.grad, two.grad, rtol=1e-3, atol=1e-4 * float(two.grad.abs().max()))  # type: ignore[union-attr]


def test_gradients_of_a_long_text_are_computed_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnwidget._capture.interventions import edited_heads

    model, (x, y) = Layers(by_sdpa).double(), (text(33).double().requires_grad_() for _ in range(2))
    with intervene(model, {(0, 3): {"drop_keys": [2]}}):
        model(y).square().sum().backward()
    monkeypatch.setattr(edited_heads, "CELLS_AT_ONCE", 33 * 4 * B)  # four queries of all samples
    with intervene(model, {(0, 3): {"drop_keys": [2]}}):
        model(x).square().sum().backward()
    assert_close(x.grad, y.grad)


def test_the_weights_of_an_edited_head_are_not_kept_for_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several blocks they are computed again in the backward pass."""
    from attnwidget._capture.interventions import edited_heads

    monkeypatch.setattr(edited_heads, "CELLS_AT_ONCE", 64 * 8)
    model, kept = Layers(by_sdpa), list[int]()

    def note(x: Tensor) -> Tensor:
        kept.append(x.numel())
        return x

    def numbers_kept(edits: dict[Any, Any]) -> int:
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x), intervene(model, edits):
            model(text(64).requires_grad_())
        return sum(kept)

    assert numbers_kept({(0, 3): {"drop_keys": [2]}}) - numbers_kept({}) < B * 64 * 64 / 2  # half of its weights


def test_rounding_has_no_gradients_and_says_so() -> None:
    model = Layers(by_sdpa)
    with pytest.raises(ValueError, match=r"no gradients flow.*no_grad"), intervene(model, {0: {"dtype": "int8"}}):
        model(text())
    with torch.no_grad(), intervene(model, {0: {"dtype": "int8"}}):
        model(text())


# torch's own attention.


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_torchs_own_module(weights: bool, grad: bool) -> None:
    torch.manual_seed(0)
    model, x = nn.MultiheadAttention(E, H, batch_first=True).eval(), text()
    with torch.set_grad_enabled(grad):
        _, own = model(x, x, x, average_attn_weights=False)
        v = F.linear(x, model.in_proj_weight[2 * E :], model.in_proj_bias[2 * E :])
        own = own.clone()
        own[:, 1] = 0
        heads = own @ v.unflatten(-1, (H, -1)).transpose(1, 2)
        wanted = model.out_proj(heads.transpose(1, 2).flatten(-2))
        with intervene(model, {(0, 1): "zero"}) as run:
            output, _ = model(x, x, x, need_weights=weights)
    assert run.edited == {"MultiheadAttention": (1,)}
    assert_close(output, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("grad", [False, True])
def test_weights_that_torchs_own_module_returns_are_edited_too(grad: bool) -> None:
    torch.manual_seed(0)
    model, x = nn.MultiheadAttention(E, H, batch_first=True).eval(), text()
    how: dict[str, Any] = {"need_weights": True, "average_attn_weights": False}
    with torch.set_grad_enabled(grad):
        _, plain = model(x, x, x, **how)
        with (
            intervene(model, {(0, 0): "uniform", (0, 3): {"output": torch.ones(D)}}),
            intervene(model, {(0, 1): "zero", (0, 2): {"drop_keys": [0]}}),
        ):
            output, found = model(x, x, x, **how)
        if grad:
            (output.sum() + found[:, :3].square().sum()).backward()
    assert torch.equal(found[:, 0], torch.full((B, Q, Q), 1 / Q))
    assert not bool(found[:, 1].any())
    assert_close(found[:, 2, :, 1:], plain[:, 2, :, 1:] / plain[:, 2, :, 1:].sum(-1, keepdim=True))
    assert not bool(found[:, 2, :, 0].any())
    assert bool(found[:, 3].isnan().all())


def test_cross_attention_and_self_attention_are_counted_apart() -> None:
    torch.manual_seed(0)
    model = nn.TransformerDecoderLayer(E, H, 32, dropout=0.0, batch_first=True).eval()
    x, memory = text(5), text(7)
    with torch.no_grad():
        with intervene(model, {0: "zero"}) as run:
            one = model(x, memory)
        assert list(run.edited) == ["self_attn"]
        with intervene(model, {0: "zero"}, cross=True) as run:
            two = model(x, memory)
        assert list(run.edited) == ["multihead_attn"]
        with intervene(model, {"all": "zero"}) as run:
            both = model(x, memory)
        assert list(run.edited) == ["self_attn", "multihead_attn"]
    assert not torch.equal(one, two)
    assert not torch.equal(one, both)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_flex_attention() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")

    def by_flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = flex.create_block_mask(lambda b, h, i, j: i >= j, 1, 1, q.shape[2], k.shape[2], device="cpu")
        found: Tensor = flex.flex_attention(q, k, v, block_mask=mask)
        return found

    model, x = Layers(by_flex), text()
    with torch.no_grad():
        with intervene(model, {(1, 2): {"drop_keys": [1]}}):
            output = model(x)
        assert_close(output, by_hand(model, 1, 2, 1)(x), rtol=1e-4, atol=1e-5)


# Dropout.


@pytest.mark.parametrize("way", ["sdpa", "written out", "torch's own"])
def test_dropout_is_refused_but_for_what_needs_no_weights(way: str) -> None:
    def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if way == "sdpa":
            return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        return F.dropout((q @ k.mT / D**0.5).softmax(-1), 0.5) @ v

    model: Any = Layers(dropped)
    x = text()
    call: Callable[[], Any] = lambda: model(x)  # noqa: E731
    if way == "torch's own":
        model = nn.MultiheadAttention(E, H, dropout=0.5, batch_first=True).train()
        call = lambda: model(x, x, x)  # noqa: E731
    with torch.no_grad():
        with pytest.raises(ValueError, match=r"drops weights at random.*model\.eval"), intervene(model, {0: "mean"}):
            call()
        with intervene(model, {0: "zero"}) as run:
            call()
    assert list(run.edited.values()) == [(0, 1, 2, 3)]
    if way != "torch's own":
        assert bool((model.layers[0].heads == 0).all())


# Several at once, and what is left as it was.


def test_one_inside_the_other_edits_a_head_twice() -> None:
    model, x = Layers(by_sdpa), text()
    with torch.no_grad():
        with intervene(model, {(0, 1): {"drop_keys": [0, 2]}, (1, 0): "zero"}):
            wanted = model(x)
        with intervene(model, {(0, 1): {"drop_keys": [0]}}) as outer:
            with intervene(model, {(0, 1): {"drop_keys": [2]}, (1, 0): "zero"}) as inner:
                assert_close(model(x), wanted, rtol=1e-5, atol=1e-6)
            alone = model(x)
        with intervene(model, {(0, 1): {"drop_keys": [0]}}):
            assert torch.equal(alone, model(x))
    assert outer.edited == {"layers.0": (1,)}
    assert inner.edited == {"layers.0": (1,), "layers.1": (0,)}


@pytest.mark.parametrize("way", ["by_sdpa", "by_softmax"])
def test_one_inside_the_other_in_every_way(way: str) -> None:
    model, x = Layers(WAYS[way]), text()
    with torch.no_grad():
        with intervene(model, {(0, 1): {"drop_keys": [0], "temperature": 6.0}, (0, 2): "uniform"}):
            wanted = model(x)
        with (
            intervene(model, {(0, 1): {"drop_keys": [0], "temperature": 2.0}}),
            intervene(model, {(0, 1): {"temperature": 3.0}, (0, 2): "uniform"}),
        ):
            assert_close(model(x), wanted, rtol=1e-5, atol=1e-6)


def test_a_block_that_is_entered_twice_edits_once() -> None:
    model, x = Layers(by_sdpa), text()
    once = intervene(model, {(0, 1): {"temperature": 3.0}})
    with torch.no_grad():
        with once:
            wanted = model(x)
            with once:
                assert torch.equal(model(x), wanted)
            assert torch.equal(model(x), wanted)
        assert not torch.equal(model(x), wanted)
        with once as run:
            assert torch.equal(model(x), wanted)
    assert run.edited == {"layers.0": (1,)}


def run_in(contexts: Sequence[Any], model: nn.Module, x: Tensor) -> None:
    with contexts[0], contexts[1]:
        model(x)


def run_and_fail(model: nn.Module, x: Tensor, error: type[Exception]) -> None:
    with intervene(model, {0: "zero"}):
        model(x)
        raise error


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_capture_beside_it_has_the_heads_as_they_were(way: str, inner: bool) -> None:
    model, x = Layers(WAYS[way]), text()
    with torch.no_grad():
        with capture(model) as plain:
            model(x)
        cap, edits = capture(model), {(0, 1): "zero"}
        run = intervene(model, edits)
        with pytest.warns(UserWarning, match="as it was before the edit"):
            run_in((run, cap) if inner else (cap, run), model, x)
    assert cap.skipped == {}
    assert torch.equal(cap.attention[0].block(head=1), plain.attention[0].block(head=1))
    assert not torch.equal(cap.attention[1].block(head=1), plain.attention[1].block(head=1))


def hooks_of(model: nn.Module) -> list[int]:
    return [len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules()]


def test_an_exception_leaves_the_model_as_it_was() -> None:
    model, x = Layers(by_sdpa), text()
    before, state = hooks_of(model), torch.backends.mha.get_fastpath_enabled()
    plain = model(x)
    for error in (KeyError, ZeroDivisionError):
        with pytest.raises(error):
            run_and_fail(model, x, error)
    with pytest.raises(ValueError, match="no head 9"), intervene(model, {(0, 9): "zero"}):
        model(x)
    assert hooks_of(model) == before
    assert torch.backends.mha.get_fastpath_enabled() is state
    assert torch.equal(model(x), plain)


def test_other_threads_run_the_model_as_it_is() -> None:
    model, x = Layers(by_sdpa), text()
    found: list[Tensor] = []

    def run() -> None:
        with torch.no_grad():
            found.append(model(x))

    def elsewhere() -> None:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    with torch.no_grad():
        plain = model(x)
        with intervene(model, {0: "zero"}):
            elsewhere()
            edited = model(x)
        assert torch.equal(found[0], plain)
        assert not torch.equal(edited, plain)
        with pytest.raises(ValueError, match="another thread"), intervene(model, {0: "zero"}):
            elsewhere()


def test_the_last_call_is_kept_with_its_arguments() -> None:
    model, x = Layers(by_sdpa), text()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        with intervene(model, {0: "zero"}) as run:
            assert run.output is None
            model(text(3))
            output = model(x)
    assert run.output is output
    assert run.inputs is not None
    assert run.inputs[0][0] is x
    assert repr(run) == "Run(Layers, {0: 'zero'})"
    assert dict(run.edits) == {0: "'zero'"}
    with torch.no_grad(), intervene(model, {}) as run:
        output = model(x)
    assert run.output is output
    assert (run.edited, run.skipped) == ({}, {})
