"""Which lanes `make portable` runs, with what limits, and what it makes of how they went."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from collections import Counter
from pathlib import Path

import portable
import pytest
import torch

ROOT = Path(__file__).parents[2]
ALL = ["sse41-1", "avx2-1", "native-1", "sse41-2", "avx2-2", "native-2"]
DAY = datetime.date(2027, 12, 29)


def test_there_are_six_lanes_and_each_comes_every_six_days() -> None:
    assert list(portable.LANES) == ALL
    days = [portable.of_day(DAY + datetime.timedelta(n)).name for n in range(12)]  # over the end of a year
    assert days[:6] == days[6:]
    assert Counter(days) == dict.fromkeys(ALL, 2)


@pytest.mark.parametrize(
    ("names", "lanes"),
    [
        ([], ALL),
        (["all"], ALL),
        (["avx2-2"], ["avx2-2"]),
        (["native-1", "sse41-2", "native-1"], ["native-1", "sse41-2"]),
        (["today"], [portable.of_day(DAY).name]),
    ],
)
def test_lanes_go_by_name(names: list[str], lanes: list[str]) -> None:
    assert [lane.name for lane in portable.choose(names, DAY)] == lanes


def test_a_lane_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert portable.main(["avx"], lambda lane, more: pytest.fail("ran")) == 2
    assert capsys.readouterr().err.startswith("no lane is called 'avx': give all, today, or some of sse41-1, avx2-1")


def test_a_lane_has_its_own_limits_and_no_others() -> None:
    base = {"PATH": "here", "ATEN_CPU_CAPABILITY": "avx512", "OMP_NUM_THREADS": "64"}
    assert portable.LANES["native-2"].environment(base) == {
        "PATH": "here", "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2",
    }  # fmt: skip
    assert portable.LANES["avx2-1"].environment(base) == {
        "PATH": "here", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
        "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the limits are those of x86 processors")
def test_torch_keeps_to_the_limits_of_a_lane() -> None:
    code = "import torch; print(torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())"
    environment = portable.LANES["sse41-2"].environment(dict(os.environ))
    seen = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert seen.stdout.strip() in ("DEFAULT 2", "NO AVX 2")  # as torch 2.5 calls it


def test_the_tests_have_as_many_threads_as_they_are_told() -> None:
    assert torch.get_num_threads() == int(os.environ.get("OMP_NUM_THREADS", "1"))


@pytest.mark.parametrize("failing", [None, "avx2-1", "native-2"])
def test_all_lanes_are_run_and_one_that_fails_is_told(failing: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    asked = []

    def run(lane: portable.Lane, more: list[str]) -> bool:
        asked.append((lane.name, more))
        return lane.name != failing

    assert portable.main(["all", "--", "-k", "capture"], run) == (0 if failing is None else 1)
    assert asked == [(name, ["-k", "capture"]) for name in ALL]
    lines = capsys.readouterr().out.splitlines()[-6:]
    assert [line.split()[:2] for line in lines] == [[n, "FAILED" if n == failing else "passed"] for n in ALL]


@pytest.mark.slow
def test_a_lane_runs_pytest_and_passes_on_how_it_ended(tmp_path: Path) -> None:
    for wrong in (0, 1):
        test = tmp_path / f"test_{wrong}.py"
        test.write_text(f"def test_it():\n    assert {wrong} == 0\n")
        more = ["-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={tmp_path}", str(test)]
        assert portable.run(portable.LANES["native-1"], more) == (wrong == 0)


@pytest.mark.slow
def test_a_lane_leaves_out_what_no_kernel_has_a_part_in() -> None:
    command = portable.LANES["sse41-1"].command()
    assert "--ignore=tests/project" in command
    marks = command[command.index("-m", 3) :][:2]
    folders = ["tests/parallel", "tests/capture/test_processes.py", "tests/capture/test_told.py"]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *marks, "-p", "no:cacheprovider", *folders],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "tests/capture/test_told.py::" in found
    assert "tests/parallel/test_work.py::" in found
    for left in ("test_processes.py", "test_cluster.py", "test_by_workers.py"):
        assert left not in found
