"""Draw which heads read a segment: a row per head, with a bar in each segment's column."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._engine.stages import SIGNED
from ..._messages.codec import decoding
from ..._messages.segments.segment_reading import SELF, aside_columns, measure_of, read
from ..look import colors
from ..look.numbers import brief_head, list_number, rounded_up
from .sheet import FigureContext

ROW, MOST_ROWS = 20, 10
NAME, NUMBER = 44, 40  # pixels: a head's name, and the extra width of the sorted column for its numbers
LEAST, LARGEST = 34, 64  # pixels between columns
GAP = 7
HEADER, FONT = 18, 10.5
MOST_ASLANT, COS_45 = 110, 0.7071  # pixels: longest slanted name


def draw(context: FigureContext, top: float) -> float:
    """Draw the heads that read a segment most; return the lower end. A single head draws nothing."""
    sent = context.traits.head_mass
    if sent is None or sent["error"] is not None or sum(sent["heads"]) < 2:
        return top
    places = [(layer, head) for layer, count in enumerate(sent["heads"]) for head in range(count)]
    stage = sent["stage"]
    values, names, shades = masses(context, sent, measure_of(context.traits.measure, stage))
    kept = [column for column in range(len(names)) if np.isfinite(values[:, column]).any()]
    if not kept:
        return top
    pinned = context.traits.segment
    by = names.index(pinned) if pinned in names and names.index(pinned) in kept else _strongest(values, kept)
    canvas, look = context.canvas, context.look
    title = canvas.shorten(f"Which heads read {names[by]}", context.right - context.left, 13, True)
    canvas.text(context.left, top + 6, title, size=13, bold=True)
    shown, pitch = _fitting(context, kept, by)
    lefts = _lefts(context, shown, by, pitch)
    y = _header(context, [names[column] + (" ▾" if column == by else "") for column in shown], (lefts, pitch), top + 22)
    order = np.argsort(-np.nan_to_num(values[:, by], nan=-np.inf), kind="stable")
    high = float(np.nanmax(np.abs(values[:, kept]))) or 1.0
    for place in order[:MOST_ROWS].tolist():
        _row(context, (places[place], stage), values[place], (shown, lefts, by), shades, (y, pitch - GAP, high))
        y += ROW
    rest = order[MOST_ROWS:]
    if len(rest):
        most = float(values[rest[0], by])  # NaN, as sorted last, if none of them is known
        end = number(rounded_up(most, 2), 2) if stage == "weights" else list_number(rounded_up(most, 3), stage)
        words = f"{len(rest):,} more head{'s' * (len(rest) > 1)}" + ("" if np.isnan(most) else f", at most {end}")
        y = context.words(context.left + NAME, y + 6, [words], look.ink3) - 6
    if sent["share"] < 1:
        words = f"from {math.floor(100 * sent['share'])} % of the layers so far"
        y = context.words(context.left + NAME, y + 6, [words], look.ink3) - 6
    return _aside(context, names, y)


def _header(context: FigureContext, names: list[str], at: tuple[list[float], float], top: float) -> float:
    """Write the names above the columns, slanted if one has no room; return the lower end."""
    (lefts, pitch), canvas, look = at, context.canvas, context.look
    is_by = [name.endswith(" ▾") for name in names]
    needs = [canvas.measure(name, FONT, bold) for name, bold in zip(names, is_by, strict=True)]
    rooms = [pitch - GAP + (NUMBER if bold else 0) for bold in is_by]
    aslant = any(need > room for need, room in zip(needs, rooms, strict=True))
    bottom = top + HEADER
    if aslant:
        rooms = [min(MOST_ASLANT, (context.right - left) / COS_45 - FONT) for left in lefts]
        bottom = top + 8 + COS_45 * max(min(need, room) for need, room in zip(needs, rooms, strict=True))
    for name, room, left, bold in zip(names, rooms, lefts, is_by, strict=True):
        text, color = canvas.shorten(name, room, FONT, bold), look.ink if bold else look.ink2
        if aslant:
            canvas.text(left + 4, bottom - 4, text, size=FONT, rotation=45, bold=bold, color=color)
        else:
            canvas.text(left, top + 6, text, size=FONT, bold=bold, color=color)
    return bottom


def _aside(context: FigureContext, names: list[str], y: float) -> float:
    """Write what is excluded; return the lower end."""
    gone = aside_columns(names, context.traits.aside)
    words = [name for name, is_gone in zip(names, gone, strict=True) if is_gone]
    words += ["own key"] * (SELF in context.traits.aside)
    if not words:
        return y
    return context.words(context.left + NAME, y + 6, [f"excluded: {', '.join(words)}"], context.look.ink3) - 6


def masses(context: FigureContext, sent: dict[str, Any], measure: str) -> tuple[colors.Array, list[str], list[str]]:
    """Return a measure of each segment in all heads, (heads, segments), their names and their colors."""
    traits, names = context.traits, sent["keys"]
    parts = {name: decoding.decode_cells(sent[name], None)[0] for name in ("mass", "even", "self", "self_even")}
    sums = {
        name: decoding.decode_cells(sent["sums"][name], None)[0] - part.sum(1, keepdims=True)
        for name, part in parts.items()
    }
    columns = {name: np.concatenate([parts[name], sums[name]], 1) for name in parts}  # unsent columns become one
    known = (
        dict(
            zip(traits.mass["keys"], zip(traits.mass["key_sizes"], traits.mass["key_colors"], strict=True), strict=True)
        )
        if traits.mass and traits.mass["error"] is None
        else {}
    )
    sizes = [*(known.get(name, (0, -1))[0] for name in names), 0]
    values = read(columns, [*names, ""], sizes, traits.aside, measure, sent["stage"])[0][:, :-1]
    values[:, aside_columns(names, traits.aside)] = np.nan
    return values, names, [colors.segment_color(known.get(name, (0, -1))[1], context.theme) for name in names]


def _strongest(values: colors.Array, kept: list[int]) -> int:
    means = np.abs(np.nan_to_num(values[:, kept])).mean(0)
    return kept[int(means.argmax())]


def _fitting(context: FigureContext, kept: list[int], by: int) -> tuple[list[int], float]:
    """Return as many columns as fit, including the one that sorts the heads, and the distance between them."""
    room = context.right - context.left - NAME - NUMBER
    most = max(1, int(room // LEAST))
    shown = kept[:most] if by in kept[:most] else [*kept[: most - 1], by]
    return shown, min(float(LARGEST), room / len(shown))


def _lefts(context: FigureContext, shown: list[int], by: int, pitch: float) -> list[float]:
    found, x = [], context.left + NAME
    for column in shown:
        found.append(x)
        x += pitch + (NUMBER if column == by else 0)
    return found


def _row(
    context: FigureContext,
    of: tuple[tuple[int, int], str],
    values: colors.Array,
    columns: tuple[list[int], list[float], int],
    shades: list[str],
    size: tuple[float, float, float],
) -> None:
    """Draw a head's name, and a bar in each column; signed bars extend both ways from the middle."""
    place, stage = of
    canvas, look, traits = context.canvas, context.look, context.traits
    (shown, lefts, by), (y, wide, high) = columns, size
    is_own = place == (traits.layer, traits.head)
    name = brief_head(*place, traits.facts)
    canvas.text(context.left, y + 7, name, size=11, bold=is_own, color=look.ink if is_own else look.ink2)
    for column, x in zip(shown, lefts, strict=True):
        value = float(values[column])
        if not np.isfinite(value):
            continue
        room, zero = (wide / 2, x + wide / 2) if stage in SIGNED else (wide, x)
        bar = max(0.5, room * min(1.0, abs(value) / high))
        paler = 0.45 if look.dark else 0.58
        shade = shades[column] if column == by else colors.mixed(shades[column], look.page, paler)
        canvas.boxes([(zero - bar if value < 0 else zero, y + 3, bar, 8)], [shade], 1)
        if stage in SIGNED:
            canvas.boxes([(zero - 0.25, y, 0.5, 14)], [look.ink3])
        if column == by:
            text = number(value, 3) if stage == "weights" else list_number(value, stage)
            canvas.text(x + wide + NUMBER - 2, y + 7, text, size=11, bold=True, align="right")


def number(value: float, digits: int = 4) -> str:
    """Return `.5276`, `1.00`, `12.3`."""
    if not np.isfinite(value):
        return "–"
    text = f"{value:.{digits}f}" if abs(value) < 10 else f"{value:.1f}"
    return text.removeprefix("0") if text.startswith("0.") else text
