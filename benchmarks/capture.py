"""What it costs to capture a model: time and memory beside the model alone, and beside eager `output_attentions`.

    python benchmarks/capture.py                   # a table; exits with 3 if a threshold is missed
    python benchmarks/capture.py --json out.json   # and the same numbers as JSON
    python benchmarks/capture.py --threads 1 --runs 21

README.md beside this file says what each line means.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
import torch
import transformers
from figures import Figure, finish, machine
from wire import Peak

from attnwidget import Capture, capture
from attnwidget._capture.records.decode_steps import NotedCall
from attnwidget._capture.records.record import Record
from attnwidget._capture.session.recorder import Recorder

SHORT, LONG, NEW, PROMPT = 512, 2048, 20, 64
VOCABULARY = 50_257
LIMITS = {
    "forward, 512 tokens": 1.05,
    "generate 20, dynamic": 1.10,
    "generate 20, static": 1.10,
    "2,048 tokens, time over eager": 0.6,
    "2,048 tokens, kept over eager": 0.12,
}


def gpt2(implementation: str, generates: bool = False) -> Any:
    """GPT-2 small with random weights."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_positions=LONG, pad_token_id=0, eos_token_id=0)
    kind = transformers.GPT2LMHeadModel if generates else transformers.GPT2Model
    return kind._from_config(copy.deepcopy(config), attn_implementation=implementation).eval()


def ids(length: int) -> Any:
    return torch.randint(1, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(1))


def captured(model: Any, act: Callable[[], Any]) -> tuple[Capture, Any]:
    """Return a capture, and what the model gave: the act alone holds that too until its time is taken."""
    with capture(model) as cap:
        output = act()
    return cap, output


def paired(one: Callable[[], Any], other: Callable[[], Any], runs: int) -> dict[str, list[list[float]]]:
    """Times of two acts that take turns, which goes first too: by the clock, and of the processor, of one and other."""
    found: dict[str, list[list[float]]] = {"clock": [], "processor": []}
    for run in range(runs + 2):
        times = {}
        for act in (one, other) if run % 2 else (other, one):
            start = time.perf_counter(), time.process_time()
            kept = act()
            times[act] = time.perf_counter() - start[0], time.process_time() - start[1]
            del kept
            gc.collect()
        if run > 1:  # the first two warm up
            for i, name in enumerate(found):
                found[name].append([times[one][i], times[other][i]])
    return found


def own_share(act: Callable[[], Any], runs: int) -> list[float]:
    """Of an act with capture the time of all over that of what is not the recorder's: noise of the machine cancels."""
    parts: tuple[tuple[type, str], ...] = ((Recorder, "begin"), (Recorder, "stop"), (Recorder, "settle"))
    parts += ((Recorder, "record_call"), (Recorder, "record_interface_call"))
    parts += ((Record, "add_output"), (Record, "_keep_output"), (NotedCall, "take_result"))
    spent, depth = 0.0, 0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **keywords: Any) -> Any:
            nonlocal spent, depth
            start, depth = time.perf_counter(), depth + 1
            try:
                return function(*arguments, **keywords)
            finally:
                depth -= 1
                spent += 0 if depth else time.perf_counter() - start  # one of these may call another

        return run

    for owner, name in parts:
        setattr(owner, name, timed(getattr(owner, name)))
    ratios = []
    for _ in range(runs + 2):
        spent, start = 0.0, time.perf_counter()
        kept = act()
        whole = time.perf_counter() - start
        ratios.append(whole / (whole - spent))
        del kept
        gc.collect()
    return ratios[2:]


