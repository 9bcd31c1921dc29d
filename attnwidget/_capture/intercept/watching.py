"""Find the modules of a model that may call torch's attention functions themselves; for these torch is watched.

Watching costs some microseconds for each function that a model calls. Models of transformers leave attention to its
interface, which reports each call. For them nothing is watched; or, if the code of a class could also write attention
out, only until its modules have called the interface.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Collection, Hashable, Sequence
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from ..modules.module_walk import modules

OWN = __package__.rpartition(".")[0] + "."
KNOWN_PACKAGES = ("torch.", "transformers.", "sentence_transformers.")  # whose classes are searched for these calls:
ATTENTION_FUNCTIONS = {"scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention"}
NOT_FOLLOWED = (
    "it did not call transformers' attention interface, as another layer of its class did, so torch's functions "
    "were not watched for it: capture again. From now on every layer of this class is watched until it has called"
)


class WatchedModules:
    """The modules for which torch's functions are watched, until they have called transformers' interface.

    Modules of one class with the same settings count as alike: after one has called the interface, the others are
    expected to. `missed` reports one that then has not; in later captures the modules of its class count separately.

    Args:
        model: to look through; None: count every call.
    """

    def __init__(self, model: nn.Module | None) -> None:
        found = [] if model is None else modules_to_watch(model)
        self._kinds = {id(one): _kind_of(one) for one in found}
        self._left = set(self._kinds.values())
        self.called: set[int] = set()  # modules that have called the interface, by identity
        self._has_news = False

    def __bool__(self) -> bool:
        """Return whether there are undecided modules."""
        return bool(self._left)

    def is_left(self, module: nn.Module) -> bool:
        """Return whether it is undecided that a module leaves its attention to the interface."""
        return self._kinds.get(id(module)) in self._left

    def called_interface(self, module: nn.Module) -> bool:
        """Note that a module has called transformers' interface; return whether its kind is new."""
        if id(module) in self.called:
            return False
        kind = self._kinds.get(id(module))
        if kind is None:
            return False
        self.called.add(id(module))
        is_news = kind in self._left
        self._left.discard(kind)
        self._has_news |= is_news
        return is_news

    def has_news(self) -> bool:
        """Return whether any kind has called the interface for the first time since the last question."""
        found, self._has_news = self._has_news, False
        return found

    def missed(self, ran: Collection[int]) -> list[int]:
        """Return the modules, by identity, that have run unwatched though they may have needed it.

        Args:
            ran: modules that have run.
        """
        found = [
            key for key, kind in self._kinds.items() if key in ran and key not in self.called and kind not in self._left
        ]
        _of_several_ways.update(kind[0] for key in found if isinstance(kind := self._kinds[key], tuple))
        return found


_of_several_ways: weakref.WeakSet[type] = (
    weakref.WeakSet()
)  # some modules of these classes call the interface, others do not


def _kind_of(module: nn.Module) -> Hashable:
    """Return the kind of a module: a class and its settings; for others their identity."""
    kind = type(module)
    if not kind.__module__.startswith(KNOWN_PACKAGES) or kind in _of_several_ways or _has_forward_of_its_own(module):
        return id(module)
    plain = ((name, x) for name, x in vars(module).items() if x is None or isinstance(x, bool | str))
    return kind, frozenset((name, x) for name, x in plain if not name.startswith("_"))


def modules_to_watch(model: nn.Module) -> list[nn.Module]:
    """Return the modules that may call torch's attention without transformers' interface."""
    every = modules(model)
    kinds = {kind: _may_call_torch(kind) for kind in {type(module) for module in every}}
    return [module for module in every if kinds[type(module)] or _has_forward_of_its_own(module)]


def _has_forward_of_its_own(module: nn.Module) -> bool:
    """Return whether the forward of one module was replaced, except to move it between devices."""
    forward = vars(module).get("forward")
    if forward is None:
        return False
    function = getattr(forward, "func", getattr(forward, "__func__", forward))
    return not _module_of(function).startswith("accelerate.")


def _module_of(function: Any) -> str:
    return str(getattr(function, "__globals__", {}).get("__name__", ""))


def _may_call_torch(kind: type) -> bool:
    """Return whether the code of a class names one of torch's attention functions, or writes attention out."""
    if not kind.__module__.startswith(KNOWN_PACKAGES):
        return True
    own = [one for one in kind.__mro__ if one not in (nn.Module, object)]
    methods = tuple(f for one in own for f in vars(one).values() if isinstance(f, FunctionType))
    known = _searched.get(kind)
    if known is None or known[0] != methods:  # a method may have been replaced since
        known = _searched[kind] = methods, _names_attention(kind, methods)
    return known[1]


_searched: weakref.WeakKeyDictionary[type, tuple[tuple[FunctionType, ...], bool]] = weakref.WeakKeyDictionary()


def _names_attention(kind: type, methods: Sequence[FunctionType]) -> bool:
    wanted = ATTENTION_FUNCTIONS | ({"softmax", "Softmax"} if "att" in kind.__name__.lower() else set())
    unwrapped = [one for f in methods for one in (f, inspect.unwrap(f))]
    known = (
        *KNOWN_PACKAGES,
        "torch",
        "contextlib",
        __package__.rpartition(".")[0] + ".",
    )  # and our own, which wrap those of transformers
    if any(not _module_of(f).startswith(known) for f in unwrapped):
        return True
    return any(wanted & _names_in(f.__code__) for f in unwrapped if isinstance(f, FunctionType))


def _names_in(code: CodeType) -> set[str]:
    inner = (_names_in(const) for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*inner)
