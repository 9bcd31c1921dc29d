"""Heads kept without q and k: an exact pooled level of their weights, and some numbers of each row."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from math import ceil
from typing import Literal

import torch
from torch import Tensor

from .._utils.indexing import Indices, take
from .base import AttentionBase
from .pooling import pool_first
from .regions import Region
from .sources import GivenRows, SourceRows, TensorSource

LARGEST_LEVEL = 128  # the most rows and columns of a kept level


class OnlyOverviewError(ValueError):
    """Raised for anything that needs q and k, if only overviews were kept."""


def bin_width(positions: int) -> int:
    """Return the number of positions in a bin of the level, a power of two.

    >>> bin_width(100), bin_width(129), bin_width(2048)
    (1, 2, 16)
    """
    return 1 << max(0, ceil(positions / LARGEST_LEVEL) - 1).bit_length()


@dataclass(frozen=True, eq=False)
class KeptLevels(TensorSource):
    """Weights max-pooled into bins, or single weights for a short text: a `Source`."""

    values: Tensor  # (B, H, rows, columns) float32 or float64
    allowed: Tensor  # (B or 1, H or 1, rows, columns) bool, which bins have an allowed cell
    log_normalizers: Tensor  # (B, H, Q); −∞ for a fully masked query
    metric_sums: Tensor  # (B, metrics, H) float64, over all queries
    metric_counts: Tensor  # (B, metrics, H) int64, how many queries are summed
    bins: tuple[int, int]  # queries and keys in a bin
    sinks: Tensor | None = None  # (H,) learned sink logits
    gives: Literal["scores", "weights"] = "weights"
    default_scale: float = 1.0

    @property
    def description(self) -> tuple[str, ...]:  # type: ignore[override]
        """What is kept, as short text."""
        return ("weights",) if self.is_whole else (f"an overview in bins of {self.size}",)

    @property
    def size(self) -> str:
        """The size of the bins as text."""
        return f"{self.bins[0]:,} × {self.bins[1]:,}"

    @property
    def is_whole(self) -> bool:
        """Whether each bin is a single weight, so that all weights are known."""
        return self.bins == (1, 1)

    def refusal(self, what: str) -> OnlyOverviewError:
        """Return the error for something that is not known; `what` is its name and verb."""
        kept = "the weights" if self.is_whole else f"overviews, in bins of {self.size} cells"
        return OnlyOverviewError(
            f"this capture kept only {kept} (keep='overview'), so {what} not known: capture again with keep='tensors'"
        )

    def whole_bins(self, query_bin: int, key_bin: int) -> tuple[int, int]:
        """Return the smallest bins at least this wide that are made of whole kept bins."""
        rows, columns = (ceil(width / own) * own for width, own in zip((query_bin, key_bin), self.bins, strict=True))
        return rows, columns

    def rows(self, batch: int, head: int, queries: Indices, scale: float) -> SourceRows:
        if not self.is_whole:
            raise self.refusal("single rows, keys and tiles are")
        return GivenRows(take(self.values[batch, head], queries, 0), scale)

    @property
    def has_sinks(self) -> bool:  # type: ignore[override]
        """Whether learned sinks take a share of the weights."""
        return self.sinks is not None

    def sink_weights(self, batch: int, head: int, queries: Indices) -> Tensor | None:
        if self.sinks is None:
            return None
        normalizers = take(self.log_normalizers[batch, head], queries, 0)
        return (self.sinks[head].to(normalizers) - normalizers).exp_().clamp_(max=1)

    def tensors(self) -> dict[str, Tensor]:
        names = ("values", "allowed", "log_normalizers", "metric_sums", "metric_counts", "sinks")
        return {name: x for name in names if (x := getattr(self, name)) is not None}

    def prepare(self, batch: int, queries: Indices) -> Generator[int, None, None]:
        yield from ()

    def pooled(self, region: Region, stage: str, pool: str) -> tuple[Tensor, Tensor]:
        """Pool a region further.

        Returns:
            Values, and which bins have an allowed cell, (rows, columns) each.

        Raises:
            OnlyOverviewError: the stage or pool is another, or the bins are not made of whole kept bins.
        """
        axes = zip((region.queries, region.keys), (region.query_bin, region.key_bin), self.bins, strict=True)
        fits = all(places.step == 1 and width % own == 0 and places.start % own == 0 for places, width, own in axes)
        if stage != "weights" or pool != "max" or not fits:
            what = f"the {pool} of {stage}" if (stage, pool) != ("weights", "max") else "a finer picture"
            raise self.refusal(f"{what} is")
        rows, columns = (
            slice(places.start // own, ceil(places.stop / own))
            for places, own in zip((region.queries, region.keys), self.bins, strict=True)
        )
        down, across = region.query_bin // self.bins[0], region.key_bin // self.bins[1]
        b, h = (at if n > 1 else 0 for at, n in zip((region.batch, region.head), self.allowed.shape, strict=False))
        values = fold(self.values[region.batch, region.head, rows, columns], down, across)
        return values, fold(self.allowed[b, h, rows, columns].to(torch.uint8), down, across).bool()


def only_overviews(att: AttentionBase) -> KeptLevels | None:
    """Return the kept levels of an attention, if they are less than its weights; None if blocks can be computed."""
    return att.source if isinstance(att.source, KeptLevels) and not att.source.is_whole else None


def fold(x: Tensor, down: int, across: int) -> Tensor:
    """Pool x (rows, columns) by maximum into bins of down × across."""
    return pool_first(pool_first(x, down, torch.amax).mT, across, torch.amax).mT.clone()
