"""What a long capture costs on several workers: rates of one thread, the speed-up of two processes, and a plan.

    python benchmarks/scale.py                  # a table and the plan of docs/scale.md; takes a minute or two
    python benchmarks/scale.py --json out.json  # and the same numbers as JSON
    python benchmarks/scale.py --no-dask        # without a Dask cluster

Rates are seconds of the processor, one thread, the best of several runs. The speed-up is a ratio of clocks in one run:
the overviews of a stack by one process, and by two, each with one thread.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from figures import Figure, finish, machine

from attnwidget import Attention, AttentionStack, Capture, capture, segments
from attnwidget._engine.parts import subject_of
from attnwidget._parallel.executors import Processes

N, LAYERS, HEADS, GROUPS, D = 1 << 20, 32, 32, 8, 128  # what is planned: bfloat16, causal
SIZE, SEGMENTS, SAMPLED = 512, 100, 32
QUERIES, KEYS = 2048, 1 << 17  # of what is measured


def best(way: Callable[[], Any], runs: int) -> float:
    """Return the least seconds of the processor."""
    found = []
    for _ in range(runs):
        begun = time.process_time()
        way()
        found.append(time.process_time() - begun)
    return min(found)


def rates(runs: int) -> dict[str, float]:
    """Return picoseconds of one thread for a cell, and seconds for a row of all heads, of each kind of work."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    q, k = torch.randn(1, 4, QUERIES, D).bfloat16(), torch.randn(1, 1, KEYS, D).bfloat16()
    cells = QUERIES * KEYS
    named = segments({f"part {i}": (KEYS * i // SEGMENTS, KEYS * (i + 1) // SEGMENTS) for i in range(SEGMENTS)})
    rows = torch.arange(QUERIES)
    overview = best(lambda: Attention(q, k).overview(size=SIZE), runs) / cells
    masses = best(lambda: Attention(q, k).by_segment(rows, named), runs) / (4 * cells)
    metrics = best(lambda: Attention(q, k).metrics(rows=SAMPLED), runs) / (SAMPLED * KEYS)
    return {name: 1e12 * value for name, value in (("overview", overview), ("segments", masses), ("metrics", metrics))}


def stack(length: int, layers: int = 4) -> AttentionStack:
    torch.manual_seed(0)
    return AttentionStack([Attention(*torch.randn(2, 1, 4, length, 64), is_causal=True) for _ in range(layers)])


def clock(way: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    way()
    return time.perf_counter() - begun


def speed_up(length: int, runs: int) -> dict[str, float]:
    """Return how much faster two processes are than one, of one thread each, and what travelling costs."""
    context = multiprocessing.get_context("spawn")
    layers = stack(length)
    ratios, overhead = [], []
    with ProcessPoolExecutor(1, mp_context=context) as one, ProcessPoolExecutor(2, mp_context=context) as two:
        for pool in (one, two):
            stack(2048, 1).overviews(size=SIZE, executor=pool)  # starts it, and imports torch
        for _ in range(runs):
            here = clock(lambda: layers.overviews(size=SIZE))
            single, double = (
                clock(lambda pool=pool: layers.overviews(size=SIZE, executor=pool)) for pool in (one, two)
            )
            ratios.append(single / double)
            overhead.append(single / here)
    return {"two processes": statistics.median(ratios), "one process ÷ this process": statistics.median(overhead)}


def by_dask(length: int, runs: int) -> dict[str, float]:
    """Return how much faster a cluster of two workers is than one of one."""
    import dask
    from distributed import Client, LocalCluster

    layers, clocks = stack(length), []
    dask.config.set({"distributed.comm.timeouts.connect": "120s"})
    with tempfile.TemporaryDirectory() as folder:
        for workers in (1, 2):
            how: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "local_directory": folder}
            with (
                LocalCluster(**how, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster,
                Client(cluster) as client,
            ):
                executor = client.get_executor()
                stack(2048, 1).overviews(size=SIZE, executor=executor)
                clocks.append(
                    min(clock(lambda e=executor: layers.overviews(size=SIZE, executor=e)) for _ in range(runs))
                )
    return {"two Dask workers": clocks[0] / clocks[1]}


def traffic() -> dict[str, int]:
    """Return the bytes of a task of a saved capture, and of its result."""
    with capture() as cap:
        torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, 1, 2, 4096, 32), is_causal=True)
    with tempfile.TemporaryDirectory() as folder:
        cap.save(f"{folder}/run.safetensors")
        att = Capture.load(f"{folder}/run.safetensors").attention[0]
        executor: Executor | None = None
        sent = Processes(executor).send(subject_of(att, "weights", "layer 0"))  # type: ignore[arg-type]
    found = att.overview(size=SIZE)
    result = len(pickle.dumps((found.values, found.allowed))) + 8 * att.shape.Q
    return {"a task": len(pickle.dumps(sent.given)) + 500, "a picture of 4,096 tokens": result}


def plan(found: dict[str, Any]) -> dict[str, float]:
    """Return what the capture of docs/scale.md takes."""
    heads, cells = LAYERS * HEADS, N * (N + 1) / 2
    hours = {name: found["picoseconds"][name] * 1e-12 * heads * cells / 3600 for name in ("overview", "segments")}
    metrics = found["picoseconds"]["metrics"] * 1e-12 * heads * SAMPLED * N / 3600
    kept = 2 * D * N * (HEADS + 2 * GROUPS) * LAYERS
    read = 2 * D * N * (HEADS + GROUPS) * LAYERS
    pictures = heads * (SIZE * SIZE * 5 + 8 * N)
    tasks = heads * cells / (1 << 30)
    return {
        "thread-hours of all overviews": hours["overview"],
        "thread-hours of all segment masses": hours["segments"],
        "thread-hours of metrics, 32 rows": metrics,
        "GB of q, k and v on disk": kept / 1e9,
        "GB of q and k": read / 1e9,
        "tasks": tasks,
        "GB of tasks sent": tasks * found["bytes"]["a task"] / 1e9,
        "GB of results": pictures / 1e9,
        "GB sent if tensors in memory go to each of 64 workers": 64 * read / 1e9,
    }


def figures(found: dict[str, Any]) -> list[Figure]:
    units = {"picoseconds": "ps a cell", "ratios": "×", "bytes": "bytes"}
    return [
        Figure(name, value, unit, lower_is_better=not name.startswith("two"))
        for part, unit in units.items()
        for name, value in found[part].items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--length", type=int, default=8192, help="tokens of the stack whose overviews are timed")
    parser.add_argument("--no-dask", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "bytes": traffic(), "picoseconds": rates(asked.runs)}
    found["ratios"] = speed_up(asked.length, asked.runs)
    if not asked.no_dask:
        found["ratios"] |= by_dask(asked.length, asked.runs)
    found["plan"] = plan(found)
    about = found["machine"]
    print(f"{about['processor']}, torch {about['torch']}, Python {about['python']}\n")
    for part in ("picoseconds", "ratios", "bytes", "plan"):
        print(f"| {part} | |\n|---|--:|")
        for name, value in found[part].items():
            print(
                f"| {name} | {value:,.2f} |"
                if isinstance(value, float) and value < 10
                else f"| {name} | {value:,.0f} |"
            )
        print()
    return finish(asked.json, figures(found), found)


if __name__ == "__main__":
    raise SystemExit(main())
