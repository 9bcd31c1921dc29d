"""What one message or one click costs the kernel: CPU time, memory and bytes, each case in a fresh process.

    python benchmarks/message_cost.py                  # a table; exits with 3 if a budget is exceeded
    python benchmarks/message_cost.py --only compare   # the cases whose names contain that
    python benchmarks/message_cost.py --dearest        # those that came nearest to a budget, as `make bench` does
    python benchmarks/message_cost.py --json out.json  # and the same numbers as JSON

Answered is the CPU time of the message itself, on one thread. What is longer follows in steps on the kernel's loop:
longest is the longest of these. README.md beside this file says what each column means.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import psutil
import torch
from figures import Figure, finish, machine
from wire import KIB, MB, Peak, Traffic

from attnwidget import Attention, AttentionWidget, compare
from attnwidget._utils.scheduler import Scheduler

HEAD_SIZE = 64
BUDGETS = {"answered": 1.0, "longest": 0.25, "memory": 64 * MB, "bytes": 1024 * KIB}
PATIENCE = 3.0  # seconds in which steps are watched
TILES = [[0, 0, row, column] for row in range(8) for column in range(8)]

DEAREST = (
    "compare: another head of 8,192",
    "compare: 64 × change of contribution, 20,000",
    "mean of 32, 65,536",
    "maximum of 32, 65,536",
    "words of a window of 512, 12,000",
    "words, causal, 65,536",
    "32 heads of words, 65,536",
    "32 heads of words, 65,536, as one",
    "64 × spread of the mean of 32, 16,384",
    "64 × spread of the maximum of 32, 4,096",
    "64 × tiles of the mean of 32, 16,384",
    "gradients of 4,096",
    "64 × sweep",
    "64 × peak of 2,048 × 2,048",
    "64 × tiles of 8 × 8",
    "layer of 200,000 × 16",
    "64 × save as SVG",
    "head of 2,048 × 12",
)  # more than 0.4 s of a core where all were measured, and what is most often done

Act = Callable[[], Any]


def heads(tokens: int, count: int = 1, size: int = HEAD_SIZE) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v, (1, count, tokens, size)."""
    source = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, count, tokens, size, generator=source) for _ in range(3))
    return q, k, v


def ask(w: AttentionWidget, *requests: dict[str, Any]) -> Act:
    """One message with these requests, about the head that is shown."""
    where = {"layer": 0, "batch": 0, "head": 0, "stage": "weights", "pool": "max"}
    asked = [{"id": str(at), **where, **request} for at, request in enumerate(requests)]
    return lambda: w._receive(w, {"requests": asked}, [])


def click(w: AttentionWidget, **traits: Any) -> Act:
    """One change of traits as a front-end makes it."""
    return lambda: w.set_state(traits)


# The cases: each makes a widget, and returns what is measured.


def two_windows(tokens: int = 12_000) -> Act:
    q, k, v = heads(tokens)
    sides = [Attention(q, k, v, is_causal=True, window=window) for window in (256, 512)]
    return lambda: compare(*sides, view="compare")


def compare_long(tokens: int) -> Act:
    q, k, v = heads(tokens)
    other = heads(tokens)[1].flip(2)
    return lambda: compare(Attention(q, k, v), Attention(q, other, v), view="compare")


def compare_head(tokens: int) -> Act:
    q, k, v = heads(tokens, 2)
    w = compare(Attention(q, k, v), Attention(q, k.flip(2), v), view="compare")
    return click(w, head=1)


def compare_change(tokens: int, stage: str, windows: tuple[int | None, int | None], times: int) -> Act:
    q, k, v = heads(tokens)
    w = compare(Attention(q, k, v, window=windows[0]), Attention(q, k.flip(2), v, window=windows[1]), view="compare")
    places = {"queries": [tokens - 2048, tokens], "keys": [tokens - 2048, tokens], "against": "B"}
    return ask(w, *[{"kind": "change", "stage": stage, **places}] * times)


def compare_pin(tokens: int) -> Act:
    q, k, v = heads(tokens)
    w = compare(Attention(q, k, v), Attention(q, k.flip(2), v), view="compare")
    return click(w, key=5)


def compare_rules(tokens: int, windows: tuple[int | None, int | None], rules: dict[str, Any]) -> Act:
    q, k, v = heads(tokens)
    w = compare(*[Attention(q, k, v, is_causal=True, window=window) for window in windows], view="compare")
    return lambda: w._receive(w, {"what_if": rules}, [])


