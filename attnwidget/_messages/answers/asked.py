"""Read one untrusted request: its message, its numbers and positions, each checked and bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..._engine import cost
from ..._engine.level_cache import LevelCache, LevelKey
from ..._engine.overview import POOLS
from ..._engine.sources import STAGES
from ..._engine.what_if import WhatIfLayers
from ..._tokens.search import TokenSearch
from ..._utils.validation import told as short  # what is untrusted may be long or deep
from ...attention import Attention
from ..codec import encoding
from ..pictures.comparison import ComparedPair
from ..pictures.tiles import Address
from ..segments.segment_mass import HeadMasses, MassPass
from .long_answers import FilePart, LongAnswers

MAX_LEVEL = 2**22  # overview bins that one message may compute: they stay in memory, 5 bytes each
FULL_REPLY = 768 * 1024  # bytes after which a reply takes no more answers; one answer has at most a quarter of a MiB
MAX_PLACES = 64  # rows or columns ranked together, and positions returned
MAX_TEXT = 200  # characters to search for
WAIT = "wait for the exact picture"

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


def head_of(message: Message, request: Reply) -> tuple[Attention, int, int]:
    att = message.context.stack[integer_in(request, "layer", len(message.context.stack))]
    return att, integer_in(request, "batch", att.shape.B), integer_in(request, "head", att.shape.H)


def attention_of(message: Message, request: Reply) -> Attention:
    att, _, _ = head_of(message, request)
    if request.get("stage") not in STAGES:
        raise ValueError(f"there is no stage called {short(request.get('stage'))}: use one of {', '.join(STAGES)}")
    att.check_stage(request["stage"])
    return att


def level_key(request: Reply) -> LevelKey:
    if request.get("pool") not in POOLS:
        raise ValueError(f"there is no pool called {short(request.get('pool'))}: use one of {', '.join(POOLS)}")
    return LevelKey(request["batch"], request["head"], request["stage"], request["pool"])


def vocabulary_of(message: Message, request: Reply) -> TokenSearch:
    layer = integer_in(request, "layer", len(message.context.stack))
    batch, side = integer_in(request, "batch", message.context.stack[layer].shape.B), request.get("side")
    if side not in ("query", "key"):
        raise ValueError(f"side is {short(side)}: give query or key")
    found = message.context.vocabulary(side, layer, batch)
    if found is None:
        raise ValueError("there are no tokens")
    return found


def integer_in(request: Reply, name: str, bound: int) -> int:
    value = request.get(name)
    if type(value) is not int or not 0 <= value < bound:
        raise IndexError(f"{name} {short(value)} is out of range: give 0 to {bound - 1}")
    return value


def count_in(request: Reply, most: int) -> int:
    value = request.get("count")
    if type(value) is not int or not 0 < value <= most:
        raise ValueError(f"count is {short(value)}: give 1 to {most}")
    return value


def places_in(request: Reply, name: str, bound: int) -> list[int]:
    value = request.get(name)
    if not isinstance(value, list) or not 0 < len(value) <= MAX_PLACES:
        raise ValueError(f"{name} are {short(value)}: give a list of 1 to {MAX_PLACES} positions")
    if not all(type(place) is int and 0 <= place < bound for place in value):
        raise IndexError(f"{name} {short(value)} are out of range: give 0 to {bound - 1}")
    return value


def spans_in(att: Attention, request: Reply, limit: int) -> tuple[range, range]:
    queries, keys = span_in(request, "queries", att.shape.Q), span_in(request, "keys", att.shape.K)
    count = len(queries) * len(keys)
    if count > limit:
        raise ValueError(f"{count:,} cells were requested: ask for at most {limit:,} at once")
    return queries, keys


def span_in(request: Reply, name: str, bound: int) -> range:
    value = request.get(name)
    if not (isinstance(value, list) and len(value) == 2 and all(type(end) is int for end in value)):
        raise ValueError(f"{name} is {short(value)}: give [start, stop]")
    if not 0 <= value[0] < value[1] <= bound:
        raise IndexError(f"{name} {short(value)} are out of range: give 0 to {bound - 1}")
    return range(value[0], value[1])


def detached(message: Message, made: Any) -> Any:
    """Return a reply after moving the bytes of its envelopes to the message's buffers."""
    if isinstance(made, dict):
        if "dtype" in made:
            return encoding.detach(made, message.buffers)
        return {name: detached(message, part) for name, part in made.items()}
    return [detached(message, part) for part in made] if isinstance(made, list) else made
