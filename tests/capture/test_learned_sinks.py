"""Models with learned sinks: captured beside what their own eager attention gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from captured import COMMON, GROUPED, TEXT, Kind, batch, build, generated, transformers, weights
from tolerance import rounding
from torch import Tensor
from torch.testing import assert_close

from attnwidget import Attention, Capture, capture

EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "q_lora_rank": 16}
LAYERS = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4}
GPT_OSS = Kind(transformers.GptOssForCausalLM, transformers.GptOssConfig(**GROUPED, **EXPERTS, sliding_window=4))


def other_models() -> dict[str, tuple[str, dict[str, Any]]]:
    """Model and config of the other architectures with sinks, by the names that transformers gives them."""
    return {
        "Flint": (
            "Flint",
            {**GROUPED, **LAYERS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
             "shared_expert_intermediate_size": 16, "mlp_only_layers": [0]},
        ),
        "MiMo": ("MiMoV2Flash", {**GROUPED, **LAYERS, "v_head_dim": 8, "mlp_layer_types": ["dense", "dense"]}),
        "HY": (
            "HYV4",
            {**COMMON, **TEXT, **ROUTED, "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
             "qk_rope_head_dim": 8, "v_head_dim": 8},
        ),
        "DeepSeek-V4": (
            "DeepseekV4",
            {**GROUPED, **ROUTED, "num_key_value_heads": 1, "layer_types": ["sliding_attention"] * 2},
        ),
        "Granite": ("GraniteSwa", {**GROUPED, **LAYERS, "layer_rope_theta": [1e4, 1e4]}),
    }  # fmt: skip


def model_of(name: str) -> Any:
    names, keywords = other_models()[name]
    kinds = {one.lower(): one for one in dir(transformers)}
    if f"{names}ForCausalLM".lower() not in kinds:
        pytest.skip(f"this transformers has no {names}")
    kind, config = (getattr(transformers, kinds[f"{names}{of}".lower()]) for of in ("ForCausalLM", "Config"))
    return spread(build(Kind(kind, config(**keywords)), "eager"))


def spread(model: Any) -> Any:
    """Give each head another sink: in a new model all are alike."""
    make = torch.Generator().manual_seed(2)
    for module in model.modules():
        if isinstance(getattr(module, "sinks", None), torch.nn.Parameter):
            module.sinks.data.copy_(torch.randn(module.sinks.shape, generator=make))
    return model


@pytest.mark.parametrize("padded", [None, "left", "right"])
def test_weights_are_those_of_the_models_eager_attention(padded: str | None) -> None:
    inputs, model = batch(padded), spread(build(GPT_OSS, "eager"))
    with torch.no_grad():
        plain = model(**inputs)[0]
        with capture(model) as cap:
            found = model(**inputs, output_attentions=True)
    assert torch.equal(found[0], plain)
    assert (cap.skipped, [att.has_sinks for att in cap.attention]) == ({}, [True, True])
    real = inputs["attention_mask"][:, None, :, None] > 0
    for att, theirs in zip(cap.attention, found.attentions, strict=True):  # of the very same q and k
        near = rounding(att, added=4.0).weights
        assert_close(weights(att).where(real, 0), theirs.where(real, 0), rtol=near["rtol"], atol=1e-9)


@pytest.mark.parametrize("name", ["Flint", "MiMo", "HY", "DeepSeek-V4", "Granite"])
def test_other_architectures_are_read_as_well(name: str) -> None:
    model, ids = model_of(name), batch()["input_ids"]
    with torch.no_grad():
        plain = model(ids)[0]
        with capture(model) as cap:
            found = model(ids, output_attentions=True)
    assert torch.equal(found[0], plain)
    assert (len(cap.attention), cap.skipped) == (2, {})
    assert [att.has_sinks for att in cap.attention] == [name != "MiMo", True]
    for att, theirs in zip(cap.attention, found.attentions, strict=True):
        ours, near = weights(att), rounding(att, added=float(4)).weights
        if name == "Granite":  # returns them before they meet the sink
            ours = ours / (1 - sinks_of(att))[..., None]
            near = {"rtol": 4 * near["rtol"], "atol": near["rtol"]}
        assert_close(ours, theirs, rtol=near["rtol"], atol=1e-9)


def test_summaries_that_are_more_keys_come_after_those_of_the_text() -> None:
    """DeepSeek-V4's layers with compressed keys: these have no words, and no key has that of another."""
    if not hasattr(transformers, "DeepseekV4Config"):
        pytest.skip("this transformers has no DeepseekV4")
    kinds = ["compressed_sparse_attention", "heavily_compressed_attention"]
    how = {**GROUPED, **ROUTED, "num_key_value_heads": 1, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 2}
    rates = {"layer_types": kinds, "compress_rates": dict(zip(kinds, (4, 8), strict=True)), "sliding_window": 8}
    config = transformers.DeepseekV4Config(**how, **rates)
    model, ids = spread(build(Kind(transformers.DeepseekV4ForCausalLM, config), "eager")), batch()["input_ids"]
    with torch.no_grad(), capture(model) as cap:
        found = model(ids, output_attentions=True)
    assert (cap.skipped, [att.shape.K for att in cap.attention]) == ({}, [15, 13])
    for att, theirs in zip(cap.attention, found.attentions, strict=True):
        assert_close(weights(att), theirs, rtol=rounding(att, added=4.0).weights["rtol"], atol=1e-9)
        assert att.part is not None
        assert att.part.keys_before == 0
    assert cap.key_tokens == [[*one, None, None, None] for one in ids.tolist()]


def sinks_of(att: Attention) -> Tensor:
    """(B, H, Q)."""
    B, H = att.shape.B, att.shape.H
    return torch.stack([torch.stack([att.sink_weights(b, h) for h in range(H)]) for b in range(B)])


