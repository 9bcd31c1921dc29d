"""cap.widget(padding=False): each sample of a padded batch by itself, at its own positions, with the same weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from captured import DECODERS, GPT2, SEQUENCES, batch, build
from test_image_patches import IMAGE, pixels_of, qwen
from tolerance import rounding
from torch import Tensor

from attnwidget import Attention, AttentionWidget, Capture, capture, segments
from attnwidget._capture.text.unpadded import (
    TITLE,
    UnpaddedSample,
    part_of,
    part_of_segments,
    sample_named,
    unpadded_positions,
)

pytest.importorskip("transformers")


class Words:
    """A tokenizer, as far as labels need one."""

    def convert_ids_to_tokens(self, one: int) -> str:
        return f"word{one}"


def captured(model: Any, tokenizer: Any = None, **how: Any) -> Any:
    """Return a function that runs the model, and returns the capture."""

    def run(generate: dict[str, Any] | None = None, **inputs: Any) -> Capture:
        with torch.no_grad(), capture(model, tokenizer=tokenizer or Words(), **how) as cap:
            model.generate(**inputs, **generate, do_sample=False) if generate else model(**inputs)
        return cap

    return run


def span(real: Tensor) -> slice:
    """Return the positions from the first to the last that is no padding."""
    at = real.nonzero().flatten().tolist()
    return slice(at[0], at[-1] + 1)


def assert_rows(shown: Attention, raw: Attention, sample: int, queries: slice, keys: slice) -> None:
    """The only sample that is shown has the rows of the batch, of which nothing was left out but zeros."""
    assert shown.shape.B == 1
    near = rounding(raw).weights
    for head in range(raw.shape.H):
        whole = raw.block(batch=sample, head=head)[queries]
        torch.testing.assert_close(shown.block(head=head), whole[:, keys], **near)
        left_out = whole.clone()
        left_out[:, keys] = 0
        assert not left_out.any()
        outputs = raw.block("contribution", batch=sample, head=head)[queries, keys]
        torch.testing.assert_close(shown.block("contribution", head=head), outputs, **rounding(raw).contribution)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("name", "implementation"), [(n, i) for n, kind in DECODERS.items() for i in kind[2]])
def test_a_decoder_shows_each_sample_without_its_padding(side: str, name: str, implementation: str) -> None:
    inputs = batch(side)
    real = inputs["attention_mask"].bool()
    cap = captured(build(DECODERS[name], implementation))(**inputs)
    w = cap.widget(padding=False)
    assert w.stacks == tuple(f"sample {b}" for b in range(len(real)))
    assert w.title == TITLE
    for b, there in enumerate(real):
        w.stack, own = f"sample {b}", span(there)
        stack: Any = w.attention
        for layer, att in enumerate(stack):
            assert_rows(att, cap.attention[layer], b, own, own)
        assert w.tokens == [f"word{one}" for one in inputs["input_ids"][b][own].tolist()]
        assert (w.facts["queries"], w.facts["keys"], w.facts["batches"]) == (int(there.sum()),) * 2 + (1,)
        assert w.facts["is_causal"] == (name not in ("Mistral", "Gemma 2"))
    assert not real.all()


@pytest.mark.parametrize("name", [*SEQUENCES])
def test_a_translation_leaves_out_the_padding_of_the_source_among_the_keys(name: str) -> None:
    inputs, model = batch("right"), build(SEQUENCES[name], "eager")
    target = torch.randint(3, 50, (len(inputs["input_ids"]), 4), generator=torch.Generator().manual_seed(2))
    cap = captured(model)(**inputs, decoder_input_ids=target)
    w = cap.widget(padding=False, stack="encoder")
    for b, there in enumerate(inputs["attention_mask"].bool()):
        own, every = span(there), slice(0, 4)
        w.stack = f"encoder, sample {b}"
        assert_rows(w.attention[0], cap["encoder"][0], b, own, own)
        w.stack = f"decoder, cross-attention, sample {b}"
        assert_rows(w.attention[1], cap.cross[1], b, every, own)
        assert w.key_tokens == [f"word{one}" for one in inputs["input_ids"][b][own].tolist()]
        assert w.tokens == [f"word{one}" for one in target[b].tolist()]
        w.stack = f"decoder, sample {b}"
        assert_rows(w.attention[1], cap["decoder"][1], b, every, every)


def test_what_was_generated_after_padding_on_the_left() -> None:
    inputs = batch("left")
    real = inputs["attention_mask"].bool()
    cap = captured(build(DECODERS["Llama"], "sdpa"))(
        {"max_new_tokens": 4, "min_new_tokens": 4, "pad_token_id": 0}, **inputs
    )
    w = cap.widget(padding=False, batch=1)
    total, start = cap.attention[0].shape.Q, span(real[1]).start
    own = slice(start, total)
    assert w.stack == "sample 1"
    assert_rows(w.attention[0], cap.attention[0], 1, own, own)
    prompt = int(real[1].sum())
    assert [(one.name, one.start, one.stop) for one in w.segments.entries if one.name == "answer"] == [
        ("answer", prompt, total - start)
    ]


def test_kept_queries_and_heads_have_their_own_keys() -> None:
    inputs = batch("left")
    real = inputs["attention_mask"].bool()
    cap = captured(build(GPT2, "sdpa"), queries=slice(-3, None), heads=[1, 3])(**inputs)
    w = cap.widget(padding=False, batch=0)
    own, (raw, _) = span(real[0]), cap.attention
    assert_rows(w.attention[0], raw, 0, slice(None), own)
    assert w.facts["head_numbers"] == [1, 3]
    found = w.attention[0].own_keys(range(3))
    assert list(found) == [own.stop - own.start - 3 + i for i in range(3)]


def test_which_sample_is_first_and_what_is_not_there() -> None:
    cap = captured(build(GPT2, "sdpa"))(**batch("right"))
    assert cap.widget(padding=False, stack="sample 1").stack == "sample 1"
    with pytest.raises(IndexError, match="batch 9 is not there"):
        cap.widget(padding=False, batch=9)
    with pytest.raises(ValueError, match="the model runs the whole batch"):
        cap.widget(padding=False, model=build(GPT2, "sdpa"))
    assert sample_named("decoder, cross-attention, sample 12") == ("decoder, cross-attention", 12)
    assert sample_named("decoder") == ("decoder", None)
    assert sample_named(None) == (None, None)


def test_without_padding_nothing_is_changed_and_by_default_it_keeps_its_places() -> None:
    padded, whole = batch("right"), batch()
    model = build(GPT2, "sdpa")
    w = captured(model)(**whole).widget(padding=False, batch=1)
    assert (w.stacks, w.batch, w.title) == (("",), 1, "")
    cap = captured(model)(**padded)
    kept = cap.widget(batch=1)
    assert (kept.batch, kept.facts["queries"]) == (1, cap.attention[0].shape.Q)
    assert "[PAD]" in cap.tokens[int((~padded["attention_mask"].bool()).any(1).nonzero()[0])]


def test_ids_and_tokens_of_a_user_are_cut_as_well() -> None:
    inputs = batch("right")
    real = inputs["attention_mask"].bool()
    cap = captured(build(GPT2, "sdpa"), tokenizer="unknown")(**inputs)
    words = [[f"{b}.{i}" for i in range(real.shape[1])] for b in range(len(real))]
    for b, there in enumerate(real):
        w: AttentionWidget = cap.widget(words, padding=False, batch=b)
        assert w.tokens == words[b][span(there)]
        assert cap.widget(padding=False, batch=b).tokens is None


def test_overviews_alone_are_refused() -> None:
    cap = captured(build(GPT2, "sdpa"), keep="overview")(**batch("right"))
    with pytest.raises(ValueError, match="keep='overview'"):
        cap.widget(padding=False)


class SeesPadding(torch.nn.Module):
    """A model that is told of padding, and attends to it all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attention = torch.nn.Embedding(50, 8), torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return what its only layer gives."""
        x = self.embed(input_ids)
        return self.attention(x, x, x)[0]  # type: ignore[no-any-return]


def test_a_sample_that_attends_to_its_padding_is_refused() -> None:
    inputs = batch("right")
    del inputs["position_ids"]
    cap = captured(SeesPadding())(**inputs)
    padded = int((inputs["attention_mask"] == 0).any(1).nonzero()[0])
    with pytest.raises(ValueError, match="attends to its padding"):
        cap.widget(padding=False, batch=padded)


# A part of an attention, whatever its rules; all sizes differ.

B, H, G, Q, K, D, DV = 3, 4, 2, 6, 9, 5, 7
QUERIES, KEYS = range(1, 5), range(2, 8)
SLOPES = torch.tensor([0.5, -0.25, 1.0, 0.1])


def within(*sizes: int) -> Tensor:
    """Return cells (B or 1, H or 1, Q, K) of which those of other keys than the part's are blocked."""
    keep = torch.rand(sizes, generator=torch.Generator().manual_seed(sum(sizes))) > 0.3
    keep[..., KEYS.start] = True
    places = torch.arange(K)
    return keep & (places >= KEYS.start) & (places < KEYS.stop)


