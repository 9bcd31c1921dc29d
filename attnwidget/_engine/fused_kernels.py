"""The numba kernels of the fused pass, which read a block of scores while it is in the processor's cache.

Importing this module imports numba and compiles for seconds, or reads earlier results from the cache folder. Only
`fused` imports it, in a thread. Blocks are (keys, queries), as everywhere in the engine, and loops run along the
queries, so that the processor computes 4 to 16 at once.

Comparisons with NaN are false: maxima skip it and sums keep it, so `FusedStripe.settle` can restore it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numpy as np
from numba import config, njit

from .._utils.cache_folder import cache_folder

F = TypeVar("F")
CACHE = str(cache_folder())

# 2 ** x for |x| ≤ ½: the polynomial of degree 5 with p(0) = 1 and the smallest relative error, at most 9.1e-8.
C1, C2, C3, C4, C5 = (
    np.float32(c) for c in (0.6931469775578207, 0.2402224207698382, 0.0555073377765083, 0.0096715130223251, 0.001326472)
)
ONE, ZERO, LOG2_E = np.float32(1), np.float32(0), np.float32(1.4426950408889634)
EMPTY = np.float32(-np.inf)
LOW = np.float32(-127)  # 2 ** this and less is 0
ROUND = np.float32(3 << 22) + np.float32(
    127
)  # added and taken off again, leaves an integer; + 127, its bits are 2 ** n
MANTISSA = np.int32(23)  # bits
LEAD = np.float32(60)  # how much a score may exceed its base: sums of a million e ** 60 are normal numbers


@contextmanager
def in_own_folder() -> Iterator[None]:
    """Let numba cache in the user's cache folder: files in the package folder would outlive an uninstall."""
    given = config.CACHE_DIR
    config.CACHE_DIR = given or CACHE
    try:
        yield
    finally:
        config.CACHE_DIR = given


def _may_be_kept() -> bool:
    """Return whether that folder can be written."""
    try:
        with in_own_folder():
            folder = config.CACHE_DIR
            return str(njit(cache=True)(_nothing).stats.cache_path).startswith(folder)
    except RuntimeError:
        return False


def _nothing() -> None:
    """Do nothing; compiled to find out where numba can cache."""


if getattr(config, "DISABLE_JIT", False):
    raise RuntimeError("NUMBA_DISABLE_JIT is set")  # uncompiled, the kernels would take hours
KEPT = _may_be_kept()


def compiled(function: F) -> F:
    """Compile a function on its first call, for the types of its arguments."""
    # Only "contract", which fuses products and sums. Other fast-math flags would lose NaN and −∞.
    with in_own_folder():
        return cast(F, njit(nogil=True, cache=KEPT, fastmath={"contract"})(function))


def compiled_at_once(*arguments: str) -> Callable[[F], F]:
    """Return a decorator that compiles a function now, for arguments of these types."""
    decorate = njit([f"void({', '.join(arguments)})"], nogil=True, cache=KEPT, fastmath={"contract"})

    def decorated(function: F) -> F:
        with in_own_folder():
            return cast(F, decorate(function))

    return decorated


@compiled
def exp2(y: Any) -> Any:
    """Compute 2 ** y for y ≤ 127, to 1 part in 5 million; 0 below the normal range, NaN for NaN."""
    y = LOW if y < LOW else y
    t = np.float32(y + ROUND)
    f = y - (t - ROUND)  # in −½ to ½
    p = C5 * f + C4
    p = p * f + C3
    p = p * f + C2
    p = p * f + C1
    p = p * f + ONE
    return p * np.int32(t.view(np.int32) << MANTISSA).view(np.float32)


@compiled
def raise_by_one(a: Any, largest: Any) -> None:
    """Take the elementwise maximum with one row."""
    for j in range(largest.size):
        x, r = a[j], largest[j]
        largest[j] = x if x > r else r


@compiled
def raise_by_four(a: Any, b: Any, c: Any, d: Any, largest: Any) -> None:
    """Take the elementwise maximum with four rows."""
    for j in range(largest.size):
        r = largest[j]
        x = a[j] if a[j] > r else r
        y = b[j] if b[j] > r else r
        z = c[j] if c[j] > x else x
        w = d[j] if d[j] > y else y
        largest[j] = z if z > w else w


