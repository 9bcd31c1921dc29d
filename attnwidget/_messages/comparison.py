"""Two attentions side by side, in numbers: which positions of both belong together, and what changes from A to B.

change = B − A, exact, cell by cell; where a cell of the picture stands for several, the change of largest absolute
value among them, with its sign. Streamed block by block: no (Q, K) tensor of a long head anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from math import ceil, inf
from operator import ne
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._engine.level_cache import LevelKey
from .._engine.pooling import count_cells, larger_by_size, pool_first
from .._engine.regions import Region, bins
from .._engine.stages import KEYS, MASKED, QUERIES, SIGNED
from .._utils.indexing import cuts
from .._utils.jsonable import as_json
from ..attention import Attention
from . import encoding
from .picture import PICTURE_SIZE, is_long

SIDES = 3  # pictures that are sent together: A, B and the difference
MAX_EXACT_CELLS = encoding.BUDGET // (SIDES * 4)  # up to here all three are sent as float32
MAX_SAMPLED_CELLS = 1 << 24  # of the rows of a long head: fewer of very long ones
LEAST_SIZE = 32  # rows and columns, however long the heads
MAX_MATCHED_TOKENS = 4096  # of a sequence that is matched with one of another length
MAX_LISTED_CHANGES = 12


class Axis(NamedTuple):
    """The places along one axis that both sides have.

    a: position of each place in A.
    b: position of each place in B.
    only: how many positions of each side belong to none of the other.
    differ: how many places have another token in B than in A.
    """

    a: Sequence[int]
    b: Sequence[int]
    only: tuple[int, int] = (0, 0)
    differ: int = 0

    @property
    def length(self) -> int:
        """How many places there are."""
        return len(self.a)

    @property
    def is_plain(self) -> bool:
        """Whether every place is the same position on both sides."""
        return isinstance(self.a, range)


def together(
    lengths: tuple[int, int],
    tokens: tuple[Sequence[str] | None, Sequence[str] | None],
    names: tuple[str, str],
    what: str,
) -> Axis:
    """Match the positions of both sides: all, where there are as many, else those of common tokens.

    Args:
        lengths: of A and B.
        tokens: of A and B, one for each position; None where they are not known.
        names: of A and B, for an error.
        what: "queries" or "keys", for an error.

    >>> together((2, 3), (["a", "cat"], ["a", "black", "cat"]), ("A", "B"), "queries")
    Axis(a=[0, 1], b=[0, 2], only=(0, 1), differ=0)
    """
    one, other = tokens
    if lengths[0] == lengths[1]:
        others = 0 if one is None or other is None else sum(map(ne, one, other))
        return Axis(range(lengths[0]), range(lengths[1]), differ=others)
    differ = f"{names[0]} has {lengths[0]:,} {what} but {names[1]} has {lengths[1]:,}"
    if one is None or other is None:
        raise ValueError(
            f"{differ}: give tokens={{{names[0]!r}: [...], {names[1]!r}: [...]}} to compare those that both have"
        )
    if max(lengths) > MAX_MATCHED_TOKENS:
        raise ValueError(
            f"{differ}, too many to bring together: give at most {MAX_MATCHED_TOKENS:,}, or as many of both"
        )
    matches = SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    a = [match.a + i for match in matches for i in range(match.size)]
    b = [match.b + i for match in matches for i in range(match.size)]
    if not a:
        raise ValueError(f"{differ}, and no token in common: give two that share some, or as many of both")
    return Axis(a, b, (lengths[0] - len(a), lengths[1] - len(b)))


@dataclass(frozen=True, eq=False)
class ComparedPair:
    """Two attentions, and which of their queries and keys are compared."""

    a: Attention
    b: Attention
    queries: Axis
    keys: Axis

    def blocks(
        self, stage: str, batch: int, head: int, queries: range, keys: range
    ) -> tuple[ComparedBlock, ComparedBlock]:
        """Read a stage at the same places of both, on the device of A.

        Args:
            stage: the stage.
            batch: which sample.
            head: which head.
            queries: places along the axis of queries.
            keys: places along the axis of keys.

        Returns:
            The blocks of A and B, (queries, keys).
        """
        found = []
        for att, rows, columns in ((self.a, self.queries.a, self.keys.a), (self.b, self.queries.b, self.keys.b)):
            where: dict[str, Any] = {
                "batch": batch,
                "head": head,
                "queries": rows[queries.start : queries.stop : queries.step],
                "keys": columns[keys.start : keys.stop : keys.step],
            }
            values = att.block(stage, **where)
            allowed = att.block("allowed", **where) if stage in MASKED else torch.ones_like(values, dtype=torch.bool)
            found.append(ComparedBlock(values.to(self.a.device), allowed.to(self.a.device)))
        return found[0], found[1]

    def is_long(self, key: LevelKey) -> bool:
        """Whether all cells of both take too long to wait for them."""
        return is_long(self.a, key) or is_long(self.b, key)


class ComparedBlock(NamedTuple):
    """Numbers, and which of them are allowed: both (queries, keys)."""

    values: Tensor
    allowed: Tensor


def change_of(a: ComparedBlock, b: ComparedBlock, stage: str) -> ComparedBlock:
    """Return B − A.

    A blocked weight is 0, so a cell that is allowed on one side has a change. A blocked score is no number, so it needs
    to be allowed on both.
    """
    allowed = a.allowed & b.allowed if stage == "masked" else a.allowed | b.allowed
    return ComparedBlock(b.values - a.values, allowed)


# Pictures.


def pictures(both: ComparedPair, key: LevelKey) -> dict[str, Any]:
    """Draw A, B and their difference, each at most 512 × 512.

    They are exact, or of a long head one exact query in each bin; of very long ones in fewer and larger bins.
    """
    rows, columns = both.queries.length, both.keys.length
    long = both.is_long(key)
    size = min(PICTURE_SIZE, max(LEAST_SIZE, MAX_SAMPLED_CELLS // columns)) if long else PICTURE_SIZE
    query_bin, key_bin = ceil(rows / size), ceil(columns / size)
    queries, sampled = range(rows), None
    if long and query_bin > 1:
        queries = range((rows - 1) % query_bin, rows, query_bin)
        sampled = {"first": queries.start, "every": query_bin, "exact": 0}
    a, b, change = _pooled(both, key, queries, 1 if sampled else query_bin, key_bin)
    signed = key.stage in SIGNED
    return {
        "queries": rows,
        "keys": columns,
        "query_bin": query_bin,
        "key_bin": key_bin,
        "sampled": sampled,
        "a": _encoded(a, signed),
        "b": _encoded(b, signed),
        "change": _encoded(change, True),
        **_partners(both),
    }


def _partners(both: ComparedPair) -> dict[str, Any]:
    """Encode which positions are compared; None where it is all of them."""

    def sent(axis: Axis) -> dict[str, Any] | None:
        if axis.is_plain:
            return None
        a, b = (encoding.encode(np.array(side, "uint32")) for side in (axis.a, axis.b))
        return {"a": a, "b": b, "only": list(axis.only)}

    return {
        "query_places": sent(both.queries),
        "key_places": sent(both.keys),
        "differ": [both.queries.differ, both.keys.differ],
        "has_sinks": both.a.has_sinks or both.b.has_sinks,
    }


def _encoded(block: ComparedBlock, signed: bool) -> dict[str, Any]:
    blocked = None if bool(block.allowed.all()) else ~block.allowed
    if block.values.numel() <= MAX_EXACT_CELLS:
        return encoding.encode_picture(block.values, blocked, signed=signed)
    (cells,) = encoding.encode_together([(block.values, blocked)], signed=signed, budget=encoding.BUDGET / SIDES)
    return {**cells, "blocked": None}


def _pooled(
    both: ComparedPair, key: LevelKey, queries: range, query_bin: int, key_bin: int
) -> tuple[ComparedBlock, ComparedBlock, ComparedBlock]:
    """Pool both sides as the key says, and the change to that of largest absolute value in each bin.

    Returns:
        A, B and the change, (rows, columns).
    """
    stage, batch, head, keys = key.stage, key.batch, key.head, range(both.keys.length)
    if query_bin * key_bin == 1:
        one, other = both.blocks(stage, batch, head, queries, keys)
        return one, other, change_of(one, other, stage)
    region = Region(batch, head, range(len(queries)), keys, query_bin, key_bin)
    side = MaximumBins if key.pool == "max" else MeanBins
    a, b, change = side(both, region, stage), side(both, region, stage), ChangeBins(both, region, stage)
    for piece in cuts(region.queries, query_bin, QUERIES):
        for columns in cuts(keys, key_bin, KEYS):
            one, other = both.blocks(stage, batch, head, queries[piece.start : piece.stop], columns)
            for found, block in ((a, one), (b, other), (change, change_of(one, other, stage))):
                found.add(piece, columns, block)
    return a.block(), b.block(), change.block()


class PooledBins:
    """Cells of a region, pooled as blocks come in. A blocked weight is 0, so only blocked scores are left out.

    Args:
        both: what is compared.
        region: what is pooled.
        stage: the stage of it.

    Attributes:
        allowed: (rows, columns) bool, which bins have an allowed cell so far.
    """

    def __init__(self, both: ComparedPair, region: Region, stage: str) -> None:
        self.region, self.masked, self.att = region, stage == "masked", both.a
        dtype = torch.promote_types(both.a.result_dtype, both.b.result_dtype)
        self.new = torch.zeros(region.shape, dtype=dtype, device=both.a.device)
        self.allowed = torch.zeros(region.shape, dtype=torch.bool, device=both.a.device)

    def add(self, rows: range, columns: range, block: ComparedBlock) -> None:
        """Pool a block, (queries, keys)."""
        at = bins(rows, self.region.query_bin), bins(columns, self.region.key_bin)
        everything = bool(block.allowed.all())
        if everything:
            self.allowed[at] = True
        else:
            self.allowed[at] |= self.pool(block.allowed.to(torch.uint8), torch.amax).bool()
        self.put(at, block.values, None if everything or not self.masked else ~block.allowed)

    def put(self, at: tuple[slice, slice], values: Tensor, out: Tensor | None) -> None:
        """Pool numbers, (queries, keys), into the bins at some place.

        Args:
            at: rows and columns of the bins.
            values: the numbers.
            out: (queries, keys) bool, which of them are left out; None for none.
        """
        raise NotImplementedError

    def block(self) -> ComparedBlock:
        """Return the pooled numbers, (rows, columns)."""
        raise NotImplementedError

    def pool(self, x: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
        """Pool both axes: (queries, keys) -> (rows, columns)."""
        return pool_first(pool_first(x, self.region.query_bin, reduce).mT, self.region.key_bin, reduce).mT


class MaximumBins(PooledBins):
    """The maximum of each bin."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.high = self.new - inf

    def put(self, at: tuple[slice, slice], values: Tensor, out: Tensor | None) -> None:
        self.high[at] = torch.maximum(self.high[at], self.pool(values, torch.amax))

    def block(self) -> ComparedBlock:
        return ComparedBlock(self.high, self.allowed)


