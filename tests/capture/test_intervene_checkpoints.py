"""Edits under gradient checkpointing: gradients are those of an edited eager copy, in the block and after it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import torch
from test_effect import VOCABULARY, eager, ids_of, model_of, weights_changed, without_head, without_keys
from test_intervene_calls import WAYS, Layers, Q, by_hand, by_sdpa, text
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from attnwidget import capture, intervene

EDITS = {(1, 2): {"drop_keys": [1]}}
HOW = {"reentrant": {"use_reentrant": True}, "not reentrant": {"use_reentrant": False}}


def checkpointed(model: Layers, how: str, where: str = "layer") -> Layers:
    """A model whose layer 1, or which as a whole, is computed again in the backward pass."""
    keywords = HOW[how]
    if where in ("layer", "both"):
        inner = model.layers[1].forward
        model.layers[1].forward = lambda y: checkpoint(inner, y, **keywords)  # type: ignore[method-assign, operator]
    if where in ("whole", "both"):
        whole = model.forward
        model.forward = lambda y: checkpoint(whole, y, **keywords)  # type: ignore[method-assign, operator]
    return model


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    found = [x.grad, *(p.grad for p in model.parameters())]
    assert all(one is not None for one in found)
    return [one.clone() for one in found if one is not None]


def wanted(model: Layers) -> tuple[Tensor, list[Tensor]]:
    """What the copy gives that is edited by hand."""
    copied, x = by_hand(copy.deepcopy(model), 1, 2, 1).double(), text().double().requires_grad_()
    output = copied(x)
    output.square().sum().backward()
    return output, gradients(copied, x)


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("where", ["layer", "whole", "both"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("way", ["by_sdpa", "by_softmax", "by_einsum"])
def test_gradients_are_those_of_an_edited_copy(way: str, how: str, where: str) -> None:
    output, expected = wanted(Layers(WAYS[way]))
    model = checkpointed(Layers(WAYS[way]).double(), how, where)
    for inside in (True, False):
        model.zero_grad()
        x = text().double().requires_grad_()
        with intervene(model, EDITS) as run:
            found = model(x)
            if inside:
                found.square().sum().backward()
                assert_close(model(x), output)  # what was computed again has ended
        if not inside:
            found.square().sum().backward()
        assert_close(found, output)
        assert_same(gradients(model, x), expected)
        assert run.edited == {"layers.1": (2,)}
    model.zero_grad()
    x = text().double().requires_grad_()
    model(x).square().sum().backward()  # what comes after is as it was
    plain, y = Layers(WAYS[way]).double(), text().double().requires_grad_()
    plain(y).square().sum().backward()
    assert_same(gradients(model, x), gradients(plain, y))


@pytest.mark.parametrize("how", HOW)
def test_another_thread_may_run_the_backward_pass(how: str) -> None:
    """As torch does on a GPU."""
    _, expected = wanted(Layers(by_sdpa))
    for way in (by_sdpa, WAYS["by_softmax"]):
        model, x = checkpointed(Layers(way).double(), how), text().double().requires_grad_()
        with intervene(model, EDITS):
            loss = model(x).square().sum()
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
        assert_same(gradients(model, x), expected)


def test_a_graph_may_be_walked_twice() -> None:
    _, expected = wanted(Layers(by_sdpa))
    model, x = checkpointed(Layers(by_sdpa).double(), "not reentrant"), text().double().requires_grad_()
    with intervene(model, EDITS):
        loss = model(x).square().sum()
        loss.backward(retain_graph=True)
    loss.backward()
    assert_same(gradients(model, x), [2 * one for one in expected])


@pytest.mark.parametrize("how", HOW)
def test_what_is_computed_again_has_the_edits_of_its_own_run(how: str) -> None:
    _, expected = wanted(Layers(by_sdpa))
    model, x = checkpointed(Layers(by_sdpa).double(), how), text().double().requires_grad_()
    with intervene(model, EDITS):
        loss = model(x).square().sum()
    with intervene(model, {(0, 0): "zero"}) as other:
        model(text().double())
        loss.backward()
    assert_same(gradients(model, x), expected)
    assert other.edited == {"layers.0": (0,)}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("inside", ["both", "outer", "none"])
def test_one_inside_the_other(how: str, inside: str) -> None:
    def run(model: Layers, inside: str) -> list[Tensor]:
        x = text().double().requires_grad_()
        with intervene(model, {1: {"temperature": 2.0}, 0: "uniform"}):
            with intervene(model, {(1, 2): {"drop_keys": [1]}, (0, 1): lambda block: block.weights * 0.5}):
                loss = model(x).square().sum()
                if inside == "both":
                    loss.backward()
            if inside == "outer":
                loss.backward()
        if inside == "none":
            loss.backward()
        return gradients(model, x)

    expected = run(Layers(by_sdpa).double(), "both")
    assert_same(run(checkpointed(Layers(by_sdpa).double(), how, "whole"), inside), expected)


def test_a_layer_that_is_called_twice_is_edited_where_it_was() -> None:
    class Twice(Layers):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.layers[1](x + self.layers[1](x))  # type: ignore[no-any-return]

    def run(model: Layers) -> list[Tensor]:
        x = text().double().requires_grad_()
        with intervene(model, {"layers.1 #2": "zero"}) as run:
            loss = model(x).square().sum()
            loss.backward()
        assert list(run.edited) == ["layers.1 #2"]
        return [x.grad, *(p.grad for p in model.layers[1].parameters())]  # type: ignore[list-item]

    expected = run(Twice(by_sdpa).double())
    for where in ("layer", "whole"):
        for how in HOW:
            assert_same(run(checkpointed(Twice(by_sdpa).double(), how, where)), expected)


@pytest.mark.parametrize("how", HOW)
def test_a_capture_beside_it_records_nothing_twice(how: str) -> None:
    model, x = checkpointed(Layers(by_sdpa).double(), how), text().double().requires_grad_()
    with pytest.warns(UserWarning, match="as it was before the edit"), capture(model) as cap, intervene(model, EDITS):
        model(x).square().sum().backward()
    _, expected = wanted(Layers(by_sdpa))
    assert_same(gradients(model, x), expected)
    assert len(cap.attention) == 2


CHANGES: dict[str, tuple[Any, Callable[[int, Tensor], Tensor]]] = {
    "a head": ({(1, 2): "zero"}, without_head(1, 2)),
    "keys of all heads": ({"all": {"drop_keys": [2, 3]}}, without_keys([2, 3])),
    "an edge": ({"all": {"block": (None, [2]), "renormalize": False}}, without_keys([2], renormalize=False)),
}


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_models_that_check_points_of_their_own_layers(kind: str, how: str, case: str) -> None:
    off = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0} if kind == "gpt2" else {}
    model, ids = model_of(kind, **off).train(), ids_of(2)
    edits, change = CHANGES[case]
    copied = eager(model).train()
    with weights_changed(change):
        loss = copied(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=HOW[how])
    expected = [p.grad for p in copied.parameters()]
    for inside in (True, False):
        model.zero_grad()
        with intervene(model, edits):
            found = model(input_ids=ids, labels=ids, use_cache=False).loss
            if inside:
                found.backward()
        if not inside:
            found.backward()
        assert_close(found, loss)
        assert_same([p.grad for p in model.parameters()], expected)
    assert loss < VOCABULARY


@pytest.mark.parametrize("how", HOW)
def test_edits_that_keep_something_of_a_call(how: str) -> None:
    """Weights of another run, caches' policies, masks and a function that draws random numbers."""
    torch.manual_seed(3)
    plain = Layers(by_sdpa).double()
    with torch.no_grad(), capture(plain) as cap:
        plain(text().double().flip(1))
    for edit in (
        {"from": cap},
        {"window": 3},
        {"mask": torch.ones(Q, Q, dtype=torch.bool).tril(-1) | torch.eye(Q, dtype=torch.bool)},
        lambda block: block.weights * torch.rand(block.weights.shape, dtype=block.weights.dtype),
    ):
        found = []
        for model in (plain, checkpointed(Layers(by_sdpa).double(), how)):
            model.zero_grad()
            torch.manual_seed(5)
            x = text().double().requires_grad_()
            with intervene(model, {1: edit}):
                loss = model(x).square().sum()
            loss.backward()
            found.append(gradients(model, x))
        assert_same(*found)


