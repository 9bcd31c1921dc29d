"""What to do if a capture cannot show a model's attention, in the words of the model's library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ..call.observed_call import EAGER
from ..tracing.traced_tensors import USE_RETURNED_WEIGHTS

RETURNED_WEIGHTS = (
    "give its weights to AttentionWidget.from_weights, or its q, k and v to AttentionWidget, if its code has them"
)
RAISED = "its forward pass ended with {}: the maps of the layers that ran before are whole, and later layers have none"
REORDERED = (
    "the positions of {} are in another order than the text, because of {} in the model, so they have no tokens: give "
    "the tokens in that order, cap.widget(tokens=[…])"
)
OTHER_THREAD = (
    "some of it was called in another thread than the block's, and torch's functions are watched only there: "
    "call it in the thread that entered the block, or enter another capture in each thread"
)
WRAPPED = (
    "it runs under torch.vmap or another transform of torch.func, where tensors have no numbers to keep: call the "
    "model on the whole batch, or in a loop, inside the block"
)
MOST_NAMED = 4  # modules in a line of a report
PYTHON_MODEL = "capture the Python model that it was made from"
BY_LIBRARY = {
    "transformers": EAGER,
    "sentence_transformers": (
        "load the model with model_kwargs={'attn_implementation': 'eager'}, call model[0].auto_model with "
        "output_attentions=True, and give output.attentions to AttentionWidget.from_weights"
    ),
    "transformer_lens": (
        "logits, cache = model.run_with_cache(tokens), then AttentionWidget.from_weights([cache['pattern', i] for i in "
        "range(model.cfg.n_layers)])"
    ),
    "timm": (
        "make the model after timm.layers.set_fused_attn(False), then weights = "
        "timm.utils.AttentionExtract(model, method='fx')(images), and AttentionWidget.from_weights(weights[name]) "
        "shows one of its layers"
    ),
    "torchvision": (
        "from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names; names = "
        "[name for name in get_graph_node_names(model)[1] if 'softmax' in name]; weights = "
        "create_feature_extractor(model, names)(images); AttentionWidget.from_weights(weights[names[0]])"
    ),
    "x_transformers": ("logits, weights = model(tokens, return_attn=True), then AttentionWidget.from_weights(weights)"),
    "esm": (
        "weights = model(tokens, need_head_weights=True)['attentions'], then "
        "AttentionWidget.from_weights(weights.unbind(1))"
    ),
}
BANDS = ("Longformer", "LED")  # whose classes return a band of relative places for each query
OF_BANDS = (
    "its output.attentions hold a band for each query: put column j of query i at key i + j − window // 2 in a matrix "
    "of queries × keys, and give that to AttentionWidget.from_weights"
)
# Objects that are not modules of torch, by the package of their class: the reason and the advice.
NO_MODULES = {
    "onnx": "ONNX runs outside of torch: capture the PyTorch model that it was exported from",
    "onnxruntime": "ONNX runs outside of torch: capture the PyTorch model that it was exported from",
    "openvino": "OpenVINO runs outside of torch: capture the PyTorch model that it was converted from",
    "torch.export": f"an exported program is a graph, not a module: {PYTHON_MODEL}",
    "torch._export": f"an exported program is a graph, not a module: {PYTHON_MODEL}",
    "torch.jit": f"compiled code cannot be watched: {PYTHON_MODEL}",
    "tensorflow": "only torch is watched: give q, k and v to AttentionWidget as arrays, or the weights to from_weights",
    "keras": "only torch is watched: give q, k and v to AttentionWidget as arrays, or the weights to from_weights",
    "jax": "only torch is watched: give q, k and v to AttentionWidget as arrays, or the weights to from_weights",
    "flax": "only torch is watched: give q, k and v to AttentionWidget as arrays, or the weights to from_weights",
    "mlx": "only torch is watched: give q, k and v to AttentionWidget as arrays, or the weights to from_weights",
}


def way_on(modules: Iterable[nn.Module]) -> str:
    """Return what to do if a module's attention cannot be shown.

    Args:
        modules: the module, and those around it; the first of a known library decides.
    """
    for module in modules:
        if type(module).__name__.startswith(BANDS) and type(module).__module__.startswith("transformers."):
            return OF_BANDS
        for kind in type(module).__mro__:
            found = BY_LIBRARY.get(kind.__module__.split(".")[0])
            if found is not None:
                return found
    return RETURNED_WEIGHTS


def with_way_on(why: str, modules: Iterable[nn.Module]) -> str:
    """Return the reason and advice for these modules instead of the general ones."""
    modules = list(modules)
    if any(isinstance(module, torch.fx.GraphModule) for module in modules):
        return f"{why.partition(': ')[0]}: {PYTHON_MODEL}"
    for general in (EAGER, USE_RETURNED_WEIGHTS):
        if why.endswith(general):
            return why.removesuffix(general) + way_on(modules)
    return why


def why_no_model(given: Any) -> str | None:
    """Return why an object that is not a module cannot be captured, with advice; None if it is unknown."""
    kind = type(given).__module__
    return next((why for name, why in NO_MODULES.items() if f"{kind}.".startswith(f"{name}.")), None)


def way_on_unseen(model: nn.Module | None) -> str:
    """Return what to do if nothing was seen of a model; of any model if there is none."""
    if isinstance(model, torch.jit.ScriptModule | torch.fx.GraphModule):
        return f"nothing can be seen inside a graph: {PYTHON_MODEL}"
    if model is not None:
        return way_on([model])
    return f"run the model inside the block, in the thread that entered it, or {RETURNED_WEIGHTS}"


def under_transform() -> bool:
    """Return whether a transform of `torch.func`, such as vmap, is running: its tensors may not outlive it."""
    return _innermost is not None and _innermost() is not None


_innermost = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)


def incomplete(skipped: Mapping[str, str], whole: int) -> list[str]:
    """Return what a capture lacks: how many maps are whole, then a line for each reason, with its modules.

    Args:
        skipped: the reason of each module that is not shown, by name.
        whole: how many maps are.
    """
    if not skipped:
        return []
    of_reason: dict[str, list[str]] = {}
    for name, why in skipped.items():
        of_reason.setdefault(why, []).append(name)
    first = (
        f"{_counted(whole, 'attention map')} can be shown; {_counted(len(skipped), 'module')} cannot, or only in part."
    )
    lines = [first]
    for why, names in of_reason.items():
        some = ", ".join(map(repr, names[:MOST_NAMED]))
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        lines.append(f"{some}{more}: {why}.")
    return lines


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
