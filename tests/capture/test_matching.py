"""Which calls continue one another: copied caches, threads, decoders that are called part by part."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured import (
    DECODERS,
    SEQUENCES,
    Eager,
    assert_equal,
    batch,
    build,
    in_both,
    weights,
)
from tolerance import assert_as_near
from torch import Tensor, nn

from attnwidget import Capture, capture

transformers = pytest.importorskip("transformers")

LLAMA = DECODERS["Llama"]


def text(length: int, seed: int) -> Tensor:
    return torch.randint(3, 50, (1, length), generator=torch.Generator().manual_seed(seed))


# One cache, several answers.


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Mistral"])
@pytest.mark.parametrize("crops", [False, True], ids=["copied", "cropped"])
def test_answers_that_are_scored_from_one_cache_are_a_map_each(crops: bool, name: str) -> None:
    model, prompt = build(DECODERS[name], "sdpa"), text(7, 1)
    if crops and name == "Mistral":
        pytest.skip("a window's cache cannot be cropped")
    answers = [text(n, seed) for seed, n in enumerate((3, 5, 3, 1), 2)]
    with torch.no_grad(), capture(model) as cap:
        cache = model(prompt, past_key_values=transformers.DynamicCache(config=model.config)).past_key_values
        for answer in answers:
            own = cache if crops else copy.deepcopy(cache)
            model(answer, past_key_values=own)
            if crops:
                own.crop(-answer.shape[1])
    assert len(cap) == 4
    for forward, answer in zip(cap, answers, strict=True):
        assert_equal(
            forward.attention, Eager(build(DECODERS[name], "eager"), torch.cat([prompt, answer], 1)).attentions
        )


def test_answers_that_are_written_by_turns_stay_apart() -> None:
    model, prompt = build(LLAMA, "sdpa"), text(6, 1)
    answers = [text(4, 2), text(4, 3)]
    with torch.no_grad(), capture(model) as cap:
        cache = model(prompt).past_key_values
        caches = [cache, copy.deepcopy(cache)]
        for i in range(4):
            for answer, own in zip(answers, caches, strict=True):
                model(answer[:, i : i + 1], past_key_values=own)
    assert len(cap) == 2
    for forward, answer in zip(cap, answers, strict=True):
        assert_equal(forward.attention, Eager(build(LLAMA, "eager"), torch.cat([prompt, answer], 1)).attentions)


def test_what_is_looked_at_while_a_text_grows_is_the_text_so_far() -> None:
    """After the prompt, after each token, and after a call of several tokens: nothing that was shown before stays."""
    model, ids = build(LLAMA, "sdpa"), text(11, 1)
    exact = Eager(build(LLAMA, "eager"), ids).attentions[1]
    with torch.no_grad(), capture(model) as cap:
        cache, first = None, 0
        for stop in (4, 5, 6, 7, 8, 11):
            cache = model(ids[:, first:stop], past_key_values=cache).past_key_values
            att, first = cap.attention[1], stop
            assert (stop, stop) == (att.shape.Q, att.shape.K)
            found = weights(att), exact.theirs[..., :stop, :stop], exact.exact[..., :stop, :stop]
            assert_as_near(*found, what=f"after {stop} tokens:")


def test_answers_from_a_cache_of_before_are_a_map_each() -> None:
    model, prompt = build(LLAMA, "sdpa"), text(7, 1)
    answers = [text(3, 2), text(4, 3)]
    with torch.no_grad():
        cache = model(prompt).past_key_values
        with capture(model) as cap:
            for answer in answers:
                model(answer, past_key_values=copy.deepcopy(cache))
    assert [forward.attention[0].shape[3:5] for forward in cap] == [(3, 10), (4, 11)]
    for forward, answer in zip(cap, answers, strict=True):
        exact = Eager(build(LLAMA, "eager"), torch.cat([prompt, answer], 1)).attentions
        assert_equal(forward.attention, [one.queries(7) for one in exact])


def test_translations_that_are_scored_from_one_encoder_share_it() -> None:
    model, source = build(SEQUENCES["BART"], "sdpa"), text(6, 1)
    answers = [text(3, 2), text(4, 3)]
    with torch.no_grad(), capture(model) as cap:
        first = model(input_ids=source, decoder_input_ids=text(2, 9))
        for answer in answers:
            cache = copy.deepcopy(first.past_key_values)
            model(encoder_outputs=(first.encoder_last_hidden_state,), decoder_input_ids=answer, past_key_values=cache)
    assert len(cap) == 2
    for forward, answer in zip(cap, answers, strict=True):
        whole = torch.cat([text(2, 9), answer], 1)
        exact = Eager(build(SEQUENCES["BART"], "eager"), input_ids=source, decoder_input_ids=whole)
        assert_equal(forward.attention, (*exact.encoder_attentions, *exact.decoder_attentions))
        assert_equal(forward.cross, exact.cross_attentions)


@pytest.mark.parametrize("name", ["GPT-2", "Mistral"])
def test_rejected_tokens_leave_the_map(name: str) -> None:
    model, ids = build(DECODERS[name], "sdpa"), batch()["input_ids"][:1]
    how = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    try:
        with torch.no_grad(), capture(model) as cap:
            found = model.generate(ids, prompt_lookup_num_tokens=3, **how)
    except ValueError as error:
        if "Cannot `crop`" not in str(error):
            raise
        pytest.skip(f"transformers {transformers.__version__} cannot do it: a window's cache cannot be cropped")
    assert len(cap) == 1
    assert_equal(cap.attention, Eager(build(DECODERS[name], "eager"), found[:, :-1]).attentions)


@pytest.mark.parametrize("embedded", [False, True])
def test_rejected_tokens_leave_the_map_where_the_search_is_given_no_cache(
    embedded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in transformers 5.0, whose models made it in their first call."""
    monkeypatch.setattr("attnwidget._capture.intercept.transformers_calls.cache_of", lambda keywords: None)
    model, ids = build(DECODERS["GPT-2"], "sdpa"), batch()["input_ids"][:1]
    given = {"inputs_embeds": model.get_input_embeddings()(ids).detach()} if embedded else {"input_ids": ids}
    how = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    try:
        with torch.no_grad(), capture(model) as cap:
            found = model.generate(**given, prompt_lookup_num_tokens=3, **how)
    except IndexError:
        if not embedded:
            raise
        pytest.skip(f"transformers {transformers.__version__} cannot do it: it looks for a last word of the prompt")
    text = torch.cat([ids, found], 1) if embedded else found
    assert_equal(cap.attention, Eager(build(DECODERS["GPT-2"], "eager"), text[:, :-1]).attentions)


