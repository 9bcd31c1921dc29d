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


class OfKind(NamedTuple):
    """The weight on one kind of token.

    share: of the weight, the mean over texts.
    texts: the number of texts that have such tokens.
    of: the number of texts.
    """

    share: float
    texts: int
    of: int


WHERE = "{} of its weight, where there is one"
RULES = (  # the metric, the least number, label and words; in this order, more special ones first
    ("induction", 0.3, "induction", f"attends to the token after an earlier occurrence of the query's token ({WHERE})"),
    ("same_token", 0.3, "same token", f"attends to the same token elsewhere ({WHERE})"),
    ("previous_token", 0.35, "previous token", f"attends to the previous token ({WHERE})"),
    ("next_token", 0.35, "next token", "attends to the next token ({} of its weight)"),
    ("itself", 0.35, "itself", "attends to the query's own token ({} of its weight)"),
    ("learned_sink", 0.4, "learned sink", "rests on its learned sink ({} of its weight)"),
    ("first_token", 0.4, "sink, first token", "rests on the first token ({} of its weight)"),
    ("last_token", 0.4, "last token", "attends to the last token ({} of its weight)"),
)
LEAST_OF_KIND = 0.35
FEW = 2.0  # bits: the entropy of four equal keys
LEAST_NEAR = 0.6
LEAST_COPIED = 0.5
CONDITIONAL = ("induction", "same token")  # they are weights only where the text has such tokens


def behavior_of(
    means: Mapping[str, float | None],
    kinds: Mapping[str, OfKind],
    near: float | None,
    copied: tuple[int, int] | None,
) -> Behavior:
    """Return what a head does.

    Args:
        means: of the metrics over the texts, with `next_token`; None if nothing counts.
        kinds: the weight on each kind of token.
        near: the share of the weight within `NEAR` tokens.
        copied: of the ordinary links, those whose value raises the key's own token, and the number of links.

    >>> behavior_of({"previous_token": 0.9, "entropy": 0.5}, {}, 0.95, None).sentence
    'Attends to the previous token (.90 of its weight, where there is one).'
    >>> behavior_of({}, {"punctuation": OfKind(0.41, 18, 21)}, None, None).sentence
    'Attends to punctuation (.41 of its weight; 18 of 21 texts have any).'
    """
    found = [
        Trait(label, words, number)
        for name, least, label, words in RULES
        if (number := means.get(name)) is not None and number >= least
    ]
    ends = {"sink, first token", "last token"} & {one.label for one in found}
    for name, (share, texts, of) in kinds.items():
        if name in (FIRST, OTHER) or not share >= LEAST_OF_KIND or (name == SPECIAL and ends):
            continue
        words = {SPECIAL: "special tokens", PUNCTUATION: "punctuation"}.get(name, name)
        there = "" if texts == of else f"; {texts:,} of {of:,} texts have any"
        found.append(Trait(words, f"attends to {_literal(words)} ({{}} of its weight{there})", share))
    if near is not None and near >= LEAST_NEAR and not {"previous token", "next token", "itself"} & labels(found):
        found.append(Trait("nearby", f"attends to tokens at most {NEAR} away ({{}} of its weight)", near))
    found.sort(key=lambda one: (one.label not in CONDITIONAL, -one.number))
    if copied is not None and copied[1] >= COPIES and copied[0] >= LEAST_COPIED * copied[1]:
        hits, links = copied
        found.append(
            Trait(
                "copies",
                f"copies: in {hits} of {links} ordinary links the key's own token is among the ten that it raises most",
                0.0,
            )
        )
    entropy = means.get("entropy")
    others = [] if entropy is None else ["few keys" if entropy < FEW else "spread"]
    return Behavior([one.label for one in found] or others, _sentence(found, entropy))


def _literal(name: str) -> str:
    """Return a user's name for a template."""
    return name.replace("{", "{{").replace("}", "}}")


def labels(traits: Sequence[Trait]) -> set[str]:
    """Return the labels of traits."""
    return {one.label for one in traits}


def _sentence(found: Sequence[Trait], entropy: float | None) -> str:
    if not found:
        if entropy is None:
            return "No row of these texts could be measured."
        keys = 2 ** min(entropy, 64.0)
        count = f"{keys:.1f}" if keys < 10 else f"{keys:,.0f}"
        few = entropy < FEW
        does = (
            f"Attends to few keys, as if to {count} equal ones"
            if few
            else f"Spreads its weight, as if over {count} equal keys"
        )
        return f"{does} (mean entropy {entropy:.1f} bits)."
    first, *others = [one.text for one in found]
    second = f" It also {others[0]}." if others else ""
    return f"{first[0].upper()}{first[1:]}.{second}"
