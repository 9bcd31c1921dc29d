"""What one of two processes captures, without a second one: torch runs as if it were there, and nothing is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from captured import weights
from torch import Tensor, nn

from attnwidget import Capture, capture, intervene

pytest.importorskip("torch.testing._internal.distributed.fake_pg")
if not dist.is_available():
    pytest.skip("this torch has no processes", allow_module_level=True)

B, H, N, D, SIZE = 3, 6, 4, 5, 7  # samples, heads in all, positions in this process, of a head, of the model
ONE_PROCESS = "capture the model in one process"


@contextmanager
def process(rank: int, size: int = 2) -> Iterator[Any]:
    """Let torch take this for one of several processes; yields their mesh."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield init_device_mesh("cpu", (size,))
    finally:
        dist.destroy_process_group()


class Layer(nn.Module):
    """Attention of some heads, from projections that may be split."""

    def __init__(self, heads: int = H) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(SIZE, heads * D) for _ in range(3))

    def heads(self, x: Tensor) -> Iterator[Tensor]:
        return (p(x).unflatten(-1, (-1, D)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(*self.heads(x)).transpose(1, 2).flatten(2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class Fused(Layer):
    """One projection for q, k and v, whose rows do not tell how many heads there are."""

    def __init__(self, heads: int, total: int | None = None) -> None:
        super().__init__(heads)
        self.qkv = nn.Linear(SIZE, 3 * D * heads)
        if total is not None:
            self.config = SimpleNamespace(num_attention_heads=total)
        del self.q_proj, self.k_proj, self.v_proj

    def heads(self, x: Tensor) -> Iterator[Tensor]:
        return (y.unflatten(-1, (-1, D)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))


def split(model: nn.Module, mesh: Any) -> nn.Module:
    """Leave a process its part of the rows of each projection, as torch's ColwiseParallel does."""
    from torch.distributed.tensor import DTensor, Shard

    for child in model.children():
        for name, x in [*child.named_parameters()]:
            own = x.detach().chunk(mesh.size())[mesh.get_local_rank()].clone()
            setattr(child, name, nn.Parameter(DTensor.from_local(own, mesh, [Shard(0)], run_check=False)))
        child.forward = lambda x, child=child: F.linear(x, child.weight.to_local(), child.bias.to_local())  # type: ignore[assignment]
    return model


def text(length: int = N) -> Tensor:
    return torch.randn(B, length, SIZE, generator=torch.Generator().manual_seed(1))


def captured(model: nn.Module, x: Tensor, **how: Any) -> Capture:
    model = nn.Sequential(model)
    with torch.no_grad(), capture(model, **how) as cap:
        model(x)
    return cap


def refused(model: nn.Module, x: Tensor, **how: Any) -> str:
    with pytest.raises(ValueError, match="none of") as found:
        captured(model, x, **how)
    return str(found.value)


# Heads.


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_numbers_its_heads_as_the_model_does(rank: int, tmp_path: Path) -> None:
    whole = captured(Layer(), text()).attention[0]
    with process(rank) as mesh:
        cap = captured(split(Layer(), mesh), text())
        some = captured(split(Layer(), mesh), text(), heads=[1, 5]).attention[0]
        with pytest.raises(
            ValueError, match=rf"to other processes: this one has heads {3 * rank} to {3 * rank + 2} of 6"
        ):
            captured(split(Layer(), mesh), text(), heads=5 - 5 * rank)
        cap.save(tmp_path / "run-{rank}.safetensors")
    assert some.part.heads == ((1,), (5,))[rank]
    for att in (cap.attention[0], Capture.load(tmp_path / f"run-{rank}.safetensors").attention[0]):
        assert att.part.heads == tuple(range(3 * rank, 3 * rank + 3))
        for i, head in enumerate(att.part.heads):
            for b in range(B):
                torch.testing.assert_close(att.block(batch=b, head=i), whole.block(batch=b, head=head))
    torch.testing.assert_close(weights(some)[:, 0], weights(whole)[:, (1, 5)[rank]])


def test_files_of_both_processes_are_one_capture(tmp_path: Path) -> None:
    whole = captured(Layer(), text()).attention[0]
    for rank in (0, 1):
        with process(rank) as mesh:
            captured(split(Layer(), mesh), text()).save(tmp_path / "run-{rank}.safetensors")
            captured(split(Layer(), mesh), text(), heads=[0, 4]).save(tmp_path / "some-{rank}.safetensors")
            captured(split(Layer(), mesh), text(), keep="overview").save(tmp_path / "picture-{rank}.safetensors")
    (joined,) = Capture.load(tmp_path / "run-*.safetensors").attention
    assert joined.part is None or joined.part.heads is None
    torch.testing.assert_close(weights(joined), weights(whole))
    torch.testing.assert_close(joined.output(2, 5), whole.output(2, 5))
    (some,) = Capture.load(tmp_path / "some-*.safetensors").attention
    assert some.part.heads == (0, 4)
    torch.testing.assert_close(weights(some), weights(whole)[:, [0, 4]])
    picture = Capture.load(tmp_path / "picture-*.safetensors").attention[0]
    assert picture.part is None or picture.part.heads is None
    torch.testing.assert_close(weights(picture), weights(whole))
    first, second = ((tmp_path / f"run-{rank}.safetensors").read_bytes() for rank in (0, 1))
    (tmp_path / "run-1.safetensors").unlink()
    with pytest.raises(ValueError, match=r"the part of process 1 of 2 is missing: there are run-0\.safetensors"):
        Capture.load(tmp_path / "run-*.safetensors")
    (tmp_path / "run-7.safetensors").write_bytes(first)
    with pytest.raises(ValueError, match=r"run-0\.safetensors and run-7\.safetensors are both of process 0"):
        Capture.load(tmp_path / "run-*.safetensors")
    (tmp_path / "run-7.safetensors").write_bytes(second)
    assert len(Capture.load(tmp_path / "run-*.safetensors").attention) == 1
    captured(Layer(), text()).save(tmp_path / "run-8.safetensors")
    with pytest.raises(
        ValueError, match=r"run-8\.safetensors is from a single process, and other files are of several"
    ):
        Capture.load(tmp_path / "run-*.safetensors")


def test_heads_whose_numbers_are_not_known_are_refused() -> None:
    with process(1) as mesh:
        for model, why in (
            (Fused(4, total=8), "it has 4 of the 8 heads that its config names, in one of 2 processes"),
            (split(Fused(2), mesh), "split over 2 processes, and this one has 1 head of an unknown number"),
            (split(Fused(4, total=6), mesh), "split over 2 processes, and this one has 2 heads of 6"),
        ):
            said = refused(model, text())
            assert why in said, said
            assert "split its projections by whole heads, as torch's ColwiseParallel does" in said
        assert captured(Fused(4, total=4), text()).attention[0].part is None
        assert captured(Fused(3, total=4), text()).attention[0].part is None
        att = captured(split(Fused(4, total=4), mesh), text()).attention[0]
        assert att.part.heads == (2, 3)
        assert captured(split(Layer(), mesh), text(), heads=slice(3, 6)).attention[0].part.heads == (3, 4, 5)


# Positions.


def other(x: Tensor) -> Tensor:
    """What a second process would have, in the shape of what this one has."""
    return x.flip(2) * 1.5


class AllKeys(Layer):
    """Some queries and the keys of both processes."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (torch.cat([x, other(x)], 2) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v)


class AllKeysWrittenOut(Layer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (torch.cat([x, other(x)], 2) for x in (k, v))
        return (q @ k.mT / 2).softmax(-1) @ v


class Ring(Layer):
    """The keys of one process after the other."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v) + F.scaled_dot_product_attention(q, other(k), other(v))


class RingWrittenOut(Layer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / 2).softmax(-1) @ v + (q @ other(k).mT / 2).softmax(-1) @ other(v)


class Exchanged(Layer):
    """All positions of some heads."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (torch.cat([x, other(x)], 2)[:, :3] for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v)[:, :, :N].repeat(1, 2, 1, 1)


class Spread(Layer):
    """q, k and v as DTensors."""

    def __init__(self, mesh: Any, axis: int) -> None:
        super().__init__()
        self.mesh, self.axis = mesh, axis

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor, Shard
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = (DTensor.from_local(x, self.mesh, [Shard(self.axis)], run_check=False) for x in (q, k, v))
        with sdpa_kernel(SDPBackend.MATH):  # the one that DTensors have on the CPU
            return F.scaled_dot_product_attention(q, k, v).to_local()  # type: ignore[attr-defined]


REFUSED: dict[str, tuple[Callable[[Any], nn.Module], str]] = {
    "all keys": (lambda mesh: AllKeys(), "it has 4 queries and 8 keys in one of 2 processes"),
    "all keys, written out": (lambda mesh: AllKeysWrittenOut(), "it has 4 queries and 8 keys in one of 2 processes"),
    "ring": (lambda mesh: Ring(), "with the same queries to one part of the keys after the other, in one of 2"),
    "ring, written out": (lambda mesh: RingWrittenOut(), "the same queries to one part of the keys after the other"),
    "exchanged": (lambda mesh: Exchanged(), "was given 4 positions and attends with 8, in one of 2 processes"),
    "by positions": (
        lambda mesh: Spread(mesh, 2),
        "spread over 2 processes by position (a DTensor with Shard(2)",
    ),
    "by heads": (lambda mesh: Spread(mesh, 1), "its q, k and v are DTensors, and this process may have only a part"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_some_positions_are_never_shown_as_all(kind: str) -> None:
    make, why = REFUSED[kind]
    with process(1) as mesh:
        said = refused(make(mesh), text())
        assert why in said, said
        assert ONE_PROCESS in said
        assert refused(make(mesh), text(), keep="overview") == said


def test_an_edit_of_some_positions_is_refused() -> None:
    with process(0) as mesh:
        for model in (AllKeys(), Exchanged(), Spread(mesh, 2)):
            why = "capture the model in one process|have its projections"
            with torch.no_grad(), pytest.raises(ValueError, match=why), intervene(model, {0: "uniform"}):
                model(text())


@pytest.mark.parametrize("size", [2, 3])
def test_more_keys_than_all_processes_have_are_those_of_a_cache(size: int) -> None:
    """Twice as many keys as queries may be those of two processes, but of three they would be three times as many."""

    class Cached(Layer):
        def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, *(torch.cat([x, other(x)[:, :, :times]], 2) for x in (k, v)))

    for times in (1, 3, N):
        with process(0, size):
            if times == N and size == 2:
                assert "4 queries and 8 keys" in refused(Cached(), text())
            else:
                assert N + times == captured(Cached(), text()).all[0].shape.K


def test_whole_texts_are_captured_in_each_process_as_in_one() -> None:
    class Crossed(Layer):
        def forward(self, x: Tensor) -> Tensor:
            (q, _, _), (_, k, v) = self.heads(x), self.heads(torch.cat([x, x.flip(1)], 1))
            return F.scaled_dot_product_attention(q, k, v)

    with process(0):
        assert captured(Layer(), text(9)).attention[0].shape.Q == 9
        assert captured(Crossed(), text(), cross="0").cross[0].shape.K == 2 * N
    assert captured(AllKeys(), text()).all[0].shape.K == 2 * N  # of one process alone
    assert list(captured(Ring(), text()).all.names) == ["0", "0 #2"]
