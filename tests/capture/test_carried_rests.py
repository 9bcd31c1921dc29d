"""Where the outputs of heads go is looked for until it is known, and no longer."""

from __future__ import annotations

import threading

import pytest
import torch
from captured import GPT2, build
from torch import Tensor, nn

from attnwidget import capture

pytest.importorskip("transformers")
IDS = torch.arange(3, 12)[None]


def hooked(model: nn.Module) -> list[str]:
    """Names of linear maps and norms that have hooks."""
    found = [(name, one) for name, one in model.named_modules() if not list(one.children())]
    return [name for name, one in found if one._forward_hooks and not isinstance(one, nn.Embedding)]


def test_modules_are_watched_until_the_way_of_the_outputs_is_known() -> None:
    model = build(GPT2, "sdpa")
    before = hooked(model)
    with torch.no_grad(), capture(model) as cap:
        first = hooked(model)
        model(IDS)
        rest = hooked(model)
        model(IDS.flip(1))
    assert hooked(model) == before == []
    assert "transformer.h.0.attn.c_proj" in first
    assert rest == ["transformer.ln_f"]  # whose scale each text has its own of
    for forward, ids in zip(cap, (IDS, IDS.flip(1)), strict=True):
        with torch.no_grad(), capture(model) as alone:
            model(ids)
        for stage in ("value_norm", "logit"):
            pairs = zip(forward.attention, alone.attention, strict=True)
            assert all(torch.equal(a.block(stage, head=1), b.block(stage, head=1)) for a, b in pairs)


def test_a_layer_that_runs_for_the_first_time_later_on_is_watched_again() -> None:
    class Sometimes(nn.Module):
        """Has its second layer in every other call."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))
            self.norm, self.unembedding = nn.LayerNorm(8), nn.Linear(8, 20, bias=False)
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            for layer in self.layers[: 1 + (self.calls - 1) % 2]:
                x = x + layer(x, x, x, need_weights=False)[0]
            logits: Tensor = self.unembedding(self.norm(x))
            return logits

    torch.manual_seed(0)
    model, x = Sometimes().eval(), torch.randn(1, 5, 8)
    with torch.no_grad(), capture(model) as cap:
        model(x)
        model(x)
    assert [len(forward.attention) for forward in cap] == [1, 2]
    w_o = model.layers[1].out_proj.weight.detach().mT.unflatten(0, (2, 4))
    att = cap[1].attention[1]
    expected = att.carrying(w_o=w_o).block("value_norm", head=1)
    assert torch.allclose(att.block("value_norm", head=1), expected)


def test_hooks_stay_while_another_thread_is_in_its_first_pass() -> None:
    model, found = build(GPT2, "sdpa"), []
    entered, ended = threading.Event(), threading.Event()

    def wait(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if threading.current_thread() is not threading.main_thread():
            entered.set()
            ended.wait(timeout=60)

    def second() -> None:
        with torch.no_grad():
            model(IDS)

    thread = threading.Thread(target=second)
    with torch.no_grad(), capture(model) as cap:
        hook = model.transformer.h[1].register_forward_pre_hook(wait)
        thread.start()
        entered.wait(timeout=60)
        model(IDS.flip(1))
        found.append(hooked(model))
        ended.set()
        thread.join()
        found.append(hooked(model))
        hook.remove()
    assert "transformer.h.1.attn.c_proj" in found[0]
    assert found[1] == ["transformer.ln_f"]
    for forward in cap:
        assert forward.attention[1].block("value_norm", head=1).shape == (9, 9)
