"""The text of tokens, and the place of each token in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from .._tokens.byte_level import raw_bytes
from .._tokens.display import END, spaced_text, style_of
from .._tokens.inputs import is_encoding
from .._tokens.running import NO_SPACE_AFTER, NO_SPACE_BEFORE
from .._tokens.tokenizers import Spelling, is_special, spell, spelling_of
from .._utils.validation import as_size
from .named import FIRST, PADDING, RESERVED, TEMPLATE, Labels

CONTENT = re.compile(r"[\[<|]+(?:unk|mask|image|audio|video)(?:_\w+)?[\]>|]+", re.IGNORECASE)
"""Special tokens that stand for something in the text."""
PAD = re.compile(r"[\[<|]+(?:pad|padding|endofpad)[\]>|]+", re.IGNORECASE)
SPACED = re.compile(r"\A[▁\s]+[^▁\s]|[^▁\s]\s+\Z|\A[▁ ]\Z")
"""A token that shows where spaces are."""
TEXT_WANTED = "give tokenizer= with ids=, tokens= as strings, or tokens=tokenizer(text)"

Offsets = np.ndarray[Any, np.dtype[np.int64]]


class Cores(NamedTuple):
    """The characters of tokens, without white space around them.

    places: (n, 2), the characters of each.
    is_blank: (n,), whether there are none; its place is then the place of its white space.
    """

    places: Offsets
    is_blank: np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class TokenText:
    """Tokens and their text.

    Attributes:
        length: the number of tokens.
        tokens: as the tokenizer writes them; None if unknown.
        ids: of the tokens; None if unknown.
        given: the text that was tokenized, if known.
        given_offsets: (length, 2), the place of each token in the tokenized text, if known.
        spelling: how the vocabulary is written, if the tokenizer reports it.
        special: tokens that the tokenizer puts around a text.
        pad: the padding token; None if there is none.
        pad_ends: whether the padding token also begins or ends a text.
    """

    length: int
    tokens: tuple[str, ...] | None = None
    ids: tuple[int, ...] | None = None
    given: str | None = None
    given_offsets: Offsets | None = None
    spelling: Spelling | None = None
    special: frozenset[str] = frozenset()
    pad: str | None = None
    pad_ends: bool = False

    @cached_property
    def is_special(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each token is not part of the text: (length,)."""
        found = np.zeros(self.length, bool)
        known = {one: self._is_special(one) for one in set(self.tokens or ())}
        found[[i for i, token in enumerate(self.tokens or ()) if known[token]]] = True
        return found

    def _is_special(self, token: str) -> bool:
        if CONTENT.fullmatch(token):
            return False
        return token in self.special or is_special(token)

    @cached_property
    def own(self) -> Labels:
        """Each token's number in `RESERVED`, -1 for tokens of the text: (length,)."""
        found = np.where(self.is_special, RESERVED.index(TEMPLATE), -1)
        first, last = self._filled()
        found[:first] = found[last:] = RESERVED.index(PADDING)
        found[first : first + 1] = RESERVED.index(FIRST)
        return found

    def _filled(self) -> tuple[int, int]:
        """Return the range without padding.

        A token that also begins or ends a text is padding only if it occurs more than once.
        """
        tokens = self.tokens or ()
        is_pad = [token == self.pad or PAD.fullmatch(token) is not None for token in tokens]
        first = next((i for i, one in enumerate(is_pad) if not one), 0)
        last = next((i for i in range(len(tokens), 0, -1) if not is_pad[i - 1]), self.length)
        if self.pad_ends and first == 1 and tokens[0] == self.pad:
            first = 0
        if self.pad_ends and last < len(tokens) and tokens[last] == self.pad:
            last += 1
        return first, last

    @property
    def text(self) -> str:
        """The text: the tokenized text if it is known, else spelled from the tokens.

        Raises:
            ValueError: neither is known.
        """
        return self._read[0]

    @property
    def offsets(self) -> Offsets:
        """The place of each token in `text`, (length, 2)."""
        return self._read[1]

    @cached_property
    def _read(self) -> tuple[str, Offsets]:
        if self.given is not None and self.given_offsets is not None:
            return self.given, self.given_offsets
        if self.tokens is None and self.ids is not None:
            raise ValueError(
                "of the text only its ids are known, as a slow tokenizer of transformers returns them, so nothing can "
                "be found in it: give tokenizer= as well, the one that made them"
            )
        if self.tokens is None:
            raise ValueError(f"the text is unknown, so nothing can be found in it: {TEXT_WANTED}")
        return joined(self.tokens, self.spelling, self.is_special)

    @cached_property
    def cores(self) -> Cores:
        """The characters of each token in `text`, without white space around them."""
        return _cores([self.text[start:stop] for start, stop in self.offsets.tolist()], self.offsets)

    @cached_property
    def given_cores(self) -> Cores:
        """The same in the text that was tokenized.

        If that text is unknown, a token shows its own white space if it is as long as its place.
        """
        assert self.given_offsets is not None
        if self.given is not None or self.tokens is None:
            return self.cores if self.given is not None else _cores([], self.given_offsets)
        text, own = joined(self.tokens, self.spelling, self.is_special)
        return _cores([text[start:stop] for start, stop in own.tolist()], self.given_offsets)

    def span(self, tokens: range) -> tuple[int, int]:
        """Return the characters of a range of tokens."""
        part = self.offsets[tokens.start : tokens.stop]
        return int(part[:, 0].min()), int(part[:, 1].max())


