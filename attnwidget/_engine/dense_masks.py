"""Compute whole rows, (queries, keys), for a dense mask or bias, which is stored row by row.

Elsewhere blocks are (keys, queries), so a dense mask would have to be transposed for each block. On a CPU that takes
longer than the product.
"""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from .._rules.rules import Bias, Keep, cut
from .._utils.indexing import take
from .base import AttentionBase, Head
from .matmul import LOG2_E, Product, Scratch
from .softmax import is_finite
from .sources import CARRIED
from .stages import KEYS, NORMALIZED, QUERIES, new

PRODUCT_CELLS = 1 << 19  # in one product
MAX_CELLS_AT_ONCE = 1 << 22  # in one group of rows: with 16,384 keys, smaller groups take twice as long
MAX_KEYS = 1 << 15  # too few longer rows would fit into a group


def serves(head: Head, queries: range, stage: str) -> bool:
    """Return whether there is a dense mask or bias, and nothing that needs (keys, queries)."""
    att = head.att
    if stage not in NORMALIZED or stage in CARRIED or not att.scores_are_products or att.shape.K > MAX_KEYS:
        return False
    tensors = [x for rule in att.rules.rules if isinstance(rule, Keep | Bias) for x in rule.tensors().values()]
    return any(min(x.shape[2:]) > 1 for x in tensors) and is_finite(head, queries)


def rows_at_once(att: AttentionBase, query_bin: int) -> int:
    """Return how many queries to compute at once; whole bins if possible."""
    return min(max(MAX_CELLS_AT_ONCE // max(1, att.shape.K), query_bin), QUERIES)


def filled(head: Head, queries: range, *, small: bool) -> Tensor:
    """Compute the masked scores of some queries over all keys.

    Args:
        head: which head.
        queries: which queries.
        small: whether to return their exp, for scores so small that exp needs no maximum subtracted.

    Returns:
        (queries, keys), in blocked cells −∞, or 0 for exp.
    """
    att, q, k, blocked = head.att, head.q, head.k, 0.0 if small else -inf
    assert q is not None
    assert k is not None
    wide = att.result_dtype
    rows = take(q, queries, 0).to(wide) * (att.scale * LOG2_E if small else att.scale)  # (queries, D)
    found = new(att, len(queries), len(k))
    row = head.block(queries)
    span, biases = att.rules.span(row), [bias for bias in att.rules.biases if isinstance(bias, Bias)]  # at most one
    found[:, : span.start] = found[:, span.stop :] = blocked
    limit = max(KEYS, PRODUCT_CELLS // len(queries))
    factors, product = (Scratch(len(queries) * limit, wide, att.device) for _ in range(2))
    for keys in att.rules.pieces(row, 1, limit):
        part, cells = found[:, keys.start : keys.stop], row._replace(keys=keys)
        allowed = att.rules.allowed(cells)
        if allowed is False:
            part.fill_(blocked)
            continue
        S = Product(take(k, keys, 0).to(wide)).of(rows, product)  # (queries, keys)
        if small:
            S.exp2_()
        if small and isinstance(allowed, Tensor):
            torch.mul(S, ones_and_zeros(allowed, factors.cut(*allowed.shape)), out=part)
        elif biases:
            torch.add(S, cut(biases[0].added, cells), out=part)
        else:
            part.copy_(S)
        if not small and isinstance(allowed, Tensor):
            block_out(part, allowed)
        del S  # so that the next block reuses its memory
    return found


def ones_and_zeros(allowed: Tensor, out: Tensor) -> Tensor:
    """Write 1 for allowed cells and 0 for others: multiplying by it is ten times faster than masking."""
    return out.copy_(allowed.view(torch.uint8))  # copying from bool takes five times as long


def block_out(x: Tensor, allowed: Tensor) -> None:
    """Write −∞ into blocked cells, in place, by bit operations."""
    integer = torch.int32 if x.element_size() == 4 else torch.int64
    keep = allowed.to(integer).neg_()  # all bits or none
    bits = x.view(integer)
    bits &= keep
    bits |= keep.bitwise_not_().bitwise_and_(torch.tensor(-inf, dtype=x.dtype, device="cpu").view(integer).item())
