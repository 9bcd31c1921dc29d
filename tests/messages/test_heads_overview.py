"""All heads at a glance: the same rows as looked at one by one, and what is sent of them."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from front_end import FrontEnd, decode, decode_cells
from tolerance import approx, rounding, sums
from torch.testing import assert_close

from attnwidget import Attention, AttentionStack, AttentionWidget, compare, find_heads, masks
from attnwidget._analysis.head_sampling import HeadSampler, sample
from attnwidget._analysis.metrics import NAMES, as_ids
from attnwidget._engine import overview, pooling
from attnwidget._messages.pictures import heads_overview


def stack_of(*layers: tuple[int, int, int], batches: int = 1, **rules: Any) -> AttentionStack:
    """Layers of so many heads, groups and tokens."""
    g = torch.Generator().manual_seed(0)
    made = []
    for heads, groups, n in layers:
        q = torch.randn(batches, heads, n, 8, generator=g) * 2
        made.append(Attention(q, torch.randn(batches, groups, n, 8, generator=g), **rules))
    return AttentionStack(made)


def sampler(att: Attention, rows: int, size: int, batch: int = 0) -> HeadSampler:
    found = HeadSampler(att, batch, range(att.shape.H), sample(att.shape.Q, rows), size=size)
    for _ in found.steps():
        pass
    return found


# Pictures.


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"is_causal": True},
        {"window": 90, "is_causal": True},
        {"mask": masks.padding([801, 300])},
        {"bias": torch.randn(8, 801, 801, generator=torch.Generator().manual_seed(1))},
    ],
)
def test_pictures_of_sampled_rows_are_those_of_single_heads(rules: Any) -> None:
    (att,) = stack_of((8, 2, 801), batches=2, **rules)
    found = sampler(att, 32, 20, batch=1)
    within = rounding(att, added=float(rules["bias"].abs().max()) if "bias" in rules else 0.0).weights
    for head in range(8):
        one = overview.sampled(att, 1, head, rows=32, columns=20)
        wanted = pooling.pool_first(one.values, 2, torch.amax)
        assert_close(found.values[head], wanted, **within)
        allowed = pooling.pool_first(one.allowed.to(torch.uint8), 2, torch.amax).bool()
        assert torch.equal(found.allowed[head], allowed)


def test_pictures_of_all_rows_are_the_overview() -> None:
    for att in stack_of((3, 3, 50), (4, 1, 1500), is_causal=True):
        found = sampler(att, 1500, 16)
        for head in range(att.shape.H):
            one = att.overview(head=head, size=16)
            assert_close(found.values[head], one.values, **rounding(att).weights)
            assert torch.equal(found.allowed[head], one.allowed)


def test_what_layers_have_in_common_is_that_of_each() -> None:
    """Layers of other lengths, heads, rules and tokens in turn: each is measured by its own marks, not by another's."""
    stack = AttentionStack(
        [*stack_of((2, 2, 12), (4, 2, 12), (2, 2, 20), (2, 1, 12)), *stack_of((2, 2, 12), (2, 2, 20), is_causal=True)]
    )
    words = [["a", "b", "c", "a"] * 3, ["x", "x", "y", "z"] * 3]
    tokens = [words[0], words[1], None, words[0], words[1], ["p", "q"] * 10]
    kept = [None if one is None else as_ids(one) for one in tokens]
    found = heads_overview.Survey(stack, 0, lambda layer: kept[layer])
    for _ in found:
        pass
    message = found.message()
    each = [
        att.metrics(head=head, tokens=own)
        for att, own in zip(stack, tokens, strict=True)
        for head in range(att.shape.H)
    ]
    for name in NAMES:
        wanted = [getattr(one, name) for one in each]
        if message["metrics"][name] is None:
            assert set(wanted) == {None}
            continue
        values = decode(message["metrics"][name])
        within = max((rounding(att).entropy for att in stack), key=lambda bound: bound["atol"])  # the widest of them
        np.testing.assert_allclose(values, [np.nan if x is None else x for x in wanted], **within)


# What is sent.


