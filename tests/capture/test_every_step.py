"""Every call of one token is verified by its output: what goes another way in a later step of a text is not shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured import GPT2, GROUPED, Kind, batch, build, generated
from torch import Tensor, nn

from attnwidget import Capture, capture
from attnwidget._capture.intercept import watching
from attnwidget._capture.verify import batched, pending_outputs

transformers = pytest.importorskip("transformers")

LLAMA = Kind(transformers.LlamaForCausalLM, transformers.LlamaConfig(**GROUPED))
OTHER = "its q, k, v, mask and scale do not give its output"
KEEPING: dict[str, dict[str, Any]] = {
    "all": {},
    "without values": {"values": False},
    "without copies": {"clone": False},
    "in half": {"dtype": torch.float16},
    "some heads": {"heads": [1, 2]},
    "some queries": {"queries": slice(-3, None)},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
    "beams": {"num_beams": 3},
}


def changed_from(keys: int, layer: int = 1, change: Callable[[Tensor], Any] = lambda x: 1.5 * x) -> Any:
    """A Llama of which one layer's output is another where there are so many keys, and more."""
    usual = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"]
    seen = [0] * 2

    def function(module: Any, query: Tensor, *others: Any, **how: Any) -> Any:
        output, weights = usual(module, query, *others, **how)
        seen[module.layer_idx] = query.shape[2] + (seen[module.layer_idx] if query.shape[2] == 1 else 0)
        is_changed = module.layer_idx == layer and seen[layer] >= keys
        return (change(output) if is_changed else output), weights

    transformers.AttentionInterface.register("changed", function)
    transformers.AttentionMaskInterface.register("changed", transformers.masking_utils.sdpa_mask)
    return build(LLAMA, "changed")


def kept(model: Any, new: int = 8, keeping: dict[str, Any] | None = None, **how: Any) -> Capture:
    cap = capture(model, strict=False, **keeping or {})
    generated(model, cap, None, new=new, **how)
    return cap


