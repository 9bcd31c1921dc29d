"""What is in force between scores and weights, in one form that is asked block by block: `Rules`.

Masks and biases stay as they were given: nothing is expanded to (Q, K). A rule says of a block True where all of its
cells are allowed and False where none is, and gives a tensor of bools only for what lies between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .._utils.indexing import Block, Indices, cuts, hull, positions, take
from ..masks import NO_KEYS, BandLimits, KeyBounds, Mask, MaskFunction, name_of, overlap

Allowed = Tensor | bool  # of some cells: bool (queries, keys) or broadcasts to it; True for all, False for none
MIN_INNER_KEYS = 512  # keys: an inner part of fewer is not worth blocks of its own


class Rule(Protocol):
    """One reason for which cells are blocked."""

    @property
    def shared(self) -> bool:
        """Whether all samples and heads have the same."""

    @property
    def same_for_heads(self) -> bool:
        """Whether it is known to be the same for all heads of a sample."""

    @property
    def by_key(self) -> bool:
        """Whether it is known to be the same for all queries of a sample and head."""

    def bounds(self, cells: Block) -> KeyBounds:
        """Return which keys the queries may attend to at most, and to which all of them may."""

    def band_limits(self, batch: int) -> BandLimits | None:
        """Return the whole rule for a sample in three numbers, if it is that simple."""

    def row_ends(self, cells: Block) -> tuple[Tensor, Tensor] | None:
        """Return where the keys of each query begin and end, if each row is one run: (queries,) int64 twice."""

    def parts_of_all(self) -> tuple[Rule, ...]:
        """Return rules which all have to allow a cell; itself, where it is one."""

    def allowed(self, cells: Block) -> Allowed:
        """Return which of the cells are allowed: bool (queries, keys), or True or False for all."""

    def describe(self, batch: int) -> str:
        """Return the rule for a sample in words."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that the rule is read from, by the user's name for them."""


@dataclass(frozen=True, eq=False)
class ByIndex:
    """A mask function, asked cell by cell only where its bounds leave the answer open."""

    mask: Mask
    device: torch.device

    @property
    def shared(self) -> bool:
        return self.mask.shared

    @property
    def same_for_heads(self) -> bool:
        return self.mask.shared or self.mask.band_limits(0) is not None  # three numbers know no heads

    @property
    def by_key(self) -> bool:
        return self.mask.by_key

    def bounds(self, cells: Block) -> KeyBounds:
        return self.mask.bounds(cells)

    def band_limits(self, batch: int) -> BandLimits | None:
        return self.mask.band_limits(batch)

    def row_ends(self, cells: Block) -> tuple[Tensor, Tensor] | None:
        return self.mask.row_ends(cells)

    def parts_of_all(self) -> tuple[Rule, ...]:
        return tuple(ByIndex(part, self.device) for part in self.mask.parts_of_all())

    def describe(self, batch: int) -> str:
        return self.mask.describe(batch)

    def allowed(self, cells: Block) -> Allowed:
        outer, inner = self.bounds(cells)
        columns = hull(cells.keys)
        if not outer:
            return False
        if inner == columns:
            return True
        found = ask(self.mask, cells, self.device)
        return settled(found) if self.mask.band_limits(cells.batch) is None else found

    def tensors(self) -> dict[str, Tensor]:
        return {}


def ask(mask: MaskFunction, cells: Block, device: torch.device) -> Tensor:
    """Ask a mask function of each cell: bool (queries, keys)."""
    b, h, q_idx, kv_idx = indices(cells, device)
    found = mask(b, h, q_idx.mT, kv_idx.mT)  # laid out as the engine's blocks
    return found.expand(len(cells.keys), len(cells.queries)).mT


