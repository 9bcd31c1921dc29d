"""Draw running text and images: each token or patch in the color of its weight for the pinned position."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..._engine.kept_levels import only_overviews
from ..._engine.stages import MASKED, SIGNED
from ..._messages.codec.decoding import BLOCKED, MINUS_INF, NAN, NUMBER, PLUS_INF
from ..._messages.codec.patches import Patches
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
SMOOTH = 256  # pixels of the longer side of interpolated weights
LARGEST_IMAGE = 360
MOST_RECEIVED = 1 << 28  # weights, as in the widget
NOBODY = -1  # in place of a query: the mean over all
RECEIVED = "Mean weight received"
FRAMES_ACROSS = 4  # frames of a video in a row
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
    patches: Patches | None
    batch: int

    @property
    def first(self) -> int | None:
        """The position of the first patch; None if it has none."""
        return None if self.patches is None else self.patches.query if "query" in self.sides else self.patches.key

    @property
    def cells(self) -> Sequence[int]:
        """The cell of each patch; none without an image."""
        return () if self.patches is None or self.first is None else self.patches.cells(self.batch)

    def is_patch(self, position: int) -> bool:
        return self.first is not None and 0 <= position - self.first < len(self.cells)


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
        boxes = _boxes(context, passage) if with_image else None
        if boxes is not None:
            y = _draw_boxes(context, passage, (own, target, scale), boxes, y) + 8
            continue
        y = _draw_text(context, passage, (own, target, scale), y, with_image)
        if with_image and passage.first is not None:
            y = _draw_patches(context, passage, (own, target, scale), y)
        y += 8
    if target is not None:
        stage = context.traits.stage
        log = context.traits.color_scale == "log" and stage not in SIGNED
        name = RECEIVED if target.index == NOBODY else legend_name(stage, context)
        name += ", log" if log else ""
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
        return _received(context)
    values = context.block(stage, context.head, **where).detach().cpu().float().numpy().reshape(-1)
    kinds = np.full(values.shape, NUMBER, np.uint8)
    for kind, found in ((NAN, np.isnan(values)), (PLUS_INF, values == np.inf), (MINUS_INF, values == -np.inf)):
        kinds[found] = kind
    if stage in MASKED:
        allowed = context.block("allowed", context.head, **where).cpu().numpy().reshape(-1)
        kinds[~allowed] = BLOCKED
    return Target(side, index, values, kinds)


def _received(context: FigureContext) -> Target | None:
    """Return what each key receives, as the row of no query; None for other stages, and if it takes too long."""
    att, head = context.of_head(context.head)
    is_long = att.shape.Q * att.shape.K > MOST_RECEIVED
    if context.traits.stage != "weights" or is_long or only_overviews(att) is not None:
        return None
    values = att.received(batch=context.traits.batch, head=head).detach().cpu().float().numpy()
    return Target("query", NOBODY, values, np.where(np.isnan(values), BLOCKED, NUMBER).astype(np.uint8))


def _other(side: str) -> str:
    return "key" if side == "query" else "query"


def _passages(context: FigureContext) -> list[Passage]:
    view, shape = context.view, context.selected.shape
    patches = view.patches
    queries, keys = (
        Passage((side,), view.tokens(side), length, patches, context.traits.batch)
        for side, length in (("query", shape.Q), ("key", shape.K))
    )
    if queries[1:] == keys[1:] and queries.first == keys.first:
        return [queries._replace(sides=SIDES)]
    return [queries, keys]


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
    """Draw the image, or each frame of a video, under the colors of its patches; return the lower end."""
    assert passage.patches is not None
    assert passage.first is not None
    own, target, scale = look
    patches, cells, first = passage.patches, np.asarray(passage.cells), passage.first
    pixels, there = _image(context, patches.frames), cells >= 0
    painted = np.zeros((patches.frames * patches.rows * patches.columns, 4), np.uint8)
    weights = np.full(len(painted), np.nan)
    if own is not None:
        values, kinds = (x[first : first + len(cells)][there] for x in (own.values, own.kinds))
        colored = np.empty((len(values), 4), np.uint8)
        colored[:, :3] = context.table(scale.kind)[scale.entry(np.where(kinds == NUMBER, values, 0))]
        colored[:, 3] = 255
        colored[kinds == BLOCKED] = 0
        colored[kinds == NAN] = (*colors.rgb_of(context.look.bad), 255)
        painted[cells[there]] = colored
        weights[cells[there]] = np.where(kinds == NUMBER, values, np.nan)
    pinned = target is not None and target.side in passage.sides and passage.is_patch(target.index)
    ring = int(cells[target.index - first]) if pinned and target is not None else -1
    of_frames = [*painted.reshape(patches.frames, patches.rows, patches.columns, 4)]
    if context.traits.overlay == "smooth" and own is not None:
        table, whole = context.table(scale.kind), weights.reshape(patches.frames, patches.rows, patches.columns)
        of_frames = [_colored(smoothed(one, SMOOTH), table, scale) for one in whole]
    across = 1 if patches.frames == 1 else min(patches.frames, FRAMES_ACROSS)
    width = min(LARGEST_IMAGE * (1 if across == 1 else 2), context.right - context.left) / across
    ratio = patches.rows / patches.columns if pixels is None else pixels[0].shape[0] / pixels[0].shape[1]
    height, per_frame, gap = width * ratio, patches.rows * patches.columns, 4 if across > 1 else 0
    for frame in range(patches.frames):
        down, right = divmod(frame, across)
        box = (context.left + right * width, top + 8 + down * height, width - gap, height - gap)
        place = ring - frame * per_frame if ring // per_frame == frame and ring >= 0 else None
        _draw_frame(context, box, None if pixels is None else pixels[frame], of_frames[frame])
        if place is not None:
            row, column = divmod(place, patches.columns)
            _ring(context, box, (row / patches.rows, column / patches.columns, 1 / patches.rows, 1 / patches.columns))
    return top + 8 + -(-patches.frames // across) * height


Box = tuple[float, float, float, float]


def _draw_frame(context: FigureContext, box: Box, pixels: colors.Array | None, painted: colors.Array) -> None:
    """Draw one image under the colors of its patches."""
    if pixels is not None:
        context.canvas.image(pixels, box, smooth=True)
    if painted[..., 3].any():
        over = painted.copy()
        if pixels is not None:
            over[..., 3] = np.rint(over[..., 3] * context.traits.opacity)
        context.canvas.image(over, box)
    elif pixels is None:
        context.canvas.frame(box, 1, context.look.line)


def _ring(context: FigureContext, box: Box, place: Box) -> None:
    """Draw a ring around a patch: `place` is its top, left, height and width, as shares of the box."""
    (x, y, width, height), (top, left, down, across) = box, place
    x, y, across, down = x + left * width, y + top * height, across * width, down * height
    context.canvas.frame((x - 1, y - 1, across + 2, down + 2), 4, context.look.page, 2)
    context.canvas.frame((x, y, across, down), 2, context.look.ink, 2)


def _colored(weights: colors.Array, table: colors.Array, scale: colors.Scale) -> colors.Array:
    """Return the colors of weights, (height, width, 4); clear where they are NaN."""
    known = ~np.isnan(weights)
    painted = np.zeros((*weights.shape, 4), np.uint8)
    painted[..., :3] = table[scale.entry(np.where(known, weights, 0))]
    painted[..., 3] = np.where(known, 255, 0)
    return painted


def smoothed(weights: colors.Array, side: int) -> colors.Array:
    """Return weights interpolated bilinearly between the centers of patches; those without a weight stay NaN.

    Args:
        weights: (rows, columns), NaN for patches without a weight.
        side: pixels of the longer side of the result.

    >>> smoothed(np.array([[0.0, 1.0]]), 4)
    array([[0.  , 0.25, 0.75, 1.  ],
           [0.  , 0.25, 0.75, 1.  ]])
    """
    each = max(1, side // max(weights.shape))
    known = ~np.isnan(weights)
    down, across = (_between(count, each) for count in weights.shape)
    sums, totals = (down @ x @ across.T for x in (np.where(known, weights, 0.0), known.astype(float)))
    there = np.repeat(np.repeat(known, each, 0), each, 1)
    return np.where(there, sums / np.where(totals > 0, totals, 1), np.nan)


def _between(patches: int, each: int) -> colors.Array:
    """Return the share of each patch in each pixel, (patches · each, patches)."""
    places = np.clip((np.arange(patches * each) + 0.5) / each - 0.5, 0, patches - 1)
    return np.maximum(0.0, 1 - np.abs(places[:, None] - np.arange(patches)))


def _boxes(context: FigureContext, passage: Passage) -> list[list[float]] | None:
    """Return the boxes of a passage's positions, as shares of the image; None if it has none."""
    message: dict[str, Any] | None = context.view.state().get("boxes")
    has = message is not None and all(message[side] for side in passage.sides)
    return message["places"] if has and message is not None and len(message["places"]) == passage.length else None


