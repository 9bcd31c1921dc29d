"""The tokens of a long text: in pages, and searched."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

FRONT = ("Ġ", "▁", "##")  # how tokenizers mark a space before a piece, or that there is none
BACK = "</w>"


class TokenSearch:
    """The tokens of one sample, which may be a million, of far fewer kinds.

    >>> TokenSearch(["the", "Ġriver", "Ġbank", "s", "Ġthe"]).find("THE", start=1, count=10)
    ([4, 0], 2)
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tokens

    def find(self, text: str, *, start: int, count: int) -> tuple[list[int], int]:
        """Positions of tokens, from `start` on and round to it again: those that are the text, then those that contain
        it, without regard to case; a tokenizer's marks need not be written. And how many there are in all."""
        wanted = text.casefold()
        kinds = len(self._folded)
        same = np.fromiter((wanted in pair for pair in self._folded), bool, kinds)
        contains = np.fromiter((wanted in whole for whole, _ in self._folded), bool, kinds) & ~same
        found: list[int] = []
        total = 0
        for chosen in (same, contains):
            places = np.flatnonzero(chosen[self._ids])
            total += len(places)
            turned = np.roll(places, -int(np.searchsorted(places, start)))
            found += turned[: count - len(found)].tolist()
        return found, total

    @cached_property
    def _kinds(self) -> dict[str, int]:
        kinds: dict[str, int] = {}
        for token in self.tokens:
            kinds.setdefault(token, len(kinds))
        return kinds

    @cached_property
    def _ids(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Which kind each token is."""
        kinds = self._kinds
        return np.fromiter((kinds[token] for token in self.tokens), np.int32, len(self.tokens))

    @cached_property
    def _folded(self) -> list[tuple[str, str]]:
        """Each kind without regard to case: as it is, and without marks."""
        return [(kind.casefold(), bare(kind).casefold()) for kind in self._kinds]


def bare(token: str) -> str:
    """A token without its tokenizer's marks.

    >>> [bare(token) for token in ("Ġthe", "▁the", "##the", "the</w>", "▁")]
    ['the', 'the', 'the', 'the', '']
    """
    for mark in FRONT:
        token = token.removeprefix(mark)
    return token.removesuffix(BACK)