def show(stack: AttentionStack, **keywords: Any) -> AttentionWidget:
    return AttentionWidget.from_attention(stack, **{"view": "heads"} | keywords)


def test_all_heads_are_sent_while_that_view_is_shown() -> None:
    w = show(stack_of((4, 2, 12), (3, 3, 12)), tokens=list("abcabcabcabc"), view="heatmap")
    assert w.survey is None
    w.view = "heads"
    assert [layer["heads"] for layer in w.survey["layers"]] == [4, 3]
    assert w.survey["layers"][0] == {"heads": 4, "groups": 2, "queries": 12, "keys": 12, "rows": 12}
    assert [picture["shape"] for picture in w.survey["pictures"]] == [[4, 12, 12], [3, 12, 12]]
    records = w.metrics()
    for name in NAMES:
        values = [one[name] for one in records]
        if name == "learned_sink":
            assert (w.survey["metrics"][name], set(values)) == (None, {None})
            continue
        np.testing.assert_allclose(decode(w.survey["metrics"][name]), np.float32(values), **sums(12, size=0))
    values, _ = decode_cells(w.survey["pictures"][1], None)
    wanted = w.attention[1].block(head=2)
    np.testing.assert_allclose(values[2], (wanted / wanted.max()).numpy(), atol=1 / 250)
    w.view = "graph"
    assert w.survey is None


def test_records_are_plain_and_of_all_samples() -> None:
    w = show(stack_of((4, 2, 12), (2, 1, 12), batches=2), view="heatmap")
    records = w.metrics()
    assert len(records) == 2 * (4 + 2)
    assert list(records[0]) == ["layer", "name", "batch", "head", *NAMES, "rows"]
    kinds = {"layer": int, "name": str, "batch": int, "head": int, "rows": int}
    for record in records:
        for name, value in record.items():
            assert value is None or type(value) is kinds.get(name, float), name
    assert {(one["layer"], one["batch"], one["head"]) for one in records} == {
        (layer, batch, head) for layer, heads in ((0, 4), (1, 2)) for batch in (0, 1) for head in range(heads)
    }
    one = next(one for one in records if (one["layer"], one["batch"], one["head"]) == (1, 1, 1))
    assert one["entropy"] == approx(w.attention[1].metrics(1, 1).entropy, rounding(w.attention[1]).entropy)
    assert all(one["same_token"] is None for one in records)
    assert {one["batch"] for one in w.metrics(batch=-1)} == {1}
    assert {one["rows"] for one in w.metrics(rows=5)} == {4}
    with pytest.raises(IndexError, match="batch 4"):
        w.metrics(4)
    with pytest.raises(ValueError, match="rows"):
        w.metrics(rows=0)


def test_another_sample_other_rules_and_other_tokens() -> None:
    w = show(stack_of((2, 2, 8), batches=2), tokens=[list("abababab"), list("abcdefgh")])
    first = w.survey
    w.batch = 1
    assert w.survey["batch"] == 1
    assert w.survey["metrics"]["same_token"] is None, "no token occurs twice"
    w.batch = 0
    np.testing.assert_array_equal(decode(w.survey["metrics"]["entropy"]), decode(first["metrics"]["entropy"]))
    w.what_if = {"scale": 3.0}
    assert decode(w.survey["metrics"]["entropy"]).max() < decode(first["metrics"]["entropy"]).max()
    w.what_if = {}
    w.tokens = list("aaaabbbb")  # the same for the other sample would not fit
    assert (decode(w.survey["metrics"]["same_token"]) > 0).all()
    w.attention = stack_of((5, 5, 8))
    assert w.survey["layers"][0]["heads"] == 5


def test_a_layer_without_the_sample_has_no_heads() -> None:
    (a,), (b,) = stack_of((2, 2, 8), batches=2), stack_of((3, 3, 8))
    w = show(AttentionStack([a, b]), batch=1)
    assert [layer["heads"] for layer in w.survey["layers"]] == [2, 0]
    assert w.survey["pictures"][1] is None
    assert w.survey["metrics"]["entropy"]["shape"] == [2]


