"""What the weights of an attention carry, at random: always the same for one shape, and the same written out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnwidget.attention import Attention

SIZE = 7  # of the residual stream


def parts_of(B: int, H: int, Q: int, Dv: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """A projection, a direction and a scale for each sample, and a gradient; one of its numbers in ten is 0."""
    make = torch.Generator().manual_seed(B + 3 * H + 5 * Q + 7 * Dv)
    gradient = torch.randn(B, H, Q, Dv, generator=make)
    found = {
        "w_o": torch.randn(H, Dv, SIZE, generator=make),
        "direction": torch.randn(B, SIZE, generator=make),
        "scale": torch.rand(B, Q, generator=make) + 0.5,
        "grad_output": gradient.masked_fill(torch.rand(B, H, Q, Dv, generator=make) < 0.1, 0),
    }
    return {name: x.to(dtype) for name, x in found.items()}


def carrying(att: Attention) -> Attention:
    """The attention, whose weights carry something, if it has values."""
    B, H, _, Q, _, _, Dv = att.shape
    return att if Dv is None else att.carrying(**parts_of(B, H, Q, Dv, att.dtype))


def written_out(weights: Tensor, v: Tensor, parts: dict[str, Any], batch: int, head: int) -> dict[str, Tensor]:
    """The stages that weights carry, (Q, K) in float64, from (Q, K) and (K, Dv), cell by cell as they are defined."""
    wide = {name: x.double() for name, x in parts.items()}
    written = v.double() @ wide["w_o"][head]  # (K, d_model)
    read = (written @ wide["direction"][batch])[None] / wide["scale"][batch][:, None]
    return {
        "value_norm": weights * written.norm(dim=1),
        "logit": weights * read,
        "saliency": weights * (wide["grad_output"][batch, head] @ v.double().mT),
    }


def largest(att: Attention, stage: str) -> float:
    """At least as large as what a weight of 1 carries, in absolute value, and as all that is added up for it."""
    known = att.carries
    assert known is not None
    assert att.v is not None
    length = float(att.v.double().norm(dim=-1).max())
    if stage == "saliency":
        assert known.grad_output is not None
        return length * float(known.grad_output.double().norm(dim=-1).max())
    assert known.w_o is not None
    written = length * float(known.w_o.double().flatten(1).norm(dim=1).max())
    if stage == "value_norm":
        return written
    assert known.direction is not None
    read = written * float(known.direction.double().norm(dim=-1).max())
    return read if known.scale is None else read / float(known.scale.double().min())
