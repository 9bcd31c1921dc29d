"""What an export may ask of a widget: the whole of it, so that none reaches into a widget's own parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from .._analysis.head_kinds import HeadText
from .._engine.level_cache import LevelCache
from .._engine.sources import Stage
from .._engine.stages import NORMALIZED
from .._engine.what_if import WhatIfLayers
from .._messages.codec.images import Patches
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
    """A trait that follows from others, as a file has it.

    Attributes:
        name: its own.
        by: the names of the traits that it follows from.
        values: what it is for each of their values: (values of `by`, value).
    """

    name: str
    by: Sequence[str]
    values: Iterable[tuple[Sequence[Any], Any]]


class LayersView(Protocol):
    """The layers of a widget, their tokens, and what is kept of them."""

    stack: AttentionStack
    """The layers as they are without other rules."""
    layers: WhatIfLayers[Attention]
    """The same under the rules of `what_if`: what is shown."""
    kinds: OwnMetrics
    """Metrics of the user's own, of all heads."""

    @property
    def spelling(self) -> Spelling | None:
        """How the tokens' vocabulary is written, where the tokenizer tells."""

    def tokens(self, side: str, layer: int, batch: int) -> list[str] | None:
        """Return a token for each "query" or "key" of a sample of a layer; None where there are none."""

    def text(self, layer: int, batch: int) -> HeadText:
        """Return what is known of the text of a layer's keys, for metrics of the user's own."""

    def ids(self, layer: int, batch: int) -> Tensor | None:
        """Return the tokens of a layer as numbers, (Q,), the same for the same; None where there are none."""

    def levels(self, layer: int) -> LevelCache:
        """Return the overviews that are kept of a layer."""

    def source(self, layer: int, head: int | str) -> tuple[LevelCache, int]:
        """Return the overviews that are kept of a head, or of several as one by their name, and its number there."""


class TraitsView(Protocol):
    """The traits of a widget that say what is shown, and how."""

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
    """Return of which stage links, small pictures and sums by segment are: weights, where it has no such."""
    return traits.stage if traits.stage in NORMALIZED else "weights"


class WidgetView(Protocol):
    """A widget, as an export sees it: nothing of it changes while one is written."""

    @property
    def traits(self) -> TraitsView:
        """The widget's traits; of a comparison also `sides`, `against` and `comparison`."""

    @property
    def shown(self) -> LayersView:
        """The layers that it shows."""

    @property
    def selected(self) -> Attention:
        """The layer that is selected, as it is shown."""

    @property
    def picture(self) -> dict[str, Any]:
        """The picture that is shown, with the rows of a long head that are exact by now."""

    @property
    def patches(self) -> Patches | None:
        """Where image patches stand among the positions; None where there are none."""

    def state(self) -> dict[str, Any]:
        """Return the values of all traits, as they are sent to a front-end."""

    def tokens(self, side: str) -> list[str] | None:
        """Return a token for each "query" or "key" of what is selected; None where there are none."""

    def derived(self, name: str, *of: Any) -> Any:
        """Return what a trait that follows from others would be of another selection, such as a layer and a sample."""

    def answer(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        """Answer a front-end's request.

        Returns:
            The reply, and the buffers that it points to.
        """

    def mass(self, head: SavedHead, place: tuple[str | tuple[str, ...] | None, tuple[str, ...], str]) -> MassPass:
        """Return what segments give to segments in a head, by who asks, the path, and what is summed."""

    def head_mass(
        self, head: SavedHead, place: tuple[str | tuple[str, ...] | None, tuple[str, ...], str]
    ) -> HeadMasses:
        """Return what one segment gives to each in all heads, for the sample of a head."""

    def places(self, head: SavedHead) -> list[tuple[str | None, tuple[str, ...]]]:
        """Return the segments that can be asked about and gone down into; none where there are no segments."""

    def segments(self, side: str, head: SavedHead, asking: str | Sequence[str] | None) -> dict[str, Any] | None:
        """Return the segments of the "query" or "key" side of a sample, as they are sent."""

    def recall(self, head: SavedHead) -> dict[str, Any] | None:
        """Return what each row of a head keeps under a cache, as it is sent; None where all keys are kept."""

    def more_traits(self, heads: Sequence[SavedHead]) -> Iterable[SavedTrait]:
        """Return what another kind of widget saves of these heads, such as a comparison."""
