"""Answer the front-end's requests: exact rows, cells and tiles, rankings, tokens, and the rest.

Messages from a front-end are untrusted, so they are checked and bounded here. Every request gets a reply: the answer,
or a sentence that says why there is none. Nothing here raises, except `Interrupted`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ..._analysis.mask_counts import cells_to_ask
from ..._engine import cost
from ..._engine.base import Head
from ..._engine.kept_levels import only_overviews
from ..._engine.level_cache import LevelCache, LevelKey
from ..._engine.overview import POOLS
from ..._engine.softmax import run_to_end
from ..._engine.sources import STAGES
from ..._engine.stages import BY_SIZE, MASKED, NORMALIZED
from ..._engine.what_if import WhatIfLayers
from ..._tokens.search import TokenSearch
from ..._utils.failures import log_told, sentence_of
from ..._utils.indexing import cuts
from ..._utils.jsonable import as_json
from ..._utils.plain import sendable
from ..._utils.validation import as_choice
from ..._utils.validation import told as short  # what is untrusted may be long or deep
from ...attention import Attention
from ..codec import encoding
from ..pictures import comparison, heads_overview, sinks
from ..pictures.comparison import ComparedPair
from ..pictures.heads_of_stage import encoded as encoded_of_stage
from ..pictures.heads_of_stage import stage_pictures
from ..pictures.tiles import MAX_SAMPLED_CELLS, MAX_TILES_PER_REQUEST, Address, region
from ..segments import segment_answers
from ..segments.segment_mass import HeadMasses, MassPass
from ..segments.segment_reading import MEASURES
from . import ranking, stage_sections
from .long_answers import FilePart, LongAnswer, LongAnswers

MAX_CELLS = 65_536  # in one `cells` reply
MAX_LINE = 60_000  # numbers in one row or column: as float32 they fit in a message
CELLS_AT_ONCE = 1 << 18  # cells read at a time when looking for a bin's peak
MAX_LEVEL = 2**22  # overview bins that one message may compute: they stay in memory, 5 bytes each
MAX_BIN = 2**22  # cells that one `peak` may read: one bin of a million-token picture
MAX_REQUESTS = 64  # in one message
FULL_REPLY = 768 * 1024  # bytes after which a reply takes no more answers; one answer has at most a quarter of a MiB
MAX_REFUSED = 1024  # requests; a message with more is refused as a whole
MAX_NAME = 200  # characters in a request's id
MAX_PLACES = 64  # rows or columns ranked together, and positions returned
MAX_PAIRS = 32
MAX_FOUND = 20
MAX_FILE = 1 << 30  # bytes
FILE_PART = 192 * 1024  # bytes of a file in one reply
FILES = ("png", "svg", "html")
OF_NO_NUMBERS = ("tokens", "find", "pass", "segment_by", "retry", "ping")  # requests that need no weights
UNITS = ("sentences", "paragraphs", "lines")
MAX_ASIDE = 1000  # names of excluded segments
MAX_TEXT = 200  # characters to search for
WAIT = "wait for the exact picture"
INTERRUPTED = "interrupted: ask again"

log = logging.getLogger(__name__)

Reply = dict[str, Any]


class Context(Protocol):
    """What the answers need from the widget."""

    @property
    def stack(self) -> WhatIfLayers[Attention] | Sequence[Attention]:
        """The layers shown."""

    @property
    def long_answers(self) -> LongAnswers:
        """The answers that take several messages."""

    @property
    def not_yet(self) -> str | None:
        """Why weights cannot be requested yet; None when they can."""

    def levels(self, layer: int) -> LevelCache:
        """Return the overviews kept for a layer."""

    def vocabulary(self, side: str, layer: int, batch: int) -> TokenSearch | None:
        """Return the "query" or "key" tokens of a sample; None if it has none."""

    def tiles(
        self, layer: int, key: LevelKey, view: str, addresses: Sequence[Address], budget: cost.CostBudget
    ) -> tuple[list[Reply], list[bytes]]:
        """Return the tiles that are quick to make, with their buffers; the others are sent later."""

    def steer(self, layer: int, batch: int, head: int, stage: str, action: str) -> None:
        """Stop or resume the pass."""

    def check(self, layer: int, batch: int, head: int) -> None:
        """Look for likely faults in a head, however long it is."""

    def mass(self, number: int) -> MassPass:
        """Return the attention between segments in one head, by its id."""

    def head_mass(self, number: int) -> HeadMasses:
        """Return the attention to segments in all heads, by its id."""

    def make_segments(self, unit: str) -> None:
        """Split the tokens into segments."""

    def ask_effect(self, of: Any) -> None:
        """Schedule a run of the model with one edit."""

    def steer_effects(self, action: Any) -> None:
        """Start, stop or resume the runs of the model with edits."""

    def retry(self) -> None:
        """Compute the picture again."""

    def file(self, kind: str, start: int, most: int, budget: cost.CostBudget) -> FilePart:
        """Return part of a file of the current view; making the file may take several calls."""

    def both(self, layer: int, batch: int, against: str, against_at: tuple[int, ...] | None) -> ComparedPair:
        """Return the two attentions being compared."""

    def together(self, layer: int, name: str) -> Context:
        """Return the context for several heads combined under one name."""


class Interrupted(KeyboardInterrupt):
    """Raised when the user interrupts the answers to a message; it holds a reply to every request."""

    def __init__(self, reply: dict[str, Any], buffers: list[bytes]) -> None:
        super().__init__()
        self.reply = reply, buffers


@dataclass
class Message:
    """One message being answered: its context, budgets, and reply buffers."""

    context: Context
    budget: cost.CostBudget = field(default_factory=cost.CostBudget)
    tile_budget: cost.CostBudget = field(default_factory=lambda: cost.CostBudget(cost.AT_ONCE))
    level_budget: cost.CostBudget = field(default_factory=lambda: cost.CostBudget(MAX_LEVEL))
    buffers: list[bytes] = field(default_factory=list)
    retried: list[bool] = field(default_factory=list)  # at most once; a list, because copies of the message share it

    def check_room(self) -> None:
        """Raise ValueError if the reply is already full."""
        if sum(map(len, self.buffers)) >= FULL_REPLY:
            raise ValueError(f"the reply is full ({FULL_REPLY // 1024} KiB): send this request again on its own")

    def afford(self, att: Attention, request: Reply, queries: range, keys: range, worth: int = 1) -> None:
        """Raise ValueError if these cells cost too much; one cell costs as much as `worth` cells of a picture."""
        of = att, request["batch"], request["head"]
        needed = worth * cost.cells(*of, queries, keys, request["stage"])
        if len(keys) < att.shape.K:
            needed += cost.normalizers(*of, queries, request["stage"])
        self.budget.spend(needed, f"look closer, or {WAIT}")


def answer(context: Context, content: Any) -> tuple[dict[str, Any], list[bytes]] | None:
    """Answer one message.

    Args:
        context: what the answers need from the widget.
        content: the message, unchecked.

    Returns:
        The reply with its buffers: one answer to each request. None if the message holds no requests. A message with
        more than `MAX_REFUSED` requests is refused as a whole.

    Raises:
        Interrupted: the user interrupted it; the exception holds the complete reply.
    """
    requests = content.get("requests") if isinstance(content, dict) else None
    if not isinstance(requests, list):
        return None
    most = f"a message can hold at most {MAX_REQUESTS} requests"
    if len(requests) > MAX_REFUSED:
        return {"refused": f"{most}: none of these {len(requests):,} was answered"}, []
    message = Message(context)
    if "what_if" in content:
        message.budget.use(cost.REFRESH)  # the what-if rules changed first, which computed everything again
    replies: list[Reply] = []
    try:
        for request in requests[:MAX_REQUESTS]:
            replies.append(_answer_one(message, request))
    except KeyboardInterrupt as error:
        replies += [_refusal(request, INTERRUPTED) for request in requests[len(replies) :]]
        raise Interrupted({"replies": replies}, message.buffers) from error
    replies += [_refusal(request, most) for request in requests[MAX_REQUESTS:]]
    return {"replies": replies}, message.buffers


def refuse(content: Any, reason: str) -> tuple[dict[str, Any], list[bytes]] | None:
    """Return a reply that refuses every request of a message with one reason; None if the message holds no requests."""
    requests = content.get("requests") if isinstance(content, dict) else None
    if not isinstance(requests, list) or len(requests) > MAX_REFUSED:
        return None
    return {"replies": [_refusal(request, reason) for request in requests]}, []


def _answer_one(message: Message, request: Any) -> Reply:
    begun = len(message.buffers)
    try:
        if not isinstance(request, dict):
            raise TypeError(f"a request must be a dict, not {type(request).__name__}")
        kind = request.get("kind")
        if not isinstance(kind, str) or kind not in ANSWERS:
            *others, last = ANSWERS
            raise ValueError(f"there is no request called {short(kind)}: use one of {', '.join(others)} and {last}")
        if isinstance(request.get("head"), str):  # combined heads are head 0 of an attention of their own
            stack = message.context.stack
            context = message.context.together(_integer(request, "layer", len(stack)), request["head"])
            message, request = replace(message, context=context), {**request, "head": 0}
        if message.context.not_yet is not None and kind not in OF_NO_NUMBERS:
            raise ValueError(message.context.not_yet)
        message.check_room()
        return {"id": _id(request), "ok": True, **ANSWERS[kind](message, request)}
    except Exception as error:  # every error reaches the front-end; only our own mistakes are logged
        del message.buffers[begun:]
        log_told(log, "a request", error)
        return _refusal(request, sentence_of(error))


def _row(message: Message, request: Reply) -> Reply:
    att = _attention(message, request)
    query = _integer(request, "query", att.shape.Q)
    line = _line(message, att, request, range(query, query + 1), range(att.shape.K))
    return line | {"sink": as_json(_sink(att, request, [query]))}


def _column(message: Message, request: Reply) -> Reply:
    att = _attention(message, request)
    key = _integer(request, "key", att.shape.K)
    return _line(message, att, request, range(att.shape.Q), range(key, key + 1))


def _line(message: Message, att: Attention, request: Reply, queries: range, keys: range) -> Reply:
    many = len(queries) * len(keys)
    if many > MAX_LINE:
        what = "row" if len(queries) == 1 else "column"
        raise ValueError(f"a {what} of {many:,} numbers is too much to send: ask for its strongest cells with `ranked`")
    message.afford(att, request, queries, keys)
    return _numbers(message, att, request, queries, keys, flat=True)


def _cells(message: Message, request: Reply) -> Reply:
    att = _attention(message, request)
    queries, keys = _spans(att, request, MAX_CELLS)
    message.afford(att, request, queries, keys)
    return _numbers(message, att, request, queries, keys)


def _peak(message: Message, request: Reply) -> Reply:
    att = _attention(message, request)
    queries, keys = _spans(att, request, MAX_BIN)
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
    return found


def _tiles(message: Message, request: Reply) -> Reply:
    att, key, view = _attention(message, request), _key(request), request.get("view")
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


def _ranked(message: Message, request: Reply) -> Reply:
    att, over = _attention(message, request), request.get("over", "sum")
    sides = [side for side in ("queries", "keys") if request.get(side) is not None]
    if len(sides) != 1:
        raise ValueError("give either queries or keys, as a list of positions")
    if over not in ("mean", "sum"):
        raise ValueError(f"over is {short(over)}: give mean or sum")
    (side,) = sides
    length, batch, head = (att.shape.Q if side == "queries" else att.shape.K), request["batch"], request["head"]
    places, count = _places(request, side, length), _count(request, MAX_PLACES)
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


def _strongest(message: Message, request: Reply) -> Reply:
    att, count = _attention(message, request), _count(request, MAX_PAIRS)
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
    message.budget.spend(unknown, "the head has to be computed again")
    return {"pairs": ranking.strongest_pairs(att, kept, batch, head, count=count, skip_first=skip, stage=stage)}


def _tokens(message: Message, request: Reply) -> Reply:
    tokens = _vocabulary(message, request).tokens
    page = _span_of({"tokens": [request.get("start"), request.get("stop")]}, "tokens", len(tokens))
    if len(page) > encoding.PAGE:
        raise ValueError(f"{len(page):,} tokens were requested: ask for at most {encoding.PAGE:,} at once")
    made = encoding.encode_page(tokens[page.start : page.stop])
    message.buffers.append(made["text"])
    return {"text": len(message.buffers) - 1, "ends": encoding.detach(made["ends"], message.buffers)}


def _find(message: Message, request: Reply) -> Reply:
    vocabulary, text = _vocabulary(message, request), request.get("text")
    if not isinstance(text, str) or not 0 < len(text) <= MAX_TEXT:
        raise ValueError(f"text is {short(text)}: give 1 to {MAX_TEXT} characters to search for")
    start = _integer(request, "start", len(vocabulary.tokens))
    message.budget.spend(cost.SEARCHED * len(vocabulary.tokens), "ask for fewer at once")
    longer = vocabulary.size // cost.BYTES_SEARCHED - len(vocabulary.tokens)
    message.budget.spend(cost.SEARCHED * max(0, longer), "these tokens are long texts: ask for fewer at once")
    positions, total = vocabulary.find(text, start=start, count=_count(request, MAX_FOUND))
    return {"positions": positions, "total": total}


def _change(message: Message, request: Reply) -> Reply:
    _attention(message, request)
    against_at = request.get("against_at")
    where = request["layer"], request["batch"], str(request.get("against"))
    both = message.context.both(*where, tuple(against_at) if isinstance(against_at, list) else None)
    queries, keys = (
        _span_of(request, name, axis.length) for name, axis in (("queries", both.queries), ("keys", both.keys))
    )
    if len(queries) * len(keys) > MAX_BIN:
        raise ValueError(f"{len(queries) * len(keys):,} cells were requested: ask for at most {MAX_BIN:,} at once")
    key = LevelKey(request["batch"], request["head"], request["stage"], "max")
    needed = cost.CHANGE * both.cells(key, queries, keys) + both.normalizers(key, queries)
    message.budget.spend(needed, f"look closer, or {WAIT}")
    return comparison.peak(both, key, queries, keys)


def _pass(message: Message, request: Reply) -> Reply:
    _attention(message, request)
    action = request.get("action")
    if action not in ("stop", "resume"):
        raise ValueError(f"action is {short(action)}: give stop or resume")
    message.context.steer(request["layer"], request["batch"], request["head"], request["stage"], action)
    return {}


def _thumbnails(message: Message, request: Reply) -> Reply:
    layer = _integer(request, "layer", len(message.context.stack))
    att = message.context.stack[layer]
    batch, heads = _integer(request, "batch", att.shape.B), _span_of(request, "heads", att.shape.H)
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


def _check(message: Message, request: Reply) -> Reply:
    att, batch, head = _head(message, request)
    if (kept := only_overviews(att)) is not None:
        raise kept.refusal("the likely faults of a head are")
    message.budget.spend(cells_to_ask(Head(att, batch, head)), "call Attention.check in Python, which has no limit")
    message.context.check(request["layer"], batch, head)
    return {}


def _spread(message: Message, request: Reply) -> Reply:
    return _over_several(message, request, stage_sections.spread)


def _sweep(message: Message, request: Reply) -> Reply:
    att, batch, head = _head(message, request)
    own = request.get("own")
    if type(own) is not bool:
        raise ValueError(f"own is {short(own)}: give true or false")
    message.budget.spend(cost.SWEEP, "ask for fewer at once")
    return _detached(message, stage_sections.sweep(att, batch, head, own))


def _gradients(message: Message, request: Reply) -> Reply:
    return _over_several(message, request, stage_sections.gradients)


def _over_several(message: Message, request: Reply, begin: Callable[[Attention, int, int], LongAnswer]) -> Reply:
    """Answer a request that may take several messages: each one computes the next slice."""
    att, batch, head = _head(message, request)
    of = request["kind"], att, batch, head, att.versions()
    answers = message.context.long_answers
    return _detached(message, answers.answer(of, lambda: begin(att, batch, head), message.budget))


def _jacobian(message: Message, request: Reply) -> Reply:
    att, batch, head = _head(message, request)
    query = _integer(request, "query", att.shape.Q)
    message.budget.spend(cost.JACOBIAN * att.shape.K * att.shape.K, "ask for fewer at once")
    return _detached(message, stage_sections.jacobian(att, query, batch, head))


def _cost(message: Message, request: Reply) -> Reply:
    att = _head(message, request)[0]
    message.budget.spend(message.budget.most, "send this request on its own")
    return stage_sections.timing(att)


def _segment_columns(message: Message, request: Reply) -> Reply:
    found = _mass(message, request)
    wanted = {"tokens": [request.get("start"), request.get("stop")]}
    return _detached(
        message, segment_answers.columns(found, _span_of(wanted, "tokens", len(found.asked)), message.budget)
    )


def _segment_line(message: Message, request: Reply) -> Reply:
    found, measure, aside = _mass(message, request), request.get("measure"), request.get("aside")
    if measure not in MEASURES:
        raise ValueError(f"measure is {short(measure)}: give {', '.join(MEASURES)}")
    if not isinstance(aside, list) or len(aside) > MAX_ASIDE or not all(isinstance(name, str) for name in aside):
        raise ValueError(f"aside is {short(aside)}: give a list of at most {MAX_ASIDE:,} names")
    message.budget.spend(cost.SEARCHED * len(found.asked) * len(found.names), "send this request on its own")
    return _detached(message, segment_answers.line(found, _column_of(found, request), measure, aside))


def _segment_keys(message: Message, request: Reply) -> Reply:
    found = _mass(message, request)
    query = _integer(request, "query", found.att.shape.Q)
    made = segment_answers.keys(found, query, _column_of(found, request), _count(request, MAX_PLACES), message.budget)
    return _detached(message, made)


def _segment_row(message: Message, request: Reply) -> Reply:
    found = _mass(message, request)
    return _detached(message, found.row(_integer(request, "row", len(found.wanted.rows.names))))


def _segment_block(message: Message, request: Reply) -> Reply:
    found = _mass(message, request)
    row = _integer(request, "row", len(found.wanted.rows.names))
    made = segment_answers.block(found, row, _column_of(found, request), _count(request, MAX_PLACES), message.budget)
    return _detached(message, made)


def _segment_heads(message: Message, request: Reply) -> Reply:
    found = message.context.head_mass(_number(request))
    columns = _places(request, "columns", len(found.names))
    if len(columns) > segment_answers.MAX_HEAD_COLUMNS:
        raise ValueError(f"{len(columns)} columns were requested: at most {segment_answers.MAX_HEAD_COLUMNS} at once")
    return _detached(message, segment_answers.heads(found, columns))


def _segment_by(message: Message, request: Reply) -> Reply:
    unit = request.get("unit")
    if unit not in UNITS:
        raise ValueError(f"unit is {short(unit)}: give {', '.join(UNITS[:-1])} or {UNITS[-1]}")
    message.budget.spend(message.budget.most, "send this request on its own")
    message.context.make_segments(unit)
    return {}


def _mass(message: Message, request: Reply) -> MassPass:
    return message.context.mass(_number(request))


def _number(request: Reply) -> int:
    number = request.get("of")
    if type(number) is not int:
        raise ValueError(f"of is {short(number)}: give the id of a segment mass")
    return number


def _column_of(found: MassPass, request: Reply) -> int:
    return _integer(request, "column", len(found.names))


def _detached(message: Message, made: Any) -> Any:
    """Return a reply after moving the bytes of its envelopes to the message's buffers."""
    if isinstance(made, dict):
        if "dtype" in made:
            return encoding.detach(made, message.buffers)
        return {name: _detached(message, part) for name, part in made.items()}
    return [_detached(message, part) for part in made] if isinstance(made, list) else made


