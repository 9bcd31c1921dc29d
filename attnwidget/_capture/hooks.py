"""The ways in which attention calls are seen while a model computes: torch's own functions, and transformers'.

Nothing of a model is changed. What is switched in torch and transformers while a capture is open is put back when the
last one ends.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import CausalBias, CausalVariant
from torch.overrides import TorchFunctionMode

from ..masks import causal_lower_right
from .eager import ScoreTracer
from .flex_attention import ScoreMod, read_tuple
from .matching import Answer
from .records import ObservedCall, Unreadable
from .transformers import Lookup, read_call

KNOWN = ("torch.", "transformers.", "sentence_transformers.")  # whose code is searched for calls of torch's functions
CALLS = {"scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention"}
FAST = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


class Listener(Protocol):
    """A capture that is open."""

    def named(self, module: nn.Module) -> str | None:
        """The name under which calls of this module are kept; None if it is not of the model."""

    def hear(self, name: str | None, read: Callable[[], ObservedCall]) -> Answer | None:
        """A call, under a name or under that of the module on the stack; it is read only if it is wanted. Returns whom
        to give its output (B, H, Q, Dv) if it is kept."""

    def miss(self, why: str) -> None:
        """The module on the stack does what may be attention, but cannot be read."""

    def heads(self) -> int | None:
        """How many heads the module on the stack says it has."""


class _ThreadState(threading.local):
    """What a thread is in the middle of."""

    inside = 0  # attention functions that have been heard: what they call is theirs
    heads: tuple[int, bool] | None = None  # of `F.multi_head_attention_forward`: how many, and whether it is cross


_here = _ThreadState()
_open: list[Listener] = []
_lock = threading.RLock()
_undo = contextlib.ExitStack()


def begin(listener: Listener) -> None:
    """Let a capture hear what transformers' models call, and have torch take no short cuts around what can be seen."""
    global _undo
    with _lock:
        if not _open:
            _undo = contextlib.ExitStack()
            _undo.callback(Lookup(_wrapped).remove)
            _undo.enter_context(uncompiled())
            _undo.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
            torch.backends.mha.set_fastpath_enabled(False)
        _open.append(listener)


def end(listener: Listener) -> None:
    """The reverse of `begin`."""
    with _lock:
        _open.remove(listener)
        if not _open:
            _undo.close()


def uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Compiled models compute as they are written: what is compiled cannot be seen."""
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):
        return contextlib.nullcontext()  # nothing is compiled
    return torch.compiler.set_stance("force_eager")


def _wrapped(implementation: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """An attention function of transformers that tells the open captures of each call."""
    if not callable(function) or hasattr(function, "heard"):
        return function

    @functools.wraps(function)
    def heard(module: Any, *arguments: Any, **keywords: Any) -> Any:
        answers = []
        if not _here.inside:
            for listener in list(_open):
                name = listener.named(module)
                if name is not None:
                    read = functools.partial(read_call, implementation, module, *arguments, **keywords)
                    answers.append(listener.hear(name, read))
        with _inside():
            with _fused(implementation):
                result = function(module, *arguments, **keywords)
            output = result[0] if isinstance(result, tuple) else result
            if isinstance(output, Tensor) and output.ndim == 4:
                _answer(output.transpose(1, 2), *answers)
        return result

    heard.heard = True  # type: ignore[attr-defined]
    return heard


def _answer(output: Any, *answers: Answer | None) -> None:
    for answer in answers:
        if answer is not None:
            answer(output)


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    _here.inside += 1
    try:
        yield
    finally:
        _here.inside -= 1


@contextlib.contextmanager
def _fused(implementation: Any) -> Iterator[None]:
    """FlexAttention is fused by being compiled, so that goes on, unseen by the modes of captures."""
    if implementation != "flex_attention" or not hasattr(torch.compiler, "set_stance"):
        yield
        return
    with contextlib.ExitStack() as stack:
        while isinstance(mode := torch.overrides._get_current_function_mode(), FunctionWatcher):
            stack.enter_context(mode.hidden())
        with torch.compiler.set_stance("default"):
            yield


# Torch's functions.


def may_call(model: nn.Module) -> set[int]:
    """The modules of a model, by identity, that may call torch's attention, not by way of transformers' interface."""
    return {id(module) for module in model.modules() if _may_call(type(module))}


def _may_call(kind: type) -> bool:
    if not kind.__module__.startswith(KNOWN):
        return True
    if kind not in _searched:
        _searched[kind] = _calls(kind)
    return _searched[kind]


_searched: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def _calls(kind: type) -> bool:
    """Whether the code of a class names one of torch's attention functions, or writes attention out."""
    own = [one for one in kind.__mro__ if one not in (nn.Module, object)]
    wanted = CALLS | {"softmax", "Softmax"} if "att" in kind.__name__.lower() else CALLS
    return any(wanted & _names(f.__code__) for one in own for f in vars(one).values() if isinstance(f, FunctionType))


