"""What the weights of captured models carry: as loops of torch over the model's own modules compute it.

value_norm by the output projection's own forward; logit by TransformerLens's direct logit attribution, written out:
what a head adds to the residual stream, less its mean where a norm takes it away, divided by its scale at that
position, times its gain, through every norm on its way, times the token's row of the unembedding; saliency by autograd
through eager attention.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from captured import COMMON, DECODERS, GPT2, GROUPED, SEQUENCES, TEXT, Kind, build, transformers
from left_to_thorough import left_to_thorough
from tolerance import eps, roundings
from torch import Tensor, nn
from torch.testing import assert_close

from attnwidget import capture

IDS = torch.randint(3, 50, (3, 12), generator=torch.Generator().manual_seed(1))  # as many samples as no other axis has
LOGIT = 1e-4  # as near as the issue asks; the loops are in float64


class Named(NamedTuple):
    """Which modules of a model the reference reads, by their names there."""

    kind: Kind
    projection: str  # of a layer
    norm: str
    centered: bool = False
    plus_one: bool = False
    factor: float = 1.0  # of what is added to the stream, and of logits
    between: Callable[[int], list[str]] = lambda layer: []  # norms on the way of what a layer adds to the final one
    cross: str | None = None  # the projection of cross-attention


def of(model: str, *, eager: bool = False, **config: Any) -> Kind:
    made = getattr(transformers, f"{model}Config")(**config)
    return Kind(getattr(transformers, f"{model}ForCausalLM"), made, ("eager",) if eager else ("sdpa",))


T5 = SEQUENCES["T5"]._replace(implementations=("eager",))
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
    "T5": Named(
        T5, "decoder.block.{}.layer.0.SelfAttention.o", "decoder.final_layer_norm", factor=32**-0.5,
        cross="decoder.block.{}.layer.1.EncDecAttention.o",
    ),
    "Gemma 2": Named(
        of("Gemma2", eager=True, **GROUPED, sliding_window=4, attn_logit_softcapping=5.0, final_logit_softcapping=3.0),
        *LLAMA, plus_one=True, between=lambda layer: [f"model.layers.{layer}.post_attention_layernorm"],
    ),
    "Gemma 3": Named(
        Kind(transformers.Gemma3ForCausalLM, transformers.Gemma3TextConfig(**GROUPED)), *LLAMA, plus_one=True,
        between=lambda layer: [f"model.layers.{layer}.post_attention_layernorm"],
    ),
    "OLMo 2": Named(
        of("Olmo2", **ALIKE), *LLAMA, between=lambda layer: [f"model.layers.{layer}.post_attention_layernorm"],
    ),
    "GPT, post-norm": Named(
        Kind(
            transformers.OpenAIGPTLMHeadModel,
            transformers.OpenAIGPTConfig(n_embd=32, n_head=4, n_layer=2, vocab_size=50, n_positions=64),
            ("eager",),
        ),
        "transformer.h.{}.attn.c_proj", "transformer.h.1.ln_2", centered=True,
        between=lambda layer: [f"transformer.h.{i}.ln_{j}" for i in range(layer, 2) for j in (1, 2)][:-1],
    ),
}  # fmt: skip
NORMS_BETWEEN = [name for name, named in MODELS.items() if named.between(0)]


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


class Given:
    """What the norms of a model are given when it runs, by name, in float64."""

    def __init__(self, model: nn.Module) -> None:
        self.found: dict[str, Tensor] = {}
        for name, module in model.named_modules():
            if "norm" in type(module).__name__.lower():
                module.register_forward_pre_hook(lambda _, args, name=name: self._note(name, args[0]))

    def _note(self, name: str, x: Tensor) -> None:
        self.found[name] = x.detach().double()


def attribution(named: Named, model: Any, given: Given, token: int, layer: int = 0) -> tuple[Tensor, Tensor]:
    """The direction of a token where a layer adds, (d_model,), and what norms divide by at each position, (B, Q)."""
    direction = model.get_output_embeddings().weight[token].double() * named.factor
    scale = torch.ones((), dtype=torch.float64)
    for name in reversed([*named.between(layer), named.norm]):
        norm, x = model.get_submodule(name), given.found[name]
        x = x - x.mean(-1, keepdim=True) if named.centered else x
        eps_ = getattr(norm, "eps", getattr(norm, "variance_epsilon", None))
        scale = scale * (x.square().mean(-1) + eps_).sqrt()
        direction = direction * (norm.weight.double() + named.plus_one)
        direction = direction - direction.mean() if named.centered else direction
    return direction.detach(), scale.detach()


def inputs_of(named: Named) -> dict[str, Tensor]:
    return {"input_ids": IDS, "decoder_input_ids": IDS[:, :7]} if named.cross else {"input_ids": IDS}


# A model with each of: LayerNorm, RMSNorm, a gain of 1 + weight, norms between, a factor, cross-attention, a weight
# that is (in, out); new, and where its way is known from captures before.
EACH_COMMIT = [
    *((name, 0) for name in ("Llama", "Gemma 2", "T5", "OLMo 2", "GPT, post-norm", "Phi")),
    *((name, 2) for name in ("GPT-2", "Granite", "GPT-NeoX")),
]


@pytest.mark.parametrize(("name", "earlier"), left_to_thorough(itertools.product(MODELS, [0, 2]), EACH_COMMIT))
def test_value_norm_and_logit_are_those_of_the_modules(name: str, earlier: int) -> None:
    if name == "Falcon" and not hasattr(torch.compiler, "set_stance"):
        pytest.skip("transformers runs it with torch 2.6 and later")
    named = MODELS[name]
    model = randomized(build(named.kind, named.kind.implementations[0]))
    given, token = Given(model), 7
    for _ in range(earlier):
        with torch.no_grad(), capture(model):
            model(**{key: ids.flip(1)[:, 1:] for key, ids in inputs_of(named).items()})
    with torch.no_grad(), capture(model) as cap:
        logits = model(**inputs_of(named)).logits
    projections = [*cap.output_path.projections.items()]
    for call, projection in projections:
        own = (named.projection, named.cross or named.projection)
        layer = next((i for i in range(2) if projection in [one.format(i) for one in own]), None)
        if layer is None:  # of T5's encoder
            assert named.cross
            continue
        att = cap.calls[call]
        direction, scale = attribution(named, model, given, token, layer)
        B, H, G, _, _, _, Dv = att.shape
        assert att.carries.targets == tuple(logits[:, -1].argmax(-1).tolist())
        found = att.with_target(token)
        w_o = matrix(model.get_submodule(projection)).unflatten(0, (H, Dv))
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
    assert len(projections) == (6 if named.cross else 2)


def others_of(name: str, model: Any) -> list[tuple[Any, tuple[str, ...]]]:
    """Modules that are no attention and add to the stream, and the norms on their way to the final one."""
    layers = model.model.layers
    found = [(model.model.embed_tokens, ())]
    if name == "Llama":
        return found + [(layer.mlp, ()) for layer in layers]
    return found + [(layer.mlp, (f"model.layers.{i}.post_feedforward_layernorm",)) for i, layer in enumerate(layers)]


@pytest.mark.parametrize("name", left_to_thorough(["Llama", "Gemma 2", "OLMo 2"], ["Llama", "Gemma 2"]))
def test_all_that_is_added_to_the_stream_sums_to_the_logit(name: str) -> None:
    """All heads of all layers, and what is no attention, are the logit: nothing is counted twice or left out."""
    named = MODELS[name]
    model = randomized(build(named.kind, named.kind.implementations[0]))
    given, ids, added = Given(model), IDS, []
    for module, norms in others_of(name, model):
        module.register_forward_hook(lambda _, args, output, norms=norms: added.append((output.double(), norms)))
    with torch.no_grad(), capture(model) as cap:
        logits = model(input_ids=ids).logits[1, :, 7].double()
    found = torch.zeros_like(logits)
    for x, norms in added:
        direction, scale = attribution(named._replace(between=lambda _, own=norms: list(own)), model, given, 7)
        found += (x @ direction / scale)[1]
    for att in cap.attention:
        found += sum(att.with_target(7).block("logit", batch=1, head=h).double().sum(1) for h in range(att.shape.H))
    cap_at = getattr(model.config, "final_logit_softcapping", None)
    if cap_at is not None:
        assert float((found - logits).abs().max()) > 100 * LOGIT  # it is the logit before the cap
        found = cap_at * (found / cap_at).tanh()
    assert_close(found, logits, rtol=LOGIT, atol=LOGIT)


@pytest.mark.parametrize("name", left_to_thorough(["T5", "Gemma 2", "GPT, post-norm"], ["T5", "GPT, post-norm"]))
def test_a_second_pass_has_scales_of_its_own(name: str) -> None:
    """When the way is known, norms on it are still watched; heads and queries that are kept have their own."""
    named = MODELS[name]
    model = randomized(build(named.kind, named.kind.implementations[0]))
    first, second = inputs_of(named), {key: x.flip(1) for key, x in inputs_of(named).items()}
    with torch.no_grad():
        with capture(model) as cap:
            model(**first)
            model(**second)
        alone = [capture(model).run(**one) for one in (first, second)]
        part = capture(model, heads=[2], queries=slice(-3, None)).run(**second)
    for forward, one in zip(cap, alone, strict=True):
        for att, wanted in zip(forward.attention[-2:], one.attention[-2:], strict=True):
            assert torch.equal(att.with_target(9).block("logit", head=2), wanted.with_target(9).block("logit", head=2))
    own = alone[1].attention[-1].with_target(9).block("logit", batch=1, head=2)[-3:]
    assert_close(part.attention[-1].with_target(9).block("logit", batch=1), own, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", left_to_thorough(["Gemma 2", "T5"], ["T5"]))
def test_generated_text_has_the_scales_of_each_step(name: str) -> None:
    named = MODELS[name]
    model = randomized(build(named.kind, named.kind.implementations[0]))
    ids = IDS
    how: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad(), capture(model) as cap:
        text = model.generate(input_ids=ids, **how)
    whole = {"input_ids": ids, "decoder_input_ids": text[:, :-1]} if named.cross else {"input_ids": text[:, :-1]}
    with torch.no_grad():
        wanted = capture(model).run(**whole)
    one, other = (x.attention[-1].with_target(9).block("logit", batch=1, head=3) for x in (cap, wanted))
    assert one.shape == other.shape
    assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))


def test_the_weights_of_a_norm_between_are_watched() -> None:
    named = MODELS["Gemma 2"]
    model = randomized(build(named.kind, "eager"))
    with torch.no_grad():
        cap = capture(model).run(input_ids=IDS)
        one, other = cap.attention
        one.block("logit")
        model.model.layers[0].post_attention_layernorm.weight.add_(0.5)
    with pytest.raises(ValueError, match=r"layers\.0\.post_attention_layernorm were changed after the capture"):
        one.block("logit")
    assert other.block("logit").isfinite().all()


def test_it_is_said_what_is_between() -> None:
    named = MODELS["Gemma 2"]
    with torch.no_grad():
        told = str(capture(build(named.kind, "eager")).run(input_ids=IDS).output_path)
    assert "the stage logit is the logit before the cap" in told
    assert "it passes model.layers.0.post_attention_layernorm (RMSNorm, 1 + weight) and 1 more" in told


def loss_of(logits: Tensor) -> Tensor:
    return logits[:, -1].log_softmax(-1)[:, 5].sum() + logits[:, 3, 9].sum()


def eager_saliency(model: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    """A ⊙ ∂L/∂A of each layer, (B, H, Q, K), by autograd through eager attention."""
    out = model(**inputs, output_attentions=True)
    attentions = list(out.attentions)
    gradients = torch.autograd.grad(loss_of(out.logits), attentions)
    return [(a * g).detach() for a, g in zip(attentions, gradients, strict=True)]


@pytest.mark.parametrize(
    ("name", "frozen"),
    left_to_thorough(
        itertools.product(["GPT-2", "Llama", "Mistral", "Gemma", "Qwen 3"], [False, True]),
        [("GPT-2", True), ("Mistral", False), ("Qwen 3", True)],
    ),
)
def test_saliency_is_that_of_autograd_through_eager_attention(name: str, frozen: bool) -> None:
    kind, inputs = MODELS[name].kind, {"input_ids": IDS}
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
