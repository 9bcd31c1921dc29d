"""Attention of every kind at sizes that all differ, and the same written out by the book in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from reference import Case
from torch import Tensor

from attnwidget import masks

# No two are equal, so that no axis can be taken for another.
B, H, G, Q, K, D, Dv = 2, 6, 3, 13, 17, 5, 7
SINKS = (0.5, -3.0, 7.0, 80.0, -110.0, -math.inf)  # of each head: ordinary logits, extreme ones, and none
LOWEST = torch.finfo(torch.float32).min
APART = torch.arange(K) - torch.arange(Q)[:, None]  # (Q, K), key − query
KEYS = torch.arange(K)

Parts = tuple[dict[str, Any], Tensor, Tensor, float]  # keywords, allowed, what is added, what scores are multiplied by


def kind(name: str, *, sinks: bool = False, dtype: torch.dtype = torch.float32) -> Case:
    """Return the attention of a kind; its q, k and v are the same for all kinds."""
    keywords, allowed, bias, factor = KINDS[name]()
    keywords |= {"sinks": torch.tensor(SINKS)} if sinks else {}
    make = torch.Generator().manual_seed(7)
    shapes = ((H, Q, D), (G, K, D), (G, K, Dv))
    q, k, v = (torch.randn(B, h, n, d, generator=make).to(dtype) for h, n, d in shapes)
    return Case(q, k, v, keywords, allowed.expand(B, H, Q, K), bias.expand(B, H, Q, K), factor)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def some(*shape: int) -> Tensor:
    """Return bools, two thirds of them True."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) < 0.65


def made(
    keywords: dict[str, Any], allowed: Tensor | None = None, added: Tensor | None = None, factor: float = 1.0
) -> Parts:
    """Return the parts of a kind, all cells allowed and nothing added where None."""
    cells = torch.ones(1, dtype=torch.bool) if allowed is None else allowed
    return keywords, cells, torch.zeros(1).double() if added is None else added.double(), factor


def by_key(lengths: list[int]) -> Tensor:
    return (torch.tensor(lengths)[:, None] > KEYS)[:, None, None]  # (B, 1, 1, K)


