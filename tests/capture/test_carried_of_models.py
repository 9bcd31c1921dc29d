"""What the weights of captured models carry: as loops of torch over the model's own modules compute it.

value_norm by the output projection's own forward; logit by TransformerLens's direct logit attribution, written out:
what a head adds to the residual stream, less its mean where the final norm takes it away, divided by the scale that
the norm had at that position, times its gain, times the token's row of the unembedding; saliency by autograd through
eager attention.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import pytest
import torch
from captured import COMMON, DECODERS, GPT2, GROUPED, TEXT, Kind, batch, build, transformers
from tolerance import eps, roundings
from torch import Tensor, nn
from torch.testing import assert_close

from attnwidget import capture

LOGIT = 1e-4  # as near as the issue asks; the loops are in float64


class Named(NamedTuple):
    """Which modules of a model the reference reads, by their names there."""

    kind: Kind
    projection: str  # of a layer
    norm: str
    centered: bool = False
    plus_one: bool = False
    factor: float = 1.0  # of what is added to the stream, and of logits


def of(model: str, *, eager: bool = False, **config: Any) -> Kind:
    made = getattr(transformers, f"{model}Config")(**config)
    return Kind(getattr(transformers, f"{model}ForCausalLM"), made, ("eager",) if eager else ("sdpa",))


LLAMA = ("model.layers.{}.self_attn.o_proj", "model.norm")
ALIKE = {name: value for name, value in GROUPED.items() if name != "head_dim"}
MODELS = {
    "GPT-2": Named(GPT2, "transformer.h.{}.attn.c_proj", "transformer.ln_f", centered=True),
    "GPT-Neo": Named(
        of("GPTNeo", eager=True, hidden_size=32, num_heads=4, num_layers=2, attention_types=[[["global"], 2]],
           vocab_size=50, max_position_embeddings=64),
        "transformer.h.{}.attn.attention.out_proj", "transformer.ln_f", centered=True,
    ),
    "GPT-NeoX": Named(
        of("GPTNeoX", **COMMON, **TEXT), "gpt_neox.layers.{}.attention.dense", "gpt_neox.final_layer_norm",
        centered=True,
    ),
    "GPT-J": Named(
        of("GPTJ", eager=True, n_embd=32, n_head=4, n_layer=2, rotary_dim=8, vocab_size=50, n_positions=64),
        "transformer.h.{}.attn.out_proj", "transformer.ln_f", centered=True,
    ),
    "OPT": Named(
        of("OPT", **TEXT, hidden_size=32, num_attention_heads=4, num_hidden_layers=2, ffn_dim=64,
           word_embed_proj_dim=32),
        "model.decoder.layers.{}.self_attn.out_proj", "model.decoder.final_layer_norm", centered=True,
    ),
    "Llama": Named(DECODERS["Llama"], *LLAMA),
    "Mistral": Named(DECODERS["Mistral"], *LLAMA),
    "Qwen 3": Named(DECODERS["Qwen 3"], *LLAMA),
    "Gemma": Named(of("Gemma", **GROUPED), *LLAMA, plus_one=True),
    "Phi": Named(
        of("Phi", **COMMON, **TEXT, num_key_value_heads=4), "model.layers.{}.self_attn.dense",
        "model.final_layernorm", centered=True,
    ),
    "Granite": Named(
        of("Granite", **ALIKE, residual_multiplier=0.5, logits_scaling=4.0), *LLAMA, factor=0.5 / 4.0
    ),
    "Falcon": Named(
        of("Falcon", hidden_size=32, num_attention_heads=4, num_hidden_layers=2, vocab_size=50, alibi=False,
           new_decoder_architecture=False, multi_query=True),
        "transformer.h.{}.self_attention.dense", "transformer.ln_f", centered=True,
    ),
}  # fmt: skip


def randomized(model: Any) -> Any:
    """The model with norms and biases that do something, and logits that are no smaller than those of a real one."""
    make = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=make)
        else:
            parameter.data *= 6
    return model


def matrix(module: nn.Module) -> Tensor:
    """What a linear module multiplies by, (in, out), by asking it."""
    size = module.weight.shape[0 if type(module).__name__ == "Conv1D" else 1]
    zero, ones = torch.zeros(1, size, dtype=torch.float64), torch.eye(size, dtype=torch.float64)
    wide = copy.deepcopy(module).double()
    return (wide(ones) - wide(zero)).detach()


def attribution(named: Named, model: Any, hidden: Tensor, token: int) -> tuple[Tensor, Tensor]:
    """The direction of a token, (d_model,), and what the final norm divides by at each position, (B, Q)."""
    norm, unembedding = model.get_submodule(named.norm), model.get_output_embeddings()
    x = hidden.double()
    x = x - x.mean(-1, keepdim=True) if named.centered else x
    eps_ = getattr(norm, "eps", getattr(norm, "variance_epsilon", None))
    scale = (x.square().mean(-1) + eps_).sqrt()
    direction = unembedding.weight[token].double() * (norm.weight.double() + named.plus_one) * named.factor
    return (direction - direction.mean() if named.centered else direction).detach(), scale.detach()


@pytest.mark.parametrize("name", MODELS)
def test_value_norm_and_logit_are_those_of_the_modules(name: str) -> None:
    named = MODELS[name]
    model = randomized(build(named.kind, named.kind.implementations[0]))
    inputs, hidden = batch(), []
    inputs = {"input_ids": inputs["input_ids"]}
    model.get_submodule(named.norm).register_forward_pre_hook(lambda _, args: hidden.append(args[0]))
    with torch.no_grad(), capture(model) as cap:
        logits = model(**inputs).logits
    token = 7
    direction, scale = attribution(named, model, hidden[-1], token)
    for layer, att in enumerate(cap.attention):
        B, H, G, _, _, _, Dv = att.shape
        assert att.carries.targets == tuple(logits[:, -1].argmax(-1).tolist())
        found = att.with_target(token)
        w_o = matrix(model.get_submodule(named.projection.format(layer))).unflatten(0, (H, Dv))
        for batch_, head in ((0, 0), (B - 1, H - 1)):
            weights = att.block(batch=batch_, head=head).double()
            written = att.v[batch_, head // (H // G)].double() @ w_o[head]
            bound = (roundings(1024) + 16) * eps(torch.float32)
            wanted = weights * written.norm(dim=1)
            seen = att.block("value_norm", batch=batch_, head=head).double()
            assert_close(seen, wanted, rtol=bound, atol=bound * float(wanted.max()))
            wanted = weights * (written @ direction) / scale[batch_][:, None]
            seen = found.block("logit", batch=batch_, head=head).double()
            assert_close(seen, wanted, rtol=LOGIT, atol=LOGIT)
            assert float(wanted.abs().max()) > 20 * LOGIT


def test_all_that_is_added_to_the_stream_sums_to_the_logit() -> None:
    """All heads of all layers, and what is no attention, are the logit: nothing is counted twice or left out."""
    named = MODELS["Llama"]
    model = randomized(build(named.kind, "sdpa"))
    ids, others, hidden = batch()["input_ids"], [], []
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(lambda _, args, output: others.append(output))
    model.model.embed_tokens.register_forward_hook(lambda _, args, output: others.append(output))
    model.model.norm.register_forward_pre_hook(lambda _, args: hidden.append(args[0]))
    with torch.no_grad(), capture(model) as cap:
        logits = model(input_ids=ids).logits
    direction, scale = attribution(named, model, hidden[0], 7)
    found = sum(x.double() @ direction / scale for x in others)[1]
    for att in cap.attention:
        found = found + sum(att.with_target(7).block("logit", batch=1, head=h).double().sum(1) for h in range(4))
    assert_close(found, logits[1, :, 7].double(), rtol=LOGIT, atol=LOGIT)


def loss_of(logits: Tensor) -> Tensor:
    return logits[:, -1].log_softmax(-1)[:, 5].sum() + logits[:, 3, 9].sum()


def eager_saliency(model: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    """A ⊙ ∂L/∂A of each layer, (B, H, Q, K), by autograd through eager attention."""
    out = model(**inputs, output_attentions=True)
    attentions = list(out.attentions)
    gradients = torch.autograd.grad(loss_of(out.logits), attentions)
    return [(a * g).detach() for a, g in zip(attentions, gradients, strict=True)]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Mistral", "Gemma", "Qwen 3"])
def test_saliency_is_that_of_autograd_through_eager_attention(name: str, frozen: bool) -> None:
    kind, inputs = MODELS[name].kind, {"input_ids": batch()["input_ids"]}
    model = randomized(build(kind, "sdpa")).requires_grad_(not frozen)
    with capture(model, gradients=True) as cap:
        out = model(**inputs)
    with pytest.raises(ValueError, match="saliency is not known: no gradient came back to it"):
        cap.attention[0].block("saliency")
    loss_of(out.logits).backward()
    wanted = eager_saliency(randomized(build(kind, "eager")), inputs)
    for att, layer in zip(cap.attention, wanted, strict=True):
        B, H = att.shape.B, att.shape.H
        found = torch.stack([torch.stack([att.block("saliency", batch=b, head=h) for h in range(H)]) for b in range(B)])
        assert_close(found, layer, rtol=1e-5, atol=1e-5 * float(layer.abs().max()))
        assert float(layer.abs().max()) > 0
