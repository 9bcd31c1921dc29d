"""The strongest links of a head: of every query its strongest keys, or of every key the queries that give it most.

One streamed pass keeps a running top-k, so that memory is O(n · count) and no (Q, K) tensor is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .engine import QUERIES, Pair, Softmax, blocks, cuts, exact, exp_, new, normalizers
from .places import as_index

if TYPE_CHECKING:
    from .attention import Attention


class Links(NamedTuple):
    """At most `count` partners of every position, strongest first; where there are fewer, the weight is 0.

    partners: (n, count) int64, keys of each query or queries of each key.
    weights: (n, count), float32 or float64.
    """

    partners: Tensor
    weights: Tensor


def strongest(att: Attention, batch: int, head: int, *, count: int = 3, side: str = "query") -> Links:
    """The strongest links of every query (side "query") or of every key (side "key"), exact.

    >>> import torch, attnwidget.attention
    >>> att = attnwidget.attention.Attention(*torch.eye(4).expand(2, 4, 4) * 9)
    >>> strongest(att, 0, 0, count=1).partners.flatten()
    tensor([0, 1, 2, 3])
    """
    batch = as_index(batch, att.shape.B, "batch", "samples")
    head = as_index(head, att.shape.H, "head", "heads")
    with exact(att.device):
        return _of_queries(att, batch, head, count) if side == "query" else _of_keys(att, batch, head, count)


def _of_queries(att: Attention, batch: int, head: int, count: int) -> Links:
    count = min(count, att.shape.K)
    partners, weights, pairs = [], [], []
    for rows in cuts(range(att.shape.Q), 1, QUERIES):
        best = _none(att, count, len(rows))  # (count, queries)
        softmax = Softmax(att, len(rows))
        for keys, S in blocks(att, batch, head, rows, "masked"):
            best = _merge(best, _top(S, keys.start, count), count)
            softmax.add(S, S.amax(0))
        pairs.append(softmax.pair())
        partners.append(best.partners.mT)
        weights.append(exp_(pairs[-1].log_weights(best.weights)).mT)
    att.remember(batch, head, Pair(*(torch.cat(parts) for parts in zip(*pairs, strict=True))))
    return Links(torch.cat(partners), torch.cat(weights).nan_to_num(0.0))


def _of_keys(att: Attention, batch: int, head: int, count: int) -> Links:
    count = min(count, att.shape.Q)
    best = _none(att, count, att.shape.K)  # (count, keys)
    for rows in cuts(range(att.shape.Q), 1, QUERIES):
        pair: Pair = normalizers(att, batch, head, rows)
        for keys, S in blocks(att, batch, head, rows, "masked"):
            log_weights = pair.log_weights(S).mT  # (queries, keys)
            at = slice(keys.start, keys.stop)
            held = Links(best.partners[:, at], best.weights[:, at])
            merged = _merge(held, _top(log_weights, rows.start, count), count)
            best.partners[:, at], best.weights[:, at] = merged
    return Links(best.partners.mT, exp_(best.weights).mT.nan_to_num(0.0))


def _none(att: Attention, count: int, width: int) -> Links:
    partners = torch.zeros(count, width, dtype=torch.int64, device=att.device)
    return Links(partners, new(att, count, width).fill_(-torch.inf))


def _top(scores: Tensor, first: int, count: int) -> Links:
    """The greatest along the first axis, whose positions begin at `first`."""
    values, places = scores.nan_to_num(-torch.inf, torch.inf, -torch.inf).topk(min(count, len(scores)), dim=0)
    return Links(places + first, values)


def _merge(one: Links, other: Links, count: int) -> Links:
    values = torch.cat([one.weights, other.weights])
    partners = torch.cat([one.partners, other.partners])
    best, at = values.topk(count, dim=0)
    return Links(partners.gather(0, at), best)
