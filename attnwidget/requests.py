"""Answers to the front-end's questions: exact rows, columns, cells and peaks of the head in view.

A message from a front-end is untrusted: it is checked and bounded here, and every request in it is answered, with what
was asked or with a sentence that says why not. Nothing here raises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch import Tensor

from . import wire
from .attention import Attention
from .source import STAGES
from .stack import AttentionStack

MASKED_STAGES = ("masked", "weights", "contribution")  # the stages in which a blocked cell has no number of its own
MAX_CELLS = 65_536  # of one `cells` reply
MAX_REQUESTS = 64  # in one message

log = logging.getLogger(__name__)

Reply = dict[str, Any]


def answer(stack: AttentionStack, content: Any, retry: Callable[[], None]) -> tuple[dict[str, Any], list[bytes]] | None:
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


def _answer_one(stack: AttentionStack, request: Any, retry: Callable[[], None], buffers: list[bytes]) -> Reply:
    try:
        if not isinstance(request, dict):
            raise TypeError(f"a request is a dict, not {type(request).__name__}")
        kind = request.get("kind")
        if kind == "ping":
            return _ok(request)
        if kind == "retry":
            retry()
            return _ok(request)
        if kind not in ANSWERS:
            raise ValueError(f"no request is called {str(kind)[:40]!r}: there are {', '.join(ANSWERS)}, retry and ping")
        return {**_ok(request), **ANSWERS[kind](stack, request, buffers)}
    except Exception as error:  # whatever goes wrong, the front-end hears of it and the kernel's log stays clean
        log.debug("request refused", exc_info=True)
        return _refusal(request, str(error) or type(error).__name__)


def _row(stack: AttentionStack, request: Reply, buffers: list[bytes]) -> Reply:
    att = _attention(stack, request)
    query = _integer(request, "query", att.shape.Q)
    return _numbers(att, request, slice(query, query + 1), slice(None), buffers, flat=True)


def _column(stack: AttentionStack, request: Reply, buffers: list[bytes]) -> Reply:
    att = _attention(stack, request)
    key = _integer(request, "key", att.shape.K)
    return _numbers(att, request, slice(None), slice(key, key + 1), buffers, flat=True)


def _cells(stack: AttentionStack, request: Reply, buffers: list[bytes]) -> Reply:
    att = _attention(stack, request)
    queries, keys = _span(request, "queries", att.shape.Q), _span(request, "keys", att.shape.K)
    count = (queries.stop - queries.start) * (keys.stop - keys.start)
    if count > MAX_CELLS:
        raise ValueError(f"{count:,} cells were asked for: at most {MAX_CELLS:,} at once")
    return _numbers(att, request, queries, keys, buffers)


def _peak(stack: AttentionStack, request: Reply, buffers: list[bytes]) -> Reply:
    att = _attention(stack, request)
    queries, keys = _span(request, "queries", att.shape.Q), _span(request, "keys", att.shape.K)
    best: Reply = {"value": None, "query": None, "key": None}
    rows = max(1, MAX_CELLS * 16 // (keys.stop - keys.start))
    for start in range(queries.start, queries.stop, rows):  # a bin of a long matrix is large: never held whole
        stop = min(start + rows, queries.stop)
        values, blocked = _block(att, request, slice(start, stop), keys)
        if blocked is not None:
            values = values.masked_fill(blocked, -float("inf"))
        top = int(values.argmax())
        value = float(values.flatten()[top])
        if value != -float("inf") and (best["value"] is None or not value <= best["value"]):
            row, column = divmod(top, values.shape[1])
            best = {"value": value, "query": start + row, "key": keys.start + column}
    if best["value"] is not None and not -float("inf") < best["value"] < float("inf"):
        best["value"] = str(best["value"])  # JSON has no NaN and no infinity
    return best


ANSWERS = {"row": _row, "column": _column, "cells": _cells, "peak": _peak}


def _attention(stack: AttentionStack, request: Reply) -> Attention:
    att = stack[_integer(request, "layer", len(stack))]
    _integer(request, "batch", att.shape.B)
    _integer(request, "head", att.shape.H)
    if request.get("stage") not in STAGES:
        raise ValueError(f"no stage is called {str(request.get('stage'))[:40]!r}: there are {', '.join(STAGES)}")
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
        raise IndexError(f"{name} {str(value)[:40]} is not there: there are 0 to {bound - 1}")
    return value


def _span(request: Reply, name: str, bound: int) -> slice:
    value = request.get(name)
    if not (isinstance(value, list) and len(value) == 2 and all(type(end) is int for end in value)):
        raise ValueError(f"{name} is {str(value)[:40]}: give [start, stop]")
    if not 0 <= value[0] < value[1] <= bound:
        raise IndexError(f"{name} {value[0]} to {value[1]} are not there: there are 0 to {bound - 1}")
    return slice(value[0], value[1])


def _ok(request: Reply) -> Reply:
    return {"id": request.get("id"), "ok": True}


def _refusal(request: Any, error: str) -> Reply:
    return {"id": request.get("id") if isinstance(request, dict) else None, "ok": False, "error": error}
