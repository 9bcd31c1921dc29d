"""The widget for exports: `attnwidget._export.view.WidgetView`, made from the widget's parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..._export.page import saved_segments
from ..._export.view import SavedHead, SavedTrait, TraitsView
from ..._messages.answers import requests
from ..._messages.answers.asked import Context
from ..._messages.codec.patches import Patches
from ..._messages.segments.segment_mass import HeadMasses, MassPass
from ...attention import Attention
from ..derived.derived_trait import Derived
from ..passes.exact_pass import ExactPass
from ..passes.masses import Masses, MassPlace
from ..stores.layers import ShownLayers


@dataclass(frozen=True)
class ExportView:
    """The widget for exports.

    Args:
        traits: the widget itself; exports read its traits.
        shown: its layers.
        exact_pass: knows the current picture.
        context: answers requests.
        derivations: the derived traits.
        sent: returns all traits as sent.
        masses: the attention between segments.
        more: returns what another kind of widget saves of some heads.
        find_patches: returns where image patches are.
    """

    traits: TraitsView
    shown: ShownLayers
    exact_pass: ExactPass
    context: Context
    derivations: Derived
    sent: Callable[[], dict[str, Any]]
    masses: Masses
    recalls: Callable[[int, int, int | str], dict[str, Any] | None]
    more: Callable[[Sequence[SavedHead]], Iterable[SavedTrait]]
    find_patches: Callable[[], Patches | None]

    @property
    def selected(self) -> Attention:
        return self.shown.layers[self.traits.layer]

    @property
    def picture(self) -> dict[str, Any]:
        return self.exact_pass.as_far_as_known(self.traits.picture)

    @property
    def patches(self) -> Patches | None:
        return self.find_patches()

    def state(self) -> dict[str, Any]:
        return self.sent()

    def tokens(self, side: str) -> list[str] | None:
        return self.shown.tokens(side, self.traits.layer, self.traits.batch)

    def derived(self, name: str, *of: Any) -> Any:
        return self.derivations.value(name, *of)

    def answer(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        made = requests.answer(self.context, {"requests": [request]})
        assert made is not None
        (reply,), buffers = made[0]["replies"], made[1]
        return reply, buffers

    def mass(self, head: SavedHead, place: tuple[str | tuple[str, ...] | None, tuple[str, ...], str]) -> MassPass:
        return self.masses.saved(self.shown, head, MassPlace(*place), keep=self._is_shown(MassPlace(*place), head))

    def head_mass(
        self, head: SavedHead, place: tuple[str | tuple[str, ...] | None, tuple[str, ...], str]
    ) -> HeadMasses:
        return self.masses.saved_heads(
            self.shown, head[:2], MassPlace(*place), keep=self._is_shown(MassPlace(*place), head)
        )

    def _is_shown(self, place: MassPlace, head: SavedHead) -> bool:
        at, own = self.traits, saved_segments.place_of(self)
        return (*place, *head) == (*own, at.layer, at.batch, at.head)

    def places(self, head: SavedHead) -> list[tuple[str | None, tuple[str, ...]]]:
        return self.masses.places(self.shown, head.layer, head.batch)

    def segments(self, side: str, head: SavedHead, asking: str | Sequence[str] | None) -> dict[str, Any] | None:
        return self.masses.segments(side, self.shown, head.layer, head.batch, asking)

    def recall(self, head: SavedHead) -> dict[str, Any] | None:
        return self.recalls(*head)

    def more_traits(self, heads: Sequence[SavedHead]) -> Iterable[SavedTrait]:
        return self.more(heads)
