"""Kinds of tokens: the first, special ones, punctuation, the user's own, and the rest."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._analysis.metrics import as_ids
from .._tokens.tokenizers import is_special
from .._utils.validation import kind_of

FIRST, SPECIAL, PUNCTUATION, OTHER = "first token", "special", "punctuation", "other"
ASIDE = 2  # of the kinds, the first ones: what content links leave out
Reader = Callable[[str], bool]
MARKS = re.compile(r"^(##|[Ġ▁Ċ ]+)|(</w>)$")  # of subwords: WordPiece, byte-level and sentencepiece, BPE


class KindsOfTokens:
    """Sorts the tokens of a text into kinds, the first that fits; it can be sent to other processes.

    Args:
        own: the user's kinds by name: tokens, a regular expression that a token matches as a whole, or a function.
        special: the tokenizer's special tokens.
    """

    def __init__(self, own: Mapping[str, Any] | None = None, special: Sequence[str] = ()) -> None:
        self._own = read_kinds(own)
        self._special = frozenset(special)
        self.names = (FIRST, SPECIAL, *self._own, PUNCTUATION, OTHER)
        self._known: dict[str, int] = {}

    def of(self, words: Sequence[str]) -> Tensor:
        """Return the number of the kind of each token, (n,) int64."""
        found = [self._kind(word) for word in words]
        if found:
            found[0] = 0
        return torch.tensor(found, dtype=torch.int64, device="cpu")

    def _kind(self, word: str) -> int:
        known = self._known.get(word)
        if known is None:
            known = self._known[word] = self.names.index(self._name(word))
        return known

    def _name(self, word: str) -> str:
        if word in self._special or is_special(word):
            return SPECIAL
        bare = MARKS.sub("", word)
        own = next((name for name, fits in self._own.items() if _fits(fits, bare)), None)
        if own is not None:
            return own
        is_punctuation = bare.strip() != "" and all(unicodedata.category(one)[0] in "PS" for one in bare.strip())
        return PUNCTUATION if is_punctuation else OTHER


def read_kinds(given: Mapping[str, Any] | None) -> dict[str, Any]:
    r"""Return the user's kinds: a set of tokens, a compiled expression, or a function, by name.

    Raises:
        TypeError, ValueError: it is another type, or a name is taken.

    >>> read_kinds({"names": ["Ann", "Bob"], "years": r"[12]\d{3}"})["years"].pattern
    '[12]\\d{3}'
    """
    if given is None:
        return {}
    advice = "give tokens, a regular expression or a function by name, such as {'names': ['Ann', 'Bob']}"
    if not isinstance(given, Mapping):
        raise TypeError(f"kinds is {kind_of(given)}: {advice}")
    found: dict[str, Any] = {}
    for name, one in given.items():
        if not isinstance(name, str) or name in (FIRST, SPECIAL, PUNCTUATION, OTHER, ""):
            raise ValueError(f"kinds has the name {name!r}: give another string, because the atlas uses this one")
        if isinstance(one, str):
            try:
                found[name] = re.compile(one)
            except re.error as error:
                raise ValueError(f"kinds[{name!r}] is not a regular expression ({error}): {advice}") from error
        elif isinstance(one, re.Pattern) or callable(one):
            found[name] = one
        elif isinstance(one, set | frozenset | list | tuple) and all(isinstance(token, str) for token in one):
            found[name] = frozenset(one)
        else:
            raise TypeError(f"kinds[{name!r}] is {kind_of(one)}: {advice}")
    return found


def _fits(rule: Any, token: str) -> bool:
    if isinstance(rule, frozenset):
        return token in rule
    return rule.fullmatch(token) is not None if isinstance(rule, re.Pattern) else bool(rule(token))


class TextFacts(NamedTuple):
    """The tokens of a text, as the measures need them.

    words: a string for each key; None if unknown.
    ids: a number for each token, the same for the same token; None if unknown.
    kinds: (n,), the number of the kind of each token.
    content: (n,) bool, the keys that are neither first nor special.
    """

    words: list[str] | None
    ids: Tensor | None
    kinds: Tensor
    content: Tensor

    @classmethod
    def of(cls, words: list[str] | None, length: int, kinds: KindsOfTokens, ids: Tensor | None = None) -> TextFacts:
        """Return the facts of a text; without words, only its first key is known."""
        if words is None:
            numbers = torch.full((length,), kinds.names.index(OTHER), device="cpu")
            numbers[:1] = 0
        else:
            numbers, ids = kinds.of(words), as_ids(words)
        return cls(words, ids, numbers, numbers >= ASIDE)
