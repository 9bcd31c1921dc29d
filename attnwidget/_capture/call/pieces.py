"""Put one attention together that a module computes in pieces: chunks of queries, single rows, heads or samples.

The pieces of one attention are views of the same q, k and v. Their places in memory show which part each of them is.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._rules.row_spans import Spans
from .call_rules import CallRules, join
from .observed_call import HeadsApart, ObservedCall, Unreadable

PROJECTIONS = {F.linear, F.conv1d, torch.addmm}
IN_PLACE = re.compile(r"(?<!_)_$|^__i[a-z]+__$|^__setitem__$")
CHANGED = (
    "its q, k or v changed while it computed its attention in pieces, so they are not known any more: compute all "
    "pieces before they change"
)


@dataclass(eq=False)
class AttentionPiece:
    """A call that may be a part of one attention, with a copy of its output (B, H, Q, Dv) once that is there."""

    call: ObservedCall
    output: Any = None

    def take(self, output: Any) -> None:
        """Keep a copy of the output: the model may change its own."""
        self.output = output.detach().clone() if isinstance(output, Tensor) else output


class Memory(NamedTuple):
    """The memory that a tensor is a view of, as it was then."""

    storage: int
    dtype: torch.dtype
    version: int

    @classmethod
    def of(cls, x: Tensor) -> Memory:
        """Return the memory of a tensor."""
        return cls(x.untyped_storage()._cdata, x.dtype, -1 if x.is_inference() else x._version)


class Pieces:
    """Calls of one module, one after another, whose q, k and v are views of the same tensors."""

    def __init__(self, name: str, call: ObservedCall) -> None:
        self.name, self._memory = name, _memory_of(call)
        self.pieces: list[AttentionPiece] = []

    def add(self, call: ObservedCall) -> AttentionPiece:
        """Add a call."""
        self.pieces.append(AttentionPiece(call))
        return self.pieces[-1]

    def may_go_on_with(self, call: ObservedCall) -> bool:
        """Return whether a call of the same module may be the next part of the same attention."""
        first, last = self.pieces[0].call, self.pieces[-1].call
        if call.q.data_ptr() == last.q.data_ptr() or _settings_of(call) != _settings_of(first):
            return False
        same = call.q.shape[:2] == first.q.shape[:2] and call.k.shape[:2] == first.k.shape[:2]
        same |= _slice_axis(call) is not None and _slice_axis(first) is not None
        return same and call.q.shape[3] == first.q.shape[3] and _memory_of(call) == self._memory

    def are_one_with(self, call: ObservedCall, masks: Callable[[Any], Any]) -> bool:
        """Return whether these calls and one more are pieces of one attention, whatever their outputs are.

        Args:
            call: the next call of the same module.
            masks: returns the smallest form of a mask.
        """
        if not self.may_go_on_with(call):
            return False
        for one in (self.pieces[-1], self.add(call)):
            v = one.call.q if one.call.v is None else one.call.v
            one.output = torch.empty(*one.call.q.shape[:3], v.shape[3], device="meta")
        return self._whole(masks) is not None

    def end_before(self, func: Any, args: Sequence[Any]) -> bool:
        """Return whether a function of torch, which is not called yet, ends them: it projects, or changes q, k or v."""
        if func in PROJECTIONS:
            return True
        if not _changes_its_argument(func) or not args or not isinstance(args[0], Tensor):
            return False
        return any(one.storage == args[0].untyped_storage()._cdata for one in self._memory)

    def read(self, call: ObservedCall) -> ObservedCall:
        """Return one of their calls, or the whole.

        Raises:
            Unreadable: the model has changed q, k or v since.
        """
        if _memory_of(self.pieces[0].call) != self._memory:
            raise Unreadable(CHANGED)
        return call

    def calls(self, masks: Callable[[Any], Any]) -> list[tuple[ObservedCall, Any]]:
        """Return the whole attention with its output, or each call with its own if they do not fit together.

        Args:
            masks: returns the smallest form of a mask.
        """
        whole = self._whole(masks)
        found = self.pieces if whole is None else [whole]
        return [(one.call, one.output) for one in found]

    def _whole(self, masks: Callable[[Any], Any]) -> AttentionPiece | None:
        """Return all pieces as one; None if it is only one, or their places in memory do not fit."""
        if len(self.pieces) < 2 or not all(_has_whole_output(one) for one in self.pieces):
            return None
        try:
            entries = [entry for one in self.pieces for entry in _entries_of(one)]
            runs = [_joined_queries(run, masks) for run in _runs_of_queries(entries)]
            while len(runs) > 1:
                joined = _joined_along_an_axis(runs)
                if joined is None:
                    return None
                runs = joined
        except (ValueError, RuntimeError):  # rules that cannot be joined
            return None
        return runs[0]


@functools.cache
def _changes_its_argument(func: Any) -> bool:
    return IN_PLACE.search(getattr(func, "__name__", "")) is not None


def may_be_piece(call: ObservedCall) -> bool:
    """Return whether the memory of q goes on after the queries, the head or the sample of a call."""
    q = call.q
    if call.v is None or call.weights is not None or call.dropout or call.grown is not None or call.inputs is not None:
        return False
    if callable(call.bias) or (callable(call.mask) and not isinstance(call.mask, Spans)):
        return False
    if not q.numel() or not _has_memory(q):
        return False
    (B, H, Q, D), (samples, heads, rows, _) = q.shape, q.stride()
    size = q.untyped_storage().nbytes() // q.element_size() - q.storage_offset()
    around = heads if H > 1 and heads > rows else samples if B > 1 else size  # of what a row of queries lies in
    has_queries = Q * rows < around
    has_heads = H == 1 and rows >= 2 * D
    is_slice = B * H > 1 and size > _extent(q) and _slice_axis(call) is not None
    return has_queries or has_heads or is_slice or (B == 1 and H > 1 and size >= 2 * _extent(q))


def _has_memory(x: Tensor) -> bool:
    """Return whether places in memory can be asked for; those of some kinds of tensors cannot."""
    try:
        return x.untyped_storage() is not None and x.data_ptr() >= 0 and len(x.stride()) == x.ndim
    except (RuntimeError, NotImplementedError):
        return False


def _extent(x: Tensor) -> int:
    """Return the length of the memory from a tensor's first to its last number."""
    return sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) + 1


