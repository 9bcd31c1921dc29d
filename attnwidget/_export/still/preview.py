"""A small PNG of a widget, for places where no widget runs: GitHub, nbviewer, e-mail.

It needs only numpy and zlib: indexed colors, and letters from `glyphs`. It looks as the widget does: the same colors,
numbers in cells with room for them, slashes over masked cells, and a list of the strongest keys of the pinned query.
No page tells its theme here, so "auto" is the light theme, on a background of its own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from math import floor, log10, sqrt
from typing import Any, NamedTuple

import numpy as np

from ..._engine.stages import SIGNED
from ..._messages.codec.decoding import (
    BLOCKED,
    MINUS_INF,
    NAN,
    NUMBER,
    PLUS_INF,
    DecodedMatrix,
    decode_cells,
    of_picture,
)
from ..._messages.segments.segment_reading import aside_columns, is_logarithmic, measure_name, measure_of, read
from ..._tokens.characters import one_line
from ..._tokens.display import Label, labels_of, place_text
from ..._utils.png import png_of_indices
from ..compared import is_comparison, names_of, part_of, placed, places_of, range_of_change
from ..look import colors
from ..look.effects import after_words, as_loss, edited, is_shown, loss_text, losses_of
from ..look.numbers import cell_number, in_model, legend_name, legend_ticks, list_number
from ..look.padding import LOOKED_AT, padded_queries, padded_rows
from ..look.ranges import range_words, with_range
from ..view import TraitsView, WidgetView
from .glyphs import STEPS, height, written

MOST_BYTES = 47 * 1024  # in the file: as base64 at most 64 KiB of a notebook
SCALE = 2  # file pixels per page pixel: letters are sharp on high-resolution screens
SIDE = 460  # page pixels along the longer side, about
LARGEST_CELL = 28  # page pixels
NUMBERS_FROM = 23  # page pixels per cell; larger cells have their number, if the picture has few
MOST_NUMBERS = 400
LEAST_NUMBER = 0.05  # smaller weights are left to the color: each number takes 100 bytes of the file
LEAST_CELL = 11  # if every row has its label
GAP_FROM = 8  # pixels per cell; larger cells have gaps between them
BESIDE = 4  # page pixels around the picture
APART = 12  # between labels
TICKS = 48  # between labeled positions, if rows have no labels of their own
LARGEST_LABEL = 96
RAMP = 120
MOST_LABELS = 64
LISTED = 4  # segments whose loss is listed
RANKED = 8  # keys in the list beside the picture
BARS = 90  # page pixels of its longest bar

# Palette indices: the colors of cells, then these, then the grays of letters.
SHADES = 128
PIXEL = np.int16  # a palette index
PAGE, BAD, INFINITE, RING, LETTERS = SHADES, SHADES + 1, SHADES + 2, SHADES + 3, SHADES + 4
BAR = SHADES * 3 // 5  # the color of a bar is one of the cells' colors
VEILED = LETTERS + STEPS  # half as many cell colors, for rows of padding

VEIL = 0.38  # the strength of colors in rows of padding
HATCHED = 7  # page pixels between the lines over them
HATCH = LETTERS + 1  # their color, pale

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]


class Still(NamedTuple):
    """A PNG, and its size on a page."""

    png: bytes
    width: int
    height: int


class Words(NamedTuple):
    """The text around a picture: a label per position, the pinned positions, the lines below, and the ramp's name."""

    queries: Sequence[str]
    keys: Sequence[str]
    query: int | None
    key: int | None
    lines: Sequence[str]
    ramp: str
    padded: Array | None = None  # (queries,) bool, which queries are padding
    none: str = "masked"  # the name of a cell with a slash
    ranked: Sequence[tuple[str, float]] = ()  # the strongest keys of the pinned query, and their numbers
    ranked_of: str = ""  # the pinned query in a sentence