class MeanBins(PooledBins):
    """The mean over all cells of each bin; of masked scores over those that are allowed."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.sum, self.left_out = self.new.clone(), self.new.clone()

    def put(self, at: tuple[slice, slice], values: Tensor, out: Tensor | None) -> None:
        if out is not None:
            values = values.masked_fill(out, 0)
            self.left_out[at] += self.pool(out.to(self.sum.dtype), torch.sum)
        self.sum[at] += self.pool(values, torch.sum)

    def block(self) -> ComparedBlock:
        return ComparedBlock(self.sum / (count_cells(self.att, self.region) - self.left_out), self.allowed)


class ChangeBins(PooledBins):
    """The number of largest absolute value in each bin, with its sign; NaN where any is."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.high, self.low = self.new - inf, self.new + inf

    def put(self, at: tuple[slice, slice], values: Tensor, out: Tensor | None) -> None:
        above, below = (
            (values, values) if out is None else (values.masked_fill(out, -inf), values.masked_fill(out, inf))
        )
        self.high[at] = torch.maximum(self.high[at], self.pool(above, torch.amax))
        self.low[at] = torch.minimum(self.low[at], self.pool(below, torch.amin))

    def block(self) -> ComparedBlock:
        return ComparedBlock(larger_by_size(self.high, self.low), self.allowed)


