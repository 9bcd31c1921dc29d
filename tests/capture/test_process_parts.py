"""Heads split over processes in a way that does not tell which of the model's heads a process has: refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_context_parallel import captured, refused, run
from test_processes import two_processes
from torch import Tensor, nn

pytestmark = pytest.mark.processes

ADVICE = "split its projections by whole heads, as torch's ColwiseParallel does, or capture the model in one process"


class Fused(nn.Module):
    """Attention whose q, k and v come of one projection, so that its rows do not tell how many heads there are."""

    def __init__(self, heads: int, total: int | None = None) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 3 * 4 * heads)
        if total is not None:
            self.config = SimpleNamespace(num_attention_heads=total)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def some_heads(rank: int, mesh: Any, _: Path) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    def split(model: nn.Module) -> nn.Module:
        return parallelize_module(model, mesh, {"qkv": ColwiseParallel()})

    x = torch.randn(1, 5, 8)
    for model, why in (
        (Fused(4, total=8), "it has 4 of the 8 heads that its config names, in one of 2 processes. Its heads in the"),
        (split(Fused(2)), "split over 2 processes, and this one has 1 head of an unknown number, so its heads in the"),
        (split(Fused(4, total=6)), "split over 2 processes, and this one has 2 heads of 6, so its heads in the"),
    ):
        said = refused(model, x)
        assert why in said, said
        assert ADVICE in said
    assert captured(Fused(4, total=4), x).attention[0].part is None
    att = captured(split(Fused(4, total=4)), x).attention[0]
    assert att.part is not None
    assert att.part.heads == (2 * rank, 2 * rank + 1)


@two_processes
@pytest.mark.thorough
def test_heads_whose_numbers_are_not_known_are_refused(tmp_path: Path) -> None:
    run(some_heads, tmp_path)