def _memory_of(call: ObservedCall) -> tuple[Memory, ...]:
    return tuple(Memory.of(x) for x in (call.q, call.k, call.v) if x is not None)


def _settings_of(call: ObservedCall) -> tuple[Any, ...]:
    return call.scale, call.softcap, id(call.sinks), call.cross, call.reordered, call.v is None


def _has_whole_output(one: AttentionPiece) -> bool:
    (B, H, Q, _), v = one.call.q.shape, one.call.v
    return v is not None and isinstance(one.output, Tensor) and one.output.shape == (B, H, Q, v.shape[3])


# Along the queries.


def _runs_of_queries(pieces: Sequence[AttentionPiece]) -> list[list[AttentionPiece]]:
    """Return the pieces in runs: the queries of each piece follow those of the piece before, with the same keys."""
    runs: list[list[AttentionPiece]] = [[pieces[0]]]
    for before, one in itertools.pairwise(pieces):
        if _follows(before.call, one.call):
            runs[-1].append(one)
        else:
            runs.append([one])
    return runs


def _follows(before: ObservedCall, call: ObservedCall) -> bool:
    """Return whether the queries of a call follow those of the call before it, with keys of the same tensor."""
    (_, H, Q, _), rows = before.q.shape, before.q.stride(2)
    if call.q.storage_offset() - before.q.storage_offset() != Q * rows or _outer(call.q) != _outer(before.q):
        return False
    moved = {
        _rows_between(a, b) for a, b in ((before.k, call.k), (before.v, call.v)) if a is not None and b is not None
    }
    if len(moved) != 1 or None in moved:
        return False
    has_same_keys = moved == {0} and call.k.shape == before.k.shape
    if has_same_keys and (H == Q == 1 or _heads_apart(call).step == Q * rows):
        return False  # another head with the same keys
    base = call.q._base
    if base is None:  # no evidence that these are rows of one axis, unless all keys are queries in the end
        return True
    return any(s == rows and n >= Q + call.q.shape[2] for s, n in zip(base.stride(), base.shape, strict=True))


