"""How time and memory grow: tokens from 1,024 to 1,048,576 with one head, and 1 to 1,024 heads of 1,024 tokens.

    python benchmarks/growth.py                       # a table, and the exponent of each act's growth
    python benchmarks/growth.py --only overview --json out.json

Each case runs in a fresh process, on all threads: the act's time, and memory at its peak over what q and k take. The
exponent is the slope of log time over log size, from the third size on, where fixed costs no longer count. Wanted: what
is looked at, and no more. An overview looks at tokens² cells of a head; a picture of sampled rows, at tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import psutil
import torch
from figures import Figure, finish, machine
from wire import MB, Peak, Traffic

from attnwidget import Attention, AttentionStack, AttentionWidget, capture, find_heads

SIZE = 16  # of a head
LENGTHS = tuple(1024 * 4**n for n in range(6))
HEADS = tuple(4**n for n in range(6))
CELLS = 1 << 34  # more cells are not computed: 131,072² take some ten seconds
SLACK = 0.15  # of an exponent, for caches and noise

Act = Callable[[], Any]


def tensors(tokens: int, heads: int, layers: int = 1) -> list[torch.Tensor]:
    """Return q, k and v, (layers, 1, heads, tokens, size) each."""
    source = torch.Generator().manual_seed(0)
    return [torch.randn(layers, 1, heads, tokens, SIZE, generator=source) for _ in range(3)]


def opening(tokens: int, heads: int) -> Act:
    q, k, v = tensors(tokens, heads)
    return lambda: AttentionWidget(q, k, v, is_causal=True)


def head_change(tokens: int, heads: int) -> Act:
    q, k, v = tensors(tokens, max(2, heads))
    w = AttentionWidget(q, k, v, is_causal=True)
    return lambda: w.set_state({"head": 1})


def overview(tokens: int, heads: int) -> Act:
    q, k, _ = tensors(tokens, heads)
    att = Attention(q[0], k[0], is_causal=True)
    return lambda: [att.overview(head=head).query_bin for head in range(heads)]


def row(tokens: int, heads: int) -> Act:
    q, k, _ = tensors(tokens, heads)
    att = Attention(q[0], k[0], is_causal=True)
    return lambda: [att.block(head=head, queries=[tokens - 1]) for head in range(heads)]


def segments(tokens: int, heads: int) -> Act:
    q, k, _ = tensors(tokens, heads)
    att = Attention(q[0], k[0], is_causal=True)
    parts = {f"part {n}": (n * tokens // 8, (n + 1) * tokens // 8) for n in range(8)}
    return lambda: [att.by_segment(parts, parts, head=head) for head in range(heads)]


def heads_found(tokens: int, heads: int) -> Act:
    q, k, _ = tensors(tokens, heads)
    stack = AttentionStack([Attention(q[0], k[0], is_causal=True)])
    return lambda: find_heads(stack, kind=["entropy", "previous_token"], rows=64)


def recorded(tokens: int, heads: int) -> Act:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    x, model = tensors(tokens, heads)[0][0], Model()

    def act() -> Any:
        with torch.no_grad(), capture(model) as cap:
            model(x)
        return cap

    return act


# Act, and the exponents that what is looked at has: in tokens, in heads.
CASES: dict[str, tuple[Callable[[int, int], Act], float, float]] = {
    "opening a widget": (opening, 1, 1),
    "another head": (head_change, 1, 1),
    "an exact overview": (overview, 2, 1),
    "a row": (row, 1, 1),
    "segments": (segments, 2, 1),
    "find_heads, 64 rows each": (heads_found, 1, 1),
    "a captured forward": (recorded, 2, 1),
}
FEW = ("an exact overview", "segments", "a captured forward")  # all cells: shorter lengths only


def measure(name: str, tokens: int, heads: int) -> dict[str, float]:
    return asyncio.run(_measure(name, tokens, heads))


async def _measure(name: str, tokens: int, heads: int) -> dict[str, float]:
    Traffic()
    make = CASES[name][0]
    make(64, 2)()  # what a first call imports
    act = make(tokens, heads)
    with Peak(psutil.Process()) as peak:
        start = time.perf_counter()
        kept = act()
        seconds = time.perf_counter() - start
        memory = peak.read()
        del kept
    return {"seconds": seconds, "memory": memory}


def slope(found: dict[int, dict[str, float]]) -> float:
    """Return the exponent: the slope of log seconds over log size, by least squares, from the third size on."""
    points = [(math.log(size), math.log(one["seconds"])) for size, one in sorted(found.items())]
    points = points[2:] if len(points) > 3 else points
    across, up = (sum(column) / len(points) for column in zip(*points, strict=True))
    return sum((x - across) * (y - up) for x, y in points) / sum((x - across) ** 2 for x, _ in points)


def said(one: dict[str, float] | None) -> str:
    return "–" if one is None else f"{1e3 * one['seconds']:,.0f} ms, {one['memory'] / MB:,.0f} MB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="only acts whose names contain this")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the numbers there too")
    parser.add_argument("--most", type=int, default=LENGTHS[-1], help="tokens, at most")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case:
        print(json.dumps(measure(asked.case[0], int(asked.case[1]), int(asked.case[2]))))
        return 0

    def apart(name: str, tokens: int, heads: int) -> dict[str, float]:
        command = [sys.executable, __file__, "--case", name, str(tokens), str(heads)]
        made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found: dict[str, float] = json.loads(made.splitlines()[-1])
        return found

    print(f"{machine()['processor']}, torch {machine()['torch']}, {torch.get_num_threads()} threads\n")
    figures, all_found = [], {}
    for along, sizes in (("tokens", LENGTHS), ("heads", HEADS)):
        print(f"| act | {' | '.join(f'{size:,} {along}' for size in sizes)} | exponent | looked at |")
        print(f"|---|{'--:|' * (len(sizes) + 2)}")
        for name, (_, *exponents) in CASES.items():
            if asked.only not in name:
                continue
            expected = exponents[along == "heads"]
            found: dict[int, dict[str, float]] = {}
            for size in sizes:
                tokens, heads = (size, 1) if along == "tokens" else (1024, size)
                if tokens <= asked.most and (name not in FEW or tokens * tokens <= CELLS):
                    found[size] = apart(name, tokens, heads)
            cells = [said(found.get(size)) for size in sizes]
            exponent = slope(found)
            print(f"| {name} | {' | '.join(cells)} | {exponent:.2f} | {expected:g} |", flush=True)
            figures.append(Figure(f"{name}, exponent in {along}", exponent, "", wanted=expected + SLACK))
            all_found[f"{name}, {along}"] = found
        print()
    return finish(asked.json, figures, all_found)


if __name__ == "__main__":
    raise SystemExit(main())
