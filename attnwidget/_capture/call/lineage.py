"""Lineage: the row and the call that each sample of a record comes from, even if beams change places."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

ENDED = -1  # in place of a row: the sample had ended before that call


@dataclass(eq=False)
class ModelCall:
    """One call of the model, or of a part of it that was called directly."""

    number: int  # counted from 0, over all calls in the block
    part: str = ""  # the name of the part; "" for the model itself
    inputs: Any = None  # the kept arguments
    facts: Any = None  # what it has shown beside its attention, `carried.outputs.CallFacts`
    stream: Any = None  # its residual stream, `sources.stream_tape.StreamFacts`, if it was followed


@dataclass
class RecordedCall:
    """The queries that a record has of one call of the model.

    Attributes:
        step: the call.
        queries: the number of queries, from its first.
        rows: for each sample of the record, its row in the batch of the call; `ENDED` (-1) if it had ended before.
    """

    step: ModelCall
    queries: int
    rows: list[int]


@dataclass
class ChosenRows:
    """The rows of a call's batch that are samples of the result, in their order, or `ENDED`."""

    rows: list[int]
    batch: int  # the number of rows in the call


class Lineage:
    """The calls of a record in parts, and how each part's rows continue the part before.

    A part is one call, or all earlier calls after they were put in order.

    Args:
        step: the first call.
        samples: its number of rows.
        queries: of the record.
    """

    def __init__(self, step: ModelCall, samples: int, queries: int) -> None:
        self._samples = samples
        self._parts = [[RecordedCall(step, queries, list(range(samples)))]]
        self._orders: list[list[int] | None] = [None]  # for each row, its row in the part before; None: the same

    def append(self, step: ModelCall, queries: int, order: Sequence[int]) -> None:
        """Append a call; its row b continues row `order[b]`."""
        self._parts.append([RecordedCall(step, queries, list(range(self._samples)))])
        self._orders.append(None if is_unchanged(order) else list(order))

    def append_call(self, call: RecordedCall) -> None:
        """Append a call in which every row keeps its place."""
        self._parts.append([call])
        self._orders.append(None)

    def shorten(self, by: int) -> None:
        """Drop the last queries."""
        while by:
            call = self._parts[-1].pop()
            if call.queries > by:
                self._parts[-1].append(replace(call, queries=call.queries - by))
            by -= min(by, call.queries)
            if not self._parts[-1]:
                self._parts.pop()
                self._orders.pop()

    def copy(self) -> Lineage:
        """Return a copy that continues separately."""
        other = copy.copy(self)
        vars(other).update(_parts=[list(part) for part in self._parts], _orders=list(self._orders))
        return other

    def merge(self, rows: Sequence[Sequence[int]]) -> None:
        """Merge all parts into one; its samples had these rows in each part."""
        self._samples = len(rows[-1])
        self._parts, self._orders = [self.calls(rows)], [None]

    @property
    def in_place(self) -> bool:
        """Return whether every sample has the same row in all calls."""
        return all(order is None for order in self._orders)

    @property
    def last(self) -> ModelCall:
        """Return the last call."""
        return self._parts[-1][-1].step

    @property
    def last_call(self) -> RecordedCall:
        """Return the last call as it is recorded."""
        return self._parts[-1][-1]

    @property
    def sizes(self) -> list[int]:
        """Return the number of queries in each part."""
        return [sum(call.queries for call in part) for part in self._parts]

    def rows(self, chosen: Mapping[int, ChosenRows] | None = None) -> list[list[int]]:
        """Return the rows of each sample in each part.

        Args:
            chosen: by call number, the rows that are samples of the result. In earlier calls the rows are followed
                back. None: follow the rows of the last call.
        """
        last = None if chosen is None else chosen.get(self.last.number)
        if chosen is None or last is None or last.batch != self._samples:
            chosen = {}
        found: list[list[int]] = []
        rows = list(range(self._samples))
        for part, order in zip(self._parts[::-1], self._orders[::-1], strict=True):
            if len(part) == 1 and part[0].step.number in chosen:
                rows = chosen[part[0].step.number].rows
            found.append(rows)
            if order is not None:
                rows = [row if row == ENDED else order[row] for row in rows]
        return found[::-1]

    def calls(self, rows: Sequence[Sequence[int]]) -> list[RecordedCall]:
        """Return all calls; `rows` has the rows of each sample in each part."""
        return [
            RecordedCall(call.step, call.queries, [row if row == ENDED else call.rows[row] for row in own])
            for part, own in zip(self._parts, rows, strict=True)
            for call in part
        ]


def is_unchanged(order: Sequence[int]) -> bool:
    """Return whether all samples keep their places."""
    return list(order) == list(range(len(order)))


def take_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Return the rows that `rows` (samples, positions) names at each position of x (B, heads, positions, size)."""
    heads_last = x.transpose(1, 2)
    positions = torch.arange(x.shape[2], device=x.device)
    return heads_last[rows.to(x.device), positions].transpose(1, 2)
