"""Which modules compute attention, by their names, and which of them ran without a call that was seen."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from ..._utils.quietly import quietly
from ..tracing.traced_tensors import USE_RETURNED_WEIGHTS
from .module_walk import has_children, named_modules

WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
ATTENTION = re.compile(r"att|.*att(n|ention)s?|mha|mhsa|mhca|gqa|mqa")
# Modules near attention that are not attention, by the last word of their class.
OTHER_THINGS = {
    "act", "adapter", "adapt", "bias", "cache", "config", "dense", "drop", "dropout", "embed", "embedding", "ff", "ffn",
    "gate", "hc", "hook", "in", "input", "layerscale", "linear", "ln", "mask", "mlp", "norm", "out", "output", "pos",
    "proj", "projection", "rope", "rotary", "scale", "scores", "softmax", "weights",
}  # fmt: skip
SCRIPTED = "torch.jit compiled it, and nothing can be seen inside: capture the Python model that it was made from"
UNSEEN = (
    "it ran, but no softmax of a product of q and k met v in it (it may be linear attention, or call an "
    f"unknown kernel): {USE_RETURNED_WEIGHTS}"
)


class AttentionModules:
    """The modules of a model that compute attention, by their names, and which of them have run.

    Args:
        model: the model.
        names: of its modules, by identity.
        failed: takes an error of our own hook, and the module.
    """

    def __init__(self, model: nn.Module, names: dict[int, str], failed: Callable[..., None]) -> None:
        self._failed = failed
        self._names, self._root = names, names.get(id(model), "")
        self._candidates = {id(module): module for name, module in named_modules(model) if _may_attend(name, module)}
        self._ran: dict[str, nn.Module] = {}
        self._handles: dict[int, RemovableHandle] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Note which of them run inside the block; each is watched until its first call."""
        scripted = [one for one in self._candidates.values() if _is_scripted(one)]
        self._handles = {}
        with contextlib.ExitStack() as stack:
            if scripted:  # these take no hooks
                stack.callback(register_module_forward_pre_hook(self._note).remove)
            stack.callback(self._remove_all)
            for key, module in self._candidates.items():
                if not _is_scripted(module):
                    self._handles[key] = module.register_forward_pre_hook(self._note)
            yield

    def _remove_all(self) -> None:
        for handle in self._handles.values():
            handle.remove()

    def _note(self, module: nn.Module, *_: Any) -> None:
        quietly(lambda error: self._failed(error, module), self._ran_now, module)

    def _ran_now(self, module: nn.Module) -> None:
        if id(module) in self._candidates:
            self._ran[self._names[id(module)]] = module
        handle = self._handles.get(id(module))
        if handle is not None:
            handle.remove()

    def unseen(self, seen: Collection[str]) -> dict[str, str]:
        """Return the names of modules that ran without a call that was seen, each with the reason.

        Args:
            seen: the names of modules whose calls were recorded or refused.
        """
        covered = set(seen) | {name[: i.start()] for name in seen for i in re.finditer(r"\.", name)}
        if seen:
            covered.add(self._root)
        left = [name for name in self._ran if name not in covered and self._parent(name) not in seen]
        inner = [name for name in left if not any(self._holds(name, other) for other in left)]
        return {name: SCRIPTED if _is_scripted(self._ran[name]) else UNSEEN for name in inner}

    def _parent(self, name: str) -> str:
        return name.rpartition(".")[0] or self._root

    def _holds(self, name: str, other: str) -> bool:
        return other != name and (name == self._root or other.startswith(f"{name}."))


def _may_attend(name: str, module: nn.Module) -> bool:
    """Return whether the name of a module or its class, or its scripted code, says that it computes attention."""
    kind = type(module)
    if kind is nn.MultiheadAttention:
        return True
    if kind.__module__.startswith("torch.nn."):
        return False
    if isinstance(module, torch.jit.ScriptModule):
        return is_scripted_attention(module)
    words = _words_of(kind.__name__)
    if any(map(ATTENTION.fullmatch, words)) and words[-1] not in OTHER_THINGS:
        return True
    words = _words_of(name.rpartition(".")[2])
    is_named = bool(words) and ATTENTION.fullmatch(words[-1]) is not None  # attn, self_attn; not attn_norm
    if not is_named or not has_children(module):
        return False
    return sum(x.ndim > 1 for x in module.parameters()) > 1  # q, k, v and output; an adapter has one matrix


@functools.lru_cache(1024)
def _words_of(name: str) -> list[str]:
    return [word.lower() for word in WORDS.findall(name)]


def _is_scripted(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


def is_scripted_attention(module: Any) -> bool:
    try:
        graph = str(module.inlined_graph)
    except (AttributeError, RuntimeError):  # it has no forward
        return False
    return "aten::softmax" in graph or "scaled_dot_product_attention" in graph
