"""What each key receives: the mean weight of the queries that may attend to it."""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor

from .._engine.base import AttentionBase, Head
from .._engine.softmax import run_to_end
from .._engine.stages import allowed_cells
from .._rules.rules import whole
from .parity import weights_of

CELLS_AT_ONCE = 1 << 22


def received(att: AttentionBase, batch: int, heads: list[int]) -> Tensor:
    """Return the mean weight that each key receives, (heads, K): see `Attention.received`."""
    return torch.stack([run_to_end(receiving(att, batch, head))[0] for head in heads])


def receiving(att: AttentionBase, batch: int, head: int) -> Generator[range, None, tuple[Tensor, Tensor]]:
    """Compute the mean weight that each key of a head receives, and whether any query may attend to it, (K,) each.

    It yields the queries that are done.
    """
    Q, K = att.shape.Q, att.shape.K
    step = max(1, CELLS_AT_ONCE // max(1, K))
    sums = torch.zeros(K, dtype=torch.float64, device=att.device)
    counts = torch.zeros_like(sums)
    for first in range(0, Q, step):
        queries = range(first, min(first + step, Q))
        cells = Head(att, batch, head).block(queries)
        sums += weights_of(att, cells).sum(0, dtype=torch.float64)
        counts += whole(allowed_cells(att, cells), cells.queries, cells.keys, att.device).sum(0)
        yield queries
    return torch.where(counts > 0, sums / counts, torch.nan).to(att.result_dtype), counts > 0