def _effect(message: Message, request: Reply) -> Reply:
    message.budget.spend(cost.SEARCHED, "send this request on its own")
    message.context.ask_effect(request.get("of"))
    return {}


def _effects(message: Message, request: Reply) -> Reply:
    message.budget.spend(cost.SEARCHED, "send this request on its own")
    message.context.steer_effects(request.get("action"))
    return {}


def _retry(message: Message, request: Reply) -> Reply:
    if not message.retried:
        message.budget.spend(cost.REFRESH, "send this request on its own")
        message.retried.append(True)
        message.context.retry()
    return {}


def _file(message: Message, request: Reply) -> Reply:
    kind, start = request.get("format"), _integer(request, "start", MAX_FILE)
    if kind not in FILES:
        raise ValueError(f"format is {short(kind)}: give {', '.join(FILES[:-1])} or {FILES[-1]}")
    part = message.context.file(kind, start, FILE_PART, message.budget)
    message.buffers.append(part.data)
    return {**part._asdict(), "data": len(message.buffers) - 1}


def _ping(message: Message, request: Reply) -> Reply:
    return {}


ANSWERS: dict[str, Callable[[Message, Reply], Reply]] = {
    "row": _row,
    "column": _column,
    "cells": _cells,
    "peak": _peak,
    "tiles": _tiles,
    "ranked": _ranked,
    "strongest": _strongest,
    "tokens": _tokens,
    "find": _find,
    "change": _change,
    "pass": _pass,
    "thumbnails": _thumbnails,
    "check": _check,
    "spread": _spread,
    "sweep": _sweep,
    "gradients": _gradients,
    "jacobian": _jacobian,
    "cost": _cost,
    "segment_columns": _segment_columns,
    "segment_line": _segment_line,
    "segment_keys": _segment_keys,
    "segment_row": _segment_row,
    "segment_block": _segment_block,
    "segment_heads": _segment_heads,
    "segment_by": _segment_by,
    "effect": _effect,
    "effects": _effects,
    "file": _file,
    "retry": _retry,
    "ping": _ping,
}


