"""Interrupts of the kernel, put off where half of something would be worse than a moment's wait."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def interrupts_put_off() -> Iterator[None]:
    """Put off an interrupt until the block has ended: for a few milliseconds of work, such as putting hooks on a model.

    Python runs signal handlers in the main thread alone, so that in other threads there is nothing to put off; nor is
    there where the handler is not one of Python's.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGINT, lambda *of_signal: came.append(of_signal))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(*came[0])


def surely(act: Callable[[], object], *, begun: bool = False) -> None:
    """Call a function whole, whenever an interrupt comes: what undoes something, at the end of a block.

    Args:
        act: the function.
        begun: whether it was called; never given, it is there before the first line, at which an interrupt may come.
    """
    try:
        with interrupts_put_off():
            begun = True
            act()
    finally:
        if not begun:
            act()
