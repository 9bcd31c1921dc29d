"""Beam search: each sample of the map is a sequence that was returned, from its first token to its last."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from captured import DECODERS, SEQUENCES, Eager, Expected, Kind, build, weights
from tolerance import assert_as_near
from torch import Tensor

from attnwidget import Capture, capture

transformers = pytest.importorskip("transformers")

ENDS = list(range(3, 26))  # half of the tokens end a sequence
HOW = {"max_new_tokens": 9, "pad_token_id": 0, "do_sample": False, "use_cache": True}


def prompts(count: int, padded: bool = False) -> dict[str, Tensor]:
    ids = torch.randint(3, 50, (count, 6), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    if padded:
        mask[-1, :2] = 0
    return {"input_ids": ids, "attention_mask": mask}


def searched(kind: Kind, inputs: dict[str, Tensor], implementation: str = "sdpa", **how: Any) -> tuple[Capture, Any]:
    """What was captured of a search, and what it has returned, which is the same without a capture."""
    model = build(kind, implementation)
    if kind is not SEQUENCES["T5"]:  # whose scores are large as they are
        for name, p in model.named_parameters():
            p.data.mul_(1 if re.search("embed|shared|wte", name) else 3)  # sequences differ in more than one token
    how = HOW | how
    with torch.no_grad():
        torch.manual_seed(0)
        plain = model.generate(**inputs, **how)
        torch.manual_seed(0)
        with capture(model) as cap:
            found = model.generate(**inputs, **how)
        assert torch.equal(getattr(found, "sequences", found), getattr(plain, "sequences", plain))
    return cap, (model, found)


def eager_twin(model: Any) -> Any:
    twin = copy.deepcopy(model)
    twin.set_attn_implementation("eager")
    return twin


def lengths(sequences: Tensor, start: int, eos: list[int]) -> list[int]:
    """Of each sequence, how many tokens the model has read: all but its last, which may come before the padding."""
    found = []
    for row in sequences.tolist():
        ends = [i for i, token in enumerate(row) if i >= start and token in eos]
        found.append(ends[0] if ends else len(row) - 1)
    return found


def assert_sample(att: Any, sample: int, expected: Expected, *, first: int = 0) -> None:
    """The sample has the weights of its sequence, from query `first` on, and nothing beyond its end."""
    found = weights(att)[sample]
    queries, keys = expected.theirs.shape[2:]
    compared = (x[:, first:] for x in (found[:, :queries, :keys], expected.theirs[0], expected.exact[0]))
    assert_as_near(*compared, what=f"sample {sample}:")
    assert not found[:, queries:].any()
    assert not found[:, :queries, keys:].any()


def assert_decoder(cap: Capture, model: Any, sequences: Tensor, mask: Tensor, eos: list[int]) -> None:
    """Every sample is as the model computes it from its sequence in one forward pass."""
    share = len(sequences) // len(mask)
    for sample, (row, read) in enumerate(zip(sequences, lengths(sequences, mask.shape[1], eos), strict=True)):
        real = torch.cat([mask[sample // share], torch.ones(read - mask.shape[1], dtype=torch.long)])[None]
        positions = (real.cumsum(1) - 1).clamp(min=0)
        exact = Eager(eager_twin(model), row[None, :read], attention_mask=real, position_ids=positions).attentions
        for att, wanted in zip(cap.attention, exact, strict=True):
            assert_sample(att, sample, wanted, first=int((mask[sample // share] == 0).sum()))


@pytest.mark.parametrize(
    ("name", "count", "beams", "returned"),
    [
        ("GPT-2", 1, 3, [2]),
        ("Llama", 2, 3, [1, 3]),
        *(
            pytest.param(name, count, beams, range(1, beams + 1), marks=pytest.mark.thorough)
            for name in ("GPT-2", "Llama")
            for count in (1, 2)
            for beams in (2, 3, 4)
        ),
    ],
)
def test_samples_are_the_sequences_that_were_returned(
    name: str, count: int, beams: int, returned: Sequence[int]
) -> None:
    inputs = prompts(count)
    for each in returned:
        cap, (model, sequences) = searched(
            DECODERS[name], inputs, num_beams=beams, num_return_sequences=each, eos_token_id=None
        )
        assert len(cap) == 1
        assert len(cap.attention[0].q) == count * each
        assert_decoder(cap, model, sequences, inputs["attention_mask"], [])


SEARCHES: list[dict[str, Any]] = [
    {"do_sample": True, "top_k": 0},
    {"cache_implementation": "static"},
    {"prefill_chunk_size": 4},
    {"return_dict_in_generate": True, "output_scores": True},
    {"early_stopping": True, "eos_token_id": ENDS},
    {"length_penalty": -2.0, "eos_token_id": ENDS},
    {"early_stopping": "never", "length_penalty": 0.0, "eos_token_id": ENDS},
]
EVERYDAY = ("cache_implementation", "length_penalty")


@pytest.mark.parametrize(
    ("padded", "how"),
    [
        pytest.param(
            padded, how, id=f"{first}-{padded}", marks=[] if padded and first in EVERYDAY else pytest.mark.thorough
        )
        for how in SEARCHES
        for first in [next(iter(how))]
        for padded in (False, True)
    ],
)
def test_however_it_is_searched(padded: bool, how: dict[str, Any]) -> None:
    """Sequences that have ended before others are shown no further than they go."""
    inputs, eos = prompts(2, padded), how.get("eos_token_id", [])
    cap, (model, found) = searched(
        DECODERS["Llama"], inputs, **({"eos_token_id": None} | how), num_beams=3, num_return_sequences=3
    )
    sequences = getattr(found, "sequences", found)
    assert len(cap) == 1
    assert_decoder(cap, model, sequences, inputs["attention_mask"], eos)
    if eos:
        ends = lengths(sequences, 6, eos)
        assert cap.attention[0].q.shape[2] == max(ends)
        assert len(set(ends)) > 1, ends


@pytest.mark.parametrize(
    ("name", "returned", "eos"),
    [
        pytest.param(name, returned, eos, marks=[] if (name, returned) == ("BART", 3) and eos else pytest.mark.thorough)
        for name in SEQUENCES
        for returned in (1, 3)
        for eos in (None, ENDS)
    ],
)
def test_a_translation_with_beams_has_decoder_and_cross_of_its_sequences(
    name: str, returned: int, eos: list[int] | None
) -> None:
    inputs = prompts(2)
    cap, (model, sequences) = searched(
        SEQUENCES[name], inputs, num_beams=3, num_return_sequences=returned, eos_token_id=eos, forced_eos_token_id=None
    )
    assert len(cap) == 1
    encoder = [att for layer, att in zip(cap.attention.names, cap.attention, strict=True) if "encoder." in layer]
    decoder = [att for layer, att in zip(cap.attention.names, cap.attention, strict=True) if "decoder." in layer]
    assert (len(encoder), len(decoder), len(cap.cross)) == (2, 2, 2)
    for sample, (row, read) in enumerate(zip(sequences, lengths(sequences, 1, eos or []), strict=True)):
        own = {key: x[sample // returned][None] for key, x in inputs.items()}
        exact = Eager(eager_twin(model), **own, decoder_input_ids=row[None, :read])
        for stack, wanted in ((decoder, exact.decoder_attentions), (cap.cross, exact.cross_attentions)):
            for att, one in zip(stack, wanted, strict=True):
                assert_sample(att, sample, one)
        for att, one in zip(encoder, exact.encoder_attentions, strict=True):
            assert_sample(att, sample // returned, one)


def test_each_sample_tells_of_which_rows_of_which_calls_it_is_made() -> None:
    cap, (_, sequences) = searched(
        DECODERS["Llama"],
        prompts(2),
        num_beams=3,
        num_return_sequences=2,
        eos_token_id=ENDS,
        length_penalty=-2.0,
    )
    assert cap._recorder is not None
    (records,) = cap._recorder.matcher.forwards
    read = lengths(sequences, 6, ENDS)
    for record in records.values():
        for sample in range(4):
            assert sum(call.queries for call in record.calls if call.rows[sample] >= 0) == read[sample]
