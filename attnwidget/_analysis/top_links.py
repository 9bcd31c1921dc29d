"""The strongest links of a head: for every query its strongest keys, or for every key the queries that give it most.

In a stage after the weights, the strongest links have the largest absolute value, with their signs.

One streamed pass keeps a running top-k, so that memory is O(n · count) and no (Q, K) tensor is made.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._engine.base import AttentionBase, Head
from .._engine.matmul import exact, exp_
from .._engine.softmax import normalizers, online
from .._engine.stages import QUERIES, blocks, new, streamed, valued
from .._utils.indexing import cuts

LINKS = 3  # for every token, by default
LINK_CELLS = 4096 * 4096  # of a head; in a larger one not all links are searched


class Links(NamedTuple):
    """At most `count` partners of every position, strongest first; missing partners have weight 0.

    partners: (n, count) int64, keys of each query or queries of each key.
    weights: (n, count), float32 or float64; for another stage its numbers.
    """

    partners: Tensor
    weights: Tensor


def strongest(head: Head, *, count: int = 3, side: str = "query", stage: str = "weights") -> Links:
    """Return the strongest links of every query (side "query") or of every key (side "key"), exact.

    Args:
        head: the head.
        count: the most links of each position.
        side: "query" or "key".
        stage: the weights, or a stage that multiplies them.

    >>> import torch, attnwidget
    >>> att = attnwidget.Attention(*torch.eye(4).expand(2, 4, 4) * 9)
    >>> strongest(att.head(0, 0), count=1).partners.flatten()
    tensor([0, 1, 2, 3])
    """
    with exact(head.att.device):
        if stage != "weights":
            return _by_size(head, count, side, stage)
        return _of_queries(head, count) if side == "query" else _of_keys(head, count)


def _of_queries(head: Head, count: int) -> Links:
    att = head.att
    count = min(count, att.shape.K)
    stage = streamed(att, "weights")
    kind = online(head, range(att.shape.Q))
    partners, weights = [], []
    for rows in cuts(range(att.shape.Q), 1, QUERIES):
        best = _none(att, count, len(rows))  # (count, queries)
        softmax = kind(head, len(rows))
        for keys, S, _ in blocks(head, rows, stage):
            best = _merge(best, _top(S, keys.start, count), count)
            if stage == "masked":
                softmax.add(S, S.amax(0))
        found = exp_(softmax.logsumexp().log_weights(best.weights)) if stage == "masked" else best.weights
        partners.append(best.partners.mT)
        weights.append(found.mT)
    return _finite(torch.cat(partners), torch.cat(weights))


def _of_keys(head: Head, count: int) -> Links:
    att = head.att
    count = min(count, att.shape.Q)
    stage = streamed(att, "weights")
    best = _none(att, count, att.shape.K)  # (count, keys), of weights
    for rows in cuts(range(att.shape.Q), 1, QUERIES):
        pair = normalizers(head, rows) if stage == "masked" else None
        for keys, S, _ in blocks(head, rows, stage):
            weights = S if pair is None else exp_(pair.log_weights(S))
            at = slice(keys.start, keys.stop)
            held = Links(best.partners[:, at], best.weights[:, at])
            best.partners[:, at], best.weights[:, at] = _merge(held, _top(weights.mT, rows.start, count), count)
    return _finite(best.partners.mT, best.weights.mT)


def _none(att: AttentionBase, count: int, width: int) -> Links:
    partners = torch.zeros(count, width, dtype=torch.int64, device=att.device)
    return Links(partners, new(att, count, width).fill_(-torch.inf))


def _top(values: Tensor, first: int, count: int) -> Links:
    """Return the greatest along the first axis, whose positions begin at `first`."""
    top, places = values.nan_to_num(-torch.inf, torch.inf, -torch.inf).topk(min(count, len(values)), dim=0)
    return Links(places + first, top)


def _merge(one: Links, other: Links, count: int) -> Links:
    values = torch.cat([one.weights, other.weights])
    partners = torch.cat([one.partners, other.partners])
    best, at = values.topk(count, dim=0)
    return Links(partners.gather(0, at), best)


def _finite(partners: Tensor, weights: Tensor) -> Links:
    """Return links with weight 0 for missing or NaN ones."""
    return Links(partners, weights.nan_to_num(0.0, 0.0, 0.0).clamp_min(0))


# A stage after the weights, by absolute value.


def _by_size(head: Head, count: int, side: str, stage: str) -> Links:
    att, of_queries = head.att, side == "query"
    count = min(count, att.shape.K if of_queries else att.shape.Q)
    base = streamed(att, stage)
    width = att.shape.Q if of_queries else att.shape.K
    partners = torch.zeros(count, width, dtype=torch.int64, device=att.device)
    best = Links(partners, new(att, count, width).zero_())
    for rows in cuts(range(att.shape.Q), 1, QUERIES):
        pair = normalizers(head, rows) if base == "masked" else None
        for keys, S, _ in blocks(head, rows, base):
            numbers = S if pair is None else valued(exp_(pair.log_weights(S).clamp_(max=0)), head, rows, keys, stage)
            own, others = (rows, keys) if of_queries else (keys, rows)
            at = slice(own.start, own.stop)
            found = _top_by_size(numbers if of_queries else numbers.mT, others.start, count)
            held = Links(best.partners[:, at], best.weights[:, at])
            best.partners[:, at], best.weights[:, at] = _merge_by_size(held, found, count)
    return Links(best.partners.mT, best.weights.mT)


def _top_by_size(values: Tensor, first: int, count: int) -> Links:
    """Return the largest by absolute value along the first axis, whose positions begin at `first`."""
    finite = values.nan_to_num(0.0, 0.0, 0.0)
    places = finite.abs().topk(min(count, len(values)), dim=0).indices
    return Links(places + first, finite.gather(0, places))


def _merge_by_size(one: Links, other: Links, count: int) -> Links:
    values = torch.cat([one.weights, other.weights])
    partners = torch.cat([one.partners, other.partners])
    at = values.abs().topk(count, dim=0).indices
    return Links(partners.gather(0, at), values.gather(0, at))
