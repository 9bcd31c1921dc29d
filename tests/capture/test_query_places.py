"""A query's own place among the keys, where a cache held keys before it: what metrics compare it with."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from captured import DECODERS, GPT2, SEQUENCES, build
from tolerance import rounding
from torch import Tensor, nn

from attnwidget import Attention, AttentionWidget, Capture, capture, find_heads, intervene
from attnwidget._tokens.tokenizers import join_pieces, word_ids
from attnwidget._tokens.unread import Unread

transformers = pytest.importorskip("transformers")

IDS = torch.randint(3, 9, (2, 21), generator=torch.Generator().manual_seed(5))


def second_turn(**how: Any) -> Capture:
    """Nine queries after twelve keys that were read before the block."""
    model, cache = build(DECODERS["Llama"], "sdpa"), transformers.DynamicCache()
    with torch.no_grad():
        model(IDS[:, :12], past_key_values=cache)
        with capture(model, **how) as cap:
            model(IDS[:, 12:], past_key_values=cache)
    return cap


def expected(w: Tensor, ids: list[int], first: int) -> dict[str, float]:
    """The metrics of one head from its weights (Q, K), query i at key `first` + i; all queries that can have one."""
    rows = range(len(w))
    found: dict[str, list[float]] = {"itself": [], "previous_token": [], "mean_distance": [], "induction": []}
    for i in rows:
        own = first + i
        found["itself"].append(float(w[i, own]))
        if own:
            found["previous_token"].append(float(w[i, own - 1]))
        found["mean_distance"].append(float(sum(abs(j - own) * w[i, j] for j in range(own + 1))))
        after = [j for j in range(1, own) if ids[j - 1] == ids[own]]
        if after:
            found["induction"].append(float(w[i, after].sum()))
    return {name: sum(values) / len(values) for name, values in found.items()}


@pytest.mark.parametrize("how", [{}, {"queries": slice(-4, None)}])
def test_metrics_know_how_many_keys_came_before(how: dict[str, Any], tmp_path: Path) -> None:
    cap = second_turn(**how)
    first = 21 - cap.attention[0].shape.Q
    words = [str(one) for one in IDS[1].tolist()]
    cap.save(tmp_path / "turn.safetensors")
    for att in (cap.attention[1], Capture.load(tmp_path / "turn.safetensors").attention[1]):
        found = att.metrics(batch=1, head=2, tokens=words)
        wanted = expected(att.block(batch=1, head=2).double(), IDS[1].tolist(), first)
        for name, value in wanted.items():
            torch.testing.assert_close(torch.tensor(getattr(found, name)), torch.tensor(value), **rounding(att).weights)
        combined = att.combine([2], "mean").metrics(batch=1, tokens=words)
        torch.testing.assert_close(torch.tensor(combined.previous_token), torch.tensor(found.previous_token))
        assert att.what_if({"scale": 0.0}).metrics(batch=1, head=2).previous_token is not None


def test_keys_elsewhere_are_no_queries_places() -> None:
    model = build(SEQUENCES["BART"], "sdpa")
    with torch.no_grad(), capture(model) as cap:
        model(input_ids=IDS, decoder_input_ids=IDS[:, :9])
    part = cap.cross[0].part
    assert part is not None
    assert part.elsewhere
    assert cap.cross[0].metrics(head=0).previous_token is None
    assert Attention(torch.randn(3, 4), torch.randn(5, 4)).metrics().previous_token is None


def test_a_prompt_and_its_continuation_are_no_part() -> None:
    model = build(GPT2, "sdpa")
    with torch.no_grad(), capture(model) as cap:
        model.generate(IDS, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert cap.attention[0].part is None
    assert cap.attention[0].metrics(head=1).previous_token is not None


class Digits:
    """A tokenizer whose words are spelled as the numbers of positions are."""

    def id_to_token(self, one: int) -> str:
        return f"{one}"


COMPARED = ("same_token", "induction")


def surveyed(w: AttentionWidget) -> dict[str, bool]:
    """Which of the metrics that compare tokens the heads view has."""
    return {name: w.survey["metrics"][name] is not None for name in COMPARED}


@pytest.mark.parametrize("how", [{}, {"tokenizer": Digits()}])
def test_what_compares_tokens_compares_none_with_those_that_nobody_has_seen(how: dict[str, Any]) -> None:
    cap, words = second_turn(**how), [[f"{one}" for one in sample] for sample in IDS.tolist()]
    assert [{one[name] for one in cap.metrics() for name in COMPARED}] == [{None}]
    assert None not in {one["previous_token"] for one in cap.metrics()}
    known = cap.metrics(tokens=words)
    assert not {None} & {one[name] for one in known for name in COMPARED}
    att, own = cap.attention[1], next(one for one in known if (one["layer"], one["batch"], one["head"]) == (1, 1, 2))
    wanted = expected(att.block(batch=1, head=2).double(), IDS[1].tolist(), 12)["induction"]
    torch.testing.assert_close(torch.tensor(own["induction"]), torch.tensor(wanted), **rounding(att).weights)
    w = cap.widget(view="heads", tokenizer=Digits())
    assert w.as_strings("key_tokens")[1] == [*map(str, range(12)), *words[1][12:]]
    for merged in (False, True):
        w.pieces = "words" if merged else "pieces"
        assert surveyed(w) == {"same_token": False, "induction": False}
        assert {one["induction"] for one in w.metrics()} == {None}
    given = cap.key_tokens if how else w.as_strings("key_tokens")
    assert {one["induction"] for one in cap.metrics(tokens=given)} == {None}
    assert surveyed(cap.widget(view="heads", tokens=words)) == {"same_token": True, "induction": True}


def test_positions_whose_tokens_are_not_known_are_not_joined_to_words() -> None:
    labels = [*map(Unread, range(3)), "Ġa", "b", Unread(5)]
    assert word_ids(labels, "bytes") == [0, 1, 2, 3, 3, 4]
    assert all(isinstance(join_pieces([one]), Unread) for one in labels[:3])


def test_heads_are_not_found_by_tokens_that_nobody_has_seen() -> None:
    with pytest.raises(ValueError, match="induction"):
        find_heads(second_turn(), kind="induction")


class More(nn.Module):
    """A layer of a text with more keys than that: learned ones, of a memory or summaries, before or after its own."""

    def __init__(self, before: int = 0, after: int = 0, *, causal: bool = True) -> None:
        super().__init__()
        self.qkv, self.causal = nn.Linear(16, 48), causal
        self.before, self.after = nn.Parameter(torch.randn(1, before, 16)), nn.Parameter(torch.randn(1, after, 16))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        more = [one.expand(len(x), -1, -1) for one in (self.before, self.after)]
        k, v = (torch.cat([more[0], one, more[1]], 1) for one in (k, v))
        mask = None
        if self.causal:
            own = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            ones = [own.new_ones(len(own), one.shape[1]) for one in more]
            mask = torch.cat([ones[0], own, ones[1]], 1)
        q, k, v = (one.unflatten(-1, (2, 8)).transpose(1, 2) for one in (q, k, v))
        return nn.functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)


class MoreOfTorch(nn.Module):
    """Torch's own layer, which puts a learned key and one of zeros after those of its text."""

    def __init__(self, *, causal: bool = True, **how: Any) -> None:
        super().__init__()
        self.embed, self.causal = nn.Embedding(50, 16), causal
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True, **how)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if self.causal else None
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


