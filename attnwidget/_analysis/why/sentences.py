"""Sentences about the parts of a score.

`js/src/data/reason-words.ts` makes the same sentences; `tests/contract/reasons.json` holds both together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from torch import Tensor

from ..effect import fixed
from .part_names import StreamPart

Against = int | str | None

OTHERS, MEAN = "the mean of the row's other keys", "the row's mean"
WEIGHTED = {"others": f"{OTHERS} under their weights", "mean": f"{MEAN} under its weights"}
LEVEL = 1e-6  # of the largest part, and of the scores compared: a sum below it is rounding
SMALL = 0.005  # of the largest part: not named; of the sum: would be shown as 0 %
HARDLY = 0.01  # weight


class Reason(NamedTuple):
    """What a sentence tells about the largest parts of a key.

    form: "shares" of the sum, if they are slices of it: each above 0, together at most 1. Else "sums": what the largest
        parts and the rest add. "level": the same, where the sum is 0 up to rounding.
    parts: the numbers of the parts named.
    values: their shares or what they add; of "sums" and "level" also, last, what the rest adds, if it is not small.
    """

    form: Literal["shares", "sums", "level"]
    parts: tuple[int, ...]
    values: tuple[float, ...]


def reason_of(total: float, leading: Sequence[tuple[int, float]], scale: float = 0.0) -> Reason:
    """Return what a sentence tells about a sum.

    Args:
        total: the sum of all parts.
        leading: the numbers of its two largest parts by size, or of its only one, and what they add.
        scale: the size of the scores whose difference it is; 0 for a score.

    >>> reason_of(4.0, [(2, 3.0), (0, 0.5)])
    Reason(form='shares', parts=(2, 0), values=(0.75, 0.125))
    >>> reason_of(1.0, [(2, 3.0), (0, -2.5)])
    Reason(form='sums', parts=(2, 0), values=(3.0, -2.5, 0.5))
    """
    most = abs(leading[0][1]) if leading else 0.0
    if max(most, abs(total)) <= LEVEL * scale:
        return Reason("level", (), ())
    named = [(part, value) for part, value in leading if abs(value) > SMALL * most]
    is_level = not abs(total) > LEVEL * max(most, scale)
    if not is_level:
        shares = [(part, value / total) for part, value in named]
        if all(share > 0 for _, share in shares) and sum(share for _, share in shares) <= 1 + LEVEL:
            return Reason("shares", *_unzipped(shares))
    rest = total - sum(value for _, value in named)
    more = (rest,) if abs(rest) > SMALL * most else ()
    parts, values = _unzipped(named)
    return Reason("level" if is_level else "sums", parts, (*values, *more))


def _unzipped(pairs: Sequence[tuple[int, float]]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    return tuple(part for part, _ in pairs), tuple(value for _, value in pairs)


def leading_parts(terms: Tensor) -> list[tuple[int, float]]:
    """Return the numbers of the two largest parts by size, and what they add: terms (parts,)."""
    order = terms.abs().argsort(descending=True, stable=True).tolist()[:2]
    return [(i, float(terms[i])) for i in order]


def told(x: float) -> str:
    """Return a number with four decimals; with an exponent where these would show fewer than two digits.

    >>> told(8.54576), told(-0.25), told(0.00001), told(0.0)
    ('8.5458', '-0.2500', '1.0e-05', '0')
    """
    if x == 0:
        return "0"
    return fixed(x) if not abs(x) < 1e-3 else f"{x:.1e}"


def plus(x: float) -> str:
    """Return a number with its sign and four decimals; with an exponent where these would all be 0.

    >>> plus(0.25), plus(-0.0004), plus(0.00001), plus(0.0)
    ('+0.2500', '-0.0004', '+1.0e-05', '0.0000')
    """
    text = fixed(x, signed=True)
    return text if x == 0 or text != fixed(0.0) else f"{x:+.1e}"


def because(
    names: tuple[str, str],
    weight: float,
    parts: Sequence[StreamPart],
    terms: Tensor,
    against: Against = None,
    *,
    other: str = "the other key",
    scale: float = 0.0,
    number: Callable[[float], str] = told,
) -> str:
    """Return in one sentence what the largest parts of a key give to its score.

    Args:
        names: of the query and the key.
        weight: of the pair.
        parts: of the key.
        terms: (parts,) what each adds to the score, or to its difference from what it is compared with.
        against: what it is compared with.
        other: the name of the other key, if it is compared with one.
        scale: the size of the scores whose difference the sum is; 0 for a score.
        number: writes a number.
    """
    total = float(terms.sum())
    reason = reason_of(total, leading_parts(terms), scale)
    words = [wrote(parts[i]) for i in reason.parts]
    if reason.form == "shares":
        first, *second = (
            f"{percent(share)} of {{}} is {what}" for share, what in zip(reason.values, words, strict=True)
        )
        said = first.format(_whole(total, against, other)) + "".join(f"; {one.format('it')}" for one in second)
    else:
        clauses = [_adds(what, value, number) for what, value in zip([*words, "the rest"], reason.values, strict=False)]
        said = _height(reason, total, against, other, number) + (f"; {', '.join(clauses)}" if clauses else "")
    return f"{names[0]} {looks(weight)} {names[1]}: {said}."


def looks(weight: float) -> str:
    """Return the verb between a query and a key.

    >>> looks(0.3), looks(0.003), looks(0.0)
    ('looks at', 'hardly looks at', 'does not look at')
    """
    return "looks at" if weight >= HARDLY else "hardly looks at" if weight > 0 else "does not look at"


def percent(share: float) -> str:
    """Return a share in percent, never rounded to all or to nothing.

    >>> percent(0.614), percent(0.999), percent(1.0), percent(0.001)
    ('61 %', 'over 99 %', '100 %', 'under 1 %')
    """
    if share < SMALL:
        return "under 1 %"
    if 1 - SMALL <= share < 1 - LEVEL:
        return "over 99 %"
    return f"{int(share * 100 + 0.5)} %"


def _whole(total: float, against: Against, other: str) -> str:
    side = "above" if total > 0 else "below"
    return "its score" if against is None else f"what sets it {side} {_compared(against, other)}"


def _height(reason: Reason, total: float, against: Against, other: str, number: Callable[[float], str]) -> str:
    named = f"that of {other}" if isinstance(against, int) else _compared(against, other)
    if against is None:
        return f"its score is {number(total) if reason.form == 'sums' else 0}"
    if reason.form == "level":
        return f"its score is as high as {named}"
    return f"its score is {number(abs(total))} {'above' if total > 0 else 'below'} {named}"


def _compared(against: Against, other: str) -> str:
    return other if isinstance(against, int) else OTHERS if against == "others" else MEAN


def _adds(what: str, value: float, number: Callable[[float], str]) -> str:
    return f"{what} adds {number(value)}" if value > 0 else f"{what} takes {number(-value)} away"


def wrote(part: StreamPart) -> str:
    """Return in words what a part is: "what head 1·4 wrote there"."""
    if part.kind == "token":
        return f"the {part.label}" if part.label.startswith("token of ") else "the token itself"
    if part.kind in ("head", "cross head"):
        return f"what head {part.label} wrote there"
    if part.kind in ("position", "type", "input", "bias", "parameter"):
        return part.label if part.label.startswith("the ") else f"the {part.label}"
    return part.label if part.kind in ("feature", "rest") else f"what {part.label} wrote there"


def sum_of(
    score: float, subtracted: float | None, against: Against, other: str, number: Callable[[float], str] = told
) -> str:
    """Return what a sum of terms is: the score, or the score less what it is compared with.

    Args:
        score: the model's own score, before anything is subtracted; unused if `subtracted` is None.
        subtracted: what is subtracted; None if it is unknown, as in a file of an earlier version.
        against: what it is compared with.
        other: the name of the other key, if it is compared with one.
        number: writes a number.

    >>> sum_of(8.5458, 4.5834, "others", "")
    "the score 8.5458 less 4.5834, the mean of the row's other keys under their weights"
    >>> sum_of(8.5458, 0.0, None, "")
    "the model's score"
    """
    if against is None:
        return "the model's score"
    than = f"the score of {other}" if isinstance(against, int) else WEIGHTED[against]
    if subtracted is None:
        return f"the score less {than}"
    return f"the score {number(score)} less {number(subtracted)}, {than}"
