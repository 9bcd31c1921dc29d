"""Hooks into torch and transformers that report attention calls while a capture is open.

No model is changed. Changes to torch and transformers are undone when the last capture closes.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..._utils.interrupts import interrupts_put_off
from ..._utils.quietly import Deliberate, keep_from_model
from ...masks import causal_lower_right
from ..call.cache_growth import CacheWrapper
from ..call.flex_attention import ScoreMod, read_tuple
from ..call.observed_call import ObservedCall, Unreadable
from ..records.decode_steps import NotedCall
from ..records.forward_passes import BeamSearch, RecordMatcher
from ..records.record import OutputCallback
from ..tracing.torch_mode import WatchingMode
from ..tracing.traced_scores import Layout
from ..tracing.traced_tensors import Caller
from ..tracing.tracer import ScoreTracer
from ..verify.verification import DroppedWeights, RowsOfOutput, sampled_rows
from .compilation import with_compilation, without_compilation
from .fast_path import without_fast_path
from .output_edits import EditRefused, OutputEdit, edit_in_place, kernel_output, with_edit
from .transformers_calls import InterfaceWrapper, SearchWrapper

OPAQUE_NAMES = re.compile(r"attention|attn|sdpa", re.IGNORECASE)
OPAQUE = (
    "it calls {}, whose arguments cannot be read: use torch.nn.functional.scaled_dot_product_attention, or give the "
    "weights, if it returns them, to AttentionWidget.from_weights"
)


class Listener(Protocol):
    """An open capture or intervention, to which hooks report calls."""

    def name_of(self, module: nn.Module) -> str | None:
        """Return the name under which calls of a module are recorded; None if it does not belong to the model."""

    def record_call(self, name: str | None, read: Callable[[], ObservedCall]) -> OutputCallback | OutputEdit | None:
        """Record a call if it is wanted; only then is it read.

        Args:
            name: of the module; None: the calling module's.
            read: returns the call.

        Returns:
            A function to call with the output (B, H, Q, Dv), or an edit to write into the output; None if the call is
            not recorded.
        """

    def record_interface_call(
        self, name: str, module: nn.Module, implementation: Any, arguments: Sequence[Any], settings: Mapping[str, Any]
    ) -> OutputCallback | OutputEdit | None:
        """Record a call of transformers' attention interface, as `record_call` does for any call.

        Args:
            name: of the module.
            module: that calls.
            implementation: the function's name in transformers.
            arguments: of the function, after the module.
            settings: its keywords.
        """

    def report_unreadable(
        self, why: str, caller: Caller | None = None, *, certain: bool = False, unused: bool = False
    ) -> None:
        """Note that a module may compute attention that cannot be read: see `traced_tensors.Reports`."""

    def record_weights(self, read: Callable[[], ObservedCall], why: str) -> OutputCallback | OutputEdit | None:
        """Record a call with known weights and unknown q and k; else report `why` it cannot be read.

        Returns:
            As `record_call` does.
        """

    def before(self, func: Any, args: Sequence[Any]) -> None:
        """Prepare for a function of torch that is called next."""

    def report_merged(self) -> None:
        """Note that the calling module merges the outputs of its calls: see `traced_tensors.Reports`."""

    def is_over_positions(self, keys: int, rows: int) -> bool:
        """Return whether the calling module was given so many positions: see `traced_tensors.Reports`."""

    def caller(self) -> Caller:
        """Return the module that calls."""

    def head_count(self) -> int | None:
        """Return the number of heads that the calling module reports."""

    def matcher_of(self, model: nn.Module) -> RecordMatcher | None:
        """Return the matcher of a model that generates; None if it is not recorded."""

    def reading_failed(self, error: Exception, module: nn.Module | None = None) -> None:
        """Note that our own reading of a call has failed.

        Args:
            error: what it raised.
            module: that called; None: the calling module.

        Raises:
            Deliberate: the model may not go on.
        """


class _ThreadState(threading.local):
    """The attention functions that are running in a thread."""

    depth = 0  # of nested reported functions: what they call is not reported again
    heads = 0  # of `F.multi_head_attention_forward`; 0 outside of it
    inputs: tuple[Tensor, Tensor] | None = None  # its query and key arguments
    weights: tuple[Tensor, Tensor] | None = None  # its weights, before and after edits by interventions

    def forget(self) -> None:
        """Leave all of them."""
        self.depth = self.heads = 0
        self.inputs = self.weights = None


_thread = _ThreadState()
_listeners: list[Listener] = []
_lock = threading.RLock()
_undo = contextlib.ExitStack()


def add_listener(listener: Listener) -> None:
    """Report transformers' attention calls to a capture; switch off torch's fast paths."""
    global _undo
    with _lock:
        if not _listeners:
            forget_interrupted()
            _undo = contextlib.ExitStack()
            _undo.callback(InterfaceWrapper(_wrap_attention).remove)
            _undo.callback(SearchWrapper(_follow_beams, _follow_rejections, _ignore_drafts).remove)
            _undo.callback(CacheWrapper().remove)
            _undo.enter_context(without_compilation())
            _undo.enter_context(without_fast_path())
        _listeners.append(listener)


def remove_listener(listener: Listener) -> None:
    """Undo `add_listener`."""
    with _lock:
        _listeners.remove(listener)
        if not _listeners:
            _undo.close()


def forget_interrupted() -> None:
    """Forget the attention functions of this thread if no model runs in it: one was interrupted.

    An interrupt may come in the line that leaves such a function. The thread's later calls would then seem to be a
    part of that function, and would not be reported.
    """
    _thread.forget()


def any_listener(fits: Callable[[Listener], bool]) -> bool:
    """Return whether a predicate is true of any open capture or intervention."""
    return any(fits(one) for one in list(_listeners))


def _matchers_of(model: nn.Module) -> list[RecordMatcher]:
    return [matcher for listener in list(_listeners) if (matcher := listener.matcher_of(model)) is not None]


@contextlib.contextmanager
def _follow_beams(model: nn.Module) -> Iterator[list[BeamSearch]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(matcher.searching()) for matcher in _matchers_of(model)]


@contextlib.contextmanager
def _follow_rejections(model: nn.Module) -> Iterator[list[RecordMatcher]]:
    matchers = _matchers_of(model)
    with contextlib.ExitStack() as stack:
        for matcher in matchers:
            stack.enter_context(matcher.rejecting())
        yield matchers


@contextlib.contextmanager
def _ignore_drafts(model: nn.Module) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for matcher in _matchers_of(model):
            stack.enter_context(matcher.ignoring())
        yield


def _wrap_attention(implementation: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an attention function of transformers that reports each call to the open captures."""
    if not callable(function) or hasattr(function, "reports_calls"):
        return function

    is_flex = implementation == "flex_attention"

    @functools.wraps(function)
    def reporting(module: Any, *arguments: Any, **keywords: Any) -> Any:
        callbacks = {} if _thread.depth else _callbacks(implementation, module, arguments, keywords)
        outer = _thread.depth
        try:
            _thread.depth = outer + 1
            if is_flex:
                with _compiled_flex_attention():
                    result = function(module, *arguments, **keywords)
            else:
                result = function(module, *arguments, **keywords)
            if callbacks:
                try:
                    found = [*callbacks.values()]
                    if len(found) > 1 or not _is_taken_by(found[0], result):
                        result = _with_edits(function, result, module, arguments, keywords, found)
                except Exception as error:
                    _fails(error, module, *callbacks)
        finally:
            _thread.depth = outer
        return result

    reporting.reports_calls = True  # type: ignore[attr-defined]
    return reporting


