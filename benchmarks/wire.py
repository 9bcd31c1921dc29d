"""What a widget costs: bytes to the front-end, kernel memory and time, for q, k and v of 2,048 tokens × 12 heads.

    python benchmarks/wire.py                 # a table; exits with 3 if a budget is exceeded
    python benchmarks/wire.py --json out.json # and the same numbers as JSON
    python benchmarks/wire.py --long          # one head of up to 1,048,576 tokens

README.md beside this file says what each column means.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import comm
import psutil
import torch
import torch.nn.functional as F
from comm.base_comm import BaseComm
from figures import MISSED, Figure, figure_of, finish, machine
from torch import Tensor

from attnwidget import AttentionWidget
from attnwidget._utils.assets import STATIC

TOKENS, HEADS, HEAD_SIZE = 2048, 12, 64
KIB, MIB, MB = 1024, 1024**2, 1e6
BUDGETS = {"opening": 1 * MIB, "head": 256 * KIB, "memory": 64 * MB, "bundle": 420 * 1000}
SCRIPT = ("_esm", "_css", "code", "parts", "style")  # sent once, by the first widget
PATTERNS = ("random", "causal", "peaked", "sink")


def make(pattern: str, layers: int = 1, tokens: int = TOKENS) -> tuple[list[Tensor], dict[str, Any]]:
    """q, k and v, (L, 1, H, N, D) or (1, H, N, D), and the keywords that go with them."""
    source = torch.Generator().manual_seed(0)
    shape = (layers, 1, HEADS, tokens, HEAD_SIZE)
    q, k, v = (torch.randn(shape, generator=source) for _ in range(3))
    if pattern == "peaked":  # each query finds one key, far above all others
        q = 2 * k[..., torch.randperm(tokens, generator=source), :]
    if pattern == "sink":  # as in language models: the neighbors, how far depends on the head, and the first token
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
        self.tile_bytes = self.exact = 0  # of messages with tiles, and how many exact ones there were in them
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
        state = {name: part for name, part in (data or {}).get("state", {}).items() if name not in SCRIPT}
        content = {**(data or {}), "state": state} if state else data
        self.traffic.bytes += len(json.dumps(content, ensure_ascii=False).encode())
        self.traffic.bytes += sum(memoryview(buffer).nbytes for buffer in buffers or [])
        self.traffic.messages += 1
        said = (data or {}).get("content", {})
        tiles = [tile for part in (said, *said.get("replies", ())) for tile in part.get("tiles", ())]
        if tiles:
            self.traffic.tile_bytes += len(json.dumps(content, ensure_ascii=False).encode())
            self.traffic.tile_bytes += sum(memoryview(buffer).nbytes for buffer in buffers or [])
            self.traffic.exact += sum(tile["every"] == 1 for tile in tiles)


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


def measure_time(pattern: str, runs: int) -> dict[str, list[float]]:
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
    return taken


# Memory: the peak of a fresh process over what it held with q, k and v made and torch warm.


def measure_memory(pattern: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--memory-of", pattern, "--threads", str(torch.get_num_threads())]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
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


# Long heads: each in a new process, explored as a person would.

LENGTHS = (16_384, 131_072, 1_048_576)
HALF_FROM = 1_000_000  # tokens, in float16
PASSED = 200_000  # tokens up to which the exact pass is run to its end
SIDE = 6  # tiles along a side of what is in view: 640 pixels, and a part
PATIENCE = 5.0  # seconds for the exact tiles of a step
LONG_BUDGETS = {"opening": 1 * MIB, "head": 256 * KIB, "step": 256 * KIB}


def long_here(tokens: int) -> dict[str, Any]:
    """Bytes, times and memory of one length."""
    traffic = Traffic()
    source = torch.Generator().manual_seed(0)
    dtype = torch.float16 if tokens >= HALF_FROM else torch.float32
    q, k = (torch.randn(1, 2, tokens, HEAD_SIZE, generator=source).to(dtype) for _ in range(2))
    words = [f"token{n % 5000}" for n in range(tokens)]
    AttentionWidget(q[:, :, :1000], k[:, :, :1000]).close()
    with Peak(psutil.Process()) as peak:
        found = asyncio.run(_look(traffic, q, k, words))
        found["memory"] = peak.read() - found.pop("kept")
    return found


async def _look(traffic: Traffic, q: Tensor, k: Tensor, words: list[str]) -> dict[str, Any]:
    start = time.perf_counter()
    w, opening, _ = traffic.of(lambda: AttentionWidget(q, k, tokens=words))
    found: dict[str, Any] = {"opening": opening, "opened": time.perf_counter() - start}
    start = time.perf_counter()
    _, found["head"], _ = traffic.of(lambda: setattr(w, "head", 1))
    found["first"] = time.perf_counter() - start
    tokens = len(words)
    steps = [await _step(traffic, w, level, at) for level in range(_top(tokens), -1, -1) for at in (0.3, 0.31)]
    found["step"] = max(size for size, _, _ in steps)
    found["replied"] = sorted(seconds for _, seconds, _ in steps)
    found["exact"] = sorted(seconds for *_, seconds in steps)
    if tokens <= PASSED:
        start, share = time.perf_counter(), (w.progress or {"share": 1})["share"]
        while w.progress is not None:
            await asyncio.sleep(0.05)
        found["pass"] = (time.perf_counter() - start) / (1 - share) if share < 1 else None
    found["kept"] = sum(w._shown.levels(layer).nbytes for layer in range(len(w._shown.layers)))
    if w._exact_pass.build is not None and w._exact_pass.build.level is not None:
        found["kept"] += w._exact_pass.build.level.nbytes
    w.close()
    return found


def _top(tokens: int) -> int:
    """The level at which all is in view."""
    level = 0
    while SIDE * 128 << level < tokens:
        level += 1
    return level


async def _step(traffic: Traffic, w: AttentionWidget, level: int, at: float) -> tuple[int, float, float]:
    """Ask for the tiles of a view: bytes, and seconds to the reply and to the last exact tile (or what was waited)."""
    count = -(-len(w.tokens) // (128 << level))
    first = int(at * max(0, count - SIDE))
    along = range(first, min(first + SIDE, count))
    where = {"layer": 0, "batch": 0, "head": w.head, "stage": w.stage, "pool": w.pool, "view": "bench"}
    asked = {
        "id": "t",
        "kind": "tiles",
        **where,
        "tiles": [[level, level, row, column] for row in along for column in along],
    }
    traffic.tile_bytes = traffic.exact = 0
    start = time.perf_counter()
    w._receive(w, {"requests": [asked]}, [])
    replied = time.perf_counter() - start
    while traffic.exact < len(along) ** 2 and time.perf_counter() - start < PATIENCE:
        await asyncio.sleep(0.005)
    return traffic.tile_bytes, replied, time.perf_counter() - start


def long_table(rows: dict[int, dict[str, Any]]) -> str:
    host = machine()
    named = ("opening", "head", "step", "opened", "first", "reply: median, worst", "exact: median, worst")
    lines = [
        f"{host['processor']}, {host['threads']} of {host['cores']} cores, torch {host['torch']}",
        "",
        f"| tokens | {' | '.join(named)} | pass | memory |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for tokens, row in rows.items():
        replied, exact = ((row[name][len(row[name]) // 2], row[name][-1]) for name in ("replied", "exact"))
        whole = f"{row['pass']:.1f} s" if row.get("pass") else "–"
        lines.append(
            f"| {tokens:,} "
            f"| {row['opening'] / KIB:.0f} KiB | {row['head'] / KIB:.0f} KiB | {row['step'] / KIB:.0f} KiB "
            f"| {row['opened']:.2f} s | {row['first']:.2f} s | {replied[0] * 1e3:.0f}, {replied[1] * 1e3:.0f} ms "
            f"| {exact[0]:.2f}, {exact[1]:.2f} s | {whole} | {row['memory'] / MB:.0f} MB |"
        )
    return "\n".join(lines)


def measure_long(lengths: Sequence[int]) -> tuple[dict[int, dict[str, Any]], list[str]]:
    rows: dict[int, dict[str, Any]] = {}
    for tokens in lengths:
        command = [sys.executable, __file__, "--long-of", str(tokens), "--threads", str(torch.get_num_threads())]
        rows[tokens] = json.loads(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
        )
    over = [
        f"{tokens:,}: {name} is {row[name]:,.0f} bytes, the budget is {budget:,.0f}"
        for tokens, row in rows.items()
        for name, budget in LONG_BUDGETS.items()
        if row[name] > budget
    ]
    return rows, over


# The table.


def measure(runs: int) -> dict[str, Any]:
    rows = {}
    for pattern in PATTERNS:
        rows[pattern] = {
            "bytes": measure_bytes(pattern),
            "seconds": measure_time(pattern, runs),
            "memory": measure_memory(pattern),
        }
    files = {name: (STATIC / name).stat().st_size for name in ("widget.js", "parts.json", "widget.css")}
    return {"machine": machine(), "tokens": TOKENS, "heads": HEADS, "runs": runs, "patterns": rows, "bundle": files}


def figures(result: dict[str, Any]) -> list[Figure]:
    found = [Figure("bundle", sum(result["bundle"].values()), "bytes", wanted=BUDGETS["bundle"])]
    for pattern, row in result["patterns"].items():
        found += [
            Figure(f"{pattern}, {name}", size, "bytes", wanted=BUDGETS.get(name)) for name, size in row["bytes"].items()
        ]
        found += [Figure(f"{pattern}, memory", row["memory"]["memory"], "bytes", wanted=BUDGETS["memory"])]
        found += [figure_of(f"{pattern}, {name} ÷ SDPA", ratios(row, name), "×") for name in ("opening", "head")]
    return found


def ratios(row: dict[str, Any], name: str) -> list[float]:
    """Return how many times SDPA's time each run took."""
    return [own / sdpa for own, sdpa in zip(row["seconds"][name], row["seconds"]["sdpa"], strict=True)]


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
        size, sdpa = row["bytes"], median(row["seconds"]["sdpa"])
        lines.append(
            f"| {pattern} | {size['opening'] / KIB:.0f} KiB | {size['head'] / KIB:.0f} KiB "
            f"| {size['layer'] / KIB:.0f} KiB | {row['memory']['memory'] / MB:.0f} MB | {sdpa * 1e3:.0f} ms "
            f"| {median(ratios(row, 'opening')):.1f} × | {median(ratios(row, 'head')):.1f} × |"
        )
    parts = ", ".join(f"{name} {size / 1000:.0f} KB" for name, size in result["bundle"].items())
    return "\n".join([*lines, "", f"bundle: {sum(result['bundle'].values()) / 1000:.0f} KB ({parts})"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the numbers there too")
    parser.add_argument("--runs", type=int, default=7, help="interleaved runs of each time, at least 5")
    parser.add_argument("--threads", type=int, help="of torch; its own choice where left out")
    parser.add_argument("--memory-of", choices=PATTERNS, help=argparse.SUPPRESS)
    parser.add_argument("--long", type=int, nargs="*", metavar="TOKENS", help="long heads instead, of these lengths")
    parser.add_argument("--long-of", type=int, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.threads:
        torch.set_num_threads(wanted.threads)
    if wanted.long_of:
        print(json.dumps(long_here(wanted.long_of)))
        return 0
    if wanted.long is not None:
        rows, over = measure_long(wanted.long or LENGTHS)
        print("\n".join([long_table(rows), *(f"OVER BUDGET {line}" for line in over)]))
        if wanted.json:
            details = {"machine": machine(), "lengths": rows, "over_budget": over}
            wanted.json.write_text(json.dumps(details, indent=1) + "\n")
        return MISSED if over else 0
    if wanted.memory_of:
        print(json.dumps(memory_here(wanted.memory_of)))
        return 0
    result = measure(max(5, wanted.runs))
    print(table(result))
    return finish(wanted.json, figures(result), result)


if __name__ == "__main__":
    sys.exit(main())
