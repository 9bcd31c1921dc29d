"""Tokens are read once, however often they are asked for: there may be millions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from attnwidget import Attention
from attnwidget._widget import token_store
from attnwidget._widget.token_store import GivenTokens, TokenStore

PIECES = ["Ġthe", "Ġriver", "Ġbank", "s"]


class Counted:
    """How often a function of `texts` was called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.calls = 0
        self._own = getattr(token_store, name)
        monkeypatch.setattr(token_store, name, self)

    def __call__(self, *given: Any, **more: Any) -> Any:
        self.calls += 1
        return self._own(*given, **more)


def layer(queries: int = 4, keys: int = 4, samples: int = 2) -> Attention:
    return Attention(torch.zeros(samples, 1, queries, 2), torch.zeros(samples, 1, keys, 2))


def of(tokens: Sequence[Any], key_tokens: Sequence[Any] | None = None) -> TokenStore:
    return TokenStore(lambda: GivenTokens(tokens, key_tokens))


def test_tokens_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, read = Counted(monkeypatch, "check_tokens"), of(PIECES)
    first = read.samples("query", layer().shape)
    assert first == [PIECES, PIECES]
    assert read.samples("key", layer().shape) is first
    assert checks.calls == 1
    read.forget()
    assert read.samples("query", layer().shape) == first
    assert checks.calls == 2


def test_words_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found, merged, read = Counted(monkeypatch, "word_ids"), Counted(monkeypatch, "merged_tokens"), of(PIECES)
    words = read.words("query", layer(), 1)
    assert words is not None
    assert [word.strip("Ġ") for word in words] == ["the", "river", "banks"]
    assert read.words("key", layer(), 1) is words
    assert (found.calls, merged.calls) == (1, 1)


def test_ids_and_what_is_searched_are_those_of_the_tokens_asked_for_last(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, read = Counted(monkeypatch, "as_ids"), of(PIECES)
    other = [*PIECES[:3], "the"]
    for tokens in (PIECES, PIECES, other, other):
        read.ids(tokens)
    assert counted.calls == 2
    assert read.vocabulary("query", PIECES) is read.vocabulary("query", PIECES)
    assert read.vocabulary("query", other).tokens is other


def test_keys_have_their_own_tokens_or_the_queries() -> None:
    keys = ["a", "b", "c"]
    assert of(PIECES, keys).samples("key", layer(4, 3).shape) == [keys, keys]
    assert of(PIECES).samples("key", layer(4, 3).shape) is None
    assert of(PIECES).samples("query", layer(5, 3).shape) is None
    assert of(PIECES).words("query", layer(5, 3), 0) is None


def test_only_what_is_new_is_told() -> None:
    read, same = of(PIECES), list(PIECES)
    told = [read.is_new("tokens", tokens) for tokens in (None, None, PIECES, PIECES, same)]
    assert told == [True, False, True, False, True]
    assert read.is_new("key_tokens", same)
