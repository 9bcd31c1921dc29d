"""A hang of worker processes becomes a failure: their calls would wait for ever, and the run of the tests with them."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LONG = 120.0  # seconds, far beyond what the work takes on a busy machine


@contextmanager
def killed_if_they_hang(seconds: float = LONG) -> Iterator[None]:
    """Kill the child processes that are alive after some seconds, and those that replace them, until the block ends."""
    ended, hung = threading.Event(), list[str]()

    def watch() -> None:
        while not ended.wait(seconds):
            for child in multiprocessing.active_children():
                hung.append(str(child))
                child.kill()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not hung, f"these did not answer for {seconds:.0f} seconds: {hung}"
