"""cap.widget(padding=False): each sample of a padded batch by itself, at its own positions, with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from captured import DECODERS, GPT2, SEQUENCES, batch, build
from tolerance import rounding
from torch import Tensor

from attnwidget import Attention, AttentionWidget, Capture, capture
from attnwidget._capture.own_positions import TITLE, sample_named

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
    with pytest.raises(ValueError, match="run with the whole batch"):
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
