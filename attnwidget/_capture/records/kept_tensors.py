"""Kept tensors: their device, type and queries; they grow with the text."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..._rules.row_spans import Spans, as_spans
from ..._utils.choices import Numbers
from ..._utils.validation import FLOATS
from ..call.call_rules import CallRules, KeptMask, join
from ..call.hidden_rows import with_hidden_rows
from ..call.lineage import take_rows
from ..call.memory_limit import MemoryLimit
from ..call.observed_call import ObservedCall, Unreadable
from ..call.rule_slices import take_part
from ..verify.witness import CaptureLacks

APPENDED = 64  # calls whose tensors are kept separately before they are joined
SLACK = 64  # queries kept beyond the wanted ones: some may be taken back, as by an assistant


@dataclass
class TensorKeeper:
    """How tensors are kept: where, in which type, copied or not, which queries; masks that layers share once."""

    device: torch.device | None = None
    dtype: torch.dtype | None = None
    values: bool = True
    clone: bool = True
    queries: Numbers | None = None
    memory: MemoryLimit = field(default_factory=lambda: MemoryLimit(None))
    report: CaptureLacks = field(default_factory=CaptureLacks)
    _masks: dict[tuple[Any, ...], tuple[weakref.ref[Tensor], int, KeptMask]] = field(default_factory=dict)
    _joined: tuple[list[Any], list[CallRules], CallRules] | None = None

    def size_of(self, call: ObservedCall, positions: int | None = None) -> int:
        """Return the bytes of a call's q, k and v as they are kept; `positions`: of only so many new positions."""
        given = [call.k, call.v if self.values else None, call.q if self.queries is None else None]
        return self.size_of_positions(given, positions)  # some queries are wanted, but not yet known which

    def size_of_positions(self, given: Sequence[Any], positions: int | None = None) -> int:
        """Return the bytes of tensors (B, heads, positions, size) as they are kept; None for tensors not kept.

        Args:
            given: the tensors.
            positions: count only so many; None: all.
        """
        count = 0
        for x in given:
            if x is not None:
                B, heads, length, size = x.shape
                kept = length if positions is None else positions
                count += B * heads * kept * size * (self.dtype or x.dtype).itemsize
        return count

    def tensor(self, x: Tensor) -> Tensor:
        """Return x as it is kept: a contiguous copy; or x itself if not `clone` and no more memory stays alive."""
        x = x.detach() if x.requires_grad else x
        clone = self.clone or x.untyped_storage().nbytes() > x.numel() * x.element_size()
        if not clone:
            return x.to(self.device or x.device, self.dtype or x.dtype)
        return x.to(self.device or x.device, self.dtype or x.dtype, copy=True, memory_format=torch.contiguous_format)

    def growing(self, x: Tensor) -> GrowingTensor:
        """Return x as `tensor` keeps it, ready to grow."""
        kept = self.tensor(x)
        return GrowingTensor(kept, is_copy=kept.data_ptr() != x.data_ptr())

    def parameter(self, x: Tensor) -> Tensor:
        """Return a parameter of the model as it is kept: in its own type, because it is small."""
        return x.detach().to(self.device or x.device, copy=self.clone)

    def converted(self, x: Tensor) -> Tensor:
        """Return x on the device and in the type of kept tensors, to compare it with them or copy it to them."""
        return x if self.device is None and self.dtype is None else x.to(self.device or x.device, self.dtype or x.dtype)

    def mask(self, mask: Any) -> KeptMask:
        """Return a mask in its smallest form, made once for all layers that share it."""
        if not isinstance(mask, Tensor):
            return mask
        version, base = (
            (0, mask) if mask.is_inference() else (mask._version, mask if mask._base is None else mask._base)
        )
        key = (id(base), mask.storage_offset(), mask.shape, mask.stride(), mask.dtype)
        known = self._masks.get(key)
        if known is None or known[0]() is not base or known[1] != version:
            known = (weakref.ref(base), version, self._smallest_form(mask.detach()))
            self._masks[key] = known
            self.memory.add(bytes_of_mask(known[2]))
        return known[2]

    def _smallest_form(self, mask: Tensor) -> Spans | Tensor:
        for axis, step in enumerate(mask.stride()):
            mask = mask.narrow(axis, 0, 1) if step == 0 and axis < 3 else mask  # expanded: one row holds all
        blocked = mask <= torch.finfo(mask.dtype).min if mask.dtype in FLOATS else None
        if blocked is not None and bool(blocked.all(-1).any()):
            kept = with_hidden_rows(mask, 0.0, mask.dtype) if bool((blocked | (mask == 0)).all()) else None
            if kept is not None:
                return kept.to(self.device or mask.device)
        allowed = mask if blocked is None else ~blocked
        plain = blocked is None or bool((blocked | (mask == 0)).all())
        spans = as_spans(allowed.bool()) if plain else None
        if spans is not None:
            return Spans(*(ends.to(self.device or mask.device) for ends in (spans.starts, spans.stops)))
        return mask.to(self.device or mask.device, copy=self.clone, memory_format=torch.contiguous_format)

    def joined(self, calls: Sequence[CallRules], keys: int, device: torch.device) -> CallRules:
        """Return `call_rules.join` of some calls, made once for all layers that share them."""
        told = [(one.queries, one.keys, one.first, one.is_causal, id(one.mask), id(one.bias)) for one in calls]
        known = self._joined
        if known is None or known[2].keys != keys or known[0] != told:
            known = self._joined = told, list(calls), join(calls, keys, device)
        return known[2]

    def forget_masks(self) -> None:
        """Drop the masks of forward passes that have ended."""
        self._masks = {key: known for key, known in self._masks.items() if known[0]() is not None}


