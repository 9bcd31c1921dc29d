"""Notice tensors that are changed in place after an attention was made of them."""

from __future__ import annotations

import math
import os
import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

READ = 1 << 16  # numbers of a tensor that are read to notice changes that torch does not count
_shared: dict[int, StorageWeakRef] = {}  # memory that others may write to, such as numpy, by its address
HERE = str(Path(__file__).parent.parent) + os.sep
OF_MODULES = str(torch.nn.modules.module.__file__)  # a module is called from there


def note_shared(x: Tensor) -> None:
    """Note that others may write into the memory of a tensor, which torch does not count."""
    for key in [key for key, storage in _shared.items() if storage.expired()]:
        del _shared[key]
    storage = StorageWeakRef(x.untyped_storage())
    _shared[storage.cdata] = storage


def version_of(x: Tensor | None) -> int:
    """Return a number that changes with a tensor; of one whose changes torch does not count, with the numbers read."""
    if x is None:
        return 0
    if x.is_inference():
        return _digest(x)
    return hash((x._version, _digest(x))) if _shared and _is_shared(x) else x._version


def _is_shared(x: Tensor) -> bool:
    found = _shared.get(x.untyped_storage()._cdata)
    return found is not None and not found.expired()


def _digest(x: Tensor) -> int:
    """Return a hash of a tensor's numbers, evenly spread ones of a large tensor."""
    steps, counts = [1] * x.ndim, list(x.shape)
    while math.prod(counts) > READ:
        axis = counts.index(max(counts))
        steps[axis] *= 2
        counts[axis] = -(-x.shape[axis] // steps[axis])
    with torch.no_grad():
        some = x.detach()[tuple(slice(None, None, step) for step in steps)].contiguous().flatten()
        return hash(some.view(torch.uint8).cpu().numpy().tobytes())


class MutationGuard:
    """Watch the tensors that an attention was made of for changes in place."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self.made_with = self.versions()
        self.has_warned = False

    def versions(self) -> tuple[int, ...]:
        """Return a number for each tensor that changes with it: see `version_of`."""
        return tuple(version_of(x) for x in self.tensors.values())

    def check(self) -> None:
        """Warn, once, if any of the tensors has changed."""
        now = self.versions()
        if self.has_warned or now == self.made_with:
            return
        self.has_warned = True
        changed = [name for name, old, new in zip(self.tensors, self.made_with, now, strict=True) if old != new]
        names = ", ".join(changed[:-1]) + " and " * (len(changed) > 1) + changed[-1]
        warnings.warn(
            f"{names} changed in place after this Attention was made, which shows the numbers as they are now: "
            f"make a new one, and give it {changed[0]}.clone() to keep them as they are",
            UserWarning,
            stacklevel=levels_to_the_caller(),
        )


def levels_to_the_caller() -> int:
    """Count the frames up to the code that called this package, or one of its modules."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith((HERE, OF_MODULES)):
        frame, level = frame.f_back, level + 1
    return level
