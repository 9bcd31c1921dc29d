"""A text over several processes, in a ring: q, k and v by position are one attention, by the lines of docs/scale.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from test_context_parallel import run
from test_processes import two_processes
from torch import Tensor, nn
from torch.testing import assert_close

from attnwidget import AttentionStack, capture

pytestmark = pytest.mark.processes

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
N, LAYERS, PROCESSES = 13, 2, 2
OWN = ([0, 1, 2, 11, 12, 10], [3, 4, 5, 6, 7, 8, 9])  # some of the first and of the last, and what is between


def lines() -> dict[str, Any]:
    """Run the lines of the page."""
    found: dict[str, Any] = {}
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    exec(next(one for one in code if "def of_positions" in one), found)
    return found


class RingLayer(nn.Module):
    """Causal attention of four heads, which two keys share each; of some positions, keys go round in a ring."""

    positions: Tensor | None = None  # of this process; None: all

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8)
        self.kept: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        parts = {"q": self.q_proj, "k": self.k_proj, "v": self.v_proj}
        self.kept = {part: of(x).unflatten(-1, (-1, 4)).transpose(1, 2) for part, of in parts.items()}
        q, k, v = self.kept.values()
        if self.positions is None:
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.in_a_ring(q, k, v, self.positions)

    def in_a_ring(self, q: Tensor, k: Tensor, v: Tensor, own: Tensor) -> Tensor:
        """Attend to the keys of one process after the other; outputs are joined by their normalizers."""
        total, found = torch.full((*q.shape[:3], 1), -torch.inf), torch.zeros_like(q)
        for source in range(PROCESSES):
            k_there, v_there, there = (from_process(x, source) for x in (k, v, own))
            scores = q @ k_there.repeat_interleave(2, 1).mT / 2
            scores = scores.masked_fill(there > own[:, None], -torch.inf)
            here = scores.logsumexp(-1, keepdim=True)
            both = torch.logaddexp(total, here)
            part = (scores - both).exp() @ v_there.repeat_interleave(2, 1)
            total, found = both, found * (total - both).exp() + part
        return found


def from_process(x: Tensor, source: int) -> Tensor:
    """Return what one process has, in all."""
    shape = torch.tensor(x.shape)
    dist.broadcast(shape, source)
    found = x.contiguous() if dist.get_rank() == source else torch.empty(shape.tolist(), dtype=x.dtype)
    dist.broadcast(found, source)
    return found


class RingModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(RingLayer() for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).transpose(1, 2).flatten(2)
        return x


def text() -> Tensor:
    return torch.randn(1, N, 16, generator=torch.Generator().manual_seed(1))


def keep_a_part(rank: int, _: Any, path: Path) -> None:
    positions = torch.tensor(OWN[rank])
    model = RingModel()
    for layer in model.layers:
        layer.positions = positions
    with torch.no_grad():
        output = model(text()[:, positions])
    layers = {f"layers.{i}": layer.kept for i, layer in enumerate(model.layers)}
    lines()["keep_positions"](str(path / f"part-{rank}.safetensors"), layers, positions, N)
    save_file({"output": output}, path / f"output-{rank}.safetensors")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have written."""
    path: Path = tmp_path_factory.mktemp("positions")
    run(keep_a_part, path)
    return path


def read(path: Path) -> AttentionStack:
    found: AttentionStack = lines()["of_positions"](f"{path}/part-*.safetensors", is_causal=True)
    return found


@two_processes
@pytest.mark.thorough
def test_parts_by_position_are_the_attention_of_one_process(parts: Path) -> None:
    model = RingModel()
    with torch.no_grad(), capture(model) as cap:
        output = model(text())
    for rank, own in enumerate(OWN):  # the ring computes what one process does
        found = load_file(parts / f"output-{rank}.safetensors")["output"]
        assert_close(found, output[:, own], rtol=1e-4, atol=1e-5)
    stack = read(parts)
    assert stack.names == cap.attention.names == ("layers.0", "layers.1")
    for att, expected in zip(stack, cap.attention, strict=True):
        assert (att.shape.H, att.shape.G, att.shape.Q, att.shape.K) == (4, 2, N, N)
        for head in range(4):
            assert_close(att.block(head=head), expected.block(head=head), rtol=1e-4, atol=1e-5)
            assert_close(att.output(head=head), expected.output(head=head), rtol=1e-4, atol=1e-5)


def write(path: Path, rank: int, positions: list[int], length: int = N, layer: str = "layers.0") -> None:
    own = torch.randn(1, 2, len(positions), 4)
    part = path / f"part-{rank}.safetensors"
    lines()["keep_positions"](str(part), {layer: {"q": own, "k": own}}, torch.tensor(positions), length)


def test_positions_that_are_missing_or_doubled_are_named_with_their_files(tmp_path: Path) -> None:
    write(tmp_path, 0, OWN[0])
    with pytest.raises(ValueError, match="position 3 of 13 is there 0 times, in no file"):
        read(tmp_path)
    write(tmp_path, 1, [2, *OWN[1]])
    with pytest.raises(ValueError, match=r"position 2 of 13 is there 2 times, in part-0\.\w+, part-1\.safetensors"):
        read(tmp_path)
    write(tmp_path, 1, [*OWN[1], 13])
    with pytest.raises(ValueError, match=r"position 13 of 13 is there 1 times, in part-1\.safetensors"):
        read(tmp_path)
    write(tmp_path, 0, list(range(12)))
    (tmp_path / "part-1.safetensors").unlink()  # the last position is missing, which only the length tells
    with pytest.raises(ValueError, match="position 12 of 13 is there 0 times, in no file"):
        read(tmp_path)


def test_files_of_other_texts_or_layers_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 0, OWN[0])
    write(tmp_path, 1, OWN[1], length=14)
    with pytest.raises(ValueError, match="the files are not of one text"):
        read(tmp_path)
    write(tmp_path, 1, OWN[1], layer="layers.1")
    with pytest.raises(ValueError, match="have not the same layers"):
        read(tmp_path)
    write(tmp_path, 1, OWN[1])
    assert read(tmp_path)[0].shape.Q == N
