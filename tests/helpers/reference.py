"""Attention written out in full, in float64, by the book; and random attention to compare it with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from carrying import carrying, parts_of, written_out
from hypothesis import strategies as st
from tolerance import Rounding, rounding
from torch import Tensor

from attnwidget import masks
from attnwidget._engine.sources import CARRIED
from attnwidget.attention import Attention

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor | None = None,
    *,
    allowed: Tensor | None = None,
    bias: Tensor | None = None,
    factor: float = 1.0,
    scale: float,
    softcap: float | None = None,
    at: tuple[int, int, int, int] = (1, 1, 0, 0),
) -> dict[str, Any]:
    """Every stage of one head, (Q, K) in float64, from (Q, D), (K, D) and (K, Dv); at: B, H, and which of them it is.

    What weights carry is that of `carrying.carrying`.
    """
    scores = q.double() @ k.double().mT
    scaled = scores * scale
    capped = scaled if softcap is None else softcap * torch.tanh(scaled / softcap)
    masked = capped * factor
    masked = masked if bias is None else masked + bias.double()
    masked = masked if allowed is None else masked.masked_fill(~allowed, -torch.inf)
    empty = (masked == -torch.inf).all(1, keepdim=True)
    weights = torch.softmax(masked, 1).masked_fill(empty, 0)
    contribution = weights * (torch.ones(len(k), 1) if v is None else v).double().norm(dim=1)
    allowed = torch.ones_like(scores, dtype=torch.bool) if allowed is None else allowed
    normalizer = torch.logsumexp(masked, 1)
    stages = {"scores": scores, "scaled": scaled, "capped": capped, "masked": masked, "weights": weights}
    stages |= {"contribution": contribution, "allowed": allowed, "normalizer": normalizer}
    if v is None:
        return stages
    B, H, batch, head = at
    return stages | written_out(weights, v, parts_of(B, H, len(q), v.shape[1], q.dtype), batch, head)


def with_sink(stages: dict[str, Any], sink: float) -> dict[str, Any]:
    """The stages of a head, as `dense` returns them, with a sink: transformers' way, cat, softmax, drop the column."""
    masked = stages["masked"]
    column = masked.new_full((len(masked), 1), sink)
    combined = torch.cat([masked, column], 1)
    empty = (combined == -torch.inf).all(1, keepdim=True)
    found = torch.softmax(combined - combined.amax(1, keepdim=True).clamp(min=-1e300), 1).masked_fill(empty, 0)
    after = {
        name: torch.where(stages["weights"] == 0, 0, found[:, :-1] * (stages[name] / stages["weights"]))
        for name in ("contribution", *CARRIED)
        if name in stages
    }
    return {
        **stages,
        **after,
        "weights": found[:, :-1],
        "sink": found[:, -1],
        "normalizer": torch.logsumexp(combined, 1),
    }