def preview_of(widget: WidgetView) -> Still | None:
    """Return a small PNG of the widget's picture; None if there is none."""
    traits = widget.traits
    if traits.picture.get("values") is None:
        return None
    try:
        if traits.view == "segments" and traits.mass is not None and traits.mass["error"] is None:
            return (_still_of_effects(widget) if is_shown(traits) else None) or _still_of_segments(widget, traits.mass)
        if traits.view == "compare" and _is_compared(traits):
            return _still_of_change(widget)
        matrix = with_range(of_picture(widget.picture), traits)
        return still_of(
            matrix,
            _words_of(widget, matrix),
            color_scale=traits.color_scale,
            color_range=traits.color_range,
            palette=traits.palette,
            theme=traits.theme,
        )
    except Exception:  # a widget must be displayed even if its picture fails
        log.warning("the small picture next to a widget could not be drawn", exc_info=True)
        return None


def _is_compared(traits: Any) -> bool:
    return is_comparison(traits) and traits.comparison is not None and not traits.comparison["error"]


def _still_of_change(widget: WidgetView) -> Still:
    """Return the change from A to B, at the positions that both have."""
    traits: Any = widget.traits
    comparison = traits.comparison
    matrix, places = part_of(comparison, "change"), places_of(comparison)
    of_a = _words_of(widget, matrix)
    labels = [
        texts if some is None or not texts else [texts[at] for at in some]
        for texts, some in zip((of_a.queries, of_a.keys), places, strict=True)
    ]
    query, key = placed((traits.query, traits.key), places) or (None, None)
    padded = of_a.padded if of_a.padded is None or places[0] is None else of_a.padded[places[0]]
    shared = f"{comparison['queries']:,} × {comparison['keys']:,} positions shared by A and B"
    lines = [" · ".join(names_of(traits)), *of_a.lines, *([] if places == (None, None) else [shared])]
    return still_of(
        matrix,
        Words(labels[0], labels[1], query, key, lines, "B − A", padded, "masked in both"),
        color_scale="linear",
        color_range=range_of_change(traits.color_range),
        palette=traits.palette,
        theme=traits.theme,
    )


def _still_of_segments(widget: WidgetView, sent: dict[str, Any]) -> Still | None:
    """Return what each segment gives to each, without excluded segments; None if all are excluded."""
    traits, names = widget.traits, sent["keys"]
    parts = {name: decode_cells(sent[name], None)[0] for name in ("mass", "even", "self", "self_even")}
    stage, measure = sent["stage"], measure_of(traits.measure, sent["stage"])
    values, even, aside = read(parts, names, sent["key_sizes"], traits.aside, measure, stage)
    gone = aside_columns(names, traits.aside)
    kept = np.flatnonzero(~gone)
    left_out = {name for name, is_gone in zip(names, gone, strict=True) if is_gone}
    rows = np.array([row for row, name in enumerate(sent["rows"]) if name not in left_out], np.int64)
    if not (len(rows) and len(kept)):
        return None
    values, even = values[np.ix_(rows, kept)], even[np.ix_(rows, kept)]
    masked = ~np.isfinite(values) | ((even == 0) & (values == 0))
    high = float(np.abs(values[~masked]).max(initial=0.0)) or 1.0
    low = -high if stage in SIGNED else 0.0
    kinds = np.where(masked, BLOCKED, NUMBER).astype(np.uint8)
    cells = np.where(masked, 0, values).astype(np.float32)
    matrix = DecodedMatrix(cells, kinds, stage, "max", len(rows), len(kept), 1, 1, low, high, 1)
    shown = [names[column] for column in kept]
    asked = [sent["rows"][row] for row in rows.tolist()]
    own = ["own key of each query"] if "self" in traits.aside else []
    said = ", ".join([*(name for name in names if name in left_out), *own])
    lines = [traits.title] if traits.title else []
    lines += [f"excluded: {said}, {aside[sent['row']]:.3f} of {sent['asking']}"] if said else []
    lines += [f"from {math.floor(100 * sent['share'])} % of the queries"] if sent["share"] < 1 else []
    at = asked.index(sent["asking"]) if traits.segment in shown and sent["asking"] in asked else None
    pinned = None if at is None else shown.index(str(traits.segment))
    ramp = measure_name(measure, stage)
    many = is_logarithmic(len(rows), len(kept), signed=stage in SIGNED)
    return still_of(
        matrix,
        Words(asked, shown, at, pinned, [*lines, _place_of(widget)], ramp),
        color_scale="log" if many else "linear",
        color_range=(low, high),
        palette=traits.palette,
        theme=traits.theme,
    )


