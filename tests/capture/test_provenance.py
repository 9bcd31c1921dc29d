"""Self- or cross-attention: decided by the tensors that q and k come from, not by names or lengths."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured import COMMON, DECODERS, GROUPED, SEQUENCES, batch, bridge_tower, build
from torch import Tensor, nn

from attnwidget import Capture, capture

transformers = pytest.importorskip("transformers")

N, C = 6, 16  # lengths of the two texts are equal, so that they say nothing


def x(length: int = N, seed: int = 0) -> Tensor:
    return torch.randn(2, length, C, generator=torch.Generator().manual_seed(seed))


def heads(t: Tensor) -> Tensor:
    return t.unflatten(-1, (2, -1)).transpose(1, 2)


def kinds(model: nn.Module, *inputs: Any, **how: Any) -> dict[str, str]:
    with torch.no_grad(), capture(model.eval(), **how) as cap:
        model(*inputs)
    return kinds_of(cap)


def kinds_of(cap: Capture) -> dict[str, str]:
    assert cap.skipped == {}
    crosses = cap.cross.names if any(r.cross for r in cap._records.values()) else ()
    return {name: "cross" if name in crosses else "self" for name in cap.all.names}


class Context(nn.Module):
    """As x-transformers and diffusers: `context` in place of x, if it is given."""

    def __init__(self, rotary: bool = False, fused: bool = False) -> None:
        super().__init__()
        self.to_q, self.rotary, self.fused = nn.Linear(C, C), rotary, fused
        self.to_k, self.to_v = nn.Linear(C, C), nn.Linear(C, C)
        self.to_out = nn.Sequential(nn.Linear(C, C), nn.Dropout(0.0))

    def forward(self, x: Tensor, context: Tensor | None = None, pos_emb: Tensor | None = None) -> Tensor:
        source = x if context is None else context
        q, k, v = heads(self.to_q(x)), heads(self.to_k(source)), heads(self.to_v(source))
        if self.rotary:
            q, k = q * 1.25 + q.roll(1, -1), k * 1.25 + k.roll(1, -1)
        if self.fused:
            return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.to_out((((q @ k.mT) / 3).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Pair(nn.Module):
    """A self-attention and a cross-attention, under names that say the contrary."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.cross_encoder, self.attention, self.norm = make(), make(), nn.LayerNorm(C)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        x = x + self.cross_encoder(self.norm(x))
        return x + self.attention(self.norm(x), other)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("rotary", [True, False])
def test_a_context_is_another_tensor_whatever_the_names(rotary: bool, fused: bool) -> None:
    model = Pair(lambda: Context(rotary, fused))
    assert kinds(model, x(), x(seed=1)) == {"cross_encoder": "self", "attention": "cross"}


class Annotated(nn.Module):
    """The Annotated Transformer's: query, key and value are given, and a list of projections takes them by turns."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList([copy.deepcopy(nn.Linear(C, C)) for _ in range(4)])

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> Tensor:
        key = query if key is None else key
        given = (query, key, key if value is None else value)
        query, key, value = (heads(lin(t)) for lin, t in zip(self.linears[:3], given, strict=True))
        found = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(8)
        return self.linears[-1](torch.matmul(found.softmax(dim=-1), value).transpose(1, 2).flatten(2))


def test_the_annotated_transformer() -> None:
    assert kinds(Pair(Annotated), x(), x(seed=1)) == {"cross_encoder": "self", "attention": "cross"}


class Core(nn.Module):
    """Is given q, k and v ready-made, as torchtune's and litgpt's do."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q * 1.5, k, v)