# Single places.


def peak(both: ComparedPair, key: LevelKey, queries: range, keys: range) -> dict[str, Any]:
    """Find the cell that changes most among some places, with both its numbers; a number that is blocked is None."""
    a, b = both.blocks(key.stage, key.batch, key.head, queries, keys)
    change = change_of(a, b, key.stage)
    size = change.values.abs().nan_to_num(inf, inf).masked_fill(~change.allowed, -1)
    row, column = divmod(int(size.argmax()), len(keys))
    numbers = (
        as_json(float(block.values[row, column])) if bool(block.allowed[row, column]) else None
        for block in (change, a, b)
    )
    return {**dict(zip(("value", "a", "b"), numbers, strict=True)), "query": queries[row], "key": keys[column]}


def changes(both: ComparedPair, batch: int, head: int, side: str, place: int, other: int | None) -> dict[str, Any]:
    """List the weights that a query gives, or that a key gets, on both sides: those where the larger is largest.

    Args:
        both: what is compared.
        batch: which sample.
        head: which head.
        side: "query", over its keys, or "key", over its queries.
        place: which of the places that are compared.
        other: one that is listed in any case.

    Returns:
        places (listed,) with a, b and change, and which are blocked; of all others how many, and their sums.
    """
    by_query = side == "query"
    others = both.keys if by_query else both.queries
    one, all_of = range(place, place + 1), range(others.length)
    a, b = both.blocks("weights", batch, head, one if by_query else all_of, all_of if by_query else one)
    rows = [ComparedBlock(block.values.flatten(), block.allowed.flatten()) for block in (a, b)]
    change = change_of(rows[0], rows[1], "weights")
    larger = torch.maximum(*(block.values for block in rows)).nan_to_num(inf).masked_fill(~change.allowed, -inf)
    order = larger.argsort(descending=True, stable=True)
    open_places = int(change.allowed.sum())
    listed = order[: min(MAX_LISTED_CHANGES, open_places)]
    if other is not None and not bool((listed == other).any()):
        listed = torch.cat([listed[: MAX_LISTED_CHANGES - 1], torch.tensor([other], device=listed.device)])
    unlisted = change.allowed.clone()
    unlisted[listed] = False
    sent = {
        name: encoding.encode_numbers(block.values[listed], ~block.allowed[listed])
        for name, block in (("a", rows[0]), ("b", rows[1]), ("change", change))
    }
    return {
        "places": encoding.encode(listed.cpu().numpy().astype("uint32")),
        **{name: {"values": values, "blocked": blocked} for name, (values, blocked) in sent.items()},
        "rest": {
            "count": int(unlisted.sum()),
            **{name: as_json(float(block.values[unlisted].sum())) for name, block in zip("ab", rows, strict=True)},
        },
        "masked": others.length - open_places,
        "only": _left_out(both, batch, head, place, rows) if by_query and not others.is_plain else None,
    }


def _left_out(both: ComparedPair, batch: int, head: int, place: int, rows: list[ComparedBlock]) -> dict[str, Any]:
    """Return how many keys of each side have none to be compared with, and the sum of their weights."""
    found = {}
    for name, att, query, only, row in zip(
        "ab",
        (both.a, both.b),
        (both.queries.a[place], both.queries.b[place]),
        both.keys.only,
        rows,
        strict=True,
    ):
        total = float(att.block(batch=batch, head=head, queries=query).sum())
        rest = max(0.0, total - float(row.values.sum())) if only else 0.0
        found[name] = {"count": only, "sum": as_json(rest)}
    return found