def _still_of_effects(widget: WidgetView) -> Still | None:
    """Return the loss without each head, one row per layer, above the segments; None if none has been run."""
    traits = widget.traits
    effects = traits.effects
    if effects is None or effects["heads"] is None or effects["target"] is None:
        return None
    counts, lost = effects["heads"]["counts"], [*map(as_loss, effects["heads"]["lost"])]
    grid = np.full((len(counts), max(counts, default=0)), np.nan)
    firsts = np.cumsum([0, *counts])
    for layer, count in enumerate(counts):
        known = lost[firsts[layer] : firsts[layer] + count]
        grid[layer, :count] = [math.nan if one is None else one for one in known]
    most = float(np.abs(grid[np.isfinite(grid)]).max(initial=0.0))
    if not np.isfinite(grid).any():
        return None
    kinds = np.where(np.isnan(grid), BLOCKED, NUMBER).astype(np.uint8)
    cells = np.clip(np.nan_to_num(grid), -most, most).astype(np.float32)
    matrix = DecodedMatrix(cells, kinds, "scores", "max", len(grid), grid.shape[1], 1, 1, -most, most, 1)
    layers, heads = (
        [f"{what}{at}" for at in range(many)] for what, many in zip(("layer ", ""), grid.shape, strict=True)
    )
    lines, called = _effect_lines(traits), f"Lost {edited(effects, 'each head')}"
    words = Words(layers, heads, traits.layer, traits.head, lines, called, none="not yet run")
    looks = {"palette": traits.palette, "theme": traits.theme}
    return still_of(matrix, words, color_scale="linear", color_range="head", **looks)


def _effect_lines(traits: TraitsView) -> list[str]:
    """Return the segments with the largest loss, as text."""
    effects = traits.effects
    assert effects is not None
    lines = [traits.title] if traits.title else []
    lines.append(f"of “{effects['target']['text'].strip()}”{after_words(effects)}, {effects['unit']}")
    known = [(name, lost) for name, lost in losses_of(traits).items() if lost is not None and not math.isnan(lost)]
    known.sort(key=lambda one: -one[1])
    most = ", ".join(f"{name} {loss_text(lost)}" for name, lost in known[:LISTED])
    lines += [f"lost {edited(effects, 'segments')}: {most}"] if most else []
    if effects["done"] < effects["total"]:
        lines.append(f"{effects['done']:,} of {effects['total']:,} runs so far")
    return lines


def _place_of(widget: WidgetView) -> str:
    """Return the shown head and its number of positions, as text."""
    traits, shape = widget.traits, widget.selected.shape
    head, numbers = traits.picture.get("head", traits.head), traits.facts.get("head_numbers")
    of_model = in_model([head], numbers) if isinstance(head, int) else ""
    alone = names_of(traits)[0] if is_comparison(traits) and traits.view != "compare" else ""  # one of the two sides
    parts = [alone, traits.stack, f"layer {traits.layer}" if len(widget.shown.stack) > 1 else ""]
    parts += [f"head {head}{of_model}" if shape.H > 1 or numbers else "", f"{shape.Q:,} × {shape.K:,}"]
    return " · ".join(part for part in parts if part)


