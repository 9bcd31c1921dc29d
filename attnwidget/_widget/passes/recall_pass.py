"""The recall of each shown row under a cache policy: the share of its weight on keys that the cache keeps.

The recall of the mean of several heads is the mean over the heads, and that of a word the mean over its subwords. Heads
and subwords without weights count as nothing. The largest weights of several heads are not shares, so they have no
recall.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import numpy as np

from ..._analysis.keep import recalling
from ..._engine.base import AttentionBase, Head
from ..._engine.cost import AT_ONCE
from ..._engine.merged_words import MergedWords
from ..._messages.codec import encoding
from ..._utils.failures import log_told, sentence_of
from ..._utils.scheduler import Scheduler, in_slices
from .exact_pass import RECALL, log

MAX_NUMBERS = 16_384  # with more rows, each number is the least of several
FIRST_SECONDS = 0.05  # for the part that is computed at once
SLICE_SECONDS = 0.02


class RecallPass:
    """The recall of each row of one head, in part while it is being computed.

    Args:
        scheduler: runs slow parts.
        tell: sets the trait `recall` again.
    """

    def __init__(self, scheduler: Scheduler, tell: Callable[[str, Any], object]) -> None:
        self._scheduler, self._tell = scheduler, tell
        self._work: Iterator[None] | None = None
        self._found: RowRecalls

    def look(self, att: AttentionBase, of: dict[str, Any]) -> dict[str, Any]:
        """Return the recall of a head, or of combined heads, the quick part at once; the rest follows.

        Args:
            att: the layer, with the keys that a cache keeps.
            of: layer, batch and head: its number, or the name of combined heads, such as "mean 0 4".
        """
        self.leave()
        if str(of["head"]).startswith("max"):
            return refused(of)
        found = self._found = RowRecalls(att, of)
        self._work = iter(found)
        has_loop = self._scheduler.find_loop() is not None
        until = time.monotonic() + FIRST_SECONDS if has_loop else -inf if found.cells > AT_ONCE else inf
        for _ in self._work:
            if time.monotonic() > until:
                self._scheduler.start(RECALL, self._rest(self._work))
                break
        return found.message()

    def leave(self) -> None:
        """Stop, because it is no longer shown."""
        self._scheduler.drop(RECALL)
        self._work = None

    def finish(self) -> None:
        """Compute the rest now."""
        work, self._work = self._work, None
        self._scheduler.drop(RECALL)
        if work is not None and self._found.share < 1:
            for _ in work:
                pass
            self._tell("recall", self._found.message())

    def _rest(self, work: Iterator[None]) -> Iterator[None]:
        found = self._found

        def tell() -> None:
            self._tell("recall", found.message())

        try:
            yield from in_slices(work, tell, slice_seconds=SLICE_SECONDS, first=10 * SLICE_SECONDS)
        except Exception as error:
            log_told(log, "the recall of the rows", error)
            self._tell("recall", found.message() | {"error": sentence_of(error)})
        else:
            tell()


def refused(of: dict[str, Any]) -> dict[str, Any]:
    """Return the message for the maximum of several heads, which has no recall."""
    why = (
        "the largest weights of several heads are not shares of a row: look at their mean (w.combine = 'mean'), or one "
        "head"
    )
    return {**of, "values": encoding.encode(np.zeros(0, np.float32)), "every": 1, "share": 1.0, "error": why}


def whole_recall(att: AttentionBase, of: dict[str, Any]) -> dict[str, Any]:
    """Return the recall of all rows, as `RecallPass.look` does it, computed now."""
    if str(of["head"]).startswith("max"):
        return refused(of)
    found = RowRecalls(att, of)
    for _ in found:
        pass
    return found.message()


class RowRecalls:
    """The recall of each row of a head, or of combined heads, computed step by step.

    Args:
        att: the layer, with the keys that a cache keeps; possibly merged into words.
        of: layer, batch, head.
    """

    def __init__(self, att: AttentionBase, of: dict[str, Any]) -> None:
        self.of, self._source = of, att.source
        self._att = att.source.pieces if isinstance(att.source, MergedWords) else att
        self._heads = [of["head"]] if isinstance(of["head"], int) else [int(one) for one in of["head"].split()[1:]]
        self._values, self._known = np.full(self._att.shape.Q, np.nan), 0

    @property
    def cells(self) -> int:
        """The number of weights in each of the two passes."""
        return self._att.shape.Q * self._att.shape.K * len(self._heads)

    @property
    def share(self) -> float:
        """The share of rows that are computed."""
        return self._known / max(1, len(self._values))

    def __iter__(self) -> Iterator[None]:
        each = [recalling(Head(self._att, self.of["batch"], head)) for head in self._heads]
        while self._known < len(self._values):
            found = []
            for steps in each:
                for _, values in steps:
                    yield
                    if values is not None:
                        found.append(encoding.to_numpy(values).astype(np.float64))
                        break
            rows = _mean(np.stack(found, 1))
            self._values[self._known : self._known + len(rows)] = rows
            self._known += len(rows)
        yield

    def message(self) -> dict[str, Any]:
        """Return the results so far, as sent."""
        values = self._of_words() if isinstance(self._source, MergedWords) else self._values
        every = max(1, -(-len(values) // MAX_NUMBERS))
        filled = np.concatenate([values, np.full(-len(values) % every, np.nan)]).reshape(-1, every)
        missing = np.isnan(filled)
        least = np.where(missing.all(1), np.nan, np.where(missing, np.inf, filled).min(1, initial=np.inf))
        encoded = encoding.encode(least.astype(np.float32))
        return {**self.of, "values": encoded, "every": every, "share": self.share, "error": None}

    def _of_words(self) -> np.ndarray[Any, Any]:
        """Return the mean over the subwords of each complete word; NaN for other words and words without weights."""
        assert isinstance(self._source, MergedWords)
        ends = np.asarray(self._source.queries.of(self.of["batch"]))
        whole = (ends[1:] > ends[:-1]) & (ends[1:] <= self._known)
        there = ~np.isnan(self._values)
        sums, counts = (
            np.add.reduceat(np.append(x, 0.0), ends)[:-1] for x in (np.where(there, self._values, 0.0), there)
        )
        return np.where(whole & (counts > 0), sums / np.where(counts > 0, counts, np.nan), np.nan)


def _mean(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the mean of the numbers along the last axis; NaN if there are none."""
    there = ~np.isnan(values)
    count = there.sum(-1)
    found: np.ndarray[Any, Any] = np.where(there, values, 0).sum(-1) / np.where(count > 0, count, np.nan)
    return found
