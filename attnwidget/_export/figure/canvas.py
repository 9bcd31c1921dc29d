"""A matplotlib figure measured in CSS pixels from the top left, like the front-end.

matplotlib is imported when the first figure is made.
"""

from __future__ import annotations

import functools
import io
import math
import os
import warnings
from collections.abc import Sequence
from typing import Any
from unicodedata import bidirectional

import numpy as np

from ..._tokens.characters import clusters, one_line
from ..._utils import files
from ..look.colors import Look

PIXEL = 1 / 96  # inches
POINT = 0.75  # of a pixel
ELLIPSIS = "…"
LEAST = 8  # letter size in pixels, 6 pt: smaller text is unreadable in print
MEASURED_AT = 96  # letter size in pixels
WHOLE = 64  # characters; up to here a text is measured as a whole
LONG = 1024  # characters; only the ends of a longer text can be visible
ROUNDING = 1e-8  # dots, at the edge of an image
STRIP = 256  # rows of dots in an image that are made together

# Text stays text in files, and tokens in scripts without a font give no warnings.
IN_FILES: Any = {"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "attnwidget", "text.hinting": "none"}

Array = np.ndarray[Any, Any]


class Canvas:
    """One figure, `width` inches wide; `done` sets its height."""

    def __init__(self, width: float, dpi: float, look: Look) -> None:
        figure_class = _figure_class()
        self.look = look
        self.width = width / PIXEL
        self.figure = figure_class(figsize=(width, 1), dpi=dpi, facecolor=look.page)
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        self.reached = 0.0

    def done(self, width: float, height: float) -> Any:
        """Return the figure, `width` pixels wide and `height` pixels tall."""
        self.axes.set_xlim(0, width)
        self.axes.set_ylim(height, 0)
        self.figure.set_size_inches(width * PIXEL, height * PIXEL)
        return self.figure

    def reach(self, x: float) -> None:
        """Note that the drawing extends to x: the page will be at least that wide."""
        self.reached = max(self.reached, x)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        color: str | None = None,
        bold: bool = False,
        align: str = "left",
        rotation: float = 0,
        alpha: float = 1,
        baseline: str = "center_baseline",
    ) -> None:
        """Draw plain text, never markup; y is its middle, or its baseline if `baseline` is set."""
        text = drawn_text(text)
        if not text:
            return
        along = self.measure(text, size, bold) * {"left": 1.0, "center": 0.5, "right": 0.0}[align]
        self.reach(x + (0.7071 * (along + size) if rotation else along))
        self.axes.text(
            x,
            y,
            text,
            fontsize=size * POINT,
            color=color or self.look.ink,
            fontweight="bold" if bold else "normal",
            fontfamily=families(text),
            ha=align,
            va=baseline,
            rotation=rotation,
            rotation_mode="anchor",
            alpha=alpha,
            parse_math=False,
            clip_on=False,
        )

    def parts(self, x: float, y: float, parts: Sequence[str], *, size: float, color: str) -> None:
        """Draw parts of a text in turn, so that none changes the reading direction of another."""
        if not any(bidirectional(character) in ("R", "AL") for part in parts for character in part):
            parts = ["".join(parts)]
        for part in parts:
            self.text(x, y, part, size=size, color=color)
            x += self.measure(part, size)

    def measure(self, text: str, size: float = 12, bold: bool = False) -> float:
        """Return the width of a text."""
        text = drawn_text(text)
        if len(text) > WHOLE:  # in parts, each measured once
            parts = [text[at : at + WHOLE] for at in range(0, len(text), WHOLE)]
            return sum(self.measure(part, size, bold) for part in parts)
        return size / MEASURED_AT * _width(text, bold, tuple(families(text)))

    def shorten(self, text: str, width: float, size: float = 12, bold: bool = False) -> str:
        """Return as much of both ends as fits, with an ellipsis between; whole characters only."""
        if len(text) <= LONG and self.measure(text, size, bold) <= width:
            return text
        ends = [text] if len(text) <= LONG else [text[: LONG // 2], text[-LONG // 2 :]]
        pieces = [piece for end in ends for piece in clusters(drawn_text(end))]

        def ends_of(kept: int) -> str:
            tail = kept // 2
            return "".join([*pieces[: kept - tail], ELLIPSIS, *(pieces[-tail:] if tail else ())])

        fits, too_many = 0, len(pieces)
        while too_many - fits > 1:
            kept = (fits + too_many) // 2
            if self.measure(ends_of(kept), size, bold) <= width:
                fits = kept
            else:
                too_many = kept
        return ends_of(fits)

    def boxes(self, boxes: Sequence[tuple[float, float, float, float]], colors: Any, radius: float = 0) -> None:
        """Fill rectangles (x, y, width, height) with round corners."""
        from matplotlib.collections import PathCollection

        paths = [_rounded(*box, radius) for box in boxes]
        self.reach(max((x + wide for x, _, wide, _ in boxes), default=0))
        self.axes.add_collection(
            PathCollection(paths, facecolors=colors, edgecolors="none", linewidths=0), autolim=False
        )

    def shape(self, points: Sequence[tuple[float, float]], color: str) -> None:
        """Fill a shape with straight edges."""
        from matplotlib.patches import Polygon

        self.reach(max(x for x, _ in points))
        self.axes.add_patch(Polygon(points, closed=True, facecolor=color, linewidth=0))

    def frame(self, box: tuple[float, float, float, float], width: float, color: str, radius: float = 0) -> None:
        """Draw the outline of a rectangle."""
        from matplotlib.patches import PathPatch

        self.reach(box[0] + box[2])
        edge = PathPatch(_rounded(*box, radius), fill=False, edgecolor=color, linewidth=width * POINT)
        self.axes.add_patch(edge)

    def lines(self, lines: Any, width: float, color: str, alpha: float = 1) -> None:
        """Draw straight lines, (n, 2, 2) of x and y."""
        from matplotlib.collections import LineCollection

        self.reach(max((line[1][0] for line in lines), default=0))
        self.axes.add_collection(
            LineCollection(lines, linewidths=width * POINT, colors=color, alpha=alpha), autolim=False
        )

    def band(self, x: tuple[float, float], y: tuple[float, float], widths: tuple[float, float], **look: Any) -> None:
        """Fill a band between two sides, with its width at both: a cubic curve with both handles half way."""
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path

        (x0, x1), (y0, y1), (w0, w1) = x, y, widths
        half = (x0 + x1) / 2
        points = [(x0, y0 - w0 / 2), (half, y0 - w0 / 2), (half, y1 - w1 / 2), (x1, y1 - w1 / 2), (x1, y1 + w1 / 2)]
        points += [(half, y1 + w1 / 2), (half, y0 + w0 / 2), (x0, y0 + w0 / 2), (x0, y0 - w0 / 2)]
        codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
        self.axes.add_patch(PathPatch(Path(points, codes), linewidth=0, **look))

    def image(self, pixels: Array, box: tuple[float, float, float, float], *, smooth: bool = False) -> None:
        """Draw pixels, (rows, columns, 3 or 4) uint8, in a rectangle, with sharp edges unless `smooth`."""
        x, y, width, height = box
        self.reach(x + width)
        whole = np.full((*pixels.shape[:2], 4), 255, np.uint8)  # without alpha, matplotlib scales it as float64
        whole[..., : pixels.shape[2]] = pixels
        drawn = _image_class()(
            self.axes,
            extent=(x, x + width, y + height, y),
            interpolation="antialiased" if smooth else "nearest",
            origin="upper",
            resample=smooth,
        )
        drawn.set_data(whole)
        drawn.set_clip_path(self.axes.patch)
        self.axes.add_image(drawn)


@functools.cache
def _image_class() -> Any:
    from matplotlib.image import AxesImage
    from matplotlib.transforms import Affine2D, Bbox

    class ImageInStrips(AxesImage):
        """An image scaled a few rows at a time, because matplotlib needs some sixty bytes for each dot.

        Each strip begins and ends between two dots: before 3.11 matplotlib stretches any other to whole dots.
        """

        def make_image(self, renderer: Any, magnification: float = 1.0, unsampled: bool = False) -> Any:
            clip = self.get_clip_box()
            if unsampled or clip is None:
                return super().make_image(renderer, magnification, unsampled)
            seen = Bbox.intersection(clip, self.get_window_extent(renderer))
            if seen is None:
                return None, 0, 0, None
            # A dot is drawn if its middle is visible; middles on the left and top edges count as visible.
            left, right = (math.floor(x * magnification + 0.5 + ROUNDING) for x in seen.intervalx)
            low, high = (math.ceil(y * magnification - 0.5 - ROUNDING) for y in seen.intervaly)
            if left == right or low == high:
                return None, 0, 0, None
            x0, x1, y0, y1 = self.get_extent()
            extent, transform = Bbox([[x0, y0], [x1, y1]]), self.get_transform()
            strips = []
            try:
                self.set_transform(transform + Affine2D().scale(magnification))
                for y in range(low, high, STRIP):
                    strip = Bbox.from_extents(left, y, right, min(y + STRIP, high))
                    strips.append(self._make_image(self._A, extent, strip, strip))  # type: ignore[attr-defined]
            finally:
                self.set_transform(transform)
            return np.concatenate([one[0] for one in strips]), left / magnification, low / magnification, strips[0][3]

    return ImageInStrips


@functools.cache
def _figure_class() -> Any:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('figure() needs matplotlib: pip install "attnwidget[figure]"') from error

    class TextFigure(Figure):
        """A figure whose files keep their text, and are written completely or not at all."""

        def savefig(self, fname: Any, *args: Any, **kwargs: Any) -> None:
            target = None if hasattr(fname, "write") else files.writable(_with_ending(fname, kwargs), "attention.svg")
            kwargs |= {} if target is None else {"format": kwargs.get("format") or target.suffix[1:]}
            into = fname if target is None else io.BytesIO()
            with matplotlib.rc_context(IN_FILES), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Glyph")
                super().savefig(into, *args, **kwargs)
            if target is not None:
                files.write(target, into.getvalue())

        def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
            """Draw the figure as the last line of a cell: one PNG, at its width on paper."""
            into = io.BytesIO()
            self.savefig(into, format="png")
            width, height = (round(inches / PIXEL) for inches in self.get_size_inches())
            return into.getvalue(), {"width": width, "height": height}

    return TextFigure


def _with_ending(path: Any, keywords: dict[str, Any]) -> Any:
    """Return a path with the ending that matplotlib adds if it has no ending or format."""
    import matplotlib

    if not isinstance(path, str | os.PathLike) or keywords.get("format") or os.path.splitext(path)[1]:
        return path
    return f"{os.fspath(path).rstrip('.')}.{matplotlib.rcParams['savefig.format']}"


@functools.cache
def _renderer() -> Any:
    from matplotlib.backends import backend_agg

    renderer: Any = backend_agg.RendererAgg
    return renderer(1, 1, 72)


@functools.lru_cache(maxsize=8192)
def _width(text: str, bold: bool, family: tuple[str, ...]) -> float:
    """Return a text's width in large letters, whose widths are not rounded to whole pixels."""
    from matplotlib.font_manager import FontProperties

    properties = FontProperties(family=list(family), size=MEASURED_AT, weight="bold" if bold else "normal")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        return float(_renderer().get_text_width_height_descent(text, properties, ismath=False)[0])


def drawn_text(text: str) -> str:
    """Return a text as drawn: on one line, without characters that files cannot hold, shortened if very long."""
    if len(text) > LONG:
        text = f"{text[: LONG // 2]}{ELLIPSIS}{text[-LONG // 2 :]}"
    return text if text.isascii() and text.isprintable() else one_line(text)


def families(text: str) -> list[str]:
    """Return the reader's own font, then fonts with the characters it lacks."""
    own = _own()
    missing = {ord(character) for character in text} - _characters(own)
    return [own, *(found for found in dict.fromkeys(map(_family_with, sorted(missing))) if found)]


@functools.cache
def _own() -> str:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return str(get_font(findfont(FontProperties())).family_name)


@functools.cache
def _characters(family: str) -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(findfont(FontProperties(family=family))).get_charmap())


@functools.cache
def _family_with(code: int) -> str | None:
    """Return an installed font that has a character, if there is one."""
    from matplotlib.font_manager import fontManager, get_font

    tried = {"Last Resort", "Last Resort High-Efficiency"}  # these draw every character as a box
    for font in fontManager.ttflist:
        if font.name in tried:
            continue
        tried.add(font.name)
        try:
            if code in get_font(font.fname).get_charmap():
                return str(font.name)
        except (OSError, RuntimeError):  # the file is no longer a font
            continue
    return None


def _rounded(x: float, y: float, width: float, height: float, radius: float) -> Any:
    from matplotlib.path import Path

    if radius <= 0:
        corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height), (x, y)]
        return Path(corners, closed=True)
    r = min(radius, width / 2, height / 2)
    right, bottom = x + width, y + height
    points = [(x + r, y), (right - r, y), (right, y), (right, y + r), (right, bottom - r), (right, bottom)]
    points += [(right - r, bottom), (x + r, bottom), (x, bottom), (x, bottom - r), (x, y + r), (x, y), (x + r, y)]
    corner = [Path.LINETO, Path.CURVE3, Path.CURVE3]
    return Path([*points, (x + r, y)], [Path.MOVETO, *corner * 4, Path.CLOSEPOLY])
