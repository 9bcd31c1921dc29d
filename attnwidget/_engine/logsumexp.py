"""Log-normalizers and their cache: O(Q) numbers of a head make any block of its weights exact."""

from __future__ import annotations

import threading
from collections import OrderedDict
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from .._utils.indexing import Indices, take

MAX_HEADS = 64  # whose log-normalizers are kept
MAX_BYTES = 64 << 20  # of all log-normalizers that are kept

Versions = tuple[int, ...]  # of the tensors that something was computed from


class LogSumExp(NamedTuple):
    """The log-normalizers of some queries, m + log l, in two parts: their sum alone is too coarse for large scores.

    m: (queries,), the largest masked score or the sink's logit, or the log-normalizer itself, rounded; 0 in an empty
        row.
    log_l: (queries,), log Σ exp(masked − m), a learned sink included; +∞ in an empty row without a sink, so that its
        weights are 0.
    """

    m: Tensor
    log_l: Tensor

    def log_weights(self, masked: Tensor) -> Tensor:
        """Return the logarithm of the weights from masked scores, (…, queries) both."""
        return (masked - self.m) - self.log_l

    def take(self, queries: Indices) -> LogSumExp:
        """Return those of some of the queries."""
        return LogSumExp(take(self.m, queries, 0), take(self.log_l, queries, 0))

    def log_normalizer(self) -> Tensor:
        """Return the sum of both parts, (queries,); −∞ in an empty row."""
        return (self.m + self.log_l).masked_fill(self.log_l == inf, -inf)


class _KnownRows:
    """The log-normalizers of one head that are known so far: of all queries, or of some rows."""

    def __init__(self, versions: Versions, queries: int, like: Tensor):
        self.versions = versions
        self.numbers = LogSumExp(*torch.zeros(2, queries, dtype=like.dtype, device=like.device))
        self.known = torch.zeros(queries, dtype=torch.bool, device="cpu")
        self.complete = False

    @property
    def nbytes(self) -> int:
        """How many bytes they take."""
        return self.numbers.m.nbytes + self.numbers.log_l.nbytes + self.known.nbytes

    def put(self, queries: Indices, found: LogSumExp) -> None:
        """Fill in some rows; those that are known stay as they are, so that what was read never changes."""
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
    """Log-normalizers by (batch, head), within bounds.

    Heads of which not all is known are forgotten first, then those that were filled in least recently. Safe to share
    between threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[tuple[int, int], tuple[Versions, float]] = {}
        self._rows: OrderedDict[tuple[int, int], _KnownRows] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """How many bytes the log-normalizers take."""
        with self._lock:
            return sum(rows.nbytes for rows in self._rows.values())

    def put(self, head: tuple[int, int], versions: Versions, count: int, queries: Indices, found: LogSumExp) -> None:
        """Keep the log-normalizers of some queries of a head.

        Args:
            head: (batch, head).
            versions: of the tensors that they were computed from.
            count: how many queries the head has.
            queries: which of them.
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
        """Return the log-normalizers of some queries of a head, if all of them are known."""
        with self._lock:
            rows = self._rows.get(head)
            return rows.take(queries) if rows is not None and rows.versions == versions else None

    def put_number(self, group: tuple[int, int], versions: Versions, number: float) -> None:
        """Keep one number of a key head."""
        with self._lock:
            self._numbers[group] = versions, number

    def number(self, group: tuple[int, int], versions: Versions) -> float | None:
        """Return the number that is kept of a key head."""
        with self._lock:
            before, number = self._numbers.get(group, ((), None))
        return number if before == versions else None
