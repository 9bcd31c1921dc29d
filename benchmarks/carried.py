"""What it costs to know what weights carry: memory and time of a backward pass with and without capture, by length.

    python benchmarks/carried.py                       # a table: 2,048 to 16,384 tokens
    python benchmarks/carried.py --lengths 2048 --json out.json

README.md beside this file says what each line means.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import transformers
from figures import Figure, finish, peak_bytes

from attnwidget import capture

LENGTHS = (2048, 4096, 8192, 16384)
WAYS = ("import", "backward", "captured", "stage")  # each does what the one before does, and more


def model(length: int) -> Any:
    """A model with the heads of GPT-2 small in two layers, and random weights."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_positions=length, n_layer=2, n_head=4, n_embd=256, vocab_size=1000, pad_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel._from_config(config, attn_implementation="sdpa").eval()


def measure(length: int, way: str) -> dict[str, float]:
    """Return seconds of processor time, and the peak of memory in bytes, in this process."""
    made, ids = model(length), torch.randint(1, 1000, (1, length), generator=torch.Generator().manual_seed(1))
    began = time.process_time()
    found = {"seconds": 0.0, "stage": 0.0}
    if way == "backward":
        made(input_ids=ids).logits[:, -1, 7].sum().backward()
    elif way != "import":
        cap = capture(made, gradients=True).run(input_ids=ids)
        cap.backward(target=7)
        found["seconds"] = time.process_time() - began
        if way == "stage":
            cap.attention[0].overview(head=1, stage="saliency")
            found["stage"] = time.process_time() - began - found["seconds"]
    found["seconds"] = found["seconds"] or time.process_time() - began
    return {**found, "peak": float(peak_bytes())}


def in_a_process(length: int, way: str, threads: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", str(length), way, "--threads", str(threads)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def figures(found: dict[int, dict[str, dict[str, float]]]) -> list[Figure]:
    listed = []
    for length, ways in found.items():
        time_ratio = ways["captured"]["seconds"] / ways["backward"]["seconds"]
        memory = ways["stage"]["peak"] - ways["import"]["peak"]
        listed += [
            Figure(f"{length:,} tokens, time with saliency ÷ without", time_ratio, "×"),
            Figure(f"{length:,} tokens, memory with saliency", memory, "bytes"),
            Figure(f"{length:,} tokens, one head drawn", ways["stage"]["stage"], "s"),
        ]
    return listed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.one:
        print(json.dumps(measure(int(given.one[0]), given.one[1])))
        return 0
    found = {}
    print("| tokens | backward | with saliency | time | one head drawn | all weights would be |")
    print("|--:|--:|--:|--:|--:|--:|")
    for length in given.lengths:
        ways = {way: in_a_process(length, way, given.threads) for way in WAYS}
        base = ways["import"]["peak"]
        plain, ours = (ways[way]["peak"] - base for way in ("backward", "stage"))
        ratio = ways["captured"]["seconds"] / ways["backward"]["seconds"]
        dense = 2 * 2 * 4 * 4 * length**2  # weights and their gradients, 2 layers × 4 heads, float32
        print(
            f"| {length:,} | {plain / 1e6:,.0f} MB | {ours / 1e6:,.0f} MB | {ratio:.2f} × | "
            f"{ways['stage']['stage']:.2f} s | {dense / 1e6:,.0f} MB |",
            flush=True,
        )
        found[length] = ways
    return finish(given.json, figures(found), found)


if __name__ == "__main__":
    raise SystemExit(main())
