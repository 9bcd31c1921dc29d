"""Questions of a front-end: exact numbers in reply, a sentence for what cannot be answered, and never a traceback."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from front_end import Desk, attached, decode, decode_tokens
from hypothesis import given
from hypothesis import strategies as st
from tolerance import approx, rounding, sums, together

from attnwidget import Attention, AttentionStack
from attnwidget._engine import cost
from attnwidget._engine.logsumexp import LogSumExp
from attnwidget._messages.answers import requests
from examples import examples

torch.manual_seed(0)
Q, K = 7, 5
STACK = AttentionStack(
    [
        Attention(torch.randn(2, 4, Q, 8), torch.randn(2, 2, K, 8), is_causal=True),
        Attention(torch.randn(3, 8, dtype=torch.float64), torch.randn(3, 8, dtype=torch.float64)),
    ]
)
WITHIN = rounding(STACK[0])
HERE = {"layer": 0, "batch": 1, "head": 3, "stage": "weights"}


def ask(*questions: Any, stack: AttentionStack = STACK) -> list[dict[str, Any]]:
    answered = requests.answer(Desk(stack), {"requests": list(questions)})
    assert answered is not None
    message, buffers = answered
    replies: list[dict[str, Any]] = json.loads(json.dumps(message, allow_nan=False))["replies"]
    for one in [*replies, *(reply["row"] for reply in replies if "row" in reply)]:
        for name in ("values", "blocked", "positions"):
            if isinstance(one.get(name), dict):
                one[name] = decode(one[name], buffers)
    return replies


def ask_one(stack: AttentionStack = STACK, **question: Any) -> dict[str, Any]:
    (reply,) = ask({"id": "a", **HERE, **question}, stack=stack)
    assert reply["id"] == "a"
    return reply


def exact(stage: str = "weights", layer: int = 0, batch: int = 1, head: int = 3) -> np.ndarray[Any, Any]:
    return STACK[layer].block(stage, batch=batch, head=head).float().numpy()


def assert_close(found: Any, wanted: Any, stage: str = "weights") -> None:
    """Equal but for rounding, which depends on the shape of a product."""
    assert np.shape(found) == np.shape(wanted)
    np.testing.assert_allclose(found, wanted, **WITHIN[stage])


ALLOWED = np.tril(np.ones((Q, K), bool))


# What is asked for.


@pytest.mark.parametrize("stage", ["scores", "scaled", "masked", "weights"])
@pytest.mark.parametrize(
    ("question", "at"),
    [
        ({"kind": "row", "query": 2}, np.s_[2, :]),
        ({"kind": "column", "key": 4}, np.s_[:, 4]),
        ({"kind": "cells", "queries": [1, 4], "keys": [0, 5]}, np.s_[1:4, 0:5]),
        ({"kind": "cells", "queries": [6, 7], "keys": [2, 3]}, np.s_[6:7, 2:3]),
    ],
    ids=["row", "column", "cells", "one cell"],
)
def test_numbers_are_exact_and_blocked_ones_are_said(stage: str, question: dict[str, Any], at: Any) -> None:
    reply = ask_one(stage=stage, **question)
    assert reply["ok"] is True
    assert reply["values"].dtype == np.float32
    assert_close(reply["values"], exact(stage)[at], stage)
    if stage in ("masked", "weights") and not ALLOWED[at].all():
        assert np.array_equal(reply["blocked"], ~ALLOWED[at])
    else:
        assert reply["blocked"] is None


def test_several_questions_are_answered_in_order_with_their_own_buffers() -> None:
    questions = [{**HERE, "id": f"{n}", "kind": "row", "query": n} for n in (4, 0, 6)]
    replies = ask(*questions)
    assert [reply["id"] for reply in replies] == ["4", "0", "6"]
    for n, reply in zip((4, 0, 6), replies, strict=True):
        assert_close(reply["values"], exact()[n])


def test_the_peak_of_a_bin_is_found_with_its_place() -> None:
    reply = ask_one(kind="peak", queries=[2, 6], keys=[1, 5])
    row, column = np.unravel_index(exact()[2:6, 1:5].argmax(), (4, 4))
    assert (reply["query"], reply["key"]) == (2 + row, 1 + column)
    assert_close(reply["value"], exact()[2 + row, 1 + column])
    assert "row" not in reply


def test_the_row_of_a_peak_comes_along() -> None:
    reply = ask_one(kind="peak", queries=[2, 6], keys=[1, 5], row=True)
    alone = ask_one(kind="row", query=reply["query"])
    assert reply["row"].keys() == alone.keys() - {"id", "ok"}
    np.testing.assert_array_equal(reply["row"]["values"], alone["values"])
    assert "row" not in ask_one(kind="peak", queries=[0, 2], keys=[3, 5], row=True)


def test_a_bin_of_blocked_cells_has_no_peak() -> None:
    reply = ask_one(kind="peak", queries=[0, 2], keys=[3, 5])
    assert (reply["value"], reply["query"], reply["key"]) == (None, None, None)


def test_the_peak_is_not_a_blocked_cell() -> None:
    reply = ask_one(kind="peak", stage="masked", queries=[1, 2], keys=[0, 5])
    assert (reply["query"], reply["key"]) == (1, int(exact("masked")[1, :2].argmax()))
    zeros = AttentionStack([Attention(torch.zeros(3, 4), torch.zeros(3, 4), mask=torch.eye(3, dtype=torch.bool))])
    reply = ask_one(zeros, layer=0, batch=0, head=0, kind="peak", queries=[1, 3], keys=[0, 3])
    assert (reply["value"], reply["query"], reply["key"]) == (1.0, 1, 1)


def test_the_peak_is_an_allowed_cell_even_where_its_weight_is_0_or_minus_infinity() -> None:
    q, k = torch.tensor([[1.0]]), torch.tensor([[1000.0], [0.0], [0.0]])
    stack = AttentionStack([Attention(q, k, mask=torch.tensor([[True, False, True]]), scale=1.0)])
    reply = ask_one(stack, layer=0, batch=0, head=0, kind="peak", queries=[0, 1], keys=[1, 3])
    assert (reply["value"], reply["key"]) == (0.0, 2)
    stack = AttentionStack([Attention(-math.inf * q, k + 1, mask=torch.tensor([[False, False, True]]), scale=1.0)])
    reply = ask_one(stack, stage="masked", layer=0, batch=0, head=0, kind="peak", queries=[0, 1], keys=[0, 3])
    assert (reply["value"], reply["key"]) == ("-inf", 2)


def as_javascript_reads(value: Any) -> float:
    """js/src/state/queries.ts: Number(String(value).replace("inf", "Infinity"))."""
    text = str(value).replace("inf", "Infinity")
    return float({"Infinity": "inf", "-Infinity": "-inf", "nan": "nan"}.get(text, text))


@pytest.mark.parametrize(
    ("odd", "wanted"), [(math.nan, math.nan), (math.inf, math.inf), (-math.inf, -math.inf), (2.0, 2.0)]
)
def test_a_peak_that_json_has_no_number_for_goes_as_text(odd: float, wanted: float) -> None:
    q = torch.full((3, 1), odd)
    stack = AttentionStack([Attention(q, torch.ones(3, 1), mask=torch.ones(3, 3).tril().bool(), scale=1.0)])
    for stage in ("scores", "masked"):
        reply = ask_one(stack, stage=stage, layer=0, batch=0, head=0, kind="peak", queries=[0, 3], keys=[0, 3])
        assert as_javascript_reads(reply["value"]) == pytest.approx(wanted, nan_ok=True)
        assert reply["key"] <= reply["query"] or stage == "scores", "never a blocked cell"


def test_nan_is_the_peak_as_in_the_picture() -> None:
    q = torch.tensor([[1.0], [math.nan], [9.0]])
    stack = AttentionStack([Attention(q, torch.ones(2, 1))])
    reply = ask_one(stack, stage="scores", layer=0, batch=0, head=0, kind="peak", queries=[0, 3], keys=[0, 2])
    assert (reply["value"], reply["query"]) == ("nan", 1)
    assert math.isnan(stack[0].overview(stage="scores", size=1).values.item())


def test_a_message_computes_again_once_however_often_it_asks() -> None:
    desk = Desk(AttentionStack([Attention(*torch.zeros(2, 3, 2))]))
    for times in (1, 64):
        answered = requests.answer(desk, {"requests": [{"id": "r", "kind": "retry"}] * times})
        assert answered is not None
        assert all(reply["ok"] for reply in answered[0]["replies"])
    assert desk.retried == 2


def test_retry_is_passed_on_and_ping_is_answered() -> None:
    desk = Desk(STACK)
    answered = requests.answer(desk, {"requests": [{"id": "r", "kind": "retry"}, {"id": "p", "kind": "ping"}]})
    assert answered == ({"replies": [{"id": "r", "ok": True}, {"id": "p", "ok": True}]}, [])
    assert desk.retried == 1


# Of any length.


TOKENS = [f"token {n}" for n in range(Q)]
SMALL = {"layer": 0, "batch": 0, "head": 0, "stage": "weights"}


def long(queries: int, keys: int) -> AttentionStack:
    return AttentionStack([Attention(torch.zeros(queries, 2), torch.zeros(keys, 2))])


@pytest.mark.parametrize("side", ["queries", "keys"])
def test_what_is_strongest_is_said_with_how_the_rest_lies(side: str) -> None:
    reply = ask_one(kind="ranked", **{side: [2]}, count=3)
    line = exact()[2] if side == "queries" else exact()[:, 2]
    is_open = ALLOWED[2] if side == "queries" else ALLOWED[:, 2]
    order = sorted(np.flatnonzero(is_open), key=lambda at: (-line[at], at))[:3]
    assert reply["positions"].dtype == np.uint32
    assert reply["positions"].tolist() == order
    assert_close(reply["values"], line[order])
    within = together(WITHIN.weights, sums(Q), size=float(line.sum()))
    rest = {"count": int(is_open.sum()) - 3, "sum": approx(line.sum() - line[order].sum(), within)}
    assert reply["rest"] == rest
    shares = line[is_open].astype(float) / line.sum()
    assert reply["entropy"] == approx(-(shares * np.log2(shares)).sum(), WITHIN.entropy)
    assert reply["max_entropy"] == approx(math.log2(is_open.sum()), sums(1))
    assert (reply["allowed"], reply["blocked"], reply["nan"]) == (is_open.sum(), (~is_open).sum(), 0)
    assert reply["sum"] == approx(line.sum(), within)
    assert 1 <= reply["ninety"] <= is_open.sum()


@pytest.mark.parametrize("over", ["mean", "sum"])
def test_several_are_ranked_together(over: str) -> None:
    reply = ask_one(kind="ranked", queries=[1, 4, 4], over=over, count=5)
    wanted = exact()[[1, 4, 4]].sum(0) / (3 if over == "mean" else 1)
    assert_close(reply["values"], wanted[reply["positions"]])
    assert sorted(reply["positions"]) == list(range(K))
    assert list(reply["values"]) == sorted(reply["values"], reverse=True)


def test_sums_that_json_has_no_number_for_go_as_text() -> None:
    odd = AttentionStack([Attention(torch.tensor([[math.inf]]), torch.tensor([[1.0], [2.0]]), scale=1.0)])
    reply = ask_one(odd, **{**SMALL, "stage": "scores"}, kind="ranked", queries=[0], count=2)
    assert as_javascript_reads(reply["sum"]) == math.inf


def test_the_strongest_pairs_of_a_head() -> None:
    reply = ask_one(kind="strongest", count=4, skip_first=True)
    weights = exact().copy()
    weights[:, 0] = 0
    order = np.argsort(-weights, axis=None, kind="stable")[:4]
    assert [tuple(pair[:2]) for pair in reply["pairs"]] == [tuple(divmod(int(at), K)) for at in order]
    assert_close([pair[2] for pair in reply["pairs"]], weights.flatten()[order])
    assert len(ask_one(kind="strongest", count=32)["pairs"]) == ALLOWED.sum()


def test_tokens_come_in_pages_and_are_found() -> None:
    desk = Desk(STACK, TOKENS)
    where = {"layer": 0, "batch": 0, "side": "key"}
    asked = [
        {"id": "1", "kind": "tokens", **where, "start": 2, "stop": 5},
        {"id": "2", "kind": "find", **where, "text": "token 3", "start": 0, "count": 5},
    ]
    message, buffers = requests.answer(desk, {"requests": asked})  # type: ignore[misc]
    page, found = attached(message["replies"], buffers)
    assert decode_tokens(page) == TOKENS[2:5]
    assert found == {"id": "2", "ok": True, "positions": [3], "total": 1}


# What cannot be answered.


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"kind": "row", "query": 7}, "query 7 is out of range: give 0 to 6"),
        ({"kind": "row", "query": -1}, "query -1 is out of range"),
        ({"kind": "row", "query": 1.0}, "query 1.0 is out of range"),
        ({"kind": "row", "query": True}, "query True is out of range"),
        ({"kind": "row"}, "query None is out of range"),
        ({"kind": "column", "key": 5}, "key 5 is out of range: give 0 to 4"),
        ({"kind": "row", "query": 0, "layer": 2}, "layer 2 is out of range: give 0 to 1"),
        ({"kind": "row", "query": 0, "batch": 2}, "batch 2 is out of range"),
        ({"kind": "row", "query": 0, "head": 4}, "head 4 is out of range"),
        ({"kind": "row", "query": 0, "stage": "allowed"}, "there is no stage called 'allowed': use one of scores"),
        ({"kind": "row", "query": 0, "stage": ["weights"]}, "there is no stage called"),
        ({"kind": "cells", "queries": [0, 8], "keys": [0, 1]}, r"queries [0, 8] are out of range: give 0 to 6"),
        ({"kind": "cells", "queries": [2, 2], "keys": [0, 1]}, r"queries [2, 2] are out of range"),
        ({"kind": "cells", "queries": [3, 1], "keys": [0, 1]}, r"queries [3, 1] are out of range"),
        ({"kind": "cells", "queries": [0, 1], "keys": [-1, 1]}, r"keys [-1, 1] are out of range"),
        ({"kind": "cells", "queries": 1, "keys": [0, 1]}, r"queries is 1: give [start, stop]"),
        ({"kind": "cells", "queries": [0, 1.5], "keys": [0, 1]}, "give [start, stop]"),
        ({"kind": "peak", "queries": [0, 1], "keys": None}, "keys is None: give [start, stop]"),
        (
            {"kind": "tile"},
            "there is no request called 'tile': use one of row, column, cells, peak, received, tiles, ranked",
        ),
        ({"kind": "ranked", "count": 3}, "give either queries or keys"),
        ({"kind": "ranked", "count": 3, "queries": [0], "keys": [0]}, "give either queries or keys"),
        ({"kind": "ranked", "count": 3, "queries": []}, "give a list of 1 to 64"),
        ({"kind": "ranked", "count": 3, "queries": [0] * 65}, "give a list of 1 to 64"),
        ({"kind": "ranked", "count": 3, "queries": [7]}, "queries [7] are out of range: give 0 to 6"),
        ({"kind": "ranked", "count": 3, "keys": [True]}, "keys [True] are out of range"),
        ({"kind": "ranked", "count": 0, "keys": [1]}, "count is 0: give 1 to 64"),
        ({"kind": "ranked", "count": 65, "keys": [1]}, "count is 65: give 1 to 64"),
        ({"kind": "ranked", "count": 2.0, "keys": [1]}, "count is 2.0: give 1 to 64"),
        ({"kind": "ranked", "count": 2, "keys": [1], "over": "max"}, "over is 'max': give mean or sum"),
        ({"kind": "strongest", "count": 33}, "count is 33: give 1 to 32"),
        ({"kind": "strongest", "count": 3, "skip_first": 1}, "skip_first is 1: give true or false"),
        ({"kind": "tokens", "side": "key", "start": 0, "stop": 1}, "there are no tokens"),
        ({"kind": "tokens", "side": "both", "start": 0, "stop": 1}, "side is 'both': give query or key"),
        ({"kind": "find", "side": "key", "text": "a", "start": 0, "count": 1}, "there are no tokens"),
        ({"kind": "pass", "action": "kill"}, "action is 'kill': give stop or resume"),
        ({"kind": None}, "there is no request called None"),
        ({"kind": ["row"]}, "there is no request called ['row']"),
    ],
)
def test_what_is_not_there_is_said(question: dict[str, Any], said: str) -> None:
    reply = ask_one(**question)
    assert set(reply) == {"id", "ok", "error"}
    assert reply["ok"] is False
    assert said in reply["error"]


@pytest.mark.parametrize("question", [None, 3, "row", [], [{}]])
def test_a_request_that_is_no_request_is_answered_too(question: Any) -> None:
    (reply,) = ask(question)
    assert reply == {"id": None, "ok": False, "error": f"a request must be a dict, not {type(question).__name__}"}


def test_too_much_at_once_is_refused_before_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    long = AttentionStack([Attention(torch.zeros(4096, 2), torch.zeros(4096, 2))])
    where = {"layer": 0, "batch": 0, "head": 0}
    assert ask_one(long, **where, kind="cells", queries=[0, 256], keys=[0, 256])["ok"]
    assert ask_one(long, **where, kind="peak", queries=[0, 1024], keys=[0, 4096])["ok"]
    monkeypatch.setattr(Attention, "block", lambda *_, **__: pytest.fail("computed"))
    cells = ask_one(long, **where, kind="cells", queries=[0, 256], keys=[0, 257])
    assert cells["error"] == "65,792 cells were requested: ask for at most 65,536 at once"
    peak = ask_one(long, **where, kind="peak", queries=[0, 1025], keys=[0, 4096])
    assert peak["error"] == "4,198,400 cells were requested: ask for at most 4,194,304 at once"


def test_a_long_line_is_not_sent_but_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    for stack, question in (
        (long(2, 60_001), {"kind": "row", "query": 0}),
        (long(60_001, 2), {"kind": "column", "key": 0}),
    ):
        reply = ask_one(stack, **SMALL, **question)
        assert "60,001 numbers is too much to send" in reply["error"]
        assert "ranked" in reply["error"]
    assert len(ask_one(long(2, 60_000), **SMALL, kind="row", query=0)["values"]) == 60_000
    assert ask_one(long(2, 60_001), **SMALL, kind="ranked", queries=[1], count=3)["positions"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"kind": "peak", "queries": [0, 8192], "keys": [0, 8]}, "look closer, or wait for the exact picture"),
        ({"kind": "cells", "queries": [0, 8192], "keys": [0, 8]}, "look closer, or wait for the exact picture"),
        ({"kind": "column", "key": 3}, "look closer, or wait for the exact picture"),
        ({"kind": "ranked", "keys": [3], "count": 5}, "wait for the exact picture"),
        ({"kind": "strongest", "count": 5}, "the strongest pairs are not known yet: wait for the exact picture"),
    ],
)
def test_what_would_take_seconds_is_refused_with_the_reason(
    question: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = long(40_000, 40_000)
    with monkeypatch.context() as patch:
        patch.setattr(Attention, "block", lambda *_, **__: pytest.fail("computed"))
        assert said in ask_one(stack, **SMALL, **question)["error"]
    if question["kind"] == "strongest":
        return
    known = torch.zeros(40_000)
    stack[0].remember(0, 0, LogSumExp(known, known + math.log(40_000)))
    assert ask_one(stack, **SMALL, **question)["ok"], "it is cheap once the log-normalizers are known"


def test_the_questions_of_one_message_have_one_purse(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {**SMALL, "kind": "ranked", "queries": [0], "count": 1}
    message = requests.Message
    monkeypatch.setattr(
        requests, "Message", lambda context: message(context, budget=cost.CostBudget(5 * cost.RANKED * 1000))
    )
    replies = ask(*({**row, "id": str(n)} for n in range(3)), stack=long(5, 1000))
    assert [reply["ok"] for reply in replies] == [True, True, False]
    assert "ask for fewer at once" in replies[2]["error"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stop": 5000}, "5,000 tokens were requested: ask for at most 4,096 at once"),
        ({"stop": 10_001}, "tokens [0, 10001] are out of range"),
        ({"start": -1, "stop": 3}, "tokens [-1, 3] are out of range"),
        ({"start": None, "stop": 3}, "give [start, stop]"),
        ({"kind": "find", "text": ""}, "give 1 to 200 characters to search for"),
        ({"kind": "find", "text": "x" * 201}, "give 1 to 200 characters to search for"),
        ({"kind": "find", "text": None}, "text is None"),
        ({"kind": "find", "text": "a", "start": 10_000}, "start 10000 is out of range"),
        ({"kind": "find", "text": "a", "count": 21}, "count is 21: give 1 to 20"),
    ],
)
def test_hostile_questions_for_tokens_are_refused(change: dict[str, Any], said: str) -> None:
    desk = Desk(STACK, ["t"] * 10_000)
    question = {"id": "a", "kind": "tokens", "layer": 0, "batch": 0, "side": "key", "start": 0, "count": 1, **change}
    answered = requests.answer(desk, {"requests": [question]})
    assert answered is not None
    (reply,) = answered[0]["replies"]
    assert said in reply["error"]


def test_too_many_requests_are_answered_all_the_same() -> None:
    replies = ask(*({"id": str(n), "kind": "ping"} for n in range(70)))
    assert [reply["id"] for reply in replies] == [str(n) for n in range(70)]
    assert [reply["ok"] for reply in replies] == [True] * 64 + [False] * 6
    assert replies[-1]["error"] == "a message can hold at most 64 requests"


def test_a_failure_is_answered_and_those_beside_it_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    block = Attention.block

    def failing(self: Attention, *stage: Any, **where: Any) -> Any:
        if where["head"] == 2:
            raise RuntimeError("CUDA out of memory")
        return block(self, *stage, **where)

    monkeypatch.setattr(Attention, "block", failing)
    row = {**HERE, "kind": "row", "query": 0}
    replies = ask({**row, "id": "a"}, {**row, "id": "b", "head": 2}, {**row, "id": "c"})
    assert [reply["ok"] for reply in replies] == [True, False, True]
    assert replies[1]["error"] == "CUDA out of memory"
    assert_close(replies[2]["values"], exact()[0])


@pytest.mark.parametrize("content", [None, 3, [], {}, {"requests": None}, {"requests": {}}, {"replies": []}])
def test_a_message_without_requests_has_no_reply(content: Any) -> None:
    assert requests.answer(Desk(STACK), content) is None


# Junk.

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
    max_leaves=6,
)
likely = st.integers(-2, 9)
questions = json_values | st.fixed_dictionaries(
    {},
    optional={
        "id": st.text(st.characters()) | json_values,
        "kind": st.sampled_from(list(requests.ANSWERS)) | json_values,
        **dict.fromkeys(("layer", "batch", "head", "query", "key"), likely | json_values),
        "stage": st.sampled_from(["scores", "weights", "allowed"]) | json_values,
        "queries": st.lists(likely, min_size=2, max_size=2) | json_values,
        "keys": st.lists(likely, min_size=2, max_size=2) | json_values,
        "tiles": st.lists(st.lists(likely, min_size=4, max_size=4), max_size=3) | json_values,
        "pool": st.sampled_from(["max", "mean"]) | json_values,
        **dict.fromkeys(("view", "text"), st.text(st.characters(), max_size=3) | json_values),
        **dict.fromkeys(("start", "stop", "count"), likely | json_values),
        "side": st.sampled_from(["query", "key"]) | json_values,
        "over": st.sampled_from(["mean", "sum"]) | json_values,
        "action": st.sampled_from(["stop", "resume"]) | json_values,
        "skip_first": st.booleans() | json_values,
    },
)


@examples(100)
@given(st.lists(questions, max_size=5))
def test_junk_is_answered_once_each_and_can_be_sent(asked: list[Any]) -> None:
    with nothing_logged():
        answered = requests.answer(Desk(STACK, TOKENS), {"requests": asked})
    assert answered is not None
    message, buffers = answered
    json.dumps(message, allow_nan=False, ensure_ascii=False).encode()
    assert len(message["replies"]) == len(asked)
    for question, reply in zip(asked, message["replies"], strict=True):
        named = isinstance(question, dict) and isinstance(question.get("id"), str) and question["id"].isprintable()
        assert reply["id"] == (question["id"] if named else None)
        assert reply["ok"] is True or (reply["ok"] is False and isinstance(reply["error"], str) and reply["error"])
        assert len(str(reply)) < 2000 + len(str(reply["id"]))
    assert sorted(indices(message)) == list(range(len(buffers)))


def indices(part: Any) -> list[int]:
    """Which buffers a message points to."""
    if isinstance(part, list):
        return [index for inner in part for index in indices(inner)]
    if not isinstance(part, dict):
        return []
    own = [part["data"]] if "dtype" in part else [part["text"]] if "ends" in part else []
    return own + [index for inner in part.values() for index in indices(inner)]


@given(json_values)
def test_a_message_of_junk_raises_nothing(content: Any) -> None:
    with nothing_logged():
        answered = requests.answer(Desk(STACK), content)
    assert answered is None or len(answered[0]["replies"]) == len(content["requests"])


@contextmanager
def nothing_logged() -> Iterator[None]:
    """Fail if anything is logged that a person would see: a message from outside is no mistake of ours."""
    seen = logging.Handler(logging.INFO)
    seen.emit = lambda record: pytest.fail(record.getMessage())  # type: ignore[method-assign]
    requests.log.addHandler(seen)
    try:
        yield
    finally:
        requests.log.removeHandler(seen)


@pytest.mark.parametrize(("error", "logged"), [(RuntimeError("CUDA out of memory"), 0), (KeyError("head"), 1)])
def test_a_mistake_of_ours_is_answered_and_logged(
    error: Exception, logged: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(self: Attention, *stage: Any, **where: Any) -> Any:
        raise error

    monkeypatch.setattr(Attention, "block", failing)
    with caplog.at_level("INFO"):
        reply = ask_one(**HERE, kind="row", query=0)
    assert reply["ok"] is False
    assert [record.levelname for record in caplog.records] == ["WARNING"] * logged
    assert reply["error"] == ("KeyError: 'head'" if logged else "CUDA out of memory")


def test_junk_without_end_is_answered_shortly() -> None:
    deep: list[Any] = []
    for _ in range(50_000):
        deep = [deep]
    for junk in (deep, 10**4000, [0] * 10**6, "x" * 10**6):
        for name in ("kind", "layer", "stage", "query", "queries"):
            kind = "cells" if name == "queries" else "row"
            reply = ask_one(**{"kind": kind, "query": 0, "keys": [0, 1], name: junk})
            assert reply["ok"] is False
            assert len(reply["error"]) < 400


@pytest.mark.parametrize("layer", range(len(STACK)))
def test_what_each_key_receives_comes_in_one_answer_or_in_slices(layer: int) -> None:
    own = {"layer": layer, "batch": 0, "head": 0}
    found = ask_one(STACK, kind="received", **own)
    wanted = STACK[layer].received(batch=0, head=0)
    assert found["share"] == 1
    blocked = wanted.isnan().numpy()
    assert (found["blocked"] is not None) == bool(blocked.any())
    np.testing.assert_allclose(found["values"][~blocked], wanted.float().numpy()[~blocked], rtol=1e-6, atol=1e-7)


def test_what_each_key_of_very_many_receives_is_not_computed_unasked() -> None:
    long = AttentionStack([Attention(torch.zeros(1, 1, 1, 1).expand(1, 1, 40_000, 1), torch.zeros(1, 1, 40_000, 1))])
    found = ask_one(long, kind="received", batch=0, head=0)
    assert "too many to show what each key receives: call att.received()" in found["error"]
