"""Prints which share of the lines the tests have run, in both languages, and the lines of the engine that none ran.

    python tools/tested_lines.py              what `make test` ends with
    python tools/tested_lines.py --strict     fails where a line of the engine was not run

`make test` is not strict: some lines are for another processor, a GPU, or an accident that comes by chance.

Of Python it is what pytest measured in its own processes, which leaves out the kernels of notebooks; of the front-end
what vitest did, which leaves out the pages that a browser opens. What is excused is named in pyproject.toml.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import coverage

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".coverage"
FRONT_END = ROOT / "test-artifacts" / "lines" / "coverage-summary.json"
WHOLE = "_engine"  # the package of which every line is to be run


class Lines(NamedTuple):
    """The lines of a file that hold statements."""

    all: int
    missing: tuple[int, ...]


def of_python(data: Path, package: Path) -> dict[str, Lines]:
    """Return the lines of each file of a package, by its path in it, without the files that pyproject.toml omits."""
    measured = coverage.Coverage(data_file=str(data), config_file=str(ROOT / "pyproject.toml"))
    measured.load()
    omitted = measured.get_option("run:omit")
    found = {}
    for path in sorted(package.rglob("*.py")):
        if isinstance(omitted, list) and path.relative_to(package.parent).as_posix() in omitted:
            continue
        _, statements, _, missing, _ = measured.analysis2(str(path))
        found[path.relative_to(package).as_posix()] = Lines(len(statements), tuple(missing))
    return found


def of_front_end(summary: Path) -> tuple[int, int]:
    """Return how many lines vitest has run, and of how many."""
    total = json.loads(summary.read_text(encoding="utf-8"))["total"]["lines"]
    return total["covered"], total["total"]


def share(lines: Iterable[Lines]) -> float:
    """Return the share of lines that were run, in percent."""
    lines = list(lines)
    return 100 * (1 - sum(len(one.missing) for one in lines) / max(1, sum(one.all for one in lines)))


def by_package(lines: Mapping[str, Lines]) -> dict[str, float]:
    """Return the share of each package, the lowest first."""
    packages: dict[str, list[Lines]] = {}
    for name, one in lines.items():
        if "/" in name:
            packages.setdefault(name.split("/")[0], []).append(one)
    return dict(sorted(((name, share(some)) for name, some in packages.items()), key=lambda pair: pair[1]))


def spans(numbers: Iterable[int]) -> str:
    """Return line numbers in short.

    >>> spans([3, 4, 5, 9])
    '3-5, 9'
    """
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def not_run(lines: Mapping[str, Lines]) -> list[str]:
    """Return what is to be said of each file of the engine that has lines that no test ran."""
    return [
        f"attnwidget/{name}: no test ran line {spans(one.missing)}"
        for name, one in lines.items()
        if name.startswith(f"{WHOLE}/") and one.missing
    ]


def main(arguments: Sequence[str]) -> int:
    """Print the shares; with --strict, return 1 if a line of the engine was not run."""
    python = of_python(PYTHON, ROOT / "attnwidget")
    run, there = of_front_end(FRONT_END)
    missed = not_run(python)
    print(*missed, sep="\n", end="\n" if missed else "")
    print(f"lines run by pytest: {share(python.values()):.1f} % of attnwidget; by package:")
    print("  " + ", ".join(f"{name} {percent:.1f}" for name, percent in by_package(python).items()))
    print(f"lines run by vitest: {100 * run / there:.1f} % of js/src, the pages in a browser not counted")
    return bool(missed) and "--strict" in arguments


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
