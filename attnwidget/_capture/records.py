"""What a capture keeps: one record for each attention of a model, which grows while the model generates."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._rules.row_spans import Spans, as_spans, simplest, together
from .._utils.validation import FLOATS
from ..attention import Attention
from .verification import OutputSample, differs, witness_of

Rows = Spans | Tensor | Callable[..., Any] | None
AT_ONCE = 1 << 22  # cells of a mask function that are asked at once
EAGER = (
    "load the model with attn_implementation='eager', call it with output_attentions=True, and give "
    "output.attentions to AttentionWidget.from_weights"
)


class Unreadable(Exception):
    """An attention call that cannot be told as q, k, v and rules; its text says why, and what to do."""


@dataclass
class ObservedCall:
    """One attention call as it was seen: the model's own tensors."""

    q: Tensor  # (B, H, Q, D)
    k: Tensor  # (B, G, K, D)
    v: Tensor | None  # (B, G, K, Dv)
    scale: float | None = None
    softcap: float | None = None
    mask: Any = None  # (B or 1, H or 1, Q or 1, K) bool or floats to add, or a function
    bias: Any = None  # the same, floats, or a function of the score
    is_causal: bool = False  # key ≤ query from the upper left
    cross: bool | None = None  # None: not known
    cached: bool = False  # of a decoder: k may be a buffer that is longer than the text
    dropout: bool = False  # whether some of the weights were dropped before v


@dataclass
class TensorKeeper:
    """How tensors are kept: where, in which type, as copies or not; and masks, each once."""

    device: torch.device | None = None
    dtype: torch.dtype | None = None
    values: bool = True
    clone: bool = True
    _masks: dict[tuple[Any, ...], tuple[weakref.ref[Tensor], int, Rows]] = field(default_factory=dict)

    def tensor(self, x: Tensor) -> Tensor:
        """x as it is kept: a contiguous copy; x itself by reference, unless that would keep more memory alive."""
        x = x.detach()
        clone = self.clone or x.untyped_storage().nbytes() > x.numel() * x.element_size()
        if not clone:
            return x.to(self.device or x.device, self.dtype or x.dtype)
        return x.to(self.device or x.device, self.dtype or x.dtype, copy=True, memory_format=torch.contiguous_format)

    def converted(self, x: Tensor) -> Tensor:
        """x where and as the kept ones are, to be compared with them or copied to them."""
        return x if self.device is None and self.dtype is None else x.to(self.device or x.device, self.dtype or x.dtype)

    def mask(self, mask: Any) -> Rows:
        """A mask in its least form, made once for all layers that share it."""
        if not isinstance(mask, Tensor):
            return mask
        version, base = (
            (0, mask) if mask.is_inference() else (mask._version, mask if mask._base is None else mask._base)
        )
        key = (id(base), mask.storage_offset(), mask.shape, mask.stride(), mask.dtype)
        known = self._masks.get(key)
        if known is None or known[0]() is not base or known[1] != version:
            known = (weakref.ref(base), version, self._least(mask.detach()))
            self._masks[key] = known
        return known[2]

    def _least(self, mask: Tensor) -> Rows:
        for axis, step in enumerate(mask.stride()):
            mask = mask.narrow(axis, 0, 1) if step == 0 and axis < 3 else mask  # expanded: the same again and again
        blocked = mask <= torch.finfo(mask.dtype).min if mask.dtype in FLOATS else None
        allowed = mask if blocked is None else ~blocked
        plain = blocked is None or bool((blocked | (mask == 0)).all())
        spans = as_spans(allowed.bool()) if plain else None
        if spans is not None:
            return Spans(*(ends.to(self.device or mask.device) for ends in (spans.starts, spans.stops)))
        return mask.to(self.device or mask.device, copy=self.clone, memory_format=torch.contiguous_format)

    def forget(self) -> None:
        """The masks of a forward pass that has ended."""
        self._masks = {key: known for key, known in self._masks.items() if known[0]() is not None}


