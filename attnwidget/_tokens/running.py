"""Tokens as running text: the spaces before them and the line breaks after them.

The same rules as `js/src/text/tokens.ts` and `js/src/text/lines.ts`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from .display import END, INSIDE, Style, display, in_parts, is_marked, plain_text, spaced_text, style_of
from .tokenizers import Spelling, is_special

NO_SPACE_BEFORE = re.compile(r"(?:[.,!?;:%)\]}’”»…。，、！？]+|['’](?:s|t|m|d|ll|re|ve)|n['’]t)", re.IGNORECASE)
NO_SPACE_AFTER = re.compile(r"[([{“‘«]")
CLITIC = re.compile(r"(?:s|t|m|d|ll|re|ve)", re.IGNORECASE)
IDEOGRAPHIC = re.compile("[\u3000-\u303f\uff00-\uffef\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
# The first part of a split character shows it; the others show a dot.
FIRST_PART, SECOND_PART = re.compile(r" 1/\d"), re.compile(r"\S+ [2-4]/\d")

Join = Literal["known", "ends", "words"]
"""Whether a vocabulary shows the spaces of a text, or those after the last subword of a word, or none."""


class Piece(NamedTuple):
    """A token in a text.

    Attributes:
        text: as shown.
        gap: whether a space comes before it.
        opens: whether a line may begin with it.
        special: whether it is not part of the text, such as [CLS].
        breaks: whether a line ends after it.
    """

    text: str
    gap: bool
    opens: bool
    special: bool
    breaks: bool


class _Read(NamedTuple):
    text: str
    space: bool | None  # before it; None if its neighbors decide
    special: bool
    breaks: bool


def pieces_of(tokens: Sequence[str], spelling: Spelling | None = None) -> list[Piece]:
    """Return tokens as pieces of a text.

    Args:
        tokens: of one sample, as the tokenizer writes them.
        spelling: how the vocabulary is written, if the tokenizer reports it.

    >>> "".join(f"{' ' * piece.gap}{piece.text}" for piece in pieces_of(["the", "cat", "##s", "'", "s", "."])).strip()
    "the cats's."
    """
    style: Style = style_of(set(tokens)) if spelling is None else "words" if spelling == "text" else spelling
    join = _join_of(tokens, style)
    known = {token: _read(token, style, join) for token in set(tokens)}
    found: list[Piece] = []
    before: _Read | None = None
    for at, token in enumerate(tokens):
        one = known[token]
        shown = in_parts(tokens, at, one.text, style)
        if shown != one.text:
            one = one._replace(text=SECOND_PART.sub("·", FIRST_PART.sub("", shown)))
        gap = before is None or _has_space(tokens, at, before, one, known)
        ideographic = any(side is not None and IDEOGRAPHIC.search(side.text) for side in (before, one))
        opens = gap or ideographic or (before is not None and before.breaks)
        found.append(Piece(one.text, gap, opens, one.special, one.breaks))
        before = one
    return found


def _join_of(tokens: Sequence[str], style: Style) -> Join:
    if style in ("bytes", "spaced"):
        return "known"
    for token in tokens:
        if is_special(token):
            continue
        if re.search(r"\A[▁\s]|\s\Z", token) or (style == "text" and is_marked(token)):
            return "known"
        if token.endswith(END):
            return "ends"
    return "words"


def _read(token: str, style: Style, join: Join) -> _Read:
    text = display(token, style)
    if is_special(token):
        return _Read(text, True, True, False)
    plain = plain_text(token, style)
    breaks = plain.endswith("\n")
    if join == "words":
        inside = INSIDE.match(token) is not None
        return _Read(text[1:] if inside else text, False if inside else None, False, breaks)
    if join == "ends":
        return _Read(text, False, False, breaks)
    space = spaced_text(token, style).startswith(" ") and plain.strip() != ""
    return _Read(text.removeprefix("·") if space and plain.startswith(" ") else text, space, False, breaks)


def _has_space(tokens: Sequence[str], at: int, before: _Read, one: _Read, known: dict[str, _Read]) -> bool:
    if before.special or one.special:
        return True
    if one.space is not None:
        return one.space or (not before.breaks and tokens[at - 1].endswith(END))
    if NO_SPACE_BEFORE.fullmatch(one.text) or NO_SPACE_AFTER.fullmatch(before.text):
        return False
    if before.text in "'’":
        return CLITIC.fullmatch(one.text) is None
    if one.text in "'’":
        return at + 1 == len(tokens) or CLITIC.fullmatch(known[tokens[at + 1]].text) is None
    return not (IDEOGRAPHIC.match(before.text[-1:]) and IDEOGRAPHIC.match(one.text[:1]))
