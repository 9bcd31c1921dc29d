"""Find the record of each call: separate forward passes, and join those that continue one another."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import methodcaller
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..._rules.row_spans import Spans
from ..._utils.quietly import keep_from_model
from ..call.cache_growth import grown_keys
from ..call.call_text import CallText
from ..call.lineage import ENDED, ChosenRows, ModelCall, is_unchanged
from ..call.memory_limit import OverLimit
from ..call.observed_call import EAGER, FAILED, ObservedCall, Unreadable
from ..distributed.context_parallel import Sample, processes, refuse_keys_in_turn, refuse_keys_of_others
from ..modules.selection import with_heads
from ..verify.batched import OutputCheck, verify, verify_aside
from .decode_steps import RepeatedStep
from .kept_tensors import TensorKeeper
from .record import Continuation, OutputCallback, Record
from .weights_record import WeightsRecord

NO_RECORD = f"it cannot be read as q, k and v ({{}}): {EAGER}"
NOT_ATTENTION = TypeError, ValueError, IndexError, RuntimeError  # of `Attention`, and of torch for tensors of its calls
LATER = (
    "its later calls do not have the keys of the first, so only the first call is kept: capture the whole "
    "text in one forward pass, without a cache"
)


TextOf = Callable[
    [str, int, int, int], CallText | None
]  # of a module's name, and samples, queries and keys of its call


def in_backward() -> bool:
    """Return whether a backward pass is running this."""
    return _current_graph() != -1


_current_graph: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)


def as_autocast(call: ObservedCall) -> ObservedCall:
    """Convert q, k and v of a call to the type that autocast gives them."""
    device = call.q.device.type
    if not call.as_multiplied and torch.is_autocast_enabled(device):
        wanted = torch.get_autocast_dtype(device)
        call.q, call.k = (x if x.dtype is torch.float64 else x.to(wanted) for x in (call.q, call.k))
        call.v = call.v if call.v is None or call.v.dtype is torch.float64 else call.v.to(wanted)
    return call


BY_LAST_STEP = (
    "samples changed places while a text was generated, in a search that is not followed (groups of beams, a "
    "custom_generate, a cache that was reordered by hand). Samples are the sequences of the last step, each with its "
    "own tokens in cap.tokens; they may differ from the returned sequences, or have another order. To see the returned "
    "sequences, search by num_beams alone, or capture one forward pass over them"
)
BY_SIZE = (
    "the number of samples changed while a text was generated, as in contrastive search, which tries several tokens as "
    "samples. The calls of each size are separate forward passes. To see the returned text, capture one forward pass "
    "over it"
)
BY_LENGTH = (
    "capture() without a model does not see where q and k come from. Their lengths decided whether {} is "
    "self-attention (as many keys as queries) or cross-attention: give the model, capture(model), or say which is "
    "cross-attention, capture(cross=…)"
)


class ForwardRecords(dict[str, Record]):
    """The records of a forward pass, or of several that continue one another, by module name.

    Attributes:
        number: among all forward passes, with those that are not kept.
        has_whole: whether the model itself was called for it, not only parts of it.
        base: for a branch, the records that it left; names that continue are added after them.
    """

    def __init__(self, number: int, base: ForwardRecords | None = None, left: ModelCall | None = None) -> None:
        super().__init__()
        self.number = number
        self.has_whole: bool = base is not None and base.has_whole
        self.base = base
        if base is not None:  # the branch shares it to the end: an encoder
            self.update((name, record) for name, record in base.items() if record.last_step is not left)


@dataclass
class ForwardPass:
    """A forward pass that is running in one thread.

    Attributes:
        step: the call of the model.
        calls: the number of calls of each name.
        records: that take its calls; None before the first call.
        how: how it continues an earlier one; None if it does not.
        is_fresh: whether an unrecorded self-attention was seen without past keys; None: none was seen.
        repeated: calls of its layers that the next layers may repeat.
        seen: by module, queries and keys of its calls, if there are several processes.
        depth: the number of nested running calls of the model and its parts.
    """

    step: ModelCall
    calls: Counter[str] = field(default_factory=Counter)
    records: ForwardRecords | None = None
    how: Continuation | None = None
    is_fresh: bool | None = None
    repeated: list[RepeatedStep] = field(default_factory=list)
    seen: dict[str, list[tuple[Sample, Sample]]] = field(default_factory=dict)
    depth: int = 1


class _ThreadPasses(threading.local):
    """The state of one thread."""

    forward: ForwardPass | None = None
    last: ForwardRecords | None = None  # took the last call
    added: Record | None = None  # took the last call
    rejects = 0  # running searches that try tokens and reject some
    ignores = 0  # running drafts, whose calls are not recorded
    search: list[list[int]] | None = None  # in a beam search, the numbers of the calls for each token
    opening: str | None = None  # the layer whose call was noted first in a step

    def __init__(self) -> None:
        self.kinds: dict[str, RepeatedStep] = {}  # by layer, the calls that were noted first in a step


class BeamSearch:
    """A running beam search: it knows which rows of the model's calls belong to the returned sequences.

    Args:
        calls: the numbers of the calls for each token; added to as they begin.
    """

    def __init__(self, calls: list[list[int]]) -> None:
        self._calls = calls
        self.chosen: dict[int, ChosenRows] = {}

    def next_token(self) -> None:
        """Note that the model was called for one more token."""
        self._calls.append([])

    def returned(self, rows: Tensor, batch: int) -> None:
        """Note the rows that the search has returned.

        Args:
            rows: (sequences, tokens), the batch row of each token; -1 after a sequence has ended.
            batch: the number of rows in the calls.
        """
        ended = [ENDED] * len(rows)
        found = rows.T.tolist()
        for i, calls in enumerate(self._calls):
            own = ChosenRows(found[i] if i < len(found) else ended, batch)
            self.chosen.update(dict.fromkeys(calls, own))


class RecordMatcher:
    """All records of a capture, in the order in which they were begun.

    Attributes:
        forwards: the records of each forward pass, or of several that continue one another.
        begun: whether the model's forward has been called.
        remarks: to report about the records at the end.
    """

    def __init__(
        self,
        keeper: TensorKeeper,
        wanted: Callable[[str, bool], bool],
        heads_of: Callable[[str, ObservedCall], list[int] | None],
        is_cross: Callable[[str, ObservedCall], bool | None] = lambda name, call: call.cross,
        last: int | None = None,
        every: int | None = None,
        new_record: type[Record] = Record,
        on_new_text: Callable[[], None] = lambda: None,
        on_counted: Callable[[str, ObservedCall], OutputCallback | None] = lambda name, call: None,
    ) -> None:
        self.forwards: list[ForwardRecords] = []
        self.begun = False
        self.remarks: dict[str, None] = {}
        self.by_length: dict[str, None] = {}  # modules whose kind of attention was decided by lengths
        self._keeper, self._wanted, self._heads_of, self._is_cross = keeper, wanted, heads_of, is_cross
        self._last, self._every, self._new_record = last, every, new_record
        self._on_counted = on_counted  # may return a function that takes the output of a call, recorded or not
        self._on_new_text = on_new_text  # called in a forward pass that continues no other
        self._count = 0  # of all forward passes, with those that are not kept
        self._lock = threading.RLock()
        self._thread = _ThreadPasses()
        self._step_count = itertools.count()
        self._chosen: dict[int, ChosenRows] = {}  # by step number, the rows that a search has returned

    def begin(self, inputs: Any = None, part: str = "") -> None:
        """Begin a forward pass in this thread: the model, or a part of it, is called.

        Args:
            inputs: the kept arguments.
            part: the name of the part; "" for the model itself.
        """
        self.begun = self.begun or not part
        if self._thread.forward is None:
            self._thread.forward = ForwardPass(ModelCall(next(self._step_count), part, inputs))
            if self._thread.search is not None:
                self._thread.search[-1].append(self._thread.forward.step.number)
        else:
            self._thread.forward.depth += 1

    def end(self) -> None:
        """End the forward pass, even if it failed."""
        forward = self._thread.forward
        if forward is None or forward.depth > 1:
            if forward is not None:
                forward.depth -= 1
            return
        self._thread.forward = None
        with self._lock:
            if forward.records is not None:
                verify_aside(check for record in forward.records.values() for check in record.pop_checks())
            self._keeper.forget_masks()

    def end_interrupted(self) -> None:
        """End the forward pass of a model that no longer runs: an interrupt ended it, and torch ran no hooks."""
        if self._thread.forward is not None:
            self._thread.forward.depth = 1
            self.end()

    @property
    def takes_calls(self) -> bool:
        """Return whether this thread's calls are recorded now."""
        return not self._thread.ignores and not in_backward()

    def mask(self, mask: Any) -> Any:
        """Return a mask in its smallest form, made once for all calls that share it."""
        return self._keeper.mask(mask)

    @property
    def running_step(self) -> ModelCall | None:
        """Return the running call of the model in this thread."""
        return None if self._thread.forward is None else self._thread.forward.step

    def has_opened(self, name: str) -> bool:
        """Return whether a decode step began with this module's call in this thread."""
        return self._thread.opening == name

    @property
    def last_added(self) -> Record | None:
        """Return the record that took the last call of this thread."""
        return self._thread.added

    @contextlib.contextmanager
    def rejecting(self) -> Iterator[None]:
        """Treat positions that leave a cache inside the block as tokens that were tried and rejected."""
        self._thread.rejects += 1
        try:
            yield
        finally:
            self._thread.rejects -= 1

    @contextlib.contextmanager
    def ignoring(self) -> Iterator[None]:
        """Record none of this thread's calls inside the block, such as those that draft tokens."""
        self._thread.ignores += 1
        try:
            yield
        finally:
            self._thread.ignores -= 1

    def reject_beyond(self, length: int) -> None:
        """Drop the last call of this thread from a record whose cache now holds at most so many positions."""
        with self._lock:
            records = [] if self._thread.last is None else list(self._thread.last.values())
            own = [record for record in records if not record.cross and len(record.call_rules) > 1]
            step = own[-1].last_step if own else None
            of_step = [record for record in records if record.last_step is step]
            rejected = max((record.k.length - length for record in of_step if not record.cross), default=0)
            for record in of_step if 0 < rejected < own[-1].call_rules[-1].queries else ():
                record.shorten(rejected)

    @contextlib.contextmanager
    def searching(self) -> Iterator[BeamSearch]:
        """Follow a beam search that runs inside the block, in this thread."""
        outer, self._thread.search = self._thread.search, [[]]
        search = BeamSearch(self._thread.search)
        try:
            yield search
        finally:
            self._thread.search = outer
        with self._lock:
            self._chosen.update(search.chosen)

    def settle(self) -> None:
        """Put the rows of all records in order and verify their outputs, after the block."""
        checks: list[OutputCheck] = []
        for record in self._every_record():
            with self._reading(record):
                record.settle(self._chosen)
                checks += record.take_checks()
        self._chosen = {}
        self._keeper.forget_masks()
        with torch.no_grad():
            verify(checks)

    def keep_queries(self) -> None:
        """Keep only the wanted queries of each record."""
        for record in self._every_record():
            with self._reading(record):
                record.keep_queries()

    def _every_record(self) -> list[Record]:
        return [record for records in self.forwards for record in records.values()]

    @contextlib.contextmanager
    def _reading(self, record: Record) -> Iterator[None]:
        """Note what a record raises inside the block: it cannot be shown, and the others can."""
        try:
            yield
        except Unreadable as error:
            record.problem = record.problem or str(error)
        except NOT_ATTENTION as error:
            record.problem = record.problem or NO_RECORD.format(error)
        except Exception as error:
            keep_from_model(error)
            record.problem = record.problem or FAILED.format(type(error).__name__, error)

    def read_all(self) -> None:
        """Read every record as a capture does when it is asked; those that cannot be read are faulty from then on."""
        for record in self._every_record():
            with self._reading(record):
                record.problem = record.problem or record.fault()
                if record.problem is None:
                    record.read()

    def add(self, name: str, read: Callable[[], ObservedCall]) -> OutputCallback | None:
        """Record a call of a module, if it is wanted.

        Args:
            name: of the module.
            read: returns the call; its errors pass through.

        Returns:
            A function that takes the call's output; None if the call is not recorded.
        """
        if not self.takes_calls:
            return None  # a checkpoint computes a recorded call again
        with self._lock:
            forward = self._thread.forward
            if forward is None:  # a module that is called alone is its own pass
                self._keeper.forget_masks()
                forward = ForwardPass(ModelCall(next(self._step_count), name))
            forward.calls[name] += 1
            module, name = name, name if forward.calls[name] == 1 else f"{name} #{forward.calls[name]}"
            known = forward.records if forward.records is not None else self._thread.last
            record = None if known is None else _record_of(known, name)
            call = read()
            if record is not None and forward.how is not None:
                call.cross = record.cross
            else:
                found = self._is_cross(module, call)
                call.cross = found if found is not None or record is None else record.cross
            call = as_autocast(call)
            given = call.k.shape[2]
            self._resolve(module, call, record)
            if not self._wanted(name, bool(call.cross)):
                forward.is_fresh = forward.is_fresh if call.cross else call.k.shape[2] == call.q.shape[2]
                return self._on_counted(name, call)
            if processes() > 1:
                self._refuse_keys_in_turn(forward, module, call)
            heads = self._heads_of(name, call)
            part = call if heads is None else with_heads(call, heads)
            if forward.records is None:
                forward.records = self._records_of(forward, name, part)
                if forward.how is None:
                    self._on_new_text()
                forward.records.has_whole |= not forward.step.part
            record = self._thread.added = self._place(forward, forward.records, name, part, heads, given)
            self._thread.last = forward.records
            first = record.queries - call.q.shape[2]
            grown = call.grown  # as the cache reports: its keys do not change until the model's call has ended
            in_step = forward is self._thread.forward and forward.how is not None and forward.calls[module] == 1
            in_step = in_step and grown is not None and not grown.cuts and self._keeper.device is None
            in_step = in_step and not record.keeps_outputs
            callback, counted = record.output_callback(call, first, in_step=in_step), self._on_counted(name, call)
            return callback if counted is None else _in_turn(counted, callback)

    def _refuse_keys_in_turn(self, forward: ForwardPass, module: str, call: ObservedCall) -> None:
        """Refuse all calls of a module that attends with the same queries to one part of the keys after the other."""
        try:
            refuse_keys_in_turn(call, forward.seen.setdefault(module, []))
        except Unreadable:
            records = forward.records if forward.records is not None else {}
            for name in [name for name in records if name.partition(" #")[0] == module]:
                del records[name]
            raise

    def note_step(self, name: str, implementation: Any, arguments: Sequence[Any], settings: Mapping[str, Any]) -> None:
        """Note how the last recorded call of transformers' interface was read: see `repeat`."""
        forward = self._thread.forward
        if forward is None or forward.records is None or forward.how is None or forward.calls[name] != 1:
            return
        record = forward.records.get(name)
        plain = not forward.how.dropped and is_unchanged(forward.how.order)
        if record is None or not plain or record.last_step is not forward.step:
            return
        found = record.repeated_step(implementation, arguments, settings)
        if found is not None:
            self._note(forward, name, found)

    def _note(self, forward: ForwardPass, name: str, step: RepeatedStep) -> None:
        """Note a call that later layers, or the same layer one token later, may repeat."""
        if not forward.repeated:
            if self._thread.opening != name:
                self._thread.kinds.clear()
            self._thread.opening = name
        self._thread.kinds[name] = step
        forward.repeated.append(step)

    def repeat(
        self,
        name: str,
        implementation: Any,
        arguments: Sequence[Any],
        settings: Mapping[str, Any],
        text_of: TextOf | None,
    ) -> OutputCallback | None:
        """Record a call of transformers' interface that repeats an earlier layer's call in this step; None if not.

        The first layer's call repeats the last step, if the cache reports one new token.

        Args:
            name: of the module.
            implementation, arguments, settings: of the interface's call, after the module.
            text_of: returns the text at the positions of a module's call, as `TextWatcher.text_of` does.
        """
        thread = self._thread
        forward = thread.forward
        if forward is None or name in forward.calls or thread.ignores or _current_graph() != -1:  # in a backward pass
            return None
        opens = forward.records is None
        records = thread.last if opens else forward.records
        record = None if records is None else records.get(name)
        if records is None or record is None:
            return None
        step = None if opens else _first_like(forward.repeated, implementation, arguments, settings)
        grown = None if step is None else record.repeating(step, arguments[1])
        is_new = grown is None
        if is_new and (opens or forward.repeated):
            step = self._next_step(forward, name, implementation, arguments, settings)
            grown = None if step is None else record.repeating(step, arguments[1])
        if step is None or grown is None:
            return None
        q, k, v, _ = arguments
        with self._lock:
            if not self._keeper.memory.take(step.nbytes, step.kinds[4]):
                return None
        if opens:
            forward.records, forward.how = records, Continuation(list(range(step.shapes[0][0])))
            records.has_whole |= not forward.step.part
        if is_new:
            self._note(forward, name, step)
        forward.calls[name] = 1
        thread.added = record
        samples, room = step.shapes[0][0], step.shapes[1][2]  # to ask the tensors is slower
        text = None if text_of is None else text_of(name, samples, 1, room)
        return record.repeat(step, text, (q, k, v), grown)

    def _next_step(
        self,
        forward: ForwardPass,
        name: str,
        implementation: Any,
        arguments: Sequence[Any],
        settings: Mapping[str, Any],
    ) -> RepeatedStep | None:
        """Return the call that a layer noted in the last step, one token later; None if this is not such a layer."""
        before = self._thread.kinds.get(name)
        if before is None or (not forward.repeated and self._thread.opening != name) or len(arguments) != 4:
            return None
        grown = grown_keys(arguments[1])
        return before.next_one(implementation, arguments, settings, grown, self._keeper.mask, forward.step)

    def _records_of(self, forward: ForwardPass, name: str, call: ObservedCall) -> ForwardRecords:
        """Return the records of a forward pass by its first call; settle how it continues an earlier one."""
        last = self._thread.last
        is_of_step = call.cross and forward.is_fresh is not False  # any text from this source has its keys
        try:
            found = None if is_of_step else self._continued(name, call, last)
        except Unreadable:  # it would continue a call that is not kept, and so does the rest of this pass
            forward.is_fresh = False
            raise
        if found is not None:
            records, forward.how = found
            if forward.how.dropped and not self._thread.rejects:
                records = self._begin_records(records, records[name].last_step)
            return records
        if last is not None and name in last and not call.cross and last[name].continues_but_for_samples(call):
            self.remarks[BY_SIZE] = None
        if last is not None and name not in last and (forward.step.part or not last.has_whole):
            return last
        return self._begin_records()

    def _continued(
        self, name: str, call: ObservedCall, last: ForwardRecords | None
    ) -> tuple[ForwardRecords, Continuation] | None:
        """Return the records that a call continues, and how: at their end, else from an earlier position; or None."""
        if not call.cross and call.k.shape[2] <= call.q.shape[2]:
            return None
        others = [records for records in reversed(self.forwards) if records is not last and not call.cross]
        candidates = [records for records in ([] if last is None else [last]) + others if name in records]
        for way in (methodcaller("continued_by", call), methodcaller("continued_earlier", call)):
            for records in candidates:
                if (how := way(records[name])) is not None:
                    return records, how
        return None

    def _place(
        self,
        forward: ForwardPass,
        records: ForwardRecords,
        name: str,
        call: ObservedCall,
        heads: list[int] | None,
        given: int,
    ) -> Record:
        """Record a call, with all heads or some, that was given so many keys; return its record."""
        record = _record_of(records, name)
        how = None if record is None or forward.how is None else record.continued_by(call, forward.how)
        if record is not None and how is None and forward.how is not None:
            raise Unreadable(LATER)
        memory, before = self._keeper.memory, 0
        kind = self._new_record if call.weights is None or self._new_record is not Record else WeightsRecord
        needed = kind.needed(call, self._keeper, how)
        if not memory.has_room(needed, self._keeper.device or call.k.device):
            raise OverLimit
        if record is None or how is None:
            by_length = name.partition(" #")[0] in self.by_length
            refuse_keys_of_others(call, call.k.shape[2] if call.cached else given, by_length=by_length)
            if record is not None:
                forward.records = records = self._begin_records()
            record = records[name] = kind(name, call, self._keeper, forward.step, heads)
        else:
            if name in records:
                before = record.size
            else:
                record, how = record.branch(how.dropped), replace(how, dropped=0)
                records[name] = record
            if not is_unchanged(how.order) and self._thread.search is None:
                self.remarks[BY_LAST_STEP] = None
            record.extend(call, how, forward.step)
        memory.add(record.size - before)
        return record

    def _begin_records(self, base: ForwardRecords | None = None, left: ModelCall | None = None) -> ForwardRecords:
        """Begin the records of another forward pass, and drop those that are not kept."""
        for record in () if self._thread.last is None else self._thread.last.values():
            record.confirm_keys()
        records = ForwardRecords(self._count, base, left)
        self._count += 1
        self.forwards.append(records)
        self.drop_unwanted(running=records)
        return records

    def drop_unwanted(self, running: ForwardRecords | None = None) -> None:
        """Drop the forward passes that are not kept, but not the running one."""
        if self._last is None and self._every is None:
            return
        wanted = [one for one in self.forwards if one.number % (self._every or 1) == 0]
        kept = wanted if self._last is None else wanted[-self._last :]
        self.forwards[:] = [one for one in self.forwards if one is running or any(one is other for other in kept)]
        self._keeper.memory.recount(record for records in self.forwards for record in records.values())

    def drop_layers(self, holds: Callable[[str, bool], bool]) -> None:
        """Drop the records of layers that are not wanted.

        Args:
            holds: returns whether a layer is, from its name and whether it is cross-attention.
        """
        with self._lock:
            for records in self.forwards:
                for name in [name for name, record in records.items() if not holds(name, record.cross)]:
                    self._keeper.memory.add(-records.pop(name).nbytes)

    def remove_faulty(self, modules: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
        """Read all records; remove those that cannot be shown, and return their names with the reasons.

        Args:
            modules: whose records cannot be shown, by name, with the reasons.
        """
        self.read_all()
        reasons: dict[str, str] = {}
        for records in self.forwards:
            for name, record in list(records.items()):
                module = name.partition(" #")[0]
                around = next((one for one in modules if f"{module}.".startswith(f"{one}.")), None)
                why = record.problem if around is None else modules[around]
                if why is not None:
                    reasons[name if around is None else around] = why
                    del records[name]
        self.forwards[:] = [records for records in self.forwards if records]
        return reasons

    def _resolve(self, module: str, call: ObservedCall, record: Record | None) -> None:
        """Settle where the text in a cache ends, and whether it is cross-attention if that is still unknown."""
        Q, K = call.q.shape[2], call.k.shape[2]
        mask = self._keeper.mask(call.mask) if K > Q and isinstance(call.mask, Tensor | Spans) else None
        if not keep_what_is_filled(call, mask, continues=record is not None):
            self.by_length.setdefault(module)


def keep_what_is_filled(call: ObservedCall, mask: Any, *, continues: bool) -> bool:
    """Settle whether a call is cross-attention if that is unknown, and leave out keys that are not filled yet.

    Args:
        call: the call, which is changed.
        mask: its mask in its smallest form, if it has more keys than queries; else None.
        continues: whether it may continue an earlier one.

    Returns:
        Whether more than its lengths decided its kind.
    """
    Q, K = call.q.shape[2], call.k.shape[2]
    used, grows = mask.reach if isinstance(mask, Spans) else (0, False)
    told = call.cross is not None or call.cached or call.is_causal or grows
    if call.cross is None:
        call.cross = not (Q == K or told)
    if call.cross or not isinstance(mask, Spans):
        return told
    if Q <= used < K and (call.cached or grows or continues):  # the rest of a buffer is not filled yet
        call.mask, call.k = mask, call.k[:, :, :used]
        call.v = None if call.v is None else call.v[:, :, :used]
        call.bias = call.bias[..., :used] if isinstance(call.bias, torch.Tensor) else call.bias
    return told


def _in_turn(*callbacks: OutputCallback) -> OutputCallback:
    """Return a function that gives an output to each of some functions."""

    def each(output: Any) -> None:
        for one in callbacks:
            one(output)

    return each


def _first_like(
    steps: Sequence[RepeatedStep], implementation: Any, arguments: Sequence[Any], settings: Mapping[str, Any]
) -> RepeatedStep | None:
    """Return the first step that a call of transformers' interface repeats; None if there is none."""
    for one in steps:
        if one.is_like(implementation, arguments, settings):
            return one
    return None


def _record_of(records: ForwardRecords, name: str) -> Record | None:
    """Return a record by its name, also one that a branch has left and not yet continued."""
    found = records.get(name)
    return found if found is not None or records.base is None else records.base.get(name)
