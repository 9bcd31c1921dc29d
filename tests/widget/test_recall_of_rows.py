"""What each row keeps under a cache, as the heatmap colors it: the numbers of `Attention.keep`, also in steps."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
import torch
from front_end import FrontEnd, decode
from tolerance import eps, roundings

from attnwidget import Attention, AttentionStack, AttentionWidget, compare
from attnwidget._export.page import snapshot
from attnwidget._widget.passes import recall_pass

N = 90
WINDOW = {"keep": {"policy": "window", "budget": 12}}
LAST = {"keep": {"policy": "window", "budget": 12, "sinks": 0}}


def tensors(n: int = N) -> torch.Tensor:
    return torch.randn(2, 3, 2, n, 8, generator=torch.Generator().manual_seed(2)) * 2


def shown(w: AttentionWidget) -> np.ndarray[Any, Any]:
    return decode(w.recall["values"])


@pytest.mark.parametrize("policy", [{"policy": "window", "budget": 12}, {"policy": "tova", "budget": 12}])
def test_it_is_what_keep_finds(policy: dict[str, Any]) -> None:
    att = Attention(*tensors(), is_causal=True, sinks=torch.tensor([0.5, -1.0]))
    w = AttentionWidget.from_attention(att, what_if={"keep": policy}, batch=2)
    for head in range(2):
        w.head = head
        wanted = att.keep(**policy, batch=2, head=head).recall.numpy()
        assert (w.recall["layer"], w.recall["batch"], w.recall["head"]) == (0, 2, head)
        np.testing.assert_allclose(shown(w), wanted, rtol=roundings(N) * eps(torch.float32) * 10)
        assert (w.recall["every"], w.recall["share"], w.recall["error"]) == (1, 1, None)


def test_a_budget_of_all_keys_means_the_same_on_the_page() -> None:
    """In JSON 1.0, all keys, is 1, one key; and numbers of numpy are none."""
    short, long = (Attention(*tensors(n), is_causal=True) for n in (N, N + 10))
    for budget, sent in ((1.0, N + 10), (0.5, 0.5), (np.int64(12), 12), (1000, 1000)):
        given = {"keep": {"policy": "heavy_hitters", "budget": budget, "recent": 4}}
        w = AttentionWidget.from_attention(AttentionStack([short, long]), what_if=given, view="stages")
        state = json.loads(json.dumps(w.get_state("what_if")["what_if"]))
        assert state == {"keep": {"policy": "heavy_hitters", "budget": sent, "recent": 4}}
        w.set_state({"what_if": state})  # as the page sends it back beside another change
        w.view = "heatmap"
        assert bool((shown(w) == 1).all()) is (budget in (1.0, 1000))
        sides = compare({"a": short, "b": short.what_if({"scale": 1.0})}, what_if=given)
        assert sides.what_if["keep"]["budget"] == (N if budget == 1.0 else sent)


def test_only_the_heatmap_under_a_cache_has_it() -> None:
    w = AttentionWidget(*tensors(), is_causal=True)
    assert w.recall is None
    w.what_if = WINDOW
    assert w.recall is not None
    w.view = "graph"
    assert w.recall is None


def kept_in_window(att: Attention, head: int, budget: int, batch: int = 0) -> torch.Tensor:
    """Return of each row the weight on the last keys, by a plain sum over dense weights: (Q,) float64."""
    weights = att.block("weights", batch=batch, head=head).double()
    queries, keys = torch.meshgrid(*(torch.arange(n, device="cpu") for n in weights.shape), indexing="ij")
    return (weights * (queries - keys < budget)).sum(1)


def test_of_several_heads_as_one_it_is_the_share_of_their_mean_weights_and_of_the_largest_it_is_refused() -> None:
    att = Attention(*tensors(), is_causal=True)
    w = AttentionWidget.from_attention(att, what_if=LAST)
    w.set_trait("heads", [0, 1])
    w.combine = "mean"
    wanted = (kept_in_window(att, 0, 12) + kept_in_window(att, 1, 12)) / 2
    np.testing.assert_allclose(shown(w), wanted, rtol=roundings(N) * eps(torch.float32) * 10)
    assert w.recall["head"] == w.picture["head"] == "mean 0 1"
    w.combine = "max"
    assert (len(shown(w)), w.recall["head"]) == (0, "max 0 1")
    assert "not shares of a row: look at their mean" in w.recall["error"]


def test_of_a_word_it_is_the_share_of_the_words_row() -> None:
    of_two, of_three = ([f"{'Ġ' if at % size == 0 else ''}t{at}" for at in range(N)] for size in (2, 3))
    att = Attention(*tensors(), is_causal=True)
    samples = [of_two, of_three, of_two]
    w = AttentionWidget.from_attention(att, tokens=samples, what_if=LAST, pieces="words", batch=1)
    wanted = kept_in_window(att, 0, 12, batch=1).reshape(-1, 3).mean(1)
    found = shown(w)
    np.testing.assert_allclose(found[: N // 3], wanted, rtol=roundings(N) * eps(torch.float32) * 10)
    assert np.isnan(found[N // 3 :]).all(), "the other samples have more words"
    w.batch = 2
    wanted = kept_in_window(att, 0, 12, batch=2).reshape(-1, 2).mean(1)
    np.testing.assert_allclose(shown(w), wanted, rtol=roundings(N) * eps(torch.float32) * 10)


def test_a_file_has_it_of_every_head_that_it_has_and_says_why_one_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    att = Attention(*tensors(), is_causal=True)
    w = AttentionWidget.from_attention(att, what_if=LAST, view="graph")
    saved = saved_of(w)["derived"]["recall"]
    assert saved["by"] == ["layer", "batch", "head"]
    for head in range(2):
        found = decode(saved["values"][f"[0,0,{head}]"]["values"])
        np.testing.assert_allclose(found, kept_in_window(att, head, 12), rtol=roundings(N) * eps(torch.float32) * 10)
    monkeypatch.setattr(snapshot, "MAX_RECALL_CELLS", 0)
    w.view = "heatmap"
    values = saved_of(w)["derived"]["recall"]["values"]
    assert values["[0,0,0]"]["error"] is None, "it was shown"
    assert values["[0,0,1]"]["error"].startswith("this head is long and was not computed for this file: select it")
    w.what_if = {}
    assert "recall" not in saved_of(w)["derived"]


def saved_of(w: AttentionWidget) -> dict[str, Any]:
    """Return all that a file holds of all heads."""
    view = w._export_view()
    steps = snapshot.saving(view, snapshot.choices_of(view, heads="all"))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value.whole("")


def test_rows_that_attend_to_nothing_have_none_and_of_very_many_the_least_of_several_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recall_pass, "MAX_NUMBERS", 40)
    mask = torch.ones(N, N).tril().bool()
    mask[3] = False
    att = Attention(*tensors(), mask=mask)
    w = AttentionWidget.from_attention(att, what_if=WINDOW)
    every = att.keep("window", 12).recall.numpy()
    assert np.isnan(every[3])
    assert w.recall["every"] == 3
    np.testing.assert_allclose(shown(w), np.nanmin(every.reshape(-1, 3), 1), rtol=1e-5)


def test_a_long_head_comes_in_steps(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall_pass, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(recall_pass, "SLICE_SECONDS", 0.0)
    n = 3000
    att = Attention(*tensors(n), is_causal=True)

    async def main() -> None:
        w = AttentionWidget.from_attention(att, what_if=WINDOW)
        assert w.recall["share"] < 1
        assert np.isnan(shown(w)).any()
        while w._scheduler.names:
            await asyncio.sleep(0.001)
        assert w.recall["share"] == 1
        wanted = att.keep("window", 12).recall.numpy()
        np.testing.assert_allclose(shown(w), wanted, rtol=roundings(n) * eps(torch.float32) * 10, atol=1e-6)
        w.head = 1
        w.finish()
        np.testing.assert_allclose(shown(w), att.keep("window", 12, head=1).recall.numpy(), rtol=1e-4, atol=1e-6)

    asyncio.run(main())
