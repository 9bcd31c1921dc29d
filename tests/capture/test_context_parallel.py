"""Context parallel: a process that has some of a text's positions never shows them as if they were all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from captured import weights
from test_processes import IDS, in_processes, llama, two_processes
from torch import Tensor, nn

from attnwidget import Capture, capture, intervene

pytestmark = pytest.mark.processes

N, PROCESSES = 12, 2


class Attention(nn.Module):
    """Attention of two heads, of which a process has some positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8) for _ in range(3))

    def heads(self, x: Tensor) -> Iterator[Tensor]:
        return (p(x).unflatten(-1, (2, 4)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(*self.heads(x)).transpose(1, 2).flatten(2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


def gather(x: Tensor, axis: int = 2) -> Tensor:
    """Return what all processes have, as a function of one's own would."""
    parts = [torch.empty_like(x) for _ in range(PROCESSES)]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, axis)


class AllKeys(Attention):
    """Some queries and all keys."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v, n = gather(k), gather(v), q.shape[2]
        mask = torch.ones(n, N, dtype=torch.bool).tril(dist.get_rank() * n)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class AllKeysWrittenOut(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = gather(k), gather(v)
        return (q @ k.mT / 2).softmax(-1) @ v


class Ring(Attention):
    """The keys of one process after the other, and the outputs joined by their normalizers."""

    def part(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (gather(x).chunk(PROCESSES, 2) for x in (k, v))
        each = [torch.logsumexp(q @ part.mT / 2, -1, keepdim=True) for part in keys]
        total = torch.logsumexp(torch.cat(each, -1), -1, keepdim=True)
        parts = zip(keys, values, each, strict=True)
        return sum((self.part(q, a, b) * (one - total).exp() for a, b, one in parts), torch.zeros(()))


class RingWrittenOut(Ring):
    def part(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / 2).softmax(-1) @ v


class Exchanged(Attention):
    """All positions of some heads."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rank, n = dist.get_rank(), q.shape[2]
        q, k, v = (gather(x)[:, rank : rank + 1] for x in (q, k, v))
        return gather(F.scaled_dot_product_attention(q, k, v), 1)[:, :, rank * n : (rank + 1) * n]


class Spread(Attention):
    """q, k and v as DTensors."""

    def __init__(self, mesh: Any, axis: int) -> None:
        super().__init__()
        self.mesh, self.axis = mesh, axis

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor, Shard
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = (DTensor.from_local(x, self.mesh, [Shard(self.axis)]) for x in (q, k, v))
        with sdpa_kernel(SDPBackend.MATH):  # the one that DTensors have on the CPU
            return F.scaled_dot_product_attention(q, k, v).to_local()  # type: ignore[attr-defined]


class WrittenOut(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / 2).softmax(-1) @ v


class Crossed(Attention):
    """Cross-attention to a source that is twice as long, and later to the same, backwards."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        (q, _, _), (_, k, v) = self.heads(x), self.heads(torch.cat([x, x.flip(1)], 1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def captured(model: nn.Module, x: Tensor, **how: Any) -> Capture:
    model = nn.Sequential(model)
    with torch.no_grad(), capture(model, **how) as cap:
        model(x)
    return cap


def refused(model: nn.Module, x: Tensor, **how: Any) -> str:
    with pytest.raises(ValueError, match="none of") as found:
        captured(model, x, **how)
    return str(found.value)


def some_positions(rank: int, mesh: Any, _: Path) -> None:
    from torch.distributed.tensor.experimental import context_parallel

    whole = torch.randn(1, N, 8, generator=torch.Generator().manual_seed(1))
    x = whole.chunk(PROCESSES, 1)[rank]
    for model, why in (
        (AllKeys(), "it has 6 queries and 12 keys in one of 2 processes"),
        (AllKeysWrittenOut(), "it has 6 queries and 12 keys in one of 2 processes"),
        (Ring(), "with the same queries to one part of the keys after the other, in one of 2"),
        (RingWrittenOut(), "with the same queries to one part of the keys after the other, in one of 2"),
        (Exchanged(), "was given 6 positions and attends with 12, in one of 2 processes"),
        (Spread(mesh, 2), r"spread over 2 processes by position (a DTensor with Shard(2))"),
        (Spread(mesh, 1), "its q, k and v are DTensors, and this process may have only a part"),
    ):
        said = refused(model, x)
        assert why in said, (type(model).__name__, said)
        assert "capture the model in one process" in said
        assert refused(model, x, keep="overview") == said
    with torch.no_grad(), pytest.raises(ValueError, match="it has 6 queries and 12 keys"), capture():
        AllKeysWrittenOut()(x)  # without a model, only the lengths tell what is cross-attention
    for model in (AllKeys(), Exchanged(), Spread(mesh, 2)):
        why = r"capture the model in one process|have its projections"
        with torch.no_grad(), pytest.raises(ValueError, match=why), intervene(model, {0: "uniform"}):
            model(x)
    own = whole.clone()
    with context_parallel(mesh, buffers=[own], buffer_seq_dims=[1]):
        assert own.shape[1] == N // PROCESSES
        said = refused(WrittenOut(), own)
        assert "it runs inside torch's context_parallel" in said
        assert "or keep its parts by position and merge them, as docs/scale.md shows" in said
    unaffected(whole)


def unaffected(whole: Tensor) -> None:
    """Try what is captured in each of several processes as it is in one."""
    assert captured(WrittenOut(), whole).attention[0].shape.Q == N
    assert captured(Crossed(), whole, cross="0").cross[0].shape.K == 2 * N
    with torch.no_grad():
        model = llama()
        with capture(model) as cap:
            model.generate(IDS, max_new_tokens=3, do_sample=False, pad_token_id=0)  # type: ignore[operator]
        assert cap.skipped == {}
        assert IDS.shape[1] + 2 == cap.attention[0].shape.Q


def run(do: Callable[[int, Any, Path], None], path: Path) -> None:
    in_processes(do, path, PROCESSES)


@two_processes
@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="context_parallel came with torch 2.6")
def test_some_positions_are_never_shown_as_all(tmp_path: Path) -> None:
    run(some_positions, tmp_path)


def test_in_one_process_parts_of_the_keys_are_what_a_module_attends_to() -> None:
    """Without other processes, two calls are two attentions, as of a text and of an image."""

    class Twice(Attention):
        def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v) + F.scaled_dot_product_attention(q, k.flip(3), v)

    cap = captured(Twice(), torch.randn(1, N, 8))
    assert list(cap.attention.names) == ["0", "0 #2"]
    assert not math.isclose(float(weights(cap.attention[0])[0, 0, 0, 0]), float(weights(cap.attention[1])[0, 0, 0, 0]))
