"""Tensors that were read from a safetensors file: another process gets their place, and maps the file."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

LOOKED_AT = 64  # numbers of a tensor that show whether the file was overwritten since


class SavedTensor(NamedTuple):
    """The place of a tensor.

    path: of the file.
    name: of a tensor in it.
    first: its first number in that tensor.
    shape, stride: its own, in numbers.
    mark: of some of its numbers: see `mark_of`.
    """

    path: str
    name: str
    first: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    mark: bytes

    @classmethod
    def of(cls, x: Tensor, path: str, name: str, first: int) -> SavedTensor:
        """Return a tensor's place, from its file, the name of a tensor there, and its first number in it."""
        return cls(path, name, first, tuple(x.shape), x.stride(), mark_of(x))


class _ReadTensor(NamedTuple):
    """A tensor as it was read."""

    path: str
    name: str
    first: int  # in its storage
    stop: int
    dtype: torch.dtype
    version: int
    alive: StorageWeakRef


_read: dict[int, list[_ReadTensor]] = {}  # by their storage
_lock = threading.Lock()


def note(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Remember the file of some tensors, as long as they live."""
    with _lock:
        for key in [key for key, found in _read.items() if found[0].alive.expired()]:
            del _read[key]
        for name, x in tensors.items():
            storage, first = x.untyped_storage(), int(x.storage_offset())
            one = _ReadTensor(
                str(path), name, first, first + x.numel(), x.dtype, version_of(x), StorageWeakRef(storage)
            )
            _read.setdefault(storage._cdata, []).append(one)


def forget(path: Path) -> None:
    """Forget the tensors of a file that vanishes: they are sent as others are."""
    with _lock:
        for key, found in [*_read.items()]:
            _read[key] = [one for one in found if one.path != str(path)]
            if not _read[key]:
                del _read[key]


def version_of(x: Tensor) -> int:
    """Return the number of torch's changes in place of a tensor."""
    return 0 if x.is_inference() else x._version


def find(x: Tensor) -> SavedTensor | None:
    """Return the place of a tensor, or of a view of one; None if it is in no file, or has changed since."""
    if x.numel() == 0 or any(step < 0 for step in x.stride()):
        return None
    start = int(x.storage_offset())
    stop = start + 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    with _lock:
        for one in _read.get(x.untyped_storage()._cdata, ()):
            if not one.alive.expired() and one.first <= start and stop <= one.stop and one.dtype == x.dtype:
                unchanged = one.version == version_of(x)
                return SavedTensor.of(x, one.path, one.name, start - one.first) if unchanged else None
    return None


def mark_of(x: Tensor) -> bytes:
    """Return a digest of some numbers of a tensor, evenly spread: another run of a model has others."""
    at = np.linspace(0, x.numel() - 1, min(LOOKED_AT, x.numel())).astype(np.int64)
    places = tuple(torch.from_numpy(one) for one in np.unravel_index(at, tuple(x.shape))) if x.ndim else ...
    some = x[places]
    return hashlib.blake2b(some.flatten().view(torch.uint8).numpy().tobytes(), digest_size=16).digest()


def open_all(places: Sequence[SavedTensor]) -> list[Tensor]:
    """Map the files of some tensors, each once, and return these.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it holds other numbers, or cannot be read.
    """
    found: dict[SavedTensor, Tensor] = {}
    for path in dict.fromkeys(one.path for one in places):
        here = [one for one in places if one.path == path]
        found |= dict(zip(here, _open(path, here), strict=True))
    return [found[one] for one in places]


def _open(path: str, places: list[SavedTensor]) -> list[Tensor]:
    from safetensors import SafetensorError, safe_open  # imported here: only saved captures need it

    if not Path(path).is_file():
        raise FileNotFoundError(
            f"{path} is not there: put the file where each worker can read it by this name, as in a folder that all "
            "machines share, and load it from there"
        )
    try:
        with safe_open(path, framework="pt") as file:
            named = {one.name: file.get_tensor(one.name) for one in places}
        found = [named[one.name].as_strided(one.shape, one.stride, _first(named[one.name], one)) for one in places]
    except (SafetensorError, RuntimeError, OSError) as error:
        raise ValueError(f"{path} cannot be read as the file that was loaded ({error}): {LOAD_AGAIN}") from error
    if any(mark_of(x) != one.mark for x, one in zip(found, places, strict=True)):
        raise ValueError(
            f"{path} holds other numbers than when it was loaded, or is another file on this machine: {LOAD_AGAIN}"
        )
    return found


LOAD_AGAIN = "load it again, and have the same file on each machine"


def _first(named: Tensor, one: SavedTensor) -> int:
    return int(named.storage_offset()) + one.first
