"""Keys and values that many calls read, as in chunks of queries or row by row, are kept once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnwidget import Capture, capture

N, STEP = 64, 8


def by_chunk(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.cat([(q[:, :, i : i + STEP] @ k.mT).softmax(-1) @ v for i in range(0, N, STEP)], 2)


def by_row(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows = [(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1]) for i in range(N)]
    return torch.cat([F.scaled_dot_product_attention(*row) for row in rows], 2)


def with_a_change(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    found = []
    for i in range(0, N, STEP):
        found.append(F.scaled_dot_product_attention(q[:, :, i : i + STEP], k, v))
        k[:, :, i] += 1.0
    return torch.cat(found, 2)


class Model(nn.Module):
    def __init__(self, way: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.way, self.keys = nn.Linear(32, 96), way, []

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        self.keys = [q, k]
        return self.way(q, k, v).transpose(1, 2).flatten(2)


def captured(way: Any) -> tuple[Model, Capture]:
    model = Model(way).eval()
    with torch.no_grad(), capture(model) as cap:
        model(torch.randn(2, N, 32, generator=torch.Generator().manual_seed(1)))
    return model, cap


@pytest.mark.parametrize("way", [by_chunk, by_row])
def test_they_are_kept_once(way: Any, tmp_path: Path) -> None:
    model, cap = captured(way)
    q, k = model.keys
    once = 3 * q.numel() * 4
    assert (
        cap.nbytes < 4 * once
    )  # some calls copy before the memory is kept; row by row they would keep 20 times as much
    for number, att in enumerate(cap.calls.values()):
        first, keys = (number * STEP, N) if way is by_chunk else (number, number + 1)
        rows = slice(first, first + att.shape.Q)
        scale = 1.0 if way is by_chunk else 8**-0.5
        expected = (q[1, 2, rows] @ k[1, 2, :keys].mT * scale).softmax(-1)
        assert (att.block(batch=1, head=2) - expected).abs().max() < 1e-6
    cap.save(tmp_path / "cap.safetensors")
    last = list(Capture.load(tmp_path / "cap.safetensors").calls.values())[-1]
    assert torch.equal(last.block(batch=1, head=2), list(cap.calls.values())[-1].block(batch=1, head=2))


def test_changed_keys_are_kept_anew() -> None:
    _, cap = captured(with_a_change)
    assert cap.skipped == {}
    first, second = (list(cap.calls.values())[i].k for i in (0, 1))
    assert first is not None
    assert second is not None
    assert torch.allclose(second[:, :, 0], first[:, :, 0] + 1)
    assert torch.equal(second[:, :, 1:], first[:, :, 1:])
