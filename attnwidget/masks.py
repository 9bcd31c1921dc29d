"""Masks as functions of indices, with FlexAttention's signature: f(b, h, q_idx, kv_idx) -> bool, True = may attend.

Give a mask as `mask=`, here or to `torch.nn.attention.flex_attention.create_mask`. The masks of this module also know
bounds for a range of queries: the keys that some of them may see, and the keys that all of them may see. So they need
no (Q, K) memory, and blocks that they exclude are never computed. Custom functions work as well:

>>> import torch
>>> from attnwidget import Attention, masks
>>> documents = torch.tensor([0, 0, 1, 1])
>>> def same_document(b, h, q_idx, kv_idx):
...     return documents[q_idx] == documents[kv_idx]
>>> att = Attention(torch.zeros(4, 2), torch.zeros(4, 2), mask=masks.and_masks(masks.causal, same_document))
>>> att.block("allowed").int()
tensor([[1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 1, 1]], dtype=torch.int32)
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from types import FunctionType
from typing import Any, ClassVar, NamedTuple, overload

import torch
from torch import Tensor

from ._utils.indexing import Block, hull
from ._utils.validation import as_size, kind_of, told

__all__ = ["and_masks", "causal", "causal_lower_right", "or_masks", "padding", "sliding_window"]


def __dir__() -> list[str]:
    """Return only the public names, for completion in editors."""
    return __all__


MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
NO_KEYS = range(0)
LONGEST_WINDOW = 2**53
DEEPEST = 64  # levels of nested masks: Python allows only some hundred nested calls


class KeyBounds(NamedTuple):
    """What a mask knows about a block of cells without evaluating each cell."""

    outer: range  # no query may attend to keys outside this range
    inner: range  # all queries may attend to all keys in this range


class BandLimits(NamedTuple):
    """The limits low ≤ key − query ≤ high and key < stop; None for no limit."""

    low: int | None = None
    high: int | None = None
    stop: int | None = None

    def meet(self, other: BandLimits) -> BandLimits:
        """Return the limits of the cells that both allow."""
        low = self.low if other.low is None else other.low if self.low is None else max(self.low, other.low)
        ends = [[one for one in pair if one is not None] for pair in zip(self[1:], other[1:], strict=True)]
        return BandLimits(low, *(min(pair, default=None) for pair in ends))

    def zero_(self, x: Tensor, queries: range, keys: range) -> Tensor:
        """Write 0 into the blocked cells of a block (keys, queries), in place and without making a mask."""
        apart = queries.start - keys.start
        if self.high is not None:
            row = max(0, apart + self.high + 1)  # keys from here on are blocked for the first query
            if row < len(keys):
                x[row:].triu_(row - self.high - apart)
        if self.low is not None:
            row = min(len(keys), apart + len(queries) + self.low - 1)  # keys before this are blocked for the last query
            if row > 0:
                x[:row].tril_(-self.low - apart)
        if self.stop is not None and self.stop < keys.stop:
            x[max(0, self.stop - keys.start) :] = 0
        return x


class Mask(ABC):
    """A mask function that knows its bounds. To add a new kind of mask, write a subclass.

    A subclass must define `__call__` and `bounds`. It may define `shared` and `by_key` if the defaults are wrong,
    `band_limits` for a simple mask, `describe` for its name in explanations, and `kind`, `to_json` and `from_json` to
    save and load captures that use it.
    """

    shared: bool = True  # whether the mask is the same for all samples and heads
    by_key: bool = False  # whether all queries of a sample and head may attend to the same keys
    kind: ClassVar[str] = ""  # its unique name in a file

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        kind = vars(cls).get("kind", "")
        known = _KINDS.get(kind)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"{known.__qualname__} already has the kind {kind!r}: give {cls.__qualname__} another kind")
        if kind:
            _KINDS[kind] = cls

    @abstractmethod
    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """Return whether each query may attend to each key: bool, in the shape that the indices broadcast to."""

    @abstractmethod
    def bounds(self, cells: Block) -> KeyBounds:
        """Return bounds for a block; the inner range may be too short, and the outer range too long."""

    def band_limits(self, batch: int) -> BandLimits | None:
        """Return the whole mask of a sample as three limits, if its bounds are exact; otherwise None."""
        return None

    def row_ends(self, cells: Block) -> tuple[Tensor, Tensor] | None:
        """Return the first and the end key of each query, (queries,) int64 each; None unless each row is one range."""
        return None

    @property
    def sample_count(self) -> int | None:
        """The number of samples that the mask fits; None for any number."""
        return None

    def parts_of_all(self) -> tuple[Mask, ...]:
        """Return the masks that must all allow a cell, so that one that blocks saves evaluating the others."""
        return (self,)

    def describe(self, batch: int) -> str:
        """Return the mask of a sample as text."""
        return type(self).__name__.lower()

    def __repr__(self) -> str:
        return " | ".join(dict.fromkeys(map(self.describe, range(self.sample_count or 1))))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the mask, by name."""
        return {}

    def to_json(self, add: Callable[[Tensor], str]) -> dict[str, Any]:
        """Return the mask as JSON, for `from_json`.

        Args:
            add: puts a tensor into the file, and returns its name there.

        Raises:
            ValueError: the mask cannot be saved; the message tells what is missing.
        """
        raise ValueError(
            f"a mask of class {type(self).__name__} cannot be saved to a file: give the class a kind, to_json and "
            "from_json, as described in attnwidget.masks.Mask"
        )

    @classmethod
    def from_json(cls, told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Mask:
        """Return the mask that `to_json` saved as `told`; `tensors` are those of the file, by name."""
        raise NotImplementedError(f"{cls.__name__} has to_json, so it needs from_json")


_KINDS: dict[str, type[Mask]] = {}


def mask_to_json(mask: Mask, add: Callable[[Tensor], str]) -> dict[str, Any]:
    """Return a mask as JSON, with its kind: see `Mask.to_json`."""
    told = mask.to_json(add)
    if not mask.kind:
        raise ValueError(f"{type(mask).__name__} has to_json but no kind: give it a kind, its name in a file")
    return {"kind": mask.kind, **told}


def mask_from_json(told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Mask:
    """Return a saved mask of any known kind: see `Mask.from_json`."""
    kind = told["kind"]
    if kind not in _KINDS:
        raise ValueError(f"no mask has the kind {kind!r}: import the module that defines it")
    return _KINDS[kind].from_json(told, tensors)


@dataclass(frozen=True, repr=False)
class Band(Mask):
    """The mask low ≤ key − query ≤ high; None for no limit."""

    low: int | None
    high: int | None

    kind: ClassVar[str] = "band"

    @overload
    def __call__(self) -> Band: ...
    @overload
    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor: ...
    def __call__(self, b: Any = None, h: Any = None, q_idx: Any = None, kv_idx: Any = None) -> Band | Tensor:
        """Return which cells are allowed; without indices, the mask itself, so that `masks.causal()` works too."""
        if kv_idx is None:
            return self
        if self.low is None:
            return kv_idx <= (q_idx if not self.high else q_idx + self.high)
        above = kv_idx >= q_idx + self.low
        return above if self.high is None else above & (kv_idx <= q_idx + self.high)

    def bounds(self, cells: Block) -> KeyBounds:
        rows, columns = hull(cells.queries), hull(cells.keys)
        first, last = (rows.start, rows.stop - 1) if rows else (0, 0)
        low, high = self.low, self.high
        outer = range(columns.start if low is None else first + low, columns.stop if high is None else last + high + 1)
        inner = range(columns.start if low is None else last + low, columns.stop if high is None else first + high + 1)
        return KeyBounds(overlap(outer, columns), overlap(inner, columns))

    def band_limits(self, batch: int) -> BandLimits | None:
        return BandLimits(self.low, self.high)

    def describe(self, batch: int) -> str:
        low, high = self.low, self.high
        if low is None:
            return "causal: key ≤ query" + (f" {'+' if high > 0 else '−'} {abs(high)}" if high else "")
        if high is not None and low == -high:
            return f"window {high + 1}: |query − key| < {high + 1}"
        return f"{low} ≤ key − query" + ("" if high is None else f" ≤ {high}")

    def to_json(self, add: Callable[[Tensor], str]) -> dict[str, Any]:
        return {"low": self.low, "high": self.high}

    @classmethod
    def from_json(cls, told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Band:
        low, high = told["low"], told["high"]
        if not all(limit is None or type(limit) is int for limit in (low, high)):
            raise ValueError(f"a band from {low!r:.40} to {high!r:.40}")
        return cls(low, high)


# FlexAttention counts the parameters of a mask function.
Band.__call__.__signature__ = inspect.signature(Mask.__call__)  # type: ignore[attr-defined]


@dataclass(frozen=True, repr=False)
class Padding(Mask):
    """The mask key < length of the sample."""

    lengths: tuple[int, ...]
    shared = False
    by_key = True
    kind: ClassVar[str] = "padding"

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return kv_idx < torch.tensor(self.lengths, device=kv_idx.device)[b]

    def bounds(self, cells: Block) -> KeyBounds:
        real = overlap(range(self.lengths[cells.batch]), hull(cells.keys))
        return KeyBounds(real, real)

    @property
    def sample_count(self) -> int | None:
        return len(self.lengths)

    def band_limits(self, batch: int) -> BandLimits | None:
        return BandLimits(stop=self.lengths[batch])

    def describe(self, batch: int) -> str:
        return f"padding: key < {self.lengths[batch]}"

    def to_json(self, add: Callable[[Tensor], str]) -> dict[str, Any]:
        return {"lengths": list(self.lengths)}

    @classmethod
    def from_json(cls, told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Padding:
        return cls(tuple(told["lengths"]))


@dataclass(frozen=True, repr=False)
class _OfParts(Mask):
    """A mask made of other masks."""

    parts: tuple[Mask, ...]
    word: ClassVar[str]

    def __post_init__(self) -> None:
        depth = 1 + max((getattr(part, "depth", 0) for part in self.parts), default=0)
        if depth > DEEPEST:
            raise ValueError(f"masks are nested more than {DEEPEST} deep: pass them all to one {self.kind}_masks call")
        object.__setattr__(self, "depth", depth)
        counts = {part.sample_count for part in self.parts} - {None}
        if len(counts) > 1:
            told = " and ".join(map(str, sorted(one for one in counts if one is not None)))
            raise ValueError(f"the masks are for {told} samples: give masks for the same batch")

    @property
    def sample_count(self) -> int | None:
        return next((count for part in self.parts if (count := part.sample_count) is not None), None)

    @property
    def shared(self) -> bool:  # type: ignore[override]
        return all(part.shared for part in self.parts)

    @property
    def by_key(self) -> bool:  # type: ignore[override]
        return all(part.by_key for part in self.parts)

    def describe(self, batch: int) -> str:
        return f" {self.word} ".join(part.describe(batch) for part in self.parts)

    def tensors(self) -> dict[str, Tensor]:
        return {f"{i}.{name}": x for i, part in enumerate(self.parts) for name, x in part.tensors().items()}

    def to_json(self, add: Callable[[Tensor], str]) -> dict[str, Any]:
        return {"parts": [mask_to_json(part, add) for part in self.parts]}

    @classmethod
    def from_json(cls, told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Mask:
        return cls(tuple(mask_from_json(part, tensors) for part in told["parts"]))


@dataclass(frozen=True, repr=False)
class And(_OfParts):
    """A mask that allows the cells that all parts allow."""

    kind: ClassVar[str] = "and"
    word: ClassVar[str] = "and"

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return reduce(torch.logical_and, (part(b, h, q_idx, kv_idx) for part in self.parts))

    def bounds(self, cells: Block) -> KeyBounds:
        found = [part.bounds(cells) for part in self.parts]
        return KeyBounds(reduce(overlap, (one.outer for one in found)), reduce(overlap, (one.inner for one in found)))

    def band_limits(self, batch: int) -> BandLimits | None:
        found = [part.band_limits(batch) for part in self.parts]
        return None if None in found else reduce(BandLimits.meet, (one for one in found if one is not None))

    def parts_of_all(self) -> tuple[Mask, ...]:
        return tuple(one for part in self.parts for one in part.parts_of_all())


@dataclass(frozen=True, repr=False)
class Or(_OfParts):
    """A mask that allows the cells that any part allows."""

    kind: ClassVar[str] = "or"
    word: ClassVar[str] = "or"

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return reduce(torch.logical_or, (part(b, h, q_idx, kv_idx) for part in self.parts))

    def bounds(self, cells: Block) -> KeyBounds:
        found = [part.bounds(cells) for part in self.parts]
        outer = [one.outer for one in found if one.outer]
        whole = range(min(r.start for r in outer), max(r.stop for r in outer)) if outer else NO_KEYS
        return KeyBounds(whole, max(joined(one.inner for one in found), key=len, default=NO_KEYS))


@dataclass(frozen=True, repr=False)
class Opaque(Mask):
    """A custom function without bounds, evaluated for each cell."""

    function: MaskFunction
    shared = False

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return self.function(b, h, q_idx, kv_idx)

    def bounds(self, cells: Block) -> KeyBounds:
        return KeyBounds(hull(cells.keys), NO_KEYS)

    def describe(self, batch: int) -> str:
        return f"mask {name_of(self.function)}".strip()

    def to_json(self, add: Callable[[Tensor], str]) -> dict[str, Any]:
        raise ValueError("a mask function is code, which a file cannot hold: give a mask tensor, or write a Mask")


def name_of(function: Any) -> str:
    """Return the name of a function; "" if it has none."""
    name = getattr(function, "__name__", "")
    return "" if name == "<lambda>" else str(name)


def overlap(one: range, other: range) -> range:
    start, stop = max(one.start, other.start), min(one.stop, other.stop)
    return range(start, max(start, stop))


def joined(ranges: Iterable[range]) -> list[range]:
    """Sort ranges, and merge those that touch or overlap."""
    found: list[range] = []
    for each in sorted((r for r in ranges if r), key=lambda r: r.start):
        if found and each.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, each.stop))
        else:
            found.append(each)
    return found


# What users call.

causal = Band(None, 0)
"""The mask key ≤ query, aligned at the upper left as in torch's `is_causal`."""


def causal_lower_right(queries: int, keys: int) -> Mask:
    """Make a causal mask that aligns the last query with the last key, as with a cache: key ≤ query + keys − queries.

    Args:
        queries, keys: the number of each.

    Returns:
        A `Mask`, the same as `torch.nn.attention.bias.causal_lower_right`.

    Raises:
        TypeError: a number is not an integer.
        ValueError: a number is less than 1.

    >>> q_idx, kv_idx = torch.arange(2)[:, None], torch.arange(4)
    >>> causal_lower_right(2, 4)(0, 0, q_idx, kv_idx).int()
    tensor([[1, 1, 1, 0],
            [1, 1, 1, 1]], dtype=torch.int32)
    """
    return Band(None, as_size(keys, "keys") - as_size(queries, "queries"))


def sliding_window(n: int) -> Mask:
    """Make a sliding window, |query − key| < n: both sides alone, or the last n keys together with `causal`.

    Args:
        n: the number of keys, the query's own included; at most 2⁵³. Queries and keys both count from 0.

    Returns:
        A `Mask`: the window of Mistral 7B (Jiang et al. 2023, §2).

    Raises:
        TypeError, ValueError: n is not an integer from 1 to 2⁵³.

    >>> q_idx, kv_idx = torch.arange(4)[:, None], torch.arange(4)
    >>> and_masks(causal, sliding_window(2))(0, 0, q_idx, kv_idx).int()
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [0, 1, 1, 0],
            [0, 0, 1, 1]], dtype=torch.int32)
    """
    n = as_size(n, "window")
    if n > LONGEST_WINDOW:
        raise ValueError(f"window is {told(n)}: give at most {LONGEST_WINDOW:,} keys, or leave window out")
    return Band(1 - n, n - 1)


def padding(lengths: Any) -> Mask:
    """Make a mask that allows the first keys of each sample and blocks the padding after them.

    Args:
        lengths: the number of tokens of each sample: a list, tuple, tensor or array of integers, which is copied.

    Returns:
        A `Mask`, which fits only a batch with that number of samples.

    Raises:
        TypeError: a length is not an integer.
        ValueError: a length is below 0.

    >>> padding([1, 3])(torch.tensor(0), 0, 0, torch.arange(3))
    tensor([ True, False, False])
    """
    given = lengths.tolist() if hasattr(lengths, "tolist") else lengths
    if not isinstance(given, list | tuple) or not all(type(n) is int for n in given):
        raise TypeError(f"lengths is {lengths!r:.60}: give a list with an integer for each sample")
    if any(n < 0 for n in given):
        raise ValueError(f"lengths holds {min(given)}: give 0 or more")
    return Padding(tuple(given))


def and_masks(*masks: MaskFunction) -> Mask:
    """Combine masks into one that allows a cell if all of them allow it.

    Args:
        masks: masks of this module, or functions f(b, h, q_idx, kv_idx) -> bool, as in FlexAttention.

    Returns:
        A `Mask`; its bounds are the intersection of theirs.

    Raises:
        TypeError, ValueError: there are no masks, or one of them is not a function.

    >>> and_masks(causal, sliding_window(4), lambda b, h, q_idx, kv_idx: kv_idx % 2 == 0).bounds(
    ...     Block(0, 0, range(8, 12), range(100))).outer
    range(5, 12)
    """
    return And(_parts(masks, "and_masks"))


def or_masks(*masks: MaskFunction) -> Mask:
    """Combine masks into one that allows a cell if any of them allows it.

    Args:
        masks: masks of this module, or functions f(b, h, q_idx, kv_idx) -> bool, as in FlexAttention.

    Returns:
        A `Mask`; its bounds contain theirs.

    Raises:
        TypeError, ValueError: there are no masks, or one of them is not a function.

    >>> first = lambda b, h, q_idx, kv_idx: kv_idx == 0  # a sink
    >>> or_masks(sliding_window(2), first)(0, 0, torch.tensor(9), torch.arange(10)).nonzero().flatten()
    tensor([0, 8, 9])
    """
    return Or(_parts(masks, "or_masks"))


def as_mask(mask: Any) -> Mask:
    """Return a mask function as a `Mask`.

    Raises:
        TypeError: the function is one of this module that makes a mask, and was not called.
    """
    example = _CALLS.get(mask) if isinstance(mask, FunctionType) else None
    if example is not None:
        raise TypeError(f"mask is masks.{mask.__name__}, a function that makes a mask: call it, as in masks.{example}")
    return mask if isinstance(mask, Mask) else Opaque(mask)


def _parts(masks: tuple[MaskFunction, ...], name: str) -> tuple[Mask, ...]:
    if not masks:
        raise ValueError(f"{name} needs at least one mask function: give one or more")
    for mask in masks:
        if not callable(mask) or isinstance(mask, Tensor):
            raise TypeError(f"{name} is given {kind_of(mask)}: give functions f(b, h, q_idx, kv_idx) -> bool")
    return tuple(as_mask(mask) for mask in masks)


_CALLS: dict[Any, str] = {
    causal_lower_right: "causal_lower_right(queries, keys)",
    sliding_window: "sliding_window(64)",
    padding: "padding([3, 5])",
    and_masks: "and_masks(masks.causal, masks.padding([3, 5]))",
    or_masks: "or_masks(masks.causal, masks.sliding_window(64))",
}
