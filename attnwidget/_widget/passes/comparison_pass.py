"""The comparison of long heads: sampled at once, then made exact in slices on the event loop."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any

from ..._engine.level_cache import LevelKey
from ..._messages.pictures import comparison
from ..._messages.pictures.comparison import ComparedPair, ExactComparison
from ..._utils.failures import log_told, sentence_of
from ..._utils.scheduler import Scheduler

JOB = "comparison"
URGENCY = 1.0  # before the exact picture of one side, after other requests
MAX_KEPT = 4  # exact comparisons, as sent
SLICE_SECONDS = 0.02
FIRST_REPORT = 0.5  # seconds until the first exact rows are sent; the interval then doubles

log = logging.getLogger(__name__)

Made = dict[str, Any]


class ComparisonPass:
    """The shown comparison, and the pass that makes a sampled one exact.

    Args:
        scheduler: runs the pass.
        tell: called with the comparison again when more of its rows are exact.
    """

    def __init__(self, scheduler: Scheduler, tell: Callable[[Made], object]) -> None:
        self._scheduler, self._tell = scheduler, tell
        self._kept: OrderedDict[tuple[Any, ...], Made] = OrderedDict()
        self._rest: Generator[None, None, None] | None = None  # of the shown comparison; None if it is exact

    def look(self, both: ComparedPair, key: LevelKey, of: Made) -> Made:
        """Return the exact comparison if it is quick or known, else a sampled one; the exact one follows.

        Args:
            both: the compared attentions.
            key: stage, head and pooling of the bins.
            of: the same with the front-end's names.
        """
        self.leave()
        made = self.draw(both, key, of)
        if made["sampled"] is not None:
            self._rest = self._finishing(ExactComparison(both, key), both, both.versions, of)
            self._scheduler.start(JOB, self._rest, URGENCY)
        return made

    def draw(self, both: ComparedPair, key: LevelKey, of: Made) -> Made:
        """Return the exact comparison if it is quick or known, else a sampled one; nothing follows."""
        known = (*of.values(), *both.versions)
        if known in self._kept:
            self._kept.move_to_end(known)
            return self._kept[known]
        return {**of, **comparison.pictures(both, key), "error": None}

    @property
    def under_way(self) -> bool:
        """Whether the exact comparison is still due, in the background or by `finish`."""
        return self._rest is not None and getgeneratorstate(self._rest) != GEN_CLOSED  # an interrupt closes it

    def leave(self) -> None:
        """Stop computing the comparison, because it is no longer shown."""
        self._scheduler.drop(JOB)
        self._rest = None

    def forget(self) -> None:
        """Forget all comparisons, because the rules or the compared attentions have changed."""
        self.leave()
        self._kept.clear()

    def finish(self, lock: AbstractContextManager[Any]) -> None:
        """Compute the rest now, each step with the lock held."""
        self._scheduler.drop(JOB)
        while self.under_way:
            with lock:  # lets a front-end's message in between
                if self._rest is not None:
                    next(self._rest, None)

    def _finishing(
        self, exact: ExactComparison, both: ComparedPair, versions: tuple[int, ...], of: Made
    ) -> Generator[None, None, None]:
        begun = told = time.monotonic()
        wait = FIRST_REPORT
        try:
            for _ in exact.steps():
                now = time.monotonic()
                if now - begun < SLICE_SECONDS:
                    continue
                if both.versions != versions:
                    raise RuntimeError("the tensors changed while they were compared: try again")
                if exact.finer and now - told >= wait:
                    told, wait = now, 2 * wait
                    self._tell({**of, **exact.message(), "error": None})
                yield
                begun = time.monotonic()
        except Exception as error:
            log_told(log, "the exact comparison", error)
            made = {**of, "error": sentence_of(error)}
        else:
            made = {**of, **exact.message(), "error": None}
            known = (*of.values(), *versions)
            self._kept[known] = made
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._rest = None
        self._tell(made)
