"""What a widget costs: bytes to the front-end, kernel memory and time, for q, k and v of 2,048 tokens × 12 heads.

    python benchmarks/wire.py                 # a table; exits with 1 if a budget is exceeded
    python benchmarks/wire.py --json out.json # and the same numbers as JSON

README.md beside this file says what each column means.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import comm
import psutil
import torch
import torch.nn.functional as F
from comm.base_comm import BaseComm
from torch import Tensor

from attnwidget import AttentionWidget
from attnwidget.widget import STATIC

TOKENS, HEADS, HEAD_SIZE = 2048, 12, 64
KIB, MIB, MB = 1024, 1024**2, 1e6
BUDGETS = {"opening": 1 * MIB, "head": 256 * KIB, "memory": 64 * MB, "bundle": 200 * 1000}
PATTERNS = ("random", "causal", "peaked", "sink")


def make(pattern: str, layers: int = 1, tokens: int = TOKENS) -> tuple[list[Tensor], dict[str, Any]]:
    """q, k and v, (L, 1, H, N, D) or (1, H, N, D), and the keywords that go with them."""
    source = torch.Generator().manual_seed(0)
    shape = (layers, 1, HEADS, tokens, HEAD_SIZE)
    q, k, v = (torch.randn(shape, generator=source) for _ in range(3))
    if pattern == "peaked":  # each query finds one key, far above all others
        q = 2 * k[..., torch.randperm(tokens, generator=source), :]
    if pattern == "sink":  # as in language models: the neighbours, how far depends on the head, and the first token
        angle = torch.arange(tokens)[:, None] * 0.5 ** torch.linspace(2, 9, HEAD_SIZE // 2)  # (N, D/2)
        places = torch.cat([angle.cos(), angle.sin()], 1)  # (N, D): products fall off with the distance
        near = torch.linspace(0.5, 3, HEADS)[:, None, None]
        q, k = 0.7 * q + near * places, 0.7 * k + places
        k[..., 0, :] += q.mean(-2) / q.mean(-2).norm(dim=-1, keepdim=True) * 12
    parts = [q, k, v] if layers > 1 else [x[0] for x in (q, k, v)]
    return parts, {"is_causal": pattern in ("causal", "sink")}


# Bytes: all that the kernel publishes, JSON and buffers.


class Traffic:
    """Counts what widgets send, in place of a kernel's comms."""

    def __init__(self) -> None:
        self.bytes = self.messages = 0
        comm.create_comm = self.create_comm

    def create_comm(self, **keywords: Any) -> BaseComm:
        return _Counter(self, **keywords)

    def of(self, act: Callable[[], Any]) -> tuple[Any, int, int]:
        """What act returns, and the bytes and messages that it made the kernel send."""
        self.bytes = self.messages = 0
        result = act()
        return result, self.bytes, self.messages


class _Counter(BaseComm):
    def __init__(self, traffic: Traffic, **keywords: Any) -> None:
        self.traffic = traffic
        super().__init__(**keywords)

    def publish_msg(self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **_: Any) -> None:
        state = {name: part for name, part in (data or {}).get("state", {}).items() if name not in ("_esm", "_css")}
        content = {**(data or {}), "state": state} if state else data
        self.traffic.bytes += len(json.dumps(content, ensure_ascii=False).encode())
        self.traffic.bytes += sum(memoryview(buffer).nbytes for buffer in buffers or [])
        self.traffic.messages += 1


def measure_bytes(pattern: str) -> dict[str, int]:
    traffic = Traffic()
    (q, k, v), keywords = make(pattern, layers=2)
    tokens = [f"token{n}" for n in range(TOKENS)]
    w, opening, _ = traffic.of(lambda: AttentionWidget(q, k, v, tokens=tokens, **keywords))
    heads = [traffic.of(lambda head=head: setattr(w, "head", head)) for head in range(1, HEADS)]  # type: ignore[misc]
    _, layer, _ = traffic.of(lambda: setattr(w, "layer", 1))
    w.close()
    return {"opening": opening, "head": max(size for _, size, _ in heads), "layer": layer}


# Time: medians of interleaved runs, as ratios to torch's attention of one head.


def measure_time(pattern: str, runs: int) -> dict[str, float]:
    Traffic()
    (q, k, v), keywords = make(pattern)
    q1, k1, v1 = (x[:, :1] for x in (q, k, v))
    w = AttentionWidget(q, k, v, **keywords)

    def sdpa() -> None:
        F.scaled_dot_product_attention(q1, k1, v1, **keywords)

    def opening() -> None:
        AttentionWidget(q, k, v, **keywords).close()

    def head() -> None:
        w.head = (w.head + 1) % HEADS

    taken: dict[str, list[float]] = {"sdpa": [], "opening": [], "head": []}
    for run in range(runs + 1):
        for act in (sdpa, opening, head):
            start = time.perf_counter()
            act()
            if run:  # the first one warms up
                taken[act.__name__].append(time.perf_counter() - start)
    w.close()
    return {name: median(times) for name, times in taken.items()}