def _callbacks(
    implementation: Any, module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> dict[Listener, Any]:
    """Report a call of transformers' interface; return the listeners that want its output, with their callbacks."""
    found: dict[Listener, Any] = {}
    for listener in list(_listeners):
        try:
            name = listener.name_of(module)
            if name is not None:
                callback = listener.record_interface_call(name, module, implementation, arguments, keywords)
                if callback is not None:
                    found[listener] = callback
        except Exception as error:
            _fails(error, module, listener)
    return found


def _fails(error: Exception, module: nn.Module | None, *listeners: Listener) -> None:
    """Tell listeners that reading a call failed; all hear it before a deliberate error ends the model's call."""
    refused: Exception | None = error if isinstance(error, Deliberate) else None
    for listener in listeners:
        try:
            keep_from_model(error, lambda found, own=listener: own.reading_failed(found, module))  # type: ignore[misc]
        except Deliberate as found:
            refused = refused or found
    if refused is not None:
        raise refused


def _is_taken_by(callback: Any, result: Any) -> bool:
    """Report the result of a call of transformers' interface, if it repeats another: without gradients or dropout."""
    return type(callback) is NotedCall and callback.take_result(result)


def _with_edits(
    function: Callable[..., Any],
    result: Any,
    module: Any,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    callbacks: Sequence[Any],
) -> Any:
    """Report the output of a call of transformers' interface; return it with the edits of interventions."""
    seen, edits = None, [one for one in callbacks if isinstance(one, OutputEdit)]
    query = _query_of(arguments, keywords)
    heads = query.shape[1]
    if torch.is_grad_enabled() and not _dropout_of(module, keywords):
        given = result[0] if isinstance(result, tuple) else result
        _keep_gradient(given, lambda x: _heads_first(x, heads), *callbacks)
    seen = _seen_output(function, result, module, arguments, keywords)
    _report_output(seen, *(one for one in callbacks if not isinstance(one, OutputEdit)) if edits else callbacks)
    if not edits:
        return result
    output, *others = result if isinstance(result, tuple) else (result,)
    weights = None
    with torch._C.DisableTorchFunction():
        if others and isinstance(others[0], Tensor) and others[0].shape[:3] == query.shape[:3]:
            weights = others[0] = others[0].clone()
        for edit in edits:
            output = with_edit(output, edit, seen, lambda x: _heads_first(x, heads), weights, keep=len(_listeners) > 1)
    return (output, *others) if isinstance(result, tuple) else output


def _query_of(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Tensor:
    """Return q of a call of transformers' interface; some models pass it by name."""
    found: Tensor = arguments[0] if arguments else keywords["query"]
    return found


def _heads_first(output: Tensor, heads: int) -> Tensor:
    """Return an output (B, Q, H, Dv) or (B, Q, H · Dv) as (B, H, Q, Dv)."""
    return (output.unflatten(-1, (heads, -1)) if output.ndim == 3 else output).transpose(1, 2)


def _seen_output(
    function: Callable[..., Any], result: Any, module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    """Return the output of a call of transformers' interface for verification, also if there is dropout.

    The functions that models define themselves return their weights after dropout. Any other function is called once
    more without dropout: only its output shows effects outside its arguments, such as its own mask.
    """
    query = _query_of(arguments, keywords)
    output, weights = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    dropout = _dropout_of(module, keywords)
    if dropout and isinstance(weights, Tensor):
        return DroppedWeights(weights, dropout)
    if dropout:
        with torch.no_grad(), without_dropout(query.device):
            again = function(module, *arguments, **{**keywords, "dropout": 0.0})
        output = again[0] if isinstance(again, tuple) else again
    return _heads_first(output, query.shape[1]) if isinstance(output, Tensor) and output.ndim in (3, 4) else None


def _dropout_of(module: Any, keywords: dict[str, Any]) -> float:
    """Return the share of the weights that a call of transformers' interface sets to 0."""
    return float(keywords.get("dropout") or 0) if module.training else 0.0


def _output_of(callback: OutputCallback | OutputEdit, output: Any, seen: Any, view: Callable[[Tensor], Tensor]) -> Any:
    """Report the output of a call; return it with an intervention's edit: see `with_edit`."""
    if isinstance(callback, OutputEdit):
        return with_edit(output, callback, seen, view, keep=len(_listeners) > 1)
    if isinstance(seen, Tensor):
        _keep_gradient(output, view, callback)
    callback(kernel_output(output, seen))
    return output


def _report_output(output: Any, *callbacks: OutputCallback | None) -> None:
    with torch._C.DisableTorchFunction():
        for callback in callbacks:
            if callback is not None:
                callback(output)


def _keep_gradient(output: Any, to_heads: Callable[[Tensor], Tensor], *callbacks: OutputCallback | None) -> None:
    """Keep the gradient of an output in the model's graph, for the callbacks that ask for it.

    Args:
        output: the tensor with which the model goes on.
        to_heads: returns a tensor of the output's shape as (B, H, Q, Dv).
        callbacks: of the call.
    """
    for callback in callbacks:
        keep = getattr(callback, "keep_gradient", None)
        if keep is not None:
            keep(output, to_heads)


@contextlib.contextmanager
def _compiled_flex_attention() -> Iterator[None]:
    """Leave FlexAttention compiled, because only compiled code is fused, and suspend the watchers of captures."""
    with contextlib.ExitStack() as stack:
        while isinstance(mode := torch.overrides._get_current_function_mode(), WatchingMode):
            stack.enter_context(mode.suspended())
        with with_compilation():
            yield


class _DropoutSwitchedOff(TorchFunctionMode):
    """Makes torch's functions drop no weights."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (F.dropout, torch.dropout):
            return kwargs.get("input", args[0] if args else None)
        if func is F.scaled_dot_product_attention:
            args, kwargs = args[:4] + (0.0,) * (len(args) > 4) + args[5:], {**kwargs}
            kwargs.pop("dropout_p", None)
        return func(*args, **kwargs)


@contextlib.contextmanager
def without_dropout(device: torch.device) -> Iterator[None]:
    """Switch dropout off, and restore the state of the random numbers afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []), _DropoutSwitchedOff():
        yield


# Torch's functions.


@contextlib.contextmanager
def watch_functions(listener: Listener) -> Iterator[FunctionWatcher]:
    """Watch torch's functions until the block ends, or until the watcher exits early."""
    watcher = FunctionWatcher(listener)
    watcher.__enter__()  # type: ignore[no-untyped-call]
    try:
        yield watcher
    finally:
        watcher.finish()
        if not watcher.exited and not watcher.rests:
            watcher.__exit__(None, None, None)  # type: ignore[no-untyped-call]


class FunctionWatcher(WatchingMode):
    """Reports calls of torch's attention functions in the thread that entered it."""

    exited = False
    rests = False  # whether watching is paused until `resume`

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener
        self._scaled: tuple[Tensor, Tensor, float] | None = None  # (x · factor, x, factor), the last one computed
        self._without_values: ObservedCall | None = None  # a call whose v is not known yet
        self._opaque: dict[Any, bool] = {}  # whether each called function may be attention
        self._dropped = 0.0  # the share of its weights that dropout set to 0
        self._result: Any = None  # of the traced function
        self._refused: EditRefused | None = None  # why an edit of traced attention cannot be made
        self._tracer = ScoreTracer(self)
        self.report_unreadable, self.caller = listener.report_unreadable, listener.caller
        self.head_count, self._before = listener.head_count, listener.before
        flex = getattr(sys.modules.get("torch._higher_order_ops.flex_attention"), "flex_attention", None)
        self._attention_functions: dict[Any, Callable[..., Any]] = {
            F.scaled_dot_product_attention: self._sdpa,
            F.multi_head_attention_forward: self._multi_head,
            flex: self._flex,
        }
        self._multi_head_steps: dict[Any, Callable[..., Tensor | None]] = {
            Tensor.view: self._view,
            Tensor.mul: self._mul,
            Tensor.__mul__: self._mul,
            torch.mul: self._mul,
            torch.bmm: self._bmm,
            torch.baddbmm: self._baddbmm,
            F.dropout: self._dropout,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        attention = self._attention_functions.get(func)
        if attention is not None and not _thread.depth:
            result = attention(func, types, args, kwargs)
            try:
                self._tracer.order.trace(func, result, args, kwargs)
            except Exception as error:
                self._fails(error)
            return result
        try:
            self._before(func, args)
        except Exception as error:
            self._fails(error)
        result = func(*args, **kwargs)
        try:
            if not _thread.heads:
                if not _thread.depth:
                    self._trace(func, result, args, kwargs)
            elif func in self._multi_head_steps:
                changed = self._multi_head_steps[func](result, *args, **kwargs)
                return result if changed is None else changed
        except Exception as error:
            self._fails(error)
        return result

    def _trace(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Follow scores and weights through a function that was called."""
        self._result = result
        self._tracer.trace(func, result, args, kwargs)
        self._result = None
        if self._refused is not None:
            raise self._refused
        if self._is_opaque(func):
            self.report_unreadable(OPAQUE.format(func), certain=True)

    def reading_failed(self, error: Exception) -> None:
        """Note that our own reading of a call failed: see `traced_tensors.Reports`."""
        self._fails(error)

    def _fails(self, error: Exception) -> None:
        """Tell the listener that reading failed."""
        self._result = None
        with torch._C.DisableTorchFunction():
            _fails(error, None, self._listener)

    def _is_opaque(self, func: Any) -> bool:
        """Return whether a function, by its name, computes attention that cannot be seen."""
        found = self._opaque.get(func)
        if found is None:
            name = str(getattr(func, "__name__", "") if isinstance(func, FunctionType | BuiltinFunctionType) else func)
            found = self._opaque[func] = bool(OPAQUE_NAMES.search(name))
        return found

    def exit_early(self) -> None:
        """Stop watching for good, if only a mode that follows outputs was entered later."""
        if self.exited:
            return
        with interrupts_put_off():
            if self.rests:
                self.rests, self.exited = False, True
                return
            with _without_mode_above():
                self.exited = torch.overrides._get_current_function_mode() is self
                if self.exited:
                    self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def rest(self) -> bool:
        """Pause watching until `resume`, if no scores or weights are followed, and only our modes were entered later.

        Returns:
            Whether it did.
        """
        if self.exited or self.rests or _thread.heads or self._tracer.follows_any:
            return False
        with interrupts_put_off(), _without_mode_above():
            self.rests = torch.overrides._get_current_function_mode() is self
            if self.rests:
                self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return self.rests

    def resume(self) -> None:
        """Resume watching after `rest`."""
        if self.rests:
            with interrupts_put_off(), _without_mode_above():
                self.rests = False
                self.__enter__()  # type: ignore[no-untyped-call]

    def finish(self) -> None:
        """Report attention that was begun and not completed."""
        self._tracer.finish()

    def record_traced(
        self, read: Callable[[], ObservedCall], seen: Tensor | DroppedWeights, written: Tensor | None
    ) -> None:
        """Record attention that a module has written out, and verify it by its output: see `traced_tensors.Reports`."""
        self._tracer.note_output(self._result)
        try:
            self._tell(self._listener.record_call(None, read), self._result, seen, written)
        except EditRefused as refused:
            self._refused = refused  # raised after the tracer, which lets a model go on

    def record_weights(self, weights: Tensor, v: Tensor, output: Tensor, written: Tensor, why: str) -> None:
        """Record weights whose q and k are unknown: see `traced_tensors.Reports`."""
        result = self._result
        try:
            callback = self._listener.record_weights(lambda: ObservedCall.of_weights(weights, v), why)
            with torch._C.DisableTorchFunction():
                if isinstance(callback, OutputEdit):
                    edit_in_place(result, callback, output, written, keep=len(_listeners) > 1)
                elif callback is not None:
                    callback(kernel_output(result, output))
        except EditRefused as refused:
            self._refused = refused

    def report_merged(self) -> None:
        """Note that the calling module merges the outputs of its calls: see `traced_tensors.Reports`."""
        self._listener.report_merged()

    def is_over_positions(self, keys: int, rows: int) -> bool:
        """Return whether the calling module was given so many positions."""
        return self._listener.is_over_positions(keys, rows)

    def _tell(
        self, callback: Any, output: Tensor, seen: Any, written: Tensor | None, weights: Tensor | None = None
    ) -> None:
        """Report the output of a product, and write an intervention's edit into it."""
        if callback is None:
            return
        with torch._C.DisableTorchFunction():
            if isinstance(callback, OutputEdit):
                edit_in_place(output, callback, seen, written, weights, keep=len(_listeners) > 1)
                return
            if isinstance(seen, Tensor) and isinstance(written, Tensor) and written.shape[2:] == output.shape[-2:]:
                B, H = written.shape[:2]
                _keep_gradient(output, lambda x: x.reshape(B, H, *x.shape[-2:]), callback)
            callback(kernel_output(output, seen))

    def _around(self, begin: Callable[[], Callable[[Any], Any] | None], call: Callable[[], Any]) -> Any:
        """Return the result of an attention function, with an intervention's edit.

        Args:
            begin: reads its arguments; returns a function that takes its result and returns it edited, or None.
            call: the function.
        """
        finish = None
        try:
            finish = begin()
        except Exception as error:
            self._fails(error)
        result = call()
        if finish is None:
            return result
        try:
            return finish(result)
        except Exception as error:
            self._fails(error)
            return result

    def _sdpa(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        begin = functools.partial(self._begin_sdpa, args, kwargs)
        return self._around(begin, functools.partial(func, *args, **kwargs))

    def _begin_sdpa(self, args: Any, kwargs: Any) -> Callable[[Any], Any] | None:
        inputs, layout = _thread.inputs, None
        query, key = (_argument(args, kwargs, i, name, None) for i, name in enumerate(("query", "key")))
        if not inputs:
            with torch._C.DisableTorchFunction():
                layout = self._tracer.layout_of_query(query, key)
        reordered = self._tracer.order.of(*(inputs or (query, key)))
        read = functools.partial(read_sdpa, *args, **kwargs, inputs=inputs, layout=layout)
        apart = functools.partial(self._tracer.heads_apart, query)
        callback = self._listener.record_call(None, lambda: replace(read(), reordered=reordered, heads_apart=apart))
        if callback is None:
            return None

        def finish(output: Any) -> Any:
            self._tracer.note_output(output)
            with torch._C.DisableTorchFunction():
                dropped = _argument(args, kwargs, 4, "dropout_p", 0.0) > 0
                seen = _rows_without_dropout(*args, **kwargs, layout=layout) if dropped else _by_heads(output, layout)
                return _output_of(callback, output, seen, lambda x: _by_heads(x, layout))

        return finish

    def _flex(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        begin = functools.partial(self._begin_flex, args, kwargs)
        return self._around(begin, functools.partial(func, *args, **kwargs))

    def _begin_flex(self, args: Any, kwargs: Any) -> Callable[[Any], Any] | None:
        callback = self._listener.record_call(None, lambda: read_flex(*args, **kwargs))
        if callback is None:
            return None

        def finish(result: Any) -> Any:
            self._tracer.note_output(result[0], result[1] if len(result) > 1 else None)
            with torch._C.DisableTorchFunction():
                return (_output_of(callback, result[0], result[0], lambda x: x), *result[1:])

        return finish

    # `F.multi_head_attention_forward` calls SDPA, or multiplies itself if weights are requested. Torch suspends
    # the mode that has seen it, so its body runs with the mode entered again.

    def _multi_head(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if any(kind is not Tensor for kind in types):  # a custom kind of tensor
            return func(*args, **kwargs)
        query, key, _, _, heads = (*args, *[None] * 5)[:5]
        outer = _thread.heads, _thread.inputs
        try:
            count, body = int(kwargs.get("num_heads", heads)), _multi_head_body()
        except Exception as error:
            self._fails(error)
            return func(*args, **kwargs)
        try:
            _thread.heads, _thread.inputs = count, (query, key)
            with self:
                return body(*args, **kwargs)
        finally:
            _thread.heads, _thread.inputs = outer
            self._scaled, self._without_values = None, None
            _thread.weights = None

    def _mul(self, result: Any, x: Any, factor: Any) -> None:
        if isinstance(factor, float) and isinstance(x, Tensor):
            self._scaled = (result, x, factor)

    def _bmm(self, result: Any, one: Tensor, other: Tensor) -> None:
        if self._without_values is None:
            self._baddbmm(result, None, one, other)
            return
        (call, dropped), self._without_values, self._dropped = (self._without_values, self._dropped), None, 0.0
        call.v, call.dropout = _split_heads(other), dropped > 0
        output = DroppedWeights(_split_heads(one), dropped) if dropped else _split_heads(result)
        callback, weights = self._listener.record_call(None, lambda: call), None
        if isinstance(callback, OutputEdit):
            if _thread.weights is None or _thread.weights[0] is not one:
                _thread.weights = one, one.clone()
            weights = _split_heads(_thread.weights[1])
        self._tell(callback, result, output, _split_heads(result), weights)

    def _view(self, result: Any, x: Tensor, *_: Any) -> Tensor | None:
        """Return the edited weights that are returned beside the output."""
        if _thread.weights is None or x is not _thread.weights[0]:
            return None
        return _thread.weights[1].view(result.shape)

    def _dropout(self, result: Any, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> None:
        self._dropped = p if training else 0.0

    def _baddbmm(self, result: Any, mask: Tensor | None, q: Tensor, k: Tensor) -> None:
        scale = 1.0
        if self._scaled is not None and self._scaled[0] is q:
            _, q, scale = self._scaled
        mask = None if mask is None else mask[None] if len(mask) == 1 else _split_heads(mask)
        q, k = _split_heads(q), _split_heads(k.mT)
        self._without_values = ObservedCall(q, k, None, scale, mask=mask, inputs=_thread.inputs)


def _without_mode_above() -> contextlib.AbstractContextManager[None]:
    """Suspend the last mode inside the block, if it follows outputs."""
    above = torch.overrides._get_current_function_mode()
    if isinstance(above, WatchingMode) and not isinstance(above, FunctionWatcher):
        return above.suspended()
    return contextlib.nullcontext()


@functools.cache
def _multi_head_body() -> Callable[..., Any]:
    """Return a copy of `F.multi_head_attention_forward` without the check for modes."""
    function = F.multi_head_attention_forward
    namespace = {**vars(F), "has_torch_function": lambda tensors: False}
    body = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__)
    body.__kwdefaults__ = function.__kwdefaults__
    return body


def _split_heads(x: Tensor) -> Tensor:
    """Return x (B · H, …) as (B, H, …)."""
    return x.unflatten(0, (-1, _thread.heads))


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str, default: Any) -> Any:
    return args[place] if len(args) > place else kwargs.get(name, default)


def _rows_without_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    layout: Layout | None,
    **others: Any,
) -> RowsOfOutput:
    """Return some rows of the output of `F.scaled_dot_product_attention` for these arguments, without dropout."""
    rows = torch.tensor(sampled_rows(query.shape[-2]), device=query.device)
    if is_causal:
        attn_mask = torch.arange(key.shape[-2], device=query.device) <= rows[:, None]
    elif attn_mask is not None and attn_mask.shape[-2] > 1:
        attn_mask = attn_mask.as_subclass(Tensor)[..., rows, :]
    with torch.no_grad():
        output = F.scaled_dot_product_attention(query[..., rows, :], key, value, attn_mask, **others)
    return RowsOfOutput(_by_heads(output, layout))


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
    inputs: tuple[Tensor, Tensor] | None = None,
    layout: Layout | None = None,
) -> ObservedCall:
    """Read a call of `F.scaled_dot_product_attention` from its arguments; all but `inputs` and `layout`.

    Args:
        query: (…, Q, D), of 2 axes or more; those before the last two broadcast.
        key: (…, K, D).
        value: (…, K, Dv).
        attn_mask: as torch takes it.
        dropout_p: as torch takes it.
        is_causal: as torch takes it.
        scale: as torch takes it.
        enable_gqa: as torch takes it.
        inputs: the sources of q and k; None if unknown.
        layout: which leading axes are samples and heads; None: by their number, as `_with_four_axes` does.

    Raises:
        Unreadable: nested tensors.
    """
    if layout is not None:
        batch = query.shape[:-2]
        query, key, value = (layout.unmerge(x.expand(*batch, *x.shape[-2:])) for x in (query, key, value))
        if isinstance(attn_mask, Tensor) and type(attn_mask) is Tensor and math.prod(attn_mask.shape[:-2]) > 1:
            attn_mask = layout.unmerge(attn_mask.expand(*batch, *attn_mask.shape[-2:]))
        elif isinstance(attn_mask, Tensor) and type(attn_mask) is Tensor:
            attn_mask = attn_mask.reshape(1, 1, *attn_mask.shape[-2:])
    q, k, v = (_with_four_axes(x) for x in (query, key, value))
    mask = attn_mask
    bias = sys.modules.get("torch.nn.attention.bias")  # importing it here would take a second
    if bias is not None and isinstance(attn_mask, bias.CausalBias):
        lower = attn_mask.variant == bias.CausalVariant.LOWER_RIGHT
        mask = causal_lower_right(q.shape[2], k.shape[2]) if lower else None
        is_causal = not lower
    elif isinstance(attn_mask, Tensor) and attn_mask.ndim < 4:
        mask = attn_mask[(None,) * (4 - attn_mask.ndim)] if query.ndim > 3 else _with_four_axes(attn_mask)
    elif isinstance(attn_mask, Tensor) and attn_mask.ndim > 4:
        mask = _with_four_axes(attn_mask.expand(*query.shape[:-2], *attn_mask.shape[-2:]))
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        batches = torch.broadcast_shapes(q.shape[:1], k.shape[:1], v.shape[:1])[0]
        q, k, v = (x.expand(batches, -1, -1, -1) for x in (q, k, v))
    dropout = dropout_p > 0
    return ObservedCall(q, k, v, scale, mask=mask, is_causal=bool(is_causal), inputs=inputs, dropout=dropout)


def _by_heads(x: Tensor, layout: Layout | None) -> Tensor:
    """Return an output (…, Q, Dv) of SDPA as (B, H, Q, Dv)."""
    return _with_four_axes(x) if layout is None else layout.unmerge(x)


def _with_four_axes(x: Tensor) -> Tensor:
    """Return x as (B, H, positions, size): with 3 axes the first is B; with 5 or more B is all but the last three."""
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
    """Read a call of FlexAttention, with its functions.

    Args:
        query: (B, H, Q, D).
        key: (B or 1, G, K, D).
        value: (B or 1, G, K, Dv).
        score_mod: a function of the score, or None.
        block_mask: a tuple, as `read_tuple` takes it.
        scale: of the scores.
        others: arguments for kernels only.
        named: the same.
    """
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    plain = score_mod is None or score_mod is getattr(flex, "_identity", None)
    key, value = (x.expand(query.shape[0], -1, -1, -1) for x in (key, value))
    bias = None if plain else ScoreMod(score_mod)
    return ObservedCall(query, key, value, scale, mask=read_tuple(block_mask), bias=bias)
