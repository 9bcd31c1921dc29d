"""The view of all stages of the selected head, and the steps of the pinned pair."""

from __future__ import annotations

from typing import Any

from ..._utils.weak import weakly
from ..derived.derived_trait import DerivedTrait
from ..derived.selection import Selection
from ..passes.stages_pass import StagesPass
from ..traits.trait_types import derived
from .selection import SelectionPart

Made = dict[str, Any]


class StagesPart(SelectionPart):
    """The stages of the selected head."""

    _stages_pass: StagesPass

    stages = derived("All stages of the selected head, small.")
    pair = derived("Each step from the scores to the weight of the pinned pair.")

    def _make(self) -> None:
        super()._make()
        self._stages_pass = StagesPass(self._scheduler, weakly(self.set_trait))

    def _rules(self, at: Selection) -> dict[str, DerivedTrait]:
        head = (*at.sample, at.head) if at.view == "stages" else ()
        is_pinned = head and at.query is not None and at.key is not None
        return super()._rules(at) | {
            "stages": DerivedTrait(head, self._stages, leave=self._stages_pass.leave),
            "pair": DerivedTrait((*head, at.query, at.key) if is_pinned else (), self._pair),
        }

    def _forget_tensors(self) -> None:
        super()._forget_tensors()
        self._stages_pass.forget()

    def _stages(self, layer: int, batch: int, head: int) -> Made:
        return self._stages_pass.look(self._shown, layer, batch, head)

    def _pair(self, layer: int, batch: int, head: int, query: int, key: int) -> Made:
        return self._stages_pass.pair(self._shown, layer, batch, head, query, key)
