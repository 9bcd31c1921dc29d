"""Whole rows at once, for a mask or bias that is there cell by cell: it lies row by row, and so do the scores here.

Elsewhere a block lies (keys, queries), and such a mask would have to be turned round for each: on a CPU that takes
longer than the product.
"""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from .call import Call
from .engine import is_finite
from .places import Cells, take
from .precision import LOG2_E
from .rules import Bias, Keep, cut
from .stages import KEYS, NORMALIZED, QUERIES, new

CELLS = 1 << 22  # that are computed at once: of 16,384 keys, fewer rows take twice as long
LONGEST = 1 << 15  # keys: of longer rows too few would fit


def serves(att: Call, batch: int, head: int, queries: range, stage: str) -> bool:
    """Whether a mask or bias is there cell by cell, and nothing that only knows blocks of (keys, queries)."""
    if stage not in NORMALIZED or att.q is None or att.softcap is not None or att.shape.K > LONGEST:
        return False
    tensors = [x for rule in att.rules.rules if isinstance(rule, Keep | Bias) for x in rule.tensors().values()]
    return any(min(x.shape[2:]) > 1 for x in tensors) and is_finite(att, batch, head, queries)


def rows_at_once(att: Call, query_bin: int) -> int:
    """How many queries are computed at once: whole bins, if it can be."""
    return min(max(CELLS // max(1, att.shape.K), query_bin), QUERIES)


def filled(att: Call, batch: int, head: int, queries: range, *, small: bool) -> Tensor:
    """masked of some queries over all keys, (queries, keys); or exp of it, where that is small."""
    (q, k), blocked = (att.q, att.k), 0.0 if small else -inf
    assert q is not None
    assert k is not None
    wide = att.result_dtype
    rows = take(q[batch, head], queries, 0).to(wide) * (att.scale * LOG2_E if small else att.scale)  # (queries, D)
    of_head = k[batch, att.group(head)]  # (K, D)
    found = new(att, len(queries), len(of_head))
    row = Cells(batch, head, queries, range(len(of_head)))
    span = att.rules.span(row)
    found[:, : span.start] = found[:, span.stop :] = blocked
    for keys in att.rules.pieces(row, 1, KEYS):
        part, cells = found[:, keys.start : keys.stop], row._replace(keys=keys)
        allowed = att.rules.allowed(cells)
        if allowed is False:
            part.fill_(blocked)
            continue
        torch.mm(rows, take(of_head, keys, 0).to(wide).mT, out=part)
        for bias in att.rules.biases:
            assert isinstance(bias, Bias)
            part += cut(bias.added, cells)
        if small:
            part.exp2_()
        if isinstance(allowed, Tensor):
            block_out(part, allowed, blocked)
    return found


def block_out(x: Tensor, allowed: Tensor, blocked: float) -> None:
    """0 or −∞ where a cell is not allowed, NaN or not, in place: bits put together, for the choice of a number cell by
    cell is ten times slower on a CPU."""
    whole = torch.int32 if x.element_size() == 4 else torch.int64
    keep = allowed.to(whole).neg_()  # all bits or none
    bits = x.view(whole)
    bits &= keep
    if blocked == -inf:
        bits |= keep.bitwise_not_().bitwise_and_(torch.tensor(-inf, dtype=x.dtype).view(whole).item())
