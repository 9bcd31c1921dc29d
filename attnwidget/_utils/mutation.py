"""Notice tensors that are changed in place after an attention was made of them."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

from torch import Tensor

HERE = str(Path(__file__).parent.parent) + os.sep


class MutationGuard:
    """Watch the tensors that an attention was made of for changes in place."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self.made_with = self.versions()
        self.has_warned = False

    def versions(self) -> tuple[int, ...]:
        """Return how often torch changed each in place; what numpy writes into shared memory is not counted."""
        return tuple(0 if x.is_inference() else x._version for x in self.tensors.values())

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
    """Count the frames up to the code that called this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(HERE):
        frame, level = frame.f_back, level + 1
    return level
