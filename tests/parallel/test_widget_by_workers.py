"""The exact picture of a widget, computed by the workers of an executor while the kernel goes on answering."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import signal
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from front_end import assert_same_picture
from killed import KilledOnce

from attnwidget import AttentionWidget, compare
from attnwidget._engine import level_cache
from attnwidget._messages.pictures import picture

N = 9000


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level_cache, "QUERIES_PER_STEP", 512)
    monkeypatch.setattr(picture, "LIMITS", dataclasses.replace(picture.LIMITS, report=0.0, estimate=0.0))


def tensors() -> Any:
    torch.manual_seed(0)
    return torch.randn(2, 1, 2, N, 8)


@pytest.fixture(scope="module")
def expected() -> Any:
    w = AttentionWidget(*tensors())
    w.finish()
    return w.picture


class Slow(ThreadPoolExecutor):
    """Threads that begin a task when they are let, the last one given first."""

    def __init__(self) -> None:
        super().__init__(2)
        self.go_on, self.given, self.cancelled = threading.Event(), 0, 0

    def submit(self, function: Any, *given: Any) -> Future[Any]:  # type: ignore[override]
        self.given += 1

        def waits() -> Any:
            self.go_on.wait()
            return function(*given)

        found = super().submit(waits)
        found.add_done_callback(self._count)
        return found

    def __exit__(self, *error: Any) -> None:
        self.go_on.set()
        super().__exit__(*error)

    def _count(self, future: Future[Any]) -> None:
        self.cancelled += future.cancelled()


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_it_is_the_same_picture(kind: str, pools: dict[str, Executor], expected: Any) -> None:
    w = AttentionWidget(*tensors())
    seen: list[Any] = []
    w.observe(lambda change: seen.append(change.new), "progress")
    w.finish(executor=pools[kind])
    assert_same_picture(w.picture, expected)
    assert (w.picture["sampled"], w.progress) == (None, None)
    workers = [one["workers"] for one in seen if one is not None and "workers" in one]
    assert workers[0] == 2
    assert set(workers) <= {1, 2}  # one, where a single task is left
    left = [one["seconds_left"] for one in seen if one is not None and "workers" in one]
    assert any(seconds is not None for seconds in left)
    assert all(seconds is None or seconds >= 0 for seconds in left)
    assert w.executor is None


def test_the_kernel_answers_while_workers_have_not_begun(expected: Any) -> None:
    async def session() -> None:
        w = AttentionWidget(*tensors())
        with Slow() as pool:
            w.executor = pool
            while not pool.given:
                await asyncio.sleep(0.001)
            for query in range(3):  # nobody has computed anything, and each is answered
                assert w.weights(query).shape == (N,)
                await asyncio.sleep(0.001)
            assert (w.picture["sampled"] is not None, w.progress["workers"], w.progress["state"]) == (
                True,
                2,
                "running",
            )
            pool.go_on.set()
            while w.picture["sampled"] is not None:
                await asyncio.sleep(0.001)
        assert_same_picture(w.picture, expected)

    asyncio.run(session())


def test_what_is_stopped_is_cancelled_and_goes_on_where_it_was(expected: Any) -> None:
    async def session() -> None:
        w = AttentionWidget(*tensors())
        with Slow() as pool:
            w.executor = pool
            while not pool.given:
                await asyncio.sleep(0.001)
            w.executor = None  # what nobody has begun is cancelled
            assert pool.cancelled == 2
            pool.go_on.set()
            w.finish()
        assert_same_picture(w.picture, expected)

    asyncio.run(session())


def test_rows_that_workers_had_are_not_computed_again(pools: dict[str, Executor], monkeypatch: Any) -> None:
    computed: list[int] = []
    rows = level_cache.computed_rows

    def counted(att: Any, key: Any, queries: range, bins: Any) -> Any:
        computed.append(queries.start)
        if len(computed) == 9 and len(set(computed)) == 9:
            raise MemoryError("too much")
        return rows(att, key, queries, bins)

    counted.__module__, counted.__qualname__ = rows.__module__, rows.__qualname__
    monkeypatch.setattr(level_cache, "computed_rows", counted)
    build = AttentionWidget(*tensors())._shown.levels(0).build(0, 1, executor=pools["threads"])
    build.wait = 0.1
    with pytest.raises(RuntimeError, match=r"sample 0, head 1, queries [\d,]+–[\d,]+: too much"):
        for _ in build:
            pass
    done = build.rows
    for _ in build:
        pass
    again = sorted(start for start in set(computed) if computed.count(start) > 1)
    assert len(again) <= 4  # those that were under way when it failed, and the one that did
    assert len(set(computed)) == -(-N // 512)
    assert done * build._width <= build.finished_queries == N


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes are not killed by a signal here")
def test_a_worker_that_is_killed_in_the_midst_of_a_picture_loses_nothing(
    fresh_pool: ProcessPoolExecutor, tmp_path: Path
) -> None:
    mask = KilledOnce(tmp_path, query=5000)
    w, alone = (AttentionWidget(*tensors(), mask=mask) for _ in range(2))
    with pytest.warns(UserWarning, match="a worker was lost after .* tasks: the rest is done by a new pool"):
        w.finish(executor=fresh_pool)
    assert mask.has_killed
    alone.finish()
    assert_same_picture(w.picture, alone.picture)
    assert w.picture["sampled"] is None


def test_a_failure_takes_the_place_of_the_picture() -> None:
    class Fails(ThreadPoolExecutor):
        def submit(self, function: Any, *given: Any) -> Future[Any]:  # type: ignore[override]
            found: Future[Any] = Future()
            found.set_exception(OSError("the disk is gone"))
            return found

    w = AttentionWidget(*tensors())
    with Fails(1) as pool:
        w.finish(executor=pool)
    assert re.fullmatch(r"sample 0, head 0, queries [\d,]+–[\d,]+: the disk is gone", w.picture["error"])


@pytest.mark.thorough
def test_a_comparison_takes_one_too(pools: dict[str, Executor]) -> None:
    a, b = (AttentionWidget(*tensors(), is_causal=causal).attention for causal in (True, False))
    w = compare(a, b)
    w.finish(executor=pools["threads"])
    assert (w.picture["sampled"], w.comparison["sampled"]) == (None, None)


def test_something_else_than_an_executor_is_refused() -> None:
    w = AttentionWidget(*tensors())
    with pytest.raises(TypeError, match="executor is an int"):
        w.executor = 4  # type: ignore[assignment]
    with pytest.raises(TypeError, match="executor is a str"):
        w.finish(executor="dask")  # type: ignore[arg-type]
    assert w.executor is None
