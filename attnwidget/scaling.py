"""Measure the effect of dividing by √d_k, and the cost of attention by length."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log2
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ._utils.validation import as_size, as_tensor
from .attention import Attention

__all__ = ["Cost", "Step", "cost", "sweep"]


def __dir__() -> list[str]:
    """Return only the public names, for completion in editors."""
    return __all__


HEAD_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
LENGTHS = (256, 512, 1024, 2048)
CORNER = 16  # a step keeps the weights of so many queries and keys


@dataclass(frozen=True, eq=False)
class Step:
    """One head size of a sweep, with and without the scale 1 / √d_k.

    Attributes:
        head_size: d_k.
        scores_variance, scaled_variance: of q · k and of q · k / √d_k.
        theory: d_k, the variance of q · k if entries are independent with mean 0 and variance 1 (Vaswani et al. 2017,
            footnote 4).
        entropy, unscaled_entropy: in bits, averaged over the queries.
        most: log₂ of the number of keys, the entropy of equal weights.
        peak, unscaled_peak: the largest weight, averaged over the queries.
        sensitivity, unscaled_sensitivity: Σ p (1 − p), averaged over the queries. If it is near 0, hardly any gradient
            reaches the scores.
        weights, unscaled_weights: (≤ 16, ≤ 16), of the first queries and the first keys.

    >>> from attnwidget import scaling
    >>> step = scaling.sweep(sizes=[4])[0]
    >>> step.head_size, step.theory
    (4, 4)
    """

    head_size: int
    scores_variance: float
    scaled_variance: float
    theory: int
    entropy: float
    unscaled_entropy: float
    most: float
    peak: float
    unscaled_peak: float
    sensitivity: float
    unscaled_sensitivity: float
    weights: Tensor
    unscaled_weights: Tensor


def sweep(
    q: Any = None, k: Any = None, *, sizes: Sequence[int] = HEAD_SIZES, queries: int = 64, seed: int = 0
) -> list[Step]:
    """Compute attention at each head size, with and without the scale, from random q and k or from yours.

    Args:
        q, k: (Q, D) and (K, D); each size uses their first dimensions; None for independent normal numbers.
        sizes: head sizes d_k; those above D are skipped.
        queries: the number of random queries, and of random keys.
        seed: of the random numbers.

    Returns:
        A list of `Step`, one for each size.

    Raises:
        ValueError: only one of q and k is given, or all sizes are above D.

    >>> step = sweep(sizes=[256])[0]
    >>> 200 < step.scores_variance < 312, step.peak < step.unscaled_peak
    (True, True)
    """
    sizes = [as_size(size, "sizes") for size in sizes]
    if (q is None) != (k is None):
        raise ValueError("one of q and k is None: give both, or neither for random ones")
    if q is None:
        source = torch.Generator().manual_seed(seed)
        q, k = (torch.randn(as_size(queries, "queries"), max(sizes), generator=source, device="cpu") for _ in range(2))
    q, k = as_tensor(q, "q").detach(), as_tensor(k, "k").detach()
    if q.ndim != 2 or k.ndim != 2 or q.shape[1] != k.shape[1]:
        raise ValueError(f"q is {tuple(q.shape)} and k is {tuple(k.shape)}: give one head, (Q, D) and (K, D)")
    fitting = [size for size in sizes if size <= q.shape[1]]
    if not fitting:
        raise ValueError(f"sizes are {sizes} but q has head size {q.shape[1]}: give at least one size up to that")
    return [_step(q[:, :size], k[:, :size]) for size in fitting]


def _step(q: Tensor, k: Tensor) -> Step:
    scaled, unscaled = Attention(q, k), Attention(q, k, scale=1.0)
    found, raw = scaled.statistics(), unscaled.statistics()
    corner = slice(CORNER)
    return Step(
        head_size=q.shape[1],
        scores_variance=float(found.scores_variance or 0.0),
        scaled_variance=float(found.scaled_variance or 0.0),
        theory=q.shape[1],
        entropy=float(found.entropy.mean()),
        unscaled_entropy=float(raw.entropy.mean()),
        most=log2(len(k)),
        peak=float(found.peak.mean()),
        unscaled_peak=float(raw.peak.mean()),
        sensitivity=float(found.sensitivity.mean()),
        unscaled_sensitivity=float(raw.sensitivity.mean()),
        weights=scaled.block(queries=corner, keys=corner),
        unscaled_weights=unscaled.block(queries=corner, keys=corner),
    )


@dataclass(frozen=True)
class Cost:
    """Time and memory of one head at one length, on this machine.

    Attributes:
        length: n, the number of queries and of keys.
        dense_seconds: time of softmax(q kᵀ) v with all weights in memory.
        dense_bytes: memory of those n² weights.
        fused_seconds: time of `F.scaled_dot_product_attention`, which keeps no weights.
        seen_seconds: time of `Attention.overview`, a picture of the weights.
        seen_bytes: memory of q and k, n · d numbers each; the picture needs nothing else.

    >>> from attnwidget import scaling
    >>> cost = scaling.cost(lengths=[64])[0]
    >>> cost.length, cost.dense_bytes
    (64, 16384)
    """

    length: int
    dense_seconds: float
    dense_bytes: int
    fused_seconds: float
    seen_seconds: float
    seen_bytes: int


def cost(lengths: Sequence[int] = LENGTHS, *, head_size: int = 64, runs: int = 5, seed: int = 0) -> list[Cost]:
    """Measure time and memory of one head by length: medians of interleaved runs in float32, on this machine.

    Args:
        lengths: n, the number of queries and of keys.
        head_size: d.
        runs: the number of runs for each length, after a warm-up run.
        seed: of random q, k and v.

    Returns:
        A list of `Cost`, one for each length.

    Raises:
        ValueError: a length, head size or number of runs is below 1.

    >>> short, long = cost([64, 128], runs=1)
    >>> long.dense_bytes / short.dense_bytes, long.seen_bytes / short.seen_bytes
    (4.0, 2.0)
    """
    source = torch.Generator().manual_seed(seed)
    runs, head_size = as_size(runs, "runs"), as_size(head_size, "head_size")
    return [_cost(as_size(n, "lengths"), head_size, runs, source) for n in lengths]


def _cost(n: int, head_size: int, runs: int, source: torch.Generator) -> Cost:
    q, k, v = (torch.randn(1, 1, n, head_size, generator=source, device="cpu") for _ in range(3))
    acts: dict[str, Callable[[], Any]] = {
        "dense": lambda: torch.softmax((q * head_size**-0.5) @ k.mT, -1) @ v,
        "fused": lambda: F.scaled_dot_product_attention(q, k, v),
        "seen": lambda: Attention(q, k).overview(),
    }
    times: dict[str, list[float]] = {name: [] for name in acts}
    for run in range(runs + 1):
        for name, act in acts.items():
            start = time.perf_counter()
            act()
            if run:
                times[name].append(time.perf_counter() - start)
    taken = {name: median(found) for name, found in times.items()}
    return Cost(n, taken["dense"], n * n * 4, taken["fused"], taken["seen"], 2 * n * head_size * 4)
