"""A colormap of one's own: by its name, or as a list of colors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from traitlets import TraitError

from attnwidget import AttentionWidget
from attnwidget._export.look import colors
from attnwidget._export.look.own_palette import OwnPalette, as_palette

matplotlib = pytest.importorskip("matplotlib")


def widget(**more: Any) -> AttentionWidget:
    return AttentionWidget(*torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0)), **more)


@pytest.mark.parametrize("name", ["viridis", "plasma", "inferno", "magma", "cividis", "Greys", "Blues"])
def test_uniform_colormaps_of_one_direction_come_without_a_word(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = as_palette(name, ())
    assert isinstance(found, OwnPalette)
    assert (found, found.kind) == (name, "sequential")


@pytest.mark.parametrize("name", ["RdBu", "coolwarm", "PiYG", "bwr"])
def test_a_grayish_middle_makes_it_one_for_signed_numbers(name: str) -> None:
    assert as_palette(name, ()).kind == "diverging"  # type: ignore[attr-defined]


@pytest.mark.parametrize("given", ["jet", "hsv", "turbo", ["#000000", "#ffffff", "#000000", "#ffffff"]])
def test_a_rainbow_comes_with_a_warning_at_the_line_of_the_user(given: Any) -> None:
    w = widget()
    with pytest.warns(UserWarning, match="is not uniform: its lightness does not change evenly") as told:
        w.palette = given
    assert told[0].filename == __file__


def test_the_front_end_and_figures_have_its_colors() -> None:
    w = widget(palette="magma")
    assert w.palette == "magma"
    sent = w.get_state("palette")["palette"]
    assert (sent["name"], sent["kind"], sent["colors"][0], len(sent["colors"])) == (
        "magma",
        "sequential",
        "#000004",
        33,
    )
    shades = colors.table("sequential", w.palette, "light")
    wanted = np.rint(255 * matplotlib.colormaps["magma"](np.linspace(0, 1, 256))[:, :3])
    assert np.abs(shades.astype(int) - wanted).max() <= 6
    assert (colors.table("diverging", w.palette, "light") == colors.table("diverging", "attnwidget", "light")).all()
    w.palette = ["white", "#00f"]
    assert w.get_state("palette")["palette"]["colors"] == ["#ffffff", "#0000ff"]
    w.set_state({"palette": "viridis"})
    assert w.palette == "viridis"
    assert w.figure() is not None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("magmaa", "did you mean 'magma'"),
        (["#12", "#000000"], "the color '#12'"),
        (["#000000"], "1 colors: give two or more"),
        (3, "give the name of a colormap"),
    ],
)
def test_what_is_refused(given: Any, says: str) -> None:
    w = widget()
    with pytest.raises(TraitError, match=says):
        w.palette = given
    assert w.palette == "attnwidget"
