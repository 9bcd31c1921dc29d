"""Slices of a call: masks and biases of some heads or queries, and the key heads that these heads use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import gcd
from typing import Any

import torch
from torch import Tensor

from ..._rules.row_spans import Spans
from .flex_attention import ScoreMod

HEADS, QUERIES = 1, 2  # axes


def take_part(x: Tensor, axis: int, which: Sequence[int]) -> Tensor:
    """Return x at some places of an axis: a view if the places are consecutive, else a copy."""
    if len(which) and list(which) == list(range(which[0], which[-1] + 1)):
        return x.narrow(axis, which[0], len(which))
    return x.index_select(axis, torch.tensor(which, dtype=torch.int64, device=x.device))


def part_of_rule(rule: Any, axis: int, which: Sequence[int]) -> Any:
    """Return a mask or bias of some heads, or of some queries.

    Args:
        rule: `Spans`, a tensor (B or 1, H or 1, Q or 1, K or 1), a function of indices, or None.
        axis: `HEADS` or `QUERIES`.
        which: the heads, or queries.
    """
    if rule is None:
        return None
    if isinstance(rule, Spans):
        return Spans(*(_part(ends, axis, which) for ends in (rule.starts, rule.stops)))
    if isinstance(rule, Tensor):
        return _part(rule, axis, which)
    if isinstance(rule, ScoreMod):
        return ScoreMod(PartOfScore(rule.function, axis, which))
    return PartOfMask(rule, axis, which)


def _part(x: Tensor, axis: int, which: Sequence[int]) -> Tensor:
    return x if x.shape[axis] == 1 else take_part(x, axis, which)


class _Part:
    """A function of indices whose heads or queries are counted anew."""

    def __init__(self, function: Callable[..., Any], axis: int, which: Sequence[int]) -> None:
        self.function, self._axis, self._which = function, axis, list(which)
        self._numbers: dict[torch.device, Tensor] = {}
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def _indices(self, indices: Sequence[Any]) -> list[Any]:
        """Return b, h, q_idx and kv_idx as the function counts them."""
        found, keys = list(indices), indices[3]
        device = keys.device if isinstance(keys, Tensor) else torch.device("cpu")
        if device not in self._numbers:
            self._numbers[device] = torch.tensor(self._which, device=device)
        found[self._axis] = self._numbers[device][found[self._axis]]
        return found


class PartOfMask(_Part):
    """A mask function of some heads, or of some queries."""

    @property
    def sizes(self) -> tuple[int, int]:
        """The samples and heads that differ."""
        B, H = getattr(self.function, "sizes", (1, 1))
        return B, len(self._which) if self._axis == HEADS and H > 1 else H

    def __call__(self, *indices: Any) -> Any:
        return self.function(*self._indices(indices))


class PartOfScore(_Part):
    """A score function of some heads, or of some queries."""

    def __call__(self, score: Any, *indices: Any) -> Any:
        return self.function(score, *self._indices(indices))


def key_heads(heads: Sequence[int], share: int) -> list[int]:
    """Return the key heads that some query heads use; equally many consecutive query heads must use each.

    Args:
        heads: of the queries, ascending.
        share: the number of query heads for one key head.

    >>> key_heads([0, 1, 4, 5], share=4), key_heads([0, 1, 4], share=4)
    ([0, 1], [0, 0, 1])
    """
    counts = Counter(head // share for head in heads)
    together = gcd(*counts.values())
    return [group for group, count in counts.items() for _ in range(count // together)]
