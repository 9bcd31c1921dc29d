"""Whole rows at once, for a mask or bias that is there cell by cell: it lies row by row, and so do the scores here.

Elsewhere a block lies (keys, queries), and such a mask would have to be turned round for each: on a CPU that takes
longer than the product.
"""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from .._rules.rules import Bias, Keep, cut
from .._utils.indexing import Block, take
from .base import AttentionBase
from .matmul import LOG2_E, Product, Scratch
from .softmax import is_finite
from .stages import KEYS, NORMALIZED, QUERIES, new

BLOCK = 1 << 19  # cells of one product
CELLS = 1 << 22  # that are computed at once: of 16,384 keys, fewer rows take twice as long
LONGEST = 1 << 15  # keys: of longer rows too few would fit


def serves(att: AttentionBase, batch: int, head: int, queries: range, stage: str) -> bool:
    """Whether a mask or bias is there cell by cell, and nothing that only knows blocks of (keys, queries)."""
    if stage not in NORMALIZED or not att.scores_are_products or att.shape.K > LONGEST:
        return False
    tensors = [x for rule in att.rules.rules if isinstance(rule, Keep | Bias) for x in rule.tensors().values()]
    return any(min(x.shape[2:]) > 1 for x in tensors) and is_finite(att, batch, head, queries)


def rows_at_once(att: AttentionBase, query_bin: int) -> int:
    """How many queries are computed at once: whole bins, if it can be."""
    return min(max(CELLS // max(1, att.shape.K), query_bin), QUERIES)


def filled(att: AttentionBase, batch: int, head: int, queries: range, *, small: bool) -> Tensor:
    """masked of some queries over all keys, (queries, keys); or exp of it, where that is small."""
    (q, k), blocked = (att.q, att.k), 0.0 if small else -inf
    assert q is not None
    assert k is not None
    wide = att.result_dtype
    rows = take(q[batch, head], queries, 0).to(wide) * (att.scale * LOG2_E if small else att.scale)  # (queries, D)
    of_head = k[batch, att.group(head)]  # (K, D)
    found = new(att, len(queries), len(of_head))
    row = Block(batch, head, queries, range(len(of_head)))
    span, biases = att.rules.span(row), [bias for bias in att.rules.biases if isinstance(bias, Bias)]  # at most one
    found[:, : span.start] = found[:, span.stop :] = blocked
    limit = max(KEYS, BLOCK // len(queries))
    room, product = (Scratch(len(queries) * limit, wide, att.device) for _ in range(2))
    for keys in att.rules.pieces(row, 1, limit):
        part, cells = found[:, keys.start : keys.stop], row._replace(keys=keys)
        allowed = att.rules.allowed(cells)
        if allowed is False:
            part.fill_(blocked)
            continue
        S = Product(take(of_head, keys, 0).to(wide)).of(rows, product)  # (queries, keys)
        if small:
            S.exp2_()
        if small and isinstance(allowed, Tensor):
            torch.mul(S, ones_and_zeros(allowed, room.cut(*allowed.shape)), out=part)
        elif biases:
            torch.add(S, cut(biases[0].added, cells), out=part)
        else:
            part.copy_(S)
        if not small and isinstance(allowed, Tensor):
            block_out(part, allowed)
        del S  # the next one comes to lie where it was
    return found


def ones_and_zeros(allowed: Tensor, room: Tensor) -> Tensor:
    """1 where a cell is allowed, else 0: multiplied, for the choice of a number cell by cell is ten times slower."""
    return room.copy_(allowed.view(torch.uint8))  # from bool it takes five times as long


def block_out(x: Tensor, allowed: Tensor) -> None:
    """−∞ where a cell is not allowed, in place: bits put together."""
    whole = torch.int32 if x.element_size() == 4 else torch.int64
    keep = allowed.to(whole).neg_()  # all bits or none
    bits = x.view(whole)
    bits &= keep
    bits |= keep.bitwise_not_().bitwise_and_(torch.tensor(-inf, dtype=x.dtype).view(whole).item())
