"""What each key receives: the mean weight of the queries that may attend to it."""

from __future__ import annotations

import torch
from torch import Tensor

from .._engine.base import AttentionBase, Head
from .._engine.stages import allowed_cells
from .._rules.rules import whole
from .parity import weights_of

CELLS_AT_ONCE = 1 << 22


def received(att: AttentionBase, batch: int, heads: list[int]) -> Tensor:
    """Return the mean weight that each key receives, (heads, K): see `Attention.received`."""
    Q, K = att.shape.Q, att.shape.K
    step = max(1, CELLS_AT_ONCE // K)
    found = torch.empty(len(heads), K, dtype=att.result_dtype, device=att.device)
    for row, head in zip(found, heads, strict=True):
        sums = torch.zeros(K, dtype=torch.float64, device=att.device)
        counts = torch.zeros_like(sums)
        for first in range(0, Q, step):
            cells = Head(att, batch, head).block(range(first, min(first + step, Q)))
            sums += weights_of(att, cells).sum(0, dtype=torch.float64)
            counts += whole(allowed_cells(att, cells), cells.queries, cells.keys, att.device).sum(0)
        row.copy_(torch.where(counts > 0, sums / counts, torch.nan))
    return found
