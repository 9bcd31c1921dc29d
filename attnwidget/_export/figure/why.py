"""Draw why a head looked there: the answer in words, and the parts of each key of the pinned query's row."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._analysis.why.reasons import row, run
from ..._analysis.why.results import WhyRow, because
from ..._messages.answers.of_reasons import largest_parts, with_rest
from ..look import colors
from ..look.numbers import list_number
from .sheet import FigureContext

PLOT = 120  # pixels: height of the stacks
LABELS = 52  # below them
NUMBERS = 34  # left of them
PITCH = 34  # of columns, at most
LEAST = 12
LIST = 210  # width of the list of parts
LINE = 17
SLOTS = (1, 2, 3, 4, 5, 6, 0, 7, 8)  # as in js/src/views/why/row.tsx; the last is the rest
NOTHING = "Pin a query, w.query = …, to draw why the head looked there."


def draw(context: FigureContext, top: float) -> float:
    """Draw the row of the pinned query; return the lower end."""
    traits, canvas, look = context.traits, context.canvas, context.look
    if traits.query is None:
        canvas.text(context.left, top + 8, NOTHING, size=11, color=look.ink3)
        return top + 16
    found = run(row(context.selected, traits.query, batch=traits.batch, head=traits.head))
    apart, chosen = found.against_mean(), largest_parts(found)
    terms = with_rest(apart, chosen)
    names = [found.parts[i].label for i in chosen]
    names += [f"{len(found.parts) - len(chosen)} more parts"] if len(found.parts) > len(chosen) else []
    y = _sentence(context, found, apart, top)
    canvas.text(context.left, y + 8, "Parts of each key, less the row's mean", size=11, color=look.ink2)
    beside = context.right - context.left >= 460
    room = context.right - context.left - (LIST + 20 if beside else 0)
    bottom = _stacks(context, found, terms, (context.left, y + 22, room))
    if traits.key is None:
        return bottom
    where = (context.right - LIST, y + 22) if beside else (context.left, bottom + 14)
    return max(bottom, _list(context, names, terms[:, traits.key], where))


def _sentence(context: FigureContext, found: WhyRow, apart: Tensor, top: float) -> float:
    """Write the answer for the pinned key; return where the next line would be."""
    traits = context.traits
    if traits.key is None or traits.query is None:
        return top
    query, key = context.queries[traits.query].text, context.keys[traits.key].text
    words = because(query, key, found.parts, apart[:, traits.key], "the other keys").split(" ")
    y, line = top + 8, ""
    for word in [*words, ""]:
        if word and context.canvas.measure(f"{line} {word}", 13) <= context.right - context.left:
            line = f"{line} {word}".strip()
            continue
        context.canvas.text(context.left, y, line, size=13, color=context.look.ink)
        y, line = y + 18, word
    return y + 4


def _stacks(context: FigureContext, found: WhyRow, terms: Tensor, at: tuple[float, float, float]) -> float:
    """Draw a stack for each key, or for those of largest weight; return the lower end."""
    (left, top, room), canvas, look = at, context.canvas, context.look
    keys = _fitting(found, context.traits.key, max(1, int((room - NUMBERS) // LEAST)))
    shown = terms[:, keys]
    low, high = float(shown.clamp(max=0).sum(0).amin()), float(shown.clamp(min=0).sum(0).amax())
    pitch, scale = min(PITCH, (room - NUMBERS) / len(keys)), PLOT / ((high - low) or 1)
    zero, first = top + high * scale, left + NUMBERS
    for value in (high, 0.0, low):
        y = zero - value * scale
        canvas.lines([[(first, y), (first + pitch * len(keys), y)]], 0.75, look.line)
        if value == 0 or abs(y - zero) > 10:
            canvas.text(first - 6, y, f"{value:.2g}".replace("-", "−"), size=9, color=look.ink3, align="right")
    for column, key in enumerate(keys):
        _column(context, key, shown[:, column].tolist(), (first + column * pitch, zero, pitch, scale))
        is_pinned = key == context.traits.key
        label, color = canvas.shorten(context.keys[key].text, 58, 9), look.ink if is_pinned else look.ink2
        x, y = first + (column + 0.5) * pitch + 2, top + PLOT + 8
        canvas.text(x, y, label, size=9, color=color, bold=is_pinned, align="right", rotation=45)
    canvas.reach(first + pitch * len(keys))
    return top + PLOT + LABELS


def _fitting(found: WhyRow, pinned: int | None, most: int) -> list[int]:
    """Return the keys that are drawn, in their order: the pinned one, and those of largest weight."""
    order = found.weights.argsort(descending=True, stable=True).tolist()
    return sorted([*dict.fromkeys([*([] if pinned is None else [pinned]), *order])][:most])


def _column(context: FigureContext, key: int, values: list[float], at: tuple[float, float, float, float]) -> None:
    """Draw the stack of one key, upward and downward from zero."""
    (x, zero, pitch, scale), boxes, fills = at, [], []
    top = bottom = zero
    for part, value in enumerate(values):
        height = abs(value) * scale
        boxes.append((x + 1, top - height if value >= 0 else bottom, max(1.0, pitch - 2), max(0.0, height - 0.4)))
        fills.append(_color(context, part, len(values)))
        top, bottom = (top - height, bottom) if value >= 0 else (top, bottom + height)
    context.canvas.boxes(boxes, fills)
    if key == context.traits.key:
        context.canvas.frame((x - 0.5, top - 2, pitch + 1, bottom - top + 4), 1.5, context.look.ink, 2)


def _color(context: FigureContext, part: int, parts: int) -> str:
    return colors.segment_color(SLOTS[-1] if part == parts - 1 else SLOTS[part], context.theme)


def _list(context: FigureContext, names: list[str], values: Tensor, at: tuple[float, float]) -> float:
    """Write the parts with their numbers at the pinned key; return the lower end."""
    (x, y), canvas, look = at, context.canvas, context.look
    for part, (name, value) in enumerate(zip(names, values.tolist(), strict=False)):
        canvas.boxes([(x, y + 4, 8, 8)], [_color(context, part, len(values))], 1.5)
        canvas.text(x + 14, y + 8, canvas.shorten(name, LIST - 80, 10), size=10, color=look.ink)
        number = list_number(value, "scores")
        canvas.text(x + LIST - 4, y + 8, number if value < 0 else f"+{number}", size=10, color=look.ink, align="right")
        y += LINE
    canvas.text(x, y + 10, f"sum {list_number(float(torch.sum(values)), 'scores')}", size=10, color=look.ink2)
    canvas.reach(x + LIST)
    return y + 18
