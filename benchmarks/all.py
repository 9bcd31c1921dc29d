"""All benchmarks in turn, and at the end a table of all figures beside the result before.

    make bench                                     # with all that they need; at most half an hour
    make bench ARGS="engine wire"                  # some of them
    python benchmarks/all.py --json folder         # and all that each of them found, a file for each
    python benchmarks/all.py --quick               # each at a small size, to see that it runs: nothing is kept

README.md beside this file says what each of them means, and how results are kept. It exits with 1 if one of them failed
or was stopped for its time, and with 0 else: a figure that misses its target is named, and does not count as a failure.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import psutil
from figures import MISSED, VERSIONS, load, machine
from kept import FOLDER, Result, keep, previous, table

HERE = Path(__file__).parent
MINUTES = 30.0  # for all
MOST = 8.0  # minutes for one of them, after which it is stopped


@dataclass(frozen=True)
class Script:
    """A benchmark: what it is given so that all fit into half an hour, and what instead for `--quick`."""

    given: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()


# Whose details are kept beside their figures, as pages.py shows them.
DETAILED = ("accuracy", "growth", "verification")
SHORT = ("--lengths", "64", "128", "512", "--runs", "1")
# Those that take the longest come last, so that a slow machine has run as many as it can when the time is over.
SCRIPTS: dict[str, Script] = {
    "imports": Script(("--runs", "2"), ("--runs", "1")),
    "accuracy": Script((), ("--quick",)),
    "verification": Script(("--calls", "5000"), ("--calls", "200")),
    "wire": Script(("--runs", "5"), ("--runs", "5")),
    "scale": Script((), ("--runs", "1", "--length", "512")),
    "atlas": Script(("--runs", "3"), ("--runs", "1", "--texts", "20")),
    "why": Script(("--row", "4096"), ("--row", "256", "--runs", "1")),
    "carried": Script(("--lengths", "2048"), ("--lengths", "256")),
    "interventions": Script(("--runs", "1", "--tokens", "4096"), ("--runs", "1", "--tokens", "256")),
    "segments": Script(("--runs", "3"), ("--runs", "1", "--only", "one head")),
    "heads": Script(("--runs", "2"), ("--runs", "1", "--layers", "2")),
    "graph": Script(("--repeats", "10"), ("--repeats", "5")),
    "segments_view": Script(),
    "drag": Script((), ("--seconds", "1")),
    "growth": Script(("--most", "65536"), ("--most", "4096", "--only", "a row")),
    "many": Script(("--runs", "2"), ("--runs", "1", "--count", "4")),
    "first_paint": Script(("--runs", "5"), ("--runs", "1", "--lengths", "64")),
    "acts": Script((), ("--runs", "1", "--tokens", "512")),
    "browser": Script(
        ("--lengths", "131072", "--runs", "3", "--tiles", "20", "--zooms", "300"),
        ("--lengths", "16384", "--runs", "1", "--tiles", "4", "--zooms", "40"),
    ),
    "attack": Script(
        ("--messages", "4000", "--stopped", "100", "--asked", "1000"),
        ("--messages", "400", "--stopped", "24", "--asked", "100", "--opened", "10", "--changed", "50"),
    ),
    "engine": Script(
        ("--lengths", "2048", "4096", "16384", "--runs", "3", "--no-memory"),
        ("--lengths", "512", "--runs", "1", "--no-memory", "--no-long"),
    ),
    "capture": Script(("--runs", "3", "--wanted-only"), ("--runs", "2", "--wanted-only", "--no-memory")),
    "peers": Script(SHORT, ("--lengths", "64", "--runs", "1", "--tools", "attnwidget")),
    "message_cost": Script(
        ("--dearest", "--patience", "0.5", "--at-once", "2"), ("--only", "head of 2,048", "--patience", "1")
    ),
}
# What else is in this folder, and why `make bench` does not run it.
NOT_RUN = {
    "all": "runs the others",
    "figures": "the form of what they find",
    "pages": "writes docs/accuracy.md and docs/performance.md from what is kept",
    "kept": "compares and keeps results",
    "frames": "reads the browser's trace, to count the script of frames",
    "peer_pages": "makes the pages of peers.py, in the environment of the other tools",
    "serving": "needs vLLM, in the environment of `make serving`",
    "sweep": "is 1,019 models right or wrong, no figure: 45 minutes, in an environment of its own",
    "sweep_check": "part of sweep.py",
    "sweep_libraries": "part of sweep.py",
    "sweep_models": "part of sweep.py",
    "sweep_spy": "part of sweep.py",
    "sweep_table": "part of sweep.py",
    "sweep_teaching": "part of sweep.py",
    "sweep_transformers": "part of sweep.py",
}


@dataclass(frozen=True)
class Outcome:
    """How a script ended: `missed` when it ran, and a figure is not as wanted; `why` when it failed."""

    missed: bool = False
    why: str = ""
    seconds: float = 0.0


def run(name: str, path: Path, minutes: float, quick: bool) -> Outcome:
    """Run a script that writes its figures to a path, for so many minutes at most."""
    script, begun = SCRIPTS[name], time.monotonic()
    given = [*(script.quick if quick else script.given), "--json", str(path)]
    process = psutil.Popen([sys.executable, str(HERE / f"{name}.py"), *given])
    try:
        status = process.wait(60 * minutes)
    except psutil.TimeoutExpired:
        return Outcome(why=f"was stopped after {60 * minutes:,.0f} s", seconds=60 * minutes)
    finally:
        end(process)
    why = "" if status in (0, MISSED) else f"ended with status {status}"
    return Outcome(status == MISSED, why, time.monotonic() - begun)


def end(process: psutil.Process) -> None:
    """End a process that runs still, and all that it has started."""
    try:
        family = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for one in family:
        if one.is_running():
            one.kill()
    psutil.wait_procs(family, timeout=10)


def run_all(names: list[str], folder: Path, quick: bool, minutes: float) -> tuple[Result, dict[str, Outcome]]:
    """Run scripts until the time is over; return what they found, and how each ended."""
    about, commit, begun = machine(), commit_here(), time.monotonic()
    found: Result = {"machine": about, "scripts": {}}
    outcomes: dict[str, Outcome] = {}
    for name in names:
        left = minutes - (time.monotonic() - begun) / 60
        if left <= 0:
            outcomes[name] = Outcome(why=f"was not run, for the {minutes:g} minutes were over")
            continue
        print(f"\n## {name}\n", flush=True)
        busy = load()
        outcomes[name] = outcome = run(name, folder / f"{name}.json", min(MOST, left), quick)
        if not outcome.why:
            result = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            found["scripts"][name] = {
                "commit": commit,
                "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "load": busy,
                "seconds": round(outcome.seconds, 1),
                "versions": {key: about[key] for key in ("python", *VERSIONS) if key in about},
                "figures": result["figures"],
                **({"details": result["details"]} if name in DETAILED else {}),
            }
    return found, outcomes


def commit_here() -> str:
    """Return the commit, with a plus sign where files differ from it; "unknown" outside a checkout."""
    asked = ["git", "-C", str(HERE), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return said.stdout.strip() or "unknown"


def tell(outcomes: dict[str, Outcome]) -> None:
    """Print apart what failed and what is not as wanted."""
    failed = {name: one.why for name, one in outcomes.items() if one.why}
    missed = [name for name, one in outcomes.items() if one.missed]
    print(f"\nran for {sum(one.seconds for one in outcomes.values()) / 60:.1f} minutes: ", end="")
    print(", ".join(f"{name} {one.seconds:.0f} s" for name, one in outcomes.items() if one.seconds))
    print(f"ran, with every figure as wanted: {len(outcomes) - len(failed) - len(missed)} of {len(outcomes)}")
    print(f"ran, with a figure that is not as wanted: {', '.join(missed) or 'none'}")
    print(f"failed: {'; '.join(f'{name} {why}' for name, why in failed.items()) or 'none'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", metavar="|".join(SCRIPTS), help="all if none is named")
    parser.add_argument("--json", type=Path, metavar="FOLDER", help="all that each found, a file for each")
    parser.add_argument("--quick", action="store_true", help="at a small size; nothing is compared or kept")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all of them")
    parser.add_argument("--results", type=Path, default=FOLDER, metavar="FOLDER", help="where results are kept")
    asked = parser.parse_args()
    for name in asked.which:
        if name not in SCRIPTS:
            parser.error(f"there is no {name}: choose among {', '.join(SCRIPTS)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.json or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found, outcomes = run_all(asked.which or list(SCRIPTS), folder, asked.quick, asked.minutes)
    print("\n## All figures\n")
    if asked.quick:
        print(table(found, None, same=True))
    else:
        before, same = previous(found["machine"], asked.results)
        print(table(found, before, same=same))
        if found["scripts"]:
            print(f"\nkept in {keep(found, asked.results).name}")
    tell(outcomes)
    return 1 if any(one.why for one in outcomes.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
