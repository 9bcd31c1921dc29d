"""Tasks for workers: bounded, named in errors, done again when a worker is killed, kept when a call is interrupted."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hanging import killed_if_they_hang
from torch import Tensor

from attnwidget._parallel import executors, work
from attnwidget._parallel.packing import pack, unpack
from attnwidget._parallel.task import Subject, Task, named
from attnwidget._parallel.work import Work, gather

KINDS = ("threads", "processes")


class Owner:
    """What results are kept with."""


def total(x: Tensor, row: int) -> float:
    return float(x[row].sum())


def threads_of_torch(x: Tensor, row: int) -> int:
    found = torch.get_num_threads()
    (x @ x.mT).sum()  # hangs in a process that was forked, if it starts threads of its own
    return found


def killed_once(folder: Path, row: int) -> int:
    """End the process that computes row 3, the first time."""
    (folder / f"{row}-{os.getpid()}").touch()
    flag = folder / "killed"
    if row == 3 and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return row


def always_killed(folder: Path, row: int) -> int:
    if row == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return row


def fails_once(folder: Path, row: int) -> int:
    """Fail at row 4, the first time; leave a file that names the row and who began it: a pool's worker, or the test."""
    in_pool = multiprocessing.parent_process() is not None or threading.current_thread() is not threading.main_thread()
    who = "pool" if in_pool else "here"
    tempfile.mkstemp(prefix=f"row {row} {who} ", dir=folder)
    if row == 4 and not (folder / "failed").exists():
        (folder / "failed").touch()
        raise ValueError("row 4 is not well")
    return row


def tasks_of(function: Any, value: Any, rows: int = 8, owner: Any = None) -> list[Task]:
    subject = Subject(value, "layer 3", owner)
    return [Task(function, subject, (row,), named("layer 3", 0, 5, range(row, row + 1))) for row in range(rows)]


@pytest.mark.parametrize("kind", KINDS)
def test_results_come_in_the_order_of_the_tasks(kind: str, pools: dict[str, Executor]) -> None:
    x = torch.randn(8, 1000)
    expected = [float(row.sum()) for row in x]
    assert gather(tasks_of(total, x), pools[kind]) == expected
    assert gather(tasks_of(total, x), None) == expected


def test_no_more_tasks_are_out_than_twice_the_workers() -> None:
    class Watched(ThreadPoolExecutor):
        out, most = 0, 0

        def submit(self, *given: Any, **keywords: Any) -> Future[Any]:  # type: ignore[override]
            self.out += 1
            self.most = max(self.most, self.out)
            found = super().submit(*given, **keywords)
            found.add_done_callback(lambda _: setattr(self, "out", self.out - 1))
            return found

    with Watched(2) as pool:
        gather(tasks_of(total, torch.ones(64, 10), 64), pool)
        assert 1 <= pool.most <= 4


def test_a_task_in_another_process_has_one_thread_of_torch(pools: dict[str, Executor]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x = torch.randn(600, 600)
        (x @ x.mT).sum()  # this process now has threads that a fork has not
        assert gather(tasks_of(threads_of_torch, x, 4), pools["processes"]) == [1] * 4
        assert gather(tasks_of(threads_of_torch, x, 4), pools["threads"]) == [2] * 4
    finally:
        torch.set_num_threads(before)


def spread(x: Tensor, row: int) -> dict[str, Tensor]:
    return {"turned": (x + row).mT, "same": x[row].expand(300, 400)}


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="processes are not forked here")
def test_large_results_of_a_forked_pool_arrive() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x = torch.randn(300, 400)  # more than torch copies with one thread
        (x @ x.mT).sum()  # this process now has threads that a fork has not
        with killed_if_they_hang(), ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
            found = gather(tasks_of(spread, x, 4), pool)
    finally:
        torch.set_num_threads(before)
    for row, one in enumerate(found):
        assert torch.equal(one["turned"], (x + row).mT)
        assert torch.equal(one["same"], x[row].expand(300, 400))


def test_tensors_travel_by_a_file_that_is_gone_afterwards(
    pools: dict[str, Executor], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    workers = executors.Processes(pools["processes"])
    value = {
        "half": torch.randn(40, 50).half(),
        "turned": torch.randn(30, 20).mT,
        "bools": torch.rand(2000) > 0.5,
        "labels": np.arange(5000),
        "empty": torch.empty(0, 3),
    }
    sent = workers.send(Subject(value, "layer 3"))
    assert len(pickle.dumps(sent.given)) < 2000
    assert [path.is_dir() for path in tmp_path.iterdir()] == [True]
    back = unpack(sent.given.content, executors.saved_tensors.open_all(sent.given.places))
    for name, x in value.items():
        assert np.array_equal(np.asarray(back[name]), np.asarray(x)), name
    sent.close()
    assert list(tmp_path.iterdir()) == []
    gather(tasks_of(total, torch.ones(8, 1000)), pools["processes"])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError, match="index 8 is out of bounds"):
        gather(tasks_of(total, torch.ones(8, 1000), 9), pools["processes"])
    assert list(tmp_path.iterdir()) == []


