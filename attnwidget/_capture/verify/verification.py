"""Verify calls: compute some rows of a call's output again from q, k, v and the rules, and compare.

A model may do more than its arguments say: a sink, a gate, a mask inside its kernel. Its output shows it.
Where dropout has changed the output, it is that of the same attention without, or the weights that were left show it.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._rules.row_spans import Spans
from ..call.flex_attention import ScoreMod
from .directions import COARSE, RowsTogether, follow_a_change
from .noise import Precision, noise_of_weights, output_noise, score_errors, weight_changes

KEY_NUMBERS = 1 << 19  # of k, that a sample may need at most
ALL_CELLS = 1 << 15  # calls with at most so many cells are verified in all rows
LEAST_CELLS = 1 << 14  # of a larger call
SHARE_OF_CELLS = 0.005  # of larger calls
MOST_CELLS = 1 << 20
FEWEST_ROWS = 3
LARGEST_CHANGE = math.log(2)  # of a score, by the type that it is kept in: its weight is then twice what it was
ALL = slice(None)
KEPT_INDICES, LARGEST_INDEX = 64, 64  # how many indices are kept, of so many rows at most


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
    precision: Precision  # of the call
    dropout: float | None = None  # of weights: the share that was set to 0; None: this is a part of the output

    def reorder(self, order: Sequence[int]) -> None:
        """Follow samples that change places: sample b is now what sample `order[b]` was; others are dropped."""
        left = [i for i, sample in enumerate(self.samples) if sample in order]
        self.samples, self.output = [order.index(self.samples[i]) for i in left], self.output[left]


def sampled_rows(queries: int) -> list[int]:
    """Return the queries that are verified if each costs a call: the first, the middle and the last."""
    return sorted({0, queries // 2, queries - 1})


@functools.lru_cache(maxsize=256)
def drawn(samples: int, groups: int, share: int, queries: int, keys: int, size: int) -> tuple[list[int], ...]:
    """Return the samples, key heads and queries that are verified: all in a small call, else drawn at random.

    Calls of one shape have the same ones, so that layers are verified together.

    Args:
        samples, groups, queries, keys, size: B, G, Q, K, D.
        share: the number of query heads for one key head.
    """
    cells = samples * groups * share * queries * keys
    budget = cells if cells <= ALL_CELLS else min(MOST_CELLS, max(LEAST_CELLS, int(SHARE_OF_CELLS * cells)))
    fewest = min(queries, FEWEST_ROWS)
    pairs = max(2, min(KEY_NUMBERS // max(1, keys * size), budget // max(1, share * keys * fewest)))
    some = min(samples, max(2, pairs // groups))
    heads = min(groups, max(1, pairs // some))
    rows = min(queries, max(fewest, budget // max(1, some * heads * share * keys)))
    draw = random.Random(f"{samples} {groups} {share} {queries} {keys}")
    return (
        _evenly(draw, samples, some),
        _evenly(draw, groups, heads),
        _drawn(draw, queries, rows, {0, queries // 2, queries - 1}),
    )


def _evenly(draw: random.Random, count: int, most: int) -> list[int]:
    """Return at most so many numbers below `count` at even distances, which a view of a tensor can have."""
    if most >= count:
        return list(range(count))
    step = max(1, (count - 1) // max(1, most - 1))
    first = draw.randrange(count - step * (most - 1))
    return list(range(first, first + step * (most - 1) + 1, step))


def _drawn(draw: random.Random, count: int, most: int, always: set[int]) -> list[int]:
    """Return at most so many of the numbers below `count`, with those of `always` first."""
    if most >= count:
        return list(range(count))
    others = [one for one in draw.sample(range(count), min(count, most + len(always))) if one not in always]
    return sorted([*sorted(always), *others][: max(most, min(len(always), most))])


def sample_output(
    output: Any, q: Tensor, k: Tensor, v: Tensor, rows: Sequence[int] | None = None, *, copied: bool = True
) -> OutputSample | None:
    """Return a few rows of a call's output, to compare with softmax(q, k, v, rules).

    Args:
        output: (B, H, Q, Dv); or `RowsOfOutput`, or `DroppedWeights`.
        q: (B, H, Q, D).
        k: (B, G, K, D).
        v: (B, G, K, Dv).
        rows: which; None: `sampled_rows`.
        copied: whether they are copied, as of an output that is another's; False: a view does where there is one.

    Returns:
        None if the output is not of this shape.
    """
    (B, H, Q, D), Dv, (G, K) = q.shape, v.shape[-1], k.shape[1:3]
    if not Q or not B or not G:
        return None
    share, dropout, wanted = H // G, None, (B, H, Q, Dv)
    samples, groups, own = drawn(B, G, share, Q, K, D)
    rows = own if rows is None else list(rows)
    places = rows
    if isinstance(output, RowsOfOutput):
        rows = sampled_rows(Q)
        output, places, wanted = output.output, list(range(len(rows))), (B, H, len(rows), Dv)
    elif isinstance(output, DroppedWeights):
        output, dropout, wanted = output.weights, output.p, (B, H, Q, K)
    if not isinstance(output, Tensor) or output.shape != wanted:
        return None
    heads = [group * share + i for group in groups for i in range(share)]
    with torch.no_grad():
        found = _rows_of(output.detach(), samples, heads, places, copied=copied)
    return OutputSample(rows, samples, heads, found, Precision.of(output, q, v), dropout)


def _index(samples: list[int], heads: list[int], rows: list[int], device: torch.device) -> tuple[Tensor, ...]:
    """Return the index of these rows of these heads of these samples, which broadcasts to (samples, heads, rows)."""
    key = tuple(samples), tuple(heads), tuple(rows), device
    known = _indices.get(key)
    if known is None:
        with torch.inference_mode(False):  # for it is used again
            b, h, row = (torch.tensor(x, device=device) for x in (samples, heads, rows))
            known = b[:, None, None], h[:, None], row
        if type(row) is Tensor and len(rows) <= LARGEST_INDEX:  # and none of a mode that makes kinds of its own
            if len(_indices) >= KEPT_INDICES:
                _indices.clear()
            _indices[key] = known
    return known


_indices: dict[tuple[Any, ...], tuple[Tensor, Tensor, Tensor]] = {}  # layers ask for the same


def _rows_of(x: Tensor, samples: list[int], heads: list[int], rows: list[int], *, copied: bool) -> Tensor:
    """Return some rows of x (B, H, rows, size); if they need not be copied, a view of rows that follow one another."""
    if not copied and rows == list(range(rows[0], rows[-1] + 1)):
        return _select(x, samples, heads).narrow(2, rows[0], len(rows))
    return x[_index(samples, heads, rows, x.device)]


def _select(x: Tensor, samples: list[int], groups: list[int]) -> Tensor:
    """Return some samples and heads of x (B, G, K, size), without a copy where they are evenly spread."""
    return _spread(_spread(x, 0, samples), 1, groups)


def _spread(x: Tensor, axis: int, places: list[int]) -> Tensor:
    if places == list(range(x.shape[axis])):
        return x
    step = places[1] - places[0] if len(places) > 1 else 1
    evenly = range(places[0], places[-1] + 1, step) if step > 0 else range(0)
    if places != list(evenly):
        return x.index_select(axis, torch.tensor(places, device=x.device))
    return x[(slice(None),) * axis + (slice(evenly.start, evenly.stop, step),)]


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
    compared = rows_to_compare(sample, q, k, v, slice(rules.first, rules.first + rules.keys), first)
    return differ([compared], scale=scale, softcap=softcap, sinks=sinks, rules=rules)[0]


@dataclass(frozen=True)
class ComparedRows:
    """Some rows of a call's output, and what they are computed from again.

    Attributes:
        sample: of the call's output.
        queries: (samples, heads, rows, D).
        keys: (samples, key heads, K, D).
        values: (samples, key heads, K, Dv).
    """

    sample: OutputSample
    queries: Tensor
    keys: Tensor
    values: Tensor

    @property
    def kind(self) -> tuple[Any, ...]:
        """What those have in common that can be computed together."""
        one = self.sample
        tensors = ((x.shape, x.dtype, x.device) for x in (self.queries, self.keys, self.values, one.output))
        return *tensors, tuple(one.rows), tuple(one.samples), tuple(one.heads), one.precision, one.dropout


def rows_to_compare(
    sample: OutputSample, q: Tensor, k: Tensor, v: Tensor, keys: slice = ALL, first: int = 0, *, copied: bool = True
) -> ComparedRows:
    """Return the rows of a sample with their queries, and the keys and values, which are views where they can be.

    Args:
        sample: of a call's output.
        q, k, v: as `differs` takes them.
        keys: those of the call, among all.
        first: the query of the record at which the call begins.
        copied: whether the queries are copied, as of a q that is the model's; False: a view does where there is one.
    """
    share = q.shape[1] // k.shape[1]
    groups = [head // share for head in sample.heads[::share]]
    near, values = (_select(x, sample.samples, groups) for x in (k, v))
    if (keys.start or 0, keys.stop) not in ((0, None), (0, k.shape[2])):
        near, values = near[:, :, keys], values[:, :, keys]
    rows = [row + first for row in sample.rows] if first else sample.rows
    return ComparedRows(sample, _rows_of(q, sample.samples, sample.heads, rows, copied=copied), near, values)


def differ(calls: Sequence[ComparedRows], **how: Any) -> Tensor:
    """Return whether the output of each call differs beyond rounding, (calls,) bool: see `rows_that_differ`."""
    return rows_that_differ(calls, **how).reshape(len(calls), -1).any(1)


def rows_that_differ(
    calls: Sequence[ComparedRows],
    *,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None = None,
    rules: Any,
    rounded: Tensor | float = 0.0,
) -> Tensor:
    """Compare the outputs of calls, of one `kind` and with the same rules, as `differs` does that of one.

    Args:
        calls: rows of their outputs, and what they are computed from.
        scale, softcap, sinks, rules: as `differs` takes them.
        rounded: further rounding of the outputs; broadcasts to (samples, key heads, rows, Dv).

    Returns:
        Which rows differ beyond rounding, (calls · samples, heads, rows) bool.
    """
    one, n = calls[0], len(calls)
    device, wide, precision = one.queries.device, torch.float64, one.sample.precision
    (S, heads, Q, D), (groups, K) = one.queries.shape, one.keys.shape[1:3]
    share, factor = heads // groups, D**-0.5 if scale is None else scale
    scores = torch.empty(n, S, groups, share * Q, K, dtype=wide, device=device)
    spread = torch.empty_like(scores, dtype=torch.float32)  # of errors a few digits are enough
    for call, of_scores, of_spread in zip(calls, scores, spread, strict=True):
        queries, keys = call.queries.unflatten(1, (groups, share)).flatten(2, 3), call.keys.mT
        torch.matmul(queries.to(wide), keys.to(wide), out=of_scores)
        torch.matmul(queries.float() ** 2, keys.float() ** 2, out=of_spread)
    scores, spread = (x.unflatten(3, (share, Q)).flatten(2, 3).flatten(0, 1) for x in (scores, spread))
    overflows = (scores.abs() > torch.finfo(torch.float16).max).any(-1) & (one.queries.dtype is torch.float16)
    scaled, spread = scores.mul_(factor), spread.sqrt_().mul_(abs(factor))  # (n * S, heads, Q, K)
    scores = scaled if softcap is None else softcap * (scaled / softcap).tanh()
    index = _index(one.sample.samples * n, one.sample.heads, one.sample.rows, device)
    indices = (*(x[..., None] for x in index), torch.arange(K, device=device))
    for rule in (rules.bias, rules.mask):
        scores = _apply(rule, scores, indices)
    if rules.is_causal:
        scores = scores.masked_fill(indices[3] > indices[2], -torch.inf)
    filled = scores.amax(-1) > torch.finfo(torch.promote_types(one.queries.dtype, torch.float32)).min / 2
    errors = score_errors(precision, scaled, scores, spread, D)
    if sinks is not None:
        column = sinks.to(device, wide)[index[1]][..., None]  # (heads, 1, 1)
        scores = torch.cat([scores, column.expand(*scores.shape[:-1], 1)], -1)
    weights = scores.softmax(-1).nan_to_num_()[..., :K]
    changes = weight_changes(weights, errors)
    expected = torch.cat([x.sample.output for x in calls]).to(device, wide)
    if one.sample.dropout is not None:
        difference = (expected * (1 - one.sample.dropout) - weights).masked_fill_(expected == 0, 0)
        found = (difference.abs_() > noise_of_weights(precision, weights, changes)).any(-1)
    else:
        found = torch.empty(n, S, heads, Q, dtype=torch.bool, device=device)

        def of_calls(x: Tensor) -> Tensor:
            return x.unflatten(0, (n, S)).unflatten(2, (groups, share)).flatten(3, 4)  # (n, S, groups, share * Q, …)

        each = (of_calls(x) for x in (weights, changes, expected, scaled, scores[..., :K], errors, filled[..., None]))
        distance = (indices[2] - indices[3]).abs().float().repeat(share, 1)
        for call, own, moved, theirs, plain, ruled, wrong, known, differs in zip(calls, *each, found, strict=True):
            values = call.values.float()
            again = own @ call.values.to(wide)  # (S, groups, share * Q, Dv)
            noise = output_noise(precision, own.float(), moved.float(), values, again.float())
            apart = theirs - again
            is_other = (apart.abs() > noise + rounded).any(-1) | (theirs.isnan() & ~again.isnan()).any(-1)
            differs.copy_(is_other.unflatten(2, (share, Q)).flatten(1, 2))
            if precision.kept < COARSE or isinstance(rounded, Tensor):
                continue
            rows = RowsTogether(
                precision=precision,
                dtype=call.queries.dtype,
                queries=call.queries.unflatten(1, (groups, share)).flatten(2, 3).float(),
                keys=call.keys.float(),
                values=values,
                scaled=plain.float(),
                scores=ruled.float(),
                errors=wrong.float(),
                weights=own.float(),
                output=again.float(),
                residual=(apart * known).nan_to_num(0, 0, 0).float(),
                noise=noise,
                distance=distance,
                factor=factor,
            )
            differs.logical_or_(follow_a_change(rows))
    lost = overflows & ~expected.isfinite().all(-1)  # the model's own weights are NaN there: `Attention.check` names it
    return found.view_as(lost) & filled & ~lost


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
