"""Draw why a head looked there: the answer in words, and the parts of each key of the pinned query's row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..._analysis.why.contrasts import compared_with
from ..._analysis.why.reasons import row, run
from ..._analysis.why.results import WhyRow
from ..._analysis.why.sentences import because, leading_parts, sum_of
from ..._messages.answers.of_reasons import largest_parts, with_rest
from ..._tokens.display import Label
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
    is_weighted = bool(found.weights.any())
    apart = found.terms - compared_with(found.terms, found.weights, "others") if is_weighted else found.terms
    chosen, y, sums = largest_parts(found), top, ""
    wide = context.right - context.left
    if traits.key is not None:
        names = _named(context.queries, traits.query), _named(context.keys, traits.key)
        said, sums = lines_of(found, traits.key, names)
        y = _wrapped(context, said, (context.left, top + 8, wide), 13) + 4
    than = "" if not is_weighted else ", less the mean of the other keys under their weights"
    canvas.text(context.left, y + 8, f"Parts of each key, of its score{than}", size=11, color=look.ink2)
    beside = wide >= 460
    room = wide - (LIST + 20 if beside else 0)
    bottom = _stacks(context, found, with_rest(apart.nan_to_num(), chosen), (context.left, y + 22, room))
    if traits.key is None:
        return bottom
    where = (context.right - LIST, y + 22) if beside else (context.left, bottom + 14)
    return max(bottom, _list(context, found, chosen, sums, where))


def pinned_parts(found: WhyRow, key: int) -> tuple[str | None, Tensor]:
    """Return what a key is compared with, and its parts, (parts,): None if no other key has a weight."""
    zero = compared_with(found.terms, found.weights, "others", torch.tensor([key], device=found.terms.device))[:, 0]
    return ("others", found.terms[:, key] - zero) if bool(zero.isfinite().all()) else (None, found.terms[:, key])


def lines_of(found: WhyRow, key: int, names: tuple[str, str]) -> tuple[str, str]:
    """Return the answer for a key in a sentence, and what the sum of its parts is.

    Args:
        found: the row.
        key: the key.
        names: of the query and the key.
    """
    against, parts = pinned_parts(found, key)
    own, less = float(found.scores[key]), 0.0
    if against is not None:
        less = float(
            compared_with(found.scores, found.weights, against, torch.tensor([key], device=found.terms.device))
        )
    scale = 0.0 if against is None else max(abs(own), abs(less))
    said = because(names, float(found.weights[key]), found.parts, parts, against, scale=scale, number=_number)
    return said, f"sum {_number(float(parts.sum()))} = {sum_of(own, less, against, '', _number)}"


def _named(labels: Sequence[Label], at: int) -> str:
    """Return a token, with its position if another looks the same."""
    label = labels[at]
    return f"{label.text} ({label.subscript})" if label.subscript else label.text


def _number(value: float) -> str:
    return list_number(value, "scores")


def _wrapped(context: FigureContext, text: str, at: tuple[float, float, float], size: float) -> float:
    """Write a text on as many lines as it needs; return where the next line would be."""
    (x, y, wide), line = at, ""
    for word in [*text.split(" "), ""]:
        if word and context.canvas.measure(f"{line} {word}", size) <= wide:
            line = f"{line} {word}".strip()
            continue
        context.canvas.text(x, y, line, size=size, color=context.look.ink)
        y, line = y + round(size * 1.4), word
    return y


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


def _list(context: FigureContext, found: WhyRow, chosen: Sequence[int], sums: str, at: tuple[float, float]) -> float:
    """Write the parts with their numbers at the pinned key, and what their sum is; return the lower end."""
    (x, y), canvas, look = at, context.canvas, context.look
    assert context.traits.key is not None
    values = pinned_parts(found, context.traits.key)[1]
    named = list(dict.fromkeys([*chosen, *(part for part, _ in leading_parts(values))]))
    rest = len(found.parts) - len(named)
    names = [*(found.parts[i].label for i in named), *([f"{rest} more parts"] if rest else [])]
    for line, (name, value) in enumerate(zip(names, with_rest(values[:, None], named)[:, 0].tolist(), strict=False)):
        canvas.boxes([(x, y + 4, 8, 8)], [_color(context, min(line, len(chosen)), len(chosen) + 1)], 1.5)
        canvas.text(x + 14, y + 8, canvas.shorten(name, LIST - 80, 10), size=10, color=look.ink)
        number = _number(value)
        canvas.text(x + LIST - 4, y + 8, number if value < 0 else f"+{number}", size=10, color=look.ink, align="right")
        y += LINE
    canvas.reach(x + LIST)
    return _wrapped(context, sums, (x, y + 10, LIST), 10)
