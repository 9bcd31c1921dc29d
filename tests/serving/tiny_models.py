"""Tiny models with random weights, written as folders that both transformers and vLLM load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = 500
VOCABULARY = 512
SHARED: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.08,  # large enough that attention is not uniform
}
GROUPED = {**SHARED, "num_key_value_heads": 2, "head_dim": 32}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}

# By family: the model's class, its config's class, and what differs from `GROUPED`.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", GROUPED),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**GROUPED, "sliding_window": 24, "query_pre_attn_scalar": 32, "attn_logit_softcapping": 2.0},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            **GROUPED,
            "sliding_window": 24,
            "query_pre_attn_scalar": 32,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 24}),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 128,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 1024,
            "initializer_range": 0.08,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "phi": ("PhiForCausalLM", "PhiConfig", {**SHARED, "partial_rotary_factor": 0.5}),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", GROUPED),
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {**GROUPED, "sliding_window": 24, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**GROUPED, **EXPERTS, "num_experts": 4}),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {**SHARED, "ffn_dim": 128, "word_embed_proj_dim": 128, "init_std": 0.08, "enable_bias": True},
    ),
    # One layer: the MLPs of vLLM's BLOOM take another form of GELU than those of transformers.
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 128, "n_layer": 1, "n_head": 4, "initializer_range": 0.08},
    ),
}


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of whole words: w0, w1, …"""
    words = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(WORDS))]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
    tokenizer.save_pretrained(folder)


def write_model(family: str, folder: Path) -> Path:
    """Write a tiny model of a family, and its tokenizer; return the folder."""
    model, config, given = FAMILIES[family]
    torch.manual_seed(0)
    made = getattr(transformers, model)(getattr(transformers, config)(**given))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("bias") or "sinks" in name:
                parameter.normal_(0, 0.5)
            elif "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    made.to(torch.float32).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def reference(folder: Path) -> Any:
    """Return the same model in transformers, with attention that returns its weights."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
