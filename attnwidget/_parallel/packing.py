"""Objects as bytes without the numbers of their tensors, which are sent separately, or not at all."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

LEAST_BYTES = 1024  # of an array that is sent like a tensor; a smaller one is pickled
ADVICE = (
    "give masks of attnwidget.masks or tensors, or functions at the top of a module that each worker can import; "
    "threads need none of that: executor=ThreadPoolExecutor()"
)


class Packed(NamedTuple):
    """An object in two parts: `content`, with numbers in place of `tensors`."""

    content: bytes
    tensors: list[Tensor]


def pack(value: Any, what: str) -> Packed:
    """Separate an object from its tensors.

    Args:
        value: the object.
        what: its name in errors.

    Raises:
        TypeError: it holds something that cannot be sent, such as a lambda.
    """
    written = io.BytesIO()
    pickler = _Pickler(written)
    try:
        pickler.dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(f"{what} cannot be sent to another process ({error}): {ADVICE}") from error
    return Packed(written.getvalue(), pickler.tensors)


def unpack(content: bytes, tensors: Sequence[Tensor]) -> Any:
    """Put an object and its tensors together again.

    Raises:
        TypeError: it needs something that this process does not have, such as a function of a notebook.
    """
    try:
        return _Unpickler(io.BytesIO(content), tensors).load()
    except (AttributeError, ImportError) as error:
        raise TypeError(f"it needs something that this process does not have ({error}): {ADVICE}") from error


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []
        self._known: dict[tuple[Any, ...], int] = {}

    def persistent_id(self, given: Any) -> tuple[str, int] | None:
        """Return the placeholder of a tensor or a long array; None for an object that is pickled."""
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
        """Return the tensor of a placeholder."""
        kind, number = given
        return self._tensors[number].numpy() if kind == "array" else self._tensors[number]
