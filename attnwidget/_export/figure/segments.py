"""Draw segments: where the asking segment looked token by token, as a list, and from each segment to each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._engine.stages import SIGNED
from ..._messages.codec import decoding
from ..._messages.segments.segment_answers import spread
from ..._messages.segments.segment_mass import SINK
from ..._messages.segments.segment_reading import aside_columns, is_logarithmic, measure_name, measure_of, read
from ..look import colors
from ..look.effects import is_shown
from ..look.numbers import cell_number, legend_ticks, list_number
from . import effects, segment_heads
from .legend import legend_name, ramp
from .segment_heads import number
from .sheet import FigureContext

STACK = 96  # pixels for a mass of 1
STRIP = 18  # for an excluded mass of 1, above
LEAST_COLUMN = 14
GAP = 4
LINE = 30  # below a stack: its label, and space
MOST_LINES = 8
MOST_ROWS = 12  # in the list
BAR, NAMES = 120, 150
CELL = 34
SLANTED = 50  # pixels right of the cells, for the last name
DIGITS_FROM = 24  # pixels; larger cells contain their number
SLASH_FROM = 10  # pixels; larger fully masked cells have a slash


@dataclass(frozen=True)
class DrawnMasses:
    """The trait `mass` as drawn, without excluded segments.

    Attributes:
        names, shades, gone: each column's name, color, and whether it is excluded.
        tokens: (tokens, columns), shares of what is not excluded, and (tokens,) the excluded mass.
        rows: the names of the query segments; `row` is the asking one.
        values: (rows, columns) in the measure, `lifts` the same as lift; `aside` (rows,) the excluded mass.
        allowed: (rows, columns), whether any query of the row may attend to the column.
        stage: the stage that is summed.
        measure: how it is read; "lift" for weights only.
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
    allowed: colors.Array
    stage: str
    measure: str

    @property
    def is_signed(self) -> bool:
        """Whether there may be negative numbers."""
        return self.stage in SIGNED

    @property
    def most(self) -> float:
        """The height of the stacks' axis: 1 for shares, else the highest stack."""
        if self.stage == "weights":
            return 1.0
        sums = np.nan_to_num(self.tokens[0])
        return (
            float(max(np.maximum(sums, 0).sum(1).max(initial=0.0), -np.minimum(sums, 0).sum(1).min(initial=0.0))) or 1.0
        )


def draw(context: FigureContext, top: float) -> float:
    """Draw what segments give to segments; return the lower end."""
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
    stage = sent["stage"]
    measure = measure_of(traits.measure, stage)
    values, even, aside = read(parts, names, sizes, traits.aside, measure, stage)
    lifts = read(parts, names, sizes, traits.aside, "lift", stage)[0]
    columns = {name: decoding.decode(sent["columns"][name]) for name in (*parts, "own")}
    own = np.where(columns["own"] < len(names), columns["own"].astype(np.int64), -1)
    spread_out = {name: spread(columns[name], own, columns) for name in ("self", "self_even")}
    tokens, _, left = read({**columns, **spread_out}, names, sizes, traits.aside, "mass", stage)
    shades = [colors.segment_color(slot, context.theme) for slot in sent["key_colors"]]
    gone = aside_columns(names, traits.aside)
    shown = names, shades, gone, (tokens, left), sent["rows"], sent["row"]
    return DrawnMasses(*shown, values, lifts, aside, np.nan_to_num(even) > 0, stage, measure)


# Token by token.


def _columns(context: FigureContext, found: DrawnMasses, sent: dict[str, Any], top: float) -> float:
    """Draw a stack above each token of the asking segment, in lines; return the lower end."""
    places = decoding.decode(sent["positions"])[: len(found.tokens[0])].tolist()
    left = context.left + max(26.0, 8 + max(context.canvas.measure(text, 10) for _, text in _ticks(found)))
    lines = _lines(context, [context.queries[place].text for place in places], left)
    y, at = top, 0
    for line in lines[:MOST_LINES]:
        x = left
        _axis(context, found, y + STRIP, left - 8)
        for text, width in line:
            _stack(context, found, at, (x, y + STRIP, width))
            context.canvas.text(x, y + STRIP + STACK + 11, text, size=11, color=context.look.ink)
            x, at = x + width + GAP, at + 1
        y += STRIP + STACK + LINE
    if at < sent["total"]:
        more = f"{sent['total'] - at:,} more tokens of {sent['asking']}"
        context.canvas.text(left, y, more, size=11, color=context.look.ink3)
        y += 16
    return y


def _lines(context: FigureContext, texts: list[str], left: float) -> list[list[tuple[str, float]]]:
    """Return the tokens on each line, with the width of each."""
    lines: list[list[tuple[str, float]]] = [[]]
    room = context.right - left
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


def _axis(context: FigureContext, found: DrawnMasses, top: float, right: float) -> None:
    for share, text in _ticks(found):
        y = top + STACK * (1 - share)
        context.canvas.text(right, y, text, size=10, color=context.look.ink3, align="right")


