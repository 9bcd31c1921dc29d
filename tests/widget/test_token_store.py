"""Tokens are read once, however often they are asked for: there may be millions. Others are read anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from front_end import FrontEnd, decode_tokens
from torch.testing import assert_close
from traitlets import TraitError

from attnwidget import Attention, AttentionStack, AttentionWidget

PIECES = ["Ġthe", "Ġriver", "Ġbank", "s", "Ġof"]


class Tokenizer:
    """Counts how often it is asked for the text of a token."""

    asked = 0

    def __init__(self, pieces: list[str] = PIECES) -> None:
        self.pieces = pieces

    def decode(self, ids: list[int]) -> str:
        self.asked += len(ids)
        return "".join(self.pieces[one] for one in ids)


def stack(length: int = 5) -> AttentionStack:
    return AttentionStack([Attention(*torch.randn(2, 3, 4, length, 2)) for _ in range(2)])


def test_ids_are_read_once_whatever_is_looked_at(front_end: FrontEnd) -> None:
    tokenizer = Tokenizer()
    w = AttentionWidget(stack(), tokens=[0, 1, 2, 3, 4], tokenizer=tokenizer)
    assert tokenizer.asked > 0
    before = tokenizer.asked
    for name, value in (("layer", 1), ("batch", 2), ("head", 3), ("view", "heads"), ("view", "text"), ("layer", 0)):
        setattr(w, name, value)
    assert tokenizer.asked == before
    assert decode_tokens(front_end.state(w)["tokens"]) == PIECES
    w.tokens = [4, 3, 2, 1, 0]
    assert decode_tokens(front_end.state(w)["tokens"]) == PIECES[::-1]
    before = tokenizer.asked
    w.layer, w.batch, w.view = 1, 1, "heads"
    assert tokenizer.asked == before


def test_what_is_searched_are_the_tokens_as_they_are_now_on_either_side(front_end: FrontEnd) -> None:
    keys = ["Ġof", "Ġof", "s", "s", "s"]
    w = AttentionWidget(stack(), tokens=PIECES, key_tokens=keys)

    def found(side: str, text: str) -> list[int]:
        request = {"id": "1", "kind": "find", "layer": 1, "batch": 2, "side": side, "text": text, "count": 9}
        (reply,) = front_end.ask(w, {**request, "start": 0})
        return list(reply["positions"])

    assert (found("query", "of"), found("key", "of"), found("query", "of")) == ([4], [0, 1], [4])
    w.tokens = [*keys]
    assert found("query", "of") == [0, 1]
    w.key_tokens = None
    assert found("key", "s") == [2, 3, 4]
    w.tokens = PIECES
    assert found("key", "of") == [4]


def test_the_same_ids_of_another_tokenizer_are_other_tokens(front_end: FrontEnd) -> None:
    w = AttentionWidget(stack(), tokens=[0, 1, 2, 3, 4], tokenizer=Tokenizer())
    w.tokenizer = Tokenizer(PIECES[::-1])
    assert decode_tokens(front_end.state(w)["tokens"]) == PIECES[::-1]


@pytest.mark.parametrize(
    "words",
    [[0, 0, 1, 2, 2], lambda tokens: [0, 0, 1, 2, 2], [[0, 0, 1, 2, 2]], torch.tensor([0, 0, 1, 2, 2])],
    ids=["a list", "a function", "of each sample", "a tensor"],
)
def test_words_of_ones_own_segmenter(words: Any) -> None:
    q, k = torch.randn(2, 5, 4)
    tokens = ["東", "京", "は", "夜", "空"]
    w = AttentionWidget(q, k, tokens=tokens, words=words)
    assert w.pieces == "words"
    assert w.get_state("tokens")["tokens"]["text"].decode() == "東京は夜空"
    assert (w.facts["queries"], w.facts["has_pieces"]) == (3, True)
    assert_close(w.weights(1), w.attention.merge([0, 0, 1, 2, 2]).block()[1])  # type: ignore[union-attr]
    w.words = None
    assert w.facts["queries"] == 5
    with pytest.raises(TraitError, match="give the number of each token's word"):
        w.words = ["東京", "は"]
