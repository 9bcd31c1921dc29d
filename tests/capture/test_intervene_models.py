"""Edited runs beside the same edit made in an eager copy of the model, for models of many kinds."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import edited_copies as copies
import pytest
import torch
from captured import COMMON, DECODERS, GROUPED, SEQUENCES, TEXT, Kind, batch, build
from left_to_thorough import left_to_thorough
from tolerance import assert_as_near
from torch import Tensor

from attnwidget import capture, intervene

transformers = pytest.importorskip("transformers")


class Case(NamedTuple):
    """A kind of model, the implementation that is edited, the layer, and the module that its heads' outputs go to."""

    kind: Kind
    implementation: str
    layer: str
    output: str
    sinks: bool = False


MORE = {
    "Gemma 3": Kind(
        transformers.Gemma3ForCausalLM,
        transformers.Gemma3TextConfig(**GROUPED, sliding_window=4, layer_types=["sliding_attention", "full_attention"]),
    ),
    "GPT-NeoX": Kind(transformers.GPTNeoXForCausalLM, transformers.GPTNeoXConfig(**COMMON, **TEXT)),
    "BERT": Kind(transformers.BertModel, transformers.BertConfig(**COMMON, **TEXT)),
    "ViT": Kind(transformers.ViTModel, transformers.ViTConfig(**COMMON, image_size=16, patch_size=4)),
    "gpt-oss": Kind(
        transformers.GptOssForCausalLM,
        transformers.GptOssConfig(**GROUPED, sliding_window=4, num_local_experts=2, num_experts_per_tok=1),
    ),
}
# How transformers names the attention of a ViT: as it did up to some version after 5.6, and as it does now.
OLD_VIT = hasattr(transformers.models.vit.modeling_vit, "ViTSelfAttention")
VIT = ("layer.1.attention.attention", "dense") if OLD_VIT else ("layers.1.attention", "o_proj")
CASES = {
    "GPT-2": Case(DECODERS["GPT-2"], "sdpa", "h.1.attn", "c_proj"),
    "GPT-2 eager": Case(DECODERS["GPT-2"], "eager", "h.1.attn", "c_proj"),
    "Llama, grouped heads": Case(DECODERS["Llama"], "sdpa", "layers.1.self_attn", "o_proj"),
    "Mistral, window": Case(DECODERS["Mistral"], "sdpa", "layers.1.self_attn", "o_proj"),
    "Gemma 2, softcap and window": Case(DECODERS["Gemma 2"], "eager", "layers.0.self_attn", "o_proj"),
    "Gemma 3": Case(MORE["Gemma 3"], "sdpa", "layers.0.self_attn", "o_proj"),
    "Qwen 3": Case(DECODERS["Qwen 3"], "sdpa", "layers.1.self_attn", "o_proj"),
    "GPT-NeoX": Case(MORE["GPT-NeoX"], "sdpa", "layers.1.attention", "dense"),
    "gpt-oss, sinks": Case(MORE["gpt-oss"], "eager", "layers.0.self_attn", "o_proj", sinks=True),
    "BERT": Case(MORE["BERT"], "sdpa", "layer.1.attention.self", "output.dense"),
    "ViT": Case(MORE["ViT"], "sdpa", *VIT),
    "BART, encoder": Case(SEQUENCES["BART"], "sdpa", "encoder.layers.1.self_attn", "out_proj"),
    "BART, decoder": Case(SEQUENCES["BART"], "sdpa", "decoder.layers.0.self_attn", "out_proj"),
    "BART, cross-attention": Case(SEQUENCES["BART"], "sdpa", "decoder.layers.1.encoder_attn", "out_proj"),
    "T5, encoder": Case(SEQUENCES["T5"], "sdpa", "encoder.block.0.layer.0.SelfAttention", "o"),
    "T5, cross-attention": Case(SEQUENCES["T5"], "eager", "decoder.block.1.layer.1.EncDecAttention", "o"),
    "Marian": Case(SEQUENCES["Marian"], "sdpa", "decoder.layers.1.self_attn", "out_proj"),
}
EDGES = ("drop_keys", "block")  # they take a few keys away
EDITS: dict[str, tuple[Any, Any]] = {
    "zero": ("zero", copies.zero),
    "even": ("uniform", None),
    "drop_keys": ({"drop_keys": [1, 3]}, copies.without(lambda rows, keys: (keys == 1) | (keys == 3))),
    "block": (
        {"block": (slice(2, 5), [0, -1])},
        None,
    ),
    "window": ({"window": 2}, copies.without(lambda rows, keys: (rows - keys).abs() >= 2)),
    "function": (lambda block: block.weights.flip(-1), lambda scores: scores.softmax(-1).flip(-1)),
}


