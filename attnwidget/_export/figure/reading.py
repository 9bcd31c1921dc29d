"""Draw running text and images: each token or patch in the color of its weight for the pinned position."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..._engine.stages import MASKED, SIGNED
from ..._messages.codec.decoding import BLOCKED, MINUS_INF, NAN, NUMBER, PLUS_INF
from ..._messages.codec.images import Patches
from ..._tokens.running import Piece, pieces_of
from ..look import colors
from .legend import legend_name, ramp, scale_ticks
from .sheet import FigureContext

FONT, NARROW_FONT = 15, 12  # letter size in pixels; in a narrow figure
NARROW = 420
LINE = 2.0  # times the letter size
WIDEST = 720  # pixels: the longest line
MOST_TOKENS = 4096
LEAST_SHARE = 0.05  # weights below this share of the greatest are not colored
TINT = {False: 0.4, True: 0.32}  # position on the ramp of the tint behind a token, by whether numbers are signed
OVER = 0.55  # opacity of colors over an image
LARGEST_IMAGE = 360
LEAST_IMAGE = 200
SIDES = ("query", "key")


@dataclass(frozen=True)
class Target:
    """The pinned position and its numbers: a query's weights, or the weights that a key gets.

    side, index: the pinned position. values, kinds: (n,) for all positions of the other side.
    """

    side: str
    index: int
    values: colors.Array
    kinds: colors.Array


class Passage(NamedTuple):
    """The tokens of queries, of keys, or of both if they are the same."""

    sides: tuple[str, ...]
    tokens: list[str] | None
    length: int
    patches: tuple[int, int, int] | None  # rows, columns, the first position

    def is_patch(self, position: int) -> bool:
        if self.patches is None:
            return False
        rows, columns, first = self.patches
        return first <= position < first + rows * columns


class Word(NamedTuple):
    """A drawn token: the position, the piece, and x, y and width in pixels."""

    position: int
    piece: Piece
    x: float
    y: float
    width: float


def draw(context: FigureContext, top: float) -> float:
    """Draw all passages from top to bottom, and their legend; return the lower end."""
    target = _target(context)
    passages = _passages(context)
    with_image = context.traits.view == "image"
    scale = _scale(context, target, passages)
    notes, y = _notes(context, target, passages), top
    for passage in passages:
        own = target if target is not None and _other(target.side) in passage.sides else None
        if len(passages) > 1:
            title = "Queries" if passage.sides[0] == "query" else "Keys"
            context.canvas.text(context.left, y + 6, title, size=11, color=context.look.ink3)
            y += 18
        y = _draw_text(context, passage, (own, target, scale), y, with_image)
        if with_image and passage.patches is not None:
            y = _draw_patches(context, passage, (own, target, scale), y)
        y += 8
    if target is not None:
        stage = context.traits.stage
        log = context.traits.color_scale == "log" and stage not in SIGNED
        name = legend_name(stage, context) + (", log" if log else "")
        _, y = ramp(context, scale.kind, name, scale_ticks(scale, stage), (context.left, y + 4))
        y += 14
    return context.words(context.left, y, notes, context.look.ink2) - 8 if notes else y


def _target(context: FigureContext) -> Target | None:
    traits, stage = context.traits, context.traits.stage
    query, key = traits.query, traits.key
    if key is not None and (query is None or traits.direction == "key"):
        side, index, where = "key", key, {"keys": [key]}
    elif query is not None:
        side, index, where = "query", query, {"queries": [query]}
    else:
        return None
    values = context.block(stage, context.head, **where).detach().cpu().float().numpy().reshape(-1)
    kinds = np.full(values.shape, NUMBER, np.uint8)
    for kind, found in ((NAN, np.isnan(values)), (PLUS_INF, values == np.inf), (MINUS_INF, values == -np.inf)):
        kinds[found] = kind
    if stage in MASKED:
        allowed = context.block("allowed", context.head, **where).cpu().numpy().reshape(-1)
        kinds[~allowed] = BLOCKED
    return Target(side, index, values, kinds)


def _other(side: str) -> str:
    return "key" if side == "query" else "query"


def _passages(context: FigureContext) -> list[Passage]:
    view, shape = context.view, context.selected.shape
    patches = view.patches
    queries, keys = (
        Passage((side,), view.tokens(side), length, _grid_of(patches, side))
        for side, length in (("query", shape.Q), ("key", shape.K))
    )
    if queries[1:] == keys[1:]:
        return [queries._replace(sides=SIDES)]
    return [queries, keys]


def _grid_of(patches: Patches | None, side: str) -> tuple[int, int, int] | None:
    first = None if patches is None else patches.query if side == "query" else patches.key
    return None if patches is None or first is None else (patches.rows, patches.columns, first)


def _pieces(context: FigureContext, passage: Passage) -> list[Piece]:
    if passage.tokens is not None:
        return pieces_of(passage.tokens, context.view.shown.spelling)
    labels = context.queries if passage.sides[0] == "query" else context.keys
    return [Piece(label.text, True, True, label.special, False) for label in labels]


def _scale(context: FigureContext, target: Target | None, passages: list[Passage]) -> colors.Scale:
    """Return the color range: up to the greatest number without special tokens, unless a range was given."""
    traits = context.traits
    kind = "diverging" if traits.stage in SIGNED else "sequential"
    chosen = traits.color_range
    if target is None:
        return colors.scale_of(kind, False, 0.0, 1.0)
    if isinstance(chosen, list | tuple):
        return colors.scale_of(kind, traits.color_scale == "log", float(chosen[0]), float(chosen[1]))
    if chosen == "unit":
        return colors.scale_of(kind, traits.color_scale == "log", -1.0 if kind == "diverging" else 0.0, 1.0)
    passage = next(one for one in passages if _other(target.side) in one.sides)
    numbers = np.where(target.kinds == NUMBER, np.abs(target.values), 0.0)
    plain = np.array([not piece.special for piece in _pieces(context, passage)])
    high = float(numbers[plain].max(initial=0.0)) or float(numbers.max(initial=0.0))
    return colors.scale_of(kind, traits.color_scale == "log", -high if kind == "diverging" else 0.0, high)


Look = tuple[Target | None, Target | None, colors.Scale]  # the numbers on a passage, the pin, the colors


def _draw_text(context: FigureContext, passage: Passage, look: Look, top: float, with_image: bool) -> float:
    pieces = _pieces(context, passage)
    there = [at for at in range(passage.length) if not passage.is_patch(at)]
    kept = [at for at in there if with_image or not pieces[at].special] or there
    kept, words = _page(kept, look[1])
    size = NARROW_FONT if context.right - context.left < NARROW else FONT
    placed = _placed(context, [(at, pieces[at]) for at in kept], top, size)
    for word in placed:
        _draw_word(context, passage, word, look, size)
    bottom = placed[-1].y + 0.5 * LINE * size if placed else top
    return context.words(context.left, bottom + 8, [words], context.look.ink3) - 4 if words else bottom


def _page(positions: list[int], target: Target | None) -> tuple[list[int], str]:
    """Return the tokens around the pin if there are too many to draw, and which ones, as text."""
    if len(positions) <= MOST_TOKENS:
        return positions, ""
    first = 0 if target is None else max(0, min(target.index, len(positions)) // MOST_TOKENS * MOST_TOKENS)
    page = positions[first : first + MOST_TOKENS] or positions[-MOST_TOKENS:]
    return page, f"tokens {page[0]:,}–{page[-1]:,} of {len(positions):,}"


def _placed(context: FigureContext, pieces: list[tuple[int, Piece]], top: float, size: float) -> list[Word]:
    """Break pieces into lines, before a word if possible, else anywhere."""
    canvas, room = context.canvas, min(WIDEST, context.right - context.left - 4)
    space, line = canvas.measure("n n", size) - canvas.measure("nn", size), 0
    found: list[Word] = []
    x, left, opening = 0.0, context.left + 2, 0
    start = 0  # of the line, in `found`
    for at, (position, piece) in enumerate(pieces):
        text = canvas.shorten(piece.text, room, size)
        width = canvas.measure(text, size)
        gap = space if piece.gap and at > start else 0.0
        opening = at if piece.opens else opening
        if at > start and x + gap + width > room:
            moved = found[opening:] if opening > start else []
            del found[len(found) - len(moved) :]
            start, line, x, gap = len(found), line + 1, 0.0, 0.0
            for word in moved:
                inner = space if word.piece.gap and x else 0.0
                found.append(word._replace(x=left + x + inner, y=_line(top, line, size)))
                x += inner + word.width
            gap = space if piece.gap and moved else 0.0
        found.append(Word(position, piece._replace(text=text), left + x + gap, _line(top, line, size), width))
        x += gap + width
        if piece.breaks:
            start, line, x = at + 1, line + 1, 0.0
    return found


def _line(top: float, line: int, size: float) -> float:
    return top + (line + 0.5) * LINE * size


def _draw_word(context: FigureContext, passage: Passage, word: Word, look: Look, size: float) -> None:
    own, target, scale = look
    canvas, page, at = context.canvas, context.look, word.position
    tall = 1.5 * size
    box = (word.x - 1.5, word.y - tall / 2, word.width + 3, tall)
    color, bold = page.ink3 if word.piece.special else page.ink, False
    if target is not None and target.side in passage.sides and at == target.index:
        canvas.boxes([box], [page.ink], 4)
        color = page.page
    elif own is not None and own.kinds[at] == BLOCKED:
        color = colors.mixed(page.page, page.ink3, 0.75)
    elif own is not None and own.kinds[at] == NAN:
        canvas.boxes([box], [colors.mixed(page.page, page.bad, 0.16)], 4)
    elif own is not None:
        tints = _tints(context, own, scale, at)
        if tints is not None:
            canvas.boxes([box], [tints[1]], 4)
            canvas.boxes([(box[0], box[1], box[2], tall - 2.5)], [tints[0]], 3)
    pins = [pin[0 if side == "query" else 1] for pin in context.traits.pins for side in passage.sides]
    if at in pins and color != page.page:
        canvas.frame(box, 1.5, page.ink, 4)
    canvas.text(word.x, word.y, word.piece.text, size=size, color=color, bold=bold)


def _tints(context: FigureContext, own: Target, scale: colors.Scale, at: int) -> tuple[str, str] | None:
    """Return the tint behind a token and its full color below; None if the number is too small."""
    value, most = float(own.values[at]), max(abs(scale.low), abs(scale.high)) or 1.0
    if own.kinds[at] == NUMBER and abs(value) / most < LEAST_SHARE:
        return None
    signed = scale.kind == "diverging"
    index = int(scale.entry(np.array([value]))[0])
    zero = 128 if signed else 0
    table = context.table(scale.kind)
    return colors.hex_of(table[round(zero + (index - zero) * TINT[signed])]), colors.hex_of(table[index])


def _draw_patches(context: FigureContext, passage: Passage, look: Look, top: float) -> float:
    """Draw the image under the colors of its patches, with a ring around the pin; return the lower end."""
    assert passage.patches is not None
    own, target, scale = look
    rows, columns, first = passage.patches
    canvas, page = context.canvas, context.look
    width = min(LARGEST_IMAGE, context.right - context.left)
    pixels = _image(context)
    height = width * (rows / columns if pixels is None else pixels.shape[0] / pixels.shape[1])
    x, y = context.left, top + 8
    if pixels is not None:
        canvas.image(pixels, (x, y, width, height), smooth=True)
    if own is not None:
        values = own.values[first : first + rows * columns].reshape(rows, columns)
        kinds = own.kinds[first : first + rows * columns].reshape(rows, columns)
        painted = np.empty((rows, columns, 4), np.uint8)
        painted[..., :3] = context.table(scale.kind)[scale.entry(np.where(kinds == NUMBER, values, 0))]
        painted[..., 3] = 255 if pixels is None else round(255 * OVER)
        painted[kinds == BLOCKED] = 0
        painted[kinds == NAN] = (*colors.rgb_of(page.bad), 255)
        canvas.image(painted, (x, y, width, height))
    elif pixels is None:
        canvas.frame((x, y, width, height), 1, page.line)
    across, down = width / columns, height / rows
    if target is not None and target.side in passage.sides and passage.is_patch(target.index):
        row, column = divmod(target.index - first, columns)
        box = (x + column * across, y + row * down, across, down)
        canvas.frame((box[0] - 1, box[1] - 1, across + 2, down + 2), 4, page.page, 2)
        canvas.frame(box, 2, page.ink, 2)
    return y + height


def _image(context: FigureContext) -> colors.Array | None:
    """Return the image whose patches are positions, ready for matplotlib; None if there is none."""
    message: dict[str, Any] | None = context.view.state().get("image")
    if message is None:
        return None
    from matplotlib.image import imread

    read = imread(io.BytesIO(message["data"]), format=message["mime"].removeprefix("image/"))
    pixels = np.asarray(read)
    return pixels if pixels.dtype == np.uint8 else np.rint(pixels * 255).astype(np.uint8)


def _notes(context: FigureContext, target: Target | None, passages: list[Passage]) -> list[str]:
    """Return the notes about the drawing."""
    notes, with_image = [], context.traits.view == "image"
    if not with_image and any(piece.special for passage in passages for piece in _pieces(context, passage)):
        notes.append("special tokens are left out of the text, not of the sum")
    if target is None:
        notes.append("nothing is pinned: pin a token to color the text, as w.query = 3 does")
    if not with_image and any(passage.patches is not None for passage in passages):
        notes.append("patches are in the image, not in the text")
    if target is not None and (target.kinds == BLOCKED).any():
        notes.append("no color: masked" if with_image else "gray: masked")
    return notes
