"""Properties of characters that `unicodedata` lacks, and what a reader takes for one character.

The tables are of Unicode 17, as the regular expressions of `js/src/text/tokens.ts` read them.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right

WHITE = "\t\n\v\f\r \xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000\ufeff"
"""White space as JavaScript knows it."""

JOINERS = "\u200c\u200d"


class Ranges:
    """A set of characters, from code points in hexadecimal: `41-5a 5f`."""

    def __init__(self, text: str) -> None:
        pairs = [part.split("-") for part in text.split()]
        self._first = [int(pair[0], 16) for pair in pairs]
        self._last = [int(pair[-1], 16) for pair in pairs]

    def __contains__(self, text: str) -> bool:
        if len(text) != 1:
            return False
        code = ord(text)
        at = bisect_right(self._first, code) - 1
        return at >= 0 and code <= self._last[at]


IGNORABLE = Ranges(
    "ad 34f 61c 115f-1160 17b4-17b5 180b-180f 200b-200f 202a-202e 2060-206f 3164 fe00-fe0f feff ffa0 fff0-fff8 "
    "1bca0-1bca3 1d173-1d17a e0000-e0fff"
)
"""Default_Ignorable_Code_Point: drawn as nothing."""

PICTOGRAPHS = Ranges(
    "a9 ae 203c 2049 2122 2139 2194-2199 21a9-21aa 231a-231b 2328 23cf 23e9-23f3 23f8-23fa 24c2 25aa-25ab 25b6 "
    "25c0 25fb-25fe 2600-2604 260e 2611 2614-2615 2618 261d 2620 2622-2623 2626 262a 262e-262f 2638-263a 2640 "
    "2642 2648-2653 265f-2660 2663 2665-2666 2668 267b 267e-267f 2692-2697 2699 269b-269c 26a0-26a1 26a7 "
    "26aa-26ab 26b0-26b1 26bd-26be 26c4-26c5 26c8 26ce-26cf 26d1 26d3-26d4 26e9-26ea 26f0-26f5 26f7-26fa 26fd "
    "2702 2705 2708-270d 270f 2712 2714 2716 271d 2721 2728 2733-2734 2744 2747 274c 274e 2753-2755 2757 "
    "2763-2764 2795-2797 27a1 27b0 27bf 2934-2935 2b05-2b07 2b1b-2b1c 2b50 2b55 3030 303d 3297 3299 1f004 "
    "1f02c-1f02f 1f094-1f09f 1f0af-1f0b0 1f0c0 1f0cf-1f0d0 1f0f6-1f0ff 1f170-1f171 1f17e-1f17f 1f18e 1f191-1f19a "
    "1f1ae-1f1ff 1f201-1f20f 1f21a 1f22f 1f232-1f23a 1f23c-1f23f 1f249-1f25f 1f266-1f321 1f324-1f393 1f396-1f397 "
    "1f399-1f39b 1f39e-1f3f0 1f3f3-1f3f5 1f3f7-1f3fa 1f400-1f4fd 1f4ff-1f53d 1f549-1f54e 1f550-1f567 1f56f-1f570 "
    "1f573-1f57a 1f587 1f58a-1f58d 1f590 1f595-1f596 1f5a4-1f5a5 1f5a8 1f5b1-1f5b2 1f5bc 1f5c2-1f5c4 1f5d1-1f5d3 "
    "1f5dc-1f5de 1f5e1 1f5e3 1f5e8 1f5ef 1f5f3 1f5fa-1f64f 1f680-1f6c5 1f6cb-1f6d2 1f6d5-1f6e5 1f6e9 1f6eb-1f6f0 "
    "1f6f3-1f6ff 1f7da-1f7ff 1f80c-1f80f 1f848-1f84f 1f85a-1f85f 1f888-1f88f 1f8ae-1f8af 1f8bc-1f8bf 1f8c2-1f8cf "
    "1f8d9-1f8ff 1f90c-1f93a 1f93c-1f945 1f947-1f9ff 1fa58-1fa5f 1fa6e-1faff 1fc00-1fffd"
)
"""Extended_Pictographic, and the letters that flags are written with."""

UNSHAPED = Ranges(
    "41-aa ba-2b8 2e0-2e4 370-373 376-3e1 3f0-52f 1c80-1c8a 1d00-209c 2126 212a-212b 2132 214e-2184 2c60-2c7f "
    "3005 303b 3041-30fa 30fd-30ff 31f0-9fff a640-a69d a722-a787 a78b-a7ff ab30-ab69 f900-fb06 ff21-ff6f "
    "ff71-ff9d 10780-107ba 16fe3-16ff3 1aff0-1b167 1df00-1e06d 20000-33479"
)
"""Among letters: Latin, Greek, Cyrillic, Han, Hiragana and Katakana, whose shape depends on no joiner."""

FLAGS = Ranges("1f1e6-1f1ff")  # the letters of which two are a flag
TAGS = Ranges("e0020-e007f")  # that name the flag of a region
PREPENDED = Ranges("600-605 6dd 70f 890-891 8e2 110bd 110cd")  # signs that the next character belongs to
MODIFIERS = Ranges("ff9e-ff9f 1f3fb-1f3ff")  # of kana and of skin
VOWELS = Ranges("1160-11a7 d7b0-d7c6")  # of Hangul, as are the others
FINALS = Ranges("11a8-11ff d7cb-d7fb")
SYLLABLES = Ranges("ac00-d7a3")
LEADS = Ranges("1100-115f a960-a97c")


def is_invisible(character: str) -> bool:
    """Return whether a character is not seen, or is seen as an ordinary space."""
    return (
        unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
        or (character != " " and unicodedata.category(character) == "Zs")
        or character in IGNORABLE
    )


def one_line(text: str) -> str:
    r"""Return a text as one line that any file can hold; what cannot be drawn is U+FFFD, and of nothing seen nothing.

    >>> one_line("a\n b\x07\ud800"), one_line("\u200b\u2060")
    ('a  b\ufffd\ufffd', '')
    """
    drawn = "".join(" " if one in WHITE else _drawn(one) for one in text)
    return "" if all(is_invisible(one) or one == " " for one in drawn) else drawn


def _drawn(character: str) -> str:
    is_hole = ord(character) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(character) <= 0xFDEF
    return "\ufffd" if is_hole or unicodedata.category(character) in ("Cc", "Cs") else character


def is_mark(character: str) -> bool:
    """Return whether a character is written on the one before it."""
    return unicodedata.category(character).startswith("M")


def takes_joiners(character: str) -> bool:
    """Return whether invisible joiners belong to what begins with this: emoji, and scripts that they shape."""
    is_letter = unicodedata.category(character).startswith("L")
    return character in PICTOGRAPHS or (is_letter and character not in UNSHAPED)


def clusters(text: str) -> list[str]:
    r"""Split a text into what a reader takes for one character each (UAX 29).

    Conjuncts of Indic scripts stay divided: each part keeps its joiners.

    >>> [len(cluster) for cluster in clusters("e\u0301a")]
    [2, 1]
    """
    starts = [0]
    for at in range(1, len(text)):
        if not _continues(text, starts[-1], at):
            starts.append(at)
    if not text:
        return []
    return [text[start:stop] for start, stop in zip(starts, [*starts[1:], len(text)], strict=True)]


def _continues(text: str, start: int, at: int) -> bool:
    """Return whether a character belongs to the cluster that began at `start`."""
    before, character = text[at - 1], text[at]
    if _is_control(before) or _is_control(character):
        return False
    if is_mark(character) or character in JOINERS or character in TAGS or character in MODIFIERS:
        return True
    if before in PREPENDED:
        return True
    if character in FLAGS:
        return at - start == 1 and before in FLAGS
    if character in PICTOGRAPHS and before == JOINERS[1]:
        return text[start] in PICTOGRAPHS
    if before in LEADS:
        return character in LEADS or character in VOWELS or character in SYLLABLES
    if before in VOWELS or (before in SYLLABLES and not _has_final(before)):
        return character in VOWELS or character in FINALS
    return (before in FINALS or before in SYLLABLES) and character in FINALS


def _has_final(syllable: str) -> bool:
    return (ord(syllable) - 0xAC00) % 28 != 0


def _is_control(character: str) -> bool:
    category = unicodedata.category(character)
    if category == "Cf":
        return character not in JOINERS and character not in TAGS and character not in PREPENDED
    return category in ("Cc", "Zl", "Zp") or (category == "Cn" and character in IGNORABLE)
