"""Capture where a model is trained, wrapped, hastened or interrupted; and records that are not the truth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured import (
    DECODERS,
    GROUPED,
    Eager,
    Expected,
    Kind,
    assert_equal,
    batch,
    build,
    eager_of,
    generated,
    in_both,
    weights,
)
from tolerance import rounding
from torch import Tensor, nn

from attnwidget import capture
from attnwidget._capture.intercept import hooks

transformers = pytest.importorskip("transformers")

LLAMA = DECODERS["Llama"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_that_computes_again_is_no_second_recording(reentrant: bool) -> None:
    model = build(LLAMA, "sdpa").train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    ids = batch()["input_ids"]
    with capture(model) as cap:
        model(ids, labels=ids, use_cache=False).loss.backward()
    assert len(cap) == 1
    assert cap.attention.names == ("model.layers.0.self_attn", "model.layers.1.self_attn")


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_autocast_is_told_in_the_type_that_it_computes_in(implementation: str) -> None:
    model, inputs = build(LLAMA, implementation), batch("left")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        plain = model(**inputs)[0]
        with capture(model) as cap:
            assert torch.equal(model(**inputs)[0], plain)
        eager = build(LLAMA, "eager")(**inputs, output_attentions=True).attentions
    exact = Eager(build(LLAMA, "eager"), **inputs).attentions
    assert cap.attention[0].dtype is torch.bfloat16
    expected = [Expected(theirs, wide.exact) for theirs, wide in zip(eager, exact, strict=True)]
    assert_equal(cap.attention, expected, inputs["attention_mask"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["GPT-2", "Gemma 2"])
def test_half_types_are_nearer_to_float64_than_the_model_itself(name: str, dtype: torch.dtype) -> None:
    inputs = {"input_ids": batch()["input_ids"]}
    model = build(DECODERS[name], "eager").to(dtype)
    with torch.no_grad(), capture(model) as cap:
        found = model(**inputs, output_attentions=True).attentions
    assert cap.skipped == {}
    for att, own in zip(cap.attention, found, strict=True):
        assert att.q is not None
        assert att.k is not None
        k = att.k.double().repeat_interleave(att.shape.H // att.shape.G, 1)
        scores = att.q.double() @ k.mT * att.scale
        scores = scores if att.softcap is None else att.softcap * (scores / att.softcap).tanh()
        allowed = torch.stack(
            [torch.stack([att.block("allowed", batch=b, head=h) for h in range(att.shape.H)]) for b in range(2)]
        )
        exact = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
        torch.testing.assert_close(weights(att).double(), exact, **rounding(att).weights)
        ours, theirs = (float((x - exact).abs().max()) for x in (weights(att), own))
        assert ours < theirs


def test_tokens_that_were_tried_and_rejected_are_not_in_the_map() -> None:
    model = build(LLAMA, "sdpa")
    ids = batch()["input_ids"][:1]
    how = {"max_new_tokens": 10, "min_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        plain = model.generate(ids, prompt_lookup_num_tokens=3, **how)
        with capture(model) as cap:
            assert torch.equal(model.generate(ids, prompt_lookup_num_tokens=3, **how), plain)
    assert len(cap) == 1
    assert_equal(cap.attention, Eager(build(LLAMA, "eager"), plain[:, :-1]).attentions)


def test_another_model_that_assists_is_not_in_the_map() -> None:
    model, small = build(LLAMA, "sdpa"), build(DECODERS["Qwen 3"], "sdpa")
    ids = batch()["input_ids"][:1]
    with torch.no_grad(), capture(model) as cap:
        text = model.generate(
            ids, assistant_model=small, max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=0
        )
    assert_equal(cap[0].attention, Eager(build(LLAMA, "eager"), text[:, :-1]).attentions)


@pytest.mark.parametrize("paged", [{"cache": object()}, {"read_index": [torch.arange(9)]}])
def test_texts_that_are_generated_together_in_pages_of_a_cache_are_refused(paged: dict[str, Any]) -> None:
    """As `model.generate_batch` does: their keys follow one another, and new tokens stand among them."""
    model = build(LLAMA, "sdpa")
    layer = model.model.layers[0].self_attn
    look_up = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    q, k, mask = torch.randn(1, 4, 2, 8), torch.randn(1, 2, 9, 8), torch.ones(1, 1, 2, 9, dtype=torch.bool)
    with pytest.warns(UserWarning, match="paged cache"), torch.no_grad(), capture(strict=False) as cap:
        look_up.get_interface("sdpa", None)(layer, q, k, k, mask, scaling=1.0, is_causal=False, **paged)
    assert [*cap.skipped.values()] == ["it reads a paged cache (continuous batching): call model.generate instead"]


@pytest.mark.parametrize("length", [7, 11])
@pytest.mark.parametrize("static", [True, False])
def test_keys_of_a_cache_from_before_are_seen_and_their_queries_not(static: bool, length: int) -> None:
    model, ids = build(LLAMA, "sdpa"), batch()["input_ids"]
    cache = transformers.StaticCache(config=model.config, max_cache_len=20) if static else transformers.DynamicCache()
    with torch.no_grad():
        model(ids[:, :length], past_key_values=cache)
        with capture(model) as cap:
            model(ids[:, length:], past_key_values=cache)
    expected = Eager(build(LLAMA, "eager"), ids).attentions
    assert_equal(cap.attention, [x.queries(length) for x in expected])


class Buffered(nn.Module):
    """Somebody's own layer with a cache of a fixed length and a mask for what is filled."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.register_buffer("keys", torch.zeros(1, 2, 20, 8))
        self.register_buffer("values", torch.zeros(1, 2, 20, 8))

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        q, k, v = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        stop = start + x.shape[1]
        self.keys[:, :, start:stop], self.values[:, :, start:stop] = k, v
        mask = torch.arange(20) <= torch.arange(start, stop)[:, None]
        return F.scaled_dot_product_attention(q, self.keys, self.values, mask)


