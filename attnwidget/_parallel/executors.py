"""Kinds of executors: each sends a subject to its workers and replaces lost workers in its own way."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
import uuid
import weakref
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from .._utils.tensor_file import DTYPES, write_tensors
from .._utils.validation import kind_of
from . import saved_tensors
from .packing import ADVICE, as_bytes, pack, seal
from .task import Subject, Task
from .worker import Sent, run_task, this_process

ASK_AGAIN = 2.0  # seconds between two questions to a cluster for its number of workers
NONE_LEFT = 30.0  # seconds without any worker of a cluster, after which its tasks run here
EXAMPLE = "ThreadPoolExecutor(), ProcessPoolExecutor() or a Dask client.get_executor()"
GONE = ("KilledWorker", "CancelledError", "FutureCancelledError", "FuturesCancelledError", "CommClosedError")


class SentSubject:
    """A subject as its tasks receive it.

    Args:
        given: the first arguments of `submit`; the task's own follow.
        remove: deletes the sent data, if it is more than a message; called once, at the end of Python at the latest.
    """

    def __init__(self, given: Any, memory: Any = None, remove: Any = None) -> None:
        self.given, self.memory = given, memory
        self._remove = None if remove is None else weakref.finalize(self, *remove)

    def close(self) -> None:
        """Delete the sent data."""
        self.memory = None
        if self._remove is not None:
            self._remove()


class Workers(Protocol):
    """Workers of any kind."""

    def count(self) -> int:
        """Return how many tasks run at a time."""

    def send(self, subject: Subject) -> SentSubject:
        """Send a subject; TypeError if it cannot be sent."""

    def submit(self, task: Task, sent: SentSubject) -> Future[Any]:
        """Submit a task."""

    def is_lost(self, error: BaseException) -> bool:
        """Return whether an error means that a worker was lost, and is not about the task."""

    def renewed(self) -> Workers:
        """Return replacements after some were lost: the same workers if they come back automatically."""

    def close(self) -> None:
        """End whatever was started for these tasks alone."""


def workers_of(executor: Executor | None) -> Workers:
    """Return the workers of an executor; this process where None.

    Raises:
        TypeError: it is not an executor.
    """
    if executor is None:
        return Here()
    if callable(getattr(executor, "get_executor", None)):
        raise TypeError("executor is a Dask client: give its executor, client.get_executor()")
    if not isinstance(executor, Executor):
        raise TypeError(f"executor is {kind_of(executor)}: give a concurrent.futures.Executor, such as {EXAMPLE}")
    if type(executor).__module__.startswith("distributed"):
        return Cluster(executor)
    if isinstance(executor, ThreadPoolExecutor) and type(executor).__name__ != "InterpreterPoolExecutor":
        return Threads(executor)
    return Processes(executor)


class Here:
    """No workers: each task runs at once, in this thread."""

    def count(self) -> int:
        """Return 1."""
        return 1

    def send(self, subject: Subject) -> SentSubject:
        """Return the subject itself."""
        return SentSubject(subject.value)

    def submit(self, task: Task, sent: SentSubject) -> Future[Any]:
        """Run a task."""
        found: Future[Any] = Future()
        try:
            found.set_result(task.function(sent.given, *task.arguments))
        except Exception as error:
            found.set_exception(error)
        return found

    def is_lost(self, error: BaseException) -> bool:
        """Return False: nothing can be lost."""
        return False

    def renewed(self) -> Workers:
        """Return itself."""
        return self

    def close(self) -> None:
        """Do nothing."""


class Threads(Here):
    """Threads of this process, which share the subject itself, and the processors with this thread."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def count(self) -> int:
        """Return the most that there are."""
        return int(getattr(self._executor, "_max_workers", None) or os.cpu_count() or 1)

    def submit(self, task: Task, sent: SentSubject) -> Future[Any]:
        """Submit a task."""
        return self._executor.submit(task.function, sent.given, *task.arguments)

    def is_lost(self, error: BaseException) -> bool:
        """Return whether the pool could not start its threads."""
        return isinstance(error, BrokenExecutor)

    def renewed(self) -> Workers:
        """Return this thread."""
        return Here()


