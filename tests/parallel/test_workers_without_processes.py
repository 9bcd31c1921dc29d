"""What is sent to workers and how it comes back, with workers of this very process: quick, and step by step."""

from __future__ import annotations

import pickle
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from attnwidget import capture
from attnwidget._parallel import executors, kept_results, saved_tensors, worker
from attnwidget._parallel import work as work_module
from attnwidget._parallel.packing import LEAST_BYTES, pack, seal, unpack, unseal
from attnwidget._parallel.task import Subject, Task
from attnwidget._parallel.work import Work, gather


def done(function: Callable[..., Any], *given: Any) -> Future[Any]:
    found: Future[Any] = Future()
    try:
        found.set_result(function(*given))
    except Exception as error:
        found.set_exception(error)
    return found


class Pickling(Executor):
    """Does each task at once, after a trip through bytes, as to another process."""

    def submit(self, function: Any, *given: Any, **keywords: Any) -> Future[Any]:  # type: ignore[override]
        return done(*pickle.loads(pickle.dumps((function, *given))))


class Scattered:
    """Bytes that a cluster holds until they are released."""

    def __init__(self, value: Any) -> None:
        self.value, self.released = value, False

    def release(self) -> None:
        self.released = True


class KilledWorker(Exception):
    """As Dask calls it."""


class Client:
    """A client of a cluster, as far as this package uses one."""

    def __init__(self) -> None:
        self.status, self.cores, self.asked = "running", {"one": 2, "two": 3}, 0
        self.scattered: list[Scattered] = []

    def ncores(self) -> dict[str, int]:
        self.asked += 1
        if not self.cores:
            raise OSError("the scheduler is gone")
        return self.cores

    def scatter(self, values: list[Any], hash: bool) -> list[Scattered]:  # noqa: A002 - Dask's own name
        assert hash is False
        self.scattered += [Scattered(value) for value in values]
        return self.scattered[-len(values) :]


