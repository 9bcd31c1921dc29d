"""The fused pass: the compiled library that pools scores while they are in the processor's cache, and its threads.

native/pass.c is its source. Wheels bring it for common systems. Where there is none, or with the environment variable
ATTNWIDGET_FAST=0, passes run with torch alone and are as exact.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .._utils.report import NOTES

VARIABLE = "ATTNWIDGET_FAST"
FOLDER = Path(__file__).parent / "compiled"
QUERIES, PANEL, BLOCK = 64, 24, 960  # as in native/pass.c
SUFFIXES = {"linux": "so", "darwin": "dylib", "windows": "dll"}


class PassArguments(ctypes.Structure):
    """The struct `pass` of native/pass.c, which says what each of them is."""

    _fields_ = [
        *(
            (name, ctypes.c_void_p)
            for name in ("q", "k", "scores", "bias", "mask", "bins", "m", "base", "off", "total", "room")
        ),
        *((name, ctypes.c_int64) for name in ("queries", "keys", "size")),
        *((name, ctypes.c_int64) for name in ("q_stride", "k_stride", "scores_stride", "bins_stride")),
        *((name, ctypes.c_int64) for name in ("bias_q", "bias_k", "mask_q", "mask_k", "hide")),
        *((name, ctypes.c_int64) for name in ("width", "before", "column", "mean", "step")),
        *((name, ctypes.c_int64) for name in ("room_size", "next", "threads", "low", "high", "stop")),
        *((name, ctypes.c_float) for name in ("scale", "lowest")),
    ]


class GridArguments(ctypes.Structure):
    """The struct `grid` of native/pass.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("bins", "m", "log_l", "factor", "values", "room")),
        *((name, ctypes.c_int64) for name in ("queries", "columns", "bins_stride", "width", "mean")),
        *((name, ctypes.c_int64) for name in ("room_size", "next", "threads")),
    ]


class Library(NamedTuple):
    """The functions of native/pass.c for this processor.

    run: pools scores along the keys.
    finish: pools the results over the queries.
    """

    run: Callable[[Any], Any]
    finish: Callable[[Any], Any]


class Loaded(NamedTuple):
    """The library, if there is one, and its state as text."""

    library: Library | None
    state: str


@cache
def loaded() -> Loaded:
    """Return the library of this machine, loaded once per process."""
    system, machine = platform.system().lower(), platform.machine().lower()
    path = FOLDER / f"{system}-{machine}.{SUFFIXES.get(system, 'so')}"
    kind = vectors(machine, torch.backends.cpu.get_cpu_capability())
    if kind is None:
        return Loaded(None, "this processor has no vectors that it is compiled for")
    if not path.is_file():
        return Loaded(None, f"not compiled for {system} on {machine}")
    try:
        functions = ctypes.CDLL(str(path))
        found = Library(getattr(functions, f"pass_{kind}"), getattr(functions, f"finish_{kind}"))
    except (OSError, AttributeError) as error:  # without it, a pass is as exact
        return Loaded(None, f"cannot be loaded: {type(error).__name__}")
    return Loaded(found, f"ready, {kind}")


def vectors(machine: str, capability: str) -> str | None:
    """Return the kind of vectors to use, from the machine and what torch uses; None if there is none.

    >>> vectors("x86_64", "AVX2"), vectors("x86_64", "DEFAULT"), vectors("arm64", "DEFAULT")
    ('avx2', None, 'neon')
    """
    if machine in ("arm64", "aarch64"):
        return "neon"
    return "avx512" if capability.startswith("AVX512") else "avx2" if capability.startswith("AVX2") else None


def library() -> Library | None:
    """Return the library of this machine; None if there is none, or if the environment turns it off."""
    return None if _is_off() else loaded().library


def _is_off() -> bool:
    return os.environ.get(VARIABLE, "1").strip().lower() in ("0", "false", "no", "off")


def _describe() -> str:
    return f"turned off ({VARIABLE}={os.environ[VARIABLE]})" if _is_off() else loaded().state


NOTES["fused pass"] = _describe


# Threads.


@cache
def _openmp() -> Any:
    """Return the function of torch's OpenMP that runs a function in all its threads; None if it is not found.

    Threads of our own would compete with those of torch, which busy-wait for milliseconds after each operation.
    """
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        with suppress(OSError, AttributeError):
            return ctypes.CDLL(str(folder / name)).GOMP_parallel  # looked up in the libraries that it needs, too
    return None


@cache
def _workers(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="attnwidget-fused")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)  # threads do not survive a fork


def in_threads(function: Any, arguments: ctypes.Structure, count: int) -> None:
    """Call a function of the library in several threads, with the same arguments, which say what is left to do."""
    parallel = _openmp()
    if count == 1:
        function(ctypes.byref(arguments))
    elif parallel is not None:
        parallel(function, ctypes.byref(arguments), ctypes.c_uint(count), ctypes.c_uint(0))
    else:
        running = [_workers(count).submit(function, ctypes.byref(arguments)) for _ in range(count)]
        for one in running:
            one.result()
