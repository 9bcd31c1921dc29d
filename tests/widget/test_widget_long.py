"""A long head: sampled rows at once, the exact picture in slices between whatever else is done, tiles closer up.

What is long is made short here: heads count as long from a few cells on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import comm
import numpy as np
import pytest
import torch
from front_end import BLOCKED, Array, FrontEnd, decode, decode_cells, decode_tokens
from tolerance import approx, rounding

from attnwidget import Attention, AttentionStack, AttentionWidget, masks
from attnwidget._engine import cost, fused_pass, overview, stripe_choice
from attnwidget._engine import level_cache as levels
from attnwidget._engine.level_cache import LevelBuild
from attnwidget._engine.regions import Region
from attnwidget._messages.codec import encoding
from attnwidget._messages.pictures import picture, tiles

AT = {"layer": 0, "batch": 0, "head": 0, "stage": "weights"}
Q, K = 5000, 3000  # levels 2 and 1 are kept, bins of 12 × 6 cells drawn


@pytest.fixture(autouse=True)
def long_from_few_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "AT_ONCE", 1000)


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step for each block, and word after each, so that something can happen at any point."""
    monkeypatch.setattr(fused_pass, "CELLS_AT_ONCE", 1 << 19)
    monkeypatch.setattr(stripe_choice, "MOST_QUERIES", 512)
    monkeypatch.setattr(picture, "LIMITS", picture.Limits(report=0, estimate=0, slice=0))


def tensors(queries: int = Q, keys: int = K, heads: int = 1, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    q, k = torch.randn(1, heads, queries, 4, generator=source), torch.randn(1, heads, keys, 4, generator=source)
    return 2 * q, k


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 120))  # type: ignore[arg-type]


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def is_done(w: AttentionWidget) -> Callable[[], bool]:
    return lambda: w.progress is None


def drawn(made: dict[str, Any]) -> tuple[Array, Array]:
    return decode_cells(made["values"], made.get("blocked"))


def in_bins(cells: torch.Tensor, pool: str, query_bin: int, key_bin: int) -> Array:
    """Cells pooled by hand, the last bins ragged."""
    found = cells.double().numpy()
    for axis, width in ((0, query_bin), (1, key_bin)):
        starts = np.arange(0, found.shape[axis], width)
        if pool == "max":
            found = np.maximum.reduceat(found, starts, axis)
        else:
            sizes = np.diff([*starts, found.shape[axis]])
            found = np.add.reduceat(found, starts, axis) / (sizes[:, None] if axis == 0 else sizes)
    return found


def pooled(att: Attention, stage: str, pool: str, query_bin: int, key_bin: int) -> Array:
    """A stage of the whole matrix, pooled by hand."""
    return in_bins(att.block(stage), pool, query_bin, key_bin)


def assert_close(found: Array, wanted: Array, kinds: Array, *, low: float | None = None) -> None:
    """Within the steps of a quantised picture; what is below its range is some small number."""
    shown = kinds == 0
    high = np.abs(wanted[np.isfinite(wanted)]).max()
    np.testing.assert_allclose(found[shown], wanted[shown], rtol=0.03, atol=high / 60_000 if low is None else low)


# The picture.


def test_the_first_picture_is_of_exact_rows_and_says_so(front_end: FrontEnd) -> None:
    q, k = tensors()
    w = AttentionWidget(q, k)
    state = front_end.state(w)
    assert state["picture"] == front_end.of(w)[0].state["picture"], "with the opening state"
    assert (state["picture"]["query_bin"], state["picture"]["key_bin"]) == (12, 6)
    assert state["picture"]["sampled"] == {"first": 7, "every": 12, "exact": 0}
    values, kinds = drawn(state["picture"])
    rows = w.attention.block(queries=range(7, Q, 12))
    wanted = torch.stack([part.amax(1) for part in rows.split(6, 1)], 1).double().numpy()
    assert values.shape == wanted.shape == (417, 500)
    assert_close(values, wanted, kinds)
    assert state["picture"]["high"] == approx(rows.max().item(), rounding(w.attention).weights)
    assert w.attention.known_rows(0, 0, range(7, Q, 12)) is not None, "they need not be computed again"
    assert state["progress"] == {**AT, "pool": "max", "share": 0.0, "seconds_left": None, "state": "stopped"}