def bytes_of_mask(mask: Any) -> int:
    """Return the bytes of a mask or bias; 0 for a function."""
    if isinstance(mask, Spans):
        return mask.starts.nbytes + mask.stops.nbytes
    return mask.nbytes if isinstance(mask, Tensor) else 0


class GrowingTensor:
    """A tensor (B, heads, positions, size) that grows along its positions, in a larger buffer until it is trimmed.

    Appended positions are copied at once, and joined to the others when needed or when there are many.
    """

    def __init__(self, x: Tensor, *, is_copy: bool) -> None:
        self._buffer, self._is_copy = x, is_copy
        self._joined = self.length = x.shape[2]  # filled positions of the buffer, and all positions
        self._appended: list[Tensor] = []
        self._position_bytes = x.shape[0] * x.shape[1] * x.shape[3] * x.element_size()
        self.kind = x.shape[0], x.shape[1], x.shape[3], x.dtype, x.device  # constant

    @property
    def shape(self) -> tuple[int, ...]:
        """Return B, heads, positions and size."""
        B, heads, _, size = self._buffer.shape
        return B, heads, self.length, size

    @property
    def nbytes(self) -> int:
        """Return the bytes of its positions."""
        return self.length * self._position_bytes

    @property
    def device(self) -> torch.device:
        """Return its device."""
        return self._buffer.device

    def copy(self) -> GrowingTensor:
        """Return a copy that grows separately."""
        return GrowingTensor(self.view().clone(), is_copy=True)

    def view(self, start: int = 0) -> Tensor:
        """Return the positions from `start` on, without a copy."""
        whole = self._whole()
        return whole if not start and self.length == whole.shape[2] else whole.narrow(2, start, self.length - start)

    def version(self) -> int | None:
        """Return the number of in-place changes of the model's own tensor; None: a copy, or torch does not count."""
        return None if self._is_copy or self._buffer.is_inference() else self._buffer._version

    def append(self, x: Tensor) -> None:
        """Append the positions of x (B, heads, positions, size)."""
        self.take_over(x.to(self.device, self._buffer.dtype, copy=True, memory_format=torch.contiguous_format))

    def take_over(self, x: Tensor) -> None:
        """Append x, of the same type and on the same device, without a copy."""
        self._appended.append(x)
        self.length += x.shape[2]
        if len(self._appended) >= APPENDED or not self._is_copy:
            self._whole()

    def _whole(self) -> Tensor:
        """Return the buffer, with all appended positions."""
        if not self._appended:
            return self._buffer
        if self.length > self._buffer.shape[2] or not self._is_copy:
            B, heads, _, size = self._buffer.shape
            larger = self._buffer.new_empty(B, heads, max(self.length, self._joined * 3 // 2 + 16), size)
            larger.narrow(2, 0, self._joined).copy_(self._buffer.narrow(2, 0, self._joined))
            self._buffer, self._is_copy = larger, True
        new = self._appended[0] if len(self._appended) == 1 else torch.cat(self._appended, 2)
        self._buffer.narrow(2, self._joined, self.length - self._joined).copy_(new)
        self._joined, self._appended = self.length, []
        return self._buffer

    def shorten(self, by: int) -> None:
        """Drop the last positions."""
        self._whole()
        self._joined = self.length = self.length - by

    def take(self, rows: Tensor) -> GrowingTensor:
        """Return the rows that `rows` (samples, positions) names for each position."""
        return GrowingTensor(take_rows(self.view(), rows), is_copy=True)

    def keep(self, positions: Sequence[int]) -> None:
        """Keep only some positions, ascending."""
        self._buffer = take_part(self.view(), 2, positions).clone(memory_format=torch.contiguous_format)
        self._is_copy, self._joined = True, len(positions)
        self.length = self._joined

    def trim(self) -> Tensor:
        """Return all positions in memory of exactly their size, which later growth does not touch."""
        if self._appended and self.length != self._joined:  # joined at once in memory of the right size
            self._buffer = torch.cat([self._buffer.narrow(2, 0, self._joined), *self._appended], 2)
            self._is_copy, self._joined, self._appended = True, self.length, []
        elif self._buffer.shape[2] > self.length:
            self._buffer, self._is_copy = self.view().clone(memory_format=torch.contiguous_format), True
        return self._buffer


class KeptQueries:
    """The kept queries of a record while their final number is unknown.

    Queries that may be wanted are kept. If they are counted from the end, outgrown queries are dropped a few at a time.

    Args:
        wanted: the wanted queries, among all.

    Attributes:
        positions: of the kept queries, among all.
        count: the number of queries so far.
    """

    def __init__(self, wanted: Numbers) -> None:
        self.wanted = wanted
        self.positions: list[int] = []
        self.count = 0

    def add(self, queries: int) -> list[int]:
        """Count the queries of a call, and return those that may be kept."""
        first, self.count = self.count, self.count + queries
        rows = self.wanted.may_hold_of(first, self.count)
        self.positions += [first + i for i in rows]
        return rows

    def remove(self, queries: int) -> int:
        """Take the last queries back, and return how many of them were kept."""
        self.count -= queries
        left = [position for position in self.positions if position < self.count]
        removed, self.positions = len(self.positions) - len(left), left
        return removed

    def passed(self) -> int:
        """Return how many of the first kept queries are certainly not wanted, if these are many."""
        least = max(0, self.count - SLACK)
        held = (i for i, position in enumerate(self.positions) if self.wanted.may_hold(position, least))
        count = next(held, len(self.positions))
        return count if count >= max(SLACK, (len(self.positions) - count) // 4) else 0

    def chosen(self) -> list[int]:
        """Return the places, among the kept queries, of the queries that are wanted in the end.

        Raises:
            Unreadable: there are none, or some are not kept any more.
        """
        wanted = set(self.wanted.of(self.count))
        found = [i for i, position in enumerate(self.positions) if position in wanted]
        if not wanted:
            raise Unreadable(f"queries={self.wanted!r} names none of its {self.count:,} queries: ask for others")
        if len(found) < len(wanted):
            raise Unreadable(
                f"more than {SLACK} of its tokens were taken back, and queries={self.wanted!r} needs queries that were "
                "dropped: ask for more queries"
            )
        return found
