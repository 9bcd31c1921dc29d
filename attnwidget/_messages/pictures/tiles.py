"""Tiles of a head for a front-end that zooms in: exact at once if that is quick, else from sampled rows first.

A tile has at most 128 × 128 bins of 2^row_level queries × 2^column_level keys. Tiles in one row share their queries, so
`TileRow` computes their log-normalizers once, and their cells in one pass.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..._engine import cost
from ..._engine.base import AttentionBase
from ..._engine.level_cache import CachedLevel, LevelBuild, LevelCache, LevelKey
from ..._engine.matmul import exact
from ..._engine.overview import Overview, OverviewPass
from ..._engine.regions import Region, TileAddress, tile_region
from ..._engine.stages import SIGNED
from ..._utils.scheduler import Scheduler
from ..codec import encoding
from .picture import blocked_bins

TILE_SIZE = 128  # bins per side, at most
MAX_TILES_PER_REQUEST = 64
PASS = "pass"  # the name of the job that computes the picture
MAX_VIEWS = 8  # that may have pending tiles
MAX_SAMPLED_ROWS = 256  # over all visible tiles, at first
MAX_SAMPLED_CELLS = cost.AT_ONCE // 2  # the cost limit for these rows
MAX_ROW_CELLS = 1 << 31  # about a second; a more expensive row of tiles waits for the pass, if that will produce it
MAX_TILE_BYTES = 210 * 1024  # for all tiles in one request: with its other fields a message stays within 240 KiB
SLICE_SECONDS = 0.02

Send = Callable[[dict[str, Any], list[bytes]], None]


class Address(NamedTuple):
    """A tile's levels, and its place among the tiles of these levels."""

    row_level: int
    column_level: int
    row: int
    column: int

    @property
    def level(self) -> tuple[int, int]:
        """The row level and the column level."""
        return self.row_level, self.column_level

    @property
    def tile(self) -> TileAddress:
        """The same address for the engine."""
        return TileAddress(self.level, self.row, self.column, TILE_SIZE)


class Tile(NamedTuple):
    """A tile: exact if `every` is 1, else made of the queries first, first + every and so on."""

    address: Address
    every: int
    first: int
    overview: Overview