def test_a_subject_is_sent_once_for_all_its_tasks(pools: dict[str, Executor], monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    send = executors.Processes.send

    def counted(self: executors.Processes, subject: Subject) -> executors.SentSubject:
        sent.append(subject.name)
        return send(self, subject)

    monkeypatch.setattr(executors.Processes, "send", counted)
    layers = [Subject(torch.ones(8, 1000), f"layer {layer}") for layer in range(2)]
    tasks = [Task(total, one, (row,), named(one.name, 0, 5, range(row, row + 1))) for one in layers for row in range(8)]
    assert gather(tasks, pools["processes"]) == [1000.0] * 16
    assert sent == ["layer 0", "layer 1"]


def test_a_disk_that_is_full_is_told_before_it_is(
    pools: dict[str, Executor], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    usage = executors.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(executors.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(
        OSError, match=r"layer 3 takes 32,000 bytes in .* 1,000 are free: name another folder by TMPDIR"
    ):
        gather(tasks_of(total, torch.ones(8, 1000)), pools["processes"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_names_its_task_and_the_others_are_not_done_twice(
    kind: str, pools: dict[str, Executor], tmp_path: Path
) -> None:
    owner = Owner()
    with pytest.raises(RuntimeError, match=r"^layer 3, sample 0, head 5, queries 4–4: row 4 is not well$") as raised:
        gather(tasks_of(fails_once, tmp_path, owner=owner), pools[kind])
    assert isinstance(raised.value.__cause__, ValueError)
    assert gather(tasks_of(fails_once, tmp_path, owner=owner), pools[kind]) == list(range(8))
    rows = [path.name.split()[1] for path in tmp_path.glob("row* pool *")]
    assert rows.count("4") == 2
    # Row 4 is the fifth to begin, and one other worker may still have an earlier one: that alone is done again.
    assert sum(rows.count(str(row)) for row in range(4)) <= 5
    assert set(rows) == set(map(str, range(8)))
    assert gather(tasks_of(fails_once, tmp_path, owner=owner), None) == list(range(8))
    assert len(list(tmp_path.glob("row* here *"))) == 8  # a call that has ended keeps nothing


def test_an_interrupt_keeps_what_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "failed").touch()  # so that none does
    owner, step = Owner(), Work.step
    steps = iter(range(5))

    def interrupted(self: Work, seconds: float = 0.2) -> list[tuple[int, Any]]:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return step(self, seconds)

    monkeypatch.setattr(Work, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gather(tasks_of(fails_once, tmp_path, owner=owner), None)
    monkeypatch.undo()
    assert len(list(tmp_path.glob("row*"))) == 5
    assert gather(tasks_of(fails_once, tmp_path, owner=owner), None) == list(range(8))
    assert len(list(tmp_path.glob("row*"))) == 8


def test_cancelled_tasks_are_not_begun() -> None:
    began, go_on = threading.Event(), threading.Event()
    seen: list[int] = []

    def waits(value: None, row: int) -> int:
        seen.append(row)
        began.set()
        go_on.wait()
        return row

    with ThreadPoolExecutor(1) as pool:
        work = Work(tasks_of(waits, None), pool)
        assert work.step(0) == []
        began.wait()
        work.close()
        go_on.set()
    assert seen == [0]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes are not killed by a signal here")
def test_a_killed_process_loses_nothing(fresh_pool: ProcessPoolExecutor, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"a worker was lost after \d of 8 tasks: the rest is done by a new pool"):
        assert gather(tasks_of(killed_once, tmp_path), fresh_pool) == list(range(8))
    processes = {path.name.partition("-")[2] for path in tmp_path.glob("*-*")}
    assert str(os.getpid()) not in processes
    with pytest.warns(UserWarning, match="after 0 of 8 tasks"):  # the pool that was given stays broken
        assert gather(tasks_of(killed_once, tmp_path), fresh_pool) == list(range(8))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes are not killed by a signal here")
def test_a_task_that_ends_each_of_its_workers_is_an_error(fresh_pool: ProcessPoolExecutor, tmp_path: Path) -> None:
    with (
        pytest.warns(UserWarning, match="a worker was lost"),
        pytest.raises(RuntimeError, match=r"^layer 3, sample 0, head 5, queries \d–\d: its worker was lost 3 times"),
    ):
        gather(tasks_of(always_killed, tmp_path), fresh_pool)


def test_workers_that_cannot_be_had_again_are_replaced_by_this_process() -> None:
    class Breaks(Executor):
        """Some other executor, whose workers go away."""

        def submit(self, *given: Any, **keywords: Any) -> Future[Any]:  # type: ignore[override]
            from concurrent.futures import BrokenExecutor

            found: Future[Any] = Future()
            found.set_exception(BrokenExecutor("gone"))
            return found

    x = torch.ones(8, 2)
    with pytest.warns(UserWarning, match="the rest is done by this process, and nothing is lost"):
        assert gather(tasks_of(total, x), Breaks()) == [2.0] * 8


class ComeBack(executors.Here):
    """Workers whose one is lost, and another comes in its place alone, as those of a cluster do."""

    lost = False

    def submit(self, task: Task, sent: executors.SentSubject) -> Future[Any]:
        if self.lost:
            return super().submit(task, sent)
        self.lost = True
        found: Future[Any] = Future()
        found.set_exception(OSError("the worker is gone"))
        return found

    def is_lost(self, error: BaseException) -> bool:
        return isinstance(error, OSError)


def test_workers_that_come_back_by_themselves_do_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "workers_of", lambda executor: ComeBack())
    with pytest.warns(UserWarning, match=r"a worker was lost after \d of 8 tasks: the rest is done by other workers"):
        assert gather(tasks_of(total, torch.ones(8, 2)), None) == [2.0] * 8


class Bar:
    """What tqdm would draw."""

    drawn: list[tuple[int, str]]

    def __init__(self, total: int, unit: str, desc: str) -> None:
        self.n, self.words, self.about = 0, "", (total, unit, desc)
        Bar.drawn = []

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        Bar.drawn.append((self.n, "closed"))

    def set_postfix_str(self, words: str, refresh: bool) -> None:
        self.words = words

    def update(self, step: int) -> None:
        self.n += step
        Bar.drawn.append((self.n, self.words))


def test_a_bar_tells_the_share_and_how_many_workers(
    pools: dict[str, Executor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "progress_bar", lambda: Bar)
    gather(tasks_of(total, torch.ones(8, 10)), pools["threads"], progress=True)
    assert [shown for shown, _ in Bar.drawn] == sorted(shown for shown, _ in Bar.drawn)
    assert Bar.drawn[-1] == (100, "closed")
    assert {words for _, words in Bar.drawn[:-1]} <= {"2 workers", "1 worker"}
    gather(tasks_of(total, torch.ones(8, 10)), None, progress=True)
    assert Bar.drawn[:2] == [(12, "1 worker"), (25, "1 worker")]


def test_what_no_other_process_can_have_is_refused_with_the_way_on(pools: dict[str, Executor]) -> None:
    value = {"mask": lambda b, h, q_idx, kv_idx: q_idx > kv_idx}
    with pytest.raises(TypeError, match=r"^layer 3 cannot be sent to another process \(.*lambda.*threads need none"):
        gather(tasks_of(total, value), pools["processes"])
    with pytest.raises(TypeError, match=r"this process does not have \(.*no_such_module.*\): .* at the top of a"):
        unpack(b"cno_such_module\nfunction\n.", [])


def recorder() -> Any:
    """Return a hook as transformers leaves them in a model that once returned its attentions."""

    def output_capturing_hook(module: Any, args: Any, output: Any) -> None:
        raise AssertionError

    output_capturing_hook.__module__ = "transformers.utils.output_capturing"
    return output_capturing_hook


def test_a_model_is_sent_without_the_hooks_that_transformers_leaves_in_it() -> None:
    pytest.importorskip("transformers.utils.output_capturing")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[0].register_forward_hook(recorder())
    model._output_capturing_hooks_installed = True
    sent = unpack(*pack(model, "the model"))
    assert not sent[0]._forward_hooks
    assert not hasattr(sent, "_output_capturing_hooks_installed"), "so that the library installs them again"
    assert len(model[0]._forward_hooks) == 1
    x = torch.randn(2, 4)
    model[0]._forward_hooks.clear()
    assert torch.equal(sent(x), model(x))
    model[0].register_forward_hook(lambda *given: None)
    with pytest.raises(TypeError, match="the model cannot be sent"):  # it may change what the model computes
        pack(model, "the model")


@pytest.mark.parametrize(
    ("given", "says"),
    [(4, "executor is an int: give a concurrent.futures.Executor, such as"), ("dask", "executor is a str")],
)
def test_something_else_than_an_executor_is_refused(given: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        Work([], given)


def test_a_dask_client_is_told_from_its_executor() -> None:
    class Client:
        def get_executor(self) -> None: ...

    with pytest.raises(TypeError, match=r"a Dask client: give its executor, client.get_executor\(\)"):
        Work([], Client())  # type: ignore[arg-type]


def test_the_share_that_is_done_is_that_of_the_cells() -> None:
    subject = Subject(torch.ones(2, 3), "layer 3")
    work = Work([Task(total, subject, (0,), "first", 30), Task(total, subject, (1,), "second", 10)], None)
    assert (work.share, work.left, work.workers) == (0.0, 2, 1)
    assert work.step(0) == [(0, 3.0)]
    assert (work.share, work.left) == (0.75, 1)
    work.step(0)
    assert (work.share, work.left) == (1.0, 0)
