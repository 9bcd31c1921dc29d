"""Masks stored as one key range per row, which covers almost all masks of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from .._utils.indexing import Block, hull, positions
from ..masks import NO_KEYS, Band, KeyBounds, Mask, overlap, padding

SHORT_ROW = 1 << 13  # keys
CELLS_AT_ONCE = 1 << 24  # mask cells to read at once


@dataclass(frozen=True, eq=False)
class Spans(Mask):
    """The mask start ≤ key < stop for each query: causal, windows, padding at either end, KV caches and mixtures."""

    starts: Tensor  # (B or 1, H or 1, Q or 1) int32
    stops: Tensor  # the same; a fully masked row is 0, 0
    kind: ClassVar[str] = "spans"

    def __repr__(self) -> str:
        return f"Spans{tuple(self.starts.shape)}"

    @property
    def shared(self) -> bool:  # type: ignore[override]
        return self.starts.shape[:2] == (1, 1)

    @property
    def by_key(self) -> bool:  # type: ignore[override]
        return self.starts.shape[2] == 1

    def describe(self, batch: int) -> str:
        return "mask"

    def tensors(self) -> dict[str, Tensor]:
        return {"starts": self.starts, "stops": self.stops}

    def to_json(self, add: Callable[[Tensor], str]) -> dict[str, Any]:
        return {name: add(x) for name, x in self.tensors().items()}

    @classmethod
    def from_json(cls, told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Spans:
        starts, stops = (tensors[told[name]] for name in ("starts", "stops"))
        if any(x.dtype not in (torch.int32, torch.int64) or x.ndim != 3 for x in (starts, stops)):
            raise ValueError(f"spans of {starts.dtype} {tuple(starts.shape)}, not of integers (B, H, Q)")
        if starts.shape != stops.shape:
            raise ValueError(f"spans with starts {tuple(starts.shape)} and stops {tuple(stops.shape)}")
        return cls(starts, stops)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Tensor) -> Tensor:
        at = tuple(i * (n > 1) for i, n in zip((b, h, q_idx), self.starts.shape, strict=True))
        return (kv_idx >= self.starts[at]) & (kv_idx < self.stops[at])

    def row_ends(self, cells: Block) -> tuple[Tensor, Tensor]:
        many = [n > 1 for n in self.starts.shape]
        rows = positions(cells.queries, self.starts.device)
        found = (ends[cells.batch * many[0], cells.head * many[1]] for ends in (self.starts, self.stops))
        starts, stops = (x[rows].long() if many[2] else x.long().expand(len(rows)) for x in found)
        return starts, stops

    @cached_property
    def _ends(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        return self.starts.cpu().numpy(), self.stops.cpu().numpy()

    @cached_property
    def reach(self) -> tuple[int, bool]:
        """The largest end of a row, and whether the last query may attend to later keys than the first."""
        stops = self._ends[1].max((0, 1))
        return int(stops.max()), bool(stops[-1] > stops[0])

    def bounds(self, cells: Block) -> KeyBounds:
        if not len(cells.queries):
            return KeyBounds(NO_KEYS, NO_KEYS)
        many = [n > 1 for n in self.starts.shape]
        rows = positions(cells.queries, torch.device("cpu")).numpy() if many[2] else [0]
        starts, stops = (ends[cells.batch * many[0], cells.head * many[1]][rows] for ends in self._ends)
        there, columns = stops > starts, hull(cells.keys)
        if not there.any():
            return KeyBounds(NO_KEYS, NO_KEYS)
        outer = range(int(starts[there].min()), int(stops[there].max()))
        inner = range(int(starts.max()), int(stops.min())) if there.all() else NO_KEYS
        return KeyBounds(overlap(outer, columns), overlap(inner, columns))


def as_spans(mask: Tensor) -> Spans | None:
    """Return a bool mask (B, H, Q, K) as spans; None unless every row is one range of keys.

    >>> mask = torch.tensor([[True, False, False], [True, True, False]])
    >>> as_spans(mask[None, None]).stops
    tensor([[[1, 2]]], dtype=torch.int32)
    >>> as_spans(torch.tensor([[[[True, False, True]]]])) is None
    True
    """
    if mask.device.type == "cpu" and mask.shape[:3] == (1, 1, 1) and mask.shape[3] <= SHORT_ROW:
        return _span_of_row(mask[0, 0, 0].tolist())
    step = max(1, CELLS_AT_ONCE // max(1, mask.shape[0] * mask.shape[1] * mask.shape[3]))
    found = []
    for part in mask.split(step, dim=2):
        cells = part.contiguous().view(torch.uint8)
        counts = cells.sum(-1, dtype=torch.int32)  # (B, H, Q)
        starts = cells.argmax(-1).int()
        last = cells.shape[-1] - cells.flip(-1).argmax(-1).int()
        empty = counts == 0
        if not torch.equal(torch.where(empty, 0, last - starts), counts):
            return None
        found.append((starts.masked_fill_(empty, 0), torch.where(empty, 0, last)))
    starts, stops = (torch.cat(parts, 2) for parts in zip(*found, strict=True))
    return merge_equal_ends(starts, stops)


def _span_of_row(cells: list[bool]) -> Spans | None:
    """Return a mask of one row as spans, in plain Python: for each new token, torch's functions would take longer."""
    count = sum(cells)
    start = cells.index(True) if count else 0
    if not all(cells[start : start + count]):
        return None
    return Spans(*torch.tensor([start, start + count], dtype=torch.int32, device="cpu")[:, None, None, None])


def merge_equal_ends(starts: Tensor, stops: Tensor) -> Spans:
    """Return spans in which an axis of equal entries has size 1.

    Args:
        starts, stops: (B or 1, H or 1, Q or 1) int32.
    """
    for axis in range(3):
        first = [ends.narrow(axis, 0, 1) for ends in (starts, stops)]
        if all(torch.equal(one.expand_as(ends), ends) for one, ends in zip(first, (starts, stops), strict=True)):
            starts, stops = first
    return Spans(starts.contiguous(), stops.contiguous())


def simplify(spans: Spans, batches: int, queries: int, keys: int) -> Mask | None:
    """Return the same mask as a simpler, named kind if possible; None if it blocks nothing.

    >>> simplify(as_spans(torch.ones(1, 1, 5, 5).tril().bool()), 1, 5, 5)
    causal: key ≤ query
    """
    starts, stops = spans.starts, spans.stops
    if not bool((starts > 0).any()) and bool((stops == keys).all()):
        return None
    if starts.shape[1:] == (1, 1):
        return spans if bool((starts > 0).any()) else padding(stops.flatten().expand(batches))
    if starts.shape[:2] != (1, 1) or len(starts[0, 0]) != queries:
        return spans
    rows = torch.arange(queries, device=starts.device, dtype=torch.int32)
    start, stop = starts[0, 0], stops[0, 0]
    high = None if bool((stop == keys).all()) else int(stop[0]) - 1
    low = None if not bool((start > 0).any()) else int(start[-1]) - (queries - 1)
    right = torch.full_like(stop, keys) if high is None else (rows + high + 1).clamp(0, keys)
    left = torch.zeros_like(start) if low is None else (rows + low).clamp(0, keys)
    same = torch.equal(right, stop) and torch.equal(left, start) and bool((left < right).all())
    return Band(low, high) if same else spans
