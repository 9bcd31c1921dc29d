"""Edits while a model generates: each step is edited as the same place of the whole text would be."""

from __future__ import annotations

import itertools
from typing import Any

import edited_copies as copies
import pytest
import torch
from captured import DECODERS, GROUPED, SEQUENCES, Kind, batch, build
from left_to_thorough import left_to_thorough
from tolerance import assert_as_near
from torch import Tensor

from attnwidget import capture, intervene

transformers = pytest.importorskip("transformers")
NEW = 6
HOW = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": NEW, "min_new_tokens": NEW}
TOLD = {"output_logits": True, "return_dict_in_generate": True}
EDITS: dict[str, Any] = {
    "zero": "zero",
    "even": "uniform",
    "drop_keys": {"drop_keys": [1, 13]},
    "drop_keys from the end of the prompt": {"drop_keys": [-1]},
    "block": {"block": (slice(11, 15), [2, 12])},
    "block without renormalizing": {"block": ([12, 13], slice(3, 9)), "renormalize": False},
    "window": {"window": 3},
    "temperature": {"temperature": 3.0},
    "output": {"output": [0.5, -1, 2, 0, 1, 3, -2, 1]},
}
WHOLE_TEXT: dict[str, Any] = {**EDITS, "drop_keys from the end of the prompt": {"drop_keys": [11]}}


def text_of(padded: str | None) -> dict[str, Tensor]:
    inputs = batch(padded)
    del inputs["position_ids"]
    return inputs


