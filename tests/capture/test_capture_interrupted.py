"""An interrupt at any line leaves the model without hooks, and the next capture whole."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from interrupting import interrupted_at, lines_of
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


def captured(model: nn.Module) -> list[Tensor]:
    with capture(model) as cap:
        model(IDS)
    assert not cap.skipped
    return [att.block(head=1) for att in cap.attention]


def edited(model: nn.Module) -> None:
    with intervene(model, {(0, 1): "zero"}):
        model(IDS)


@pytest.mark.slow
@pytest.mark.parametrize("act", [captured, edited])
def test_an_interrupt_at_any_line_leaves_nothing_on_the_model(act: Callable[[nn.Module], object]) -> None:
    config = GPT2Config(
        n_layer=2, n_head=2, n_embd=16, vocab_size=30, n_positions=32, bos_token_id=None, eos_token_id=None
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        plain, wanted = model(IDS).logits, captured(copy.deepcopy(model))
        lines = lines_of(lambda: act(copy.deepcopy(model)))
        assert lines > 2000
        for line in range(1, lines, lines // 90):
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


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("keep", [{}, {"values": False}, {"keep": "overview"}])
def test_a_call_after_one_that_was_interrupted_is_recorded_by_itself(own: bool, keep: dict[str, Any]) -> None:
    config = GPT2Config(n_layer=3, n_head=2, n_embd=16, vocab_size=30, n_positions=32, bos_token_id=1, eos_token_id=1)
    inner = GPT2LMHeadModel(config).eval()
    model = OfOnesOwn(inner) if own else inner

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with torch.no_grad(), capture(model, **keep) as alone:
        model(IDS + 1)
    with torch.no_grad(), capture(model, **keep) as cap:
        model(IDS)
        for layer in (0, 1, 2):
            handle = inner.transformer.h[layer].ln_2.register_forward_pre_hook(stop)
            with pytest.raises(KeyboardInterrupt):
                model(IDS)
            handle.remove()
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
