"""Log-normalizers, and keeping them: O(Q) numbers of a head make any block of its weights exact."""

from __future__ import annotations

import threading
from math import inf
from typing import NamedTuple

from torch import Tensor

from .places import Places, take

REMEMBERED = 64  # heads whose log-normalizers are kept


class Pair(NamedTuple):
    """The log-normalizers of some queries, m + log l, in two parts: their sum alone is too coarse for large scores."""

    m: Tensor  # (queries,) largest masked score; 0 in an empty row
    log_l: Tensor  # (queries,) log Σ exp(masked − m); +∞ in an empty row, so that its weights are 0

    def log_weights(self, masked: Tensor) -> Tensor:
        return (masked - self.m) - self.log_l  # (…, queries)

    def take(self, queries: Places) -> Pair:
        return Pair(take(self.m, queries, 0), take(self.log_l, queries, 0))

    def log_normalizer(self) -> Tensor:
        return (self.m + self.log_l).masked_fill(self.log_l == inf, -inf)  # (queries,)


class Memory:
    """Log-normalizers by (batch, head), the oldest forgotten first. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[tuple[int, int], tuple[tuple[int, ...], float]] = {}
        self._pairs: dict[tuple[int, int], tuple[tuple[int, ...], Pair]] = {}

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        return Memory, ()  # a copy starts afresh

    def put(self, head: tuple[int, int], versions: tuple[int, ...], pair: Pair) -> None:
        with self._lock:
            self._pairs.pop(head, None)
            self._pairs[head] = versions, pair
            if len(self._pairs) > REMEMBERED:
                del self._pairs[next(iter(self._pairs))]

    def put_number(self, group: tuple[int, int], versions: tuple[int, ...], number: float) -> None:
        """Keep one number of a key head."""
        with self._lock:
            self._numbers[group] = versions, number

    def number(self, group: tuple[int, int], versions: tuple[int, ...]) -> float | None:
        with self._lock:
            before, number = self._numbers.get(group, ((), None))
        return number if before == versions else None

    def get(self, head: tuple[int, int], versions: tuple[int, ...]) -> Pair | None:
        with self._lock:
            before, pair = self._pairs.get(head, ((), None))
        return pair if before == versions else None