def _ticks(found: DrawnMasses) -> list[tuple[float, str]]:
    """Return the numbers on the stacks' axis: 0 to 1 for shares, else up to the highest stack, or −m to m."""
    if found.stage == "weights":
        return [(0, "0"), (0.5, ".5"), (1, "1")]
    most = _axis_number(found.most)
    if found.is_signed:
        return [(0, f"−{most}"), (0.5, "0"), (1, f"+{most}")]
    return [(0, "0"), (0.5, _axis_number(found.most / 2)), (1, most)]


def _axis_number(value: float) -> str:
    return f"{value:.2g}".removeprefix("0")


def _stack(context: FigureContext, found: DrawnMasses, at: int, place: tuple[float, float, float]) -> None:
    """Draw one token's numbers, the pinned segment next to zero, negative numbers below a line.

    The excluded mass is above the shares.
    """
    x, top, width = place
    numbers, aside = found.tokens[0][at], float(found.tokens[1][at])
    pinned = context.traits.segment
    order = sorted(range(len(found.names)), key=lambda column: found.names[column] != pinned)
    zero, tall = (top + STACK / 2, STACK / 2) if found.is_signed else (top + STACK, float(STACK))
    above, below, boxes, shades = zero, zero, [], []
    for column in order:
        height = tall * float(np.nan_to_num(numbers[column])) / found.most
        if height == 0:
            continue
        is_pale = pinned is not None and found.names[column] != pinned
        paler = 0.45 if context.look.dark else 0.58
        shades.append(colors.mixed(found.shades[column], context.look.page, paler) if is_pale else found.shades[column])
        start, above, below = (above - height, above - height, below) if height > 0 else (below, above, below - height)
        boxes.append((x, start, width, max(0.25, abs(height) - 0.75)))
    if found.is_signed:
        boxes.append((x - 2, zero - 0.75, width + 4, 0.75))
        shades.append(context.look.ink3)
    if aside > 0 and found.stage == "weights":
        boxes.append((x, top - 2 - STRIP * min(aside, 1), width, STRIP * min(aside, 1)))
        shades.append(context.look.line)
    if boxes:
        context.canvas.boxes(boxes, shades)


def _captions(context: FigureContext, found: DrawnMasses, sent: dict[str, Any], y: float) -> float:
    aside = ", ".join(name for name, is_gone in zip(found.names, found.gone, strict=True) if is_gone)
    parts = ["mass by segment, as a share of what is not excluded"]
    if found.stage != "weights":
        where = ["above the line +, below −"] if found.is_signed else []
        parts = [legend_name(found.stage, context), "summed over the keys of each segment", *where, "not a share of 1"]
    if aside or "self" in context.traits.aside:
        own = ["own key of each query"] if "self" in context.traits.aside else []
        parts.append(
            f"excluded: {', '.join([*([aside] if aside else []), *own])}, {_text(found, float(found.aside[found.row]))}"
        )
    if sent["share"] < 1:
        parts.append(f"from {math.floor(100 * sent['share'])} % of the queries, exact")
    return context.words(context.left, y + 4, parts, context.look.ink3)


# All tokens.


def _list(context: FigureContext, found: DrawnMasses, top: float) -> float:
    """Draw the segments with the most mass, and their lift; return the lower end."""
    values, lifts, canvas, look = found.values[found.row], found.lifts[found.row], context.canvas, context.look
    there = [column for column in range(len(found.names)) if np.isfinite(values[column])]
    ranked = sorted(there, key=lambda column: -abs(values[column]))
    high = max((abs(float(values[column])) for column in ranked), default=0.0) or 1.0
    names = min(NAMES, 0.35 * (context.right - context.left))
    bar = min(BAR, context.right - context.left - names - 120)
    x, y = context.left + 10, top + 6
    numbers = x + names + bar + 60
    canvas.text(numbers, y, _name(found), size=11, color=look.ink3, align="right")
    has_lifts = found.stage == "weights" and found.measure != "lift"
    room, zero = (bar / 2, x + names + bar / 2) if found.is_signed else (bar, x + names)
    if found.is_signed:
        canvas.boxes([(zero - 0.25, y + 8, 0.5, 20.0 * min(len(ranked), MOST_ROWS))], [look.ink3])
    if has_lifts:
        canvas.text(numbers + 48, y, "lift", size=11, color=look.ink3, align="right")
    for column in ranked[:MOST_ROWS]:
        y += 20
        name, bold = found.names[column], found.names[column] == context.traits.segment
        canvas.boxes([(x - 8, y - 6, 3, 12)], [found.shades[column]], 1)
        canvas.text(x, y, canvas.shorten(name, names - 8, 12, bold), size=12, bold=bold)
        value = float(values[column])
        width = max(0.5, room * abs(value) / high)
        canvas.boxes([(zero - width if value < 0 else zero, y - 4, width, 8)], [found.shades[column]], 1.5)
        canvas.text(numbers, y, _text(found, value), size=12, align="right")
        if has_lifts and np.isfinite(lifts[column]):
            canvas.text(numbers + 48, y, f"×{lifts[column]:.1f}", size=12, color=look.ink3, align="right")
    if len(ranked) > MOST_ROWS:
        y += 18
        rest = sum(float(values[column]) for column in ranked[MOST_ROWS:])
        words = f"{len(ranked) - MOST_ROWS} more segments" + (
            f", {_text(found, rest)}" if found.measure == "mass" else ""
        )
        canvas.text(x, y, words, size=11, color=look.ink3)
    return y + 10


