"""The precision of the tensors, whatever mode the caller is in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import e as EULER
from math import inf, log2
from typing import Any

import torch
from torch import Tensor

LOG2_E = log2(EULER)


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """Compute in the precision of the tensors, without gradients, whatever mode the caller is in."""
    with torch.inference_mode(False), torch.no_grad(), full(device):  # what is cached here is used outside
        yield


@contextmanager
def full(device: torch.device) -> Iterator[None]:
    """Compute in the precision of the tensors, whatever the caller lowers it to."""
    with ExitStack() as stack:
        if torch.amp.is_autocast_available(device.type):
            stack.enter_context(torch.autocast(device.type, enabled=False))
        _keep_float32(stack)
        yield


def _keep_float32(stack: ExitStack) -> None:
    """No TF32 or bfloat16 products, which are off by 1e-3, until the stack closes."""
    backends: list[Any] = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    if not hasattr(backends[0], "fp32_precision"):  # torch before 2.9
        stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("highest")
        return
    for backend in backends:
        if backend.fp32_precision not in ("none", "ieee"):
            stack.callback(setattr, backend, "fp32_precision", backend.fp32_precision)
            backend.fp32_precision = "ieee"


def exp_(x: Tensor) -> Tensor:
    """exp in place, as exp2: several times faster on a CPU, provided results below the normal range become 0 first."""
    tiny = log2(torch.finfo(x.dtype).tiny)
    return torch.threshold_(x.mul_(LOG2_E), tiny, -inf).exp2_()