def sloped(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return score + SLOPES[h] * (kv_idx - 2 * q_idx) + 0.3 * b * kv_idx


RULES: dict[str, Any] = {
    "cells": lambda: {"mask": within(B, H, Q, K)},
    "cells of samples": lambda: {"mask": within(B, 1, Q, K), "scale": -0.6},
    "cells of heads": lambda: {"mask": within(1, H, Q, K), "softcap": 0.9},
    "cells of all": lambda: {"mask": within(Q, K), "sinks": 2 * SLOPES},
    "floats": lambda: {"mask": torch.randn(B, 1, Q, K).masked_fill(~within(B, 1, Q, K), -torch.inf)},
    "bias": lambda: {"mask": within(B, 1, Q, K), "bias": torch.randn(1, H, Q, K)},
    "bias of keys": lambda: {"mask": within(B, H, Q, K), "bias": torch.randn(B, 1, 1, K)},
    "bias of queries and floats": lambda: {
        "mask": torch.randn(1, H, Q, K).masked_fill(~within(1, H, Q, K), -torch.inf),
        "bias": torch.randn(B, H, Q, 1),
    },
    "a function of the score": lambda: {"mask": within(B, 1, Q, K), "bias": sloped},
    "causal": lambda: {"mask": within(B, 1, Q, K), "is_causal": True},
}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("sample", [0, 2])
def test_a_part_of_a_sample_has_its_cells_of_the_whole(rules: str, sample: int) -> None:
    q, k, v = torch.randn(B, H, Q, D), torch.randn(B, G, K, D), torch.randn(B, G, K, DV)
    whole = Attention(q, k, v, **RULES[rules]())
    part = part_of(whole, sample, QUERIES, KEYS)
    assert part.shape[:5] == (1, H, G, len(QUERIES), len(KEYS))
    near = rounding(whole, added=40.0)
    for head in range(H):
        for stage in ("allowed", "weights", "masked"):
            found = part.block(stage, head=head)
            wanted = whole.block(stage, batch=sample, head=head)[QUERIES.start : QUERIES.stop, KEYS.start : KEYS.stop]
            torch.testing.assert_close(found, wanted, **({"rtol": 0, "atol": 0} if stage == "allowed" else near[stage]))
        output = whole.output(sample, head)[QUERIES.start : QUERIES.stop]
        torch.testing.assert_close(part.output(0, head), output, **near.output)
        if whole.sinks is not None:
            left = whole.sink_weights(sample, head)[QUERIES.start : QUERIES.stop]
            torch.testing.assert_close(part.sink_weights(0, head), left, **near.weights)


def test_a_part_that_would_lose_a_key_that_is_attended_to_is_refused() -> None:
    q, k = torch.randn(B, H, Q, D), torch.randn(B, G, K, D)
    for place, query, is_told in ((1, 2, True), (8, 4, True), (1, 0, False), (8, 5, False)):
        mask = within(B, H, Q, K)
        mask[2, 3, query, place] = True  # of the last head of the last sample alone
        if is_told:
            with pytest.raises(ValueError, match="sample 2 attends to its padding"):
                part_of(Attention(q, k, mask=mask), 2, QUERIES, KEYS)
        else:  # by a query that is left out
            part_of(Attention(q, k, mask=mask), 2, QUERIES, KEYS)
        part_of(Attention(q, k, mask=mask), 0, QUERIES, KEYS)


@pytest.mark.parametrize(
    ("part", "own"),
    [
        ((None, None, None, False), None),
        ((None, None, 3, False), [2, 3, 4, 5]),  # query 1 at key 4, which is the part's third
        (((0, 2, 3, 7), None, 3, False), [2, 3, 4, 5]),
        ((None, (0, 3, 4, 5, 7, 8), 0, False), [1, 2, 3, 5]),
        ((None, None, None, True), None),
    ],
)
def test_queries_of_a_part_keep_their_own_places_among_its_keys(part: Any, own: list[int] | None) -> None:
    q, k = torch.randn(B, H, Q, D), torch.randn(B, G, K, D)
    whole = Attention(q, k, mask=within(1, 1, Q, K)).as_part(*part)
    found = part_of(whole, 1, QUERIES, KEYS)
    places = found.own_keys(range(len(QUERIES)))
    assert (None if places is None else [*places]) == own
    if own is not None:
        of_whole = whole.own_keys(QUERIES)
        assert of_whole is not None
        assert [*of_whole] == [place + KEYS.start for place in own]
    assert (found.part and found.part.heads) == part[0]


def test_padding_before_an_image_moves_its_grid() -> None:
    """An image of two rows and four columns, at the same places of two samples; one has padding before it."""
    model, grids = qwen(), torch.tensor([[1, 4, 8], [1, 4, 8]])
    ids = torch.randint(3, 50, (2, 20), generator=torch.Generator().manual_seed(1))
    ids[:, 6:14] = IMAGE
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    how = {"pixel_values": pixels_of(grids), "mm_token_type_ids": (ids == IMAGE).long(), "image_grid_thw": grids}
    cap = captured(model.eval())(input_ids=ids, attention_mask=mask, **how)
    w = cap.widget(padding=False, stack="language_model")
    for sample, start in ((0, 6), (1, 3)):
        w.stack = f"language_model, sample {sample}"
        assert (w.grid, w.grid_start, w.grid_side) == ((2, 4), start, "both")
        assert w.tokens[start : start + 8] == [f"row {row}, {column}" for row in range(2) for column in range(4)]
    whole = cap.widget(stack="language_model")
    assert (whole.grid, whole.grid_start) == ((2, 4), 6)


def test_positions_of_a_sample_reach_from_its_first_to_its_last_token() -> None:
    real = torch.tensor([[0, 1, 0, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]]).bool()
    side: Any = SimpleNamespace(real=real, length=5)
    assert [unpadded_positions(side, b) for b in range(4)] == [range(1, 4), range(5), range(5), range(4, 5)]
    side.real = None
    assert unpadded_positions(side, 0) == range(5)


def test_segments_are_counted_from_the_first_position_that_is_left() -> None:
    whole = segments({"a": (0, 3), "b": (3, 6), "c": (6, 11)}, length=11)
    found = part_of_segments(whole, range(2, 8))
    assert [(one.name, one.start, one.stop) for one in found.entries] == [("a", 0, 1), ("b", 1, 4), ("c", 4, 6)]
    assert found.length == 6
    found = part_of_segments(whole, range(3, 6))
    assert [(one.name, one.start, one.stop) for one in found.entries] == [("b", 0, 3)]
    assert found.answer == "b"


def test_a_text_with_as_many_queries_as_keys_keeps_its_places_when_ends_are_left_out() -> None:
    q, k = torch.randn(B, H, K, D), torch.randn(B, G, K, D)
    mask = torch.zeros(1, 1, K, K, dtype=torch.bool)
    mask[..., KEYS.start : KEYS.stop] = True
    whole = Attention(q, k, mask=mask)
    for queries, own in ((range(3, 6), [1, 2, 3]), (range(2, 8), [0, 1, 2, 3, 4, 5]), (range(4, 8), [2, 3, 4, 5])):
        places = part_of(whole, 1, queries, KEYS).own_keys(range(len(queries)))
        assert places is not None
        assert [*places] == own
    elsewhere = part_of(whole.as_part(None, None, None, True), 1, range(2, 8), KEYS)
    assert elsewhere.own_keys(range(6)) is None


@pytest.mark.parametrize(("side", "start"), [("query", 4), ("key", 2), ("both", 4)])
def test_the_grid_of_a_side_moves_with_the_padding_of_that_side(side: str, start: int) -> None:
    """One position of the queries is padding, and three of the keys."""
    queries, keys = torch.ones(2, 9), torch.ones(2, 11)
    queries[1, :1], keys[1, :3] = 0, 0
    found = {"grid": (2, 3), "grid_start": 5, "grid_side": side}
    sides = [SimpleNamespace(real=real.bool(), length=real.shape[1]) for real in (queries, keys)]
    stack: Any = SimpleNamespace(queries=sides[0], keys=sides[1], grids=lambda: dict(found))
    assert UnpaddedSample(stack, 0).grids() == found
    assert UnpaddedSample(stack, 1).grids() == {**found, "grid_start": start}
    found["grid_start"] = 0  # an image whose first patch is padding has no grid
    assert UnpaddedSample(stack, 1).grids() == {}
    stack.grids = dict
    assert UnpaddedSample(stack, 1).grids() == {}
