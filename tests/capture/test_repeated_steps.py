"""Steps of a text whose layers go the same way: noted by the first layer's word, and read again where that ends."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from captured import DECODERS, GPT2, build
from torch import Tensor, nn

from attnwidget import capture
from attnwidget._capture.call.cache_growth import GrownKeys
from attnwidget._capture.call.lineage import ModelCall
from attnwidget._capture.carried.next_tokens import most_likely
from attnwidget._capture.modules.module_walk import modules, named_modules
from attnwidget._capture.records.decode_steps import NotedCall, RepeatedStep
from attnwidget._capture.records.forward_passes import RecordMatcher
from attnwidget._capture.session.callers import NOT_WATCHED

transformers = pytest.importorskip("transformers")

C = 8


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
    assert noted
    with torch.no_grad(), capture(model) as once:
        model(whole[:, :-1])
    for one, other in zip(steps.attention, once.attention, strict=True):
        for batch in range(2):
            torch.testing.assert_close(one.block(batch=batch, head=1), other.block(batch=batch, head=1))
            torch.testing.assert_close(one.output(batch=batch, head=1), other.output(batch=batch, head=1))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_only_the_prompt_and_the_first_step_are_read_by_layers(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = build(GPT2, "sdpa"), torch.randint(3, 50, (2, 6))
    read, add = [], RecordMatcher.add
    monkeypatch.setattr(RecordMatcher, "add", lambda self, *given: (read.append(given[0]), add(self, *given))[1])
    with torch.no_grad(), capture(model) as cap:
        model.generate(ids, max_new_tokens=9, min_new_tokens=9, do_sample=False, cache_implementation=cache)
    assert len(read) == 2 * len(cap.attention)
    assert {att.shape.Q for att in cap.attention} == {6 + 8}


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_steps_are_repeated_where_the_prompt_is_not_copied(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = build(GPT2, "sdpa"), torch.randint(3, 50, (2, 6))
    how = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False, "cache_implementation": cache}
    noted, note = [], NotedCall.__init__
    monkeypatch.setattr(NotedCall, "__init__", lambda *given: (noted.append(1), note(*given))[1])
    caps = [capture(model), capture(model, clone=False)]
    for cap in caps:
        with torch.no_grad(), cap:
            model.generate(ids, **how)
    assert len(noted) == 2 * 7 * len(caps[0].attention)
    for one, other in zip(*(cap.attention for cap in caps), strict=True):
        assert torch.equal(one.block(batch=1, head=1), other.block(batch=1, head=1))
        assert torch.equal(one.output(batch=1, head=1), other.output(batch=1, head=1))


def test_a_prompt_that_is_not_copied_and_changes_before_the_text_grows_is_told() -> None:
    model, cache = TextOrContext().eval(), transformers.DynamicCache()
    with torch.no_grad(), capture(model, strict=False, clone=False) as cap:
        model(x(4), cache=cache)
        cache.layers[1].values[:, :, 2] *= 3
        for step in range(1, 5):
            model(x(1, seed=step), cache=cache)
    assert "changed in place" in cap.skipped["layers.1"]
    assert [*cap.attention.names] == ["layers.0", "layers.2"]


def test_a_step_whose_first_layer_has_another_scale_is_read_anew() -> None:
    model, cache = TextOrContext().eval(), transformers.DynamicCache()
    with torch.no_grad(), capture(model, strict=False) as cap:
        for step in range(6):
            model.layers[0].scaling = 0.5 if step < 4 else 0.25
            model(x(4 if step == 0 else 1, seed=step), cache=cache)
    scales = [[att.scale for att in one.attention] for one in cap]
    assert scales == [[0.5, 0.5, 0.5], [0.25, 0.5, 0.5]]
    assert [one.attention[0].shape.Q for one in cap] == [7, 2]
    assert cap.skipped == {}


def test_a_step_whose_cache_was_changed_before_its_first_layer_is_told() -> None:
    model, cache = TextOrContext().eval(), transformers.DynamicCache()
    with torch.no_grad(), capture(model, strict=False) as cap:
        for step in range(6):
            model(x(4 if step == 0 else 1, seed=step), cache=cache)
            if step == 3:
                cache.layers[0].keys.data[:, :, 1] *= 3  # which torch does not count
    assert "layers.0" in cap.skipped


def step_of_a_text() -> tuple[RepeatedStep, dict[str, Any]]:
    """Return the step that the matcher settled last, and the arguments of the layer's next call."""
    model, found = TextOrContext().eval(), []
    with torch.no_grad(), capture(model) as cap:
        read_a_text(model)
        found.append(cap._recorder.matcher._thread.kinds["layers.0"])
    step = found[0]
    q, k, v = (torch.zeros(n if i == 0 else (*n[:2], n[2] + 1, n[3])) for i, n in enumerate(step.shapes))
    ref = weakref.ref(k)
    grown = GrownKeys(ref, 0, k.shape[2], 9, 8, k.shape[2] - 1, False, ref, 0)
    return step, {"implementation": "sdpa", "arguments": (q, k, v, None), "settings": {**step.settings}, "grown": grown}


