"""Answers about cells: rows, columns, peaks, tiles, rankings, strongest pairs, changes and small pictures."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from ..._analysis.received import receiving
from ..._engine import cost
from ..._engine.level_cache import LevelKey
from ..._engine.softmax import run_to_end
from ..._engine.stages import BY_SIZE, MASKED, NORMALIZED
from ..._utils.indexing import cuts
from ..._utils.jsonable import as_json
from ..._utils.validation import as_choice
from ..._utils.validation import told as short  # what is untrusted may be long or deep
from ...attention import Attention
from ..codec import encoding
from ..pictures import comparison, heads_overview, sinks
from ..pictures.heads_of_stage import encoded as encoded_of_stage
from ..pictures.heads_of_stage import stage_pictures
from ..pictures.tiles import MAX_SAMPLED_CELLS, MAX_TILES_PER_REQUEST, Address, region
from . import ranking
from .asked import (
    MAX_PLACES,
    MAX_TEXT,
    WAIT,
    Message,
    Reply,
    attention_of,
    count_in,
    integer_in,
    level_key,
    places_in,
    span_in,
    spans_in,
)
from .long_answers import LongAnswer

MAX_CELLS = 65_536  # in one `cells` reply
MAX_LINE = 60_000  # numbers in one row or column: as float32 they fit in a message
CELLS_AT_ONCE = 1 << 18  # cells read at a time when looking for a bin's peak
MAX_BIN = 2**22  # cells that one `peak` may read: one bin of a million-token picture
MAX_PAIRS = 32
MAX_RECEIVED = 1 << 28  # cells from which what each key receives is computed unasked: about 1 s


def row(message: Message, request: Reply) -> Reply:
    att = attention_of(message, request)
    return _row(message, request, integer_in(request, "query", att.shape.Q))


def _row(message: Message, request: Reply, query: int) -> Reply:
    att = attention_of(message, request)
    line = _line(message, att, request, range(query, query + 1), range(att.shape.K))
    return line | {"sink": as_json(_sink(att, request, [query]))}


def column(message: Message, request: Reply) -> Reply:
    att = attention_of(message, request)
    key = integer_in(request, "key", att.shape.K)
    return _line(message, att, request, range(att.shape.Q), range(key, key + 1))


def _line(message: Message, att: Attention, request: Reply, queries: range, keys: range) -> Reply:
    many = len(queries) * len(keys)
    if many > MAX_LINE:
        what = "row" if len(queries) == 1 else "column"
        raise ValueError(f"a {what} of {many:,} numbers is too much to send: ask for its strongest cells with `ranked`")
    message.afford(att, request, queries, keys)
    return _numbers(message, att, request, queries, keys, flat=True)


def cells(message: Message, request: Reply) -> Reply:
    att = attention_of(message, request)
    queries, keys = spans_in(att, request, MAX_CELLS)
    message.afford(att, request, queries, keys)
    return _numbers(message, att, request, queries, keys)


def received(att: Attention, batch: int, head: int) -> LongAnswer:
    """Begin to compute what each key receives; a key that no query may attend to is blocked.

    Raises:
        ValueError: there are too many keys to send, or too many cells for a picture that nobody asked for.
    """
    Q, K = att.shape.Q, att.shape.K
    if K > MAX_LINE or Q * K > MAX_RECEIVED:
        raise ValueError(f"{Q:,} × {K:,} weights are too many to show what each key receives: call att.received()")
    all_cells = cost.RECEIVED * cost.cells(att, batch, head, range(Q), range(K), "weights")
    return LongAnswer(_receiving(att, batch, head), all_cells, {})


def _receiving(att: Attention, batch: int, head: int) -> Generator[int, None, Reply]:
    steps = receiving(att, batch, head)
    while True:
        try:
            yield cost.RECEIVED * cost.cells(att, batch, head, next(steps), range(att.shape.K), "weights")
        except StopIteration as end:
            values, any_may = end.value
            numbers, bits = encoding.encode_numbers(values.to(torch.float32), None if bool(any_may.all()) else ~any_may)
            return {"values": numbers, "blocked": bits}


def peak(message: Message, request: Reply) -> Reply:
    att = attention_of(message, request)
    queries, keys = spans_in(att, request, MAX_BIN)
    message.afford(att, request, queries, keys, worth=cost.PEAK)
    found: Reply = {"value": None, "query": None, "key": None}
    best: Tensor | None = None
    for piece in cuts(range(len(queries)), 1, max(1, CELLS_AT_ONCE // max(1, len(keys)))):
        rows = queries[piece.start : piece.stop]
        values, blocked = _block(att, request, rows, keys)
        if blocked is not None:
            if bool(blocked.all()):
                continue
            values = values.masked_fill(blocked, -math.inf)
        top = int(values.argmax())  # a NaN wins, as in the picture's pooling
        value = values.flatten()[top]
        if best is not None and (bool(best.isnan()) or not bool((value > best) | value.isnan())):
            continue
        if bool(value == -math.inf) and blocked is not None:
            top = int(blocked.flatten().to(torch.uint8).argmin())  # the first cell that is not blocked
        best, (row, column) = value, divmod(top, values.shape[1])
        found = {"value": as_json(float(value)), "query": rows.start + row, "key": keys.start + column}
    if request.get("row") is True and found["query"] is not None:
        found["row"] = _row(message, request, found["query"])
    return found


def tiles(message: Message, request: Reply) -> Reply:
    att, key, view = attention_of(message, request), level_key(request), request.get("view")
    if not isinstance(view, str) or len(view) > MAX_TEXT or not view.isprintable():
        raise ValueError(f"view is {short(view)}: give a short printable text")
    asked = request.get("tiles")
    if not isinstance(asked, list) or not 0 < len(asked) <= MAX_TILES_PER_REQUEST:
        raise ValueError(
            f"tiles must be a list of 1 to {MAX_TILES_PER_REQUEST}, each [row_level, column_level, row, column]"
        )
    addresses = [_address(att, key, one) for one in asked]
    each = cost.TILE * cost.worth_of_a_cell(att, key.batch, key.head)
    message.budget.spend(cost.SAMPLED * MAX_SAMPLED_CELLS + each * len(addresses), "ask for fewer tiles at once")
    tiles, buffers = message.context.tiles(request["layer"], key, view, addresses, message.tile_budget)
    for tile in tiles:
        tile["values"]["data"] += len(message.buffers)
    message.buffers += buffers
    return {"tiles": tiles}


def _address(att: Attention, key: LevelKey, asked: Any) -> Address:
    if not isinstance(asked, list) or len(asked) != 4 or any(type(part) is not int or part < 0 for part in asked):
        raise ValueError(f"a tile is {short(asked)}: give [row_level, column_level, row, column]")
    address = Address(*asked)
    region(att, key, address)  # raises if there is no such tile
    return address


def ranked(message: Message, request: Reply) -> Reply:
    att, over = attention_of(message, request), request.get("over", "sum")
    sides = [side for side in ("queries", "keys") if request.get(side) is not None]
    if len(sides) != 1:
        raise ValueError("give either queries or keys, as a list of positions")
    if over not in ("mean", "sum"):
        raise ValueError(f"over is {short(over)}: give mean or sum")
    (side,) = sides
    length, batch, head = (att.shape.Q if side == "queries" else att.shape.K), request["batch"], request["head"]
    places, count = places_in(request, side, length), count_in(request, MAX_PLACES)
    other = att.shape.K if side == "queries" else att.shape.Q
    worth = cost.RANKED - 1 + cost.worth_of_a_cell(att, batch, head)
    message.budget.spend(worth * (len(places) + 1) * other, "ask for fewer at once")
    if side == "keys":
        queries = range(att.shape.Q)
        message.budget.spend(cost.normalizers(att, batch, head, queries, request["stage"]), WAIT)
    values, blocked = ranking.line(att, request["stage"], batch, head, side, places, mean=over == "mean")
    sink = _sink(att, request, places, mean=over == "mean") if side == "queries" else None
    found = ranking.rank(values, blocked, count, sink, by_size=request["stage"] in BY_SIZE)
    return {
        "positions": encoding.detach(encoding.encode(found.positions.numpy().astype("uint32")), message.buffers),
        "values": encoding.detach(encoding.encode(found.values.numpy()), message.buffers),
        "allowed": found.allowed,
        "blocked": found.blocked,
        "nan": found.nan,
        "sum": as_json(found.sum),
        "rest": {"count": found.allowed - len(found.positions), "sum": as_json(found.rest_sum)},
        "entropy": as_json(found.entropy),
        "max_entropy": found.max_entropy,
        "ninety": found.ninety,
        "sink": as_json(found.sink),
    }


def _sink(att: Attention, request: Reply, queries: list[int], *, mean: bool = False) -> float | None:
    return sinks.of_rows(att, request["stage"], request["batch"], request["head"], queries, mean=mean)


def strongest(message: Message, request: Reply) -> Reply:
    att, count = attention_of(message, request), count_in(request, MAX_PAIRS)
    batch, head, skip = request["batch"], request["head"], request.get("skip_first", False)
    if type(skip) is not bool:
        raise ValueError(f"skip_first is {short(skip)}: give true or false")
    stage: Any = request.get("stage", "weights")
    stage = stage if stage in NORMALIZED else "weights"  # stages before the weights show the strongest weights
    key, levels = LevelKey(batch, head, stage, "max"), message.context.levels(request["layer"])
    everything = range(att.shape.Q), range(att.shape.K)
    if levels.find(key) is None:
        needed = cost.cells(att, batch, head, *everything, stage)
        if needed > cost.AT_ONCE:
            of = {"weights": "the weights' maximum"}.get(stage, f"the stage {stage}, pooled by maximum")
            raise ValueError(f"the strongest pairs are not known yet: {WAIT} of {of}")
        row_level, column_level = levels.finest
        made = -(-att.shape.Q // (1 << row_level)) * -(-att.shape.K // (1 << column_level))
        if made > message.level_budget.left:
            raise ValueError(
                "this message already computes the strongest pairs of another head: send this request on its own"
            )
        message.budget.spend(needed, "send this request on its own")
        message.level_budget.use(made)
        for _ in levels.build(batch, head, stage=stage):
            pass
    kept = levels.find(key)
    if kept is None:
        raise ValueError("the strongest pairs were dropped from memory: ask again")
    bins = min(count, kept.overview.values.shape[0])
    unknown = cost.normalizers(att, batch, head, everything[0], stage) and bins * kept.overview.query_bin * att.shape.K
    message.budget.spend(unknown + cost.PAIR * bins, "send this request on its own")
    return {"pairs": ranking.strongest_pairs(att, kept, batch, head, count=count, skip_first=skip, stage=stage)}


def change(message: Message, request: Reply) -> Reply:
    attention_of(message, request)
    against_at = request.get("against_at")
    where = request["layer"], request["batch"], str(request.get("against"))
    both = message.context.both(*where, tuple(against_at) if isinstance(against_at, list) else None)
    queries, keys = (
        span_in(request, name, axis.length) for name, axis in (("queries", both.queries), ("keys", both.keys))
    )
    if len(queries) * len(keys) > MAX_BIN:
        raise ValueError(f"{len(queries) * len(keys):,} cells were requested: ask for at most {MAX_BIN:,} at once")
    key = LevelKey(request["batch"], request["head"], request["stage"], "max")
    needed = cost.CHANGE * both.cells(key, queries, keys) + both.normalizers(key, queries)
    message.budget.spend(needed, f"look closer, or {WAIT}")
    return comparison.peak(both, key, queries, keys)


def thumbnails(message: Message, request: Reply) -> Reply:
    layer = integer_in(request, "layer", len(message.context.stack))
    att = message.context.stack[layer]
    batch, heads = integer_in(request, "batch", att.shape.B), span_in(request, "heads", att.shape.H)
    if len(heads) > heads_overview.MAX_HEADS_PER_REQUEST:
        raise ValueError(f"{len(heads):,} heads were requested: at most {heads_overview.MAX_HEADS_PER_REQUEST} at once")
    plan = heads_overview.Plan(message.context.stack, batch)
    message.budget.spend(plan.worth(layer, heads), "ask for fewer at once")
    stage = request.get("stage", "weights")
    if stage == "weights":
        values = heads_overview.finer(message.context.stack, plan, layer, batch, heads)
    else:
        size = heads_overview.THUMBNAIL_SIZE
        found = run_to_end(
            stage_pictures(att, batch, as_choice(stage, NORMALIZED, "stage"), plan.finer(layer), size, heads)
        )
        values = encoded_of_stage(found, stage)
    return {"values": encoding.detach(values, message.buffers)}


def _block(att: Attention, request: Reply, queries: range, keys: range) -> tuple[Tensor, Tensor | None]:
    where: dict[str, Any] = {"batch": request["batch"], "head": request["head"], "queries": queries, "keys": keys}
    values = att.block(request["stage"], **where)
    if request["stage"] not in MASKED:
        return values, None
    allowed = att.block("allowed", **where)
    return values, None if bool(allowed.all()) else ~allowed


def _numbers(
    message: Message, att: Attention, request: Reply, queries: range, keys: range, *, flat: bool = False
) -> Reply:
    values, blocked = _block(att, request, queries, keys)
    if flat:
        values, blocked = values.flatten(), None if blocked is None else blocked.flatten()
    numbers, bits = encoding.encode_numbers(values, blocked)
    return {"values": encoding.detach(numbers, message.buffers), "blocked": encoding.detach(bits, message.buffers)}