class ClusterExecutor(Pickling):
    """An executor of Dask, by its module: its tasks get the value of what was scattered."""

    __module__ = "distributed.of_our_own"

    def __init__(self) -> None:
        self._client, self.errors, self.given = Client(), list[Exception](), 0

    def submit(self, function: Any, *given: Any, **keywords: Any) -> Future[Any]:  # type: ignore[override]
        assert keywords == {"pure": False}
        self.given += 1
        if self.errors:
            lost: Future[Any] = Future()
            lost.set_exception(self.errors.pop())
            return lost
        *given_, memory = given
        assert memory is None or not memory.released
        return super().submit(function, *given_, None if memory is None else memory.value)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(executors, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def total(value: Any, name: str, row: int) -> float:
    return float(np.asarray(value[name]).astype(np.float64)[row].sum())


def values() -> dict[str, Any]:
    """Of many types and layouts, and of sizes that tell them apart."""
    make = torch.Generator().manual_seed(0)
    return {
        "half": torch.randn(5, 700, generator=make).half(),
        "turned": torch.randn(30, 6, generator=make).mT,
        "bools": torch.rand(7, 300, generator=make) > 0.5,
        "whole": torch.arange(24).view(8, 3),
        "double": torch.randn(9, 2, generator=make, dtype=torch.float64),
        "labels": np.arange(5000).reshape(10, 500),
        "few": np.arange(6).reshape(2, 3),
        "empty": torch.empty(11, 0),
    }


def tasks_of(value: dict[str, Any], owner: Any = None) -> tuple[list[Task], list[float]]:
    subject = Subject(value, "layer 3", owner)
    places = [(name, row) for name, x in value.items() for row in range(len(x))]
    return [Task(total, subject, at, f"{at}") for at in places], [total(value, *at) for at in places]


@pytest.mark.parametrize("make", [Pickling, ClusterExecutor])
def test_tensors_and_arrays_arrive_as_they_are(make: type[Executor]) -> None:
    tasks, expected = tasks_of(values())
    assert gather(tasks, make()) == expected
    assert gather(tasks, None) == expected


def test_arrays_and_tensors_travel_apart_from_what_is_pickled_and_each_once() -> None:
    x = torch.randn(40, 50)
    value = {"x": x, "again": x, "view": x[:20], "long": np.zeros(LEAST_BYTES), "edge": np.zeros(LEAST_BYTES // 8),
             "short": np.zeros(LEAST_BYTES // 8 - 1), "words": np.array(["a" * 2000])}  # fmt: skip
    packed = pack(value, "it")
    assert [tuple(one.shape) for one in packed.tensors] == [(40, 50), (20, 50), (LEAST_BYTES,), (LEAST_BYTES // 8,)]
    back = unpack(packed.content, packed.tensors)
    assert back["x"] is back["again"]
    assert torch.equal(back["view"], x[:20])
    assert isinstance(back["long"], np.ndarray)
    assert back["words"].tolist() == ["a" * 2000]
    assert not pack(torch.ones(3, requires_grad=True), "it").tensors[0].requires_grad
    assert len(pack([torch.empty(0, 2), torch.empty(0, 3)], "it").tensors) == 2


# A cluster.


def test_a_cluster_is_asked_now_and_then_how_many_it_does_at_a_time(clock: list[float]) -> None:
    executor = ClusterExecutor()
    workers = executors.workers_of(executor)
    assert isinstance(workers, executors.Cluster)
    assert [workers.count(), workers.count(), executor._client.asked] == [5, 5, 1]
    executor._client.cores = {"one": 1}
    clock[0] += executors.ASK_AGAIN - 0.01
    assert (workers.count(), executor._client.asked) == (5, 1)
    clock[0] += 0.01
    assert (workers.count(), executor._client.asked) == (1, 2)
    executor._client.cores = {}
    clock[0] += executors.ASK_AGAIN
    assert workers.count() == 0
    assert not workers.is_gone, "others may come"
    clock[0] += executors.NONE_LEFT + 0.01
    assert workers.is_gone
    assert type(workers.renewed()) is executors.Here
    executor._client.cores = {"two": 4}
    clock[0] += executors.ASK_AGAIN
    assert (workers.count(), workers.is_gone) == (4, False)
    executor._client.status = "closed"
    assert workers.is_gone


def test_what_a_cluster_was_sent_is_released_with_the_last_task() -> None:
    executor = ClusterExecutor()
    tasks, _ = tasks_of({"a": torch.ones(3, 2)})
    more, _ = tasks_of({"b": torch.ones(4, 2)})
    work = Work([*tasks, *more], executor)
    seen = []
    while work.left:
        work.step(0)
        seen.append([one.released for one in executor._client.scattered])
    assert len(executor._client.scattered) == 2
    assert seen[-1] == [True, True]
    assert executor.given == 7
    assert gather(tasks_of({"few": np.arange(6).reshape(2, 3)})[0], executor) == [3.0, 12.0]
    assert len(executor._client.scattered) == 2, "nothing is scattered where all is pickled"


def test_a_lost_worker_of_a_cluster_is_followed_by_another_that_is_sent_all_anew() -> None:
    executor = ClusterExecutor()
    tasks, expected = tasks_of({"a": torch.arange(8.0).view(4, 2)})
    executor.errors = [KilledWorker("gone"), KilledWorker("gone")]
    with pytest.warns(UserWarning, match=r"a worker was lost after \d of 4 tasks: the rest is done by other workers"):
        assert gather(tasks, executor) == expected
    assert len(executor._client.scattered) >= 2
    assert all(one.released for one in executor._client.scattered)
    executor.errors = [ValueError("no such row")]
    with pytest.raises(RuntimeError, match=r"^\('a', \d\): no such row$"):
        gather(tasks, executor)


def test_a_cluster_that_was_closed_leaves_the_rest_to_this_process() -> None:
    executor = ClusterExecutor()
    tasks, expected = tasks_of({"a": torch.arange(60.0).view(30, 2)})
    work = Work(tasks, executor)
    found = dict(work.step(0))
    executor._client.status = "closed"
    with pytest.warns(UserWarning, match=r"the cluster has no workers any more after \d+ of 30 tasks: .* this process"):
        found |= rest_of(work)
    assert [found[number] for number in range(30)] == expected
    assert executor.given <= 20, "no more was given out than twice the workers each time"


def rest_of(work: Work) -> dict[int, Any]:
    found: dict[int, Any] = {}
    while work.left:
        found |= dict(work.step(0))
    return found


# A worker.


def test_a_worker_keeps_the_last_two_subjects_open(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = worker.unpack
    monkeypatch.setattr(worker, "unpack", lambda content, tensors: [opened.append("one"), real(content, tensors)][1])
    monkeypatch.setattr(worker, "_open", type(worker._open)())
    workers = executors.Processes(Pickling())
    sent = [workers.send(Subject({"x": torch.full((2, 3), float(n))}, f"layer {n}")) for n in range(3)]
    try:
        for number, count in ((0, 1), (1, 2), (0, 2), (2, 3), (0, 3), (1, 4)):  # 1 is the one that was used first
            found = unseal(worker.run_task(total, sent[number].given, seal(("x", 0), "it")))
            assert (found, len(opened)) == (3.0 * number, count)
    finally:
        for one in sent:
            one.close()


def threads(value: Any) -> int:
    return torch.get_num_threads()


def test_a_task_from_elsewhere_has_one_thread_and_the_others_come_back_after_it() -> None:
    before = torch.get_num_threads()
    content, none = pack(None, "it").content, seal((), "it")
    here, elsewhere = (worker.Sent(home, content, (), home) for home in (worker.this_process(), "process 0 on moon"))
    torch.set_num_threads(2)
    try:
        assert unseal(worker.run_task(threads, here, none)) == 2
        assert unseal(worker.run_task(threads, elsewhere, none)) == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(AttributeError):
            worker.run_task(lambda value: value.missing, elsewhere, none)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def halved(value: Any, x: Tensor, by: dict[str, Any]) -> dict[str, Any]:
    return {"half": x / by["by"], "turned": x.mT, "rows": np.arange(400)[::-1], "odd": np.ones(300, ">f4")}


def test_arguments_and_results_travel_as_bytes_and_arrive_as_they_are() -> None:
    class Looked(Pickling):
        """Looks at all that travels."""

        def submit(self, function: Any, *given: Any, **keywords: Any) -> Future[Any]:  # type: ignore[override]
            back = super().submit(function, *given)
            assert b"torch.storage" not in pickle.dumps((given, back.result()))
            return back

    x = torch.randn(90, 500, requires_grad=True)
    task = Task(halved, Subject(None, "layer 3"), (x, Asked(by=2.0)), "first")
    (found,) = gather([task], Looked())
    assert torch.equal(found["half"], x.detach() / 2)
    assert torch.equal(found["turned"], x.detach().mT)
    assert found["rows"].tolist() == list(range(400))[::-1]
    assert found["odd"].sum() == 300


class Asked(dict[str, float]):
    """An argument that can be hashed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return 7


class TwoWordsError(Exception):
    """Cannot be made again from what it says."""

    def __init__(self, first: str, second: Any) -> None:
        super().__init__(f"{first} and {second}")


def fails(value: Any, of_a_tensor: bool) -> None:
    raise ValueError("some", torch.ones(40_000)) if of_a_tensor else TwoWordsError("salt", "pepper")


def test_an_error_that_cannot_travel_is_told_in_its_words() -> None:
    sent, back = executors.Processes(Pickling()).send(Subject(None, "layer 3")), []
    for of_a_tensor, says in ((False, "^TwoWordsError: salt and pepper$"), (True, "^ValueError: .'some', tensor")):
        with pytest.raises(RuntimeError, match=says) as raised:
            worker.run_task(fails, sent.given, seal((of_a_tensor,), "it"))
        back.append(pickle.loads(pickle.dumps(raised.value)))
    assert [type(error) for error in back] == [RuntimeError, RuntimeError]


# Files.


@pytest.fixture
def read(tmp_path: Path) -> dict[str, Tensor]:
    """Two tensors as they were read from a file, which is remembered."""
    path = tmp_path / "some.safetensors"
    save_file({"a": torch.arange(60.0).view(5, 12), "b": torch.arange(8).view(2, 4)}, path)
    tensors = load_file(path)
    saved_tensors.note(path, tensors)
    return tensors


def test_a_view_of_a_tensor_that_was_read_is_found_in_its_file(read: dict[str, Tensor]) -> None:
    a, b = read["a"], read["b"]
    for view in (a, a[1:4], a[:, 3:9:2], a.mT, a[4, 11], a[2].view(3, 4), b[1], b.mT[1:]):
        place = saved_tensors.find(view)
        assert place is not None
        assert place.name == ("a" if view.is_floating_point() else "b")
        (back,) = saved_tensors.open_all([place])
        assert torch.equal(back, view)
    both = [saved_tensors.find(x) for x in (b[1], a[2])]
    assert [tuple(one.shape) for one in saved_tensors.open_all([x for x in both if x])] == [(4,), (12,)]


def test_what_is_in_no_file_or_has_changed_is_not_found(read: dict[str, Tensor]) -> None:
    a = read["a"]
    for other in (a.clone(), a[:0], a + 1, a.view(torch.int32), torch.ones(3)):
        assert saved_tensors.find(other) is None
    a[0, 0] = 5
    assert saved_tensors.find(a) is None
    assert saved_tensors.find(a[3]) is None
    assert saved_tensors.find(read["b"]) is not None


def test_a_file_with_other_numbers_or_none_is_refused(read: dict[str, Tensor], tmp_path: Path) -> None:
    path, place = tmp_path / "some.safetensors", saved_tensors.find(read["a"])
    assert place is not None
    save_file({"a": read["a"].clone().mul_(2), "b": read["b"].clone()}, path)
    with pytest.raises(ValueError, match="holds other numbers than when it was loaded"):
        saved_tensors.open_all([place])
    save_file({"a": torch.ones(2)}, path)
    with pytest.raises(ValueError, match="cannot be read as the file that was loaded"):
        saved_tensors.open_all([place])
    path.unlink()
    with pytest.raises(FileNotFoundError, match="put the file where each worker can read it"):
        saved_tensors.open_all([place])


def test_the_mark_of_a_tensor_tells_its_first_and_last_numbers() -> None:
    x = torch.arange(1000.0).view(10, 100)
    marks = {saved_tensors.mark_of(x)}
    for at in ((0, 0), (9, 99)):
        other = x.clone()
        other[at] += 1
        marks.add(saved_tensors.mark_of(other))
    assert len(marks) == 3
    assert saved_tensors.mark_of(torch.tensor(3.0)) != saved_tensors.mark_of(torch.tensor(4.0))


# Results of calls that were interrupted.


class Owner:
    """What results are kept with."""


def test_results_are_kept_for_the_same_tasks_of_the_same_owner_and_given_once() -> None:
    owner = Owner()
    tasks, _ = tasks_of({"a": torch.ones(3, 2)}, owner)
    kept_results.keep(tasks, {0: 10.0, 2: 30.0})
    again, _ = tasks_of({"a": torch.zeros(3, 2)}, owner)
    other, _ = tasks_of({"a": torch.ones(3, 2)}, Owner())
    nobody, _ = tasks_of({"a": torch.ones(3, 2)})
    changed = [Task(one.function, Subject(one.subject.value, "", owner, (7,)), one.arguments, "") for one in tasks]
    kept_results.keep(nobody, {0: 1.0})
    assert [kept_results.take(one) for one in (other, nobody, changed)] == [{}, {}, {}]
    assert kept_results.take(again) == {0: 10.0, 2: 30.0}
    assert kept_results.take(again) == {}
    kept_results.keep(tasks, {1: 20.0})
    gone = weakref.ref(owner)
    del owner, tasks, again, changed
    assert gone() is None, "what is kept keeps nothing alive"


# Tasks on their way.


class Waiting(Executor):
    """Takes tasks, and does one when told."""

    def __init__(self, count: int) -> None:
        self._max_workers = count
        self.tasks: list[tuple[Future[Any], Any]] = []

    def submit(self, *given: Any, **keywords: Any) -> Future[Any]:  # type: ignore[override]
        self.tasks.append((Future(), given))
        return self.tasks[-1][0]

    def do(self, number: int) -> None:
        future, (function, *given) = self.tasks[number]
        future.set_running_or_notify_cancel()
        future.set_result(function(*given))


def test_two_tasks_for_each_worker_are_out_and_results_come_as_they_are_ready() -> None:
    tasks, expected = tasks_of({"a": torch.arange(20.0).view(10, 2)})
    executor = Waiting(2)
    work = Work(tasks, executor)
    assert (work.step(0), len(executor.tasks), work.workers) == ([], 4, 2)
    executor.do(2)
    assert work.step(0) == [(2, expected[2])]
    assert (work.left, work.share) == (9, 0.1)
    work.step(0)
    assert len(executor.tasks) == 5
    work.close()
    assert [future.cancelled() for future, _ in executor.tasks] == [True, True, False, True, True]
    one = Work(tasks[:1], executor)
    one.step(0)
    assert one.workers == 1


def test_a_result_that_is_there_comes_before_the_error_of_another_task() -> None:
    tasks, expected = tasks_of({"a": torch.arange(8.0).view(4, 2)})
    executor = Waiting(2)
    work = Work(tasks, executor)
    work.step(0)
    executor.tasks[1][0].set_exception(OSError("the disk is gone"))
    executor.do(3)
    assert work.step(0) == [(3, expected[3])]
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^\('a', 1\): the disk is gone$") as raised:
            work.step(0)
        assert isinstance(raised.value.__cause__, OSError)


def test_workers_that_do_not_answer_are_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(work_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    executor = Waiting(2)
    work = Work(tasks_of({"a": torch.arange(8.0).view(4, 2)})[0], executor)

    def told(seconds: float) -> list[str]:
        now[0] += seconds
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            work.step(0)
        return [str(one.message) for one in found]

    assert [told(0), told(59), len(told(1)), told(59)] == [[], [], 1, []]
    (line,) = told(41)
    assert line.startswith("no worker has answered for 160 seconds, and one of them should be at ('a', 0). Wait")
    assert "ProcessPoolExecutor(2, mp_context=multiprocessing.get_context('spawn'))" in line
    executor.do(0)
    assert [told(500), told(59), len(told(1))] == [[], [], 1], "an answer begins the count anew"


def test_a_task_that_loses_its_worker_three_times_is_an_error() -> None:
    class Broken(ClusterExecutor):
        __module__ = "distributed.of_our_own"

        def submit(self, *given: Any, **keywords: Any) -> Future[Any]:  # type: ignore[override]
            self.given += 1
            lost: Future[Any] = Future()
            lost.set_exception(KilledWorker("gone"))
            return lost

    executor = Broken()
    with (
        pytest.warns(UserWarning, match="a worker was lost"),
        pytest.raises(RuntimeError, match=r"its worker was lost 3 times, .*or none can start: .*give fewer workers"),
    ):
        gather(tasks_of({"a": torch.ones(1, 2)})[0], executor)
    assert executor.given == 3


def test_a_pool_that_cannot_take_a_task_is_replaced() -> None:
    class Refuses(Executor):
        def submit(self, *given: Any, **keywords: Any) -> Future[Any]:  # type: ignore[override]
            raise BrokenExecutor("gone")

    tasks, expected = tasks_of({"a": torch.ones(3, 2)})
    with pytest.warns(UserWarning, match="the rest is done by this process"):
        assert gather(tasks, Refuses()) == expected


def to_the_third_key(rows: Any) -> Tensor:
    found: Tensor = rows.weights[..., 3]
    return found


def test_a_capture_that_knows_the_residual_stream_is_shared_out_without_it() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    cap = capture(model, sources=True).run(torch.randn(1, 9, 8))
    pictures = [cap.attention[0].overview(executor=executor).values for executor in (None, Pickling())]
    assert torch.equal(*map(torch.as_tensor, pictures))
    kinds = {"to the third key": to_the_third_key}
    found = [cap.attention.metrics(0, kinds=kinds, executor=executor) for executor in (None, Pickling())]
    assert [one["to the third key"] for one in found[0]] == pytest.approx([one["to the third key"] for one in found[1]])
    assert cap.why(0, 1, 4, 2).terms.numel()
