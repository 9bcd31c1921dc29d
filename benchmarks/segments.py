"""What the attention between segments costs: of all heads for an answer, of one long head beside its overview.

    python benchmarks/segments.py                  # a table; takes a minute or two
    python benchmarks/segments.py --json out.json  # and the same numbers as JSON
    python benchmarks/segments.py --long           # 131,072 tokens as well, in slices

Seconds of a clock and of the processor (all threads together), the best of several runs, and ratios of medians within a
run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.nn.functional as F
from figures import Figure, finish, machine
from torch import Tensor

from attnwidget import Attention, AttentionStack, segments
from attnwidget._analysis.segment_mass import RowGroups, segment_sums
from attnwidget.results import Segments

LAYERS, HEADS, GROUPS, N, D, ANSWER = 32, 32, 8, 8192, 128, 64
LONG_HEAD, LONGEST = 16_384, 131_072
COUNT = 40


def make(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def parts(length: int, answer: int, count: int = COUNT) -> Segments:
    """So many segments: documents of equal length, then the answer; the first token is one more."""
    ends = [1 + (length - answer - 1) * i // (count - 2) for i in range(count - 1)]
    spans = {f"doc {i}": (start, stop) for i, (start, stop) in enumerate(pairwise(ends))}
    return segments({**spans, "answer": (length - answer, length)}, length=length)


def timed(ways: dict[str, Callable[[], Any]], runs: int) -> dict[str, dict[str, Any]]:
    """Run several ways in turn: seconds of a clock and of the processor, the least and the median."""
    clock: dict[str, list[float]] = {name: [] for name in ways}
    processor: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(runs + 1):
        for name, way in ways.items():
            begun, used = time.perf_counter(), time.process_time()
            way()
            if run:  # the first warms up
                clock[name].append(time.perf_counter() - begun)
                processor[name].append(time.process_time() - used)
    return {
        name: {
            "seconds": min(clock[name]),
            "processor": min(processor[name]),
            "median seconds": median(clock[name]),
            "quartiles": quartiles(clock[name]),
            "median processor": median(processor[name]),
        }
        for name in ways
    }


def quartiles(times: list[float]) -> list[float]:
    low, _, high = quantiles(times, method="inclusive") if len(times) > 1 else times * 3
    return [low, high]


def one_hot(labels: Tensor, count: int) -> Tensor:
    """Values whose weighted sums are masses, as many as a fused kernel takes: (K, D)."""
    return F.pad(F.one_hot(labels, count).float(), (0, D - count))


def all_heads(runs: int) -> dict[str, Any]:
    """The answer's rows in all heads of a model, by segment; two layers' tensors stand for all."""
    q, k = make(2, 1, HEADS, N, D), make(2, 1, GROUPS, N, D, seed=1)
    layers = [Attention(q[i % 2], k[i % 2], is_causal=True) for i in range(LAYERS)]
    stack, found = AttentionStack(layers), parts(N, ANSWER)
    values = one_hot(torch.from_numpy(found.labels()), COUNT)[None, None]
    rows = torch.arange(N - ANSWER, N)
    mask = torch.arange(N) <= rows[:, None]

    def fused() -> None:
        for i in range(LAYERS):
            last = q[i % 2][:, :, N - ANSWER :]
            F.scaled_dot_product_attention(
                last, k[i % 2], values.expand(1, GROUPS, N, D), attn_mask=mask, enable_gqa=True
            )

    def read_keys() -> None:
        for i in range(LAYERS):
            k[i % 2].sum(2)

    times = timed(
        {
            "by_segment, 64 rows": lambda: stack.by_segment(range(N - ANSWER, N), found),
            "by_segment, one row": lambda: stack.by_segment("answer", found),
            "fused kernel, one-hot values": fused,
            "reading all keys once": read_keys,
        },
        runs,
    )
    mine = layers[0].by_segment(range(N - ANSWER, N), found).mass
    theirs = F.scaled_dot_product_attention(
        q[0][:, :, N - ANSWER :], k[0], values.expand(1, GROUPS, N, D), attn_mask=mask, enable_gqa=True
    )[0, :, :, :COUNT]
    return {"times": times, "apart": float((mine - theirs).abs().max())}


def one_head(runs: int) -> dict[str, Any]:
    """A whole map of segments beside the overview, each for a head that is new to the widget."""
    found = parts(LONG_HEAD, 2000)
    q, k = make(LONG_HEAD, 64), make(LONG_HEAD, 64, seed=1)
    peaked = 6 * q

    def ways(name: str, q: Tensor, **keywords: Any) -> dict[str, Callable[[], Any]]:
        return {
            f"{name}: map": lambda: Attention(q, k, **keywords).by_segment(found, head=0),
            f"{name}: overview": lambda: Attention(q, k, **keywords).overview(),
        }

    each = {
        **ways("causal", q, is_causal=True),
        **ways("full", q),
        **ways("causal, peaked", peaked, is_causal=True),
        **ways("window", q, is_causal=True, window=1024),
    }
    times = timed(each, runs)
    ratios = {
        name: {
            how: times[f"{name}: map"][how] / times[f"{name}: overview"][how]
            for how in ("median seconds", "median processor")
        }
        for name in ("causal", "full", "causal, peaked", "window")
    }
    return {"times": times, "ratios": ratios}


def longest() -> dict[str, float]:
    """All rows of a head of 131,072 tokens, in slices."""
    found = parts(LONGEST, 2000)
    att = Attention(make(LONGEST, 64), make(LONGEST, 64, seed=1), is_causal=True)
    labels = found.labels()
    rows = RowGroups(torch.arange(LONGEST).numpy(), labels, COUNT)
    begun, used = time.perf_counter(), time.process_time()
    slices, last = [], begun
    for _ in segment_sums(att, 0, [0], rows, labels, COUNT):
        now = time.perf_counter()
        slices.append(now - last)
        last = now
    slices.sort()
    return {
        "seconds": time.perf_counter() - begun,
        "processor": time.process_time() - used,
        "slices": len(slices),
        "median slice": median(slices),
        "slowest of 99 %": slices[int(0.99 * len(slices))],
        "slowest slice": slices[-1],
    }


def figures(found: dict[str, Any]) -> list[Figure]:
    times = {**found.get("all heads", {"times": {}})["times"], **found.get("one head", {"times": {}})["times"]}
    listed = [
        Figure(name, one["median seconds"], "s", quartiles=tuple(one["quartiles"])) for name, one in times.items()
    ]
    for name, ratio in found.get("one head", {"ratios": {}})["ratios"].items():
        listed.append(Figure(f"{name}: map ÷ overview", ratio["median seconds"], "×"))
    return listed


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--long", action="store_true")
    options.add_argument("--only", choices=("all heads", "one head"), help="one of the two tables")
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    found: dict[str, Any] = {"machine": machine()}
    for name, measure in {"all heads": all_heads, "one head": one_head}.items():
        if given.only in (None, name):
            found[name] = measure(given.runs)
    if given.long:
        found["longest"] = longest()
    for part in ("all heads", "one head"):
        for name, times in found.get(part, {"times": {}})["times"].items():
            print(f"{name:32} {times['seconds']:8.3f} s  {times['processor']:8.3f} s of processor")
    if "all heads" in found:
        print(f"largest difference to the fused kernel: {found['all heads']['apart']:.1e}")
    for name, ratio in found.get("one head", {}).get("ratios", {}).items():
        print(f"map ÷ overview, {name:16} {ratio['median seconds']:.2f} (processor {ratio['median processor']:.2f})")
    for name, value in found.get("longest", {}).items():
        print(f"131,072 tokens, {name:18} {value:10.4f}")
    return finish(given.json, figures(found), found)


if __name__ == "__main__":
    raise SystemExit(main())
