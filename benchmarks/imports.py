"""What importing attnwidget costs beyond torch, each case in fresh processes that take turns.

    python benchmarks/imports.py                # a table; exits with 3 if a budget is exceeded
    python benchmarks/imports.py --runs 11 --json out.json

Processor time of this import alone, with compiled bytecode, after torch; and once more after IPython, which a kernel
has imported before any cell runs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from figures import Figure, figure_of, finish

ROOT = Path(__file__).parents[1]
BUDGETS = {"import attnwidget": 0.15}  # seconds
CASES = (
    "import attnwidget",
    "from attnwidget import Attention",
    "from attnwidget import AttentionWidget",
    "from attnwidget import capture",
)
BEFORE = {"torch": "import torch", "torch, IPython": "import torch, IPython, ipykernel.comm"}
CODE = """
import time
begun = time.process_time()
{before}
middle = time.process_time()
{case}
print(middle - begun, time.process_time() - middle)
"""


def seconds(case: str, before: str, bytecode: str) -> tuple[float, float]:
    """Return the processor time of what comes before, and of the case, in a fresh process."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode, "PYTHONPATH": os.fspath(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", CODE.format(before=before, case=case)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    torch, own = map(float, said.split())
    return torch, own


def measure(runs: int) -> list[dict[str, Any]]:
    """Return for each case the times of all runs; the first of each, which compiles, is not counted."""
    rows: list[dict[str, Any]] = [
        {"case": case, "after": name, "before": [], "own": []} for case in CASES for name in BEFORE
    ]
    with tempfile.TemporaryDirectory() as bytecode:
        for run in range(runs + 1):
            for row in rows:
                before, own = seconds(row["case"], BEFORE[row["after"]], bytecode)
                if run > 0:
                    row["before"].append(before)
                    row["own"].append(own)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    lines = ["| import | after | least | median | of what was before |", "|---|---|--:|--:|--:|"]
    for row in rows:
        share = median(row["own"]) / median(row["before"])
        lines.append(
            f"| `{row['case']}` | {row['after']} | {min(row['own']):.3f} s | {median(row['own']):.3f} s | {share:.1%} |"
        )
    return "\n".join(lines)


def figures(rows: list[dict[str, Any]]) -> list[Figure]:
    """Return the cost of each import as a figure."""
    return [
        figure_of(f"{row['case']}, after {row['after']}", row["own"], "s", wanted=BUDGETS.get(row["case"]))
        for row in rows
    ]


def main() -> int:
    """Measure, print a table, and return 3 if a budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = measure(asked.runs)
    print(table(rows))
    return finish(asked.json, figures(rows), {"runs": asked.runs, "imports": rows})


if __name__ == "__main__":
    raise SystemExit(main())
