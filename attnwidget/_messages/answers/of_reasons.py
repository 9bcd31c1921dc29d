"""Answer requests about why a head looked there: a pair, a row, and the graph of heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..._analysis.why.contrasts import NoMean, compared_with
from ..._analysis.why.layer_names import layer_names
from ..._analysis.why.part_names import StreamPart
from ..._analysis.why.reasons import composing, pair, row, sources_of
from ..._analysis.why.results import SIDES, Composition, Why, WhyRow
from ..._analysis.why.sentences import WEIGHTED, leading_parts
from ..._utils.validation import told as short
from ...attention import Attention
from ..codec import encoding
from .asked import Message, Reply, head_of, integer_in
from .long_answers import SLICE, LongAnswer

PAIR = 1 << 22  # cells that a pair costs, about
KEY = 1 << 12  # and each key of a row
TERMS = 12  # parts of the query and of the key that are sent; the rest is one
STACKED = 8  # parts of a row
COLUMNS = 48  # keys of a row
LEAST = 0.02  # of the shares in the graph
EDGES = 4096

T = TypeVar("T")


def why(message: Message, request: Reply) -> LongAnswer:
    """Begin to split a pair's score; `against` is null, "others", "mean" or a key."""
    att, batch, head = head_of(message, request)
    sources_of(att)
    query, key = integer_in(request, "query", att.shape.Q), integer_in(request, "key", att.shape.K)
    against = request.get("against")
    if against not in (None, *WEIGHTED):
        against = integer_in(request, "against", att.shape.K)
    places = _layers(message)
    steps = pair(att, query, key, batch=batch, head=head, against=against)
    cells = PAIR + (KEY * att.shape.K if against in WEIGHTED else 0)
    return _long(_or_said(steps), cells, lambda found: _pair_reply(found, places))


def _or_said(steps: Generator[float, None, Why]) -> Generator[float, None, Why | NoMean]:
    """Return the result of steps, or why there is nothing to compare with."""
    try:
        return (yield from steps)
    except NoMean as error:
        return error


def why_row(message: Message, request: Reply) -> LongAnswer:
    """Begin to split a row's scores; `keys` are shown besides those of largest weight."""
    att, batch, head = head_of(message, request)
    sources_of(att)
    query, wanted = integer_in(request, "query", att.shape.Q), request.get("keys")
    if not isinstance(wanted, list) or len(wanted) > COLUMNS // 2:
        raise ValueError(f"keys are {short(wanted)}: give a list of at most {COLUMNS // 2} positions")
    keys = [integer_in({"keys": key}, "keys", att.shape.K) for key in wanted]
    places = _layers(message)
    steps = row(att, query, batch=batch, head=head)
    return _long(steps, KEY * att.shape.K, lambda found: _row_reply(found, keys, places))


def why_heads(message: Message, request: Reply) -> LongAnswer:
    """Begin to find which parts each head of the stack reads; `at` is a query, or null for all."""
    stack = message.context.stack
    layers: list[Attention] = [stack[i] for i in range(len(stack))]
    batch = integer_in(request, "batch", layers[0].shape.B)
    at = None if request.get("at") is None else [integer_in(request, "at", min(att.shape.Q for att in layers))]
    for att in layers:
        sources_of(att)
    places = _layers(message)
    steps = composing(layers, range(len(layers)), batch=batch, at=at)
    return _long(steps, 4 * SLICE * len(layers), lambda found: _heads_reply(found, places))


def _long(steps: Generator[float, None, T], cells: int, reply: Callable[[T], Reply]) -> LongAnswer:
    """Begin an answer whose steps yield the share that is done, and whose cost is as that of so many cells."""

    def run() -> Generator[int, None, Reply]:
        share = 0.0
        while True:
            try:
                now = next(steps)
            except StopIteration as end:
                return reply(end.value)
            yield max(1, round((now - share) * cells))
            share = now

    return LongAnswer(run(), cells, {})


def _layers(message: Message) -> dict[str | int, int]:
    """Return the numbers of the shown layers, by the names of their records and by their numbers in the capture."""
    stack = message.context.stack
    found: dict[str | int, int] = {}
    for i in range(len(stack)):
        sources = stack[i].sources
        if sources is not None:
            found[sources.name] = i
            known = layer_names(sources.layers).get(sources.name)
            if known is not None and not known.cross:
                found[known.number] = i
    return found


def _part(part: StreamPart, places: Mapping[str | int, int]) -> Reply:
    """Return a part; `layer` and `head` only where the widget shows that head, `column` where it shows its layer."""
    there = places.get(part.module) if part.head is not None else None
    shown = {"layer": there, "head": part.head} if there is not None else {"layer": None, "head": None}
    column = None if part.head is not None or part.layer is None else places.get(part.layer)
    return {"label": part.label, "kind": part.kind, "module": part.module, **shown, "column": column}


