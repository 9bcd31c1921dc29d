"""Decide whether q and k come from the same tensor (self-attention) or from two (cross-attention).

Names of modules do not show it, nor do equal lengths. While a capture is open, hooks note which tensors each module
receives and, if there are several, which of them each of its projections receives. Storages are compared, not objects:
a transposed view of x is x. The evidence, in this order:

1. the user: `capture(model, cross=…)`;
2. the call: `is_cross_attention` of a module of transformers;
3. the tensors that q and k were projected from, followed back through projections, norms and convolutions of the
   calling module: the same one, or two; a query that is a parameter of the module attends across;
4. if the module was given q and k ready-made, the same question for the module that called it, and so on;
5. a module that was given only one tensor, and no text as ids, makes q and k from it;
6. of several tensors: the inputs of the projections whose names begin like those of queries and of keys; if a
   projection of keys exists and has not run, the keys belong to another text, kept from an earlier call;
7. the lengths: as many keys as queries, causal, or growing with a cache is self-attention, everything else is not.

Hooks stay on modules that compute attention; they leave the others after the first forward pass. While one thread
generates a text with known layers, the hooks of the layers are off.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from ..._utils.choices import matches_name
from ..._utils.quietly import keep_from_model
from .module_walk import has_children, modules, own_parameters

CROSS_ADVICE = (
    "give True or False for all, names of modules that are cross-attention, dotted parts or globs of them, or a "
    "mapping of such to True or False"
)
CrossLike: TypeAlias = "bool | str | re.Pattern[str] | Iterable[str | re.Pattern[str]] | Mapping[Any, bool]"
NOT_A_SOURCE = re.compile(r"mask|bias|pos|rotary|rope|freq|rel_|relative|alibi|residual|past|cache|^cos$|^sin$", re.I)
QUERY = re.compile(r"^(to_?|w_?|c_|in_)?q(uery|ueries)?(_|$|\d|proj|lin)", re.IGNORECASE)
KEY = re.compile(r"^(to_?|w_?|c_|in_)?k(ey|eys|v)?(_|$|\d|proj|lin|value)", re.IGNORECASE)
VALUE = re.compile(r"^(to_?|w_?|c_|in_)?v(alue|alues)?(_|$|\d|proj|lin)", re.IGNORECASE)
PARAMETER = -1  # in place of a source's number: a parameter of the module itself
LEVELS = 4  # of nested modules that are examined
PARTS = 8  # the most modules in a child that is followed


class ToldCross:
    """The user's word on which modules are cross-attention.

    Args:
        given: True or False, for all modules; names, dotted parts, globs or compiled regular expressions of modules
            that are; or a mapping of these to True or False. None: nothing.

    Raises:
        TypeError: it has another form.
    """

    def __init__(self, given: Any = None) -> None:
        names = given if isinstance(given, Mapping) else {}
        if isinstance(given, bool):
            names = {"*": given}
        elif isinstance(given, str | re.Pattern):
            names = {given: True}
        elif isinstance(given, Iterable) and not isinstance(given, Mapping):
            names = dict.fromkeys(given, True)
        elif given is not None and not isinstance(given, Mapping):
            raise TypeError(f"cross is {given!r}: {CROSS_ADVICE}")
        for name, told in names.items():
            if not isinstance(name, str | re.Pattern) or not isinstance(told, bool):
                raise TypeError(f"cross holds {name!r}: {told!r}: {CROSS_ADVICE}")
        self.names: dict[str | re.Pattern[str], bool] = dict(names)

    def of(self, name: str) -> bool | None:
        """Return whether a module is cross-attention; None if nothing is given for it. The last match counts."""
        told = [told for wanted, told in self.names.items() if wanted == "*" or matches_name(wanted, name)]
        return told[-1] if told else None

    def unknown_name(self, names: Iterable[str]) -> str | None:
        """Return a given name that no module has; None if there is none."""
        names = list(names)
        for wanted in self.names:
            if wanted != "*" and not any(matches_name(wanted, name) for name in names):
                return repr(wanted.pattern if isinstance(wanted, re.Pattern) else wanted)
        return None


class Span(NamedTuple):
    """The memory of a tensor."""

    storage: int
    start: int
    stop: int

    def is_of(self, other: Span) -> bool:
        """Return whether one is a view of the other, or both are views of a third."""
        if self.storage != other.storage:
            return False
        inner, outer = sorted((self, other), key=lambda span: span.stop - span.start)
        return outer.start <= inner.start and inner.stop <= outer.stop


def span_of(x: Any) -> Span | None:
    """Return the memory of a tensor; None if it is not a tensor, or of a special kind."""
    if not isinstance(x, Tensor) or not x.numel():
        return None
    try:
        start = int(x.storage_offset())
        stop = start + 1 + sum((n - 1) * int(step) for n, step in zip(x.shape, x.stride(), strict=True))
        return Span(x.untyped_storage()._cdata, start, stop)
    except (RuntimeError, NotImplementedError):  # without storage, as in vmap
        return None


@dataclass
class Origin:
    """A tensor that a module was given, and may make q or k from."""

    name: str
    span: Span
    shape: torch.Size


@dataclass
class Made:
    """The output of a module's child for a source."""

    name: str
    source: int
    storage: StorageWeakRef  # kept, so that no other storage gets its address


