"""What generate(output_attentions=True) returns is one map of each layer: the prompt, then a row for each new token."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from captured import weights
from torch import Tensor

from attnwidget import Attention, AttentionWidget, capture

transformers = pytest.importorskip("transformers")
IDS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 11, 12]])


@functools.cache
def model(name: str) -> Any:
    torch.manual_seed(0)
    small = {"vocab_size": 50, "attn_implementation": "eager", "pad_token_id": 0}
    if name == "T5":
        sizes = {"d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
        return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **small)).eval()
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "eos_token_id": 49, "bos_token_id": 1}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **small)).eval()


def generated(name: str, **how: Any) -> tuple[Any, Any]:
    how = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, **how}
    with torch.no_grad(), capture(model(name)) as cap:
        mask = torch.ones_like(IDS)
        returned = {"output_attentions": True, "return_dict_in_generate": True}
        return model(name).generate(IDS, attention_mask=mask, **returned, **how), cap


def assert_alike(given: Any, captured: list[Attention]) -> None:
    layers = [given] if isinstance(given, Attention) else list(given)
    assert len(layers) == len(captured)
    for one, other in zip(layers, captured, strict=True):
        assert (weights(one) - weights(other)).abs().max() < 1e-5


@pytest.mark.parametrize(
    "how",
    [{}, {"num_beams": 3}, {"num_beams": 3, "num_return_sequences": 2}, {"cache_implementation": "static"}],
    ids=["greedy", "beams", "several of each", "static"],
)
def test_a_decoder_is_one_map_and_a_tokenizer_spells_it(how: dict[str, Any]) -> None:
    output, cap = generated("GPT-2", **how)
    tokenizer = SimpleNamespace(decode=lambda ids: f"t{ids if isinstance(ids, int) else int(ids[0])}")
    w = AttentionWidget(output, tokenizer=tokenizer)
    assert_alike(w.attention, list(cap.attention))
    assert torch.equal(w.tokens, output.sequences[:, :-1])
    if "num_beams" not in how:
        assert_alike(AttentionWidget(output.attentions).attention, list(cap.attention))
        assert_alike(AttentionWidget.from_weights(output.attentions).attention, list(cap.attention))


@pytest.mark.parametrize("beams", [1, 3])
def test_an_encoder_and_decoder_are_three_stacks(beams: int) -> None:
    output, cap = generated("T5", num_beams=beams)
    w = AttentionWidget(output)
    assert w.stacks == ("encoder", "decoder", "decoder, cross-attention")
    for stack in w.stacks:
        assert_alike(AttentionWidget(output, stack=stack).attention, list(cap.widget(stack=stack).attention))


def test_rows_that_were_tried_and_taken_back_are_not_in_it() -> None:
    def step(queries: int, keys: int, number: float) -> tuple[Tensor]:
        return (torch.full((1, 1, queries, keys), number),)

    steps = (step(3, 3, 1.0), step(3, 6, 2.0), step(2, 6, 3.0), step(1, 7, 4.0))  # two of three are taken back
    (layer,) = AttentionWidget.from_weights(steps).attention
    assert layer.block()[:, 0].tolist() == [1.0, 1.0, 1.0, 2.0, 3.0, 3.0, 4.0]


def test_keys_that_a_cache_has_dropped_are_refused() -> None:
    steps = [(torch.ones(1, 1, n, keys),) for n, keys in ((6, 6), (1, 7), (1, 5), (1, 5))]
    with pytest.raises(ValueError, match=r"step 2 has 5 keys after 7 positions: the cache dropped keys.*capture"):
        AttentionWidget(steps)
    with pytest.raises(ValueError, match="steps have 1 and 2 layers"):
        AttentionWidget([steps[0], (*steps[1], *steps[1])])
