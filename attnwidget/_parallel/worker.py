"""The code that runs in a worker: a task, with the subject that it shares with others."""

from __future__ import annotations

import os
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .packing import unpack
from .saved_tensors import SavedTensor, open_all

KEPT = 2  # open subjects in a process


class Sent(NamedTuple):
    """A sent subject: small, whatever the size of its tensors.

    key: identifies the subject.
    content: without the numbers of its tensors.
    places: for each tensor its file; or its number among the sent tensors, with dtype and shape.
    home: the process that sent it.
    """

    key: str
    content: bytes
    places: tuple[SavedTensor | tuple[int, torch.dtype, tuple[int, ...]], ...]
    home: str


_open: OrderedDict[str, Any] = OrderedDict()
_lock = threading.Lock()
_limited = threading.Lock()
_threads = [0, 0]  # the number of running tasks, and torch's number of threads before


def this_process() -> str:
    """Return the name of this process, unique over all machines."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def run_task(function: Callable[..., Any], sent: Sent, arguments: tuple[Any, ...], memory: Any = None) -> Any:
    """Run a task in another process, or in a thread of a cluster.

    Args:
        function: takes the subject and the arguments.
        sent: the subject.
        arguments: of this task.
        memory: the tensors in no file, each as bytes.
    """
    with _one_thread(sent.home):
        return function(_subject(sent, memory), *arguments)


def _subject(sent: Sent, memory: Sequence[np.ndarray[Any, Any]] | None) -> Any:
    with _lock:
        if sent.key in _open:
            _open.move_to_end(sent.key)
            return _open[sent.key]
        saved = [one for one in sent.places if isinstance(one, SavedTensor)]
        try:
            read = iter(open_all(saved))
            tensors = [next(read) if isinstance(one, SavedTensor) else _from_bytes(memory, *one) for one in sent.places]
            found = unpack(sent.content, tensors)
        except (OSError, ValueError, TypeError) as error:
            raise type(error)(f"in {this_process()}: {error}") from error
        _open[sent.key] = found
        while len(_open) > KEPT:
            _open.popitem(last=False)
        return found


def as_bytes(x: Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor as bytes, in order."""
    return x.contiguous().flatten().view(torch.uint8).numpy()


def _from_bytes(memory: Any, number: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    raw = memory[number]
    if not len(raw):
        return torch.empty(shape, dtype=dtype, device="cpu")
    found = torch.from_numpy(raw if raw.flags.writeable and raw.ctypes.data % 64 == 0 else _aligned(raw))
    return found.view(dtype).view(shape)


def _aligned(raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a copy aligned like torch's own memory, so that kernels give the same last bits."""
    copied: np.ndarray[Any, Any] = torch.empty(len(raw), dtype=torch.uint8, device="cpu").numpy()
    copied[:] = raw
    return copied


@contextmanager
def _one_thread(home: str) -> Iterator[None]:
    """Compute with one thread of torch, except in the process that submitted the task."""
    if this_process() == home:
        yield
        return
    with _limited:
        _threads[0] += 1
        if _threads[0] == 1:
            _threads[1] = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        with _limited:
            _threads[0] -= 1
            if _threads[0] == 0:
                torch.set_num_threads(_threads[1])
