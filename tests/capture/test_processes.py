"""Models on several processes: each captures its part, numbered as in the model, and files are read as one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from captured import weights
from torch import Tensor, nn

from attnwidget import Capture, capture
from attnwidget._capture.files import capture_file
from attnwidget._utils.tensor_file import read_tensors

pytestmark = pytest.mark.processes

transformers = pytest.importorskip("transformers")
HAS_GLOO = dist.is_available() and bool(getattr(dist, "is_gloo_available", lambda: False)())
two_processes = pytest.mark.skipif(not HAS_GLOO, reason="this torch has no gloo")
IDS = torch.arange(3, 12)[None]


def llama(**more: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 3, "vocab_size": 50}
    config = transformers.LlamaConfig(**{**sizes, "num_attention_heads": 8, "num_key_value_heads": 4, **more})
    return transformers.LlamaForCausalLM(config).eval()


def by_heads(model: nn.Module, mesh: Any) -> nn.Module:
    """Split the attention of a Llama over the processes of a mesh."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {f"self_attn.{part}_proj": ColwiseParallel() for part in "qkv"} | {"self_attn.o_proj": RowwiseParallel()}
    for layer in model.model.layers:  # type: ignore[union-attr]
        parallelize_module(layer, mesh, plan)
    return model


def in_processes(run: Callable[[int, Any, Path], None], path: Path, size: int = 2) -> None:
    """Run a function in several processes; skip the test where they cannot meet: gloo finds no address."""
    try:
        torch.multiprocessing.spawn(_begin, args=(run, path, size), nprocs=size)
    except Exception as error:  # whose text has the whole stack, in which attention has an interface too
        have_met = (path / "met").exists()
        if not have_met and ("address" in str(error) or "interface" in str(error)):
            pytest.skip(f"gloo finds no address of this machine: {error}")
        raise


def _begin(rank: int, run: Callable[[int, Any, Path], None], path: Path, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=(path / "store").as_uri(), rank=rank, world_size=size)
    (path / "met").touch()
    run(rank, init_device_mesh("cpu", (size,)), path)
    dist.barrier()
    dist.destroy_process_group()


