"""Small models with random weights, captured beside what eager attention gives with `output_attentions`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from tolerance import assert_as_near
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from attnwidget import Attention, Capture, capture

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

COMMON = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}
TEXT = {"vocab_size": 50, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**COMMON, **TEXT, "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8}
SEQ2SEQ = {
    **TEXT,
    "d_model": 32,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    **{f"{part}_layers": 2 for part in ("encoder", "decoder")},
    **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 64 for part in ("encoder", "decoder")},
}


class Kind(NamedTuple):
    model: Any
    config: Any
    implementations: tuple[str, ...] = ("sdpa", "eager")


GPT2 = Kind(
    transformers.GPT2LMHeadModel, transformers.GPT2Config(n_embd=32, n_head=4, n_layer=2, vocab_size=50, n_positions=64)
)
DECODERS = {
    "GPT-2": GPT2,
    "Llama": Kind(transformers.LlamaForCausalLM, transformers.LlamaConfig(**GROUPED)),
    "Mistral": Kind(transformers.MistralForCausalLM, transformers.MistralConfig(**GROUPED, sliding_window=4)),
    "Gemma 2": Kind(
        transformers.Gemma2ForCausalLM,
        transformers.Gemma2Config(**GROUPED, sliding_window=4, attn_logit_softcapping=5.0),
        ("eager",),
    ),
    "Qwen 3": Kind(transformers.Qwen3ForCausalLM, transformers.Qwen3Config(**GROUPED)),
}
SEQUENCES = {
    "BART": Kind(transformers.BartForConditionalGeneration, transformers.BartConfig(**SEQ2SEQ)),
    "Marian": Kind(transformers.MarianMTModel, transformers.MarianConfig(**SEQ2SEQ)),
    "T5": Kind(
        transformers.T5ForConditionalGeneration,
        transformers.T5Config(d_model=32, d_kv=8, num_layers=2, num_heads=4, d_ff=64, vocab_size=50,
                              decoder_start_token_id=0, pad_token_id=0, eos_token_id=2),
    ),
}  # fmt: skip


def build(kind: Kind, implementation: str) -> Any:
    """A model with the same random weights whatever its implementation, and a config of its own."""
    if implementation == "sdpa" and not kind.model._supports_sdpa:  # T5 of older versions
        pytest.skip(f"{kind.model.__name__} of transformers {transformers.__version__} has no sdpa")
    torch.manual_seed(0)
    model = kind.model._from_config(copy.deepcopy(kind.config), attn_implementation=implementation)
    return model.eval()


def bridge_tower(image: int) -> Any:
    """A text and a vision tower, with layers that attend across; an image has this width and height, a patch 8 × 8."""
    text = {**COMMON, "hidden_size": 64, "vocab_size": 50, "max_position_embeddings": 64}
    vision = {"hidden_size": 64, "num_hidden_layers": 2, "patch_size": 8, "image_size": image}
    config = transformers.BridgeTowerConfig(
        text_config=text, vision_config=vision, hidden_size=64, num_attention_heads=4, num_hidden_layers=2
    )
    torch.manual_seed(0)
    return transformers.BridgeTowerModel(config).eval()


def batch(padded: str | None = None) -> dict[str, Tensor]:
    """Two texts, the second of which may have padding on one side."""
    ids = torch.randint(3, 50, (2, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if padded:
        mask[1, slice(0, 5) if padded == "left" else slice(7, 12)] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


def weights(att: Attention) -> Tensor:
    """(B, H, Q, K)."""
    B, H = att.shape.B, att.shape.H
    return torch.stack([torch.stack([att.block(batch=b, head=h) for h in range(H)]) for b in range(B)])


@dataclass(frozen=True)
class Expected:
    """The weights of one layer, (B, H, Q, K): as eager attention gives them, and the same model in float64.

    Kernels round differently, so from the second layer on even q and k are others than eager's in their last bits. How
    far they may be apart is therefore measured: by how far eager itself is from float64.
    """

    theirs: Tensor
    exact: Tensor

    def queries(self, start: int) -> Expected:
        """Return those of the queries from one on."""
        return Expected(self.theirs[:, :, start:], self.exact[:, :, start:])


class Eager:
    """What a model's eager attention gives: each field of its output that is a tuple of weights, as `Expected`."""

    def __init__(self, model: Any, *args: Tensor, **inputs: Tensor):
        wide = {name: widened(x) for name, x in inputs.items()}
        with torch.no_grad():
            self._single = model(*args, **inputs, output_attentions=True)
        with torch.no_grad(), AllInFloat64():
            self._double = doubled(model)(*map(widened, args), **wide, output_attentions=True)

    def __getattr__(self, name: str) -> tuple[Expected, ...]:
        return tuple(map(Expected, getattr(self._single, name), getattr(self._double, name)))


def in_both(run: Callable[..., Tensor], model: Any, *inputs: Tensor) -> Expected:
    """Return the weights that `run(model, *inputs)` gives, and those in float64."""
    with torch.no_grad():
        return Expected(run(model, *inputs), run(doubled(model), *map(widened, inputs)))


class AllInFloat64(TorchFunctionMode):
    """Makes float64 of what a model asks to be float32 whatever its dtype, as a softmax or a norm."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(lambda x: torch.float64 if x is torch.float32 else x, (args, kwargs or {}))
        return (Tensor.double if func is Tensor.float else func)(*args, **kwargs)


def doubled(model: Any) -> Any:
    return copy.deepcopy(model).double()


def widened(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def assert_equal(stack: Any, expected: Sequence[Expected], real: Tensor | None = None) -> None:
    """All weights of all layers are eager's, but for rounding; of queries that are padding nothing is asked."""
    assert len(stack) == len(expected)
    for layer, (att, wanted) in enumerate(zip(stack, expected, strict=True)):
        compared = weights(att), wanted.theirs, wanted.exact
        if real is not None:
            compared = tuple(x.masked_fill(real[:, None, :, None] == 0, 0) for x in compared)
        assert_as_near(*compared, what=f"layer {layer}:")


def both(kind: Kind, implementation: str, inputs: dict[str, Tensor], **how: Any) -> tuple[Capture, Eager]:
    """What was captured, and what eager gives; the outputs are the same, bit by bit, with and without capture."""
    model = build(kind, implementation)
    with torch.no_grad():
        plain = model(**inputs)[0]
        with capture(model, **how) as cap:
            output = model(**inputs)[0]
        assert torch.equal(output, plain)
        return cap, Eager(build(kind, "eager"), **inputs)


def generated(model: Any, cap: Capture | None, padded: str | None = None, new: int = 20, **how: Any) -> Tensor:
    inputs = batch(padded)
    del inputs["position_ids"]
    how = {"do_sample": False, "pad_token_id": 0, **how}
    with torch.no_grad():
        plain = model.generate(**inputs, max_new_tokens=new, min_new_tokens=new, **how)
        if cap is None:
            return plain
        with cap:
            assert torch.equal(model.generate(**inputs, max_new_tokens=new, min_new_tokens=new, **how), plain)
    return plain


def eager_of(kind: Kind, text: Tensor, padded: str | None) -> tuple[tuple[Expected, ...], Tensor]:
    """Eager attentions of a whole text in one go, and which of its tokens are real."""
    mask = torch.cat([batch(padded)["attention_mask"], torch.ones(2, text.shape[1] - 12, dtype=torch.long)], 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return Eager(build(kind, "eager"), text, attention_mask=mask, position_ids=positions).attentions, mask