def _head(message: Message, request: Reply) -> tuple[Attention, int, int]:
    att = message.context.stack[_integer(request, "layer", len(message.context.stack))]
    return att, _integer(request, "batch", att.shape.B), _integer(request, "head", att.shape.H)


def _attention(message: Message, request: Reply) -> Attention:
    att, _, _ = _head(message, request)
    if request.get("stage") not in STAGES:
        raise ValueError(f"there is no stage called {short(request.get('stage'))}: use one of {', '.join(STAGES)}")
    att.check_stage(request["stage"])
    return att


def _key(request: Reply) -> LevelKey:
    if request.get("pool") not in POOLS:
        raise ValueError(f"there is no pool called {short(request.get('pool'))}: use one of {', '.join(POOLS)}")
    return LevelKey(request["batch"], request["head"], request["stage"], request["pool"])


def _vocabulary(message: Message, request: Reply) -> TokenSearch:
    layer = _integer(request, "layer", len(message.context.stack))
    batch, side = _integer(request, "batch", message.context.stack[layer].shape.B), request.get("side")
    if side not in ("query", "key"):
        raise ValueError(f"side is {short(side)}: give query or key")
    found = message.context.vocabulary(side, layer, batch)
    if found is None:
        raise ValueError("there are no tokens")
    return found


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


