"""Attention that models write out in their own code: followed to q, k, v and rules, or refused in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured import COMMON, TEXT, Kind, assert_equal, batch, both, build, eager_of, generated, in_both
from torch import Tensor, nn

from attnwidget import Capture, capture

transformers = pytest.importorskip("transformers")

SMALL = {"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 50, "n_positions": 64}
GPTJ = Kind(transformers.GPTJForCausalLM, transformers.GPTJConfig(**SMALL, rotary_dim=4))
BLOOM = Kind(
    transformers.BloomForCausalLM, transformers.BloomConfig(hidden_size=32, n_head=4, n_layer=2, vocab_size=50)
)
NEO = Kind(
    transformers.GPTNeoForCausalLM,
    transformers.GPTNeoConfig(
        hidden_size=32, num_heads=4, num_layers=2, attention_types=[[["global", "local"], 1]], window_size=4,
        intermediate_size=64, vocab_size=50, max_position_embeddings=64,
    ),
)  # fmt: skip
MODELS = {
    "GPT-J": GPTJ,
    "BLOOM": BLOOM,
    "GPT-Neo": NEO,
    "CodeGen": Kind(transformers.CodeGenForCausalLM, transformers.CodeGenConfig(**SMALL, rotary_dim=4)),
    "MPT": Kind(transformers.MptForCausalLM, transformers.MptConfig(d_model=32, n_heads=4, n_layers=2, vocab_size=50)),
    "GPT": Kind(transformers.OpenAIGPTLMHeadModel, transformers.OpenAIGPTConfig(**SMALL)),
    "DeBERTa": Kind(
        transformers.DebertaModel,
        transformers.DebertaConfig(**COMMON, **TEXT, relative_attention=True, pos_att_type=["c2p", "p2c"]),
    ),
    "MPNet": Kind(transformers.MPNetModel, transformers.MPNetConfig(**COMMON, **TEXT)),
    "XLNet": Kind(
        transformers.XLNetModel, transformers.XLNetConfig(d_model=32, n_head=4, n_layer=2, d_inner=64, vocab_size=50)
    ),
}


@pytest.mark.parametrize(
    ("name", "padded"),
    [
        pytest.param(name, padded, marks=[] if padded == ("left", "right")[i % 2] else pytest.mark.thorough)
        for i, name in enumerate(MODELS)
        for padded in (None, "left", "right")
    ],
)
def test_weights_are_those_of_the_model(name: str, padded: str | None) -> None:
    inputs = batch(padded)
    if name not in ("GPT-J", "GPT-Neo", "CodeGen"):
        del inputs["position_ids"]
    cap, expected = both(MODELS[name], "eager", inputs)
    assert_equal(cap.attention, expected.attentions, inputs["attention_mask"])
    assert cap.skipped == {}


@pytest.mark.parametrize(("name", "cache"), [("GPT-J", "dynamic"), ("GPT-J", "static"), ("GPT-Neo", "dynamic")])
def test_a_generated_text_is_one_map(name: str, cache: str) -> None:
    model = build(MODELS[name], "eager")
    cap = capture(model)
    text = generated(model, cap, "left", new=6, cache_implementation=cache)[:, :-1]
    expected, real = eager_of(MODELS[name], text, "left")
    assert len(cap) == 1
    assert_equal(cap.attention, expected, real)


def test_windows_with_biases_and_a_scale_for_each_head() -> None:
    for name in ("Swin", "Swinv2"):
        config = getattr(transformers, f"{name}Config")(
            image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=2
        )
        pixels = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        cap, expected = both(Kind(getattr(transformers, f"{name}Model"), config), "eager", {"pixel_values": pixels})
        assert_equal(list(cap.attention)[1::2], expected.attentions)  # of each stage it tells the last


def test_what_is_written_out_is_saved(tmp_path: Path) -> None:
    cap, expected = both(BLOOM, "eager", {"input_ids": batch()["input_ids"]})
    cap.save(tmp_path / "bloom.safetensors")
    assert_equal(Capture.load(tmp_path / "bloom.safetensors").attention, expected.attentions)


LONGFORMER = Kind(transformers.LongformerModel, transformers.LongformerConfig(**COMMON, **TEXT, attention_window=4))
REFORMER = Kind(
    transformers.ReformerModel,
    transformers.ReformerConfig(
        attn_layers=["local", "lsh"], axial_pos_embds=False, hidden_size=32, attention_head_size=8, vocab_size=50,
        num_attention_heads=4, local_attn_chunk_length=4, lsh_attn_chunk_length=4, num_buckets=2,
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (LONGFORMER, r"'encoder.layer.0.attention.self': .*put column j of query i at key i \+ j − window // 2"),
        (REFORMER, r"'encoder.layers.0.attention.self_attention': it ran, but no softmax .*output_attentions"),
    ],
)
def test_sparse_attention_is_refused_with_advice(kind: Kind, words: str) -> None:
    model = build(kind, "eager")
    with torch.no_grad(), pytest.raises(ValueError, match=words), capture(model):
        model(batch()["input_ids"])


def test_a_part_that_is_sparse_is_told_beside_what_is_read() -> None:
    config = transformers.LongT5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=50, local_radius=3
    )
    model = build(Kind(transformers.LongT5Model, config), "eager")
    ids = batch()["input_ids"]
    with torch.no_grad(), capture(model) as cap:
        model(input_ids=ids, decoder_input_ids=ids[:, :4])
    assert (len(cap.attention), len(cap.cross)) == (2, 2)
    assert list(cap.skipped) == [f"encoder.block.{i}.layer.0.LocalSelfAttention" for i in range(2)]
    assert "in blocks" in next(iter(cap.skipped.values()))


# Somebody's own layers.

Parts = tuple[Tensor, Tensor, Tensor]


class Own(nn.Module):
    """Attention in somebody's own words."""

    def __init__(self, words: Callable[..., tuple[Tensor, Tensor]], heads: int = 4) -> None:
        super().__init__()
        self.qkv, self.words, self.num_heads = nn.Linear(32, 96), words, heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        self.weights, output = self.words(self, q, k, v)
        return output


