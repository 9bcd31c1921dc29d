"""Properties of characters, and the groups of them that a reader sees as one.

`js/src/text/tokens.ts` asks JavaScript's regular expressions for the same properties.
"""

from __future__ import annotations

import unicodedata

import regex

WHITE = "\t\n\v\f\r \xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000\ufeff"
"""White space as JavaScript defines it."""

JOINERS = "\u200c\u200d"
FLAG_TAGS = regex.compile(r"[\U000e0020-\U000e007f]")  # they name the flag of a region
INVISIBLE = regex.compile(r"[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]|(?! )\p{Zs}")
# Emoji, and letters whose shape depends on joiners: all but Latin, Greek, Cyrillic, Han, Hiragana and Katakana.
JOINED = regex.compile(
    r"[\p{Extended_Pictographic}\p{Regional_Indicator}]"
    r"|(?![\p{Latin}\p{Greek}\p{Cyrillic}\p{Han}\p{Hiragana}\p{Katakana}])\p{L}"
)


def is_invisible(character: str) -> bool:
    """Return whether a character is invisible, or looks like an ordinary space."""
    return INVISIBLE.fullmatch(character) is not None


def one_line(text: str) -> str:
    r"""Return a text as one line that any file can hold; undrawable characters become U+FFFD, invisible ones vanish.

    >>> one_line("a\n b\x07\ud800"), one_line("\u200b\u2060")
    ('a  b\ufffd\ufffd', '')
    """
    drawn = "".join(" " if one in WHITE else _drawn(one) for one in text)
    return "" if all(is_invisible(one) or one == " " for one in drawn) else drawn


def _drawn(character: str) -> str:
    is_hole = ord(character) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(character) <= 0xFDEF
    return "\ufffd" if is_hole or unicodedata.category(character) in ("Cc", "Cs") else character


def is_mark(character: str) -> bool:
    """Return whether a character is drawn on the one before it."""
    return unicodedata.category(character).startswith("M")


def takes_joiners(character: str) -> bool:
    """Return whether invisible joiners belong to text that begins with this: emoji, and scripts that they shape."""
    return JOINED.fullmatch(character) is not None


def clusters(text: str) -> list[str]:
    r"""Split a text into the characters that a reader sees (UAX 29).

    >>> [len(cluster) for cluster in clusters("e\u0301a")]
    [2, 1]
    """
    found: list[str] = regex.findall(r"\X", text)
    return found
