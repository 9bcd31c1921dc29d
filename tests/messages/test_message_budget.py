"""What one message may cost: cells, bytes and memory of all its answers together, whatever it asks."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
import torch
from allocations import PeakBytes
from front_end import Desk, attached, decode
from tolerance import approx, rounding, sums

from attnwidget import Attention, AttentionStack, AttentionWidget
from attnwidget._analysis import all_heads, statistics
from attnwidget._engine import combined_heads, cost, softmax
from attnwidget._engine.level_cache import LevelCache, LevelKey
from attnwidget._messages.answers import long_answers, of_cells, requests, stage_sections
from attnwidget._messages.pictures import heads_overview, picture, tiles
from attnwidget._messages.pictures.stage_pictures import SmallMatrix
from attnwidget._messages.segments import segment_mass

MEGABYTE = 1_000_000
HERE = {"layer": 0, "batch": 0, "head": 0, "stage": "weights", "pool": "max"}


def long(queries: int, keys: int | None = None, size: int = 8, **keywords: Any) -> Attention:
    source = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(n, size, generator=source) for n in (queries, keys or queries, keys or queries))
    return Attention(q, k, v, **keywords)


def desk_of(att: Attention) -> Desk:
    return Desk(AttentionStack([att]))


def ask(desk: Desk, *questions: dict[str, Any]) -> tuple[list[dict[str, Any]], list[bytes]]:
    asked = [{"id": str(at), **HERE, **question} for at, question in enumerate(questions)]
    answered = requests.answer(desk, {"requests": asked})
    assert answered is not None
    return [attached(reply, answered[1]) for reply in answered[0]["replies"]], answered[1]


# Memory.


def test_gradients_hold_nothing_as_large_as_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_answers, "SLICE", 1 << 40)
    att = long(2048)  # 17 MB of weights
    with PeakBytes() as held:
        made = stage_sections.gradients(att, 0, 0)
        made.go_on(cost.CostBudget(1 << 40))
    assert made.whole
    assert held.peak < 17 * MEGABYTE
    found = att.gradients()
    for name in ("v", "weights", "scores", "q", "k"):
        wanted, picture = getattr(found, name), made.made["pictures"][name]
        bound = sums(2048 + 8, 2048 * float(wanted.abs().max()))
        assert (picture["low"], picture["high"]) == (
            approx(float(wanted.min()), bound),
            approx(float(wanted.max()), bound),
        )
        assert (picture["rows"], picture["columns"]) == wanted.shape


def test_numbers_are_pooled_without_a_copy_of_them_unless_some_are_not_finite() -> None:
    x = torch.randn(512, 4096, generator=torch.Generator().manual_seed(0))  # 8 MB
    with PeakBytes() as held:
        found = SmallMatrix(4096, 4096)
        found.add(range(512), x)
    assert held.peak < 2 * MEGABYTE
    picture = found.picture()
    assert (picture["low"], picture["high"]) == (float(x.min()), float(x.max()))


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_the_range_of_a_small_matrix_is_that_of_its_finite_numbers(odd: float) -> None:
    x = torch.randn(40, 300, generator=torch.Generator().manual_seed(0))
    x[7, 31] = 99.0
    x[7, 30] = x[39, 299] = odd  # the first hides the largest in its bin
    found = SmallMatrix(300, 300)
    found.add(range(40), x)
    finite = x[x.isfinite()]
    picture = found.picture()
    assert (picture["low"], picture["high"]) == (float(finite.min()), 99.0)


def test_a_jacobian_holds_a_few_rows() -> None:
    att = long(3, 3000)
    with PeakBytes() as held:
        made = stage_sections.jacobian(att, 1, 0, 0)["picture"]
    assert held.peak < 9 * MEGABYTE  # all of it is 36 MB
    whole = att.jacobian(1)
    assert (made["low"], made["high"]) == (float(whole.min()), float(whole.max()))
    wide = made["row_bin"]
    values = decode(made["values"])
    for row, column in ((0, 0), (5, 5), (3, 90), (124, 120)):
        part = whole[row * wide : (row + 1) * wide, column * wide : (column + 1) * wide].flatten()
        assert values[row, column] == float(part[part.abs().argmax()])


def test_the_largest_of_a_bin_is_looked_for_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    att = long(2048, is_causal=True)
    where = {"kind": "peak", "queries": [0, 2048], "keys": [0, 2048]}
    (whole,), _ = ask(desk_of(att), where)
    monkeypatch.setattr(of_cells, "CELLS_AT_ONCE", 1 << 16)
    desk = desk_of(att)
    desk.stack[0].block(queries=[0])
    with PeakBytes() as held:
        (found,), _ = ask(desk, where)
    assert (found["query"], found["key"]) == (whole["query"], whole["key"])
    weights = att.block()
    assert divmod(int(weights.argmax()), 2048) == (found["query"], found["key"])
    assert held.peak < 17 * MEGABYTE


def test_the_largest_of_a_bin_holds_a_few_rows() -> None:
    desk = desk_of(long(2300))
    desk.stack[0].block(queries=range(2300), keys=[0])
    with PeakBytes() as held:
        (found,), _ = ask(desk, {"kind": "peak", "queries": [252, 2300], "keys": [252, 2300]})
    assert found["ok"]
    assert held.peak < 10 * MEGABYTE  # the bin is 17 MB


def test_a_peak_in_pieces_is_the_first_of_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_cells, "CELLS_AT_ONCE", 4)
    for last, wanted in ((0.5, (1, 2)), (float("nan"), (3, 0)), (float("inf"), (3, 0))):
        x = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.5, 0.4], [0.5, 0.1, 0.1, 0.1], [last, 0.1, 0.2, 0.1]])
        (found,), _ = ask(desk_of(Attention.from_scores(x)), {"kind": "peak", "queries": [0, 4], "keys": [0, 4],
                                                              "stage": "scores"})  # fmt: skip
        assert (found["query"], found["key"]) == wanted


def test_one_message_makes_one_large_overview_of_strongest_pairs() -> None:
    q, k, v = torch.randn(3, 1, 3, 2048, 8, generator=torch.Generator().manual_seed(1))
    desk = desk_of(Attention(q, k, v, window=64, is_causal=True))
    with PeakBytes() as held:
        replies, _ = ask(desk, *[{"kind": "strongest", "count": 3, "head": head} for head in range(3)])
    assert [reply["ok"] for reply in replies] == [True, False, False]
    assert all(reply["error"].endswith("another head: send this request on its own") for reply in replies[1:])
    assert held.peak < 64 * MEGABYTE
    (alone,), _ = ask(desk, {"kind": "strongest", "count": 3, "head": 1})
    assert len(alone["pairs"]) == 3
    known, _ = ask(desk, *[{"kind": "strongest", "count": 3, "head": head} for head in range(2)])
    assert all(reply["ok"] for reply in known)


# Bytes.


@pytest.mark.parametrize(
    "question",
    [
        {"kind": "row", "query": 1},
        {"kind": "gradients"},
        {"kind": "cells", "queries": [0, 1], "keys": [0, 60_000]},
        {"kind": "tiles", "view": "one", "tiles": [[0, 0, 0, column] for column in range(64)]},
    ],
)
def test_a_reply_stays_below_a_mebibyte(question: dict[str, Any]) -> None:
    att = long(300) if question["kind"] == "gradients" else long(4, 60_000)
    replies, buffers = ask(desk_of(att), *[question] * 64)
    assert len(replies) == 64
    assert replies[0]["ok"]
    assert sum(map(len, buffers)) <= 1 << 20
    refused = [reply["error"] for reply in replies if not reply["ok"]]
    assert refused
    assert all("ask for" in said or "send this request" in said for said in refused)


def test_what_is_refused_leaves_no_bytes_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(of_cells.sinks, "of_rows", fails)  # after the numbers are in the buffers
    (reply,), buffers = ask(desk_of(long(8)), {"kind": "row", "query": 1})
    assert (reply["error"], buffers) == ("out of memory", [])


# Cells.


def spent(monkeypatch: pytest.MonkeyPatch, desk: Desk, *questions: dict[str, Any]) -> int:
    """How much of its budget a message has used."""
    kept: list[requests.Message] = []
    message = requests.Message

    def made(context: Any) -> requests.Message:
        kept.append(message(context))
        return kept[0]

    monkeypatch.setattr(requests, "Message", made)
    ask(desk, *questions)
    monkeypatch.setattr(requests, "Message", message)
    return kept[0].budget.most - kept[0].budget.left


@pytest.mark.parametrize(
    ("question", "worth"),
    [
        ({"kind": "jacobian", "query": 1}, cost.JACOBIAN * 500 * 500),
        ({"kind": "ranked", "queries": [0, 1, 2], "count": 3}, cost.RANKED * 4 * 500),
        ({"kind": "peak", "queries": [0, 40], "keys": [0, 500]}, cost.PEAK * 40 * 500),
        ({"kind": "sweep", "own": True}, cost.SWEEP),
        ({"kind": "gradients"}, cost.GRADIENT * 500 * 500),
        ({"kind": "received"}, cost.RECEIVED * 500 * 500),
        ({"kind": "strongest", "count": 32}, 500 * 500 + cost.PAIR * 32),
        ({"kind": "spread"}, cost.STATISTICS * 3 * 500 * 500),
        ({"kind": "thumbnails", "heads": [0, 1]}, cost.SMALL_PICTURE * 500 * 500),
    ],
)
def test_what_is_slower_than_a_picture_counts_for_more(
    question: dict[str, Any], worth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_of(long(500))
    assert spent(monkeypatch, desk, question) == worth
    replies, _ = ask(desk, *[question] * 64)
    many = 64 * worth > cost.MAX_CELLS
    assert not many or not all(reply["ok"] and reply.get("share", 1) == 1 for reply in replies)


def test_rows_that_are_looked_at_first_count_for_more_than_rows_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_sections, "SLICE", 1)  # so that some rows are looked at first
    begun = stage_sections.spread(long(500), 0, 0)
    monkeypatch.setattr(stage_sections, "SLICE", 1 << 40)
    whole = stage_sections.spread(long(500), 0, 0)
    assert whole.begun == 0
    assert begun.begun == cost.SAMPLED * 3 * cost.STATISTICS * 500 * 500  # all 500 are few enough


@pytest.mark.parametrize("first", ["other rules", "retry"])
def test_what_makes_all_anew_counts_for_the_message_that_asks_for_it(first: str) -> None:
    desk = desk_of(long(3, 2000))
    half = {"id": "half", **HERE, "kind": "jacobian", "query": 1}
    worth = cost.JACOBIAN * 2000 * 2000
    asked = [half] * (cost.MAX_CELLS // worth)
    content = {"requests": asked} if first == "retry" else {"what_if": {}, "requests": asked}
    if first == "retry":
        asked.insert(0, {"id": "r", "kind": "retry"})
    made = requests.answer(desk, content)
    assert made is not None
    answered = [reply["ok"] for reply in made[0]["replies"] if reply["id"] == "half"]
    left = (cost.MAX_CELLS - cost.REFRESH) // worth
    assert answered == [at < left for at in range(len(answered))]
    assert 0 < left < len(answered)


# Slices.


def test_a_long_answer_is_first_of_some_queries_and_then_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_answers, "SLICE", 1 << 20)
    monkeypatch.setattr(stage_sections, "SLICE", 1 << 20)
    monkeypatch.setattr(statistics, "QUERIES", 64)
    monkeypatch.setattr(stage_sections, "MAX_SAMPLED_CELLS", 100 * 700)
    att = long(700, is_causal=True)
    desk = desk_of(att)
    found = [ask(desk, {"kind": "spread"})[0][0]]
    while found[-1]["share"] < 1:
        found.append(ask(desk, {"kind": "spread"})[0][0])
    shares = [reply["share"] for reply in found]
    assert shares == sorted(shares)
    assert len(set(shares)) == len(shares) > 3
    assert (found[0]["looked"], found[0]["every"]) == (100, 7)
    some, whole = att.statistics(), found[-1]
    bound = rounding(att).entropy
    np.testing.assert_allclose(decode(found[0]["rows"]["entropy"]), some.entropy[::7].numpy(), **bound)
    assert whole["looked"] == 700
    assert whole["scores_variance"] == approx(some.scores_variance, sums(700, 0, torch.float64))
    np.testing.assert_allclose(decode(whole["rows"]["entropy"]), some.entropy[::2].numpy(), **bound)


def test_a_slice_is_no_longer_than_the_message_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_answers, "SLICE", 1 << 18)
    desk = desk_of(long(600))
    step = cost.STATISTICS * statistics.QUERIES * 600
    assert 0 < spent(monkeypatch, desk, {"kind": "spread"}) <= (1 << 18) + step
    assert 0 < spent(monkeypatch, desk, {"kind": "spread"}) <= (1 << 18) + step


def test_a_very_long_head_is_only_looked_at_here_and_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_sections, "MAX_SPREAD_CELLS", 10_000)
    monkeypatch.setattr(stage_sections, "MAX_SAMPLED_CELLS", 50 * 700)
    (reply,), _ = ask(desk_of(long(700)), {"kind": "spread"})
    assert (reply["share"], reply["looked"], reply["every"]) == (1, 50, 14)


def test_an_answer_that_nobody_asks_for_again_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_answers, "SLICE", 1)
    desk = desk_of(long(40))
    for name in range(9):
        desk.long_answers.answer(name, lambda: long_answers.LongAnswer(iter_of(), 100, {}), cost.CostBudget())
    assert [*desk.long_answers._open] == [*range(9)][-long_answers.MAX_OPEN :]


def several(count: int, length: int, how: str = "mean") -> Attention:
    q, k = torch.randn(2, 1, count, length, 8, generator=torch.Generator().manual_seed(1))
    return Attention(q, k).combine(how=how)


def test_statistics_of_several_heads_count_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, exact_block = [], combined_heads.exact_block

    def counting(*about: Any) -> torch.Tensor:
        found = exact_block(*about)
        counted.append(found.numel())
        return found

    monkeypatch.setattr(combined_heads, "exact_block", counting)
    replies, _ = ask(desk_of(several(8, 3000)), *[{"kind": "spread"}] * 64)
    assert replies[0]["looked"] < 3000  # some rows first
    assert 0 < replies[-1]["share"] < 1
    assert sum(counted) < cost.MAX_CELLS // 3


def test_what_is_said_first_of_many_heads_is_within_the_budget() -> None:
    q, k = torch.randn(2, 1, 32, 3200, 4, generator=torch.Generator().manual_seed(1))
    desk = desk_of(Attention(q, k))
    replies, _ = ask(desk, *[{"kind": "spread", "head": head} for head in range(32)])
    assert replies[0]["ok"]
    assert not replies[-1]["ok"]
    assert "ask for fewer" in replies[-1]["error"]
    assert ask(desk, {"kind": "spread", "head": 31})[0][0]["ok"]


def test_statistics_of_several_heads_are_those_of_their_weights() -> None:
    weights = several(3, 40, "max").block()
    (reply,), _ = ask(desk_of(several(3, 40, "max")), {"kind": "spread"})
    entropy = -torch.xlogy(weights, weights).sum(1) / np.log(2)
    bound = sums(48, float(entropy.max()))
    np.testing.assert_allclose(decode(reply["rows"]["entropy"]), entropy.numpy(), **bound)


def test_tiles_of_several_heads_count_each_of_them() -> None:
    together, one = several(32, 2048), long(2048)
    rows = [
        tiles.tile_rows(
            LevelCache(att), LevelKey(0, 0, "weights", "max"), [tiles.Address(0, 0, at, 0) for at in (0, 1)]
        )
        for att in (together, one)
    ]
    assert tiles._sampling(rows[0]) > tiles._sampling(rows[1])
    asked = [[0, 0, row, column] for row in range(8) for column in range(8)]
    replies, _ = ask(desk_of(together), *[{"kind": "tiles", "view": "one", "tiles": asked}] * 16)
    each = cost.SAMPLED * tiles.MAX_SAMPLED_CELLS + 64 * cost.TILE * cost.COMBINED * 32
    assert 0 < sum(reply["ok"] for reply in replies) <= cost.MAX_CELLS // each


WORDS = [f"{'Ġ' * (at % 3 != 1)}a" for at in range(3000)]  # two of three tokens are a word


def test_words_count_for_what_their_pieces_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell of a word is some of pieces, computed twice; heads of words as one are as many."""
    att = Attention(*torch.randn(2, 1, 4, 3000, 8, generator=torch.Generator().manual_seed(1)))
    of_words = att.merge(WORDS)
    rows = range(100), range(of_words.shape.K)
    assert cost.cells(of_words, 0, 0, *rows, "weights") == cost.WORDS * 100 * 2000
    assert cost.worth_of_a_cell(of_words, 0, 0) == cost.WORDS > cost.COMBINED
    mean = of_words.combine(how="mean")
    assert cost.cells(mean, 0, 0, *rows, "weights") == 4 * 2 * cost.WORDS * 100 * 2000
    assert cost.worth_of_a_cell(mean, 0, 0) == 4 * 2 * cost.WORDS
    assert cost.worth_of_a_cell(att.combine(how="mean"), 0, 0) == 4 * cost.COMBINED


