"""What a cache evicts in the shown layer, found before anything of it is drawn: in steps on the event loop."""

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
MAX_CELLS_AT_ONCE = 1 << 21  # weights that decide, which are gone through in 30 ms
SLICE_SECONDS = 0.02
REPORT_SECONDS = 0.25  # from one report to the next
FOUND = "Going through the queries first, to find which keys the cache still holds for each"
WAIT = "what the cache holds for each query is not known yet: wait until it is found"


class Put(Protocol):
    """Set traits, all of them in one message."""

    def __call__(self, **traits: Any) -> None: ...


class EvictionPass:
    """What a cache evicts in a layer, for all that follows from it.

    Args:
        scheduler: runs it, in slices on the event loop.
        put: sets `progress`.
        done: called once it is known.
    """

    def __init__(self, scheduler: Scheduler, put: Put, done: Callable[[], None]) -> None:
        self._scheduler, self._put, self._done = scheduler, put, done
        self._steps: Iterator[float] | None = None
        self._of: dict[str, Any] = {}
        self._failed: tuple[Any, ...] = ()  # what could not be found: whoever asks for its numbers hears why
        self._share = 0.0

    @property
    def under_way(self) -> bool:
        """Whether it is still being found."""
        return self._steps is not None

    def begin(self, layers: Sequence[Attention], of: Sequence[Any]) -> bool:
        """Begin to find what is evicted, where that is not known and takes a while.

        Args:
            layers: the layers that are looked at.
            of: layer, batch, head, stage, pool of what is shown.

        Returns:
            Whether what follows from it is to wait.
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
        """Go on, where there is an event loop."""
        if self._steps is not None:
            runs = self._scheduler.start(EVICTIONS, self._slices(self._steps), -2.0)
            self._tell(None, "running" if runs else "stopped")

    def stop(self) -> None:
        """Stop for now."""
        self._scheduler.drop(EVICTIONS)
        self._tell(None, "stopped")

    def cancel(self) -> None:
        """Find no more: others are looked at."""
        self._scheduler.drop(EVICTIONS)
        if self._steps is not None:
            self._steps = None
            self._put(progress=None)

    def finish(self) -> None:
        """Find what is left now."""
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
        except Exception:  # told by whatever asks for it next
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