def _outer(x: Tensor) -> list[int]:
    """Return the distances in memory between samples and between heads, of those that are several."""
    return [step for step, n in zip(x.stride()[:2], x.shape[:2], strict=True) if n > 1]


def _rows_between(before: Any, x: Tensor) -> int | None:
    """Return by how many rows a view of keys begins after another with which it has rows in common; None if none."""
    longer = x if x.shape[2] > before.shape[2] else before
    step = longer.stride(2)
    (moved, rest) = divmod(x.storage_offset() - before.storage_offset(), step) if step else (0, 1)
    if rest or any(one.shape[2] > 1 and one.stride(2) != step for one in (before, x)):
        return None
    if _outer(x) != _outer(before) or x.stride(3) != before.stride(3):
        return None
    return moved if -x.shape[2] < moved < before.shape[2] else None  # else they may be other heads or samples


def _joined_queries(run: Sequence[AttentionPiece], masks: Callable[[Any], Any]) -> AttentionPiece:
    """Return the pieces of a run as one."""
    if len(run) == 1:
        return run[0]
    calls, first = [one.call for one in run], run[0].call
    starts = [0, *itertools.accumulate(_rows_between(a.k, b.k) or 0 for a, b in itertools.pairwise(calls))]
    least = min(starts)
    keys = max(start + call.k.shape[2] for start, call in zip(starts, calls, strict=True)) - least
    begins = calls[starts.index(least)]
    longest = max(calls, key=lambda call: call.k.shape[2])
    rules = [
        CallRules(call.q.shape[2], call.k.shape[2], start - least, call.is_causal, masks(call.mask), call.bias)
        for call, start in zip(calls, starts, strict=True)
    ]
    k, v = (_with_size(getattr(begins, name), 2, keys, getattr(longest, name).stride(2)) for name in ("k", "v"))
    q = _with_size(first.q, 2, sum(call.q.shape[2] for call in calls), first.q.stride(2))
    if first.q._base is None and q.shape[2] != keys and not any(starts) and calls[0].k.shape == longest.k.shape:
        raise ValueError("these may be heads or samples that share their keys")
    joined = join(rules, keys, q.device)
    mask: Any = joined.mask
    call = replace(first, q=q, k=k, v=v, mask=mask, bias=joined.bias, is_causal=False)
    call.cached = any(one.cached for one in calls)
    return AttentionPiece(call, torch.cat([one.output for one in run], 2))


def _with_size(x: Tensor, axis: int, size: int, step: int) -> Tensor:
    """Return x with another size of an axis, whose places are so far apart in memory."""
    x = x.detach()
    sizes, steps = [*x.shape], [*x.stride()]
    sizes[axis], steps[axis] = size, step
    return x.as_strided(sizes, steps)


# Along heads and samples.


def _slice_axis(call: ObservedCall) -> int | None:
    """Return the axis of q that is a slice of an axis of heads merged with samples; None if there is none."""
    B, H = call.q.shape[:2]
    known = _heads_apart(call)
    if known.step is None or min(B, H) > 1 or call.sinks is not None:
        return None
    axis = int(H > 1)
    return axis if B * H == 1 or call.q.stride(axis) == known.step else None


def _entries_of(one: AttentionPiece) -> list[AttentionPiece]:
    """Return the entries of a slice of heads merged with samples, each as a piece; another piece stays as it is."""
    call, axis = one.call, _slice_axis(one.call)
    count = call.q.shape[0] * call.q.shape[1]
    known = _heads_apart(call)
    if axis is None or count == 1 or (axis == 1 and known.inside == 1 and count == known.heads):
        return [one]

    def entry(x: Any, i: int) -> Any:
        return x.narrow(axis, i, 1) if isinstance(x, Tensor) and x.shape[axis] > 1 else x

    names = "q", "k", "v", "mask", "bias"
    return [
        AttentionPiece(
            replace(call, **{name: entry(getattr(call, name), i) for name in names}), one.output.narrow(axis, i, 1)
        )
        for i in range(count)
    ]


