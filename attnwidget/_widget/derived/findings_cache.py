"""Likely faults of heads, and their distance from other results: computed once for each head, and kept."""

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

MAX_CHECKED_AT_ONCE = 1 << 20  # cells of a head, checked in about 30 ms; a larger head is checked later, in a loop
MANY_HEADS = 64  # a head of so many, which is compared with all of them, is checked later too
MAX_UNASKED_CELLS = 1 << 22  # a larger head is checked only on request
MAX_KEPT_HEADS = 256  # heads whose findings are kept


class Examined(NamedTuple):
    """The findings about a head, and its distance from other results, as sent."""

    findings: list[dict[str, Any]]
    deviation: dict[str, Any]


class FindingsCache:
    """The findings about each head.

    Args:
        scheduler: says whether a loop runs, so that a long head can be checked later.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._known: dict[tuple[Any, ...], Examined] = {}
        self._asked: dict[tuple[Any, ...], None] = {}  # requested heads

    def forget(self) -> None:
        """Forget everything: the tensors, or their tokens, have changed."""
        self._known.clear()
        self._asked.clear()

    def of(self, shown: ShownLayers, layer: int, batch: int, head: int) -> Examined | None:
        """Return the likely faults of a head, and its distance from other results; None for a long one until asked."""
        run_to_end(self.finding(shown, layer, batch, head))
        return self._known.get(_key(shown, layer, batch, head))

    def ask(self, shown: ShownLayers, layer: int, batch: int, head: int) -> None:
        """Note a request for the findings about a head, however long it is."""
        while len(self._asked) >= MAX_KEPT_HEADS:
            self._asked.pop(next(iter(self._asked)))
        self._asked[_key(shown, layer, batch, head)] = None

    def finding(self, shown: ShownLayers, layer: int, batch: int, head: int) -> Generator[None, None, None]:
        """Find the likely faults of a head, in steps, if needed; yields after each."""
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
        """Return whether a head will be checked later, in steps."""
        att = shown.layers[layer]
        wanted = self._is_checked(att, batch, head) or _key(shown, layer, batch, head) in self._asked
        return wanted and (_cells(att) > MAX_CHECKED_AT_ONCE or att.shape.H > MANY_HEADS)

    def _is_checked(self, att: Attention, batch: int, head: int) -> bool:
        """Return whether a head is checked without a request."""
        most = MAX_CHECKED_AT_ONCE if self._scheduler.find_loop() is None else MAX_UNASKED_CELLS
        return _cells(att) <= most and not picture.is_long(att, LevelKey(batch, head, "weights", "max"))


def _key(shown: ShownLayers, layer: int, batch: int, head: int) -> tuple[Any, ...]:
    return (layer, batch, head, repr(sorted(shown.rules.items())), shown.layers[layer].versions())


def _cells(att: Attention) -> int:
    return att.shape.Q * att.shape.K
