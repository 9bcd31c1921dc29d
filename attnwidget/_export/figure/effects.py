"""Draw the model's loss without each segment and each head, next to the mass: one zero, two scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..look import colors
from ..look.effects import (
    EffectScales,
    after_words,
    as_loss,
    bound_text,
    disagreement,
    edited,
    largest_first,
    loss_text,
    losses_of,
    scales_of,
    without_words,
)
from ..look.numbers import brief_head
from . import segment_heads
from .legend import ramp
from .segment_heads import number
from .sheet import FigureContext

ROW, GRID_ROW, GRID_COLUMN = 20, 20, 26
MOST_SEGMENTS, MOST_HEADS = 12, 8
NAMES, NUMBERS, WORDS = 110, 96, 150  # widths of a row's parts in pixels
WORDS_FROM = 520  # pixels of room; narrower rows have no words
NUMBERS_IN = 24  # pixels; larger cells contain their number


class EffectBar(NamedTuple):
    """A segment or a head: its name, its color, its mass, and the loss without it; None if not run yet."""

    name: str
    shade: str
    mass: float
    lost: float | None
    pinned: bool
    aside: bool = False


def draw(context: FigureContext, top: float) -> float:
    """Draw the loss without each segment and each head; return the lower end."""
    traits, canvas, look = context.traits, context.canvas, context.look
    effects, sent = traits.effects, traits.mass
    assert effects is not None
    assert sent is not None
    asking = f"{'the ' if sent['asking'] == 'answer' else ''}{sent['asking']}"
    title = canvas.shorten(f"Did it matter that {asking} looked there", context.right - context.left, 13, True)
    canvas.text(context.left, top + 8, title, size=13, bold=True)
    y = context.words(context.left, top + 28, _captions(context), look.ink2)
    masses = _masses(context)
    segments = _segment_bars(context, masses)
    y = _bars(context, segments, ("segments", MOST_SEGMENTS), y + 6)
    y = _key(context, y + 8)
    if effects["heads"] is None:
        return y
    canvas.text(context.left, y + 20, f"Each head {_done_to(effects)}", size=13, bold=True)
    y = _grid(context, y + 34)
    pinned = traits.segment if traits.segment in masses else None
    on = f", mass on {pinned}" if pinned is not None else ""
    title = canvas.shorten(f"What each head does{on}", context.right - context.left, 13, True)
    canvas.text(context.left, y + 20, title, size=13, bold=True)
    return _bars(context, _head_bars(context, masses, pinned), ("heads", MOST_HEADS), y + 34)


def _done_to(effects: dict[str, Any]) -> str:
    return next((one["of"] for one in effects["edits"] if one["value"] == effects["edit"]), "removed")


def _captions(context: FigureContext) -> list[str]:
    """Return what the numbers describe: heads, token, progress of the runs, and the pinned segment's effect."""
    traits, effects = context.traits, context.traits.effects
    assert effects is not None
    found = ["mean mass over all heads"]
    if effects["error"]:
        return [*found, f"nothing was run: {effects['error']}"]
    if effects["target"] is not None:
        found.append(f"loss of “{effects['target']['text'].strip()}”{after_words(effects)}, {effects['unit']}")
    if effects["done"] < effects["total"] or not effects["total"]:
        found.append(f"{effects['done']:,} of {effects['total']:,} runs so far")
    return [*found, *without_words(traits)]


def _masses(context: FigureContext) -> dict[str, colors.Array]:
    """Return each segment's mass in all heads, (heads,)."""
    sent = context.traits.head_mass
    if sent is None or sent["error"] is not None:
        return {}
    values, names, _ = segment_heads.masses(context, sent, "mass")
    return {name: values[:, column] for column, name in enumerate(names)}


def _segment_bars(context: FigureContext, masses: dict[str, colors.Array]) -> list[EffectBar]:
    traits = context.traits
    sent, lost = traits.mass, losses_of(traits)
    assert sent is not None
    found = []
    for name, slot in zip(sent["keys"], sent["key_colors"], strict=True):
        own = masses.get(name, np.array([np.nan]))
        known = own[~np.isnan(own)]
        mass, shade = float(known.mean()) if len(known) else math.nan, colors.segment_color(slot, context.theme)
        aside = name in masses and not len(known)
        found.append(EffectBar(name, shade, mass, lost.get(name), name == traits.segment, aside))
    return largest_first(found)