def _joined_along_an_axis(pieces: Sequence[AttentionPiece]) -> list[AttentionPiece] | None:
    """Return fewer pieces: those at even distances in memory as one each; None if there is no such order."""
    calls = [one.call for one in pieces]
    if any(one.call.q.shape != calls[0].q.shape or one.call.k.shape != calls[0].k.shape for one in pieces):
        return None
    steps = _steps(call.q for call in calls)
    if steps[0] <= 0:
        return None
    count = next((i + 1 for i, step in enumerate(steps) if step != steps[0]), len(pieces))
    axis, most = _axis_of(calls[0], steps[0], count)
    count = min(count, most)
    if axis is None or count < 2 or len(pieces) % count:
        return None
    groups = [pieces[i : i + count] for i in range(0, len(pieces), count)]
    joined = [_joined_group(group, axis) for group in groups]
    return None if any(one is None for one in joined) else [one for one in joined if one is not None]


def _steps(tensors: Any) -> list[int]:
    return [b.storage_offset() - a.storage_offset() for a, b in itertools.pairwise(tensors)]


def _axis_of(call: ObservedCall, step: int, count: int) -> tuple[int | None, int]:
    """Return along which axis pieces of q lie at this distance, 1 or 0 or None, and how many there may be."""
    (B, H, Q, D), (_, _, rows, each) = call.q.shape, call.q.stride()
    if H == 1 and step == D and each == 1 and rows >= count * D and (Q > 1 or rows > D):
        return 1, count  # parts of the features
    known = _heads_apart(call)
    if H == 1 and known.step is not None:
        if step == known.step and known.inside > 1:
            return (0 if B == 1 else None), known.inside
        if step == known.step * known.inside and known.heads > 1:
            return 1, known.heads
        if step >= known.step and known.heads <= 1:  # where heads are unknown, all are samples, as in `layout_of`
            return (0 if B == 1 else None), count
    return 0 if B == 1 and H > 1 and step >= _extent(call.q) else None, count


def _heads_apart(call: ObservedCall) -> HeadsApart:
    return HeadsApart(None, 0) if call.heads_apart is None else call.heads_apart()


def _joined_group(pieces: Sequence[AttentionPiece], axis: int) -> AttentionPiece | None:
    """Return pieces at even distances along an axis of q as one; None if k, v or the rules do not fit."""
    calls, n, first = [one.call for one in pieces], len(pieces), pieces[0].call
    (step, *others) = _steps(call.q for call in calls)
    if any(one != step for one in others):
        return None
    k, v = (_along(calls, name, axis) for name in ("k", "v"))
    if k is None or v is None or k.shape[1] != v.shape[1]:
        return None
    rules: dict[str, Any] = {}
    for name in ("mask", "bias"):
        given = [getattr(call, name) for call in calls]
        if all(one is given[0] or _is_same(one, given[0]) for one in given):
            rules[name] = given[0]
        elif all(isinstance(one, Tensor) for one in given):
            rules[name] = torch.cat(given, axis)
        else:
            return None
    if any(call.is_causal != first.is_causal for call in calls):
        return None
    q = _with_size(first.q, axis, n, step)
    whole = replace(first, q=q, k=k, v=v, **rules)
    return AttentionPiece(whole, torch.cat([one.output for one in pieces], axis))


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two rules are equal."""
    if isinstance(one, Spans) and isinstance(other, Spans):
        return torch.equal(one.starts, other.starts) and torch.equal(one.stops, other.stops)
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.shape != other.shape:
        return False
    return one.data_ptr() == other.data_ptr() and one.stride() == other.stride()


def _along(calls: Sequence[ObservedCall], name: str, axis: int) -> Tensor | None:
    """Return k or v of calls as one tensor along an axis: at even distances, or shared by all or by groups of calls."""
    given: list[Tensor] = [getattr(call, name) for call in calls]
    steps = _steps(given)
    first, n = given[0], len(given)
    if first.shape[axis] != 1:
        return None
    moves = [i + 1 for i, step in enumerate(steps) if step]
    if not moves:
        return first if axis == 1 else None  # samples have keys of their own
    share = moves[0]
    if axis == 0 and share != 1:
        return None
    if moves != list(range(share, n, share)) or n % share or len({steps[i - 1] for i in moves}) != 1:
        return None
    return _with_size(first, axis, math.ceil(n / share), steps[share - 1])