def joined(
    tokens: Sequence[str], spelling: Spelling | None, special: np.ndarray[Any, np.dtype[np.bool_]]
) -> tuple[str, Offsets]:
    """Return the text of tokens, and the place of each token in it.

    Tokens that hold parts of one character share it.

    >>> joined(["em", "##bed", "it", "."], None, np.zeros(4, bool))[0]
    'embed it.'
    """
    style = style_of(set(tokens)) if spelling is None else "words" if spelling == "text" else spelling
    tells = style in ("bytes", "spaced") or any(SPACED.search(token) for token in set(tokens))
    raw = bytearray()
    ends = np.zeros(len(tokens) + 1, np.int64)
    before = ""
    for i, token in enumerate(tokens):
        known = None if special[i] else raw_bytes(token, style == "bytes")
        if special[i]:
            raw += token.encode()
        elif known is not None:
            raw += known
        elif tells:
            raw += spaced_text(token, style).encode()
        else:
            raw += (_gap(before, token) + token.removeprefix("##").removesuffix(END)).encode()
        ends[i + 1] = len(raw)
        before = token
    text = raw.decode(errors="surrogateescape")
    places = _places(text, ends)
    starts, stops = places[0][:-1], places[1][1:]
    return text, np.stack([np.minimum(starts, stops), stops], 1)


def _gap(before: str, token: str) -> str:
    if not before or token.startswith("##") or before[-1:].isspace() or token[:1].isspace():
        return ""
    return "" if NO_SPACE_BEFORE.fullmatch(token) or NO_SPACE_AFTER.fullmatch(before) else " "


def _places(text: str, ends: Offsets) -> tuple[Offsets, Offsets]:
    """Return, for places in bytes, the last character that begins at or before each, and the first that ends there."""
    if text.isascii():
        return ends, ends
    sizes = np.fromiter((len(one.encode(errors="surrogateescape")) for one in text), np.int64, len(text))
    borders = np.concatenate([[0], np.cumsum(sizes)])
    return np.searchsorted(borders, ends, "right") - 1, np.searchsorted(borders, ends, "left")


def _cores(texts: Sequence[str], offsets: Offsets) -> Cores:
    """Return the places of tokens without white space; a text that is not as long as its place gives nothing."""
    found, is_blank = offsets.copy(), offsets[:, 0] == offsets[:, 1]
    for i, ((start, stop), text) in enumerate(zip(offsets.tolist(), texts, strict=False)):
        bare = text.strip()
        if len(text) != stop - start or len(bare) == len(text):
            continue
        at = start + len(text) - len(text.lstrip()) if bare else start
        is_blank[i] |= not bare
        found[i] = (at, at + len(bare)) if bare else (start, stop)
    return Cores(found, is_blank)


# Arguments of a user.


def read_text(tokenizer: Any, ids: Any, tokens: Any, length: int | None) -> TokenText | None:
    """Return the text from a user's arguments.

    Args:
        tokenizer: spells the ids, or None.
        ids: of one text, (n,) or (1, n), or None.
        tokens: strings; the output of a tokenizer; or the text itself, which `tokenizer` then tokenizes; or None.
        length: the number of tokens, or None.

    Returns:
        None if nothing is known.

    Raises:
        TypeError, ValueError: they contradict one another, or cannot be read.
    """
    numbers = None if ids is None else _as_ids(ids)
    if isinstance(tokens, str):
        found = _tokenized(tokens, tokenizer, numbers)
    elif is_encoding(tokens):
        found = read_encoding(tokens, tokenizer)
    elif tokens is not None:
        found = _of_strings(tokens, tokenizer)
        if numbers is not None and len(numbers) == found.length:
            found = replace(found, ids=tuple(numbers))
    elif numbers is not None:
        words = None if tokenizer is None else tuple(spell(numbers, tokenizer, "ids"))
        found = TokenText(len(numbers), words, tuple(numbers), **_facts(tokenizer))
    else:
        return None if length is None else TokenText(as_size(length, "length"))
    for other, name in ((length, "length"), (None if numbers is None else len(numbers), "ids")):
        if other is not None and other != found.length:
            raise ValueError(f"{name} has {other:,} tokens, tokens {found.length:,}: give those of the same text")
    return found