def _words_of(widget: WidgetView, matrix: DecodedMatrix) -> Words:
    traits, shape = widget.traits, widget.selected.shape
    sides = []
    labels = []
    for side, length in (("query", shape.Q), ("key", shape.K)):
        tokens = widget.tokens(side)
        known = length if length <= LOOKED_AT else 1
        found = labels_of(None if tokens is None else tokens[:known], known, widget.shown.spelling)
        labels.append(found)
        named = found if length <= MOST_LABELS * 4 else []
        sides.append([f"{label.text}{label.subscript and ' ' + label.subscript}" for label in named])
    start, has_tokens = traits.picture.get("padding"), widget.tokens("query") is not None
    padded = padded_queries((shape.Q, shape.K), labels[0], labels[1], start, has_tokens=has_tokens)
    parts = [traits.title] if traits.title else []
    where = [_place_of(widget), (traits.color_range in ("layer", "view") and range_words(matrix, traits)) or ""]
    lines = [*parts, " · ".join(part for part in where if part)]
    ranked = _ranked(matrix, labels[1] if sides[1] else [], traits.query)
    called = _ramp_name(widget, matrix.stage)
    whose = "" if traits.query is None or not (ranked and sides[0]) else place_text(labels[0], traits.query, "query")
    return Words(sides[0], sides[1], traits.query, traits.key, lines, called, padded, ranked=ranked, ranked_of=whose)


def _ranked(matrix: DecodedMatrix, keys: Sequence[Label], query: int | None) -> list[tuple[str, float]]:
    """Return the strongest keys of a query and their weights, if the picture has each cell and the keys have names."""
    if query is None or matrix.stage != "weights" or matrix.query_bin * matrix.key_bin * matrix.every > 1 or not keys:
        return []
    row, kinds = matrix.values[query], matrix.kinds[query]
    order = [int(at) for at in np.argsort(-row, kind="stable") if kinds[at] == NUMBER][:RANKED]
    return [(place_text(keys, at, "key"), float(row[at])) for at in order]


def _ramp_name(widget: WidgetView, stage: str) -> str:
    """Return the ramp's name; a logit includes its token, or the token's id if its letters are missing."""
    carries, batch = widget.selected.carries, widget.traits.batch
    name = one_line(legend_name(stage, carries, batch))
    if written(name) is not None or carries is None or carries.targets is None:
        return name
    return legend_name(stage, replace(carries, words={}), batch)