def inputs_of(case: Case, padded: str | None = None) -> dict[str, Tensor]:
    if "image_size" in vars(case.kind.config):
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))}
    inputs = batch(padded)
    if case.kind.config.is_encoder_decoder or "BERT" in case.kind.model.__name__.upper():
        del inputs["position_ids"]
    if case.kind.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"][:, :5]
    return inputs


def model_of(case: Case, implementation: str) -> Any:
    model = copies.sharpened(build(case.kind, implementation))
    if case.sinks:  # of experts, torch has kernels without float64
        model.config._experts_implementation = "eager"
        for i, module in enumerate(one for one in model.modules() if hasattr(one, "sinks")):
            module.sinks.data.copy_(torch.randn(6, generator=torch.Generator().manual_seed(i)))
    return model


def full_name(model: Any, part: str) -> str:
    return next(name for name, _ in model.named_modules() if name.endswith(part))


def order_of_softmaxes(model: Any, inputs: dict[str, Tensor]) -> list[str]:
    """The names of modules of attention in the order in which they are called."""
    with torch.no_grad(), capture(model) as cap:
        model(**inputs)
    return list(cap.calls)


def last_states(output: Any) -> Tensor:
    return output.logits if "logits" in output else output.last_hidden_state


def reference(case: Case, edit: str, head: int, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The output of the edited eager copy, and in float64."""
    eager = model_of(case, "eager")
    names = order_of_softmaxes(eager, inputs)
    number = names.index(full_name(eager, case.layer))
    cross = "cross" in case.layer or "encoder_attn" in case.layer or "EncDec" in case.layer
    decoder = case.layer.startswith("decoder")
    ids = inputs["input_ids" if not decoder or cross else "decoder_input_ids"] if "input_ids" in inputs else None
    keys = 17 if ids is None else ids.shape[1]
    own = EDITS[edit][1]
    if edit == "even":
        own = copies.even_of(keys)
    elif edit == "block":
        own = copies.without(lambda rows, cols: (rows >= 2) & (rows < 5) & ((cols == 0) | (cols == keys - 1)))
    elif edit == "function" and case.sinks:

        def own(scores: Tensor) -> Tensor:
            return scores.softmax(-1)[..., :keys].flip(-1)
    elif edit == "window" and case.sinks:
        own = copies.without(lambda rows, cols: ((rows - cols).abs() >= 2) & (cols < keys))
    found = {(number, head): own}
    single = copies.run(copy.deepcopy(eager), inputs, found, sinks=case.sinks)
    double = copies.run_in_float64(eager, inputs, found, sinks=case.sinks)
    return last_states(single), last_states(double)


# Each edit, in models that have a mask of numbers, grouped heads, a window, a softcap, a sink, a bias, two texts.
EACH_COMMIT = [
    ("GPT-2", "function"), ("GPT-2 eager", "even"), ("Llama, grouped heads", "zero"), ("Mistral, window", "window"),
    ("Gemma 2, softcap and window", "even"), ("gpt-oss, sinks", "function"), ("gpt-oss, sinks", "drop_keys"),
    ("BERT", "block"), ("ViT", "drop_keys"), ("BART, encoder", "even"), ("BART, cross-attention", "block"),
    ("T5, encoder", "window"), ("T5, cross-attention", "drop_keys"), ("Qwen 3", "block"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "edit"), left_to_thorough([(name, edit) for name in CASES for edit in EDITS], EACH_COMMIT)
)
def test_an_edited_run_is_that_of_an_edited_eager_copy(name: str, edit: str) -> None:
    case = CASES[name]
    if name.startswith("T5") and not transformers.T5ForConditionalGeneration._supports_sdpa and edit in EDGES:
        pytest.skip("T5 before sdpa: with random weights a query attends to one key alone, so that others are no loss")
    padding = None if edit == "function" else "right"  # flipped weights meet values of padding
    inputs = inputs_of(case, padding)
    model = model_of(case, case.implementation)
    layer = full_name(model, case.layer)
    with torch.no_grad():
        plain = last_states(model(**inputs))
        with intervene(model, {(layer, 1): EDITS[edit][0]}) as run:
            output = last_states(model(**inputs))
        assert torch.equal(last_states(model(**inputs)), plain)
    assert run.edited == {layer: (1,)}
    assert run.skipped == {}
    theirs, exact = reference(case, edit, 1, inputs)
    real = inputs.get("attention_mask")
    compared = output, theirs, exact
    if real is not None and real.shape == output.shape[:2]:
        compared = tuple(x.masked_fill(real[..., None] == 0, 0) for x in compared)  # type: ignore[assignment]
    assert_as_near(*compared, what=f"{name}, {edit}:")
    assert (output - plain).abs().max() > 1e-3 * plain.abs().max()


class Inputs:
    """What modules are given, by name."""

    def __init__(self, model: Any, suffix: str) -> None:
        self.found: dict[str, list[Tensor]] = {}
        for name, module in model.named_modules():
            if name.endswith(suffix):
                module.register_forward_pre_hook(lambda _, args, name=name: self._note(name, args[0]))

    def _note(self, name: str, x: Tensor) -> None:
        self.found.setdefault(name, []).append(x.clone())


@pytest.mark.parametrize("name", ["Llama, grouped heads", "gpt-oss, sinks", "T5, cross-attention"])
def test_weights_that_an_eager_model_returns_are_those_of_the_edited_heads(name: str) -> None:
    case = CASES[name]
    if name.startswith("T5") and not transformers.T5ForConditionalGeneration._supports_sdpa:
        pytest.skip("T5 before sdpa writes its attention out itself, and returns the weights that it had before")
    inputs = inputs_of(case)
    model = model_of(case, "eager")
    layer = full_name(model, case.layer)
    kind = "cross_attentions" if "cross" in name else "attentions"
    place = int(next(part for part in layer.split(".") if part.isdigit()))
    edits: Any = {(layer, 0): {"drop_keys": [1]}, (layer, 1): "zero", (layer, 2): "uniform"}
    with torch.no_grad():
        plain = model(**inputs, output_attentions=True)[kind][place]
        with intervene(model, edits):
            found = model(**inputs, output_attentions=True)[kind][place]
    assert not bool(found[:, 0, :, 1].any())
    assert not bool(found[:, 1].any())
    assert torch.equal(found[:, 3], plain[:, 3])
    allowed = plain[:, 2] > 0
    torch.testing.assert_close(found[:, 2], allowed / allowed.sum(-1, keepdim=True))
    if not case.sinks:
        rest = plain[:, 0].index_fill(-1, torch.tensor([1]), 0)
        torch.testing.assert_close(found[:, 0], rest / rest.sum(-1, keepdim=True), rtol=1e-4, atol=1e-6)


REMOVED: dict[str, Any] = {"gpt-oss, sinks": {"sinks": False}, "Gemma 2, softcap and window": {"softcap": None}}


@pytest.mark.parametrize("name", REMOVED)
def test_a_rule_of_the_model_is_removed_as_by_what_if(name: str) -> None:
    case, edit = CASES[name], REMOVED[name]
    inputs, model = inputs_of(case), model_of(case, case.implementation)
    for module in model.modules():
        if hasattr(module, "attn_logit_softcapping"):
            module.attn_logit_softcapping = 0.02  # its own is far above the scores
    layer = full_name(model, case.layer)
    seen = Inputs(model, f"{layer}.{case.output}")
    with torch.no_grad():
        att = capture(model).run(**inputs).calls[layer]
        with intervene(model, {(layer, (1, 2)): edit}):
            model(**inputs)
    (_, heads) = (x.unflatten(-1, (6, -1)).transpose(1, 2) for x in seen.found[f"{layer}.{case.output}"])
    for head in range(6):
        own = att.what_if(edit) if head in (1, 2) else att
        wanted = torch.stack([own.output(batch=b, head=head) for b in range(len(heads))])
        torch.testing.assert_close(heads[:, head], wanted, rtol=1e-4, atol=1e-5)
        plain = torch.stack([att.output(batch=b, head=head) for b in range(len(heads))])
        assert bool((heads[:, head] - plain).abs().max() > 1e-3) is (head in (1, 2))
