"""Objects as bytes without the numbers of their tensors, which are sent separately, or not at all.

Between processes numbers travel as plain bytes, never as torch's own shared memory: torch copies a tensor there with
several threads, and for these a process waits for ever if it was forked from one with busy threads.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._utils.tensor_file import ALIGNED

LEAST_BYTES = 1024  # of an array that is sent like a tensor; a smaller one is pickled
SENT = frozenset(map(np.dtype, ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "?")))  # arrays that torch can have
ADVICE = (
    "give masks of attnwidget.masks or tensors, or functions at the top of a module that each worker can import; "
    "threads need none of that: executor=ThreadPoolExecutor()"
)


class Packed(NamedTuple):
    """An object in two parts: `content`, with numbers in place of `tensors`."""

    content: bytes
    tensors: list[Tensor]


class Parcel(NamedTuple):
    """An object as it travels to another process.

    content: the object, with numbers in place of its tensors.
    tensors: the dtype, the shape and the bytes of each.
    """

    content: bytes
    tensors: tuple[tuple[torch.dtype, tuple[int, ...], np.ndarray[Any, Any]], ...]


def pack(value: Any, what: str, advice: str = ADVICE) -> Packed:
    """Separate an object from its tensors.

    Args:
        value: the object.
        what: its name in errors.
        advice: what to give instead, in errors.

    Raises:
        TypeError: it holds something that cannot be sent, such as a lambda.
    """
    written = io.BytesIO()
    pickler = _Pickler(written)
    try:
        pickler.dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(f"{what} cannot be sent to another process ({error}): {advice}") from error
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


def seal(value: Any, what: str) -> Parcel:
    """Return an object with its tensors as bytes.

    Args:
        value: the object.
        what: its name in errors.

    Raises:
        TypeError: it holds something that cannot be sent, such as a lambda.
    """
    packed = pack(value, what)
    return Parcel(packed.content, tuple((x.dtype, tuple(x.shape), as_bytes(x)) for x in packed.tensors))


def unseal(parcel: Parcel) -> Any:
    """Return the object that `seal` was given.

    Raises:
        TypeError: it needs something that this process does not have.
    """
    return unpack(parcel.content, [from_bytes(*one) for one in parcel.tensors])


def as_bytes(x: Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor as bytes, in order."""
    return x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()


def from_bytes(dtype: torch.dtype, shape: Sequence[int], raw: np.ndarray[Any, Any]) -> Tensor:
    """Return the tensor that `as_bytes` was given, aligned like torch's own: kernels then give the same last bits."""
    if not len(raw):
        return torch.empty(shape, dtype=dtype, device="cpu")
    found = torch.from_numpy(raw if raw.flags.writeable and raw.ctypes.data % ALIGNED == 0 else _aligned(raw))
    return found.view(dtype).view(*shape)


def _aligned(raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    copied: np.ndarray[Any, Any] = torch.empty(len(raw), dtype=torch.uint8, device="cpu").numpy()
    copied[:] = raw
    return copied


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []
        self._known: dict[tuple[Any, ...], int] = {}

    def persistent_id(self, given: Any) -> tuple[str, int] | None:
        """Return the placeholder of a tensor or a long array; None for an object that is pickled."""
        if isinstance(given, Tensor):
            return "tensor", self._number(given.detach())
        if isinstance(given, np.ndarray) and given.nbytes >= LEAST_BYTES and given.dtype in SENT:
            return "array", self._number(torch.from_numpy(np.ascontiguousarray(given)))
        return None

    def reducer_override(self, given: Any) -> Any:
        """Return how a module is sent, without hooks that only record outputs for its library."""
        if not isinstance(given, torch.nn.Module) or not _recorders_of(given):
            return NotImplemented
        found = given.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if not isinstance(found, tuple) or len(found) < 3 or not isinstance(found[2], dict):
            return NotImplemented
        return (*found[:2], _without_recorders(found[2], _recorders_of(given)), *found[3:])

    def _number(self, x: Tensor) -> int:
        key = (x.data_ptr(), x.shape, x.stride(), x.dtype) if x.numel() else (len(self.tensors),)
        if key not in self._known:
            self._known[key] = len(self.tensors)
            self.tensors.append(x)
        return self._known[key]


RECORDING = "transformers.utils.output_capturing"  # its hooks of output_attentions=True stay, and cannot be pickled
INSTALLED = "_output_capturing_hooks_installed"  # without this mark, the library installs them again when it needs them


def _recorders_of(module: torch.nn.Module) -> list[int]:
    """Return the numbers of a module's hooks that only record outputs."""
    hooks: dict[int, Any] = vars(module).get("_forward_hooks", {})
    found = [at for at, hook in hooks.items() if getattr(hook, "__module__", "") == RECORDING]
    return found or ([-1] if INSTALLED in vars(module) else [])


def _without_recorders(state: dict[str, Any], recorders: Sequence[int]) -> dict[str, Any]:
    """Return a module's state without some of its hooks, and without the mark that they are there."""
    kept = {name: value for name, value in state.items() if name != INSTALLED}
    for name, hooks in state.items():
        if name.startswith("_forward_hooks"):
            kept[name] = type(hooks)((at, hook) for at, hook in hooks.items() if at not in recorders)
    return kept


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, given: tuple[str, int]) -> Any:
        """Return the tensor of a placeholder."""
        kind, number = given
        return self._tensors[number].numpy() if kind == "array" else self._tensors[number]
