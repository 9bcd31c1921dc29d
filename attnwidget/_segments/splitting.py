"""Texts cut into paragraphs, lines, sentences, or by a regular expression."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

Part = tuple[str, int, int]  # name, first and last character

PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*")
LINE = re.compile(r"\n+")
OTHER_ENDS = (
    r"|(?<=[。！？])[”’」』）]*\s*"
    r"|\n[^\S\n]*\n\s*"
    r"|\n\s*(?=(?:[-*•–]|\d+[.)])\s)"  # an item of a list
)
SENTENCE = re.compile(
    r"(?<=[.!?…])[\"'”’»)\]*_]*\s+(?=[\"'“‘«(\[*_#\-–—•]*[^\W_a-z])"  # the end of one, unless lower case follows
    + OTHER_ENDS
)
UNCASED_SENTENCE = re.compile(
    r"(?<=[.!?…])(?!(?<=\d\.)\s*\d)[\"'”’»)\]*_]*\s+(?=[\"'“‘«(\[*_#\-–—•]*[^\W_])" + OTHER_ENDS
)
ABBREVIATION = re.compile(
    r"(?:\b(?:[A-Z]|Mrs?|Ms|Drs?|Prof|St|Jr|Sr|vs|etc|Inc|Ltd|Co|Corp|No|Nos|Fig|Figs|Eq|Eqs|Sec|Ch|Vol|pp?|cf|al|approx"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec|Gen|Col|Capt|Lt|Sgt|Rev|Hon|Gov|Sen|Rep)|\b(?:[a-z]\.)+[a-z])\.\Z"
)
UNCASED_ABBREVIATION = re.compile(
    r"(?:\b(?:[a-z]|mrs?|ms|drs?|prof|st|jr|sr|vs|etc|inc|ltd|corp|figs?|eqs?|vol|pp|cf|al|approx)"
    r"|\b(?:[a-z]\.)+[a-z])\s?\.\Z"
)


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield the sentences of a text: each ends at . ! ? … and the like before a new beginning, and at an empty line.

    A new beginning is a capital letter, except in a text without any, from an uncased tokenizer. No rule is perfect: an
    abbreviation that is not listed ends a sentence too.

    >>> [text[a:b] for text in ['He met Dr. Ho. "Hi!" 3.5 km'] for a, b in sentences(text)]
    ['He met Dr. Ho. ', '"Hi!" ', '3.5 km']
    >>> [text[a:b] for text in ["he met dr. ho. it was 3. 5 km"] for a, b in sentences(text)]
    ['he met dr. ho. ', 'it was 3. 5 km']
    """
    start = 0
    has_case = text != text.lower()
    border, abbreviation = (SENTENCE, ABBREVIATION) if has_case else (UNCASED_SENTENCE, UNCASED_ABBREVIATION)
    for found in border.finditer(text):
        if abbreviation.search(text, start, found.start()) and "\n" not in found[0]:
            continue
        if found.end() > start:
            yield start, found.end()
        start = found.end()
    if start < len(text):
        yield start, len(text)


def _between(border: re.Pattern[str]) -> Callable[[str], Iterator[tuple[int, int]]]:
    def parts(text: str) -> Iterator[tuple[int, int]]:
        start = 0
        for found in border.finditer(text):
            yield start, found.end()
            start = found.end()
        yield start, len(text)

    return parts


UNITS: dict[str, tuple[str, Callable[[str], Iterator[tuple[int, int]]]]] = {
    "sentences": ("sentence", sentences),
    "paragraphs": ("paragraph", _between(PARAGRAPH)),
    "lines": ("line", _between(LINE)),
}


def parts_of(texts: list[tuple[str, int]], unit: str) -> list[Part]:
    """Return the sentences, paragraphs or lines of several separate texts, numbered through.

    Args:
        texts: each with the number of its first character.
        unit: a key of `UNITS`.

    >>> parts_of([("One. Two.", 0)], "sentences")
    [('sentence 1', 0, 5), ('sentence 2', 5, 9)]
    """
    name, split = UNITS[unit]
    found = [(at + start, at + stop) for text, at in texts for start, stop in split(text) if text[start:stop].strip()]
    return [(f"{name} {i}", *span) for i, span in enumerate(found, 1)]


def matches(
    texts: list[tuple[str, int]], pattern: re.Pattern[str], is_none: Callable[[int, int], bool] = lambda *_: False
) -> list[Part]:
    r"""Return the matches of a regular expression in several separate texts.

    Args:
        texts: each with the number of its first character.
        pattern: each named group is a segment of its name; without named groups, the whole match is one.
        is_none: returns whether start and stop are not part of the text, and so not a match.

    >>> matches([("Doc a. Doc b. Why?", 0)], re.compile(r"(?P<document>Doc \w\.)|(?P<question>\w+\?)"))
    [('document 1', 0, 6), ('document 2', 7, 13), ('question', 14, 18)]
    """
    found: list[Part] = []
    groups: list[str | int] = [*pattern.groupindex] or [0]
    for text, at in texts:
        for match in pattern.finditer(text):
            for group in groups:
                start, stop = match.span(group)
                if stop > start and not is_none(at + start, at + stop):
                    found.append((str(group or "match"), at + start, at + stop))
    many = Counter(name for name, _, _ in found)
    counts = dict.fromkeys(many, 0)
    numbered = []
    for name, start, stop in found:
        counts[name] += 1
        alone = many[name] == 1 and name != "match"
        numbered.append((name if alone else f"{name} {counts[name]}", start, stop))
    return numbered