@pytest.mark.parametrize("pool", ["max", "mean"])
@pytest.mark.parametrize(("stage", "signed"), [("weights", False), ("masked", True), ("contribution", False)])
def test_the_picture_becomes_exact_on_the_loop(stage: str, signed: bool, pool: str, front_end: FrontEnd) -> None:
    q, k = tensors(3000, 2500)
    w = AttentionWidget(q, k, torch.randn(1, 1, 2500, 3), is_causal=True, stage=stage, pool=pool)

    async def main() -> None:
        w.stage = "scores"
        w.stage = stage
        assert w.progress["state"] == "running"
        await until(is_done(w))

    run(main)
    made = front_end.state(w)["picture"]
    assert (made["sampled"], made["error"], made["own_keys"]) == (None, None, 2500)
    values, kinds = drawn(made)
    seen = overview.OverviewPass(
        w.attention,
        Region(0, 0, range(3000), range(2500), made["query_bin"], made["key_bin"]),
        stage,
        pool,
        1e9,
    ).finish()
    assert np.array_equal(kinds == BLOCKED, ~seen.allowed.numpy())
    wanted = seen.values.double().numpy()
    high = np.abs(wanted[seen.allowed.numpy()]).max()
    assert_close(values, wanted, kinds, low=high / 100 if signed else None)


@pytest.mark.usefixtures("short_slices")
def test_bands_put_together_are_the_exact_picture(front_end: FrontEnd) -> None:
    q, k = tensors()
    w = AttentionWidget(q, k, is_causal=True)

    async def main() -> None:
        w.pool = "mean"
        w.pool = "max"
        await until(is_done(w))

    run(main)
    bands = [band for band in front_end.bands(w) if band["pool"] == "max"]
    assert len(bands) > 1
    edges = [0, *(band["stop"] for band in bands)]
    assert [band["start"] for band in bands] == edges[:-1]
    assert all(
        {name: band[name] for name in ("layer", "batch", "head", "stage", "pool", "version")}
        == {**AT, "pool": "max", "version": 0}
        for band in bands
    )
    rows = np.concatenate([drawn(band)[0] for band in bands])
    kinds = np.concatenate([drawn(band)[1] for band in bands])
    exact, exact_kinds = drawn(w.picture)
    assert len(rows) >= 400
    assert np.array_equal(kinds, exact_kinds[: len(rows)])
    np.testing.assert_allclose(rows[kinds == 0], exact[: len(rows)][kinds == 0], rtol=0.06, atol=1e-4)
    lows, highs = [band["low"] for band in bands], [band["high"] for band in bands]
    assert lows == sorted(lows, reverse=True)
    assert highs == sorted(highs)
    assert (min(lows), max(highs)) == pytest.approx((w.picture["low"], w.picture["high"]), rel=0.5)
    assert max(message.size for message in front_end.of(w)[1:]) <= 256 * 1024


@pytest.mark.usefixtures("short_slices")
def test_progress_grows_to_the_end_with_the_time_that_is_left(front_end: FrontEnd) -> None:
    q, k = tensors(2100, 1500)
    w = AttentionWidget(q, k)
    told: list[Any] = []
    w.observe(lambda change: told.append(change["new"]), "progress")

    async def main() -> None:
        w.pool = "mean"
        await until(is_done(w))

    run(main)
    assert told[-1] is None
    mean = [one for one in told if one and one["pool"] == "mean"]
    assert {one["state"] for one in mean} == {"running"}
    shares = [one["share"] for one in mean]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert 0.5 < shares[-1] <= 1
    assert mean[0]["seconds_left"] is None
    assert all(one["seconds_left"] is None or one["seconds_left"] >= 0 for one in mean[1:])


@pytest.mark.thorough
def test_word_comes_at_most_four_times_a_second(front_end: FrontEnd) -> None:
    q, k = tensors(9000, 4000)
    w = AttentionWidget(q, k)
    begun = time.monotonic()

    async def main() -> None:
        w.pool = "mean"
        await until(is_done(w))

    run(main)
    assert len(front_end.bands(w)) <= 4 * (time.monotonic() - begun) + 1


def test_a_few_queries_are_exact_at_once_over_any_number_of_keys(front_end: FrontEnd) -> None:
    q, k = tensors(300, 9000)
    w = AttentionWidget(q, k)
    assert (w.picture["sampled"], w.progress) == (None, None)
    assert w.picture["query_bin"] == 1


def test_few_queries_are_not_pooled_more_than_they_must(front_end: FrontEnd) -> None:
    q, k = tensors(600, 9000)
    w = AttentionWidget(q, k)
    assert (w.picture["query_bin"], w.picture["key_bin"]) == (2, 24)
    w.finish()
    assert_close(drawn(w.picture)[0], pooled(w.attention, "weights", "max", 2, 24), drawn(w.picture)[1])


