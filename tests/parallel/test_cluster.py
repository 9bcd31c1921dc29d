"""Dask distributed: two processes of this machine, which meet nobody beyond it."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from front_end import assert_same_picture
from killed import KilledOnce
from tolerance import assert_same_overview

from attnwidget import Attention, AttentionStack, AttentionWidget, Capture, capture, segments
from attnwidget._engine import level_cache, parts
from attnwidget._parallel.executors import Cluster
from attnwidget._parallel.task import Subject, Task
from attnwidget._parallel.work import gather

distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install 'attnwidget[dask]'")
pytestmark = [pytest.mark.processes, pytest.mark.thorough]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    import dask

    folder = str(tmp_path_factory.mktemp("dask"))
    settings = {"distributed.scheduler.worker-ttl": None, "distributed.comm.timeouts.connect": "120s"}
    how = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with (
        dask.config.set(settings),
        distributed.LocalCluster(**how, local_directory=folder, silence_logs=50) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def executor(client: Any) -> Executor:
    client.wait_for_workers(2)
    found: Executor = client.get_executor()
    return found


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LEAST_CELLS", 1 << 18)
    monkeypatch.setattr(parts, "MOST_CELLS", 1 << 19)


def stack() -> AttentionStack:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 1300, 16)
    return AttentionStack([Attention(q, k, v, is_causal=True), Attention(9 * q, k.bfloat16().float())])


def assert_same_overviews(found: list[list[Any]]) -> None:
    for layer, of in enumerate(found):
        for head, one in enumerate(of):
            att = stack()[layer]
            assert_same_overview(one, att.overview(0, head, size=100), att)


def killed_once(value: tuple[torch.Tensor, Path], row: int) -> int:
    x, folder = value
    if row == 3 and not (folder / "killed").exists():
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return int(x[row])


def threads_of_torch(value: None) -> tuple[int, int]:
    return os.getpid(), torch.get_num_threads()


def test_overviews_segments_metrics_and_reduction(executor: Executor) -> None:
    assert_same_overviews(stack().overviews(size=100, executor=executor))
    named = segments({"a": (1, 90), "b": (200, 400)}, length=1300)
    expected = stack().by_segment(named)
    found = stack().by_segment(named, executor=executor)
    torch.testing.assert_close(found.mass, expected.mass, equal_nan=True)
    assert [one["head"] for one in stack().metrics(executor=executor)] == [0, 1, 0, 1]


def test_tensors_in_memory_are_scattered_and_released(executor: Executor, client: Any) -> None:
    att = stack()[0]
    workers = Cluster(executor)
    sent = workers.send(parts.subject_of(att, "weights", None))
    assert len(pickle.dumps(sent.given)) < 4000 < att.q.nbytes
    key = sent.memory.key
    assert key in client.who_has()
    sent.close()
    del sent
    att.overview(size=100, executor=executor)
    while [one for one in client.who_has() if one.startswith("list-")]:  # messages are on their way
        time.sleep(0.05)


def test_of_a_saved_capture_nothing_is_scattered(executor: Executor, client: Any, tmp_path: Path) -> None:
    with capture() as cap:
        F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 700, 16), is_causal=True)
    cap.save(tmp_path / "run.safetensors")
    att = Capture.load(tmp_path / "run.safetensors").attention[0]
    assert Cluster(executor).send(parts.subject_of(att, "weights", None)).memory is None
    found = att.overview(0, 1, size=70, executor=executor)
    assert_same_overview(found, cap.attention[0].overview(0, 1, size=70), cap.attention[0])
    (tmp_path / "run.safetensors").unlink()
    with pytest.raises(
        RuntimeError, match=r"sample 0, head 0, queries \d+–.*run.safetensors is not there: put the file"
    ):
        att.overview(0, 0, size=70, executor=executor)


def test_workers_have_one_thread_of_torch_each(executor: Executor, client: Any) -> None:
    found = gather([Task(threads_of_torch, Subject(None, "this"), (), f"{i}") for i in range(4)], executor)
    assert {threads for _, threads in found} == {1}
    assert os.getpid() not in {process for process, _ in found}
    assert Cluster(executor).count() == 2


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes are not killed by a signal here")
def test_a_killed_worker_loses_nothing(executor: Executor, tmp_path: Path) -> None:
    subject = Subject((torch.arange(40000), tmp_path), "layer 3")  # scattered: the worker that is killed may hold it
    tasks = [Task(killed_once, subject, (row,), f"row {row}") for row in range(8)]
    assert gather(tasks, executor) == list(range(8))
    assert (tmp_path / "killed").exists()
    assert_same_overviews(stack().overviews(size=100, executor=executor))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes are not killed by a signal here")
def test_a_worker_that_is_killed_in_the_midst_of_a_pass_loses_nothing(executor: Executor, tmp_path: Path) -> None:
    mask = KilledOnce(tmp_path, query=700)
    q, k = torch.randn(2, 1, 2, 1300, 16)
    att, alone = (Attention(q, k, mask=mask) for _ in range(2))
    found = att.overview(0, 1, size=100, executor=executor)
    assert mask.has_killed
    assert_same_overview(found, alone.overview(0, 1, size=100), alone)


def test_the_exact_picture_of_a_widget(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level_cache, "QUERIES_PER_STEP", 512)
    q, k = torch.randn(2, 1, 1, 9000, 8)
    expected, found = (AttentionWidget(q, k) for _ in range(2))
    expected.finish()
    seen: list[Any] = []
    found.observe(lambda change: seen.append(change.new), "progress")
    monkeypatch.setattr("attnwidget._messages.pictures.picture.LIMITS", _quick_reports())
    found.finish(executor=executor)
    assert_same_picture(found.picture, expected.picture)
    assert found.picture["sampled"] is None
    assert found.progress is None


def _quick_reports() -> Any:
    from attnwidget._messages.pictures import picture

    return dataclasses.replace(picture.LIMITS, report=0.0)


def test_no_temporary_file_is_written_for_a_cluster(
    executor: Executor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stack().overviews(size=100, executor=executor)
    assert not list(tmp_path.glob("attnwidget-*"))


def test_a_cluster_that_is_closed_leaves_the_rest_to_this_process(tmp_path: Path) -> None:
    import dask

    settings = {"distributed.comm.timeouts.connect": "120s"}
    how = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "processes": False}
    with dask.config.set(settings), distributed.LocalCluster(**how, local_directory=str(tmp_path)) as cluster:
        client = distributed.Client(cluster, set_as_default=False)
        executor = client.get_executor()
        client.close()
    with pytest.warns(UserWarning, match="the cluster has no workers any more after 0 of .* is done by this process"):
        assert_same_overviews(stack().overviews(size=100, executor=executor))