UNLIKE: dict[str, Any] = {
    "nothing": lambda how: how,
    "a cache that tells nothing": lambda how: {**how, "grown": None},
    "two new keys": lambda how: {**how, "grown": replace(how["grown"], kept=how["grown"].kept - 1)},
    "a cache with a window": lambda how: {**how, "grown": replace(how["grown"], cuts=True)},
    "implementation": lambda how: {**how, "implementation": "eager"},
    "scale": lambda how: {**how, "settings": {**how["settings"], "scaling": 2.0}},
    "window": lambda how: {**how, "settings": {**how["settings"], "sliding_window": 3}},
    "bias": lambda how: {**how, "settings": {**how["settings"], "position_bias": torch.zeros(1, 1, 1, 9)}},
    "dropout": lambda how: {**how, "settings": {**how["settings"], "dropout": 0.1}},
    "mask": lambda how: {**how, "arguments": (*how["arguments"][:3], torch.zeros(1, 1, 1, 9))},
    "two queries": lambda how: {**how, "arguments": (torch.cat([how["arguments"][0]] * 2, 2), *how["arguments"][1:])},
    "other type": lambda how: {**how, "arguments": (*(y.double() for y in how["arguments"][:3]), None)},
    "more keys": lambda how: {
        **how,
        "arguments": (how["arguments"][0], *(torch.cat([y, y], 2) for y in how["arguments"][1:3]), None),
    },
}


@pytest.mark.parametrize("unlike", UNLIKE)
def test_a_step_that_is_unlike_the_one_before_is_not_taken_for_the_next(unlike: str) -> None:
    step, how = step_of_a_text()
    with torch.no_grad():
        found = step.next_one(**UNLIKE[unlike](how), mask_of=lambda mask: mask, step=ModelCall(9))
    assert (found is not None) == (unlike == "nothing")
    if found is not None:
        assert (found.keys, found.queries, found.rules.keys) == (step.keys + 1, step.queries + 1, step.keys + 1)


@pytest.mark.parametrize("shape", [(1, 1, 50_257), (2, 3, 2_000), (1, 2, 1_151), (1, 1, 1_023), (2, 2, 50)])
def test_the_most_likely_tokens_are_those_of_topk(shape: tuple[int, ...]) -> None:
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    assert torch.equal(most_likely(logits), logits.topk(8).indices)
    rounded = logits.round()  # of equal ones any
    assert torch.equal(rounded.gather(2, most_likely(rounded)), rounded.topk(8).values)
    blocked = torch.full(shape, -torch.inf)
    blocked[..., -1] = 0
    assert (most_likely(blocked)[..., 0] == shape[2] - 1).all()


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_logits_of_a_text_in_steps_are_those_of_the_text_at_once(name: str) -> None:
    model, ids = build(DECODERS[name], "sdpa"), torch.randint(3, 50, (2, 6))
    with torch.no_grad(), capture(model) as steps:
        whole = model.generate(ids, max_new_tokens=9, min_new_tokens=9, do_sample=False)
    with torch.no_grad(), capture(model) as once:
        model(whole[:, :-1])
    for one, other in zip(steps.attention, once.attention, strict=True):
        wanted = other.block(stage="logit", batch=1, head=1)
        torch.testing.assert_close(one.block(stage="logit", batch=1, head=1), wanted, atol=1e-5, rtol=1e-4)


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
