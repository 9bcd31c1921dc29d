"""How well the check of outputs tells a hidden step from rounding: false alarms, and hidden steps found.

    python benchmarks/verification.py                 # 10,000 honest calls and 4,000 with a hidden step
    python benchmarks/verification.py --calls 1000    # fewer

An honest call computes softmax(scale · q kᵀ under its rules) · v by one of several kernels, in one of several types. A
call with a hidden step does something more, which its arguments do not show. It counts where it moves a true weight, in
float64, by 0.05 or more.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.nn.functional as F
from figures import Figure, finish
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnwidget._capture.call.call_rules import CallRules
from attnwidget._capture.verify.verification import differs, sample_output

TYPES = ("float32", "tf32", "bfloat16", "float16")
SIZES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0, 4000.0)  # standard deviation of the scaled scores
LENGTHS = (5, 16, 64, 200, 600)
OFF = 0.05
UNCHECKED = ", in rows not checked"
ROUNDED = ", only where rounding alone moves a weight as far"


def tf32(x: Tensor) -> Tensor:
    """Return x rounded to the ten bits of TF32."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


Step = Callable[[Tensor], Tensor]


def eager(
    q: Tensor, k: Tensor, v: Tensor, *, like: str, before: Step, after: Step, order: int, coarse: bool = False
) -> Tensor:
    """Attention written out in the type of q, with steps before and after the softmax, in one of four orders."""
    scale, narrow = q.shape[-1] ** -0.5, tf32 if coarse else (lambda x: x)
    scores = before(narrow(q * scale) @ narrow(k).mT if order % 2 else narrow(q) @ narrow(k).mT * scale)
    weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype) if order > 1 else scores.softmax(-1)
    return narrow(after(weights)) @ narrow(v)


def fused(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, causal: bool, backend: Any) -> Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)


