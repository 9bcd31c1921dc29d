"""A mask that ends the process of the first worker that comes to some query of it: a pass is cut in its midst."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class KilledOnce:
    """The causal mask, as a function of indices; the first worker that asks it about `query` is killed.

    folder: where a file says that one was.
    query: from which on.
    """

    folder: Path
    query: int

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        is_worker = multiprocessing.parent_process() is not None
        if is_worker and not self.has_killed and bool((torch.as_tensor(q_idx) >= self.query).any()):
            (self.folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return q_idx >= kv_idx

    @property
    def has_killed(self) -> bool:
        """Whether a worker was killed."""
        return (self.folder / "killed").exists()
