"""Some heads and some queries of a model, beside all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured import DECODERS, GPT2, GROUPED, SEQUENCES, Kind, batch, build
from tolerance import rounding
from torch import Tensor, nn
from torch.testing import assert_close

from attnwidget import Attention, AttentionWidget, Capture, capture
from attnwidget._capture.call.observed_call import ObservedCall, Unreadable
from attnwidget._capture.call.rule_slices import key_heads
from attnwidget._capture.intercept.hooks import read_flex
from attnwidget._capture.records.forward_passes import RecordMatcher
from attnwidget._capture.records.kept_tensors import SLACK, KeptQueries, TensorKeeper
from attnwidget._utils.choices import Numbers

transformers = pytest.importorskip("transformers")

NEW = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
EIGHT_IN_TWO = Kind(
    transformers.LlamaForCausalLM,
    transformers.LlamaConfig(**{**GROUPED, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 4}),
)


def ids(length: int, samples: int = 1) -> Tensor:
    return torch.randint(3, 50, (samples, length), generator=torch.Generator().manual_seed(length))


def both(model: Any, act: Any, **how: Any) -> tuple[Capture, Capture]:
    """What is kept of a model, beside all of it; outputs are the same."""
    captures, outputs = [], []
    for one in ({}, how):
        with torch.no_grad(), capture(model, **one) as cap:
            outputs.append(act())
        captures.append(cap)
    assert torch.equal(*(x if isinstance(x, Tensor) else x[0] for x in outputs))
    assert captures[1].skipped == {}
    return captures[0], captures[1]


def assert_is_part(
    part: Attention, whole: Attention, heads: list[int] | None = None, rows: list[int] | None = None
) -> None:
    """Every number of a part is that of the whole."""
    all_heads, all_rows = list(range(whole.shape.H)), list(range(whole.shape.Q))
    assert part.shape.B == whole.shape.B
    assert (len(heads or all_heads), len(rows or all_rows)) == (part.shape.H, part.shape.Q)
    for b in range(whole.shape.B):
        for i, head in enumerate(heads or all_heads):
            for stage in ("scores", "weights", "allowed"):
                wanted = whole.block(stage, batch=b, head=head)[rows or all_rows]
                found = part.block(stage, batch=b, head=i)
                if stage == "allowed":
                    assert torch.equal(found, wanted)
                else:
                    assert_close(found, wanted, **rounding(whole)[stage])
            assert_close(part.output(b, i), whole.output(b, head)[rows or all_rows], **rounding(whole).output)


# Heads.


@pytest.mark.parametrize(
    ("name", "heads", "padded"),
    [
        ("GPT-2", 2, "left"),
        ("Llama", -1, None),
        ("Llama", slice(1, 3), "left"),
        ("Mistral", [0, 3], "left"),
        ("Mistral", range(0, 4, 2), None),
        *(
            pytest.param(name, heads, padded, marks=pytest.mark.thorough)
            for name in ("GPT-2", "Llama", "Mistral")
            for heads in (2, -1, [0, 3], slice(1, 3), range(0, 4, 2))
            for padded in (None, "left")
        ),
    ],
)
def test_some_heads_are_those_of_the_whole(name: str, heads: Any, padded: str | None) -> None:
    model, inputs = build(DECODERS[name], "sdpa"), batch(padded)
    whole, part = both(model, lambda: model(**inputs), heads=heads)
    kept = Numbers(heads, "heads").of(whole.attention[0].shape.H)
    for ours, theirs in zip(part.attention, whole.attention, strict=True):
        assert_is_part(ours, theirs, kept)
        assert ours.part is not None
        assert (ours.part.heads, ours.part.queries) == (tuple(kept), None)
    assert part.nbytes < whole.nbytes


@pytest.mark.parametrize(
    ("heads", "groups"), [([0, 1], 1), ([0, 4], 2), ([1, 2, 5, 6], 2), ([0, 1, 4], 3), ([3, 4, 5, 6], 4)]
)
def test_of_grouped_heads_only_those_keys_are_kept_that_are_needed(heads: list[int], groups: int) -> None:
    model = build(EIGHT_IN_TWO, "sdpa")
    whole, part = both(model, lambda: model.generate(ids(7), **NEW), heads=heads)
    for ours, theirs in zip(part.attention, whole.attention, strict=True):
        assert groups == ours.shape.G
        assert_is_part(ours, theirs, heads)
    assert sorted(set(key_heads(heads, 4))) == sorted({head // 4 for head in heads})


def test_heads_are_chosen_by_layer() -> None:
    model = build(GPT2, "sdpa")
    _, part = both(model, lambda: model(ids(6)), heads={0: [1, 2], "h.1": -1})
    assert [att.part and att.part.heads for att in part.attention] == [(1, 2), (3,)]
    _, part = both(model, lambda: model(ids(6)), heads={"h.1": 0})
    assert [att.shape.H for att in part.attention] == [4, 1]


@pytest.mark.parametrize(
    ("heads", "kept"),
    [
        ({"transformer.h.1.attn": 0}, [4, 1]),
        ({"h.*": [0, 1]}, [2, 2]),
        ({re.compile(r"h\.0\b"): -1}, [1, 4]),
        ({1: slice(1, None)}, [4, 3]),
    ],
)
def test_layers_of_heads_are_named_as_layers_are(heads: Any, kept: list[int]) -> None:
    model = build(GPT2, "sdpa")
    _, part = both(model, lambda: model(ids(6)), heads=heads)
    assert [att.shape.H for att in part.attention] == kept


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ({2: 0}, "no layer is 2, as heads names it: there are 'transformer.h.0.attn', 'transformer.h.1.attn'"),
        ({"h.7": 0}, "no layer is 'h.7', as heads names it: .*no module of GPT2LMHeadModel has that name"),
        ({0: 1, "mlp": 0}, "no layer is 'mlp', as heads names it: there are 'transformer.h.0.attn'"),
    ],
)
def test_heads_of_layers_that_are_not_there_are_refused(heads: Any, message: str) -> None:
    model = build(GPT2, "sdpa")
    with pytest.raises(ValueError, match=message), torch.no_grad(), capture(model, heads=heads):
        model(ids(4))
    with pytest.warns(UserWarning, match=message), torch.no_grad():
        cap = capture(model, heads=heads, strict=False).run(ids(4))
    assert any("as heads names it" in why for why in cap.skipped.values())
    assert len(cap.attention) == 2


def test_heads_of_a_bias_are_those_of_the_whole() -> None:
    """T5 adds a bias by head; a part of the heads has a part of it."""
    model, inputs = build(SEQUENCES["T5"], "sdpa"), batch("right")
    act = lambda: model(**inputs, decoder_input_ids=ids(5, 2))  # noqa: E731
    whole, part = both(model, act, heads=[1, 3])
    for name, ours in part.calls.items():
        assert_is_part(ours, whole.calls[name], [1, 3])


def test_heads_and_queries_of_a_mask_by_head() -> None:
    model, q = Own(torch.rand(2, 4, 9, 9) > 0.3), torch.randn(3, 2, 4, 9, 8)
    whole, part = both(model, lambda: model(*q), heads=[0, 3], queries=[1, -1])
    assert_is_part(part.attention[0], whole.attention[0], [0, 3], [1, 8])


class Own(nn.Module):
    def __init__(self, mask: Tensor | None = None, **how: Any) -> None:
        super().__init__()
        self.mask, self.how = mask, how

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, self.mask, **self.how)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([0, 4], "head 4 is not there: it has heads 0 to 3: ask for these"),
        (slice(4, None), r"heads=slice\(4, None, None\) are not there"),
    ],
)
def test_heads_that_are_not_there_are_refused(heads: Any, message: str) -> None:
    model = build(GPT2, "sdpa")
    with pytest.raises(ValueError, match=message), torch.no_grad(), capture(model, heads=heads):
        model(ids(4))


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"heads": "all"}, TypeError, "heads is 'all': give integers, a slice, a range"),
        ({"heads": {}}, ValueError, "heads is an empty mapping"),
        ({"heads": {1.5: 0}}, TypeError, "heads has the layer 1.5: give a number, or the name"),
        (
            {"heads": {-1: 0}},
            ValueError,
            "heads has the layer -1, but the number of layers is known only after .* from 0",
        ),
        ({"heads": {0: "a"}}, TypeError, r"heads\[0\] is 'a': give integers"),
        ({"queries": []}, ValueError, "queries is empty"),
        ({"queries": 1.5}, TypeError, "queries is 1.5: give integers"),
    ],
)
def test_nonsense_is_refused_before_the_model_runs(how: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        capture(nn.Linear(2, 2), **how)


# Queries.


@pytest.mark.parametrize(
    ("name", "implementation", "queries", "padded"),
    [
        ("Llama", "sdpa", -1, None),
        ("Mistral", "eager", slice(2, 9, 3), "left"),
        ("GPT-2", "sdpa", [11, 0, 5], "right"),
        ("Mistral", "eager", slice(None, -10), "right"),
        ("Llama", "sdpa", slice(-5, None), "left"),
        *(
            pytest.param(name, implementation, queries, padded, marks=pytest.mark.thorough)
            for name, implementation in (("GPT-2", "sdpa"), ("Mistral", "eager"), ("Llama", "sdpa"))
            for queries in (0, -1, slice(-5, None), slice(2, 9, 3), range(4), [11, 0, 5], slice(None, -10))
            for padded in (None, "left", "right")
        ),
    ],
)
def test_some_queries_are_those_of_the_whole(name: str, implementation: str, queries: Any, padded: str | None) -> None:
    model, inputs = build(DECODERS[name], implementation), batch(padded)
    whole, part = both(model, lambda: model(**inputs), queries=queries)
    rows = Numbers(queries, "queries").of(12)
    for ours, theirs in zip(part.attention, whole.attention, strict=True):
        assert_is_part(ours, theirs, None, rows)
        assert ours.part is not None
        assert ours.part.queries == tuple(rows)


@pytest.mark.parametrize(
    ("queries", "cache"),
    [
        (slice(-4, None), "static"),
        ([0, 8, -2], "dynamic"),
        (slice(3, None, 4), "static"),
        *(
            pytest.param(queries, cache, marks=pytest.mark.thorough)
            for queries in (slice(-4, None), -1, [0, 8, -2], slice(3, None, 4), slice(None, 5))
            for cache in ("dynamic", "static")
        ),
    ],
)
def test_queries_of_a_generated_text_are_counted_over_all_of_it(queries: Any, cache: str) -> None:
    model = build(DECODERS["Llama"], "sdpa")
    how = {**NEW, **({"cache_implementation": cache} if cache == "static" else {})}
    whole, part = both(model, lambda: model.generate(ids(7, 2), **how), queries=queries)
    rows = Numbers(queries, "queries").of(12)
    for ours, theirs in zip(part.attention, whole.attention, strict=True):
        assert_is_part(ours, theirs, None, rows)


def test_queries_of_encoder_decoder_and_cross_attention() -> None:
    model = build(SEQUENCES["BART"], "sdpa")
    whole, part = both(model, lambda: model.generate(ids(9, 2), num_beams=1, **NEW), queries=slice(-3, None))
    assert list(part.calls) == list(whole.calls)
    for name, ours in part.calls.items():
        Q = whole.calls[name].shape.Q
        assert_is_part(ours, whole.calls[name], None, [Q - 3, Q - 2, Q - 1])


def test_heads_and_queries_of_beams_that_change_places() -> None:
    model = build(DECODERS["Llama"], "sdpa")
    whole, part = both(model, lambda: model.generate(ids(7), num_beams=3, **NEW), queries=slice(-4, None), heads=[1, 2])
    for ours, theirs in zip(part.attention, whole.attention, strict=True):
        assert_is_part(ours, theirs, [1, 2], list(range(theirs.shape.Q - 4, theirs.shape.Q)))


def test_memory_of_the_last_queries_is_bounded_while_a_text_grows() -> None:
    """Rows that cannot be among the last ones are dropped on the way; keys are all kept."""
    config = transformers.LlamaConfig(**{**GROUPED, "max_position_embeddings": 512})
    model, most = build(Kind(transformers.LlamaForCausalLM, config), "sdpa"), []
    model.model.layers[0].register_forward_hook(lambda *_: most.append(cap.attention[0].shape.Q))
    how = {"max_new_tokens": 160, "min_new_tokens": 160, "do_sample": False}
    with torch.no_grad(), capture(model, queries=slice(-8, None)) as cap:
        model.generate(ids(5), **how)
    assert max(most) <= 8 + 2 * SLACK
    assert (cap.attention[0].shape.Q, cap.attention[0].shape.K) == (8, 164)


def test_tokens_that_are_taken_back_leave_the_right_queries() -> None:
    """An assistant's guesses enter and leave the cache; the last queries are those of the text that stays."""
    q, k = torch.randn(2, 1, 2, 40, 8)

    def recorded(wanted: Numbers | None) -> Attention:
        keeper = TensorKeeper(queries=wanted)
        matcher = RecordMatcher(keeper, lambda name, cross: True, lambda name, call: None)
        for first, stop in ((0, 20), (20, 26), (22, 27), (24, 30), (30, 31)):
            matcher.begin()
            causal = torch.ones(stop - first, stop).tril(first).bool()[None, None]
            call = ObservedCall(q[:, :, first:stop], k[:, :, :stop], None, mask=causal, cached=True)
            with matcher.rejecting():
                matcher.add("attn", lambda call=call: call)
            matcher.end()
        ((record,),) = (records.values() for records in matcher.forwards)
        record.keep_queries()
        return record.attention

    whole = recorded(None)
    assert whole.shape.Q == 31
    for given in (slice(-8, None), [0, 22, 25, -1]):
        rows = Numbers(given, "queries").of(31)
        part = recorded(Numbers(given, "queries"))
        assert_close(part.block(head=1), whole.block(head=1)[rows], **rounding(whole).weights)
        assert part.part is not None
        assert part.part.queries == tuple(rows)


