"""Long work in short steps on an event loop that others use too."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from itertools import pairwise

import pytest

from attnwidget._utils.scheduler import Scheduler


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


def test_nothing_runs_for_a_while_after_an_answer() -> None:
    async def main() -> float:
        slices = Scheduler(threading.RLock())
        ran: list[float] = []

        def steps() -> Iterator[None]:
            ran.append(time.monotonic())
            yield

        begun = time.monotonic()
        slices.hold_back(0.05)
        slices.hold_back(0.001)  # as after an answer, while something longer waits
        slices.start("a", steps())
        await until_done(slices)
        return ran[0] - begun

    assert asyncio.run(main()) >= 0.05


def test_what_is_cleared_is_let_go() -> None:
    class Steps:
        def __iter__(self) -> Iterator[None]:
            return self

        def __next__(self) -> None:
            return None

    async def main() -> None:
        slices, steps = Scheduler(threading.RLock()), Steps()
        end = weakref.ref(steps)
        slices.start("a", steps)
        del steps
        await asyncio.sleep(0.01)
        slices.clear()
        gc.collect()
        assert end() is None

    asyncio.run(main())
