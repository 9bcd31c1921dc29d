"""The parts of q, k and v add up to the model's own, for many families; and what would make them wrong is caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from attnwidget import capture

SMALL: dict[str, Any] = {"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 100}
DECODER = {**SMALL, "intermediate_size": 64, "num_key_value_heads": 2, "pad_token_id": 0}
GEMMA = {**DECODER, "head_dim": 8}
GPT2 = {
    "n_layer": 3,
    "n_head": 4,
    "n_embd": 32,
    "vocab_size": 100,
    "n_positions": 64,
    "eos_token_id": 0,
    "bos_token_id": 0,
}


def ids(samples: int = 2, length: int = 11) -> Tensor:
    return torch.randint(1, 100, (samples, length), generator=torch.Generator().manual_seed(1))


def made(name: str, implementation: str = "sdpa", **config: Any) -> nn.Module:
    """A model of transformers with random weights, as uneven as trained ones."""
    torch.manual_seed(0)
    kind = getattr(transformers, f"{name}Config")(**config)
    model = getattr(transformers, f"{name}Model")._from_config(kind, attn_implementation=implementation).eval()
    with torch.no_grad():
        for one in model.parameters():
            if one.ndim == 1:
                one.add_(torch.randn_like(one) * 0.1)
    return model


FAMILIES: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "GPT-2": lambda: (made("GPT2", **GPT2), {"input_ids": ids()}),
    "GPT-2, eager": lambda: (made("GPT2", "eager", **GPT2), {"input_ids": ids()}),
    "Llama": lambda: (made("Llama", **DECODER), {"input_ids": ids()}),
    "Llama, one sample, eager": lambda: (made("Llama", "eager", **DECODER), {"input_ids": ids(1)}),
    "Gemma 2": lambda: (made("Gemma2", "eager", **GEMMA), {"input_ids": ids()}),
    "Gemma 3": lambda: (made("Gemma3Text", **GEMMA), {"input_ids": ids()}),
    "Qwen 3": lambda: (made("Qwen3", **GEMMA), {"input_ids": ids()}),
    "BERT": lambda: (made("Bert", **SMALL, intermediate_size=64), {"input_ids": ids()}),
    "T5": lambda: (
        made("T5", num_layers=2, d_model=32, num_heads=4, d_kv=8, d_ff=64, vocab_size=100),
        {"input_ids": ids(), "decoder_input_ids": ids(2, 7)},
    ),
    "ViT": lambda: (
        made("ViT", **{**SMALL, "intermediate_size": 64}, image_size=32, patch_size=8),
        {"pixel_values": torch.randn(2, 3, 32, 32)},
    ),
    "DeepSeek 3": lambda: (
        made(
            "DeepseekV3",
            **{**DECODER, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2},
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=8,
            n_group=1,
            topk_group=1,
            moe_intermediate_size=16,
        ),
        {"input_ids": ids()},
    ),
    "GPT-J, interleaved": lambda: (
        made("GPTJ", **{**GPT2, "rotary_dim": 4}),
        {"input_ids": ids()},
    ),
    "Falcon, one key head taken by a list": lambda: (
        made("Falcon", **SMALL, multi_query=True, new_decoder_architecture=False, bos_token_id=0, eos_token_id=0),
        {"input_ids": ids()},
    ),
    "Llama 4, complex": lambda: (
        made(
            "Llama4Text",
            **{**GEMMA, "intermediate_size_mlp": 64, "num_local_experts": 2, "attn_temperature_tuning": False},
        ),
        {"input_ids": ids()},
    ),
}


class Encoder(nn.Module):
    """Torch's own layers, which take q, k and v apart in another order."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, **how), 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


FAMILIES["torch, norm after"] = lambda: (Encoder(batch_first=True).eval(), {"x": torch.randn(2, 9, 32)})
FAMILIES["torch, norm first, positions first"] = lambda: (Encoder(norm_first=True).eval(), {"x": torch.randn(9, 2, 32)})