def _integer(request: Reply, name: str, bound: int) -> int:
    value = request.get(name)
    if type(value) is not int or not 0 <= value < bound:
        raise IndexError(f"{name} {short(value)} is out of range: give 0 to {bound - 1}")
    return value


def _count(request: Reply, most: int) -> int:
    value = request.get("count")
    if type(value) is not int or not 0 < value <= most:
        raise ValueError(f"count is {short(value)}: give 1 to {most}")
    return value


def _places(request: Reply, name: str, bound: int) -> list[int]:
    value = request.get(name)
    if not isinstance(value, list) or not 0 < len(value) <= MAX_PLACES:
        raise ValueError(f"{name} are {short(value)}: give a list of 1 to {MAX_PLACES} positions")
    if not all(type(place) is int and 0 <= place < bound for place in value):
        raise IndexError(f"{name} {short(value)} are out of range: give 0 to {bound - 1}")
    return value


def _spans(att: Attention, request: Reply, limit: int) -> tuple[range, range]:
    queries, keys = _span_of(request, "queries", att.shape.Q), _span_of(request, "keys", att.shape.K)
    count = len(queries) * len(keys)
    if count > limit:
        raise ValueError(f"{count:,} cells were requested: ask for at most {limit:,} at once")
    return queries, keys


def _span_of(request: Reply, name: str, bound: int) -> range:
    value = request.get(name)
    if not (isinstance(value, list) and len(value) == 2 and all(type(end) is int for end in value)):
        raise ValueError(f"{name} is {short(value)}: give [start, stop]")
    if not 0 <= value[0] < value[1] <= bound:
        raise IndexError(f"{name} {short(value)} are out of range: give 0 to {bound - 1}")
    return range(value[0], value[1])


def _refusal(request: Any, error: str) -> Reply:
    return {"id": _id(request), "ok": False, "error": sendable(error)}


def _id(request: Any) -> str | None:
    """Return the request's id if it can be sent back: half a surrogate pair cannot."""
    name = request.get("id") if isinstance(request, dict) else None
    return name if isinstance(name, str) and len(name) <= MAX_NAME and name.isprintable() else None
