"""Choose the kind of stripe that pools a region."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from .base import AttentionBase, Head
from .by_attention import AttentionStripe, sums_by_attention
from .fused_pass import LibraryRules, filled_up, library_for, rules_of
from .logsumexp import LogSumExp
from .regions import Region
from .softmax import is_finite, is_small
from .sources import CARRIED
from .stages import NORMALIZED, QUERIES, new, streamed
from .stripes import (
    CarriedStripe,
    DenseStripe,
    FusedStripe,
    KnownStripe,
    OnlineMaximum,
    OnlineSum,
    SmallStripe,
    Stripe,
)

MOST_QUERIES, MOST_BINS = 2048, 1 << 20  # of a stripe of the fused pass


class Stripes:
    """Makes the stripes of a region, in the same memory, with the fastest kind that is exact.

    Args:
        att: the attention.
        region: the region to pool.
        stage: the stage to pool.
        pool: "max" or "mean".
        dense: whether to compute whole rows at once, for a dense mask or bias.
    """

    def __init__(self, att: AttentionBase, region: Region, stage: str, pool: str, *, dense: bool):
        self._att, self._region, self._stage, self._pool, self._dense = att, region, stage, pool, dense
        self._library = library_for(att) if stage == "weights" else None
        self._rules = None if self._library is None else self._library_rules()
        self._merges = self._rules is not None
        if dense and self._rules is None:
            self._library = None
        most = max(QUERIES, min(MOST_QUERIES, MOST_BINS // max(1, region.shape[1]))) if self._merges else QUERIES
        self._most = min(len(region.queries), most)  # queries of a stripe
        self._grid = new(att, region.shape[1] * filled_up(self._most))

    def together(self, pieces: Sequence[range]) -> list[range]:
        """Merge adjacent pieces of queries for the fused pass, which is faster with fewer and larger stripes."""
        merged, width = list[range](), self._region.query_bin
        for piece in pieces:
            begins = piece.start % width == 0 and width > QUERIES  # a bin that is pooled by pieces: no part ends inside
            if self._merges and merged and not begins and piece.stop - merged[-1].start <= self._most:
                merged[-1] = range(merged[-1].start, piece.stop)
            else:
                merged.append(piece)
        return merged

    def of(self, rows: range, columns: slice, known: LogSumExp | None) -> Stripe:
        """Make the stripe of some queries.

        Args:
            rows: the queries.
            columns: the bins of keys that some of them may attend to.
            known: their log-normalizers, if they are known and useful.
        """
        shape = self._region.shape[1], filled_up(len(rows))
        grid = self._grid[: shape[0] * shape[1]].view(shape)[:, : len(rows)]
        about = self._att, self._region, rows, columns, self._stage, self._pool, grid
        if self._stage in CARRIED:
            return CarriedStripe(known, *about)
        if self._library is not None:
            return FusedStripe(self._library, self._rules, known, *about)
        return self._unknown(*about) if known is None else KnownStripe(known, *about)

    def _library_rules(self) -> LibraryRules | None:
        att, region = self._att, self._region
        found = rules_of(att, region.batch)
        if found is None or not found.has_tensors:
            return found
        # Which bins have allowed cells is read off the maxima.
        reads_off = self._pool == "max" and is_finite(Head(att, region.batch, region.head), region.queries)
        return found if reads_off else None

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
        if is_small(whole, region.queries):
            return SmallStripe
        return OnlineMaximum if self._pool == "max" else OnlineSum