@pytest.mark.parametrize("family", FAMILIES)
def test_the_parts_add_up(family: str) -> None:
    try:
        model, inputs = FAMILIES[family]()
    except ValueError as error:  # of an older transformers
        if "does not support an attention implementation" in str(error):
            pytest.skip(f"{family} has no fused attention in transformers {transformers.__version__}")
        raise
    with torch.no_grad(), capture(model, sources=True) as cap:
        model(**inputs)
    kinds = [False, True] if family == "T5" else [False]
    for layer, att, is_cross in [(i, att, c) for c in kinds for i, att in enumerate(cap.cross if c else cap.attention)]:
        batch, head, query, key = att.shape.B - 1, att.shape.H - 1, att.shape.Q - 1, att.shape.K // 2
        found = cap.why(layer, head, query, key, batch=batch, cross=is_cross)
        group = head // (att.shape.H // att.shape.G)
        score = float(att.q[batch, head, query].double() @ att.k[batch, group, key].double()) * att.scale
        assert found.score == pytest.approx(score, rel=1e-9)
        assert abs(found.rounding) <= 1e-5 * float(found.terms.square().sum().sqrt())
        earlier = layer if family != "T5" else layer % 2
        assert sum(part.kind == "head" for part in found.key_parts) >= earlier * att.shape.H


def test_a_row_and_a_mean_are_the_pairs() -> None:
    model, inputs = FAMILIES["Qwen 3"]()
    cap = capture(model, sources=True).run(**inputs)
    row = cap.why_row(2, 3, 9, batch=1)
    assert row.rounding < 1e-5
    pairs = [cap.why(2, 3, 9, key, batch=1) for key in range(11)]
    for key, pair in enumerate(pairs):
        own = {part.label: float(value) for part, value in zip(pair.key_parts, pair.by_key, strict=True)}
        assert {part.label: float(x) for part, x in zip(row.parts, row.terms[:, key], strict=True)} == pytest.approx(
            own, abs=1e-5
        )
    weights = cap.attention[2].block(batch=1, head=3, queries=9)[0].double()
    mean = cap.why(2, 3, 9, 4, against="mean", batch=1)
    expected = pairs[4].score - sum(float(w) * pair.score for w, pair in zip(weights, pairs, strict=True))
    assert mean.score == pytest.approx(expected, abs=1e-5)
    assert float(mean.terms.sum()) == pytest.approx(expected, abs=1e-5)
    others = cap.why(2, 3, 9, 4, against="others", batch=1)
    assert others.score == pytest.approx(expected / (1 - float(weights[4])), abs=1e-5)
    of_row = cap.why_row(2, 3, 9, "others", batch=1)
    assert float(of_row.scores[4]) == pytest.approx(others.score, abs=1e-5)
    assert of_row.subtracted is not None
    assert float(of_row.subtracted[4]) == pytest.approx(others.subtracted, abs=1e-5)
    other = cap.why(2, 3, 9, 4, against=7, batch=1)
    assert float(other.terms.sum()) == pytest.approx(pairs[4].score - pairs[7].score, abs=1e-5)
    apart = dict(zip([part.label for part in row.parts], row.against_mean()[:, 4].tolist(), strict=True))
    assert apart == pytest.approx(
        dict(zip([p.label for p in mean.key_parts], mean.by_key.tolist(), strict=True)), abs=1e-6
    )


def test_a_generated_text_is_one() -> None:
    """Keys of a cache lead to the pass in which they were new."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**DECODER, eos_token_id=None)
    model = transformers.LlamaForCausalLM(config).eval()
    with capture(model, sources=True) as cap:
        model.generate(ids(2, 5), max_new_tokens=4, do_sample=False)
    whole = capture(model, sources=True).run(cap.inputs["input_ids"])
    for query, key in ((7, 2), (7, 6), (3, 1), (6, 6)):
        one, other = (each.why(2, 1, query, key, batch=1) for each in (cap, whole))
        assert [part.label for part in one.key_parts] == [part.label for part in other.key_parts]
        assert torch.allclose(one.terms, other.terms, atol=1e-5)
    assert cap.why_row(2, 1, 7, batch=1).rounding < 1e-5


class Block(nn.Module):
    """A block before which x is normed, with a fault that a person may make."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        with torch.no_grad():
            self.norm.weight.add_(torch.randn(16) * 0.3)
            self.norm.bias.add_(torch.randn(16) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one.unflatten(-1, (2, 8)).transpose(1, 2) for one in self.qkv(self.norm(x)).chunk(3, -1))
        if self.fault == "gate":
            q = q * q.sigmoid()
        if self.fault == "convolution":
            k = F.conv1d(k.transpose(2, 3).flatten(1, 2), torch.ones(16, 1, 3), padding=1, groups=16)
            k = k.unflatten(1, (2, 8)).transpose(2, 3)
        found = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


