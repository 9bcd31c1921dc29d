"""How far from float64 are the weights and outputs of attnwidget, and those of torch?

python benchmarks/accuracy.py                     # a table for each dtype; docs/accuracy.md explains it
python benchmarks/accuracy.py --json out.json     # the worst of each dtype, and each case, as JSON
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
from figures import Figure, finish
from torch import Tensor

from attnwidget import Attention, masks

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SPREADS = (1.0, 10.0, 100.0)  # standard deviation of the scaled scores
LENGTHS = (256, 8192)
MASKS = ("none", "causal", "padding")
D, ROWS = 64, 128  # head size; queries that are compared


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    worst: dict[tuple[str, str], float] = {}
    cases = []
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        for spread, length, mask in itertools.product(SPREADS, LENGTHS[:1] if asked.quick else LENGTHS, MASKS):
            found = errors(dtype, spread, length, mask)
            cases.append({"dtype": name, "spread": spread, "length": length, "mask": mask, **found})
            print(name, f"{spread:g}", f"{length:,}", mask, *(f"{found.get(x, 0):.1e}" for x in NAMES), flush=True)
            for what, x in found.items():
                worst[name, what] = max(worst.get((name, what), 0.0), x)
    return finish(asked.json, [Figure(f"{name}, {what}", x, "") for (name, what), x in worst.items()], cases)


if __name__ == "__main__":
    raise SystemExit(main())
