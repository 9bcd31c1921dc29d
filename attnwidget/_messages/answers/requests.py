"""Answer the front-end's requests: exact rows, cells and tiles, rankings, tokens, and the rest.

Messages from a front-end are untrusted, so they are checked and bounded here. Every request gets a reply: the answer,
or a sentence that says why there is none. Nothing here raises, except `Interrupted`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..._analysis.mask_counts import cells_to_ask
from ..._engine import cost
from ..._engine.base import Head
from ..._engine.kept_levels import only_overviews
from ..._utils.failures import log_told, sentence_of
from ..._utils.plain import sendable
from ..._utils.validation import told as short  # what is untrusted may be long or deep
from ...attention import Attention
from ..codec import encoding
from . import of_cells, of_reasons, of_segments, stage_sections
from .asked import (
    MAX_TEXT,
    Context,
    Message,
    Reply,
    attention_of,
    count_in,
    detached,
    head_of,
    integer_in,
    span_in,
    vocabulary_of,
)
from .long_answers import LongAnswer

MAX_REQUESTS = 64  # in one message
MAX_REFUSED = 1024  # requests; a message with more is refused as a whole
MAX_NAME = 200  # characters in a request's id
MAX_FOUND = 20
MAX_FILE = 1 << 30  # bytes
FILE_PART = 192 * 1024  # bytes of a file in one reply
FILES = ("png", "svg", "html")
OF_NO_NUMBERS = ("tokens", "find", "pass", "segment_by", "retry", "ping")  # requests that need no weights
INTERRUPTED = "interrupted: ask again"

log = logging.getLogger(__name__)


class Interrupted(KeyboardInterrupt):
    """Raised when the user interrupts the answers to a message; it holds a reply to every request."""

    def __init__(self, reply: dict[str, Any], buffers: list[bytes]) -> None:
        super().__init__()
        self.reply = reply, buffers


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
            context = message.context.together(integer_in(request, "layer", len(stack)), request["head"])
            message, request = replace(message, context=context), {**request, "head": 0}
        if message.context.not_yet is not None and kind not in OF_NO_NUMBERS:
            raise ValueError(message.context.not_yet)
        message.check_room()
        return {"id": _id(request), "ok": True, **ANSWERS[kind](message, request)}
    except Exception as error:  # every error reaches the front-end; only our own mistakes are logged
        del message.buffers[begun:]
        log_told(log, "a request", error)
        return _refusal(request, sentence_of(error))


def _tokens(message: Message, request: Reply) -> Reply:
    tokens = vocabulary_of(message, request).tokens
    page = span_in({"tokens": [request.get("start"), request.get("stop")]}, "tokens", len(tokens))
    if len(page) > encoding.PAGE:
        raise ValueError(f"{len(page):,} tokens were requested: ask for at most {encoding.PAGE:,} at once")
    made = encoding.encode_page(tokens[page.start : page.stop])
    message.buffers.append(made["text"])
    return {"text": len(message.buffers) - 1, "ends": encoding.detach(made["ends"], message.buffers)}


def _find(message: Message, request: Reply) -> Reply:
    vocabulary, text = vocabulary_of(message, request), request.get("text")
    if not isinstance(text, str) or not 0 < len(text) <= MAX_TEXT:
        raise ValueError(f"text is {short(text)}: give 1 to {MAX_TEXT} characters to search for")
    start = integer_in(request, "start", len(vocabulary.tokens))
    message.budget.spend(cost.SEARCHED * len(vocabulary.tokens), "ask for fewer at once")
    longer = vocabulary.size // cost.BYTES_SEARCHED - len(vocabulary.tokens)
    message.budget.spend(cost.SEARCHED * max(0, longer), "these tokens are long texts: ask for fewer at once")
    positions, total = vocabulary.find(text, start=start, count=count_in(request, MAX_FOUND))
    return {"positions": positions, "total": total}


def _pass(message: Message, request: Reply) -> Reply:
    attention_of(message, request)
    action = request.get("action")
    if action not in ("stop", "resume"):
        raise ValueError(f"action is {short(action)}: give stop or resume")
    message.context.steer(request["layer"], request["batch"], request["head"], request["stage"], action)
    return {}


def _check(message: Message, request: Reply) -> Reply:
    att, batch, head = head_of(message, request)
    if (kept := only_overviews(att)) is not None:
        raise kept.refusal("the likely faults of a head are")
    message.budget.spend(cells_to_ask(Head(att, batch, head)), "call Attention.check in Python, which has no limit")
    message.context.check(request["layer"], batch, head)
    return {}


def _spread(message: Message, request: Reply) -> Reply:
    return _over_several(message, request, stage_sections.spread)


def _sweep(message: Message, request: Reply) -> Reply:
    att, batch, head = head_of(message, request)
    own = request.get("own")
    if type(own) is not bool:
        raise ValueError(f"own is {short(own)}: give true or false")
    message.budget.spend(cost.SWEEP, "ask for fewer at once")
    return detached(message, stage_sections.sweep(att, batch, head, own))


def _gradients(message: Message, request: Reply) -> Reply:
    return _over_several(message, request, stage_sections.gradients)


def _received(message: Message, request: Reply) -> Reply:
    att = head_of(message, request)[0]
    if (kept := only_overviews(att)) is not None:
        raise kept.refusal("what each key receives is")
    return _over_several(message, request, of_cells.received)


def _over_several(message: Message, request: Reply, begin: Callable[[Attention, int, int], LongAnswer]) -> Reply:
    """Answer a request that may take several messages: each one computes the next slice."""
    att, batch, head = head_of(message, request)
    of = request["kind"], att, batch, head, att.versions()
    answers = message.context.long_answers
    return detached(message, answers.answer(of, lambda: begin(att, batch, head), message.budget))


def _reasons(message: Message, request: Reply) -> Reply:
    if request["kind"] == "why_heads":
        of: tuple[Any, ...] = "why_heads", message.context.stack, str(request.get("batch")), str(request.get("at"))
    else:
        att, batch, head = head_of(message, request)
        asked = (str(request.get(name)) for name in ("query", "key", "against", "keys"))
        of = request["kind"], att, batch, head, *asked
    begin = of_reasons.ANSWERS[request["kind"]]
    return detached(message, message.context.long_answers.answer(of, lambda: begin(message, request), message.budget))


def _jacobian(message: Message, request: Reply) -> Reply:
    att, batch, head = head_of(message, request)
    query = integer_in(request, "query", att.shape.Q)
    message.budget.spend(cost.JACOBIAN * att.shape.K * att.shape.K, "ask for fewer at once")
    return detached(message, stage_sections.jacobian(att, query, batch, head))


def _cost(message: Message, request: Reply) -> Reply:
    att = head_of(message, request)[0]
    message.budget.spend(message.budget.most, "send this request on its own")
    return stage_sections.timing(att)


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
    kind, start = request.get("format"), integer_in(request, "start", MAX_FILE)
    if kind not in FILES:
        raise ValueError(f"format is {short(kind)}: give {', '.join(FILES[:-1])} or {FILES[-1]}")
    part = message.context.file(kind, start, FILE_PART, message.budget)
    message.buffers.append(part.data)
    return {**part._asdict(), "data": len(message.buffers) - 1}


def _ping(message: Message, request: Reply) -> Reply:
    return {}


def _refusal(request: Any, error: str) -> Reply:
    return {"id": _id(request), "ok": False, "error": sendable(error)}


def _id(request: Any) -> str | None:
    """Return the request's id if it can be sent back: half a surrogate pair cannot."""
    name = request.get("id") if isinstance(request, dict) else None
    return name if isinstance(name, str) and len(name) <= MAX_NAME and name.isprintable() else None


ANSWERS: dict[str, Callable[[Message, Reply], Reply]] = {
    "row": of_cells.row,
    "column": of_cells.column,
    "cells": of_cells.cells,
    "peak": of_cells.peak,
    "received": _received,
    "tiles": of_cells.tiles,
    "ranked": of_cells.ranked,
    "strongest": of_cells.strongest,
    "tokens": _tokens,
    "find": _find,
    "change": of_cells.change,
    "pass": _pass,
    "thumbnails": of_cells.thumbnails,
    "check": _check,
    "spread": _spread,
    "sweep": _sweep,
    "gradients": _gradients,
    "jacobian": _jacobian,
    "cost": _cost,
    **dict.fromkeys(of_reasons.ANSWERS, _reasons),
    "segment_columns": of_segments.columns,
    "segment_line": of_segments.line,
    "segment_keys": of_segments.keys,
    "segment_row": of_segments.row,
    "segment_block": of_segments.block,
    "segment_heads": of_segments.heads,
    "segment_by": of_segments.split_text,
    "effect": _effect,
    "effects": _effects,
    "file": _file,
    "retry": _retry,
    "ping": _ping,
}
