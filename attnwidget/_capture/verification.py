"""Verify calls: compute some rows of a call's output again from q, k, v and the rules, and compare.

A model may do more than its arguments say: a sink, a gate, a mask that its kernel makes by itself. Its output shows it.
Where dropout has changed the output, it is that of the same attention without, or the weights that were left show it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._rules.row_spans import Spans
from .._utils.validation import FLOATS
from .flex_attention import ScoreMod

SOME_KEYS = 32  # whose values say how large values are: more matter only if their weight, and so the output, is large
KEY_NUMBERS = 1 << 19  # of k, that a sample may need at most
ROUNDING = {torch.float64: 1e-7, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
LARGEST_CHANGE = math.log(2)  # of a score, by the type that it is kept in: its weight is then twice what it was
COARSE_ROUNDING = 8e-3  # of products that torch may compute in a shorter type than that of their factors


@dataclass(frozen=True)
class DroppedWeights:
    """A call's weights after dropout: some are 0, the others 1 / (1 − p) times what they were."""

    weights: Tensor  # (B, H, Q, K)
    p: float


@dataclass(frozen=True)
class RowsOfOutput:
    """The rows of a call's output that are sampled, (B, H, rows, Dv): see `sampled_rows`."""

    output: Tensor


@dataclass
class OutputSample:
    """Some rows of a call's output, or of its weights."""

    rows: list[int]  # among the call's queries
    samples: list[int]
    heads: list[int]
    output: Tensor  # (samples, heads, rows, Dv), or K in place of Dv
    rounding: float  # relative error of numbers of the types in which it was computed
    dropout: float | None = None  # of weights: the share that was set to 0; None: this is a part of the output

    def reorder(self, order: Sequence[int]) -> None:
        """Follow samples that change places: sample b is now what sample `order[b]` was; others are dropped."""
        left = [i for i, sample in enumerate(self.samples) if sample in order]
        self.samples, self.output = [order.index(self.samples[i]) for i in left], self.output[left]


