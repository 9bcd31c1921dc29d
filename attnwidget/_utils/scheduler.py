"""Cooperative jobs: long work in short steps on the running event loop, with time for others in between.

No threads: torch computes half as fast on a second one, and cells would be slowed down.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple, Protocol

BETWEEN = 0.002  # seconds for the loop after a step: a kernel needs several turns for one message
AFTER = 0.02  # seconds after an answered request, because the next may be on its way

log = logging.getLogger(__name__)


class Lock(Protocol):
    """A lock that is held while a step runs."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...
    def release(self) -> None: ...


class Job(NamedTuple):
    """The steps of a job; the job with the least `urgency` goes first."""

    urgency: float
    steps: Iterator[object]


class Scheduler:
    """Advance jobs step by step on an event loop, the most urgent first; a step should take 30 ms at most.

    The loop is the main thread's if it has been seen there, as in a kernel, whichever thread asks; otherwise the loop
    that runs where a job is started. All steps run there, each with the lock held.

    >>> import asyncio, threading
    >>> async def main():
    ...     scheduler, seen = Scheduler(threading.RLock()), []
    ...     scheduler.start("a", (seen.append(n) for n in range(3)))
    ...     while scheduler.names:
    ...         await asyncio.sleep(0.001)
    ...     return seen
    >>> asyncio.run(main())
    [0, 1, 2]
    """

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._jobs: dict[Hashable, Job] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due: asyncio.AbstractEventLoop | None = None  # the loop of the scheduled next step
        self._not_before = 0.0
        self.find_loop()

    @property
    def names(self) -> list[Hashable]:
        """The jobs that are not finished."""
        return list(self._jobs)

    def find_loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the loop to run on, if there is one."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        is_main = threading.current_thread() is threading.main_thread()
        if here is not None and (is_main or not _is_alive(self._loop)):
            self._loop = here
        return self._loop if _is_alive(self._loop) else None

    def start(self, name: Hashable, steps: Iterator[object], urgency: float = 0.0) -> bool:
        """Start a job, replacing one with the same name.

        Returns:
            False if no loop runs that could take its steps.
        """
        loop = self.find_loop()
        if loop is None:
            return False
        self._jobs[name] = Job(urgency, steps)
        self._schedule(loop)
        return True

    def drop(self, name: Hashable) -> None:
        """Forget a job; a running step ends first."""
        self._jobs.pop(name, None)

    def clear(self) -> None:
        """Forget all jobs."""
        self._jobs.clear()

    def hold_back(self, seconds: float = AFTER) -> None:
        """Leave the loop to others for a while; a longer pause continues."""
        self._not_before = max(self._not_before, time.monotonic() + seconds)

    def _schedule(self, loop: asyncio.AbstractEventLoop, delay: float = BETWEEN) -> None:
        if self._due is loop:
            return
        self._due = loop
        try:
            loop.call_soon_threadsafe(loop.call_later, delay, self._tick, loop)
        except RuntimeError:  # it was closed just now
            self._due = None

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = None
        if not self._lock.acquire(blocking=False):  # another thread answers a request: the loop need not wait for it
            self._schedule(loop)
            return
        try:
            wait = self._not_before - time.monotonic()
            if wait > 0:
                self._schedule(loop, wait)
            else:
                self._step()
        finally:
            if self._jobs:
                self._schedule(loop)
            self._lock.release()

    def _step(self) -> None:
        if not self._jobs:
            return
        name, job = min(self._jobs.items(), key=lambda item: item[1].urgency)
        try:
            next(job.steps)
            return
        except StopIteration:
            pass
        except Exception:  # the job's owner reports it to the user; the kernel's log stays clean
            log.debug("a job ended early", exc_info=True)
        if self._jobs.get(name) is job:
            del self._jobs[name]


def _is_alive(loop: asyncio.AbstractEventLoop | None) -> bool:
    return loop is not None and loop.is_running() and not loop.is_closed()


def in_slices(
    work: Iterable[object], tell: Callable[[], object], *, slice_seconds: float, first: float
) -> Iterator[None]:
    """Run work as a job and report progress.

    Args:
        work: steps that may be much shorter than a job's.
        tell: called after `first` seconds, then each time after twice as long.
        slice_seconds: the length of a job's step.

    Yields:
        After each step of the job.
    """
    told = begun = time.monotonic()
    wait = first
    for _ in work:
        now = time.monotonic()
        if now - told >= wait:
            told, wait = now, 2 * wait
            tell()
        if now - begun >= slice_seconds:
            yield
            begun = time.monotonic()
