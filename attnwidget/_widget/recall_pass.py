"""What each row of the shown head keeps of its weights, under a cache: in steps on the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import numpy as np

from .._analysis.keep import recalling
from .._engine.base import AttentionBase, Head
from .._engine.cost import AT_ONCE
from .._messages import encoding
from .._utils.failures import log_told, sentence_of
from .._utils.scheduler import Scheduler, in_slices
from .exact_pass import RECALL, log

MAX_NUMBERS = 16_384  # of more rows the least of several
FIRST_SECONDS = 0.05  # that a person waits for what can be computed at once
SLICE_SECONDS = 0.02


class RecallPass:
    """The recall of each row of one head, as far as it is known.

    Args:
        scheduler: runs what takes longer.
        tell: sets the trait `recall` again.
    """

    def __init__(self, scheduler: Scheduler, tell: Callable[[str, Any], object]) -> None:
        self._scheduler, self._tell = scheduler, tell
        self._work: Iterator[None] | None = None
        self._of: dict[str, Any] = {}

    def look(self, att: AttentionBase, of: dict[str, Any]) -> dict[str, Any]:
        """Return the recall of a head as far as it is quick; the rest follows.

        Args:
            att: the layer, over the keys that a cache keeps.
            of: layer, batch, head.
        """
        self.leave()
        head = Head(att, of["batch"], of["head"])
        self._of, self._values = of, np.full(att.shape.Q, np.nan, np.float32)
        self._known = 0
        self._work = self._finding(head)
        has_loop = self._scheduler.find_loop() is not None
        is_long = att.shape.Q * att.shape.K > AT_ONCE
        until = time.monotonic() + FIRST_SECONDS if has_loop else -inf if is_long else inf
        for _ in self._work:
            if time.monotonic() > until:
                self._scheduler.start(RECALL, self._rest(self._work))
                break
        return self._message()

    def leave(self) -> None:
        """Compute no more: it is not looked at."""
        self._scheduler.drop(RECALL)
        self._work = None

    def finish(self) -> None:
        """Compute now what is left."""
        work, self._work = self._work, None
        self._scheduler.drop(RECALL)
        if work is not None and self._known < len(self._values):
            for _ in work:
                pass
            self._tell("recall", self._message())

    def _finding(self, head: Head) -> Iterator[None]:
        for rows, found in recalling(head):
            if found is not None:
                self._values[rows.start : rows.stop] = encoding.to_numpy(found)
                self._known = rows.stop
            yield

    def _rest(self, work: Iterator[None]) -> Iterator[None]:
        def tell() -> None:
            self._tell("recall", self._message())

        try:
            yield from in_slices(work, tell, slice_seconds=SLICE_SECONDS, first=10 * SLICE_SECONDS)
        except Exception as error:
            log_told(log, "the recall of the rows", error)
            self._tell("recall", self._message() | {"error": sentence_of(error)})
        else:
            tell()

    def _message(self) -> dict[str, Any]:
        count = len(self._values)
        every = max(1, -(-count // MAX_NUMBERS))
        filled = np.concatenate([self._values, np.full(-count % every, np.nan, np.float32)]).reshape(-1, every)
        least = np.where(
            np.isnan(filled).all(1), np.nan, np.where(np.isnan(filled), np.inf, filled).min(1, initial=np.inf)
        )
        values = encoding.encode(least.astype(np.float32))
        return {**self._of, "values": values, "every": every, "share": self._known / max(1, count), "error": None}
