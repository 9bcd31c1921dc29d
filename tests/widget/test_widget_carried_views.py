"""What weights carry in the graph, by segment and in all heads: each number is that of the stage, and is named so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from carrying import carrying
from tolerance import rounding
from torch.testing import assert_close

from attnwidget import Attention, AttentionStack, AttentionWidget, segments
from attnwidget._engine.softmax import run_to_end
from attnwidget._export.page import snapshot
from attnwidget._messages.answers import requests
from attnwidget._messages.codec.decoding import decode, decode_cells

PARTS = segments({"one": (1, 4), "two": (4, 9)})
STAGES = ("contribution", "value_norm", "logit", "saliency")


def att(seed: int = 0, heads: int = 4) -> Attention:
    make = torch.Generator().manual_seed(seed)
    q = torch.randn(1, heads, 9, 8, generator=make)
    k, v = torch.randn(2, 1, 2, 9, 8, generator=make)
    return carrying(Attention(q, k, v, is_causal=True))


STACK = AttentionStack([att(), att(1)])


def widget(**show: Any) -> AttentionWidget:
    return AttentionWidget(STACK, tokens=list("abcdefghi"), segments=PARTS, **show)


def ask(w: AttentionWidget, **request: Any) -> tuple[dict[str, Any], list[bytes]]:
    made = requests.answer(w._request_context(), {"requests": [{"id": 1, **request}]})
    assert made is not None
    return made[0]["replies"][0], made[1]


@pytest.mark.parametrize("stage", STAGES)
def test_links_are_the_largest_of_the_stage(stage: str) -> None:
    w = widget(view="graph", stage=stage, layer=1, heads=[0, 2])
    assert (w.links["stage"], w.links["sinks"]) == (stage, None)
    partners, numbers = decode(w.links["partners"]), decode(w.links["weights"])
    for at, head in enumerate((0, 2)):
        whole = STACK[1].block(stage, head=head)
        top = whole.abs().topk(3, 1).values
        assert_close(torch.tensor(numbers[at]).abs(), top, **rounding(STACK[1])[stage])
        found = whole.gather(1, torch.tensor(partners[at].astype(np.int64)))
        assert_close(torch.tensor(numbers[at]), found * (torch.tensor(numbers[at]) != 0), **rounding(STACK[1])[stage])


@pytest.mark.parametrize("stage", STAGES)
def test_sums_by_segment_are_those_of_by_segment(stage: str) -> None:
    w = widget(view="segments", stage=stage, layer=1, head=2)
    assert (w.mass["stage"], w.head_mass["stage"], w.mass["error"]) == (stage, stage, None)
    wanted = STACK[1].by_segment(PARTS, head=2, stage=stage).sum  # type: ignore[arg-type]
    found, _ = decode_cells(w.mass["mass"], None)
    assert_close(torch.tensor(found), wanted, rtol=1e-5, atol=1e-5)
    all_heads = STACK.by_segment("two", PARTS, stage=stage).sum[:, :, 0].flatten(0, 1)  # type: ignore[arg-type]
    assert w.mass["asking"] == "two"
    assert_close(torch.tensor(decode_cells(w.head_mass["mass"], None)[0]), all_heads, rtol=1e-5, atol=1e-5)


def test_a_segments_keys_are_the_largest_by_size() -> None:
    w = widget(view="segments", stage="logit")
    reply, buffers = ask(w, kind="segment_keys", of=w.mass["id"], query=8, column=1, count=2)
    row = STACK[0].block("logit", head=0, queries=8)[0, 1:4]
    values = np.frombuffer(buffers[reply["values"]["data"]], np.float32)
    order = row.abs().argsort(descending=True)[:2]
    assert_close(torch.tensor(values.copy()), row[order], rtol=1e-5, atol=1e-6)
    assert reply["rest"]["sum"] == pytest.approx(float(row.sum() - row[order].sum()), abs=1e-5)


def test_beside_effects_and_before_the_weights_masses_are_of_weights() -> None:
    w = widget(view="segments", stage="logit")
    w.stage = "scores"
    assert w.mass["stage"] == w.head_mass["stage"] == "weights"
    w.stage, w.segments_show = "logit", "effect"
    assert w.mass["stage"] == "weights"
    w.segments_show = "attention"
    assert w.mass["stage"] == "logit"


@pytest.mark.parametrize("stage", STAGES)
def test_small_pictures_are_of_the_stage(stage: str) -> None:
    w = widget(stage=stage)
    assert w.thumbnails["stage"] == stage
    highs = decode(w.thumbnails["highs"])
    values, _ = decode_cells(w.thumbnails["values"], None)
    for head in range(4):
        whole = STACK[0].block(stage, head=head)
        assert highs[head] == pytest.approx(float(whole.abs().max()), rel=1e-5)
        shares = (whole / whole.abs().max()).tril()
        assert_close(torch.tensor(values[head]).nan_to_num().tril(), shares, rtol=0, atol=0.5 / 124 + 1e-6)
    w.stage = "scaled"
    assert w.thumbnails["stage"] == "weights"


@pytest.mark.parametrize("query", [None, 7])
def test_heads_are_summed_over_the_keys_of_a_query(query: int | None) -> None:
    w = widget(view="heads", stage="logit", query=query, bar="stage_sum", order="stage_size")
    assert (w.stage_heads["stage"], w.stage_heads["query"], w.stage_heads["error"]) == ("logit", query, None)
    sums, sizes = decode(w.stage_heads["sums"]), decode(w.stage_heads["sizes"])
    for layer in range(2):
        for head in range(4):
            whole = STACK[layer].block("logit", head=head).double()
            rows = whole if query is None else whole[query : query + 1]
            at = 4 * layer + head
            assert sums[at] == pytest.approx(float(rows.sum(1).mean()), abs=1e-5)
            assert sizes[at] == pytest.approx(float(rows.abs().sum(1).mean()), abs=1e-5)
    assert [len(one["shape"]) for one in w.stage_heads["pictures"]] == [3, 3]
    w.stage = "weights"
    assert w.stage_heads is None


def test_larger_pictures_of_a_stage_are_asked_for() -> None:
    w = widget(view="segments", stage="saliency")
    reply, _ = ask(w, kind="thumbnails", layer=1, batch=0, heads=[1, 3], stage="saliency")
    assert reply["values"]["scale"]["kind"] == "linear"
    assert reply["values"]["shape"] == [2, 9, 9]
    refused, _ = ask(w, kind="thumbnails", layer=1, batch=0, heads=[1, 3], stage="scores")
    assert "no stage is called 'scores'" in refused["error"]


def test_a_layer_without_the_stage_shows_no_heads_of_it() -> None:
    one = att()
    plain = Attention(one.q, one.k, one.v, is_causal=True)
    w = AttentionWidget(AttentionStack([one, plain]), view="heads", stage="logit", segments=PARTS)
    assert w.stage_heads["pictures"][1] is None
    assert np.isnan(decode(w.stage_heads["sums"])[4:]).all()
    w.view = "segments"
    assert w.head_mass["heads"] == [4, 0]


def test_the_small_png_of_segments_names_the_sums() -> None:
    from attnwidget._export.still.preview import preview_of

    w = widget(view="segments", stage="logit")
    still = preview_of(w._export_view())
    assert still is not None


def test_a_file_has_links_pictures_and_sums_of_the_stage_and_of_weights() -> None:
    w = widget(view="segments", stage="logit", layer=1, head=2)
    own = snapshot.SavedHead(1, 0, 2)
    steps = snapshot.saving(w._export_view(), [own])
    saved = run_to_end(steps)
    for stage in ("logit", "weights"):
        assert snapshot.key_of([*own, "query", stage]) in saved.links
        assert snapshot.key_of([1, 0, stage]) in saved.derived["thumbnails"]["values"]
        for place in (None, "one"):
            kept = saved.derived["mass"]["values"][snapshot.key_of([*own, place, [], stage])]
            assert (kept["stage"], kept["error"]) == (stage, None)
    values = saved.derived["stage_heads"]["values"]
    heads = values[snapshot.key_of([0, "logit", None])]
    assert heads["query"] is None
    assert len(decode(heads["sums"])) == 8
    queries = w.facts["queries"]
    assert len(values) == 1 + queries
    for query in range(queries):  # of each the same as the widget computes for it alone
        own = values[snapshot.key_of([0, "logit", query])]
        assert [*own] == ["query", "sums", "sizes"]
        w.view, w.query = "heads", query
        w.finish()
        for name in ("sums", "sizes"):
            assert decode(own[name]) == pytest.approx(decode(w.stage_heads[name]), rel=1e-5, abs=1e-6)
