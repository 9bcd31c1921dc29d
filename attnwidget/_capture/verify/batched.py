"""Verify the outputs of many calls in few products: layers that are alike are computed again together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._utils.quietly import keep_from_model
from ..call.call_rules import CallRules
from .verification import ComparedRows, differ

WAITING = 1 << 21  # numbers: a call with more keys is verified at once, because waiting holds its keys
SCORES = 1 << 20  # computed at once


@dataclass(frozen=True, eq=False, slots=True)
class OutputCheck:
    """Rows of a call's output to verify.

    Attributes:
        rows: with their queries, keys and values.
        rules: of the call.
        scale, softcap, sinks: of its scores.
        found: receives whether the output differs, (), bool; or the error that ended the comparison.
    """

    rows: ComparedRows
    rules: CallRules
    scale: float | None
    softcap: float | None
    sinks: Tensor | None
    found: list[Tensor | Exception]

    @property
    def kind(self) -> tuple[Any, ...]:
        """The properties that checks must share to be verified together."""
        rules = self.rules
        of_rules = rules.queries, rules.keys, rules.is_causal, id(rules.mask), id(rules.bias), id(self.sinks)
        return *self.rows.kind, *of_rules, self.scale, self.softcap


def verify(checks: Iterable[OutputCheck]) -> None:
    """Compare all outputs with softmax(scale · q kᵀ under the rules) · v."""
    alike: dict[Any, list[OutputCheck]] = {}
    for one in checks:
        alike.setdefault(one.kind, []).append(one)
    for of_kind in alike.values():
        for some in _together(of_kind):
            one = some[0]
            how: dict[str, Any] = {"scale": one.scale, "softcap": one.softcap, "sinks": one.sinks, "rules": one.rules}
            found: Sequence[Tensor | Exception]
            try:
                found = [*differ([check.rows for check in some], **how)]
            except Exception as error:
                keep_from_model(error)
                found = [error] * len(some)
            for check, differs in zip(some, found, strict=True):
                check.found.append(differs)


def verify_aside(checks: Iterable[OutputCheck]) -> None:
    """Compare outputs as `verify` does while a model runs: without gradients or watching modes."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        verify(checks)


def _together(checks: list[OutputCheck]) -> Iterator[list[OutputCheck]]:
    """Yield groups of checks of one kind that fit into one computation."""
    rows = checks[0].rows
    at_once = max(1, SCORES // max(1, rows.queries.shape[:3].numel() * rows.keys.shape[2]))
    for first in range(0, len(checks), at_once):
        yield checks[first : first + at_once]
