"""Recorder: collects attention calls while the block of a capture is open, under the names of their modules."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..._utils.interrupts import interrupts_put_off
from ..._utils.quietly import keep_from_model, quietly
from ..call.memory_limit import MemoryLimit, OverLimit
from ..call.observed_call import FAILED, ObservedCall, ProcessHeads, Unreadable
from ..call.pieces import AttentionPiece, Pieces, may_be_piece
from ..call.query_offset import keys_after
from ..carried.output_watcher import CallFacts, OutputWatcher
from ..distributed.context_parallel import refuse_spread_positions
from ..distributed.head_shards import heads_of_process
from ..intercept import hooks
from ..intercept.transformers_calls import read_call
from ..intercept.watched_modules import INTERRUPTED, UnwatchedParts
from ..intercept.watching import NOT_FOLLOWED, WatchedModules
from ..modules.advice import (
    OTHER_THREAD,
    RAISED,
    REORDERED,
    WRAPPED,
    incomplete,
    under_transform,
    way_on_unseen,
    with_way_on,
)
from ..modules.coverage import AttentionModules
from ..modules.module_walk import walked_once
from ..modules.position_check import are_samples_of_input
from ..modules.selection import HeadSelection, LayerSelection
from ..records.forward_passes import BY_LENGTH, ForwardRecords, RecordMatcher
from ..records.kept_tensors import TensorKeeper
from ..records.overview_record import ReducedRecord
from ..records.record import OutputCallback, Record
from ..records.shown import why_not_shown
from ..sources.stream_tape import StreamFacts, StreamTape
from ..text.text_watcher import TextWatcher
from ..tracing.traced_tensors import MERGED, Caller
from .callers import ModelCalls, calls_running, forward_hooks, module_names, module_of, modules_on_stack, parts_of
from .options import CaptureOptions, read_tokenizer

READING_ERRORS = TypeError, ValueError, IndexError, RuntimeError


class _RunningPieces(threading.local):
    """The pieces of an attention that a thread computes now."""

    now: Pieces | None = None


class Recorder(ModelCalls):
    """The records of one capture, and the hooks that fill them while its block is open.

    Attributes:
        model: whose calls are recorded, or None for all calls in this thread.
        matcher: the records so far.
        skipped: calls that cannot be shown: the reason by module name.
    """

    def __init__(self, model: Any, options: CaptureOptions) -> None:
        super().__init__(module_of(model), options.cross)
        self._options = options
        self.tokenizer = _tokenizer_of(model) if options.tokenizer is None else options.tokenizer
        self._layers = LayerSelection(options.layers)
        self._memory = MemoryLimit(options.limit)
        keeper = TensorKeeper(
            options.device, options.dtype, options.values, options.clone, options.queries, self._memory
        )
        kept_as = ReducedRecord if options.keep == "overview" else Record
        self._heads = HeadSelection(options.heads, self._layers.numbers.of)
        how = options.last, options.every, kept_as, self._provenance.wake, self._on_counted
        self._report = keeper.report
        self.matcher = RecordMatcher(keeper, self._is_selected, self._heads.of, self._is_cross, *how)
        self.skipped: dict[str, str] = {}
        self._unreadable: dict[str, str] = {}  # like `skipped`, but other calls of the same module may be readable
        self._attention_modules: AttentionModules | None = None
        self._called: set[str] = set()  # names of modules whose calls were seen
        self._reordered: dict[str, str] = {}  # names of modules whose positions have another order, and what did it
        self._error_before: BaseException | None = None
        self._raised: str | None = None  # the error of the model's last forward pass
        self._may_drop = False  # whether layers may be dropped, because later ones were seen
        self._counted: set[str] = set()  # names of layers that were verified at once, because later ones are counted
        self._failed: dict[str, str] = {}  # why our own reading failed, by the name of the module
        self._merged: set[str] = set()  # names of modules that merge the outputs of their calls
        self._over_limit: Counter[str] = Counter()  # calls that were not kept, by name
        self._open: list[contextlib.ExitStack] = []
        self._follows_outputs = options.keep == "tensors" and options.values and model is not None
        self._outputs = OutputWatcher(
            gradients=options.gradients, memory=self._memory, device=options.device, dtype=options.dtype
        )
        self._tape: StreamTape | None = None  # follows the residual stream, while the block is open
        self.texts: TextWatcher | None = None  # reads the model's text
        self._pieces = _RunningPieces()
        self._joins_pieces = not options.gradients  # each piece has a gradient of its own
        self._begins: set[int] = set()  # the model and its parts, by identity, whose calls begin a forward pass
        self._parts: UnwatchedParts | None = None  # of the model, that need not be watched
        self._thread: int | None = None  # the watched thread
        self._ran_elsewhere = False  # whether the model was called in another thread

    @property
    def forwards(self) -> list[ForwardRecords]:
        """The records of each forward pass."""
        return self.matcher.forwards

    @property
    def open_blocks(self) -> int:
        """The number of nested open blocks."""
        return len(self._open)

    def begin(self) -> None:
        """Start recording; a recorder may be entered several times."""
        with walked_once(self.model), contextlib.ExitStack() as stack:
            if self.model is not None:
                self._names = module_names(self.model)
                self._refuse_unknown_names(self.model)
            if not self._open:
                with interrupts_put_off():
                    self._start_watching(stack)
            self._open.append(stack.pop_all())

    def _start_watching(self, stack: contextlib.ExitStack) -> None:
        if self.model is not None:
            self._follow_stream(stack, self.model)
            stack.enter_context(self._provenance.watching(self.model))
            self.texts = self.texts or TextWatcher(self.model, self._names, modules_on_stack)
            stack.enter_context(self.texts.open())
            stack.enter_context(self._outputs.watching(self.model, self._names))
            ends = self._forward_began, self._forward_ended, self.reading_failed
            stack.enter_context(forward_hooks(self.model, *ends))
            self._begins = {id(self.model)}
            for name, part in parts_of(self.model):
                self._begins.add(id(part))
                begin = functools.partial(self._part_began, name)
                stack.enter_context(forward_hooks(part, begin, self._part_ended, self.reading_failed))
        self._thread = threading.get_ident()
        self._watched = WatchedModules(self.model)
        hooks.add_listener(self)
        stack.callback(hooks.remove_listener, self)
        if self.model is not None:
            self._attention_modules = AttentionModules(self.model, self._names, self.reading_failed)
            stack.enter_context(self._attention_modules.watched())
        if self.model is None or self._watched:
            self._watcher = stack.enter_context(hooks.watch_functions(self))
            self._watch_parts(stack)
        self._outputs.is_ready()

    def _follow_stream(self, stack: contextlib.ExitStack, model: nn.Module) -> None:
        """Follow the residual stream, below the mode that sees attention, which takes torch's functions apart."""
        if self._options.sources:
            self._tape = StreamTape(self._names, self._memory, clone=self._options.clone, device=self._options.device)
            stack.enter_context(self._tape.watching(model))

    def _watch_parts(self, stack: contextlib.ExitStack) -> None:
        """Prepare to stop watching torch's functions in parts of the model that call transformers' interface."""
        if self.model is not None and self._watcher is not None:
            self._parts = UnwatchedParts(self._watcher, self.model, self.reading_failed)
            stack.callback(self._forget_parts, self._parts)

    def _forget_parts(self, parts: UnwatchedParts) -> None:
        parts.remove()
        self._parts = None

    def _refuse_unknown_names(self, model: nn.Module) -> None:
        """Refuse a layer's name that no module has, before the model runs, which may take long."""
        layers, heads = (one.unknown_name(self._names.values()) for one in (self._layers, self._heads))
        cross = self._options.cross.unknown_name(self._names.values())
        if cross is not None:
            raise ValueError(
                f"cross names {cross}, and no module of {type(model).__name__} has that name: give names that "
                "model.named_modules() lists, or parts of them"
            )
        for found, told in ((layers, ""), (heads, ", as heads names it")):
            if found is None:
                continue
            name, advice = found
            self._refuse(
                name,
                f"no layer is {name}{told}: {advice}no module of {type(model).__name__} has that name, or a part of "
                "it; model.named_modules() lists them",
            )

    def _refuse(self, name: str, why: str) -> None:
        """Raise ValueError with the reason; if the capture is not strict, warn, and note it under a name."""
        if self._options.strict:
            raise ValueError(why)
        self.skipped.setdefault(name, why)
        warnings.warn(f"{why} (cap.skipped has it)", stacklevel=4)

    def _forward_began(self, *_: Any) -> None:
        self._error_before = sys.exc_info()[1]  # a model may run while another error is handled
        if threading.get_ident() != self._thread:
            self._ran_elsewhere = True
            self._provenance.wake(for_good=True)
        if self._parts is not None:
            self._parts.begin_anew()
        self._begin()
        step = self.matcher.running_step
        if step is not None and self._follows_outputs:
            step.facts = step.facts or CallFacts()
            self._outputs.begin(step.facts)

    def _begin(self, part: str = "") -> None:
        """Begin a forward pass; end one that was interrupted, because torch ran no hooks for it."""
        if self.matcher.running_step is not None and calls_running(self._begins) == 1:
            self._forget_interrupted()
        self.matcher.begin(part=part)
        step = self.matcher.running_step
        if self._tape is not None and step is not None:
            step.stream = step.stream or StreamFacts()
            self._tape.begin(step.stream)

    def _part_began(self, name: str, *_: Any) -> None:
        self._begin(name)

    def _part_ended(self) -> None:
        self.matcher.end()
        self._stream_ended()

    def _stream_ended(self) -> None:
        if self._tape is not None and self.matcher.running_step is None:
            self._tape.end()

    def _forget_interrupted(self) -> None:
        hooks.forget_interrupted()
        self.matcher.end_interrupted()
        self._stream_ended()
        self._outputs.end()
        self._provenance.forget_running()
        if self.texts is not None:
            self.texts.forget_running()

    def _forward_ended(self) -> None:
        """Close the model's forward pass; stop watching torch's functions if no module has needed it."""
        self.finish_pieces()
        error = sys.exc_info()[1]
        self._raised = None if error is None or error is self._error_before else type(error).__name__
        self.matcher.end()
        self._stream_ended()
        if self.matcher.running_step is None:
            self._outputs.end()
        for key in self._watched.missed(self._provenance.forward_ended()):
            self.report_unreadable(NOT_FOLLOWED, Caller(self._names[key], is_attention=True))
        if self._watcher is not None and not self._watched:  # another mode was above it when that turned out
            self._watcher.exit_early()
        elif self._parts is not None and self.matcher.running_step is None:
            self._parts.find(self._watched)

    def stop(self) -> None:
        """Stop recording: take all hooks off the model, when the outermost block ends."""
        quietly(None, self._outputs.end)  # if the model was interrupted, no hook has done this
        if self._parts is not None and self._parts.is_interrupted and sys.exc_info()[0] is None:
            self.skipped.setdefault(type(self.model).__name__, INTERRUPTED)
        self._open.pop().close()

    def settle(self) -> None:
        """Verify the records, when the outermost block has ended."""
        if not self._open:
            self.finish_pieces()
            quietly(functools.partial(self._fail, self._root), self.matcher.settle)
            self.matcher.drop_unwanted()
            faulty = self.matcher.remove_faulty(self._without_record())
            self._drop_numbers(faulty)
            if self._layers.is_open:
                self.matcher.drop_layers(self._layers.holds)
            if self._options.queries is not None:
                self.matcher.keep_queries()
                faulty |= self.matcher.remove_faulty()
            self.skipped.update(faulty)
            self.skipped.update(self._failed)
            recorded = {name for records in self.matcher.forwards for name in records}
            unseen = self._unseen([*recorded, *self._called, *self._unreadable])
            for name, why in {**self._unreadable, **unseen}.items():
                part = f"only a part of it could be read; of the rest, {why}"
                self.skipped.setdefault(name, part if name in recorded else why)
            if self._ran_elsewhere and self._watched:  # by modules that do not call transformers' interface
                self.skipped.setdefault(type(self.model).__name__, OTHER_THREAD)
            if self._raised is not None:
                self.skipped.setdefault(type(self.model).__name__, RAISED.format(self._raised))
            self._advise()
            self._roots.clear()
            self._report.lines[:] = incomplete(self.skipped, sum(map(len, self.matcher.forwards)))
            self._tell_remarks()

    def _without_record(self) -> dict[str, str]:
        """Return the modules whose calls cannot be shown, nor those of the modules in them, with the reasons."""
        found = {**dict.fromkeys(self._merged, MERGED), **self._failed}
        why = self._failed.get(self._root)
        names = (name.partition(" #")[0] for records in self.matcher.forwards for name in records)
        return found if why is None else found | dict.fromkeys(names, why)

    @property
    def _root(self) -> str:
        """The name of the model, or without one of all calls, if they could not be read as a whole."""
        return "the calls in the block" if self.model is None else self._names[id(self.model)]

    def _tell_remarks(self) -> None:
        """Warn about results that differ from what a user may expect."""
        remarks, self.matcher.remarks = [*self.matcher.remarks], {}
        by_length, self.matcher.by_length = [*self.matcher.by_length], {}
        if self.model is None and by_length and self.matcher.forwards:
            several = f" and {len(by_length) - 1} more" if len(by_length) > 1 else ""
            remarks.append(BY_LENGTH.format(f"{by_length[0]!r}{several}"))
        if self.texts is not None and self.matcher.forwards:
            remarks += self.texts.pop_remarks()
        if self._report.lines and not self._over_limit.keys() >= self.skipped.keys():  # told as it happened
            remarks.insert(0, "\n".join((*self._report.lines, "cap.skipped has each module with its reason.")))
        reordered, self._reordered = [*self._reordered.items()], {}
        if reordered:
            (name, by), others = reordered[0], len(reordered) - 1
            remarks.append(REORDERED.format(f"{name!r}{f' and {others} more' if others else ''}", by))
        for remark in remarks:
            with contextlib.suppress(UserWarning):  # if warnings are errors, the recorded calls are still there
                warnings.warn(remark, stacklevel=4)

    def _advise(self) -> None:
        """Give each reason the advice for its module's library."""
        if not self.skipped:
            return
        roots = [self.model] if self.model is not None else self._outermost()
        by_name = {
            name: module
            for root in roots
            for module, name in zip(root.modules(), module_names(root).values(), strict=True)
        }
        for name, why in self.skipped.items():
            own = name.partition(" #")[0]
            around = [own, *(own[: i.start()] for i in reversed(list(re.finditer(r"\.", own))))]
            self.skipped[name] = with_way_on(why, [*(by_name[one] for one in around if one in by_name), *roots])

    def _outermost(self) -> list[nn.Module]:
        """Return the outermost modules that have called, if no model was given."""
        return [root for root, _ in self._roots.values()]

    def _unseen(self, seen: Collection[str]) -> dict[str, str]:
        """Return modules that compute attention by their names and had no call that was seen, with the reason."""
        if self._attention_modules is None:
            return {}

        def tell(error: Exception) -> None:
            self.skipped.setdefault(self._root, FAILED.format(type(error).__name__, error))

        unseen = quietly(tell, self._attention_modules.unseen, seen) or {}
        return {name: why for name, why in unseen.items() if self._layers.wants(name)}

    def check(self) -> None:
        """Refuse if there is nothing to show, with advice: see `_refuse`."""
        if self._open:
            return
        missing, of_heads = self._layers.missing(), self._layers.missing(self._heads.not_among(self.skipped))
        for found, told in ((missing, ""), (of_heads, ", as heads names it")):
            if found is not None and found.seen:
                there = ", ".join(map(repr, found.seen))
                self._refuse(found.layer, f"no layer is {found.layer}{told}: {found.advice}there are {there}")
        if missing is not None and missing.seen:
            return
        if not self.matcher.forwards:
            self._refuse_nothing()

    def _refuse_nothing(self) -> None:
        """Refuse a capture that has recorded nothing."""
        kind = "the calls in the block" if self.model is None else type(self.model).__name__
        if self.skipped:
            name, why = next(iter(self.skipped.items()))
            others = [line for line in incomplete(self.skipped, 0)[1:] if why not in line]
            first = f"none of {len(self.skipped)} attention calls can be shown; the first is {name!r}: {why}"
            self._refuse(name, "\n".join((first, *others)))
        elif self.model is not None and not self.matcher.begun:
            self._refuse(
                kind,
                f"no attention call was seen in {kind}, because its forward was not called in the block: run the model "
                "inside it, the same object that capture was given",
            )
        else:
            self._refuse(kind, f"no attention call was seen{self._where()}: {way_on_unseen(self.model)}")

    def _where(self) -> str:
        if self.model is None:
            return ""
        kinds = dict.fromkeys(type(m).__name__ for m in self.model.modules() if "attention" in type(m).__name__.lower())
        inside = f", whose {' and '.join(list(kinds)[:3])} may compute it without a function of torch" if kinds else ""
        return f" in {type(self.model).__name__}{inside}"

    # The methods of `hooks.Listener`.

    def record_call(self, name: str | None, read: Callable[[], ObservedCall]) -> OutputCallback | None:
        """Record a call if it is wanted, or keep it until the other pieces of the same attention are there."""
        name = self._name_of_caller() if name is None else name
        if name is None:
            return None
        piece = self._piece_of(name, read)
        return self._record(name, read) if piece is None else piece.take

    def _piece_of(self, name: str, read: Callable[[], ObservedCall]) -> AttentionPiece | None:
        """Return a call as a piece of one attention; None if it is whole, so that it is recorded at once."""
        call, pieces, may_go_on = None, self._pieces.now, False
        if self._joins_pieces and self.matcher.takes_calls and not under_transform():
            with torch._C.DisableTorchFunction(), _without_gradients():
                with contextlib.suppress(Unreadable, *READING_ERRORS):  # `_record` tells them
                    call = read()
                if call is not None:
                    if pieces is not None and pieces.name == name and pieces.may_go_on_with(call):
                        return pieces.add(call)
                    may_go_on = may_be_piece(call)
        self.finish_pieces()
        if call is None or not may_go_on:
            return None
        self._pieces.now = Pieces(name, call)
        return self._pieces.now.add(call)

    def before(self, func: Any, args: Sequence[Any]) -> None:
        """Record the pieces so far before a function of torch projects their outputs, or changes what they read."""
        pieces = self._pieces.now
        if pieces is not None and pieces.end_before(func, args):
            self.finish_pieces()

    def finish_pieces(self) -> None:
        """Record the attention whose pieces were computed last."""
        if self._may_drop:  # the module that made the last call has ended
            self._may_drop = False
            self.matcher.drop_layers(self._layers.may_hold)
        pieces, self._pieces.now = self._pieces.now, None
        if pieces is None:
            return
        quietly(functools.partial(self._fail, pieces.name), self._record_pieces, pieces)

    def _record_pieces(self, pieces: Pieces) -> None:
        with torch._C.DisableTorchFunction(), _without_gradients():
            for call, output in pieces.calls(self.matcher.mask):
                callback = self._record(pieces.name, functools.partial(pieces.read, call))
                if callback is not None and output is not None:
                    quietly(functools.partial(self._fail, pieces.name), callback, output)

    def _record(self, name: str, read: Callable[[], ObservedCall]) -> OutputCallback | None:
        """Record a whole call if it is wanted; a call that cannot be read is skipped, and the model goes on."""
        self._called.add(name)
        if under_transform():
            self.skipped[name] = WRAPPED
            return None
        try:
            with torch._C.DisableTorchFunction(), _without_gradients():
                callback = self.matcher.add(name, functools.partial(self._read_with_text, name, read))
                return callback and self._followed(callback)
        except OverLimit:
            self._over_limit[name] += 1
            self.skipped[name] = self._memory.reason(self._over_limit[name])
        except Unreadable as error:
            self.skipped[name] = str(error)
        except Exception as error:
            keep_from_model(error, functools.partial(self._fail, name))
        return None

    def reading_failed(self, error: Exception, module: nn.Module | None = None) -> None:
        """Note that our own reading of a call failed: none of the calls of its module is shown."""
        self._fail(self.name_for_failure(module), error)

    def _fail(self, name: str, error: Exception) -> None:
        self._failed.setdefault(name, FAILED.format(type(error).__name__, error))

    def record_weights(self, read: Callable[[], ObservedCall], why: str) -> OutputCallback | None:
        """Record weights without q and k."""
        return self.record_call(None, read)

    def report_merged(self) -> None:
        """Note that the calling module merges partial attentions: none of its calls is shown."""
        name = self.caller().name
        if name is not None:
            self._merged.add(name)
            self._layers.numbers.drop_module(name)

    def record_interface_call(
        self, name: str, module: nn.Module, implementation: Any, arguments: Sequence[Any], settings: Mapping[str, Any]
    ) -> OutputCallback | None:
        """Record a call of transformers' attention interface, as `record_call` does for any call."""
        if not under_transform() and self._tape is None:
            text_of = None if self.texts is None else self.texts.text_of
            with torch._C.DisableTorchFunction():
                found = self.matcher.repeat(name, implementation, arguments, settings, text_of)
            if found is not None:
                if not self.matcher.has_opened(name):  # the first stays watched, because it begins a new text
                    self._provenance.rest(name, module)
                return found if self._goes_as_before(name) else self._followed(found)
        read = functools.partial(read_call, implementation, module, *arguments, **settings)
        self.finish_pieces()
        callback = self._record(name, read)
        if callback is not None:
            self.matcher.note_step(name, implementation, arguments, settings)
        return callback

    def _followed(self, callback: OutputCallback) -> OutputCallback:
        """Return a function that takes the output of the last added call, and follows it too."""
        record = self.matcher.last_added
        if record is None or not self._follows_outputs:
            return callback
        step = self.matcher.running_step or record.last_step
        step.facts = step.facts or CallFacts()
        if self._tape is not None:
            callback = self._tape.following(record.name, record.cross, callback)
        return self._outputs.follow(record.name, step.facts, callback)

    def _goes_as_before(self, name: str) -> bool:
        """Return whether the output of a repeated call need not be followed."""
        if not self._follows_outputs:
            return True
        step = self.matcher.running_step
        return step is not None and self._outputs.goes_as_before(name, step.facts)

    def _read_with_text(self, name: str, read: Callable[[], ObservedCall]) -> ObservedCall:
        """Read a call, and the text at its positions."""
        call = read()
        running = self._running(name)
        refuse_spread_positions(call, running)
        why = self._why_not_positions(call, running)
        if why is not None:
            raise Unreadable(why)
        if self._tape is not None:
            self._tape.reads(call.q, call.k, call.v)
        (batches, _, queries, _), keys = call.q.shape, call.k.shape[2]
        call.text = None if self.texts is None else self.texts.text_of(name, batches, queries, keys, call.v)
        is_known = call.text is not None and call.text.patches is not None and call.text.patches.windows is not None
        if call.reordered is not None and call.text is not None and not is_known:
            self._reordered.setdefault(name, call.reordered)
            call.text = None
        call.heads = self._heads_of_process(name, call)
        call.after = keys_after(None if running is None else running.module)
        call.maps = batches > 1 and running is not None and not are_samples_of_input(batches, running)
        return call

    def _heads_of_process(self, name: str, call: ObservedCall) -> ProcessHeads | None:
        running = self._running(name)
        return heads_of_process(None if running is None else running.module, call)

    def report_unreadable(
        self, why: str, caller: Caller | None = None, *, certain: bool = False, unused: bool = False
    ) -> None:
        """Note that a module, by default the calling one, may compute attention that cannot be read."""
        caller = self.caller() if caller is None else caller
        if unused and caller.name in self._called:
            return
        if caller.name is not None and (certain or caller.is_attention) and self._layers.wants(caller.name):
            self._unreadable.setdefault(caller.name, why)

    def matcher_of(self, model: nn.Module) -> RecordMatcher | None:
        """Return the matcher of a model that generates; None if it is not recorded."""
        return self.matcher if self.model is None or id(model) in self._names else None

    def _is_selected(self, name: str, cross: bool) -> bool:
        """Return whether a layer may be wanted; drop those that are certainly not."""
        held = self._layers.may_hold(name, cross)
        if self._layers.is_open:
            self.matcher.drop_layers(functools.partial(self._layers.may_hold, running=name.partition(" #")[0]))
            self._may_drop = True
        return held

    def _on_counted(self, name: str, call: ObservedCall) -> OutputCallback | None:
        """Return a function that verifies the output of a call at once, if later layers are chosen by number.

        `cap.attention` does not count a layer whose output contradicts it.
        """
        cross = bool(call.cross)
        number, last = self._layers.numbers.of(name, cross), self._layers.last_number
        if number is None or last is None or number > last or name in self._counted:
            return None
        self._counted.add(name)

        def verify(output: Any) -> None:
            if why_not_shown(call, output) is not None:
                self._layers.numbers.drop(name)

        return verify

    def _drop_numbers(self, faulty: dict[str, str]) -> None:
        """Take the numbers of layers away that cannot be shown; forget those that nobody wants then."""
        wanted = {
            name for name in faulty if self._layers.holds(name, cross=False) or self._layers.holds(name, cross=True)
        }
        for name in faulty:
            self._layers.numbers.drop(name)
        for name in [name for name in faulty if name not in wanted and not self._layers.wants(name)]:
            del faulty[name]


def _without_gradients() -> contextlib.AbstractContextManager[Any]:
    """Switch off gradients and inference mode, because kept tensors may be used outside of them."""
    if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return _no_grad_no_inference()
    return contextlib.nullcontext()


@contextlib.contextmanager
def _no_grad_no_inference() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad():
        yield


def _tokenizer_of(model: Any) -> Any:
    """Return the tokenizer of a pipeline or of a sentence model; None if there is none."""
    try:
        return read_tokenizer(getattr(model, "tokenizer", None))
    except Exception:  # another attribute of that name
        return None
