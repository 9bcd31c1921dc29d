"""Weights of a layer as one tensor, and one pair in all heads, asked of a capture: those of the model's own eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from captured import SEQUENCES, build
from tolerance import sums
from torch import Tensor

from attnwidget import Capture, capture

transformers = pytest.importorskip("transformers")

SOURCE = torch.randint(3, 50, (2, 9), generator=torch.Generator().manual_seed(1))
TARGET = torch.randint(3, 50, (2, 5), generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def both() -> tuple[Capture, Any]:
    """Return a capture of a translation, and what the same model gives with eager attention."""
    model, eager = build(SEQUENCES["BART"], "sdpa"), build(SEQUENCES["BART"], "eager")
    with torch.no_grad(), capture(model) as cap:
        model(input_ids=SOURCE, decoder_input_ids=TARGET)
    with torch.no_grad():
        return cap, eager(input_ids=SOURCE, decoder_input_ids=TARGET, output_attentions=True)


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, **sums(64))


def test_a_layers_weights_are_one_tensor_by_number_or_name(both: tuple[Capture, Any]) -> None:
    cap, eager = both
    own = [*eager.encoder_attentions, *eager.decoder_attentions]
    for i, (name, wanted) in enumerate(zip(cap.attention.names, own, strict=True)):
        close(cap.weights(i), wanted)
        close(cap.weights(name, batch=1), wanted[1])
        close(cap.weights(i, batch=1, head=2), wanted[1, 2])
    for i, wanted in enumerate(eager.cross_attentions):
        close(cap.weights(i, cross=True), wanted)


def test_a_pair_is_looked_at_in_all_heads_of_a_capture(both: tuple[Capture, Any]) -> None:
    cap, eager = both
    crossing = torch.stack([x[1, :, 3, 7] for x in eager.cross_attentions])
    close(cap.pair(3, 7, batch=1, cross=True), crossing)
    own = torch.stack([x[0, :, 3, 2] for x in (*eager.encoder_attentions, *eager.decoder_attentions)])
    close(cap.pair(3, 2), own)


def test_what_is_not_there_is_named(both: tuple[Capture, Any]) -> None:
    cap, _ = both
    with pytest.raises(KeyError, match="nowhere"):
        cap.weights("nowhere")
    with pytest.raises(IndexError):
        cap.pair(3, 7)  # the decoder has no eighth key