@dataclass
class Invocation:
    """One running call of a module.

    Attributes:
        module: that is called.
        args: its positional arguments.
        kwargs: its keyword arguments.
        made: the outputs of its projections and norms so far.
        ran: names of its children that have run, if they are watched.
    """

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    made: list[Made] = field(default_factory=list)
    ran: set[str] = field(default_factory=set)

    @functools.cached_property
    def origins(self) -> list[Origin]:
        """Return the tensors that q and k may be made from, each once; most calls never need them."""
        with torch._C.DisableTorchFunction():  # a watching mode would see each question to a tensor, which is slow
            return _origins(self.module, self.args, self.kwargs)

    @property
    def has_ids(self) -> bool:
        """Return whether it was given a text as ids: q or k may be made from it as well."""
        named = (*zip(_argument_names(type(self.module)), self.args, strict=False), *self.kwargs.items())
        tensors = [x for name, x in named if isinstance(x, Tensor) and not _is_no_source(name)]
        return any(x.ndim == 2 and not x.is_floating_point() and x.dtype != torch.bool for x in tensors)

    @property
    def positions(self) -> int | None:
        """Return the number of input positions, if the module's first tensor has three axes; else None."""
        shape = self.origins[0].shape if self.origins else ()
        return shape[-2] if len(shape) == 3 else None

    def source_of(self, span: Span | None) -> int | None:
        """Return the number of the source that a tensor is, or was made from; None if unknown."""
        if span is None:
            return None
        for one in reversed(self.made):
            if one.storage.cdata == span.storage:
                return one.source
        given = self.given(span)
        if given is not None:
            return given
        own = (span_of(p) for p in self.module.parameters(recurse=False))
        return PARAMETER if any(p is not None and p.storage == span.storage for p in own) else None

    def given(self, span: Span | None) -> int | None:
        """Return the number of the source that a tensor is."""
        return next((i for i, one in enumerate(self.origins) if span is not None and one.span.is_of(span)), None)


class _Running(threading.local):
    def __init__(self) -> None:
        self.invocations: list[Invocation] = []


