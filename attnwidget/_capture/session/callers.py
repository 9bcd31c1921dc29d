"""The callers of attention functions: which module of a model calls, and whether it attends across."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator
from types import FrameType, MappingProxyType
from typing import Any

import torch
from torch import nn

from ..._utils.quietly import keep_from_model
from ..._utils.validation import kind_of
from ..call.observed_call import ObservedCall, Unreadable
from ..intercept import hooks
from ..intercept.watching import WatchedModules
from ..modules.advice import why_no_model
from ..modules.module_walk import named_modules
from ..modules.position_check import are_ready_made, why_not_positions
from ..modules.self_or_cross import Invocation, Provenance, ToldCross
from ..tracing.traced_tensors import Caller

NOT_WATCHED = (
    "it was called in another way than while the text before it was generated, so the sources of its q and k "
    "were not seen: call it in a capture of its own, or say whether it is cross-attention, capture(cross=…)"
)
CALL = nn.Module._call_impl.__code__  # noqa: SLF001 - of each call of a module: torch has no public name for it
HEAD_COUNT_NAMES = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "nhead")


class ModelCalls:
    """Knows which module of a model calls an attention function, from hooks and the stack.

    Args:
        model: whose calls to record, or None for all calls in this thread.
        told: the user's word on which modules are cross-attention.
    """

    def __init__(self, model: nn.Module | None, told: ToldCross) -> None:
        self.model = model
        self._told = told
        self._provenance = Provenance(lambda: self.finish_pieces(), lambda *found: self.reading_failed(*found))
        self._names: dict[int, str] = {}  # of the model's modules, by identity
        self._roots: dict[int, tuple[nn.Module, dict[int, str]]] = {}  # without a model: outermost modules, their names
        self._watcher: hooks.FunctionWatcher | None = None
        self._watched = WatchedModules(None)

    def reading_failed(self, error: Exception, module: nn.Module | None = None) -> None:
        """Note that our own reading of a call failed: see `hooks.Listener`."""

    def name_for_failure(self, module: nn.Module | None) -> str:
        """Return the name of a module, by default the calling one, whose call could not be read."""
        try:
            name = self._name_of_caller() if module is None else self._names.get(id(module))
        except Exception:  # that may be what failed
            name = None
        return type(self.model if module is None else module).__name__ if name is None else name

    def finish_pieces(self) -> None:
        """Record the attention whose pieces were computed last, if they are kept together."""

    def knows(self, module: nn.Module | None) -> bool:
        """Return whether a module belongs to the model."""
        return id(module) in self._names

    def name_of(self, module: nn.Module) -> str | None:
        """Return the name under which calls of a module are recorded; None if it does not belong to the model."""
        if self.model is None:
            return self._name_of_caller()
        key, watched = id(module), self._watched
        is_news = key not in watched.called and watched.called_interface(module)
        if is_news and not watched and self._watcher is not None:
            self._watcher.exit_early()
        return self._names.get(key)

    def caller(self) -> Caller:
        """Return the calling module, or without a module the calling function."""
        module = self._innermost()
        name = self._name_of_caller()
        return Caller(name, module is not None and "att" in f"{name} {type(module).__name__}".lower())

    def head_count(self) -> int | None:
        """Return the number of heads that the calling module reports."""
        module = self._innermost()
        for name in () if module is None else HEAD_COUNT_NAMES:
            if isinstance(found := getattr(module, name, None), int):
                return found
        return None

    def is_over_positions(self, keys: int, rows: int) -> bool:
        """Return whether the calling module was given so many positions: see `traced_tensors.Reports`."""
        running = self._provenance.innermost()
        if running is None:
            return False
        given = [x for x in (*running.args, *running.kwargs.values()) if isinstance(x, torch.Tensor)]
        for x in given:
            if x.ndim != (3 if x.is_floating_point() else 2):
                continue
            for samples, positions in (x.shape[:2], x.shape[1::-1]):
                if positions == keys and samples and not rows % samples and rows < samples * positions:
                    return True
        return False

    def _modules(self) -> Iterator[nn.Module]:
        """Yield the modules that are running, the innermost first: those of the model, if given."""
        for one in modules_on_stack(sys._getframe(1)):
            if (self.model is None or id(one) in self._names) and not isinstance(one, nn.Softmax | nn.Dropout):
                yield one

    def _innermost(self) -> nn.Module | None:
        return next(self._modules(), None)

    def _name_of_caller(self) -> str | None:
        """Return the name of the innermost running module, or without one of the function."""
        if self.model is not None:
            module = self._innermost()
            return None if module is None else self._names[id(module)]
        modules = [*self._modules()]
        if not modules:
            return calling_function()
        root = modules[-1]
        if id(root) not in self._roots:
            self._roots[id(root)] = (root, module_names(root))
        return self._roots[id(root)][1].get(id(modules[0]), type(modules[0]).__name__)

    def _is_cross(self, name: str, call: ObservedCall) -> bool | None:
        """Return whether a module's call is cross-attention; None if no evidence of `Provenance` decides it."""
        told = self._told.of(name)
        if told is not None or call.cross is not None:
            return call.cross if told is None else told
        if self._provenance.rests(name):
            self._provenance.wake()
            raise Unreadable(NOT_WATCHED)
        running, (queries, keys) = self._running(name), (call.q.shape[2], call.k.shape[2])
        one_head = call.weights is not None and call.weights.shape[1] == 1
        if one_head and running is not None and queries != keys == running.positions:
            return True  # its queries are slots, or one that pools
        is_known = running is not None or self._provenance.innermost() is None
        return self._provenance.is_cross(call.q, call.k, call.inputs) if is_known else None

    def _why_not_positions(self, call: ObservedCall, running: Invocation | None) -> str | None:
        """Return why a call's queries and keys are not positions: see `position_check.why_not_positions`."""
        maker = running
        if running is not None and are_ready_made(call.q, call.k, running):
            maker = self._provenance.maker(lambda one: are_ready_made(call.q, call.k, one))
        return why_not_positions(call, running, maker)

    def _running(self, name: str) -> Invocation | None:
        """Return the running call of a module, or of the one around it; None if they are not watched."""
        if self._provenance.rests(name):
            return None
        running = self._provenance.innermost()
        caller = None if running is None else self._names.get(id(running.module))
        if running is not None and running.module is not self.model and not f"{name}.".startswith(f"{caller}."):
            return None
        return running


