"""What a model loses without its parts, as figures and stills need it: js/src/data/effects.ts has the same rules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from ..view import TraitsView
from .numbers import status_number

LEAST_LOST = {True: 0.05, False: 1e-6}  # a loss that is smaller, in nats or not, is none: the axis never ends before
MOST_PARTS = 5
STEPS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
LOOKED_AT, NEEDED = "looked at, hardly needed", "needed, hardly looked at"


class EffectScales(NamedTuple):
    """Mass and loss from one zero: where each ends, in how many parts, and how far it goes below, as a share."""

    mass: float
    lost: float
    parts: int
    left: float

    def place(self, share: float) -> float:
        """Return where a share of the part above zero is, of the whole axis."""
        return (self.left + max(-self.left, min(1.0, share))) / (1 + self.left)


def is_shown(traits: TraitsView) -> bool:
    """Return whether the segments view shows effects: there is a model that they are of."""
    return traits.segments_show == "effect" and traits.effects is not None


def losses_of(traits: TraitsView) -> dict[str, float | None]:
    """Return what is lost without each segment that is shown; None of what has not been run."""
    runs = None if traits.effects is None else traits.effects["segments"]
    if runs is None or traits.mass is None or runs["path"] != traits.mass["path"]:
        return {}
    return {name: as_loss(lost) for name, lost in zip(runs["names"], runs["lost"], strict=True)}


def as_loss(sent: Any) -> float | None:
    """Return a loss as it is sent, such as "nan", as a number; None is not yet run."""
    return None if sent is None else float(sent)


def scales_of(masses: Sequence[float], losses: Sequence[float | None], *, in_nats: bool) -> EffectScales:
    """Return two scales that end at round numbers, and have as many parts as each other."""
    most = max((one for one in masses if math.isfinite(one)), default=0.0) or 1.0
    step = _round_step(most / MOST_PARTS, (1, 2, 2.5, 5, 10))
    parts = max(1, math.ceil(most / step - 1e-9))
    known = [one for one in losses if one is not None and math.isfinite(one)]
    lost = _round_step(max([*map(abs, known), LEAST_LOST[in_nats]]) / parts) * parts
    below = lost if -math.inf in losses else max((-one for one in known), default=0.0)
    return EffectScales(float(f"{step * parts:.6g}"), float(f"{lost:.6g}"), parts, max(0.0, below) / lost)


def _round_step(value: float, steps: Sequence[float] = STEPS) -> float:
    """Return a round number that is no less."""
    power = float(f"1e{int(f'{value:e}'.split('e')[1])}")
    return float(f"{next((one for one in steps if one * power >= value * (1 - 1e-9)), 10) * power:.6g}")


def disagreement(scales: EffectScales, mass: float, lost: float | None) -> str:
    """Return in words that mass and loss disagree: their ends are half the axis apart or more."""
    if lost is None or not mass >= 0 or math.isnan(lost):
        return ""
    apart = min(1.0, lost / scales.lost) - mass / scales.mass
    return NEEDED if apart >= 0.5 - 1e-9 else LOOKED_AT if apart <= -0.5 + 1e-9 else ""


def loss_text(lost: float | None) -> str:
    """Return a loss where there is little room.

    >>> [loss_text(one) for one in (2.38, 0.41, -0.08, 0.001, 0.0, None)]
    ['2.38', '.41', '−.08', '<.01', '0', '']
    """
    if lost is None:
        return ""
    if math.isnan(lost):
        return "–"
    if math.isinf(lost):
        return "∞" if lost > 0 else "−∞"
    size = abs(lost)
    if size < 0.005:
        return "0" if lost == 0 else ">−.01" if lost < 0 else "<.01"
    text = f"{size:.{0 if size >= 100 else 2}f}".removeprefix("0")
    return f"−{text}" if lost < 0 else text


class HasLoss(Protocol):
    """A thing without which something is lost."""

    @property
    def lost(self) -> float | None:
        """What is lost; None: not yet run."""


T = TypeVar("T", bound=HasLoss)


def largest_first(things: Iterable[T]) -> list[T]:
    """Return things by what is lost without them, the largest first; last what is not known."""
    return sorted(things, key=lambda one: math.inf if one.lost is None or math.isnan(one.lost) else -one.lost)


def without_words(traits: TraitsView) -> list[str]:
    """Return what the pinned segment's removal does, in words; nothing where it has not been run."""
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
    """Return what is done to something, in words: `without doc 3`, `doc 3 made even`."""
    done = next((str(one["of"]) for one in effects["edits"] if one["value"] == effects["edit"]), "edited")
    return f"without {what}" if effects["edit"] == "zero" else f"{what} {done}"
