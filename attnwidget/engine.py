"""The engine: everything that runs over whole rows, streamed block by block; no (Q, K) tensor anywhere.

A block of scores lies transposed, (keys, queries): pooling over keys then runs along rows of memory. The softmax is the
online one (Milakov & Gimelshein 2018; FlashAttention, Dao et al. 2022), and the log-normalizer stays a pair.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import e as EULER
from math import inf, log2
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .masks import Rules
from .places import Cells, Places, take

if TYPE_CHECKING:
    from .attention import Attention

QUERIES, KEYS = 512, 2048  # of one block
REMEMBERED = 64  # heads whose log-normalizers are kept, O(Q) each
LOG2_E = log2(EULER)


class Pair(NamedTuple):
    """The log-normalizers of some queries, m + log l, in two parts: their sum alone is too coarse for large scores."""

    m: Tensor  # (queries,) largest masked score; 0 in an empty row
    log_l: Tensor  # (queries,) log Σ exp(masked − m); +∞ in an empty row, so that its weights are 0

    def log_weights(self, masked: Tensor) -> Tensor:
        return (masked - self.m) - self.log_l  # (…, queries)

    def log_normalizer(self) -> Tensor:
        return (self.m + self.log_l).masked_fill(self.log_l == inf, -inf)  # (queries,)


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """Compute in the precision of the tensors, without gradients, whatever mode the caller is in."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))  # what is cached here is used outside
        stack.enter_context(torch.no_grad())
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


def new(att: Attention, *shape: int) -> Tensor:
    """Room for results."""
    return torch.empty(shape, dtype=att.result_dtype, device=att.device)


# Blocks of scores.


def block(att: Attention, cells: Cells, stage: str, room: Tensor | None = None) -> Tensor:
    """scores, scaled or masked of some cells, (keys, queries), in float32 or float64."""
    q = take(att.q[cells.batch, cells.head], cells.queries, 0).to(att.result_dtype)  # (queries, D)
    k = take(att.k[cells.batch, att.group(cells.head)], cells.keys, 0).to(att.result_dtype)  # (keys, D)
    if stage != "scores":
        q = q * att.scale
    out = None if room is None else room[: len(k) * len(q)].view(len(k), len(q))
    S = torch.mm(k, q.mT, out=out)  # (keys, queries)
    if stage != "masked":
        return S
    for bias in att.rules.biases:
        S += bias.added(cells).mT
    allowed = att.rules.allowed(cells) if att.rules.coverage(cells) != "all" else None
    if allowed is not None:
        S.masked_fill_(allowed.logical_not().mT, -inf)  # unlike adding −∞, this stops NaN
    return S


def blocks(
    att: Attention, batch: int, head: int, queries: Places, stage: str, width: int = 1
) -> Iterator[tuple[range, Tensor]]:
    """The blocks of some queries along the keys, whole bins of `width` keys or parts of one; blocked ones left out.

    The scores are the consumer's to overwrite; the next block reuses their memory.
    """
    rules = att.rules if stage == "masked" else Rules()
    room = new(att, len(queries) * KEYS)
    row = Cells(batch, head, queries, range(att.shape.K))
    for keys in cuts(rules.span(row), width, KEYS):
        cells = row._replace(keys=keys)
        if rules.coverage(cells) != "none":
            yield keys, block(att, cells, stage, room)


def cuts(whole: range, width: int, limit: int) -> Iterator[range]:
    """Cut a range at multiples of width, into pieces of at most limit: several bins each, or a part of one."""
    start = whole.start // width * width
    step = limit // width * width
    while start < whole.stop:
        stop = start + step if step else min(start + limit, (start // width + 1) * width)
        yield range(start, min(stop, whole.stop))
        start = stop


# The online softmax.


class Softmax:
    """Running maximum m and sum l of exp(masked − m) for some queries, as blocks of keys come in."""

    def __init__(self, att: Attention, queries: int):
        self.m = new(att, queries).fill_(-inf)  # (queries,)
        self.l = torch.zeros_like(self.m)  # (queries,)

    def add(self, S: Tensor, peak: Tensor) -> tuple[Tensor, Tensor]:
        """Take in a block (keys, queries) with its maximum over the keys.

        Returns exp(S − m), in the memory of S, and what earlier such numbers are to be multiplied by.
        """
        m = torch.maximum(self.m, peak)  # keeps NaN
        base = m.masked_fill(m == -inf, 0)  # −∞ − (−∞) would be NaN in a row that is empty so far
        e = exp_(S.sub_(base))  # (keys, queries)
        shrink = exp_(self.m - base)  # (queries,)
        self.m, self.l = m, self.l * shrink + e.sum(0)
        return e, shrink

    def pair(self) -> Pair:
        empty = self.m == -inf
        return Pair(self.m.masked_fill(empty, 0), self.l.log().masked_fill(empty, inf))


def normalizers(att: Attention, batch: int, head: int, queries: Places) -> Pair:
    """The log-normalizers of some queries."""
    m, log_l = new(att, 2, len(queries))  # (queries,) each
    for piece in cuts(range(len(queries)), 1, QUERIES):
        at = slice(piece.start, piece.stop)
        softmax = Softmax(att, len(piece))
        for _, S in blocks(att, batch, head, queries[at], "masked"):
            softmax.add(S, S.amax(0))
        m[at], log_l[at] = softmax.pair()
    return Pair(m, log_l)


def output(att: Attention, v: Tensor, batch: int, head: int) -> tuple[Tensor, Pair]:
    """weights · v of all queries, (Q, Dv), and their log-normalizers."""
    v = v[batch, att.group(head)]  # (K, Dv)
    out, (m, log_l) = new(att, att.shape.Q, v.shape[1]), new(att, 2, att.shape.Q)
    for rows in cuts(range(att.shape.Q), 1, QUERIES):
        at = slice(rows.start, rows.stop)
        softmax = Softmax(att, len(rows))
        total = new(att, len(rows), v.shape[1]).zero_()  # (queries, Dv)
        for keys, S in blocks(att, batch, head, rows, "masked"):
            e, shrink = softmax.add(S, S.amax(0))
            total = total * shrink[:, None] + weigh(e, take(v, keys, 0).to(att.result_dtype))
        out[at] = (total / softmax.l[:, None]).masked_fill((softmax.m == -inf)[:, None], 0)
        m[at], log_l[at] = softmax.pair()
    return out, Pair(m, log_l)


def weigh(e: Tensor, v: Tensor) -> Tensor:
    """eᵀ · v, where a value that is NaN or infinite reaches only the queries that give it weight."""
    finite = v.isfinite()  # (keys, Dv)
    if bool(finite.all()):
        return e.mT @ v  # (queries, Dv)
    reached = e.mT @ (~finite).to(e.dtype) > 0  # (queries, Dv)
    return torch.where(reached, e.mT @ v, e.mT @ v.where(finite, 0))


# What is kept of it.


class Memory:
    """Log-normalizers by (batch, head), the oldest forgotten first. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pairs: dict[tuple[int, int], tuple[tuple[int, ...], Pair]] = {}

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        return Memory, ()  # a copy starts afresh

    def put(self, head: tuple[int, int], versions: tuple[int, ...], pair: Pair) -> None:
        with self._lock:
            self._pairs.pop(head, None)
            self._pairs[head] = versions, pair
            if len(self._pairs) > REMEMBERED:
                del self._pairs[next(iter(self._pairs))]

    def get(self, head: tuple[int, int], versions: tuple[int, ...]) -> Pair | None:
        with self._lock:
            before, pair = self._pairs.get(head, ((), None))
        return pair if before == versions else None
