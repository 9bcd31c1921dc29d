"""What may be given as tokens, and what is said where it may not."""

from collections import UserDict

import numpy as np
import pytest
import torch

from attnwidget._tokens.inputs import check_tokens


@pytest.mark.parametrize(
    "tokens",
    [
        ["a", "cat"],
        ("a", "cat"),
        np.array(["a", "cat"]),
        [["a", "cat"], ["a", "cat"]],
        np.array([["a", "cat"]] * 2),
        (t for t in ("a", "cat")),
    ],
)
def test_tokens_are_one_list_for_all_samples_or_one_for_each(tokens: object) -> None:
    checked = check_tokens(tokens, 2, 2, "tokens")
    assert checked == [["a", "cat"], ["a", "cat"]]
    assert {type(token) for sample in checked for token in sample} == {str}


def test_no_tokens_are_no_tokens() -> None:
    assert check_tokens(None, 2, 2, "tokens") is None


@pytest.mark.parametrize(
    ("tokens", "error", "match"),
    [
        ("a cat", TypeError, "tokens is one string 'a cat': give a list with one string per token"),
        (UserDict(input_ids=[[1, 2]]), TypeError, "write tokens=encoding, tokenizer=tokenizer, with the tokenizer"),
        (UserDict(a=1), TypeError, "tokens is or holds {'a': 1}: give a list of strings"),
        (["a"], ValueError, "tokens has 1 string but there are 2 positions: give one for each"),
        ([], ValueError, "tokens has 0 strings but there are 2 positions"),
        ([["a", "b"]], ValueError, "tokens has 1 lists but there are 2 samples: give one list, or one for each"),
        ([["a", "b"], ["a"]], ValueError, r"tokens\[1\] has 1 string but there are 2 positions"),
        ([7, 8], TypeError, r"tokens\[0\] is 7, of type int: give strings"),
        (torch.tensor([7, 8]), TypeError, r"tokens\[0\] is 7, of type int"),
        ([b"a", b"b"], TypeError, r"tokens\[0\] is b'a', of type bytes"),
        ([["a", "b"], ["a", None]], TypeError, r"tokens\[1\]\[1\] is None, of type NoneType"),
        ([["a", "b"], "ab"], TypeError, "tokens is or holds 'ab': give a list of strings"),
        ({"a": 1}, TypeError, "tokens is or holds {'a': 1}: give a list of strings"),
        (5, TypeError, "tokens is or holds 5: give a list of strings"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(tokens: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        check_tokens(tokens, 2, 2, "tokens")


class Words:
    """A tokenizer with words for the ids 0 and 1."""

    def convert_ids_to_tokens(self, one: int) -> str:
        return ["the", "bank"][one]


def slow_encoding(ids: list[int] | list[list[int]]) -> object:
    """What a slow tokenizer of transformers returns: neither `encodings` nor words."""
    transformers = pytest.importorskip("transformers")
    return transformers.BatchEncoding({"input_ids": ids})


def test_of_a_slow_tokenizers_encoding_the_line_to_write_is_said() -> None:
    for given in (slow_encoding([0, 1]), [slow_encoding([0, 1]), slow_encoding([1, 0])]):
        with pytest.raises(TypeError) as caught:
            check_tokens(given, 2, 2, "key_tokens")
        assert str(caught.value) == (
            "key_tokens holds ids and no words, as a slow tokenizer of transformers returns them: write "
            "key_tokens=encoding, tokenizer=tokenizer, with the tokenizer that made the encoding"
        )


def test_a_slow_tokenizers_encoding_is_read_with_its_tokenizer() -> None:
    both = [["the", "bank"], ["bank", "the"]]
    assert check_tokens(slow_encoding([[0, 1], [1, 0]]), 2, 2, "tokens", Words()) == both
    assert check_tokens([slow_encoding([0, 1]), slow_encoding([1, 0])], 2, 2, "tokens", Words()) == both
    assert check_tokens(slow_encoding([0, 1]), 2, 2, "tokens", Words()) == [["the", "bank"]] * 2
