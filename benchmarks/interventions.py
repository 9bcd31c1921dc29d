"""What it costs to edit heads while a model runs: time and memory beside the model alone, and beside eager attention.

    python benchmarks/interventions.py                  # a table; takes some minutes
    python benchmarks/interventions.py --json out.json  # and the same numbers as JSON
    python benchmarks/interventions.py --tokens 2048    # a shorter text

Models of GPT-2-small's size with random weights: 12 layers for times, 2 for memory. Times are processor time (all
threads together), as ratios to the model alone in runs that take turns, their medians. A sweep runs the model once for
each of 144 heads. Memory is the peak of a fresh
process over what it held before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
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
from figures import Figure, figure_of, finish, machine
from wire import MIB, Peak

from attnwidget import intervene, sweep

SHORT, LONG, EAGER = 128, 8192, 4096  # tokens; eager attention of 8,192 takes some 10 GB
EDITS: dict[str, Any] = {
    "nothing": {},
    "one head, zero": {(0, 3): "zero"},
    "one head, without a key": {(0, 3): {"drop_keys": [5]}},
    "one head, an edge": {(0, 3): {"block": ([-1], [5])}},
    "a layer, even": {0: "uniform"},
    "all heads of all layers, without a key": {"all": {"drop_keys": [5]}},
}


def model_of(layers: int, tokens: int, implementation: str = "sdpa", vocabulary: int = 1000) -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=layers, n_positions=max(1024, tokens), vocab_size=vocabulary)
    return transformers.GPT2LMHeadModel._from_config(config, attn_implementation=implementation).eval()


def text_of(tokens: int) -> torch.Tensor:
    return torch.randint(1000, (1, tokens), generator=torch.Generator().manual_seed(1))


def forward(model: Any, text: torch.Tensor, edits: Any, *, gradients: bool = False) -> None:
    block = contextlib.nullcontext() if edits is None else intervene(model, edits)
    with torch.set_grad_enabled(gradients), block:
        found = model(text, use_cache=False, logits_to_keep=1).logits
        if gradients:
            found.square().sum().backward()


def times(tokens: int, runs: int) -> dict[str, list[float]]:
    """Processor time of each edit, as ratios to the model alone."""
    model, text = model_of(12, tokens), text_of(tokens)
    ways: dict[str, Callable[[], None]] = {
        "alone": lambda: forward(model, text, None),
        **{name: (lambda edits=edits: forward(model, text, edits)) for name, edits in EDITS.items()},
    }
    used: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(runs + 1):
        for name, way in ways.items():
            begun = time.process_time()
            way()
            if run:  # the first warms up
                used[name].append(time.process_time() - begun)
    pairs = {name: [x / y for x, y in zip(found, used["alone"], strict=True)] for name, found in used.items()}
    return {"seconds alone": used["alone"], **pairs}


def sweeps(tokens: int, runs: int) -> dict[str, float]:
    """Processor time of a sweep over all heads, as a ratio to as many plain forward passes with the whole output."""
    model, text = model_of(12, tokens, vocabulary=50_257), text_of(tokens)

    def used(work: Callable[[], Any]) -> float:
        begun = time.process_time()
        with torch.no_grad():
            work()
        return time.process_time() - begun

    ways = {"all heads": {}, "all heads, one by one": {"at_once": 1}}
    plain = [used(lambda: model(text)) for _ in range(runs + 1)][1:]
    found: dict[str, float] = {}
    for name, more in ways.items():
        taken = used(lambda more=more: sweep(model, text, over="heads", **more))
        plain += [used(lambda: model(text)) for _ in range(runs)]
        found[name] = taken / (144 * median(plain))
    return {"seconds alone": median(plain), **found}


def memory(which: str, tokens: int) -> float:
    """Peak of one forward pass, or of one with its backward pass, over the process before."""
    name, _, kind = which.partition("|")
    model = model_of(2, tokens, "eager" if name == "eager" else "sdpa")
    forward(model, text_of(64), {(0, 3): "uniform"})
    text, edits = text_of(tokens), None if name in ("alone", "eager") else EDITS[name]
    with Peak(psutil.Process()) as peak:
        forward(model, text, edits, gradients=kind == "gradients")
        return float(peak.read())


def apart(*arguments: str) -> Any:
    """The same in a process of its own."""
    found = subprocess.run(
        [sys.executable, __file__, *arguments], check=True, stdout=subprocess.PIPE, text=True, timeout=1800
    )
    return json.loads(found.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=LONG)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only-sweeps", action="store_true")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    if asked.memory_of:
        print(json.dumps(memory(asked.memory_of, asked.tokens)))
        return 0
    if asked.only_sweeps:
        print(json.dumps(sweeps(SHORT, asked.runs)))
        return 0
    found: dict[str, Any] = {"machine": machine(), "times": times(SHORT, asked.runs)}
    print(", ".join(f"{name} {value}" for name, value in found["machine"].items()))
    print(
        f"\n{SHORT} tokens, 12 layers: {median(found['times'].pop('seconds alone')) * 1000:.0f} ms alone; times of that"
    )
    for name, ratios in found["times"].items():
        print(f"  {name:<40} {median(ratios):6.3f}")
    found["sweeps"] = sweeps(SHORT, asked.runs)
    print(
        f"\n{SHORT} tokens, 12 × 12 heads, 50,257 tokens: {found['sweeps'].pop('seconds alone') * 1000:.0f} ms alone;"
    )
    print("times of 144 plain forward passes")
    for name, ratio in found["sweeps"].items():
        print(f"  {name:<40} {ratio:6.3f}")
    ways = ["alone", *[name for name in EDITS if name != "nothing"]]
    ways += ["eager"] if asked.tokens <= EAGER else []
    ways += ["alone|gradients", "one head, without a key|gradients"]
    print(f"\n{asked.tokens:,} tokens, 2 layers: peak over the process before, MiB (|gradients: with a backward pass)")
    found["memory"] = {}
    for name in ways:
        threads = ["--threads", str(asked.threads)] if asked.threads else []
        found["memory"][name] = apart("--memory-of", name, "--tokens", str(asked.tokens), *threads)
        print(f"  {name:<40} {found['memory'][name] / MIB:8.0f}", flush=True)
    return finish(asked.json, figures(found), found)


def figures(found: dict[str, Any]) -> list[Figure]:
    return [
        *(figure_of(f"{name} ÷ alone", ratios, "×") for name, ratios in found["times"].items() if name != "alone"),
        *(Figure(f"sweep, {name} ÷ 144 passes", ratio, "×") for name, ratio in found["sweeps"].items()),
        *(Figure(f"memory, {name}", size, "bytes") for name, size in found["memory"].items()),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