def test_a_buffer_of_ones_own_is_read_as_far_as_it_is_filled() -> None:
    torch.manual_seed(0)
    model, x = Buffered().eval(), torch.randn(1, 9, 16)
    with torch.no_grad(), capture(model) as cap:
        model(x[:, :6])
        for i in range(6, 9):
            model(x[:, i : i + 1], i)
    assert len(cap) == 1
    assert cap.attention[0].shape[3:5] == (9, 9)

    def at_once(model: nn.Module, x: Tensor) -> Tensor:
        with capture(model) as whole:
            model(x)
        return weights(whole.attention[0])

    assert_equal(cap.attention, [in_both(at_once, model, x)])


def test_a_model_in_a_wrapper_and_two_models_in_one_block() -> None:
    class Wrapper(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, **inputs: Any) -> Any:
            return self.inner(**inputs)

    one, other = build(LLAMA, "sdpa"), build(DECODERS["GPT-2"], "sdpa")
    wrapped = Wrapper(one)
    with torch.no_grad(), capture(wrapped) as outer, capture(one) as inner, capture(other) as apart:
        wrapped(**batch())
        other(**batch())
    assert outer.attention.names[0] == "inner.model.layers.0.self_attn"
    assert inner.attention.names[0] == "model.layers.0.self_attn"
    assert apart.attention.names == ("transformer.h.0.attn", "transformer.h.1.attn")


def test_a_hook_that_raises_ends_a_forward_pass() -> None:
    model = build(LLAMA, "sdpa")

    def raises(*_: Any) -> None:
        raise RuntimeError("mine")

    hook = model.model.layers[0].register_forward_hook(raises)
    with torch.no_grad(), capture(model) as cap:
        with pytest.raises(RuntimeError, match="mine"):
            model(**batch())
        hook.remove()
        model(**batch())
    assert [len(one.calls) for one in cap] == [1, 2]


# Whether what was recorded is all of it.


def registered(change: Any) -> Any:
    """A Llama whose attention function does more than its arguments tell."""
    usual = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"]

    def function(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **how: Any) -> Any:
        query, key, value = change(module, query, key, value)
        return usual(module, query, key, value, mask, **how)

    transformers.AttentionInterface.register("more", function)
    return build(LLAMA, "more")


@pytest.mark.parametrize(
    "change",
    [
        lambda module, q, k, v: (q * 1.5, k, v),
        lambda module, q, k, v: (q, k.roll(1, 2), v),
        lambda module, q, k, v: (q, k, v * (1 + module.layer_idx)),
    ],
)
def test_a_function_that_does_more_than_its_arguments_tell_is_not_shown(change: Any) -> None:
    model = registered(change)
    for p in model.parameters():
        p.data.mul_(4)  # such that weights differ from one another
    cap = capture(model)
    try:
        with torch.no_grad(), cap:
            model(**batch())
    except ValueError as error:
        assert "its q, k, v, mask and scale do not give its output" in str(error)  # noqa: PT017
    assert "model.layers.1.self_attn" in cap.skipped
    assert "model.layers.1.self_attn" not in cap.calls


