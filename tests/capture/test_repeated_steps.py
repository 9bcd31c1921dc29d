"""Steps of a text whose layers go the same way: noted by the first layer's word, and read again where that ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from captured import DECODERS, build
from torch import Tensor, nn

from attnwidget import capture
from attnwidget._capture.model_calls import NOT_WATCHED
from attnwidget._capture.module_walk import modules, named_modules
from attnwidget._capture.repeated_steps import NotedCall

transformers = pytest.importorskip("transformers")

C = 8
WINDOWED = ("Mistral", "Gemma 2")  # whose caches drop keys, so that each layer's call is read by itself


class Either(nn.Module):
    """A layer as transformers might have one, which attends to a context where one is given."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.layer_idx, self.scaling = number, 0.5
        self.to_q, self.to_k, self.to_v = (nn.Linear(C, C) for _ in range(3))

    def forward(self, x: Tensor, context: Tensor | None = None, cache: Any = None) -> Tensor:
        source = x if context is None else context
        q, k, v = (
            y.unflatten(-1, (2, -1)).transpose(1, 2) for y in (self.to_q(x), self.to_k(source), self.to_v(source))
        )
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        interface = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", None)
        return interface(self, q, k, v, None, scaling=self.scaling, is_causal=False)[0].flatten(2)


class TextOrContext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Either(i) for i in range(3))

    def forward(self, x: Tensor, context: Tensor | None = None, cache: Any = None) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, context, cache)
        return x


def x(length: int, seed: int = 0) -> Tensor:
    return torch.randn(1, length, C, generator=torch.Generator().manual_seed(seed))


def read_a_text(model: nn.Module, steps: int = 5) -> None:
    cache = transformers.DynamicCache()
    for step in range(steps):
        model(x(4 if step == 0 else 1, seed=step), cache=cache)


def is_watched(layer: nn.Module) -> bool:
    return bool(layer._forward_pre_hooks or layer._forward_hooks)


def test_layers_of_a_text_are_watched_again_for_the_next_one() -> None:
    model = TextOrContext().eval()
    with torch.no_grad(), capture(model) as cap:
        read_a_text(model)
        assert [is_watched(layer) for layer in model.layers] == [True, False, False]
        model(x(4, seed=8), context=x(4, seed=9))
        assert all(map(is_watched, model.layers))
    assert cap.skipped == {}
    text, other = cap[0], cap[1]
    names = ["layers.0", "layers.1", "layers.2"]
    assert list(text.attention.names) == list(other.cross.names) == names
    assert not any(map(is_watched, model.layers))


def test_a_layer_that_is_called_alone_after_a_text_is_told() -> None:
    model = TextOrContext().eval()
    with torch.no_grad(), capture(model, strict=False) as cap:
        read_a_text(model)
        model.layers[1](x(4, seed=8), context=x(4, seed=9))
    assert NOT_WATCHED in cap.skipped["layers.1"]


@pytest.mark.parametrize("name", DECODERS)
def test_a_text_in_steps_is_the_same_as_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = build(DECODERS[name], "eager"), torch.randint(3, 50, (2, 6))
    noted, note = [], NotedCall.__init__
    monkeypatch.setattr(NotedCall, "__init__", lambda *given: (noted.append(1), note(*given))[1])
    with torch.no_grad(), capture(model) as steps:
        whole = model.generate(ids, max_new_tokens=9, min_new_tokens=9, do_sample=False)
    assert bool(noted) == (name not in WINDOWED)
    with torch.no_grad(), capture(model) as once:
        model(whole[:, :-1])
    for one, other in zip(steps.attention, once.attention, strict=True):
        for batch in range(2):
            torch.testing.assert_close(one.block(batch=batch, head=1), other.block(batch=batch, head=1))
            torch.testing.assert_close(one.output(batch=batch, head=1), other.output(batch=batch, head=1))


def test_values_may_be_of_another_size_than_keys() -> None:
    model = TextOrContext().eval()
    for layer in model.layers:
        layer.to_q, layer.to_k = nn.Linear(C, 2 * C), nn.Linear(C, 2 * C)
    with torch.no_grad(), capture(model) as cap:
        read_a_text(model)
    assert [(att.shape.D, att.shape.Dv) for att in cap.attention] == [(8, 4)] * 3
    assert cap.skipped == {}


def test_the_walk_over_modules_is_that_of_torch() -> None:
    shared = nn.Linear(2, 2)
    inner = nn.Sequential(shared, nn.ReLU(), nn.Sequential(nn.Linear(2, 2), shared))
    model = nn.ModuleDict({"one": inner, "two": shared, "three": nn.ModuleList([inner, nn.Tanh()])})
    model.register_module("none", None)
    for each_once in (True, False):
        assert named_modules(model, each_once=each_once) == list(model.named_modules(remove_duplicate=each_once))
    assert modules(model) == list(model.modules())
