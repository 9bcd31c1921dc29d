"""Whether what was recorded of a call is all of it: some rows of its output, computed again from q, k, v and the rules.

A model may do more than its arguments tell: a sink, a gate, a mask that its kernel makes by itself. Its output shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._utils.validation import FLOATS
from .flex_attention import ScoreMod

AT_ONCE = 1 << 23  # numbers of k that are looked at
ROUNDED = {torch.float64: 1e-7, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
COARSE = 8e-3  # of products that torch may compute in a shorter type than that of their factors


@dataclass
class OutputSample:
    """Some rows of what a call gave."""

    rows: list[int]  # among its queries
    samples: list[int]
    heads: list[int]
    output: Tensor  # (samples, heads, rows, Dv)
    rounded: float  # how far apart two that compute the same may be, beside 1

    def reorder(self, order: Sequence[int]) -> None:
        """The samples have changed places: each is now what `order` says; those that are gone are not asked."""
        there = [i for i, sample in enumerate(self.samples) if sample in order]
        self.samples, self.output = [order.index(self.samples[i]) for i in there], self.output[there]


def witness_of(output: Any, q: Tensor, k: Tensor, v: Tensor, kept: torch.dtype | None = None) -> OutputSample | None:
    """Of a call with output (B, H, Q, Dv) a few rows, to be compared later; None if it is not of this shape."""
    (B, H, Q, _), Dv = q.shape, v.shape[-1]
    if not isinstance(output, Tensor) or output.shape != (B, H, Q, Dv) or not Q:
        return None
    share = H // k.shape[1]
    groups = _spread(k.shape[1], max(1, AT_ONCE // max(1, 2 * k.shape[2] * k.shape[3])))
    heads = [group * share + i for group in groups for i in range(share)]
    rows, samples = sorted({0, Q // 2, Q - 1}), sorted({0, B - 1})
    with torch.no_grad():
        found = output.detach()[_at(samples, heads, rows, output.device)]
    types = [x for x in (output.dtype, q.dtype, v.dtype, kept) if x in FLOATS]
    rounded = max(ROUNDED[x] for x in types if x is not None)
    plain = torch.get_float32_matmul_precision() == "highest" and output.device.type == "cpu"
    return OutputSample(rows, samples, heads, found, rounded if plain else max(rounded, COARSE))


def _at(samples: list[int], heads: list[int], rows: list[int], device: torch.device) -> tuple[Tensor, ...]:
    """The index of these rows of these heads of these samples, (samples, heads, rows)."""
    b, h, row = (torch.tensor(x, device=device) for x in (samples, heads, rows))
    return b[:, None, None], h[:, None], row


def _part(x: Tensor, samples: list[int], groups: list[int]) -> Tensor:
    """Some samples and heads; no copy where that is all."""
    x = x if len(samples) == x.shape[0] and samples == sorted(samples) else x[samples]
    return x if len(groups) == x.shape[1] else x[:, groups]


def _spread(count: int, most: int) -> list[int]:
    """At most so many of the numbers up to `count`, evenly."""
    step = -(-count // most)
    return list(range(0, count, step))


def differs(
    witness: OutputSample,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None,
    softcap: float | None,
    part: Any,
    first: int,
) -> bool:
    """Whether a call's output is not that of softmax(scale · q kᵀ under its rules) · v.

    q (B, H, Q, D), k (B, G, K, D) and v (B, G, K, Dv) are those of a record, in which the call's queries begin at
    `first`; `part` has its rules.
    """
    device, wide = q.device, torch.promote_types(q.dtype, torch.float32)
    samples, heads, rows = (torch.tensor(x, device=device) for x in (witness.samples, witness.heads, witness.rows))
    share = q.shape[1] // k.shape[1]
    keys = slice(part.first, part.first + part.keys)
    queries = q[_at(witness.samples, witness.heads, [row + first for row in witness.rows], device)].to(wide)
    groups = [head // share for head in witness.heads[::share]]
    near, values = (_part(x, witness.samples, groups)[:, :, keys].to(wide) for x in (k, v))
    n, Q = len(groups), len(rows)
    scores = (queries.unflatten(1, (n, share)).flatten(2, 3) @ near.mT).unflatten(2, (share, Q)).flatten(1, 2)
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    size = float(scores.abs().max())
    at = (samples[:, None, None, None], heads[:, None, None], rows[:, None], torch.arange(part.keys, device=device))
    for rule in (part.bias, part.mask):
        scores = _under(rule, scores, at)
    if part.is_causal:
        scores = scores.masked_fill(at[3] > at[2], -torch.inf)
    there = (scores > torch.finfo(wide).min / 2).any(-1)
    weights = scores.softmax(-1).nan_to_num()
    again = (weights.unflatten(1, (n, share)).flatten(2, 3) @ values).unflatten(2, (share, Q)).flatten(1, 2)
    apart = (again - witness.output.to(device, wide)).abs().amax(-1)[there]
    if not apart.numel():
        return False
    largest = float(values.abs().max())
    return bool(apart.max() > 4 * witness.rounded * (4 + size) * largest)


def _under(rule: Any, scores: Tensor, at: Sequence[Tensor]) -> Tensor:
    """Scores (samples, heads, rows, K) under a mask or a bias, a tensor or a function."""
    if rule is None:
        return scores
    if not isinstance(rule, Tensor):
        return rule(scores, *at) if isinstance(rule, ScoreMod) else scores.masked_fill(~rule(*at), -torch.inf)
    places = tuple(i * (n > 1) for i, n in zip(at, rule.shape, strict=True))
    cells = rule.to(scores.device)[places]
    return scores.masked_fill(~cells, -torch.inf) if cells.dtype is torch.bool else scores + cells
