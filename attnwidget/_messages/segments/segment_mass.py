"""How much attention segments give to segments, as it is sent: of one head, step by step, and of all heads.

Every row that is computed is exact. Of a long head some queries of each segment come first, then all of them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch

from ..._analysis.all_heads import LayerSource
from ..._engine import cost
from ..._engine.base import AttentionBase
from ..._engine.cache_policies import finding_evictions
from ..._engine.kept_levels import only_overviews
from ..._engine.softmax import run_to_end
from ..._engine.stages import QUERIES, SIGNED
from ..._segments.named import RESERVED
from ..codec import encoding
from .segment_rows import Numbers, RowMasses, own_columns, row_masses

MAX_SEGMENTS = 256  # rows, and columns, of a matrix of segments
MAX_FLOAT_CELLS = 4096  # of the matrix, up to which it is sent as float32
MAX_COLUMN_NUMBERS = 10_240  # of the tokens that are sent at once: 40 KiB of masses
MAX_COLUMNS = 512  # tokens
MAX_POSITIONS = 4096
MAX_KEPT_NUMBERS = 1 << 24  # of the tokens of one segment that are kept
MAX_HEAD_NUMBERS = 12_288  # of all heads
MAX_HEAD_CELLS = 1 << 31  # weights of all heads that are computed; of more, fewer rows
SAMPLED_ROWS = 128  # of all segments together, which come first
MAX_FIRST_CELLS = 1 << 24  # of these rows, and of the tokens that are sent at once, what their cells are worth
LEAST_TOKENS = 8  # that are sent at once, however much these are
CELLS_AT_ONCE = 1 << 20  # of one step, and numbers of queries that are looked at together
SINK = "learned sink"
PARTS = ("mass", "even", "self", "self_even")

Made = dict[str, Any]
Whole = np.ndarray[Any, np.dtype[np.int64]]


class Columns(NamedTuple):
    """The segments that keys are in.

    Attributes:
        names: of each.
        sizes: how many keys each has.
        colors: the slot of each: 0 to 6, 7 of the asking segment, -1 gray.
        labels: (K,) of each key the number of its segment.
        text: what tells these segments, at this place, from others.
        inside: how many segments each is divided into; 0, or nothing for all, where it is not.
        outside: the name of the column that holds all that is outside of a place; "" where there is none.
    """

    names: list[str]
    sizes: list[int]
    colors: list[int]
    labels: Whole
    text: tuple[Any, ...]
    inside: Sequence[int] = ()
    outside: str = ""

    def spans(self) -> Whole:
        """Return the longest stretch of each in the text, (columns, 2): start and stop; 0, 0 of all that is outside."""
        found = _longest(self.labels, len(self.names))
        found[[at for at, name in enumerate(self.names) if name == self.outside]] = 0
        return found


class Rows(NamedTuple):
    """The segments that queries are in.

    Attributes:
        names: of each.
        positions: of each the queries that are in it, ascending.
    """

    names: list[str]
    positions: list[Whole]

    def spans(self) -> Whole:
        """Return the longest stretch of each in the text, (rows, 2): start and stop."""
        labels = np.full(1 + max((int(one[-1]) for one in self.positions if len(one)), default=0), -1)
        for number, one in enumerate(self.positions):
            labels[one] = number
        return _longest(labels, len(self.names))


@dataclass(frozen=True)
class Wanted:
    """Which masses: of a head of a layer, or of several heads as one.

    Attributes:
        layer, batch: which.
        head: its number, or the name of several, such as "mean 0 4".
        path: the segments that one has gone down into.
        asking: the segment whose queries are looked at one by one.
        columns, rows: the segments.
        asking_path: the segments that the asking one lies in, outermost first; `rows` are what is inside the last.
        stage: what is summed: weights, or a stage after them, whose numbers may have signs and are no shares.
    """

    layer: int
    batch: int
    head: int | str
    path: tuple[str, ...]
    asking: str
    columns: Columns
    rows: Rows
    stage: str = "weights"
    asking_path: tuple[str, ...] = ()

    @property
    def outermost(self) -> str:
        """The segment of level 0 that the asking one is, or lies in."""
        return (*self.asking_path, self.asking)[0]

    @property
    def heads(self) -> list[int]:
        return [self.head] if isinstance(self.head, int) else [int(one) for one in self.head.split()[1:]]

    @property
    def takes_largest(self) -> bool:
        """Whether of several heads the largest of the masses is taken, and not their mean."""
        return isinstance(self.head, str) and self.head.startswith("max")

    @property
    def row(self) -> int:
        return self.rows.names.index(self.asking)

    def check(self, att: AttentionBase) -> None:
        """Raise ValueError where there are too many segments, no such stage, or only overviews were kept."""
        att.check_stage(self.stage)
        if (kept := only_overviews(att)) is not None:
            raise kept.refusal("the attention between segments is")
        for names, what in ((self.columns.names, "keys"), (self.rows.names, "queries")):
            if len(names) > MAX_SEGMENTS:
                raise ValueError(
                    f"the {what} are in {len(names):,} segments, and at most {MAX_SEGMENTS} are shown: give longer "
                    'ones, such as "paragraphs", or put neighbors together: segments(…).gather()'
                )

    def of(self) -> Made:
        """Return what these masses are of, as messages say it."""
        return {"layer": self.layer, "batch": self.batch, "head": self.head, **self.place()}

    def place(self) -> Made:
        return {
            "path": list(self.path),
            "asking": self.asking,
            "asking_path": list(self.asking_path),
            "stage": self.stage,
        }


class Sums:
    """Sums over queries of what they give to each column, for some heads.

    Args:
        heads, rows, columns: how many there are.
    """

    def __init__(self, heads: int, rows: int, columns: int) -> None:
        self.totals: dict[str, Numbers] = {name: np.zeros((heads, rows, columns)) for name in PARTS}
        self.looked = np.zeros((heads, rows), np.int64)

    def add(self, row: int, found: RowMasses) -> None:
        """Add some queries of one segment, in all heads."""
        for name in PARTS:
            self.totals[name][:, row] += getattr(found, name).sum(1)
        self.looked[:, row] += found.some.sum(1)

    def means(self) -> dict[str, Numbers]:
        """Return the mean of each part, (heads, rows, columns); NaN where no query was looked at."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return {name: total / self.looked[..., None] for name, total in self.totals.items()}