class TileRow:
    """Tiles of one head that share their queries.

    Args:
        levels: where exact levels are kept.
        key: the head, stage and pooling.
        addresses: the tiles.

    Attributes:
        level: the level of the rows.
        regions: where the tiles lie.
        every: 1, or after sampling the distance between queries.
    """

    def __init__(self, levels: LevelCache, key: LevelKey, addresses: Sequence[Address]) -> None:
        self.levels, self.key, self.addresses = levels, key, addresses
        self.level = addresses[0].row_level
        self.regions = [region(levels.att, key, address) for address in addresses]
        self.every = 1

    @property
    def queries(self) -> range:
        """The queries of the tiles."""
        return self.regions[0].queries

    def find_level(self, build: LevelBuild | None) -> CachedLevel | None:
        """Return a level from which all the tiles can be folded, if there is one.

        Args:
            build: the running pass, if any; its level counts as far as it has come.
        """
        found = self.levels.find(self.key)
        if found is None and build is not None and self.comes_from(build):
            found = build.level if build.finished_queries >= self.queries.stop else None
        return found if found is not None and all(found.has(address.level) for address in self.addresses) else None

    def comes_from(self, build: LevelBuild | None) -> bool:
        """Whether the running pass will produce a level from which all the tiles can be folded."""
        if build is None or build.level is None or build.att is not self.levels.att or build.key != self.key:
            return False
        return all(build.level.has(address.level) for address in self.addresses)

    def cost(self) -> int:
        """Return how many cells are computed if there is no level to fold from."""
        att, (batch, head, stage, _) = self.levels.att, self.key
        found = sum(cost.cells(att, batch, head, one.queries, one.keys, stage) for one in self.regions)
        return found + cost.normalizers(att, batch, head, self.queries, stage)

    def fold(self, level: CachedLevel) -> list[Tile]:
        """Fold all the tiles from a level."""
        first = self.queries.start
        with exact(self.levels.att.device):
            return [Tile(a, 1, first, level.tile(a.level, a.tile)) for a in self.addresses]

    def compute(self, regions: Sequence[Region], every: int) -> Iterator[list[Tile] | None]:
        """Compute all the tiles over some regions; yields None after each slice, and the tiles at the end."""
        made: dict[Address, Tile] = {}
        for together in _side_by_side(dict(zip(self.addresses, regions, strict=True))):
            each = list(together.values())
            row = each[0]._replace(keys=range(each[0].keys.start, each[-1].keys.stop))
            steps = OverviewPass(self.levels.att, row, self.key.stage, self.key.pool, SLICE_SECONDS)
            for _ in steps:
                yield None
            for address, one in together.items():
                found = _part(steps.result, row.columns(one.keys))
                made[address] = Tile(address, every, one.queries.start, found)
        yield [made[address] for address in self.addresses]

    def exact(self) -> Iterator[list[Tile] | None]:
        """Compute the exact tiles, in slices: see `compute`."""
        return self.compute(self.regions, 1)

    def sampled(self, every: int) -> Iterator[list[Tile] | None]:
        """Compute tiles from one exact query in every `every`, in slices: see `compute`."""
        self.every = self.stride(every)
        samples = [one._replace(query_bin=self.every).sample(self.levels.att) for one in self.regions]
        return self.compute(samples, self.every)

    def stride(self, every: int) -> int:
        """Return the distance between sampled queries: at least a bin, at most a tile."""
        return min(max(every, 1 << self.level), TILE_SIZE << self.level)

    def rows(self, every: int) -> int:
        """Return how many rows each tile has with one query in every `every`."""
        return -(-len(self.queries) // self.stride(every))

    def planned_bins(self, every: int) -> int:
        """Return how many bins will be sent in all: sampled rows, then one query per bin, then exact tiles."""
        rough, by_bin, whole = (self.rows(each) for each in (every, 1, 1))
        return self.columns * (rough + (by_bin if by_bin > rough and self.level else 0) + whole)

    @property
    def columns(self) -> int:
        """How many bins a row of all the tiles has."""
        return sum(one.shape[1] for one in self.regions)


def region(att: AttentionBase, key: LevelKey, address: Address) -> Region:
    """Return where a tile lies; raise IndexError if there is no such tile."""
    return tile_region(att, key.batch, key.head, address.tile)


def _side_by_side(regions: dict[Address, Region]) -> list[dict[Address, Region]]:
    """Group adjacent regions with equal bin widths, so that each group is computed in one pass."""
    found: list[dict[Address, Region]] = []
    stop: tuple[int, int] | None = None  # the end of the previous region, and its bin width
    for address, one in sorted(regions.items(), key=lambda each: (each[1].key_bin, each[1].keys.start)):
        if stop != (one.keys.start, one.key_bin):
            found.append({})
        found[-1][address] = one
        stop = one.keys.stop, one.key_bin
    return found


def _part(found: Overview, columns: slice) -> Overview:
    """Return some columns of an overview."""
    return replace(found, values=found.values[:, columns], allowed=found.allowed[:, columns])


def tile_rows(levels: LevelCache, key: LevelKey, addresses: Sequence[Address]) -> list[TileRow]:
    """Group tiles by the queries they share, in the order they were requested."""
    by_row: dict[tuple[int, int], list[Address]] = {}
    for address in dict.fromkeys(addresses):
        by_row.setdefault((address.row_level, address.row), []).append(address)
    return [TileRow(levels, key, together) for together in by_row.values()]


def last_of(steps: Iterator[list[Tile] | None]) -> list[Tile]:
    """Run `TileRow.compute` to its end, and return the tiles."""
    made: list[Tile] = []
    for found in steps:
        made = found or made
    return made


class PendingTiles:
    """Tiles that one view has requested but not received.

    Args:
        of: the front-end's name for their content.
        allowance: bytes per bin, on average.
        slow: the tiles to compute.

    Attributes:
        waiting: the tiles that the pass will produce.
    """

    def __init__(self, of: dict[str, Any], allowance: float, slow: list[TileRow]) -> None:
        self.of, self.allowance, self.slow = of, allowance, slow
        self.waiting: list[TileRow] = []


class TileQueue:
    """The pending tiles of each view; a view's new request replaces its earlier one.

    Args:
        slices: where slow tiles are computed.
        send: called with messages and their buffers.
    """

    def __init__(self, slices: Scheduler, send: Send) -> None:
        self._slices, self._send = slices, send
        self._pending: OrderedDict[str, PendingTiles] = OrderedDict()
        self._asked = 0

    def ask(
        self,
        levels: LevelCache,
        key: LevelKey,
        of: dict[str, Any],
        addresses: Sequence[Address],
        build: LevelBuild | None,
        budget: cost.CostBudget,
    ) -> tuple[list[dict[str, Any]], list[bytes]]:
        """Return the quick tiles, and sampled versions of the others, which follow when ready.

        Args:
            levels: where exact levels are kept.
            key: the head, stage and pooling.
            of: the same as front-end fields: layer, batch, head, stage, pool, version and view.
            addresses: the tiles.
            build: the running pass, if any.
            budget: the cost limit for all tiles in one message.
        """
        self.forget(of["view"])
        now, slow = [], []
        for row in tile_rows(levels, key, addresses):
            level = row.find_level(build)
            if level is not None:
                now.append(row.fold(level))
            elif (needed := row.cost()) <= budget.left:
                budget.spend(needed, "")
                now.append(last_of(row.exact()))
            else:
                slow.append(row)
        quick = [tile for tiles in now for tile in tiles]
        planned = sum(tile.overview.values.numel() for tile in quick)
        every = _sampling(slow)
        planned += sum(row.planned_bins(every) for row in slow)
        rough = [tile for row in slow for tile in last_of(row.sampled(every))]
        allowance = MAX_TILE_BYTES / max(1, planned)
        slow = [row for row in slow if row.every > 1]
        if slow:
            self._queue(PendingTiles(of, allowance, slow), build)
        return encoded(quick + rough, of["stage"], allowance)

    def forget(self, view: str | None = None) -> None:
        """Stop computing for a view, or for all views."""
        for name in [view] if view is not None else list(self._pending):
            self._pending.pop(name, None)
            self._slices.drop(("tiles", name))

    def pass_advanced(self, build: LevelBuild) -> None:
        """Send the waiting tiles that the pass has now reached."""
        for pending in list(self._pending.values()):
            for row in list(pending.waiting):
                level = row.find_level(build)
                if level is not None:
                    pending.waiting.remove(row)
                    self._publish(pending, row.fold(level))
        self._tidy()

    def pass_stopped(self, build: LevelBuild) -> None:
        """Compute the tiles that waited for a pass that was stopped."""
        for pending in list(self._pending.values()):
            pending.slow, pending.waiting = pending.slow + pending.waiting, []
            self._start(pending, build)

    def _queue(self, pending: PendingTiles, build: LevelBuild | None) -> None:
        self._pending[pending.of["view"]] = pending
        while len(self._pending) > MAX_VIEWS:
            self.forget(next(iter(self._pending)))
        self._start(pending, build)

    def _start(self, pending: PendingTiles, build: LevelBuild | None) -> None:
        view = pending.of["view"]
        self._asked += 1
        if not self._slices.start(("tiles", view), self._follow(pending, build), -self._asked):
            self._pending.pop(view)  # no loop runs, so sampled tiles stay sampled

    def _follow(self, pending: PendingTiles, build: LevelBuild | None) -> Iterator[None]:
        """Run a view's job: first one query per bin, then the exact tiles, the cheapest first."""
        for row in pending.slow:
            if row.every > 1 << row.level > 1:
                yield from self._through(pending, row.sampled(1))
        costs = {id(row): row.cost() for row in pending.slow}
        running = build if PASS in self._slices.names else None
        coming = sum(costs[id(row)] for row in pending.slow if row.comes_from(running))
        sooner = running is not None and coming > running.cells_left / 2  # the pass would get there sooner
        for row in sorted(pending.slow, key=lambda row: costs[id(row)]):
            level = row.find_level(build)
            if level is not None:
                self._publish(pending, row.fold(level))
            elif row.comes_from(running) and (sooner or costs[id(row)] > MAX_ROW_CELLS):
                pending.waiting.append(row)
            else:
                yield from self._through(pending, row.exact())
        pending.slow = []
        self._tidy()

    def _through(self, pending: PendingTiles, steps: Iterator[list[Tile] | None]) -> Iterator[None]:
        for found in steps:
            if found is not None:
                self._publish(pending, found)
            yield

    def _publish(self, pending: PendingTiles, tiles: list[Tile]) -> None:
        made, buffers = encoded(tiles, pending.of["stage"], pending.allowance)
        self._send({"tiles": made, "of": pending.of}, buffers)

    def _tidy(self) -> None:
        for view in [name for name, pending in self._pending.items() if not pending.slow and not pending.waiting]:
            del self._pending[view]


def _sampling(slow: Sequence[TileRow]) -> int:
    """Return the distance between sampled queries that keeps the rows of all tiles together few."""
    if not slow:
        return 1
    att, (batch, head, *_) = slow[0].levels.att, slow[0].key
    row = att.shape.K * cost.worth_of_a_cell(att, batch, head)
    rows = max(1, min(MAX_SAMPLED_ROWS, MAX_SAMPLED_CELLS // max(1, row)))
    every = 1
    while sum(row.rows(every) for row in slow) > max(rows, len(slow)):
        every *= 2
    return every


def encoded(tiles: Sequence[Tile], stage: str, allowance: float) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Encode tiles.

    Args:
        tiles: tiles of one stage.
        stage: the stage.
        allowance: bytes per bin, on average.

    Returns:
        The message for each tile, and their buffers.
    """
    parts = [(tile.overview.values, blocked_bins(tile.overview, stage)) for tile in tiles]
    budget = allowance * sum(values.numel() for values, _ in parts)
    buffers: list[bytes] = []
    made = []
    for tile, cells in zip(tiles, encoding.encode_together(parts, signed=stage in SIGNED, budget=budget), strict=True):
        about = {"tile": list(tile.address), "every": tile.every, "first": tile.first}
        made.append({**about, **cells, "values": encoding.detach(cells["values"], buffers)})
    return made, buffers
