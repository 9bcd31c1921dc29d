"""A figure is drawn in the theme that is asked for, whatever the widget's own is."""

import pytest
import torch

from attnwidget import AttentionWidget

mpl_colors = pytest.importorskip("matplotlib.colors")


def paper(figure):
    return mpl_colors.to_hex(figure.get_facecolor())


@pytest.mark.parametrize("view", ["heatmap", "graph", "stages"])
def test_theme_of_one_figure(view):
    w = AttentionWidget(*torch.randn(3, 1, 2, 5, 8), view=view)
    light, dark = paper(w.figure()), paper(w.figure(theme="dark"))
    assert light != dark
    assert w.theme == "auto"
    w.theme = "dark"
    assert paper(w.figure()) == dark
    assert paper(w.figure(theme="light")) == paper(w.figure(theme="auto")) == light


def test_unknown_theme():
    with pytest.raises(ValueError, match=r"no theme is called 'night': .*give one of auto, light, dark"):
        AttentionWidget(*torch.randn(3, 4, 8)).figure(theme="night")
