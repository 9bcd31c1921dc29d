"""Objects as bytes without the numbers of their tensors, which travel by themselves, or not at all."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

LEAST_BYTES = 1024  # of an array that is set aside as a tensor is; a smaller one is pickled
WAY_ON = (
    "give masks of attnwidget.masks or tensors, or functions at the top of a module that each worker can import; "
    "threads need none of that: executor=ThreadPoolExecutor()"
)


class Packed(NamedTuple):
    """An object in two parts: `content`, with numbers in the places of `tensors`."""

    content: bytes
    tensors: list[Tensor]


def pack(value: Any, what: str) -> Packed:
    """Take an object apart.

    Args:
        value: the object.
        what: what errors call it.

    Raises:
        TypeError: it holds something that cannot be sent, such as a function that was written in place.
    """
    written = io.BytesIO()
    pickler = _Pickler(written)
    try:
        pickler.dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(f"{what} cannot be sent to another process ({error}): {WAY_ON}") from error
    return Packed(written.getvalue(), pickler.tensors)


def unpack(content: bytes, tensors: Sequence[Tensor]) -> Any:
    """Put an object together again.

    Raises:
        TypeError: it holds what this process does not have, such as a function of a notebook.
    """
    try:
        return _Unpickler(io.BytesIO(content), tensors).load()
    except (AttributeError, ImportError) as error:
        raise TypeError(f"it was sent something that it does not have ({error}): {WAY_ON}") from error


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []
        self._known: dict[tuple[Any, ...], int] = {}

    def persistent_id(self, given: Any) -> tuple[str, int] | None:
        """Return what stands for a tensor or a long array; None for what is pickled."""
        if isinstance(given, Tensor):
            return "tensor", self._number(given.detach())
        if isinstance(given, np.ndarray) and given.nbytes >= LEAST_BYTES and given.dtype.kind in "fiub":
            return "array", self._number(torch.from_numpy(np.ascontiguousarray(given)))
        return None

    def _number(self, x: Tensor) -> int:
        key = (x.data_ptr(), x.shape, x.stride(), x.dtype) if x.numel() else (len(self.tensors),)
        if key not in self._known:
            self._known[key] = len(self.tensors)
            self.tensors.append(x)
        return self._known[key]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, given: tuple[str, int]) -> Any:
        """Return what stood there."""
        kind, number = given
        return self._tensors[number].numpy() if kind == "array" else self._tensors[number]
