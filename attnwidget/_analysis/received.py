"""What each key receives: the mean weight of the queries that may attend to it."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import torch
from torch import Tensor

from .._engine.base import AttentionBase, Head
from .._engine.matmul import exp_
from .._engine.softmax import normalizers, run_to_end
from .._engine.stages import QUERIES, allowed_cells, blocks, streamed
from .._rules.rules import Allowed, whole
from .._utils.indexing import cuts


def received(att: AttentionBase, batch: int, heads: list[int]) -> Tensor:
    """Return the mean weight that each key receives, (heads, K): see `Attention.received`."""
    return torch.stack([run_to_end(receiving(att, batch, head))[0] for head in heads])


def receiving(att: AttentionBase, batch: int, head: int) -> Generator[range, None, tuple[Tensor, Tensor]]:
    """Compute the mean weight that each key of a head receives, and whether any query may attend to it, (K,) each.

    It yields the queries that are done.
    """
    one, (Q, K) = Head(att, batch, head), (att.shape.Q, att.shape.K)
    sums = torch.zeros(K, dtype=torch.float64, device=att.device)
    counts = torch.zeros_like(sums)
    for queries in cuts(range(Q), 1, QUERIES):
        for keys, weights, allowed in _weights(one, queries):
            at = slice(keys.start, keys.stop)
            sums[at] += weights.sum(1)
            counts[at] += len(queries) if allowed is True else whole(allowed, queries, keys, att.device).sum(0)
        yield queries
    return torch.where(counts > 0, sums / counts, torch.nan).to(att.result_dtype), counts > 0


def _weights(head: Head, queries: range) -> Iterator[tuple[range, Tensor, Allowed]]:
    """Iterate over blocks of weights, (keys, queries), and the allowed cells; blocks without any are left out."""
    att = head.att
    if streamed(att, "weights") == "masked":
        known = normalizers(head, queries)
        for keys, S, allowed in blocks(head, queries, "masked"):
            yield keys, exp_(known.log_weights(S).clamp_(max=0)), allowed
    else:
        for keys, weights, _ in blocks(head, queries, "weights"):
            yield keys, weights, allowed_cells(att, head.block(queries, keys))
