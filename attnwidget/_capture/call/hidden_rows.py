"""Rows whose keys are all hidden by finite numbers: the model's softmax gives them weights, so they are not masked.

A model that adds −1e9 or the lowest number of a type to the scores hides a key beside others. If it hides all keys of a
row, the softmax still sums to 1: the row is uniform if the number absorbs the scores, else the number changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCKING = -9e3  # models add -10,000 or less to a score to block it
ABSORBED = -1e30  # added to scores in float32, it leaves nothing of them
LOWEST = -6e4  # keeps a difference between numbers above those that block in a half type
APART = 1e3  # a key that is hidden by so much more than another has no weight beside it


def with_hidden_rows(hiding: Tensor, largest: float, dtype: torch.dtype, zeroed: Tensor | None = None) -> Tensor | None:
    """Return a float mask that keeps rows with only hidden keys; None if there are none.

    Args:
        hiding: (B or 1, H or 1, Q or 1, K) floats added to the scores; −∞ blocks.
        largest: a bound of the absolute scores.
        dtype: of the scores, in which the model adds.
        zeroed: where the model multiplies the scores by 0 before it adds, broadcastable; None for nowhere.

    Returns:
        0 for allowed keys, −∞ for blocked ones; in rows with only hidden keys the number that hides them, or `ABSORBED`
        if it absorbs the scores.
    """
    hidden = hiding <= max(BLOCKING, torch.finfo(hiding.dtype).min)
    top = hiding.amax(-1, keepdim=True)
    rows = hidden.all(-1, keepdim=True) & (top > -torch.inf)
    if not bool(rows.any()) or _is_buffer(hidden):
        return None
    wide = hiding.float()
    top = wide.amax(-1, keepdim=True)
    absorbs = -top * torch.finfo(dtype).eps >= 4 * largest
    if zeroed is not None:
        absorbs = absorbs | (zeroed & (wide == top)).any(-1, keepdim=True)
    own = torch.where(absorbs, ABSORBED, wide.clamp_min(LOWEST)).masked_fill(wide < top - APART, -torch.inf)
    return torch.where(rows, own, torch.zeros_like(wide).masked_fill_(hidden, -torch.inf))


def _is_buffer(hidden: Tensor) -> bool:
    """Return whether these are the keys of a cache's buffer: more than queries, and hidden differently for each.

    Some of them are not filled yet, and have no place in a map.
    """
    queries, keys = hidden.shape[-2:]
    return 1 < queries < keys and not torch.equal(hidden[..., 0, :], hidden[..., -1, :])