def _draw_boxes(context: FigureContext, passage: Passage, look: Look, boxes: list[list[float]], top: float) -> float:
    """Draw the image with its boxes in the colors of their weights, large ones first; return the lower end."""
    (own, target, scale), canvas, page = look, context.canvas, context.look
    pixels = _image(context, 1)
    width = min(LARGEST_IMAGE, context.right - context.left)
    height = width if pixels is None else width * pixels[0].shape[0] / pixels[0].shape[1]
    x, y = context.left, top + 8
    if pixels is not None:
        canvas.image(pixels[0], (x, y, width, height), smooth=True)
    labels = context.queries if passage.sides[0] == "query" else context.keys
    pinned = target.index if target is not None and target.side in passage.sides else NOBODY
    for at in sorted(range(len(boxes)), key=lambda one: -_area(boxes[one])):
        left, upper, right, lower = boxes[at]
        box = (x + left * width, y + upper * height, (right - left) * width, (lower - upper) * height)
        if own is not None and own.kinds[at] == NUMBER:
            painted = np.full((1, 1, 4), round(255 * context.traits.opacity), np.uint8)
            painted[..., :3] = context.table(scale.kind)[scale.entry(own.values[at : at + 1])]
            canvas.image(painted, box)
        canvas.frame(box, 3 if at == pinned else 2, page.page)
        canvas.frame(box, 2 if at == pinned else 1, page.ink if at == pinned else page.ink2)
        name = canvas.shorten(labels[at].text, box[2] - 6, 10)
        plate = np.full((1, 1, 3), colors.rgb_of(page.page), np.uint8)
        canvas.image(plate, (box[0] + 1, box[1] + 1, canvas.measure(name, 10) + 6, 14))
        canvas.text(box[0] + 4, box[1] + 9, name, size=10, color=page.ink)
    return y + height


