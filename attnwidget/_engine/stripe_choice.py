"""Choose the kind of stripe that pools a region."""

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
    """Makes the stripes of a region, in the same memory, with the fastest kind that is exact.

    Args:
        att: the attention.
        region: the region to pool.
        stage: the stage to pool.
        pool: "max" or "mean".
        dense: whether to compute whole rows at once, for a dense mask or bias.
        fast: whether to use the fused pass, if that was decided for the whole picture; None: decide here.
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
            columns: the bins of keys that some of them may attend to.
            known: their log-normalizers, if they are known and useful.
        """
        grid = self._grid.view(-1)[: len(self._grid) * len(rows)].view(len(self._grid), len(rows))
        about = self._att, self._region, rows, columns, self._stage, self._pool, grid
        if self._stage in CARRIED:
            return CarriedStripe(known, *about)
        return self._unknown(*about) if known is None else KnownStripe(known, *about)

    @cached_property
    def _kernels(self) -> Kernels | None:
        """The kernels of the fused pass, decided once: a pass does not switch to them midway."""
        if self._fast is False or not _has_kernels(self._att, self._stage) or self._region.queries.step > 1:
            return None
        if self._fast:
            return ACCELERATOR.wait()  # a worker process may have to compile them first
        return ACCELERATOR.of_pass(len(self._region.queries) * len(self._region.keys))

    @cached_property
    def _unknown(self) -> Callable[..., Stripe]:
        """The kind of stripe for unknown log-normalizers, decided on first use."""
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
    """Return whether the fused pass makes a picture over so many cells; the answer holds for all its parts."""
    return _has_kernels(att, stage) and ACCELERATOR.of_pass(cells) is not None


def _has_kernels(att: AttentionBase, stage: str) -> bool:
    return stage == "weights" and att.result_dtype == torch.float32 and att.device.type == "cpu"
