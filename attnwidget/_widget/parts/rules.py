"""The traits that show the same tensors under other rules: `what_if`, and the target of the stage "logit"."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import traitlets

from ..._engine.cache_policies import cells_to_evict, with_keys
from ..._engine.what_if import read as read_changes
from ..._engine.what_if import what_if
from ...attention import Attention
from ..stores.layers import takes
from ..traits.trait_types import Index, WhatIf, WholeOrNone, refusing
from .selection import SelectionPart


class RulesPart(SelectionPart):
    """Other rules for the tensors on display."""

    what_if = WhatIf(help="Other rules for the same tensors; {} keeps the given ones.").tag(sync=True, role="numbers")
    target: WholeOrNone = Index(
        None, allow_none=True, help="The token id of the stage logit; None: the most likely next token."
    ).tag(sync=True, role="numbers")

    @traitlets.validate("what_if")
    def _rules_can_be(self, proposal: Any) -> dict[str, Any]:
        with refusing():
            return self._check_rules(proposal["value"])

    @traitlets.validate("target")
    def _token_is_there(self, proposal: Any) -> int | None:
        target: int | None = proposal["value"]
        layers = self._shown.given if hasattr(self, "_shown") else ()
        if target is None or not layers or any(takes(att, target) for att in layers):
            return target
        with refusing():
            for att in layers:
                att.with_target(target)  # raises, and says why
        return None

    @traitlets.observe("what_if", "target")
    def _on_what_if(self, change: Any) -> None:
        """Compute everything under other rules, as for other tensors."""
        if self._is_changing:
            return
        with self._lock:
            self._cancel()
            self._derived.forget()
            self._version += 1
            self._show_layers(self._shown.attention)

    def _find_under_rules(self) -> list[Attention]:
        """Return the selected layer under the other rules; raise an error that says why they do not fit."""
        return [self._shown.layers[self.layer]]

    def _check_rules(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Return other rules as they are kept, after computing a row of the selected layer under them.

        Raises:
            TypeError, ValueError, IndexError: the rules do not fit, or nothing can be computed under them.
        """
        layers = self._shown.given
        return as_in_json(try_rules(layers[self.layer], changes), layers)

    def _keep_rules(self) -> str | None:
        """Keep the other rules if they fit the layers; else leave them, and return why."""
        try:
            self._find_under_rules()
        except (TypeError, ValueError, IndexError) as error:
            with self._changing():
                self.what_if = {}
            self._replace_layers(self._shown.attention)
            return str(error)
        return None

    def _leave_rules_that_do_not_fit(self) -> None:
        """Show the layer under its own rules if the other rules do not fit it, and say so."""
        if self.what_if:
            self._say_rules_are_off(self._keep_rules())

    def _say_rules_are_off(self, refused: str | None) -> None:
        if refused is not None:
            self._say_refused(f"the other rules are off, because they do not fit here: {refused}")


def as_in_json(rules: dict[str, Any], layers: Iterable[Attention]) -> dict[str, Any]:
    """Return the same rules for JSON, where 1.0 reads as 1: a budget of 100 percent becomes the number of keys.

    >>> import torch
    >>> as_in_json({"keep": {"policy": "tova", "budget": 1.0}}, [Attention(*torch.zeros(2, 24, 8))])
    {'keep': {'policy': 'tova', 'budget': 24}}
    """
    keep = rules.get("keep")
    if keep and isinstance(keep["budget"], float) and keep["budget"] == 1:
        return {**rules, "keep": {**keep, "budget": max(att.shape.K for att in layers)}}
    return rules


def try_rules(att: Attention, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return other rules as they are kept, after computing a row under them.

    Raises:
        TypeError, ValueError, IndexError: the rules do not fit, or nothing can be computed under them.
    """
    read = read_changes(att, changes)
    if read:
        try:
            found = what_if(att, read)
            if cells_to_evict(found, 0):  # found in steps, once the rules are shown
                found = with_keys(found, None)
            found.block("weights", queries=range(1))
        except (ArithmeticError, RuntimeError) as error:
            raise ValueError(f"nothing can be computed under these rules: {error}") from None
    if "drop_keys" in read:  # a negative key counts from the end of each layer
        read["drop_keys"] = [operator.index(key) for key in changes["drop_keys"]]
    return read
