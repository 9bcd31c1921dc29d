"""Which kind of stripe a region is pooled by."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import torch

from .base import AttentionBase, Head
from .by_attention import AttentionStripe, sums_by_attention
from .fused import ACCELERATOR, Kernels
from .fused_stripes import FusedMaximum, FusedSum
from .logsumexp import LogSumExp
from .regions import Region
from .softmax import is_small
from .sources import CARRIED
from .stages import NORMALIZED, QUERIES, new, streamed
from .stripes import (
    CarriedStripe,
    DenseStripe,
    KnownStripe,
    OnlineMaximum,
    OnlineSum,
    SmallStripe,
    Stripe,
)


class Stripes:
    """The stripes of a region, one after the other in the same memory: chooses the quickest kind that is exact.

    Args:
        att: the attention.
        region: what is pooled.
        stage: the stage of it.
        pool: "max" or "mean".
        dense: whether whole rows are computed at once, for a mask or bias that is there cell by cell.
        fast: whether by the fused pass, where that was decided for a picture of which this is a part; None: decide.
    """

    def __init__(
        self, att: AttentionBase, region: Region, stage: str, pool: str, *, dense: bool, fast: bool | None = None
    ):
        self._fast = fast
        self._att, self._region, self._stage, self._pool, self._dense = att, region, stage, pool, dense
        self._grid = new(att, region.shape[1], min(len(region.queries), QUERIES))

    def of(self, rows: range, columns: slice, known: LogSumExp | None) -> Stripe:
        """Make the stripe of some queries.

        Args:
            rows: the queries.
            columns: the bins of keys that any of them may attend to.
            known: their log-normalizers, if they are known and of use.
        """
        grid = self._grid.view(-1)[: len(self._grid) * len(rows)].view(len(self._grid), len(rows))
        about = self._att, self._region, rows, columns, self._stage, self._pool, grid
        if self._stage in CARRIED:
            return CarriedStripe(known, *about)
        return self._unknown(*about) if known is None else KnownStripe(known, *about)

    @cached_property
    def _kernels(self) -> Kernels | None:
        """The kernels of the fused pass, asked for once: a pass does not go over to them on its way."""
        if self._fast is False or not _has_kernels(self._att, self._stage) or self._region.queries.step > 1:
            return None
        if self._fast:
            return ACCELERATOR.wait()  # another process may have to compile them first
        return ACCELERATOR.of_pass(len(self._region.queries) * len(self._region.keys))

    @cached_property
    def _unknown(self) -> Callable[..., Stripe]:
        """The kind of those whose log-normalizers are not known; looked for only where there are such."""
        att, region = self._att, self._region
        if streamed(att, self._stage) != "masked" or self._stage not in NORMALIZED:
            return Stripe
        whole = Head(att, region.batch, region.head)
        if self._stage == "weights" and self._pool == "mean" and sums_by_attention(att, whole, region.queries):
            return AttentionStripe
        if self._dense:
            return DenseStripe
        if self._kernels is not None:
            return partial(FusedMaximum if self._pool == "max" else FusedSum, self._kernels)
        if is_small(whole, region.queries):
            return SmallStripe
        return OnlineMaximum if self._pool == "max" else OnlineSum


def takes_fused_pass(att: AttentionBase, stage: str, cells: int) -> bool:
    """Whether a picture over so many cells, computed in parts, is made by the fused pass: all of it, or nothing."""
    return _has_kernels(att, stage) and ACCELERATOR.of_pass(cells) is not None


def _has_kernels(att: AttentionBase, stage: str) -> bool:
    return stage == "weights" and att.result_dtype == torch.float32 and att.device.type == "cpu"
