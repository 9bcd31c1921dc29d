"""Colors of a user's own: a colormap of matplotlib by its name, or a list of colors."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..._utils.validation import nearest
from . import colors

STOPS = 33  # colors of a colormap that are sent; between them the widget interpolates in OKLab
UNEVEN = 6.0  # how many times larger the largest step between two colors may be than the median
BACK = 0.02  # how far lightness may go back, of 1
NOT_UNIFORM = (
    "palette {} is not uniform: its lightness does not change evenly, so equal differences of weights look unequal; "
    "'viridis', 'magma' and 'cividis' are uniform"
)


class OwnPalette(str):
    """The name of a palette, with its colors.

    Attributes:
        kind: "sequential", or "diverging" with a middle that stands for 0; the other kind keeps its usual colors.
        colors: `#rrggbb`, at even places.
    """

    __slots__ = ("colors", "kind")

    kind: str
    colors: tuple[str, ...]

    def __new__(cls, name: str, found: Sequence[str]) -> OwnPalette:
        """Make it of colors at even places."""
        made = super().__new__(cls, name)
        made.colors = tuple(found)
        made.kind = _kind_of(_lab(found))
        return made

    def message(self) -> dict[str, Any]:
        """Return it for the front-end."""
        return {"name": str(self), "kind": self.kind, "colors": [*self.colors]}


def as_palette(value: Any, known: Sequence[str], *, level: int = 2) -> str:
    """Return a palette: one of `known`, a colormap of matplotlib by its name, or a list of colors.

    Args:
        value: as given.
        known: the names of the widget's own palettes.
        level: of the caller, for a warning.

    Raises:
        TypeError, ValueError: it is anything else.

    A warning comes if it is not uniform.

    >>> as_palette(["#ffffff", "#7777cc", "#000033"], ()).kind
    'sequential'
    """
    if isinstance(value, OwnPalette) or (isinstance(value, str) and value in known):
        return value
    if isinstance(value, str):
        found = OwnPalette(value, _of_colormap(value, known))
    elif isinstance(value, Iterable):
        given = [_hex(color) for color in value]
        if len(given) < 2:
            raise ValueError(f"palette has {len(given)} colors: give two or more, the first for 0")
        found = OwnPalette(", ".join(given), given)
    else:
        raise TypeError(f"palette is {value!r:.40}: give the name of a colormap, such as 'magma', or a list of colors")
    if not _is_uniform(found.colors, found.kind):
        warnings.warn(NOT_UNIFORM.format(f"{str(found)!r:.60}"), stacklevel=level + 1)
    return found


def _of_colormap(name: str, known: Sequence[str]) -> list[str]:
    try:
        import matplotlib
    except ImportError:
        raise ValueError(
            f"palette is {name!r}: give one of {', '.join(map(repr, known))} or a list of colors, or install "
            "matplotlib for its colormaps"
        ) from None
    if name not in matplotlib.colormaps:
        others = [*known, *matplotlib.colormaps]
        raise ValueError(
            f"there is no palette called {name!r}: {nearest(name, others)}give {', '.join(map(repr, known))}, a "
            "colormap of matplotlib, such as 'magma', or a list of colors"
        )
    rows = matplotlib.colormaps[name](np.linspace(0, 1, STOPS))
    return [colors.hex_of(np.rint(255 * row[:3])) for row in rows]


def _hex(color: Any) -> str:
    """Return a color as `#rrggbb`."""
    if isinstance(color, str) and len(color) == 7 and color[0] == "#":
        try:
            int(color[1:], 16)
        except ValueError:
            raise ValueError(f"palette has the color {color!r}: give '#rrggbb'") from None
        return color.lower()
    try:
        from matplotlib.colors import to_hex
    except ImportError:
        raise ValueError(f"palette has the color {color!r:.40}: give '#rrggbb'") from None
    try:
        return str(to_hex(color))
    except ValueError:
        raise ValueError(f"palette has the color {color!r:.40}: give '#rrggbb', or a color of matplotlib") from None


def _lab(found: Sequence[str]) -> colors.Array:
    return colors.oklab(np.array([colors.rgb_of(color) for color in found]))


def _kind_of(lab: colors.Array) -> str:
    """Return "diverging" if lightness turns once, at a grayish color in the middle; else "sequential"."""
    middle, lightness = len(lab) // 2, lab[:, 0]
    chroma = np.hypot(lab[:, 1], lab[:, 2])
    if len(lab) < 3 or len(lab) % 2 == 0 or chroma[middle] > 0.5 * chroma.max():
        return "sequential"
    halves = lightness[: middle + 1], lightness[middle:][::-1]
    rises = [half[-1] - half[0] for half in halves]
    turns = min(rises) > 0.15 or max(rises) < -0.15
    return "diverging" if turns and all(map(_goes_one_way, halves)) else "sequential"


def _goes_one_way(lightness: colors.Array) -> bool:
    steps = np.diff(lightness)
    return bool((steps >= -BACK).all() or (steps <= BACK).all())


def _is_uniform(found: Sequence[str], kind: str) -> bool:
    """Return whether lightness goes one way, or from the middle, in steps that are about even."""
    lab, middle = _lab(found), len(found) // 2
    halves = [lab[: middle + 1], lab[middle:]] if kind == "diverging" else [lab]
    if not all(_goes_one_way(half[:, 0]) for half in halves):
        return False
    steps = np.linalg.norm(np.diff(lab, axis=0), axis=1)
    return len(steps) < 4 or float(steps.max()) <= UNEVEN * float(np.median(steps))
