"""Sources of the numbers of a block: products of q and k, or a matrix that the user gave."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from .._utils.indexing import Indices, take
from .matmul import Product, Scratch

CARRIED = ("value_norm", "logit", "saliency")  # what a weight contributes downstream: see `carried`
Stage = Literal["scores", "scaled", "capped", "masked", "weights", "contribution", "value_norm", "logit", "saliency"]
STAGES: tuple[Stage, ...] = get_args(Stage)  # in the order of computation

HeadOfSource = tuple[Any, int, int]  # a `base.Head`, which cannot be imported here: an attention, a sample and a head


class SourceRows(Protocol):
    """Some queries of a head, times a scale, to compute blocks of."""

    def block(self, keys: Indices, scratch: Scratch | None) -> Tensor:
        """Return scale × the stage of the queries and some keys.

        Returns:
            (keys, queries), float32 or float64, possibly in the memory of `scratch`. Never a view of the user's
            tensors, because callers write into it.
        """


class Source(Protocol):
    """Provides one stage of any block; later stages are computed from it."""

    @property
    def gives(self) -> Literal["scores", "weights"]:
        """The stage it provides."""

    @property
    def default_scale(self) -> float:
        """The factor of scores if the user gives none."""

    @property
    def description(self) -> tuple[str, ...]:
        """What it is made of, as short texts; () if the options describe it."""

    @property
    def derived(self) -> bool:
        """Whether it is computed from another attention."""

    def rows(self, batch: int, head: int, queries: Indices, scale: float) -> SourceRows:
        """Return some queries of a head, times a scale."""

    def tensors(self) -> dict[str, Tensor]:
        """Return its tensors, by the user's names; the first is (batch, head, query, …)."""

    def prepare(self, batch: int, queries: Indices) -> Generator[int, None, None]:
        """Compute in advance what blocks of some queries need; yield the number of cells of each part."""

    def heads_in_cells(self, batch: int, head: int) -> tuple[HeadOfSource, ...]:
        """Return the heads whose cells are combined into a cell of this head; () if it reads tensors."""

    def rows_needed(self, batch: int, head: int, queries: range) -> tuple[tuple[HeadOfSource, range], ...] | None:
        """Return the heads and queries whose log-normalizers blocks of some queries need; None for their own."""

    @property
    def zero_where_blocked(self) -> bool:
        """Whether its weights are 0 in all blocked cells, so that excluded blocks need not be computed."""

    @property
    def has_sinks(self) -> bool:
        """Whether learned sinks take a share of its weights."""

    def sink_weights(self, batch: int, head: int, queries: Indices) -> Tensor | None:
        """Return the sink weights of some queries, (queries,); None if they are not known."""


class TensorSource:
    """The common part of all sources that only read tensors."""

    description: tuple[str, ...] = ()
    derived = False
    has_sinks = False
    zero_where_blocked = False

    def prepare(self, batch: int, queries: Indices) -> Generator[int, None, None]:
        yield from ()

    def heads_in_cells(self, batch: int, head: int) -> tuple[HeadOfSource, ...]:
        return ()

    def rows_needed(self, batch: int, head: int, queries: range) -> tuple[tuple[HeadOfSource, range], ...] | None:
        return None

    def sink_weights(self, batch: int, head: int, queries: Indices) -> Tensor | None:
        return None


@dataclass(frozen=True, eq=False)
class Products(TensorSource):
    """scores = q · kᵀ, computed on demand."""

    q: Tensor  # (B, H, Q, D)
    k: Tensor  # (B, G, K, D)
    gives: Literal["scores"] = "scores"

    @property
    def default_scale(self) -> float:
        """1 / √D (Vaswani et al. 2017, eq. 1)."""
        return float(self.q.shape[3] ** -0.5)

    def rows(self, batch: int, head: int, queries: Indices, scale: float) -> SourceRows:
        wide = torch.promote_types(self.q.dtype, torch.float32)
        q, k = self.of_head(batch, head, queries)
        return ProductRows(Product(q.to(wide) * scale), k, wide)

    def of_head(self, batch: int, head: int, queries: Indices) -> tuple[Tensor, Tensor]:
        """Return some queries of a head, (queries, D), and its keys, (K, D)."""
        group = head // (self.q.shape[1] // self.k.shape[1])
        return take(self.q[batch, head], queries, 0), self.k[batch, group]

    def tensors(self) -> dict[str, Tensor]:
        return {"q": self.q, "k": self.k}

    def changed(self, change: Callable[[Tensor], Tensor]) -> Products:
        """Return the products of the changed tensors."""
        return Products(change(self.q), change(self.k))


class ProductRows:
    """Some queries, and the keys of their head."""

    def __init__(self, product: Product, k: Tensor, wide: torch.dtype):
        self.product, self.k, self.wide = product, k, wide  # k is (K, D)

    def block(self, keys: Indices, scratch: Scratch | None) -> Tensor:
        part = take(self.k, keys, 0)
        return self.product.of(part if part.dtype == self.wide else part.to(self.wide), scratch)  # (keys, queries)


@dataclass(frozen=True, eq=False)
class Given(TensorSource):
    """A given matrix, never copied as a whole."""

    matrix: Tensor  # (B, H, Q, K)
    gives: Literal["scores", "weights"]
    default_scale: float = 1.0

    def rows(self, batch: int, head: int, queries: Indices, scale: float) -> SourceRows:
        return GivenRows(take(self.matrix[batch, head], queries, 0), scale)

    def tensors(self) -> dict[str, Tensor]:
        return {self.gives: self.matrix}

    def changed(self, change: Callable[[Tensor], Tensor]) -> Given:
        """Return the changed matrix as a source."""
        return Given(change(self.matrix), self.gives)


class GivenRows:
    """Some rows of a matrix."""

    def __init__(self, rows: Tensor, scale: float):
        self.rows, self.scale = rows, scale  # (queries, K)

    def block(self, keys: Indices, scratch: Scratch | None) -> Tensor:
        part = take(self.rows, keys, 1).mT  # (keys, queries)
        wide = torch.promote_types(part.dtype, torch.float32)
        return torch.mul(part.to(wide), self.scale, out=None if scratch is None else scratch.cut(*part.shape))
