"""The learned sink's column next to a picture: one number per row, pooled like the picture."""

from __future__ import annotations

from typing import Any

import torch

from ..._engine.base import AttentionBase, Head
from ..._engine.level_cache import LevelKey
from ..._engine.matmul import exact
from ..._engine.pooling import pool_first
from ..._engine.softmax import sink_column
from ..codec import encoding


def column(att: AttentionBase, key: LevelKey, query_bin: int, sampled: dict[str, int] | None = None) -> Any:
    """Compute the sink's column for a picture.

    Args:
        att: the attention.
        key: the picture's head and stage.
        query_bin: queries per row.
        sampled: the queries of a sampled picture.

    Returns:
        (rows,) float32 as an envelope; None without a sink, or if the sink has no number in this stage.
    """
    if not att.has_sinks:
        return None
    head, Q = Head(att, key.batch, key.head), att.shape.Q
    exact_rows = -(-Q // query_bin) if sampled is None else sampled["exact"]
    parts = []
    with exact(att.device):
        if exact_rows:
            whole = sink_column(head, range(min(Q, exact_rows * query_bin)), key.stage)
            parts.append(None if whole is None else _pooled(whole, query_bin, key.pool))
        if sampled is not None:
            first = sampled["first"] + exact_rows * sampled["every"]
            parts.append(sink_column(head, range(first, Q, sampled["every"]), key.stage))
    known = [part for part in parts if part is not None]
    return encoding.encode(encoding.to_numpy(torch.cat(known))) if known else None


def _pooled(x: torch.Tensor, width: int, pool: str) -> torch.Tensor:
    """Pool (queries,) to (rows,): the maximum or mean of each bin; the last bin may be shorter."""
    if pool == "max":
        return pool_first(x[:, None], width, torch.amax)[:, 0]
    counts = pool_first(torch.ones_like(x)[:, None], width, torch.sum)[:, 0]
    return pool_first(x[:, None], width, torch.sum)[:, 0] / counts


def of_rows(att: AttentionBase, stage: str, batch: int, head: int, queries: list[int], *, mean: bool) -> float | None:
    """Return the sink's number in a row, or the mean or sum over several rows; None if there is none."""
    if not att.has_sinks:
        return None
    with exact(att.device):
        found = sink_column(Head(att, batch, head), torch.tensor(queries, device=att.device), stage)
    if found is None:
        return None
    total = float(found.double().sum())
    return total / len(queries) if mean else total