def test_more_tokens_taken_back_than_are_kept_are_told() -> None:
    kept = KeptQueries(Numbers(slice(-4, None), "queries"))
    for _ in range(4 * SLACK):
        kept.add(1)
        kept.positions = kept.positions[kept.passed() :]
    kept.remove(3 * SLACK)
    with pytest.raises(Unreadable, match=r"of its tokens were taken back.*ask for more queries"):
        kept.chosen()


@pytest.mark.parametrize("queries", [[40], slice(20, 30), -13])
def test_queries_that_are_not_there_are_refused(queries: Any) -> None:
    model = build(GPT2, "sdpa")
    refused = pytest.raises(ValueError, match=r"queries=.* names none of its 12 queries: ask for others")
    with refused, torch.no_grad(), capture(model, queries=queries):
        model(**batch())


def test_functions_of_flex_attention_know_the_heads_and_queries_of_the_model() -> None:
    """As the recorder reads it: mask_mod and score_mod are asked with the model's own indices."""
    from torch.nn.attention.flex_attention import create_block_mask

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx <= q_idx + h

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score - (q_idx - kv_idx) * 0.25 * h

    q, k = torch.randn(2, 1, 4, 32, 8)
    blocks = create_block_mask(mask_mod, 1, 4, 32, 32, device="cpu", BLOCK_SIZE=16)
    captures = []
    for wanted, heads in ((None, None), (Numbers([3, -2], "queries"), [1, 3])):
        matcher = RecordMatcher(TensorKeeper(queries=wanted), lambda *_: True, lambda *_, heads=heads: heads)
        matcher.add("flex", lambda: read_flex(q, k, k, score_mod, blocks.as_tuple(), 0.5))
        (record,) = matcher.forwards[0].values()
        record.keep_queries()
        captures.append(record.attention)
    whole, part = captures
    for i, head in enumerate((1, 3)):
        within = rounding(whole, added=32 * 0.25 * 3)
        assert_close(part.block(head=i), whole.block(head=head)[[3, 30]], **within.weights)
        assert torch.equal(part.block("allowed", head=i), whole.block("allowed", head=head)[[3, 30]])


