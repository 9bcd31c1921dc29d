"""Whether the fused pass is at hand: numba, its kernels compiled, and threads that run them. See `fused_kernels`.

The extra `fast` brings numba. Nothing waits for it: the first long pass has it imported and compiled in a thread, and
whatever begins before that is done runs as it does without numba. A pass asks once, and stays with what it was told, so
that no picture is made of both. The variable ATTNWIDGET_FAST of the environment turns it off with 0.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar

import torch

from .._utils.report import NOTES
from ..masks import BandLimits
from .matmul import X86, made_by_intel

VARIABLE = "ATTNWIDGET_FAST"
LEAST_CELLS = 1 << 24  # of a pass: a shorter one takes a moment either way
KEYS_AT_ONCE = 16384  # of blocks between which nobody else has a turn: some 16 ms of one thread
QUERIES_AT_ONCE = 64  # by which those of a block are shared out among threads: whole lines of memory
DELAY = 0.5  # seconds that compiling waits, so that what is on its way to a page comes first
NO_LIMIT, NO_LIMITS = 1 << 40, BandLimits()

T = TypeVar("T")


class Kernels(Protocol):
    """What `fused_kernels` has compiled."""

    def add_maxima(self, *arguments: Any) -> None: ...
    def add_sums(self, *arguments: Any) -> None: ...


class State(Enum):
    """How far the kernels are."""

    UNASKED = "not asked for yet"
    ABSENT = "numba is not installed: pip install 'attnwidget[fast]'"
    COMPILING = "compiling"
    READY = "ready"
    FAILED = "failed"


class Accelerator:
    """The kernels of this process, compiled at most once."""

    def __init__(self, module: str = f"{__package__}.fused_kernels"):
        self.state, self.failure = State.UNASKED, ""
        self._module, self._lock = module, threading.Lock()
        self._kernels: Kernels | None = None
        self._thread: threading.Thread | None = None

    def of_pass(self, cells: int) -> Kernels | None:
        """Return the kernels for a pass over so many cells; None where they are not there, turned off or not worth it.

        The first to ask has them compiled, in a thread.
        """
        if cells < LEAST_CELLS or off():
            return None
        if self.state is State.UNASKED:
            self.begin()
        return self._kernels

    def begin(self, delay: float = DELAY) -> None:
        """Begin to compile in a thread, once per process."""
        with self._lock:
            if self.state is not State.UNASKED:
                return
            self.state = State.COMPILING if find_spec("numba") is not None else State.ABSENT
            if self.state is State.COMPILING:
                # Not a daemon: one that is killed in the midst of LLVM takes the process with it.
                self._thread = threading.Thread(target=self._compile, args=(delay,), name="attnwidget-compile")
                try:
                    self._thread.start()
                except RuntimeError:  # the program is about to end
                    self.state, self._thread = State.UNASKED, None

    def wait(self) -> Kernels | None:
        """Begin, wait until it is done, and return the kernels; None where they cannot be had."""
        self.begin(0)
        if self._thread is not None:
            self._thread.join()
        return self._kernels

    def describe(self) -> str:
        """Return in a few words how far it is."""
        if off():
            return f"turned off ({VARIABLE}={os.environ[VARIABLE]})"
        return f"{self.state.value}: {self.failure}" if self.failure else self.state.value

    def _compile(self, delay: float) -> None:
        main = threading.main_thread()
        main.join(delay)  # it ends as the program does: then nothing is left to compile for
        if delay and not main.is_alive():
            self.state = State.UNASKED
            return
        try:
            # At the rank of all others: one that is put off while it holds the interpreter's lock puts everybody off.
            kernels: Any = import_module(self._module)
        except BaseException as error:  # whatever numba or LLVM meet here, the other way is as right
            self.failure = type(error).__name__ + _first_line(error)
            self.state = State.FAILED
        else:
            self._kernels = kernels
            self.state = State.READY


def _first_line(error: BaseException) -> str:
    """Return the first line of what an error says; nothing if that names a file, which no report may hold."""
    line = next(iter(str(error).splitlines()), "")[:200]
    return f": {line}" if line and not {"/", "\\"} & {*line} else ""


def off() -> bool:
    """Whether the environment turns the fused pass off."""
    return os.environ.get(VARIABLE, "1").strip().lower() in ("0", "false", "no", "off")


@cache
def block_keys() -> int:
    """Return how many keys a block has, by the processor's kind, as the way of a product does.

    512, with 512 queries, are 1 MiB of scores, which stay in a cache of the second level. An AMD processor has a large
    one of the third, which kernels read almost as fast; more keys at once make the product quicker there, and two
    threads wait for one another less (Zen 4: by a tenth with one thread, by a fifth with two).
    """
    return 2048 if X86 and not made_by_intel() else 512


ACCELERATOR = Accelerator()
NOTES["fused pass"] = ACCELERATOR.describe


# Threads.

_beginning = threading.Lock()


@cache
def _workers(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="attnwidget-fused", initializer=_compute_alone)


def _compute_alone() -> None:
    """Have torch compute on this thread alone, as the others have work of their own.

    torch keeps the number for threads that begin later as well: one that ends at once gives it back.
    """
    with _beginning:
        count = torch.get_num_threads()  # asked first, for torch sets it on a thread's first question
        torch.set_num_threads(1)
        others = threading.Thread(target=torch.set_num_threads, args=(count,))
        others.start()
        others.join()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)  # threads do not come along


def shares(queries: int) -> list[slice]:
    """Return the parts of some queries, one for each thread that torch uses.

    >>> count = torch.get_num_threads()
    >>> torch.set_num_threads(2)
    >>> shares(512)
    [slice(0, 256, None), slice(256, 512, None)]
    >>> torch.set_num_threads(count)
    """
    count = max(1, min(torch.get_num_threads(), -(-queries // QUERIES_AT_ONCE)))
    width = -(-queries // (count * QUERIES_AT_ONCE)) * QUERIES_AT_ONCE
    return [slice(start, min(start + width, queries)) for start in range(0, queries, width)]


def side_by_side(work: Callable[[slice], None], parts: Sequence[slice]) -> None:
    """Call work(part) for each part, on a thread each; a single one on this thread.

    Products and kernels let go of the interpreter's lock. Each thread multiplies for itself: threads of torch's own,
    among which it would share out one product, wait for the next in a loop that takes a core from those that run the
    kernels.
    """
    if len(parts) == 1:
        work(parts[0])
        return
    running = [_workers(len(parts)).submit(_without_gradients, work, part) for part in parts]
    wait(running)  # for all, also where one fails: they write into memory that others have use for
    for one in running:
        one.result()


def alone(compute: Callable[..., T], *about: Any) -> T:
    """Return compute(*about), for which torch takes one thread: what is soon done is not shared out either."""
    if torch.get_num_threads() == 1:
        return compute(*about)
    return _workers(1).submit(_without_gradients, compute, *about).result()


def _without_gradients(compute: Callable[..., T], *about: Any) -> T:
    with torch.no_grad():  # which is of a thread
        return compute(*about)


def limits_of_block(limits: BandLimits | None, queries: range, keys: range) -> tuple[int, int, int]:
    """Return low, high and stop for a block, counted from its first query and key.

    >>> limits_of_block(BandLimits(low=-3, high=0), range(10, 20), range(8, 16))
    (-1, 2, 1099511627776)
    """
    if limits is None or limits == NO_LIMITS:
        return -NO_LIMIT, NO_LIMIT, NO_LIMIT
    apart = queries.start - keys.start
    low = -NO_LIMIT if limits.low is None else limits.low + apart
    high = NO_LIMIT if limits.high is None else limits.high + apart
    return low, high, NO_LIMIT if limits.stop is None else limits.stop - keys.start
