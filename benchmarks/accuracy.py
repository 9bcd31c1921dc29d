"""How far from float64 are the weights and outputs of attnwidget, and those of torch? Prints docs/accuracy.md.

python benchmarks/accuracy.py                   # all but the last section, which verification.py gives
python benchmarks/accuracy.py --json out.json     # and the worst of each dtype as JSON
python benchmarks/accuracy.py --quick             # of 256 tokens only
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.nn.functional as F
from figures import Figure, finish, machine
from torch import Tensor

from attnwidget import Attention, masks

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SPREADS = (1.0, 10.0, 100.0)  # standard deviation of the scaled scores
LENGTHS = (256, 8192)
MASKS = ("none", "causal", "padding")
D, ROWS = 64, 128  # head size; queries that are compared

INTRODUCTION = """# Accuracy

Made by `python benchmarks/accuracy.py`; run it to have the numbers of your own machine. Those below:
{machine}, torch {torch}, {threads}.

Each number is the largest difference from float64 in a row, divided by the largest number of that row; of {rows} rows
spread evenly over the length, the worst. The float64 reference is the formula written out, on the very numbers that
both were given, after rounding to the dtype. One head of size {D}; q and k are normal, q multiplied so that the scaled
scores have the standard deviation σ; "padding" blocks the last quarter of the keys.

- **weights**: `Attention.block("weights")`, beside `torch.softmax(q @ k.mT / √D, -1)` in the dtype of the tensors. In
  float64 the latter is the reference.
- **output**: `Attention.output()`, beside `F.scaled_dot_product_attention`. The latter is rounded to the dtype of the
  tensors, ours to float32 for half types.
"""


def error(x: Tensor, reference: Tensor) -> float:
    """The largest difference in a row over the largest number of that row, for the worst row."""
    return float(((x.double() - reference).abs().amax(1) / reference.abs().amax(1)).max())


NAMES = ("weights", "weights of torch", "output", "output of torch")


def errors(dtype: torch.dtype, spread: float, length: int, mask: str) -> dict[str, float]:
    """The errors of weights and output, ours and torch's, by their name."""
    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(length, D, generator=make).to(torch.float64) for _ in range(3))
    q, k, v = (q * spread).to(dtype), k.to(dtype), v.to(dtype)
    rows = torch.linspace(0, length - 1, ROWS).long()
    keys, real = torch.arange(length), length * 3 // 4
    allowed = {"none": keys >= 0, "causal": keys <= rows[:, None], "padding": keys < real}[mask].expand(ROWS, length)
    ours = {"none": {}, "causal": {"is_causal": True}, "padding": {"mask": masks.padding([real])}}[mask]
    theirs = {"none": {}, "causal": {"is_causal": True}, "padding": {"attn_mask": (keys < real)[None, None, None]}}[
        mask
    ]

    def weights(q: Tensor, k: Tensor) -> Tensor:
        return torch.softmax((q[rows] @ k.mT * D**-0.5).masked_fill(~allowed, -torch.inf), 1)

    expected = weights(q.double(), k.double())
    att = Attention(q, k, v, **ours)
    found = (
        error(att.block("weights", queries=rows), expected),
        error(weights(q, k), expected),
        error(att.output()[rows], expected @ v.double()),
        error(F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], **theirs)[0, 0, rows],
              expected @ v.double()),
    )  # fmt: skip
    known = dict(zip(NAMES, found, strict=True))
    return {name: x for name, x in known.items() if not (name == "weights of torch" and dtype is torch.float64)}


def row(dtype: torch.dtype, spread: float, length: int, mask: str) -> str:
    return line(spread, length, mask, errors(dtype, spread, length, mask))


def line(spread: float, length: int, mask: str, found: dict[str, float]) -> str:
    numbers = [f"{found[name]:.1e}" if name in found else "–" for name in NAMES]
    return f"| {spread:g} | {length:,} | {mask} | " + " | ".join(numbers) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    host, worst = machine(), {}
    threads = f"{host['threads']} thread{'s' * (host['threads'] > 1)}"
    print(INTRODUCTION.format(machine=host["processor"], torch=host["torch"], threads=threads, rows=ROWS, D=D))
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        print(f"## {name}\n")
        print("| σ | length | mask | weights | torch's | output | torch's |")
        print("|---|---|---|---|---|---|---|")
        for case in itertools.product(SPREADS, LENGTHS[:1] if asked.quick else LENGTHS, MASKS):
            found = errors(dtype, *case)
            print(line(*case, found), flush=True)
            for what, x in found.items():
                worst[name, what] = max(worst.get((name, what), 0.0), x)
        print()
    return finish(asked.json, [Figure(f"{name}, {what}", x, "") for (name, what), x in worst.items()])


if __name__ == "__main__":
    raise SystemExit(main())