class WithCore(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.keyvalue, self.core = nn.Linear(C, C), nn.Linear(C, 2 * C), Core()

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        k, v = self.keyvalue(x if memory is None else memory).chunk(2, -1)
        return self.core(heads(self.query(x)), heads(k), heads(v)).transpose(1, 2).flatten(2)


def test_a_module_that_is_given_q_and_k_asks_who_made_them() -> None:
    assert kinds(Pair(WithCore), x(), x(seed=1)) == {"cross_encoder.core": "self", "attention.core": "cross"}


class Wrapped(nn.Module):
    """As speechbrain's: torch's own attention, whose inputs are transposed one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.att = nn.MultiheadAttention(C, 2)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        query, key = x.permute(1, 0, 2), (x if memory is None else memory).permute(1, 0, 2)
        return self.att(query, key, key, need_weights=False)[0].permute(1, 0, 2)


def test_an_image_may_ask_a_text_that_was_given_as_ids() -> None:
    class Painter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.look = nn.Embedding(5, 8), nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
            self.to_q, self.to_k = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, image: Tensor, prompt: Tensor) -> Tensor:
            text = self.words(prompt).relu()
            q, k = self.to_q(self.look(image)), self.to_k(text)
            return F.scaled_dot_product_attention(q[:, None], k[:, None], text[:, None])

    cap = capture(Painter().eval()).run(torch.randn(1, 6, 8), torch.tensor([[1, 2, 3]]))
    assert (cap.cross[0].shape.Q, cap.cross[0].shape.K) == (6, 3)


@pytest.mark.parametrize("weights", [True, False])
def test_torchs_own_attention_whose_inputs_are_views_of_one_tensor(weights: bool) -> None:
    model = Pair(Wrapped)
    for module in (model.cross_encoder.att, model.attention.att):
        module.forward = _with_weights(module.forward, weights)
    assert kinds(model, x(), x(seed=1)) == {"cross_encoder.att": "self", "attention.att": "cross"}


def _with_weights(forward: Any, weights: bool) -> Any:
    return lambda *args, need_weights: forward(*args, need_weights=weights)


class TwoNorms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(C), nn.LayerNorm(C)
        self.att = nn.MultiheadAttention(C, 2, batch_first=True)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        key = self.two(x if memory is None else memory)
        return self.att(self.one(x), key, key)[0]


def test_norms_of_query_and_key_are_followed() -> None:
    assert kinds(Pair(TwoNorms), x(), x(seed=1)) == {"cross_encoder.att": "self", "attention.att": "cross"}


class Reduced(nn.Module):
    """As PVT and SegFormer: keys of the same image, fewer of them."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(C, C), nn.Linear(C, 2 * C)
        self.sr, self.norm = nn.Conv2d(C, C, 2, 2), nn.LayerNorm(C)

    def forward(self, x: Tensor) -> Tensor:
        small = self.sr(x.transpose(1, 2).unflatten(2, (4, 4))).flatten(2).transpose(1, 2)
        k, v = self.kv(self.norm(small)).chunk(2, -1)
        found = F.scaled_dot_product_attention(heads(self.q(x)), heads(k), heads(v))
        return found.transpose(1, 2).flatten(2)


def test_reduced_keys_of_the_same_image_are_self_attention() -> None:
    assert kinds(nn.Sequential(Reduced()), x(16)) == {"0": "self"}


class Latents(nn.Module):
    """As Perceiver, and as a pooling head with a query of its own."""

    def __init__(self, project: bool) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, N, C))
        self.q, self.kv = nn.Linear(C, C) if project else nn.Identity(), nn.Linear(C, 2 * C)

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.kv(x).chunk(2, -1)
        q = self.q(self.latents.expand(len(x), -1, -1))
        return F.scaled_dot_product_attention(heads(q), heads(k), heads(v)).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("project", [True, False])
def test_queries_that_are_parameters_attend_across(project: bool) -> None:
    assert kinds(nn.Sequential(Latents(project)), x()) == {"0": "cross"}


