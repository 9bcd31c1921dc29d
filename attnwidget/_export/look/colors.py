"""Map numbers to colors with the rules and ramps of `js/src/draw/color.ts`, and the look's own grays.

A table has 256 colors between stops that are even in OKLab (Ottosson, "A perceptual color space for image processing",
2020). Its zero is the *plate*, the page color with a little ink, so that small weights fade into the page.
"""

from __future__ import annotations

import functools
import json
from typing import Any, NamedTuple

import numpy as np

from ..._messages.codec.decoding import NUMBER, DecodedMatrix
from ..._utils.assets import bundled

LOG_DEPTH = 1000  # a log scale begins at the maximum divided by this
LEAST_STEP = 0.0006  # in lightness, between neighboring table entries
FROM_ZERO = {"sequential": 31, "diverging": 24}  # entries over which the plate blends into the ramp

Array = np.ndarray[Any, Any]


class Look(NamedTuple):
    """The page's own colors in one theme, as `#rrggbb`."""

    dark: bool
    page: str
    ink: str
    ink2: str
    ink3: str
    line: str
    data: str
    bad: str


LOOKS = {
    "light": Look(False, "#ffffff", "#16181d", "#565b66", "#707580", "#e3e5e9", "#177f93", "#c02434"),
    "dark": Look(True, "#111213", "#eceef2", "#a9aeb8", "#858a95", "#2b2d33", "#2fb5ab", "#ff6b6b"),
    "contrast": Look(True, "#000000", "#ffffff", "#ffffff", "#e0e0e0", "#6fc3df", "#2fb5ab", "#ff8080"),
}


def look_of(theme: str) -> Look:
    """Return the colors of a theme; "auto" is light, for paper."""
    return LOOKS.get(theme, LOOKS["light"])


@functools.cache
def table(kind: str, palette: str, theme: str) -> Array:
    """Return 256 colors for "sequential" or "diverging" values, (256, 3) uint8."""
    look, ramps = look_of(theme), _ramps()
    own = getattr(palette, "colors", None)
    if own is not None and palette.kind == kind:  # type: ignore[attr-defined]
        return _rgb(_ramp(oklab(np.array([rgb_of(color) for color in own])), 256))
    if kind == "sequential" and palette == "viridis":
        return _rgb(_ramp(_stops(ramps["viridis"]), 256))
    stops = _stops(ramps[kind]["dark" if look.dark else "light"])
    zero = oklab(np.array([_plate(theme)]))[0]
    if kind == "sequential":
        return _rgb(_blend(_ramp(stops, 256), zero, FROM_ZERO[kind]))
    below, above = (_blend(_ramp(half, 128), zero, FROM_ZERO[kind]) for half in (stops[8::-1], stops[8:]))
    return _rgb(np.concatenate([stops[:1], below[::-1], above[1:]]))


def head_colors(theme: str) -> list[str]:
    """Return colors for twelve heads, `#rrggbb`."""
    return [f"#{digits}" for digits in _ramps()["heads"]["dark" if look_of(theme).dark else "light"].split()]


def segment_color(slot: int, theme: str) -> str:
    """Return a segment's color, `#rrggbb`, by slot: 0 to 6, 7 for the asking segment, otherwise gray."""
    look = look_of(theme)
    known = _ramps()["segments"]["dark" if look.dark else "light"].split()
    return f"#{known[slot]}" if 0 <= slot < len(known) else look.ink3


def plate(theme: str) -> str:
    """Return the color of a zero's tile, `#rrggbb`."""
    return hex_of(np.array(_plate(theme)))


def mixed(one: str, other: str, share: float) -> str:
    """Return a color mixed with a share of another."""
    a, b = rgb_of(one), rgb_of(other)
    return hex_of(np.rint(a + (b - a) * share))


def rgb_of(color: str) -> Array:
    """Return the channels of `#rrggbb`, (3,) from 0 to 255."""
    return np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)], np.float64)


def hex_of(rgb: Array) -> str:
    """Return channels, (3,) from 0 to 255, as `#rrggbb`."""
    return "#" + "".join(f"{int(channel):02x}" for channel in rgb)


def ink_on(color: str) -> str:
    """Return black or white, whichever is more readable on a color."""
    light = float(_linear(rgb_of(color)) @ np.array([0.2126, 0.7152, 0.0722]))
    return "#000000" if (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) else "#ffffff"


