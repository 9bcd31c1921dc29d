"""Attention written out in full, in float64, by the book; and random attention to compare it with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from attnwidget.attention import Attention

# How far float32 results may be from float64 ones for scores of ordinary size: relative, and absolute.
IN_FLOAT32 = {"rtol": 2e-5, "atol": 2e-6}
CLOSE = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-13},
    torch.float32: IN_FLOAT32,
    torch.float16: IN_FLOAT32,  # of the same numbers in float64: half types are cast before the product
    torch.bfloat16: IN_FLOAT32,
}


def dense(
    q: Tensor, k: Tensor, *, allowed: Tensor | None = None, bias: Tensor | None = None, scale: float
) -> dict[str, Any]:
    """Every stage of one head, (Q, K) in float64, from (Q, D) and (K, D)."""
    scores = q.double() @ k.double().mT
    scaled = scores * scale
    masked = scaled if bias is None else scaled + bias.double()
    masked = masked if allowed is None else masked.masked_fill(~allowed, -torch.inf)
    empty = (masked == -torch.inf).all(1, keepdim=True)
    weights = torch.softmax(masked, 1).masked_fill(empty, 0)
    allowed = torch.ones_like(scores, dtype=torch.bool) if allowed is None else allowed
    normalizer = torch.logsumexp(masked, 1)
    stages = {"scores": scores, "scaled": scaled, "masked": masked, "weights": weights}
    return {**stages, "allowed": allowed, "normalizer": normalizer}


def pooled(stages: dict[str, Any], stage: str, pool: str, size: int) -> tuple[Tensor, Tensor]:
    """A stage pooled bin by bin, and which bins have an allowed cell; ragged bins are filled up with nothing."""
    x, allowed = stages[stage], stages["allowed"]
    (Q, K), bins = x.shape, [-(-n // size) for n in x.shape]

    def by_bin(cells: Tensor, fill: float) -> Tensor:
        wq, wk = bins
        cells = F.pad(cells.double(), (0, -K % wk, 0, -Q % wq), value=fill)
        return cells.view(-(-Q // wq), wq, -(-K // wk), wk).transpose(1, 2).flatten(2)  # (rows, columns, cells)

    any_allowed = by_bin(allowed, 0).sum(2) > 0
    if pool == "max":
        return by_bin(x, -torch.inf).amax(2), any_allowed
    counted = allowed if stage == "masked" else torch.ones_like(allowed)
    mean = by_bin(x.masked_fill(~counted, 0), 0).sum(2) / by_bin(counted, 0).sum(2)
    return mean.masked_fill(~any_allowed, -torch.inf) if stage == "masked" else mean, any_allowed


@dataclass
class Case:
    """Random q, k, v and a mask, with the allowed cells and the bias that it stands for."""

    q: Tensor
    k: Tensor
    v: Tensor
    keywords: dict[str, Any]
    allowed: Tensor  # (B, H, Q, K)
    bias: Tensor | None  # (B, H, Q, K)

    def attention(self) -> Attention:
        return Attention(self.q, self.k, self.v, **self.keywords)

    def dense(self, batch: int, head: int) -> dict[str, Any]:
        group = head // (self.q.shape[1] // self.k.shape[1])
        scale = self.keywords.get("scale") or self.q.shape[3] ** -0.5
        bias = None if self.bias is None else self.bias[batch, head]
        return dense(
            self.q[batch, head], self.k[batch, group], allowed=self.allowed[batch, head], bias=bias, scale=scale
        )


@st.composite
def cases(draw: st.DrawFn, longest: int = 40, dtypes: tuple[torch.dtype, ...] = tuple(CLOSE)) -> Case:
    """Grouped heads, cross-attention, other value sizes, bool, float and causal masks, scales, dtypes."""
    small = st.integers(1, 3)
    B, G, times = draw(small), draw(small), draw(small)
    H, Q, K = G * times, draw(st.integers(1, longest)), draw(st.integers(1, longest))
    D, Dv = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    make = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    dtype = draw(st.sampled_from(dtypes))
    q, k, v = (torch.randn(B, h, n, d, generator=make).to(dtype) for h, n, d in ((H, Q, D), (G, K, D), (G, K, Dv)))
    keywords: dict[str, Any] = {}
    allowed, bias = torch.ones(B, H, Q, K, dtype=torch.bool), None
    if draw(st.booleans()):
        keywords["scale"] = draw(st.sampled_from((0.25, 1.0, -0.5, 2.0)))
    if draw(st.booleans()):
        keywords["is_causal"] = True
        allowed = allowed & (torch.arange(K) <= torch.arange(Q)[:, None])
    kind = draw(st.sampled_from((None, "bool", "float")))
    if kind:
        shape = [n if draw(st.booleans()) else 1 for n in (B, H, Q, K)]
        keep = torch.rand(shape, generator=make) < draw(st.sampled_from((0.1, 0.7, 0.95)))
        allowed = allowed & keep
        keywords["mask"] = keep
        if kind == "float":
            lowest = draw(st.sampled_from((-torch.inf, torch.finfo(torch.float32).min)))
            mask = torch.randn(shape, generator=make).masked_fill(~keep, lowest)
            keywords["mask"], bias = mask, mask.masked_fill(~keep, 0).expand(B, H, Q, K)
    return Case(q, k, v, keywords, allowed, bias)
