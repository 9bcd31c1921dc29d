"""Tokens as a user has them: strings, ids with a tokenizer, a list for each sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from attnwidget import Attention, AttentionWidget, compare
from attnwidget._tokens.inputs import check_tokens
from attnwidget._tokens.tokenizers import is_special, join_pieces, spelling_of, word_ids

WORDS = ["[CLS]", "the", "mill", "##er", "lent"]


class Transformers:
    """As a slow tokenizer of transformers."""

    def convert_ids_to_tokens(self, ids: int) -> str:
        return WORDS[ids]


class Decoding:
    """As anything that only decodes."""

    def decode(self, ids: list[int]) -> str:
        return ["the", " bank", "\n"][ids[0]]


class Tiktoken:
    def decode_single_token_bytes(self, token: int) -> bytes:
        return [b"caf", b"\xc3", b"\xa9"][token]


def own() -> Tokenizer:
    """A tokenizer of the library tokenizers, as of GPT-2."""
    made = Tokenizer(models.WordLevel({"the": 0, "Ġbank": 1, "<unk>": 2}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.decoder = decoders.ByteLevel()
    return made


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2, 3],
        (1, 2, 3),
        np.array([1, 2, 3]),
        torch.tensor([1, 2, 3]),
        torch.tensor([[1, 2, 3]]),
        [np.int64(1), 2, 3],
    ],
    ids=["list", "tuple", "numpy", "tensor", "batch", "numpy's numbers"],
)
def test_ids_in_any_form(ids: Any) -> None:
    assert check_tokens(ids, 1, 3, "tokens", Transformers()) == [["the", "mill", "##er"]]


def test_ids_for_each_sample_and_for_all() -> None:
    assert check_tokens(torch.tensor([[0, 1], [1, 4]]), 2, 2, "tokens", Transformers()) == [
        ["[CLS]", "the"],
        ["the", "lent"],
    ]
    assert check_tokens([1, 4], 2, 2, "tokens", Transformers()) == [["the", "lent"]] * 2


@pytest.mark.parametrize(
    ("tokenizer", "ids", "tokens", "spelling"),
    [
        (Transformers(), [0, 3], ["[CLS]", "##er"], "text"),
        (Decoding(), [0, 1, 2], ["the", " bank", "\n"], "spaced"),
        (Tiktoken(), [0, 1, 2], ["caf", "<0xC3>", "<0xA9>"], "spaced"),
        (own(), [1, 0], ["Ġbank", "the"], "bytes"),
    ],
    ids=["transformers", "decode", "tiktoken", "tokenizers"],
)
def test_tokenizers_of_all_kinds(tokenizer: Any, ids: list[int], tokens: list[str], spelling: str) -> None:
    assert check_tokens(ids, 1, len(ids), "tokens", tokenizer) == [tokens]
    assert spelling_of(tokenizer) == spelling


def test_strings_are_taken_beside_a_tokenizer() -> None:
    assert check_tokens(["a", "b"], 1, 2, "tokens", Transformers()) == [["a", "b"]]


@pytest.mark.parametrize(
    ("ids", "tokenizer", "error", "says"),
    [
        ([0, 1], None, TypeError, "tokenizer= as well"),
        ([0, 99], Transformers(), ValueError, r"tokens\[1\] is 99, which tokenizer does not take"),
        ([0, 99], own(), ValueError, "for which tokenizer has no word"),
        ([0, -100], Decoding(), ValueError, "which tokenizer does not take"),
        ([0, 1], object(), TypeError, "tokenizer is object: give one with convert_ids_to_tokens or decode"),
        ([0, 1, 2], Transformers(), ValueError, "3 strings but there are 2 positions"),
    ],
)
def test_what_cannot_be_read(ids: list[int], tokenizer: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        check_tokens(ids, 1, 2, "tokens", tokenizer)


def test_the_widget_sends_the_words_and_how_they_are_spelled() -> None:
    q, k = torch.randn(2, 1, 1, 3, 4)
    shown = AttentionWidget(q, k, tokens=torch.tensor([1, 0, 1]), tokenizer=own())
    sent = shown.get_state("tokens")["tokens"]
    assert (sent["text"], sent["spelling"]) == ("ĠbanktheĠbank".encode(), "bytes")
    assert "spelling" not in AttentionWidget(q, k, tokens=["a", "b", "c"]).get_state("tokens")["tokens"]


def test_ids_without_a_tokenizer_are_refused_by_the_widget() -> None:
    with pytest.raises(TypeError, match="tokenizer= as well"):
        AttentionWidget(*torch.randn(2, 3, 4), tokens=[1, 2, 3])


def test_a_comparison_takes_ids_and_widgets_made_of_ids() -> None:
    q, k = torch.randn(2, 1, 1, 3, 4)
    ids = [1, 2, 4]
    one = AttentionWidget(q, k, tokens=ids, tokenizer=Transformers())
    both = compare(one, Attention(q, k))
    assert both.get_state("tokens")["tokens"]["text"] == b"themilllent"
    named = compare(Attention(q, k), Attention(q, k), tokens=ids, tokenizer=Transformers())
    assert named.get_state("tokens")["tokens"]["text"] == b"themilllent"


def test_what_is_special() -> None:
    assert all(map(is_special, ("[CLS]", "<s>", "<|im_start|>", "<start_of_turn>", "[unused7]")))
    assert not any(map(is_special, ("[cls]", "<b>", "<table>", "CLS", "a<s>")))


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["[CLS]", "the", "mill", "##er", "'", "s", "bank", ".", "[SEP]"], [0, 1, 2, 2, 3, 4, 5, 6, 7]),
        (["The", "Ġmill", "er", "'s", "Ġ(", "old", ")", "ĊĊ", "New"], [0, 1, 1, 1, 2, 3, 4, 5, 6]),
        (["▁Il", "▁a", "▁é", "crit", ".", "</s>"], [0, 1, 2, 2, 3, 4]),
        (["a</w>", "mill", "er</w>", ".</w>"], [0, 1, 1, 2]),
        (["ĠæĹ¥", "æľ¬", "Ġand", "ĠÃ©", "crit"], [0, 1, 2, 3, 3]),
        (["<s>", "▁日本", "語", "x"], [0, 1, 2, 2]),
        (["I", "have", "a", "cat"], [0, 1, 2, 3]),
        (["the", " mill", "er", "\n", "so"], [0, 1, 1, 2, 3]),
        ([], []),
    ],
    ids=["WordPiece", "bytes", "SentencePiece", "ends", "kana in bytes", "kana", "words", "spaces", "none"],
)
def test_which_pieces_are_a_word(tokens: list[str], words: list[int]) -> None:
    assert word_ids(tokens) == words


def test_pieces_joined_keep_the_marks_of_a_word() -> None:
    assert join_pieces(["Ġmill", "er"]) == "Ġmiller"
    assert join_pieces(["em", "##bed"]) == "embed"
    assert join_pieces(["##a", "##b"]) == "##ab"


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["<s>", "a", "cat", *["</s>"] * 4], [0, 1, 2, 3, 3, 3, 3]),
        ([*["[PAD]"] * 3, "[CLS]", "em", "##bed", "[SEP]"], [0, 0, 0, 1, 2, 2, 3]),
        (["[PAD]"] * 5, [0] * 5),
        (["a", "[SEP]", "[SEP]"], [0, 1, 2]),  # a sentence may end with two
        (["a", *["no"] * 4], [0, 1, 2, 3, 4]),
        (["a", *["<image>"] * 4, "b"], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_padding_is_one_word(tokens: list[str], words: list[int]) -> None:
    assert word_ids(tokens, "words") == words
    assert join_pieces(["[PAD]", "[PAD]", "[PAD]"]) == "[PAD]"
