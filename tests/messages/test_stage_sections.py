"""What the sections of the stages view are answered: the statistics, sweeps and gradients that Python has, small."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from front_end import Desk, attached, decode
from tolerance import approx, rounding, sums, together

from attnwidget import Attention, AttentionStack, AttentionWidget, scaling
from attnwidget._messages.answers import requests, stage_sections

Q, K, D = 9, 7, 16
HERE = {"layer": 0, "batch": 0, "head": 1}


def make(queries: int = Q, keys: int = K, **keywords: Any) -> Attention:
    source = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, 2, n, D, generator=source) for n in (queries, keys, keys))
    return Attention(q, k, v, **keywords)


def ask(att: Attention, kind: str, **more: Any) -> dict[str, Any]:
    answered = requests.answer(Desk(AttentionStack([att])), {"requests": [{"id": "a", "kind": kind, **HERE, **more}]})
    assert answered is not None
    message, buffers = answered
    reply: dict[str, Any] = attached(message["replies"][0], buffers)
    return reply


def test_the_spread_is_the_statistics() -> None:
    att = make(is_causal=True)
    reply, found = ask(att, "spread"), att.statistics(0, 1)
    for name in ("q_variance", "k_variance", "v_variance", "scores_variance", "scaled_variance"):
        assert reply[name] == getattr(found, name), name
    assert (reply["theory"], reply["every"], reply["scale"]) == (D, 1, 0.25)
    for name in ("entropy", "peak", "sensitivity", "allowed"):
        np.testing.assert_array_equal(decode(reply["rows"][name]), getattr(found, name).float().numpy())
    assert reply["means"]["entropy"] == approx(float(found.entropy.mean()), sums(Q, size=0))


def test_of_many_rows_some_are_sent() -> None:
    att = make(1100, 3)
    reply = ask(att, "spread")
    assert reply["every"] == 3
    np.testing.assert_array_equal(decode(reply["rows"]["peak"]), att.statistics(0, 1).peak[::3].numpy())


def test_the_sweep_is_of_own_tensors_or_fresh_ones() -> None:
    att = make()
    reply = ask(att, "sweep", own=True)
    assert [step["head_size"] for step in reply["steps"]] == [1, 2, 4, 8, 16]
    wanted = scaling.sweep(att.q[0, 1], att.k[0, 1], sizes=[8])[0]
    step = reply["steps"][3]
    for name in ("scores_variance", "scaled_variance", "entropy", "unscaled_entropy", "peak", "unscaled_peak", "most"):
        assert step[name] == getattr(wanted, name), name
    np.testing.assert_array_equal(decode(step["weights"]), wanted.weights.numpy())
    np.testing.assert_array_equal(decode(step["unscaled_weights"]), wanted.unscaled_weights.numpy())
    fresh = ask(att, "sweep", own=False)["steps"]
    assert [step["head_size"] for step in fresh] == list(scaling.HEAD_SIZES)
    assert fresh[-1]["unscaled_peak"] > fresh[-1]["peak"]
    given = Attention.from_scores(torch.randn(1, 2, Q, K))
    assert "no q and k to sweep" in ask(given, "sweep", own=True)["error"]
    assert ask(given, "sweep", own=False)["ok"]


def test_the_gradients_are_those_of_the_sum_of_the_output() -> None:
    att = make(is_causal=True, softcap=3.0)
    found, reply = att.gradients(head=1), ask(att, "gradients")
    for name in ("v", "weights", "scores", "q", "k"):
        picture, wanted = reply["pictures"][name], getattr(found, name)
        np.testing.assert_array_equal(decode(picture["values"]), wanted.numpy(), err_msg=name)
        assert (picture["rows"], picture["columns"]) == wanted.shape
        assert (picture["low"], picture["high"]) == (float(wanted.min()), float(wanted.max()))
    assert "no v" in ask(Attention(torch.randn(1, 2, Q, D), torch.randn(1, 2, K, D)), "gradients")["error"]


def test_a_small_picture_keeps_what_is_largest_and_the_whole_range() -> None:
    x = torch.zeros(300, 5)
    x[7, 2], x[8, 2], x[299, 4] = -4.0, 5.0, 1.0
    made = stage_sections.small(x)
    values = decode(made["values"])
    assert values.shape == (100, 5)
    assert (values[2, 2], values[99, 4]) == (5, 1)
    assert (made["low"], made["high"], made["row_bin"]) == (-4, 5, 3)


def test_the_jacobian_is_that_of_a_row() -> None:
    att = make(is_causal=True)
    reply = ask(att, "jacobian", query=4)
    np.testing.assert_array_equal(decode(reply["picture"]["values"]), att.jacobian(4, head=1).numpy())
    assert ask(att, "jacobian", query=Q)["ok"] is False
    assert ask(att, "jacobian")["ok"] is False


def test_the_cost_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling.cost, "__defaults__", ((32, 64),))
    reply = ask(make(), "cost")
    assert reply["head_size"] == D
    assert [step["length"] for step in reply["steps"]] == [32, 64]
    assert all(step["dense_seconds"] > 0 and step["seen_seconds"] > 0 for step in reply["steps"])


def test_what_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    long = Attention(torch.zeros(1, 2, 20_000, 2), torch.zeros(1, 2, 20_000, 2), torch.zeros(1, 2, 20_000, 2))
    assert "too many to draw" in ask(long, "gradients")["error"]
    own = Attention(long.q, long.k, mask=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)
    assert "Attention.check" in ask(own, "check")["error"]
    assert ask(long, "check")["ok"]
    for junk in (None, 1, "yes"):
        assert ask(make(), "sweep", own=junk)["ok"] is False


def test_findings_follow_the_selection() -> None:
    q, k, v = torch.randn(3, 1, 2, 6, 8)
    k[0, 1, 3, 0] = torch.nan
    w = AttentionWidget(q, k, v)
    assert (w.findings, w.deviation["torch"]["equal"]) == ([], True)
    w.head = 1
    assert [(found["kind"], found["severity"], found["key"]) for found in w.findings] == [("NaN in k", "error", 3)]
    assert (w.deviation["head"], w.deviation["torch"]["difference"]) == (1, None)
    w.what_if = {"drop_keys": [3]}
    assert w.deviation["original"]["queries"] == 6
    w.update(q.nan_to_num(), k.nan_to_num(), v)
    assert w.findings == []


def test_a_head_and_rules_that_are_set_together_are_checked_together() -> None:
    q, k, v = torch.randn(3, 1, 2, 8, 4)
    one_by_one, together = AttentionWidget(q, k, v, head=1), AttentionWidget(q, k, v)
    one_by_one.what_if = {"window": 3}
    together.set_state({"head": 1, "what_if": {"window": 3}})
    assert together.deviation["original"]["weights"] > 0
    assert together.deviation == one_by_one.deviation


def test_tokens_say_what_is_padding() -> None:
    w = AttentionWidget(*torch.randn(3, 4, 8), tokens=["a", "b", "[PAD]", "[PAD]"])
    assert [found["kind"] for found in w.findings] == ["attention to padding"]
    w.tokens = list("abcd")
    assert w.findings == []


def test_what_a_number_type_changes_is_said() -> None:
    w = AttentionWidget(*torch.randn(3, 12, 8), what_if={"dtype": "int8"})
    changed = w.attention.what_if({"dtype": "int8"})
    wanted = float((w.attention.block() - changed.block()).abs().max())
    within = together(rounding(w.attention).weights, rounding(changed).weights)  # of a difference of two weights
    assert w.deviation["original"]["weights"] == approx(wanted, within)
    w.what_if = {}
    assert w.deviation["original"] is None


def test_a_long_head_is_checked_when_asked(monkeypatch: pytest.MonkeyPatch, front_end: Any) -> None:
    monkeypatch.setattr("attnwidget._widget.derived.findings_cache.MAX_CHECKED_AT_ONCE", 30)
    w = AttentionWidget(*torch.randn(3, 2, 6, 8), mask=torch.ones(6, 6).triu(1).bool(), dims="hqd")
    assert (w.findings, w.deviation) == (None, None)
    (reply,) = front_end.ask(w, {"id": "a", "kind": "check", **HERE, "head": 0})
    assert reply == {"id": "a", "ok": True}
    assert front_end.state(w)["findings"][0]["kind"] == "inverted mask"
    w.head = 1
    assert w.findings is None
    w.head = 0
    assert w.findings is not None


def test_a_longer_head_is_checked_a_moment_later(monkeypatch: pytest.MonkeyPatch, front_end: Any) -> None:
    monkeypatch.setattr("attnwidget._widget.derived.findings_cache.MAX_CHECKED_AT_ONCE", 30)

    async def look() -> None:
        w = AttentionWidget(*torch.randn(3, 6, 8))
        assert w.findings is None
        while w._scheduler.names:
            await asyncio.sleep(0.01)
        assert front_end.state(w)["findings"] == []
        monkeypatch.setattr("attnwidget._widget.derived.findings_cache.MAX_UNASKED_CELLS", 30)
        w.update(*torch.randn(3, 6, 8))
        for _ in range(500):
            if w.findings is None:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it was checked")

    asyncio.run(look())