def still_of(
    matrix: DecodedMatrix, words: Words, *, color_scale: str, color_range: Any, palette: str, theme: str
) -> Still:
    """Return the picture as a PNG of at most 48 KiB, with labels, pin and legend."""
    cells = colors.entries(matrix, color_scale, color_range).astype(int) >> 1
    for kind, place in ((BLOCKED, PAGE), (NAN, BAD), (PLUS_INF, INFINITE), (MINUS_INF, PAGE)):
        cells[matrix.kinds == kind] = place
    table = _palette(matrix.kind, palette, "light" if theme == "auto" else theme)
    step = -(-max(cells.shape) // SIDE)
    numbers = table if step == 1 and matrix.kinds.size <= MOST_NUMBERS else None
    while True:
        small = _pooled(cells, step, signed=matrix.kind == "diverging")
        legend = _legend(matrix, step, color_scale, color_range, words)
        pixels = _drawn(small, matrix, step, words, legend, numbers)
        made = png_of_indices(*_used(pixels, table))
        if len(made) <= MOST_BYTES or (max(small.shape) <= 32 and numbers is None):
            return Still(made, pixels.shape[1] // SCALE, pixels.shape[0] // SCALE)
        if numbers is None:
            step = max(step + 1, floor(step * sqrt(len(made) / MOST_BYTES)))
        numbers = None


def _palette(kind: str, palette: str, theme: str) -> Array:
    """Return all palette colors, (n, 4) uint8."""
    look = colors.look_of(theme)
    page, ink = colors.rgb_of(look.page).astype(float), colors.rgb_of(look.ink2)
    found = np.full((VEILED + SHADES // 2, 4), 255, np.uint8)
    found[:SHADES, :3] = colors.table(kind, palette, theme)[::2]
    found[PAGE, :3], found[BAD, :3], found[INFINITE, :3] = page, colors.rgb_of(look.bad), ink
    found[RING, :3] = colors.rgb_of(look.ink)
    found[LETTERS:VEILED, :3] = np.rint(page + (ink - page) * (np.arange(1, STEPS + 1) / STEPS)[:, None])
    found[VEILED:, :3] = np.rint(page + (found[:SHADES:2, :3] - page) * VEIL)
    return found


def _pooled(cells: Array, step: int, *, signed: bool) -> Array:
    """Keep the most prominent cell of each step × step block, so that no single strong link is lost."""
    if step == 1:
        return cells
    down, across = (-(-n // step) for n in cells.shape)
    padded = np.full((down * step, across * step), PAGE)
    padded[: cells.shape[0], : cells.shape[1]] = cells
    blocks = padded.reshape(down, step, across, step).swapaxes(1, 2).reshape(down, across, step * step)
    strength = np.where(
        blocks == BAD, 300, np.where(blocks == PAGE, -1, abs(blocks - SHADES // 2) if signed else blocks)
    )
    picked: Array = np.take_along_axis(blocks, strength.argmax(2)[:, :, None], 2)[:, :, 0]
    return picked


def _drawn(
    cells: Array, matrix: DecodedMatrix, step: int, words: Words, legend: Sequence[Array], numbers: Array | None
) -> Array:
    """Draw everything as pixels: labels, the picture with its ring, the list beside it, the legend and lines below.

    `numbers` is the palette, if cells have their numbers.
    """
    rows, columns = cells.shape
    side = max(1, min(LARGEST_CELL, SIDE // max(rows, columns))) * SCALE
    bins = matrix.query_bin * step, matrix.key_bin * step
    padded = padded_rows(words.padded, bins[0]) if words.padded is not None else np.zeros(rows, bool)
    cells = np.where(padded[:, None] & (cells < SHADES), VEILED + cells // 2, cells)
    picture = np.repeat(np.repeat(cells.astype(PIXEL), side, 0), side, 1)
    if side >= GAP_FROM * SCALE:
        for last in range(SCALE):
            picture[side - 1 - last :: side] = PAGE
            picture[:, side - 1 - last :: side] = PAGE
        _slash(picture, cells == PAGE, side)
    if numbers is not None and side >= NUMBERS_FROM * SCALE:
        _number(picture, matrix, side, numbers)
    _hatch(picture, np.repeat(padded, side))
    left = _labels(words.queries, matrix.queries, bins[0], side, words.query)
    above = _labels(words.keys, matrix.keys, bins[1], side, words.key)
    margin, gap = BESIDE * SCALE, 4 * SCALE
    x = margin + max((text.shape[1] for _, text in left), default=0) + gap
    y = margin + max((text.shape[1] for _, text in above), default=0) + gap
    below = [*legend, *_lines(words.lines)]
    beside = _list_of(words)
    wide = max(x + picture.shape[1] + height(), *(margin + part.shape[1] for part in below)) + margin
    listed = x + picture.shape[1] + 3 * height()
    wide = wide if beside is None else max(wide, listed + beside.shape[1] + margin)
    tall = y + max(picture.shape[0], 0 if beside is None else len(beside)) + 2 * gap
    tall += sum(len(part) + gap for part in below) + margin
    page = np.full((tall, wide), PAGE, PIXEL)
    page[y : y + picture.shape[0], x : x + picture.shape[1]] = picture
    for row, text in left:
        _put(page, text, round(y + (row + 0.5) * side - len(text) / 2), x - gap - text.shape[1])
    for column, text in above:
        _put(page, np.rot90(text), y - gap - text.shape[1], round(x + (column + 0.5) * side - len(text) / 2))
    if words.query is not None and words.key is not None:
        _ring(page, y + words.query // bins[0] * side, x + words.key // bins[1] * side, side)
    if beside is not None:
        _put(page, beside, y, listed)
    at = y + max(picture.shape[0], 0 if beside is None else len(beside)) + 2 * gap
    for part in below:
        _put(page, part, at, margin)
        at += len(part) + gap
    return page


def _slash(picture: Array, masked: Array, side: int) -> None:
    """Draw a short line over each masked cell."""
    long = side // 4
    for row, column in np.argwhere(masked):
        y, x = row * side + (side + long) // 2, column * side + (side - long) // 2
        for at in range(long):
            picture[y - at - SCALE : y - at, x + at] = LETTERS + 2


def _number(picture: Array, matrix: DecodedMatrix, side: int, table: Array) -> None:
    """Write the number of each cell, dark on pale and pale on dark."""
    least = LEAST_NUMBER if matrix.stage == "weights" else 0
    for row, column in np.argwhere((matrix.kinds == NUMBER) & (abs(matrix.values) >= least)):
        grays = written(cell_number(float(matrix.values[row, column]), matrix.stage), side)
        if grays is None or grays.shape[1] > side - SCALE:
            continue
        y = row * side + (side - len(grays)) // 2
        x = column * side + (side - grays.shape[1]) // 2
        there = picture[y : y + len(grays), x : x + grays.shape[1]]
        color = table[there[0, 0], :3].astype(float)
        is_pale = color @ [0.3, 0.59, 0.11] > 140
        page_is_pale = table[PAGE, :3].astype(float) @ [0.3, 0.59, 0.11] > 140
        there[grays > STEPS // 2] = RING if is_pale == page_is_pale else PAGE


def _list_of(words: Words) -> Array | None:
    """Return the strongest keys of the pinned query with bars and numbers; None if there are none."""
    if not words.ranked or words.query is None:
        return None
    names = [_written(one_line(name)) for name, _ in words.ranked]
    numbers = [_written(list_number(weight, "weights")) for _, weight in words.ranked]
    widest = [max(part.shape[1] for part in column) for column in (names, numbers)]
    gap, bar, line = 6 * SCALE, BARS * SCALE, round(1.35 * height())
    found = np.full((line * (len(names) + 1), widest[0] + bar + widest[1] + 2 * gap), PAGE, PIXEL)
    head = _written(f"{one_line(words.ranked_of)} attends to".strip())
    found = np.pad(found, ((0, 0), (0, max(0, head.shape[1] - found.shape[1]))), constant_values=PAGE)
    _put(found, head, 0, 0)
    most = words.ranked[0][1] or 1.0
    for at, (name, number, (_, weight)) in enumerate(zip(names, numbers, words.ranked, strict=True)):
        y = line * (at + 1)
        _put(found, name, y, 0)
        left = widest[0] + gap
        found[y + 8 * SCALE - 6 : y + 8 * SCALE + 6, left : left + round(bar * weight / most)] = BAR
        _put(found, number, y, widest[0] + bar + 2 * gap + widest[1] - number.shape[1])
    return found


def _hatch(picture: Array, rows: Array) -> None:
    """Draw slanted lines over the rows of padding."""
    down, across = np.flatnonzero(rows)[:, None], np.arange(picture.shape[1])
    y, x = np.nonzero((down + across) % (HATCHED * SCALE) < SCALE)
    picture[down[y, 0], x] = HATCH


def _labels(texts: Sequence[str], count: int, bin_: int, side: int, pinned: int | None) -> list[tuple[int, Array]]:
    """Return the labeled rows and their labels: every row's token if there is room, else positions at intervals."""
    is_each = bin_ == 1 and side >= LEAST_CELL * SCALE and bool(texts)
    apart = bin_ if is_each else _round_number(TICKS * SCALE / side * bin_)
    chosen = {at // bin_: at for at in range(0, count, apart)}
    if pinned is not None:
        near = pinned // bin_
        chosen = {row: at for row, at in chosen.items() if is_each or abs(row - near) * side >= APART * SCALE}
        chosen[near] = pinned
    found = []
    for row, at in sorted(chosen.items()):
        is_named = bool(texts) and (is_each or at == pinned)
        text = written(one_line(texts[at]), LARGEST_LABEL * SCALE) if is_named else None
        text = _written(f"{at:,}") if text is None else _inked(text)
        found.append((row, _underlined(text) if at == pinned else text))
    return found


def _round_number(least: float) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, … that is not below a number."""
    unit = 10 ** max(0, floor(log10(max(1.0, least))))
    return next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= least)


def _written(text: str) -> Array:
    found = written(text, (SIDE + LARGEST_LABEL) * SCALE)
    return _inked(found if found is not None else np.zeros((height(), 1), np.uint8))


def _inked(text: Array) -> Array:
    """Return grays as palette indices."""
    return np.where(text > 0, LETTERS + text.astype(int) - 1, PAGE)


def _underlined(text: Array) -> Array:
    """Return the label of a pinned position, underlined."""
    line = np.full((SCALE, text.shape[1]), RING)
    return np.concatenate([text[: -2 * SCALE], line, text[-2 * SCALE : -SCALE]])


def _put(page: Array, part: Array, y: int, x: int) -> None:
    """Copy a drawn part onto the page, cropped at the edges."""
    top, left = max(0, -y), max(0, -x)
    y, x = max(0, y), max(0, x)
    there = page[y : y + len(part) - top, x : x + part.shape[1] - left]
    part = part[top : top + there.shape[0], left : left + there.shape[1]]
    there[part != PAGE] = part[part != PAGE]


def _ring(page: Array, y: int, x: int, side: int) -> None:
    """Draw a ring with a gap around a cell, at least 7 page pixels wide."""
    least, wide = 7 * SCALE, 2 * SCALE
    out = max(0, (least - side) // 2) + SCALE
    box = [max(0, y - out - wide), y + side + out + wide, max(0, x - out - wide), x + side + out + wide]
    inner = page[box[0] + wide : box[1] - wide, box[2] + wide : box[3] - wide].copy()
    kept = page[y : y + side, x : x + side].copy()
    page[box[0] : box[1], box[2] : box[3]] = RING
    page[box[0] + wide : box[1] - wide, box[2] + wide : box[3] - wide] = PAGE if side >= least else inner
    page[y : y + side, x : x + side] = kept


def _legend(matrix: DecodedMatrix, step: int, color_scale: str, color_range: Any, words: Words) -> list[Array]:
    """Return the ramp between its ends, and the kinds of cells, each as a line of pixels."""
    if color_range == "row":
        ends = ["− row's max." if matrix.kind == "diverging" else "0", "row's max."]
    else:
        scale = colors.matrix_scale(matrix, color_scale, color_range)
        ends = [legend_ticks(end, end, log=False, stage="weights")[-1].text for end in (scale.low, scale.high)]
    name = words.ramp + (", log" if color_scale == "log" and matrix.kind == "sequential" else "")
    ramp = np.full((height(), RAMP * SCALE), PAGE)
    ramp[7 * SCALE - 6 : 7 * SCALE + 8] = np.arange(RAMP * SCALE) * SHADES // (RAMP * SCALE)
    gap = np.full((height(), 6 * SCALE), PAGE)
    line = np.concatenate([_written(name), gap, gap, _written(ends[0]), gap, ramp, gap, _written(ends[1])], axis=1)
    kinds = [f"slash: {words.none}"] if (matrix.kinds == BLOCKED).any() else []
    kinds += ["hatched: padding"] if words.padded is not None and words.padded.any() else []
    kinds += [f"red: NaN, {many:,}"] if (many := int((matrix.kinds == NAN).sum())) else []
    down, across = matrix.query_bin * step, matrix.key_bin * step
    what = "mean" if matrix.pool == "mean" and step == 1 else "strongest"
    kinds += [f"each cell: the {what} of {down:,} × {across:,}"] if down * across > 1 else []
    kinds += [f"1 of {matrix.every:,} rows"] if matrix.every > 1 else []
    return [line, *_lines([" · ".join(kinds)] if kinds else [])]


def _lines(texts: Sequence[str]) -> list[Array]:
    found = [written(one_line(text), (SIDE + LARGEST_LABEL) * SCALE) for text in texts]
    return [_inked(text) for text in found if text is not None]


def _used(pixels: Array, table: Array) -> tuple[Array, Array]:
    """Reduce the palette to the colors that occur, and return pixels and table."""
    occurs = np.zeros(len(table), bool)
    occurs[pixels] = True
    used = np.flatnonzero(occurs)
    places = np.zeros(len(table), np.uint8)
    places[used] = np.arange(len(used))
    return places[pixels], table[used]
