"""Tiles of a head for a front-end that looks closer: exact at once where that is quick, else from sampled rows first.

A tile has at most 128 × 128 bins of 2^row_level queries × 2^column_level keys. Those side by side share their queries,
so their log-normalizers are computed once: `TileRow` is such a row of tiles.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from .._engine import cost
from .._engine.base import AttentionBase
from .._engine.level_cache import CachedLevel, LevelBuild, LevelCache, LevelKey
from .._engine.matmul import exact
from .._engine.overview import Overview, OverviewPass
from .._engine.regions import Region, tile_region
from .._utils.scheduler import Scheduler
from . import encoding
from .picture import UNSIGNED, hidden

SIZE = 128  # bins along a side, at most
MOST = 64  # tiles of one request
PASS = "pass"  # the job that computes the picture
VIEWS = 8  # whose tiles may be due
SAMPLED_ROWS = 256  # of all tiles in view together, at first
SAMPLED_CELLS = cost.AT_ONCE // 2  # that these rows may take to compute
WORTH = 1 << 31  # cells, about a second: a row of tiles beyond, that the pass will bring anyway, waits for it
BUDGET = 210 * 1024  # bytes of the tiles of one request: with names and numbers a message stays within 240 KiB
SECONDS = 0.02  # of a slice

Send = Callable[[dict[str, Any], list[bytes]], None]


class Address(NamedTuple):
    """Which tile."""

    row_level: int
    column_level: int
    row: int
    column: int

    @property
    def level(self) -> tuple[int, int]:
        return self.row_level, self.column_level


class Tile(NamedTuple):
    """A tile, exact (`every` is 1), or of the queries first, first + every, …"""

    address: Address
    every: int
    first: int
    seen: Overview


class TileRow:
    """Tiles of the same queries, of one head."""

    def __init__(self, levels: LevelCache, key: LevelKey, addresses: Sequence[Address]) -> None:
        self.levels, self.key, self.addresses = levels, key, addresses
        self.level = addresses[0].row_level
        self.regions = [region(levels.att, key, address) for address in addresses]
        self.every = 1  # once sampled: from one query to the next

    @property
    def queries(self) -> range:
        return self.regions[0].queries

    def kept(self, visit: LevelBuild | None) -> CachedLevel | None:
        """The level that all of them can be folded from: one that is kept, or as far as it goes that of a pass."""
        found = self.levels.find(self.key)
        if found is None and visit is not None and self.comes_of(visit) and visit.queries >= self.queries.stop:
            found = visit.kept
        return found if found is not None and all(found.has(address.level) for address in self.addresses) else None

    def comes_of(self, visit: LevelBuild | None) -> bool:
        """Whether a pass that is under way will bring the level that all of them can be folded from."""
        if visit is None or visit.kept is None or visit.att is not self.levels.att or visit.key != self.key:
            return False
        return all(visit.kept.has(address.level) for address in self.addresses)

    def cost(self) -> int:
        """Cells to compute, where there is no level to fold it from."""
        att, (batch, head, stage, _) = self.levels.att, self.key
        found = sum(cost.cells(att, batch, head, one.queries, one.keys, stage) for one in self.regions)
        return found + cost.normalizers(att, batch, head, self.queries, stage)

    def fold(self, kept: CachedLevel) -> list[Tile]:
        """All of them, from a level."""
        with exact(self.levels.att.device):
            return [Tile(a, 1, self.queries.start, kept.tile(a.level, a.row, a.column, SIZE)) for a in self.addresses]

    def compute(self, regions: Sequence[Region], every: int) -> Iterator[list[Tile] | None]:
        """All of them over some regions; None after each slice, the tiles at the end."""
        made = []
        for address, one in zip(self.addresses, regions, strict=True):
            steps = OverviewPass(self.levels.att, one, self.key.stage, self.key.pool, SECONDS)
            for _ in steps:
                yield None
            made.append(Tile(address, every, one.queries.start, steps.result))
        yield made

    def exact(self) -> Iterator[list[Tile] | None]:
        """The exact tiles, in slices."""
        return self.compute(self.regions, 1)

    def sampled(self, every: int) -> Iterator[list[Tile] | None]:
        """One exact query in every so many, in slices."""
        self.every = self.stride(every)
        samples = [one._replace(query_bin=self.every).sample(self.levels.att) for one in self.regions]
        return self.compute(samples, self.every)

    def stride(self, every: int) -> int:
        """From one sampled query to the next: at least a bin, at most a tile."""
        return min(max(every, 1 << self.level), SIZE << self.level)

    def rows(self, every: int) -> int:
        """How many rows each of them has with a query in every so many."""
        return -(-len(self.queries) // self.stride(every))

    def planned(self, every: int) -> int:
        """How many bins will be sent in all: sampled as said, then one query for each bin, then exact."""
        rough, by_bin, whole = (self.rows(each) for each in (every, 1, 1))
        return self.columns * (rough + (by_bin if by_bin > rough and self.level else 0) + whole)

    @property
    def columns(self) -> int:
        """Bins in a row of all of them."""
        return sum(one.shape[1] for one in self.regions)


def region(att: AttentionBase, key: LevelKey, address: Address) -> Region:
    """Where a tile lies; IndexError if it is not there."""
    row_level, column_level, row, column = address
    return tile_region(att, key.batch, key.head, level=(row_level, column_level), row=row, column=column, size=SIZE)


def courses(levels: LevelCache, key: LevelKey, addresses: Sequence[Address]) -> list[TileRow]:
    """Tiles by the queries they share, in the order in which they were asked for."""
    by_row: dict[tuple[int, int], list[Address]] = {}
    for address in dict.fromkeys(addresses):
        by_row.setdefault((address.row_level, address.row), []).append(address)
    return [TileRow(levels, key, together) for together in by_row.values()]


def last_of(steps: Iterator[list[Tile] | None]) -> list[Tile]:
    """The tiles, without stopping on the way."""
    made: list[Tile] = []
    for found in steps:
        made = found or made
    return made


class PendingTiles:
    """What one view has asked for and does not have yet."""

    def __init__(self, of: dict[str, Any], allowance: float, slow: list[TileRow]) -> None:
        self.of, self.allowance = of, allowance
        self.slow = slow  # to be computed
        self.waiting: list[TileRow] = []  # for the pass to come so far


class TileQueue:
    """The tiles that are due, by view: the newest question of a view takes the place of the earlier.

    Args:
        slices: where slow tiles are computed.
        send: is given messages, with their buffers.
    """

    def __init__(self, slices: Scheduler, send: Send) -> None:
        self._slices, self._send = slices, send
        self._wanted: OrderedDict[str, PendingTiles] = OrderedDict()
        self._asked = 0

    def ask(
        self,
        levels: LevelCache,
        key: LevelKey,
        of: dict[str, Any],
        addresses: Sequence[Address],
        visit: LevelBuild | None,
        purse: cost.CostBudget,
    ) -> tuple[list[dict[str, Any]], list[bytes]]:
        """The tiles that are quick, sampled ones for the others, which follow as they are ready.

        Args:
            key: what they are of.
            of: what the front-end calls it: layer, batch, head, stage, pool, version and view.
            visit: the pass that is under way, if any.
            purse: what all the tiles of one message may cost.
        """
        self.forget(of["view"])
        now, slow = [], []
        for course in courses(levels, key, addresses):
            kept = course.kept(visit)
            if kept is not None:
                now.append(course.fold(kept))
            elif (needed := course.cost()) <= purse.left:
                purse.spend(needed, "")
                now.append(last_of(course.exact()))
            else:
                slow.append(course)
        quick = [tile for tiles in now for tile in tiles]
        planned = sum(tile.seen.values.numel() for tile in quick)
        every = _sampling(slow)
        planned += sum(course.planned(every) for course in slow)
        rough = [tile for course in slow for tile in last_of(course.sampled(every))]
        allowance = BUDGET / max(1, planned)
        slow = [course for course in slow if course.every > 1]
        if slow:
            self._queue(PendingTiles(of, allowance, slow), visit)
        return encoded(quick + rough, of["stage"], allowance)

    def forget(self, view: str | None = None) -> None:
        """Compute no more for a view, or for any."""
        for name in [view] if view is not None else list(self._wanted):
            self._wanted.pop(name, None)
            self._slices.drop(("tiles", name))

    def arrived(self, visit: LevelBuild) -> None:
        """Send the tiles that waited for a pass to come so far."""
        for wanted in list(self._wanted.values()):
            for course in list(wanted.waiting):
                kept = course.kept(visit)
                if kept is not None:
                    wanted.waiting.remove(course)
                    self._publish(wanted, course.fold(kept))
        self._tidy()

    def left_alone(self, visit: LevelBuild) -> None:
        """The pass has been stopped: compute what waited for it."""
        for wanted in list(self._wanted.values()):
            wanted.slow, wanted.waiting = wanted.slow + wanted.waiting, []
            self._start(wanted, visit)

    def _queue(self, wanted: PendingTiles, visit: LevelBuild | None) -> None:
        self._wanted[wanted.of["view"]] = wanted
        while len(self._wanted) > VIEWS:
            self.forget(next(iter(self._wanted)))
        self._start(wanted, visit)

    def _start(self, wanted: PendingTiles, visit: LevelBuild | None) -> None:
        view = wanted.of["view"]
        self._asked += 1
        if not self._slices.start(("tiles", view), self._follow(wanted, visit), -self._asked):
            self._wanted.pop(view)  # no loop runs: what is sampled stays so

    def _follow(self, wanted: PendingTiles, visit: LevelBuild | None) -> Iterator[None]:
        """The job of a view: one query for each bin first, then the exact tiles, the cheapest first."""
        for course in wanted.slow:
            if course.every > 1 << course.level > 1:
                yield from self._through(wanted, course.sampled(1))
        costs = {id(course): course.cost() for course in wanted.slow}
        running = visit if PASS in self._slices.names else None
        coming = sum(costs[id(course)] for course in wanted.slow if course.comes_of(running))
        sooner = running is not None and coming > running.left / 2  # by then the pass is as far itself
        for course in sorted(wanted.slow, key=lambda course: costs[id(course)]):
            kept = course.kept(visit)
            if kept is not None:
                self._publish(wanted, course.fold(kept))
            elif course.comes_of(running) and (sooner or costs[id(course)] > WORTH):
                wanted.waiting.append(course)
            else:
                yield from self._through(wanted, course.exact())
        wanted.slow = []
        self._tidy()

    def _through(self, wanted: PendingTiles, steps: Iterator[list[Tile] | None]) -> Iterator[None]:
        for found in steps:
            if found is not None:
                self._publish(wanted, found)
            yield

    def _publish(self, wanted: PendingTiles, tiles: list[Tile]) -> None:
        made, buffers = encoded(tiles, wanted.of["stage"], wanted.allowance)
        self._send({"tiles": made, "of": wanted.of}, buffers)

    def _tidy(self) -> None:
        for view in [name for name, wanted in self._wanted.items() if not wanted.slow and not wanted.waiting]:
            del self._wanted[view]


def _sampling(slow: Sequence[TileRow]) -> int:
    """From one sampled query to the next, where all tiles in view have few of them together."""
    if not slow:
        return 1
    K = slow[0].levels.att.shape.K
    rows = max(1, min(SAMPLED_ROWS, SAMPLED_CELLS // max(1, K)))
    every = 1
    while sum(course.rows(every) for course in slow) > max(rows, len(slow)):
        every *= 2
    return every


def encoded(tiles: Sequence[Tile], stage: str, allowance: float) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Tiles as they are sent, with so many bytes for a bin on average."""
    parts = [(tile.seen.values, hidden(tile.seen, stage)) for tile in tiles]
    budget = allowance * sum(values.numel() for values, _ in parts)
    buffers: list[bytes] = []
    made = []
    for tile, cells in zip(
        tiles, encoding.encode_together(parts, signed=stage not in UNSIGNED, budget=budget), strict=True
    ):
        about = {"tile": list(tile.address), "every": tile.every, "first": tile.first}
        made.append({**about, **cells, "values": encoding.detach(cells["values"], buffers)})
    return made, buffers
