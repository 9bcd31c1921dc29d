"""Answers about segments: columns, lines, keys, rows, blocks and heads."""

from __future__ import annotations

from ..._engine import cost
from ..._utils.validation import told as short  # what is untrusted may be long or deep
from ..segments import segment_answers
from ..segments.segment_mass import MassPass
from ..segments.segment_reading import MEASURES
from .asked import MAX_PLACES, Message, Reply, count_in, detached, integer_in, places_in, span_in

UNITS = ("sentences", "paragraphs", "lines")
MAX_ASIDE = 1000  # names of excluded segments


def columns(message: Message, request: Reply) -> Reply:
    found = _mass(message, request)
    wanted = {"tokens": [request.get("start"), request.get("stop")]}
    return detached(
        message, segment_answers.columns(found, span_in(wanted, "tokens", len(found.asked)), message.budget)
    )


def line(message: Message, request: Reply) -> Reply:
    found, measure, aside = _mass(message, request), request.get("measure"), request.get("aside")
    if measure not in MEASURES:
        raise ValueError(f"measure is {short(measure)}: give {', '.join(MEASURES)}")
    if not isinstance(aside, list) or len(aside) > MAX_ASIDE or not all(isinstance(name, str) for name in aside):
        raise ValueError(f"aside is {short(aside)}: give a list of at most {MAX_ASIDE:,} names")
    message.budget.spend(cost.SEARCHED * len(found.asked) * len(found.names), "send this request on its own")
    return detached(message, segment_answers.line(found, _column_of(found, request), measure, aside))


def keys(message: Message, request: Reply) -> Reply:
    found = _mass(message, request)
    query = integer_in(request, "query", found.att.shape.Q)
    made = segment_answers.keys(found, query, _column_of(found, request), count_in(request, MAX_PLACES), message.budget)
    return detached(message, made)


def row(message: Message, request: Reply) -> Reply:
    found = _mass(message, request)
    return detached(message, found.row(integer_in(request, "row", len(found.wanted.rows.names))))


def block(message: Message, request: Reply) -> Reply:
    found = _mass(message, request)
    row = integer_in(request, "row", len(found.wanted.rows.names))
    made = segment_answers.block(found, row, _column_of(found, request), count_in(request, MAX_PLACES), message.budget)
    return detached(message, made)


def heads(message: Message, request: Reply) -> Reply:
    found = message.context.head_mass(_number(request))
    columns = places_in(request, "columns", len(found.names))
    if len(columns) > segment_answers.MAX_HEAD_COLUMNS:
        raise ValueError(f"{len(columns)} columns were requested: at most {segment_answers.MAX_HEAD_COLUMNS} at once")
    return detached(message, segment_answers.heads(found, columns))


def split_text(message: Message, request: Reply) -> Reply:
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
    return integer_in(request, "column", len(found.names))
