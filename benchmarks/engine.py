"""What an exact overview costs beside torch's attention, in time and memory; first pictures and tiles of long heads.

    python benchmarks/engine.py                    # a table; takes a few minutes
    python benchmarks/engine.py --json out.json    # and the same numbers as JSON
    python benchmarks/engine.py --lengths 2048 --runs 9 --no-long
    python benchmarks/engine.py --threads 1 --processor-time --beside-sdpa --lengths 4096 16384    # on a busy machine

README.md beside this file says what each column means.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
import torch
import torch.nn.functional as F
from figures import Figure, finish, machine
from torch import Tensor
from wire import Peak

from attnwidget import Attention, masks
from attnwidget._engine import fused
from attnwidget._engine.logsumexp import LogSumExp
from attnwidget._engine.overview import sampled, tile
from attnwidget._engine.regions import TileAddress

D, WINDOW, LONG = 64, 512, 131_072
LENGTHS = (2048, 4096, 16_384, 32_768)
ALL_UP_TO = 16_384  # every dtype and mask: a bool mask of 16,384² is 256 MB, a bias and the scores 1 GB each

# name: beside what, and at most how much of it, by the least length at which that is asked for.
THRESHOLDS: dict[str, tuple[str, dict[int, float]]] = {
    "max": ("sdpa", {4096: 0.9, 16_384: 0.6}),
    "mean": ("sdpa", {4096: 0.9, 16_384: 0.6}),
    "causal": ("sdpa causal", {4096: 0.9, 16_384: 0.5}),
    "window": ("sdpa", {16_384: 0.15}),
    "padding": ("max", {2048: 1.3}),
    "dense mask": ("max", {2048: 1.3}),
    "bias": ("max", {2048: 1.3}),
    "peaked": ("max", {2048: 1.3}),
    "float64": ("sdpa float64", {2048: 1.0}),
    "bf16": ("sdpa bf16", {2048: 1.0}),
    "fp16": ("sdpa fp16", {2048: 1.0}),
    "D = 128": ("sdpa D = 128", {2048: 1.0}),
    "materialise": ("max", {}),  # at least, below
}
AT_LEAST = {16_384: 5.0}  # materialise-and-pool takes so many times as long

# Seconds at 131,072 tokens, and the memory of it.
LIMITS = {"first picture": 0.1, "tile, cold": 0.1, "exact pass": 20.0}
MEMORY = 96e6


def make(length: int, size: int = D, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(length, size, generator=source).to(dtype) for _ in range(3))
    return q, k, v


def blockwise(q: Tensor, k: Tensor) -> None:
    """q · kᵀ and nothing else, 512 × 2,048 at a time."""
    room = torch.empty(2048 * 512)
    for keys in k.split(2048):
        for queries in q.split(512):
            torch.mm(keys, queries.mT, out=room[: len(keys) * len(queries)].view(len(keys), len(queries)))


def materialise(q: Tensor, k: Tensor) -> Tensor:
    weights = torch.softmax(q @ k.mT * q.shape[1] ** -0.5, 1)
    return F.max_pool2d(weights[None], max(1, len(q) // 512))


def sdpa(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Callable[[], Any]:
    return lambda: F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], **how)


def overview(
    q: Tensor, k: Tensor, v: Tensor | None = None, pool: str = "max", size: int = 512, **how: Any
) -> Callable[[], Any]:
    return lambda: Attention(q, k, **how).overview(size=size, pool=pool)


def by_torch(act: Callable[[], Any]) -> Callable[[], Any]:
    """The same act without the compiled library."""

    def slow() -> Any:
        os.environ[fused.VARIABLE] = "0"
        try:
            return act()
        finally:
            del os.environ[fused.VARIABLE]

    return slow


def beside_sdpa(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Callable[[], Any]]:
    """What is measured at any length."""
    found = {
        "sdpa": sdpa(q, k, v),
        "sdpa causal": sdpa(q, k, v, is_causal=True),
        "q·kᵀ": lambda: blockwise(q, k),
        "max": overview(q, k),
        "mean": overview(q, k, pool="mean"),
        "causal": overview(q, k, is_causal=True),
        "window": overview(q, k, is_causal=True, window=WINDOW),
        "padding": overview(q, k, mask=masks.padding([len(q) * 3 // 4])),
        "peaked": overview(q * 9, k),
    }
    ours = ("max", "mean", "causal", "window", "padding", "peaked")
    return found | {f"{name}, by torch": by_torch(found[name]) for name in ours}


def acts(length: int, only: bool = False) -> dict[str, Callable[[], Any]]:
    """What is measured, each a whole act: nothing is remembered from one to the next."""
    q, k, v = make(length)
    if length > ALL_UP_TO or only:
        return beside_sdpa(q, k, v)
    kinds = (("float64", torch.float64), ("bf16", torch.bfloat16), ("fp16", torch.float16))
    other = {name: make(length, dtype=dtype) for name, dtype in kinds}
    wide = make(length, 128)

    found = beside_sdpa(q, k, v) | {
        **{f"sdpa {name}": sdpa(*tensors) for name, tensors in other.items()},
        "sdpa D = 128": sdpa(*wide),
        **{name: overview(*tensors) for name, tensors in other.items()},
        "D = 128": overview(*wide),
    }
    keep = torch.rand(length, length, generator=torch.Generator().manual_seed(1)) < 0.7
    bias = torch.randn(length, length, generator=torch.Generator().manual_seed(2))
    found |= {"dense mask": overview(q, k, mask=keep), "bias": overview(q, k, bias=bias)}
    found |= {"materialise": lambda: materialise(q, k)}
    return found


def taken(
    cases: dict[str, Callable[[], Any]], runs: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Medians of interleaved runs, in seconds."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for run in range(runs + 1):
        for name, act in cases.items():
            start = clock()
            act()
            if run:  # the first one warms up
                times[name].append(clock() - start)
    return {name: median(found) for name, found in times.items()}


def tiles(runs: int) -> dict[str, float]:
    """A head of 131,072 tokens: its first picture, and a tile cell by cell, in seconds."""
    q, k, _ = make(LONG)
    causal = Attention(q, k, is_causal=True)
    known = Attention(q, k)
    known.remember(0, 0, any_pair(known))
    middle = LONG // 256 // 2

    def middle_tile(att: Attention) -> Any:
        return tile(att, 0, 0, TileAddress(0, middle, middle))

    return taken(
        {
            "first picture": lambda: sampled(Attention(q, k), 0, 0, rows=512, columns=512),
            "first picture, causal": lambda: sampled(Attention(q, k, is_causal=True), 0, 0, rows=512, columns=512),
            "tile, cold": lambda: middle_tile(Attention(q, k)),
            "tile, cold, causal": lambda: middle_tile(Attention(causal.q, causal.k, is_causal=True)),
            "tile, known": lambda: middle_tile(known),
        },
        runs,
    )


def any_pair(att: Attention) -> LogSumExp:
    """Log-normalizers of the right shape: the time of a tile does not depend on their numbers."""
    return LogSumExp(torch.zeros(att.shape.Q), torch.full((att.shape.Q,), 12.0))


def exact_pass() -> dict[str, float]:
    """The level of 2,048 × 2,048 of a head of 131,072 tokens: seconds, and bytes over q, k and v."""
    overview(*make(64))()
    act = overview(*make(LONG), size=2048)
    with Peak(psutil.Process()) as peak:
        start = time.perf_counter()
        act()
        return {"seconds": time.perf_counter() - start, "bytes": peak.read()}


# Each in a process of its own.


def apart(*arguments: str) -> Any:
    command = [sys.executable, __file__, *arguments, "--threads", str(torch.get_num_threads())]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def memory_of(name: str, length: int) -> float:
    """Bytes at the peak over what the process held with the tensors made and torch warm."""
    for act in ("sdpa", "max"):
        acts(64)[act]()
    act = acts(length)[name]
    with Peak(psutil.Process()) as peak:
        act()
        return peak.read()


def verdict(name: str, length: int, times: dict[str, float]) -> tuple[float, str, float | None]:
    """Ratio, to what, and the threshold that holds at this length."""
    beside, limits = THRESHOLDS.get(name, ("sdpa", {}))
    limit = next((limits[least] for least in sorted(limits, reverse=True) if length >= least), None)
    if name == "materialise":
        limit = next((AT_LEAST[least] for least in sorted(AT_LEAST, reverse=True) if length >= least), None)
    return times[name] / times[beside], beside, limit


def table(length: int, times: dict[str, float], memory: dict[str, float]) -> list[dict[str, Any]]:
    print(f"\n| n = {length:,} | ms | over SDPA | over its own measure | threshold | | memory |")
    print("|---|--:|--:|--:|--:|---|--:|")
    rows = []
    for name, seconds in times.items():
        ratio, beside, limit = verdict(name, length, times)
        least = name == "materialise"
        met = None if limit is None else (ratio >= limit if least else ratio <= limit)
        row = {"n": length, "name": name, "seconds": seconds, "sdpa": seconds / times["sdpa"], "beside": beside}
        rows.append(row | {"ratio": ratio, "threshold": limit, "met": met, "memory": memory.get(name)})
        said = "" if limit is None else f"{'≥' if least else '≤'} {limit:g}"
        of = "" if beside == "sdpa" else f"{ratio:.2f} × {beside}"
        held = f"{memory[name] / 1e6:.0f} MB" if name in memory else ""
        word = "" if met is None else "met" if met else "**missed**"
        print(f"| {name} | {1e3 * seconds:.1f} | {seconds / times['sdpa']:.2f} | {of} | {said} | {word} | {held} |")
    return rows


def long_table(times: dict[str, float], whole: dict[str, float]) -> None:
    print(f"\n| n = {LONG:,} | ms | threshold | | memory |\n|---|--:|--:|---|--:|")
    for name, seconds in {**times, "exact pass": whole["seconds"]}.items():
        limit = next((LIMITS[start] for start in LIMITS if name.startswith(start)), None)
        word = "" if limit is None else "met" if seconds <= limit else "**missed**"
        said = "" if limit is None else f"≤ {1e3 * limit:,.0f}"
        held = f"{whole['bytes'] / 1e6:.0f} MB (≤ {MEMORY / 1e6:.0f} MB)" if name == "exact pass" else ""
        print(f"| {name} | {1e3 * seconds:,.1f} | {said} | {word} | {held} |")


def figures(rows: list[dict[str, Any]], long: dict[str, Any]) -> list[Figure]:
    """Return the ratios, each to what stands beside it, and the seconds and bytes of the longest."""
    found = []
    for row in rows:
        name = f"{row['n']:,} tokens, {row['name']} ÷ {row['beside']}"
        more = row["name"] == "materialise"
        if row["name"] != row["beside"]:
            found.append(Figure(name, row["ratio"], "×", lower_is_better=not more, wanted=row["threshold"]))
    for name, seconds in (long or {"times": {}})["times"].items():
        limit = next((LIMITS[start] for start in LIMITS if name.startswith(start)), None)
        found.append(Figure(f"{LONG:,} tokens, {name}", seconds, "s", wanted=limit))
    if long:
        whole = long["exact pass"]
        found.append(Figure(f"{LONG:,} tokens, exact pass", whole["seconds"], "s", wanted=LIMITS["exact pass"]))
        found.append(Figure(f"{LONG:,} tokens, memory of the exact pass", whole["bytes"], "bytes", wanted=MEMORY))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5, help="interleaved, after one to warm up; the median is taken")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--no-long", action="store_true", help=f"nothing at {LONG:,}")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--processor-time", action="store_true", help="what each act takes of the processor; one thread"
    )
    parser.add_argument("--beside-sdpa", action="store_true", help="only what is measured at any length")
    parser.add_argument("--time-of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--tiles", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--pass", dest="exact_pass", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.time_of:
        clock = time.process_time if asked.processor_time else time.perf_counter
        print(json.dumps(taken(acts(asked.time_of, asked.beside_sdpa), asked.runs, clock)))
        return 0
    if asked.memory_of:
        print(json.dumps(memory_of(asked.memory_of[0], int(asked.memory_of[1]))))
        return 0
    if asked.tiles:
        print(json.dumps(tiles(asked.runs)))
        return 0
    if asked.exact_pass:
        print(json.dumps(exact_pass()))
        return 0

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    host = machine()
    instructions = torch.backends.cpu.get_cpu_capability()
    said = f"{host['processor']} ({instructions}), {host['threads']} of {host['cores']} cores, torch {host['torch']}"
    print(f"fused pass: {fused.loaded().state}")
    print(f"{said}, Python {host['python']}; {asked.threads} threads, median of {asked.runs} interleaved runs, each")
    print(f"length in a fresh process; load before it began {load:.1f}; float32, head size {D}, one head")
    found: list[dict[str, Any]] = []
    for length in asked.lengths:
        options = ["--processor-time"] * asked.processor_time + ["--beside-sdpa"] * asked.beside_sdpa
        times = apart("--time-of", str(length), "--runs", str(asked.runs), *options)
        measured = () if asked.no_memory else ("sdpa", "max", "mean", "causal", "bf16", "materialise")
        memory = {name: apart("--memory-of", name, str(length)) for name in measured if name in times}
        found += table(length, times, memory)
    long: dict[str, Any] = {}
    if not asked.no_long:
        long = {"times": apart("--tiles", "--runs", str(asked.runs)), "exact pass": apart("--pass")}
        long_table(long["times"], long["exact pass"])
    details = {"threads": asked.threads, "load": load, "runs": asked.runs, "rows": found, "long": long}
    return finish(asked.json, figures(found, long), details)


if __name__ == "__main__":
    raise SystemExit(main())
