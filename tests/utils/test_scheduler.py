"""Long work in short steps on an event loop that others use too."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace

import pytest

from attnwidget._utils import scheduler
from attnwidget._utils.scheduler import Scheduler, in_slices


def counting(seen: list[object], name: object, count: int) -> Iterator[None]:
    for n in range(count):
        seen.append((name, n))
        yield


async def until_done(slices: Scheduler) -> None:
    while slices.names:
        await asyncio.sleep(0.001)


def test_without_a_loop_nothing_starts() -> None:
    slices = Scheduler(threading.RLock())
    assert slices.find_loop() is None
    assert slices.start("a", iter([1])) is False
    assert slices.names == []


def test_others_come_in_between_two_steps() -> None:
    order: list[object] = []

    async def main() -> None:
        slices = Scheduler(threading.RLock())
        slices.start("job", counting(order, "job", 5))
        while slices.names:
            order.append("other")
            await asyncio.sleep(0)

    asyncio.run(main())
    steps = [at for at, what in enumerate(order) if what != "other"]
    assert len(steps) == 5
    assert all(later - earlier > 1 for earlier, later in pairwise(steps)), "a turn at least between two of them"


def test_the_most_urgent_goes_first_and_what_is_dropped_no_further() -> None:
    seen: list[object] = []

    async def main() -> None:
        slices = Scheduler(threading.RLock())
        slices.start("pass", counting(seen, "pass", 2), 10)
        slices.start("old", counting(seen, "old", 2), -1)
        slices.start("new", counting(seen, "new", 2), -2)
        slices.start("gone", counting(seen, "gone", 2), -3)
        slices.drop("gone")
        slices.drop("never there")
        await until_done(slices)

    asyncio.run(main())
    assert seen == [("new", 0), ("new", 1), ("old", 0), ("old", 1), ("pass", 0), ("pass", 1)]


def test_a_job_takes_the_place_of_the_one_with_its_name() -> None:
    seen: list[object] = []

    async def main() -> None:
        slices = Scheduler(threading.RLock())
        slices.start("a", counting(seen, "first", 3))
        while not seen:
            await asyncio.sleep(0)
        slices.start("a", counting(seen, "second", 2))
        before = len(seen)
        await until_done(slices)
        assert {name for name, _ in seen[before:]} == {"second"}  # type: ignore[misc]

    asyncio.run(main())


def test_a_job_that_fails_ends_alone_and_silently(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[object] = []

    def failing() -> Iterator[None]:
        yield
        raise RuntimeError("out of memory")

    async def main() -> None:
        slices = Scheduler(threading.RLock())
        slices.start("bad", failing(), 0)
        slices.start("good", counting(seen, "good", 2), 1)
        await until_done(slices)

    with caplog.at_level("INFO"):
        asyncio.run(main())
    assert seen == [("good", 0), ("good", 1)]
    assert caplog.records == []


def test_a_step_may_start_and_drop_jobs() -> None:
    seen: list[object] = []

    async def main() -> None:
        slices = Scheduler(threading.RLock())

        def starting() -> Iterator[None]:
            slices.drop("self")
            slices.start("next", counting(seen, "next", 1))
            yield
            seen.append("never")

        slices.start("self", starting())
        await until_done(slices)

    asyncio.run(main())
    assert seen == [("next", 0)]


def test_while_another_thread_holds_the_lock_the_loop_goes_on() -> None:
    lock = threading.RLock()
    seen: list[object] = []
    turns: list[list[object]] = []

    async def main() -> None:
        slices = Scheduler(lock)
        held, go = threading.Event(), threading.Event()

        def hold() -> None:
            with lock:
                held.set()
                go.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        slices.start("a", counting(seen, "a", 1))
        for _ in range(20):
            turns.append(list(seen))
            await asyncio.sleep(0.001)
        go.set()
        thread.join()
        await until_done(slices)

    asyncio.run(main())
    assert turns == [[]] * 20
    assert seen == [("a", 0)]


def test_a_job_of_another_thread_runs_on_the_main_loop() -> None:
    where: list[threading.Thread] = []

    def steps() -> Iterator[None]:
        where.append(threading.current_thread())
        yield

    async def main() -> None:
        slices = Scheduler(threading.RLock())  # it has seen the main thread's loop

        async def elsewhere() -> bool:
            return slices.start("a", steps())

        assert await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
        await until_done(slices)

    asyncio.run(main())
    assert where == [threading.main_thread()]


def test_after_a_loop_has_ended_the_next_one_serves() -> None:
    seen: list[object] = []
    slices = Scheduler(threading.RLock())

    async def first() -> None:
        slices.start("a", counting(seen, "a", 10**6))
        while not seen:
            await asyncio.sleep(0)

    async def second() -> None:
        slices.start("b", counting(seen, "b", 1), -1)
        while ("b", 0) not in seen:
            await asyncio.sleep(0.001)

    asyncio.run(first())
    assert seen
    assert slices.start("c", iter([1])) is False
    asyncio.run(second())


def test_nothing_runs_for_a_while_after_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: now))
    seen: list[object] = []
    waits: list[float] = []
    schedule = Scheduler._schedule

    def waiting(slices: Scheduler, loop: asyncio.AbstractEventLoop, delay: float = 0) -> None:
        waits.append(delay)
        schedule(slices, loop, 0)

    monkeypatch.setattr(Scheduler, "_schedule", waiting)

    async def main() -> None:
        nonlocal now
        slices = Scheduler(threading.RLock())
        slices.hold_back(5)
        slices.hold_back(1)  # as after an answer, while something longer waits
        slices.start("a", counting(seen, "a", 1))
        for wait in (5, 2.5):
            while wait not in waits:
                await asyncio.sleep(0)
            assert seen == []
            now += 2.5
        await until_done(slices)

    asyncio.run(main())
    assert seen == [("a", 0)]
    assert now == 105


def test_what_is_cleared_is_let_go() -> None:
    asked: list[None] = []

    class Steps:
        def __iter__(self) -> Iterator[None]:
            return self

        def __next__(self) -> None:
            asked.append(None)

    async def main() -> None:
        slices, steps = Scheduler(threading.RLock()), Steps()
        end = weakref.ref(steps)
        slices.start("a", steps)
        while not asked:
            await asyncio.sleep(0)
        del steps
        slices.clear()
        gc.collect()
        assert end() is None

    asyncio.run(main())


def test_work_in_small_steps_is_a_job_of_longer_ones_that_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: now))
    told: list[float] = []
    done = 0

    def work() -> Iterator[None]:
        nonlocal now, done
        for _ in range(40):
            now += 1
            done += 1
            yield

    def tell() -> None:
        told.append(now)

    slices = []
    for _ in in_slices(work(), tell, slice_seconds=3, first=4):
        slices.append(done)
        now += 10  # others have their turn
    assert slices == [*range(3, 40, 3)]
    assert done == 40
    assert told[0] == 14
    gaps = [later - earlier for earlier, later in pairwise(told)]
    assert all(gap >= 4 * 2**n for n, gap in enumerate(gaps, 1))
    assert len(told) == 5