def pooled(stages: dict[str, Any], stage: str, pool: str, size: int) -> tuple[Tensor, Tensor]:
    """A stage pooled bin by bin, and which bins have an allowed cell; ragged bins are filled up with nothing."""
    x, allowed = stages[stage], stages["allowed"]
    (Q, K), bins = x.shape, [-(-n // size) for n in x.shape]

    def by_bin(cells: Tensor, fill: float) -> Tensor:
        wq, wk = bins
        cells = F.pad(cells, (0, -K % wk, 0, -Q % wq), value=fill)
        return cells.view(-(-Q // wq), wq, -(-K // wk), wk).transpose(1, 2).flatten(2)  # (rows, columns, cells)

    any_allowed = by_bin(allowed, False).any(2)
    if pool == "max" and stage in ("logit", "saliency"):
        high, low = by_bin(x.double(), 0).amax(2), by_bin(x.double(), 0).amin(2)
        return torch.where(high >= -low, high, low), any_allowed
    if pool == "max":
        return by_bin(x.double(), -torch.inf).amax(2), any_allowed
    counted = allowed if stage == "masked" else torch.ones_like(allowed)
    mean = by_bin(x.double().masked_fill(~counted, 0), 0).sum(2) / by_bin(counted, False).sum(2)
    return mean.masked_fill(~any_allowed, -torch.inf) if stage == "masked" else mean, any_allowed


@dataclass
class Case:
    """Random q, k, v and keywords, with the allowed cells, and what the bias multiplies and adds, written out."""

    q: Tensor
    k: Tensor
    v: Tensor
    keywords: dict[str, Any]
    allowed: Tensor  # (B, H, Q, K)
    bias: Tensor  # (B, H, Q, K)
    factor: float

    def attention(self) -> Attention:
        return carrying(Attention(self.q, self.k, self.v, **self.keywords))

    def rounding(self) -> Rounding:
        """How far the numbers of `attention()` may be from those of `dense()`."""
        return rounding(self.attention(), added=float(self.bias.abs().max()))

    def dense(self, batch: int, head: int) -> dict[str, Any]:
        group, scale = head // (self.q.shape[1] // self.k.shape[1]), self.keywords.get("scale")
        return dense(
            self.q[batch, head],
            self.k[batch, group],
            self.v[batch, group],
            allowed=self.allowed[batch, head],
            bias=self.bias[batch, head],
            factor=self.factor,
            scale=self.q.shape[3] ** -0.5 if scale is None else scale,
            softcap=self.keywords.get("softcap"),
            at=(*self.q.shape[:2], batch, head),
        )


@st.composite
def cases(draw: st.DrawFn, longest: int = 40, dtypes: tuple[torch.dtype, ...] = DTYPES) -> Case:
    """Grouped heads, cross-attention, other value sizes, all kinds of masks and biases, windows, softcaps, dtypes."""
    small, B = st.integers(1, 3), draw(st.integers(1, 3))
    G = draw(small.filter(lambda n: n != B))
    H = G * draw(small.filter(lambda n: n * G != B))  # no size is that of another axis, which it might be taken for
    Q, K, D = draw(st.integers(1, longest)), draw(st.integers(1, longest)), draw(st.integers(1, 9))
    Dv = draw(st.integers(1, 9).filter(lambda n: n != D))
    make = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    dtype = draw(st.sampled_from(dtypes))
    q, k, v = (torch.randn(B, h, n, d, generator=make).to(dtype) for h, n, d in ((H, Q, D), (G, K, D), (G, K, Dv)))
    keywords: dict[str, Any] = {
        "scale": draw(st.sampled_from((None, 0.25, 0.0, -0.5, 2.0))),
        "softcap": draw(st.sampled_from((None, None, 0.7, 5.0))),
        "is_causal": draw(st.booleans()),
        "window": draw(st.sampled_from((None, None, 1, 3, 100))),
    }
    apart = torch.arange(K) - torch.arange(Q)[:, None]  # (Q, K), key − query
    allowed = torch.ones(B, H, Q, K, dtype=torch.bool)
    allowed &= apart <= 0 if keywords["is_causal"] else True
    allowed &= apart.abs() < (keywords["window"] or 1000)
    bias = torch.zeros(B, H, Q, K, dtype=torch.float64)
    kind, shape = draw(st.sampled_from(MASKS)), [n if draw(st.booleans()) else 1 for n in (B, H, Q, K)]
    if kind in ("bool", "float"):
        keep = torch.rand(shape, generator=make) < draw(st.sampled_from((0.1, 0.7, 0.95)))
        allowed &= keep
        keywords["mask"] = keep
        if kind == "float":
            lowest = draw(st.sampled_from((-torch.inf, torch.finfo(torch.float32).min)))
            added = torch.randn(shape, generator=make)
            keywords["mask"], bias = added.masked_fill(~keep, lowest), bias + added.masked_fill(~keep, 0)
    elif kind:
        keywords["mask"], keep = mask_function(kind, B, Q, K, make)
        allowed &= keep
    changes, factor = draw(st.sampled_from((None, "tensor", "function", "blocking"))), 1.0
    if changes == "tensor":
        keywords["bias"] = torch.randn(shape, generator=make).to(dtype)
        bias = bias + keywords["bias"].double()
    elif changes:
        factor, slopes = 0.5, torch.randn(H, generator=make, dtype=torch.float64)
        keywords["bias"] = score_function(factor, slopes, blocks=changes == "blocking")
        bias = bias + slopes[:, None, None] * apart
        allowed &= (torch.arange(K) % 3 != 1) if changes == "blocking" else True
    return Case(q, k, v, keywords, allowed, bias, factor)


MASKS = (None, "bool", "float", "lower right", "padding", "and", "or", "documents", "documents and window")


def mask_function(kind: str, B: int, Q: int, K: int, make: torch.Generator) -> tuple[Any, Tensor]:
    """A mask function, and the same written out, (B or 1, 1, Q, K)."""
    apart = torch.arange(K) - torch.arange(Q)[:, None]
    lengths = torch.randint(0, K + 2, (B,), generator=make)
    padded = (torch.arange(K) < lengths[:, None])[:, None, None].expand(B, 1, Q, K)
    document = torch.randint(0, 3, (B, max(Q, K)), generator=make)
    same = (document[:, :Q, None] == document[:, None, :K])[:, None]

    def documents(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return document[b, q_idx] == document[b, kv_idx]

    made = {
        "lower right": (masks.causal_lower_right(Q, K), (apart <= K - Q)[None, None]),
        "padding": (masks.padding(lengths), padded),
        "and": (masks.and_masks(masks.sliding_window(4), masks.padding(lengths)), padded & (apart.abs() < 4)),
        "or": (masks.or_masks(masks.padding(lengths), masks.sliding_window(2)), padded | (apart.abs() < 2)),
        "documents": (documents, same),
        "documents and window": (masks.and_masks(documents, masks.sliding_window(3)), same & (apart.abs() < 3)),
    }
    return made[kind]


def score_function(factor: float, slopes: Tensor, blocks: bool) -> Any:
    def change(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        changed = score * factor + slopes[h] * (kv_idx - q_idx)
        return torch.where(kv_idx % 3 == 1, -torch.inf, changed) if blocks else changed

    return change


def attention(B: int, H: int, Q: int, K: int, **keywords: Any) -> Attention:
    make = torch.Generator().manual_seed(0)
    q, k = (torch.randn(B, H, n, 4, generator=make) for n in (Q, K))
    return Attention(q, k, k, **keywords)


def allowed(att: Attention) -> torch.Tensor:
    B, H = att.shape[:2]
    return torch.stack([torch.stack([att.block("allowed", batch=b, head=h) for h in range(H)]) for b in range(B)])
