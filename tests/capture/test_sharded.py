"""Models that are sharded by torch's FSDP, here over one process, are captured as they are without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from captured import GPT2, build, weights
from torch import Tensor, nn

from attnwidget import Capture, capture

pytest.importorskip("transformers")
fsdp = pytest.importorskip("torch.distributed.fsdp")
HAS_GLOO = dist.is_available() and bool(getattr(dist, "is_gloo_available", lambda: False)())
pytestmark = pytest.mark.skipif(
    not (HAS_GLOO and hasattr(fsdp, "fully_shard")), reason="this torch has no gloo, or no fully_shard"
)


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    """One process, which meets nobody over the network."""
    from torch.distributed.device_mesh import init_device_mesh

    try:
        dist.init_process_group("gloo", init_method=(tmp_path / "store").as_uri(), rank=0, world_size=1)
    except RuntimeError as error:
        pytest.skip(f"gloo finds no address of this machine: {error}")
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


class WritesOut(nn.Module):
    """Attention that is written out."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def heads(self, x: Tensor) -> list[Tensor]:
        return [y.unflatten(-1, (2, 4)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1)]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return ((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2)


class CallsTorch(WritesOut):
    """Attention by torch's function."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*self.heads(x)).transpose(1, 2).flatten(2)


def of_torch() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


MODELS: dict[str, tuple[Any, str]] = {
    "transformers": (lambda: build(GPT2, "sdpa"), "transformer.h"),
    "written out": (lambda: nn.Sequential(WritesOut(), WritesOut()), ""),
    "torch's function": (lambda: nn.Sequential(CallsTorch(), CallsTorch()), ""),
    "torch's modules": (of_torch, "layers"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_sharded_model_is_captured_as_without(kind: str, mesh: Any) -> None:
    make, layers = MODELS[kind]
    model: nn.Module = make().eval()
    x = torch.randint(3, 50, (1, 7)) if kind == "transformers" else torch.randn(1, 7, 8)
    plain = run(model, x)
    for layer in model.get_submodule(layers).children():
        fsdp.fully_shard(layer, mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)
    for found in (run(model, x), run(model, x, gradients=True)):
        assert list(found.calls) == list(plain.calls)
        assert (found.skipped, found.tokens) == ({}, plain.tokens)
        for att, expected in zip(found.attention, plain.attention, strict=True):
            assert type(att.q) is Tensor
            assert torch.equal(weights(att), weights(expected))


def run(model: nn.Module, x: Tensor, gradients: bool = False) -> Capture:
    with torch.set_grad_enabled(gradients), capture(model) as cap:
        model(x)
    return cap
