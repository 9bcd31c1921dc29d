"""Several heads as one: the mean or the maximum of their exact weights, computed block by block."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from .._rules.options import AttentionOptions
from .._rules.rules import Allowed, Rule, Rules, settled, whole
from .._utils.indexing import Block, Indices, hull
from .._utils.validation import as_choice
from ..masks import NO_KEYS, BandLimits, KeyBounds, overlap
from .base import AttentionBase, Head, Shape, find_head
from .larger_grids import Size, on_larger_grid
from .logsumexp import LogSumExp
from .matmul import Scratch
from .softmax import exact_block, normalizers, normalizing, sink_weights
from .sources import SourceRows
from .stages import allowed_cells

HOW = ("mean", "max")
A = TypeVar("A", bound=AttentionBase)


class OneHead(NamedTuple):
    """One of the combined heads."""

    att: AttentionBase
    head: int


@dataclass(frozen=True, eq=False)
class CombinedHeads:
    """The combined weights of several heads, of one layer or of several, as one head: a `Source`.

    It makes no (Q, K) tensor, and shares the log-normalizers of the attentions.
    """

    parts: tuple[OneHead, ...]
    how: str
    place: str = ""  # such as "layers 0–11"
    gives: Literal["scores", "weights"] = "weights"
    default_scale: float = 1.0
    derived: bool = True

    @property
    def description(self) -> tuple[str, ...]:
        """How the heads are combined, and the description of their attention if it is one."""
        told = f"the {'mean' if self.how == 'mean' else 'maximum'} of {len(self.parts)} heads{self.place}"
        return (told, *(self.parts[0].att.description if len(self.layers) == 1 else ()))

    @property
    def layers(self) -> list[AttentionBase]:
        """The attentions of the heads, each once."""
        return list({id(one.att): one.att for one in self.parts}.values())

    def rows(self, batch: int, head: int, queries: Indices, scale: float) -> SourceRows:
        return CombinedRows(self, batch, queries, scale)

    def tensors(self) -> dict[str, Tensor]:
        layers = self.layers
        found: dict[str, Tensor] = {}
        for number, att in enumerate(layers):
            sinks = {} if att.sinks is None else {"sinks": att.sinks}
            own = {**att.source.tensors(), **sinks, **att.rules.tensors()}
            found |= {f"{name} of layer {number}" if len(layers) > 1 else name: x for name, x in own.items()}
        return found

    def heads_in_cells(self, batch: int, head: int) -> tuple[Head, ...]:
        return tuple(Head(one.att, batch, one.head) for one in self.parts)

    def rows_needed(self, batch: int, head: int, queries: range) -> tuple[tuple[Head, range], ...]:
        return tuple((one, queries) for one in self.heads_in_cells(batch, head))

    @property
    def zero_where_blocked(self) -> bool:
        return all(att.source.gives == "scores" or att.source.zero_where_blocked for att in self.layers)

    @property
    def has_sinks(self) -> bool:
        return any(att.has_sinks for att in self.layers)

    def sink_weights(self, batch: int, head: int, queries: Indices) -> Tensor | None:
        """Return the mean or the maximum of the heads' sink weights."""
        found = [sink_weights(one, queries) for one in self.heads_in_cells(batch, head)]
        known = next((one for one in found if one is not None), None)
        if known is None:
            return None
        each = [torch.zeros_like(known) if one is None else one.to(known.device) for one in found]
        return torch.stack(each).mean(0) if self.how == "mean" else torch.stack(each).amax(0)

    def prepare(self, batch: int, queries: Indices) -> Generator[int, None, None]:
        """Compute the log-normalizers of the combined heads."""
        for one in self.heads_in_cells(batch, 0):
            if one.att.source.gives == "scores":
                yield from normalizing(one, queries)


class CombinedRows:
    """Some queries of several heads."""

    def __init__(self, source: CombinedHeads, batch: int, queries: Indices, scale: float) -> None:
        self._source, self._batch, self._queries, self._scale = source, batch, queries, scale
        self._pairs: list[LogSumExp | None] = [
            None if one.att.source.gives == "weights" else normalizers(one, queries)
            for one in source.heads_in_cells(batch, 0)
        ]

    def block(self, keys: Indices, scratch: Scratch | None) -> Tensor:
        found: Tensor | None = None
        for one, pair in zip(self._source.parts, self._pairs, strict=True):
            cells = Block(self._batch, one.head, self._queries, keys)
            weights = exact_block(one.att, cells, "weights", pair).mT  # (keys, queries)
            if found is None:
                found = weights.contiguous()
            elif self._source.how == "max":
                torch.maximum(found, weights.to(found.device, found.dtype), out=found)
            else:
                found += weights.to(found.device, found.dtype)
        assert found is not None
        return found.mul_(self._scale / (len(self._source.parts) if self._source.how == "mean" else 1))


