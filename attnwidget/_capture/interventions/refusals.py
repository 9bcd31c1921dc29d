"""What of a model cannot be edited, as far as that can be told before it runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ..._utils.choices import matches_name
from ..coverage import SCRIPTED, is_scripted_attention
from ..model_calls import module_names
from ..selection import nearest_name, shown
from .edits import EditPlan, EditRule

COMPILED = (
    "{} is compiled, and inside compiled code nothing can be edited: give the model that was compiled "
    "(model._orig_mod of what torch.compile returned), or do without model.compile()"
)
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
    _refuse_numbers(getattr(model, "config", None), plan)


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
                f"edits has {rule.key!r}, but the model has heads 0 to {most - 1}: head {missing[0]} is none"
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