# Memory: the peak of a fresh process over what it held with q, k and v made and torch warm.


def measure_memory(pattern: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--memory-of", pattern, "--threads", str(torch.get_num_threads())]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    return found


def memory_here(pattern: str) -> dict[str, float]:
    Traffic()
    (q, k, v), keywords = make(pattern)
    small, _ = make(pattern, tokens=64)
    warm = AttentionWidget(*small, **keywords)
    warm.head, warm.stage = 1, "scores"
    F.scaled_dot_product_attention(small[0], small[1], small[2])
    process = psutil.Process()
    with Peak(process) as peak:
        w = AttentionWidget(q, k, v, **keywords)
        opening = peak.read()
        for head in range(1, HEADS):
            w.head = head
        for stage in ("scores", "masked"):
            w.stage = stage
        w.weights(TOKENS - 1)
        in_all = peak.read()
    return {"opening": opening, "memory": in_all, "kept": process.memory_info().rss - peak.before, "qkv": sum(
        x.nbytes for x in (q, k, v))}  # fmt: skip


class Peak:
    """Resident memory at its peak over that at the start: the system's own mark on Linux, else sampled each ms."""

    def __init__(self, process: psutil.Process) -> None:
        self.process = process
        self.mark = Path(f"/proc/{process.pid}/clear_refs")
        self.done = threading.Event()

    def __enter__(self) -> Peak:
        self.before = self.highest = self.process.memory_info().rss
        try:
            self.mark.write_text("5")  # forgets the peak so far
        except OSError:
            self.mark = Path()
            threading.Thread(target=self._sample, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()

    def _sample(self) -> None:
        while not self.done.wait(0.001):
            self.highest = max(self.highest, self.process.memory_info().rss)

    def read(self) -> int:
        if self.mark != Path():
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            self.highest = int(status.split("VmHWM:")[1].split()[0]) * 1024
        return max(self.highest, self.process.memory_info().rss) - self.before


# The table.


def machine() -> dict[str, Any]:
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        name = lines[0].split(":")[1].strip() if lines else name
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def measure(runs: int) -> dict[str, Any]:
    rows = {}
    for pattern in PATTERNS:
        rows[pattern] = {
            "bytes": measure_bytes(pattern),
            "seconds": measure_time(pattern, runs),
            "memory": measure_memory(pattern),
        }
    files = {path.name: path.stat().st_size for path in (STATIC / "widget.js", STATIC / "widget.css")}
    return {"machine": machine(), "tokens": TOKENS, "heads": HEADS, "runs": runs, "patterns": rows, "bundle": files}


def over_budget(result: dict[str, Any]) -> list[str]:
    found = [("bundle", "bundle", sum(result["bundle"].values()))]
    for pattern, row in result["patterns"].items():
        found += [(pattern, name, row["bytes"][name]) for name in ("opening", "head")]
        found += [(pattern, "memory", row["memory"]["memory"])]
    return [
        f"{where}: {name} is {amount:,.0f} bytes, the budget is {BUDGETS[name]:,.0f}"
        for where, name, amount in found
        if amount > BUDGETS[name]
    ]


def table(result: dict[str, Any]) -> str:
    host = result["machine"]
    lines = [
        f"{host['processor']}, {host['threads']} of {host['cores']} cores, torch {host['torch']}, "
        f"Python {host['python']}; medians of {result['runs']} runs",
        "",
        f"| {TOKENS:,} × {HEADS} heads | opening | head | layer | memory | SDPA | opening | head |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for pattern, row in result["patterns"].items():
        size, seconds = row["bytes"], row["seconds"]
        lines.append(
            f"| {pattern} | {size['opening'] / KIB:.0f} KiB | {size['head'] / KIB:.0f} KiB "
            f"| {size['layer'] / KIB:.0f} KiB | {row['memory']['memory'] / MB:.0f} MB | {seconds['sdpa'] * 1e3:.0f} ms "
            f"| {seconds['opening'] / seconds['sdpa']:.1f} × | {seconds['head'] / seconds['sdpa']:.1f} × |"
        )
    parts = ", ".join(f"{name} {size / 1000:.0f} KB" for name, size in result["bundle"].items())
    return "\n".join([*lines, "", f"bundle: {sum(result['bundle'].values()) / 1000:.0f} KB ({parts})"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the numbers there too")
    parser.add_argument("--runs", type=int, default=7, help="interleaved runs of each time, at least 5")
    parser.add_argument("--threads", type=int, help="of torch; its own choice where left out")
    parser.add_argument("--memory-of", choices=PATTERNS, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.threads:
        torch.set_num_threads(wanted.threads)
    if wanted.memory_of:
        print(json.dumps(memory_here(wanted.memory_of)))
        return 0
    result = measure(max(5, wanted.runs))
    result["over_budget"] = over_budget(result)
    print(table(result))
    for line in result["over_budget"]:
        print("OVER BUDGET", line)
    if wanted.json:
        wanted.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if result["over_budget"] else 0


if __name__ == "__main__":
    sys.exit(main())