class Cached(nn.Module):
    """A decoder's layer with a cache of its own; the mask of a single query says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(C, 3 * C)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = (heads(t) for t in self.qkv(x).chunk(3, -1))
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def test_a_cache_from_before_the_capture_is_the_same_text() -> None:
    past = torch.randn(2, 2, 2, 9, 8)
    assert kinds(nn.ModuleDict({"a": Cached()})["a"], x(1), (past[0], past[1])) == {"Cached": "self"}


def test_positions_that_are_given_beside_are_no_source() -> None:
    model = Context(fused=True)
    with torch.no_grad(), capture(model) as cap:
        model(x(), pos_emb=x(seed=3))
    assert kinds_of(cap) == {"Context": "self"}


class Relative(nn.Module):
    """As Transformer-XL: positions are projected in the same module."""

    def __init__(self) -> None:
        super().__init__()
        self.linear_q, self.linear_k, self.linear_v, self.linear_r = (nn.Linear(C, C) for _ in range(4))

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        q, k, v = heads(self.linear_q(x)), heads(self.linear_k(x)), heads(self.linear_v(x))
        bias = torch.matmul(q, heads(self.linear_r(r)).mT)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)


def test_another_tensor_that_makes_no_keys_is_no_source() -> None:
    assert kinds(nn.Sequential(Relative())[0], x(), x(seed=1)) == {"Relative": "self"}


# Models of transformers, with source and target of one length, and cached keys.


@pytest.mark.parametrize("captured", ["all", "last step"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", SEQUENCES)
def test_decoders_of_equal_length_cached_or_not(name: str, implementation: str, captured: str) -> None:
    model, ids = build(SEQUENCES[name], implementation), batch()["input_ids"]
    for module in model.modules():
        if hasattr(module, "is_cross_attention"):
            del module.is_cross_attention
    with torch.no_grad():
        if captured == "all":
            with capture(model) as cap:
                model(input_ids=ids, decoder_input_ids=ids)
        else:
            first = model(input_ids=ids, decoder_input_ids=ids[:, :-1])
            with capture(model) as cap:
                model(
                    encoder_outputs=(first[-1],), decoder_input_ids=ids[:, -1:], past_key_values=first.past_key_values
                )
    crosses = {"encoder_attn", "EncDecAttention"}
    assert kinds_of(cap) == {n: "cross" if crosses & set(n.split(".")) else "self" for n in cap.all.names}
    assert len(cap.cross) == 2


def test_a_bert_that_is_called_cross_encoder() -> None:
    class Ranker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cross_encoder = transformers.BertModel(transformers.BertConfig(**COMMON, vocab_size=50))

        def forward(self, ids: Tensor) -> Any:
            return self.cross_encoder(ids)

    assert set(kinds(Ranker(), batch()["input_ids"]).values()) == {"self"}


def test_perceivers_latents_attend_to_its_inputs() -> None:
    config = transformers.PerceiverConfig(
        num_latents=N, d_latents=C, d_model=C, num_blocks=1, num_self_attends_per_block=1,
        num_self_attention_heads=2, num_cross_attention_heads=2,
    )  # fmt: skip
    found = kinds(transformers.PerceiverModel(config), x(N))
    assert found == {
        "encoder.cross_attention.attention.self": "cross",
        "encoder.self_attends.0.attention.self": "self",
    }


def test_q_former() -> None:
    config = transformers.Blip2QFormerConfig(
        **COMMON, vocab_size=50, encoder_hidden_size=32, cross_attention_frequency=2
    )
    model = transformers.Blip2QFormerModel(config).eval()
    text, image = torch.randn(2, 2, N, 32)
    with torch.no_grad(), capture(model) as cap:
        model(query_embeds=text, encoder_hidden_states=image)
    found = kinds_of(cap)
    assert found == {n: "cross" if "crossattention" in n else "self" for n in cap.all.names}
    assert "cross" in found.values()


def bridged(**how: Any) -> dict[str, str]:
    model = bridge_tower(16)  # four patches and a token before them: as many positions as the text has
    inputs = {"input_ids": batch()["input_ids"][:, :5], "pixel_values": torch.randn(2, 3, 16, 16)}
    with torch.no_grad():
        plain = model(**inputs).pooler_output
        with capture(model, **how) as cap:
            assert torch.equal(model(**inputs).pooler_output, plain)
    assert {att.shape[3:5] for att in cap.all} == {(5, 5)}
    return kinds_of(cap)


def test_bridge_tower_whose_text_is_as_long_as_its_image() -> None:
    found = bridged()
    crosses = [f"cross_modal_{side}_layers.{i}.crossattention.self" for i in range(2) for side in ("text", "image")]
    assert [name for name, kind in found.items() if kind == "cross"] == crosses
    selves = {
        *(f"text_model.encoder.layer.{i}.attention.self" for i in range(2)),
        *(f"vision_model.visual.transformer.resblocks.{i}.attn" for i in range(2)),
        *(f"cross_modal_{side}_layers.{i}.attention.self" for i in range(2) for side in ("text", "image")),
    }
    assert {name for name, kind in found.items() if kind == "self"} == selves


@pytest.mark.parametrize(
    ("cross", "expected"),
    [
        ("cross_modal_text_layers", {"text": 4, "image": 2}),
        ({"cross_modal_image_layers.*": False}, {"text": 2, "image": 0}),
        ({"*": False, "cross_modal_image_layers.1.crossattention": True}, {"text": 0, "image": 1}),
    ],
)
def test_what_the_user_says_of_bridge_tower_counts(cross: Any, expected: dict[str, int]) -> None:
    crosses = [name for name, kind in bridged(cross=cross).items() if kind == "cross"]
    assert {side: sum(f"_{side}_" in name for name in crosses) for side in expected} == expected
    assert len(crosses) == sum(expected.values())


def test_segformer_reduces_its_keys() -> None:
    config = transformers.SegformerConfig(
        hidden_sizes=[16, 32], num_encoder_blocks=2, depths=[1, 1], sr_ratios=[4, 1], num_attention_heads=[1, 2],
        patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2], decoder_hidden_size=16,
    )  # fmt: skip
    assert set(kinds(transformers.SegformerModel(config), torch.randn(1, 3, 64, 64)).values()) == {"self"}


def test_generation_stays_one_map_of_each_kind() -> None:
    model, ids = build(SEQUENCES["T5"], "sdpa"), batch()["input_ids"]
    with torch.no_grad(), capture(model) as cap:
        model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    assert (len(cap), len(cap.attention), len(cap.cross)) == (1, 4, 2)


# What the user says.


@pytest.mark.parametrize(
    ("cross", "expected"),
    [
        (True, {"cross_encoder": "cross", "attention": "cross"}),
        (False, {"cross_encoder": "self", "attention": "self"}),
        ("cross_encoder", {"cross_encoder": "cross", "attention": "cross"}),
        (["cross_*", "attention"], {"cross_encoder": "cross", "attention": "cross"}),
        ({"cross_encoder": True, "attention": False}, {"cross_encoder": "cross", "attention": "self"}),
        ({"*": True, "attention": False}, {"cross_encoder": "cross", "attention": "self"}),
    ],
)
def test_what_the_user_says_counts(cross: Any, expected: dict[str, str]) -> None:
    assert kinds(Pair(lambda: Context(fused=True)), x(), x(seed=1), cross=cross) == expected


@pytest.mark.parametrize(("cross", "error"), [(1, TypeError), ({"a": 1}, TypeError), ("nowhere", ValueError)])
def test_what_the_user_may_not_say(cross: Any, error: type[Exception]) -> None:
    model = Pair(Context)
    with pytest.raises(error, match=r"cross"), capture(model, cross=cross):
        model(x(), x())


def test_all_is_everything_in_order() -> None:
    model, ids = build(SEQUENCES["BART"], "sdpa"), batch()["input_ids"]
    with torch.no_grad(), capture(model) as cap:
        model(input_ids=ids, decoder_input_ids=ids)
    assert cap.all.names == tuple(cap.calls)
    assert [name.rsplit(".", 1)[1] for name in cap.all.names] == ["self_attn"] * 2 + ["self_attn", "encoder_attn"] * 2
    with pytest.raises(ValueError, match="nothing was recorded"):
        capture(model).all  # noqa: B018


# The hooks.


def test_hooks_are_taken_off_and_a_model_may_be_copied_inside_the_block() -> None:
    model = build(DECODERS["Llama"], "sdpa")

    def hooked() -> list[str]:
        return [name for name, module in model.named_modules() if module._forward_hooks or module._forward_pre_hooks]

    with torch.no_grad(), capture(model):
        model(batch()["input_ids"])
        assert [name for name in hooked() if "layers" in name] == [f"model.layers.{i}.self_attn" for i in range(2)]
        copied = copy.deepcopy(model)
        copied(batch()["input_ids"])
    assert hooked() == []


def test_a_hook_that_is_being_removed_is_called_without_keywords_and_raises_nothing() -> None:
    """As torch does where another thread takes the hook off between two of its steps."""
    model = Pair(lambda: Context(fused=True))
    with torch.no_grad(), capture(model) as cap:
        for hook in list(model._forward_pre_hooks.values()):
            hook(model, ("no tensor", x()))
        model(x(), x(seed=1))
    assert kinds_of(cap) == {"cross_encoder": "self", "attention": "cross"}


def test_a_cross_attention_whose_keys_were_kept_from_before() -> None:
    config = transformers.models.mllama.MllamaTextConfig(
        **GROUPED, cross_attention_layers=[1], rope_scaling={"rope_type": "default"}
    )
    model = transformers.MllamaForCausalLM._from_config(config, attn_implementation="sdpa").eval()
    states, ids = torch.randn(2, 12, 48), batch()["input_ids"]
    with torch.no_grad():
        first = model(ids, cross_attention_states=states)
        with capture(model) as cap:
            model(ids[:, :1], past_key_values=first.past_key_values)
        assert set(kinds_of(cap).items()) >= {
            ("model.layers.1.cross_attn", "cross"),
            ("model.layers.0.self_attn", "self"),
        }


class Failing(nn.Module):
    """Attention, and then an error."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.inner(x)
        raise KeyError("of the model's own")


@contextlib.contextmanager
def hooked(model: nn.Module) -> Iterator[None]:
    """One more hook, after those of the capture."""
    handle = model.register_forward_hook(lambda *_: None)
    try:
        yield
    finally:
        handle.remove()


def test_an_error_of_the_model_is_the_one_that_is_raised() -> None:
    model = Failing()
    with pytest.raises(KeyError, match="of the model's own"), capture(model), hooked(model):
        model(torch.randn(2, 3, 4))
