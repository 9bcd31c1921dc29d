"""The pictures of all stages of a head: sampled at first for a long head, then made exact in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..._analysis.explain import Explanation
from ..._messages.answers import pair_steps
from ..._messages.pictures.stage_pictures import StagePictures, becomes_exact, exact_stages
from ..._utils.scheduler import Scheduler
from ...attention import Attention
from ..stores.layers import ShownLayers
from .exact_pass import EXACT_STAGES

URGENCY = 1.0  # before the exact picture of a long head, which is out of sight then

Made = dict[str, Any]


class StagesPass:
    """The stages of the selected head, and of the pinned pair.

    Args:
        scheduler: runs the steps that make stages exact.
        tell: sets the trait `stages` again.
    """

    def __init__(self, scheduler: Scheduler, tell: Callable[[str, Any], object]) -> None:
        self._scheduler, self._tell = scheduler, tell
        self._rest: Iterator[None] = iter(())
        self.forget()

    def forget(self) -> None:
        """Drop all results: the tensors have changed."""
        self._pictures = StagePictures()
        self._unruled: dict[tuple[Any, ...], Explanation] = {}  # the last pair, explained without other rules

    def look(self, shown: ShownLayers, layer: int, batch: int, head: int) -> Made:
        """Return the stages of a head; those of a long head are sampled, and become exact later."""
        self.leave()
        att, of = shown.layers[layer], {"layer": layer, "batch": batch, "head": head}
        made = self._pictures.draw(att, batch, head, (layer, att.versions()), shown.rules)
        if becomes_exact(att, made):
            self._rest = self._exact(att, of, made)
            self._scheduler.start(EXACT_STAGES, self._rest, URGENCY)
        return {**of, **made}

    def leave(self) -> None:
        """Stop making the stages exact."""
        self._scheduler.drop(EXACT_STAGES)
        self._rest = iter(())

    def finish(self) -> bool:
        """Compute the next step towards exact stages; return whether there was one."""
        self._scheduler.drop(EXACT_STAGES)
        return next(self._rest, self) is not self

    def _exact(self, att: Attention, of: dict[str, int], made: Made) -> Iterator[None]:
        versions = att.versions()
        for found in exact_stages(att, of["batch"], of["head"], made):
            if att.versions() != versions:
                return  # the tensors changed in place: the picture says so
            if found is not None:
                self._tell("stages", {**of, **found})
            yield

    def pair(self, shown: ShownLayers, layer: int, batch: int, head: int, query: int, key: int) -> Made:
        """Return each step from the scores to the weight of one pair, and the same before the other rules."""
        original = shown.before(layer)
        before = None if original is None else (original, self._before(shown, layer, batch, head, query, key))
        found = pair_steps.pair(shown.layers[layer], query, key, batch, head, before)
        return {"layer": layer, "batch": batch, "head": head, **found}

    def _before(self, shown: ShownLayers, layer: int, batch: int, head: int, query: int, key: int) -> Explanation:
        """Explain a pair without the other rules, once for all values that a scale is dragged to."""
        att = shown.stack[layer]
        known = (layer, batch, head, query, key, att.versions())
        if known not in self._unruled:
            self._unruled = {known: att.explain(query, key, batch=batch, head=head)}
        return self._unruled[known]
