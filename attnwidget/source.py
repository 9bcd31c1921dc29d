"""Where the numbers of a block come from: products of q and k, or a matrix that somebody has in hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from .places import Cells, take
from .precision import cut_out, product

STAGES = ("scores", "scaled", "capped", "masked", "weights", "contribution")  # in the order of computation


class Source(Protocol):
    """Gives one stage of any block; the stages after it are computed from that."""

    @property
    def gives(self) -> Literal["scores", "weights"]:
        """Which stage that is."""

    def block(self, cells: Cells, scale: float, room: Tensor | None) -> Tensor:
        """scale × the stage, (keys, queries), in float32 or float64; in `room` if that is of use, and never a view of
        what the user gave: what it is handed to writes into it."""

    def tensors(self) -> dict[str, Tensor]:
        """What it is read from, by the user's name for it; the first has (batch, head, query, …)."""


@dataclass(frozen=True, eq=False)
class Products:
    """scores = q · kᵀ, computed where they are looked at."""

    q: Tensor  # (B, H, Q, D)
    k: Tensor  # (B, G, K, D)
    gives: Literal["scores"] = "scores"

    def block(self, cells: Cells, scale: float, room: Tensor | None) -> Tensor:
        group = cells.head // (self.q.shape[1] // self.k.shape[1])
        wide = torch.promote_types(self.q.dtype, torch.float32)
        q = take(self.q[cells.batch, cells.head], cells.queries, 0).to(wide)  # (queries, D)
        k = take(self.k[cells.batch, group], cells.keys, 0).to(wide)  # (keys, D)
        return product(k, q * scale, room)  # (keys, queries)

    def tensors(self) -> dict[str, Tensor]:
        return {"q": self.q, "k": self.k}


@dataclass(frozen=True, eq=False)
class Given:
    """A matrix that is there already, never copied whole."""

    matrix: Tensor  # (B, H, Q, K)
    gives: Literal["scores", "weights"]

    def block(self, cells: Cells, scale: float, room: Tensor | None) -> Tensor:
        part = take(take(self.matrix[cells.batch, cells.head], cells.queries, 0), cells.keys, 1).mT  # (keys, queries)
        wide = torch.promote_types(part.dtype, torch.float32)
        return torch.mul(part.to(wide), scale, out=cut_out(room, *part.shape))

    def tensors(self) -> dict[str, Tensor]:
        return {self.gives: self.matrix}