def in_one_pass(model: Any, text: Tensor, padded: str | None, edits: dict[Any, Any]) -> Tensor:
    """Logits of the new tokens, of the whole text at once."""
    mask = torch.cat([batch(padded)["attention_mask"], torch.ones(2, text.shape[1] - 12, dtype=torch.long)], 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    dtype = next(model.parameters()).dtype
    wide = copies.AllInFloat64() if dtype is torch.float64 else torch.no_grad()
    with torch.no_grad(), wide, intervene(model, edits):
        return model(text, attention_mask=mask, position_ids=positions).logits[:, 11:-1]


# Each edit, with each cache, padding and model at least twice.
EACH_COMMIT = [
    ("GPT-2", "dynamic", "left", "drop_keys from the end of the prompt"),
    ("GPT-2", "static", None, "even"),
    ("Llama", "dynamic", None, "zero"),
    ("Llama", "static", "left", "drop_keys"),
    ("Llama", "static", "left", "block"),
    ("Mistral", "dynamic", "left", "block without renormalizing"),
    ("Mistral", "dynamic", "left", "window"),
    ("Mistral", "static", None, "temperature"),
    ("GPT-2", "dynamic", "left", "output"),
]


@pytest.mark.parametrize(
    ("name", "cache", "padded", "edit"),
    left_to_thorough(
        itertools.product(["GPT-2", "Llama", "Mistral"], ["dynamic", "static"], [None, "left"], EDITS), EACH_COMMIT
    ),
)
def test_each_step_is_edited_as_in_one_pass(name: str, cache: str, padded: str | None, edit: str) -> None:
    model = copies.sharpened(build(DECODERS[name], "sdpa"), 3.0)
    edits, whole = {(1, (0, 2)): EDITS[edit]}, {(1, (0, 2)): WHOLE_TEXT[edit]}
    with torch.no_grad(), intervene(model, edits) as run:
        found = model.generate(**text_of(padded), cache_implementation=cache, **HOW, **TOLD)
    assert list(run.edited.values()) == [(0, 2)]
    ours = torch.stack(found.logits, 1)
    theirs = in_one_pass(model, found.sequences, padded, whole)
    exact = in_one_pass(copies.doubled(model), found.sequences, padded, whole)
    assert_as_near(ours, theirs, exact)


SINKS = Kind(
    transformers.GptOssForCausalLM,
    transformers.GptOssConfig(**GROUPED, sliding_window=4, num_local_experts=2, num_experts_per_tok=1),
)


OTHERS = {"Gemma 2": DECODERS["Gemma 2"], "gpt-oss": SINKS}


@pytest.mark.parametrize(
    ("name", "edit"),
    left_to_thorough(
        itertools.product(OTHERS, ["even", "block", "temperature"]), [("Gemma 2", "temperature"), ("gpt-oss", "block")]
    ),
)
def test_softcaps_and_sinks_in_each_step(name: str, edit: str) -> None:
    kind = OTHERS[name]

    def model_of() -> Any:
        model = copies.sharpened(build(kind, "eager"), 3.0)
        if kind is SINKS:  # of experts, torch has kernels without float64
            model.config._experts_implementation = "eager"
            for i, module in enumerate(one for one in model.modules() if hasattr(one, "sinks")):
                module.sinks.data.copy_(torch.randn(6, generator=torch.Generator().manual_seed(i)))
        return model

    model, edits = model_of(), {(layer, (0, 2)): EDITS[edit] for layer in range(2)}
    with torch.no_grad(), intervene(model, edits) as run:
        found = model.generate(**text_of("left"), **HOW, **TOLD)
    assert list(run.edited.values()) == [(0, 2)] * 2
    theirs = in_one_pass(model, found.sequences, "left", edits)
    exact = in_one_pass(copies.doubled(model_of()), found.sequences, "left", edits)
    assert_as_near(torch.stack(found.logits, 1), theirs, exact)


def test_a_cache_of_a_window_holds_the_places_of_the_whole_text() -> None:
    model = copies.sharpened(build(DECODERS["Mistral"], "sdpa"), 3.0)
    edits = {(1, 0): {"drop_keys": [10, 12]}}
    with torch.no_grad(), intervene(model, edits):
        found = model.generate(**text_of(None), cache_implementation="dynamic", **HOW, **TOLD)
        plain = found.sequences
    with torch.no_grad():
        other = model.generate(**text_of(None), **HOW, **TOLD)
    edited = in_one_pass(model, plain, None, edits)
    assert_as_near(torch.stack(found.logits, 1), edited, in_one_pass(copies.doubled(model), plain, None, edits))
    assert not torch.equal(torch.stack(found.logits, 1), torch.stack(other.logits, 1))


@pytest.mark.parametrize("take", ["weights", "outputs"])
def test_another_generation_is_put_in_place_step_by_step(take: str) -> None:
    model = copies.sharpened(build(DECODERS["Llama"], "sdpa"), 3.0)
    forced = {**HOW, **TOLD}
    with torch.no_grad(), capture(model) as cap:
        plain = model.generate(**text_of(None), **forced)
    with torch.no_grad(), intervene(model, {0: {"from": cap, "take": take}, 1: {"from": cap, "take": take}}):
        again = model.generate(**text_of(None), **forced)
    assert torch.equal(again.sequences, plain.sequences)
    torch.testing.assert_close(torch.stack(again.logits), torch.stack(plain.logits), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("edit", [{"drop_keys": [0, 3]}, {"block": (slice(2, 5), [0, 3])}], ids=["keys", "block"])
def test_cross_attention_of_a_generation_is_edited_at_each_step(edit: Any) -> None:
    model = copies.sharpened(build(SEQUENCES["BART"], "sdpa"), 3.0)
    inputs = text_of("right")
    edits = {(1, (1, 2)): edit}
    how = {**HOW, **TOLD, "decoder_start_token_id": 2}
    with torch.no_grad(), intervene(model, edits, cross=True) as run:
        found = model.generate(**inputs, **how)
    assert run.edited == {"model.decoder.layers.1.encoder_attn": (1, 2)}
    with torch.no_grad(), intervene(model, edits, cross=True):
        theirs = model(**inputs, decoder_input_ids=found.sequences[:, :-1]).logits
    wide = copies.doubled(model)
    with torch.no_grad(), copies.AllInFloat64(), intervene(wide, edits, cross=True):
        exact = wide(**inputs, decoder_input_ids=found.sequences[:, :-1]).logits
    assert_as_near(torch.stack(found.logits, 1), theirs[:, -NEW:], exact[:, -NEW:])


@pytest.mark.parametrize("beams", [2])
def test_beams_are_edited_too(beams: int) -> None:
    model = copies.sharpened(build(DECODERS["GPT-2"], "sdpa"), 3.0)
    edits = {(0, 1): {"drop_keys": [2]}}
    eager = copies.sharpened(build(DECODERS["GPT-2"], "eager"), 3.0)
    texts = []
    for one in (model, eager):
        with torch.no_grad(), intervene(one, edits):
            texts.append(one.generate(**text_of(None), num_beams=beams, **HOW))
    assert torch.equal(*texts)
