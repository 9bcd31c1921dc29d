"""All masks and biases of an attention in one form, evaluated block by block: `Rules`.

Nothing is expanded to (Q, K). For a block, a rule returns True if all cells are allowed, False if none is, and
otherwise a bool tensor.
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

Allowed = Tensor | bool  # bool, broadcasts to (queries, keys); True if all cells are allowed, False if none is
MIN_INNER_KEYS = 512  # a shorter inner range gets no blocks of its own


class Rule(Protocol):
    """One reason to block cells."""

    @property
    def shared(self) -> bool:
        """Whether it is the same for all samples and heads."""

    @property
    def same_for_heads(self) -> bool:
        """Whether it is known to be the same for all heads of a sample."""

    @property
    def by_key(self) -> bool:
        """Whether it is known to be the same for all queries of a sample and head."""

    def bounds(self, cells: Block) -> KeyBounds:
        """Return the keys that some of the queries may attend to, and those that all of them may attend to."""

    def band_limits(self, batch: int) -> BandLimits | None:
        """Return the whole rule for a sample as three limits; None if it is not that simple."""

    def row_ends(self, cells: Block) -> tuple[Tensor, Tensor] | None:
        """Return the first and the end key of each query, (queries,) int64 each; None unless each row is one range."""

    def parts_of_all(self) -> tuple[Rule, ...]:
        """Return the rules that must all allow a cell; only itself for a simple rule."""

    def allowed(self, cells: Block) -> Allowed:
        """Return which of the cells are allowed: bool (queries, keys), or True or False for all."""

    def describe(self, batch: int) -> str:
        """Return the rule for a sample as text."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the rule, by the user's names."""


@dataclass(frozen=True, eq=False)
class ByIndex:
    """A mask function, evaluated for each cell only where its bounds do not decide."""

    mask: Mask
    device: torch.device

    @property
    def shared(self) -> bool:
        return self.mask.shared

    @property
    def same_for_heads(self) -> bool:
        return self.mask.shared or self.mask.band_limits(0) is not None  # band limits do not depend on heads

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
    """Evaluate a mask function for each cell: bool (queries, keys)."""
    b, h, q_idx, kv_idx = indices(cells, device)
    found = mask(b, h, q_idx.mT, kv_idx.mT)  # transposed, like the engine's blocks
    return found.expand(len(cells.keys), len(cells.queries)).mT


def indices(cells: Block, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the arguments of FlexAttention's functions: b and h (), q_idx (queries, 1) and kv_idx (1, keys)."""
    b, h = torch.tensor([cells.batch, cells.head], device=device).unbind()
    return b, h, positions(cells.queries, device)[:, None], positions(cells.keys, device)[None, :]


class _ByTensor:
    """A rule that reads its cells from a tensor, (B or 1, H or 1, Q or 1, K or 1)."""

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
    """A bool or integer mask: nonzero cells are allowed, or blocked with `hide`."""

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
    """A tensor that is added to the scores; it blocks cells at or below `lowest`, the lowest finite number."""

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
        return settled((part <= self.lowest).logical_not_())  # NaN stays allowed, so that it shows

    def apply(self, S: Tensor, cells: Block) -> Tensor:
        return S.add_(cut(self.added, cells).mT)  # (keys, queries)

    def tensors(self) -> dict[str, Tensor]:
        return {self.name: self.added}


@dataclass(frozen=True, eq=False)
class ScoreFunction:
    """A bias like FlexAttention's score_mod, f(score, b, h, q_idx, kv_idx) -> score. It blocks cells by −∞."""

    function: Any

    def apply(self, S: Tensor, cells: Block) -> Tensor:
        changed = self.function(S.mT, *indices(cells, S.device))
        return S.copy_(changed.expand(S.shape[1], S.shape[0]).mT)  # (keys, queries)

    def describe(self, batch: int) -> str:
        """Return the name of the function."""
        return f"bias {name_of(self.function)}".strip()

    def tensors(self) -> dict[str, Tensor]:
        return {}


class Rules(NamedTuple):
    """All rules and biases: a cell is allowed if every rule allows it, and each bias changes its score, in order."""

    rules: tuple[Rule, ...] = ()
    biases: tuple[Bias | ScoreFunction, ...] = ()

    @property
    def by_score(self) -> bool:
        """Whether a function of the score may block a cell."""
        return any(isinstance(bias, ScoreFunction) for bias in self.biases)

    @property
    def same_for_heads(self) -> bool:
        """Whether the allowed cells are known to be the same for all heads of a sample."""
        return not self.by_score and all(rule.same_for_heads for rule in self.rules)

    def span(self, cells: Block) -> range:
        """Return the range of keys that some of the queries may attend to."""
        return reduce(overlap, (rule.bounds(cells).outer for rule in self.rules), hull(cells.keys))

    def pieces(self, cells: Block, width: int, limit: int) -> Iterator[range]:
        """Cut the span into pieces of at most `limit` keys: whole bins of `width` keys, or a part of one.

        Pieces also end at the ends of inner ranges. So the triangle at a diagonal is small, and other pieces need no
        mask.
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
        """Return all rules as three limits; None if they are not that simple."""
        found = BandLimits()
        for rule in self.rules:
            one = rule.band_limits(batch)
            if one is None or self.by_score:
                return None
            found = found.meet(one)
        return None if self.by_score else found

    def allowed(self, cells: Block) -> Allowed:
        """Return which cells the rules allow: bool (queries, keys), or True or False for all."""
        if not len(cells.queries) or not len(cells.keys):
            return True
        found: Allowed = True
        for rule in self.rules:
            found = both(found, rule.allowed(cells))
            if found is False:
                return False
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the rules, by the user's names."""
        return {name: tensor for rule in self.rules for name, tensor in rule.tensors().items()}


def both(one: Allowed, other: Allowed) -> Allowed:
    """Return the cells that both allow."""
    if one is True or other is False:
        return other
    if other is True or one is False:
        return one
    return settled(one & other)


def settled(allowed: Tensor) -> Allowed:
    """Return True or False if all cells are equal, otherwise the cells."""
    first = allowed[:1]
    if bool(first.any()) and not bool(first.all()):
        return allowed  # the first row already decides
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