def _area(box: list[float]) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _image(context: FigureContext, frames: int) -> list[colors.Array] | None:
    """Return the frames of the image whose patches are positions, ready for matplotlib; None if there is none."""
    message: dict[str, Any] | None = context.view.state().get("image")
    if message is None:
        return None
    from matplotlib.image import imread

    read = np.asarray(imread(io.BytesIO(message["data"]), format=message["mime"].removeprefix("image/")))
    pixels = read if read.dtype == np.uint8 else np.rint(read * 255).astype(np.uint8)
    across = message.get("across", 1)
    height, width = pixels.shape[0] // -(-frames // across), pixels.shape[1] // across
    places = (divmod(frame, across) for frame in range(frames))
    return [pixels[row * height : (row + 1) * height, col * width : (col + 1) * width] for row, col in places]


def _notes(context: FigureContext, target: Target | None, passages: list[Passage]) -> list[str]:
    """Return the notes about the drawing."""
    notes, with_image = [], context.traits.view == "image"
    if not with_image and any(piece.special for passage in passages for piece in _pieces(context, passage)):
        notes.append("special tokens are left out of the text, not of the sum")
    if target is None:
        notes.append("nothing is pinned: pin a token to color the text, as w.query = 3 does")
    if not with_image and any(passage.first is not None for passage in passages):
        notes.append("patches are in the image, not in the text")
    if target is not None and (target.kinds == BLOCKED).any():
        notes.append("no color: masked" if with_image else "gray: masked")
    return notes
