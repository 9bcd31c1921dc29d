"""What an export may read from a widget, so that it does not use the widget's private parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from .._analysis.head_kinds import HeadText
from .._engine.level_cache import LevelCache
from .._engine.sources import Stage
from .._engine.stages import NORMALIZED
from .._engine.what_if import WhatIfLayers
from .._messages.codec.patches import Patches
from .._messages.pictures.heads_overview import OwnMetrics
from .._messages.segments.segment_mass import HeadMasses, MassPass
from .._tokens.tokenizers import Spelling
from ..attention import Attention
from ..stack import AttentionStack


class SavedHead(NamedTuple):
    """One head that can be selected in a saved file."""

    layer: int
    batch: int
    head: int


class SavedTrait(NamedTuple):
    """A derived trait, as a file stores it.

    Attributes:
        name: the trait's name.
        by: the names of the traits it depends on.
        values: its value for each of their values: (values of `by`, value).
    """

    name: str
    by: Sequence[str]
    values: Iterable[tuple[Sequence[Any], Any]]


class LayersView(Protocol):
    """A widget's layers, their tokens, and their kept overviews."""

    stack: AttentionStack
    """The layers without the what-if rules."""
    layers: WhatIfLayers[Attention]
    """The layers under the rules of `what_if`, as shown."""
    kinds: OwnMetrics
    """Custom metrics of all heads."""

    @property
    def spelling(self) -> Spelling | None:
        """The tokenizer's way to write its vocabulary, if known."""

    def tokens(self, side: str, layer: int, batch: int) -> list[str] | None:
        """Return a token for each "query" or "key" of a layer's sample; None if there are none."""

    def text(self, layer: int, batch: int) -> HeadText:
        """Return the known text of a layer's keys, for custom metrics."""

    def ids(self, layer: int, batch: int) -> Tensor | None:
        """Return a layer's tokens as numbers, (Q,), equal for equal tokens; None if there are none."""

    def levels(self, layer: int) -> LevelCache:
        """Return the overviews kept for a layer."""

    def source(self, layer: int, head: int | str) -> tuple[LevelCache, int]:
        """Return the overviews kept for a head or for combined heads by name, and the head's number there."""


class TraitsView(Protocol):
    """The traits of a widget that determine what is shown, and how."""

    title: str
    stack: str
    forward: int
    forwards: int
    layer: int
    batch: int
    head: int
    heads: list[int]
    query: int | None
    key: int | None
    pins: list[tuple[int | None, int | None]]
    stage: Stage
    pool: str
    view: str
    color_scale: str
    color_range: Any
    palette: str
    theme: str
    top_k: int | None
    threshold: float
    overlay: str
    opacity: float
    direction: str
    bar: str
    order: str
    only_heads: tuple[int | None, int | None, float | None] | None
    recall: dict[str, Any] | None
    facts: dict[str, Any]
    picture: dict[str, Any]
    thumbnails: dict[str, Any] | None
    stages: dict[str, Any] | None
    measure: str
    aside: list[str]
    asking: str | list[str] | None
    segment: str | None
    segment_path: list[str]
    segments_show: str
    mass: dict[str, Any] | None
    head_mass: dict[str, Any] | None
    survey: dict[str, Any] | None
    stage_heads: dict[str, Any] | None
    effects: dict[str, Any] | None
    effect_details: list[dict[str, Any]] | None


def linked_stage(traits: TraitsView) -> Stage:
    """Return the stage of links, small pictures and sums by segment: the weights if the selected stage has none."""
    return traits.stage if traits.stage in NORMALIZED else "weights"


class WidgetView(Protocol):
    """A widget as an export reads it; it does not change while an export is written."""

    @property
    def traits(self) -> TraitsView:
        """The widget's traits; a comparison also has `sides`, `against` and `comparison`."""

    @property
    def shown(self) -> LayersView:
        """The layers shown."""

    @property
    def selected(self) -> Attention:
        """The selected layer, as shown."""

    @property
    def picture(self) -> dict[str, Any]:
        """The current picture, including the rows of a long head that are exact so far."""

    @property
    def patches(self) -> Patches | None:
        """Where image patches lie among the positions; None if there are none."""

    def state(self) -> dict[str, Any]:
        """Return the values of all traits, as sent to a front-end."""

    def tokens(self, side: str) -> list[str] | None:
        """Return a token for each "query" or "key" of the selection; None if there are none."""

    def derived(self, name: str, *of: Any) -> Any:
        """Return the value of a derived trait for another selection, such as a layer and a sample."""

    def answer(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        """Answer a front-end's request.

        Returns:
            The reply, and the buffers that it refers to.
        """

    def mass(self, head: SavedHead, place: tuple[str | tuple[str, ...] | None, tuple[str, ...], str]) -> MassPass:
        """Return what segments give to segments in a head; `place` has the asking segment, the path, and the stage."""

    def head_mass(
        self, head: SavedHead, place: tuple[str | tuple[str, ...] | None, tuple[str, ...], str]
    ) -> HeadMasses:
        """Return what one segment gives to each segment in all heads, for a head's sample."""

    def places(self, head: SavedHead) -> list[tuple[str | None, tuple[str, ...]]]:
        """Return the segments that can be asked about and opened; empty if there are no segments."""

    def segments(self, side: str, head: SavedHead, asking: str | Sequence[str] | None) -> dict[str, Any] | None:
        """Return the segments on the "query" or "key" side of a sample, as sent."""

    def recall(self, head: SavedHead) -> dict[str, Any] | None:
        """Return the share of weight that each row keeps under a cache, as sent; None if all keys are kept."""

    def more_traits(self, heads: Sequence[SavedHead]) -> Iterable[SavedTrait]:
        """Return the extra traits that another kind of widget, such as a comparison, saves for these heads."""