def test_finish_computes_the_exact_picture_where_no_loop_runs(
    front_end: FrontEnd, capsys: pytest.CaptureFixture[str]
) -> None:
    q, k = tensors()
    w = AttentionWidget(q, k)
    assert w.picture["sampled"] is not None
    w.finish(progress=True)
    assert "100%" in capsys.readouterr().err
    assert (w.picture["sampled"], w.progress) == (None, None)
    assert_close(drawn(w.picture)[0], pooled(w.attention, "weights", "max", 12, 6), drawn(w.picture)[1])
    assert front_end.state(w)["picture"]["sampled"] is None
    w.finish()
    short = AttentionWidget(q[:, :, :5], k[:, :, :5])
    short.finish(progress=True)


def test_a_head_that_was_visited_is_exact_at_once(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = tensors(2100, 600, heads=3)
    w = AttentionWidget(q, k)
    w.finish()
    before = drawn(w.picture)[0]
    w.head = 1
    assert w.picture["sampled"] is not None
    w.head = 0
    assert (w.picture["sampled"], w.progress) == (None, None)
    assert np.array_equal(drawn(w.picture)[0], before)
    w.stage = "scores"
    assert w.picture["sampled"] is not None


@pytest.mark.usefixtures("short_slices")
@pytest.mark.parametrize("act", ["head", "stage", "pool", "update", "attention", "close", "front-end"])
def test_what_is_no_longer_wanted_is_not_computed(act: str, front_end: FrontEnd) -> None:
    q, k = tensors(2100, 2100, heads=2)

    async def main() -> None:
        w = AttentionWidget(q, k)
        await until(lambda: w.progress["share"] > 0.1)
        old, scheduler = w._exact_pass.build, w._scheduler
        assert old is not None
        {
            "head": lambda: setattr(w, "head", 1),
            "stage": lambda: setattr(w, "stage", "scores"),
            "pool": lambda: setattr(w, "pool", "mean"),
            "update": lambda: w.update(q + 1, k),
            "attention": lambda: setattr(w, "attention", Attention(q + 1, k)),
            "close": w.close,
            "front-end": lambda: w.set_state({"head": 1}),
        }[act]()
        share, sent = old.share, len(front_end.messages)
        if act == "close":
            await asyncio.sleep(0.1)
            assert len(front_end.messages) == sent
        else:
            await until(is_done(w))
            assert w.picture["sampled"] is None
            names = [(band["version"], band["head"], band["stage"], band["pool"]) for band in front_end.bands(w)]
            assert names == sorted(names, key=lambda name: name != (0, 0, "weights", "max")), (
                "nothing of the old one later"
            )
        assert old.share == share
        assert not scheduler.names

    run(main)


@pytest.mark.usefixtures("short_slices")
def test_log_normalizers_of_a_pass_that_was_given_up_stay_known() -> None:
    q, k = tensors(9000, 600)  # more than is checked unbidden, which takes all rows

    async def main() -> None:
        w = AttentionWidget(q, k)
        await until(lambda: w.progress["share"] > 0.1)
        w.stage = "scores"
        assert w.attention.known_rows(0, 0, range(512)) is not None
        assert w.attention.known_rows(0, 0, range(w.attention.shape.Q)) is None

    run(main)


@pytest.mark.usefixtures("short_slices")
def test_it_is_stopped_and_resumed_where_it_stopped(front_end: FrontEnd) -> None:
    q, k = tensors(9000, 600)

    async def main() -> None:
        w = AttentionWidget(q, k)
        await until(lambda: w.progress["share"] > 0.5)
        (reply,) = front_end.ask(w, {"id": "1", "kind": "pass", "action": "stop", **AT})
        assert reply == {"id": "1", "ok": True}
        stopped = dict(w.progress)
        assert (stopped["state"], stopped["seconds_left"]) == ("stopped", None)
        await asyncio.sleep(0.1)
        assert w.progress == stopped
        assert w.picture["sampled"]["exact"] > 50, "what is exact by then can be saved"
        exact = w.picture["sampled"]["exact"]
        whole = pooled(w.attention, "weights", "max", w.picture["query_bin"], w.picture["key_bin"])
        values, kinds = drawn(w.picture)
        assert_close(values[:exact], whole[:exact], kinds[:exact])
        assert (values[exact:] <= whole[exact:] * 1.03).all()
        (reply,) = front_end.ask(w, {"id": "2", "kind": "pass", "action": "resume", **AT})
        assert reply["ok"]
        assert w.progress["state"] == "running"
        assert w.progress["share"] >= stopped["share"]
        await until(is_done(w))
        assert_close(drawn(w.picture)[0], whole, drawn(w.picture)[1])
        for action in ("stop", "resume"):  # there is nothing left to stop
            (reply,) = front_end.ask(w, {"id": "3", "kind": "pass", "action": action, **AT})
            assert reply["ok"]
        (reply,) = front_end.ask(w, {"id": "4", "kind": "pass", "action": "stop", **AT, "stage": "scores"})
        assert reply["error"] == "another picture is selected now"

    run(main)


@pytest.mark.usefixtures("short_slices")
def test_a_page_that_is_loaded_again_has_what_is_exact_by_then(front_end: FrontEnd) -> None:
    q, k = tensors(9000, 600)

    async def main() -> None:
        w = AttentionWidget(q, k)
        await until(lambda: w.progress["share"] > 0.5)
        sent = len(front_end.of(w))
        w.send_state()
        (message,) = front_end.of(w)[sent:]
        made = message.state["picture"]
        assert made["sampled"]["exact"] >= max(band["stop"] for band in front_end.bands(w)) > 0
        rows = made["sampled"]["exact"]
        values, kinds = drawn(made)
        assert_close(values[:rows], pooled(w.attention, "weights", "max", *bins(w))[:rows], kinds[:rows])
        w.close()

    run(main)


def test_what_stayed_sampled_for_want_of_a_loop_is_resumed_with_one(front_end: FrontEnd) -> None:
    q, k = tensors(2100, 600)
    w = AttentionWidget(q, k)

    async def main() -> None:
        front_end.ask(w, {"id": "1", "kind": "pass", "action": "resume", **AT})
        await until(is_done(w))

    run(main)
    assert w.picture["sampled"] is None


@pytest.mark.usefixtures("short_slices")
def test_questions_are_answered_while_it_runs(front_end: FrontEnd) -> None:
    q, k = tensors(20_000, 20_000)

    async def main() -> None:
        w = AttentionWidget(q, k)
        await until(lambda: w.progress["share"] > 0)
        for query in (0, 19_999):
            (reply,) = front_end.ask(w, {"id": "1", "kind": "row", "query": query, **AT})
            row = w.attention.block(queries=query)[0].numpy()
            np.testing.assert_allclose(decode(reply["values"]), row, **rounding(w.attention).weights)
        assert w.progress["share"] < 1, "it goes on meanwhile"
        w.close()

    run(main)


def test_an_error_on_the_way_becomes_the_pictures(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    q, k = tensors(2100, 2100)
    whole = LevelBuild.__next__

    def failing(self: LevelBuild) -> float:
        if self.share > 0:
            raise RuntimeError("CUDA out of memory. Tried to allocate 97.00 GiB")
        return whole(self)

    async def main() -> None:
        w = AttentionWidget(q, k)
        with monkeypatch.context() as patch:
            patch.setattr(LevelBuild, "__next__", failing)
            await until(is_done(w))
        state = front_end.state(w)["picture"]
        assert state["error"] == "CUDA out of memory. Tried to allocate 97.00 GiB"
        assert (state["values"], state["sampled"], state["queries"]) == (None, None, 2100)
        (reply,) = front_end.ask(w, {"id": "again", "kind": "retry"})
        assert reply["ok"]
        await until(is_done(w))
        assert w.picture["error"] is None

    with caplog.at_level(logging.INFO):
        run(main)
    assert caplog.records == []


@pytest.mark.usefixtures("short_slices")
@pytest.mark.filterwarnings("ignore:.*changed")
def test_tensors_that_change_on_the_way_are_said(front_end: FrontEnd) -> None:
    q, k = tensors(20_000, 20_000)

    async def main() -> None:
        w = AttentionWidget(q, k)
        await until(lambda: w.progress["share"] > 0)
        q.neg_()
        await until(is_done(w))
        assert "the tensors changed" in w.picture["error"]

    run(main)


def test_an_interrupt_of_finish_loses_nothing(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = tensors(9000, 600)
    w = AttentionWidget(q, k)
    whole = levels.pooled
    steps = iter(range(10**6))

    def interrupted(*about: Any, **options: Any) -> Iterator[Any]:
        found = whole(*about, **options)
        while True:
            if next(steps) == 20:
                raise KeyboardInterrupt
            try:
                yield next(found)
            except StopIteration as end:
                return end.value

    with monkeypatch.context() as patch:
        patch.setattr(levels, "pooled", interrupted)
        with pytest.raises(KeyboardInterrupt):
            w.finish()
    assert w.picture["sampled"] is not None
    assert w._exact_pass.build is not None
    assert w._exact_pass.build.rows > 0
    w.finish()
    assert_close(drawn(w.picture)[0], pooled(w.attention, "weights", "max", *bins(w)), drawn(w.picture)[1])


def bins(w: AttentionWidget) -> tuple[int, int]:
    return w.picture["query_bin"], w.picture["key_bin"]


def test_a_padded_samples_own_length_is_known_from_the_start(front_end: FrontEnd) -> None:
    q, k = tensors(2100, 2100)
    w = AttentionWidget(q, k, mask=masks.padding([1801]))
    assert w.picture["own_keys"] == 1801
    w.finish()
    assert w.picture["own_keys"] == 1801
    short = torch.arange(2100) < 1801
    other = AttentionWidget(q, k, mask=short[None, :].expand(2100, 2100), mask_dims="qk")
    assert other.picture["own_keys"] == 1801
    other.finish()
    assert other.picture["own_keys"] == 1801


def test_another_thread_leaves_one_state_while_a_pass_runs(front_end: FrontEnd) -> None:
    q, k = tensors(3000, 3000, heads=4)
    failures: list[BaseException] = []

    async def main() -> None:
        w = AttentionWidget(q, k)

        def elsewhere() -> None:
            try:
                for n in range(30):
                    w.set_state({"head": n % 4, "pool": ("max", "mean")[n % 2]})
                    w._receive(w, {"requests": [{"id": str(n), "kind": "row", "query": 2, **AT}]}, [])
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        await until(lambda: not thread.is_alive())
        await until(is_done(w))
        assert (w.picture["head"], w.picture["pool"], w.picture["sampled"]) == (w.head, w.pool, None)
        w.close()

    run(main)
    assert failures == []


def test_levels_of_all_layers_share_one_budget(front_end: FrontEnd) -> None:
    q, k = tensors(2100, 600, heads=2)
    w = AttentionWidget.from_attention(AttentionStack([Attention(q, k) for _ in range(3)]))
    for layer in range(3):
        w.layer = layer
        w.finish()
    kept = [w._shown.levels(layer) for layer in range(3)]
    assert len({id(levels._store) for levels in kept}) == 1
    assert kept[0].nbytes == kept[2].nbytes > 0
    w.update(q, k)
    assert w._shown.levels(0).nbytes == 0


# Bytes, and tokens.


@pytest.mark.parametrize("n", [65_537, *(pytest.param(n, marks=pytest.mark.thorough) for n in (131_072, 1_048_576))])
def test_the_opening_state_is_small_at_any_length(n: int, front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(comm, "create_comm", front_end.create_comm)
    q, k = torch.randn(2, 1, 3, n, 2, generator=torch.Generator().manual_seed(0)).half()
    tokens = [f"Ġtoken{at}" for at in range(n)]
    w = AttentionWidget(q, k, tokens=tokens)
    (opened,) = front_end.of(w)
    bundle = sum(len(opened.state[name].encode()) for name in ("_esm", "_css"))
    assert opened.size - bundle <= 1 << 20
    state = front_end.state(w)
    for name in ("tokens", "key_tokens"):
        assert state[name]["length"] == n
        assert decode_tokens(state[name]) == tokens[:4096]
    w.head = 1
    w.set_state({"stage": "scores"})
    where = {"layer": 0, "batch": 0}
    front_end.ask(w, {"id": "1", "kind": "tokens", **where, "side": "key", "start": n - 4096, "stop": n})
    top = (n - 1).bit_length() - 9  # about the whole of it, in 4 × 4 tiles
    ask_tiles(front_end, w, *([top, top, row, column] for row in range(4) for column in range(4)), head=1)
    ask_tiles(front_end, w, *([0, 0, 5, column] for column in range(4)), head=1)
    front_end.ask(w, {"id": "1", "kind": "ranked", **AT, "queries": [n - 1], "count": 64})
    assert max(message.size for message in front_end.of(w)[1:]) <= 256 * 1024


def test_the_opening_state_is_small_with_any_number_of_heads(front_end: FrontEnd) -> None:
    q, k = torch.randn(2, 1, 1024, 700, 2)
    w = AttentionWidget(q, k)
    (opened,) = front_end.of(w)
    bundle = sum(len(opened.state[name].encode()) for name in ("_esm", "_css"))
    assert opened.size - bundle <= 1 << 20
    assert w.thumbnails["values"]["shape"][0] == 1024
    assert AttentionWidget(q[:, :32], k[:, :32]).thumbnails["values"]["shape"] == [32, 32, 32]


def test_pages_put_together_are_all_tokens(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "WHOLE_TOKENS", 1000)
    tokens = [f"{at} naïve 日本" * (at % 3) for at in range(9000)]
    w = AttentionWidget(torch.randn(9000, 2), torch.randn(9000, 2), tokens=tokens)
    found = decode_tokens(front_end.state(w)["tokens"]) or []
    while len(found) < 9000:
        question = {"id": "1", "kind": "tokens", "layer": 0, "batch": 0, "side": "query"}
        stop = min(9000, len(found) + 4096)
        (reply,) = front_end.ask(w, {**question, "start": len(found), "stop": stop})
        found += decode_tokens(reply) or []
    assert found == tokens
    (reply,) = front_end.ask(
        w, {"id": "1", "kind": "find", "layer": 0, "batch": 0, "side": "key", "text": "8999", "start": 5, "count": 3}
    )
    assert (reply["positions"], reply["total"]) == ([8999], 1)


def test_tokens_that_are_pages_long_are_cut(front_end: FrontEnd) -> None:
    tokens = ["é" * 10**6, "short", *["x" * 5000] * 98]
    w = AttentionWidget(torch.randn(100, 2), torch.randn(100, 2), tokens=tokens)
    assert front_end.of(w)[0].size - sum(len(front_end.state(w)[name].encode()) for name in ("_esm", "_css")) < 1 << 20
    sent = decode_tokens(front_end.state(w)["tokens"]) or []
    assert [len(sent), sent[1]] == [100, "short"]
    assert sent[0].endswith("é…")
    assert w.tokens is tokens


def test_tokens_are_sent_again_only_if_they_are_others(front_end: FrontEnd) -> None:
    q, k = torch.randn(2, 3, 2, 2, 8, 4).unbind(0)
    w = AttentionWidget(q, k, tokens=list("abcdefgh"))
    sent = len(front_end.of(w))
    w.layer, w.batch = 1, 1
    assert "tokens" not in {name for message in front_end.of(w)[sent:] for name in message.state}


# Tiles.


def ask_tiles(front_end: FrontEnd, w: AttentionWidget, *addresses: list[int], view: str = "a", **of: Any) -> Any:
    where = {**AT, "pool": w.pool, "view": view, **of}
    (reply,) = front_end.ask(w, {"id": "t", "kind": "tiles", **where, "tiles": list(addresses)})
    return reply


def check_tile(w: AttentionWidget, tile: dict[str, Any], stage: str = "weights", pool: str = "max") -> None:
    """A tile equals the dense matrix, pooled: all of its rows, or the sampled ones."""
    row_level, column_level, row, column = tile["tile"]
    top, left = row * 128 << row_level, column * 128 << column_level
    shape = w.attention.shape
    rows = range(top, min(shape.Q, top + (128 << row_level)))
    keys = range(left, min(shape.K, left + (128 << column_level)))
    if tile["every"] > 1:
        rows = range(tile["first"], rows.stop, tile["every"])
        assert top <= tile["first"] < top + tile["every"]
    else:
        assert tile["first"] == top
    where = {"queries": rows, "keys": keys}
    many = 1 if tile["every"] > 1 else 1 << row_level
    wanted = in_bins(w.attention.block(stage, **where), pool, many, 1 << column_level)
    opens = in_bins(w.attention.block("allowed", **where), "max", many, 1 << column_level) > 0
    values, kinds = drawn(tile)
    assert values.shape == wanted.shape
    assert max(values.shape) <= 128
    assert np.array_equal(kinds == BLOCKED, ~opens)
    if not (kinds == BLOCKED).all():
        assert_close(
            values, wanted, kinds, low=tile["high"] / 50_000 * 1.1 if stage == "weights" else tile["high"] / 50
        )
        bound = rounding(w.attention).pooled(stage, many << column_level)
        assert tile["high"] == approx(wanted[kinds == 0].max(), bound)


@pytest.mark.parametrize("pool", ["max", "mean"])
@pytest.mark.parametrize("finished", [True, False])
def test_quick_tiles_of_every_level_are_in_the_reply(
    pool: str, finished: bool, front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k = tensors(700, 3000)
    w = AttentionWidget(q, k, is_causal=True, pool=pool)
    if finished:
        w.finish()
    monkeypatch.setattr(cost, "AT_ONCE", 1 << 26)
    addresses = [[0, 0, 5, 3], [0, 3, 1, 0], [1, 1, 2, 2], [2, 4, 1, 1], [3, 4, 0, 0], [10, 12, 0, 0], [0, 0, 0, 9]]
    reply = ask_tiles(front_end, w, *addresses)
    assert sorted(tile["tile"] for tile in reply["tiles"]) == sorted(addresses)
    for tile in reply["tiles"]:
        assert tile["every"] == 1
        check_tile(w, tile, pool=pool)


def test_tiles_of_one_row_compute_their_log_normalizers_once(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k = tensors(700, 9000)
    w = AttentionWidget(q, k)
    monkeypatch.setattr(cost, "AT_ONCE", 1 << 26)
    rows: list[int] = []
    normalizing = overview.normalizing

    def counted(head: Any, queries: Any) -> Any:
        rows.append(len(queries))
        return normalizing(head, queries)

    monkeypatch.setattr(overview, "normalizing", counted)
    ask_tiles(front_end, w, *([0, 0, 2, column] for column in range(30)))
    assert rows == [128]


def test_slow_tiles_come_sampled_first_then_exact(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = tensors(5000, 700)
    monkeypatch.setattr(tiles, "MAX_SAMPLED_CELLS", 60 * 700)
    asked = [[3, 1, row, column] for row in (1, 2) for column in (0, 1)]

    async def main() -> None:
        w = AttentionWidget(q, k)
        w._scheduler.drop("pass")  # so that it does not get there first
        reply = ask_tiles(front_end, w, *asked)
        assert sorted(tile["tile"] for tile in reply["tiles"]) == asked
        assert {tile["every"] for tile in reply["tiles"]} == {64}
        for tile in reply["tiles"]:
            check_tile(w, tile)
        await until(lambda: not w._scheduler.names)
        messages = front_end.tiles(w)
        assert [message["of"] for message in messages] == [{**AT, "pool": "max", "version": 0, "view": "a"}] * 4
        assert [{tile["every"] for tile in message["tiles"]} for message in messages] == [{8}, {8}, {1}, {1}]
        for message in messages:
            for tile in message["tiles"]:
                check_tile(w, tile)
        for part in (messages[:2], messages[2:]):
            assert sorted(tile["tile"] for message in part for tile in message["tiles"]) == asked
        assert len(w._tile_queue._pending) == 0
        w.close()

    run(main)


def test_where_no_loop_runs_slow_tiles_stay_sampled(front_end: FrontEnd) -> None:
    q, k = tensors(5000, 700)
    w = AttentionWidget(q, k)
    reply = ask_tiles(front_end, w, [3, 1, 1, 0])
    assert [tile["every"] > 1 for tile in reply["tiles"]] == [True]
    assert front_end.tiles(w) == []


def test_a_view_that_has_moved_on_gets_its_new_tiles_only(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = tensors(5000, 700)
    computed: list[tuple[str, int]] = []
    through = tiles.TileQueue._through

    def watched(self: Any, pending: Any, steps: Any) -> Any:
        computed.append((pending.of["view"], pending.slow[0].addresses[0].row))
        return through(self, pending, steps)

    monkeypatch.setattr(tiles.TileQueue, "_through", watched)

    async def main() -> None:
        w = AttentionWidget(q, k)
        w._scheduler.drop("pass")
        ask_tiles(front_end, w, [3, 0, 0, 0], view="a")
        ask_tiles(front_end, w, [3, 0, 1, 0], view="b")
        ask_tiles(front_end, w, [3, 0, 2, 0], view="a")
        await until(lambda: not w._scheduler.names)
        sent = [(message["of"]["view"], message["tiles"][0]["tile"][2]) for message in front_end.tiles(w)]
        assert set(sent) == {("a", 2), ("b", 1)}
        assert sent.index(("a", 2)) < sent.index(("b", 1)), "the newest question first"
        assert ("a", 0) not in computed
        w.close()

    run(main)


def test_only_so_many_views_are_due(front_end: FrontEnd) -> None:
    q, k = tensors(5000, 700)

    async def main() -> None:
        w = AttentionWidget(q, k)
        w._scheduler.drop("pass")
        w._scheduler.drop("afterwards")
        for view in range(20):
            ask_tiles(front_end, w, [3, 0, 1, 0], view=f"view {view}")
        assert len(w._scheduler.names) == tiles.MAX_VIEWS
        await until(lambda: not w._scheduler.names)
        assert {message["of"]["view"] for message in front_end.tiles(w)} == {f"view {n}" for n in range(12, 20)}
        w.close()

    run(main)


@pytest.mark.parametrize("act", ["head", "update", "close"])
def test_tiles_of_what_is_no_longer_shown_are_not_sent(act: str, front_end: FrontEnd) -> None:
    q, k = tensors(5000, 700, heads=2)

    async def main() -> None:
        w = AttentionWidget(q, k)
        ask_tiles(front_end, w, [3, 0, 1, 0])
        {"head": lambda: setattr(w, "head", 1), "update": lambda: w.update(q, k), "close": w.close}[act]()
        sent = len(front_end.messages)
        await asyncio.sleep(0.05)
        assert not any("of" in message.data.get("content", {}) for message in front_end.messages[sent:])
        w.close()

    run(main)


@pytest.mark.usefixtures("short_slices")
@pytest.mark.parametrize("most", [1000, 1 << 60])
def test_tiles_that_the_pass_brings_wait_for_it(
    most: int, front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each because it is dear, or all because together they are as dear as the pass."""
    q, k = tensors(9000, 700)
    monkeypatch.setattr(tiles, "MAX_ROW_CELLS", most)

    async def main() -> None:
        w = AttentionWidget(q, k)
        ask_tiles(front_end, w, *([4, 1, row, 0] for row in range(4)))
        await until(is_done(w))
        exact = [tile for message in front_end.tiles(w) for tile in message["tiles"] if tile["every"] == 1]
        assert [tile["tile"][2] for tile in exact] == [0, 1, 2, 3], "from the top, as the pass comes to them"
        for tile in exact:
            check_tile(w, tile)
        assert len(w._tile_queue._pending) == 0

    run(main)


@pytest.mark.usefixtures("short_slices")
def test_tiles_that_waited_for_a_pass_that_is_stopped_are_computed(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k = tensors(9000, 700)

    async def main() -> None:
        w = AttentionWidget(q, k)
        ask_tiles(front_end, w, *([4, 1, row, 0] for row in range(5)))
        await until(lambda: any(wanted.waiting for wanted in w._tile_queue._pending.values()))
        front_end.ask(w, {"id": "1", "kind": "pass", "action": "stop", **AT})
        await until(lambda: not w._scheduler.names)
        exact = [tile for message in front_end.tiles(w) for tile in message["tiles"] if tile["every"] == 1]
        assert sorted(tile["tile"][2] for tile in exact) == [0, 1, 2, 3, 4]
        assert w.progress["state"] == "stopped"
        w.close()

    run(main)


def test_tiles_of_one_question_stay_within_the_budget(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = tensors(1100, 1100)
    w = AttentionWidget(q, k)
    monkeypatch.setattr(cost, "AT_ONCE", 1 << 26)
    before = len(front_end.of(w))
    reply = ask_tiles(front_end, w, *([0, 0, row, column] for row in range(8) for column in range(8)))
    assert len(reply["tiles"]) == 64
    (message,) = front_end.of(w)[before:]
    assert message.size <= 240 * 1024
    values, kinds = drawn(reply["tiles"][9])
    whole = w.attention.block()[128:256, 128:256].double().numpy()
    strong = whole > whole.max() / 4
    np.testing.assert_allclose(np.log2(values[strong]), np.log2(whole[strong]), atol=1)
    assert (kinds == 0).all()


def test_wide_scores_have_tiles_with_signs(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = tensors(700, 700)
    w = AttentionWidget(q, k, stage="scores")
    monkeypatch.setattr(cost, "AT_ONCE", 1 << 26)
    (tile,) = ask_tiles(front_end, w, [1, 1, 1, 1], stage="scores")["tiles"]
    assert tile["values"]["scale"]["kind"] == "linear"
    check_tile(w, tile, stage="scores")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tiles": [[0, 0, 99, 0]]}, "row 99 is not there: this attention has rows 0 to 5"),
        ({"tiles": [[0, 0, 0, 10**30]]}, "is not there"),
        ({"tiles": [[99, 0, 0, 0]]}, "level 99 is not there"),
        ({"tiles": [[-1, 0, 0, 0]]}, "give [row_level, column_level, row, column]"),
        ({"tiles": [[0, 0, 0]]}, "give [row_level, column_level, row, column]"),
        ({"tiles": [[0, 0, 0, True]]}, "give [row_level, column_level, row, column]"),
        ({"tiles": [[0, 0, 0, 1.0]]}, "give [row_level, column_level, row, column]"),
        ({"tiles": [None]}, "a tile is None"),
        ({"tiles": []}, "tiles must be a list of 1 to 64"),
        ({"tiles": [[0, 0, 0, 0]] * 65}, "tiles must be a list of 1 to 64"),
        ({"tiles": {}}, "tiles must be a list of 1 to 64"),
        ({"view": None}, "view is None: give a short printable text"),
        ({"view": "x" * 10**6}, "give a short printable text"),
        ({"view": "\ud800"}, "give a short printable text"),
        ({"pool": "sum"}, "there is no pool called 'sum'"),
        ({"pool": []}, "there is no pool called []"),
        ({"stage": "allowed"}, "there is no stage called"),
        ({"head": 7}, "head 7 is out of range"),
    ],
)
def test_hostile_questions_for_tiles_are_refused(change: dict[str, Any], said: str, front_end: FrontEnd) -> None:
    q, k = tensors(700, 700)
    w = AttentionWidget(q, k)
    question = {"id": "t", "kind": "tiles", **AT, "pool": "max", "view": "a", "tiles": [[0, 0, 0, 0]], **change}
    (reply,) = front_end.ask(w, question)
    assert reply["ok"] is False
    assert said in reply["error"]
    assert len(reply["error"]) < 300
