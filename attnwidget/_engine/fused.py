"""The fused pass: whether its numba kernels are available, and the threads that run them. See `fused_kernels`.

The extra `fast` installs numba. The first long pass has the kernels compiled by another process, once for a machine,
and imports them in a thread; until they are ready, passes run without numba. A pass asks once and keeps the answer, so
no picture mixes both. The environment variable ATTNWIDGET_FAST=0 turns the fused pass off.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from enum import Enum
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from .._utils.cache_folder import cache_folder
from .._utils.report import NOTES
from ..masks import BandLimits
from .matmul import X86, made_by_intel

VARIABLE = "ATTNWIDGET_FAST"
LEAST_CELLS = 1 << 24  # in a pass: a shorter pass is fast either way
KEYS_AT_ONCE = 16384  # to pool without yielding: about 16 ms of one thread
QUERIES_AT_ONCE = 64  # threads get multiples of so many queries, whole cache lines
DELAY = 0.5  # seconds before compiling, so that data on its way to a page comes first
WATCHED = 0.1  # seconds after which the compiling process is looked at again
NO_LIMIT, NO_LIMITS = 1 << 40, BandLimits()

T = TypeVar("T")


class Kernels(Protocol):
    """The compiled functions of `fused_kernels`."""

    def add_maxima(self, *arguments: Any) -> None: ...
    def add_sums(self, *arguments: Any) -> None: ...


class State(Enum):
    """The state of the kernels."""

    UNASKED = "not used yet"
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
        """Return the kernels for a pass over so many cells; None if they are not ready, turned off or not worthwhile.

        The first call starts compiling them in a thread.
        """
        if cells < LEAST_CELLS or off():
            return None
        if self.state is State.UNASKED:
            self.begin()
        return self._kernels

    def begin(self, delay: float = DELAY) -> None:
        """Start compiling in a thread, once per process."""
        with self._lock:
            if self.state is not State.UNASKED:
                return
            self.state = State.COMPILING if find_spec("numba") is not None else State.ABSENT
            if self.state is State.COMPILING:
                # Not a daemon: killing a thread inside LLVM crashes the process.
                self._thread = threading.Thread(target=self._compile, args=(delay,), name="attnwidget-compile")
                try:
                    self._thread.start()
                except RuntimeError:  # the program is ending
                    self.state, self._thread = State.UNASKED, None

    def wait(self) -> Kernels | None:
        """Compile the kernels, wait for them, and return them; None if they are not available."""
        self.begin(0)
        if self._thread is not None:
            self._thread.join()
        return self._kernels

    def describe(self) -> str:
        """Return the state as text."""
        if off():
            return f"turned off ({VARIABLE}={os.environ[VARIABLE]})"
        return f"{self.state.value}: {self.failure}" if self.failure else self.state.value

    def _compile(self, delay: float) -> None:
        main = threading.main_thread()
        main.join(delay)  # ends with the program, and then compiling is pointless
        if delay and not main.is_alive():
            self.state = State.UNASKED
            return
        if delay and not is_compiled(self._module):
            compile_apart(self._module)
        try:
            # At normal priority: a thread that is delayed while it holds the GIL delays all threads.
            kernels: Any = import_module(self._module)
        except BaseException as error:  # whatever fails in numba or LLVM, the pass without them is as exact
            self.failure = type(error).__name__ + _first_line(error)
            self.state = State.FAILED
        else:
            self._kernels = kernels
            self.state = State.READY


def is_compiled(module: str) -> bool:
    """Return whether a module's kernels are in the cache folder, of this Python and numba, and newer than itself."""
    with contextlib.suppress(Exception):
        source, numba = find_spec(module), metadata.version("numba").encode()
        folder = Path(os.environ.get("NUMBA_CACHE_DIR") or cache_folder())
        indices = folder.glob(f"**/{module.rpartition('.')[2]}.*.py{sys.version_info[0]}{sys.version_info[1]}.nbi")
        if source is not None and source.origin is not None:
            written = Path(source.origin).stat().st_mtime
            return any(one.stat().st_mtime > written and numba in one.read_bytes()[:100] for one in indices)
    return False


def compile_apart(module: str) -> None:
    """Compile a module in a process of its own, at the lowest priority, which leaves its kernels in the cache folder.

    In this process, numba would hold the GIL for seconds, and with it every answer. If it fails, this process compiles.
    """
    program = f"import os, sys; sys.path[:] = {sys.path!r}; hasattr(os, 'nice') and os.nice(19); import {module}"
    nothing = subprocess.DEVNULL
    with contextlib.suppress(OSError):
        child = subprocess.Popen([sys.executable, "-c", program], stdin=nothing, stdout=nothing, stderr=nothing)
        while child.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(WATCHED)
            if not threading.main_thread().is_alive():
                child.kill()


def _first_line(error: BaseException) -> str:
    """Return the first line of an error; "" if it contains a path, which reports must not show."""
    line = next(iter(str(error).splitlines()), "")[:200]
    return f": {line}" if line and not {"/", "\\"} & {*line} else ""


def off() -> bool:
    """Return whether the environment turns the fused pass off."""
    return os.environ.get(VARIABLE, "1").strip().lower() in ("0", "false", "no", "off")


@cache
def block_keys() -> int:
    """Return the number of keys in a block, by the kind of processor.

    512 keys and 512 queries are 1 MiB of scores, which fit the L2 cache. AMD processors have a large L3 cache, which
    kernels read almost as fast. There, more keys make the product faster, and two threads wait less for each other
    (Zen 4: by 10 % with one thread, by 20 % with two).
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
    """Let torch use only this thread, because the other threads have their own work.

    torch would also apply this to threads that start later, so a thread that ends at once restores the number.
    """
    with _beginning:
        count = torch.get_num_threads()  # read first, because torch sets it on a thread's first call
        torch.set_num_threads(1)
        others = threading.Thread(target=torch.set_num_threads, args=(count,))
        others.start()
        others.join()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)  # threads do not survive a fork


def shares(queries: int) -> list[slice]:
    """Divide queries among the threads that torch uses.

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
    """Call work(part) for each part in its own thread; a single part in this thread.

    Products and kernels release the GIL. Each thread computes its own products, because torch's own threads would
    busy-wait between products and take cores from the kernels.
    """
    if len(parts) == 1:
        work(parts[0])
        return
    running = [_workers(len(parts)).submit(_without_gradients, work, part) for part in parts]
    wait(running)  # for all, even if one fails, because they write into shared memory
    for one in running:
        one.result()


def alone(compute: Callable[..., T], *about: Any) -> T:
    """Return compute(*about) on one thread, since short work is not worth dividing."""
    if torch.get_num_threads() == 1:
        return compute(*about)
    return _workers(1).submit(_without_gradients, compute, *about).result()


def _without_gradients(compute: Callable[..., T], *about: Any) -> T:
    with torch.no_grad():  # it applies to one thread
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