@compiled
def add_one(a: Any, base: Any, total: Any) -> None:
    """Add exp(row − base)."""
    for j in range(total.size):
        total[j] += exp2((a[j] - base[j]) * LOG2_E)


@compiled
def add_four(a: Any, b: Any, c: Any, d: Any, base: Any, total: Any) -> None:
    """Add exp(row − base) of four rows."""
    for j in range(total.size):
        at = base[j]
        x = exp2((a[j] - at) * LOG2_E) + exp2((b[j] - at) * LOG2_E)
        y = exp2((c[j] - at) * LOG2_E) + exp2((d[j] - at) * LOG2_E)
        total[j] += x + y


@compiled
def raise_and_add_four(a: Any, b: Any, c: Any, d: Any, largest: Any, base: Any, total: Any) -> None:
    """Do `raise_by_four` and `add_four`, reading each score once."""
    for j in range(largest.size):
        at, r = base[j], largest[j]
        x = a[j] if a[j] > r else r
        y = b[j] if b[j] > r else r
        z = c[j] if c[j] > x else x
        w = d[j] if d[j] > y else y
        largest[j] = z if z > w else w
        s = exp2((a[j] - at) * LOG2_E) + exp2((b[j] - at) * LOG2_E)
        t = exp2((c[j] - at) * LOG2_E) + exp2((d[j] - at) * LOG2_E)
        total[j] += s + t


@compiled
def block_outside(S: Any, at: int, keys: int, start: int, end: int, low: int, high: int, stop: int) -> None:
    """Write −∞ except where q + low ≤ k ≤ q + high and k < stop, with q and k counted from the block's first.

    Args:
        S: (most keys, queries).
        at: the number of the first query in S.
        keys: the number of keys in the block.
        start, end: only queries from start up to end.
        low, high, stop: the limits.
    """
    for k in range(keys):
        first, last = (max(start, k - high), min(end, k - low + 1)) if k < stop else (end, end)
        S[k, start - at : min(first, end) - at] = EMPTY
        S[k, max(last, start) - at : end - at] = EMPTY


@compiled
def largest_of(S: Any, first: int, last: int, start: int, end: int, largest: Any) -> None:
    """Take the maximum with the keys from first up to last, (queries,)."""
    k = first
    while k + 4 <= last:
        raise_by_four(S[k, start:end], S[k + 1, start:end], S[k + 2, start:end], S[k + 3, start:end], largest)
        k += 4
    while k < last:
        raise_by_one(S[k, start:end], largest)
        k += 1


@compiled
def raise_and_add(S: Any, first: int, last: int, start: int, end: int, largest: Any, base: Any, total: Any) -> None:
    """Do `largest_of` and `sum_of`, reading each score once."""
    k = first
    while k + 4 <= last:
        a, b, c, d = S[k, start:end], S[k + 1, start:end], S[k + 2, start:end], S[k + 3, start:end]
        raise_and_add_four(a, b, c, d, largest, base, total)
        k += 4
    while k < last:
        raise_by_one(S[k, start:end], largest)
        add_one(S[k, start:end], base, total)
        k += 1


@compiled
def sum_of(S: Any, first: int, last: int, start: int, end: int, base: Any, total: Any) -> None:
    """Add exp(score − base) of the keys from first up to last to numbers, (queries,)."""
    k = first
    while k + 4 <= last:
        add_four(S[k, start:end], S[k + 1, start:end], S[k + 2, start:end], S[k + 3, start:end], base, total)
        k += 4
    while k < last:
        add_one(S[k, start:end], base, total)
        k += 1


@compiled
def multiply(factor: Any, total: Any) -> None:
    """Multiply by a row."""
    for j in range(total.size):
        total[j] *= factor[j]


@compiled
def shrink(bins: Any, first: int, last: int, start: int, end: int, factor: Any) -> None:
    """Multiply columns from first up to last, (columns, most queries), by a factor for each query."""
    for column in range(first, min(last, bins.shape[0])):
        multiply(factor, bins[column, start:end])


@compiled
def add(a: Any, total: Any) -> None:
    """Add a row."""
    for j in range(total.size):
        total[j] += a[j]


