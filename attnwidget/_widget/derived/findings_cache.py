"""What is likely wrong with heads, and how far other results are: computed once for each head, and kept."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict
from typing import Any, NamedTuple

from ..._analysis.diagnostics import examining
from ..._analysis.parity import deviating
from ..._engine.kept_levels import only_overviews
from ..._engine.level_cache import LevelKey
from ..._engine.matmul import exactly
from ..._engine.softmax import run_to_end
from ..._messages.pictures import picture
from ..._utils.scheduler import Scheduler
from ...attention import Attention
from ..stores.layers import ShownLayers

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
        self._asked: dict[tuple[Any, ...], None] = {}  # of which heads somebody asked

    def forget(self) -> None:
        """Keep nothing: the tensors, or their tokens, are others now."""
        self._known.clear()
        self._asked.clear()

    def of(self, shown: ShownLayers, layer: int, batch: int, head: int) -> Examined | None:
        """Return what is likely wrong with a head, and how far other results are; of a long one None until asked."""
        run_to_end(self.finding(shown, layer, batch, head))
        return self._known.get(_key(shown, layer, batch, head))

    def ask(self, shown: ShownLayers, layer: int, batch: int, head: int) -> None:
        """Note that somebody asked for the findings about a head, however long it is."""
        while len(self._asked) >= MAX_KEPT_HEADS:
            self._asked.pop(next(iter(self._asked)))
        self._asked[_key(shown, layer, batch, head)] = None

    def finding(self, shown: ShownLayers, layer: int, batch: int, head: int) -> Generator[None, None, None]:
        """Find what is likely wrong with a head, in steps, where it is to be known and is not; yields after each."""
        key, att = _key(shown, layer, batch, head), shown.layers[layer]
        if key in self._known or not (key in self._asked or self._is_checked(att, batch, head)):
            return
        if only_overviews(att) is not None and key not in self._asked:
            return
        one = att.head(batch, head)
        found, same = yield from exactly(att.device, examining(one, shown.tokens("key", layer, batch)))
        beside = yield from exactly(att.device, deviating(one, shown.before(layer), same))
        if len(self._known) >= MAX_KEPT_HEADS:
            self._known.clear()
        self._known[key] = Examined([asdict(one) for one in found], beside)

    def takes_long(self, shown: ShownLayers, layer: int, batch: int, head: int) -> bool:
        """Return whether a head is to be checked, but later, in steps."""
        att = shown.layers[layer]
        wanted = self._is_checked(att, batch, head) or _key(shown, layer, batch, head) in self._asked
        return _cells(att) > MAX_CHECKED_AT_ONCE and wanted

    def _is_checked(self, att: Attention, batch: int, head: int) -> bool:
        """Return whether a head is checked without being asked."""
        most = MAX_CHECKED_AT_ONCE if self._scheduler.find_loop() is None else MAX_UNASKED_CELLS
        return _cells(att) <= most and not picture.is_long(att, LevelKey(batch, head, "weights", "max"))


def _key(shown: ShownLayers, layer: int, batch: int, head: int) -> tuple[Any, ...]:
    return (layer, batch, head, repr(sorted(shown.rules.items())), shown.layers[layer].versions())


def _cells(att: Attention) -> int:
    return att.shape.Q * att.shape.K
