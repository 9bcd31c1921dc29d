"""How much attention segments give to segments, ready to send: for one head in steps, and for all heads.

Every computed row is exact. A long head starts with some queries of each segment, then does all of them.
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

MAX_SEGMENTS = 256  # rows, and columns, in a matrix of segments
MAX_FLOAT_CELLS = 4096  # cells; a larger matrix is not sent as float32
MAX_COLUMN_NUMBERS = 10_240  # numbers of tokens sent at once: 40 KiB of masses
MAX_COLUMNS = 512  # tokens
MAX_POSITIONS = 4096
MAX_KEPT_NUMBERS = 1 << 24  # numbers kept for the tokens of one segment
MAX_HEAD_NUMBERS = 12_288  # numbers for all heads
MAX_HEAD_CELLS = 1 << 31  # weights computed in all heads; above that, fewer rows
SAMPLED_ROWS = 128  # rows over all segments that are computed first
MAX_FIRST_CELLS = 1 << 24  # the cost of these rows, and of the tokens sent at once
LEAST_TOKENS = 8  # sent at once, whatever they cost
CELLS_AT_ONCE = 1 << 20  # cells in one step, and numbers of queries read together
SINK = "learned sink"
PARTS = ("mass", "even", "self", "self_even")

Made = dict[str, Any]
Whole = np.ndarray[Any, np.dtype[np.int64]]


class Columns(NamedTuple):
    """The segments of the keys.

    Attributes:
        names: their names.
        sizes: the number of keys in each.
        colors: the color slot of each: 0 to 6, 7 for the asking segment, -1 for gray.
        labels: (K,) the segment number of each key.
        text: identifies these segments at this path.
        inside: how many segments each is divided into; 0, or nothing at all, if it is not divided.
        outside: the name of the column for everything outside the path; "" if there is none.
    """

    names: list[str]
    sizes: list[int]
    colors: list[int]
    labels: Whole
    text: tuple[Any, ...]
    inside: Sequence[int] = ()
    outside: str = ""

    def spans(self) -> Whole:
        """Return each segment's longest run in the text, (columns, 2): start and stop; 0, 0 for the outside column."""
        found = _longest(self.labels, len(self.names))
        found[[at for at, name in enumerate(self.names) if name == self.outside]] = 0
        return found


class Rows(NamedTuple):
    """The segments of the queries.

    Attributes:
        names: their names.
        positions: the queries in each, ascending.
    """

    names: list[str]
    positions: list[Whole]

    def spans(self) -> Whole:
        """Return the longest run of each segment in the text, (rows, 2): start and stop."""
        labels = np.full(1 + max((int(one[-1]) for one in self.positions if len(one)), default=0), -1)
        for number, one in enumerate(self.positions):
            labels[one] = number
        return _longest(labels, len(self.names))


