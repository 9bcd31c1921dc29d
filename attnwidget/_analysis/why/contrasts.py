"""What the scores of a row are compared with: another key, or a mean of keys under their weights."""

from __future__ import annotations

import torch
from torch import Tensor

NO_WEIGHT = "query {query} gives no key a weight, so its row has no mean: give against=None, or the position of a key"
NO_OTHERS = (
    "query {query} gives no weight to another key than {key}, so there is no mean of the other keys to compare with: "
    "compare with nothing (against=None), or with one key"
)


class NoMean(ValueError):
    """There is no mean to compare with, because no key, or no other key, has a weight."""


def check_against(against: str) -> None:
    """Refuse a word that names no comparison.

    Raises:
        ValueError: it is neither "others" nor "mean".
    """
    if against not in ("others", "mean"):
        raise ValueError(
            f'against is {against!r}: give the position of a key, "mean" for the row\'s mean, "others" for the mean of '
            f"the row's other keys, or None"
        )


def compared_with(values: Tensor, weights: Tensor, against: int | str, keys: Tensor | None = None) -> Tensor:
    """Return what is subtracted from values of a row: the value of a key, or a mean of keys under their weights.

    Args:
        values: (…, keys) float64.
        weights: (keys,).
        against: a key, "mean", or "others": of each key the mean of the other keys.
        keys: only for these keys; None: for all.

    Returns:
        (…, keys); NaN where the keys of the mean have no weight.
    """
    weights = weights.to(values).nan_to_num()
    keys = torch.arange(len(weights), device=values.device) if keys is None else keys
    if isinstance(against, int):
        return values[..., [against]].expand(*values.shape[:-1], len(keys))
    total, whole = values @ weights, weights.sum()
    if against == "mean":
        return (total / whole)[..., None].expand(*values.shape[:-1], len(keys))
    own, rest = weights[keys], whole - weights[keys]
    found = (total[..., None] - values[..., keys] * own) / rest
    for place in (own > rest).nonzero()[:, 0].tolist():  # of this key the difference would lose the others' digits
        others = weights.clone()
        others[keys[place]] = 0
        found[..., place] = values @ others / others.sum()
    return found
