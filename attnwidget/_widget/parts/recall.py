"""What a KV cache evicts, and how much of its weights each row keeps."""

from __future__ import annotations

from typing import Any

from ..._engine.cache_policies import kept_keys
from ..._utils.weak import weakly
from ..derived.derived_trait import DerivedTrait
from ..derived.selection import Selection
from ..passes.eviction_pass import FOUND, EvictionPass
from ..passes.recall_pass import RecallPass, whole_recall
from ..traits.trait_types import derived
from .rules import RulesPart

Made = dict[str, Any]


class RecallPart(RulesPart):
    """The trait `recall`; and the evictions, which everything else waits for."""

    _evictions: EvictionPass
    _recalls: RecallPass

    recall = derived("The share of its weights that each row of the head keeps under a cache.")

    def _make(self) -> None:
        super()._make()
        self._evictions = EvictionPass(self._scheduler, weakly(self._put), weakly(self._show_evicted))
        self._recalls = RecallPass(self._scheduler, weakly(self.set_trait))

    def _rules(self, at: Selection) -> dict[str, DerivedTrait]:
        wanted = at.view == "heatmap" and self._has_recall(at.layer)
        of = (*at.sample, at.shown_head) if wanted else ()
        return super()._rules(at) | {"recall": DerivedTrait(of, self._recall, leave=self._recalls.leave)}

    def _finish(self) -> None:
        super()._finish()
        self._recalls.finish()

    def _has_recall(self, layer: int) -> bool:
        """Return whether a cache keeps only some keys of a layer."""
        return bool(self._shown.rules.get("keep")) or kept_keys(self._shown.given[layer]) is not None

    def _recall(self, layer: int, batch: int, head: int | str) -> Made:
        return self._recalls.look(self._shown.layers[layer], {"layer": layer, "batch": batch, "head": head})

    def _whole_recall(self, layer: int, batch: int, head: int | str) -> Made | None:
        """Return the recall of all rows of a head, computed now; None if all keys are kept."""
        of = {"layer": layer, "batch": batch, "head": head}
        return whole_recall(self._shown.layers[layer], of) if self._has_recall(layer) else None

    def _waits_for_evictions(self) -> bool:
        """Begin to find what a cache evicts in the layer if that takes a while; return whether all else waits."""
        at = Selection.of(self)
        if not self._evictions.begin(self._find_under_rules(), (*at.sample, at.shown_head, at.stage, at.pool)):
            return False
        self._cancel()
        self._derived.hold_back(FOUND)
        self._evictions.resume()  # `_cancel` ended it with the picture before
        return True

    def _show_evicted(self) -> None:
        """Show what follows from the evictions; the front-end asks again for what had to wait."""
        with self._lock:
            self._version += 1
            self._shown.version = self._version
            self._derived.forget("facts")
            self._refresh()
