"""What is likely wrong with heads, and how far other results are: computed once for each head, and kept."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

from .._analysis.diagnostics import examine
from .._analysis.parity import deviation
from .._engine.kept_levels import only_overviews
from .._engine.level_cache import LevelKey
from .._messages import picture
from .._utils.scheduler import Scheduler
from ..attention import Attention
from .layers import ShownLayers

MAX_CHECKED_AT_ONCE = 1 << 20  # cells of a head, checked in about 30 ms; beyond, a moment later where a loop runs
MAX_UNASKED_CELLS = 1 << 22  # beyond, only when asked
MAX_KEPT_HEADS = 256  # heads of which the findings are kept


class Examined(NamedTuple):
    """The findings about a head, and how far other results are, as they are sent."""

    findings: list[dict[str, Any]]
    deviation: dict[str, Any]


class FindingsCache:
    """The findings about each head.

    Args:
        scheduler: tells whether a loop runs, so that a long head can be checked later.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._known: dict[tuple[Any, ...], Examined] = {}

    def forget(self) -> None:
        """Keep nothing: the tensors, or their tokens, are others now."""
        self._known.clear()

    def of(self, shown: ShownLayers, layer: int, batch: int, head: int, *, asked: bool = False) -> Examined | None:
        """Return what is likely wrong with a head, and how far other results are; of a long one None until asked."""
        att = shown.layers[layer]
        key = (layer, batch, head, repr(sorted(shown.rules.items())), att.versions())
        if key in self._known:
            return self._known[key]
        if not asked and not self._is_checked(att, batch, head):
            return None
        if only_overviews(att) is not None and not asked:
            return None
        one = att.head(batch, head)
        found, same = examine(one, shown.tokens("key", layer, batch))
        beside = deviation(one, shown.before(layer), same)
        if len(self._known) >= MAX_KEPT_HEADS:
            self._known.clear()
        self._known[key] = Examined([asdict(one) for one in found], beside)
        return self._known[key]

    def takes_long(self, att: Attention, batch: int, head: int) -> bool:
        """Return whether a head is checked without being asked, but later."""
        return _cells(att) > MAX_CHECKED_AT_ONCE and self._is_checked(att, batch, head)

    def _is_checked(self, att: Attention, batch: int, head: int) -> bool:
        """Return whether a head is checked without being asked."""
        most = MAX_CHECKED_AT_ONCE if self._scheduler.find_loop() is None else MAX_UNASKED_CELLS
        return _cells(att) <= most and not picture.is_long(att, LevelKey(batch, head, "weights", "max"))


def _cells(att: Attention) -> int:
    return att.shape.Q * att.shape.K
