"""How things are drawn: the view, colors and limits of links."""

from __future__ import annotations

from typing import Any, get_args

import traitlets

from ..._export.look.own_palette import OwnPalette, as_palette
from ..traits.keywords import ColorScale, Direction, Overlay, Palette, Pool, Theme, View
from ..traits.trait_types import Choice, ColorRange, Count, Opacity, Threshold, WholeOrNone, WrongValue, refusing
from .tokens import TokensPart

LEVEL = 6  # of the assignment w.palette = …, from the trait


class PaletteTrait(traitlets.TraitType[str, Any]):
    """A palette of the widget, a colormap of matplotlib, or a list of colors."""

    default_value = "attnwidget"

    def validate(self, obj: Any, value: Any) -> str:
        with refusing():
            return as_palette(value, get_args(Palette), level=LEVEL)


class LookPart(TokensPart):
    """The view and its colors."""

    view: Choice[View] = Choice(*get_args(View), help="How the attention is drawn.").tag(sync=True, role="look")
    pool: Choice[Pool] = Choice(*get_args(Pool), help="How a cell of the picture sums up several weights.").tag(
        sync=True, role="numbers"
    )
    color_scale: Choice[ColorScale] = Choice(*get_args(ColorScale), help="From number to color.").tag(
        sync=True, role="look"
    )
    color_range = ColorRange(help="The range of numbers that the colors span.").tag(sync=True, role="look")
    palette: Any = PaletteTrait(help="The colors: a name, or a list.").tag(
        sync=True,
        role="look",
        to_json=lambda value, self: value.message() if isinstance(value, OwnPalette) else value,
    )
    theme: Choice[Theme] = Choice(*get_args(Theme), help="The page's theme, or another one.").tag(
        sync=True, role="look"
    )
    top_k: WholeOrNone = Count(
        None, allow_none=True, help="The number of links to draw for each token; None: all."
    ).tag(sync=True, role="look")
    threshold = Threshold(help="The weakest link to draw.").tag(sync=True, role="look")
    overlay: Choice[Overlay] = Choice(*get_args(Overlay), help="How weights are drawn over an image.").tag(
        sync=True, role="look"
    )
    opacity = Opacity(help="The opacity of the weights over an image.").tag(sync=True, role="look")
    direction: Choice[Direction] = Choice(
        *get_args(Direction), help="Whether links are chosen by query or by key."
    ).tag(sync=True, role="look")

    @traitlets.validate("view")
    def _view_is_there(self, proposal: Any) -> str:
        if proposal["value"] == "image" and self.grid is None and self.boxes is None:
            raise WrongValue("view is 'image' but no positions are patches: give grid=(rows, columns) as well")
        return str(proposal["value"])

    @traitlets.observe("grid", "boxes")
    def _leave_the_image(self, change: Any) -> None:
        if self.grid is None and self.boxes is None and self.view == "image":
            self.view = "heatmap"
