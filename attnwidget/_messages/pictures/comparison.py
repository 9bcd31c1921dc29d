"""Compare two attentions: which positions match, and what changes from A to B.

change = B − A, exact, cell by cell. A picture cell that stands for several shows the change with the largest absolute
value, with its sign. Everything streams in blocks: a long head never needs a (Q, K) tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from math import ceil, inf
from operator import ne
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..._engine import cost
from ..._engine.base import Head
from ..._engine.level_cache import LevelKey
from ..._engine.matmul import exactly
from ..._engine.pooling import count_cells, larger_by_size, pool_first
from ..._engine.regions import Region, bins
from ..._engine.softmax import normalizing
from ..._engine.sources import Stage
from ..._engine.stages import BY_SIZE, KEYS, MASKED, NORMALIZED, QUERIES, SIGNED, streamed
from ..._utils.indexing import Block, as_indices, cuts
from ..._utils.jsonable import as_json
from ...attention import Attention
from ..codec import encoding
from .picture import PICTURE_SIZE

Made = dict[str, Any]

MOST_AT_ONCE = 4  # how many times one head's immediate budget a picture of both may cost
CELLS_AT_ONCE = 1 << 18  # cells on each side, when searching for the largest change
NAMED = ("query", "queries")  # for errors
SIDES = 3  # pictures sent together: A, B and the difference
MAX_EXACT_CELLS = encoding.BUDGET // (SIDES * 4)  # cells; up to here all three are sent as float32
MAX_SAMPLED_CELLS = 1 << 22  # cells in the sampled rows of a long head; very long heads have fewer rows
LEAST_SIZE = 32  # rows and columns, for heads of any length
MAX_MATCHED_TOKENS = 4096  # tokens of a sequence matched with one of another length
MAX_LISTED_CHANGES = 12


class Axis(NamedTuple):
    """The positions along one axis that both sides share.

    a: the position in A of each shared place.
    b: the position in B of each shared place.
    only: how many positions each side has without a match.
    differ: how many places have different tokens in A and B.
    """

    a: Sequence[int]
    b: Sequence[int]
    only: tuple[int, int] = (0, 0)
    differ: int = 0

    @property
    def length(self) -> int:
        """The number of shared places."""
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
    """Match the positions of both sides: all if the lengths are equal, else those with common tokens.

    Args:
        lengths: of A and B.
        tokens: of A and B, one for each position; None if unknown.
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
            f"{differ}: give tokens={{{names[0]!r}: [...], {names[1]!r}: [...]}} to compare the tokens that both have"
        )
    if max(lengths) > MAX_MATCHED_TOKENS:
        raise ValueError(
            f"{differ}, too many to match: give at most {MAX_MATCHED_TOKENS:,}, or equally many on both sides"
        )
    matches = SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    a = [match.a + i for match in matches for i in range(match.size)]
    b = [match.b + i for match in matches for i in range(match.size)]
    if not a:
        raise ValueError(f"{differ}, and no token in common: give two that share tokens, or equally many on both sides")
    return Axis(a, b, (lengths[0] - len(a), lengths[1] - len(b)))


