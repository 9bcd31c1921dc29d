"""Find heads that resemble one head: by their metrics, and by the small picture of their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._engine.base import find_head
from .all_heads import LayerSource, RowPlan, head_numbers
from .head_sampling import HeadSampler
from .metrics import NAMES

LEAST_SPREAD = 1e-5  # relative to the largest number: a metric with less spread is the same in all heads
PICTURE = 32  # the most rows and columns of a small picture


def similar(
    layers: LayerSource,
    names: Sequence[str],
    layer: int,
    head: int,
    batch: int,
    by: str,
    top: int | None,
    ids: Callable[[int, int], Tensor | None],
) -> list[dict[str, Any]]:
    """Return the heads nearest to one: see `AttentionStack.similar`."""
    there = [number for number in range(len(layers)) if batch < layers[number].shape.B]
    if layer not in there:
        raise IndexError(f"batch {batch} is not there: {names[layer]} has {layers[layer].shape.B}")
    heads = [(number, one) for number in there for one in range(layers[number].shape.H)]
    own = heads.index((layer, find_head(layers[layer], head)))
    pictures, metrics = _measured(layers, there, batch, ids)
    by_metrics, by_picture = metric_distances(metrics, own), picture_distances(pictures, own)
    found = []
    for place in order_of(by_metrics, by_picture, own, by)[1:]:
        number, one = heads[place]
        where = {"layer": number, "name": names[number], **head_numbers(layers[number], one)}
        apart = {"metrics": float(by_metrics[place]), "picture": float(by_picture[place])}
        found.append({**where, **{name: None if x != x else x for name, x in apart.items()}})
    return [{"rank": rank, **one} for rank, one in enumerate(found[:top], 1)]


def _measured(
    layers: LayerSource, there: Sequence[int], batch: int, ids: Callable[[int, int], Tensor | None]
) -> tuple[list[Tensor], Tensor]:
    """Return the small picture of each head, (rows, columns), and the metrics of all, (heads, metrics)."""
    plan = RowPlan([layers[number].shape for number in there], batch)
    pictures: list[Tensor] = []
    metrics: list[Tensor] = []
    for number, queries in zip(there, plan.queries, strict=True):
        att = layers[number]
        sampler = HeadSampler(att, batch, range(att.shape.H), queries, size=PICTURE, ids=ids(number, batch))
        for _ in sampler.steps():
            pass
        pictures += sampler.values.double().cpu().unbind()
        metrics.append(sampler.means.values[: len(NAMES)].mT)
    return pictures, torch.cat(metrics)


def metric_distances(metrics: Tensor, own: int) -> Tensor:
    """Return each head's distance from one head, by metrics.

    Args:
        metrics: (heads, metrics), NaN if a head has none.
        own: the number of the one head.

    Returns:
        (heads,): √ of the mean squared difference in units of the metric's standard deviation over all heads, over the
        metrics that both have and that differ among heads. NaN without any.
    """
    centered = metrics - metrics.nanmean(0)
    spread = centered.square().nanmean(0).sqrt()
    apart = ((metrics - metrics[own]) / spread).square()
    alike = ~(spread > LEAST_SPREAD * metrics.abs().nan_to_num(0).amax(0))
    apart[:, alike] = torch.nan
    return apart.nanmean(1).sqrt()


def picture_distances(pictures: Sequence[Tensor], own: int) -> Tensor:
    """Return each head's distance from one head, by small pictures.

    Args:
        pictures: of each head, (rows, columns).
        own: the number of the one head.

    Returns:
        (heads,): 1 − the cosine of both pictures as vectors, 0 to 1; NaN for pictures of different sizes, as in layers
        with other lengths.
    """
    mine = pictures[own].flatten()
    found = [
        float(1 - F.cosine_similarity(mine, one.flatten(), 0)) if one.shape == pictures[own].shape else torch.nan
        for one in pictures
    ]
    return torch.tensor(found, dtype=torch.float64, device="cpu").clamp(min=0)


def order_of(by_metrics: Tensor, by_picture: Tensor, own: int, by: str = "both") -> list[int]:
    """Return the heads, the one itself first, then the nearest.

    Args:
        by_metrics, by_picture: (heads,), the distance of each.
        own: the number of the one head.
        by: "metrics", "picture", or "both": the sum of both ranks decides, then the metrics.
    """
    ranks = {"metrics": _ranks(by_metrics), "picture": _ranks(by_picture)}
    key = ranks["metrics"] + ranks["picture"] if by == "both" else ranks[by]
    places = sorted(range(len(key)), key=lambda place: (int(key[place]), int(ranks["metrics"][place]), place))
    return [own, *(place for place in places if place != own)]


def _ranks(distances: Tensor) -> Tensor:
    """Return the rank of each distance, from 0; equal distances share a rank, NaN is last."""
    known = distances.nan_to_num(nan=torch.inf)
    return (known[:, None] > known).sum(1)
