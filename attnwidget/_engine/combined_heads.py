"""Several heads as one: the mean or the maximum of their exact weights, computed block by block."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from .._rules.options import AttentionOptions
from .._rules.rules import Allowed, Rule, Rules, settled, whole
from .._utils.indexing import Block, Indices, hull
from .._utils.validation import as_choice
from ..masks import NO_KEYS, BandLimits, KeyBounds, overlap
from .base import AttentionBase, Head, Shape, find_head
from .logsumexp import LogSumExp
from .matmul import Scratch
from .softmax import exact_block, normalizers, normalizing, sink_weights
from .sources import SourceRows
from .stages import allowed_cells

HOW = ("mean", "max")
A = TypeVar("A", bound=AttentionBase)


@dataclass(frozen=True, eq=False)
class CombinedHeads:
    """The combined weights of several heads as one head: a `Source`.

    It makes no (Q, K) tensor, and shares the log-normalizers of the attention.
    """

    att: AttentionBase
    heads: tuple[int, ...]
    how: str
    gives: Literal["scores", "weights"] = "weights"
    default_scale: float = 1.0
    derived: bool = True

    @property
    def description(self) -> tuple[str, ...]:
        """How the heads are combined, and the description of their attention."""
        return f"the {'mean' if self.how == 'mean' else 'maximum'} of {len(self.heads)} heads", *self.att.description

    def rows(self, batch: int, head: int, queries: Indices, scale: float) -> SourceRows:
        return CombinedRows(self, batch, queries, scale)

    def tensors(self) -> dict[str, Tensor]:
        sinks = {} if self.att.sinks is None else {"sinks": self.att.sinks}
        return {**self.att.source.tensors(), **sinks, **self.att.rules.tensors()}

    def heads_in_cells(self, batch: int, head: int) -> tuple[Head, ...]:
        return tuple(Head(self.att, batch, one) for one in self.heads)

    def rows_needed(self, batch: int, head: int, queries: range) -> tuple[tuple[Head, range], ...]:
        return tuple((one, queries) for one in self.heads_in_cells(batch, head))

    @property
    def zero_where_blocked(self) -> bool:
        return self.att.source.gives == "scores" or self.att.source.zero_where_blocked

    @property
    def has_sinks(self) -> bool:
        return self.att.has_sinks

    def sink_weights(self, batch: int, head: int, queries: Indices) -> Tensor | None:
        """Return the mean or the maximum of the heads' sink weights."""
        found = [sink_weights(one, queries) for one in self.heads_in_cells(batch, head)]
        each = [one for one in found if one is not None]
        if not each:
            return None
        return torch.stack(each).mean(0) if self.how == "mean" else torch.stack(each).amax(0)

    def prepare(self, batch: int, queries: Indices) -> Generator[int, None, None]:
        """Compute the log-normalizers of the combined heads."""
        for head in self.heads if self.att.source.gives == "scores" else ():
            yield from normalizing(Head(self.att, batch, head), queries)


class CombinedRows:
    """Some queries of several heads."""

    def __init__(self, source: CombinedHeads, batch: int, queries: Indices, scale: float) -> None:
        self._source, self._batch, self._queries, self._scale = source, batch, queries, scale
        att, known = source.att, source.att.source.gives == "weights"
        self._pairs: list[LogSumExp | None] = [
            None if known else normalizers(Head(att, batch, head), queries) for head in source.heads
        ]

    def block(self, keys: Indices, scratch: Scratch | None) -> Tensor:
        found: Tensor | None = None
        for head, pair in zip(self._source.heads, self._pairs, strict=True):
            cells = Block(self._batch, head, self._queries, keys)
            weights = exact_block(self._source.att, cells, "weights", pair).mT  # (keys, queries)
            if found is None:
                found = weights.contiguous()
            elif self._source.how == "max":
                torch.maximum(found, weights, out=found)
            else:
                found += weights
        assert found is not None
        return found.mul_(self._scale / (len(self._source.heads) if self._source.how == "mean" else 1))


@dataclass(frozen=True, eq=False)
class AnyHead:
    """A rule that allows a cell if any of the heads allows it."""

    att: AttentionBase
    heads: tuple[int, ...]

    shared: bool = False
    same_for_heads: bool = False
    by_key: bool = False

    def bounds(self, cells: Block) -> KeyBounds:
        if self.att.rules.by_score:
            return KeyBounds(hull(cells.keys), NO_KEYS)
        each = [self._of(cells, head) for head in self.heads]
        outer = [bounds.outer for bounds in each if bounds.outer] or [range(0)]
        inner = max((bounds.inner for bounds in each), key=len)
        return KeyBounds(range(min(one.start for one in outer), max(one.stop for one in outer)), inner)

    def _of(self, cells: Block, head: int) -> KeyBounds:
        """Return the bounds of one head: see `Rule.bounds`."""
        at, columns = cells._replace(head=head), hull(cells.keys)
        found = [rule.bounds(at) for rule in self.att.rules.rules]
        outer = reduce(overlap, (bounds.outer for bounds in found), columns)
        return KeyBounds(outer, reduce(overlap, (bounds.inner for bounds in found), columns))

    def allowed(self, cells: Block) -> Allowed:
        found: Allowed = False
        for head in self.heads:
            of_head = allowed_cells(self.att, cells._replace(head=head))
            if of_head is True:
                return True
            found = of_head if found is False else _either(found, of_head, cells, self.att.device)
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
    att.find(0, 0)  # warns if tensors have changed
    rules = Rules(att.rules.rules if att.rules.same_for_heads else (AnyHead(att, chosen),))
    shape = Shape(att.shape.B, 1, 1, att.shape.Q, att.shape.K, None, None)
    options = AttentionOptions(is_causal=att.is_causal, window=att.window)
    found = att.of(CombinedHeads(att, chosen, how), None, shape, options, rules=rules)
    return found if att.part is None else found.as_part(None, *att.part[1:])