@pytest.mark.parametrize("keeping", ["in half", "some heads", "some queries"])
def test_layers_of_a_step_are_verified_together_where_a_part_is_kept(
    keeping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []

    def counted(calls: list[Any], **how: Any) -> Tensor:
        together.append(len(calls))
        return differ(calls, **how)

    differ = batched.differ
    monkeypatch.setattr(batched, "differ", counted)
    cap = kept(build(LLAMA, "sdpa"), keeping=KEEPING[keeping])
    assert not cap.skipped
    assert together.count(2) == 7  # of both layers in each step after the prompt


# Each way to keep with one search, and each search; the other pairs are left to `make thorough`.
EVERYDAY = list(zip(KEEPING, [*SEARCHES, *SEARCHES], strict=True))
KEPT_AND_SEARCHED = [
    pytest.param(keeping, search, marks=[] if (keeping, search) in EVERYDAY else pytest.mark.thorough)
    for keeping in KEEPING
    for search in SEARCHES
]


@pytest.mark.parametrize(("keeping", "search"), KEPT_AND_SEARCHED)
def test_a_step_whose_output_is_another_is_not_shown(keeping: str, search: str) -> None:
    cap = kept(changed_from(keys=16), keeping=KEEPING[keeping], **SEARCHES[search])
    assert OTHER in cap.skipped["model.layers.1.self_attn"]
    assert list(cap.calls) == ["model.layers.0.self_attn"]


@pytest.mark.parametrize(("keeping", "search"), KEPT_AND_SEARCHED)
def test_steps_that_are_what_they_tell_are_shown(keeping: str, search: str) -> None:
    cap = kept(changed_from(keys=10**6), keeping=KEEPING[keeping], **SEARCHES[search])
    assert cap.skipped == {}
    assert len(cap.attention) == 2


@pytest.mark.parametrize("search", ["dynamic", "static"])
def test_a_step_of_the_first_layer_whose_output_is_another_is_not_shown(search: str) -> None:
    cap = kept(changed_from(keys=16, layer=0), **SEARCHES[search])
    assert OTHER in cap.skipped["model.layers.0.self_attn"]
    assert list(cap.calls) == ["model.layers.1.self_attn"]


@pytest.mark.parametrize("late", [0, 3])
def test_it_is_seen_in_any_step_of_a_text_whose_outputs_are_verified_in_parts(
    late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnwidget._capture.records.record.AT_ONCE", 4)
    assert kept(changed_from(keys=10**6), new=12).skipped == {}
    cap = kept(changed_from(keys=12 + 12 - 1 - late), new=12)
    assert OTHER in cap.skipped["model.layers.1.self_attn"]


def test_outputs_are_verified_while_the_text_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnwidget._capture.records.record.AT_ONCE", 4)
    together, pop = [], pending_outputs.KeptOutputs.pop

    def counted(self: Any) -> Any:
        together.append(len(self))
        return pop(self)

    monkeypatch.setattr(pending_outputs.KeptOutputs, "pop", counted)
    kept(build(LLAMA, "sdpa"), new=14)
    assert sum(together) == 2 * 13
    assert 4 <= max(together) < 2 * 4


def test_values_of_a_cache_that_are_changed_between_steps_are_seen() -> None:
    model = build(GPT2, "sdpa")
    cache, ids = transformers.DynamicCache(config=model.config), batch()["input_ids"]
    with torch.no_grad(), capture(model, strict=False) as cap:
        for step in range(5):
            ids = model(ids, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            if step == 2:
                cache.layers[1].values[:, :, 4] *= 9
    assert OTHER in cap.skipped["transformer.h.1.attn"]
    assert list(cap.calls) == ["transformer.h.0.attn"]


def test_an_output_that_cannot_be_read_is_told() -> None:
    cap = kept(changed_from(keys=16, change=lambda x: x[..., :1].expand_as(x)[..., None, :].squeeze(-2).clone()))
    assert "model.layers.1.self_attn" in cap.skipped


def test_a_text_that_is_interrupted_in_a_layer_is_shown_up_to_there() -> None:
    def interrupt(_: Tensor) -> None:
        raise KeyboardInterrupt

    model = changed_from(keys=16, change=interrupt)
    cap = capture(model)
    ids = batch()["input_ids"]
    with pytest.raises(KeyboardInterrupt), torch.no_grad(), cap:
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    assert cap.skipped == {}
    assert [att.shape.Q for att in cap.attention] == [16, 15]


# Layers of one class that go different ways.


class Either(nn.Module):
    """A layer as transformers might have one: every other writes its attention out."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.layer_idx, self.scaling, self.qkv = number, 0.5, nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        if self.layer_idx % 2:
            return (F.softmax(q @ k.mT * self.scaling, -1) @ v).transpose(1, 2).flatten(2)
        interface = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", None)
        return interface(self, q, k, v, None, scaling=self.scaling, is_causal=False)[0].flatten(2)


def of_transformers(kind: type[nn.Module], name: str) -> type[nn.Module]:
    return type(name, (kind,), {**vars(kind), "__module__": "transformers.models.either", "__qualname__": name})


def test_a_layer_that_goes_another_way_than_those_of_its_class_is_told_and_then_followed() -> None:
    attention = of_transformers(Either, "EitherAttention")
    layers = [attention(i) for i in range(4)]
    model, x = nn.Sequential(*layers), torch.randn(1, 5, 8)
    with torch.no_grad(), capture(model) as first:
        model(x)
    assert list(first.calls) == ["0", "2"]
    assert first.skipped == dict.fromkeys(("1", "3"), watching.NOT_FOLLOWED)
    with torch.no_grad(), capture(model) as again:
        model(x)
    assert list(again.calls) == ["0", "1", "2", "3"]
    assert again.skipped == {}


def test_settings_of_a_layer_tell_that_it_may_go_another_way() -> None:
    attention = of_transformers(Either, "EitherAttentionWithSettings")
    layers = [attention(i) for i in range(4)]
    for layer in layers:
        layer.writes_out = bool(layer.layer_idx % 2)
    model = nn.Sequential(*layers)
    with torch.no_grad(), capture(model) as cap:
        model(torch.randn(1, 5, 8))
    assert list(cap.calls) == ["0", "1", "2", "3"]
