"""The rules of calls: masks and biases of a record's queries, separated and joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..._rules.row_spans import Spans, as_spans, merge_equal_ends
from ..._utils.validation import FLOATS
from .lineage import ENDED
from .rule_slices import QUERIES, part_of_rule

KeptMask = Spans | Tensor | Callable[..., Any] | None
MASK_CELLS_AT_ONCE = 1 << 22  # of a mask function


@dataclass
class CallRules:
    """The rules of one call, for its queries in a record."""

    queries: int
    keys: int  # of the call
    first: int  # its first key among all keys of the record
    is_causal: bool
    mask: KeptMask
    bias: Any


def rules_of_rows(rules: CallRules, rows: list[int], device: torch.device) -> CallRules:
    """Return the rules of some rows of a call's batch; a sample that has ended is fully masked."""
    index = torch.tensor(rows, device="cpu").clamp(min=0)

    def taken(x: Any) -> Any:
        if isinstance(x, Spans):
            return Spans(taken(x.starts), taken(x.stops))
        return x[index.to(x.device)] if isinstance(x, Tensor) and x.shape[0] > 1 else x

    if callable(rules.mask) and not isinstance(rules.mask, Spans):
        rules = replace(rules, mask=allowed_by_mask(rules, device), is_causal=False)
    found = replace(rules, mask=taken(rules.mask), bias=taken(rules.bias))
    if ENDED not in rows:
        return found
    there = (torch.tensor(rows, device=device) != ENDED)[:, None, None]
    allowed = allowed_by_mask(found, device)
    mask: KeptMask = allowed
    if isinstance(allowed, Spans):
        mask = Spans(*(ends * there for ends in (allowed.starts, allowed.stops)))
    elif isinstance(allowed, Tensor):
        mask = allowed & there[..., None]
    return replace(found, is_causal=False, mask=mask, bias=added_numbers(found))


def shorten_rules(rules: CallRules, queries: int, keys: int) -> CallRules:
    """Return the rules of the first queries and keys."""

    def first(x: Any) -> Any:
        if isinstance(x, Spans):
            return Spans(*(ends[:, :, :queries].clamp(max=keys) for ends in (x.starts, x.stops)))
        return x[:, :, :queries, :keys] if isinstance(x, Tensor) else x

    return CallRules(queries, keys, rules.first, rules.is_causal, first(rules.mask), first(rules.bias))


def rules_of_queries(rules: CallRules, rows: Sequence[int], device: torch.device) -> CallRules:
    """Return the rules of some queries of a call."""
    mask: Any = rules.mask
    bias = rules.bias
    if rules.is_causal:
        own = replace(rules, mask=mask if isinstance(mask, Spans) else None)
        causal: Any = allowed_by_mask(own, device)
        bias = added_numbers(rules)
        is_bool = isinstance(mask, Tensor) and mask.dtype is torch.bool
        mask = evaluate_mask(causal, rules, device) & mask if is_bool else causal
    mask, bias = (part_of_rule(rule, QUERIES, rows) for rule in (mask, bias))
    return CallRules(len(rows), rules.keys, rules.first, False, mask, bias)


def join(calls: Sequence[CallRules], keys: int, device: torch.device) -> CallRules:
    """Concatenate the rules of several calls along the query axis."""
    if any(callable(rules.bias) for rules in calls):
        raise ValueError(
            "several calls have a score_mod each, and one map can have only one: capture the whole text in one forward "
            "pass, without a cache"
        )
    if all(rules.mask is None and rules.bias is None and not rules.is_causal for rules in calls):
        return _join_plain(calls, keys, device)
    allowed = [allowed_by_mask(rules, device) for rules in calls]
    added = [added_numbers(rules) for rules in calls]
    bias = stack_cells(calls, added, keys, 0.0, device) if any(x is not None for x in added) else None
    spans = [shifted(rules, x) for rules, x in zip(calls, allowed, strict=True) if isinstance(x, Spans)]
    sizes = [rules.queries for rules in calls]
    mask: KeptMask
    if len(spans) == len(calls):
        B, H = (max(x.starts.shape[axis] for x in spans) for axis in (0, 1))
        starts, stops = (
            torch.cat([ends.expand(B, H, n) for ends, n in zip(all_ends, sizes, strict=True)], 2)
            for all_ends in zip(*((x.starts, x.stops) for x in spans), strict=True)
        )
        mask = merge_equal_ends(starts, stops)
    else:
        cells = [
            evaluate_mask(x, rules) if isinstance(x, Spans) else x for rules, x in zip(calls, allowed, strict=True)
        ]
        mask = stack_cells(calls, cells, keys, False, device)
    return CallRules(sum(sizes), keys, 0, False, mask, bias)


