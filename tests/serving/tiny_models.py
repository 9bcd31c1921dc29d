"""Tiny models with random weights, written as folders that both transformers and vLLM load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file
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
    "initializer_range": 0.06,  # large enough that attention is not uniform
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
            "initializer_range": 0.06,
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
        {**SHARED, "ffn_dim": 128, "word_embed_proj_dim": 128, "init_std": 0.06, "enable_bias": True},
    ),
    "gemma3n": (
        "Gemma3nForCausalLM",
        "Gemma3nTextConfig",
        {
            **GROUPED,
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 32,
            "intermediate_size": [128] * 4,
            "num_hidden_layers": 4,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "altup_num_inputs": 2,
            "laurel_rank": 8,
            "activation_sparsity_pattern": [0.0] * 4,
        },
    ),
    # One layer: the MLPs of vLLM's BLOOM take another form of GELU than those of transformers.
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 128, "n_layer": 1, "n_head": 4, "initializer_range": 0.05},
    ),
}


IMAGE_FAMILY = "blip2"


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
    if family == IMAGE_FAMILY:
        return _write_image_model(folder)
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


def picture() -> Any:
    """Return a picture of 28 × 28 pixels."""
    return Image.fromarray((np.random.default_rng(0).random((28, 28, 3)) * 255).astype("uint8"))


def _write_image_model(folder: Path) -> Path:
    """Write a tiny BLIP-2: eight tokens of an image, then the text of an OPT."""
    torch.manual_seed(0)
    write_tokenizer(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    small = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Blip2Config(
        vision_config={**small, "image_size": 28, "patch_size": 7},
        qformer_config={**small, "encoder_hidden_size": 64, "vocab_size": VOCABULARY},
        text_config=transformers.OPTConfig(**FAMILIES["opt"][2]).to_dict(),
        num_query_tokens=8,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    transformers.Blip2ForConditionalGeneration(config).to(torch.float32).save_pretrained(folder)
    pixels = transformers.BlipImageProcessorPil(size={"height": 28, "width": 28})
    transformers.Blip2Processor(image_processor=pixels, tokenizer=tokenizer, num_query_tokens=8).save_pretrained(folder)
    return folder


def reference(folder: Path) -> Any:
    """Return the same model in transformers, with attention that returns its weights."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def image_reference(folder: Path) -> Any:
    """Return the model of images in transformers, as a function of ids that sees the picture."""
    made = transformers.Blip2ForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    pixels = transformers.AutoProcessor.from_pretrained(folder).image_processor(picture(), return_tensors="pt")

    def read(ids: torch.Tensor, **how: Any) -> Any:
        return made(input_ids=ids, pixel_values=pixels["pixel_values"], **how).language_model_outputs

    return read


def write_adapter(model: Path, folder: Path) -> Any:
    """Write a LoRA adapter of a tiny Llama; return the model in transformers with the adapter merged into it."""
    merged, tensors = reference(model), {}
    for number, layer in enumerate(merged.model.layers):
        for name in ("q_proj", "v_proj"):
            weight = getattr(layer.self_attn, name).weight
            down, up = 0.1 * torch.randn(8, weight.shape[1]), 0.1 * torch.randn(weight.shape[0], 8)
            at = f"base_model.model.model.layers.{number}.self_attn.{name}"
            tensors |= {f"{at}.lora_A.weight": down, f"{at}.lora_B.weight": up}
            weight.data += 2 * up @ down
    folder.mkdir(exist_ok=True)
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    told = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**told, "task_type": "CAUSAL_LM"}))
    return merged
