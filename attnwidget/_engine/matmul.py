"""Fast products and exponentials, in the precision of the tensors, whatever mode the caller is in."""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from math import e as EULER
from math import inf, log2
from typing import Any, TypeVar
from weakref import WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor

X86 = platform.machine().lower() in ("x86_64", "amd64")
LEAST_CONVOLVED_CELLS = 1 << 17  # in a product: from here on a convolution is faster
LOG2_E = log2(EULER)

Y = TypeVar("Y")
R = TypeVar("R")


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """Compute in the precision of the tensors, without gradients, whatever mode the caller is in."""
    with torch.inference_mode(False), torch.no_grad(), full(device):  # cached results are used outside inference mode
        yield


def exactly(device: torch.device, steps: Generator[Y, None, R]) -> Generator[Y, None, R]:
    """Run each step inside `exact`; the caller's mode is restored between steps."""
    while True:
        try:
            with exact(device):
                made = next(steps)
        except StopIteration as end:
            found: R = end.value
            return found
        yield made


@contextmanager
def full(device: torch.device) -> Iterator[None]:
    """Compute in the precision of the tensors, even if the caller has lowered it."""
    user = _User()
    try:
        _keep_float32(user)
        if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
            with torch.autocast(device.type, enabled=False):
                yield
        else:
            yield
    finally:
        try:
            _bring_back(user)
        except BaseException:
            _bring_back(user)  # an interrupt may stop the first call
            raise


class _User:
    """A running `full` block. It is held weakly, so that one ended by an interrupt no longer counts."""

    __slots__ = ("__weakref__",)


_precision = threading.Lock()
_changed: list[Callable[[], Any]] = []  # restore the caller's settings
_users: WeakSet[_User] = WeakSet()  # in all threads


def _keep_float32(user: _User) -> None:
    """Turn off TF32 and bfloat16 products, which have errors of 1e-3, until no thread computes any more.

    The settings belong to the process, so a thread that ends must not restore them while another still computes.
    """
    with _precision:
        if not _users or not _changed:
            _changed.extend(_turned_off())
        _users.add(user)


def _bring_back(user: _User) -> None:
    with _precision:
        _users.discard(user)
        while not _users and _changed:
            _changed[-1]()
            del _changed[-1]


def _turned_off() -> Iterator[Callable[[], Any]]:
    """Turn off what the caller has turned on; before each change, yield a function that restores it."""
    backends: list[Any] = [torch.backends.cuda.matmul]
    backends += [getattr(torch.backends.mkldnn, name, None) for name in ("matmul", "conv")]
    if not hasattr(backends[0], "fp32_precision"):  # torch before 2.9
        before = torch.get_float32_matmul_precision()
        yield partial(torch.set_float32_matmul_precision, before)
        torch.set_float32_matmul_precision("highest")
        return
    for backend in backends:
        if backend.fp32_precision not in ("none", "ieee"):
            yield partial(setattr, backend, "fp32_precision", backend.fp32_precision)
            backend.fp32_precision = "ieee"


class Scratch:
    """Memory that blocks use in turn, allocated on first use.

    Args:
        cells: the most numbers in a block.
        dtype: of the numbers.
        device: of the memory.
    """

    def __init__(self, cells: int, dtype: torch.dtype, device: torch.device):
        self._cells, self._how = cells, {"dtype": dtype, "device": device}
        self._memory: Tensor | None = None
        self._last: Tensor
        self._shape: tuple[int, int] | None = None

    def cut(self, keys: int, queries: int) -> Tensor:
        """Return uninitialized memory for a block, (keys, queries)."""
        if self._memory is None:
            self._memory = torch.empty(self._cells, **self._how)  # type: ignore[call-overload]
        if self._shape != (keys, queries):
            self._shape, self._last = (keys, queries), self._memory[: keys * queries].view(keys, queries)
        return self._last


class Product:
    """The product k · qᵀ of some queries with many blocks of keys.

    Args:
        q: (queries, D).

    On x86, torch has two libraries for it. `mm` uses MKL, which does not use AVX-512 on AMD processors. A 1 × 1
    convolution uses oneDNN, which does, and is up to twice as fast (Zen 5; on Zen 4 by 10 %). MKL is faster on Intel
    processors, by 10 % in large blocks and by a third in small ones, and on processors without AVX-512 (Zen 3: by a
    third in blocks of 512 × 512). The error is the same. The keys are passed as 16 images, because with fewer torch
    does not use oneDNN on one thread.

    The choice depends only on the processor, not on a measurement, so all processes of a machine compute the same bits.
    """

    def __init__(self, q: Tensor):
        self.q = q.contiguous()
        self._turned, self._queries = self.q.mT, q.shape[0]
        self.convolves = q.device.type == "cpu" and q.dtype == torch.float32 and q.shape[1] >= 16
        self.convolves &= X86 and not made_by_intel() and has_avx512()
        self.convolves &= bool(torch.backends.mkldnn.enabled) and torch.backends.mkldnn.is_available()
        if self.convolves:
            _keep_freed_memory()
            self.kernels = self.q[:, None, None].permute(0, 3, 1, 2)  # channels last, a view

    def of(self, k: Tensor, scratch: Scratch | None = None) -> Tensor:
        """Multiply a block of keys.

        Args:
            k: (keys, D).
            scratch: optional memory for the result.

        Returns:
            (keys, queries).
        """
        (keys, D), queries = k.shape, self._queries
        if not self.convolves or keys % 16 or keys * queries < LEAST_CONVOLVED_CELLS:
            return torch.mm(k, self._turned, out=None if scratch is None else scratch.cut(keys, queries))
        images = k.contiguous().view(16, keys // 16, 1, D).permute(0, 3, 1, 2)
        found = F.conv2d(images, self.kernels)  # (16, queries, keys / 16, 1)
        return found.permute(0, 2, 3, 1).reshape(keys, queries)


@cache
def made_by_intel() -> bool:
    """Return whether the processor is made by Intel, determined once per process; False if unknown."""
    said = platform.processor() + os.environ.get("PROCESSOR_IDENTIFIER", "")  # Windows has it in either
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        said += next((line for line in lines if line.startswith("vendor_id")), "")
    return "GenuineIntel" in said or (sys.platform == "darwin" and X86)


@cache
def has_avx512() -> bool:
    """Return whether torch uses AVX-512 instructions, determined once per process."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def product(k: Tensor, q: Tensor, scratch: Scratch | None = None) -> Tensor:
    """Return k · qᵀ, (keys, queries), from (keys, D) and (queries, D), possibly in scratch memory."""
    return Product(q).of(k, scratch)


@cache
def _keep_freed_memory() -> None:
    """Make glibc keep large freed blocks of memory, once per process; other systems are not affected.

    Otherwise glibc returns them to the system, and allocating memory for each product takes as long as computing it.
    Freeing one block of 31 MiB makes it keep blocks up to that size, as in any program that has freed such a tensor.

    `mm` does not need this, since it can write into existing memory. A convolution cannot, and smaller blocks would
    cost 10 % more. Loops over blocks free each block before the next, which then reuses its memory in the processor's
    cache.
    """
    torch.empty(31 << 20, dtype=torch.uint8, device="cpu")


def exp_(x: Tensor) -> Tensor:
    """Compute exp in place by exp2; subnormal results become 0, which is several times faster on a CPU."""
    tiny = log2(torch.finfo(x.dtype).tiny)
    return torch.threshold_(x.mul_(LOG2_E), tiny, -inf).exp2_()
