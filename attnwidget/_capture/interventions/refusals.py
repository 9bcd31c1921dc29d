"""Refuse, before a model runs, edits that cannot be made in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ..._utils.choices import matches_name
from ..modules.coverage import SCRIPTED, is_scripted_attention
from ..modules.selection import nearest_name, shown
from ..session.callers import module_names
from .edits import EditPlan, EditRule

COMPILED = (
    "{} is compiled, and compiled code cannot be edited: give the original model (model._orig_mod of the result of "
    "torch.compile), or run without model.compile()"
)
DROPS = (
    "{} drops weights at random in training and does not report which, so an edited head could not drop the same: "
    "call model.eval(), set its dropout to 0, or edit only by 'zero', {{'output': …}} or "
    "{{'from': …, 'take': 'outputs'}}"
)
DROPOUT = re.compile(r"att\w*drop")  # attributes that hold the dropout of weights
HEADS_OF_CONFIG = ("num_attention_heads", "encoder_attention_heads", "decoder_attention_heads", "num_heads", "n_head")


def refuse(model: nn.Module, plan: EditPlan) -> None:
    """Refuse edits that cannot be made.

    Raises:
        ValueError: the model is compiled or scripted; no module has a name; or the config shows that a head or a layer
            from the end does not exist.
    """
    names = module_names(model)
    for module in model.modules():
        name = names.get(id(module), type(module).__name__)
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise ValueError(COMPILED.format(name))
        if isinstance(module, torch.jit.ScriptModule) and is_scripted_attention(module) and plan.names(name):
            raise ValueError(f"{name} cannot be edited: {SCRIPTED}")
    _refuse_unknown_names(model, plan, list(names.values()))
    _refuse_dropout(model, plan, names)
    _refuse_numbers(getattr(model, "config", None), plan)


def _refuse_dropout(model: nn.Module, plan: EditPlan, names: Mapping[int, str]) -> None:
    """Refuse edits that need weights of modules with dropout; the rest is refused when it is called.

    The module of a layer number is known only when it runs, so numbers are refused here only if all modules drop.
    """
    rules = [rule for rule in plan.rules if any(one is not None and one.output is None for one in rule.edits)]
    shares = {
        names.get(id(module), type(module).__name__): max(found) if module.training else 0.0
        for module in model.modules()
        if (found := [_share(x) for one, x in _attributes(module) if DROPOUT.search(one)])
    }
    numbered = all(shares.values()) and any(isinstance(rule.layer, int) for rule in rules)
    for name, share in shares.items():
        if share and (numbered or any(rule.layer is None or rule.names(name, None) for rule in rules)):
            raise ValueError(DROPS.format(name))


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield a module's attributes and submodules by name, and the dropout of torch's own attention."""
    yield from vars(module).items()
    yield from module.named_children()
    if isinstance(module, nn.MultiheadAttention):
        yield "attention_dropout", module.dropout


def _share(x: Any) -> float:
    """Return the probability of a dropout module or number; 0 for anything else."""
    found = getattr(x, "p", x) if isinstance(x, nn.Module) else x
    return float(found) if isinstance(found, float) and 0 < found <= 1 else 0.0


def _refuse_unknown_names(model: nn.Module, plan: EditPlan, names: list[str]) -> None:
    for rule in plan.rules:
        if not isinstance(rule.layer, str | re.Pattern):
            continue
        plain = rule.layer if isinstance(rule.layer, re.Pattern) else re.sub(r" #\d+$", "", rule.layer)
        if not any(matches_name(plain, name) for name in names):
            raise ValueError(
                f"edits names {shown(rule.layer)}: {nearest_name(rule.layer, names)}no module of "
                f"{type(model).__name__} has this name or a part of it; model.named_modules() lists them"
            )


def _refuse_numbers(config: Any, plan: EditPlan) -> None:
    """Refuse heads beyond the count in the model's config, and count layers from the end by it, if it has one.

    It may count other layers than those with attention, so a layer that does not exist is refused when all have run.
    """
    counts = [n for one in _configs(config) for name in HEADS_OF_CONFIG if isinstance(n := _of(one, name), int)]
    layers = (
        None if list(_configs(config))[1:] or _of(config, "is_encoder_decoder") else _of(config, "num_hidden_layers")
    )
    for rule in plan.rules:
        if isinstance(rule.layer, int) and rule.layer < 0:
            in_config = None if plan.cross else layers
            rule.number = _from_the_end(rule, in_config if plan.layers is None else len(plan.layers))
        most = max(counts, default=0)
        missing = [head for head in rule.heads or () if most and not -most <= head < most]
        if missing:
            raise ValueError(
                f"edits has {rule.key!r}, but the model has heads 0 to {most - 1}, and no head {missing[0]}"
            )


def _from_the_end(rule: EditRule, layers: Any) -> int:
    """Return the number of a layer that is given from the end."""
    assert isinstance(rule.layer, int)
    if not isinstance(layers, int):
        raise ValueError(
            f"edits has the key {rule.key!r}, but the number of layers is known only after they have run: count them "
            "from the first, 0"
        )
    if layers + rule.layer < 0:
        raise ValueError(f"edits has layer {rule.layer}, but the model has {layers} layers")
    return layers + rule.layer


def _configs(config: Any) -> Iterator[Any]:
    """Yield a config and the configs inside it."""
    if config is None:
        return
    yield config
    inner: Iterable[Any] = vars(config).values() if hasattr(config, "__dict__") else ()
    for one in inner:
        if hasattr(one, "model_type") and hasattr(one, "to_dict"):
            yield from _configs(one)


def _of(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # a property may need something missing
        return None
