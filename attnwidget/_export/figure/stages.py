"""The stages on paper: scores → scaled → masked → weights → output, each small and with its own range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._messages import decoding, stage_pictures
from ..._messages.decoding import DecodedMatrix
from ..._tokens.display import list_number, short_number
from .heatmap import Place, cells

if TYPE_CHECKING:
    from .figure import FigureContext

BETWEEN = 48  # pixels between two pictures
LARGEST = 150
NAMES = {"capped": "softcap", "masked": "+ mask", "weights": "softmax", "output": "· V"}


def draw(sheet: FigureContext, top: float) -> float:
    """All stages of the selected head in a row; returns where they end."""
    widget, paper, look = sheet.widget, sheet.paper, sheet.look
    made = widget.stages or stage_pictures.stages(sheet.selected, widget.batch, widget.head)
    seen = [(one["stage"], _seen(one, one["stage"], one["key_bin"])) for one in made["pictures"]]
    if made["output"] is not None:
        seen.append(("output", _seen(made["output"], "scores", made["output"]["value_bin"])))
    side = min(LARGEST, (sheet.right - sheet.left - BETWEEN * (len(seen) - 1)) / len(seen))
    y, ends = top + 24, []
    for at, (name, one) in enumerate(seen):
        x = sheet.left + at * (side + BETWEEN)
        rows, columns = one.values.shape
        cell = min(side / columns, 1.6 * side / rows)
        place = Place(x, y, cell, rows, columns)
        paper.text(x, top + 8, name.capitalize(), size=11, color=look.ink, bold=True)
        if at > 0:
            words = _operation(sheet, name)
            paper.text(x - BETWEEN / 2, y + min(side, place.height) / 2, words, size=9, color=look.ink3, align="center")
        cells(sheet, one, place, "linear", "head")
        if name != "output" and widget.query is not None and widget.key is not None:
            row, column = widget.query // one.query_bin, widget.key // one.key_bin
            side_of = max(cell, 5)
            corner = (x + (column + 0.5) * cell - side_of / 2, y + (row + 0.5) * cell - side_of / 2)
            paper.frame((*corner, side_of, side_of), 1.5, look.ink, 1)
        ends.append(_legend(sheet, one, x, y + place.height + 10, side, name))
    return max(ends)


def _seen(made: dict[str, Any], stage: str, key_bin: int) -> DecodedMatrix:
    values, kinds = decoding.decode_cells(made["values"], made["blocked"])
    rows, columns = values.shape
    low, high, bins = made["low"], made["high"], (made["query_bin"], key_bin)
    return DecodedMatrix(
        values, kinds, stage, "max", rows * bins[0], columns * bins[1], *bins, low, high, made.get("every", 1)
    )


def _operation(sheet: FigureContext, name: str) -> str:
    if name == "scaled":
        size = sheet.selected.shape.D
        return f"÷ √{size}" if sheet.selected.scale == (size or 0) ** -0.5 else "· scale"
    return NAMES.get(name, "→")


def _legend(sheet: FigureContext, one: DecodedMatrix, x: float, y: float, side: float, name: str) -> float:
    """A thin ramp with both ends, and the pinned pair's value."""
    paper, look, widget = sheet.paper, sheet.look, sheet.widget
    paper.image(sheet.table(one.kind)[None], (x, y, side, 4))
    scale = decoding.scale_of(one)
    paper.text(x, y + 12, short_number(scale.low), size=9, color=look.ink3)
    paper.text(x + side, y + 12, short_number(scale.high), size=9, color=look.ink3, align="right")
    if name == "output" or widget.query is None or widget.key is None:
        return y + 18
    where = {"batch": widget.batch, "head": widget.head, "queries": widget.query, "keys": widget.key}
    masked = name in ("masked", "weights") and not bool(sheet.selected.block("allowed", **where))
    value = "masked" if masked else list_number(float(sheet.selected.block(name, **where)), name)
    paper.text(x, y + 28, value, size=11, color=look.ink if not masked else look.ink3, bold=not masked)
    return y + 34