def test_tokens_that_the_first_layers_draft_are_not_in_the_map() -> None:
    """Early exit: some of the model's own layers draft, and the model reads what they drafted."""
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=32, num_hidden_layers=4, num_attention_heads=4, pad_token_id=0
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(3, 40, (1, 6))
    how = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    with torch.no_grad(), capture(model) as cap:
        found = model.generate(ids, assistant_early_exit=2, **how)
    assert (len(cap), cap.tokens) == (1, found[:, :-1].tolist())
    eager = transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    assert_equal(cap.attention, Eager(eager, found[:, :-1]).attentions)


@pytest.mark.parametrize("name", SEQUENCES)
def test_rejected_tokens_of_a_translation_leave_decoder_and_cross(name: str) -> None:
    model, ids = build(SEQUENCES[name], "sdpa"), batch()["input_ids"][:1]
    how = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    with torch.no_grad(), capture(model) as cap:
        found = model.generate(ids, assistant_model=build(SEQUENCES[name], "eager").float(), **how)
    assert len(cap) == 1
    exact = Eager(build(SEQUENCES[name], "eager"), input_ids=ids, decoder_input_ids=found[:, :-1])
    assert_equal(cap.attention, (*exact.encoder_attentions, *exact.decoder_attentions))
    assert_equal(cap.cross, exact.cross_attentions)


@pytest.mark.parametrize("layers", ["encoder_attn", "model.decoder.layers.1"])
def test_a_part_of_the_layers_is_one_map_as_all_are(layers: str) -> None:
    model, ids = build(SEQUENCES["BART"], "sdpa"), batch()["input_ids"]
    with torch.no_grad(), capture(model, layers=layers) as cap:
        for _ in range(2):
            found = model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    assert len(cap) == 2
    exact = Eager(build(SEQUENCES["BART"], "eager"), input_ids=ids, decoder_input_ids=found[:, :-1])
    for forward in cap:
        assert_equal(forward.cross, exact.cross_attentions[-len(forward.cross) :])


# Threads.


def test_each_thread_has_forward_passes_of_its_own() -> None:
    model, texts = build(LLAMA, "sdpa"), [text(5 + i, i) for i in range(4)]
    meet = threading.Barrier(4)
    found: dict[int, Tensor] = {}

    class Waits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            meet.wait(60)
            return x

    model.model.layers[0].mlp.act_fn = nn.Sequential(model.model.layers[0].mlp.act_fn, Waits())

    def run(i: int) -> None:
        with torch.no_grad():
            found[i] = model.generate(texts[i], max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)

    with capture(model) as cap:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert len(cap) == 4
    by_length = {forward.attention[0].shape.Q: forward for forward in cap}
    for ids in found.values():
        assert_equal(by_length[ids.shape[1] - 1].attention, Eager(build(LLAMA, "eager"), ids[:, :-1]).attentions)


# Whisper's own code: its parts are called alone, and hooks on key and value keep them.


