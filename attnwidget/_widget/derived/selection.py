"""The selection of a widget at one moment: the source of its derived traits.

Two pairs of traits overlap: `head` is one of `heads`, and (`query`, `key`) is the last of `pins`. `heads_with`,
`pins_with` and `last_of` keep them consistent; js/src/state/store.ts (`shownHeads`, `shownPins`) and
js/src/kernel/snapshot.ts (`fitted`) do the same without a kernel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..._engine.stages import NORMALIZED
from ..traits.trait_types import Pin


class Selection(NamedTuple):
    """The values of the traits that select what is shown, read at one moment."""

    layer: int
    batch: int
    head: int
    stage: str
    pool: str
    view: str
    heads: list[int]
    combine: str
    query: int | None
    key: int | None
    direction: str
    top_k: int | None
    asking: str | list[str] | None
    segment: str | None
    segment_path: list[str]
    segments_show: str

    @classmethod
    def of(cls, widget: Any) -> Selection:
        """Read the selection of a widget: each trait once, because another thread may set one meanwhile."""
        return cls(*(getattr(widget, name) for name in cls._fields))

    @property
    def sample(self) -> tuple[int, int]:
        """The layer and the sample."""
        return self.layer, self.batch

    @property
    def shown_head(self) -> int | str:
        """The head on display; several combined heads have a name, such as "mean 0 4"."""
        alone = len(self.heads) < 2 or self.stage != "weights" or self.view == "stages"
        return self.head if self.combine == "none" or alone else " ".join([self.combine, *map(str, sorted(self.heads))])

    @property
    def linked_stage(self) -> str:
        """The stage of links, small pictures and sums by segment: weights, unless the stage can be summed."""
        return self.stage if self.stage in NORMALIZED else "weights"

    @property
    def summed_stage(self) -> str:
        """The stage that is summed by segment: weights next to effects, and for a block of the heatmap."""
        is_beside = self.view != "segments" or self.segments_show == "effect"
        return "weights" if is_beside else self.linked_stage


def heads_with(head: int, heads: list[int]) -> list[int]:
    """Return the heads to show when `head` is set: the same ones if it is among them, else only it."""
    return heads if head in heads else [head]


def pins_with(query: int | None, key: int | None, pins: list[Pin]) -> list[Pin]:
    """Return the pins when `query` or `key` is set: the same ones if the pair is the last, else only it."""
    if last_of(pins) == (query, key):
        return pins
    return [] if query is None and key is None else [(query, key)]


def last_of(pins: list[Pin]) -> Pin:
    """Return the pinned query and key when `pins` is set."""
    return pins[-1] if pins else (None, None)
