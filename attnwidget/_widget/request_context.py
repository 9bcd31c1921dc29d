"""What a widget knows for the answers to its front-end's questions: `requests` asks it, one desk a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from .._engine import cost
from .._engine.level_cache import LevelCache, LevelKey
from .._engine.what_if import WhatIfLayers
from .._messages.comparison import ComparedPair
from .._messages.tiles import Address
from .._tokens.search import TokenSearch
from ..attention import Attention
from .selection import Selection

if TYPE_CHECKING:
    from .widget import AttentionWidget


class RequestContext:
    """What a widget knows for the answers to its front-end's questions."""

    def __init__(self, widget: AttentionWidget) -> None:
        self._widget = widget

    @property
    def stack(self) -> WhatIfLayers | Sequence[Attention]:
        return self._widget._held.layers

    def levels(self, layer: int) -> LevelCache:
        return self._widget._held.levels(layer)

    def vocabulary(self, side: str, layer: int, batch: int) -> TokenSearch | None:
        tokens = self._widget._held.tokens(side, layer, batch)
        return None if tokens is None else self._widget._texts.vocabulary(side, tokens)

    def tiles(
        self, layer: int, key: LevelKey, view: str, addresses: Sequence[Address], purse: cost.CostBudget
    ) -> tuple[list[dict[str, Any]], list[bytes]]:
        return self._tiles(layer, key, key.head, view, addresses, purse)

    def _tiles(
        self,
        layer: int,
        key: LevelKey,
        head: int | str,
        view: str,
        addresses: Sequence[Address],
        purse: cost.CostBudget,
    ) -> tuple[list[dict[str, Any]], list[bytes]]:
        widget = self._widget
        of = {"layer": layer, **key._asdict(), "head": head, "version": widget._held.version, "view": view}
        return widget._views.ask(self.levels(layer), key, of, addresses, widget._exact.build, purse)

    def steer(self, layer: int, batch: int, head: int | str, stage: str, action: str) -> None:
        widget, at = self._widget, Selection.of(self._widget)
        if (layer, batch, head, stage) != (at.layer, at.batch, at.shown_head, at.stage):
            raise ValueError("another picture is selected")
        if action == "resume":
            widget._exact.resume()
        else:
            widget._exact.stop(widget.picture)

    def check(self, layer: int, batch: int, head: int) -> None:
        widget = self._widget
        widget._findings.of(widget._held, layer, batch, head, asked=True)
        widget._derived.forget("findings", "deviation")
        widget._refresh()

    def retry(self) -> None:
        self._widget._derived.forget()
        self._widget._refresh()

    def both(self, layer: int, batch: int, against: str) -> ComparedPair:
        raise ValueError("this widget shows one attention: compare(a, b) shows two")

    def together(self, layer: int, name: str) -> CombinedHeadsContext:
        if name != Selection.of(self._widget).shown_head:
            raise ValueError("other heads are selected")
        return CombinedHeadsContext(self._widget, layer, name)


class CombinedHeadsContext(RequestContext):
    """The same for several heads as one: head 0 of one layer."""

    def __init__(self, widget: AttentionWidget, layer: int, name: str) -> None:
        super().__init__(widget)
        self._name, (self._levels, _) = name, widget._held.source(layer, name)

    @property
    def stack(self) -> Sequence[Attention]:
        return [cast(Attention, self._levels.att)] * len(self._widget._held.layers)  # only this layer is asked for

    def levels(self, layer: int) -> LevelCache:
        return self._levels

    def tiles(
        self, layer: int, key: LevelKey, view: str, addresses: Sequence[Address], purse: cost.CostBudget
    ) -> tuple[list[dict[str, Any]], list[bytes]]:
        return self._tiles(layer, key, self._name, view, addresses, purse)

    def steer(self, layer: int, batch: int, head: int | str, stage: str, action: str) -> None:
        super().steer(layer, batch, self._name, stage, action)