def _names(code: CodeType) -> set[str]:
    inner = (_names(const) for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*inner)


@contextlib.contextmanager
def watching(listener: Listener) -> Iterator[FunctionWatcher]:
    """Watch until the block ends, or until it is left before."""
    watch = FunctionWatcher(listener)
    watch.__enter__()  # type: ignore[no-untyped-call]
    try:
        yield watch
    finally:
        if not watch.left:
            watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]


class FunctionWatcher(TorchFunctionMode):
    """Sees torch's attention functions in the thread that entered it."""

    left = False

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener
        self._scaled: tuple[Tensor, Tensor, float] | None = None  # a product with a number: what, of what, by what
        self._waiting: ObservedCall | None = None  # for its v
        self._trail = ScoreTracer(self._written_out, listener.miss, listener.heads)
        flex = getattr(sys.modules.get("torch._higher_order_ops.flex_attention"), "flex_attention", None)
        self._seers: dict[Any, Callable[..., Any]] = {
            F.scaled_dot_product_attention: self._sdpa,
            F.multi_head_attention_forward: self._heads,
            flex: self._flex,
        }
        self._parts: dict[Any, Callable[..., None]] = {
            Tensor.mul: self._mul,
            Tensor.__mul__: self._mul,
            torch.mul: self._mul,
            torch.bmm: self._bmm,
            torch.baddbmm: self._baddbmm,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        seer = self._seers.get(func)
        if seer is not None and not _here.inside:
            return seer(func, types, args, kwargs)
        result = func(*args, **kwargs)
        if _here.heads is None:
            if not _here.inside:
                self._trail.follow(func, result, args, kwargs)
        elif func in self._parts:
            self._parts[func](result, *args, **kwargs)
        return result

    def leave(self) -> None:
        """See nothing from now on; only where it is the last mode that was entered."""
        if not self.left and torch.overrides._get_current_function_mode() is self:
            self.__exit__(None, None, None)
            self.left = True

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Sees nothing for a while; it must be the last mode that was entered."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            self.__enter__()  # type: ignore[no-untyped-call]

    def _written_out(self, read: Callable[[], ObservedCall], output: Tensor, sizes: tuple[int, ...]) -> None:
        answer = self._listener.hear(None, read)
        if answer is not None and output.numel() == math.prod(sizes):
            answer(output.reshape(sizes))

    def _sdpa(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        cross = None if _here.heads is None else _here.heads[1]
        answer = self._listener.hear(None, lambda: read_sdpa(*args, **kwargs, cross=cross))
        output = func(*args, **kwargs)
        if answer is not None:
            answer(_four(output))
        return output

    def _flex(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        answer = self._listener.hear(None, lambda: read_flex(*args, **kwargs))
        result = func(*args, **kwargs)
        _answer(result[0], answer)
        return result

    # `F.multi_head_attention_forward` calls SDPA, or where weights are asked for, multiplies by itself. Torch runs it
    # without the mode that has seen it; so its body is run with it.

    def _heads(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if any(kind is not Tensor for kind in types):  # somebody's own kind of tensor
            return func(*args, **kwargs)
        query, key, _, _, heads = (*args, *[None] * 5)[:5]
        was, _here.heads = _here.heads, (int(kwargs.get("num_heads", heads)), query is not key)
        try:
            with self:
                return _body()(*args, **kwargs)
        finally:
            _here.heads, self._scaled, self._waiting = was, None, None

    def _mul(self, result: Any, x: Any, by: Any) -> None:
        if isinstance(by, float) and isinstance(x, Tensor):
            self._scaled = (result, x, by)

    def _bmm(self, result: Any, one: Tensor, other: Tensor) -> None:
        if self._waiting is None:
            return self._baddbmm(result, None, one, other)
        seen, self._waiting = self._waiting, None
        seen.v = _by_head(other)
        return _answer(_by_head(result), self._listener.hear(None, lambda: seen))

    def _baddbmm(self, result: Any, mask: Tensor | None, q: Tensor, k: Tensor) -> None:
        scale = 1.0
        if self._scaled is not None and self._scaled[0] is q:
            _, q, scale = self._scaled
        cross = None if _here.heads is None else _here.heads[1]
        mask = None if mask is None else mask[None] if len(mask) == 1 else _by_head(mask)
        self._waiting = ObservedCall(_by_head(q), _by_head(k.mT), None, scale, mask=mask, cross=cross)


@functools.cache
def _body() -> Callable[..., Any]:
    """`F.multi_head_attention_forward`, that does not ask whether a mode wants to see it."""
    function = F.multi_head_attention_forward
    namespace = {**vars(F), "has_torch_function": lambda tensors: False}
    body = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__)
    body.__kwdefaults__ = function.__kwdefaults__
    return body


def _by_head(x: Tensor) -> Tensor:
    """(B · H, …) as (B, H, …)."""
    assert _here.heads is not None
    return x.unflatten(0, (-1, _here.heads[0]))


def read_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    cross: bool | None = None,
) -> ObservedCall:
    """A call of `F.scaled_dot_product_attention`; q, k and v have 2 axes or more, those before the last two broadcast.

    Raises:
        Unreadable: nested tensors.
    """
    q, k, v = (_four(x) for x in (query, key, value))
    mask = attn_mask
    if isinstance(attn_mask, CausalBias):
        lower = attn_mask.variant == CausalVariant.LOWER_RIGHT
        mask = causal_lower_right(q.shape[2], k.shape[2]) if lower else None
        is_causal = not lower
    elif isinstance(attn_mask, Tensor) and attn_mask.ndim < 4:
        mask = attn_mask[(None,) * (4 - attn_mask.ndim)] if query.ndim > 3 else _four(attn_mask)
    elif isinstance(attn_mask, Tensor) and attn_mask.ndim > 4:
        mask = _four(attn_mask.expand(*query.shape[:-2], *attn_mask.shape[-2:]))
    batches = torch.broadcast_shapes(q.shape[:1], k.shape[:1], v.shape[:1])[0]
    q, k, v = (x.expand(batches, -1, -1, -1) for x in (q, k, v))
    dropout = dropout_p > 0
    return ObservedCall(q, k, v, scale, mask=mask, is_causal=bool(is_causal), cross=cross, dropout=dropout)


def _four(x: Tensor) -> Tensor:
    """(B, H, positions, size), of 3 axes the first is B, of 5 and more all but the last three are."""
    if x.is_nested:
        raise Unreadable("it has nested tensors: give a padded batch")
    if x.ndim == 4:
        return x
    if x.ndim < 4:
        return x[None, None] if x.ndim == 2 else x[:, None]
    return x.flatten(0, x.ndim - 4)


def read_flex(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any, block_mask: Any, scale: float, *others: Any, **named: Any
) -> ObservedCall:
    """A call of FlexAttention, with its functions; query (B, H, Q, D), key (B, G, K, D), value (B, G, K, Dv)."""
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    plain = score_mod is None or score_mod is getattr(flex, "_identity", None)
    key, value = (x.expand(query.shape[0], -1, -1, -1) for x in (key, value))
    bias = None if plain else ScoreMod(score_mod)
    return ObservedCall(query, key, value, scale, mask=read_tuple(block_mask), bias=bias)
