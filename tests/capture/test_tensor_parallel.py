"""Models that transformers itself spreads: by `tp_plan` over processes, and by `device_map` with accelerate's hooks."""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from captured import weights
from test_context_parallel import run
from test_processes import IDS, llama, two_processes
from torch import nn

from attnwidget import Capture, capture

pytestmark = pytest.mark.processes

transformers = pytest.importorskip("transformers")
HAS_ACCELERATE = importlib.util.find_spec("accelerate") is not None
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen 3": ("Qwen3Config", {"head_dim": 8}),
    "phi 3": ("Phi3Config", {"pad_token_id": 0}),
    "gemma 3": ("Gemma3TextConfig", {"head_dim": 8, "layer_types": ["full_attention", "sliding_attention"]}),
    "gpt-oss": ("GptOssConfig", {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}),
}


def build(kind: str) -> Any:
    name, more = MODELS[kind]
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 50}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    torch.manual_seed(0)
    config = getattr(transformers, name)(**{**sizes, **heads, **more})
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def captured(model: nn.Module, **how: Any) -> Capture:
    with torch.no_grad(), capture(model, **how) as cap:
        model(IDS)
    return cap


def in_parallel(rank: int, mesh: Any, path: Path) -> None:
    from torch.distributed.tensor import DTensor  # here, for not every torch has it

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    if not HAS_ACCELERATE:  # which transformers asks for wherever a device is named, and does not use for this
        transformers.integrations.accelerate.is_accelerate_available = lambda: True
    for kind in MODELS:
        how = {"tp_plan": "auto", "attn_implementation": "eager"}
        model = transformers.AutoModelForCausalLM.from_pretrained(path / kind, **how).eval()
        whole, cap = captured(build(kind)), captured(model, strict=False)
        if not any(isinstance(one, DTensor) for one in model.parameters()):  # a transformers that splits them itself
            assert "its parameters are not split by torch" in "".join(map(str, cap.skipped.values()))
            (path / "refused").touch()
            return
        assert len(cap.attention) == len(whole.attention) == 2, kind
        assert cap.skipped == {}, kind
        for att, expected in zip(cap.attention, whole.attention, strict=True):
            heads = range(8) if att.part is None or att.part.heads is None else att.part.heads
            assert len(heads) == att.shape.H
            for head, number in enumerate(heads):
                assert torch.allclose(att.block(head=head), expected.block(head=number), atol=1e-5), (kind, number)
        if kind == "llama":
            assert cap.attention[0].part.heads == tuple(range(4 * rank, 4 * rank + 4))
            cap.save(path / "run-{rank}.safetensors")


@two_processes
@pytest.mark.thorough
def test_heads_of_a_tensor_parallel_plan_have_the_models_numbers(tmp_path: Path) -> None:
    for kind in MODELS:
        build(kind).save_pretrained(tmp_path / kind)
    run(in_parallel, tmp_path)
    if (tmp_path / "refused").exists():
        pytest.skip(f"transformers {transformers.__version__} splits its tensors without torch: refused, and said so")
    joined, whole = Capture.load(tmp_path / "run-*.safetensors"), captured(build("llama"))
    assert all(
        torch.allclose(weights(one), weights(other), atol=1e-5)
        for one, other in zip(joined.attention, whole.attention, strict=True)
    )


# A map of devices: accelerate puts a function of its own in the place of each module's forward, which brings the
# weights and moves what the module is given.


def with_hooks(model: nn.Module) -> nn.Module:
    """Let each module that has weights bring them for its call, as accelerate's hooks do for what lies elsewhere."""
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False))
        if own:
            elsewhere = {name: x.detach().clone() for name, x in own.items()}
            set_weights(module, {name: x.to("meta") for name, x in own.items()})
            old = module._old_forward = module.forward  # type: ignore[assignment]
            forward = functools.partial(brought, module, elsewhere)
            module.forward = functools.update_wrapper(forward, old)  # type: ignore[method-assign]
    return model


def brought(module: Any, elsewhere: dict[str, torch.Tensor], *arguments: Any, **keywords: Any) -> Any:
    set_weights(module, elsewhere)
    try:
        return module._old_forward(*arguments, **keywords)
    finally:
        set_weights(module, {name: x.to("meta") for name, x in elsewhere.items()})


def set_weights(module: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    for name, x in weights.items():
        setattr(module, name, nn.Parameter(x, requires_grad=False))


def same(found: Capture, expected: Capture) -> None:
    assert (list(found.calls), found.skipped, found.tokens) == (list(expected.calls), {}, expected.tokens)
    for one, other in zip(found.attention, expected.attention, strict=True):
        assert torch.equal(weights(one), weights(other))
        assert torch.equal(one.block("contribution"), other.block("contribution"))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_weights_that_are_brought_for_each_call_are_captured_as_without(implementation: str) -> None:
    plain, hooked = (llama(attn_implementation=implementation) for _ in range(2))
    same(captured(with_hooks(hooked)), captured(plain))
    assert all(x.is_meta for x in hooked.parameters())
    assert "o_proj has its weights elsewhere" in str(captured(hooked).attention[0].why_not("logit"))


@pytest.mark.parametrize("place", ["disk", "cpu"])
def test_a_model_with_a_map_of_devices_is_captured_as_without(place: str, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    where = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.norm": "cpu", "lm_head": "cpu"}
    where |= {f"model.layers.{i}": place if i else "cpu" for i in range(3)}
    plain, model = llama(), llama()
    model = accelerate.dispatch_model(
        model, device_map=where, offload_dir=tmp_path, main_device="cpu", force_hooks=True
    )
    same(captured(model), captured(plain))
