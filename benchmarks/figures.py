"""What a benchmark found, in one form for all: a name, a value, a unit, which way is better, what was wanted.

A script ends with `raise SystemExit(finish(asked.json, figures, details))`. That writes the file of JSON, if one is
asked for, names each figure that is not as wanted, and returns 0, or `MISSED` where there is one. What could not be
run at all ends with any other status, as Python's own 1 for an exception.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from statistics import median, quantiles
from typing import Any

MISSED = 3  # the status of a script that ran, and found something that is not as wanted
VERSIONS = ("torch", "numpy", "transformers", "anywidget", "playwright", "distributed")


@dataclass(frozen=True)
class Figure:
    """One number: `quartiles` are those of the runs that it is the median of, where there are several."""

    name: str
    value: float
    unit: str
    lower_is_better: bool = True
    wanted: float | None = None
    quartiles: tuple[float, float] | None = None

    @property
    def met(self) -> bool | None:
        """Tell whether it is as wanted; None where nothing is."""
        if self.wanted is None:
            return None
        return self.value <= self.wanted if self.lower_is_better else self.value >= self.wanted


def figure_of(name: str, runs: Sequence[float], unit: str, **more: Any) -> Figure:
    """Return the median of several runs as a figure, with their quartiles."""
    low, _, high = quantiles(runs, method="inclusive") if len(runs) > 1 else (runs[0],) * 3
    return Figure(name, median(runs), unit, quartiles=(low, high) if len(runs) > 2 else None, **more)


def machine() -> dict[str, Any]:
    """Describe the machine and what it runs; neither its name nor any path is in it."""
    import psutil
    import torch

    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        name = lines[0].split(":")[1].strip() if lines else name
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory": round(psutil.virtual_memory().total / 2**30),  # GiB
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: version for package in VERSIONS if (version := _version(package))},
    }


def peak_bytes() -> int:
    """Return the largest memory of this process. On Linux `ru_maxrss` would count that of its parent too."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    found = [line for line in lines if line.startswith("VmHWM:")]
    if found:
        return int(found[0].split()[1]) << 10
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def load() -> float | None:
    """Return how many processes wanted the processor in the last minute, where the system tells."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def finish(path: Path | None, figures: Iterable[Figure], details: Any = None) -> int:
    """Write the figures, with all that the script found beside them, and return the status that it ends with.

    Raises:
        ValueError: two figures have one name, or a value is no number.
    """
    found = list(figures)
    names = [figure.name for figure in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two figures are called {name!r}: give each a name of its own")
    for figure in found:
        if not math.isfinite(figure.value):
            raise ValueError(f"{figure.name} is {figure.value}: leave out what was not found")
    missed = [figure for figure in found if figure.met is False]
    for figure in missed:
        side = "at most" if figure.lower_is_better else "at least"
        print(f"NOT AS WANTED {figure.name}: {figure.value:,.4g} {figure.unit}, wanted {side} {figure.wanted:,.4g}")
    if path:
        result = {"machine": machine(), "figures": [asdict(figure) for figure in found], "details": details}
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return MISSED if missed else 0