def module_of(model: Any) -> nn.Module | None:
    """Return the module in a user's argument; None for None, and for a function.

    Raises:
        TypeError: there is none.
    """
    if model is None or isinstance(model, nn.Module):
        return model
    inner = getattr(model, "model", None)
    if isinstance(inner, nn.Module):
        return inner
    if isinstance(model, type):
        raise TypeError(f"model is the class {model.__name__}: give an instance, the one that is called in the block")
    why = why_no_model(model)
    if why is not None:
        raise TypeError(f"model is {kind_of(model)}: {why}")
    if callable(model):
        return None
    if isinstance(model, str):
        raise TypeError(
            f"model is {model[:80]!r}: give an nn.Module, or the address of a server, such as 'http://localhost:8000'"
        )
    raise TypeError(f"model is {kind_of(model)}: give an nn.Module, or None for all calls in the block")


# Names of modules and callers.


def parts_of(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the parts of a model that may be called directly, such as its encoder, by name; no layers of a list."""
    for name, part in model.named_children():
        if isinstance(part, nn.ModuleList | nn.ModuleDict | nn.Sequential | torch.jit.ScriptModule):
            continue
        if next(part.children(), None) is None:
            continue
        yield f"{prefix}{name}", part
        yield from parts_of(part, f"{prefix}{name}.")


def module_names(model: nn.Module) -> dict[int, str]:
    """Return the names of a model's modules, by identity, without the prefix that `torch.compile` adds to them."""
    plain = ((id(module), name.replace("_orig_mod.", "")) for name, module in named_modules(model))
    own = type(getattr(model, "_orig_mod", model)).__name__
    return {key: name if name not in ("", "_orig_mod") else own for key, name in plain}


def modules_on_stack(frame: FrameType | None) -> Iterator[nn.Module]:
    """Yield the modules whose methods are running, the innermost first."""
    while frame is not None:
        names = frame.f_code.co_varnames
        if names and names[0] == "self":
            found = frame.f_locals.get("self")
            if isinstance(found, nn.Module):
                yield found
        frame = frame.f_back


def calls_running(modules: Collection[int]) -> int:
    """Return how many nested calls of modules, given by identity, are running in this thread."""
    frame, count = sys._getframe(1).f_back, 0
    while frame is not None:
        count += frame.f_code is CALL and id(frame.f_locals.get("self")) in modules
        frame = frame.f_back
    return count


def calling_function() -> str:
    """Return the name of the innermost running function outside torch and this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(("torch.", __package__.rpartition(".")[0] + ".")):
            name = frame.f_code.co_name
            return "attention" if name.startswith("<") else name
        frame = frame.f_back
    return "attention"


@contextlib.contextmanager
def forward_hooks(
    model: nn.Module, begins: Callable[..., None], ends: Callable[[], None], failed: Callable[..., None]
) -> Iterator[None]:
    """Call `begins`, with arguments and keywords, and `ends` with each of a module's calls.

    Args:
        model: the module.
        begins, ends: to be called.
        failed: takes an error of these, and the module.
    """

    def before(module: nn.Module, args: Any, kwargs: Any = MappingProxyType({})) -> None:
        try:
            begins(args, kwargs)
        except Exception as error:
            keep_from_model(error, lambda found: failed(found, module))

    def after(module: nn.Module, *_: Any) -> None:
        try:
            ends()
        except Exception as error:
            keep_from_model(error, lambda found: failed(found, module))

    with contextlib.ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(before, with_kwargs=True, prepend=True).remove)
        stack.callback(model.register_forward_hook(after, always_call=True).remove)
        yield
