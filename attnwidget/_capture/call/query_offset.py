"""Where a self-attention's queries are among its keys, if there are more keys: after cached keys, or before others.

A cache, a memory or a prefix comes first, so the queries are the last keys. `nn.MultiheadAttention` adds a learned key
and a key of zeros after those of its text; other models add summaries. The cache, the module, or a causal mask shows
which it is; otherwise the places are unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import nn

from ...attention import Attention
from .observed_call import ObservedCall

ROWS = 64  # the most queries whose allowed keys are looked at


def keys_after(module: nn.Module | None) -> int:
    """Return the number of keys that a module adds after those of its input positions."""
    if not isinstance(module, nn.MultiheadAttention):
        return 0
    return (module.bias_k is not None) + bool(module.add_zero_attn)


def keys_before(call: ObservedCall, mask: Any) -> int | None:
    """Return the number of keys before the first query's own key; None if unknown.

    Args:
        call: with more keys than queries.
        mask: of the call, as it is kept.
    """
    (_, _, Q, _), K = call.q.shape, call.k.shape[2]
    more = K - Q
    if call.weights is not None:
        return None
    if call.after:
        return max(0, more - call.after)
    if Q == 1 or (call.grown is not None and call.grown.length == K):
        return more
    rows = torch.linspace(0, Q - 1, min(Q, ROWS), dtype=torch.float64, device="cpu").round().long().unique()
    how: dict[str, Any] = {"is_causal": call.is_causal, "bias": call.bias}
    later = torch.arange(K, device="cpu")[None] - rows[:, None]  # than the query, if the queries come first
    may_be_last = may_be_first = True
    with torch._C.DisableTorchFunction():
        att = Attention(call.q, call.k, mask=mask, **how)
        for batch, head in _with_rules_of_their_own(att):
            allowed = att.block("allowed", batch=batch, head=head, queries=rows).cpu().bool()
            may_be_last = may_be_last and not bool((allowed & (later > more)).any())
            may_be_first = may_be_first and not bool((allowed & (later > 0))[:, :Q].any())
            if not may_be_last and not may_be_first:
                return None
    return more if may_be_last else 0


def _with_rules_of_their_own(att: Attention) -> Iterator[tuple[int, int]]:
    """Iterate over samples and heads, without those known to have the same allowed cells as an earlier one."""
    rules = att.rules
    same = not rules.by_score and all(rule.shared for rule in rules.rules)
    return product(range(1 if same else att.shape.B), range(1 if rules.same_for_heads else att.shape.H))