class Blocks(nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList([Block(""), Block(fault)])

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return x


def captured(model: nn.Module, **how: Any) -> Any:
    return capture(model, sources=True, **how).run(torch.arange(9)[None] % 50)


@pytest.mark.parametrize("fault", ["gate", "convolution"])
def test_a_way_that_is_not_linear_is_refused_with_its_module(fault: str) -> None:
    cap = captured(Blocks(fault).eval())
    assert cap.why(0, 0, 3, 2).terms.numel()
    with pytest.raises(ValueError, match=r"module 'blocks\.1'.*not a linear map"):
        cap.why(1, 0, 3, 2)
    with pytest.raises(ValueError, match="not a linear map"):
        cap.composition()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fault", ["gain", "bias", "names", "center"])
def test_the_sum_catches(fault: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm without its gain or its mean, a missing bias, outputs of other heads: never shown."""
    from attnwidget._analysis.why import pullback
    from attnwidget._capture.sources import linear_rules

    if fault == "gain":
        gained = linear_rules.LinearRules._gained
        monkeypatch.setattr(
            linear_rules.LinearRules, "_gained", lambda self, node, held, weight: gained(self, node, held, None)
        )
    if fault == "bias":
        monkeypatch.setattr(linear_rules.LinearRules, "_plus", lambda self, node, bias: node)
    if fault == "center":
        monkeypatch.setattr(linear_rules.Center, "pull", lambda self, node, y, before, place: y)
    if fault == "names":
        written = pullback.Reach.written
        monkeypatch.setattr(pullback.Reach, "written", lambda self: written(self).roll(1, 0))
    cap = captured(Blocks().eval().to(dtype))
    with pytest.raises(ValueError, match="do not add up"):
        cap.why(1, 0, 3, 2)
    with pytest.raises(ValueError, match="do not add up"):
        cap.why_row(1, 0, 3)
    with pytest.raises(ValueError, match="do not add up"):
        cap.composition(layers=1)


def test_half_precision_rounds_and_says_so() -> None:
    cap = captured(Blocks().eval().bfloat16())
    exact = captured(Blocks().eval().bfloat16().float())
    found, other = cap.why(1, 0, 3, 2), exact.why(1, 0, 3, 2)
    assert 1e-6 < abs(found.rounding) < 0.05 * float(found.terms.abs().sum())
    assert "rounding" in str(found)
    assert torch.allclose(found.terms, other.terms, atol=0.05 * float(other.terms.abs().max()))


def test_sources_count_toward_the_limit() -> None:
    model = Blocks().eval()
    plain = capture(model).run(torch.arange(9)[None])
    with pytest.warns(UserWarning, match="half of its limit"):
        cap = captured(model, limit=plain.nbytes, strict=False)
    assert len(plain.attention) == 2
    assert len(cap.attention) == 1
    assert "its limit of" in cap.skipped["blocks.1"]


def test_weights_that_changed_since_are_noticed() -> None:
    model = Blocks().eval()
    cap = captured(model)
    with torch.no_grad():
        model.blocks[0].out.weight.add_(1.0)
    with pytest.raises(ValueError, match="changed after the capture"):
        cap.why(1, 0, 3, 2)


def test_bad_questions() -> None:
    cap = captured(Blocks().eval())
    with pytest.raises(ValueError, match=r'against is .max.: give the position of a key, "mean"'):
        cap.why(1, 0, 3, 2, against="max")
    with pytest.raises(IndexError, match="head"):
        cap.why(1, 7, 3, 2)
    with pytest.raises(IndexError, match="key"):
        cap.why(1, 0, 3, 99)
    plain = capture(Blocks().eval()).run(torch.arange(9)[None])
    with pytest.raises(ValueError, match="sources=True"):
        plain.why(1, 0, 3, 2)
    with pytest.raises(TypeError, match="sources is 'yes'"):
        capture(Blocks(), sources="yes")
    with pytest.raises(ValueError, match="leave keep='overview' out"):
        capture(Blocks(), sources=True, keep="overview")


def test_a_row_that_does_not_fit_is_named_before_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnwidget._capture.api import reasons

    cap = captured(Blocks().eval())
    monkeypatch.setattr(reasons, "free_bytes", lambda device: 2000)
    with pytest.raises(
        ValueError, match=r"a row of 9 keys × 10 parts takes 2\.2 kB, and 2\.0 kB are free: ask for pairs"
    ):
        cap.why_row(1, 0, 3)
    assert cap.why(1, 0, 3, 2).terms.numel()