def _join_plain(calls: Sequence[CallRules], keys: int, device: torch.device) -> CallRules:
    """Concatenate the rules of calls in which every query may attend to every key."""
    ends = torch.tensor([(rules.first, rules.first + rules.keys) for rules in calls], dtype=torch.int32, device="cpu")
    sizes = torch.tensor([rules.queries for rules in calls], device="cpu")
    starts, stops = ends.repeat_interleave(sizes, 0).T.to(device)[:, None, None]
    return CallRules(int(sizes.sum()), keys, 0, False, merge_equal_ends(starts, stops), None)


def allowed_by_mask(rules: CallRules, device: torch.device) -> Spans | Tensor:
    """Return which cells of a call are allowed, by its masks.

    Returns:
        Spans of the call's own keys, or a bool tensor (B or 1, H or 1, queries, keys).
    """
    if isinstance(rules.mask, Tensor) and rules.mask.dtype is torch.bool:
        return rules.mask
    mask = rules.mask if isinstance(rules.mask, Spans) else None
    if callable(rules.mask) and not isinstance(rules.mask, Spans):
        cells = evaluate_mask(rules.mask, rules, device)
        mask = as_spans(cells)
        if mask is None:
            return cells
    zero = torch.zeros(1, 1, 1, dtype=torch.int32, device=device)
    starts, stops = (zero, zero + rules.keys) if mask is None else (mask.starts, mask.stops)
    if rules.is_causal:
        stops = torch.minimum(stops, torch.arange(1, rules.queries + 1, dtype=torch.int32, device=device))
        starts = starts.expand_as(stops)
    return Spans(starts, stops)


def added_numbers(rules: CallRules) -> Tensor | None:
    """Return the bias of a call, (B or 1, H or 1, queries or 1, keys), or None."""
    mask = rules.mask if isinstance(rules.mask, Tensor) and rules.mask.dtype in FLOATS else None
    if mask is None or rules.bias is None:
        return rules.bias if mask is None else mask
    return rules.bias + mask


def shifted(rules: CallRules, spans: Spans) -> Spans:
    """Return spans of a call's keys as spans of all keys; a fully masked row stays 0, 0."""
    filled = (spans.stops > spans.starts).int()
    return Spans((spans.starts + rules.first) * filled, (spans.stops + rules.first) * filled)


def evaluate_mask(mask: Callable[..., Tensor], rules: CallRules, device: torch.device | None = None) -> Tensor:
    """Return a mask function of all cells of a call, (B or 1, H or 1, queries, keys)."""
    if isinstance(mask, Spans):
        (B, H, _), device = mask.starts.shape, mask.starts.device
    else:
        B, H = getattr(mask, "sizes", (1, 1))
    b, h, keys = (torch.arange(n, device=device) for n in (B, H, rules.keys))
    rows = torch.arange(rules.queries, device=device).split(max(1, MASK_CELLS_AT_ONCE // (B * H * rules.keys)))
    b, h = b[:, None, None, None], h[:, None, None]
    blocks = [mask(b, h, q_idx[:, None], keys).expand(B, H, len(q_idx), rules.keys) for q_idx in rows]
    return torch.cat(blocks, 2)


def stack_cells(
    calls: Sequence[CallRules], cells: Sequence[Tensor | None], keys: int, fill: float | bool, device: torch.device
) -> Tensor:
    """Write the cells of several calls into one tensor.

    Args:
        calls: in the order of queries.
        cells: of each call, (B or 1, H or 1, queries or 1, keys), or None.
        keys: the number of all keys.
        fill: the value where a call has no cells.
        device: of the result.

    Returns:
        (B, H, Q, K), with Q the queries of all calls.
    """
    given = [x for x in cells if x is not None]
    B, H = (max(x.shape[axis] for x in given) for axis in (0, 1))
    queries = sum(rules.queries for rules in calls)
    stacked = torch.full((B, H, queries, keys), fill, dtype=given[0].dtype, device=device)
    row = 0
    for rules, x in zip(calls, cells, strict=True):
        if x is not None:
            stacked[:, :, row : row + rules.queries, rules.first : rules.first + rules.keys] = x
        row += rules.queries
    return stacked
