"""An attention over the patches of an image, on a larger grid of the same image, by area.

Layers of a U-Net attend over grids of several sizes. On the largest one, a query has the mean of the rows of the
patches that it covers, weighted by area, and the weight of a key is divided among the larger grid's patches that it
covers, by area: rows still sum to 1.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from .._rules.options import AttentionOptions
from .._rules.rules import Rules
from .._utils.indexing import Block, Indices, cuts, positions
from .base import AttentionBase, Head, Shape
from .matmul import Scratch
from .softmax import exact_block, normalizers
from .sources import SourceRows
from .stages import allowed_cells

ROWS_AT_ONCE = 256
Size = tuple[int, int]


def shares(small: int, large: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the share of each of `large` parts of an axis that lies in each of `small` parts, (large, small).

    >>> shares(2, 3)
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000],
            [0.0000, 1.0000]], dtype=torch.float64)
    """
    ends = torch.arange(large + 1, dtype=torch.float64, device=device) / large
    others = torch.arange(small + 1, dtype=torch.float64, device=device) / small
    low = torch.maximum(ends[:-1, None], others[None, :-1])
    high = torch.minimum(ends[1:, None], others[None, 1:])
    return (high - low).clamp_min(0) * large


@dataclass(frozen=True, eq=False)
class LargerGrid:
    """The weights of an attention on a larger grid: a `Source`.

    Args:
        att: the attention, whose queries are patches, and whose keys may be.
        small, large: rows and columns.
        keys: whether keys are patches of the same grid too.
    """

    att: AttentionBase
    small: Size
    large: Size
    keys: bool
    gives: Literal["weights"] = "weights"
    default_scale: float = 1.0
    derived: bool = True

    @property
    def description(self) -> tuple[str, ...]:
        """The sizes of both grids."""
        (rows, columns), (more, wider) = self.small, self.large
        return (f"{rows} × {columns} patches on {more} × {wider}, by area",)

    @cached_property
    def _axes(self) -> tuple[Tensor, Tensor]:
        """The shares along rows and along columns, (large, small) each."""
        return tuple(  # type: ignore[return-value]
            shares(*one, self.att.device).to(self.att.result_dtype) for one in zip(self.small, self.large, strict=True)
        )

    def shares_of(self, places: Tensor) -> Tensor:
        """Return the share of each patch of the attention in some patches of the larger grid, (places, small)."""
        down, across = self._axes
        rows, columns = down[places // self.large[1]], across[places % self.large[1]]
        return (rows[:, :, None] * columns[:, None, :]).flatten(1)

    @property
    def area(self) -> float:
        """How many patches of the larger grid one patch covers."""
        return (self.large[0] * self.large[1]) / (self.small[0] * self.small[1])

    def rows(self, batch: int, head: int, queries: Indices, scale: float) -> SourceRows:
        return LargerRows(self, batch, head, queries, scale)

    def tensors(self) -> dict[str, Tensor]:
        sinks = {} if self.att.sinks is None else {"sinks": self.att.sinks}
        return {**self.att.source.tensors(), **sinks, **self.att.rules.tensors()}

    def prepare(self, batch: int, queries: Indices) -> Generator[int, None, None]:
        yield from ()

    def heads_in_cells(self, batch: int, head: int) -> tuple[Head, ...]:
        return ()

    def rows_needed(self, batch: int, head: int, queries: range) -> tuple[tuple[Head, range], ...]:
        return ((Head(self.att, batch, head), range(self.att.shape.Q)),)

    zero_where_blocked = True
    has_sinks = False

    def sink_weights(self, batch: int, head: int, queries: Indices) -> Tensor | None:
        return None


class LargerRows:
    """Some queries of the larger grid."""

    def __init__(self, source: LargerGrid, batch: int, head: int, queries: Indices, scale: float) -> None:
        self.source, self.batch, self.head, self.scale, self.queries = source, batch, head, scale, queries

    def block(self, keys: Indices, scratch: Scratch | None) -> Tensor:
        source, att = self.source, self.source.att
        of_query = source.shares_of(positions(self.queries, att.device))
        of_key = source.shares_of(positions(keys, att.device)).mT / source.area if source.keys else None
        found = torch.zeros(len(self.queries), len(keys), dtype=att.result_dtype, device=att.device)
        needed = (of_query > 0).any(0).nonzero()[:, 0]
        for at in cuts(range(len(needed)), 1, ROWS_AT_ONCE):
            rows = needed[at.start : at.stop]
            cells = Block(self.batch, self.head, rows, range(att.shape.K) if source.keys else keys)
            pair = normalizers(Head(att, self.batch, self.head), rows) if att.source.gives == "scores" else None
            weights = exact_block(att, cells, "weights", pair)
            weights = torch.where(_allowed(att, cells), weights, 0)
            found += of_query[:, rows] @ (weights if of_key is None else weights @ of_key)
        return found.mul_(self.scale).mT.contiguous()


def _allowed(att: AttentionBase, cells: Block) -> Tensor:
    allowed = allowed_cells(att, cells)
    return torch.as_tensor(allowed, device=att.device)


def on_larger_grid(att: Any, small: Size, large: Size) -> Any:
    """Return an attention over the patches of a grid, on a larger grid.

    Raises:
        ValueError: its queries are not these patches.
    """
    if small == large:
        return att
    shape, keys = att.shape, att.shape.K == att.shape.Q
    if small[0] * small[1] != shape.Q:
        raise ValueError(f"a grid of {small[0]} × {small[1]} does not have {shape.Q:,} patches")
    many = large[0] * large[1]
    source = LargerGrid(att, small, large, keys)
    larger = Shape(shape.B, shape.H, shape.H, many, many if keys else shape.K, None, None)
    return att.of(source, None, larger, AttentionOptions(), rules=Rules(()))
