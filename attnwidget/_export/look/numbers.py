"""Format numbers for readers: true minus signs, weights without a leading zero, nothing small shown as zero.

The rules are those of `js/src/text/format.ts`; `tests/contract/labels.json` keeps both alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, NamedTuple

from ..._engine.carried import Carrying
from ..._engine.sources import CARRIED
from ..._engine.stages import SIGNED
from ..._utils.assets import stage_names
from .colors import LOG_DEPTH

MINUS = "−"
NAMED_HEADS = 6  # named among combined heads
TINY = 1e-4  # below this a number is written with an exponent
HUGE = 1e5  # from here on as well
LEAST_OF_3, LEAST_OF_4 = 0.00995, 0.000995  # the least numbers shown with two digits by three or four decimals
STEPS = (0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 1, 2, 2.5, 3, 4, 5)  # between round values, times a power of ten


def legend_name(stage: str, carries: Carrying | None, batch: int) -> str:
    """Return the legend's name for a stage's numbers; a logit includes its token.

    Args:
        stage: the stage.
        carries: what the layer's weights contribute downstream.
        batch: the sample.
    """
    if stage != "logit" or carries is None or carries.targets is None:
        return stage_names(stage)["legend"]
    target = carries.named(carries.targets[batch])
    return f"Logit of “{target}”{' before the cap' if carries.is_before_cap else ''}, direct path"


class Tick(NamedTuple):
    """A labeled value of a legend."""

    value: float
    text: str


def cell_number(value: float, stage: str) -> str:
    """Return a number for a cell, about four characters; numbers below .005 are left to the color.

    Numbers below zero have as many decimals as those above.

    >>> cell_number(0.125, "weights"), cell_number(4.451, "scores"), cell_number(-0.016, "scores")
    ('.13', '4.5', '−.02')
    """
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return _infinite(value)
    if value == 0:
        return "" if stage == "weights" else "0"
    if (size := abs(value)) < 0.005:
        return ""
    if stage == "weights":
        return _without_zero(_fixed(value, 2))
    for decimals in (2, 1, 0):
        room = 3 if decimals else 4  # next to a sign, which only some numbers have
        if len(_without_zero(_fixed(size, decimals))) <= room:
            return _without_zero(_fixed(value, decimals))
    return _exponential(value, 0)


def rounded_up(value: float, decimals: int) -> float:
    """Return the least number of so many decimals that is not below a value, for a bound that still holds.

    >>> rounded_up(0.1201, 2), rounded_up(0.12, 2), rounded_up(-0.129, 2)
    (0.13, 0.12, -0.12)
    """
    return math.ceil(value * 10**decimals - 1e-6) / 10**decimals if math.isfinite(value) else value


def list_number(value: float, stage: str) -> str:
    """Return a number for a list: four decimals for weights, three for scores, two digits for later stages.

    >>> list_number(0.2283, "weights"), list_number(-3.1e-7, "weights")
    ('.2283', '−3.1e−7')
    >>> list_number(-0.0021, "scores"), list_number(-0.0021, "logit"), list_number(0.00042, "saliency")
    ('−0.002', '−0.0021', '4.2e−4')
    """
    if not math.isfinite(value):
        return _infinite(value)
    if value == 0:
        return "0"
    size = abs(value)
    if stage in CARRIED and size < LEAST_OF_3:
        return _exponential(value, 1) if size < LEAST_OF_4 else _fixed(value, 4)
    decimals = 4 if stage == "weights" else 3
    if size < TINY or size >= HUGE or float(_fixed(size, decimals)) == 0:
        return _exponential(value, 1)
    return _without_zero(_fixed(value, decimals)) if stage == "weights" else _fixed(value, decimals)


def status_number(value: float) -> str:
    """Return a number for the status line: six decimals, or eight if six would round it to 1.

    >>> status_number(0.228342), status_number(0.99999994)
    ('0.228342', '0.99999994')
    """
    if not math.isfinite(value):
        return _infinite(value)
    if value == 0:
        return "0"
    size = abs(value)
    if size < TINY or size >= HUGE:
        return _exponential(value, 3)
    looks_like_one = size != 1 and _fixed(size, 6) == "1.000000"
    return _fixed(value, 8 if looks_like_one else 6)


def legend_ticks(low: float, high: float, *, log: bool, stage: str, min_gap: float = 0.14) -> list[Tick]:
    """Return the labels of a legend: both exact ends and round values between, at most four in all.

    Args:
        low, high: the ends. Weights run from `low` to `high`; signed stages from −m to m, with 0 between.
        log: use a log scale, labeled with the powers of ten above a thousandth of `high`.
        stage: the stage of the numbers.
        min_gap: the smallest distance between two labels, as a share of the legend.

    >>> [tick.text for tick in legend_ticks(0, 0.62, log=False, stage="weights")]
    ['0', '.2', '.4', '.62']
    """
    low, high = float(low), float(high)
    if stage in SIGNED:
        most = max(abs(low), abs(high))
        return [Tick(value, _end_text(value, stage)) for value in ((-most, 0.0, most) if most > 0 else (0.0,))]
    if not high > low:
        return [Tick(high, _end_text(high, stage))]
    log = log and high > 0
    start = max(low, high / LOG_DEPTH) if log else low

    def place(value: float) -> float:
        return math.log(value / start) / math.log(high / start) if log else (value - start) / (high - start)

    inner = _powers_of_ten(start, high) if log else _round_values(start, high, min_gap)
    kept = [value for value in inner if place(value) <= 1 - min_gap]
    first = [Tick(start, _end_text(start, stage))] if not kept or place(kept[0]) >= min_gap else []
    return [*first, *(Tick(value, _round_text(value)) for value in kept), Tick(high, _end_text(high, stage))]


def _round_values(low: float, high: float, min_gap: float) -> list[float]:
    """Return round values strictly between: with the step that ends at `high`, else the smallest step with room."""
    unit = _power_of_ten(_exponent_of(high - low))
    smallest: list[float] | None = None
    for step in (share * unit for share in STEPS):
        if step < min_gap * (high - low):
            continue
        values = [one for one in _multiples(step, low, high) if min_gap <= (one - low) / (high - low) <= 1 - min_gap]
        if len(values) > 2:
            continue
        steps = high / step
        if values and low == 0 and abs(steps - round(steps)) < 1e-6:
            return values
        smallest = values if smallest is None else smallest
    return smallest or []


def _multiples(step: float, low: float, high: float) -> list[float]:
    values, index = [], math.floor(low / step) + 1
    while index * step < high:
        values.append(float(f"{index * step:.12g}"))
        index += 1
    return values


def _powers_of_ten(low: float, high: float) -> list[float]:
    # `low` counts as a power of ten if only its last digits exceed one.
    values, power = [], _exponent_of(low * (1 - 1e-9)) + 1
    while (value := _power_of_ten(power)) < high:
        values.append(value)
        power += 1
    return values


def _exponent_of(value: float) -> int:
    """Return the exponent of a number's first digit from its digits: a logarithm's last bit depends on the machine."""
    return Decimal(repr(value)).adjusted()


def _power_of_ten(power: int) -> float:
    return float(f"1e{power}")


def _round_text(value: float) -> str:
    """Return a round number with all its digits."""
    if value != 0 and abs(value) < TINY:
        return _exponential(value, 0)
    return _without_zero(_shortest(float(_rounded(value, 3)))).replace("-", MINUS)


def _end_text(value: float, stage: str) -> str:
    """Return two digits of a weight, one decimal of a score."""
    if value == 0:
        return "0"
    size = abs(value)
    if not TINY <= size < HUGE:
        return _exponential(value, 1)
    if stage == "weights":
        return _round_text(float(_rounded(value, 2)))
    if size < 1:
        return _without_zero(_fixed(value, min(4, 1 - _exponent_of(size))))
    return _fixed(value, 1) if size < 100 else _grouped(_fixed(value, 0))


def _infinite(value: float) -> str:
    return "NaN" if math.isnan(value) else "+∞" if value > 0 else f"{MINUS}∞"


# Halves round away from zero, as in JavaScript; Python's own formats round them to even.


def _fixed(value: float, decimals: int) -> str:
    """Return a number with so many decimals; never `−0.00`; from 1e21 on like `_shortest`."""
    if abs(value) >= 1e21:
        return _shortest(value).replace("-", MINUS)
    rounded = Decimal(value).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP, Context(prec=400))
    return f"{abs(rounded) if rounded == 0 else rounded:f}".replace("-", MINUS)


def _rounded(value: float, digits: int) -> Decimal:
    return Context(prec=digits, rounding=ROUND_HALF_UP).plus(Decimal(value))


def _exponential(value: float, decimals: int) -> str:
    """Return a number with an exponent, such as `3.1e−7`."""
    if not math.isfinite(value):
        return _infinite(value)
    digits, exponent = f"{_rounded(value, decimals + 1):.{decimals}e}".split("e")
    return f"{digits}e{int(exponent)}".replace("-", MINUS)


def _shortest(value: float) -> str:
    """Return the fewest digits that identify a number; with an exponent from 1e21 on."""
    text = repr(value).replace("e+", "e") if abs(value) >= 1e21 else f"{Decimal(repr(value)):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _grouped(text: str) -> str:
    sign = MINUS if text.startswith(MINUS) else ""
    return f"{sign}{int(text.removeprefix(MINUS)):,}"


def _without_zero(text: str) -> str:
    sign = text[:1] if text[:1] in ("-", MINUS) else ""
    rest = text.removeprefix(sign)
    return sign + (rest[1:] if rest.startswith("0.") else rest)


def in_model(heads: Iterable[int], numbers: Sequence[int] | None) -> str:
    """Return ` (5, 7 in the model)`, the heads' numbers in the model, if a capture kept only some heads.

    Args:
        heads: counted from 0 in what is shown.
        numbers: each head's number in the model; None if all heads were kept.
    """
    found = [str(numbers[head]) for head in heads] if numbers else []
    return f" ({', '.join(found)} in the model)" if found else ""


def head_words(head: int | str, numbers: Sequence[int] | None) -> str:
    """Return `head 3`, `mean of heads 0, 4`, `maximum of 12 heads`: `headWords` of js/src/components/phrases.ts."""
    if isinstance(head, int):
        return f"head {head}{in_model([head], numbers)}"
    how, *heads = head.split(" ")
    named = f"heads {', '.join(heads)}{in_model(map(int, heads), numbers)}"
    which = f"{len(heads)} heads" if len(heads) > NAMED_HEADS else named
    return f"{'maximum' if how == 'max' else how} of {which}"


def brief_head(layer: int, head: int, facts: Mapping[str, Any]) -> str:
    """Return `2·9`, or `9` for a single layer; if a capture kept some heads, `2·0 (5)` with the number in the model.

    Args:
        layer, head: counted from 0 in what is shown.
        facts: the widget's trait `facts`.
    """
    name = f"{layer}·{head}" if len(facts["layers"]) > 1 else f"{head}"
    numbers = (facts.get("model_heads") or {layer: None})[layer]
    return f"{name} ({numbers[head]})" if numbers else name


def numbers_of_all(facts: Mapping[str, Any]) -> list[int] | None:
    """Return the heads' numbers in the model, if they are the same in every layer; else None."""
    found = facts.get("model_heads") or [None]
    return found[0] if all(one == found[0] for one in found) else None
