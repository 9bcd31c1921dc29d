"""Answers to the front-end's questions: exact rows, columns, cells and peaks of the head in view.

A message from a front-end is untrusted: it is checked and bounded here, and every request in it is answered, with what
was asked or with a sentence that says why not. Nothing here raises.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from reprlib import repr as short  # what is untrusted may be long or deep
from typing import Any

import torch
from torch import Tensor

from . import wire
from .attention import Attention
from .source import STAGES
from .what_if import Layers

MASKED_STAGES = ("masked", "weights", "contribution")  # the stages in which a blocked cell has no number of its own
MAX_CELLS = 65_536  # of one `cells` reply
MAX_BIN = 2**22  # cells that one `peak` looks at: a bin of the picture of a million tokens
MAX_REQUESTS = 64  # in one message

log = logging.getLogger(__name__)

Reply = dict[str, Any]


def answer(stack: Layers, content: Any, retry: Callable[[], None]) -> tuple[dict[str, Any], list[bytes]] | None:
    """The reply to one message, with its buffers; None if the message holds no requests to reply to."""
    requests = content.get("requests") if isinstance(content, dict) else None
    if not isinstance(requests, list):
        return None
    buffers: list[bytes] = []
    replies = [_answer_one(stack, request, retry, buffers) for request in requests[:MAX_REQUESTS]]
    replies += [
        _refusal(request, f"a message holds at most {MAX_REQUESTS} requests") for request in requests[MAX_REQUESTS:]
    ]
    return {"replies": replies}, buffers


def _answer_one(stack: Layers, request: Any, retry: Callable[[], None], buffers: list[bytes]) -> Reply:
    try:
        if not isinstance(request, dict):
            raise TypeError(f"a request is a dict, not {type(request).__name__}")
        kind = request.get("kind")
        if kind == "ping":
            return _ok(request)
        if kind == "retry":
            retry()
            return _ok(request)
        if not isinstance(kind, str) or kind not in ANSWERS:
            raise ValueError(f"no request is called {short(kind)}: there are {', '.join(ANSWERS)}, retry and ping")
        return {**_ok(request), **ANSWERS[kind](stack, request, buffers)}
    except Exception as error:  # whatever goes wrong, the front-end hears of it and the kernel's log stays clean
        log.debug("request refused", exc_info=True)
        return _refusal(request, str(error) or type(error).__name__)


def _row(stack: Layers, request: Reply, buffers: list[bytes]) -> Reply:
    att = _attention(stack, request)
    query = _integer(request, "query", att.shape.Q)
    return _numbers(att, request, slice(query, query + 1), slice(None), buffers, flat=True)


def _column(stack: Layers, request: Reply, buffers: list[bytes]) -> Reply:
    att = _attention(stack, request)
    key = _integer(request, "key", att.shape.K)
    return _numbers(att, request, slice(None), slice(key, key + 1), buffers, flat=True)


def _cells(stack: Layers, request: Reply, buffers: list[bytes]) -> Reply:
    att = _attention(stack, request)
    return _numbers(att, request, *_spans(att, request, MAX_CELLS), buffers)


def _peak(stack: Layers, request: Reply, buffers: list[bytes]) -> Reply:
    att = _attention(stack, request)
    queries, keys = _spans(att, request, MAX_BIN)
    values, blocked = _block(att, request, queries, keys)
    if blocked is not None:
        if bool(blocked.all()):
            return {"value": None, "query": None, "key": None}
        values = values.masked_fill(blocked, -math.inf)
    top = int(values.argmax())  # that of a NaN, if there is one: as the picture pools
    value = float(values.flatten()[top])
    if value == -math.inf and blocked is not None:
        top = int(blocked.flatten().to(torch.uint8).argmin())  # the first that is not blocked
    row, column = divmod(top, values.shape[1])
    place = {"query": queries.start + row, "key": keys.start + column}
    return {"value": value if math.isfinite(value) else str(value), **place}  # JSON has no NaN and no infinity


ANSWERS = {"row": _row, "column": _column, "cells": _cells, "peak": _peak}


def _attention(stack: Layers, request: Reply) -> Attention:
    att = stack[_integer(request, "layer", len(stack))]
    _integer(request, "batch", att.shape.B)
    _integer(request, "head", att.shape.H)
    if request.get("stage") not in STAGES:
        raise ValueError(f"no stage is called {short(request.get('stage'))}: there are {', '.join(STAGES)}")
    return att


def _block(att: Attention, request: Reply, queries: slice, keys: slice) -> tuple[Tensor, Tensor | None]:
    where = {"batch": request["batch"], "head": request["head"], "queries": queries, "keys": keys}
    values = att.block(request["stage"], **where)
    if request["stage"] not in MASKED_STAGES:
        return values, None
    allowed = att.block("allowed", **where)
    return values, None if bool(allowed.all()) else ~allowed


def _numbers(
    att: Attention, request: Reply, queries: slice, keys: slice, buffers: list[bytes], *, flat: bool = False
) -> Reply:
    values, blocked = _block(att, request, queries, keys)
    if flat:
        values, blocked = values.flatten(), None if blocked is None else blocked.flatten()
    numbers, bits = wire.encode_numbers(values, blocked)
    return {"values": wire.detach(numbers, buffers), "blocked": wire.detach(bits, buffers)}


def _integer(request: Reply, name: str, bound: int) -> int:
    value = request.get(name)
    if type(value) is not int or not 0 <= value < bound:
        raise IndexError(f"{name} {short(value)} is not there: there are 0 to {bound - 1}")
    return value


def _spans(att: Attention, request: Reply, limit: int) -> tuple[slice, slice]:
    queries, keys = _span(request, "queries", att.shape.Q), _span(request, "keys", att.shape.K)
    count = (queries.stop - queries.start) * (keys.stop - keys.start)
    if count > limit:
        raise ValueError(f"{count:,} cells were asked for: at most {limit:,} at once")
    return queries, keys


def _span(request: Reply, name: str, bound: int) -> slice:
    value = request.get(name)
    if not (isinstance(value, list) and len(value) == 2 and all(type(end) is int for end in value)):
        raise ValueError(f"{name} is {short(value)}: give [start, stop]")
    if not 0 <= value[0] < value[1] <= bound:
        raise IndexError(f"{name} {short(value)} are not there: there are 0 to {bound - 1}")
    return slice(value[0], value[1])


def _ok(request: Reply) -> Reply:
    return {"id": _id(request), "ok": True}


def _refusal(request: Any, error: str) -> Reply:
    return {"id": _id(request), "ok": False, "error": error}


def _id(request: Any) -> str | None:
    """The request's own name for itself, if it can be sent back: half a surrogate pair cannot."""
    name = request.get("id") if isinstance(request, dict) else None
    return name if isinstance(name, str) and name.isprintable() else None
