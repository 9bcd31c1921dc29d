"""The tokens of queries and keys: there may be millions, so they are checked once, and then known by identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ..._analysis.metrics import as_ids
from ..._engine.base import Shape
from ..._engine.merged_words import WordBounds, as_word_bounds, merged_tokens
from ..._messages.codec import encoding
from ..._tokens.inputs import check_tokens
from ..._tokens.search import TokenSearch
from ..._tokens.tokenizers import Spelling, spelling_of, word_ids
from ...attention import Attention

MAX_KEPT_LISTS = 8  # lists of tokens that are known to be right, and as many of their words

Samples = list[list[str]]  # the tokens of every sample


class GivenTokens(NamedTuple):
    """Tokens as a user gives them: see `AttentionWidget`."""

    tokens: Any
    key_tokens: Any
    tokenizer: Any = None

    def of(self, side: str, shape: Shape) -> Any:
        """Return those of the queries, or of the keys, of a layer of this shape."""
        only = self.key_tokens is not None or shape.Q != shape.K
        return self.key_tokens if side == "key" and only else self.tokens


class TokenStore:
    """The tokens of a widget, in every form in which they are asked for.

    Args:
        given: tells them as they are now.
    """

    def __init__(self, given: Callable[[], GivenTokens]) -> None:
        self._given = given
        self._checked: dict[tuple[int, int, int], tuple[Any, Samples | None]] = {}  # by who they are
        self._bounds: dict[tuple[int, int, int], tuple[Any, WordBounds]] = {}
        self._words: dict[tuple[int, int], tuple[WordBounds, list[str], list[str]]] = {}
        self._spelled: tuple[Any, Spelling | None] = (None, None)
        self._ids: tuple[list[str], Tensor | None] | None = None  # the tokens that were last asked for, as numbers
        self._vocabularies: dict[str, TokenSearch] = {}
        self._told: dict[str, list[str] | None] = {}  # the tokens that were last sent

    def forget(self) -> None:
        """Keep nothing of them: they are others now."""
        self._checked.clear()
        self.forget_ids()

    def forget_ids(self) -> None:
        """Keep no numbers of them."""
        self._ids = None

    # One by one.

    def check(self, tokens: Any, batches: int, length: int, name: str) -> Samples | None:
        """Return tokens as `check_tokens` does; those that were checked before are not checked again."""
        key = (id(tokens), batches, length)
        held, samples = self._checked.get(key, (None, None))
        if held is not tokens:
            samples = check_tokens(tokens, batches, length, name, self._given().tokenizer)
            if len(self._checked) >= MAX_KEPT_LISTS:
                self._checked.clear()
            self._checked[key] = tokens, samples
        return samples

    def samples(
        self, side: str, shape: Shape, given: GivenTokens | None = None, name: str = "tokens"
    ) -> Samples | None:
        """Return the tokens of all samples of a layer of this shape; None where it has another length.

        Args:
            given: tokens of another widget or side, in the place of one's own.
        """
        tokens = (given or self._given()).of(side, shape)
        try:
            return self.check(tokens, shape.B, _length(side, shape), name)
        except ValueError:  # they were checked for another layer
            return None

    def given_ids(self, side: str, shape: Shape, batch: int) -> list[int] | None:
        """Return the tokens of a sample as ids, where they were given so and there are as many as positions."""
        tokens: Any = self._given().of(side, shape)
        if self._given().tokenizer is None or tokens is None:
            return None
        tokens = tokens.get("input_ids") if isinstance(tokens, Mapping) else tokens
        tokens = tokens.tolist() if hasattr(tokens, "tolist") else tokens
        if isinstance(tokens, list | tuple) and tokens and isinstance(tokens[0], list | tuple):
            tokens = tokens[batch if len(tokens) > 1 else 0]
        is_ids = isinstance(tokens, list | tuple) and all(isinstance(one, int | np.integer) for one in tokens)
        return [int(one) for one in tokens] if is_ids and len(tokens) == _length(side, shape) else None

    def as_strings(self, name: str, shape: Shape) -> Any:
        """Return `tokens` or `key_tokens` as they were given; of ids the tokenizer's strings for them."""
        given = self._given()
        tokens = given.tokens if name == "tokens" else given.key_tokens
        if tokens is None or given.tokenizer is None:
            return tokens
        return self.check(tokens, shape.B, shape.Q if name == "tokens" else shape.K, name)

    # Merged into words.

    def bounds(self, side: str, att: Attention) -> WordBounds | None:
        """Return the words of a layer's queries or keys; None where it has no tokens."""
        samples = self.samples(side, att.shape)
        if samples is None:
            return None
        length = _length(side, att.shape)
        key = (id(samples), att.shape.B, length)
        if key not in self._bounds or self._bounds[key][0] is not samples:
            if len(self._bounds) >= MAX_KEPT_LISTS:
                self._bounds.clear()
            distinct = samples[:1] if all(one is samples[0] for one in samples) else samples
            ids = [word_ids(sample, self.spelling) for sample in distinct]
            self._bounds[key] = samples, as_word_bounds(ids, att.shape.B, length, "tokens", att.device)
        return self._bounds[key][1]

    def words(self, side: str, att: Attention, batch: int) -> list[str] | None:
        """Return a token for each word of a sample of a layer; None where it has no tokens."""
        samples, bounds = self.samples(side, att.shape), self.bounds(side, att)
        if samples is None or bounds is None:
            return None
        pieces = samples[batch]
        key = (id(pieces), batch)
        kept = self._words.get(key)
        if kept is None or kept[0] is not bounds or kept[1] is not pieces:
            if len(self._words) >= MAX_KEPT_LISTS:
                self._words.clear()
            kept = self._words[key] = bounds, pieces, merged_tokens(pieces, bounds, batch)
        return kept[2]

    def has_pieces(self, shape: Shape) -> bool:
        """Return whether merging tokens into words would change anything, as far as the first of them tell."""
        for side in ("query", "key"):
            left = encoding.PAGE
            for pieces in {id(one): one for one in self.samples(side, shape) or ()}.values():
                some = pieces[:left]
                if len(set(word_ids(some, self.spelling))) < len(some):
                    return True
                left -= len(some)
                if left <= 0:
                    break
        return False

    @property
    def spelling(self) -> Spelling | None:
        """How the vocabulary is written, where the tokenizer tells."""
        tokenizer = self._given().tokenizer
        if self._spelled[0] is not tokenizer:  # a fast one writes out its whole vocabulary to tell
            self._spelled = tokenizer, spelling_of(tokenizer)
        return self._spelled[1]

    # As others take them.

    def ids(self, tokens: list[str]) -> Tensor | None:
        """Return tokens as numbers, (n,), the same for the same; None where one of them is not known."""
        if self._ids is None or self._ids[0] is not tokens:
            self._ids = tokens, as_ids(tokens)
        return self._ids[1]

    def vocabulary(self, side: str, tokens: list[str]) -> TokenSearch:
        """Return tokens that can be searched; of each side those that were last asked for are kept."""
        known = self._vocabularies.get(side)
        if known is None or known.tokens is not tokens:
            known = self._vocabularies[side] = TokenSearch(tokens)
        return known

    def message(self, tokens: list[str] | None) -> dict[str, Any] | None:
        """Return a sample's tokens for the front-end, and how its vocabulary is written, where the tokenizer tells."""
        message, spelling = encoding.encode_tokens(tokens), self.spelling
        return message if message is None or spelling is None else {**message, "spelling": spelling}

    def is_new(self, name: str, tokens: list[str] | None) -> bool:
        """Return whether the front-end has others under this name; from now on it has these."""
        if name in self._told and self._told[name] is tokens:
            return False
        self._told[name] = tokens
        return True


def _length(side: str, shape: Shape) -> int:
    return shape.Q if side == "query" else shape.K