@pytest.mark.parametrize(
    ("layers", "heads", "n"), [(6, 12, 20), (32, 32, 64), (4, 700, 20), (80, 64, 16), (20, 900, 3)]
)
def test_what_is_sent_fits_a_message(front_end: FrontEnd, layers: int, heads: int, n: int) -> None:
    w = show(stack_of(*[(heads, 1, n)] * layers), view="heatmap")
    before = len(front_end.of(w))
    w.view = "heads"
    w.finish()
    sent = [message.size for message in front_end.of(w)[before:] if "survey" in message.state]
    assert sent
    assert max(sent) <= 256 * 1024
    small = w.survey["pictures"][0]["shape"][1:]
    assert small[0] >= min(n, 2)


def test_the_opening_state_of_many_heads_fits_too(front_end: FrontEnd) -> None:
    w = show(stack_of(*[(32, 8, 300)] * 32))
    opening = front_end.of(w)[0]
    bundle = len(w._esm.encode()) + len(w._css.encode())
    assert opening.size - bundle <= 1 << 20
    assert len(w.survey["pictures"]) == 32


def test_long_heads_are_looked_at_in_a_few_exact_rows() -> None:
    w = show(stack_of(*[(8, 2, 4096)] * 3, is_causal=True))
    layer = w.survey["layers"][0]
    assert layer["rows"] == 32
    att = w.attention[2]
    found = next(one for one in w.metrics() if (one["layer"], one["head"]) == (2, 5))
    assert found["rows"] == 32
    assert found["entropy"] == approx(att.metrics(head=5, rows=32).entropy, rounding(att).entropy)
    assert heads_overview.Plan(stack_of((4, 4, 100)), 0).queries == [range(100)]


