"""Search the tokens of a long text, as bytes: a million tokens must not need an object each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain

import numpy as np

FRONT = ("Ġ", "▁", "##")  # marks of tokenizers for a space before a subword, or for none
BACK = "</w>"
PIECE = 1 << 14  # tokens whose text is searched as one
SEPARATORS = (range(32), range(0xFDD0, 0xFDF0), range(0x100000, 0x10FFFE))  # characters that no text should have

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
Positions = np.ndarray[tuple[int], np.dtype[np.signedinteger]]
Marks = np.ndarray[tuple[int], np.dtype[np.bool_]]


class TokenSearch:
    """Search the tokens of one sample, as many as a million.

    >>> TokenSearch(["the", "Ġriver", "Ġbank", "s", "Ġthe"]).find("THE", start=1, count=10)
    ([4, 0], 2)
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tokens

    @property
    def size(self) -> int:
        """The bytes that a search reads."""
        return sum(len(piece.text) for piece in self._pieces)

    def find(self, text: str, *, start: int, count: int) -> tuple[list[int], int]:
        """Find a text, ignoring case; a tokenizer's marks may be left out.

        Args:
            text: to look for.
            start: the position at which the search begins; it wraps round.
            count: the most positions to return.

        Returns:
            Positions of tokens that equal the text, then of those that contain it; and the number of all.
        """
        wanted = folded(text)
        found = [piece.find(wanted) for piece in self._pieces]
        named: list[int] = []
        for is_same in (True, False):
            positions = np.concatenate([at[same == is_same] for at, same in found] or [np.zeros(0, np.int32)])
            turn = int(np.searchsorted(positions, start))
            for part in (positions[turn:], positions[:turn]):
                named += part[: count - len(named)].tolist()
        return named, sum(len(at) for at, _ in found)

    @cached_property
    def _pieces(self) -> list[SearchedPiece]:
        n = len(self.tokens)
        return [SearchedPiece(first, self.tokens[first : first + PIECE]) for first in range(0, n, PIECE)]


class SearchedPiece:
    """The text of some consecutive tokens, ignoring case.

    Args:
        first: the position of the first of them.
        tokens: at least one.

    Attributes:
        text: (n,) bytes of UTF-8, with a separator between tokens.
    """

    def __init__(self, first: int, tokens: Sequence[str]) -> None:
        self._first = first
        together = "".join(tokens)
        separator = next(chr(code) for code in chain(*SEPARATORS) if chr(code) not in together)
        joined = separator.join(tokens)
        self.text = as_bytes(folded(joined))
        between, width = places_of(self.text, folded(separator)), len(folded(separator))
        self._starts = np.concatenate([[0], between + width]).astype(np.int32)
        self._ends = np.append(between, len(self.text)).astype(np.int32)
        # Marks are found in the text as it is; each has as many bytes if case is ignored.
        self._bare_starts, self._bare_ends = self._without_marks(as_bytes(encoded(joined)), encoded(separator))

    def _without_marks(self, text: Bytes, separator: bytes) -> tuple[Positions, Positions]:
        """Return the begin and end of each token without its tokenizer's marks, in the text without case."""
        between = places_of(text, separator)
        starts, ends = np.concatenate([[0], between + len(separator)]), np.append(between, len(text))
        front, back = np.zeros(len(starts), np.int32), np.zeros(len(starts), np.int32)
        for mark in map(encoded, FRONT):
            front += len(mark) * stand_at(text, mark, starts + front, ends)
        mark = encoded(BACK)
        back += len(mark) * stand_at(text, mark, np.maximum(ends - len(mark), starts + front), ends)
        return self._starts + front, self._ends - back

    def find(self, wanted: bytes) -> tuple[Positions, Marks]:
        """Return the positions of the tokens that contain some bytes, and which of these equal them."""
        places = places_of(self.text, wanted)
        tokens = np.searchsorted(self._starts, places, side="right") - 1
        inside = places + len(wanted) <= self._ends[tokens]  # and not across two tokens
        places, tokens = places[inside], tokens[inside]
        ends = places + len(wanted)
        begins = (places == self._starts[tokens]) & (ends == self._ends[tokens])
        same = begins | ((places == self._bare_starts[tokens]) & (ends == self._bare_ends[tokens]))
        found, where = np.unique(tokens, return_index=True)
        is_same = np.logical_or.reduceat(same, where) if len(where) else same
        return found.astype(np.int32) + np.int32(self._first), is_same


def places_of(text: Bytes, wanted: bytes) -> Positions:
    """Return the places of some bytes, at least one, in others.

    >>> places_of(as_bytes(b"banana"), b"ana").tolist()
    [1, 3]
    """
    places = np.flatnonzero(text[: max(0, len(text) - len(wanted) + 1)] == wanted[0])
    for at, byte in enumerate(wanted[1:], 1):
        if not len(places):
            break
        places = places[text[places + at] == byte]
    return places


def stand_at(text: Bytes, mark: bytes, places: Positions, ends: Positions) -> Marks:
    """Return which of some places have a mark before their ends."""
    found = places + len(mark) <= ends
    for at, byte in enumerate(mark):
        found[found] = text[places[found] + at] == byte
    return found


def folded(text: str) -> bytes:
    """Return a text in UTF-8, ignoring case."""
    return encoded(text.casefold())


def encoded(text: str) -> bytes:
    """Return a text in UTF-8; half a surrogate pair too."""
    return text.encode("utf-8", "surrogatepass")


def as_bytes(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8)


def bare(token: str) -> str:
    """Return a token without its tokenizer's marks.

    >>> [bare(token) for token in ("Ġthe", "▁the", "##the", "the</w>", "▁")]
    ['the', 'the', 'the', 'the', '']
    """
    for mark in FRONT:
        token = token.removeprefix(mark)
    return token.removesuffix(BACK)
