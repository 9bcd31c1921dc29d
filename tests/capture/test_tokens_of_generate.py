"""The text that generate() returned has one token more than was read: whoever gives it is told, or it is cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from captured import GPT2, build
from torch import Tensor

from attnwidget import AttentionWidget, Capture, capture

LINE = r"last token was never read: give tokens\[:-1\], or take cap.widget\(\)"


@pytest.fixture(scope="module")
def generated() -> tuple[Capture, list[str]]:
    model: Any = build(GPT2, "sdpa")
    ids: Tensor = torch.arange(3, 15)[None]
    with torch.no_grad(), capture(model) as cap:
        written = model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
    return cap, [f"t{i}" for i in written[0].tolist()]


def test_a_capture_cuts_what_was_never_read(generated: tuple[Capture, list[str]]) -> None:
    cap, words = generated
    with pytest.warns(UserWarning, match="the last token that generate\\(\\) writes is never read"):
        shown = cap.widget(tokens=words)
    assert shown._tokens_of("query") == words[:-1]


@pytest.mark.parametrize(
    "give",
    [
        lambda cap, words: AttentionWidget.from_attention(cap.attention, tokens=words),
        lambda cap, words: AttentionWidget(cap.attention, [words]),
        lambda cap, words: AttentionWidget(cap.attention[0].q, cap.attention[0].k, tokens=words),
        lambda cap, words: cap.attention[0].check(words),
        lambda cap, words: cap.attention[0].metrics(tokens=words),
    ],
)
def test_elsewhere_one_token_too_many_is_told_to_be_that(
    generated: tuple[Capture, list[str]], give: Callable[[Capture, list[str]], Any]
) -> None:
    cap, words = generated
    with pytest.raises(ValueError, match=LINE):
        give(cap, words)
    with pytest.raises(ValueError, match=r"give one for each( key)?$"):
        give(cap, [*words, "more"])


def test_two_forward_passes_are_two_and_not_twice_as_many_layers() -> None:
    model: Any = build(GPT2, "sdpa")
    with torch.no_grad(), capture(model) as cap:
        model(torch.arange(3, 15)[None])
        model(torch.arange(3, 8)[None])
    shown = cap.widget()
    assert (shown.forwards, len(shown.facts["layers"])) == (2, 2)
    assert repr(shown).startswith("AttentionWidget(forward 0 of 2, layer 0 of 2, ")
    shown.forward = 1
    assert shown.facts["queries"] == 5