def _pair_reply(found: Why | NoMean, places: Mapping[str | int, int]) -> Reply:
    if isinstance(found, NoMean):
        return {"nothing": str(found)}
    rows, columns = _largest(found.by_query), _largest(found.by_key)
    terms = with_rest(with_rest(found.terms, rows).mT, columns).mT
    return {
        "query_parts": [_part(found.query_parts[i], places) for i in rows],
        "key_parts": [_part(found.key_parts[i], places) for i in columns],
        "more": [len(found.query_parts) - len(rows), len(found.key_parts) - len(columns)],
        "terms": _encoded(terms),
        "score": found.score,
        "subtracted": found.subtracted,
        "rounding": found.rounding,
        "weight": found.weight,
    }


def _largest(sums: Tensor, count: int = TERMS) -> list[int]:
    order: list[int] = sums.abs().argsort(descending=True, stable=True).tolist()
    return order[:count] if len(order) > count + 1 else order


def with_rest(terms: Tensor, chosen: Sequence[int]) -> Tensor:
    """Return the chosen rows, and the sum of the others below."""
    rest = terms.sum(0) - terms[list(chosen)].sum(0)
    return torch.cat([terms[list(chosen)], rest[None]])


def largest_parts(found: WhyRow) -> list[int]:
    """Return the parts of a row that are drawn: those that set keys of large weight most apart from the others."""
    keys = found.weights.argsort(descending=True, stable=True)[:COLUMNS]
    own, weights = found.terms[:, keys], found.weights[keys].to(found.terms)
    apart = (own - compared_with(found.terms, found.weights, "others", keys)).nan_to_num()
    sizes = (apart.abs() * weights).sum(1)
    return _largest(sizes if bool(sizes.any()) else own.abs().sum(1), STACKED)


def _row_reply(found: WhyRow, wanted: Sequence[int], places: Mapping[str | int, int]) -> Reply:
    stacked = largest_parts(found)
    most = found.weights.argsort(descending=True, stable=True)[: COLUMNS - len(wanted)].tolist()
    keys = sorted({*most, *wanted})
    at = torch.tensor(keys, device=found.terms.device)
    own = found.terms[:, at]
    all_against: list[int | str] = [*WEIGHTED, *wanted]
    zeros = {against: compared_with(found.terms, found.weights, against, at) for against in all_against}
    zeros["none"] = torch.zeros_like(own)
    leading = {str(against): [_leading(column) for column in (own - zero).mT] for against, zero in zeros.items()}
    first = [one for columns in leading.values() for column in columns for one, _ in column or ()]
    named = list(dict.fromkeys([*stacked, *first]))
    numbers = {part: number for number, part in enumerate(named)}
    scores = found.scores[None]
    return {
        "parts": [_part(found.parts[i], places) for i in named],
        "stacked": len(stacked),
        "more": len(found.parts) - len(stacked),
        "keys": keys,
        "others": found.terms.shape[1] - len(keys),
        "terms": _encoded(with_rest(own, stacked)),
        "apart": _encoded(with_rest(own - zeros["others"], stacked)),
        "means": _finite(with_rest(zeros["mean"][:, :1], stacked)[:, 0]),
        "mean": _finite(compared_with(scores, found.weights, "mean", at[:1])[0])[0],
        "other_means": _finite(compared_with(scores, found.weights, "others", at)[0]),
        "leading": {
            against: [column and [[numbers[one], value] for one, value in column] for column in columns]
            for against, columns in leading.items()
        },
        "scores": found.scores[keys].tolist(),
        "weights": found.weights[keys].tolist(),
        "rounding": found.rounding,
    }


def _leading(terms: Tensor) -> list[tuple[int, float]] | None:
    """Return the largest parts of a key; None if it is compared with nothing."""
    return leading_parts(terms) if bool(terms.isfinite().all()) else None


def _encoded(x: Tensor) -> Any:
    return encoding.encode(x.float().contiguous().numpy())


def _finite(x: Tensor) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in x.tolist()]


def _heads_reply(found: Composition, places: Mapping[str | int, int]) -> Reply:
    large = (found.shares.abs() >= LEAST).nonzero()
    sizes = found.shares[tuple(large.unbind(1))]
    order = sizes.abs().argsort(descending=True, stable=True)
    least = LEAST if len(order) <= EDGES else float(sizes.abs()[order[EDGES - 1]])  # of those that are sent
    large = large[order[:EDGES]]
    into, sides, parts = large.unbind(1)
    at = into, sides, parts
    return {
        "parts": [_part(one, places) for one in found.parts],
        "into": [list(found.heads[i]) for i in into.tolist()],
        "side": [SIDES[i] for i in sides.tolist()],
        "from": parts.tolist(),
        "shares": found.shares[at].tolist(),
        "scores": found.scores[at].tolist(),
        "heads": [1 + max(head for at, head in found.heads if at == layer) for layer in dict(found.heads)],
        "queries": found.queries,
        "least": least,
    }


ANSWERS: dict[str, Callable[[Message, Any], LongAnswer]] = {"why": why, "why_row": why_row, "why_heads": why_heads}
