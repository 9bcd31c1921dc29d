"""An interrupt at any line leaves the model without hooks, and the next capture whole."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from interrupting import each_line_of, interrupted_at, lines_of
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from attnwidget import capture, intervene

IDS = torch.arange(8)[None]


class OfOnesOwn(nn.Module):
    """A class around a model of transformers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: Tensor) -> Any:
        return self.inner(input_ids=input_ids)


def hooks_on(model: nn.Module) -> int:
    return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules())


def interrupt(model: nn.Module, in_module: nn.Module) -> None:
    """Call a model, and interrupt it where it calls a module."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = in_module.register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        model(IDS)
    handle.remove()


def captured(model: nn.Module) -> list[Tensor]:
    with capture(model) as cap:
        model(IDS)
    assert not cap.skipped
    return [att.block(head=1) for att in cap.attention]


def edited(model: nn.Module) -> None:
    with intervene(model, {(0, 1): "zero"}):
        model(IDS)


def small_gpt2(**settings: Any) -> GPT2LMHeadModel:
    sizes = {"n_head": 2, "n_embd": 16, "vocab_size": 30, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(**sizes, **settings)).eval()


def leaves_nothing(act: Callable[[nn.Module], object], model: nn.Module, lines: Iterable[int]) -> None:
    """Interrupt something at each of some lines; compare the model, and the next capture, with what they are alone."""
    plain, wanted = model(IDS).logits, captured(copy.deepcopy(model))
    for line in lines:
        fresh = copy.deepcopy(model)  # of which nothing is known yet
        with interrupted_at(line):
            act(fresh)
        assert sys.exc_info()[0] is None
        assert hooks_on(fresh) == 0, f"after line {line}"
        assert torch._C._len_torch_function_stack() == 0, f"after line {line}"
        assert torch.equal(fresh(IDS).logits, plain)
        found = captured(fresh)
        assert len(found) == 2
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@torch.no_grad()
@pytest.mark.parametrize("act", [captured, edited])
@pytest.mark.parametrize("places", [10, pytest.param(60, marks=pytest.mark.thorough)])
def test_an_interrupt_at_any_line_leaves_nothing_on_the_model(act: Callable[[nn.Module], object], places: int) -> None:
    model = small_gpt2(n_layer=2, bos_token_id=None, eos_token_id=None)
    captured(copy.deepcopy(model))
    lines = lines_of(lambda: act(copy.deepcopy(model)))
    assert lines > 2000
    leaves_nothing(act, model, range(1, lines, lines // places))


@torch.no_grad()
@pytest.mark.parametrize(
    ("act", "files"), [(captured, ["hooks.py", "capture.py"]), (edited, ["hooks.py", "intervene.py"])]
)
@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.thorough)])
def test_an_interrupt_at_each_line_of_the_hooks_leaves_nothing(
    act: Callable[[nn.Module], object], files: list[str], every: int
) -> None:
    model = small_gpt2(n_layer=2, bos_token_id=None, eos_token_id=None)
    captured(copy.deepcopy(model))
    lines = each_line_of(files, lambda: act(copy.deepcopy(model)))
    assert len(lines) > 130
    leaves_nothing(act, model, lines[::every])


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("keep", [{}, {"values": False}, {"keep": "overview"}])
def test_a_call_after_one_that_was_interrupted_is_recorded_by_itself(own: bool, keep: dict[str, Any]) -> None:
    inner = small_gpt2(n_layer=3, bos_token_id=1, eos_token_id=1)
    model = OfOnesOwn(inner) if own else inner
    with torch.no_grad(), capture(model, **keep) as alone:
        model(IDS + 1)
    with torch.no_grad(), capture(model, **keep) as cap:
        model(IDS)
        for layer in (0, 1, 2):
            interrupt(model, in_module=inner.transformer.h[layer].ln_2)
        model(IDS + 1)
    assert len(cap) == 5
    for place, whole in ((0, True), (4, True), (1, False)):  # before, after, and the first that was interrupted
        found = cap[place]
        assert (found.attention.names == alone.attention.names) is whole
        if not whole:
            continue
        assert cap.skipped == alone.skipped
        assert found.tokens == (alone.tokens if place else [list(range(8))])
    for one, other in zip(cap[4].attention, alone.attention, strict=True):
        assert torch.equal(one.overview(head=1).values, other.overview(head=1).values)


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("edit", [{(1, 1): "zero"}, {0: "uniform", (2, 0): "mean"}])
@pytest.mark.parametrize("alone", [False, True])
def test_a_call_after_one_that_was_interrupted_is_edited(layer: int, edit: dict[Any, str], alone: bool) -> None:
    whole = small_gpt2(n_layer=3, bos_token_id=1, eos_token_id=1)

    def run() -> Tensor:
        found: Tensor = (whole.transformer if alone else whole)(IDS)[0]
        return found

    with intervene(whole, edit):
        wanted = run()
    with intervene(whole, edit):
        interrupt(whole, in_module=whole.transformer.h[layer].ln_2)
        assert torch.equal(run(), wanted)
    assert not torch.equal(run(), wanted)


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 2])
def test_a_part_called_after_an_interrupt_is_recorded_by_itself(layer: int) -> None:
    whole = small_gpt2(n_layer=3, bos_token_id=1, eos_token_id=1)
    with capture(whole) as alone:
        whole.transformer(IDS + 1)
    with capture(whole) as cap:
        interrupt(whole, in_module=whole.transformer.h[layer].ln_2)
        whole.transformer(IDS + 1)
    assert len(cap) == 2
    assert cap[1].attention.names == alone.attention.names
    for one, other in zip(cap[1].attention, alone.attention, strict=True):
        assert torch.equal(one.block(head=1), other.block(head=1))