def _facts(tokenizer: Any) -> dict[str, Any]:
    """Return a tokenizer's special tokens."""
    special = getattr(tokenizer, "all_special_tokens", None)
    pad, *ends = (getattr(tokenizer, f"{name}_token", None) for name in ("pad", "bos", "eos", "sep", "cls"))
    return {
        "spelling": spelling_of(tokenizer),
        "special": frozenset(one for one in special or () if isinstance(one, str)),
        "pad": pad if isinstance(pad, str) else None,
        "pad_ends": isinstance(pad, str) and pad in ends,
    }


def _as_ids(ids: Any) -> list[int]:
    ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    if len(ids) == 1 and isinstance(ids[0], list | tuple):
        ids = list(ids[0])
    for one in ids:
        if isinstance(one, bool) or not isinstance(one, int | np.integer):
            raise TypeError(f"ids holds {one!r:.40}: give the ids of one text, a list of integers")
    return [int(one) for one in ids]


def _of_strings(tokens: Any, tokenizer: Any) -> TokenText:
    tokens = list(tokens.tolist() if hasattr(tokens, "tolist") else tokens)
    if len(tokens) == 1 and isinstance(tokens[0], list | tuple):
        tokens = list(tokens[0])
    if tokens and all(isinstance(one, int | np.integer) for one in tokens) and tokenizer is not None:
        ids = [int(one) for one in tokens]
        return TokenText(len(ids), tuple(spell(ids, tokenizer, "tokens")), tuple(ids), **_facts(tokenizer))
    for one in tokens:
        if not isinstance(one, str):
            raise TypeError(f"tokens holds {one!r:.40}: give a string for each token of one text")
    return TokenText(len(tokens), tuple(map(str, tokens)), **_facts(tokenizer))


def read_encoding(given: Any, tokenizer: Any, text: str | None = None) -> TokenText:
    """Read what a tokenizer returned: of transformers, or of tokenizers."""
    words: tuple[str, ...] | None
    if not isinstance(given, Mapping):
        ids, words, offsets = given.ids, tuple(given.tokens), given.offsets
    elif encodings := getattr(given, "encodings", None):  # of transformers' fast tokenizers
        if len(encodings) > 1:
            raise ValueError(f"tokens holds {len(encodings)} texts: give one, as tokens=tokenizer(text)")
        ids, words, offsets = encodings[0].ids, tuple(encodings[0].tokens), encodings[0].offsets
    else:
        ids, offsets = _as_ids(given["input_ids"]), given.get("offset_mapping")
        words = None if tokenizer is None else tuple(spell(ids, tokenizer, "tokens"))
    places = None if offsets is None else _as_offsets(offsets)
    return TokenText(len(ids), words, tuple(ids), text, places, **_facts(tokenizer))


def _as_offsets(given: Any) -> Offsets:
    """Return offsets (n, 2) in which tokens that stand nowhere, such as [SEP], stand after the one before them."""
    found = np.array(given.tolist() if hasattr(given, "tolist") else given, np.int64).reshape(-1, 2)
    at = 0
    for i, (start, stop) in enumerate(found.tolist()):
        if start == stop == 0:
            found[i] = at
        at = int(found[i, 1])
    return found


def _tokenized(text: str, tokenizer: Any, ids: list[int] | None) -> TokenText:
    """Tokenize a text as its ids were; without them, as the tokenizer does by default."""
    for with_special in (True, False):
        found = read_encoding(encoded(text, tokenizer, with_special=with_special), tokenizer, text)
        if ids is None or list(found.ids or ()) == ids:
            return found
    assert ids is not None
    raise ValueError(
        f"tokens is a text of {found.length:,} tokens of this tokenizer, which are not the {len(ids):,} ids: give the "
        "text that they were made of"
    )


def encoded(text: str, tokenizer: Any, *, with_special: bool) -> Any:
    """Return what a tokenizer makes of a text, with the place of each token in it.

    Raises:
        TypeError: it cannot tell the places.
    """
    if getattr(tokenizer, "is_fast", False):
        return tokenizer(text, return_offsets_mapping=True, add_special_tokens=with_special)
    if callable(getattr(tokenizer, "encode", None)) and callable(getattr(tokenizer, "id_to_token", None)):
        return tokenizer.encode(text, add_special_tokens=with_special)
    raise TypeError(
        f"tokens is a text, and tokenizer is {type(tokenizer).__name__}, which does not tell where tokens stand in a "
        "text: give a fast one of transformers, such as AutoTokenizer.from_pretrained(…), or one of tokenizers"
    )