def save_by_heads(rank: int, mesh: Any, path: Path) -> None:
    for name, how in (("run", {}), ("some", {"heads": [0, 5]}), ("picture", {"keep": "overview"})):
        with torch.no_grad(), capture(by_heads(llama(), mesh), **how) as cap:
            cap._model(IDS)
        mine = (4 * rank, 4 * rank + 4)
        expected = {"run": tuple(range(*mine)), "some": (5 * rank,), "picture": tuple(range(*mine))}[name]
        assert [att.part.heads for att in cap.attention] == [expected] * 3, (name, cap.attention[0])
        assert cap.skipped == {}
        cap.save(path / f"{name}-{{rank}}.safetensors")
    with pytest.raises(ValueError, match=r"heads=\[\d\] belong to other processes: this one has heads \d to \d of 8"):
        capture(by_heads(llama(), mesh), heads=[7 - 7 * rank])(IDS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of a model whose heads are split over two processes."""
    path: Path = tmp_path_factory.mktemp("processes")
    in_processes(save_by_heads, path)
    return path


def alone(**how: Any) -> Capture:
    model = llama()
    with torch.no_grad(), capture(model, **how) as cap:
        model(IDS)
    return cap


@two_processes
@pytest.mark.thorough
def test_each_process_numbers_its_heads_as_the_model_does(files: Path) -> None:
    whole = alone()
    for rank in range(2):
        part = Capture.load(files / f"run-{rank}.safetensors")
        for att, expected in zip(part.attention, whole.attention, strict=True):
            for head, number in enumerate(att.part.heads):
                assert torch.allclose(att.block(head=head), expected.block(head=number), atol=1e-5)


@two_processes
@pytest.mark.thorough
def test_the_files_of_all_processes_are_one_capture(files: Path) -> None:
    joined, whole = Capture.load(f"{files}/run-*.safetensors"), alone()
    assert list(joined.calls) == list(whole.calls)
    assert joined.tokens == whole.tokens
    for att, expected in zip(joined.attention, whole.attention, strict=True):
        assert att.shape == expected.shape
        assert att.part is None or att.part.heads is None
        assert torch.allclose(weights(att), weights(expected), atol=1e-5)
        assert torch.allclose(att.output(head=7), expected.output(head=7), atol=1e-5)
    assert joined.widget().facts["heads"] == 8


@two_processes
@pytest.mark.thorough
def test_chosen_heads_are_joined_with_their_numbers(files: Path) -> None:
    att = Capture.load(files / "some-*.safetensors").attention[0]
    assert att.part.heads == (0, 5)
    for head, number in enumerate(att.part.heads):
        assert torch.allclose(att.block(head=head), alone().attention[0].block(head=number), atol=1e-5)


@two_processes
@pytest.mark.thorough
def test_parts_that_are_missing_doubled_or_of_other_runs_are_named(files: Path, tmp_path: Path) -> None:
    first, second = ((files / f"run-{rank}.safetensors").read_bytes() for rank in range(2))
    (tmp_path / "run-0.safetensors").write_bytes(first)
    with pytest.raises(ValueError, match=r"the part of process 1 of 2 is missing: there are run-0\.safetensors"):
        Capture.load(tmp_path / "run-*.safetensors")
    (tmp_path / "run-7.safetensors").write_bytes(first)
    with pytest.raises(ValueError, match=r"run-0\.safetensors and run-7\.safetensors are both of process 0"):
        Capture.load(tmp_path / "run-*.safetensors")
    (tmp_path / "run-7.safetensors").write_bytes(second)
    assert len(Capture.load(tmp_path / "run-*.safetensors").attention) == 3
    alone().save(tmp_path / "run-8.safetensors")
    with pytest.raises(
        ValueError, match=r"run-8\.safetensors is from a single process, and other files are of several"
    ):
        Capture.load(tmp_path / "run-*.safetensors")
    with pytest.raises(FileNotFoundError, match="no file matches"):
        Capture.load(tmp_path / "other-*.safetensors")
    picture, whole = Capture.load(files / "picture-*.safetensors").attention[0], alone().attention[0]
    assert picture.shape.H == whole.shape.H
    assert torch.allclose(picture.block(head=5), whole.block(head=5), atol=1e-5)


# Parts that were captured without torch.distributed.


def save(cap: Capture, path: Path) -> None:
    cap.save(path)


def test_layers_of_several_files_are_one_capture(tmp_path: Path) -> None:
    for i, layers in enumerate(([0], [1, 2])):
        save(alone(layers=layers), tmp_path / f"stage-{i}.safetensors")
    joined, whole = Capture.load(tmp_path / "stage-*.safetensors"), alone()
    assert list(joined.calls) == list(whole.calls)
    assert all(torch.equal(weights(a), weights(b)) for a, b in zip(joined.attention, whole.attention, strict=True))


def test_more_than_ten_files_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    model = llama(num_hidden_layers=12)
    for i in range(12):
        with torch.no_grad(), capture(model, layers=i) as cap:
            model(IDS)
        save(cap, tmp_path / f"stage-{i}.safetensors")
    names = Capture.load(tmp_path / "stage-*.safetensors").attention.names
    assert names == tuple(f"model.layers.{i}.self_attn" for i in range(12))


@pytest.mark.parametrize("window", [None, 3])
def test_queries_of_several_files_are_one_capture(window: int | None, tmp_path: Path) -> None:
    def recorded(**how: Any) -> Capture:
        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 50}
        config = transformers.MistralConfig(
            **sizes, num_attention_heads=4, num_key_value_heads=2, sliding_window=window
        )
        model = transformers.MistralForCausalLM(config).eval()
        with torch.no_grad(), capture(model, **how) as cap:
            model(IDS)
        return cap

    for i, rows in enumerate((slice(4), slice(4, None))):
        save(recorded(queries=rows), tmp_path / f"rows-{i}.safetensors")
    joined, whole = Capture.load(tmp_path / "rows-*.safetensors"), recorded()
    assert joined.attention[0].part.queries == tuple(range(IDS.shape[1]))
    assert all(torch.equal(weights(a), weights(b)) for a, b in zip(joined.attention, whole.attention, strict=True))
    assert joined.attention[1].own_keys(range(2, 5)) == [2, 3, 4]


def test_heads_with_masks_sinks_and_biases_of_their_own_are_laid_together(tmp_path: Path) -> None:
    class Biased(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

    q, k, v = torch.randn(1, 8, 6, 4), torch.randn(1, 4, 6, 4), torch.randn(1, 4, 6, 3)
    for name, mask in (("bias", torch.randn(1, 8, 6, 6)), ("mask", torch.rand(1, 8, 6, 6) > 0.4)):
        mask[..., 0] = True if mask.dtype == torch.bool else 0.5
        whole = capture(Biased())
        whole(q, k, v, mask)
        for i in range(2):
            half = capture(Biased(), heads=slice(4 * i, 4 * i + 4))
            half(q, k, v, mask)
            half.save(tmp_path / f"{name}-{i}.safetensors")
        joined = Capture.load(tmp_path / f"{name}-*.safetensors").attention[0]
        assert torch.equal(weights(joined), weights(whole.attention[0]))
        assert joined.part.heads == tuple(range(8))  # whether a third file has more is not known


def test_files_that_are_not_parts_of_one_are_refused(tmp_path: Path) -> None:
    def both(one: Capture, other: Capture) -> Capture:
        for i, cap in enumerate((one, other)):
            save(cap, tmp_path / f"part-{i}.safetensors")
        return Capture.load(tmp_path / "part-*.safetensors")

    with pytest.raises(ValueError, match="have the same heads and the same queries: if processes each run"):
        both(alone(), alone())
    with pytest.raises(ValueError, match=r"part-0\.safetensors and of part-1\.safetensors both have head 3"):
        both(alone(heads=slice(0, 4)), alone(heads=slice(3, 8)))
    with pytest.raises(ValueError, match="no file has head 2: give all files of one run"):
        both(alone(heads=slice(0, 2)), alone(heads=slice(4, 6)))
    with pytest.raises(ValueError, match="have head 1 of one before head 4 of the other"):
        both(alone(heads=[0, 4]), alone(heads=[1, 5]))
    twice = alone(heads=slice(0, 4))
    with torch.no_grad(), twice:
        twice._model(IDS)
    with pytest.raises(ValueError, match=r"part-0\.safetensors has 2 forward passes but part-1\.safetensors 1"):
        both(twice, alone(heads=slice(4, 8)))
    longer = capture(llama(), heads=slice(4, 8))
    with torch.no_grad():
        longer(torch.arange(3, 14)[None])
    with pytest.raises(ValueError, match="differ in Q, K, so they are not parts of one"):
        both(alone(heads=slice(0, 4)), longer)


def test_the_number_of_a_process_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has \{rank\} for the number of a process, and torch.distributed runs no"):
        alone().save(tmp_path / "run-{rank}.safetensors")


@pytest.mark.parametrize("entry", [[2, 2], [-1, 2], ["0", 2], [0], 5, {"rank": 0}])
def test_a_garbled_number_of_a_process_is_refused(entry: Any, tmp_path: Path) -> None:
    path = tmp_path / "garbled.safetensors"
    alone(layers=0).save(path)
    header, tensors = read_tensors(path, capture_file.HEADER)
    capture_file._write(path, tensors, json.dumps({**json.loads(header or ""), "process": entry}))
    with pytest.raises(ValueError, match="cannot be read"):
        Capture.load(path)
