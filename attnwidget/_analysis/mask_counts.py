"""The number of allowed cells of a head, by query and by key: from sums if the rules are known, else counted."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch
from torch import Tensor

from .._engine.base import AttentionBase, Head
from .._engine.softmax import run_to_end
from .._engine.stages import KEYS, QUERIES, allowed_cells
from .._rules.rules import whole
from .._utils.indexing import cuts
from ..masks import BandLimits


@dataclass(frozen=True, eq=False)
class MaskCounts:
    """The allowed cells of one head, counted.

    by_query: (Q,) int64, the number of keys of each query. by_key: (K,) int64, the number of queries of each key.
    above: the number of allowed cells after the query's own position; above_at: the first of them, (query, key).
    diagonal: the number of allowed cells at it.
    """

    by_query: Tensor
    by_key: Tensor
    above: int
    above_at: tuple[int, int] | None
    diagonal: int

    @property
    def total(self) -> int:
        return int(self.by_query.sum())


def count_allowed(head: Head) -> MaskCounts:
    """Count the allowed cells of a head."""
    return run_to_end(counting_allowed(head))


def counting_allowed(head: Head) -> Generator[None, None, MaskCounts]:
    """Count the allowed cells of a head; yields after each block that is looked at cell by cell."""
    known = _known(head)
    return (yield from _counted(head)) if known is None else _summed(head.att, *known)


def cells_to_ask(head: Head) -> int:
    """Return the number of cells that `count_allowed` has to look at one by one."""
    return 0 if _known(head) is not None else head.att.shape.Q * head.att.shape.K


def _known(head: Head) -> tuple[BandLimits, Tensor] | None:
    """Return all rules as three numbers and the keys open to any query, (K,) bool; None if they have another form."""
    att = head.att
    if att.rules.by_score:
        return None
    limits, open_keys = BandLimits(), torch.ones(att.shape.K, dtype=torch.bool, device=att.device)
    row = head.block(range(1))
    for part in (part for rule in att.rules.rules for part in rule.parts_of_all()):
        simple = part.band_limits(head.batch)
        if simple is not None:
            limits = limits.meet(simple)
        elif part.by_key:
            open_keys &= whole(part.allowed(row), row.queries, row.keys, att.device)[0]
        else:
            return None
    return limits, open_keys


def _summed(att: AttentionBase, limits: BandLimits, open_keys: Tensor) -> MaskCounts:
    """Count by sums of open keys up to each place: the limits cut a run from them for each query and each key."""
    Q, K = att.shape.Q, att.shape.K
    rows, keys = torch.arange(Q, device=att.device), torch.arange(K, device=att.device)
    open_keys = open_keys if limits.stop is None else open_keys & (keys < limits.stop)
    up_to = torch.cat([torch.zeros(1, dtype=torch.int64, device=att.device), open_keys.cumsum(0)])  # (K + 1,)

    def between(start: Tensor, stop: Tensor) -> Tensor:
        return (up_to[stop.clamp(0, K)] - up_to[start.clamp(0, K)]).clamp_(min=0)

    first = torch.zeros_like(rows) if limits.low is None else rows + limits.low
    end = torch.full_like(rows, K) if limits.high is None else rows + limits.high + 1
    first_query = torch.zeros_like(keys) if limits.high is None else keys - limits.high
    end_query = torch.full_like(keys, Q) if limits.low is None else keys - limits.low + 1
    by_key = (end_query.clamp(0, Q) - first_query.clamp(0, Q)).clamp_(min=0) * open_keys
    after = between(torch.maximum(first, rows + 1), end)
    leaks = after.nonzero()[:, 0]
    above_at = None
    if len(leaks):
        query = int(leaks[0])
        later = open_keys[max(query + 1, int(first[query])) :].nonzero()[0]
        above_at = query, max(query + 1, int(first[query])) + int(later)
    return MaskCounts(
        by_query=between(first, end),
        by_key=by_key,
        above=int(after.sum()),
        above_at=above_at,
        diagonal=int(between(torch.maximum(first, rows), torch.minimum(end, rows + 1)).sum()),
    )


def _counted(head: Head) -> Generator[None, None, MaskCounts]:
    """Count block by block; fully allowed or blocked blocks are not written out."""
    att = head.att
    Q, K = att.shape.Q, att.shape.K
    by_query, by_key = (torch.zeros(n, dtype=torch.int64, device=att.device) for n in (Q, K))
    above, diagonal, above_at = 0, 0, None
    for rows in cuts(range(Q), 1, QUERIES):
        for keys in cuts(range(K), 1, KEYS):
            found = allowed_cells(att, head.block(rows, keys))
            yield
            if found is False:
                continue
            beside = keys.stop <= rows.start or keys.start >= rows.stop  # the diagonal does not cross it
            if found is True and beside:
                by_query[rows.start : rows.stop] += len(keys)
                by_key[keys.start : keys.stop] += len(rows)
                if keys.start >= rows.stop:
                    above += len(rows) * len(keys)
                    above_at = min(above_at or (Q, K), (rows.start, keys.start))
                continue
            cells = whole(found, rows, keys, att.device)
            by_query[rows.start : rows.stop] += cells.sum(1, dtype=torch.int32)
            by_key[keys.start : keys.stop] += cells.sum(0, dtype=torch.int32)
            offset = rows.start - keys.start
            diagonal += int(cells.diagonal(offset).sum()) if -len(rows) < offset < len(keys) else 0
            later = cells.triu(offset + 1)
            above += int(later.sum())
            if (above_at is None or above_at[0] >= rows.start) and bool(later.any()):
                row, column = later.nonzero()[0].tolist()
                place = rows.start + row, keys.start + column
                above_at = place if above_at is None else min(above_at, place)
    return MaskCounts(by_query, by_key, above, above_at, diagonal)
