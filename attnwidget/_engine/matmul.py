"""Products and exponentials, as fast as possible and in the precision of the tensors whatever the caller's mode."""

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
LEAST_CONVOLVED_CELLS = 1 << 17  # of a product, from which on a convolution is quicker
LOG2_E = log2(EULER)

Y = TypeVar("Y")
R = TypeVar("R")


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """Compute in the precision of the tensors, without gradients, whatever mode the caller is in."""
    with torch.inference_mode(False), torch.no_grad(), full(device):  # what is cached here is used outside
        yield


def exactly(device: torch.device, steps: Generator[Y, None, R]) -> Generator[Y, None, R]:
    """Run steps as `exact` does, each by itself: the caller's mode is back between them."""
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
    """Compute in the precision of the tensors, whatever the caller lowers it to."""
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
            _bring_back(user)  # an interrupt may come in the middle of that as well
            raise


class _User:
    """A block that computes: only weakly held, so that one that an interrupt ended anywhere counts no longer."""

    __slots__ = ("__weakref__",)


_precision = threading.Lock()
_changed: list[Callable[[], Any]] = []  # how to bring back what the caller had
_users: WeakSet[_User] = WeakSet()  # of all threads


def _keep_float32(user: _User) -> None:
    """Turn off TF32 and bfloat16 products, which are off by 1e-3, until the last thread that computes is done.

    These settings are those of the process: a thread that ends may not bring them back for one that still computes.
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
    """Turn off what the caller has turned on, and yield, before each, how to bring it back."""
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
    """Memory for one block after the other, allocated only once a block has use for it.

    Args:
        cells: the most numbers that a block has.
        dtype: of the numbers.
        device: where they are.
    """

    def __init__(self, cells: int, dtype: torch.dtype, device: torch.device):
        self._cells, self._how = cells, {"dtype": dtype, "device": device}
        self._memory: Tensor | None = None
        self._last: Tensor
        self._shape: tuple[int, int] | None = None

    def cut(self, keys: int, queries: int) -> Tensor:
        """Return memory for a block, (keys, queries), to be overwritten."""
        if self._memory is None:
            self._memory = torch.empty(self._cells, **self._how)  # type: ignore[call-overload]
        if self._shape != (keys, queries):
            self._shape, self._last = (keys, queries), self._memory[: keys * queries].view(keys, queries)
        return self._last


class Product:
    """k · qᵀ for some queries, with one block of keys after the other.

    Args:
        q: (queries, D).

    torch has two libraries for it on x86. `mm` goes to MKL, which on an AMD processor leaves AVX-512 unused; a 1 × 1
    convolution goes to oneDNN, which does not, and is up to twice as fast (Zen 5; on Zen 4 a tenth). On an Intel
    processor MKL is the quicker, by a tenth in large blocks and by a third in small ones; and on one without AVX-512
    as well (Zen 3: by a third in blocks of 512 × 512). The error is the same. The keys are laid out as 16 images: with
    fewer, torch does not hand it to oneDNN on one thread.

    The processor's kind decides and no measurement, which chance would have a part in: every process on a machine has
    the same last bits, so that what several workers compute is what one would.
    """

    def __init__(self, q: Tensor):
        self.q = q.contiguous()
        self._turned, self._queries = self.q.mT, q.shape[0]
        self.convolves = q.device.type == "cpu" and q.dtype == torch.float32 and q.shape[1] >= 16
        self.convolves &= X86 and not made_by_intel() and has_avx512()
        self.convolves &= bool(torch.backends.mkldnn.enabled) and torch.backends.mkldnn.is_available()
        if self.convolves:
            _keep_freed_memory()
            self.kernels = self.q[:, None, None].permute(0, 3, 1, 2)  # channels last: a view of the same memory

    def of(self, k: Tensor, scratch: Scratch | None = None) -> Tensor:
        """Multiply a block of keys.

        Args:
            k: (keys, D).
            scratch: where the result may lie.

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
    """Whether the processor is Intel's, once per process; what says nothing of itself counts as another's."""
    said = platform.processor() + os.environ.get("PROCESSOR_IDENTIFIER", "")  # Windows tells it in either
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        said += next((line for line in lines if line.startswith("vendor_id")), "")
    return "GenuineIntel" in said or (sys.platform == "darwin" and X86)


@cache
def has_avx512() -> bool:
    """Whether torch runs with the instructions of AVX-512, once per process."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def product(k: Tensor, q: Tensor, scratch: Scratch | None = None) -> Tensor:
    """Return k · qᵀ, (keys, queries), from (keys, D) and (queries, D); in scratch memory where that is of use."""
    return Product(q).of(k, scratch)


@cache
def _keep_freed_memory() -> None:
    """Make glibc keep large blocks that are freed, once per process.

    Otherwise it hands them back to the system, and asking again for each product costs as much as computing it. One
    free of 31 MiB, never touched, tells it to keep blocks up to that size; any program that ever frees a tensor as
    large has done so already. Elsewhere it does nothing.

    `mm` has no need of it, for it writes into memory that is there; a convolution has no such argument, and blocks
    small enough to be kept anyway cost a tenth more. Whoever goes through blocks lets go of one before the next is
    made, so that it comes to lie in the same memory, and that in the processor's cache.
    """
    torch.empty(31 << 20, dtype=torch.uint8, device="cpu")


def exp_(x: Tensor) -> Tensor:
    """Compute exp in place, as exp2: several times faster on a CPU if results below the normal range become 0 first."""
    tiny = log2(torch.finfo(x.dtype).tiny)
    return torch.threshold_(x.mul_(LOG2_E), tiny, -inf).exp2_()