def forward(length: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    model, text = gpt2("sdpa"), ids(length)
    return lambda: captured(model, lambda: model(text)), lambda: model(text)


def clones_of_calls(act: Callable[[], Any]) -> tuple[list[Any], Any]:
    """Run a model with hooks that do nothing but keep bare clones of q, k and v: no capture of all three costs less.

    Of keys and values that a cache has grown only the new ones are cloned.
    """
    attention, kept = torch.nn.functional.scaled_dot_product_attention, []

    def keeping(query: Any, key: Any, value: Any, *others: Any, **how: Any) -> Any:
        new = query.shape[2]
        kept.append([x.narrow(2, x.shape[2] - new, new).clone() for x in (query, key, value)])
        return attention(query, key, value, *others, **how)

    torch.nn.functional.scaled_dot_product_attention = keeping
    try:
        output = act()
    finally:
        torch.nn.functional.scaled_dot_product_attention = attention
    return kept, output


def over_clones(acts: tuple[Callable[[], Any], Callable[[], Any]]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return an act with capture, and the same with bare clones in its place."""
    return acts[0], lambda: clones_of_calls(acts[1])


def bare_clones(acts: tuple[Callable[[], Any], Callable[[], Any]]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return an act with bare clones, and the same alone."""
    return lambda: clones_of_calls(acts[1]), acts[1]


def generate(cache: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    model, text = gpt2("sdpa", generates=True), ids(PROMPT)
    how = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "cache_implementation": cache}

    def act() -> Any:
        return model.generate(text, attention_mask=torch.ones_like(text), **how)

    return lambda: captured(model, act), act


def by_sdpa(q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def written(q: Any, k: Any, v: Any) -> Any:
    n = q.shape[2]
    return (q @ k.mT * 32**-0.5).masked_fill(~torch.ones(n, n).bool().tril(), -torch.inf).softmax(-1) @ v


def by_chunk(q: Any, k: Any, v: Any) -> Any:
    chunks = [q[:, :, i : i + 16] for i in range(0, q.shape[2], 16)]
    return torch.cat([(chunk @ k.mT * 32**-0.5).softmax(-1) @ v for chunk in chunks], 2)


def by_head(q: Any, k: Any, v: Any) -> Any:
    heads = [(q[:, head] @ k[:, head].mT * 32**-0.5).softmax(-1) @ v[:, head] for head in range(q.shape[1])]
    return torch.stack(heads, 1)


def by_row(q: Any, k: Any, v: Any) -> Any:
    rows = [(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1]) for i in range(q.shape[2])]
    return torch.cat([torch.nn.functional.scaled_dot_product_attention(*row) for row in rows], 2)


class OwnLayer(torch.nn.Module):
    """A layer whose own code computes its attention; `way` does."""

    def __init__(self, way: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = torch.nn.LayerNorm(256), torch.nn.Linear(256, 768), torch.nn.Linear(256, 256)
        steps = torch.nn.LayerNorm(256), torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)
        self.feed_forward, self.way = torch.nn.Sequential(*steps), way

    def forward(self, x: Any) -> Any:
        q, k, v = (y.unflatten(-1, (8, 32)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(self.way(q, k, v).transpose(1, 2).flatten(2))
        return x + self.feed_forward(x)


def own_code(way: Callable[[Any, Any, Any], Any], length: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    model, x = torch.nn.Sequential(*(OwnLayer(way) for _ in range(4))).eval(), torch.randn(2, length, 256)
    return lambda: captured(model, lambda: model(x)), lambda: model(x)


def beside_eager(length: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    model, eager, text = gpt2("sdpa"), gpt2("eager"), ids(length)
    return lambda: captured(model, lambda: model(text)), lambda: eager(text, output_attentions=True)


ACTS: dict[str, Callable[[], tuple[Callable[[], Any], Callable[[], Any]]]] = {
    "forward, 512 tokens": lambda: forward(SHORT),
    "forward, 512 tokens, over bare clones": lambda: over_clones(forward(SHORT)),
    "generate 20, dynamic, over bare clones": lambda: over_clones(generate("dynamic")),
    "generate 20, static, over bare clones": lambda: over_clones(generate("static")),
    "bare clones, 512 tokens": lambda: bare_clones(forward(SHORT)),
    "itself, 512 tokens": lambda: (forward(SHORT)[1], forward(SHORT)[1]),
    "generate 20, dynamic": lambda: generate("dynamic"),
    "generate 20, static": lambda: generate("static"),
    "own code, SDPA, 256 tokens": lambda: own_code(by_sdpa, 256),
    "own code, written out, 256 tokens": lambda: own_code(written, 256),
    "own code, chunks of 16 queries, 256 tokens": lambda: own_code(by_chunk, 256),
    "own code, head by head, 256 tokens": lambda: own_code(by_head, 256),
    "own code, row by row, 128 tokens": lambda: own_code(by_row, 128),
    "2,048 tokens, time over eager": lambda: beside_eager(LONG),
}

OWN = [
    "forward, 512 tokens",
    "generate 20, dynamic",
    "generate 20, static",
]  # the recorder's own work on these is timed


def memory(which: str) -> dict[str, float]:
    """Bytes kept of one forward pass of 2,048 tokens, and the peak while it was made over the process before."""
    model, text = gpt2("eager" if which == "eager" else "sdpa"), ids(LONG)
    model(ids(8))
    with Peak(psutil.Process()) as peak:
        if which == "captured":
            return {"kept": captured(model, lambda: model(text))[0].nbytes, "peak": peak.read()}
        if which == "plain":
            model(text)
            return {"kept": 0, "peak": peak.read()}
        attentions = model(text, output_attentions=True).attentions
        return {"kept": sum(x.numel() * x.element_size() for x in attentions), "peak": peak.read()}


def apart(*arguments: str) -> Any:
    """In a process of its own."""
    command = [sys.executable, __file__, *arguments, "--threads", str(torch.get_num_threads())]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=15, help="pairs, after two to warm up; the median is taken")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--wanted-only", action="store_true", help="only what has a threshold")
    parser.add_argument("--time-of", help=argparse.SUPPRESS)
    parser.add_argument("--own-of", help=argparse.SUPPRESS)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    if asked.time_of:
        print(json.dumps(paired(*ACTS[asked.time_of](), asked.runs)))
        return 0
    if asked.own_of:
        print(json.dumps(own_share(ACTS[asked.own_of]()[0], asked.runs)))
        return 0
    if asked.memory_of:
        print(json.dumps(memory(asked.memory_of)))
        return 0

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    host = machine()
    print(
        f"{host['processor']}, torch {host['torch']}, transformers {transformers.__version__}; {asked.threads} threads,"
    )
    print(f"median of {asked.runs} pairs (quartiles), each line in a fresh process; load before it began {load:.1f}\n")
    print("| GPT-2 small, random weights | ratio | quartiles | of the least | of processor time | threshold | |")
    print("|---|--:|--:|--:|--:|--:|---|")
    found: dict[str, Any] = {}
    for how, which, said in (("--time-of", list(ACTS), "{}"), ("--own-of", OWN, "{}: its own work")):
        for name in which:
            if asked.wanted_only and said.format(name) not in LIMITS:
                continue
            times = apart(how, name, "--runs", str(asked.runs))
            ratios = [own / other for own, other in times["clock"]] if isinstance(times, dict) else times
            low, _, high = quantiles(ratios)
            row = found[said.format(name)] = {"ratio": median(ratios), "quartiles": [low, high]}
            if isinstance(times, dict):
                row |= {clock: least_over_least(pairs) for clock, pairs in times.items()}
            line(said.format(name), median(ratios), f"{low:.3f}–{high:.3f}", row)
    sizes = {} if asked.no_memory else measure_memory(found)
    details = {"threads": asked.threads, "load": load, "runs": asked.runs, "rows": found, "memory": sizes}
    return finish(asked.json, figures(found), details)


def measure_memory(found: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Add what capture keeps over what eager attention does; return the bytes."""
    sizes = {which: apart("--memory-of", which) for which in ("captured", "eager", "plain")}
    for name, what, before in (
        ("kept", "kept", 0),
        ("peak", "peak", 0),
        ("added peak", "peak", sizes["plain"]["peak"]),
    ):
        taken = [sizes[which][what] - before for which in ("captured", "eager")]
        found[f"2,048 tokens, {name} over eager"] = {"ratio": taken[0] / taken[1]}
        said = " / ".join(f"{size / 1e6:,.0f} MB" for size in taken)
        line(f"2,048 tokens, {name} over eager", taken[0] / taken[1], said)
    return sizes


def figures(found: dict[str, Any]) -> list[Figure]:
    """Return the ratios, and those of the shortest processor times, which say more on a busy machine."""
    listed = []
    for name, row in found.items():
        spread = tuple(row["quartiles"]) if "quartiles" in row else None
        listed.append(Figure(name, row["ratio"], "×", wanted=LIMITS.get(name), quartiles=spread))
        if "processor" in row:
            listed.append(Figure(f"{name}, least of processor time", row["processor"], "×"))
    return listed


def least_over_least(pairs: list[list[float]]) -> float:
    """Return the ratio of the shortest times, which other work on the machine has disturbed the least."""
    return min(own for own, _ in pairs) / min(other for _, other in pairs)


def line(name: str, ratio: float, spread: str, row: dict[str, Any] | None = None) -> None:
    limit = LIMITS.get(name)
    word = "" if limit is None else "met" if ratio <= limit else "**missed**"
    least = [f"{row[clock]:.3f}" if row and clock in row else "" for clock in ("clock", "processor")]
    cells = name, f"{ratio:.3f}", spread, *least, "" if limit is None else f"≤ {limit:g}", word
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
