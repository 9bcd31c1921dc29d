"""The traits that select a layer, a sample, heads, queries, keys and a stage, checked against the layers."""

from __future__ import annotations

from typing import Any, get_args

import traitlets

from ..._engine.base import OnlyWeightsError, find_head
from ..._engine.sources import Stage
from ..._utils.indexing import as_index
from ...attention import Attention
from ..derived.selection import heads_with, last_of, pins_with
from ..traits.trait_types import Choice, Heads, Index, LayerIndex, Pin, Pins, Whole, WholeOrNone, refusing
from .part import WidgetPart

PLURALS = {"layer": "layers", "batch": "samples", "head": "heads", "query": "queries", "key": "keys"}
SINGLE = 'w.combine = "none", w.pieces = "pieces"'  # shows single heads and single tokens


class SelectionPart(WidgetPart):
    """The selection: a trait cannot be set to what the layers do not have."""

    layer: Whole = LayerIndex(help="The selected layer.").tag(sync=True, role="selection")
    batch: Whole = Index(help="The selected sample of the batch.").tag(sync=True, role="selection")
    head: Whole = Index(help="The selected head.").tag(sync=True, role="selection")
    query: WholeOrNone = Index(None, allow_none=True, help="The pinned query, or None.").tag(
        sync=True, role="selection"
    )
    key: WholeOrNone = Index(None, allow_none=True, help="The pinned key, or None.").tag(sync=True, role="selection")

    heads = Heads(help="The heads that the graph shows; `head` is one of them.").tag(sync=True, role="selection")
    pins = Pins(help="All pinned places (query, key); the last is `query`, `key`.").tag(sync=True, role="selection")

    stage: Choice[Stage] = Choice(
        "weights", *(s for s in get_args(Stage) if s != "weights"), help="Which stage is shown."
    ).tag(sync=True, role="numbers")

    @property
    def _selected(self) -> Attention:
        return self._shown.layers[self.layer]

    def _there_are(self, name: str) -> int:
        if name == "layer":
            return len(self._shown.stack)
        shape = self._shown.stack[self.layer].shape  # other rules change no shape
        return {"batch": shape.B, "head": shape.H, "query": shape.Q, "key": shape.K}[name]

    def _index(self, name: str, value: int | None) -> int | None:
        if value is None:
            return None
        with refusing():
            if name == "head":
                return find_head(self._shown.given[self.layer], value)
            return as_index(value, self._there_are(name), name, PLURALS[name])

    @traitlets.validate("layer", "batch", "head", "query", "key")
    def _is_there(self, proposal: Any) -> int | None:
        return self._index(proposal["trait"].name, proposal["value"])

    @traitlets.validate("stage")
    def _stage_is_there(self, proposal: Any) -> str:
        stage = str(proposal["value"])
        with refusing():  # also a layer set at the same time, that is not there
            try:
                self._check_stage(stage)
            except OnlyWeightsError as error:
                raise OnlyWeightsError(f"{error} ({SINGLE})") from None
        return stage

    @traitlets.validate("heads")
    def _heads_are_there(self, proposal: Any) -> list[int | None]:
        return [self._index("head", head) for head in proposal["value"]]

    @traitlets.validate("pins")
    def _pins_are_there(self, proposal: Any) -> list[Pin]:
        return [(self._index("query", query), self._index("key", key)) for query, key in proposal["value"]]

    @traitlets.observe("head", "heads")
    def _keep_heads_together(self, change: Any) -> None:
        """Keep `head` among `heads`: the trait that was set last decides."""
        if change["name"] == "head":
            self.heads = heads_with(self.head, self.heads)
        elif self.head not in self.heads:
            self.head = self.heads[0]

    @traitlets.observe("query", "key", "pins")
    def _keep_pins_together(self, change: Any) -> None:
        """Keep (`query`, `key`) the last of `pins`: the trait that was set last decides."""
        if change["name"] != "pins":
            self.pins = pins_with(self.query, self.key, self.pins)
        elif (self.query, self.key) != last_of(self.pins):
            with self.hold_trait_notifications():
                self.query, self.key = last_of(self.pins)

    def _select(self, show: dict[str, Any]) -> dict[str, Any]:
        """Set the selection of a new widget, and return its other keywords.

        Raises:
            ValueError: `head` is not one of `heads`, or (`query`, `key`) is not the last of `pins`.
        """
        with self.hold_trait_notifications():
            for name in ("head", "query", "key"):
                if name in show:
                    setattr(self, name, show[name])
        head, pair = self.head, (self.query, self.key)
        for name in ("heads", "pins"):
            if name in show:
                setattr(self, name, show[name])
        if "head" in show and self.head != head:
            raise ValueError(f"head is {head}, which is not one of heads {self.heads}: give one of these, or no heads")
        if any(name in show and getattr(self, name) != at for name, at in zip(("query", "key"), pair, strict=True)):
            raise ValueError(f"(query, key) is {pair}, but the last of pins is {last_of(self.pins)}: give pins alone")
        return {name: value for name, value in show.items() if name not in ("head", "query", "key", "heads", "pins")}

    def _drop_what_is_gone(self) -> None:
        """Drop everything from the selection that the layer on display does not have, in one change."""
        fitting = self._what_is_there()
        with self.hold_trait_notifications():  # else each is checked against others that are gone
            for name, value in fitting.items():
                if getattr(self, name) != value:
                    setattr(self, name, value)

    def _what_is_there(self) -> dict[str, Any]:
        """Return the selection that the layers have."""
        layer = min(self.layer, len(self._shown.stack) - 1)
        shape = self._shown.stack[layer].shape
        head = self.head if self.head < shape.H else 0
        query, key = (
            None if at is None or at >= length else at for at, length in ((self.query, shape.Q), (self.key, shape.K))
        )
        pins = [(q, k) for q, k in self.pins if (q is None or q < shape.Q) and (k is None or k < shape.K)]
        return {
            "layer": layer,
            "batch": self.batch if self.batch < shape.B else 0,
            "head": head,
            "heads": heads_with(head, [one for one in self.heads if one < shape.H]),
            "query": query,
            "key": key,
            "pins": pins_with(query, key, pins),
        }

    def _drop_a_stage_that_is_gone(self) -> None:
        """Show weights if the selected layer does not have the stage."""
        try:
            self._check_stage(self.stage)
        except ValueError:
            self.stage = "weights"

    def _check_stage(self, stage: str) -> None:
        """Raise ValueError unless the selected layer has this stage."""
        self._selected.check_stage(stage)
