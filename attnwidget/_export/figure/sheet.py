"""What the drawing of any view needs: the widget, the canvas, colours, and the labels of all positions."""

from __future__ import annotations

from ..._tokens.display import Label, labels_of, patch_labels
from .. import colors
from ..view import WidgetView
from .canvas import Canvas

MARGIN = 8  # pixels around everything
SINK = "sink"  # what the column of a learned sink is called, as js/src/text/words.ts has it


class FigureContext:
    """What the drawing of any view needs of a widget.

    Attributes:
        view, traits, selected: the widget, its traits, and the layer that is selected.
        canvas, look: what is drawn on, and the colours of its theme.
        left, right: pixels between which there is space.
        queries, keys: a label for each position.
    """

    def __init__(self, view: WidgetView, canvas: Canvas) -> None:
        self.view, self.traits, self.selected = view, view.traits, view.selected
        self.canvas, self.look = canvas, canvas.look
        self.left, self.right = float(MARGIN), canvas.width - MARGIN
        self.queries = self._labels("query", self.selected.shape.Q)
        self.keys = self._labels("key", self.selected.shape.K)

    def _labels(self, side: str, length: int) -> list[Label]:
        tokens, patches = self.view.tokens(side), self.view.patches
        labels = labels_of(tokens, length, self.view.shown.spelling)
        if tokens is not None or patches is None:
            return labels
        start = patches.query if side == "query" else patches.key
        return patch_labels(labels, (patches.rows, patches.columns), start)

    def table(self, kind: str) -> colors.Array:
        """Return the 256 colours of a ramp, (256, 3) uint8: "sequential" or "diverging"."""
        return colors.table(kind, self.traits.palette, self.traits.theme)
