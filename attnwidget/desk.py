"""What a widget knows for the answers to its front-end's questions: `requests` asks it, one desk a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from . import cost
from .attention import Attention
from .difference import Both
from .levels import Key, Levels
from .tiles import PASS, Address
from .vocabulary import Vocabulary
from .what_if import Layers

if TYPE_CHECKING:
    from .widget import AttentionWidget


class Desk:
    """What a widget knows for the answers to its front-end's questions."""

    def __init__(self, widget: AttentionWidget) -> None:
        self._widget = widget

    @property
    def stack(self) -> Layers | Sequence[Attention]:
        return self._widget._layers

    def levels(self, layer: int) -> Levels:
        return self._widget._levels_of(layer)

    def vocabulary(self, side: str, layer: int, batch: int) -> Vocabulary | None:
        widget = self._widget
        tokens = widget._tokens_of(side, layer, batch)
        if tokens is None:
            return None
        known = widget._vocabularies.get(side)
        if known is None or known.tokens is not tokens:
            known = widget._vocabularies[side] = Vocabulary(tokens)
        return known

    def tiles(
        self, layer: int, key: Key, view: str, addresses: Sequence[Address], purse: cost.Purse
    ) -> tuple[list[dict[str, Any]], list[bytes]]:
        return self._tiles(layer, key, key.head, view, addresses, purse)

    def _tiles(
        self, layer: int, key: Key, head: int | str, view: str, addresses: Sequence[Address], purse: cost.Purse
    ) -> tuple[list[dict[str, Any]], list[bytes]]:
        widget = self._widget
        of = {"layer": layer, **key._asdict(), "head": head, "version": widget._version, "view": view}
        visit = None if widget._refinement is None else widget._refinement.visit
        return widget._views.ask(self.levels(layer), key, of, addresses, visit, purse)

    def steer(self, layer: int, batch: int, head: int | str, stage: str, action: str) -> None:
        widget, refinement = self._widget, self._widget._refinement
        if (layer, batch, head, stage) != (widget.layer, widget.batch, widget._shown_head, widget.stage):
            raise ValueError("another picture is selected")
        if refinement is None:
            return
        if action == "resume":
            widget._run()
            return
        widget._slices.drop(PASS)
        widget._views.left_alone(refinement.visit)
        with widget.hold_sync():
            widget.picture = widget._as_far_as_known(widget.picture)
            widget._tell(refinement.share, None, "stopped")

    def check(self, layer: int, batch: int, head: int) -> None:
        widget = self._widget
        widget._examine(layer, batch, head, asked=True)
        for name in ("findings", "deviation"):
            widget._made.pop(name, None)
        widget._refresh()

    def retry(self) -> None:
        self._widget._made.clear()
        self._widget._refresh()

    def both(self, layer: int, batch: int, against: str) -> Both:
        raise ValueError("this widget shows one attention: compare(a, b) shows two")

    def together(self, layer: int, name: str) -> Together:
        if name != self._widget._shown_head:
            raise ValueError("other heads are selected")
        return Together(self._widget, layer, name)


class Together(Desk):
    """The same for several heads as one: head 0 of one layer."""

    def __init__(self, widget: AttentionWidget, layer: int, name: str) -> None:
        super().__init__(widget)
        self._name, (self._levels, _) = name, widget._source(layer, name)

    @property
    def stack(self) -> Sequence[Attention]:
        return [cast(Attention, self._levels.att)] * len(self._widget._layers)  # only this layer is asked for

    def levels(self, layer: int) -> Levels:
        return self._levels

    def tiles(
        self, layer: int, key: Key, view: str, addresses: Sequence[Address], purse: cost.Purse
    ) -> tuple[list[dict[str, Any]], list[bytes]]:
        return self._tiles(layer, key, self._name, view, addresses, purse)

    def steer(self, layer: int, batch: int, head: int | str, stage: str, action: str) -> None:
        super().steer(layer, batch, self._name, stage, action)
