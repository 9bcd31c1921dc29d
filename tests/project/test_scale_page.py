"""The plan of docs/scale.md follows from the rates that it names, as benchmarks/scale.py counts them."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8").split("## A plan for")[1].split("\n## ")[0]
SECONDS = {"h": 3600, "s": 1}


def numbers(row: str) -> list[tuple[float, str]]:
    """The numbers of a row of a table, with their units."""
    (cells,) = re.findall(rf"^\| {row}.*? \| (.*) \|$", PAGE, re.M)
    found = re.findall(r"([\d.,]+) ?([A-Za-z]*)", cells)
    return [(float(number.replace(",", "")), unit) for number, unit in found]


@pytest.fixture(scope="module")
def plan() -> dict[str, float]:
    """What benchmarks/scale.py makes of the rates that stand on the page."""
    folder = str(ROOT / "benchmarks")
    if folder not in sys.path:
        sys.path.append(folder)
    scale: Any = importlib.import_module("scale")
    rows = {"overview": "pictures of all heads", "segments": "masses of 100", "metrics": "metrics of 32"}
    (kilobytes,) = re.findall(r"tasks of a saved capture, ([\d.]+) KB each", PAGE)
    of_page = {name: 1000 * numbers(row)[0][0] for name, row in rows.items()}
    found: dict[str, float] = scale.plan({"picoseconds": of_page, "bytes": {"a task": 1000 * float(kilobytes)}})
    return found


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ("pictures of all heads", "thread-hours of all overviews"),
        ("masses of 100", "thread-hours of all segment masses"),
        ("metrics of 32", "thread-hours of metrics, 32 rows"),
    ],
)
def test_hours_follow_from_the_rates(row: str, name: str, plan: dict[str, float]) -> None:
    (_, ns), (hours, _), *by_workers = numbers(row)
    assert ns == "ns"
    assert hours == pytest.approx(plan[name], rel=0.02)
    for workers, (time, unit) in zip((64, 256), by_workers, strict=True):
        assert time * SECONDS[unit] == pytest.approx(hours * 3600 / workers, rel=0.05)


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ("the capture on disk", "GB of q, k and v on disk"),
        ("of these q and k", "GB of q and k"),
        ("524,288 tasks", "GB of tasks sent"),
        ("results: 1,024", "GB of results"),
        ("instead, if", "GB sent if tensors in memory go to each of 64 workers"),
    ],
)
def test_bytes_follow_from_the_sizes(row: str, name: str, plan: dict[str, float]) -> None:
    ((size, unit),) = numbers(row)
    assert size * {"GB": 1, "TB": 1000}[unit] == pytest.approx(plan[name], rel=0.03)
    assert plan["tasks"] == pytest.approx(524_288, rel=1e-3)
