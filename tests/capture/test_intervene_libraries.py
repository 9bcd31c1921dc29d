"""Edits of models that other libraries wrap, quantize, offload or shard."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import edited_copies as copies
import pytest
import torch
import torch.distributed as dist
from captured import DECODERS, batch, build
from test_intervene_calls import E, text
from torch import Tensor, nn
from torch.testing import assert_close

from attnwidget import effect, find_heads, intervene, sweep

pytest.importorskip("transformers")
EDIT = {(1, (0, 2)): {"drop_keys": [1, 3]}}
HAS_GLOO = dist.is_available() and bool(getattr(dist, "is_gloo_available", lambda: False)())


def llama(implementation: str = "sdpa") -> Any:
    return copies.sharpened(build(DECODERS["Llama"], implementation), 3.0)


def logits(model: Any, edits: Any = EDIT) -> Tensor:
    with torch.no_grad(), intervene(model, edits):
        found: Tensor = model(**batch()).logits
    return found


def wanted(model: Any) -> Tensor:
    """The same edit made in the weights of an eager model."""
    own = copies.without(lambda rows, keys: (keys == 1) | (keys == 3))
    found: Tensor = copies.run(model, batch(), {(1, 0): own, (1, 2): own}).logits
    return found


def test_low_rank_adapters_of_peft() -> None:
    peft = pytest.importorskip("peft")

    def adapted(implementation: str) -> Any:
        torch.manual_seed(3)
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        return peft.get_peft_model(llama(implementation), config).eval()

    model = adapted("sdpa")
    assert_close(logits(model), wanted(adapted("eager")), rtol=1e-4, atol=1e-5)
    by_name = {("model.layers.1", heads): edit for (_, heads), edit in EDIT.items()}
    assert torch.equal(logits(model, by_name), logits(model))


def test_offloaded_weights_of_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.cpu_offload(llama(), execution_device=torch.device("cpu"))
    assert torch.equal(logits(model), logits(llama()))
    ids = batch()["input_ids"][:1]
    assert list(sweep(model, ids, target=5)) == list(sweep(llama(), ids, target=5))
    assert find_heads(model, [ids], kind="sink") == find_heads(llama(), [ids], kind="sink")


def test_inputs_stay_where_they_are_while_parameters_are_offloaded() -> None:
    class Offloaded(nn.Module):
        """A model whose first parameter is nowhere until it is needed."""

        def __init__(self) -> None:
            super().__init__()
            self.away = nn.Parameter(torch.empty(2, device="meta"))
            self.model = llama()

        def forward(self, input_ids: Tensor) -> Any:
            return self.model(input_ids)

    ids = batch()["input_ids"][:1]
    found, plain = effect(Offloaded().eval(), ids, EDIT, target=5), effect(llama(), ids, EDIT, target=5)
    assert (found.before, found.after) == (plain.before, plain.after)
    assert len(sweep(Offloaded().eval(), ids, target=5)) == 12
    assert find_heads(Offloaded().eval(), [ids], kind="sink")[0]["n"] == 1


def test_quantized_weights_of_torchao() -> None:
    quantization = pytest.importorskip("torchao.quantization")
    model, eager = llama(), llama("eager")
    for one in (model, eager):
        quantization.quantize_(one, quantization.Int8WeightOnlyConfig())
    assert_close(logits(model), wanted(eager), rtol=1e-4, atol=1e-5)


def test_weights_of_a_kind_that_is_not_followed() -> None:
    layer = nn.MultiheadAttention(E, 4, batch_first=True).eval()
    changed = copy.deepcopy(layer)
    changed.in_proj_weight = nn.Parameter(Unreal(changed.in_proj_weight.detach()))
    x = text()
    with torch.no_grad(), pytest.raises(ValueError, match="has edited nothing"), intervene(changed, {(0, 1): "zero"}):
        changed(x, x, x)


class Unreal(Tensor):
    """A kind of tensor of its own."""

    @staticmethod
    def __new__(cls, x: Tensor) -> Any:
        return torch.Tensor._make_subclass(cls, x)


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    """One process, which meets nobody over the network."""
    if not HAS_GLOO:
        pytest.skip("this torch has no gloo")
    from torch.distributed.device_mesh import init_device_mesh

    try:
        dist.init_process_group("gloo", init_method=(tmp_path / "store").as_uri(), rank=0, world_size=1)
    except RuntimeError as error:
        pytest.skip(f"gloo finds no address of this machine: {error}")
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_a_sharded_model_is_edited_as_without(mesh: Any) -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has fully_shard elsewhere")
    model = llama()
    plain = logits(model)
    for layer in model.model.layers:
        fsdp.fully_shard(layer, mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)
    assert torch.equal(logits(model), plain)