class WhisperAttention(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.fused = fused

    def forward(self, x: Tensor, xa: Tensor | None = None, mask: Any = None, kv_cache: Any = None) -> Tensor:
        q = self.query(x)
        if kv_cache is None or xa is None or self.key not in kv_cache:
            k, v = (project(x if xa is None else xa) for project in (self.key, self.value))
        else:
            k, v = kv_cache[self.key], kv_cache[self.value]
        return self.out(self.qkv_attention(q, k, v, mask))

    def qkv_attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        n_ctx = q.shape[1]
        q, k, v = (x.unflatten(-1, (2, 8)).permute(0, 2, 1, 3) for x in (q, k, v))
        if self.fused:
            found = F.scaled_dot_product_attention(q, k, v, is_causal=mask is not None and n_ctx > 1)
        else:
            qk = (q * 8**-0.25) @ (k * 8**-0.25).transpose(-1, -2)
            if mask is not None:
                qk = qk + mask[:n_ctx, :n_ctx]
            found = F.softmax(qk.float(), dim=-1).to(q.dtype) @ v
        return found.permute(0, 2, 1, 3).flatten(start_dim=2)


class WhisperBlock(nn.Module):
    def __init__(self, fused: bool, cross: bool) -> None:
        super().__init__()
        self.attn, self.attn_ln = WhisperAttention(fused), nn.LayerNorm(16)
        self.cross_attn = WhisperAttention(fused) if cross else None
        self.cross_attn_ln = nn.LayerNorm(16)

    def forward(self, x: Tensor, xa: Tensor | None = None, mask: Any = None, kv_cache: Any = None) -> Tensor:
        x = x + self.attn(self.attn_ln(x), mask=mask, kv_cache=kv_cache)
        if self.cross_attn is not None:
            x = x + self.cross_attn(self.cross_attn_ln(x), xa, kv_cache=kv_cache)
        return x


class WhisperEncoder(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([WhisperBlock(fused, False) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class WhisperDecoder(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(20, 16)
        self.positional_embedding = nn.Parameter(torch.randn(32, 16))
        self.blocks = nn.ModuleList([WhisperBlock(fused, True) for _ in range(2)])
        self.register_buffer("mask", torch.full((32, 32), -torch.inf).triu_(1), persistent=False)

    def forward(self, tokens: Tensor, xa: Tensor, kv_cache: Any = None) -> Tensor:
        offset = next(iter(kv_cache.values())).shape[1] if kv_cache else 0
        x = self.token_embedding(tokens) + self.positional_embedding[offset : offset + tokens.shape[1]]
        for block in self.blocks:
            x = block(x, xa, mask=self.mask, kv_cache=kv_cache)
        return x @ self.token_embedding.weight.T


class Whisper(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.encoder, self.decoder = WhisperEncoder(fused), WhisperDecoder(fused)

    def forward(self, mel: Tensor, tokens: Tensor) -> Tensor:
        return self.decoder(tokens, self.encoder(mel))

    def decode(self, mel: Tensor, new: int) -> Tensor:
        """As whisper.decode does it: encode, detect the language, then token by token."""
        audio = self.encoder(mel)
        tokens = torch.cat(
            [
                torch.ones(len(mel), 1, dtype=torch.long),
                self.decoder(torch.ones(len(mel), 1, dtype=torch.long), audio)[:, 0].argmax(-1)[:, None],
            ],
            1,
        )
        cache: dict[nn.Module, Tensor] = {}

        def keep(module: nn.Module, _: Any, output: Tensor) -> Tensor:
            if module not in cache or output.shape[1] > 32:
                cache[module] = output
            else:
                cache[module] = torch.cat([cache[module], output], dim=1).detach()
            return cache[module]

        hooks = [
            one.register_forward_hook(keep)
            for module in self.decoder.modules()
            if isinstance(module, WhisperAttention)
            for one in (module.key, module.value)
        ]
        for i in range(new):
            logits = self.decoder(tokens if i == 0 else tokens[:, -1:], audio, kv_cache=cache)
            tokens = torch.cat([tokens, logits[:, -1].argmax(-1)[:, None]], 1)
        for hook in hooks:
            hook.remove()
        return tokens


@pytest.mark.parametrize("length", [12, 6])  # of the audio; that of the text at the end is 6
@pytest.mark.parametrize("fused", [True, False])
def test_whisper_that_decodes_by_itself(fused: bool, length: int) -> None:
    torch.manual_seed(0)
    model, mel = Whisper(fused).eval(), torch.randn(2, length, 16)
    with torch.no_grad(), capture(model) as cap:
        tokens = model.decode(mel, 5)
    own = [f"decoder.blocks.{i}.{kind}" for i in range(2) for kind in ("attn", "cross_attn")]
    assert [list(one.calls) for one in cap] == [["encoder.blocks.0.attn", "encoder.blocks.1.attn", *own], own]

    def at_once(stack: Callable[[Capture], Any], i: int) -> Callable[..., Tensor]:
        def run(model: nn.Module, mel: Tensor, tokens: Tensor) -> Tensor:
            with capture(model) as whole:
                model(mel, tokens)
            return weights(stack(whole)[i])

        return run

    read = tokens[:, :-1]
    assert_equal(cap[0].attention[:2], [in_both(at_once(lambda c: c.attention, i), model, mel, read) for i in range(2)])
    assert_equal(cap[1].attention, [in_both(at_once(lambda c: c.attention, i), model, mel, read) for i in (2, 3)])
    assert_equal(cap[1].cross, [in_both(at_once(lambda c: c.cross, i), model, mel, read) for i in range(2)])
