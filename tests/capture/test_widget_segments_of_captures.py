"""The segments that a capture's widget has by itself, and those that it is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from captured import GPT2, build
from front_end import decode

from attnwidget import Capture, capture

WORDS = ["."] + [f" word{i}" for i in range(49)]


class Words:
    """A tokenizer of a word for each id."""

    def convert_ids_to_tokens(self, one: int) -> str:
        return WORDS[one]


@pytest.fixture(scope="module", params=[{}, {"queries": slice(-4, None)}], ids=["all queries", "the last four"])
def cap(request: Any) -> Capture:
    model: Any = build(GPT2, "sdpa")
    with torch.no_grad(), capture(model, tokenizer=Words(), **request.param) as found:
        model.generate(torch.arange(3, 15)[None], max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
    return found


class TestPromptAndAnswerInTheWidget:
    def test_they_are_there_by_themselves(self, cap: Capture) -> None:
        w = cap.widget(view="segments")
        assert w.mass["keys"] == ["first token", "prompt", "answer"]
        assert w.mass["asking"] == "answer"
        mass = cap.attention.by_segment("answer", cap.segments())
        found = decode(w.mass["mass"])[w.mass["row"]]
        torch.testing.assert_close(torch.tensor(found), mass.mass[0, 0, 0].float(), rtol=1e-5, atol=1e-7)

    def test_others_take_their_place(self, cap: Capture) -> None:
        w = cap.widget(view="segments", segments={"first half": (1, 6), "rest": (6, 17)})
        assert w.mass["keys"] == ["first token", "first half", "rest"]
        w.segments = None
        assert w.mass is None


def test_of_what_was_not_generated_there_are_none() -> None:
    model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.zeros(1, 5, 8)
    assert capture(model).run(x, x, x).widget().segments is None