TORCH = {"add_bias_kv": True}, {"add_zero_attn": True}, {"add_bias_kv": True, "add_zero_attn": True}
PLACED = [
    *((functools.partial(MoreOfTorch, causal=causal, **how), 0) for how in TORCH for causal in (True, False)),
    (lambda: nn.Sequential(nn.Embedding(50, 16), More(after=3)), 0),
    (lambda: nn.Sequential(nn.Embedding(50, 16), More(before=3)), 3),
]


@pytest.mark.parametrize(("make", "first"), PLACED)
@pytest.mark.parametrize("how", [{}, {"queries": slice(-4, None)}, {"keep": "overview"}])
def test_a_query_has_its_own_place_whether_more_keys_come_before_it_or_after(
    make: Any, first: int, how: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        near = rounding(capture(model).run(IDS).attention[0]).weights
        cap = capture(model, tokenizer=Digits(), **how).run(IDS)
    cap.save(tmp_path / "more.safetensors")
    for one in (cap, Capture.load(tmp_path / "more.safetensors")):
        assert one.skipped == {}
        att, ids = one.attention[0], IDS[1].tolist()
        keys = [*map(str, range(first)), *map(str, ids), *(str(i) for i in range(first + 21, att.shape.K))]
        assert one.key_tokens is not None
        assert one.key_tokens[1] == one.widget().as_strings("key_tokens")[1] == keys
        start = 21 - att.shape.Q
        wanted = expected(att.block(batch=1, head=1).double(), [*[-1] * first, *ids], first + start)
        for name in ("itself", "previous_token"):
            found = torch.tensor(getattr(att.metrics(batch=1, head=1), name))
            torch.testing.assert_close(found, torch.tensor(wanted[name]), **near)


def test_places_that_nothing_tells_are_not_guessed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 16), More(before=2, causal=False)).eval()
    with torch.no_grad(), capture(model, tokenizer=Digits()) as cap:
        model(IDS)
    assert cap.attention[0].shape[3:5] == (21, 23)
    assert cap.tokens == [[*map(str, one)] for one in IDS.tolist()]
    assert cap.key_tokens is None
    assert cap.attention[0].metrics(head=1).previous_token is None
    assert {one["induction"] for one in cap.metrics()} == {None}


@pytest.mark.parametrize("how", TORCH)
def test_a_query_that_is_edited_is_the_one_that_is_named_where_more_keys_come_after(how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = MoreOfTorch(**how).eval()
    with torch.no_grad():
        plain = model(IDS)
        with intervene(model, {0: {"block": ([4, -1], [21])}}):
            edited = model(IDS)
    assert (edited - plain).abs().amax((0, 2)).gt(1e-6).nonzero().flatten().tolist() == [4, 20]