@dataclass(frozen=True, eq=False)
class AnyHead:
    """A rule that allows a cell if any of the heads allows it."""

    parts: tuple[OneHead, ...]

    shared: bool = False
    same_for_heads: bool = False
    by_key: bool = False

    def bounds(self, cells: Block) -> KeyBounds:
        if any(one.att.rules.by_score for one in self.parts):
            return KeyBounds(hull(cells.keys), NO_KEYS)
        each = [self._of(cells, one) for one in self.parts]
        outer = [bounds.outer for bounds in each if bounds.outer] or [range(0)]
        inner = max((bounds.inner for bounds in each), key=len)
        return KeyBounds(range(min(one.start for one in outer), max(one.stop for one in outer)), inner)

    def _of(self, cells: Block, one: OneHead) -> KeyBounds:
        """Return the bounds of one head: see `Rule.bounds`."""
        at, columns = cells._replace(head=one.head), hull(cells.keys)
        found = [rule.bounds(at) for rule in one.att.rules.rules]
        outer = reduce(overlap, (bounds.outer for bounds in found), columns)
        return KeyBounds(outer, reduce(overlap, (bounds.inner for bounds in found), columns))

    def allowed(self, cells: Block) -> Allowed:
        found: Allowed = False
        device = self.parts[0].att.device
        for one in self.parts:
            of_head = allowed_cells(one.att, cells._replace(head=one.head))
            if of_head is True:
                return True
            of_head = of_head.to(device) if isinstance(of_head, Tensor) else of_head
            found = of_head if found is False else _either(found, of_head, cells, device)
        return found

    def band_limits(self, batch: int) -> BandLimits | None:
        return None

    def row_ends(self, cells: Block) -> tuple[Tensor, Tensor] | None:
        return None

    def parts_of_all(self) -> tuple[Rule, ...]:
        return (self,)

    def describe(self, batch: int) -> str:
        return "mask of any of the heads"

    def tensors(self) -> dict[str, Tensor]:
        return {}  # the source has them


def _either(one: Allowed, other: Allowed, cells: Block, device: torch.device) -> Allowed:
    both = [whole(part, cells.queries, cells.keys, device) for part in (one, other)]
    return settled(both[0] | both[1])


def as_heads(att: AttentionBase, heads: Any) -> tuple[int, ...]:
    """Return heads of an attention, sorted and without repeats; None for all."""
    if heads is None:
        return tuple(range(att.shape.H))
    if isinstance(heads, str | bytes) or not isinstance(heads, Iterable):
        raise TypeError(f"heads is {heads!r:.60}: give a list of heads, such as [0, 4], or None for all")
    found = sorted({find_head(att, head) for head in heads})
    if not found:
        raise ValueError("heads is empty: give at least one head, or None for all")
    return tuple(found)


def combined(att: A, heads: Any, how: str) -> A:
    """Combine several heads into one: see `Attention.combine`."""
    as_choice(how, HOW, "how")
    chosen = as_heads(att, heads)
    return _of_parts(att, CombinedHeads(tuple(OneHead(att, head) for head in chosen), how))


def combined_layers(
    layers: Sequence[A],
    numbers: Sequence[int],
    heads: Any,
    how: str,
    grids: Sequence[Size] | None = None,
    more: str = "",
) -> A:
    """Combine heads of several layers into one: see `AttentionStack.combine`.

    Args:
        layers: the chosen layers.
        numbers: their numbers in the stack.
        heads: of each layer; None for all.
        how: "mean" or "max".
        grids: rows and columns of the patches of each layer, which are its queries.
        more: is added to the description of the layers.
    """
    as_choice(how, HOW, "how")
    place = f", {_listed([*dict.fromkeys(numbers)])}{more}"
    if grids is not None and len({*grids}) > 1:
        largest = max(grids, key=lambda one: one[0] * one[1])
        layers = [on_larger_grid(att, own, largest) for att, own in zip(layers, grids, strict=True)]
        place += f", on {largest[0]} × {largest[1]} patches by area"
    sizes = {(att.shape.B, att.shape.Q, att.shape.K): number for att, number in zip(layers, numbers, strict=True)}
    if len(sizes) > 1:
        (one, first), (other, second), *_ = sizes.items()
        raise ValueError(
            f"layer {first} has (samples, queries, keys) {one}, and layer {second} has {other}: combine layers of one "
            "size, such as combine(layers=[0, 1]); if queries are patches, give each layer's (rows, columns): grids=[…]"
        )
    parts = tuple(OneHead(att, head) for att in layers for head in as_heads(att, heads))
    return _of_parts(layers[0], CombinedHeads(parts, how, place))


def _listed(numbers: Sequence[int]) -> str:
    """Return the numbers of layers in words.

    >>> _listed([3]), _listed([0, 1, 2]), _listed([0, 2, 5])
    ('layer 3', 'layers 0–2', 'layers 0, 2, 5')
    """
    if len(numbers) == 1:
        return f"layer {numbers[0]}"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"layers {numbers[0]}–{numbers[-1]}"
    return f"layers {', '.join(map(str, numbers[:8]))}{', …' if len(numbers) > 8 else ''}"


def _of_parts(att: A, source: CombinedHeads) -> A:
    """Return heads as one; `att` is the attention of the first."""
    layers = source.layers
    for one in layers:
        one.find(0, 0)  # warns if tensors have changed
    if len(layers) == 1 and att.rules.same_for_heads:
        rules = Rules(att.rules.rules)
    else:
        each = {(id(one.att), None if one.att.rules.same_for_heads else one.head): one for one in source.parts}
        rules = Rules((AnyHead(tuple(each.values())),))
    shape = Shape(att.shape.B, 1, 1, att.shape.Q, att.shape.K, None, None)
    window = att.window if all(one.window == att.window for one in layers) else None
    options = AttentionOptions(is_causal=all(one.is_causal for one in layers), window=window)
    found = att.of(source, None, shape, options, rules=rules)
    return found if att.part is None else found.as_part(None, *att.part[1:])
