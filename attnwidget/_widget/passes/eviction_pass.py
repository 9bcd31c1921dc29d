"""Find the keys that a cache policy evicts in the shown layer, before anything of it is drawn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol

from ..._engine.cache_policies import cells_to_evict, finding_evictions
from ..._messages.pictures.picture import OF
from ..._utils.scheduler import Scheduler, in_slices
from ..._utils.time_left import TimeLeft
from ...attention import Attention

EVICTIONS = "evictions"  # the job
MAX_CELLS_AT_ONCE = 1 << 21  # weights per step, about 30 ms
SLICE_SECONDS = 0.02
REPORT_SECONDS = 0.25  # between two reports
FOUND = "Finding the keys that the cache still holds for each query"
WAIT = "the keys that the cache holds are not known yet: wait until they are found"


class Put(Protocol):
    """Sets traits, all in one message."""

    def __call__(self, **traits: Any) -> None: ...


class EvictionPass:
    """The evictions in a layer, which its pictures and numbers follow from.

    Args:
        scheduler: runs the pass in slices on the event loop.
        put: sets `progress`.
        done: called when the evictions are known.
    """

    def __init__(self, scheduler: Scheduler, put: Put, done: Callable[[], None]) -> None:
        self._scheduler, self._put, self._done = scheduler, put, done
        self._steps: Iterator[float] | None = None
        self._of: dict[str, Any] = {}
        self._failed: tuple[Any, ...] = ()  # what could not be found; a later request for its numbers gets the reason
        self._share = 0.0

    @property
    def under_way(self) -> bool:
        """Whether the pass is running."""
        return self._steps is not None

    def begin(self, layers: Sequence[Attention], of: Sequence[Any]) -> bool:
        """Start finding the evictions, if they are unknown and take a while.

        Args:
            layers: the shown layers.
            of: layer, batch, head, stage and pool of the picture.

        Returns:
            Whether pictures and numbers have to wait.
        """
        self.cancel()
        batch = of[1]
        missing = [att for att in layers if cells_to_evict(att, min(batch, att.shape.B - 1)) > MAX_CELLS_AT_ONCE]
        key = tuple((id(att), att.versions(), batch) for att in missing)
        if not missing or key == self._failed or self._scheduler.find_loop() is None:
            return False
        self._of, self._share = dict(zip(OF, of, strict=True)), 0.0
        self._key = key
        self._steps = self._finding(missing, batch)
        self.resume()
        return True

    def resume(self) -> None:
        """Continue, if there is an event loop."""
        if self._steps is not None:
            runs = self._scheduler.start(EVICTIONS, self._slices(self._steps), -2.0)
            self._tell(None, "running" if runs else "stopped")

    def stop(self) -> None:
        """Pause."""
        self._scheduler.drop(EVICTIONS)
        self._tell(None, "stopped")

    def cancel(self) -> None:
        """Stop, because other layers are shown."""
        self._scheduler.drop(EVICTIONS)
        if self._steps is not None:
            self._steps = None
            self._put(progress=None)

    def finish(self) -> None:
        """Find the rest now."""
        if self._steps is None:
            return
        self._scheduler.drop(EVICTIONS)
        for _ in self._steps:
            pass
        self._end()

    def _finding(self, layers: Sequence[Attention], batch: int) -> Iterator[float]:
        each = [finding_evictions(att, min(batch, att.shape.B - 1)) for att in layers]
        shares = chain.from_iterable(((number, share) for share in one) for number, one in enumerate(each))
        for number, share in shares:
            self._share = (number + share) / len(each)
            yield self._share

    def _slices(self, steps: Iterator[float]) -> Iterator[None]:
        left = TimeLeft(time.monotonic(), self._share, 1.0)
        reported = time.monotonic()

        def report() -> None:
            nonlocal reported
            now = time.monotonic()
            if now - reported >= REPORT_SECONDS:
                reported = now
                self._tell(left.at(now, self._share), "running")

        try:
            for _ in in_slices(steps, report, slice_seconds=SLICE_SECONDS, first=REPORT_SECONDS):
                report()
                yield
        except Exception:  # the next request for the numbers reports it
            self._failed = self._key
        self._end()

    def _end(self) -> None:
        self._steps = None
        self._put(progress=None)
        self._done()

    def _tell(self, seconds_left: float | None, state: str) -> None:
        if self._steps is not None:
            about = {"what": "evictions", "share": self._share, "seconds_left": seconds_left, "state": state}
            self._put(progress={**self._of, **about})
