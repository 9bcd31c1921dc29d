"""What a head does, in plain words with the number behind them, from numbers on its card alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .._analysis.head_card import short
from .token_kinds import FIRST, OTHER, PUNCTUATION, SPECIAL

NEAR = 4  # tokens
COPIES = 8  # links, at least, before a head is said to copy


class Trait(NamedTuple):
    """One thing that a head does.

    label: in two or three words, to search by.
    words: a part of a sentence, with {} for the number.
    number: from 0 to 1.
    """

    label: str
    words: str
    number: float

    @property
    def text(self) -> str:
        """The words with the number."""
        return self.words.format(short(self.number))


class Behavior(NamedTuple):
    """What a head does.

    labels: of all traits, the strongest first.
    sentence: the first one or two traits.
    """

    labels: list[str]
    sentence: str


RULES = (  # the metric, the least number, label and words; in this order, more special ones first
    ("induction", 0.3, "induction", "attends to the token after an earlier occurrence of the query's token ({})"),
    ("same_token", 0.3, "same token", "attends to the same token elsewhere, where it occurs ({} of its weight)"),
    ("previous_token", 0.35, "previous token", "attends to the previous token ({} of its weight)"),
    ("next_token", 0.35, "next token", "attends to the next token ({} of its weight)"),
    ("itself", 0.35, "itself", "attends to the query's own token ({} of its weight)"),
    ("learned_sink", 0.4, "learned sink", "rests on its learned sink ({} of its weight)"),
    ("first_token", 0.4, "sink, first token", "rests on the first token ({} of its weight)"),
    ("last_token", 0.4, "last token", "attends to the last token ({} of its weight)"),
)
LEAST_OF_KIND = 0.35
LEAST_NEAR = 0.6
LEAST_COPIED = 0.5
CONDITIONAL = ("induction", "same token")  # they are weights only where the text has such tokens


def behavior_of(
    means: Mapping[str, float | None],
    kinds: Mapping[str, float],
    near: float | None,
    copied: tuple[int, int] | None,
) -> Behavior:
    """Return what a head does.

    Args:
        means: of the metrics over the texts, with `next_token`; None if nothing counts.
        kinds: the share of the weight on each kind of token.
        near: the share of the weight within `NEAR` tokens.
        copied: of the ordinary links, those whose value raises the key's own token, and the number of links.

    >>> behavior_of({"previous_token": 0.9, "entropy": 0.5}, {}, 0.95, None).sentence
    'Attends to the previous token (.90 of its weight).'
    """
    found = [
        Trait(label, words, number)
        for name, least, label, words in RULES
        if (number := means.get(name)) is not None and number >= least
    ]
    ends = {"sink, first token", "last token"} & {one.label for one in found}
    for name, share in kinds.items():
        if name in (FIRST, OTHER) or share < LEAST_OF_KIND or (name == SPECIAL and ends):
            continue
        words = {SPECIAL: "special tokens", PUNCTUATION: "punctuation"}.get(name, name)
        found.append(Trait(words, f"attends to {words} ({{}} of its weight)", share))
    if near is not None and near >= LEAST_NEAR and not {"previous token", "next token", "itself"} & labels(found):
        found.append(Trait("nearby", f"attends to tokens at most {NEAR} away ({{}} of its weight)", near))
    found.sort(key=lambda one: (one.label not in CONDITIONAL, -one.number))
    if copied is not None and copied[1] >= COPIES and copied[0] >= LEAST_COPIED * copied[1]:
        hits, links = copied
        found.append(Trait("copies", f"copies the token that it attends to (in {hits} of {links} ordinary links)", 0.0))
    return Behavior([one.label for one in found] or ["spread"], _sentence(found, means))


def labels(traits: Sequence[Trait]) -> set[str]:
    """Return the labels of traits."""
    return {one.label for one in traits}


def _sentence(found: Sequence[Trait], means: Mapping[str, float | None]) -> str:
    if not found:
        entropy = means.get("entropy")
        if entropy is None:
            return "No row of these texts could be measured."
        return f"Spreads its weight, like {2**entropy:,.0f} equal keys (entropy {entropy:.1f} bits)."
    first, *others = [one.text for one in found]
    second = f" It also {others[0]}." if others else ""
    return f"{first[0].upper()}{first[1:]}.{second}"
