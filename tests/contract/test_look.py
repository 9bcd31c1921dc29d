"""Figures and previews have the colors of the widget's style sheet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnwidget._export.look.colors import LOOKS

CSS = (Path(__file__).parents[2] / "js" / "src" / "styles" / "theme.css").read_text(encoding="utf-8")
SELECTORS = {
    "light": ".attnwidget {",
    **{name: f'.attnwidget[data-theme="{name}"] {{' for name in ("dark", "contrast")},
}


def variables(theme: str) -> dict[str, str]:
    """The colors of a theme, `#rrggbb`; of a host's variable the one to use without it."""
    block = CSS[CSS.index(SELECTORS[theme]) :].split("}")[0]
    found = re.findall(r"--aw-(\w+): (?:var\(--[\w-]+, )?#([0-9a-f]{3,6})\)?;", block)
    return {
        name: "#" + (digits if len(digits) == 6 else "".join(2 * digit for digit in digits)) for name, digits in found
    }


@pytest.mark.parametrize("theme", LOOKS)
def test_a_theme_has_the_colors_of_the_style_sheet(theme: str) -> None:
    look, css = LOOKS[theme], variables(theme)
    names = ("bg", "ink", "ink2", "ink3", "line", "data", "bad")
    assert (look.page, *look[2:]) == tuple(css[name] for name in names)
    assert set(SELECTORS) == set(LOOKS)
