"""The context for answering the front-end's requests, made once for each message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..._engine import cost
from ..._engine.level_cache import LevelCache, LevelKey
from ..._engine.what_if import WhatIfLayers
from ..._messages.answers.long_answers import FilePart, LongAnswers
from ..._messages.pictures.comparison import ComparedPair
from ..._messages.pictures.tiles import Address, TileQueue
from ..._messages.segments.segment_mass import HeadMasses, MassPass
from ..._tokens.search import TokenSearch
from ...attention import Attention
from ..derived.derived_trait import Derived
from ..derived.findings_cache import FindingsCache
from ..derived.selection import Selection
from ..passes.effects import Effects
from ..passes.eviction_pass import WAIT, EvictionPass
from ..passes.exact_pass import ExactPass
from ..passes.masses import Masses
from ..stores.layers import ShownLayers
from ..stores.token_store import TokenStore
from .requested_files import RequestedFiles


def not_a_comparison(layer: int, batch: int, against: str, against_at: tuple[int, ...] | None) -> ComparedPair:
    """Refuse to return the sides of a comparison."""
    raise ValueError("this widget shows one attention: compare(a, b) shows two")


@dataclass(frozen=True)
class RequestContext:
    """The context for answering the front-end's requests: the `Context` of `_messages.answers.asked`.

    Args:
        shown: the layers.
        token_store: their tokens, in searchable form.
        tile_queue: answers requests for tiles.
        exact_pass: makes the picture exact.
        evictions: finds the keys that a cache policy evicts.
        findings: likely mistakes in heads.
        derived: the derived traits.
        selection: the selection.
        refresh: updates all traits for the selection.
        files: files that the browser saves.
        masses: the attention between segments.
        segments_by: makes segments of the tokens.
        effects: runs the model with edits.
        compared: returns the sides of a comparison for a layer, a sample, the name of B and its own place.
    """

    shown: ShownLayers
    token_store: TokenStore
    tile_queue: TileQueue
    exact_pass: ExactPass
    evictions: EvictionPass
    findings: FindingsCache
    derived: Derived
    selection: Selection
    refresh: Callable[[], None]
    files: RequestedFiles
    masses: Masses
    segments_by: Callable[[str], None]
    effects: Effects
    compared: Callable[[int, int, str, tuple[int, ...] | None], ComparedPair] = not_a_comparison

    @property
    def stack(self) -> WhatIfLayers[Attention] | Sequence[Attention]:
        return self.shown.layers

    @property
    def not_yet(self) -> str | None:
        return WAIT if self.evictions.under_way else None

    @property
    def long_answers(self) -> LongAnswers:
        return self.shown.long_answers

    def levels(self, layer: int) -> LevelCache:
        return self.shown.levels(layer)

    def vocabulary(self, side: str, layer: int, batch: int) -> TokenSearch | None:
        tokens = self.shown.tokens(side, layer, batch)
        return None if tokens is None else self.token_store.vocabulary(side, tokens)

    def tiles(
        self, layer: int, key: LevelKey, view: str, addresses: Sequence[Address], budget: cost.CostBudget
    ) -> tuple[list[dict[str, Any]], list[bytes]]:
        return self.tiles_of(key.head, layer, key, view, addresses, budget)

    def tiles_of(
        self,
        head: int | str,
        layer: int,
        key: LevelKey,
        view: str,
        addresses: Sequence[Address],
        budget: cost.CostBudget,
    ) -> tuple[list[dict[str, Any]], list[bytes]]:
        """Return tiles of a head, or of combined heads by their name; `key` identifies the level."""
        of = {"layer": layer, **key._asdict(), "head": head, "version": self.shown.version, "view": view}
        return self.tile_queue.ask(self.levels(layer), key, of, addresses, self.exact_pass.build, budget)

    def steer(self, layer: int, batch: int, head: int | str, stage: str, action: str) -> None:
        at = self.selection
        if (layer, batch, head, stage) != (at.layer, at.batch, at.shown_head, at.stage):
            raise ValueError("another picture is selected now")
        steered = self.evictions if self.evictions.under_way else self.exact_pass
        if action == "resume":
            steered.resume()
        else:
            steered.stop()

    def check(self, layer: int, batch: int, head: int) -> None:
        self.findings.ask(self.shown, layer, batch, head)
        self.derived.forget("findings", "deviation")
        self.refresh()

    def mass(self, number: int) -> MassPass:
        return self.masses.find(number)

    def head_mass(self, number: int) -> HeadMasses:
        return self.masses.find_heads(number)

    def make_segments(self, unit: str) -> None:
        self.segments_by(unit)

    def ask_effect(self, of: Any) -> None:
        self.effects.ask(of)

    def steer_effects(self, action: Any) -> None:
        self.effects.steer(action)

    def retry(self) -> None:
        self.derived.forget()
        self.refresh()

    def file(self, kind: str, start: int, most: int, budget: cost.CostBudget) -> FilePart:
        return self.files.part(kind, start, most, budget)

    def both(self, layer: int, batch: int, against: str, against_at: tuple[int, ...] | None) -> ComparedPair:
        return self.compared(layer, batch, against, against_at)

    def together(self, layer: int, name: str) -> CombinedHeadsContext:
        if name != self.selection.shown_head:
            raise ValueError("other heads are selected now")
        return CombinedHeadsContext(**vars(self), layer=layer, name=name)


@dataclass(frozen=True, kw_only=True)
class CombinedHeadsContext(RequestContext):
    """The context for combined heads, which are head 0 of one layer.

    Args:
        layer: the layer's number.
        name: the name of the heads, such as "mean 0 4".
    """

    layer: int
    name: str

    @property
    def stack(self) -> Sequence[Attention]:
        att = cast(Attention, self.levels(self.layer).att)
        return [att] * len(self.shown.layers)  # only this layer is used

    def levels(self, layer: int) -> LevelCache:
        return self.shown.source(self.layer, self.name)[0]

    def tiles(
        self, layer: int, key: LevelKey, view: str, addresses: Sequence[Address], budget: cost.CostBudget
    ) -> tuple[list[dict[str, Any]], list[bytes]]:
        return self.tiles_of(self.name, layer, key, view, addresses, budget)

    def steer(self, layer: int, batch: int, head: int | str, stage: str, action: str) -> None:
        super().steer(layer, batch, self.name, stage, action)
