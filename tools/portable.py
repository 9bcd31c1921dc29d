"""Runs the Python tests as other machines would: with fewer instructions, with one thread and two.

    python tools/portable.py              all lanes in turn
    python tools/portable.py today        one of them: another each day
    python tools/portable.py avx2-1       that one; several names may be given
    python tools/portable.py today -- -k capture -x     what follows is pytest's

A processor cannot be swapped, but torch and its libraries choose their kernels by its reported features. Other
kernels add in another order, so what fails in a lane would fail on some machine. Left out are the tests that no kernel
has a part in: those in a browser, those that build and install the package, those of the project's files, and those of
several processes, which take the longest and compute what the others do. Thorough tests run only where the environment
has ATTNWIDGET_THOROUGH, as in `make thorough`.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

# What torch's own kernels, oneDNN's and MKL's may use. MKL follows on Intel processors only.
INSTRUCTIONS = {
    "sse41": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "native": {},
}
THREADS = (1, 2)
LEFT_OUT = "browser or packaging or processes"


class Lane(NamedTuple):
    """One set of instructions, and a number of threads for each process."""

    instructions: str
    threads: int

    @property
    def name(self) -> str:
        """Return the name, as `LANE=` takes it."""
        return f"{self.instructions}-{self.threads}"

    def environment(self, base: dict[str, str]) -> dict[str, str]:
        """Return an environment with this lane's limits and no others; the notebooks' kernels inherit it."""
        limits = {name for one in INSTRUCTIONS.values() for name in one}
        threads = {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        return {name: it for name, it in base.items() if name not in limits} | INSTRUCTIONS[self.instructions] | threads

    def command(self, more: Sequence[str] = ()) -> list[str]:
        """Return the command: two workers of one thread, or one of two, as CI has two cores."""
        workers = max(THREADS) // self.threads
        left_out = LEFT_OUT if os.environ.get("ATTNWIDGET_THOROUGH") else f"{LEFT_OUT} or thorough"
        numeric = "-m", f"not ({left_out})", "--ignore=tests/project"
        return [sys.executable, "-m", "pytest", "-q", *numeric, "-n", str(workers), *more]


class Result(NamedTuple):
    """One lane that has run."""

    lane: Lane
    passed: bool
    seconds: float


LANES = {lane.name: lane for lane in (Lane(name, threads) for threads in THREADS for name in INSTRUCTIONS)}


def of_day(day: datetime.date) -> Lane:
    """Return the lane of a day: each comes in turn, at the end of a year as well."""
    return list(LANES.values())[day.toordinal() % len(LANES)]


def choose(names: Sequence[str], today: datetime.date) -> list[Lane]:
    """Return the lanes that are meant by the names; all of them for none.

    Raises:
        ValueError: there is no such lane.
    """
    unknown = [name for name in names if name not in ("all", "today", *LANES)]
    if unknown:
        raise ValueError(f"no lane is called {unknown[0]!r}: give all, today, or some of {', '.join(LANES)}")
    if not names or "all" in names:
        return list(LANES.values())
    return list(dict.fromkeys(of_day(today) if name == "today" else LANES[name] for name in names))


def run(lane: Lane, more: Sequence[str] = ()) -> bool:
    """Run the tests of a lane, and return whether all passed."""
    return subprocess.run(lane.command(more), cwd=ROOT, env=lane.environment(dict(os.environ))).returncode == 0


def main(arguments: Sequence[str], run: Callable[[Lane, Sequence[str]], bool] = run) -> int:
    """Run the lanes that are named, print how each went, and return the exit status."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    names, more = arguments[:at], arguments[at + 1 :]
    try:
        lanes = choose(names, datetime.datetime.now(datetime.timezone.utc).date())
    except ValueError as wrong:
        print(wrong, file=sys.stderr)
        return 2
    results = []
    for lane in lanes:
        print(f"\n{lane.name}: {limits(lane)}", flush=True)
        start = time.monotonic()
        passed = run(lane, more)
        results.append(Result(lane, passed, time.monotonic() - start))
    print(f"\n{summary(results)}", flush=True)
    return 0 if all(result.passed for result in results) else 1


def limits(lane: Lane) -> str:
    """Return a lane's limits in words."""
    given = [f"{name}={it}" for name, it in INSTRUCTIONS[lane.instructions].items()]
    return f"{' '.join(given) or 'all instructions'}, {lane.threads} thread{'s' * (lane.threads > 1)}"


def summary(results: Sequence[Result]) -> str:
    """Return a line for each lane: its name, whether it passed, and how long it took."""
    return "\n".join(
        f"{result.lane.name:<9} {'passed' if result.passed else 'FAILED'} {result.seconds / 60:6.1f} min"
        for result in results
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