class MassPass:
    """The masses of one head, computed step by step; what is known can be sent at any time.

    Args:
        att: the layer.
        wanted: which masses.
        number: what requests name them by.

    Raises:
        ValueError: they cannot be shown.
    """

    def __init__(self, att: AttentionBase, wanted: Wanted, number: int) -> None:
        wanted.check(att)
        self.att, self.wanted, self.number, self.versions = att, wanted, number, att.versions()
        self.names = [*wanted.columns.names, *([SINK] if att.has_sinks else [])]
        positions = wanted.rows.positions
        self.asked = positions[wanted.row]  # the queries that are looked at one by one
        self._sums = Sums(len(wanted.heads), len(positions), len(self.names))
        self._done = [np.zeros(len(one), bool) for one in positions]
        self._tokens = self._kept_tokens()
        self._steps: Iterator[None] | None = None
        self.sampled = False  # whether each segment has had its first queries

    def _kept_tokens(self) -> dict[str, np.ndarray[Any, Any]] | None:
        """Return room for the masses of each token of the asking segment; None where there are too many."""
        many, wide = len(self.asked), len(self.names)
        if many * wide > MAX_KEPT_NUMBERS:
            return None
        shapes = {"mass": (many, wide), "even": (many, wide), "self": (many,), "self_even": (many,)}
        return {name: np.full(shape, np.nan, np.float32) for name, shape in shapes.items()}

    @property
    def share(self) -> float:
        """The share of the queries that were looked at."""
        return sum(int(one.sum()) for one in self._done) / max(1, sum(map(len, self._done)))

    @property
    def finished(self) -> bool:
        return all(one.all() for one in self._done)

    @property
    def cells(self) -> int:
        """How many weights all of it takes."""
        return sum(map(len, self._done)) * self.att.shape.K * len(self.wanted.heads)

    # Computing.

    def __iter__(self) -> Iterator[None]:
        """Iterate over the steps that are left; a later loop goes on where one stopped."""
        if self._steps is None:
            self._steps = self._run()
        return self._steps

    def _run(self) -> Generator[None, None, None]:
        row = self.wanted.row
        yield from self._look(row, range(self.window))
        left = max(LEAST_TOKENS, MAX_FIRST_CELLS // self.worth_of_rows(1))
        for other, done in enumerate(self._done):
            most = min(left, ceil(SAMPLED_ROWS * len(done) / max(1, sum(map(len, self._done)))))
            if other != row and len(done) and most:
                left -= most
                yield from self._look(
                    other, np.unique(np.linspace(0, len(done) - 1, most).round().astype(int)).tolist()
                )
        self.sampled = True
        for one in (row, *(other for other in range(len(self._done)) if other != row)):
            yield from self._look(one, range(len(self._done[one])))
        self._steps = None

    def _look(self, row: int, places: Iterable[int]) -> Generator[None, None, None]:
        """Look at some queries of a segment, by their numbers in it, that were not looked at before."""
        left = (place for place in places if not self._done[row][place])
        numbers = len(self.names) * len(self.wanted.heads)
        at_once = max(1, min(QUERIES, CELLS_AT_ONCE // numbers))
        while some := list(islice(left, at_once)):
            steps = self._rows(self.wanted.rows.positions[row][some].tolist())
            found = None
            while found is None:
                try:
                    next(steps)
                except StopIteration as end:
                    found = end.value
                    self._add(row, some, found)
                yield

    def _rows(self, queries: Sequence[int]) -> Generator[int, None, RowMasses]:
        columns = self.wanted.columns
        where = self.att, self.wanted.batch, self.wanted.heads, queries
        return row_masses(*where, columns.labels, len(columns.names), stage=self.wanted.stage)

    def _add(self, row: int, places: list[int], found: RowMasses) -> None:
        self._sums.add(row, found)
        if row == self.wanted.row and self._tokens is not None:
            for name, values in self._joined(found).items():
                self._tokens[name][places] = values
        self._done[row][places] = True

    def _joined(self, found: RowMasses) -> dict[str, Numbers]:
        """Return the masses of some queries in all heads together: their mean, or the largest of each."""
        every = {
            "mass": found.mass,
            "even": found.even,
            "self": found.self.sum(2),
            "self_even": found.self_even.sum(2),
        }
        return {name: self._over_heads(values) for name, values in every.items()}

    def _over_heads(self, values: Numbers) -> Numbers:
        joined: Numbers = values.max(0) if self.wanted.takes_largest else values.mean(0)
        return joined

    def own_columns(self, queries: Sequence[int]) -> Whole:
        """Return of each query the column of its own key; -1 where it has none."""
        return own_columns(self.att, queries, self.wanted.columns.labels)

    # Messages.

    @property
    def window(self) -> int:
        """How many tokens of the asking segment are sent with the matrix."""
        quick = max(LEAST_TOKENS, MAX_FIRST_CELLS // self.worth_of_rows(1))
        return min(len(self.asked), MAX_COLUMNS, quick, max(1, MAX_COLUMN_NUMBERS // len(self.names)))

    def worth_of_rows(self, more: int) -> int:
        """Return how many cells a query is worth of which each cell is worth so many in a head of its own."""
        each = (cost.worth_of_a_cell(self.att, self.wanted.batch, head) for head in self.wanted.heads)
        return self.att.shape.K * sum(more - 1 + one for one in each)

    def matrix(self) -> dict[str, Numbers]:
        """Return what segments give to segments as far as it is known, (rows, columns); NaN where nothing is."""
        return {name: self._over_heads(values) for name, values in self._sums.means().items()}

    def row(self, row: int) -> Made:
        """Return what one segment gives to each as far as it is known, (1, columns), never rounded."""
        return {name: _floats(values[row : row + 1]) for name, values in self.matrix().items()}

    @property
    def looked(self) -> Whole:
        """Of each segment how many of its queries were looked at, of those that may attend to something."""
        found: Whole = self._sums.looked.max(0)
        return found

    def tokens(self, start: int, stop: int) -> dict[str, Numbers]:
        """Return the masses of some tokens of the asking segment: those not known yet are computed."""
        kept = self._tokens
        if kept is not None and bool(self._done[self.wanted.row][start:stop].all()):
            return {name: values[start:stop] for name, values in kept.items()}
        return self._joined(run_to_end(self._rows(self.asked[start:stop].tolist())))

    def known_tokens(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the masses of all tokens of the asking segment, NaN where not known yet.

        Raises:
            ValueError: there are too many to keep.
        """
        if self._tokens is None:
            raise ValueError(
                f"{len(self.asked):,} tokens × {len(self.names)} segments are too many to draw at once: choose a "
                "shorter segment"
            )
        return self._tokens

    def columns(self, start: int, stop: int) -> Made:
        """Return some tokens of the asking segment, for the front-end."""
        own = self.own_columns(self.asked[start:stop].tolist())
        beyond = np.where(own < 0, len(self.names), own).astype(np.uint32)
        found = {name: _floats(values) for name, values in self.tokens(start, stop).items()}
        return {**found, "own": encoding.encode(beyond)}

    def message(self) -> Made:
        """Return what is known, for the front-end."""
        columns, rows = self.wanted.columns, self.wanted.rows
        sinks = [0] * (len(self.names) - len(columns.names))
        matrix = self.matrix()
        rounded = matrix["mass"].size > MAX_FLOAT_CELLS
        return {
            "id": self.number,
            **self.wanted.of(),
            "error": None,
            "keys": self.names,
            "key_sizes": [*columns.sizes, *sinks],
            "key_colors": [*columns.colors, *(-1 for _ in sinks)],
            "key_inside": [*(columns.inside or [0] * len(columns.names)), *sinks],
            "key_spans": encoding.encode(np.pad(columns.spans(), ((0, len(sinks)), (0, 0))).astype(np.uint32)),
            "rows": rows.names,
            "row_sizes": [len(one) for one in rows.positions],
            "row_spans": encoding.encode(rows.spans().astype(np.uint32)),
            "row": self.wanted.row,
            "share": self.share,
            "looked": encoding.encode(self.looked.astype(np.uint32)),
            **{name: _matrix(values, signed=self.wanted.stage in SIGNED) for name, values in matrix.items()},
            **({"asking_row": self.row(self.wanted.row)} if rounded else {}),
            "total": len(self.asked),
            "positions": encoding.encode(self.asked[:MAX_POSITIONS].astype(np.uint32)),
            "columns": {"start": 0, **self.columns(0, self.window)},
        }


class HeadMasses:
    """What one segment gives to each in all heads of all layers, layer by layer.

    Args:
        layers: the attentions.
        wanted: which masses; of all heads.
        number: what requests name them by.
    """

    def __init__(self, layers: LayerSource, wanted: Wanted, number: int) -> None:
        self.layers, self.wanted, self.number = layers, wanted, number
        wanted.check(layers[wanted.layer])
        own = layers[wanted.layer].shape
        shapes = [layers[layer].shape for layer in range(len(layers))]
        same = [wanted.batch < one.B and (one.Q, one.K) == (own.Q, own.K) for one in shapes]
        fits = [ok and wanted.stage in layers[layer].stages for layer, ok in enumerate(same)]
        self.heads = [one.H if ok else 0 for one, ok in zip(shapes, fits, strict=True)]
        has_sinks = any(layers[layer].has_sinks for layer, ok in enumerate(fits) if ok)
        self.names = [*wanted.columns.names, *([SINK] if has_sinks else [])]
        self.asked = wanted.rows.positions[wanted.row]
        each = [cost.worth_of_a_cell(layers[n], wanted.batch, 0) * heads for n, heads in enumerate(self.heads) if heads]
        most = max(1, MAX_HEAD_CELLS // max(1, sum(each) * own.K))
        self._queries = self.asked[_spread(len(self.asked), most)].tolist()
        self._known = {name: np.zeros((sum(self.heads), len(self.names))) for name in PARTS}
        self._ready = 0  # layers
        self._steps: Iterator[None] | None = None
        self._columns: list[int] | None = None  # those that are sent

    @property
    def share(self) -> float:
        return self._ready / max(1, len(self.heads))

    @property
    def finished(self) -> bool:
        return self._ready == len(self.heads)

    def __iter__(self) -> Iterator[None]:
        """Iterate over the steps that are left; a later loop goes on where one stopped."""
        if self._steps is None:
            self._steps = self._run()
        return self._steps

    def _run(self) -> Generator[None, None, None]:
        for layer, heads in list(enumerate(self.heads))[self._ready :]:
            if heads and self._queries:
                for _ in finding_evictions(self.layers[layer], self.wanted.batch):
                    yield
                found = yield from self._look(self.layers[layer], heads)
                first = sum(self.heads[:layer])
                for name, values in self._known.items():
                    part = getattr(found, name)[:, 0]
                    values[first : first + heads, : part.shape[1]] = np.where(found.some, part, np.nan)
            self._ready += 1
            yield
        self._steps = None

    def _look(self, att: AttentionBase, heads: int) -> Generator[None, None, RowMasses]:
        columns = self.wanted.columns
        where = att, self.wanted.batch, range(heads), self._queries
        steps = row_masses(*where, columns.labels, len(columns.names), together=True, stage=self.wanted.stage)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: RowMasses = end.value
                return found
            yield

    def means(self) -> dict[str, Numbers]:
        """Return the masses of all heads, (heads, columns); NaN of layers that are not ready."""
        found = {name: values.copy() for name, values in self._known.items()}
        for values in found.values():
            values[sum(self.heads[: self._ready]) :] = np.nan
        return found

    def strongest(self) -> list[int]:
        """Return the columns, those first that get most in all heads."""
        known = self.means()["mass"]
        mass = np.abs(np.nan_to_num(known)).sum(0) if len(known) else np.zeros(len(self.names))
        return sorted(range(len(self.names)), key=lambda column: -mass[column])

    def sent(self) -> list[int]:
        """Return the columns that are sent: all, or of many those set aside, the colored ones and the strongest."""
        most = max(1, MAX_HEAD_NUMBERS // max(1, sum(self.heads)))
        if len(self.names) <= most:
            return list(range(len(self.names)))
        if self._columns is None or not self.finished:
            aside = [i for i, name in enumerate(self.names) if name in (*RESERVED, SINK)]
            colored = [i for i, color in enumerate(self.wanted.columns.colors) if color >= 0]
            self._columns = sorted(list(dict.fromkeys([*aside, *colored, *self.strongest()]))[:most])
        return self._columns

    def parts(self, columns: Sequence[int]) -> Made:
        """Return some columns of all heads, for the front-end."""
        return {name: _floats(values[:, list(columns)]) for name, values in self.means().items()}

    def message(self) -> Made:
        """Return what is ready, for the front-end."""
        columns = self.sent()
        some = len(self._queries)
        looked = [some if heads and layer < self._ready else 0 for layer, heads in enumerate(self.heads)]
        return {
            "id": self.number,
            "batch": self.wanted.batch,
            **self.wanted.place(),
            "error": None,
            "keys": [self.names[column] for column in columns],
            "heads": self.heads,
            **self.parts(columns),
            "sums": {name: _floats(values.sum(1, keepdims=True)) for name, values in self.means().items()},
            "looked": encoding.encode(np.array(looked, np.uint32)),
            "total": len(self.asked),
            "share": self.share,
        }


def _longest(labels: Whole, count: int) -> Whole:
    """Return the longest stretch of each of some labels, the first of several: start and stop; 0, 0 of what is nowhere.

    >>> _longest(np.array([0, 1, 1, 0, 0, 2]), 4).tolist()
    [[3, 5], [1, 3], [5, 6], [0, 0]]
    """
    edges = np.flatnonzero(np.diff(labels)) + 1
    starts, stops = np.r_[0, edges], np.r_[edges, len(labels)]
    order = np.lexsort((-starts, stops - starts))  # of each label the one that is written last stays
    found = np.zeros((count, 2), np.int64)
    known = order[labels[starts[order]] >= 0]
    for start, stop in zip(starts[known].tolist(), stops[known].tolist(), strict=True):
        found[labels[start]] = start, stop
    return found


def _spread(count: int, most: int) -> list[int]:
    """Return at most so many of some numbers from 0 on, evenly spread, the first and the last among them."""
    found: list[int] = np.unique(np.linspace(0, max(0, count - 1), min(count, most)).round().astype(int)).tolist()
    return found


def _floats(values: np.ndarray[Any, Any]) -> encoding.Envelope:
    return encoding.encode(values.astype(np.float32))


def _matrix(values: Numbers, *, signed: bool) -> encoding.Envelope:
    """Encode a matrix: float32 where it is small, else a byte a cell."""
    if values.size <= MAX_FLOAT_CELLS:
        return _floats(values)
    coded: encoding.Envelope = encoding.encode_cells(torch.from_numpy(values), None, signed=signed)["values"]
    return coded
