"""Parts of a model that leave attention to transformers' interface: while one runs, torch's functions rest unwatched.

A model of a class of one's own, around a model of transformers, is watched as a whole, for its class may call torch's
attention itself. Once the layers inside have turned out to call the interface, only what is outside of them is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import nn

from ..modules.module_walk import modules
from .watching import WatchedModules

LEAST = 8  # modules in a part that is worth two more hooks
INTERRUPTED = (
    "it was interrupted, and the block went on: attention that a part of it has computed since then, called alone, was "
    "not watched: capture that in a block of its own"
)


class Watcher(Protocol):
    """Watches torch's functions in the thread that entered it."""

    rests: bool  # whether it does not watch for a time

    def rest(self) -> bool:
        """Stop watching for a time; return whether it did."""

    def resume(self) -> None:
        """Go on watching."""


class UnwatchedParts:
    """Has a watcher rest while certain parts of a model run, in the thread that made this.

    Args:
        watcher: of torch's functions.
        model: that is captured.
    """

    def __init__(self, watcher: Watcher, model: nn.Module) -> None:
        self._watcher, self._model = watcher, model
        self._thread = threading.get_ident()
        self._hooks: dict[int, list[Callable[[], None]]] = {}  # what takes those of a part off
        self._states: dict[int, tuple[list[nn.Module], list[object]]] = {}  # of a part, its modules and what they run
        self._resting: nn.Module | None = None  # the part that runs

    def find(self, watched: WatchedModules) -> None:
        """Put hooks on the parts in which no module is left that may have to be watched, if there is news of any.

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
                put_on.append(part.register_forward_pre_hook(lambda module, _: self._begin(module)).remove)
                put_on.append(part.register_forward_hook(lambda module, *_: self._end(module), always_call=True).remove)

    @property
    def is_interrupted(self) -> bool:
        """Whether a part has begun and not ended."""
        return self._resting is not None

    def remove(self) -> None:
        """Take all hooks off."""
        for key in list(self._hooks):
            self._take_off(key)

    def begin_anew(self) -> None:
        """Watch again, also where a part was interrupted so that its hooks have not run."""
        if (self._watcher.rests or self._resting is not None) and threading.get_ident() == self._thread:
            self._resting = None
            self._watcher.resume()

    def _take_off(self, key: int) -> None:
        for remove in self._hooks[key]:
            remove()
        del self._hooks[key], self._states[key]

    def _begin(self, part: nn.Module) -> None:
        if self._resting is not None:
            return  # a part within one that runs
        known = self._states.get(id(part))  # None of a copy of a part
        if known is not None and _state(known[0]) == known[1] and self._watcher.rest():
            self._resting = part

    def _end(self, part: nn.Module) -> None:
        if part is self._resting:
            self.begin_anew()


def _state(inside: list[nn.Module]) -> list[object]:
    """Return what modules run: their children, their classes' functions, and forward functions of their own."""
    own = [vars(module) for module in inside]
    found: list[object] = [child for one in own for child in one["_modules"].values()]
    found += [one.get("forward") for one in own]
    return found + [getattr(kind, "forward", None) for kind in dict.fromkeys(map(type, inside))]


def _parts(module: nn.Module, watched: WatchedModules) -> Iterator[nn.Module]:
    """Yield the largest parts of a module in which none is left to be watched, and those within that may run alone."""
    inside = modules(module)
    if len(inside) < LEAST or isinstance(module, torch.jit.ScriptModule):
        return
    if not any(watched.is_left(one) for one in inside):
        yield module
        if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            return  # of layers, each of which is a small part of a pass
    for child in module.children():
        yield from _parts(child, watched)