class Scale(NamedTuple):
    """Where values lie between the ends of a ramp: `scaleOf` in js/src/draw/color.ts."""

    kind: str
    log: bool
    low: float
    high: float

    def position(self, values: Array) -> Array:
        """Return positions along the ramp, 0 to 1; values without one get the position of zero."""
        empty = 0.5 if self.kind == "diverging" else 0.0
        if not self.high > self.low:
            return np.full(np.shape(values), empty)
        with np.errstate(all="ignore"):
            if self.log:
                bottom = max(self.low, self.high / LOG_DEPTH)
                place = np.where(values > bottom, np.log(values / bottom) / np.log(self.high / bottom), 0.0)
            else:
                place = (values - self.low) / (self.high - self.low)
        return np.clip(np.nan_to_num(place, nan=empty, posinf=1.0, neginf=0.0), 0.0, 1.0)

    def entry(self, values: Array) -> Array:
        """Return entries of the table, 0 to 255."""
        at = self.position(values)
        first, steps = (1, 254) if self.kind == "diverging" else (0, 255)
        return np.floor(first + steps * at + 0.5).astype(np.uint8)


def scale_of(kind: str, log: bool, low: float, high: float) -> Scale:
    """Return a scale from `low` to `high`.

    A diverging scale runs from −m to m, where m is the larger absolute end; a log scale is for sequential values only.
    """
    if kind == "diverging":
        most = max(abs(low), abs(high))
        return Scale(kind, False, -most, most)
    return Scale(kind, log and 0 < max(low, high / LOG_DEPTH) < high, low, high)


def matrix_scale(matrix: DecodedMatrix, color_scale: str = "linear", color_range: Any = "head") -> Scale:
    """Return the scale of a matrix, from the widget's traits of the same names.

    The rules are those of `js/src/draw/color-mapper.ts`. If each row has its own range, the scale is the matrix's.
    """
    signed = matrix.kind == "diverging"
    if isinstance(color_range, list | tuple):
        low, high = color_range
    elif color_range == "unit":
        low, high = (-1.0, 1.0) if signed else (0.0, 1.0)
    else:
        low, high = matrix.low or 0.0, matrix.high or 0.0
        low, high = (low, high) if signed else (0.0, max(0.0, high))
    return scale_of(matrix.kind, color_scale == "log", low, high)


def entries(matrix: DecodedMatrix, color_scale: str = "linear", color_range: Any = "head") -> Array:
    """Return each cell's index in a table of 256 colors, (rows, columns) uint8; arbitrary without a number."""
    values = np.where(matrix.kinds == NUMBER, matrix.values, 0)
    if color_range != "row":
        return matrix_scale(matrix, color_scale, color_range).entry(values)
    sizes = np.abs(values) if matrix.kind == "diverging" else values
    highs = sizes.max(axis=1, initial=0.0).tolist()
    scales = [scale_of(matrix.kind, color_scale == "log", 0.0, high) for high in highs]
    return np.stack([scale.entry(row) for scale, row in zip(scales, values, strict=True)])


@functools.cache
def _ramps() -> dict[str, Any]:
    ramps: dict[str, Any] = json.loads(bundled("ramps.json"))
    return ramps


def _plate(theme: str) -> list[float]:
    if theme == "contrast":
        return [32, 32, 38]
    look = look_of(theme)
    page, ink = rgb_of(look.page), rgb_of(look.ink)
    tinted: list[float] = np.floor(page + (ink - page) * (0.07 if look.dark else 0.045) + 0.5).tolist()
    return tinted


def _stops(text: str) -> Array:
    return oklab(np.array([rgb_of(f"#{digits}") for digits in text.split()]))


def _ramp(stops: Array, length: int) -> Array:
    """Interpolate evenly spaced stops to `length` entries."""
    at = np.arange(length) / (length - 1) * (len(stops) - 1)
    before = np.minimum(len(stops) - 2, np.floor(at).astype(int))
    return stops[before] + (stops[before + 1] - stops[before]) * (at - before)[:, None]


def _blend(entries: Array, zero: Array, over: int) -> Array:
    """Blend a ramp into `zero` over `over` entries, or over more where lightness would otherwise change direction."""
    last, end = len(entries) - 1, over
    direction = np.sign(entries[last, 0] - entries[0, 0])
    while end < last and direction * (entries[end, 0] - zero[0]) < LEAST_STEP * end:
        end += 1
    blended = entries.copy()
    blended[:end] = zero + (entries[end] - zero) * (np.arange(end) / end)[:, None]
    return blended


TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.793617785, -0.0040720468],
        [1.9779984951, -2.428592205, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.808675766],
    ]
)
FROM_LAB = np.array(
    [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.291485548]]
)
FROM_LMS = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.707614701],
    ]
)


def _linear(rgb: Array) -> Array:
    share = rgb / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def oklab(rgb: Array) -> Array:
    """Return colors from 0 to 255, (n, 3), in OKLab."""
    return np.cbrt(_linear(rgb) @ TO_LMS.T) @ TO_LAB.T


def _rgb(lab: Array) -> Array:
    light = np.clip((lab @ FROM_LAB.T) ** 3 @ FROM_LMS.T, 0, None)
    share = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return np.floor(255 * np.clip(share, 0, 1) + 0.5).astype(np.uint8)