def save(kind: str) -> Act:
    q, k, v = heads(512, 12)
    return ask(AttentionWidget(q, k, v), *[{"kind": "file", "format": kind, "start": 0}] * 64)


def mean_of(count: int, tokens: int, how: str = "mean", **rules: Any) -> Act:
    q, k, v = heads(tokens, count)
    w = AttentionWidget(q, k, v, **rules)
    w.heads = list(range(count))
    return click(w, combine=how)


def words(tokens: int, **rules: Any) -> Act:
    q, k, v = heads(tokens)
    w = AttentionWidget(q, k, v, tokens=["▁w" if n % 3 else "▁a" * (n % 2) + "b" for n in range(tokens)], **rules)
    return click(w, pieces="words")


def many_words(tokens: int, count: int, **traits: Any) -> Act:
    """A click where many heads are of words: on words themselves, or afterwards on something else."""
    q, k, v = heads(tokens, count, 16)
    names = ["▁w" if n % 3 else "▁a" * (n % 2) + "b" for n in range(tokens)]
    parts = {"first": (1, tokens // 2), "answer": (tokens // 2, tokens)}
    w = AttentionWidget(q, k, v, tokens=names, segments=parts, is_causal=True)
    if traits:
        w.set_state({"pieces": "words"})
    return click(w, **(traits or {"pieces": "words"}))


def many_parts(tokens: int, count: int) -> Act:
    q, k, v = heads(tokens, count, 16)
    parts = {f"part {n}": (n * tokens // 100, (n + 1) * tokens // 100) for n in range(100)}
    w = AttentionWidget(q, k, v, is_causal=True, segments=parts, heads=range(count), combine="mean")
    return click(w, view="segments")


def stages(tokens: int) -> Act:
    q, k, v = heads(tokens)
    w = AttentionWidget(q, k, v)
    return click(w, view="stages")


def stages_scale(tokens: int) -> Act:
    q, k, v = heads(tokens)
    w = AttentionWidget(q, k, v, view="stages")
    return lambda: w._receive(w, {"what_if": {"scale": 0.3}}, [])


def of_combined(kind: str, count: int, tokens: int, times: int, how: str = "mean", **fields: Any) -> Act:
    q, k, v = heads(tokens, count, 16)
    w = AttentionWidget(q, k, v, is_causal=how == "max", heads=range(count), combine=how)
    return ask(w, *[{"kind": kind, "head": f"{how} " + " ".join(map(str, range(count))), **fields}] * times)


def of_words(kind: str, tokens: int, times: int = 1) -> Act:
    q, k, v = heads(tokens, size=16)
    names = ["▁w" if n % 3 else "▁a" * (n % 2) + "b" for n in range(tokens)]
    return ask(AttentionWidget(q, k, v, tokens=names, pieces="words", is_causal=True), *[{"kind": kind}] * times)


def request(kind: str, tokens: int, times: int = 1, rules: dict[str, Any] | None = None, **fields: Any) -> Act:
    q, k, v = heads(tokens)
    w = AttentionWidget(q, k, v, **(rules or {}))
    return ask(w, *[{"kind": kind, **fields}] * times)


def spans(kind: str, tokens: int, side: int, times: int) -> Act:
    return request(kind, tokens, times, queries=[tokens - side, tokens], keys=[0, side])


def tiles(tokens: int, times: int) -> Act:
    q, k, v = heads(tokens)
    w = AttentionWidget(q, k, v)
    return ask(w, *[{"kind": "tiles", "view": f"v{at}", "tiles": TILES} for at in range(times)])


def head_change(tokens: int, count: int, **rules: Any) -> Act:
    q, k, v = heads(tokens, count)
    w = AttentionWidget(q, k, v, **rules)
    return click(w, head=1)


def dense_mask(tokens: int) -> Act:
    source = torch.Generator().manual_seed(1)
    mask = torch.rand(tokens, tokens, generator=source) > 0.2
    return request("check", tokens, rules={"mask": mask})


def graph(tokens: int, count: int) -> Act:
    q, k, v = heads(tokens, count)
    w = AttentionWidget(q, k, v, view="graph")
    return click(w, heads=list(range(count)))


def layer_change(tokens: int, count: int) -> Act:
    q, k, _ = (torch.stack([x, x]) for x in heads(tokens, count, 16))
    return click(AttentionWidget(q, k), layer=1)


def search(tokens: int, times: int) -> Act:
    q, k, _ = heads(tokens, size=2)
    w = AttentionWidget(q, k, tokens=[f"token{at}" for at in range(tokens)])
    return ask(w, *[{"kind": "find", "side": "key", "text": "n49", "start": 0, "count": 20}] * times)


CASES: dict[str, Callable[[], Act]] = {
    "compare: windows of 256 and 512, 12,000": two_windows,
    "compare: 16,384": lambda: compare_long(16_384),
    "compare: 65,536": lambda: compare_long(65_536),
    "compare: another head of 8,192": lambda: compare_head(8192),
    **{
        f"compare: {times} × change of {stage}, {tokens:,}{said}": partial(
            compare_change, tokens, stage, windows, times
        )
        for tokens, windows, said in ((12_000, (256, 512), ", windows"), (20_000, (None, None), ""))
        for stage in ("scores", "scaled", "masked", "weights", "contribution")
        for times in (1, 64)
    },
    "compare: a key of 60,000": lambda: compare_pin(60_000),
    "compare: scale, windows of 256 and 512": lambda: compare_rules(12_000, (256, 512), {"scale": 0.3}),
    "compare: dropped keys, 12,000": lambda: compare_rules(12_000, (256, None), {"drop_keys": [3, 9]}),
    "compare: no window, 12,000": lambda: compare_rules(12_000, (256, 512), {"window": None}),
    "mean of 2 windows of 512, 12,000": lambda: mean_of(2, 12_000, is_causal=True, window=512),
    "mean of 2, 12,000": lambda: mean_of(2, 12_000),
    "mean of 32, 65,536": lambda: mean_of(32, 65_536),
    "maximum of 32, 65,536": lambda: mean_of(32, 65_536, "max"),
    "words of a window of 512, 12,000": lambda: words(12_000, is_causal=True, window=512),
    "words, 20,000": lambda: words(20_000),
    "words, causal, 65,536": lambda: words(65_536, is_causal=True),
    "32 heads of words, 65,536": lambda: many_words(65_536, 32),
    "32 heads of words, 65,536, all small": lambda: many_words(65_536, 32, view="heads"),
    "32 heads of words, 65,536, as one": lambda: many_words(65_536, 32, heads=list(range(32)), combine="mean"),
    "32 heads of words, 65,536, segments": lambda: many_words(65_536, 32, view="segments"),
    "32 heads as one, 65,536, segments": lambda: many_parts(65_536, 32),
    "stages: open, 30,000": lambda: stages(30_000),
    "stages: scale, 30,000": lambda: stages_scale(30_000),
    "stages: open, 8,000": lambda: stages(8000),
    "spread of 16,000": lambda: request("spread", 16_000),
    "spread of 100,000": lambda: request("spread", 100_000),
    "64 × spread of the mean of 32, 16,384": lambda: of_combined("spread", 32, 16_384, 64),
    "64 × spread of the maximum of 32, 4,096": lambda: of_combined("spread", 32, 4096, 64, "max"),
    "64 × spread of words, 20,000": lambda: of_words("spread", 20_000, 64),
    "check of words, 20,000": lambda: of_words("check", 20_000),
    "64 × tiles of the mean of 32, 16,384": lambda: of_combined("tiles", 32, 16_384, 64, view="v", tiles=TILES),
    "64 × spread of 2,000": lambda: request("spread", 2000, 64),
    "32 × jacobian of 3,000": lambda: request("jacobian", 3000, 32, query=7),
    "jacobian of 4,096": lambda: request("jacobian", 4096, query=7),
    "gradients of 4,096": lambda: request("gradients", 4096),
    "64 × gradients of 500": lambda: request("gradients", 500, 64),
    "64 × sweep": lambda: request("sweep", 500, 64, own=True),
    "64 × cost": lambda: request("cost", 500, 64),
    "64 × row of 60,000": lambda: request("row", 60_000, 64, query=59_999),
    "64 × cells of 256 × 256": lambda: spans("cells", 4096, 256, 64),
    "64 × peak of 2,048 × 2,048": lambda: spans("peak", 65_536, 2048, 64),
    "64 × tiles of 8 × 8": lambda: tiles(65_536, 64),
    "ranked: 64 keys of 60,000": lambda: request("ranked", 60_000, keys=list(range(64)), count=64),
    "64 × ranked: 64 queries of 60,000": lambda: request("ranked", 60_000, 64, queries=list(range(64)), count=64),
    "strongest of 8,000": lambda: request("strongest", 8000, count=32),
    "check of 16,000": lambda: request("check", 16_000),
    "check of 12,000 and a dense mask": lambda: dense_mask(12_000),
    "graph: 7 heads of 4,096": lambda: graph(4096, 7),
    "graph: 30 heads of 1,024": lambda: graph(1024, 30),
    "layer of 200,000 × 16": lambda: layer_change(200_000, 16),
    "64 × find in 1,000,000": lambda: search(1_000_000, 64),
    "64 × save as PNG": lambda: save("png"),
    "64 × save as SVG": lambda: save("svg"),
    "64 × save as HTML": lambda: save("html"),
    "head of 2,048 × 12": lambda: head_change(2048, 12),
    "head of 2,048 × 12, causal": lambda: head_change(2048, 12, is_causal=True),
    "head of 30,000 × 12": lambda: head_change(30_000, 12),
    "head of 200,000 × 4": lambda: head_change(200_000, 4),
}


def measure(make: Callable[[], Act], patience: float) -> dict[str, float]:
    """What one case costs."""
    return asyncio.run(_measure(make, patience))


async def _measure(make: Callable[[], Act], patience: float) -> dict[str, float]:
    torch.set_num_threads(1)
    traffic, steps = Traffic(), []
    step = Scheduler._step

    def timed(scheduler: Scheduler) -> None:
        start = time.process_time()
        step(scheduler)
        steps.append(time.process_time() - start)

    Scheduler._step = timed  # type: ignore[method-assign]
    warm = heads(64)
    AttentionWidget(*warm, view="stages").close()
    act = make()
    with Peak(psutil.Process()) as peak:
        traffic.bytes = 0
        start = time.process_time()
        kept = act()
        answered = time.process_time() - start
        size, memory = traffic.bytes, peak.read()
        until = time.monotonic() + patience
        while time.monotonic() < until:
            await asyncio.sleep(0.05)
        del kept
        return {
            "answered": answered,
            "longest": max(steps, default=0.0),
            "memory": memory,
            "later": peak.read(),
            "bytes": size,
        }


def table(rows: dict[str, dict[str, float]]) -> str:
    host = machine()
    lines = [
        f"{host['processor']}, torch {host['torch']}, one thread",
        "",
        "| message | answered | longest step | memory | memory later | bytes |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, row in rows.items():
        lines.append(
            f"| {name} | {row['answered']:.2f} s | {1e3 * row['longest']:.0f} ms | {row['memory'] / MB:.0f} MB "
            f"| {row['later'] / MB:.0f} MB | {row['bytes'] / KIB:.0f} KiB |"
        )
    return "\n".join(lines)


def over_budget(rows: dict[str, dict[str, float]]) -> list[str]:
    return [
        f"{case}: {name} is {row[name]:,.2f}, the budget is {budget:,.2f}"
        for case, row in rows.items()
        for name, budget in BUDGETS.items()
        if row[name] > budget
    ]


def figures(rows: dict[str, dict[str, float]]) -> list[Figure]:
    """Return how soon each message is answered, and of all the most of what has a budget besides."""
    found = [Figure(case, row["answered"], "s", wanted=BUDGETS["answered"]) for case, row in rows.items()]
    for name, unit in (("longest", "s"), ("memory", "bytes"), ("bytes", "bytes")):
        most = max((row[name] for row in rows.values()), default=0.0)
        found.append(Figure(f"most of all, {name}", most, unit, wanted=BUDGETS[name]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose names contain this")
    parser.add_argument("--dearest", action="store_true", help="only the cases that came nearest to a budget")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the numbers there too")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds in which steps are watched")
    parser.add_argument("--at-once", type=int, default=1, help="cases at once: all times are of the processor")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.case:
        print(json.dumps(measure(CASES[wanted.case], wanted.patience)))
        return 0

    def apart(name: str) -> Any:
        command = [sys.executable, __file__, "--case", name, "--patience", str(wanted.patience)]
        made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        return json.loads(made.splitlines()[-1])

    names = [name for name in (DEAREST if wanted.dearest else CASES) if wanted.only in name]
    with ThreadPoolExecutor(wanted.at_once) as pool:
        rows: dict[str, dict[str, float]] = dict(zip(names, pool.map(apart, names), strict=True))
    print(table(rows))
    over = over_budget(rows)
    for line in over:
        print("OVER BUDGET", line)
    return finish(wanted.json, figures(rows), {"cases": rows, "over_budget": over})


if __name__ == "__main__":
    sys.exit(main())