def test_a_function_of_ones_own_that_does_what_its_arguments_tell_is_shown() -> None:
    model = registered(lambda module, q, k, v: (q, k, v))
    with torch.no_grad(), capture(model) as cap:
        model(**batch("left"))
    assert (len(cap.attention), cap.skipped) == (2, {})


def test_layers_without_sinks_are_shown_beside_those_with_them() -> None:
    config = transformers.GptOssConfig(**GROUPED, num_local_experts=2, num_experts_per_tok=1)
    model = build(Kind(transformers.GptOssForCausalLM, config), "eager")
    model.model.layers[0].self_attn.sinks = None
    ids = batch()["input_ids"]
    model.model.layers[0].self_attn.forward = plainly(model.model.layers[0].self_attn)
    with torch.no_grad(), capture(model) as cap:
        model(ids)
    assert [att.has_sinks for att in cap.attention] == [False, True]
    assert cap.skipped == {}


def plainly(module: Any) -> Any:
    """A forward by SDPA, which knows no sinks."""
    usual = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS

    def forward(hidden_states: Tensor, attention_mask: Any = None, **_: Any) -> Any:
        q, k, v = (
            project(hidden_states).unflatten(-1, (-1, module.head_dim)).transpose(1, 2)
            for project in (module.q_proj, module.k_proj, module.v_proj)
        )
        found, _weights = usual.get_interface("sdpa", None)(module, q, k, v, attention_mask, scaling=module.scaling)
        return module.o_proj(found.flatten(2)), None

    return forward


def test_outputs_of_beams_that_change_places_are_verified() -> None:
    model = build(LLAMA, "sdpa")
    cap = capture(model)
    generated(model, cap, "left", new=6, num_beams=3)
    assert cap.skipped == {}
    assert len(cap.attention) == 2


def test_a_text_without_a_cache_is_a_recording_for_each_token() -> None:
    cap = capture(build(LLAMA, "sdpa"))
    assert cap._recorder is not None
    text = generated(cap._recorder.model, cap, new=3, use_cache=False)[:, :-1]
    assert [one.attention[0].shape.Q for one in cap] == [12, 13, 14]
    assert_equal(cap[2].attention, eager_of(LLAMA, text, None)[0])


class Caller(nn.Module):
    """Calls torch's function itself."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize(
    ("model", "x", "watched"),
    [
        (lambda: build(DECODERS["GPT-2"], "sdpa"), batch()["input_ids"], False),
        (Caller, torch.randn(1, 2, 5, 8), True),
    ],
    ids=["by the interface", "by itself"],
)
def test_who_calls_torch_itself_is_watched_and_others_no_longer_than_needed(
    model: Any, x: Tensor, watched: bool
) -> None:
    """Of what is watched each function is asked whether it is attention: a text is generated a tenth slower."""
    model, seen = model(), []
    with torch.no_grad(), capture(model) as cap:
        for _ in range(2):
            model(x)
            seen.append(isinstance(torch.overrides._get_current_function_mode(), hooks.FunctionWatcher))
    assert seen == [watched, watched]
    assert len(cap) == 2
    assert torch.overrides._get_current_function_mode() is None


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_nothing_is_watched_after_a_model_that_was_interrupted(error: type[BaseException]) -> None:
    class Interrupted(Caller):
        """Ends within a pass."""

        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            raise error

    def run() -> None:
        with torch.no_grad(), capture(Interrupted()) as cap:
            cap._model(torch.randn(1, 2, 5, 8))

    with pytest.raises(error):
        run()
    assert torch.overrides._get_current_function_mode() is None


def test_attention_of_gpt_2_that_is_written_out_is_watched() -> None:
    config = transformers.GPT2Config(**DECODERS["GPT-2"].config.to_diff_dict() | {"reorder_and_upcast_attn": True})
    model, inputs = build(Kind(transformers.GPT2LMHeadModel, config), "eager"), batch()
    with torch.no_grad(), capture(model) as cap:
        model(**inputs)
        model(**inputs)
    expected = Eager(build(DECODERS["GPT-2"], "eager"), **inputs).attentions  # the same weights and formula
    assert len(cap) == 2
    for forward in cap:
        assert_equal(forward.attention, expected)
