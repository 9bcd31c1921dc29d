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

from .packing import Parcel, from_bytes, pack, seal, unpack, unseal
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


def run_task(function: Callable[..., Any], sent: Sent, arguments: Parcel, memory: Any = None) -> Parcel:
    """Run a task in another process, or in a thread of a cluster, and return its result as bytes.

    Args:
        function: takes the subject and the arguments.
        sent: the subject.
        arguments: of this task.
        memory: the tensors in no file, each as bytes.
    """
    with _one_thread(sent.home):
        try:
            return seal(function(_subject(sent, memory), *unseal(arguments)), "a result")
        except Exception as error:
            portable = _portable(error)
            if portable is error:
                raise
        raise portable  # here, so that it brings nothing of the other error along


def _subject(sent: Sent, memory: Sequence[np.ndarray[Any, Any]] | None) -> Any:
    with _lock:
        if sent.key in _open:
            _open.move_to_end(sent.key)
            return _open[sent.key]
        saved = [one for one in sent.places if isinstance(one, SavedTensor)]
        try:
            read = iter(open_all(saved))
            tensors = [next(read) if isinstance(one, SavedTensor) else _in_memory(memory, *one) for one in sent.places]
            found = unpack(sent.content, tensors)
        except (OSError, ValueError, TypeError) as error:
            raise type(error)(f"in {this_process()}: {error}") from error
        _open[sent.key] = found
        while len(_open) > KEPT:
            _open.popitem(last=False)
        return found


def _in_memory(memory: Any, number: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return from_bytes(dtype, shape, memory[number])


def _portable(error: Exception) -> Exception:
    """Return an error that can be read again from bytes, without tensors: another would count as a lost worker."""
    try:
        packed = pack(error, "an error")
        if not packed.tensors:
            unpack(packed.content, ())
            return error
    except Exception:  # whatever it is
        pass
    return RuntimeError(f"{type(error).__name__}: {error}")


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