def _head_bars(context: FigureContext, masses: dict[str, colors.Array], pinned: str | None) -> list[EffectBar]:
    traits, effects = context.traits, context.traits.effects
    assert effects is not None
    places = [(layer, head) for layer, count in enumerate(effects["heads"]["counts"]) for head in range(count)]
    own = np.full(len(places), np.nan) if pinned is None else masses[pinned]
    own = own if len(own) == len(places) else np.full(len(places), np.nan)
    sent = traits.mass
    assert sent is not None
    slot = sent["key_colors"][sent["keys"].index(pinned)] if pinned in sent["keys"] else -1
    shade = colors.segment_color(slot, context.theme)
    return largest_first(
        EffectBar(brief_head(*place, traits.facts), shade, float(mass), lost, place == (traits.layer, traits.head))
        for place, mass, lost in zip(places, own, map(as_loss, effects["heads"]["lost"]), strict=True)
    )


def _bars(context: FigureContext, bars: Sequence[EffectBar], what: tuple[str, int], top: float) -> float:
    """Draw one row for each bar: the bar is its mass, the dot its loss; return the lower end."""
    canvas, look, effects = context.canvas, context.look, context.traits.effects
    assert effects is not None
    kind, most = what
    shown = [*bars[:most], *(one for one in bars[most:] if one.pinned)]
    scales = scales_of([one.mass for one in bars], [one.lost for one in bars], in_nats=effects["unit"] == "nats")
    room = context.right - context.left
    names = min(NAMES, 0.24 * room)
    wide = room - names - 10 - NUMBERS - (WORDS if room >= WORDS_FROM else 0)
    plot = (context.left + names + 10, wide)
    y = top + 16
    _axis(context, scales, plot, (top + 4, y, y + len(shown) * ROW), kind)
    for one in shown:
        _row(context, one, scales, plot, y + ROW / 2)
        y += ROW
    canvas.text(context.left + names, y + 8, "lost", size=10, color=look.ink3, align="right")
    left = [one for one in bars if one not in shown]
    known = [one.lost for one in left if one.lost is not None and not math.isnan(one.lost)]
    if left:
        words = f"{len(left):,} more {kind}" + (f", lost at most {bound_text(max(known))}" if known else "")
        words += f", {len(left) - len(known):,} not run" if len(known) < len(left) else ""
        canvas.text(context.left, y + 24, words, size=11, color=look.ink3)
        y += 18
    return y + 18


def _axis(
    context: FigureContext, scales: EffectScales, plot: tuple[float, float], ys: tuple[float, float, float], kind: str
) -> None:
    """Draw the mass scale above, the loss scale below, and lines where both are round."""
    canvas, look, (x, wide), (above, top, bottom) = context.canvas, context.look, plot, ys
    numbers = x + wide
    canvas.text(x - 10, above, "mass", size=10, color=look.ink3, align="right")
    canvas.text(numbers + 46, above, "mass", size=10, color=look.ink3, align="right")
    canvas.text(numbers + NUMBERS - 4, above, "lost", size=10, color=look.ink3, align="right")
    each = max(1, math.ceil(26 / (wide / (1 + scales.left) / scales.parts)))
    for part in range(scales.parts + 1):
        share = part / scales.parts
        at = x + wide * scales.place(share)
        canvas.lines([[(at, top), (at, bottom)]], 1, look.ink2 if part == 0 else look.line)
        if part % each == 0:
            for y, value in ((above, scales.mass * share), (bottom + 8, scales.lost * share)):
                text = f"{float(f'{value:.2g}'):g}"
                text = text.removeprefix("0") if text.startswith("0.") else text
                canvas.text(at, y, text, size=10, color=look.ink3, align="center")


def _row(context: FigureContext, one: EffectBar, scales: EffectScales, plot: tuple[float, float], y: float) -> None:
    canvas, look, (x, wide) = context.canvas, context.look, plot
    name = canvas.shorten(one.name, x - context.left - 18, 12, one.pinned)
    canvas.text(x - 18, y, name, size=12, bold=one.pinned, align="right")
    canvas.boxes([(x - 13, y - 6, 3, 12)], [one.shade], 1)
    mass = 0.0 if math.isnan(one.mass) else one.mass / scales.mass
    known = one.lost is not None and not math.isnan(one.lost)
    lost = one.lost / scales.lost if one.lost is not None and known else mass
    zero, end, dot = (x + wide * scales.place(share) for share in (0.0, mass, lost))
    words = disagreement(scales, one.mass, one.lost)
    if mass > 0:
        pale = colors.mixed(one.shade, look.page, 0.7)
        canvas.boxes([(zero, y - 5, max(0.5, end - zero), 10)], [pale if dot < end else one.shade], 1)
        if not known and end - zero > 2:  # hollow
            canvas.boxes([(zero + 1, y - 4, end - zero - 2, 8)], [look.page], 0)
        if zero < dot < end:
            canvas.boxes([(zero, y - 5, dot - zero, 10)], [one.shade], 1)
        if dot < end:
            canvas.lines([[(end, y - 5), (end, y + 5)]], 1, one.shade)
    if dot > end:
        canvas.lines([[(end, y), (dot, y)]], 2 if words else 1, look.ink)
    if known:
        canvas.boxes([(dot - 6, y - 6, 12, 12)], [look.page], 6)
        canvas.boxes([(dot - 4.5, y - 4.5, 9, 9)], [look.ink], 4.5)
    numbers = x + wide
    text = "aside" if one.aside else number(one.mass)
    canvas.text(numbers + 46, y, text, size=11, color=look.ink2, align="right")
    canvas.text(numbers + NUMBERS - 4, y, loss_text(one.lost), size=11, bold=one.pinned, align="right")
    if context.right - numbers - NUMBERS > WORDS - 4:
        canvas.text(numbers + NUMBERS + 8, y, words, size=11)


