"""Bins of distances, of positions, and of the values of metrics: fixed, so that totals of any texts can be added."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

EXACT = 16  # distances up to this one have bins of their own
OCTAVES = 17  # two bins for each doubling, up to 2²¹ tokens
STARTS = (
    *range(EXACT + 1),
    *(start for octave in range(OCTAVES) for start in ((EXACT << octave) * 3 // 2, EXACT << (octave + 1))),
)
SIDE = len(STARTS)  # bins of positions; of distances, on each side of 0, with 0
DISTANCES = 2 * SIDE - 1
VALUES = 64  # bins of a metric's values
SIDE_OF_CURVE = 9  # bars of a small curve on each side of 0; all larger distances are in the last one
CURVE = 2 * SIDE_OF_CURVE + 1

_EVEN = torch.linspace(0, 1, VALUES + 1, dtype=torch.float64, device="cpu")
_RANGES = {"entropy": 16.0}  # bits
_GROWING = {"mean_distance", "output"}  # four bins for each doubling
_SIGNED = {"effect"}  # nats, −1 to 1


def edges_of(metric: str) -> Tensor:
    """Return the edges of the bins of a metric's values, (VALUES + 1,) float64; values beyond are in the end bins.

    >>> edges_of("first_token")[:3], edges_of("output")[32]
    (tensor([0.0000, 0.0156, 0.0312], dtype=torch.float64), tensor(1., dtype=torch.float64))
    """
    if metric in _GROWING:
        return 2.0 ** ((torch.arange(VALUES + 1, dtype=torch.float64, device="cpu") - VALUES // 2) / 4)
    return 2 * _EVEN - 1 if metric in _SIGNED else _EVEN * _RANGES.get(metric, 1.0)


@cache
def _all_edges(metrics: tuple[str, ...]) -> Tensor:
    return torch.stack([edges_of(metric) for metric in metrics])


def bins_of_values(metrics: tuple[str, ...], values: Tensor) -> Tensor:
    """Return the bin of each value, (metrics, heads) int64, of values (metrics, heads)."""
    edges = _all_edges(metrics)
    return (torch.searchsorted(edges, values.contiguous(), right=True) - 1).clamp_(0, VALUES - 1)


@cache
def position_bins(length: int) -> Tensor:
    """Return the bin of each position, (length,) int64.

    >>> position_bins(26)[[0, 16, 17, 23, 24]].tolist()
    [0, 16, 16, 16, 17]
    """
    starts = torch.tensor(STARTS, device="cpu")
    return torch.bucketize(torch.arange(length, device="cpu"), starts, right=True) - 1


@cache
def distance_bins(length: int) -> Tensor:
    """Return the bin of each distance query − key from −(length − 1) to length − 1; the bin of 0 is `SIDE` − 1."""
    side = position_bins(length)
    return SIDE - 1 + torch.cat([-side.flip(0)[:-1], side])


@cache
def curve_bins(length: int) -> Tensor:
    """Return the bar of a small curve for each distance query − key from −(length − 1) to length − 1.

    >>> curve_bins(20)[[0, 10, 19, 27, 28, 38]].tolist()
    [0, 0, 9, 17, 18, 18]
    """
    distance = torch.arange(1 - length, length, device="cpu")
    return distance.clamp(-SIDE_OF_CURVE, SIDE_OF_CURVE) + SIDE_OF_CURVE


def distance_starts() -> list[tuple[int, int]]:
    """Return the least and the greatest distance query − key of each bin.

    >>> distance_starts()[SIDE - 1], distance_starts()[SIDE + 16], distance_starts()[SIDE - 2]
    ((0, 0), (24, 31), (-1, -1))
    """
    spans = [(low, high - 1) for low, high in zip(STARTS, (*STARTS[1:], 1 << 62), strict=True)]
    return [(-high, -low) for low, high in reversed(spans[1:])] + spans
