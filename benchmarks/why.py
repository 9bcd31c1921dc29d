"""What it costs to know why a head looked there: the recording, a pair, a row, and the graph of heads.

    python benchmarks/why.py                       # recording, rows and pairs of a 12-layer, 12-head model
    python benchmarks/why.py --row 16384 --pair 131072 --json out.json
    python benchmarks/why.py --models              # whether the parts add up, for every family of transformers

README.md beside this file says what each line means.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import transformers
from figures import Figure, figure_of, finish

from attnwidget import capture
from attnwidget._analysis.why.reasons import pair, run


def gpt2(length: int, layers: int = 12, heads: int = 12, size: int = 768) -> Any:
    """A model with learned positions, of the size of GPT-2 small, and random weights."""
    torch.manual_seed(0)
    sizes = {"n_positions": length, "n_layer": layers, "n_head": heads, "n_embd": size, "vocab_size": 1000}
    config = transformers.GPT2Config(**sizes, pad_token_id=0, eos_token_id=0, bos_token_id=0)
    return transformers.GPT2Model._from_config(config).eval()


def llama(length: int, layers: int = 12, heads: int = 12, size: int = 768) -> Any:
    """The same size with rotary positions."""
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": size, "vocab_size": 1000}
    config = transformers.LlamaConfig(**sizes, intermediate_size=4 * size, max_position_embeddings=length)
    return transformers.LlamaModel._from_config(config).eval()


def ids(length: int, batch: int = 1) -> torch.Tensor:
    return torch.randint(1, 1000, (batch, length), generator=torch.Generator().manual_seed(1))


def timed(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _captured(model: Any, given: torch.Tensor, sources: bool) -> None:
    capture(model, sources=sources).run(given)


def recording(runs: int) -> Figure:
    """A captured forward pass of 8 texts of 128 tokens, with sources over without: the fastest runs of each."""
    model, given = gpt2(128), ids(128, 8)
    found: dict[bool, list[float]] = {False: [], True: []}
    with torch.no_grad():
        for _ in range(runs + 1):
            for sources in (False, True):
                found[sources].append(timed(functools.partial(_captured, model, given, sources)))
    ratio = min(found[True][1:]) / min(found[False][1:])  # the system's page faults spread medians by a third
    return Figure("recording, 8 × 128 tokens, with sources ÷ without", ratio, "×", wanted=1.15)


def asked(make: Callable[..., Any], length: int, runs: int, row: float | None) -> list[Figure]:
    """A pair, a pair against the mean, and a row of the last layer of a model, each asked for anew."""
    model = make(length)
    with torch.no_grad():
        cap = capture(model, sources=True).run(ids(length))
    name = make.__name__
    answers = cap.attention[-1].sources.answers

    def anew(ask: Callable[[], Any]) -> float:
        answers.clear()
        return timed(ask)

    last = {"layer": -1, "head": 3, "query": -1}
    asks: dict[str, Callable[[], Any]] = {
        "a pair": lambda: cap.why(**last, key=length // 2),
        "a pair against the mean": lambda: cap.why(**last, key=length // 2, against="mean"),
        "a row × all parts": lambda: cap.why_row(**last),
    }
    found = []
    for what, ask in asks.items():
        wanted = row if what.startswith("a row") else None
        seconds = [anew(ask) for _ in range(runs)]
        found.append(figure_of(f"{name}, {length:,} tokens: {what}", seconds, "s", wanted=wanted))
    return found


def longest(length: int, runs: int) -> Figure:
    """A pair of a very long text, in a model of 12 small layers."""
    model = gpt2(length, heads=4, size=64)
    with torch.no_grad():
        cap = capture(model, sources=True).run(ids(length))
    answers = cap.attention[-1].sources.answers
    seconds = []
    for i in range(runs):
        answers.clear()
        seconds.append(timed(functools.partial(cap.why, -1, 1, -1, length // 3 + i)))
    return figure_of(f"gpt2 of 12 small layers, {length:,} tokens: a pair", seconds, "s", wanted=0.5)


def of_models(names: list[str]) -> list[Figure]:
    """Ask one pair of each layer of each family of transformers: its parts add up, or it is refused with the reason."""
    from sweep_transformers import names as families
    from sweep_transformers import transformers_case

    counts = dict.fromkeys(("add up", "in part", "refused"), 0)
    worst = 0.0
    for name in names or families():
        try:
            case = transformers_case(name)
        except Exception:
            continue  # it cannot be made small, or without a file
        with torch.no_grad(), capture(case.model, sources=True, strict=False) as cap:
            case.run()
        right, wrong = 0, []
        for layer, att in enumerate(cap.all if len(cap) and cap.calls else []):
            at = {"query": att.shape.Q - 1, "key": att.shape.K // 2, "batch": att.shape.B - 1, "head": att.shape.H - 1}
            try:
                found = run(pair(att, **at))
            except ValueError as error:
                wrong.append(f"{layer}: {error}")
                continue
            worst = max(worst, abs(found.rounding) / float(found.terms.square().sum().sqrt().clamp_min(1e-30)))
            right += 1
        if right or wrong:
            counts["add up" if not wrong else "in part" if right else "refused"] += 1
            print(f"| {name} | {right} of {right + len(wrong)} |", wrong[0][:200] if wrong else "", flush=True)
    print(counts)
    figures = [
        Figure(f"families: {name}", count, "", lower_is_better=name != "add up") for name, count in counts.items()
    ]
    return [*figures, Figure("largest remainder over the root of squares", worst, "", wanted=1e-5)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", type=int, default=16384)
    parser.add_argument("--pair", type=int, default=0, help="the length of the very long text; 0: left out")
    parser.add_argument("--models", nargs="*", metavar="NAME", help="families of transformers; none given: all")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.models is not None:
        warnings.simplefilter("ignore")
        return finish(given.json, of_models(given.models))
    found = [recording(max(3, given.runs * 3))]
    for make in (gpt2, llama):
        found += asked(make, given.row, given.runs, 2.0)
    if given.pair:
        found.append(longest(given.pair, given.runs))
    for figure in found:
        print(f"| {figure.name} | {figure.value:,.3f} {figure.unit} |", flush=True)
    return finish(given.json, found)


if __name__ == "__main__":
    raise SystemExit(main())
