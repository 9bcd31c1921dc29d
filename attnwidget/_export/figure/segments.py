"""Segments, drawn: where the asking segment looked token by token, as a list, and from each segment to each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._messages import decoding
from ..._messages.segment_answers import spread
from ..._messages.segment_mass import SINK
from ..._messages.segment_reading import aside_columns, read
from .. import colors
from ..effects import is_shown
from . import effects, segment_heads
from .legend import ramp
from .segment_heads import number
from .sheet import FigureContext

STACK = 96  # pixels of 1
STRIP = 18  # of 1 that is set aside, above
LEAST_COLUMN = 14
GAP = 4
LINE = 30  # below a stack: its words, and air
MOST_LINES = 8
MOST_ROWS = 12  # of the list
BAR, NAMES = 120, 150
CELL = 34
SLANTED = 50  # pixels right of the cells, for the name of the last
DIGITS_FROM = 24  # pixels of a cell with its number in it
MEASURES = {"mass": "mass", "per_token": "mass per token", "lift": "lift"}


@dataclass(frozen=True)
class DrawnMasses:
    """What is drawn of the trait `mass`, some segments set aside.

    Attributes:
        names, shades, gone: of each column its name, its color, and whether it is set aside.
        tokens: (tokens, columns), shares of what is not set aside, and (tokens,) what is.
        rows: the names of the segments of queries; `row` is the asking one.
        values: (rows, columns) in the measure, `lifts` the same as lift; `aside` (rows,) the mass that is set aside.
    """

    names: list[str]
    shades: list[str]
    gone: colors.Array
    tokens: tuple[colors.Array, colors.Array]
    rows: list[str]
    row: int
    values: colors.Array
    lifts: colors.Array
    aside: colors.Array


def draw(context: FigureContext, top: float) -> float:
    """Draw what segments give to segments; return where it ends."""
    sent = context.traits.mass
    if sent is None:
        raise ValueError('there are no segments: give segments=, such as w.segments = "sentences"')
    if sent["error"] is not None:
        raise ValueError(sent["error"])
    if is_shown(context.traits):
        return effects.draw(context, top)
    found = _masses(context, sent)
    name = context.canvas.shorten(
        f"{'the ' if sent['asking'] == 'answer' else ''}{sent['asking']}", context.right - context.left - 150, 13, True
    )
    context.canvas.text(context.left, top + 8, f"Where did {name} look", size=13, bold=True)
    y = _columns(context, found, sent, top + 24)
    y = _captions(context, found, sent, y)
    y = _list(context, found, y + 8)
    y = _matrix(context, found, y + 22)
    return segment_heads.draw(context, y + 22)


def _masses(context: FigureContext, sent: dict[str, Any]) -> DrawnMasses:
    traits, names, sizes = context.traits, sent["keys"], sent["key_sizes"]
    parts = {name: decoding.decode_cells(sent[name], None)[0] for name in ("mass", "even", "self", "self_even")}
    values, _, aside = read(parts, names, sizes, traits.aside, traits.measure)
    lifts = read(parts, names, sizes, traits.aside, "lift")[0]
    columns = {name: decoding.decode(sent["columns"][name]) for name in (*parts, "own")}
    own = np.where(columns["own"] < len(names), columns["own"].astype(np.int64), -1)
    spread_out = {name: spread(columns[name], own, columns) for name in ("self", "self_even")}
    tokens, _, left = read({**columns, **spread_out}, names, sizes, traits.aside, "mass")
    shades = [colors.segment_color(slot, context.theme) for slot in sent["key_colors"]]
    gone = aside_columns(names, traits.aside)
    return DrawnMasses(names, shades, gone, (tokens, left), sent["rows"], sent["row"], values, lifts, aside)


# Token by token.


def _columns(context: FigureContext, found: DrawnMasses, sent: dict[str, Any], top: float) -> float:
    """Draw a stack above each token of the asking segment, in lines; return where they end."""
    places = decoding.decode(sent["positions"])[: len(found.tokens[0])].tolist()
    lines = _lines(context, [context.queries[place].text for place in places])
    y, at = top, 0
    for line in lines[:MOST_LINES]:
        x = context.left + 26
        _axis(context, y + STRIP)
        for text, width in line:
            _stack(context, found, at, (x, y + STRIP, width))
            context.canvas.text(x, y + STRIP + STACK + 11, text, size=11, color=context.look.ink)
            x, at = x + width + GAP, at + 1
        y += STRIP + STACK + LINE
    if at < sent["total"]:
        more = f"{sent['total'] - at:,} more tokens of {sent['asking']}"
        context.canvas.text(context.left + 26, y, more, size=11, color=context.look.ink3)
        y += 16
    return y


def _lines(context: FigureContext, texts: list[str]) -> list[list[tuple[str, float]]]:
    """Return the tokens of each line, with the width of each."""
    lines: list[list[tuple[str, float]]] = [[]]
    room = context.right - context.left - 26
    used = 0.0
    for text in texts:
        shown = context.canvas.shorten(text, room / 3, 11)
        width = max(LEAST_COLUMN, context.canvas.measure(shown, 11))
        if used + width > room and lines[-1]:
            lines.append([])
            used = 0.0
        lines[-1].append((shown, width))
        used += width + GAP
    return lines


def _axis(context: FigureContext, top: float) -> None:
    for share, text in ((0, "0"), (0.5, ".5"), (1, "1")):
        y = top + STACK * (1 - share)
        context.canvas.text(context.left + 18, y, text, size=10, color=context.look.ink3, align="right")


def _stack(context: FigureContext, found: DrawnMasses, at: int, place: tuple[float, float, float]) -> None:
    """Draw the shares of one token, the pinned segment at the bottom, and above them what is set aside."""
    x, top, width = place
    shares, aside = found.tokens[0][at], float(found.tokens[1][at])
    pinned = context.traits.segment
    order = sorted(range(len(found.names)), key=lambda column: found.names[column] != pinned)
    bottom, boxes, shades = top + STACK, [], []
    for column in order:
        share = float(np.nan_to_num(shares[column]))
        if share <= 0:
            continue
        is_pale = pinned is not None and found.names[column] != pinned
        paler = 0.45 if context.look.dark else 0.58
        shades.append(colors.mixed(found.shades[column], context.look.page, paler) if is_pale else found.shades[column])
        bottom -= STACK * share
        boxes.append((x, bottom, width, max(0.25, STACK * share - 0.75)))
    if aside > 0:
        boxes.append((x, top - 2 - STRIP * min(aside, 1), width, STRIP * min(aside, 1)))
        shades.append(context.look.line)
    if boxes:
        context.canvas.boxes(boxes, shades)


def _captions(context: FigureContext, found: DrawnMasses, sent: dict[str, Any], y: float) -> float:
    aside = ", ".join(name for name, is_gone in zip(found.names, found.gone, strict=True) if is_gone)
    parts = ["mass by segment, a share of what is not aside"]
    if aside or "self" in context.traits.aside:
        own = ["each token itself"] if "self" in context.traits.aside else []
        parts.append(
            f"aside: {', '.join([*([aside] if aside else []), *own])}, {number(float(found.aside[found.row]))}"
        )
    if sent["share"] < 1:
        parts.append(f"from {round(100 * sent['share'])} % of the queries, exact")
    return context.words(context.left, y + 4, parts, context.look.ink3)


# All tokens.


def _list(context: FigureContext, found: DrawnMasses, top: float) -> float:
    """Draw the segments that get most, with their lift; return where they end."""
    values, lifts, canvas, look = found.values[found.row], found.lifts[found.row], context.canvas, context.look
    there = [column for column in range(len(found.names)) if np.isfinite(values[column])]
    ranked = sorted(there, key=lambda column: -values[column])
    high = max((float(values[column]) for column in ranked), default=0.0) or 1.0
    names = min(NAMES, 0.35 * (context.right - context.left))
    bar = min(BAR, context.right - context.left - names - 120)
    x, y = context.left + 10, top + 6
    numbers = x + names + bar + 60
    canvas.text(numbers, y, MEASURES[context.traits.measure], size=11, color=look.ink3, align="right")
    if context.traits.measure != "lift":
        canvas.text(numbers + 48, y, "lift", size=11, color=look.ink3, align="right")
    for column in ranked[:MOST_ROWS]:
        y += 20
        name, bold = found.names[column], found.names[column] == context.traits.segment
        canvas.boxes([(x - 8, y - 6, 3, 12)], [found.shades[column]], 1)
        canvas.text(x, y, canvas.shorten(name, names - 8, 12, bold), size=12, bold=bold)
        width = max(0.5, bar * float(values[column]) / high)
        canvas.boxes([(x + names, y - 4, width, 8)], [found.shades[column]], 1.5)
        canvas.text(numbers, y, number(float(values[column])), size=12, align="right")
        if context.traits.measure != "lift" and np.isfinite(lifts[column]):
            canvas.text(numbers + 48, y, f"×{lifts[column]:.1f}", size=12, color=look.ink3, align="right")
    if len(ranked) > MOST_ROWS:
        y += 18
        rest = sum(float(values[column]) for column in ranked[MOST_ROWS:])
        words = f"{len(ranked) - MOST_ROWS} more segments" + (
            f", {number(rest)}" if context.traits.measure == "mass" else ""
        )
        canvas.text(x, y, words, size=11, color=look.ink3)
    return y + 10


# From each segment to each.


def _matrix(context: FigureContext, found: DrawnMasses, top: float) -> float:
    """Draw segments × segments, without those that are set aside; return where it ends."""
    kept = [column for column in range(len(found.names)) if not found.gone[column]]
    aside = {name for name, is_gone in zip(found.names, found.gone, strict=True) if is_gone}
    rows = [row for row, name in enumerate(found.rows) if name not in aside]
    canvas, pinned = context.canvas, context.traits.segment
    canvas.text(context.left, top + 6, "From each segment to each", size=13, bold=True)
    names = min(110.0, max((canvas.measure(found.rows[row], 11) for row in rows), default=0) + 10)
    size = min(CELL, (context.right - context.left - names - SLANTED) / max(1, len(kept)))
    heads = (
        min(110.0, max((canvas.measure(found.names[column], 11) for column in kept), default=0)) if size >= 11 else 0
    )
    left, start = context.left + names, top + 24 + heads
    values = found.values[np.ix_(rows, kept)]
    high = float(np.nanmax(values, initial=0.0, where=np.isfinite(values))) or 1.0
    table, scale = context.table("sequential"), colors.scale_of("sequential", False, 0.0, high)
    for i, row in enumerate(rows):
        y = start + i * size
        if size >= 9:
            name = canvas.shorten(found.rows[row], names - 8, min(11, size))
            canvas.text(left - 6, y + size / 2, name, size=min(11, size), align="right", bold=row == found.row)
        shades = [colors.hex_of(table[int(scale.entry(values[i, j]))]) for j in range(len(kept))]
        canvas.boxes(
            [(left + j * size, y, size - 1, size - 1) for j in range(len(kept))], shades, 2 if size > 12 else 0
        )
        for j, shade in enumerate(shades if size >= DIGITS_FROM else []):
            is_allowed = np.isfinite(found.lifts[row, kept[j]]) or found.names[kept[j]] == SINK
            if is_allowed and np.isfinite(values[i, j]):
                middle = left + (j + 0.5) * size - 0.5, y + size / 2
                text = number(float(values[i, j]), 2)
                canvas.text(*middle, text, size=10, align="center", color=colors.ink_on(shade))
    for j, column in enumerate(kept if heads else []):
        x, bold = left + (j + 0.5) * size, found.names[column] == pinned
        name = canvas.shorten(found.names[column], min(104, (context.right - x) / 0.7071 - 12), 11, bold)
        canvas.text(x, start - 6, name, size=11, rotation=45, bold=bold)
    bottom = start + len(rows) * size + 10
    ticks = [(0.0, "0"), (1.0, number(high, 2))]
    return ramp(context, "sequential", MEASURES[context.traits.measure].capitalize(), ticks, (left, bottom))[1]