def test_the_sink_takes_what_the_keys_leave() -> None:
    model = spread(build(GPT_OSS, "eager"))
    with torch.no_grad(), capture(model) as cap:
        model(batch()["input_ids"])
    for att, layer in zip(cap.attention, model.model.layers, strict=True):
        assert att.sinks is not None
        assert torch.equal(att.sinks, layer.self_attn.sinks)
        assert att.sinks.data_ptr() != layer.self_attn.sinks.data_ptr()  # training does not change the picture
        near = rounding(att, added=4.0).weights["rtol"]
        assert_close(weights(att).sum(-1) + sinks_of(att), torch.ones(2, 6, 12), rtol=0, atol=near)


@pytest.mark.parametrize("padded", [None, "left"])
def test_a_generated_text_is_one_map(padded: str | None) -> None:
    model = spread(build(GPT_OSS, "eager"))
    cap = capture(model)
    text = generated(model, cap, padded, new=6)
    assert (len(cap), cap.skipped) == (1, {})
    with torch.no_grad(), capture(model) as whole:
        model(text[:, :-1], attention_mask=(text[:, :-1] != 0).long() if padded else None)
    for one, other in zip(cap.attention, whole.attention, strict=True):
        assert one.shape.Q == 17
        assert torch.equal(one.sinks, other.sinks)
        if padded is None:
            assert_close(weights(one), weights(other), rtol=0, atol=100 * rounding(other, added=4.0).weights["rtol"])


def test_beams_are_verified_with_sinks() -> None:
    model = spread(build(GPT_OSS, "eager"))
    cap = capture(model)
    generated(model, cap, "left", new=5, num_beams=3)
    assert (len(cap.attention), cap.skipped) == (2, {})


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_a_file_has_them(tmp_path: Path, dtype: torch.dtype | None) -> None:
    model = spread(build(GPT_OSS, "eager"))
    with torch.no_grad(), capture(model, dtype=dtype) as cap:
        model(**batch("left"))
    cap.save(tmp_path / "run.safetensors")
    loaded = Capture.load(tmp_path / "run.safetensors")
    for one, other in zip(cap.attention, loaded.attention, strict=True):
        assert one.sinks is not None
        assert other.sinks is not None
        assert one.sinks.dtype is torch.float32
        assert torch.equal(one.sinks, other.sinks)
        assert torch.equal(weights(one), weights(other))
        assert torch.equal(sinks_of(one), sinks_of(other))
    assert "learned sinks" in repr(loaded.attention[0])


def test_a_file_without_sinks_is_read_as_before(tmp_path: Path) -> None:
    model = build(Kind(transformers.LlamaForCausalLM, transformers.LlamaConfig(**GROUPED)), "sdpa")
    with torch.no_grad(), capture(model) as cap:
        model(**batch())
    cap.save(tmp_path / "run.safetensors")
    assert Capture.load(tmp_path / "run.safetensors").attention[0].sinks is None


def registered(function: Any) -> Any:
    """A GPT-OSS model whose attention function is somebody's own."""
    transformers.AttentionInterface.register("somebodys_own", function)
    transformers.AttentionMaskInterface.register(
        "somebodys_own", transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["eager"]
    )
    return spread(build(GPT_OSS, "somebodys_own"))


def test_a_function_that_forgets_the_sinks_is_not_shown_with_them() -> None:
    def forgetful(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float, **_: Any) -> Any:
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        found = ((q @ k.mT * scaling + mask).softmax(-1) @ v).transpose(1, 2)
        return found.contiguous(), None

    model = registered(forgetful)
    with (
        pytest.raises(ValueError, match=r"none of 2 .* the model does more than they show"),
        torch.no_grad(),
        capture(model),
    ):
        model(**batch("left"))


def test_sinks_that_are_not_one_for_each_head_are_refused() -> None:
    """As those of Inkling 2, which has another for each query."""
    eager = transformers.models.gpt_oss.modeling_gpt_oss.eager_attention_forward
    model = registered(lambda module, *args, s_aux, **named: eager(module, *args, **named))
    attention = model.model.layers[1].self_attn
    look_up = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS

    def forward(hidden_states: Tensor, attention_mask: Any = None, **_: Any) -> Any:
        q, k, v = (
            project(hidden_states).unflatten(-1, (-1, 8)).transpose(1, 2)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        sinks = torch.zeros(*q.shape[:3], 1)
        found, _weights = look_up.get_interface("somebodys_own", None)(
            attention, q, k, v, attention_mask, scaling=1.0, s_aux=sinks
        )
        return attention.o_proj(found.flatten(2)), None

    attention.forward = forward
    with torch.no_grad(), capture(model) as cap:
        model(**batch("left"))
    assert cap.attention.names == ("model.layers.0.self_attn",)
    assert "learned sinks are not one number for each head" in cap.skipped["model.layers.1.self_attn"]


def test_the_function_of_torch_takes_none() -> None:
    """SDPA has no sinks, and transformers' call of it leaves them out: what ran is shown."""
    model = spread(build(GPT_OSS, "eager"))
    layer = model.model.layers[0].self_attn
    look_up = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    q, k, v = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    with torch.no_grad(), capture() as cap:
        look_up.get_interface("sdpa", None)(layer, q, k, v, None, scaling=layer.scaling, s_aux=layer.sinks)
    assert [att.has_sinks for att in cap.attention] == [False]
    scores = q @ k.repeat_interleave(2, 1).mT * layer.scaling + _causal(5)
    assert_close(weights(cap.attention[0]), scores.softmax(-1), **rounding(cap.attention[0]).weights)


def _causal(n: int) -> Tensor:
    return torch.full((n, n), -torch.inf).triu(1)