def test_a_long_text_is_edited_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are checkpoints of their own inside those of the model."""
    monkeypatch.setattr("attnwidget._capture.interventions.edited_heads.CELLS_AT_ONCE", 16)
    _, expected = wanted(Layers(by_sdpa))
    for how in HOW:
        model, x = checkpointed(Layers(by_sdpa).double(), how), text().double().requires_grad_()
        with intervene(model, EDITS):
            loss = model(x).square().sum()
        loss.backward()
        assert_same(gradients(model, x), expected)


# What is refused.


def test_a_run_before_the_block_is_not_edited_in_its_backward_pass() -> None:
    model = model_of("llama").train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=HOW["not reentrant"])
    loss = model(input_ids=ids_of(), labels=ids_of(), use_cache=False).loss
    with pytest.raises(ValueError, match="in a backward pass of another run"), intervene(model, {1: "zero"}):
        loss.backward()
    plain, x = Layers(by_sdpa).double(), text().double().requires_grad_()
    plain(x).square().sum().backward()
    for how in HOW:
        written, y = checkpointed(Layers(by_sdpa).double(), how), text().double().requires_grad_()
        loss = written(y).square().sum()
        with intervene(written, {1: "zero"}):
            written(text().double())
            loss.backward()
        assert_same(gradients(written, y), gradients(plain, x))


def test_other_kinds_of_checkpoints_are_refused_before_anything_is_edited() -> None:
    model = Layers(by_sdpa)
    inner = model.layers[1].forward
    context = lambda: create_selective_checkpoint_contexts([torch.ops.aten.mm.default])  # noqa: E731
    model.layers[1].forward = lambda y: checkpoint(inner, y, use_reentrant=False, context_fn=context)  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="gradient checkpointing"), intervene(model, {1: "zero"}):
        model(text().requires_grad_())
    with intervene(model, {0: "zero"}):
        model(text().requires_grad_()).sum().backward()


@pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"),
    reason="torch 2.5 does not tell",
)
def test_a_checkpoint_that_hooks_begin_is_refused() -> None:
    """As `torch.distributed` has it: no function of torch is on the stack while the layer runs."""
    generator = torch.utils.checkpoint._checkpoint_without_reentrant_generator
    model, begun = Layers(by_sdpa), []
    layer = model.layers[1]

    def before(module: nn.Module, args: tuple[Any, ...]) -> None:
        early = (True,) if "early_stop" in signature(generator).parameters else ()
        begun.append(
            generator(layer.forward, True, torch.utils.checkpoint.noop_context_fn, "default", False, *early, *args)
        )
        next(begun[-1])

    layer.register_forward_pre_hook(before)
    layer.register_forward_hook(lambda *_: next(begun[-1], None))
    model(text().requires_grad_()).sum().backward()
    with intervene(model, {0: "zero"}):
        model(text().requires_grad_()).sum().backward()
    with pytest.raises(ValueError, match="gradient checkpointing"), intervene(model, {1: "zero"}):
        model(text().requires_grad_())
    begun[-1].close()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("change", ["other", "none", "shorter", "more"])
def test_what_is_computed_again_in_another_way_is_refused(how: str, change: str) -> None:
    """A wrong gradient comes out of none."""
    model = Layers(by_sdpa)
    layer, calls = model.layers[1], [0]
    inner = layer.forward

    def varying(y: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] == 1:
            return inner(y)  # type: ignore[no-any-return, operator]
        if change == "other":
            return model.layers[0](y)  # type: ignore[no-any-return]
        if change == "shorter":
            return inner(y[:, :5])  # type: ignore[no-any-return, operator]
        return inner(inner(y)) if change == "more" else y * 2  # type: ignore[no-any-return, operator]

    layer.forward = lambda y: checkpoint(varying, y, **HOW[how])  # type: ignore[method-assign, operator]
    with intervene(model, EDITS):
        output = model(text().requires_grad_())
        with pytest.raises(
            (ValueError, RuntimeError), match=r"recomputed differently in the backward|saved|metadata|save more"
        ):
            output.square().sum().backward()


def test_rounding_under_a_checkpoint_says_that_it_has_no_gradients() -> None:
    for how in HOW:
        model = checkpointed(Layers(by_sdpa), how)
        with pytest.raises(ValueError, match="no gradients flow"), intervene(model, {1: {"dtype": "bfloat16"}}):
            model(text().requires_grad_()).sum().backward()
