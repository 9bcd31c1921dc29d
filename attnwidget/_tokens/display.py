"""Tokens and numbers as the front-end writes them (js/src/text/tokens.ts, format.ts), for pictures without one."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

SEEN = {"\n": "↵", "\r": "↵", "\t": "⇥"}
MARKS = ("Ġ", "▁")  # that stand for the space before a word
UNSEEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
TINY, HUGE = 1e-4, 1e5  # beyond which a number has an exponent


class Label(NamedTuple):
    """A token as it is written: `subscript` is its position where others are written alike."""

    text: str
    subscript: str
    special: bool


def labels_of(tokens: Sequence[str] | None, length: int) -> list[Label]:
    """A label for each position; without tokens the position itself.

    >>> labels_of(["[CLS]", "a", "##b", "a"], 4)[1:3]
    [Label(text='a', subscript='1', special=False), Label(text='‐b', subscript='', special=False)]
    """
    if tokens is None:
        return [Label(f"{position:,}", "", False) for position in range(length)]
    texts = {token: _text(token) for token in dict.fromkeys(tokens)}
    uses = Counter(texts[token] for token in tokens)
    return [
        Label(
            texts[token],
            f"{position:,}" if uses[texts[token]] > 1 and not is_special(token) else "",
            is_special(token),
        )
        for position, token in enumerate(tokens)
    ]


def is_special(token: str) -> bool:
    """Whether the tokenizer has put it there: [CLS], <s>, <|endoftext|>."""
    inner = token[1:-1]
    if token[:1] + token[-1:] == "[]":
        return inner.isupper() and inner.replace("_", "").isalnum()
    if token[:1] + token[-1:] != "<>":
        return False
    names = ("s", "/s", "pad", "unk", "mask", "bos", "eos", "cls", "sep")
    return inner in names or (len(inner) > 2 and inner[0] == inner[-1] == "|")


def _text(token: str) -> str:
    if token == "":
        return "∅"
    if token.startswith("##") and len(token) > 2:
        return f"‐{token[2:]}"
    text = token.replace("Ċ", "\n")
    if text[0] in MARKS and len(text) > 1:
        text = text[1:]
    for mark in MARKS:
        text = text.replace(mark, " ")
    bare = text.strip(" ")
    left = len(text) - len(text.lstrip(" "))
    text = "·" * left + bare + "·" * (len(text) - left - len(bare)) if bare else "·" * len(text)
    return "".join(_character(character) for character in text)


def _character(character: str) -> str:
    if character in SEEN:
        return SEEN[character]
    return f"U+{ord(character):04X}" if unicodedata.category(character) in UNSEEN else character


def cell_number(value: float, stage: str) -> str:
    """In a cell: about four characters; weights below .005 are left to the colour."""
    if not math.isfinite(value):
        return _infinite(value)
    if stage == "weights":
        return "" if abs(value) < 0.005 else _without_zero(_fixed(value, 2))
    if value == 0:
        return "0"
    for decimals in (2, 1, 0):
        if len(text := _fixed(value, decimals)) <= 4:
            return text
    return _exponential(value, 0)


def list_number(value: float, stage: str) -> str:
    """In a list: four decimals for weights, three for scores.

    >>> list_number(0.2283, "weights"), list_number(-3.1e-7, "weights")
    ('.2283', '−3.1e−7')
    """
    if not math.isfinite(value):
        return _infinite(value)
    if value == 0:
        return "0"
    decimals = 4 if stage == "weights" else 3
    if abs(value) < TINY or abs(value) >= HUGE or round(abs(value), decimals) == 0:
        return _exponential(value, 1)
    return _without_zero(_fixed(value, decimals)) if stage == "weights" else _fixed(value, decimals)


def status_number(value: float) -> str:
    """Six decimals."""
    if not math.isfinite(value):
        return _infinite(value)
    small = value != 0 and (abs(value) < TINY or abs(value) >= HUGE)
    return "0" if value == 0 else _exponential(value, 3) if small else _fixed(value, 6)


def short_number(value: float) -> str:
    """At a tick: two or three digits, no leading zero."""
    if value != 0 and (abs(value) < TINY or abs(value) >= HUGE):
        return _exponential(value, 1)
    return _without_zero(f"{float(f'{value:.2g}'):.10g}".replace("-", "−"))


def ticks(low: float, high: float, *, log: bool = False) -> list[float]:
    """Where a legend is labelled: at both ends, and at one or two round values between.

    >>> ticks(0, 0.62)
    [0, 0.2, 0.4, 0.62]
    """
    if low < 0:
        return [low, 0.0, high]
    if not high > low:
        return [high]
    if log:
        bottom = max(low, high / 1000)
        powers = [10.0**power for power in range(math.ceil(math.log10(bottom)), math.ceil(math.log10(high)))]
        inner = [power for power in powers if 1.6 * bottom < power < high / 1.6]
        return [bottom, *inner, high]
    unit = 10.0 ** math.floor(math.log10(high - low))
    for step in (0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 1, 2, 2.5, 3, 4, 5):
        width = step * unit
        first = math.floor(low / width) + 1
        values = [float(f"{n * width:.12g}") for n in range(first, first + 12) if n * width < high]
        inner = [value for value in values if 0.14 <= (value - low) / (high - low) <= 0.86]
        if step * unit >= 0.14 * (high - low) and len(inner) <= 2:
            return [low, *inner, high]
    return [low, high]


def _infinite(value: float) -> str:
    return "NaN" if math.isnan(value) else "+∞" if value > 0 else "−∞"


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


def _exponential(value: float, decimals: int) -> str:
    digits, exponent = f"{value:.{decimals}e}".split("e")
    return f"{digits}e{int(exponent)}".replace("-", "−")


def _without_zero(text: str) -> str:
    sign, rest = (text[0], text[1:]) if text[:1] in "−-" and text else ("", text)
    return sign + (rest[1:] if rest.startswith("0.") else rest)
