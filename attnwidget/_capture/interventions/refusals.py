"""What of a model cannot be edited, as far as that can be told before it runs."""

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
    "{} is compiled, and inside compiled code nothing can be edited: give the model that was compiled "
    "(model._orig_mod of what torch.compile returned), or do without model.compile()"
)
DROPS = (
    "{} drops weights at random in training and does not tell which, so that an edited head could not drop the same: "
    "call model.eval(), set its dropout to 0, or edit by 'zero', {{'output': …}} or {{'from': …, 'take': 'outputs'}} "
    "alone"
)
DROPOUT = re.compile(r"att\w*drop")  # an attribute of a module that drops weights
HEADS_OF_CONFIG = ("num_attention_heads", "encoder_attention_heads", "decoder_attention_heads", "num_heads", "n_head")


def refuse(model: nn.Module, plan: EditPlan) -> None:
    """Refuse what cannot be edited.

    Raises:
        ValueError: the model is compiled or scripted; a name that no module has; a head or layer
            that is not there, by the model's config.
    """
    names = module_names(model)
    for module in model.modules():
        name = names.get(id(module), type(module).__name__)
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise ValueError(COMPILED.format(name))
        if isinstance(module, torch.jit.ScriptModule) and is_scripted_attention(module) and plan.may_edit(name):
            raise ValueError(f"{name} cannot be edited: {SCRIPTED}")
    _refuse_unknown_names(model, plan, list(names.values()))
    _refuse_dropout(model, plan, names)
    _refuse_numbers(getattr(model, "config", None), plan)


def _refuse_dropout(model: nn.Module, plan: EditPlan, names: Mapping[int, str]) -> None:
    """Refuse edits that need weights of modules that say that they drop some; others are refused when they are called.

    Which module a number means is known when it runs: these are refused here where all modules drop.
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
    """Yield a module's own attributes and the modules in it, by name; of torch's own attention the dropout."""
    yield from vars(module).items()
    yield from module.named_children()
    if isinstance(module, nn.MultiheadAttention):
        yield "attention_dropout", module.dropout


def _share(x: Any) -> float:
    """Return how much a dropout drops, of its module or number; 0 of anything else."""
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
                f"{type(model).__name__} has that name, or a part of it; model.named_modules() lists them"
            )


def _refuse_numbers(config: Any, plan: EditPlan) -> None:
    """Refuse heads and layers that no layer of the model has, where its config tells how many there are."""
    counts = [n for one in _configs(config) for name in HEADS_OF_CONFIG if isinstance(n := _of(one, name), int)]
    layers = (
        None if list(_configs(config))[1:] or _of(config, "is_encoder_decoder") else _of(config, "num_hidden_layers")
    )
    for rule in plan.rules:
        if isinstance(rule.layer, int) and rule.layer < 0:
            rule.number = _from_the_end(rule, None if plan.cross else layers)
        if isinstance(layers, int) and isinstance(rule.layer, int) and not plan.cross and rule.layer >= layers:
            raise ValueError(f"edits has layer {rule.layer}, but the model has layers 0 to {layers - 1}")
        most = max(counts, default=0)
        missing = [head for head in rule.heads or () if most and not -most <= head < most]
        if missing:
            raise ValueError(
                f"edits has {rule.key!r}, but the model has heads 0 to {most - 1}, and no head {missing[0]}"
            )


def _from_the_end(rule: EditRule, layers: Any) -> int:
    """Return the number of a layer that is counted from the end."""
    assert isinstance(rule.layer, int)
    if not isinstance(layers, int):
        raise ValueError(
            f"edits has the key {rule.key!r}: how many layers there are is known when they have run, so count them "
            "from the first, 0"
        )
    if layers + rule.layer < 0:
        raise ValueError(f"edits has layer {rule.layer}, but the model has {layers} layers")
    return layers + rule.layer


def _configs(config: Any) -> Iterator[Any]:
    """Yield a config and those inside it."""
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
    except Exception:  # a property that needs what is not there
        return None
