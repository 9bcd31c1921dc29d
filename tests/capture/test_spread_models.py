"""Models spread over two processes in torch's own ways: data parallel, sharded, and in stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.fsdp
from captured import weights
from test_processes import IDS, alone, in_processes, llama, two_processes
from torch import nn

from attnwidget import Capture, capture

pytestmark = [two_processes, pytest.mark.processes, pytest.mark.thorough]


class Stage(nn.Module):
    """Some layers of a model, as a process of a pipeline has them."""

    def __init__(self, model: Any, layers: range) -> None:
        super().__init__()
        self.model, self.layers = model, layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1])[None]
        rotary = self.model.rotary_emb(x, places)
        mask = torch.full((x.shape[1],) * 2, float("-inf")).triu(1)[None, None]
        for i in self.layers:
            found = self.model.layers[i](x, attention_mask=mask, position_embeddings=rotary, position_ids=places)
            x = found[0] if isinstance(found, tuple) else found
        return x


def spread(rank: int, mesh: Any, path: Path) -> None:
    """Run a model in each way, and compare with the whole model in this process; a stage is saved."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    ids = IDS + rank  # each process has samples of its own
    with torch.no_grad(), capture(llama()) as plain:
        plain._model(ids)
    sharded = llama()
    for layer in sharded.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    for model in (DistributedDataParallel(llama()), sharded):
        with torch.no_grad(), capture(model) as cap:
            model(ids)
        assert cap.skipped == {}
        assert cap.tokens == plain.tokens
        for att, expected in zip(cap.attention, plain.attention, strict=True):
            assert att.part == expected.part
            assert torch.equal(weights(att), weights(expected))

    model = llama().model
    x = model.embed_tokens(IDS)
    stage = Stage(model, [range(1), range(1, 3)][rank])
    if rank == 1:
        dist.recv(x, 0)
    with torch.no_grad(), capture(stage) as cap:
        x = stage(x)
    if rank == 0:
        dist.send(x, 1)
    cap.save(path / "stage-{rank}.safetensors")


@pytest.mark.skipif(not hasattr(torch.distributed.fsdp, "fully_shard"), reason="this torch has it elsewhere")
def test_data_parallel_sharded_and_in_stages(tmp_path: Path) -> None:
    in_processes(spread, tmp_path)
    joined, whole = Capture.load(tmp_path / "stage-*.safetensors"), alone()
    assert list(joined.calls) == list(whole.calls)
    for att, expected in zip(joined.attention, whole.attention, strict=True):
        torch.testing.assert_close(weights(att), weights(expected))
