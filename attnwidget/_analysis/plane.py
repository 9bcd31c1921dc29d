"""A plane of all heads: the two directions in which they differ most."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .._utils.readable import Readable
from .similar_heads import LEAST_SPREAD


@dataclass(frozen=True, repr=False)
class Plane(Readable):
    """Heads in a plane: the first two principal components of their metrics and of their weight by distance.

    places: (heads, 2), in the order of `Atlas.heads`; the center is the mean head.
    shown: the share of the variance that the plane shows, 0 to 1.

    >>> import torch
    >>> from attnwidget import atlas
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    >>> found = atlas(model, [{"src": torch.randn(1, n, 8)} for n in (5, 9)], progress=False)
    >>> found.plane.places.shape
    torch.Size([2, 2])
    """

    places: Tensor
    shown: float


def plane_of(means: Tensor, pictures: Tensor) -> Plane:
    """Return the plane of some heads (Pearson 1901).

    Args:
        means: of the metrics, (heads, metrics) float64; NaN if a head has none, which counts as the mean.
        pictures: the shares of the weight by distance, (heads, bins). Their square roots are compared, and together
            they count as much as all metrics.
    """
    centered = (means - means.nanmean(0)).nan_to_num(0)
    spread = centered.square().mean(0).sqrt()
    varied = spread > LEAST_SPREAD * means.abs().nan_to_num(0).amax(0)
    metrics = (centered / spread)[:, varied]
    roots = pictures.nan_to_num(0).clamp(min=0).sqrt()
    roots = roots - roots.mean(0)
    size = roots.square().sum() / max(1, len(roots))
    weight = (metrics.shape[1] / size).sqrt() if size > 0 else size
    both = torch.cat([metrics, roots * weight], 1)
    total = both.square().sum()
    if not total > 0:
        return Plane(torch.zeros(len(both), 2, dtype=torch.float64, device="cpu"), 1.0)
    left, sizes, right = torch.linalg.svd(both, full_matrices=False)
    places = torch.zeros(len(both), 2, dtype=torch.float64, device="cpu")
    kept = min(2, len(sizes))
    signs = right[:kept].gather(1, right[:kept].abs().argmax(1)[:, None])[:, 0].sign()
    places[:, :kept] = left[:, :kept] * sizes[:kept] * signs
    return Plane(places, float(sizes[:kept].square().sum() / total))
