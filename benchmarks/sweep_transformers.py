"""Every architecture of transformers, made small from its own config, and called with what it takes."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from sweep_check import Case
from sweep_libraries import NotHere, library

SMALL: dict[str, Any] = {
    **dict.fromkeys(
        (
            "hidden_size",
            "d_model",
            "n_embd",
            "dim",
            "embed_dim",
            "embedding_size",
            "emb_dim",
            "projection_dim",
            "encoder_hidden_size",
            "decoder_hidden_size",
            "text_hidden_size",
            "hidden_dim",
            "d_embed",
            "model_dim",
            "encoder_embed_dim",
            "decoder_embed_dim",
            "projector_dim",
            "out_hidden_size",
            "output_hidden_size",
            "word_embed_proj_dim",
            "d_text",
            "d_vision",
            "cross_attention_hidden_size",
            "attention_hidden_size",
            "embed_proj_dim",
        ),
        32,
    ),
    **dict.fromkeys(
        (
            "num_attention_heads",
            "n_head",
            "n_heads",
            "num_heads",
            "encoder_attention_heads",
            "decoder_attention_heads",
            "num_decoder_attention_heads",
            "num_encoder_attention_heads",
            "attention_heads",
        ),
        4,
    ),
    **dict.fromkeys(
        (
            "num_hidden_layers",
            "n_layer",
            "n_layers",
            "num_layers",
            "encoder_layers",
            "decoder_layers",
            "num_decoder_layers",
            "num_encoder_layers",
            "depth",
            "num_hidden_groups",
            "encoder_num_hidden_layers",
            "decoder_num_hidden_layers",
            "num_block",
            "num_blocks",
        ),
        2,
    ),
    **dict.fromkeys(("num_key_value_heads", "n_kv_heads", "num_kv_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(
        (
            "intermediate_size",
            "ffn_dim",
            "d_ff",
            "n_inner",
            "encoder_ffn_dim",
            "decoder_ffn_dim",
            "ffn_hidden_size",
            "hidden_dim_ff",
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "expert_ffn_hidden_size",
            "mlp_dim",
            "feed_forward_size",
            "d_inner",
            "expert_hidden_size",
            "inner_dim",
            "intermediate_dim",
        ),
        48,
    ),
    **dict.fromkeys(
        ("head_dim", "kv_channels", "d_kv", "d_head", "attention_head_dim", "key_value_proj_dim", "global_head_dim"), 8
    ),
    **dict.fromkeys(
        (
            "vocab_size",
            "n_words",
            "vocab_size_per_layer_input",
            "src_vocab_size",
            "tgt_vocab_size",
            "decoder_vocab_size",
            "text_vocab_size",
            "n_vocab",
        ),
        99,
    ),
    **dict.fromkeys(
        (
            "max_position_embeddings",
            "n_positions",
            "n_ctx",
            "max_source_positions",
            "max_target_positions",
            "max_seq_len",
            "context_length",
        ),
        64,
    ),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "num_experts_per_token", "top_k_experts", "moe_k"), 2),
    **dict.fromkeys(("pad_token_id", "bos_token_id"), 0),
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 1),
    "decoder_start_token_id": 2,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "type_vocab_size": 2,
    "num_queries": 5,
    "num_query_tokens": 4,
    "query_length": 4,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "ssm_state_size": 8,
    "mamba_expand": 2,
    "num_mel_bins": 16,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "sliding_window": 5,
    "hidden_size_per_layer_input": 8,
    "lru_width": 32,
    "attention_window": 4,
    "rnn_hidden_size": 32,
}
PICTURE = {"image_size": 32, "img_size": 32, "patch_size": 8, "num_frames": 4, "tubelet_size": 2}
KEEP = {
    "model_type",
    "transformers_version",
    "architectures",
    "torch_dtype",
    "dtype",
    "_name_or_path",
    "id2label",
    "label2id",
}
MOST_PARAMETERS = 60e6
LEFT_OUT = {
    "auto",
    "encoder-decoder",
    "vision-encoder-decoder",
    "speech-encoder-decoder",
    "timm_wrapper",
    "timm_backbone",
    "vits",  # its weights meet two kinds of values, which the spy takes for two attentions
}


def small_config(kind: Any, picture: bool) -> Any:
    """Return a config of few and small layers, made anew, so that what follows from its numbers follows from these."""
    names = set(inspect.signature(kind.__init__).parameters) | set(getattr(kind, "__dataclass_fields__", {}))
    wanted = SMALL | (PICTURE if picture else {})
    mapped = getattr(kind, "attribute_map", {})
    given = {name: x for name, x in wanted.items() if name in names and name not in mapped}
    parts = getattr(kind, "sub_configs", {}) or {}
    default = None
    with contextlib.suppress(Exception):
        default = kind()
    for name, inner in parts.items():
        inner = type(getattr(default, name, None)) if inner.__name__ == "AutoConfig" else inner
        if name in names and hasattr(inner, "sub_configs"):
            with contextlib.suppress(Exception):
                given[name] = small_config(inner, picture).to_dict()
    for name in list(given):
        old = getattr(default, name, None)
        if default is not None and name not in parts and (old is None or isinstance(old, bool | list | tuple | dict)):
            del given[name]
    tries = [given, {k: v for k, v in given.items() if k not in ("head_dim", "hidden_dim", "embedding_size")}]
    tries += [
        {
            k: v
            for k, v in given.items()
            if k in ("num_hidden_layers", "encoder_layers", "decoder_layers", "n_layer", "vocab_size", "pad_token_id")
        },
        {},
    ]
    for one in tries:
        try:
            return kind(**one)
        except Exception:
            continue
    return kind()


def candidates(kind: Any) -> Iterator[Any]:
    """Yield configs, the smallest first; a model may not be made of the first."""
    for picture in (True, False):
        yield small_config(kind, picture)
    bare = kind()
    for name in ("num_hidden_layers", "encoder_layers", "decoder_layers", "n_layer", "num_layers"):
        if isinstance(getattr(bare, name, None), int):
            with contextlib.suppress(Exception):
                setattr(bare, name, 2)
    yield bare


def tokens(n: int = 9, most: int = 90) -> torch.Tensor:
    return torch.randint(5, most, (2, n), generator=torch.Generator().manual_seed(2))


def sound(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(3))


def inputs(model: Any, config: Any) -> Iterator[dict[str, Any]]:
    """Yield what the model may be called with."""
    accepted = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    text: dict[str, Any] = {"input_ids": tokens()}
    padded = torch.ones(2, 9, dtype=torch.long)
    padded[1, 7:] = 0
    both = bool(getattr(config, "is_encoder_decoder", False)) or "decoder_input_ids" in accepted
    if both:
        text["decoder_input_ids"] = tokens(7)
    vision = getattr(config, "vision_config", config)
    size = (
        getattr(vision, "image_size", None)
        or getattr(vision, "img_size", None)
        or getattr(config, "image_size", None)
        or 224
    )
    size = size if isinstance(size, int) else (max(size.values()) if isinstance(size, dict) else size[0])
    channels = getattr(vision, "num_channels", None) or getattr(config, "num_channels", 3) or 3
    frames = getattr(vision, "num_frames", None) or getattr(config, "num_frames", None)
    mel = next(
        (
            getattr(config, name)
            for name in ("num_mel_bins", "input_feat_per_channel", "feature_size", "n_mels")
            if isinstance(getattr(config, name, None), int)
        ),
        80,
    )
    if main == "input_ids" or "input_ids" in accepted:
        if main == "input_ids":
            if "attention_mask" in accepted:
                yield text | {"attention_mask": padded}
            yield text
        pictures: dict[str, Any] = {"pixel_values": sound(2, channels, size, size)}
        if "pixel_values" in accepted:
            yield text | pictures
            yield {"input_ids": tokens(), **pictures}
        if "bbox" in accepted:
            yield text | {"bbox": torch.zeros(2, 9, 4, dtype=torch.long)}
        yield {"input_ids": tokens()}
        if "input_features" in accepted or "input_values" in accepted:
            yield text | {"input_features": sound(2, mel, 64)}
            yield text | {"input_values": sound(2, 4000)}
    if "pixel_values" in accepted:
        for one in (size, 224):
            yield {"pixel_values": sound(2, channels, one, one)}
            if both:
                yield {"pixel_values": sound(2, channels, one, one), "decoder_input_ids": tokens(7)}
    for name in ("pixel_values_videos", "pixel_values"):
        if name in accepted:
            yield {name: sound(2, frames or 4, channels, size, size)}
    for name in ("input_features", "input_values"):
        more = {"decoder_input_ids": tokens(7)} if both else {}
        if name in accepted:
            for n in (64, 128, 200, 3000):
                yield {name: sound(2, mel, n)} | more
                yield {name: sound(2, n, mel)} | more
            yield {name: sound(2, 6000)} | more
            yield {name: sound(2, 1, 6000)} | more
            yield {name: sound(2, getattr(config, "max_length", 1024), getattr(config, "num_mel_bins", 128))} | more
    if "past_values" in accepted:
        length = getattr(config, "context_length", 16)
        lags = max(getattr(config, "lags_sequence", [0]) or [0])
        wide = getattr(config, "num_input_channels", 1)
        yield {"past_values": sound(2, length, wide)}
        yield {
            "past_values": sound(2, length + lags),
            "past_time_features": sound(2, length + lags, getattr(config, "num_time_features", 0)),
            "past_observed_mask": torch.ones(2, length + lags),
            "future_values": sound(2, getattr(config, "prediction_length", 4) or 4),
            "future_time_features": sound(
                2, getattr(config, "prediction_length", 4) or 4, getattr(config, "num_time_features", 0)
            ),
        }
    if "inputs" in accepted:
        yield {"inputs": sound(2, 12, getattr(config, "d_model", 32))}
    if "inputs_embeds" in accepted:
        yield {"inputs_embeds": sound(2, 9, getattr(config, "hidden_size", 32))}
    if "query_embeds" in accepted:
        yield {
            "query_embeds": sound(2, 4, 32),
            "encoder_hidden_states": sound(2, 9, getattr(config, "encoder_hidden_size", 32)),
        }


def uneven(model: Any) -> Any:
    """Give random weights enough size that attention is uneven."""
    torch.manual_seed(4)
    with torch.no_grad():
        for x in model.parameters():
            if x.ndim == 2 and x.is_floating_point() and x.numel() < 1 << 22:
                x.add_(torch.randn_like(x) * 0.08)
    return model.eval()


def transformers_case(name: str, implementations: tuple[str, ...] = ("sdpa", "eager")) -> Case:
    transformers = library("transformers")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        MODEL_MAPPING,
    )

    transformers.logging.set_verbosity_error()
    kind = CONFIG_MAPPING[name]
    found = [
        mapping[kind]
        for mapping in (MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING)
        if kind in mapping
    ]
    if not found:
        raise NotHere("no model of this config")
    errors: list[Exception] = []
    for make in [x for one in found for x in (one if isinstance(one, tuple) else (one,))]:
        for config in candidates(kind):
            with torch.device("meta"):
                try:
                    size = sum(x.numel() for x in make._from_config(config).parameters())
                except Exception as error:
                    errors.append(error)
                    continue
            if size > MOST_PARAMETERS:
                errors.append(NotHere(f"{size / 1e6:.0f} million parameters"))
                continue
            model = None
            for implementation in implementations:
                try:
                    torch.manual_seed(4)
                    model = uneven(make._from_config(config, attn_implementation=implementation).float())
                    break
                except Exception as error:
                    errors.append(error)
            if model is None:
                continue
            for given in inputs(model, config):
                try:
                    with torch.no_grad():
                        torch.manual_seed(1)
                        model(**given)
                except Exception as error:
                    errors.append(error)
                    continue
                generates = (
                    make.__name__.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))
                    and "input_ids" in given
                )
                return Case(model, (), given, generates=generates)
    words = [f"{type(error).__name__}: {error}".splitlines()[0][:100] for error in errors]
    raise NotHere(" | ".join(dict.fromkeys(words))[:600])


def names() -> list[str]:
    try:
        from transformers.models.auto import modeling_auto as auto
    except ImportError:
        return []
    made = [
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_MAPPING_NAMES,
    ]
    return [name for name in dict.fromkeys(name for one in made for name in one) if name not in LEFT_OUT]


TRANSFORMERS: dict[str, Callable[[], Case]] = {}
for _name in names():
    TRANSFORMERS[f"transformers {_name}"] = lambda n=_name: transformers_case(n)
for _name in (
    "bert",
    "gpt2",
    "llama",
    "t5",
    "bart",
    "gemma2",
    "whisper",
    "vit",
    "clip",
    "qwen3",
    "mistral",
    "mixtral",
    "opt",
    "phi",
):
    TRANSFORMERS[f"transformers {_name}, eager"] = lambda n=_name: transformers_case(n, ("eager",))