class Provenance:
    """Follows the inputs of a model's modules while they run, by hooks.

    Args:
        on_change: is called before another module's call is the innermost.
        failed: takes an error of our own hooks, and the module whose call they watched.
    """

    def __init__(
        self, on_change: Callable[[], None] = lambda: None, failed: Callable[..., None] = lambda *_: None
    ) -> None:
        self._running, self._on_change, self._failed = _Running(), on_change, failed
        self._hooks: dict[int, list[Any]] = {}
        self._followed: set[int] = set()  # modules whose children are watched
        self._needs_following: dict[int, bool] = {}
        self._entered: defaultdict[int, set[int]] = defaultdict(set)  # by thread: modules that a forward pass has run
        self._asked: set[int] = set()
        self._resting: dict[str, nn.Module] = {}  # by name
        self._may_rest = True
        self._lock = threading.Lock()  # of hooks, which several threads with this model find together

    @contextlib.contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch the modules of a model inside the block."""
        try:
            for module in modules(model):
                if _may_compute_attention(module):
                    self._watch(module)
            yield
        finally:
            for hooks in self._hooks.values():
                for hook in hooks:
                    hook.remove()
            for kept in (self._hooks, self._followed, self._needs_following, self._entered, self._resting):
                kept.clear()

    def _watch(self, module: nn.Module) -> None:
        # Functions, not methods, because a model may be copied with its hooks.
        hooks = self._hooks[id(module)] = []  # registered before the first hook: an interrupt may come at any line
        hooks.append(module.register_forward_pre_hook(_calling(self._enter, self._failed), with_kwargs=True))
        leave = _calling(lambda module, *_: self._leave(module), self._failed)
        hooks.append(module.register_forward_hook(leave, always_call=True))

    def rest(self, name: str, module: nn.Module) -> None:
        """Stop watching a module until `wake`: its calls repeat earlier ones, so nothing is asked about it."""
        if not self._may_rest or id(module) not in self._hooks:
            return
        running = self._running.invocations
        with self._lock:
            inner = any(id(one) in self._hooks for one in modules(module) if one is not module)
            if inner or not self._may_rest or not running or running[-1].module is not module:
                return  # a module with children may be running when it is to be watched again
            running.pop()
            for hook in self._hooks[id(module)]:
                hook.remove()
            del self._hooks[id(module)]
            self._followed.discard(id(module))
            self._resting[name] = module

    def wake(self, *, for_good: bool = False) -> None:
        """Watch the resting modules again.

        Args:
            for_good: none rests from now on, because several threads run the model.
        """
        if not self._resting and not for_good:
            return
        with self._lock:
            self._may_rest &= not for_good
            for module in self._resting.values():
                self._watch(module)
            self._resting.clear()

    def rests(self, name: str) -> bool:
        """Return whether a module is not watched, though it may compute attention."""
        return name in self._resting

    def forward_ended(self) -> set[int]:
        """Stop watching modules that have run and compute no attention; return all that have run, by identity.

        Modules that another thread is running stay watched until it has asked about them, or has ended. If the model
        has failed, all stay watched: torch iterates over its hooks then.
        """
        with self._lock:
            entered = self._entered.pop(threading.get_ident(), set())
            if sys.exc_info()[0] is not None:
                return entered
            for key in entered.difference(self._asked, *list(self._entered.values())):
                for hook in self._hooks.get(key, ()):
                    hook.remove()
                self._hooks.pop(key, None)  # last: the end of the block finds hooks that an interrupt leaves
        return entered

    def forget_running(self) -> None:
        """Forget the running calls of this thread: an interrupt has ended them."""
        self._running.invocations.clear()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        running = Invocation(module, args, kwargs)
        try:
            self._on_change()
        finally:
            self._running.invocations.append(running)
        key = id(module)
        self._entered[threading.get_ident()].add(key)
        if key in self._followed or key not in self._hooks:
            return  # or a copy of a watched module
        needs = self._needs_following.get(key)
        if needs is None:
            needs = self._needs_following[key] = _needs_following(module)
        if needs or (_may_have_several(args, kwargs) and len(running.origins) > 1):
            self._follow(module)

    def _follow(self, module: nn.Module) -> None:
        """Watch the children of a module; a second thread waits until all of them are watched."""
        key = id(module)
        with self._lock:
            if key in self._followed or key not in self._hooks:
                return
            for name, child in _light_children(module):
                self._hooks[key].append(child.register_forward_hook(self._child_hook(module, name)))
            self._followed.add(key)

    def _leave(self, module: nn.Module) -> None:
        invocations = self._running.invocations
        try:
            self._on_change()
        finally:
            if any(one.module is module for one in invocations):  # not one that was running before it was watched
                while invocations.pop().module is not module:
                    pass

    def _child_hook(self, parent: nn.Module, name: str) -> Callable[..., None]:
        def note(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            invocations = self._running.invocations
            if not invocations or invocations[-1].module is not parent:
                return
            invocations[-1].ran.add(name)
            with torch._C.DisableTorchFunction():
                given = span_of(next((x for x in args if isinstance(x, Tensor)), None))
                source = invocations[-1].source_of(given)
                if source is not None and isinstance(output, Tensor) and span_of(output) is not None:
                    invocations[-1].made.append(Made(name, source, StorageWeakRef(output.untyped_storage())))

        return _calling(note, lambda error, _: self._failed(error, parent))

    def innermost(self) -> Invocation | None:
        """Return the running call of the innermost watched module, which stays watched."""
        if not self._running.invocations:
            return None
        self._asked.add(id(self._running.invocations[-1].module))
        return self._running.invocations[-1]

    def maker(self, is_given: Callable[[Invocation], bool]) -> Invocation | None:
        """Return the innermost running call whose module was not given q and k ready-made; it stays watched.

        Args:
            is_given: whether a module was given them.
        """
        for one in reversed(self._running.invocations):
            self._asked.add(id(one.module))
            if not is_given(one):
                return one
        return None

    def is_cross(self, q: Tensor, k: Tensor, inputs: tuple[Tensor, Tensor] | None = None) -> bool | None:
        """Return whether q and k come from two tensors, by steps 3 to 6 of the evidence; None if undecided.

        Args:
            q: of a call that a watched module makes now.
            k: of the same call.
            inputs: the sources of q and k, if the calling function gives them.
        """
        query, key = (span_of(x) for x in inputs or (q, k))
        if query is not None and key is not None and inputs is not None and query.is_of(key):
            return False
        is_made = inputs is None
        for one in self._running.invocations[: -LEVELS - 1 : -1]:
            self._asked.add(id(one.module))
            found = _judge(one, query, key, is_made)
            if isinstance(found, bool):
                return found
            if found is None:
                break
            query, key = found
        return None if inputs is None else True


def _calling(enter: Callable[..., None], failed: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that tells its errors with the module, so that the model goes on.

    Another thread may call it without keywords while it is being removed.
    """

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: Any = MappingProxyType({})) -> None:
        try:
            enter(module, args, kwargs)
        except Exception as error:
            keep_from_model(error, lambda found: failed(found, module))

    return hook