def steps(n: int, kind: str) -> tuple[Step, Step]:
    """Return what a hidden step does before and after the softmax."""
    same: Step = lambda x: x  # noqa: E731
    places = torch.arange(n)
    tri = places[:, None] >= places
    near = (places[:, None] - places).abs() <= max(1, n // 8)
    kinds: dict[str, tuple[Step, Step]] = {
        "causal after the softmax": (same, lambda w: w.masked_fill(~tri, 0)),
        "causal, then normalized": (same, lambda w: (x := w.masked_fill(~tri, 0)) / x.sum(-1, keepdim=True)),
        "causal by .data": (lambda s: s.masked_fill(~tri, -torch.inf), same),
        "clamped at 5": (lambda s: s.clamp(max=5.0), same),
        "window": (lambda s: s.masked_fill(~near, -torch.inf), same),
        "temperature 1.1": (lambda s: s / 1.1, same),
        "bias of 0.03 a position": (lambda s: s - 0.03 * (places[:, None] - places).abs().to(s), same),
        "softcap 30": (lambda s: 30 * (s / 30).tanh(), same),
        "sink": (lambda s: s, lambda w: w * 0.8),
        "first token hidden": (lambda s: s.masked_fill((places == 0) & (n > 1), -torch.inf), same),
    }
    return kinds[kind]


HIDDEN = (
    "causal after the softmax", "causal, then normalized", "causal by .data", "clamped at 5", "window",
    "temperature 1.1", "bias of 0.03 a position", "softcap 30", "sink", "first token hidden",
)  # fmt: skip


def tensors(draw: random.Random, name: str, size: float, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v of a call, with scaled scores of a standard deviation."""
    generator = torch.Generator().manual_seed(draw.getrandbits(40))
    B, H, D = draw.choice((1, 2, 5)), draw.choice((1, 2, 8)), draw.choice((8, 16, 64))
    q, k, v = (torch.randn(B, H, n, D, generator=generator) for _ in range(3))
    if draw.random() < 0.3:  # a few features dominate, as in trained models
        outliers = torch.where(torch.rand(D, generator=generator) < 0.1, 8.0, 1.0)
        q, k = q * outliers, k * outliers
    spread = (q @ k.mT).std() * D**-0.5 if n > 1 else torch.ones(())
    q = q * (size / spread.clamp_min(1e-6))
    dtype = torch.float32 if name == "tf32" else getattr(torch, name)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def alarm(output: Tensor, q: Tensor, k: Tensor, v: Tensor, rules: CallRules) -> bool:
    sample = sample_output(output, q, k, v)
    assert sample is not None
    return bool(differs(sample, q, k, v, scale=None, softcap=None, rules=rules, first=0))


def honest(draw: random.Random, name: str, size: float, n: int) -> tuple[str, bool] | None:
    """Return the kernel of an honest call, and whether it gave a false alarm; None if its numbers overflow."""
    q, k, v = tensors(draw, name, size, n)
    causal, masked = draw.random() < 0.4, draw.random() < 0.4
    mask = None
    if masked and not causal:
        mask = torch.where(torch.rand(1, 1, n, n) < 0.3, torch.finfo(q.dtype).min, 0.0).to(q.dtype)
        mask[..., 0] = 0
    added = mask
    if causal:
        added = torch.full((n, n), torch.finfo(q.dtype).min, dtype=q.dtype).triu(1)
    before: Step = (lambda s: s + added) if added is not None else (lambda s: s)
    kernels = ["eager 0", "eager 1", "eager 2", "eager 3"]
    kernels += [] if name == "tf32" else ["sdpa math", "sdpa flash"]
    kernel = draw.choice(kernels)
    if kernel.startswith("eager"):
        how = {"like": name, "before": before, "after": lambda w: w}
        output = eager(q, k, v, order=int(kernel[-1]), coarse=name == "tf32", **how)
    else:
        backend = SDPBackend.MATH if kernel.endswith("math") else SDPBackend.FLASH_ATTENTION
        output = fused(q, k, v, mask=mask, causal=causal, backend=backend)
    if not output.isfinite().all():
        return None
    return kernel, alarm(output, q, k, v, CallRules(n, n, 0, causal, None if causal else mask, None))


def hidden(draw: random.Random, name: str, size: float, n: int, kind: str) -> tuple[bool, str] | None:
    """Return whether a hidden step is found, and what is special about it; None if no weight moves by `OFF`."""
    q, k, v = tensors(draw, name, size, n)
    before, after = steps(n, kind)
    wide = (q.double() @ k.double().mT) * q.shape[-1] ** -0.5
    true = after(before(wide).softmax(-1))
    off = ((true - wide.softmax(-1)).abs() >= OFF).any(-1)
    if not off.any():
        return None
    order = draw.randrange(4)
    output = eager(q, k, v, like=name, before=before, after=after, order=order, coarse=name == "tf32")
    if not output.isfinite().all():
        return None
    sample = sample_output(output, q, k, v)
    assert sample is not None
    checked = off[sample.samples][:, sample.heads][:, :, sample.rows]
    same: Step = lambda x: x  # noqa: E731
    eye = torch.eye(n, dtype=q.dtype).expand(*k.shape[:2], n, n)  # as values: the output is the weights
    rounded = eager(q, k, eye, like=name, before=same, after=same, order=order, coarse=name == "tf32")
    own = ((rounded.double() - wide.softmax(-1)).abs() >= OFF).any(-1)[sample.samples][:, sample.heads][
        :, :, sample.rows
    ]
    special = UNCHECKED if not checked.any() else ROUNDED if not (checked & ~own).any() else ""
    return alarm(output, q, k, v, CallRules(n, n, 0, False, None, None)), special


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000, help="honest calls (10,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    given = parser.parse_args()
    draw = random.Random(given.seed)
    torch.manual_seed(given.seed)
    alarms = {name: [0, 0] for name in TYPES}
    found: dict[tuple[str, str], list[int]] = collections.defaultdict(lambda: [0, 0])
    unchecked = {name: [0, 0] for name in TYPES}
    cases = itertools.cycle(itertools.product(TYPES, SIZES, LENGTHS))
    with torch.no_grad():
        while sum(count for _, count in alarms.values()) < given.calls:
            name, size, n = next(cases)
            torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
            one = honest(draw, name, size, n)
            if one is not None:
                count(alarms[name], one[1])
                if one[1]:
                    print(f"false alarm: {name}, scores of {size:g}, {n} tokens, {one[0]}")
            for kind in HIDDEN if draw.random() < 0.04 else ():
                was = hidden(draw, name, size, n, kind)
                if was is not None and was[1] != ROUNDED:
                    count(unchecked[name] if was[1] else found[name, kind], was[0])
    torch.set_float32_matmul_precision("highest")
    for (name, kind), (hits, calls) in sorted(found.items()):
        if hits < calls:
            print(f"not all found: {name}, {kind}: {hits} of {calls}")
    rows = []
    for name, (bad, calls) in alarms.items():
        hits, hid = (sum(one) for one in zip(*(found[name, kind] for kind in HIDDEN), strict=True))
        rows.append({"dtype": name, "calls": calls, "false alarms": bad, "hidden": hid, "found": hits})
        rows[-1] |= dict(zip(("found in other rows", "in other rows"), unchecked[name], strict=True))
        print(rows[-1], flush=True)
    figures = [Figure(f"{row['dtype']}, false alarms", float(row["false alarms"]), "", wanted=0) for row in rows]
    figures += [Figure(f"{row['dtype']}, hidden steps missed", row["hidden"] - row["found"], "") for row in rows]
    return finish(given.json, figures, rows)


def count(counter: list[int], hit: bool) -> None:
    """Count one call, and whether it is a hit."""
    counter[0] += hit
    counter[1] += 1


if __name__ == "__main__":
    raise SystemExit(main())
