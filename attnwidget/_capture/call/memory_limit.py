"""How many bytes a capture may keep: the limit, a warning before it is reached, and a report of calls beyond it."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import torch

SHARE = 0.5  # of the free memory when the first tensor is kept
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
SIZE = re.compile(r"\s*([\d_,]*\.?\d+)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
KEEP_LESS = (
    "keep less: layers=, heads=, queries=slice(-512, None), last=1, dtype=torch.float16, values=False or "
    "keep='overview'; or keep it elsewhere, device='cpu'; or give a larger limit="
)


class OverLimit(Exception):
    """A call that is not kept, because the capture is full."""


class KeptBytes(Protocol):
    """An object that takes memory."""

    @property
    def nbytes(self) -> int: ...


def read_limit(limit: Any) -> int | None:
    """Return a number of bytes, given as a number or as "2GB" or "512 MiB"; None for None.

    Raises:
        TypeError, ValueError: it has another form.

    >>> read_limit("2GB"), read_limit("1.5 MiB"), read_limit(4096)
    (2000000000, 1572864, 4096)
    """
    if limit is None:
        return None
    if isinstance(limit, str):
        found = SIZE.fullmatch(limit)
        if found is None:
            raise ValueError(f"limit is {limit!r}: give bytes, or a string such as '2GB' or '512 MiB'")
        number, unit, binary = found.groups()
        factor = (BINARY_UNITS if binary and unit else UNITS)[unit.lower()]
        limit = float(number.replace("_", "").replace(",", "")) * factor
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        raise TypeError(f"limit is {limit!r}: give bytes, or a string such as '2GB' or '512 MiB'")
    if not 1 <= limit < float("inf"):
        raise ValueError(f"limit is {limit}: give 1 byte or more, or None for a share of the free memory")
    return int(limit)


def as_size(count: float) -> str:
    """Return bytes in words.

    >>> as_size(1234), as_size(2.5e9)
    ('1.2 kB', '2.5 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            break
        count, unit = count / 1000, "TB"
    return f"{count:,.1f} {unit}" if unit != "B" else f"{count:,.0f} B"


def free_bytes(device: torch.device) -> int | None:
    """Return the free bytes of a device; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return _free_elsewhere()


def _free_elsewhere() -> int | None:
    """Return the free memory of a system without /proc, from psutil, which Jupyter's kernel installs."""
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.virtual_memory().available)


class MemoryLimit:
    """Counts the bytes that a capture keeps; warns once when half of the limit is used, and reports when it is full.

    Args:
        limit: bytes; None: half of the free memory when the first tensor is kept.
    """

    def __init__(self, limit: int | None) -> None:
        self._given, self._limit = limit, limit
        self.kept = 0
        self.reached = False
        self._measured, self._warned = limit is not None, False

    def has_room(self, needed: int, device: torch.device) -> bool:
        """Return whether so many more bytes may be kept; after the first no, the answer stays no."""
        if not self._measured:
            free, self._measured = free_bytes(device), True
            self._limit = None if free is None else int(SHARE * free)
        if self._limit is None or (not self.reached and self.kept + needed <= self._limit):
            return True
        self.reached = True
        return False

    def take(self, count: int, device: torch.device) -> bool:
        """Count bytes to be kept, if there is room; return whether there is."""
        kept, limit = self.kept + count, self._limit
        if self._measured and not self.reached and (limit is None or 2 * kept <= limit):
            self.kept = kept  # nothing to report
            return True
        there = self.has_room(count, device)
        if there:
            self.add(count)
        return there

    def add(self, count: int) -> None:
        """Count kept bytes; dropped bytes are negative."""
        self.kept += count
        if self._limit is not None and not self._warned and 2 * self.kept > self._limit:
            self._warned = True
            with contextlib.suppress(UserWarning):  # if warnings are errors, the model still goes on
                warnings.warn(f"the capture holds {as_size(self.kept)}, half of {self}: {KEEP_LESS}", stacklevel=2)

    def recount(self, kept: Iterable[KeptBytes]) -> None:
        """Count the kept bytes again after some were dropped: there may be room again."""
        self.kept = sum(one.nbytes for one in kept)
        self.reached = False

    def reason(self, calls: int) -> str:
        """Return why calls were not kept; `calls` is their number in a module."""
        which = "this call was" if calls == 1 else f"{calls} calls were"
        return f"{which} not kept, because {self} was reached: {KEEP_LESS}"

    def __str__(self) -> str:
        of = "" if self._given is not None else ", half of the memory that was free"
        return f"its limit of {as_size(self._limit or 0)}{of}"