@pytest.mark.parametrize("act", [{"pieces": "words"}, {"view": "heads"}, {"combine": "mean"}])
def test_many_heads_of_words_are_looked_at_within_a_message(
    act: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 32 heads of 65,536 tokens each of these took 1.4 to 3 s of a message."""
    budget = 1 << 22
    for module, name in (
        (heads_overview, "MAX_LAYER_CELLS"), (picture, "MAX_FIRST_CELLS"), (all_heads, "MAX_SAMPLED_CELLS"),
        (all_heads, "MAX_EXACT_CELLS"), (cost, "AT_ONCE"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, budget)
    counted, exact_block = [], softmax.exact_block

    def counting(base: Any, cells: Any, *about: Any) -> torch.Tensor:
        found = exact_block(base, cells, *about)
        counted.append(found.numel() if base.q is not None else 0)
        return found

    q, k = torch.randn(2, 1, 16, 3000, 8, generator=torch.Generator().manual_seed(1))

    async def in_a_kernel() -> None:  # where what is left is computed later
        w = AttentionWidget(q, k, tokens=WORDS, heads=range(16), pieces="pieces" if "pieces" in act else "words")
        monkeypatch.setattr(softmax, "exact_block", counting)
        w.set_state(act)
        monkeypatch.setattr(softmax, "exact_block", exact_block)
        w.close()

    asyncio.run(in_a_kernel())
    each = 3000 * 3000 / 2000 / 2000  # cells of pieces to one of words
    least = 4 * 3000 * each * (16 if "combine" in act else 1)  # rows of the picture of a head, however long
    assert 0 < sum(counted) <= 2 * each * budget / cost.WORDS + least


def test_tokens_between_segments_are_sent_as_many_as_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def window(att: Attention, head: int | str = 0) -> int:
        K = att.shape.K
        columns = segment_mass.Columns(["a", "b"], [1, K - 1], [0, 7], np.minimum(np.arange(K), 1), ())
        rows = segment_mass.Rows(["a", "b"], [np.arange(1), np.arange(1, K)])
        return segment_mass.MassPass(att, segment_mass.Wanted(0, 0, head, (), "b", columns, rows), 1).window

    att = Attention(*torch.randn(2, 1, 4, 3000, 8, generator=torch.Generator().manual_seed(1)))
    assert window(att) == segment_mass.MAX_COLUMNS
    monkeypatch.setattr(segment_mass, "MAX_FIRST_CELLS", 400 * 3000)
    assert (window(att), window(att, "mean 0 1 2 3")) == (400, 100)
    monkeypatch.setattr(segment_mass, "MAX_FIRST_CELLS", 50 * 2000 * cost.WORDS)
    assert window(att.merge(WORDS)) == 50
    assert window(att.merge(WORDS), "max 0 1 2 3") == 12
    monkeypatch.setattr(segment_mass, "MAX_FIRST_CELLS", 0)
    assert window(att) == segment_mass.LEAST_TOKENS


def iter_of() -> Any:
    for _ in range(100):
        yield 1
    return {"whole": True}


def test_tensors_that_change_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_answers, "SLICE", 1)
    monkeypatch.setattr(statistics, "QUERIES", 8)
    q, k = torch.randn(2, 40, 8, generator=torch.Generator().manual_seed(0))
    desk = desk_of(Attention(q, k))
    shares = [ask(desk, {"kind": "spread"})[0][0]["share"] for _ in range(4)]
    q += 1
    with pytest.warns(UserWarning, match="changed in place"):
        again = ask(desk, {"kind": "spread"})[0][0]["share"]
    assert again < shares[-1]


@pytest.mark.parametrize("stage", ["weights", "contribution"])
def test_an_overview_is_made_in_little_more_memory_than_it_keeps(stage: str) -> None:
    """It keeps 5 bytes a bin, 21 MB here; besides, a block and what is made of it are held, and some rows twice."""
    q, k, v = torch.randn(3, 1, 2, 4096, 16, generator=torch.Generator().manual_seed(1))
    desk = desk_of(Attention(q, k, v, window=512, is_causal=True))
    with PeakBytes() as held:
        (reply,), _ = ask(desk, {"kind": "strongest", "count": 1, "head": 1, "stage": stage})
    assert reply["ok"]
    assert held.peak < 5 * 2**22 + 24 * MEGABYTE