def _judge(one: Invocation, query: Span | None, key: Span | None, is_made: bool) -> bool | tuple[Span, Span] | None:
    """Return whether q and k come from two sources of a module; or the two that it was given ready-made; or None.

    Args:
        one: the call of the module.
        query: the memory of q, or of the tensor that it was projected from.
        key: the same for k.
        is_made: whether projections made these.
    """
    origins = one.origins
    own = one.given(query), one.given(key)
    if own[0] is not None and own[1] is not None and own[0] != own[1]:
        return origins[own[0]].span, origins[own[1]].span
    of_query, of_key = one.source_of(query), one.source_of(key)
    if of_query is not None and of_key is not None:
        return of_query != of_key
    if not is_made or not origins:
        return None
    keys_not_made = any(KEY.match(name) and name not in one.ran for name, _ in one.module.named_children())
    if len(origins) == 1 and one.has_ids:
        return None
    if len(origins) == 1:
        return of_query == PARAMETER or (bool(one.ran) and keys_not_made and _is_named_cross(one.module))
    if not one.ran:
        given = [next((x.span for x in origins if names.match(x.name)), None) for names in (QUERY, KEY)]
        first, second = given if None not in given else [x.span for x in origins[:2]]
        return (first, second) if first is not None and second is not None else None
    by_name = {names: {x.source for x in one.made if names.match(x.name)} for names in (QUERY, KEY)}
    of_query = of_query if of_query is not None else next(iter(by_name[QUERY]), None)
    of_key = of_key if of_key is not None else next(iter(by_name[KEY]), None)
    if of_query is not None and of_key is not None:
        return of_query != of_key
    made_of = {x.source for x in one.made}
    of_values = {x.source for x in one.made if VALUE.match(x.name)}
    if len(of_values) == 1 and not keys_not_made:  # q and k are made of sums with positions, and v is not
        return next(iter(of_values)) not in (0, PARAMETER)
    return keys_not_made if len(made_of) == 1 else None