def sampled_rows(queries: int) -> list[int]:
    """Return which of so many queries are verified."""
    return sorted({0, queries // 2, queries - 1})


def sample_output(
    output: Any, q: Tensor, k: Tensor, v: Tensor, rows: Sequence[int] | None = None
) -> OutputSample | None:
    """Return a few rows of a call's output, to be compared with what q, k, v and its rules come to.

    Args:
        output: (B, H, Q, Dv); or `RowsOfOutput`, or `DroppedWeights`.
        q: (B, H, Q, D).
        k: (B, G, K, D).
        v: (B, G, K, Dv).
        rows: which; None: `sampled_rows`.

    Returns:
        None if the output is not of this shape.
    """
    (B, H, Q, _), Dv, K = q.shape, v.shape[-1], k.shape[2]
    rows, samples, dropout = sampled_rows(Q) if rows is None else list(rows), sorted({0, B - 1}), None
    places, wanted = rows, (B, H, Q, Dv)
    if isinstance(output, RowsOfOutput):
        output, places, wanted = output.output, list(range(len(rows))), (B, H, len(rows), Dv)
    elif isinstance(output, DroppedWeights):
        output, dropout, wanted = output.weights, output.p, (B, H, Q, K)
    if not isinstance(output, Tensor) or output.shape != wanted or not Q:
        return None
    share = H // k.shape[1]
    groups = _evenly(k.shape[1], max(1, KEY_NUMBERS // max(1, 2 * k.shape[2] * k.shape[3])))
    heads = [group * share + i for group in groups for i in range(share)]
    with torch.no_grad():
        found = output.detach()[_index(samples, heads, places, output.device)]
    return OutputSample(rows, samples, heads, found, rounding_of(output, q, v), dropout)


def rounding_of(*tensors: Tensor) -> float:
    """Return the relative error of numbers that are computed in the types of some tensors, the first their result."""
    rounding = max(ROUNDING[x.dtype] for x in tensors if x.dtype in FLOATS)
    is_plain = torch.get_float32_matmul_precision() == "highest" and tensors[0].device.type == "cpu"
    return rounding if is_plain else max(rounding, COARSE_ROUNDING)


def _index(samples: list[int], heads: list[int], rows: list[int], device: torch.device) -> tuple[Tensor, ...]:
    """Return the index of these rows of these heads of these samples, which broadcasts to (samples, heads, rows)."""
    b, h, row = (torch.tensor(x, device=device) for x in (samples, heads, rows))
    return b[:, None, None], h[:, None], row


def _select(x: Tensor, samples: list[int], groups: list[int]) -> Tensor:
    """Return some samples and heads of x (B, G, K, size), without a copy where they are evenly spread."""
    return _spread(_spread(x, 0, samples), 1, groups)


def _spread(x: Tensor, axis: int, places: list[int]) -> Tensor:
    step = places[1] - places[0] if len(places) > 1 else 1
    evenly = range(places[0], places[-1] + 1, step) if step > 0 else range(0)
    if places != list(evenly):
        return x.index_select(axis, torch.tensor(places, device=x.device))
    return x[(slice(None),) * axis + (slice(evenly.start, evenly.stop, step),)]


def _evenly(count: int, most: int) -> list[int]:
    """Return at most so many of the numbers below `count`, evenly spread."""
    step = -(-count // most)
    return list(range(0, count, step))


def differs(
    sample: OutputSample,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None = None,
    rules: Any,
    first: int,
) -> Tensor:
    """Compare a call's output with softmax(scale · q kᵀ under its rules) · v.

    Args:
        sample: of the call's output.
        q: of the call, or of a record that holds it, (B, H, Q, D).
        k: the same, (B, G, K, D).
        v: the same, (B, G, K, Dv).
        scale: of the scores; None: 1/√D.
        softcap: of the scaled scores, or None.
        sinks: (H,) logits of one more column that has no value, or None.
        rules: of the call, `call_rules.CallRules`.
        first: the query of the record at which the call begins.

    Returns:
        Whether they differ beyond rounding, a tensor () which nobody has to wait for yet.
    """
    device, wide = q.device, torch.promote_types(q.dtype, torch.float32)
    index = _index(sample.samples, sample.heads, sample.rows, device)
    samples, heads, rows = index
    share = q.shape[1] // k.shape[1]
    keys = slice(rules.first, rules.first + rules.keys)
    queries = q[samples, heads, rows + first if first else rows].to(wide)
    groups = [head // share for head in sample.heads[::share]]
    near, values = (_select(x, sample.samples, groups)[:, :, keys].to(wide) for x in (k, v))
    n, Q = len(groups), len(sample.rows)
    scores = (queries.unflatten(1, (n, share)).flatten(2, 3) @ near.mT).unflatten(2, (share, Q)).flatten(1, 2)
    scores *= q.shape[-1] ** -0.5 if scale is None else scale
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    size = scores.abs().max()
    indices = (*(x[..., None] for x in index), torch.arange(rules.keys, device=device))
    for rule in (rules.bias, rules.mask):
        scores = _apply(rule, scores, indices)
    if rules.is_causal:
        scores = scores.masked_fill(indices[3] > indices[2], -torch.inf)
    filled = (scores > torch.finfo(wide).min / 2).any(-1)
    if sinks is not None:
        column = sinks.to(device, wide)[heads][..., None]  # (heads, 1, 1)
        scores = torch.cat([scores, column.expand(*scores.shape[:-1], 1)], -1)
    weights = scores.softmax(-1).nan_to_num()[..., : near.shape[2]]
    expected = sample.output.to(device, wide)
    if sample.dropout is not None:
        difference = (expected * (1 - sample.dropout) - weights).masked_fill(expected == 0, 0)
        largest = weights.amax(-1)
    else:
        again = (weights.unflatten(1, (n, share)).flatten(2, 3) @ values).unflatten(2, (share, Q)).flatten(1, 2)
        some = values[:, :, :: max(1, rules.keys // SOME_KEYS)]
        difference, largest = again - expected, torch.maximum(again.abs().max(), some.abs().max())
    bound = 4 * sample.rounding * (4 + size) * largest
    found: Tensor = ((difference.abs().amax(-1) > bound) & filled).any()
    return found


def _apply(rule: Any, scores: Tensor, indices: Sequence[Tensor]) -> Tensor:
    """Return scores (samples, heads, rows, K) under a mask or a bias, a tensor or a function."""
    if rule is None:
        return scores
    if isinstance(rule, Spans):
        rule = Spans(rule.starts.to(scores.device), rule.stops.to(scores.device))
    if not isinstance(rule, Tensor):
        return rule(scores, *indices) if isinstance(rule, ScoreMod) else scores.masked_fill(~rule(*indices), -torch.inf)
    own = tuple(i * (n > 1) for i, n in zip(indices, rule.shape, strict=True))  # of axes that broadcast, 0
    cells = rule.to(scores.device)[own]
    return scores.masked_fill(~cells, -torch.inf) if cells.dtype is torch.bool else scores + cells


def is_changed_by_rounding(q: Tensor, k: Tensor, scale: float | None, kept: torch.dtype) -> bool:
    """Return whether weights of q and k, kept in a shorter type, are twice or half of what they are, or worse.

    Some rows of scores are computed from q and k as they are and as they are kept.

    Args:
        q: of a call, (B, H, Q, D).
        k: of the same call, (B, G, K, D).
        scale: of the scores; None: 1/√D.
        kept: the type that they are kept in.
    """
    own, shorter = torch.finfo(q.dtype), torch.finfo(kept)
    if (shorter.eps <= own.eps and shorter.max >= own.max) or not q.numel() or not k.numel():
        return False
    rows = sorted({0, q.shape[2] // 2, q.shape[2] - 1})
    near = q[:, :, rows].unflatten(1, (k.shape[1], -1)).flatten(2, 3)
    scores, rounded = ((x @ y.mT).double() for x, y in ((near, k), (near.to(kept).to(q.dtype), k.to(kept).to(k.dtype))))
    change = (rounded - scores).abs().max() * (q.shape[-1] ** -0.5 if scale is None else abs(scale))
    return bool(scores.isfinite().all()) and not bool(change <= LARGEST_CHANGE)
