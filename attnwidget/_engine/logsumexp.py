"""Log-normalizers and their cache: with these O(Q) numbers of a head, any block of its weights is exact."""

from __future__ import annotations

import threading
from collections import OrderedDict
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from .._utils.indexing import Indices, take

MAX_HEADS = 64  # in the cache
MAX_BYTES = 64 << 20  # of the cache

Versions = tuple[int, ...]  # of the tensors


class LogSumExp(NamedTuple):
    """The log-normalizers of some queries, m + log l, in two parts, because the sum is too imprecise for large scores.

    m: (queries,), the largest masked score or the sink's logit, or the log-normalizer itself, rounded; 0 in a fully
        masked row.
    log_l: (queries,), log Σ exp(masked − m), including a learned sink; +∞ in a fully masked row without a sink, so that
        its weights are 0.
    """

    m: Tensor
    log_l: Tensor

    def log_weights(self, masked: Tensor) -> Tensor:
        """Return the logarithm of the weights from masked scores, (…, queries) both."""
        return (masked - self.m) - self.log_l

    def take(self, queries: Indices) -> LogSumExp:
        """Return the log-normalizers of some of the queries."""
        return LogSumExp(take(self.m, queries, 0), take(self.log_l, queries, 0))

    def log_normalizer(self) -> Tensor:
        """Return the sum of both parts, (queries,); −∞ in a fully masked row."""
        return (self.m + self.log_l).masked_fill(self.log_l == inf, -inf)


class _KnownRows:
    """The known log-normalizers of one head, for some or all queries."""

    def __init__(self, versions: Versions, queries: int, like: Tensor):
        self.versions = versions
        self.numbers = LogSumExp(*torch.zeros(2, queries, dtype=like.dtype, device=like.device))
        self.known = torch.zeros(queries, dtype=torch.bool, device="cpu")
        self.complete = False

    @property
    def nbytes(self) -> int:
        """Their size in bytes."""
        return self.numbers.m.nbytes + self.numbers.log_l.nbytes + self.known.nbytes

    def put(self, queries: Indices, found: LogSumExp) -> None:
        """Fill in some rows; known rows keep their numbers, so that results never change."""
        if self.complete:
            return
        places = queries if isinstance(queries, range) else queries.cpu()
        known = take(self.known, places, 0)
        fresh = (~known).to(found.m.device)
        for ours, new in zip(self.numbers, found, strict=True):
            values = torch.where(fresh, new, take(ours, queries, 0))
            if isinstance(queries, range):
                take(ours, queries, 0).copy_(values)
            else:
                ours[queries] = values
        if isinstance(places, range):
            known.fill_(True)
        else:
            self.known[places] = True
        self.complete = bool(self.known.all())

    def take(self, queries: Indices) -> LogSumExp | None:
        """Return the log-normalizers of some queries, if all of them are known."""
        places = queries if isinstance(queries, range) else queries.cpu()
        if not self.complete and not bool(take(self.known, places, 0).all()):
            return None
        return self.numbers.take(queries)


class LogSumExpCache:
    """A bounded cache of log-normalizers by (batch, head). Thread-safe.

    Incomplete heads are dropped first, then those filled least recently.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[tuple[int, int], tuple[Versions, float]] = {}
        self._rows: OrderedDict[tuple[int, int], _KnownRows] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """The size of all log-normalizers in bytes."""
        with self._lock:
            return sum(rows.nbytes for rows in self._rows.values())

    def put(self, head: tuple[int, int], versions: Versions, count: int, queries: Indices, found: LogSumExp) -> None:
        """Cache the log-normalizers of some queries of a head.

        Args:
            head: (batch, head).
            versions: of the tensors that they were computed from.
            count: the number of queries of the head.
            queries: which queries.
            found: their log-normalizers.
        """
        with self._lock:
            rows = self._rows.get(head)
            if rows is None or rows.versions != versions:
                rows = self._rows[head] = _KnownRows(versions, count, found.m)
            self._rows.move_to_end(head)
            rows.put(queries, found)
            while len(self._rows) > 1 and (
                len(self._rows) > MAX_HEADS or sum(one.nbytes for one in self._rows.values()) > MAX_BYTES
            ):
                others = list(self._rows)[:-1]
                del self._rows[next((one for one in others if not self._rows[one].complete), others[0])]

    def get(self, head: tuple[int, int], versions: Versions, queries: Indices) -> LogSumExp | None:
        """Return the log-normalizers of some queries of a head; None unless all are known."""
        with self._lock:
            rows = self._rows.get(head)
            return rows.take(queries) if rows is not None and rows.versions == versions else None

    def put_number(self, group: tuple[int, int], versions: Versions, number: float) -> None:
        """Cache a number for a key head."""
        with self._lock:
            self._numbers[group] = versions, number

    def number(self, group: tuple[int, int], versions: Versions) -> float | None:
        """Return the cached number of a key head; None if there is none."""
        with self._lock:
            before, number = self._numbers.get(group, ((), None))
        return number if before == versions else None
