"""Tells what the tests take: by lane, by part, and by the slowest files.

    python tools/minutes.py run NAME COMMAND…   run a command, and note the time by the clock under this name
    python tools/minutes.py report              print what the last lane took, by part
    python tools/minutes.py keep after          keep it as `after` (or `before`), and write CONTRIBUTING.md's tables and
                                                tests/slow.txt, what `make quick` leaves out

`make test` and the other lanes note their steps in test-artifacts/minutes.json, and pytest writes beside it what each
test took. Seconds of tests are those of the workers: two workers spend two in one second by the clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
NOTES = ROOT / "test-artifacts" / "minutes.json"
TESTS = ROOT / "test-artifacts" / "tests.xml"
KEPT = ROOT / "tests" / "minutes.json"
PAGE = ROOT / "CONTRIBUTING.md"
SLOWEST = 20
SLOW = ROOT / "tests" / "slow.txt"
SLOW_SECONDS = 0.1  # of all cases of a test together
# What a file belongs to; the first that fits. All other tests of Python are "unit".
PARTS = {
    "JupyterLab, from make demo to a click": "tests/browser/test_from_demo_to_click",
    "pages in a browser": "tests/browser/",
    "notebooks": "tests/project/test_examples",
    "contract": "tests/contract/",
    "examples of docstrings": "attnwidget/",
}


def seconds_of_files(report: Path) -> dict[str, float]:
    """Return the seconds that the tests of each file took, from what pytest has written."""
    found: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        found[file_of(case.get("classname") or case.get("name") or "")] += float(case.get("time", 0))
    return found


def slow_tests(report: Path) -> list[str]:
    """Return the tests that took long, all their cases together, by the names that pytest gives them."""
    found: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        dotted = case.get("classname") or ""
        path = file_of(dotted)
        classes = dotted.removeprefix(path[:-3].replace("/", ".")).strip(".").split(".")
        name = (case.get("name") or "").partition("[")[0]
        found["::".join([path, *filter(None, classes), name])] += float(case.get("time", 0))
    return sorted(name for name, seconds in found.items() if seconds > SLOW_SECONDS and "/browser/" not in name)


def file_of(dotted: str) -> str:
    """Return the file that holds a test, by its dotted name: the longest beginning that is a file."""
    names = dotted.split(".")
    for length in range(len(names), 0, -1):
        path = "/".join(names[:length]) + ".py"
        if (ROOT / path).is_file():
            return path
    return "/".join(names)


def part_of(path: str) -> str:
    """Return which part of the lane a file belongs to."""
    return next((part for part, start in PARTS.items() if path.startswith(start)), "unit")


def notes() -> list[dict[str, Any]]:
    """Return the steps that were noted since the lane began."""
    return list(json.loads(NOTES.read_text(encoding="utf-8"))) if NOTES.exists() else []


def run(name: str, command: Sequence[str]) -> int:
    """Run a step and note what it took; a step that is called as the lane begins a new list."""
    start = time.monotonic()
    status = subprocess.run(command).returncode
    NOTES.parent.mkdir(exist_ok=True)
    step = {"name": name, "seconds": round(time.monotonic() - start, 1), "passed": status == 0}
    NOTES.write_text(json.dumps([*notes(), step]), encoding="utf-8")
    return status


def measured() -> dict[str, Any]:
    """Return what the last lane took: its steps by the clock, its tests by part, and its slowest files."""
    files = seconds_of_files(TESTS)
    parts: dict[str, float] = defaultdict(float)
    for path, seconds in files.items():
        parts[part_of(path)] += seconds
    slowest = dict(sorted(files.items(), key=lambda pair: -pair[1])[:SLOWEST])
    return {
        "machine": machine(),
        "steps": {one["name"]: one["seconds"] for one in notes()},
        "parts": {name: round(seconds, 1) for name, seconds in sorted(parts.items(), key=lambda pair: -pair[1])},
        "slowest": {name: round(seconds, 1) for name, seconds in slowest.items()},
    }


def machine() -> str:
    """Return the processor and how many of its cores there are."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "a processor")
    return f"{model}, {os.cpu_count()} cores"


def report(now: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return what a lane took, in lines to print."""
    steps, parts = now["steps"], now["parts"]
    lines = [f"by the clock: {minutes(sum(steps.values()))} min"]
    lines += [f"  {minutes(seconds):>5}  {name}" for name, seconds in steps.items()]
    lines += ["tests, in minutes of all processes together:"]
    return lines + [f"  {minutes(seconds):>5}  {name}" for name, seconds in parts.items()]


def minutes(seconds: float) -> str:
    """Return seconds as minutes.

    >>> minutes(90)
    '1.5'
    """
    return f"{seconds / 60:.1f}"


def table(kept: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    """Return the tables of CONTRIBUTING.md: minutes by step and part, and seconds of the slowest files."""
    before, after = kept.get("before", {}), kept.get("after", {})
    lines = ["| minutes | before | after |", "|---|---|---|"]
    for kind in ("steps", "parts"):
        for name in {**after.get(kind, {}), **before.get(kind, {})}:
            lines.append(f"| {name} | {cell(before, kind, name, 60)} | {cell(after, kind, name, 60)} |")
    lines += ["", "| the slowest files, seconds | before | | the slowest files now | after |", "|---|---|---|---|---|"]
    files = [list(of.get("slowest", {}).items()) for of in (before, after)]
    for at in range(max(map(len, files), default=0)):
        left, right = (f"| `{of[at][0]}` | {of[at][1]:.0f} " if at < len(of) else "| | " for of in files)
        lines.append(f"{left}| {right}|")
    return lines


def cell(of: Mapping[str, Mapping[str, float]], kind: str, name: str, per: float) -> str:
    """Return one number of the table; nothing where the lane had no such part."""
    return f"{of[kind][name] / per:.1f}" if name in of.get(kind, {}) else ""


def write_between(path: Path, name: str, lines: Sequence[str]) -> None:
    """Replace the lines of a page between its two comments of this name.

    Raises:
        ValueError: The page has no such comments.
    """
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    text = path.read_text(encoding="utf-8")
    if start not in text or end not in text:
        raise ValueError(f"{path.name} has no lines {start!r} and {end!r}: write them where the table belongs")
    head, _, rest = text.partition(start)
    path.write_text("\n".join([head + start, *lines, end + rest.partition(end)[2]]), encoding="utf-8")


def keep(name: str) -> None:
    """Keep what was measured under a name, and write the table again."""
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    kept[name] = measured()
    KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    SLOW.write_text("\n".join(slow_tests(TESTS)) + "\n", encoding="utf-8")
    write_between(PAGE, "tools/minutes.py", table(kept))


def main(arguments: Sequence[str]) -> int:
    """Run, report or keep, as it is named."""
    match arguments:
        case ["begin"]:
            NOTES.unlink(missing_ok=True)
            TESTS.unlink(missing_ok=True)
        case ["run", name, *command] if command:
            return run(name, command)
        case ["report"]:
            print(*report(measured()), sep="\n")
        case ["keep", ("before" | "after") as name]:
            keep(name)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
