"""Some queries of a head, pooled along the keys by the compiled library: see native/pass.c.

Results are the same bits on every processor and with any number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._rules.rules import Bias, Keep, Rules
from ..masks import BandLimits
from .base import AttentionBase, Head
from .fused import BLOCK, PANEL, QUERIES, GridArguments, Library, PassArguments, in_threads, library
from .logsumexp import LogSumExp
from .sources import Products

CELLS_AT_ONCE = 1 << 23  # to pool in one call: about 8 ms of one thread
NO_LIMIT = 1 << 40
CPU: Any = {"dtype": torch.float32, "device": "cpu"}  # whatever the caller's defaults are


class Bins(NamedTuple):
    """Where the results of keys go.

    grid: (columns, queries), with memory for whole `QUERIES` in each column; filled with −∞ or 0.
    first: the key with which the first column begins.
    width: keys in a bin.
    used: the first column in use.
    mean: whether to sum, not to take the maximum.
    """

    grid: Tensor
    first: int
    width: int
    used: int
    mean: bool


def library_for(att: AttentionBase) -> Library | None:
    """Return the library if it can pool the weights of an attention: float32 from scores, on a CPU."""
    fits = att.result_dtype == torch.float32 and att.device.type == "cpu" and att.source.gives == "scores"
    return library() if fits else None


class LibraryRules(NamedTuple):
    """Rules that the library applies itself: band limits, and at most one mask and one bias that are tensors."""

    limits: BandLimits
    mask: Keep | None
    bias: Bias | None

    @property
    def has_tensors(self) -> bool:
        """Whether there is more than band limits."""
        return self.mask is not None or self.bias is not None


def rules_of(att: AttentionBase, batch: int) -> LibraryRules | None:
    """Return the rules of a sample if the library can compute its masked scores from q and k; None if it cannot."""
    rules = att.rules
    if not isinstance(att.source, Products) or att.softcap is not None or rules.by_score:
        return None
    masks = [rule for rule in rules.rules if isinstance(rule, Keep)]
    biases = [bias for bias in rules.biases if isinstance(bias, Bias)]
    others = Rules(tuple(rule for rule in rules.rules if not isinstance(rule, Keep | Bias))).band_limits(batch)
    if others is None or len(masks) > 1 or len(biases) > 1:
        return None
    if any(one.mask.element_size() != 1 for one in masks) or any(one.added.dtype != torch.float32 for one in biases):
        return None
    return LibraryRules(others, masks[0] if masks else None, biases[0] if biases else None)


def filled_up(queries: int) -> int:
    """Return a number of queries, rounded up to what the library computes together."""
    return -(-queries // QUERIES) * QUERIES


class FusedPass:
    """The running softmax of some queries, and what is pooled with it.

    Args:
        library: the library.
        head: which head.
        rows: which queries.
        bins: where results go.
    """

    def __init__(self, library: Library, head: Head, rows: range, bins: Bins):
        self._library, self._head, self._rows, self._bins = library, head, rows, bins
        sink = head.sink
        # (4, queries): the running maximum; the base, which follows it; the base, or 0; Σ exp(masked − base).
        self._state = torch.zeros(4, filled_up(len(rows)), **CPU)
        self._state[:2] = -inf if sink is None else sink
        if sink is not None:
            self._state[2], self._state[3] = sink, 1

    def multiply(self, keys: range, rules: LibraryRules) -> Iterator[range]:
        """Pool scores that the library computes itself, by the result of `rules_of`; yields the keys of each call.

        Calls begin where a block of the library would begin, so numbers do not depend on how queries were divided.
        """
        att, batch, index = self._head
        assert isinstance(att.source, Products)
        q, k = att.source.of_head(batch, index, self._rows)
        q, first = _readable(q), self._bins.first
        step = max(1, CELLS_AT_ONCE // len(self._rows) // BLOCK) * BLOCK
        for start in range(first + (keys.start - first) // BLOCK * BLOCK, keys.stop, step):
            piece = range(start, min(start + step, keys.stop))
            part = _readable(k[piece.start : piece.stop])
            products = {"q": q.data_ptr(), "k": part.data_ptr(), "q_stride": q.stride(0), "k_stride": part.stride(0)}
            self._pool(piece, rules.limits, size=q.shape[1], **products, **self._tensors(rules, piece))
            yield range(max(start, keys.start), piece.stop)

    def add(self, keys: range, S: Tensor) -> None:
        """Pool a block of masked scores, (keys, queries)."""
        S = S.contiguous()
        self._pool(keys, BandLimits(), scores=S.data_ptr(), scores_stride=S.stride(0))

    def log_normalizers(self) -> LogSumExp:
        """Return the log-normalizers of the queries; nothing may be added afterwards."""
        m, _, off, total = self._state[:, : len(self._rows)]
        m.masked_fill_(total.isnan(), nan)  # comparisons skip NaN
        empty = m == -inf
        found = m.masked_fill(empty, 0)
        # In float64: torch's log of float32 differs in the last bit with the place of a number in memory.
        log_l = (total.double().log_() + (off.double() - found)).float()
        return LogSumExp(found, log_l.masked_fill_(empty, inf))

    def pooled(self, columns: slice, width: int, known: LogSumExp) -> Tensor:
        """Pool the weights over the queries, given the log-normalizers: (rows, columns).

        Args:
            columns: which columns of the grid.
            width: queries in a bin.
            known: the log-normalizers.
        """
        grid, n = self._bins.grid[columns], len(self._rows)
        _, base, off, _ = self._state[:, :n]
        m, log_l = (each.contiguous() for each in known)
        factor = (off.double() - m - log_l).exp_().float().masked_fill_(base == -inf, 0)
        values = torch.empty(-(-n // width), len(grid), **CPU)
        room = Room(-(-len(grid) // 16), len(values) * 16)
        arguments = GridArguments(
            bins=grid.data_ptr(),
            m=m.data_ptr(),
            log_l=log_l.data_ptr(),
            factor=factor.data_ptr(),
            values=values.data_ptr(),
            queries=n,
            columns=len(grid),
            bins_stride=grid.stride(0),
            width=width,
            mean=self._bins.mean,
            **room.arguments(),
        )
        in_threads(self._library.finish, arguments, room.threads)
        bad = m.isnan() | log_l.isnan()
        if bool(bad.any()):
            values[bad.nonzero()[:, 0] // width] = nan
        return values

    def _tensors(self, rules: LibraryRules, keys: range) -> dict[str, Any]:
        """Return the arguments for mask and bias."""
        found: dict[str, Any] = {}
        _, batch, index = self._head
        tensors = {} if rules.mask is None else {"mask": rules.mask.mask}
        tensors |= {} if rules.bias is None else {"bias": rules.bias.added}
        for name, whole in tensors.items():
            x = whole[batch if whole.shape[0] > 1 else 0, index if whole.shape[1] > 1 else 0]
            down, across = (x.stride(axis) if x.shape[axis] > 1 else 0 for axis in (0, 1))
            first = x.data_ptr() + (self._rows.start * down + keys.start * across) * x.element_size()
            found |= {name: first, f"{name}_q": down * self._rows.step, f"{name}_k": across}
        if rules.mask is not None:
            found["hide"] = rules.mask.hide
        return found | ({} if rules.bias is None else {"lowest": rules.bias.lowest})

    def _pool(self, keys: range, limits: BandLimits, **scores: Any) -> None:
        """Pool some keys."""
        bins, rows = self._bins, self._rows
        room = Room(-(-len(rows) // QUERIES), (PANEL + 1 + scores.get("size", 0)) * QUERIES)
        apart = rows.start - keys.start  # of the first query from the first key
        arguments = PassArguments(
            bins=bins.grid.data_ptr(),
            bins_stride=bins.grid.stride(0),
            **{name: each.data_ptr() for name, each in zip(("m", "base", "off", "total"), self._state, strict=True)},
            queries=len(rows),
            keys=len(keys),
            width=bins.width,
            before=keys.start - bins.first,
            column=bins.used,
            mean=bins.mean,
            step=rows.step,
            low=-NO_LIMIT if limits.low is None else limits.low + apart,
            high=NO_LIMIT if limits.high is None else limits.high + apart,
            stop=NO_LIMIT if limits.stop is None else limits.stop - keys.start,
            scale=self._head.att.scale,
            **room.arguments(),
            **scores,
        )
        in_threads(self._library.run, arguments, room.threads)


class Room:
    """Memory for each thread of a call.

    Args:
        parts: the number of parts that threads can take.
        size: the numbers that each thread needs.
    """

    def __init__(self, parts: int, size: int):
        self.threads = max(1, min(parts, torch.get_num_threads()))
        self._memory = torch.empty(self.threads, size, **CPU)

    def arguments(self) -> dict[str, int]:
        """Return what the structs of the library say of it."""
        return {"room": self._memory.data_ptr(), "room_size": self._memory.shape[1]}


def _readable(x: Tensor) -> Tensor:
    """Return a matrix as the library reads it: float32, numbers of a row side by side."""
    return x if x.dtype == torch.float32 and x.stride(1) == 1 else x.to(torch.float32).contiguous()