@dataclass(frozen=True, eq=False)
class ComparedPair:
    """Two attentions, and which of their queries and keys are compared.

    b_at: the sample and head of B, if they differ from those of A.
    """

    a: Attention
    b: Attention
    queries: Axis
    keys: Axis
    b_at: tuple[int, int] | None = None

    def sides(self, batch: int, head: int) -> tuple[ComparedSide, ComparedSide]:
        """Return the heads of A and B, each with its positions of the shared queries and keys."""
        sample_of_b, head_of_b = self.b_at or (batch, head)
        return (
            ComparedSide(self.a, batch, head, self.queries.a, self.keys.a),
            ComparedSide(self.b, sample_of_b, head_of_b, self.queries.b, self.keys.b),
        )

    def blocks(
        self, stage: Stage, batch: int, head: int, queries: range, keys: range
    ) -> tuple[ComparedBlock, ComparedBlock]:
        """Read a stage at the same places of both, on the device of A.

        Args:
            stage: the stage.
            batch: the sample.
            head: the head.
            queries: places along the query axis.
            keys: places along the key axis.

        Returns:
            The blocks of A and B, (queries, keys).
        """
        found = []
        for att, own_batch, own_head, rows, columns in self.sides(batch, head):
            where: dict[str, Any] = {
                "batch": own_batch,
                "head": own_head,
                "queries": rows[queries.start : queries.stop : queries.step],
                "keys": columns[keys.start : keys.stop : keys.step],
            }
            values = att.block(stage, **where)
            allowed = att.block("allowed", **where) if stage in MASKED else values.new_ones((), dtype=torch.bool)
            allowed = allowed.expand(values.shape)
            found.append(ComparedBlock(values.to(self.a.device), allowed.to(self.a.device)))
        return found[0], found[1]

    @property
    def versions(self) -> tuple[int, ...]:
        """Numbers that change whenever a tensor of either side does."""
        return (*self.a.versions(), *self.b.versions())

    def span(self, key: LevelKey, queries: range, keys: range) -> range:
        """Return the range of key places outside which neither side gives these queries anything in this stage."""
        if key.stage not in MASKED or not self.queries.is_plain or not self.keys.is_plain or not queries or not keys:
            return keys
        sides = self.sides(key.batch, key.head)
        spans = [one.att.rules.span(Block(one.batch, one.head, queries, keys)) for one in sides]
        open_spans = [one for one in spans if one]
        if not open_spans:
            return keys[:0]
        return range(min(one.start for one in open_spans), max(one.stop for one in open_spans))

    def cells(self, key: LevelKey, queries: range, keys: range) -> int:
        """Return how many cells of both sides are read at these places; some queries need all keys of either side."""
        spans = (
            len(rows) * len(self.span(key, rows, keys))
            for rows in (queries[piece.start : piece.stop] for piece in cuts(range(len(queries)), 1, QUERIES))
        )
        sides = self.sides(key.batch, key.head)
        return sum(spans) * sum(cost.worth_of_a_cell(one.att, one.batch, one.head) for one in sides)

    def normalizers(self, key: LevelKey, queries: range) -> int:
        """Return how many cells of both sides are computed for log-normalizers that these queries still need."""
        if not queries:
            return 0
        return sum(
            cost.normalizers(
                one.att, one.batch, one.head, range(one.queries[queries[0]], one.queries[queries[-1]] + 1), key.stage
            )
            for one in self.sides(key.batch, key.head)
        )

    def takes_long(self, key: LevelKey) -> bool:
        """Whether a picture of all cells of both sides takes too long to wait for."""
        found = self.cells(key, range(self.queries.length), range(self.keys.length))
        return cost.COMPARED * found > MOST_AT_ONCE * cost.AT_ONCE

    def column_takes_long(self, key: LevelKey) -> bool:
        """Whether one key's weights, which need the log-normalizers of all queries, take too long."""
        return self.normalizers(key._replace(stage="weights"), range(self.queries.length)) > 2 * cost.AT_ONCE


class ComparedSide(NamedTuple):
    """One side's head, and its positions of the shared queries and keys."""

    att: Attention
    batch: int
    head: int
    queries: Sequence[int]
    keys: Sequence[int]


class ComparedBlock(NamedTuple):
    """Numbers, and which of them are allowed: both (queries, keys)."""

    values: Tensor
    allowed: Tensor


def change_of(a: ComparedBlock, b: ComparedBlock, stage: str) -> ComparedBlock:
    """Return B − A.

    A blocked weight is 0, so a cell allowed on one side has a change. A blocked score has no value, so a change in
    scores needs both sides allowed.
    """
    allowed = a.allowed & b.allowed if stage == "masked" else a.allowed | b.allowed
    return ComparedBlock(b.values - a.values, allowed)


# Pictures.


def pictures(both: ComparedPair, key: LevelKey) -> Made:
    """Draw A, B and their difference, each at most 512 × 512.

    They are exact, or for a long head one exact query per bin; very long heads have fewer and larger bins.
    """
    found = rough(both, key) if both.takes_long(key) else ComparedPicture(both, key, _bins_of(both, PICTURE_SIZE))
    for _ in found.steps():
        pass
    return found.message()