class Processes:
    """A pool of processes; or any other executor, which is treated as one.

    Args:
        executor: the pool.
        is_own: whether it was created here, to replace a broken one.
    """

    def __init__(self, executor: Executor, is_own: bool = False) -> None:
        self._executor, self._is_own = executor, is_own

    def count(self) -> int:
        """Return the most that there are."""
        return int(getattr(self._executor, "_max_workers", None) or os.cpu_count() or 1)

    def send(self, subject: Subject) -> SentSubject:
        """Name the files of its tensors; tensors in no file are written into one, for all processes to map."""
        packed = pack(subject.value, subject.name, subject.advice or ADVICE)
        places = [_place_of(x, subject.name) for x in packed.tensors]
        rest = {str(i): x for i, (x, place) in enumerate(zip(packed.tensors, places, strict=True)) if place is None}
        remove = None
        if rest:
            folder = Path(tempfile.mkdtemp(prefix="attnwidget-"))
            remove = (shutil.rmtree, str(folder), True)
            try:
                written = {int(i): place for i, place in _written(rest, folder, subject.name)}
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            places = [written.get(i, place) for i, place in enumerate(places)]
        content = Sent(uuid.uuid4().hex, packed.content, tuple(places), this_process())  # type: ignore[arg-type]
        return SentSubject(content, remove=remove)

    def submit(self, task: Task, sent: SentSubject) -> Future[Any]:
        """Submit a task."""
        return self._executor.submit(run_task, task.function, sent.given, seal(task.arguments, task.where))

    def is_lost(self, error: BaseException) -> bool:
        """Return whether a process was killed, which breaks the pool."""
        return isinstance(error, BrokenExecutor)

    def renewed(self) -> Workers:
        """Return a pool like this one; this thread, if it was not a pool of processes."""
        old = self._executor
        self.close()
        if not isinstance(old, ProcessPoolExecutor):
            return Here()
        how = {name: getattr(old, f"_{name}", None) for name in ("mp_context", "initializer")}
        fresh = ProcessPoolExecutor(self.count(), **how, initargs=getattr(old, "_initargs", ()))
        return Processes(fresh, is_own=True)

    def close(self) -> None:
        """Close a pool that was created here."""
        if self._is_own:
            self._executor.shutdown(wait=False, cancel_futures=True)


class Cluster:
    """Workers of Dask, on this machine or others."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self._client = executor, getattr(executor, "_client")  # noqa: B009
        self._count, self._asked, self._seen = 0, 0.0, time.monotonic()

    def count(self) -> int:
        """Return how many tasks run at a time; 0 while there are no workers."""
        now = time.monotonic()
        if self._asked == 0 or now - self._asked >= ASK_AGAIN:
            self._asked = now
            try:
                self._count = sum(self._client.ncores().values())
            except Exception:  # the scheduler is gone, or cannot be reached now
                self._count = 0
        if self._count:
            self._seen = now
        return self._count

    @property
    def is_gone(self) -> bool:
        """Whether no worker is left that could run a task."""
        return self._client.status != "running" or (self.count() == 0 and time.monotonic() - self._seen > NONE_LEFT)

    def send(self, subject: Subject) -> SentSubject:
        """Name the files of its tensors, and send the others to one worker, from which each other fetches them once."""
        packed = pack(subject.value, subject.name, subject.advice or ADVICE)
        places, memory, number = [], [], itertools.count()
        for x in packed.tensors:
            place: Any = _place_of(x, subject.name)
            if place is None:
                place = next(number), x.dtype, tuple(x.shape)
                memory.append(as_bytes(x))
            places.append(place)
        content = Sent(uuid.uuid4().hex, packed.content, tuple(places), this_process())
        future = self._client.scatter([memory], hash=False)[0] if memory else None
        return SentSubject(content, future, None if future is None else (_release, future))

    def submit(self, task: Task, sent: SentSubject) -> Future[Any]:
        """Submit a task."""
        submit: Any = self._executor.submit
        arguments = seal(task.arguments, task.where)
        return submit(run_task, task.function, sent.given, arguments, sent.memory, pure=False)

    def is_lost(self, error: BaseException) -> bool:
        """Return whether a worker, or data that it alone had, was lost."""
        return type(error).__name__ in GONE

    def renewed(self) -> Workers:
        """Return itself, because a cluster has or starts other workers; this thread, if it is closed."""
        return Here() if self.is_gone else self

    def close(self) -> None:
        """Do nothing: the user owns the cluster."""


def _release(future: Any) -> None:
    future.release()


def _place_of(x: Tensor, name: str) -> saved_tensors.SavedTensor | None:
    if x.device.type != "cpu":
        raise ValueError(
            f"{name} is on {x.device}, which other processes do not share: give a ThreadPoolExecutor, or tensors on "
            "the CPU"
        )
    if x.dtype not in DTYPES:
        raise TypeError(f"{name} has a tensor of {x.dtype}, which is not sent: give a ThreadPoolExecutor")
    return saved_tensors.find(x)


def _written(rest: dict[str, Tensor], folder: Path, name: str) -> Any:
    """Write tensors into a file, and yield the number and place of each."""
    path, needed = folder / "tensors.safetensors", sum(x.nbytes for x in rest.values())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(
            f"{name} takes {needed:,} bytes in {folder.parent} for other processes to read, and {free:,} are free: "
            "name another folder by TMPDIR, or cap.save(path) and Capture.load(path), which needs none"
        )
    with open(path, "xb") as file:
        write_tensors(file, rest)
    for number, x in rest.items():
        flat = torch.empty(x.shape, dtype=x.dtype, device="meta")
        mark = saved_tensors.mark_of(x)
        yield int(number), saved_tensors.SavedTensor(str(path), number, 0, tuple(x.shape), flat.stride(), mark)