class GrowingTensor:
    """A tensor (B, heads, positions, size) that grows along its positions, with room to spare until it is trimmed."""

    def __init__(self, x: Tensor) -> None:
        self._room, self.length = x, x.shape[2]

    @property
    def shape(self) -> tuple[int, ...]:
        B, heads, _, size = self._room.shape
        return B, heads, self.length, size

    @property
    def device(self) -> torch.device:
        return self._room.device

    def view(self, start: int = 0) -> Tensor:
        return self._room.narrow(2, start, self.length - start)

    def append(self, x: Tensor) -> None:
        after = self.length + x.shape[2]
        if after > self._room.shape[2]:
            B, heads, _, size = self._room.shape
            room = self._room.new_empty(B, heads, max(after, self.length * 3 // 2 + 16), size)
            room.narrow(2, 0, self.length).copy_(self.view())
            self._room = room
        self._room.narrow(2, self.length, x.shape[2]).copy_(x)
        self.length = after

    def reorder(self, order: Sequence[int]) -> None:
        self._room = self.view()[list(order)]

    def trim(self) -> Tensor:
        """All of it in memory of its own size, which later growth leaves alone."""
        if self._room.shape[2] > self.length:
            self._room = self.view().clone(memory_format=torch.contiguous_format)
        return self._room


@dataclass
class Continuation:
    """How a call continues a record: which of its samples each was, and how many of its keys still stand."""

    order: list[int]
    keys: int


@dataclass
class Part:
    """The rules of some queries: those of one call."""

    queries: int
    keys: int  # of the call
    first: int  # where its keys begin among all keys of the record
    is_causal: bool
    mask: Rows
    bias: Any


class Record:
    """One attention of a model over all calls that continue one another: the prompt, then each new token."""

    def __init__(self, name: str, seen: ObservedCall, keeper: TensorKeeper) -> None:
        self.name, self.cross, self._keeper = name, bool(seen.cross), keeper
        self.scale, self.softcap = seen.scale, seen.softcap
        self.q, self.k = GrowingTensor(keeper.tensor(seen.q)), GrowingTensor(keeper.tensor(seen.k))
        self.v = GrowingTensor(keeper.tensor(seen.v)) if keeper.values and seen.v is not None else None
        self.parts = [self._part(seen, 0)]
        self._witnesses: list[tuple[int, OutputSample]] = []  # of calls that begin at this query
        self._made: Attention | None = None

    def _part(self, seen: ObservedCall, first: int) -> Part:
        bias = self._keeper.tensor(seen.bias) if isinstance(seen.bias, Tensor) else seen.bias
        mask = self._keeper.mask(seen.mask)
        return Part(seen.q.shape[2], seen.k.shape[2], first, seen.is_causal, mask, bias)

    def continued_by(self, seen: ObservedCall) -> Continuation | None:
        """How a call continues this record; None if it does not.

        A decoder's keys are those of before and new ones, a cross-attention's are the same; beams change places; tokens
        that were tried and rejected leave the cache again.
        """
        (B, G, K, D), (_, H, Q, _) = seen.k.shape, seen.q.shape
        kept, total = self.k.shape, self.k.length
        if (kept[0], kept[1], kept[3], self.q.shape[1]) != (B, G, D, H):
            return None
        past = K if self.cross else K - Q
        if not 0 < past <= total or (self.cross and past != total) or seen.scale != self.scale:
            return None
        before, now = self.k.view(total - past), self._keeper.converted(seen.k.narrow(2, 0, past))
        if torch.equal(before, now):
            return Continuation(list(range(B)), total)
        if not self.cross and total - self.q.length < past < total and torch.equal(self._first_keys(past), now):
            return Continuation(list(range(B)), past)
        alike = (before[None, :, :, -1] == now[:, None, :, -1]).all(-1).all(-1).tolist()  # (now, before)
        order = []
        for b in range(B):
            found = next((p for p in range(B) if alike[b][p] and torch.equal(now[b], before[p])), None)
            if found is None:
                return None
            order.append(found)
        return Continuation(order, total)

    def _first_keys(self, count: int) -> Tensor:
        return self.k.view().narrow(2, 0, count)

    def extend(self, seen: ObservedCall, how: Continuation) -> None:
        """Append a call that continues this record."""
        if how.order != list(range(len(how.order))):
            self._reorder(how.order)
        self._shorten(self.k.length - how.keys)
        past = seen.k.shape[2] if self.cross else seen.k.shape[2] - seen.q.shape[2]
        first = self.k.length - past
        self.q.append(self._keeper.converted(seen.q))
        if not self.cross:
            new = seen.q.shape[2]
            self.k.append(self._keeper.converted(seen.k.narrow(2, past, new)))
            if self.v is not None and seen.v is not None:
                self.v.append(self._keeper.converted(seen.v.narrow(2, past, new)))
        self.parts.append(self._part(seen, first))
        self._made = None

    def hear_output(self, seen: ObservedCall, first: int, output: Any) -> None:
        """What came of a call whose queries begin at `first`, to be compared when the capture ends."""
        whole = first == 0 or seen.q.shape[2] > 1  # of tokens that follow one by one, the first says as much
        if not whole or self.v is None or seen.v is None or seen.dropout or not self._keeper.clone:
            return
        witness = witness_of(output, seen.q, seen.k, seen.v, self._keeper.dtype)
        if witness is not None:
            self._witnesses.append((first, witness))

    def is_otherwise(self) -> bool:
        """Whether some output that came is not that of what is kept; each is asked once."""
        witnesses, self._witnesses = self._witnesses, []
        if self.v is None:
            return False
        q, k, v = (x.view() for x in (self.q, self.k, self.v))
        for first, witness in witnesses:
            row = 0
            for part in self.parts:
                if first < row + part.queries:
                    break
                row += part.queries
            witness.rows = [i + first - row for i in witness.rows]
            if witness.samples and differs(
                witness, q, k, v, scale=self.scale, softcap=self.softcap, part=part, first=row
            ):
                return True
        return False

    def _shorten(self, by: int) -> None:
        """Forget the last positions."""
        if not by:
            return
        for kept in (self.q, self.k, self.v):
            if kept is not None:
                kept.length -= by
        while self.parts[-1].queries <= by:
            by -= self.parts.pop().queries
        if by:
            last = self.parts[-1]
            self.parts[-1] = cut(last, last.queries - by, min(last.keys, self.k.length - last.first))
        self._witnesses = [(at, one) for at, one in self._witnesses if at + max(one.rows) < self.q.length]

    def _reorder(self, order: list[int]) -> None:
        for _, witness in self._witnesses:
            witness.reorder(order)
        for kept in (self.q, self.k, self.v):
            if kept is not None:
                kept.reorder(order)
        at = torch.tensor(order)

        def moved(x: Any) -> Any:
            if isinstance(x, Spans):
                return Spans(moved(x.starts), moved(x.stops))
            return x[at.to(x.device)] if isinstance(x, Tensor) and x.shape[0] > 1 else x

        for part in self.parts:
            part.mask, part.bias = moved(part.mask), moved(part.bias)

    def tensors(self) -> dict[str, Tensor]:
        """q, k, and v if it is kept, each in memory of its own size."""
        kept = {"q": self.q, "k": self.k} | ({} if self.v is None else {"v": self.v})
        return {name: x.trim() for name, x in kept.items()}

    def rules(self) -> dict[str, Any]:
        """The keywords of its `Attention` beside q, k and v."""
        if len(self.parts) > 1:
            self.parts = [joined(self.parts, self.k.length, self.q.device)]
        (part,) = self.parts
        B = self.k.shape[0]
        mask = simplest(part.mask, B, part.queries, part.keys) if isinstance(part.mask, Spans) else part.mask
        return {
            "mask": mask,
            "bias": part.bias,
            "is_causal": part.is_causal,
            "scale": self.scale,
            "softcap": self.softcap,
        }

    @property
    def attention(self) -> Attention:
        """What it shows."""
        if self._made is None:
            kept = self.tensors()
            self._made = Attention(kept["q"], kept["k"], kept.get("v"), **self.rules())
        return self._made


# The rules of several calls, as those of one.


def cut(part: Part, queries: int, keys: int) -> Part:
    """The first queries and keys of a part."""

    def first(x: Any) -> Any:
        if isinstance(x, Spans):
            return Spans(*(ends[:, :, :queries].clamp(max=keys) for ends in (x.starts, x.stops)))
        return x[:, :, :queries, :keys] if isinstance(x, Tensor) else x

    return Part(queries, keys, part.first, part.is_causal, first(part.mask), first(part.bias))


def joined(parts: Sequence[Part], keys: int, device: torch.device) -> Part:
    """Several calls as one, whose queries are those of all of them, one after the other."""
    if any(callable(part.bias) for part in parts):
        raise ValueError(
            "a score_mod of several calls has no one form: capture the whole text in one forward pass, without a cache"
        )
    allowed = [allowed_of(part, device) for part in parts]
    added = [added_of(part) for part in parts]
    bias = written(parts, added, keys, 0.0, device) if any(x is not None for x in added) else None
    spans = [shifted(part, x) for part, x in zip(parts, allowed, strict=True) if isinstance(x, Spans)]
    sizes = [part.queries for part in parts]
    mask: Rows
    if len(spans) == len(parts):
        B, H = (max(x.starts.shape[axis] for x in spans) for axis in (0, 1))
        starts, stops = (
            torch.cat([ends.expand(B, H, n) for ends, n in zip(all_ends, sizes, strict=True)], 2)
            for all_ends in zip(*((x.starts, x.stops) for x in spans), strict=True)
        )
        mask = together(starts, stops)
    else:
        cells = [asked(x, part) if isinstance(x, Spans) else x for part, x in zip(parts, allowed, strict=True)]
        mask = written(parts, cells, keys, False, device)
    return Part(sum(sizes), keys, 0, False, mask, bias)


def allowed_of(part: Part, device: torch.device) -> Spans | Tensor:
    """Which cells of a part's own queries and keys are allowed, by what is not added to the scores."""
    if isinstance(part.mask, Tensor) and part.mask.dtype is torch.bool:
        return part.mask
    mask = part.mask if isinstance(part.mask, Spans) else None
    if callable(part.mask) and not isinstance(part.mask, Spans):
        cells = asked(part.mask, part, device)
        mask = as_spans(cells)
        if mask is None:
            return cells
    zero = torch.zeros(1, 1, 1, dtype=torch.int32, device=device)
    starts, stops = (zero, zero + part.keys) if mask is None else (mask.starts, mask.stops)
    if part.is_causal:
        stops = torch.minimum(stops, torch.arange(1, part.queries + 1, dtype=torch.int32, device=device))
        starts = starts.expand_as(stops)
    return Spans(starts, stops)


def added_of(part: Part) -> Tensor | None:
    """What is added to the scores of a part."""
    mask = part.mask if isinstance(part.mask, Tensor) and part.mask.dtype in FLOATS else None
    if mask is None or part.bias is None:
        return part.bias if mask is None else mask
    return part.bias + mask


def shifted(part: Part, spans: Spans) -> Spans:
    """Spans of a part's keys as those of all keys; an empty row stays 0, 0."""
    there = (spans.stops > spans.starts).int()
    return Spans((spans.starts + part.first) * there, (spans.stops + part.first) * there)


def asked(mask: Callable[..., Tensor], part: Part, device: torch.device | None = None) -> Tensor:
    """A mask function of all cells of a part, (B or 1, H or 1, queries, keys)."""
    if isinstance(mask, Spans):
        (B, H, _), device = mask.starts.shape, mask.starts.device
    else:
        B, H = getattr(mask, "sizes", (1, 1))
    b, h, keys = (torch.arange(n, device=device) for n in (B, H, part.keys))
    rows = torch.arange(part.queries, device=device).split(max(1, AT_ONCE // (B * H * part.keys)))
    b, h = b[:, None, None, None], h[:, None, None]
    found = [mask(b, h, q_idx[:, None], keys).expand(B, H, len(q_idx), part.keys) for q_idx in rows]
    return torch.cat(found, 2)


def written(
    parts: Sequence[Part], cells: Sequence[Tensor | None], keys: int, fill: float | bool, device: torch.device
) -> Tensor:
    """The cells of all parts in one tensor (B, H, Q, K), `fill` where a part has none."""
    there = [x for x in cells if x is not None]
    B, H = (max(x.shape[axis] for x in there) for axis in (0, 1))
    found = torch.full((B, H, sum(part.queries for part in parts), keys), fill, dtype=there[0].dtype, device=device)
    row = 0
    for part, x in zip(parts, cells, strict=True):
        if x is not None:
            found[:, :, row : row + part.queries, part.first : part.first + part.keys] = x
        row += part.queries
    return found
