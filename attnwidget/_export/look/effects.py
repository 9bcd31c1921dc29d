"""Losses of a model without its parts, for figures and stills; js/src/data/effects.ts has the same rules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from ..view import TraitsView
from .numbers import rounded_up, status_number

LEAST_LOST = {True: 0.05, False: 1e-6}  # in nats or not; the loss axis is at least this long
MOST_PARTS = 5
STEPS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
LOOKED_AT, NEEDED = "looked at, hardly needed", "needed, hardly looked at"


class EffectScales(NamedTuple):
    """Scales of mass and loss with one zero: both ends, the number of parts, and the share below zero."""

    mass: float
    lost: float
    parts: int
    left: float

    def place(self, share: float) -> float:
        """Return the position on the whole axis for a share of the part above zero."""
        return (self.left + max(-self.left, min(1.0, share))) / (1 + self.left)


def is_shown(traits: TraitsView) -> bool:
    """Return whether the segments view shows effects, which need a model."""
    return traits.segments_show == "effect" and traits.effects is not None


def losses_of(traits: TraitsView) -> dict[str, float | None]:
    """Return the loss without each segment shown; None if not run yet."""
    runs = None if traits.effects is None else traits.effects["segments"]
    if runs is None or traits.mass is None or runs["path"] != traits.mass["path"]:
        return {}
    return {name: as_loss(lost) for name, lost in zip(runs["names"], runs["lost"], strict=True)}


def as_loss(sent: Any) -> float | None:
    """Return a loss as sent, such as "nan", as a number; None if not run yet."""
    return None if sent is None else float(sent)


def scales_of(masses: Sequence[float], losses: Sequence[float | None], *, in_nats: bool) -> EffectScales:
    """Return two scales that end at round numbers and have equally many parts."""
    most = max((one for one in masses if math.isfinite(one)), default=0.0) or 1.0
    step = _round_step(most / MOST_PARTS, (1, 2, 2.5, 5, 10))
    parts = max(1, math.ceil(most / step - 1e-9))
    known = [one for one in losses if one is not None and math.isfinite(one)]
    lost = _round_step(max([*map(abs, known), LEAST_LOST[in_nats]]) / parts) * parts
    below = lost if -math.inf in losses else max((-one for one in known), default=0.0)
    return EffectScales(float(f"{step * parts:.6g}"), float(f"{lost:.6g}"), parts, max(0.0, below) / lost)


def _round_step(value: float, steps: Sequence[float] = STEPS) -> float:
    """Return the smallest round number that is not below `value`."""
    power = float(f"1e{int(f'{value:e}'.split('e')[1])}")
    return float(f"{next((one for one in steps if one * power >= value * (1 - 1e-9)), 10) * power:.6g}")


def disagreement(scales: EffectScales, mass: float, lost: float | None) -> str:
    """Return the words for a disagreement of mass and loss: ends at least half the axis apart."""
    if lost is None or not mass >= 0 or math.isnan(lost):
        return ""
    apart = min(1.0, lost / scales.lost) - mass / scales.mass
    return NEEDED if apart >= 0.5 - 1e-9 else LOOKED_AT if apart <= -0.5 + 1e-9 else ""


def loss_text(lost: float | None) -> str:
    """Return a loss as short text.

    >>> [loss_text(one) for one in (2.38, 0.41, -0.08, 0.001, 0.0, None)]
    ['2.38', '.41', '−.08', '<.01', '0', '']
    """
    if lost is None:
        return ""
    if math.isnan(lost):
        return "–"
    if math.isinf(lost):
        return "+∞" if lost > 0 else "−∞"
    size = abs(lost)
    if size < 0.005:
        return "0" if lost == 0 else ">−.01" if lost < 0 else "<.01"
    text = f"{size:.{0 if size >= 100 else 2}f}".removeprefix("0")
    return f"−{text}" if lost < 0 else text


class HasLoss(Protocol):
    """Something whose removal costs a loss."""

    @property
    def lost(self) -> float | None:
        """The loss; None if not run yet."""


T = TypeVar("T", bound=HasLoss)


def largest_first(things: Iterable[T]) -> list[T]:
    """Sort by loss, largest first and unknown losses last."""
    return sorted(things, key=lambda one: math.inf if one.lost is None or math.isnan(one.lost) else -one.lost)


def bound_text(most: float) -> str:
    """Return a bound as short text, rounded up so that it still holds.

    >>> [bound_text(one) for one in (0.121, 0.12, -0.129, 100.2)]
    ['.13', '.12', '−.12', '101']
    """
    return loss_text(rounded_up(most, 0 if abs(most) >= 99.5 else 2))


def after_words(effects: dict[str, Any]) -> str:
    """Return ` after “the bank”, position 14`: the last words up to the examined position; "" if there are none."""
    at = "" if effects["at"] is None else f", position {effects['at']:,}"
    return f" after “{effects['text'].strip()}”{at}" if effects["text"] else ""


def without_words(traits: TraitsView) -> list[str]:
    """Return the effect of the pinned segment's removal as text; empty if it has not been run."""
    effects, segment = traits.effects, traits.segment
    of = {"segment": segment, "path": [*traits.segment_path]}
    if effects is None or effects["target"] is None or segment is None:
        return []
    now = effects["at"], effects["target"]["token"], effects["edit"]
    for one in reversed(traits.effect_details or []):
        if one["of"] == of and (one["at"], one["token"], one["edit"]) == now and one.get("error") is None:
            before, after = (status_number(float(one[name])) for name in ("before", "after"))
            what = "log probability" if effects["unit"] == "nats" else effects["target"]["text"]
            return [f"{edited(effects, segment)}: {what} {before} to {after}"]
    return []


def edited(effects: dict[str, Any], what: str) -> str:
    """Return the text for an edit of something: `without doc 3`, `doc 3 made even`."""
    done = next((str(one["of"]) for one in effects["edits"] if one["value"] == effects["edit"]), "edited")
    return f"without {what}" if effects["edit"] == "zero" else f"{what} {done}"
