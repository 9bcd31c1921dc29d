"""Run a function once for several requests that come faster than it can draw."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

INTERVAL = 0.08  # seconds from one time to the next, at least


class Throttle:
    """Runs a function at once, or, if it ran a moment ago, a moment later for all requests until then.

    Args:
        do: the function.
        lock: held while it runs late, on another thread.
    """

    def __init__(self, do: Callable[[], None], lock: AbstractContextManager[Any]) -> None:
        self._do, self._lock = do, lock
        self._later: threading.Timer | None = None
        self._last = -INTERVAL

    def soon(self) -> None:
        """Run it now, or soon if it ran a moment ago."""
        if self._later is not None:
            return
        wait = self._last + INTERVAL - time.monotonic()
        if wait > 0:
            self._later = threading.Timer(wait, self._late)
            self._later.daemon = True
            self._later.start()
        else:
            self._now()

    def _late(self) -> None:
        with self._lock:
            self._later = None
            self._now()

    def _now(self) -> None:
        self._do()
        self._last = time.monotonic()
