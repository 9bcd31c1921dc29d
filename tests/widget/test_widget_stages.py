"""What the stages view is sent: small pictures of every stage, the pinned pair's numbers, and other rules."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from front_end import BLOCKED, FrontEnd, decode, decode_cells
from tolerance import rounding

from attnwidget import Attention, AttentionWidget
from attnwidget._messages.answers import pair_steps
from attnwidget._messages.pictures import stage_pictures


def make(**show: Any) -> AttentionWidget:
    q, k, v = torch.randn(3, 2, 3, 7, 8, generator=torch.Generator().manual_seed(1))
    return AttentionWidget(q, k, v, **{"is_causal": True, "softcap": 4.0, "view": "stages"} | show)


def test_every_stage_is_sent_only_while_it_is_looked_at() -> None:
    w = make(view="heatmap", query=5, key=2)
    assert w.stages is None
    assert w.pair is None
    w.view = "stages"
    assert [small["stage"] for small in w.stages["pictures"]] == ["scores", "scaled", "capped", "masked", "weights"]
    assert (w.pair["query"], w.pair["key"]) == (5, 2)
    w.view = "graph"
    assert w.stages is None
    assert w.pair is None


def test_the_pictures_are_the_stages() -> None:
    w = make(head=2, batch=1)
    att = w.attention
    assert isinstance(att, Attention)
    for small in w.stages["pictures"]:
        values, _ = decode(small["values"]), small["blocked"]
        wanted = att.block(small["stage"], batch=1, head=2)
        np.testing.assert_allclose(values, wanted.numpy(), **rounding(att)[small["stage"]], err_msg=small["stage"])
    output = decode(w.stages["output"]["values"])
    np.testing.assert_allclose(output, att.output(1, 2).numpy(), **rounding(att).output)
    assert (w.stages["output"]["rows"], w.stages["output"]["columns"]) == (7, 8)


def test_parity_is_said_where_torch_has_it() -> None:
    assert "no softcap" in make().deviation["torch"]["why"]
    assert make(softcap=None).deviation["torch"]["equal"] is True


def test_the_numbers_are_the_explanation() -> None:
    w = make(query=6, key=1, head=1)
    found = w.attention.explain(6, 1, head=1)
    for name in ("score", "scale", "scaled", "capped", "masked", "weight", "log_normalizer", "share"):
        assert w.pair[name] == getattr(found, name), name
    np.testing.assert_array_equal(decode(w.pair["products"]), found.products.numpy())
    np.testing.assert_array_equal(decode(w.pair["row"]["values"]), w.weights(6).numpy())
    assert w.pair["effects"] == [{"name": "causal: key ≤ query", "blocks": False, "adds": None}]
    assert w.pair["original"] is None


def test_a_blocked_pair_can_be_sent(front_end: FrontEnd) -> None:
    w = make(query=1, key=4)
    state = front_end.state(w)
    assert state["pair"]["masked"] == "-inf"
    assert state["pair"]["allowed"] is False
    assert state["pair"]["weight"] == 0


def test_the_row_of_a_long_head_is_its_strongest_keys() -> None:
    q, k, v = torch.randn(3, 300, 8)
    w = AttentionWidget(q, k, v, view="stages", query=9, key=250)
    keys, values = decode(w.pair["row"]["keys"]), decode(w.pair["row"]["values"])
    assert 24 <= len(keys) <= 25
    assert 250 in keys
    assert list(keys) == sorted(keys)
    np.testing.assert_allclose(
        values, w.weights(9)[torch.from_numpy(keys.astype(int))].numpy(), **rounding(w.attention).weights
    )


def test_a_long_row_in_which_nothing_is_allowed() -> None:
    q, k, v = torch.randn(3, 100, 8)
    w = AttentionWidget(q, k, v, mask=torch.zeros(100, 100).bool(), view="stages", query=9, key=3)
    assert list(decode(w.pair["row"]["keys"])) == [3]
    assert w.pair["share"] is None


def test_other_rules_are_seen_everywhere_and_can_be_taken_back() -> None:
    w = make(query=2, key=5)
    before, version = w.attention.block()[0], w.facts["version"]
    w.what_if = {"causal": False, "scale": 1.0}
    assert w.pair["allowed"] is True
    assert w.pair["original"]["allowed"] is False
    assert w.pair["scale"] == 1.0
    assert w.facts["version"] > version
    changed = w.attention.what_if({"causal": False, "scale": 1.0})
    np.testing.assert_allclose(decode(w.picture["values"]), changed.block().numpy(), **rounding(changed).weights)
    assert torch.equal(w.weights(2), changed.block(queries=2)[0])  # the same kernel, of the same numbers
    w.what_if = {}
    np.testing.assert_allclose(decode(w.picture["values"])[0], before.numpy(), **rounding(w.attention).weights)
    assert w.pair["original"] is None


def test_rules_hold_for_tensors_that_come_later() -> None:
    w = make(what_if={"causal": False})
    q, k, v = torch.randn(3, 2, 3, 7, 8)
    w.update(q, k, v)
    assert w.weights(0).gt(0).all()


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"color": 1}, ValueError), ("scale", TypeError), ({"drop_keys": [99]}, IndexError), ({"mask": 2}, TypeError)],
)
def test_rules_that_cannot_be(changes: Any, error: type[Exception]) -> None:
    w = make(what_if={"scale": 1.0})
    with pytest.raises(error):
        w.what_if = changes
    assert w.what_if == {"scale": 1.0}


def test_a_front_end_may_set_rules_and_is_told_why_not(front_end: FrontEnd) -> None:
    w = make()
    w.set_state({"what_if": {"scale": 2.0}})
    assert w.what_if == {"scale": 2.0}
    w.set_state({"what_if": {"scale": "nan"}})
    assert w.what_if == {"scale": 2.0}
    assert "scale" in front_end.refusals(w)[-1]
    w.set_state({"pair": None, "stages": None})
    assert w.stages is not None


def test_the_original_is_beside_the_new() -> None:
    w = make(query=6, key=1)
    before, row = w.attention.explain(6, 1), w.weights(6)
    w.what_if = {"scale": 2.0}
    original = w.pair["original"]
    assert original["weight"] == before.weight
    np.testing.assert_array_equal(decode(original["value"]), before.value.numpy())
    np.testing.assert_array_equal(decode(original["row"]), row.numpy())
    w.update(*torch.randn(3, 2, 3, 7, 8))
    assert w.pair["original"]["weight"] == w.attention.explain(6, 1).weight != before.weight


def test_scores_are_drawn_again_only_where_they_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    own = stage_pictures._stage

    def noted(att: Any, batch: int, head: int, stage: str) -> Any:
        drawn.append(stage)
        return own(att, batch, head, stage)

    monkeypatch.setattr(stage_pictures, "_stage", noted)
    w = make()
    w.what_if = {"scale": 2.0}
    assert drawn.count("scores") == 1
    assert drawn.count("scaled") == 2
    for change in ({"dtype": "int8"}, {}):
        w.what_if = change
    assert drawn.count("scores") == 3
    w.update(*torch.randn(3, 2, 3, 7, 8))
    assert drawn.count("scores") == 4


def test_while_a_scale_is_dragged_only_what_is_in_sight_is_made(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("attnwidget._utils.scheduler.time", SimpleNamespace(monotonic=lambda: clock[0]))

    async def drag() -> None:
        w = make(query=5, key=2)
        before = front_end.state(w)
        for scale in (0.5, 0.6, 0.7):
            w.set_state({"what_if": {"scale": scale}})
            for _ in range(100):  # turns of the loop
                await asyncio.sleep(0)
            clock[0] += 0.05  # a slow hand
        now = front_end.state(w)
        assert now["pair"]["scale"] == 0.7
        assert now["stages"] != before["stages"]
        for name in ("picture", "thumbnails", "deviation"):
            assert now[name] == before[name], name
        clock[0] += 10  # no hand that drags rests so long
        while w._scheduler.names:
            await asyncio.sleep(0.01)
        now = front_end.state(w)
        changed = w.attention.what_if({"scale": 0.7})
        wanted = changed.block().numpy()
        np.testing.assert_allclose(decode(now["picture"]["values"]), wanted, **rounding(changed).weights)
        assert now["thumbnails"] != before["thumbnails"]
        assert now["deviation"]["original"]["queries"] == 7

    asyncio.run(drag())


def test_pictures_of_many_cells_are_colors() -> None:
    w = AttentionWidget(*torch.randn(3, 80, 8), view="stages", is_causal=True)
    small = w.stages["pictures"][-1]
    assert small["values"]["dtype"] == "uint8"
    values, kinds = decode_cells(small["values"])
    wanted = w.attention.block()
    assert ((kinds == BLOCKED) == ~w.attention.block("allowed").numpy()).all()
    open_cells = kinds != BLOCKED
    low = float(wanted.max()) / 60_000  # below a 65,536th of the largest all have one color
    np.testing.assert_allclose(values[open_cells], wanted.numpy()[open_cells], rtol=0.04, atol=low)


def test_rules_that_change_many_times_a_second_come_as_messages(front_end: FrontEnd) -> None:
    w = make(query=5, key=2)
    w._handle_custom_msg({"what_if": {"scale": 0.25}}, [])
    assert w.what_if == {"scale": 0.25}
    assert front_end.state(w)["pair"]["scale"] == 0.25
    for nonsense in ({"scale": "x"}, {"no": 1}, 7, None, {"drop_keys": [99]}):
        refused = len(front_end.refusals(w))
        w._handle_custom_msg({"what_if": nonsense}, [])
        assert w.what_if == {"scale": 0.25}
        assert len(front_end.refusals(w)) == refused + 1


def test_a_mistake_of_ours_is_said_and_logged_and_the_rest_goes_on(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    w = AttentionWidget(*torch.randn(3, 6, 8), view="stages", query=2, key=1)

    def fail(*_: Any, **__: Any) -> NoReturn:
        raise KeyError("share")

    assert w.errors == {}
    with monkeypatch.context() as patch, caplog.at_level("INFO"):
        patch.setattr(pair_steps, "pair", fail)
        w.set_state({"query": 3})
    state = front_end.state(w)
    assert (state["pair"], state["errors"]) == (None, {"pair": "KeyError: 'share'"})
    assert state["stages"] is not None
    assert [record.getMessage() for record in caplog.records] == ["pair could not be computed"]
    w.set_state({"query": 4})
    state = front_end.state(w)
    assert (state["pair"]["query"], state["errors"]) == (4, {})