@dataclass(frozen=True)
class Wanted:
    """Which masses to compute, for one head of a layer or for combined heads.

    Attributes:
        layer, batch: the layer and the sample.
        head: the head's number, or the name of combined heads, such as "mean 0 4".
        path: the segments opened so far, outermost first.
        asking: the segment whose queries are shown one by one.
        columns, rows: the segments.
        asking_path: the segments that contain the asking one, outermost first; `rows` are the parts of the last.
        stage: what is summed: weights, or a later stage, whose numbers may be signed and are not shares.
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
        """The segment of level 0 that is or contains the asking one."""
        return (*self.asking_path, self.asking)[0]

    @property
    def heads(self) -> list[int]:
        return [self.head] if isinstance(self.head, int) else [int(one) for one in self.head.split()[1:]]

    @property
    def takes_largest(self) -> bool:
        """Whether combined heads take the largest mass instead of the mean."""
        return isinstance(self.head, str) and self.head.startswith("max")

    @property
    def row(self) -> int:
        return self.rows.names.index(self.asking)

    def check(self, att: AttentionBase) -> None:
        """Raise ValueError if there are too many segments, no such stage, or only overviews were kept."""
        att.check_stage(self.stage)
        if (kept := only_overviews(att)) is not None:
            raise kept.refusal("the attention between segments is")
        for names, what in ((self.columns.names, "keys"), (self.rows.names, "queries")):
            if len(names) > MAX_SEGMENTS:
                raise ValueError(
                    f"the {what} are in {len(names):,} segments, but at most {MAX_SEGMENTS} can be shown: give longer "
                    'segments, such as "paragraphs", or merge neighbors: segments(…).gather()'
                )

    def of(self) -> Made:
        """Return the message fields that identify these masses."""
        return {"layer": self.layer, "batch": self.batch, "head": self.head, **self.place()}

    def place(self) -> Made:
        return {
            "path": list(self.path),
            "asking": self.asking,
            "asking_path": list(self.asking_path),
            "stage": self.stage,
        }


class Sums:
    """Sums over queries of what they give each column, for some heads.

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
        """Return the mean of each part, (heads, rows, columns); NaN before any query was read."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return {name: total / self.looked[..., None] for name, total in self.totals.items()}


class MassPass:
    """The masses of one head, computed in steps; partial results can be sent at any time.

    Args:
        att: the layer.
        wanted: which masses.
        number: its id in requests.

    Raises:
        ValueError: they cannot be shown.
    """

    def __init__(self, att: AttentionBase, wanted: Wanted, number: int) -> None:
        wanted.check(att)
        self.att, self.wanted, self.number, self.versions = att, wanted, number, att.versions()
        self.names = [*wanted.columns.names, *([SINK] if att.has_sinks else [])]
        positions = wanted.rows.positions
        self.asked = positions[wanted.row]  # the queries shown one by one
        self._sums = Sums(len(wanted.heads), len(positions), len(self.names))
        self._done = [np.zeros(len(one), bool) for one in positions]
        self._tokens = self._kept_tokens()
        self._steps: Iterator[None] | None = None
        self.sampled = False  # whether the first queries of every segment are done

    def _kept_tokens(self) -> dict[str, np.ndarray[Any, Any]] | None:
        """Return storage for each token's masses in the asking segment; None if there are too many."""
        many, wide = len(self.asked), len(self.names)
        if many * wide > MAX_KEPT_NUMBERS:
            return None
        shapes = {"mass": (many, wide), "even": (many, wide), "self": (many,), "self_even": (many,)}
        return {name: np.full(shape, np.nan, np.float32) for name, shape in shapes.items()}

    @property
    def share(self) -> float:
        """The share of the queries that are done."""
        return sum(int(one.sum()) for one in self._done) / max(1, sum(map(len, self._done)))

    @property
    def finished(self) -> bool:
        return all(one.all() for one in self._done)

    @property
    def cells(self) -> int:
        """How many weights the whole pass computes."""
        return sum(map(len, self._done)) * self.att.shape.K * len(self.wanted.heads)

    # Computing.

    def __iter__(self) -> Iterator[None]:
        """Iterate over the remaining steps; a later loop continues where one stopped."""
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
        """Compute some queries of a segment, given by their index in it, that are not done yet."""
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
        """Return the masses of some queries, combined over heads: their mean, or the largest."""
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
        """Return the column of each query's own key; -1 if it has none."""
        return own_columns(self.att, queries, self.wanted.columns.labels)

    # Messages.

    @property
    def window(self) -> int:
        """How many tokens of the asking segment are sent with the matrix."""
        quick = max(LEAST_TOKENS, MAX_FIRST_CELLS // self.worth_of_rows(1))
        return min(len(self.asked), MAX_COLUMNS, quick, max(1, MAX_COLUMN_NUMBERS // len(self.names)))

    def worth_of_rows(self, more: int) -> int:
        """Return the cost of one query, in cells, if each cell costs `more`."""
        each = (cost.worth_of_a_cell(self.att, self.wanted.batch, head) for head in self.wanted.heads)
        return self.att.shape.K * sum(more - 1 + one for one in each)

    def matrix(self) -> dict[str, Numbers]:
        """Return what segments give to segments so far, (rows, columns); NaN where nothing is known."""
        return {name: self._over_heads(values) for name, values in self._sums.means().items()}

    def row(self, row: int) -> Made:
        """Return what one segment gives each column so far, (1, columns), never rounded."""
        return {name: _floats(values[row : row + 1]) for name, values in self.matrix().items()}

    @property
    def looked(self) -> Whole:
        """How many queries of each segment are done, counting only those that may attend to something."""
        found: Whole = self._sums.looked.max(0)
        return found

    def tokens(self, start: int, stop: int) -> dict[str, Numbers]:
        """Return the masses of some tokens of the asking segment, computing the missing ones."""
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
                f"{len(self.asked):,} tokens × {len(self.names)} segments are too many to draw at once: select a "
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
        """Return the results so far, for the front-end."""
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
    """What one segment gives to each segment in all heads, computed layer by layer.

    Args:
        layers: the attentions.
        wanted: which masses, for all heads.
        number: its id in requests.
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
        self._columns: list[int] | None = None  # the columns sent

    @property
    def share(self) -> float:
        return self._ready / max(1, len(self.heads))

    @property
    def finished(self) -> bool:
        return self._ready == len(self.heads)

    def __iter__(self) -> Iterator[None]:
        """Iterate over the remaining steps; a later loop continues where one stopped."""
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
        """Return the masses of all heads, (heads, columns); NaN for layers that are not ready."""
        found = {name: values.copy() for name, values in self._known.items()}
        for values in found.values():
            values[sum(self.heads[: self._ready]) :] = np.nan
        return found

    def strongest(self) -> list[int]:
        """Return the columns, those with the most mass over all heads first."""
        known = self.means()["mass"]
        mass = np.abs(np.nan_to_num(known)).sum(0) if len(known) else np.zeros(len(self.names))
        return sorted(range(len(self.names)), key=lambda column: -mass[column])

    def sent(self) -> list[int]:
        """Return the columns sent: all, or, if there are many, the excluded, colored and strongest ones."""
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
        """Return the results so far, for the front-end."""
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
    """Return the longest run of each label, the first if several are equal: start and stop; 0, 0 for an absent label.

    >>> _longest(np.array([0, 1, 1, 0, 0, 2]), 4).tolist()
    [[3, 5], [1, 3], [5, 6], [0, 0]]
    """
    edges = np.flatnonzero(np.diff(labels)) + 1
    starts, stops = np.r_[0, edges], np.r_[edges, len(labels)]
    order = np.lexsort((-starts, stops - starts))  # the last one written for each label stays
    found = np.zeros((count, 2), np.int64)
    known = order[labels[starts[order]] >= 0]
    for start, stop in zip(starts[known].tolist(), stops[known].tolist(), strict=True):
        found[labels[start]] = start, stop
    return found


def _spread(count: int, most: int) -> list[int]:
    """Return at most `most` numbers below `count`, evenly spread, including the first and the last."""
    found: list[int] = np.unique(np.linspace(0, max(0, count - 1), min(count, most)).round().astype(int)).tolist()
    return found


def _floats(values: np.ndarray[Any, Any]) -> encoding.Envelope:
    return encoding.encode(values.astype(np.float32))


def _matrix(values: Numbers, *, signed: bool) -> encoding.Envelope:
    """Encode a matrix as float32 if it is small, else at one byte per cell."""
    if values.size <= MAX_FLOAT_CELLS:
        return _floats(values)
    coded: encoding.Envelope = encoding.encode_cells(torch.from_numpy(values), None, signed=signed)["values"]
    return coded