# From each segment to each.


def _matrix(context: FigureContext, found: DrawnMasses, top: float) -> float:
    """Draw segments × segments without the excluded ones; return the lower end."""
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
    high = float(np.nanmax(np.abs(values), initial=0.0, where=np.isfinite(values))) or 1.0
    kind = "diverging" if found.is_signed else "sequential"
    many = is_logarithmic(len(rows), len(kept), signed=found.is_signed)
    table, scale = context.table(kind), colors.scale_of(kind, many, 0.0, high)
    for i, row in enumerate(rows):
        y = start + i * size
        if size >= 9:
            name = canvas.shorten(found.rows[row], names - 8, min(11, size))
            canvas.text(left - 6, y + size / 2, name, size=min(11, size), align="right", bold=row == found.row)
        shades = [colors.hex_of(table[int(scale.entry(values[i, j]))]) for j in range(len(kept))]
        _cells(context, found, (row, kept), shades, (left, y, size))
    for j, column in enumerate(kept if heads else []):
        x, bold = left + (j + 0.5) * size, found.names[column] == pinned
        name = canvas.shorten(found.names[column], min(104, (context.right - x) / 0.7071 - 12), 11, bold)
        canvas.text(x, start - 6, name, size=11, rotation=45, bold=bold)
    return _matrix_legend(context, found, scale, (left, start + len(rows) * size + 10))


def _matrix_legend(
    context: FigureContext, found: DrawnMasses, scale: colors.Scale, place: tuple[float, float]
) -> float:
    """Draw the meaning of the cells' colors; return the lower end."""
    left, top = place
    high, name = scale.high, measure_name(found.measure, found.stage)
    end = number(high, 2) if found.stage == "weights" else list_number(high, found.stage)
    ticks = [(0.0, f"−{end}"), (0.5, "0"), (1.0, f"+{end}")] if found.is_signed else [(0.0, "0"), (1.0, end)]
    if found.stage != "weights":
        left, name = context.left, f"{name} ({legend_name(found.stage, context)})"
    if not scale.log:
        return ramp(context, scale.kind, name, ticks, (left, top))[1]
    times = "×" if found.measure == "lift" else ""
    ticks = [
        (share, text if found.measure == "mass" else f"{times}{_axis_number(value)}")
        for share, text, value in _log_ticks(scale, found.stage)
    ]
    bottom = ramp(context, scale.kind, f"{name}, log", ticks, (left, top))[1]
    words = "one color below 1/1,000 of the largest"
    return context.words(left, bottom + 12, [words], context.look.ink3)


def _log_ticks(scale: colors.Scale, stage: str) -> list[tuple[float, str, float]]:
    """Return the labels of a log ramp: share of its width, text, and number."""
    ticks = legend_ticks(scale.low, scale.high, log=True, stage=stage, min_gap=0.2)
    shares = scale.position(np.array([tick.value for tick in ticks], dtype=np.float64))
    return [(float(share), tick.text, tick.value) for share, tick in zip(shares, ticks, strict=True)]


def _cells(
    context: FigureContext,
    found: DrawnMasses,
    cells: tuple[int, list[int]],
    shades: list[str],
    place: tuple[float, float, float],
) -> None:
    """Draw a row of cells (x, y, size) with their numbers; fully masked cells have no tile."""
    (row, columns), (left, y, size) = cells, place
    allowed = [bool(found.allowed[row, column]) or found.names[column] == SINK for column in columns]
    boxes = [(left + j * size, y, size - 1, size - 1) for j, is_so in enumerate(allowed) if is_so]
    if boxes:
        context.canvas.boxes(boxes, [shades[j] for j, is_so in enumerate(allowed) if is_so], 2 if size > 12 else 0)
    for j, column in enumerate(columns):
        x, middle = left + (j + 0.5) * size - 0.5, y + (size - 1) / 2
        value = float(found.values[row, column])
        if not allowed[j]:
            if size >= SLASH_FROM:
                reach = 0.2 * size
                line = [(x - reach, middle + reach), (x + reach, middle - reach)]
                context.canvas.lines([line], 0.75, colors.mixed(context.look.page, context.look.ink, 0.2))
        elif size >= DIGITS_FROM and np.isfinite(value):
            text = number(value, 2) if found.stage == "weights" else cell_number(value, found.stage)
            color = colors.ink_on(shades[j])
            context.canvas.text(x, middle + 0.5, text, size=10, align="center", color=color)


def _name(found: DrawnMasses) -> str:
    name = measure_name(found.measure, found.stage)
    return name if name.startswith("‖") else name[:1].lower() + name[1:]


def _text(found: DrawnMasses, value: float) -> str:
    return number(value) if found.stage == "weights" else list_number(value, found.stage)
