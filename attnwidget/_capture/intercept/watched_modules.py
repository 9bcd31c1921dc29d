"""Parts of a model that leave attention to transformers' interface: while one runs, watching torch's functions pauses.

A custom model around a model of transformers is watched as a whole, because its class may call torch's attention
itself. After the layers inside have called the interface, only the code outside them is watched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import nn

from ..._utils.quietly import quietly
from ..modules.module_walk import modules
from .watching import WatchedModules

LEAST = 8  # modules in a part that is worth two more hooks
INTERRUPTED = (
    "it was interrupted, and the block went on. Attention that a part of it has computed since then, called directly, "
    "was not watched: capture that in a block of its own"
)


class Watcher(Protocol):
    """Watches torch's functions in the thread that entered it."""

    rests: bool  # whether watching is paused

    def rest(self) -> bool:
        """Pause watching; return whether it did."""

    def resume(self) -> None:
        """Resume watching."""


class UnwatchedParts:
    """Pauses a watcher while certain parts of a model run, in the thread that created this.

    Args:
        watcher: of torch's functions.
        model: that is captured.
        failed: takes an error of our own hooks, and the module.
    """

    def __init__(self, watcher: Watcher, model: nn.Module, failed: Callable[..., None]) -> None:
        self._failed = failed
        self._watcher, self._model = watcher, model
        self._thread = threading.get_ident()
        self._hooks: dict[int, list[Callable[[], None]]] = {}  # functions that remove the hooks of a part
        self._states: dict[int, tuple[list[nn.Module], list[object]]] = {}  # a part's modules and their code
        self._resting: nn.Module | None = None  # the running part

    def find(self, watched: WatchedModules) -> None:
        """Put hooks on the parts in which no module may need to be watched, if there is news of any.

        Args:
            watched: the modules of the model.
        """
        if threading.get_ident() != self._thread or not watched.has_news():
            return
        found = {id(part): part for part in _parts(self._model, watched)}
        for key in [key for key in self._hooks if key not in found]:
            self._take_off(key)
        for key, part in found.items():
            if key not in self._hooks:
                inside = modules(part)
                self._states[key], put_on = (inside, _state(inside)), self._hooks.setdefault(key, [])
                begin, end = self._hook(self._begin), self._hook(self._end)
                put_on.append(part.register_forward_pre_hook(begin).remove)
                put_on.append(part.register_forward_hook(end, always_call=True).remove)

    def _hook(self, do: Callable[[nn.Module], None]) -> Callable[..., None]:
        return lambda module, *_: quietly(lambda error: self._failed(error, module), do, module)

    @property
    def is_interrupted(self) -> bool:
        """Whether a part has begun and not ended."""
        return self._resting is not None

    def remove(self) -> None:
        """Take all hooks off."""
        for key in list(self._hooks):
            self._take_off(key)

    def begin_anew(self) -> None:
        """Resume watching, even if a part was interrupted and its hooks have not run."""
        if (self._watcher.rests or self._resting is not None) and threading.get_ident() == self._thread:
            self._resting = None
            self._watcher.resume()

    def _take_off(self, key: int) -> None:
        for remove in self._hooks[key]:
            remove()
        del self._hooks[key], self._states[key]

    def _begin(self, part: nn.Module) -> None:
        if self._resting is not None:
            return  # a part within a running part
        known = self._states.get(id(part))  # None for a copy of a part
        if known is not None and _state(known[0]) == known[1] and self._watcher.rest():
            self._resting = part

    def _end(self, part: nn.Module) -> None:
        if part is self._resting:
            self.begin_anew()


def _state(inside: list[nn.Module]) -> list[object]:
    """Return the code that modules run: their children, their classes' functions, and their own forward functions."""
    own = [vars(module) for module in inside]
    found: list[object] = [child for one in own for child in one["_modules"].values()]
    found += [one.get("forward") for one in own]
    return found + [getattr(kind, "forward", None) for kind in dict.fromkeys(map(type, inside))]


def _parts(module: nn.Module, watched: WatchedModules) -> Iterator[nn.Module]:
    """Yield the largest parts of a module without a watched module, and those within that may run separately."""
    inside = modules(module)
    if len(inside) < LEAST or isinstance(module, torch.jit.ScriptModule):
        return
    if not any(watched.is_left(one) for one in inside):
        yield module
        if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            return  # a layer is a small part of a pass
    for child in module.children():
        yield from _parts(child, watched)
