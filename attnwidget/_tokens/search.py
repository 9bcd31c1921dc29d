"""Search the tokens of a long text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

FRONT = ("Ġ", "▁", "##")  # how tokenizers mark a space before a piece, or that there is none
BACK = "</w>"


class TokenSearch:
    """Search the tokens of one sample: there may be a million, of far fewer kinds.

    >>> TokenSearch(["the", "Ġriver", "Ġbank", "s", "Ġthe"]).find("THE", start=1, count=10)
    ([4, 0], 2)
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tokens

    def find(self, text: str, *, start: int, count: int) -> tuple[list[int], int]:
        """Find a text without regard to case; a tokenizer's marks need not be written.

        Args:
            text: what is looked for.
            start: the position from which the order goes, round to it again.
            count: of positions to return, at most.

        Returns:
            Positions of tokens that are the text, then of those that contain it; and how many there are in all.
        """
        wanted = text.casefold()
        kinds = len(self._folded)
        same = np.fromiter((wanted in pair for pair in self._folded), bool, kinds)
        contains = np.fromiter((wanted in whole for whole, _ in self._folded), bool, kinds) & ~same
        found: list[int] = []
        total = 0
        for chosen in (same, contains):
            positions = np.flatnonzero(chosen[self._ids])
            total += len(positions)
            turned = np.roll(positions, -int(np.searchsorted(positions, start)))
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
        """Which kind each token is, (n,)."""
        kinds = self._kinds
        return np.fromiter((kinds[token] for token in self.tokens), np.int32, len(self.tokens))

    @cached_property
    def _folded(self) -> list[tuple[str, str]]:
        """Each kind without regard to case: as it is, and without marks."""
        return [(kind.casefold(), bare(kind).casefold()) for kind in self._kinds]


def bare(token: str) -> str:
    """Return a token without its tokenizer's marks.

    >>> [bare(token) for token in ("Ġthe", "▁the", "##the", "the</w>", "▁")]
    ['the', 'the', 'the', 'the', '']
    """
    for mark in FRONT:
        token = token.removeprefix(mark)
    return token.removesuffix(BACK)