def indices(cells: Block, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return b and h (), q_idx (queries, 1) and kv_idx (1, keys), as FlexAttention's functions take them."""
    b, h = torch.tensor([cells.batch, cells.head], device=device).unbind()
    return b, h, positions(cells.queries, device)[:, None], positions(cells.keys, device)[None, :]


class _ByTensor:
    """A rule whose cells are read from a tensor, (B or 1, H or 1, Q or 1, K or 1)."""

    @property
    def _cells(self) -> Tensor:
        raise NotImplementedError

    @property
    def shared(self) -> bool:
        return self._cells.shape[:2] == (1, 1)

    @property
    def same_for_heads(self) -> bool:
        return self._cells.shape[1] == 1

    @property
    def by_key(self) -> bool:
        return self._cells.shape[2] == 1

    def bounds(self, cells: Block) -> KeyBounds:
        return KeyBounds(hull(cells.keys), NO_KEYS)

    def band_limits(self, batch: int) -> BandLimits | None:
        return None

    def row_ends(self, cells: Block) -> tuple[Tensor, Tensor] | None:
        return None


@dataclass(frozen=True, eq=False)
class Keep(_ByTensor):
    """A bool or integer mask: what is not 0 may be attended to, or where `hide`, may not."""

    mask: Tensor  # (B or 1, H or 1, Q or 1, K or 1)
    hide: bool

    @property
    def _cells(self) -> Tensor:
        return self.mask

    def parts_of_all(self) -> tuple[Rule, ...]:
        return (self,)

    def describe(self, batch: int) -> str:
        return "mask: 1 blocks" if self.hide else "mask"

    def allowed(self, cells: Block) -> Allowed:
        part = cut(self.mask, cells)
        return settled(part == 0 if self.hide else part.bool())

    def tensors(self) -> dict[str, Tensor]:
        return {"mask": self.mask}


@dataclass(frozen=True, eq=False)
class Bias(_ByTensor):
    """What is added to the scores; at or below `lowest`, the least finite number, it blocks."""

    name: str  # mask or bias
    added: Tensor  # (B or 1, H or 1, Q or 1, K or 1)
    lowest: float

    @property
    def _cells(self) -> Tensor:
        return self.added

    def parts_of_all(self) -> tuple[Rule, ...]:
        return (self,)

    def describe(self, batch: int) -> str:
        return self.name

    def allowed(self, cells: Block) -> Allowed:
        part = cut(self.added, cells)
        if bool(part.amin() > self.lowest):
            return True
        return settled((part <= self.lowest).logical_not_())  # NaN is allowed, and so seen

    def apply(self, S: Tensor, cells: Block) -> Tensor:
        return S.add_(cut(self.added, cells).mT)  # (keys, queries)

    def tensors(self) -> dict[str, Tensor]:
        return {self.name: self.added}


@dataclass(frozen=True, eq=False)
class ScoreFunction:
    """A bias as FlexAttention's score_mod: f(score, b, h, q_idx, kv_idx) -> score. It may block, with −∞."""

    function: Any

    def apply(self, S: Tensor, cells: Block) -> Tensor:
        changed = self.function(S.mT, *indices(cells, S.device))
        return S.copy_(changed.expand(S.shape[1], S.shape[0]).mT)  # (keys, queries)

    def describe(self, batch: int) -> str:
        """Return the function in words."""
        return f"bias {name_of(self.function)}".strip()

    def tensors(self) -> dict[str, Tensor]:
        return {}


class Rules(NamedTuple):
    """All that is in force: a cell is allowed if every rule allows it; every bias changes its score, in order."""

    rules: tuple[Rule, ...] = ()
    biases: tuple[Bias | ScoreFunction, ...] = ()

    @property
    def by_score(self) -> bool:
        """Whether a cell may also be blocked by what a function makes of its score."""
        return any(isinstance(bias, ScoreFunction) for bias in self.biases)

    @property
    def same_for_heads(self) -> bool:
        """Whether which cells are allowed is known to be the same for all heads of a sample."""
        return not self.by_score and all(rule.same_for_heads for rule in self.rules)

    def span(self, cells: Block) -> range:
        """Return the range of keys outside of which none of the queries may attend."""
        return reduce(overlap, (rule.bounds(cells).outer for rule in self.rules), hull(cells.keys))

    def pieces(self, cells: Block, width: int, limit: int) -> Iterator[range]:
        """Cut the span into pieces of at most `limit` keys, whole bins of `width` or a part of one.

        A piece ends where a rule begins or ceases to allow everything: a triangle is then small, and what is beside it
        needs no mask.
        """
        span = self.span(cells)
        inner = [rule.bounds(cells).inner for rule in self.rules]
        edges = [
            (-(-keys.start // width) * width, keys.stop // width * width)
            for keys in inner
            if len(keys) >= MIN_INNER_KEYS
        ]
        ends = sorted({*span[:1], span.stop, *(at for pair in edges for at in pair if span.start < at < span.stop)})
        for start, stop in pairwise(ends):
            yield from cuts(range(start, stop), width, limit)

    def band_limits(self, batch: int) -> BandLimits | None:
        """Return all rules in three numbers, if they are that simple."""
        found = BandLimits()
        for rule in self.rules:
            one = rule.band_limits(batch)
            if one is None or self.by_score:
                return None
            found = found.meet(one)
        return None if self.by_score else found

    def allowed(self, cells: Block) -> Allowed:
        """Return which of the cells the rules allow: bool (queries, keys), or True or False for all."""
        if not len(cells.queries) or not len(cells.keys):
            return True
        found: Allowed = True
        for rule in self.rules:
            found = both(found, rule.allowed(cells))
            if found is False:
                return False
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that the rules are read from, by the user's name for them."""
        return {name: tensor for rule in self.rules for name, tensor in rule.tensors().items()}


def both(one: Allowed, other: Allowed) -> Allowed:
    """Return what two rules allow together."""
    if one is True or other is False:
        return other
    if other is True or one is False:
        return one
    return settled(one & other)


def settled(allowed: Tensor) -> Allowed:
    """Return True or False where all cells agree, else the cells."""
    first = allowed[:1]
    if bool(first.any()) and not bool(first.all()):
        return allowed  # a look at one row spares that at the others
    by_key = allowed.sum(0, dtype=torch.int32)  # (keys or 1,), several times faster than any() and all()
    if not by_key.any():
        return False
    return True if bool((by_key == allowed.shape[0]).all()) else allowed


def cut(x: Tensor, cells: Block) -> Tensor:
    """Return the part of a mask or bias for some cells, (queries or 1, keys or 1)."""
    x = x[cells.batch if x.shape[0] > 1 else 0, cells.head if x.shape[1] > 1 else 0]
    for axis, places in enumerate((cells.queries, cells.keys)):
        if x.shape[axis] > 1:
            x = take(x, places, axis)
    return x  # (queries or 1, keys or 1)


def whole(allowed: Allowed, queries: Indices, keys: Indices, device: torch.device) -> Tensor:
    """Return allowed cells as a bool tensor (queries, keys)."""
    allowed = torch.tensor(allowed, device=device) if isinstance(allowed, bool) else allowed
    return allowed.expand(len(queries), len(keys))
