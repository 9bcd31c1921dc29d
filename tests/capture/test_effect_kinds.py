"""Sweeps of models of many kinds: each number is that of the same edit in an eager copy, or it is refused."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import edited_copies as copies
import pytest
import torch
from captured import COMMON, DECODERS, GROUPED, SEQUENCES, Kind, batch, build, transformers
from left_to_thorough import left_to_thorough
from torch import Tensor
from torch.testing import assert_close

from attnwidget import capture, effect, segments, sweep

IDS = batch()["input_ids"]
NEAR = {"rtol": 1e-3, "atol": 1e-4}
VIT = transformers.ViTConfig(**COMMON, image_size=16, patch_size=4, num_labels=5)
VISION = Kind(transformers.ViTForImageClassification, VIT)
ENDS = Kind(transformers.LlamaForSequenceClassification, transformers.LlamaConfig(**GROUPED, num_labels=3))


def pair(kind: Kind) -> tuple[Any, Any]:
    return tuple(copies.sharpened(build(kind, one), 3.0) for one in ("sdpa", "eager"))  # type: ignore[return-value]


def cut(keys: list[int]) -> Callable[[Tensor], Tensor]:
    return lambda scores: scores.softmax(-1).index_fill(-1, torch.tensor(keys), 0)


def dropped(keys: list[int]) -> Callable[[Tensor], Tensor]:
    return copies.without(lambda rows, places: torch.isin(places, torch.tensor(keys)))


def after(eager: Any, inputs: dict[str, Tensor], softmaxes: list[int], heads: range, edit: Any) -> Tensor:
    """Logits of an eager copy in which these heads are edited."""
    edits = {(number, head): edit for number in softmaxes for head in heads}
    found: Tensor = copies.run(copy.deepcopy(eager), inputs, edits).logits
    return found


def told(found: Any) -> Tensor:
    return torch.tensor([one["after"] for one in found], dtype=torch.float64)


def of_token(logits: Tensor, token: int) -> Tensor:
    return logits.double().log_softmax(-1)[token]


@pytest.mark.parametrize("name", left_to_thorough(SEQUENCES, ["BART"]))
def test_an_encoder_and_a_decoder(name: str) -> None:
    model, eager = pair(SEQUENCES[name])
    real = batch("right")["attention_mask"]
    inputs = {"input_ids": IDS, "attention_mask": real, "decoder_input_ids": IDS[:, :5]}
    with torch.no_grad():
        calls = list(capture(eager).run(**inputs).calls.values())
    numbers = {
        cross: [i for i, one in enumerate(calls) if (one.shape.Q != one.shape.K) is cross] for cross in (False, True)
    }
    assert [len(one) for one in numbers.values()] == [4, 2]

    def wanted(softmaxes: list[int], heads: range, edit: Any) -> Tensor:
        return of_token(after(eager, inputs, softmaxes, heads, edit)[1, 4], 7)

    how: dict[str, Any] = {"target": 7, "batch": 1}
    for cross in (False, True):
        found = sweep(model, inputs, over="heads", cross=cross, **how)
        own = [wanted([numbers[cross][x["layer"]]], range(x["head"], x["head"] + 1), copies.zero) for x in found]
        assert_close(told(found), torch.stack(own), **NEAR)
        found = sweep(model, inputs, over="layers", cross=cross, edit="uniform", **how)
        assert len(found) == len(numbers[cross])
    found = sweep(model, inputs, over="keys", cross=True, **how)
    assert [one["key"] for one in found] == list(range(7))  # the others are padding
    own = [wanted(numbers[True], range(4), dropped([one["key"]])) for one in found]
    assert_close(told(found), torch.stack(own), **NEAR)
    parts = segments({"a": (1, 3), "b": (4, 9)}, length=12)
    for where, more in ((numbers[True], {"cross": True}), (numbers[False][:2], {"layers": [0, 1]})):
        found = [
            x for x in sweep(model, inputs, over="segments", segments=parts, **more, **how) if x["segment"] in "ab"
        ]
        assert [(one["segment"], one["tokens"]) for one in found] == [("a", 2), ("b", 3)]  # two of b are padding
        own = [wanted(where, range(4), dropped([1, 2])), wanted(where, range(4), dropped(list(range(4, 9))))]
        assert_close(told(found), torch.stack(own), **NEAR)
    for over in ("keys", "segments"):
        with pytest.raises(ValueError, match="attend to several texts, layer 0 to 12 keys, layer 2 to 5 keys"):
            sweep(model, inputs, over=over, segments=parts, **how)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="attend to several texts"):  # also where both are as long
            sweep(model, inputs | {"decoder_input_ids": IDS}, over=over, segments=parts, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("padded", "edit"),
    left_to_thorough(itertools.product(["left", "right"], ["zero", "cut"]), [("left", "zero"), ("right", "cut")]),
)
def test_a_batch_with_padding(padded: str, edit: str) -> None:
    model, eager = pair(DECODERS["Llama"])
    inputs = batch(padded)
    places = inputs["attention_mask"][1].nonzero().flatten().tolist()
    made = dropped if edit == "zero" else cut
    how: dict[str, Any] = {"target": 7, "batch": 1, "edit": edit}
    found = sweep(model, inputs, over="keys", **how)
    assert [one["key"] for one in found] == places
    own = [of_token(after(eager, inputs, [0, 1], range(6), made([x]))[1, places[-1]], 7) for x in places]
    assert_close(told(found), torch.stack(own), **NEAR)
    parts = segments({"a": (1, 6), "b": (6, 9)}, length=12)
    found = sweep(model, inputs, over="segments", segments=parts, **how)
    of_parts = {name: [x for x in parts.positions(name).tolist() if x in places] for name in parts.distinct}
    assert [(x["segment"], x["tokens"]) for x in found] == [(a, len(b)) for a, b in of_parts.items() if b]
    own = [of_token(after(eager, inputs, [0, 1], range(6), made(b))[1, places[-1]], 7) for b in of_parts.values() if b]
    assert_close(told(found), torch.stack(own), **NEAR)


def test_the_first_token_of_a_text_after_padding_is_not_guessed() -> None:
    model = build(DECODERS["Llama"], "sdpa")
    how: dict[str, Any] = {"over": "segments", "segments": {"a": (6, 9)}, "target": 7}
    with pytest.raises(ValueError, match=r"sample 1 begins with padding.*give tokenizer="):
        sweep(model, batch("left"), batch=1, **how)
    assert "first token" in [one["segment"] for one in sweep(model, batch("left"), batch=0, **how)]


@pytest.mark.parametrize("sample", left_to_thorough([0, 1], [1]))
def test_a_vision_model(sample: int) -> None:
    model, eager = pair(VISION)
    inputs = {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))}
    how: dict[str, Any] = {"target": 3, "batch": sample}

    def wanted(softmaxes: list[int], heads: range, edit: Any) -> Tensor:
        return of_token(after(eager, inputs, softmaxes, heads, edit)[sample], 3)

    found = sweep(model, inputs, over="keys", **how)
    assert len(found) == 17
    assert_close(told(found), torch.stack([wanted([0, 1], range(4), dropped([x["key"]])) for x in found]), **NEAR)
    found = sweep(model, inputs, over="heads", **how)
    own = [wanted([x["layer"]], range(x["head"], x["head"] + 1), copies.zero) for x in found]
    assert_close(told(found), torch.stack(own), **NEAR)
    found = sweep(model, inputs, over="segments", segments={"upper half": (1, 9)}, **how)
    upper = next(x for x in found if x["segment"] == "upper half")
    assert_close(told([upper])[0], wanted([0, 1], range(4), dropped(list(range(1, 9)))), **NEAR)


def test_classes_of_a_text_with_padding() -> None:
    model, eager = pair(ENDS)
    inputs = {name: x for name, x in batch("right").items() if name != "position_ids"}
    found = sweep(model, inputs, over="heads", target=2, batch=1)
    own = [
        of_token(after(eager, inputs, [x["layer"]], range(x["head"], x["head"] + 1), copies.zero)[1], 2) for x in found
    ]
    assert_close(told(found), torch.stack(own), **NEAR)


def test_positions_of_an_output_that_has_some_only_are_refused() -> None:
    model = build(DECODERS["Llama"], "sdpa")
    for some in (1, 6, torch.tensor([3])):
        with pytest.raises(ValueError, match=r"inputs have logits_to_keep.*leave it out"):
            effect(model, {**batch("right"), "logits_to_keep": some}, {0: "zero"}, target=7, batch=1)
    assert effect(model, {**batch("right"), "logits_to_keep": 0}, {0: "zero"}, target=7, batch=1).at == 6


@pytest.mark.parametrize("at", [[3, 4], range(3), torch.tensor([3, 4]), 3.0, True])
def test_several_positions_are_no_position(at: Any) -> None:
    with pytest.raises(TypeError, match="give a position, such as −1"):
        effect(build(DECODERS["Llama"], "sdpa"), {"input_ids": IDS}, {0: "zero"}, target=7, at=at, batch=0)


@pytest.mark.parametrize("name", ["Gemma 2", "T5"])
def test_an_effect_is_of_the_models_own_logits(name: str) -> None:
    """After a final softcap, or after the states were scaled."""
    cap = {"final_logit_softcapping": 1.0}
    kinds = {"Gemma 2": Kind(transformers.Gemma2ForCausalLM, transformers.Gemma2Config(**GROUPED, **cap)), **SEQUENCES}
    eager = copies.sharpened(build(kinds[name], "eager"), 3.0)
    inputs = {"input_ids": IDS} if name == "Gemma 2" else {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}
    found = effect(eager, inputs, {(0, 2): "zero"}, target=7, batch=1)
    with torch.no_grad():
        before = of_token(eager(**inputs).logits[1, -1], 7)
    own = of_token(after(eager, inputs, [0], range(2, 3), copies.zero)[1, -1], 7)
    assert_close(torch.tensor([found.before, found.after], dtype=torch.float64), torch.stack([before, own]), **NEAR)