def _may_have_several(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether there are tensors beside the first argument, without those that q is never made from."""
    others = [x for x in args[1:] if isinstance(x, Tensor)]
    named = [name for name, x in kwargs.items() if isinstance(x, Tensor) and not _is_no_source(name)]
    return bool(others) or len(named) > (0 if args else 1)


@functools.cache
def _is_no_source(name: str) -> bool:
    return NOT_A_SOURCE.search(name) is not None


def _origins(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Origin]:
    """Return the tensors among arguments that q and k may be made from, each once."""
    found: list[Origin] = []
    for name, x in (*zip(_argument_names(type(module)), args, strict=False), *kwargs.items()):
        if not isinstance(x, Tensor) or x.ndim < 2 or not x.is_floating_point() or _is_no_source(name):
            continue
        span = span_of(x)
        if span is not None and not any(span.is_of(one.span) for one in found):
            found.append(Origin(name, span, x.shape))
    return found


_names: weakref.WeakKeyDictionary[type, list[str]] = weakref.WeakKeyDictionary()


def _argument_names(kind: type) -> list[str]:
    """Return the names of the positional arguments of a class's forward, without self."""
    if kind not in _names:
        try:
            parameters = list(inspect.signature(kind.forward).parameters.values())[1:]  # type: ignore[attr-defined]
        except (AttributeError, TypeError, ValueError):
            parameters = []
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        _names[kind] = positional + [""] * (16 - len(positional))
    return _names[kind]


def _may_compute_attention(module: nn.Module) -> bool:
    """Return whether a module may call an attention function, or a module that does."""
    if isinstance(module, nn.ModuleList | nn.ModuleDict | torch.jit.ScriptModule):
        return False  # nothing calls the first two, and the last takes no hooks
    if has_children(module):
        return True
    held = module._parameters  # noqa: SLF001  # of most modules these two, or none
    if held.keys() <= {"weight", "bias"}:
        return "att" in type(module).__name__.lower()
    return "att" in type(module).__name__.lower() or not own_parameters(module).keys() <= {"weight", "bias"}


def _is_named_cross(module: nn.Module) -> bool:
    return "cross" in type(module).__name__.lower()


def _needs_following(module: nn.Module) -> bool:
    """Return whether to watch the children of a module though it is given only one tensor.

    q may be a parameter of it, it may feed torch's own attention, or its keys may come from an earlier call.
    """
    if _is_named_cross(module):
        return True
    own = any(p.ndim > 1 for p in own_parameters(module).values()) and not isinstance(module, nn.MultiheadAttention)
    return own or any(isinstance(child, nn.MultiheadAttention) for child in module._modules.values())  # noqa: SLF001


def _light_children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the projections, norms and convolutions of a module, with those in lists, by name."""
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from ((f"{name}.{inner}", one) for inner, one in _light_children(child))
            continue
        parts = list(child.modules())
        if len(parts) <= PARTS and not any("att" in type(x).__name__.lower() for x in parts):
            yield name, child