def test_it_comes_in_slices_and_can_be_left(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads_overview, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(heads_overview, "SLICE_SECONDS", 0.0)

    async def explore() -> None:
        w = show(stack_of(*[(4, 1, 40)] * 6), head=1)
        assert len(w.survey["pictures"]) < 6
        await asyncio.sleep(0)
        w.head = 2  # another picture, and the heads go on
        assert heads_overview.ALL_HEADS in w._scheduler.names
        w.view = "heatmap"
        assert heads_overview.ALL_HEADS not in w._scheduler.names
        assert w.survey is None
        w.view = "heads"
        while w._scheduler.names:
            await asyncio.sleep(0.005)
        counts = [
            len(message.state["survey"]["pictures"]) for message in front_end.of(w) if message.state.get("survey")
        ]
        assert counts == sorted(counts)
        assert counts[-1] == 6
        w.what_if = {"scale": 1.0}
        assert len(w.survey["pictures"]) < 6
        w.finish()
        assert len(w.survey["pictures"]) == 6
        w.close()

    asyncio.run(explore())


def test_a_first_layer_that_takes_long_is_sent_once_it_is_there(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads_overview, "MOST_SECONDS", -1.0)

    async def explore() -> None:
        w = show(stack_of((4, 4, 40)))
        assert w.survey["pictures"] == []
        assert w.survey["error"] is None
        while w._scheduler.names:
            await asyncio.sleep(0.005)
        assert len(w.survey["pictures"]) == 1
        w.close()

    asyncio.run(explore())


def test_what_goes_wrong_is_said(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    w = show(stack_of((2, 2, 8), (2, 2, 8)), view="heatmap")
    own = HeadSampler.steps

    def fail(self: HeadSampler) -> Any:
        if self.att is w.attention[1]:
            raise RuntimeError("out of memory")
        return own(self)

    monkeypatch.setattr(HeadSampler, "steps", fail)
    w.view = "heads"
    assert w.survey["error"] == "out of memory"
    assert len(w.survey["pictures"]) == 1
    monkeypatch.setattr(HeadSampler, "steps", own)
    front_end.ask(w, {"id": "r", "kind": "retry"})
    assert w.survey["error"] is None
    assert len(w.survey["pictures"]) == 2


def test_larger_pictures_are_sent_on_request(front_end: FrontEnd) -> None:
    w = show(stack_of(*[(40, 8, 64)] * 10))
    assert w.survey["pictures"][0]["shape"][1] < 32
    (reply, *refused) = front_end.ask(
        w,
        {"id": "a", "kind": "thumbnails", "layer": 3, "batch": 0, "heads": [5, 9]},
        {"id": "b", "kind": "thumbnails", "layer": 3, "batch": 0, "heads": [5, 41]},
        {"id": "c", "kind": "thumbnails", "layer": 10, "batch": 0, "heads": [0, 1]},
        {"id": "d", "kind": "thumbnails", "layer": 0, "batch": 1, "heads": [0, 1]},
        {"id": "e", "kind": "thumbnails", "layer": 0, "batch": 0, "heads": "all"},
    )
    assert reply["values"]["shape"] == [4, 32, 32]
    values, _ = decode_cells(reply["values"], None)
    wanted = w.attention[3].overview(head=7, size=32).values
    np.testing.assert_allclose(values[2], (wanted / wanted.max()).numpy(), atol=1 / 250)
    assert [one["ok"] for one in refused] == [False] * 4


def test_a_front_end_chooses_bar_and_order(front_end: FrontEnd) -> None:
    w = show(stack_of((2, 2, 8)))
    w.set_state({"bar": "itself", "order": "mean_distance"})
    assert (w.bar, w.order) == ("itself", "mean_distance")
    w.set_state({"bar": "size"})
    assert w.bar == "itself"
    assert "bar" in front_end.refusals(w)[-1]
    w.set_state({"survey": None})
    assert w.survey is not None


def test_a_comparison_shows_the_heads_of_its_first_side() -> None:
    a, b = stack_of((3, 3, 8)), stack_of((3, 3, 8), is_causal=True)
    w = compare(a, b, view="heads")
    assert decode(w.survey["metrics"]["masked_share"]).tolist() == [0, 0, 0]


def test_kinds_and_recall_are_metrics_of_the_view(front_end: FrontEnd) -> None:
    """What is sent of "sink", "streaming" and "recall" is what `find_heads` and `keep` say of each head."""
    make = torch.Generator().manual_seed(3)
    layers = [
        Attention(*torch.randn(2, 1, heads, 90, 8, generator=make) * 2, is_causal=True, sinks=sinks)
        for heads, sinks in ((3, None), (2, torch.tensor([0.5, 2.0])))
    ]
    stack = AttentionStack(layers)
    w = show(stack, view="heads", bar="streaming", order="sink")
    w.finish()
    shown = {name: decode(w.survey["metrics"][name]) for name in ("sink", "streaming")}
    assert w.survey["metrics"]["recall"] is None
    for kind, values in shown.items():
        wanted = {(one["layer"], one["head"]): one["mean"] for one in find_heads(stack, kind=kind, top=None)}
        assert values.tolist() == pytest.approx([wanted[place] for place in sorted(wanted)], rel=1e-4, abs=1e-5)
    for policy in ("window", "heavy_hitters", "tova"):
        w.what_if = {"keep": {"policy": policy, "budget": 20}}
        w.finish()
        found = decode(w.survey["metrics"]["recall"])
        wanted_recall = [one["recall"] for one in stack.keep(policy, 20)]
        assert found.tolist() == pytest.approx(wanted_recall, rel=1e-4, abs=1e-5)
    w.order = w.bar = "recall"


def test_heads_that_cannot_have_the_rules_are_told() -> None:
    make = torch.Generator().manual_seed(3)
    layers = [Attention(*torch.randn(2, 1, 2, 20, 8, generator=make), is_causal=causal) for causal in (True, False)]
    rules = {"keep": {"policy": "window", "budget": 8}}
    w = AttentionWidget.from_attention(AttentionStack(layers), what_if=rules)
    w.view = "heads"
    assert w.survey is None
    assert "query 0 may attend to the later key 1" in w.errors["survey"]
    w.what_if = {}
    assert w.survey is not None
    assert w.errors == {}
