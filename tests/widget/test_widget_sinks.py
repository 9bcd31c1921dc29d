"""What the front-end is told of a learned sink: a column beside each picture, a number beside each row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from front_end import FrontEnd, decode
from tolerance import eps, rounding

from attnwidget import Attention, AttentionWidget, compare
from attnwidget._engine import cost
from attnwidget._messages.pictures import picture

LOGITS = torch.tensor([0.5, -2.0, 3.0])
WORDS = ["a", "em", "##bed", "ding", "end", "."]


def attention(n: int = 6, **more: Any) -> Attention:
    q, k, v = torch.randn(3, 1, 3, n, 8, generator=torch.Generator().manual_seed(n))
    return Attention(q, k, v, **{"is_causal": True, "sinks": LOGITS, **more})


def shown(n: int = 6, **more: Any) -> AttentionWidget:
    return AttentionWidget.from_attention(attention(n), **{"head": 2, **more})


def near(att: Attention) -> dict[str, float]:
    return dict(rounding(att, added=3.0).weights)


def column(made: dict[str, Any]) -> np.ndarray[Any, Any]:
    return decode(made["sink"])


@pytest.mark.parametrize("stage", ["scores", "scaled", "masked", "weights", "contribution"])
def test_the_picture_has_a_column_in_each_stage(stage: Any) -> None:
    w = shown(stage=stage)
    if stage == "scores":
        assert w.picture["sink"] is None
        return
    wanted = attention().block(stage, head=2, keys="sink")[:, 0]
    assert column(w.picture).tolist() == wanted.tolist()
    assert w.facts["has_sinks"]


def test_without_sinks_there_is_none() -> None:
    w = AttentionWidget.from_attention(attention(sinks=None), view="graph", query=1, key=0)
    assert (w.picture["sink"], w.facts["has_sinks"], w.links["sinks"]) == (None, False, None)
    w.view = "stages"
    assert (w.pair["sink"], w.pair["sink_weight"]) == (None, None)
    assert all(one["sink"] is None for one in w.stages["pictures"])


@pytest.mark.parametrize("pool", ["max", "mean"])
def test_the_column_is_pooled_as_the_rows_are(pool: Any) -> None:
    w = shown(1200, pool=pool)
    made, att = w.picture, attention(1200)
    assert made["query_bin"] == 3
    bins = att.sink_weights(0, 2).view(-1, 3)
    wanted = bins.amax(1) if pool == "max" else bins.mean(1)
    np.testing.assert_allclose(column(made), wanted.numpy(), rtol=near(att)["rtol"])


def test_a_long_head_has_it_sampled_and_then_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "AT_ONCE", 1000)
    monkeypatch.setattr(picture, "LIMITS", picture.Limits(report=0, estimate=0, slice=0))
    att = attention(3000)
    w = AttentionWidget.from_attention(att, head=2)
    made, exact = w.picture, attention(3000).sink_weights(0, 2)
    sampled = made["sampled"]
    assert sampled is None or sampled["exact"] == 0
    if sampled is not None:
        wanted = exact[sampled["first"] :: sampled["every"]]
        np.testing.assert_allclose(column(made), wanted.numpy(), rtol=near(att)["rtol"])
    w.finish()
    assert w.picture["sampled"] is None
    width = w.picture["query_bin"]
    bins = torch.nn.functional.pad(exact, (0, -len(exact) % width)).view(-1, width)
    np.testing.assert_allclose(column(w.picture), bins.amax(1).numpy(), rtol=near(att)["rtol"])


def test_rows_and_rankings_say_what_it_takes(front_end: FrontEnd) -> None:
    w, att = shown(), attention()
    at = {"layer": 0, "batch": 0, "head": 2, "stage": "weights"}
    exact = att.sink_weights(0, 2)
    row, several, key, logit, column_ = front_end.ask(
        w,
        {"id": "row", "kind": "row", **at, "query": 4},
        {"id": "several", "kind": "ranked", **at, "queries": [1, 4], "over": "mean", "count": 3},
        {"id": "key", "kind": "ranked", **at, "keys": [2], "count": 3},
        {"id": "logit", "kind": "row", **at, "stage": "masked", "query": 4},
        {"id": "column", "kind": "column", **at, "key": 2},
    )
    assert row["sink"] == pytest.approx(float(exact[4]), rel=near(att)["rtol"])
    assert several["sink"] == pytest.approx(float(exact[[1, 4]].mean()), rel=near(att)["rtol"])
    assert several["sum"] + several["sink"] == pytest.approx(1, rel=near(att)["rtol"])
    assert (key["sink"], logit["sink"], "sink" in column_) == (None, 3.0, False)


def test_entropy_counts_it(front_end: FrontEnd) -> None:
    w = AttentionWidget(torch.zeros(1, 4), torch.zeros(3, 4), sinks=0.0)
    at = {"layer": 0, "batch": 0, "head": 0, "stage": "weights"}
    (found,) = front_end.ask(w, {"id": "a", "kind": "ranked", **at, "queries": [0], "count": 3})
    assert (found["entropy"], found["max_entropy"]) == (pytest.approx(2), 2)
    assert found["sink"] == pytest.approx(0.25)


def test_links_of_several_heads_bring_a_column_each() -> None:
    w, att = shown(view="graph", heads=[0, 2]), attention()
    found = decode(w.links["sinks"])
    wanted = torch.stack([att.sink_weights(0, head) for head in (0, 2)])
    np.testing.assert_allclose(found, wanted.numpy(), rtol=near(att)["rtol"])
    w.direction = "key"
    np.testing.assert_allclose(decode(w.links["sinks"]), wanted.numpy(), rtol=near(att)["rtol"])


def test_heads_as_one_and_words_keep_it() -> None:
    w, att = shown(view="heatmap", heads=[0, 2], combine="mean"), attention()
    wanted = att.combine([0, 2]).sink_weights()
    np.testing.assert_allclose(column(w.picture), wanted.numpy(), rtol=near(att)["rtol"])
    words = shown(tokens=WORDS, pieces="words")
    merged = attention().merge([0, 1, 1, 2, 3, 4])
    np.testing.assert_allclose(column(words.picture), merged.sink_weights(0, 2).numpy(), rtol=near(att)["rtol"])


def test_the_stages_have_the_column_and_the_pair_its_numbers() -> None:
    w, att = shown(view="stages", query=4, key=1), attention()
    by_stage = {one["stage"]: one for one in w.stages["pictures"]}
    assert by_stage["scores"]["sink"] is None
    assert column(by_stage["masked"]).tolist() == [3.0] * 6
    np.testing.assert_allclose(column(by_stage["weights"]), att.sink_weights(0, 2).numpy(), rtol=near(att)["rtol"])
    assert w.pair["sink"] == 3.0
    assert w.pair["sink_weight"] == pytest.approx(float(att.sink_weights(0, 2)[4]), rel=near(att)["rtol"])


def test_another_scale_keeps_the_sink_in_the_stages() -> None:
    """A scale that is dragged draws the stages from scores that are kept: not where a sink takes a share."""
    n = 80
    w = shown(n, view="stages", query=4, key=1)
    w.what_if = {"scale": 0.05}
    one = {one["stage"]: one for one in w.stages["pictures"]}["weights"]
    changed = attention(n).what_if({"scale": 0.05})
    np.testing.assert_allclose(column(one), changed.sink_weights(0, 2).numpy(), rtol=near(changed)["rtol"])
    assert one["high"] == pytest.approx(float(changed.block(head=2).max()), rel=near(changed)["rtol"])


def test_what_if_takes_it_away(front_end: FrontEnd) -> None:
    w = shown()
    w.what_if = {"sinks": None}
    assert w.picture["sink"] is None
    assert not w.facts["has_sinks"]
    w.what_if = {}
    assert w.picture["sink"] is not None
    w.set_state({"what_if": {"sinks": 7}})
    assert "give None or False to remove the learned sinks" in front_end.refusals(w)[-1]


def test_a_metric_says_what_each_head_gives_to_it() -> None:
    w, att = shown(view="heads", bar="learned_sink", order="learned_sink"), attention()
    found = decode(w.survey["metrics"]["learned_sink"])
    wanted = [float(att.sink_weights(0, head).mean()) for head in range(3)]
    np.testing.assert_allclose(found, wanted, rtol=near(att)["rtol"])
    assert w.metrics()[2]["learned_sink"] == pytest.approx(wanted[2], rel=1e-4)


def test_stacks_and_updates_take_sinks() -> None:
    q, k, v = torch.randn(3, 2, 1, 3, 6, 8)
    w = AttentionWidget(q, k, v, sinks=torch.stack([LOGITS, -LOGITS]), layer=1)
    assert column(w.picture).tolist() == Attention(q[1], k[1], v[1], sinks=-LOGITS).sink_weights().tolist()
    w.update(q[0], k[0], v[0], sinks=LOGITS)
    assert column(w.picture).tolist() == Attention(q[0], k[0], v[0], sinks=LOGITS).sink_weights().tolist()


def test_a_query_that_may_attend_to_nothing_gives_it_all() -> None:
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[2] = False
    w = AttentionWidget.from_attention(attention(mask=mask), head=1)
    assert column(w.picture)[2] == pytest.approx(1, rel=eps(torch.float32))


def test_a_comparison_says_that_a_sink_takes_a_share() -> None:
    att = attention()
    w = compare({"with": att, "without": att.what_if({"sinks": None})})
    assert w.comparison["has_sinks"]
    assert not compare(attention(sinks=None), attention(sinks=None)).comparison["has_sinks"]