LOWER = torch.ones(7, 7).tril()
NOISE = torch.randn(4, 7, 7, generator=torch.Generator().manual_seed(2))


def filled(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = (q @ k.transpose(-2, -1)) * 8**-0.5
    p = F.softmax(scores.masked_fill(LOWER[None, None] == 0, float("-inf")), dim=-1)
    return p, p @ v


def large(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch.matmul(q, k.transpose(-2, -1)) / 8**0.5
    p = scores.masked_fill(LOWER == 0, -1e9).softmax(dim=-1)
    return p, torch.matmul(p, v)


def by_name(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    p = (torch.einsum("bthd,bshd->bhts", q, k) / 8**0.5 + (1 - LOWER) * -10000.0).softmax(-1)
    return p, torch.einsum("bhts,bshd->bthd", p, v)


def dots(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.einsum("... i d, ... j d -> ... i j", q, k).softmax(-1)
    return p, torch.einsum("...ij,...jd->...id", p, v)


def flat(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    p = F.dropout(F.softmax(torch.bmm(q, k.mT), dim=-1), 0.5, self.training)
    return p.unflatten(0, (-1, 4)), torch.bmm(p, v)


def in_place(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT
    scores *= 0.2
    scores += NOISE
    scores.masked_fill_(LOWER == 0, -torch.inf)
    p = nn.Softmax(dim=-1)(scores - scores.amax(-1, keepdim=True))
    return p, p @ v


def where(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch.where(LOWER.bool(), q @ k.mT, torch.finfo(q.dtype).min)
    p = torch.softmax(scores / 3, dim=-1)
    return p, p @ v


def capped(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    p = (5 * torch.tanh(0.3 * (q @ k.mT) / 5) + NOISE).softmax(-1)
    return p, p @ v


def one_key_head(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    p = (q @ k[:, :1].mT).softmax(-1)
    return p, p @ v[:, :1]


def single(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.softmax(q[0, 0] @ k[0, 0].T / 8**0.5, -1)
    return p[None, None], p @ v[0, 0]


@pytest.mark.parametrize(
    "words",
    [filled, large, by_name, dots, flat, in_place, where, capped, one_key_head, single],
    ids=lambda f: f.__name__,
)
def test_attention_in_somebodys_own_words(words: Any) -> None:
    torch.manual_seed(0)
    model, x = Own(words).eval(), torch.randn(2, 7, 32)
    with torch.no_grad():
        plain = model(x)
        with capture(model) as cap:
            assert torch.equal(model(x), plain)
    assert cap.skipped == {}
    assert_equal(cap.attention, [in_both(lambda own, x: own(x) is not None and own.weights, model, x)])
    (att,) = cap.attention
    if words in (filled, large, by_name, where):
        assert att.block("allowed").sum(1).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert att.softcap == (5 if words is capped else None)
    assert (1 if words in (one_key_head, single) else 4) == att.shape.G


def test_a_step_that_is_called_in_another_way_leaves_the_model_alone() -> None:
    model, x = nn.Sequential(Own(filled), Steps()).eval(), torch.randn(1, 7, 32)
    with torch.no_grad():
        plain = model(x)
        with capture(model) as cap:
            assert torch.equal(model(x), plain)
    assert list(cap.calls) == ["0"]


class Steps(nn.Module):
    """What is done to scores, in the ways that are no attention."""

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ x.mT
        places = torch.where(scores > 0)
        largest = torch.max(scores, dim=-1).values
        return torch.max(scores, 0).values + largest[..., None] + len(places) + torch.einsum("bhij->bhji", scores)
