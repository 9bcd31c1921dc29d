"""Interrupts at any line of the package, by the signal that a kernel's interrupt sends; other errors likewise."""

from __future__ import annotations

import linecache
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

# Python promises no more: an interrupt may come after a block and before the first line of what ends it. A finalizer
# swallows what is raised in it.
UNPROTECTED = ("_telling_of_interrupts", "__exit__", "forget_collected")


class InterruptAt:
    """Sends the signal of a kernel's interrupt at one line of the package that is run, or raises another error there.

    Args:
        line: the number of the line, counted as lines are run.
        error: what is raised.
    """

    def __init__(self, line: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.line, self.run, self.error = line, 0, error
        self.first: dict[tuple[str, int], int] = {}  # of each line of a file, the number at which it is run first

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if "attnwidget" not in frame.f_globals.get("__name__", "") or frame.f_code.co_name in UNPROTECTED:
            return None
        if event == "line":
            self.run += 1
            self.first.setdefault((Path(frame.f_code.co_filename).name, frame.f_lineno), self.run)
            # Python runs no signal's handler between a block and the release of its lock, which is traced as the line
            # of its `with`, and none at a `try` or an `except`, which only tell what comes. It may run one between a
            # block and the first line of its `finally`: nothing can be done about that. Where an exception is being
            # handled, one that is raised by what traces would leave it handled for ever.
            before, statement = (
                linecache.getline(frame.f_code.co_filename, frame.f_lineno + at).strip() for at in (-1, 0)
            )
            skipped = statement.startswith(("with ", "try:", "except")) or before == "finally:"
            skipped |= sys.exc_info()[0] is not None
            if self.run >= self.line > 0 and not skipped:
                sys.settrace(None)
                if self.error is not KeyboardInterrupt:
                    raise self.error
                signal.raise_signal(signal.SIGINT)
        return self


@contextmanager
def interrupted_at(line: int) -> Iterator[None]:
    """Interrupt what runs within at a line, if it comes so far."""
    with stopped_at(line, KeyboardInterrupt):
        yield


@contextmanager
def stopped_at(line: int, error: type[BaseException]) -> Iterator[None]:
    """Stop what runs within at a line by an error, if it comes so far; what comes out of it is dropped."""
    before = sys.gettrace()
    sys.settrace(InterruptAt(line, error))
    try:
        yield
    except error:
        pass
    finally:
        sys.settrace(before)


def lines_of(act: Callable[[], None]) -> int:
    """Return how many lines of the package something runs."""
    return _traced(act).run


def each_line_of(files: Collection[str], act: Callable[[], None]) -> list[int]:
    """Return the number at which something runs each line of some files of the package first."""
    return [number for (name, _), number in _traced(act).first.items() if name in files]


def _traced(act: Callable[[], None]) -> InterruptAt:
    counter, before = InterruptAt(-1), sys.gettrace()
    sys.settrace(counter)
    try:
        act()
    finally:
        sys.settrace(before)
    return counter
