"""Where the numbers of a block come from: products of q and k, or a matrix that the user has."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from .._utils.indexing import Indices, take
from .matmul import Product, Scratch

CARRIED = ("value_norm", "logit", "saliency")  # what a weight carries: see `carried`
Stage = Literal["scores", "scaled", "capped", "masked", "weights", "contribution", "value_norm", "logit", "saliency"]
STAGES: tuple[Stage, ...] = get_args(Stage)  # in the order of computation

HeadOfSource = tuple[Any, int, int]  # `base.Head`, which knows sources: an attention, a sample and a head


class SourceRows(Protocol):
    """Some queries of a head, multiplied by a scale: their blocks, one after the other."""

    def block(self, keys: Indices, scratch: Scratch | None) -> Tensor:
        """Return scale × the stage of the queries and some keys.

        Returns:
            (keys, queries), float32 or float64, in the memory of `scratch` if that is of use. Never a view of what the
            user gave: the caller writes into it.
        """


class Source(Protocol):
    """Gives one stage of any block; the stages after it are computed from that."""

    @property
    def gives(self) -> Literal["scores", "weights"]:
        """Which stage that is."""

    @property
    def default_scale(self) -> float:
        """What scores are multiplied by where nobody says."""

    @property
    def description(self) -> tuple[str, ...]:
        """What it is made of, each part in a few words; () where the options tell it."""

    @property
    def derived(self) -> bool:
        """Whether it is computed from another attention."""

    def rows(self, batch: int, head: int, queries: Indices, scale: float) -> SourceRows:
        """Return some queries of a head, multiplied by a scale."""

    def tensors(self) -> dict[str, Tensor]:
        """Return what it is read from, by the user's name for it; the first has (batch, head, query, …)."""

    def prepare(self, batch: int, queries: Indices) -> Generator[int, None, None]:
        """Compute what blocks of some queries need, so that none has to wait; yield the cells of each part."""

    def heads_in_cells(self, batch: int, head: int) -> tuple[HeadOfSource, ...]:
        """Return the heads of which one cell each is computed for a cell of a head; () if it is read from tensors."""

    def rows_needed(self, batch: int, head: int, queries: range) -> tuple[tuple[HeadOfSource, range], ...] | None:
        """Return whose log-normalizers blocks of some queries need: heads, and queries of each; None for their own."""

    @property
    def zero_where_blocked(self) -> bool:
        """Whether its weights are 0 wherever the rules block: then what known rules exclude need not be computed."""

    @property
    def has_sinks(self) -> bool:
        """Whether learned sinks take a share of the weights that it gives."""

    def sink_weights(self, batch: int, head: int, queries: Indices) -> Tensor | None:
        """Return what learned sinks take of the weights of some queries, (queries,); None where it is not known."""


class TensorSource:
    """What all sources have in common that are read from tensors alone."""

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
    """scores = q · kᵀ, computed where they are looked at."""

    q: Tensor  # (B, H, Q, D)
    k: Tensor  # (B, G, K, D)
    gives: Literal["scores"] = "scores"

    @property
    def default_scale(self) -> float:
        """1 / √D (Vaswani et al. 2017, eq. 1)."""
        return float(self.q.shape[3] ** -0.5)

    def rows(self, batch: int, head: int, queries: Indices, scale: float) -> SourceRows:
        group = head // (self.q.shape[1] // self.k.shape[1])
        wide = torch.promote_types(self.q.dtype, torch.float32)
        q = take(self.q[batch, head], queries, 0).to(wide)  # (queries, D)
        return ProductRows(Product(q * scale), self.k[batch, group], wide)

    def tensors(self) -> dict[str, Tensor]:
        return {"q": self.q, "k": self.k}

    def changed(self, change: Callable[[Tensor], Tensor]) -> Products:
        """Return the products of the same tensors, each with a change made to it."""
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
    """A matrix that is there already, never copied whole."""

    matrix: Tensor  # (B, H, Q, K)
    gives: Literal["scores", "weights"]
    default_scale: float = 1.0

    def rows(self, batch: int, head: int, queries: Indices, scale: float) -> SourceRows:
        return GivenRows(take(self.matrix[batch, head], queries, 0), scale)

    def tensors(self) -> dict[str, Tensor]:
        return {self.gives: self.matrix}

    def changed(self, change: Callable[[Tensor], Tensor]) -> Given:
        """Return the same matrix with a change made to it."""
        return Given(change(self.matrix), self.gives)


class GivenRows:
    """Some rows of a matrix."""

    def __init__(self, rows: Tensor, scale: float):
        self.rows, self.scale = rows, scale  # (queries, K)

    def block(self, keys: Indices, scratch: Scratch | None) -> Tensor:
        part = take(self.rows, keys, 1).mT  # (keys, queries)
        wide = torch.promote_types(part.dtype, torch.float32)
        return torch.mul(part.to(wide), self.scale, out=None if scratch is None else scratch.cut(*part.shape))