def scattered(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Allow cells without any order, others in each sample and head."""
    return (b + 2 * h + q_idx + 3 * kv_idx) % 5 > 1


def everywhere(function: Callable[..., Any]) -> Tensor:
    """Return what a function of indices gives, (B, H, Q, K)."""
    b, h, q_idx, kv_idx = (torch.arange(n).view(-1, *[1] * after) for n, after in ((B, 3), (H, 2), (Q, 1), (K, 0)))
    found: Tensor = function(b, h, q_idx, kv_idx) + torch.zeros(B, H, Q, K)
    return found


def slope(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """ALiBi, with another slope for each head, and something of the sample's own."""
    return 0.125 * (h + 1) * (kv_idx - q_idx) + 0.5 * b * (kv_idx % 2)


def halved(score: Tensor, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Tensor:
    return 0.5 * score + slope(b, h, q_idx, kv_idx)


def blocking(score: Tensor, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Tensor:
    return torch.where((kv_idx + h) % 3 == 1, -torch.inf, halved(score, b, h, q_idx, kv_idx))


def opened() -> Tensor:
    """Return which cells `blocking` leaves, (B, H, Q, K)."""
    return everywhere(lambda b, h, q_idx, kv_idx: (kv_idx + h) % 3 != 1).bool()


def filled(shape: tuple[int, ...], lowest: float) -> Parts:
    """Return a float mask, some of whose cells hold the lowest number."""
    added, keep = numbers(*shape), some(*shape)
    return made({"mask": added.masked_fill(~keep, lowest)}, keep, added.masked_fill(~keep, 0))


def with_mask_and_bias() -> Parts:
    """Return a float mask beside a bias that is a function: the function comes first."""
    keywords, keep, added, _ = filled((B, H, Q, K), -torch.inf)
    return made({**keywords, "bias": halved}, keep, added + everywhere(slope), 0.5)


def with_everything() -> Parts:
    """Return a float mask, a bias, causal, a window and a softcap at once."""
    keywords, keep, added, _ = filled((B, 1, Q, K), LOWEST)
    bias = numbers(H, Q, K)
    keywords |= {"bias": bias, "is_causal": True, "window": 7, "softcap": 2.0}
    return made(keywords, keep & (APART <= 0) & (APART > -7), added + bias)


KINDS: dict[str, Callable[[], Parts]] = {
    "plain": lambda: made({}),
    "causal": lambda: made({"is_causal": True}, APART <= 0),
    "window on both sides": lambda: made({"window": 4}, APART.abs() < 4),
    "causal window": lambda: made({"is_causal": True, "window": 3}, (APART <= 0) & (APART > -3)),
    "lower right": lambda: made({"mask": masks.causal_lower_right(Q, K)}, APART <= K - Q),
    "upper right": lambda: made({"mask": masks.causal_lower_right(K, Q)}, APART <= Q - K),  # the first rows are empty
    "from two ahead": lambda: made({"mask": masks.Band(2, None)}, APART >= 2),
    "three behind to one ahead": lambda: made({"mask": masks.Band(-3, 1)}, (APART >= -3) & (APART <= 1)),
    "padding": lambda: made({"mask": masks.padding([K - 6, 1])}, by_key([K - 6, 1])),
    "padding alone": lambda: made({"mask": masks.padding([0, 9])}, by_key([0, 9])),
    "causal window and padding": lambda: made(
        {"mask": masks.and_masks(masks.causal, masks.sliding_window(5), masks.padding([K, 6]))},
        by_key([K, 6]) & (APART <= 0) & (APART > -5),
    ),
    "padding or window": lambda: made(
        {"mask": masks.or_masks(masks.padding([3, 8]), masks.sliding_window(2))}, by_key([3, 8]) | (APART.abs() < 2)
    ),
    "function": lambda: made({"mask": scattered}, everywhere(scattered).bool()),
    "function and window": lambda: made(
        {"mask": masks.and_masks(scattered, masks.sliding_window(6))}, everywhere(scattered).bool() & (APART.abs() < 6)
    ),
    "bools QK": lambda: made({"mask": some(Q, K)}, some(Q, K)),
    "bools BK": lambda: made({"mask": some(B, K), "mask_dims": "bk"}, some(B, K)[:, None, None]),
    "bools BQK": lambda: made({"mask": some(B, Q, K)}, some(B, Q, K)[:, None]),
    "bools HQK": lambda: made({"mask": some(H, Q, K)}, some(H, Q, K)),
    "bools BHQK": lambda: made({"mask": some(B, H, Q, K), "is_causal": True}, some(B, H, Q, K) & (APART <= 0)),
    "bools of queries": lambda: made({"mask": some(B, H, Q, 1)}, some(B, H, Q, 1)),
    "integers that hide": lambda: made({"mask": some(H, 1, K).long(), "mask_means": "hide"}, ~some(H, 1, K)),
    "floats": lambda: filled((B, H, Q, K), -torch.inf),
    "floats filled with the lowest": lambda: filled((H, Q, K), LOWEST),
    "bias QK": lambda: made({"bias": numbers(Q, K)}, None, numbers(Q, K)),
    "bias HQK": lambda: made({"bias": numbers(H, Q, K), "is_causal": True}, APART <= 0, numbers(H, Q, K)),
    "bias of keys": lambda: made({"bias": numbers(B, H, 1, K), "window": 6}, APART.abs() < 6, numbers(B, H, 1, K)),
    "large bias": lambda: made(
        {"bias": 9 * numbers(H, Q, K) - 300, "is_causal": True}, APART <= 0, 9 * numbers(H, Q, K) - 300
    ),
    "bias by a function": lambda: made({"bias": halved, "is_causal": True}, APART <= 0, everywhere(slope), 0.5),
    "bias that blocks": lambda: made({"bias": blocking}, opened(), everywhere(slope), 0.5),
    "floats and bias by a function": with_mask_and_bias,
    "everything": with_everything,
    "softcap": lambda: made({"softcap": 0.7, "is_causal": True}, APART <= 0),
    "scale 0": lambda: made({"scale": 0.0, "is_causal": True}, APART <= 0),
    "scale -0.5": lambda: made({"scale": -0.5, "window": 8}, APART.abs() < 8),
    "scale -40": lambda: made({"scale": -40.0}),
    "scale 40": lambda: made({"scale": 40.0, "is_causal": True}, APART <= 0),
    "scale -40 and bools": lambda: made({"scale": -40.0, "mask": some(Q, K)}, some(Q, K)),
}