def rough(both: ComparedPair, key: LevelKey) -> ComparedPicture:
    """Return the first picture of a long head: one query per bin, for as many bins as are quick."""
    size = min(PICTURE_SIZE, max(LEAST_SIZE, MAX_SAMPLED_CELLS // both.keys.length))
    return ComparedPicture(both, key, _bins_of(both, size), sampled=True)


def _bins_of(both: ComparedPair, size: int) -> tuple[int, int]:
    return ceil(both.queries.length / size), ceil(both.keys.length / size)


class ComparedPicture:
    """A, B and their difference, pooled in steps.

    Args:
        both: the two attentions.
        key: the head and stage, and how bins are pooled.
        bins: queries and keys per bin.
        sampled: read only one query per bin.

    Attributes:
        rows: how many rows are finished.
    """

    def __init__(self, both: ComparedPair, key: LevelKey, bins: tuple[int, int], *, sampled: bool = False) -> None:
        self.both, self.key, self.rows = both, key, 0
        self.query_bin, self.key_bin = bins
        count, keys = both.queries.length, range(both.keys.length)
        self.sampled = sampled and self.query_bin > 1
        self.queries = range((count - 1) % self.query_bin, count, self.query_bin) if self.sampled else range(count)
        rows = 1 if self.sampled else self.query_bin
        self._region = Region(key.batch, key.head, range(len(self.queries)), keys, rows, self.key_bin)
        largest = ChangeBins if key.stage in BY_SIZE else MaximumBins
        side = largest if key.pool == "max" else MeanBins
        about = both, self._region, key.stage
        self._pooled: tuple[PooledBins, PooledBins, PooledBins] = side(*about), side(*about), ChangeBins(*about)

    def steps(self) -> Iterator[int]:
        """Compute the whole picture; yields the number of cells read after each block."""
        region, key = self._region, self.key
        for piece in cuts(region.queries, region.query_bin, QUERIES):
            queries = self.queries[piece.start : piece.stop]
            yield from self._normalizing(queries)
            for columns in cuts(self.both.span(key, queries, region.keys), region.key_bin, max(1, KEYS // 2)):
                one, other = self.both.blocks(key.stage, key.batch, key.head, queries, columns)
                for found, block in zip(self._pooled, (one, other, change_of(one, other, key.stage)), strict=True):
                    found.add(piece, columns, block)
                yield 2 * len(queries) * len(columns)
            self.rows = piece.stop // region.query_bin if piece.stop < region.queries.stop else region.shape[0]

    def _normalizing(self, queries: range) -> Iterator[int]:
        """Find the log-normalizers that these queries need; those of one piece of queries are then known."""
        if self.key.stage not in NORMALIZED:
            return
        for att, batch, head, places, _ in self.both.sides(self.key.batch, self.key.head):
            if streamed(att, self.key.stage) == "masked":
                rows = as_indices(places[queries.start : queries.stop : queries.step], att.shape.Q, *NAMED, att.device)
                yield from exactly(att.device, normalizing(Head(att, batch, head), rows))

    def blocks(self) -> list[ComparedBlock]:
        """Return A, B and the change as pooled so far, (rows, columns)."""
        return [one.block() for one in self._pooled]

    def message(self, below: ComparedPicture | None = None) -> Made:
        """Return the picture as a message.

        Args:
            below: a sampled picture with the same bins, whose rows stand for the unfinished ones.
        """
        both, parts = self.both, self.blocks()
        sampled = None
        if below is not None or self.sampled:
            queries = self.queries if below is None else below.queries
            sampled = {"first": queries.start, "every": queries.step, "exact": 0 if below is None else self.rows}
        if below is not None:
            others = below.blocks()
            parts = [
                ComparedBlock(*(torch.cat([x[: self.rows], y[self.rows :]]) for x, y in zip(*pair, strict=True)))
                for pair in zip(parts, others, strict=True)
            ]
        signed = self.key.stage in SIGNED
        return {
            "queries": both.queries.length,
            "keys": both.keys.length,
            "query_bin": self.query_bin,
            "key_bin": self.key_bin,
            "sampled": sampled,
            "a": _encoded(parts[0], signed),
            "b": _encoded(parts[1], signed),
            "change": _encoded(parts[2], True),
            **_partners(both),
        }


class ExactComparison:
    """The exact comparison of long heads, in steps; partial results can be sent at any time.

    Args:
        both: the two attentions.
        key: the head and stage, and how bins are pooled.

    Attributes:
        finer: whether there is a sampled picture with as many rows as the exact one.
    """

    def __init__(self, both: ComparedPair, key: LevelKey) -> None:
        bins = _bins_of(both, PICTURE_SIZE)
        self._below = ComparedPicture(both, key, bins, sampled=True)
        self._exact = ComparedPicture(both, key, bins)
        self.finer = self.finished = False

    def steps(self) -> Iterator[int]:
        """Compute the whole picture; yields the number of cells read after each block."""
        if self._below.sampled:
            yield from self._below.steps()
            self.finer = True
        yield from self._exact.steps()
        self.finished = True

    def message(self) -> Made:
        """Return the results so far as a message; at the end, the exact picture."""
        return self._exact.message(None if self.finished else self._below)


def _partners(both: ComparedPair) -> dict[str, Any]:
    """Encode which positions are compared; None if all are."""

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


class PooledBins:
    """Cells of a region, pooled block by block; blocked scores are left out, blocked weights count as 0.

    Args:
        both: the two attentions.
        region: the region to pool.
        stage: the stage to pool.

    Attributes:
        allowed: (rows, columns) bool, which bins have an allowed cell so far.
    """

    def __init__(self, both: ComparedPair, region: Region, stage: str) -> None:
        self.region, self.masked, self.att = region, stage == "masked", both.a
        dtype = torch.promote_types(both.a.result_dtype, both.b.result_dtype)
        self.new = torch.zeros(region.shape, dtype=dtype, device=both.a.device)
        # Cells that known rules exclude are never read: they have no number in masked scores, and 0 elsewhere.
        self.least = -inf if self.masked or stage not in MASKED else 0.0
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
        """Pool numbers, (queries, keys), into some bins.

        Args:
            at: rows and columns of the bins.
            values: the numbers.
            out: (queries, keys) bool, cells to leave out; None for none.
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
        self.high = self.new + self.least

    def put(self, at: tuple[slice, slice], values: Tensor, out: Tensor | None) -> None:
        self.high[at] = torch.maximum(self.high[at], self.pool(values, torch.amax))

    def block(self) -> ComparedBlock:
        return ComparedBlock(self.high, self.allowed)


class MeanBins(PooledBins):
    """The mean over all cells of each bin; for masked scores, over the allowed cells."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.sum, self.counted = self.new.clone(), self.new.clone()

    def put(self, at: tuple[slice, slice], values: Tensor, out: Tensor | None) -> None:
        if self.masked:
            there = torch.ones_like(values) if out is None else out.logical_not().to(values.dtype)
            self.counted[at] += self.pool(there, torch.sum)
        self.sum[at] += self.pool(values if out is None else values.masked_fill(out, 0), torch.sum)

    def block(self) -> ComparedBlock:
        cells = self.counted if self.masked else count_cells(self.att, self.region)
        return ComparedBlock(self.sum / cells, self.allowed)


class ChangeBins(PooledBins):
    """The number with the largest absolute value in each bin, with its sign; NaN if any cell is NaN."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.high, self.low = self.new + self.least, self.new - self.least

    def put(self, at: tuple[slice, slice], values: Tensor, out: Tensor | None) -> None:
        above, below = (
            (values, values) if out is None else (values.masked_fill(out, -inf), values.masked_fill(out, inf))
        )
        self.high[at] = torch.maximum(self.high[at], self.pool(above, torch.amax))
        self.low[at] = torch.minimum(self.low[at], self.pool(below, torch.amin))

    def block(self) -> ComparedBlock:
        return ComparedBlock(larger_by_size(self.high, self.low), self.allowed)


# Single places.


def peak(both: ComparedPair, key: LevelKey, queries: range, keys: range) -> Made:
    """Find the cell that changes most among some places, with both its numbers; a blocked number is None."""
    found: Made = {"value": None, "a": None, "b": None, "query": queries[0], "key": keys[0]}  # if all cells are blocked
    most = -1.0
    for piece in cuts(range(len(queries)), 1, max(1, min(QUERIES, CELLS_AT_ONCE // len(keys)))):
        rows = queries[piece.start : piece.stop]
        columns = both.span(key, rows, keys)
        if not columns:
            continue
        a, b = both.blocks(key.stage, key.batch, key.head, rows, columns)
        change = change_of(a, b, key.stage)
        size = change.values.abs().nan_to_num(inf, inf).masked_fill(~change.allowed, -1)
        row, column = divmod(int(size.argmax()), len(columns))
        if float(size[row, column]) <= most:
            continue
        most = float(size[row, column])
        numbers = (
            as_json(float(block.values[row, column])) if bool(block.allowed[row, column]) else None
            for block in (change, a, b)
        )
        found = dict(zip(("value", "a", "b"), numbers, strict=True))
        found |= {"query": rows[row], "key": columns[column]}
    return found


def changes(both: ComparedPair, batch: int, head: int, side: str, place: int, other: int | None) -> dict[str, Any]:
    """List the weights that a query gives or a key gets on both sides, ordered by the larger of the two.

    Args:
        both: the two attentions.
        batch: the sample.
        head: the head.
        side: "query", over its keys, or "key", over its queries.
        place: the query's or key's place among those compared.
        other: a place to list in any case.

    Returns:
        places (listed,) with a, b and change, and which are blocked; the number of all others, and their sums.
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
    """Return how many keys of each side have no match, and the sum of their weights."""
    found = {}
    for name, side, only, row in zip("ab", both.sides(batch, head), both.keys.only, rows, strict=True):
        where: dict[str, Any] = {"batch": side.batch, "head": side.head, "queries": side.queries[place]}
        total = float(side.att.block(**where).sum())
        rest = max(0.0, total - float(row.values.sum())) if only else 0.0
        found[name] = {"count": only, "sum": as_json(rest)}
    return found
