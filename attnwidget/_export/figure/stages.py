"""Draw the stages: scores → scaled → masked → weights → output, each small and with its own range."""

from __future__ import annotations

from typing import Any

from ..._messages.codec import decoding
from ..._messages.codec.decoding import DecodedMatrix
from ..._messages.pictures import stage_pictures
from ..look import colors
from ..look.numbers import list_number
from .heatmap import Place, cells, sink_column
from .legend import scale_ticks, tick_labels
from .sheet import FigureContext

BETWEEN = 48  # pixels between pictures
LARGEST = 150
LEAST = 72  # pixels: least side of a picture; with less room, a row has fewer
NAMES = {"capped": "softcap", "masked": "+ mask", "weights": "softmax", "output": "· V"}


def draw(context: FigureContext, top: float) -> float:
    """Draw all stages of the selected head in a row; return the lower end."""
    traits = context.traits
    message = traits.stages or stage_pictures.stages(context.selected, traits.batch, traits.head)
    matrices = [(one["stage"], _decoded(one, one["stage"], one["key_bin"])) for one in message["pictures"]]
    if message["output"] is not None:
        matrices.append(("output", _decoded(message["output"], "scores", message["output"]["value_bin"])))
    columns = _columns(context.right - context.left, len(matrices))
    room = context.right - context.left
    gaps = columns - (columns == len(matrices))  # a row that is not the last ends with the next operation
    side = min(LARGEST, (room - BETWEEN * gaps) / columns)
    y, bottom = top, top
    for at, (name, one) in enumerate(matrices):
        if at % columns == 0:
            y = bottom + (14 if at else 0)
        x = context.left + at % columns * (side + BETWEEN)
        following = matrices[at + 1][0] if at + 1 < len(matrices) else None
        bottom = max(bottom, _draw_stage(context, name, one, (x, y, side), following))
    return bottom


def _columns(room: float, many: int) -> int:
    """Return how many pictures to put in a row: all, or as many as are readable."""
    if room / many - BETWEEN >= LEAST:
        return many
    return max(1, int(room // (LEAST + BETWEEN)))


def _draw_stage(
    context: FigureContext, name: str, one: DecodedMatrix, at: tuple[float, float, float], following: str | None
) -> float:
    """Draw one picture and the operation that follows it; return the lower end."""
    traits, canvas, look, (x, top, side) = context.traits, context.canvas, context.look, at
    rows, columns = one.values.shape
    cell = min(side / columns, 1.6 * side / rows)
    place = Place(x, top + 24, cell, rows, columns)
    canvas.text(x, top + 8, name.capitalize(), size=11, color=look.ink, bold=True)
    if following is not None:
        middle = place.y + min(side, place.height) / 2
        words = _operation(context, following)
        canvas.text(x + side + BETWEEN / 2, middle, words, size=9, color=look.ink3, align="center")
    cells(context, one, place, "linear", "head")
    if one.sink is not None:
        sink_column(context, one, place, ("linear", "head"), gap=3, least=4)
    if name != "output" and traits.query is not None and traits.key is not None:
        row, column = traits.query // one.query_bin, traits.key // one.key_bin
        side_of = max(cell, 5)
        corner = (x + (column + 0.5) * cell - side_of / 2, place.y + (row + 0.5) * cell - side_of / 2)
        canvas.frame((*corner, side_of, side_of), 1.5, look.ink, 1)
    return _legend(context, one, x, place.y + place.height + 10, side, name)


def _decoded(picture: dict[str, Any], stage: str, key_bin: int) -> DecodedMatrix:
    values, kinds = decoding.decode_cells(picture["values"], picture["blocked"])
    rows, columns = values.shape
    low, high, bins = picture["low"], picture["high"], (picture["query_bin"], key_bin)
    sink = None if picture.get("sink") is None else decoding.decode(picture["sink"])
    return DecodedMatrix(
        values, kinds, stage, "max", rows * bins[0], columns * bins[1], *bins, low, high, picture.get("every", 1), sink
    )


def _operation(context: FigureContext, name: str) -> str:
    if name == "scaled":
        size = context.selected.shape.D
        return f"÷ √{size}" if context.selected.scale == (size or 0) ** -0.5 else "· scale"
    return NAMES.get(name, "→")


def _legend(context: FigureContext, one: DecodedMatrix, x: float, y: float, side: float, name: Any) -> float:
    """Draw a thin ramp with both ends, and the pinned pair's value."""
    canvas, look, traits = context.canvas, context.look, context.traits
    canvas.image(context.table(one.kind)[None], (x, y, side, 4))
    ticks = scale_ticks(colors.matrix_scale(one), one.stage)
    tick_labels(context, [ticks[0], *ticks[1:][-1:]], (x, y + 12, side), 9)
    if name == "output" or traits.query is None or traits.key is None:
        return y + 18
    where = {"batch": traits.batch, "head": traits.head, "queries": traits.query, "keys": traits.key}
    masked = name in ("masked", "weights") and not bool(context.selected.block("allowed", **where))
    value = "masked" if masked else list_number(float(context.selected.block(name, **where)), name)
    canvas.text(x, y + 28, value, size=11, color=look.ink if not masked else look.ink3, bold=not masked)
    return y + 34