@compiled
def move_base(peak: Any, base: Any, off: Any, factor: Any) -> bool:
    """Move the base of each query, which is subtracted from its scores, to its maximum if that is far ahead.

    Args:
        peak, base: (queries,) the running maximum, and the base, which is changed; −∞ before any key.
        off: (queries,) output: the base, with 0 for −∞.
        factor: (queries,) output: the factors that rescale earlier sums.

    Returns:
        Whether any base has changed.
    """
    moved = False
    for j in range(peak.size):
        old = base[j]
        new = peak[j] if peak[j] > old + LEAD or old == EMPTY else old
        moved |= new != old
        base[j] = new
        off[j] = ZERO if new == EMPTY else new
        factor[j] = exp2((old - off[j]) * LOG2_E)
    return moved


@compiled_at_once(
    "float32[:, ::1]", *["int64"] * 2, "float32[:, ::1]", *["int64"] * 2, *["float32[::1]"] * 3, *["int64"] * 5
)
def add_maxima(
    S: Any,
    at: int,
    keys: int,
    bins: Any,
    before: int,
    width: int,
    m: Any,
    base: Any,
    total: Any,
    start: int,
    end: int,
    low: int,
    high: int,
    stop: int,
) -> None:
    """Pool a block of scores by maximum, and add it to a running maximum and sum.

    Args:
        S: (most keys, queries), masked scores.
        at: the number of the first query in S.
        keys: the number of keys in the block.
        bins: (columns, most queries), largest scores so far.
        before: how many keys of the bins come before the block's first.
        width: keys in a bin.
        m: (most queries,) the running maximum.
        base, total: (most queries,) the base of each query, and the sum of exp(score − base).
        start, end: only queries from start up to end.
        low, high, stop: as in `block_outside`.
    """
    block_outside(S, at, keys, start, end, low, high, stop)
    n = end - start
    peak, off, factor, added = m[start:end], np.empty(n, np.float32), np.empty(n, np.float32), np.zeros(n, np.float32)
    known = True
    for j in range(n):
        off[j] = base[start + j]
        known &= off[j] != EMPTY
    k = 0
    while k < keys:
        column = (before + k) // width
        last = min(keys, (column + 1) * width - before)
        row = bins[column, start:end]
        if known:  # of all queries: what is taken off is seldom too little, and then added again below
            raise_and_add(S, k, last, start - at, end - at, row, off, added)
        else:
            largest_of(S, k, last, start - at, end - at, row)
        raise_by_one(row, peak)
        k = last
    if move_base(peak, base[start:end], off, factor) or not known:
        added[:] = ZERO
        sum_of(S, 0, keys, start - at, end - at, off, added)
        multiply(factor, total[start:end])
    add(added, total[start:end])


@compiled_at_once(
    "float32[:, ::1]", *["int64"] * 2, "float32[:, ::1]", *["int64"] * 3, *["float32[::1]"] * 3, *["int64"] * 5
)
def add_sums(
    S: Any,
    at: int,
    keys: int,
    bins: Any,
    first: int,
    before: int,
    width: int,
    m: Any,
    base: Any,
    total: Any,
    start: int,
    end: int,
    low: int,
    high: int,
    stop: int,
) -> None:
    """Add exp(score − base) of a block to bins and to a running sum; `move_base` moves the base.

    Args:
        S, at, keys, before, width, m, start, end, low, high, stop: as in `add_maxima`.
        bins: (columns, most queries), sums so far.
        first: the first column in use.
        base, total: (most queries,) the base of each query, and the sum of exp(score − base).
    """
    block_outside(S, at, keys, start, end, low, high, stop)
    off, added, part = (
        np.empty(end - start, np.float32),
        np.empty(end - start, np.float32),
        np.empty(end - start, np.float32),
    )
    peak = m[start:end]
    largest_of(S, 0, keys, start - at, end - at, peak)
    if move_base(peak, base[start:end], off, part):
        shrink(bins, first, before // width + 1, start, end, part)
        multiply(part, total[start:end])
    added[:] = ZERO
    k = 0
    while k < keys:
        column = (before + k) // width
        last = min(keys, (column + 1) * width - before)
        part[:] = ZERO
        sum_of(S, k, last, start - at, end - at, off, part)
        add(part, bins[column, start:end])
        add(part, added)
        k = last
    add(added, total[start:end])