def _key(context: FigureContext, y: float) -> float:
    canvas, look, x, effects = context.canvas, context.look, context.left, context.traits.effects
    assert effects is not None
    ink = colors.mixed(look.ink2, look.page, 0.2)
    canvas.boxes([(x, y + 3, 9, 8), (x + 9, y + 3, 9, 8)], [ink, colors.mixed(ink, look.page, 0.7)], 1)
    words = "mass, paler beyond the loss"
    canvas.text(x + 24, y + 7, words, size=11, color=look.ink2)
    at = x + 24 + canvas.measure(words, 11) + 20
    if at + 110 > context.right:
        at, y = x, y + 18
    canvas.boxes([(at, y + 3, 9, 9)], [look.ink], 4.5)
    canvas.text(at + 16, y + 7, f"lost {edited(effects, 'it')}", size=11, color=look.ink2)
    return y + 18


def _grid(context: FigureContext, top: float) -> float:
    """Draw the loss without each head, one row per layer; return the lower end."""
    canvas, look, effects = context.canvas, context.look, context.traits.effects
    assert effects is not None
    counts, lost = effects["heads"]["counts"], [*map(as_loss, effects["heads"]["lost"])]
    finite = [abs(one) for one in lost if one is not None and math.isfinite(one)]
    most, table = max(finite, default=0.0), context.table("diverging")
    wide = min(GRID_COLUMN, (context.right - context.left - 26) / max(1, *counts))
    gap = 1 if wide >= 12 else 0
    left, y, at = context.left + 26, top + 16, 0
    every = max(1, math.ceil(14 / wide))
    for head in range(0, max(counts, default=0), every):
        canvas.text(left + (head + 0.5) * wide, top + 6, f"{head}", size=10, color=look.ink3, align="center")
    for layer, count in enumerate(counts):
        canvas.text(left - 8, y + GRID_ROW / 2, f"{layer}", size=10, color=look.ink3, align="right")
        for head in range(count):
            box = (left + head * wide, y, wide - gap, GRID_ROW - gap)
            _cell(context, lost[at], most, box, table)
            if (layer, head) == (context.traits.layer, context.traits.head):
                canvas.frame((box[0] - 1, box[1] - 1, box[2] + 2, box[3] + 2), 2, look.ink, 3)
            at += 1
        y += GRID_ROW
    ticks = [(0.0, loss_text(-most)), (0.5, "0"), (1.0, loss_text(most))] if most else [(0.5, "0")]
    right, bottom = ramp(context, "diverging", f"Lost, {effects['unit']}", ticks, (left, y + 12))
    if None in lost:
        canvas.text(right + 20, y + 16, "outlines: not yet run", size=11, color=look.ink2)
    return bottom


def _cell(
    context: FigureContext, lost: float | None, most: float, box: tuple[float, float, float, float], table: colors.Array
) -> None:
    canvas, look, (x, y, wide, tall) = context.canvas, context.look, box
    if lost is None or math.isnan(lost):
        canvas.frame((x + 0.5, y + 0.5, wide - 1, tall - 1), 1, look.line, 2.5)
        return
    share = max(-1.0, min(1.0, lost / most)) if most else 0.0
    shade = colors.hex_of(table[round(127.5 + 127.5 * share)])
    canvas.boxes([box], [shade], 2.5 if wide >= 12 else 0)
    if abs(lost) >= 0.095 and wide >= NUMBERS_IN:
        canvas.text(x + wide / 2, y + tall / 2, loss_text(lost), size=10, color=colors.ink_on(shade), align="center")
