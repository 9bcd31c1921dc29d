"""What every view needs to draw: the widget, the canvas, colors, and the labels of all positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

from torch import Tensor

from ..._engine.sources import Stage
from ..._engine.stages import SIGNED
from ..._tokens.display import Label, labels_of, patch_labels
from ...attention import Attention
from ..look import colors
from ..view import WidgetView, linked_stage
from .canvas import Canvas

MARGIN = 8  # pixels around everything
SINK = "sink"  # the name of the learned sink's column, as in js/src/text/words.ts


class FigureContext:
    """What every view needs to draw a widget.

    Attributes:
        view, traits, selected: the widget, its traits, and its selected layer.
        canvas, look, theme: the canvas, and the theme's colors and name.
        stage: the stage of links, small pictures and sums by segment.
        left, right: the horizontal limits of the drawing, in pixels.
        head: the head drawn; combined heads have a name, such as "mean 0 4".
        heads: the heads in the graph: the selected ones, or combined heads.
        queries, keys: a label for each position.
    """

    def __init__(self, view: WidgetView, canvas: Canvas, theme: str) -> None:
        self.view, self.traits, self.selected = view, view.traits, view.selected
        self.canvas, self.look, self.theme = canvas, canvas.look, theme
        self.stage = linked_stage(view.traits)
        self.left, self.right = float(MARGIN), canvas.width - MARGIN
        shown: int | str = self.traits.picture.get("head", self.traits.head)
        is_drawn = isinstance(shown, str) and self.traits.view not in ("stages", "heads", "compare")
        self.head: int | str = shown if is_drawn else self.traits.head
        self.heads: list[int | str] = [shown] if is_drawn else list(self.traits.heads)
        self.queries = self._labels("query", self.selected.shape.Q)
        self.keys = self._labels("key", self.selected.shape.K)

    def _labels(self, side: str, length: int) -> list[Label]:
        tokens, patches = self.view.tokens(side), self.view.patches
        labels = labels_of(tokens, length, self.view.shown.spelling)
        if tokens is not None or patches is None:
            return labels
        start = patches.query if side == "query" else patches.key
        return patch_labels(labels, patches.names(self.traits.batch), start)

    def of_head(self, head: int | str) -> tuple[Attention, int]:
        """Return the attention with a head and the head's number there: combined heads are head 0 of their own."""
        if isinstance(head, int):
            return self.selected, head
        return cast(Attention, self.view.shown.source(self.traits.layer, head)[0].att), 0

    def block(self, stage: Stage | Literal["allowed"], head: int | str, **where: Any) -> Tensor:
        """Return numbers of a head in the selected sample: see `Attention.block`."""
        att, number = self.of_head(head)
        return att.block(stage, batch=self.traits.batch, head=number, **where)

    def words(self, x: float, y: float, lines: Sequence[str], color: str, size: float = 11) -> float:
        """Draw texts in a row, on as many lines as needed; return where the next line would be."""
        at = x
        for text in lines:
            width = self.canvas.measure(text, size)
            if at > x and at + width > self.right:
                at, y = x, y + 16
            self.canvas.text(at, y, self.canvas.shorten(text, self.right - at, size), size=size, color=color)
            at += width + 16
        return y + 16

    def sign_colors(self, stage: str) -> tuple[str, str] | None:
        """Return the colors of positive and negative numbers; None for a stage without signs."""
        table = self.table("diverging")
        return (colors.hex_of(table[255]), colors.hex_of(table[0])) if stage in SIGNED else None

    def table(self, kind: str) -> colors.Array:
        """Return the 256 colors of a ramp, (256, 3) uint8: "sequential" or "diverging"."""
        return colors.table(kind, self.traits.palette, self.theme)
