"""Several heads as one: the mean or the maximum of exact weights, at any length."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from front_end import FrontEnd, decode, decode_cells
from tolerance import Bound, rounding
from torch.testing import assert_close

from attnwidget import Attention, AttentionStack, AttentionWidget, compare, masks
from attnwidget._engine.cost import COMBINED, cells, normalizers
from attnwidget._engine.level_cache import LevelCache, LevelKey

HOW = {"mean": lambda x: x.mean(0), "max": lambda x: x.amax(0)}


def bound(*attentions: Attention, added: float = 0.0) -> Bound:
    """Of weights of several heads, added up or the largest of them."""
    return max((rounding(att, added=added).weights for att in attentions), key=lambda one: one["rtol"])


def make(n: int = 40, keys: int | None = None, **rules: Any) -> Attention:
    g, keys = torch.Generator().manual_seed(0), n if keys is None else keys
    shapes = ((6, n, 8), (3, keys, 8), (3, keys, 5))
    q, k, v = (torch.randn(2, *shape, generator=g) for shape in shapes)
    return Attention(q * 2, k, v, **rules)


def dense(att: Attention, heads: list[int], how: str, batch: int = 0) -> torch.Tensor:
    return HOW[how](torch.stack([att.block(batch=batch, head=head) for head in heads]))


@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"is_causal": True},
        {"mask": masks.padding([40, 25])},
        {"window": 5, "softcap": 2.0},
        {"mask": torch.rand(1, 6, 40, 50, generator=torch.Generator().manual_seed(5)) > 0.7},
        {"mask": torch.rand(2, 6, 1, 50, generator=torch.Generator().manual_seed(5)) > 0.7, "is_causal": True},
        {"sinks": torch.linspace(-2, 3, 6)},
        {"bias": lambda score, b, h, q, k: torch.where(k > q - h, score, -torch.inf)},
    ],
)
def test_blocks_are_the_mean_or_the_maximum(how: str, rules: Any) -> None:
    att = make(40, 50, **rules)
    within = bound(att, added=3.0)
    for heads in ([0, 3], [1, 4, 5], [2]):
        one = att.combine(heads, how)
        assert one.shape[:6] == (2, 1, 1, 40, 50, None)
        for batch in (0, 1):
            wanted = dense(att, heads, how, batch)
            assert_close(one.block(batch=batch), wanted, **within)
            assert_close(one.block(batch=batch, queries=[3, 30], keys=slice(5, 9)), wanted[[3, 30], 5:9], **within)
            allowed = torch.stack([att.block("allowed", batch=batch, head=head) for head in heads]).any(0)
            assert torch.equal(one.block("allowed", batch=batch), allowed)
            seen = one.overview(batch, size=10)
            assert_close(seen.values, Attention.from_weights(wanted).overview(size=10).values, **within)
            assert torch.equal(seen.allowed, allowed.view(10, 4, 10, 5).any(3).any(1))


def test_all_that_an_attention_of_weights_can_be_asked() -> None:
    att = make(is_causal=True)
    one, wanted = att.combine(), dense(att, [0, 1, 2, 3, 4, 5], "mean")
    assert one.stages == ("weights",)
    assert "mean of 6 heads" in repr(one)
    keys, weights = one.top_keys(20, 3)
    within = bound(att)
    assert_close(weights, wanted[20].topk(3).values, **within)
    assert_close(weights, wanted[20, keys], **within)
    assert_close(one.statistics().total, torch.ones(40), **within)
    assert one.check() == []
    assert one.metrics().masked_share == pytest.approx(1 - 41 / 80)
    assert_close(one.combine().block(), wanted, **within)
    half = Attention(att.q.half(), att.k.half()).combine()  # type: ignore[union-attr]
    assert half.block().dtype is torch.float32
    assert Attention(att.q.double(), att.k.double()).combine().block().dtype is torch.float64  # type: ignore[union-attr]


def test_what_cannot_be_combined() -> None:
    att = make()
    with pytest.raises(IndexError, match="head 9 is not there"):
        att.combine([0, 9])
    with pytest.raises(ValueError, match="empty"):
        att.combine([])
    with pytest.raises(TypeError, match="list of heads"):
        att.combine("all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="median"):
        att.combine(how="median")
    with pytest.raises(ValueError, match="have only weights, so scores is not known: ask single heads"):
        att.combine().block("scores")
    with pytest.raises(ValueError, match="only weights"):
        att.combine().what_if({"scale": 1.0})


def test_its_cost_is_that_of_its_heads() -> None:
    att = make(60, 70)
    one, everything = att.combine([0, 1, 3]), (range(60), range(70))
    assert cells(one, 0, 0, *everything, "weights") == COMBINED * 3 * 60 * 70
    assert normalizers(one, 0, 0, range(60), "weights") == 3 * 60 * 70
    one.block(queries=range(60), keys=[0])
    assert normalizers(one, 0, 0, range(60), "weights") == 0, "they are the heads' own, and known"
    assert att.known_rows(0, 3, range(att.shape.Q)) is not None


def test_a_level_of_several_heads_is_that_of_their_maximum(tiny_blocks: None) -> None:
    att = make(30, is_causal=True)
    levels = LevelCache(att.combine([0, 2], "max"), largest=20)
    for _ in levels.build(0, 0):
        pass
    kept = levels.find(LevelKey(0, 0, "weights", "max"))
    assert kept is not None
    wanted = Attention.from_weights(dense(att, [0, 2], "max")).overview(size=15).values
    assert_close(kept.overview.values, wanted, **bound(att))


def test_tensors_that_change_are_noticed() -> None:
    q = torch.randn(1, 2, 5, 8)
    att = Attention(q, torch.randn(1, 2, 5, 8))
    one = att.combine()
    before = one.block()
    q.mul_(2)
    with pytest.warns(UserWarning, match="changed in place"):
        after = one.block()
    assert not torch.equal(before, after)


# In the widget.


def show(n: int = 30, **keywords: Any) -> AttentionWidget:
    g = torch.Generator().manual_seed(0)
    return AttentionWidget(*torch.randn(3, 1, 4, n, 8, generator=g), is_causal=True, **keywords)


def test_the_picture_is_of_several_heads_as_one() -> None:
    w = show(heads=[1, 3], head=3, combine="mean")
    assert (w.picture["head"], w.head) == ("mean 1 3", 3)
    wanted = dense(w.attention, [1, 3], "mean").numpy()
    np.testing.assert_allclose(decode(w.picture["values"]), wanted, **bound(w.attention))
    w.combine = "max"
    assert w.picture["head"] == "max 1 3"
    w.heads = [3]
    assert w.picture["head"] == 3
    w.heads = [0, 3, 2]
    assert w.picture["head"] == "max 0 2 3"
    w.stage = "scores"
    assert w.picture["head"] == 3, "only weights are taken together"
    w.stage, w.combine = "weights", "none"
    assert w.picture["head"] == 3
    w.heads, w.combine, w.what_if = [0, 1], "mean", {"scale": 2.0}
    changed = w.attention.what_if({"scale": 2.0})
    wanted = dense(changed, [0, 1], "mean").numpy()
    np.testing.assert_allclose(decode(w.picture["values"]), wanted, **bound(changed))
    with pytest.raises(ValueError, match="median"):
        w.combine = "median"


def test_the_graph_links_them_as_one() -> None:
    w = show(view="graph", heads=[0, 2], combine="mean", top_k=1)
    assert w.links["heads"] == ["mean 0 2"]
    wanted = dense(w.attention, [0, 2], "mean")
    np.testing.assert_allclose(decode(w.links["weights"])[0, :, 0], wanted.amax(1).numpy(), **bound(w.attention))
    w.combine = "none"
    assert w.links["heads"] == [0, 2]


def test_questions_about_them_are_answered(front_end: FrontEnd) -> None:
    w = show(300, heads=[1, 2], head=1, combine="mean")
    wanted = dense(w.attention, [1, 2], "mean").numpy()
    of = {"layer": 0, "batch": 0, "head": "mean 1 2", "stage": "weights"}
    row, ranked, column, tiles = front_end.ask(
        w,
        {"id": "a", "kind": "row", **of, "query": 200},
        {"id": "b", "kind": "ranked", **of, "queries": [250], "count": 4},
        {"id": "c", "kind": "column", **of, "key": 3},
        {"id": "d", "kind": "tiles", **of, "pool": "max", "view": "v", "tiles": [[0, 0, 1, 0]]},
    )
    within = bound(w.attention)
    np.testing.assert_allclose(decode(row["values"]), wanted[200], **within)
    np.testing.assert_allclose(decode(ranked["values"]), np.sort(wanted[250])[::-1][:4], **within)
    np.testing.assert_allclose(decode(column["values"]), wanted[:, 3], **within)
    values, kinds = decode_cells(tiles["tiles"][0]["values"], None)
    shown = kinds == 0
    np.testing.assert_allclose(values[shown], wanted[128:256, :128][shown], rtol=0.05, atol=1e-5)
    refused = front_end.ask(
        w,
        {"id": "e", "kind": "row", **of, "head": "mean 0 1 2 3", "query": 1},
        {"id": "f", "kind": "row", **of, "head": "x" * 10_000, "query": 1},
        {"id": "g", "kind": "row", **of, "layer": 7, "query": 1},
        {"id": "h", "kind": "spread", **of},
    )
    assert [reply["ok"] for reply in refused[:3]] == [False] * 3
    assert refused[3]["ok"], "what weights alone tell"


def test_a_long_one_comes_sampled_and_then_exact(front_end: FrontEnd) -> None:
    async def explore() -> None:
        w = show(6000, heads=[0, 1, 2, 3], combine="max")
        assert w.picture["sampled"] is not None
        of = {"layer": 0, "batch": 0, "head": "max 0 1 2 3", "stage": "weights"}
        ask = {"id": "t", "kind": "tiles", **of, "pool": "max", "view": "v", "tiles": [[3, 3, 1, 1]]}
        (reply,) = front_end.ask(w, ask)
        assert reply["ok"]
        while w._scheduler.names:
            await asyncio.sleep(0.005)
        assert w.picture["sampled"] is None
        assert w.picture["head"] == "max 0 1 2 3"
        assert {message["of"]["head"] for message in front_end.tiles(w)} <= {"max 0 1 2 3"}
        assert all(band["head"] == "max 0 1 2 3" for band in front_end.bands(w))
        (stopped,) = front_end.ask(w, {"id": "p", "kind": "pass", **of, "action": "stop"})
        assert stopped["ok"]

    asyncio.run(explore())


def test_a_comparison_shows_one_head_of_each_side() -> None:
    att = make()
    with pytest.raises(ValueError, match="one head of each side"):
        compare(att, att, combine="mean")
    both = compare(att.combine(), att.combine(how="max"))
    assert both.comparison is not None


# Heads of several layers.


def layers_of_a_stack() -> AttentionStack:
    plain, causal = make(40, is_causal=True), make(40, window=7)
    g = torch.Generator().manual_seed(3)
    given = Attention.from_weights(torch.rand(2, 2, 40, 40, generator=g).softmax(-1))
    sinks = make(40, sinks=torch.linspace(-2, 3, 6), mask=torch.rand(1, 6, 40, 40, generator=g) > 0.6)
    return AttentionStack([plain, causal, given, sinks], ["one", "two", "three", "four"])


@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize(
    ("layers", "heads", "numbers"),
    [(None, None, [0, 1, 2, 3]), ([2, 0], [1], [0, 2]), (slice(1, 3), [0, 1], [1, 2]), (["four", 1], None, [1, 3])],
)
def test_heads_of_layers_are_one_map(layers: Any, heads: list[int] | None, numbers: list[int], how: Any) -> None:
    stack = layers_of_a_stack()
    found = stack.combine(layers, heads, how)
    chosen = [(stack[i], h) for i in numbers for h in (range(stack[i].shape.H) if heads is None else heads)]
    wanted = HOW[how](torch.stack([att.block(batch=1, head=h) for att, h in chosen]))
    within = bound(*(stack[i] for i in numbers if stack[i].q is not None), added=3.0)
    assert_close(found.block(batch=1), wanted, **within)
    assert_close(found.block(batch=1, queries=[3, 39], keys=slice(5, 30)), wanted[[3, 39], 5:30], **within)
    allowed = torch.stack([att.block("allowed", batch=1, head=h) for att, h in chosen]).any(0)
    assert torch.equal(found.block("allowed", batch=1), allowed)
    listed = "0–3" if len(numbers) == 4 else "1–2" if numbers == [1, 2] else ", ".join(map(str, numbers))
    assert found.description[0].endswith(f"of {len(chosen)} heads, layers {listed}")


def test_a_widget_of_layers_says_so_in_its_title() -> None:
    found = layers_of_a_stack().combine()
    w = AttentionWidget.from_attention(found)
    assert w.title == "The mean of 20 heads, layers 0–3"
    assert w.picture["high"] == pytest.approx(float(found.block().max()), rel=1e-3)
    assert AttentionWidget.from_attention(found, title="Mine").title == "Mine"


def test_layers_that_do_not_fit_together_are_refused() -> None:
    stack = AttentionStack([make(40), make(30)])
    with pytest.raises(ValueError, match=r"layer 0 has \(samples, queries, keys\) \(2, 40, 40\), and layer 1 has"):
        stack.combine()
    with pytest.raises(IndexError, match="layer 7"):
        stack.combine([7])
    with pytest.raises(ValueError, match="give at least one layer"):
        stack.combine([])
    with pytest.raises(ValueError, match="no how is called 'sum'"):
        stack.combine([0], how="sum")  # type: ignore[arg-type]
