"""The tokens of queries and keys. There may be millions, so they are checked once and then recognized by identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from ..._utils.validation import told
from ...attention import Attention

MAX_KEPT_LISTS = 8  # checked lists of tokens, and as many lists of words

Samples = list[list[str]]  # the tokens of every sample


class GivenTokens(NamedTuple):
    """Tokens from the user; see `AttentionWidget`."""

    tokens: Any
    key_tokens: Any
    tokenizer: Any = None
    words: Any = None

    def of(self, side: str, shape: Shape) -> Any:
        """Return the tokens of a layer's queries or keys, if their number fits its shape."""
        only = self.key_tokens is not None or shape.Q != shape.K
        return self.key_tokens if side == "key" and only else self.tokens


class TokenStore:
    """The tokens of a widget, in every form that is needed.

    Args:
        given: returns the current tokens from the user.
    """

    def __init__(self, given: Callable[[], GivenTokens]) -> None:
        self._given = given
        self._checked: dict[tuple[int, int, int], tuple[Any, Samples | None]] = {}  # by identity
        self._bounds: dict[tuple[int, int, int], tuple[Any, WordBounds]] = {}
        self._words: dict[tuple[int, int], tuple[WordBounds, list[str], list[str]]] = {}
        self._spelled: tuple[Any, Spelling | None] = (None, None)
        self._ids: tuple[list[str], Tensor | None] | None = None  # the last requested tokens, as numbers
        self._vocabularies: dict[str, TokenSearch] = {}
        self._told: dict[str, list[str] | None] = {}  # the tokens sent last

    def forget(self) -> None:
        """Forget all, because the tokens have changed."""
        self._checked.clear()
        self.forget_ids()

    def forget_ids(self) -> None:
        """Forget the numbers of tokens."""
        self._ids = None

    # Single tokens.

    def check(self, tokens: Any, batches: int, length: int, name: str) -> Samples | None:
        """Check tokens as `check_tokens` does, once for each list."""
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
        """Return the tokens of all samples for a layer's shape; None if the length differs.

        Args:
            given: tokens of another widget or side, instead of the widget's own.
        """
        tokens = (given or self._given()).of(side, shape)
        try:
            return self.check(tokens, shape.B, _length(side, shape), name)
        except ValueError:  # they fit another layer
            return None

    def given_ids(self, side: str, shape: Shape, batch: int) -> list[int] | None:
        """Return the tokens of a sample as ids, if they were given as ids and fit the positions."""
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
        """Return `tokens` or `key_tokens` as given; ids become the tokenizer's strings."""
        given = self._given()
        tokens = given.tokens if name == "tokens" else given.key_tokens
        if tokens is None or given.tokenizer is None:
            return tokens
        return self.check(tokens, shape.B, shape.Q if name == "tokens" else shape.K, name)

    # Merged into words.

    def bounds(self, side: str, att: Attention) -> WordBounds | None:
        """Return the words of a layer's queries or keys; None without tokens."""
        samples = self.samples(side, att.shape)
        if samples is None:
            return None
        length = _length(side, att.shape)
        key = (id(samples), att.shape.B, length)
        if key not in self._bounds or self._bounds[key][0] is not samples:
            if len(self._bounds) >= MAX_KEPT_LISTS:
                self._bounds.clear()
            distinct = samples[:1] if all(one is samples[0] for one in samples) else samples
            ids = [self._word_ids(sample, at) for at, sample in enumerate(distinct)]
            self._bounds[key] = samples, as_word_bounds(ids, att.shape.B, length, "tokens", att.device)
        return self._bounds[key][1]

    def words(self, side: str, att: Attention, batch: int) -> list[str] | None:
        """Return a token for each word of a sample in a layer; None without tokens."""
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
        """Return whether merging tokens into words changes anything, judged by the first tokens."""
        for side in ("query", "key"):
            left = encoding.PAGE
            for pieces in {id(one): one for one in self.samples(side, shape) or ()}.values():
                some = pieces[:left]
                if self._given().words is not None or len(set(word_ids(some, self.spelling))) < len(some):
                    return True
                left -= len(some)
                if left <= 0:
                    break
        return False

    def _word_ids(self, sample: list[str], number: int) -> Sequence[int | None]:
        """Return the word of each token: as the user's function or list says, else by the tokenizer's marks."""
        given = self._given().words
        if callable(given):
            return given(sample)
        own = given if given is None or not _is_of_samples(given) else given[number if len(given) > 1 else 0]
        return word_ids(sample, self.spelling) if own is None or len(own) != len(sample) else own

    @property
    def spelling(self) -> Spelling | None:
        """The spelling of the vocabulary, if the tokenizer shows it."""
        tokenizer = self._given().tokenizer
        if self._spelled[0] is not tokenizer:  # slow: a fast tokenizer writes out its whole vocabulary
            self._spelled = tokenizer, spelling_of(tokenizer)
        return self._spelled[1]

    # For other modules.

    def ids(self, tokens: list[str]) -> Tensor | None:
        """Return tokens as numbers, (n,), equal for equal tokens; None if any token is unknown."""
        if self._ids is None or self._ids[0] is not tokens:
            self._ids = tokens, as_ids(tokens)
        return self._ids[1]

    def vocabulary(self, side: str, tokens: list[str]) -> TokenSearch:
        """Return tokens in searchable form; the last ones of each side are kept."""
        known = self._vocabularies.get(side)
        if known is None or known.tokens is not tokens:
            known = self._vocabularies[side] = TokenSearch(tokens)
        return known

    def message(self, tokens: list[str] | None) -> dict[str, Any] | None:
        """Return a sample's tokens for the front-end, with the spelling of the vocabulary if the tokenizer shows it."""
        message, spelling = encoding.encode_tokens(tokens), self.spelling
        return message if message is None or spelling is None else {**message, "spelling": spelling}

    def is_new(self, name: str, tokens: list[str] | None) -> bool:
        """Return whether these differ from the front-end's, and record that it gets these."""
        if name in self._told and self._told[name] is tokens:
            return False
        self._told[name] = tokens
        return True


def _length(side: str, shape: Shape) -> int:
    return shape.Q if side == "query" else shape.K


def _is_of_samples(words: Any) -> bool:
    """Return whether words are given for each sample."""
    return len(words) > 0 and not (words[0] is None or hasattr(words[0], "__index__"))


def as_words(words: Any) -> Any:
    """Return the word of each token as a user gives it: a function of the tokens, or lists of numbers.

    Raises:
        TypeError: it is neither.
    """
    if words is None or callable(words):
        return words
    words = words.tolist() if hasattr(words, "tolist") else words
    samples = words if isinstance(words, list | tuple) and _is_of_samples(words) else [words]
    for own in samples:
        if not isinstance(own, list | tuple) or not all(one is None or hasattr(one, "__index__") for one in own):
            raise TypeError(
                f"words is {told(words)}: give the number of each token's word, such as [0, 1, 1, 2], a list of these "
                "for each sample, or a function that returns it for the tokens"
            )
    return words