def test_an_output_that_contradicts_the_call_is_refused_of_a_part_as_well() -> None:
    model, q = Own(), torch.randn(3, 1, 4, 9, 8)
    for how in ({"heads": [1]}, {"queries": slice(-2, None)}):
        matcher = RecordMatcher(TensorKeeper(**_queries(how)), lambda *_: True, lambda *_, how=how: how.get("heads"))
        callback = matcher.add("attn", lambda: ObservedCall(*q))
        assert callback is not None
        callback(2 * model(*q))
        assert list(matcher.remove_faulty()) == ["attn"]


def _queries(how: dict[str, Any]) -> dict[str, Any]:
    return {"queries": Numbers(how["queries"], "queries")} if "queries" in how else {}


# What is told.


def test_a_part_says_which_heads_and_queries_it_has(tmp_path: Path) -> None:
    model = build(GPT2, "sdpa")
    with torch.no_grad(), capture(model, heads=[1, 3], queries=slice(-3, None)) as cap:
        model(**batch())
    assert "heads 1, 3; queries 9 to 11" in repr(cap.attention[0])
    cap.save(tmp_path / "part.safetensors")
    for found in (cap, Capture.load(tmp_path / "part.safetensors")):
        w = found.widget()
        assert w.facts["layers"][0] == "transformer.h.0.attn (heads 1, 3; queries 9 to 11)"
        assert w.title == "of the model: heads 1, 3; queries 9 to 11"
        assert w.tokens == ["9", "10", "11"]
        assert found.attention[0].part == cap.attention[0].part
        assert [(one["head"], one["model_head"]) for one in found.metrics(0)[:2]] == [(0, 1), (1, 3)]
        assert found.attention.names[0] == "transformer.h.0.attn"
        found.attention[0].what_if({"scale": 1.0})
        assert found.attention[0].what_if({"scale": 1.0}).part == found.attention[0].part


@pytest.mark.filterwarnings("ignore:.*is one list but the 2 samples")
def test_tokens_of_the_whole_text_name_the_queries_that_are_kept() -> None:
    model, words = build(GPT2, "sdpa"), [f"w{i}" for i in range(12)]
    with torch.no_grad(), capture(model, queries=[2, -1]) as cap:
        model(**batch())
    for tokens in (words, [words, words]):
        w = cap.widget(tokens=tokens)
        assert w.as_strings("tokens") in (["w2", "w11"], [["w2", "w11"]] * 2)
        assert w.as_strings("key_tokens") == tokens
    w = cap.widget(tokens=["a", "b"], key_tokens=words)
    assert w.tokens == ["a", "b"]
    assert isinstance(w, AttentionWidget)


def test_the_title_of_a_part_follows_what_is_shown_unless_there_is_another() -> None:
    model = build(GPT2, "sdpa")
    with torch.no_grad():
        part, whole = (capture(model, heads=heads).run(**batch()).attention[0] for heads in ([1], None))
    shown, named = AttentionWidget.from_attention(part), AttentionWidget.from_attention(part, title="mine")
    assert shown.title == "of the model: head 1"
    shown.attention = named.attention = whole
    assert (shown.title, named.title) == ("", "mine")
