"""Match each call with its record: tell forward passes apart, and join those that continue one another."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor

from ..._rules.row_spans import Spans
from ..call.cache_growth import grown_keys
from ..call.call_text import CallText
from ..call.lineage import ENDED, ChosenRows, ModelCall, is_unchanged
from ..call.memory_limit import OverLimit
from ..call.observed_call import ObservedCall, Unreadable
from ..distributed.context_parallel import Sample, processes, refuse_keys_in_turn, refuse_keys_of_others
from ..modules.selection import with_heads
from ..verify.batched import verify, verify_aside
from .decode_steps import RepeatedStep
from .kept_tensors import TensorKeeper
from .record import Continuation, OutputCallback, Record

LATER = (
    "its later calls do not continue the first, whose keys they do not have, so only that is kept: capture the whole "
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
    if torch.is_autocast_enabled(device):
        wanted = torch.get_autocast_dtype(device)
        call.q, call.k = (x if x.dtype is torch.float64 else x.to(wanted) for x in (call.q, call.k))
        call.v = call.v if call.v is None or call.v.dtype is torch.float64 else call.v.to(wanted)
    return call


BY_LAST_STEP = (
    "samples changed their places while a text was generated, in a search that is not followed (groups of beams, a "
    "custom_generate, a cache that was reordered by hand): samples are the sequences of the last step, each with its "
    "own tokens in cap.tokens, and may be others, or in another order, than those that were returned. To see these, "
    "search by num_beams alone, or capture one forward pass over what was returned"
)
BY_SIZE = (
    "the number of samples changed while a text was generated, as in contrastive search, which tries several tokens as "
    "samples: the calls of each size are forward passes of their own. To see the text that was returned, capture one "
    "forward pass over it"
)
BY_LENGTH = (
    "capture() without a model does not see what q and k are made of, so that their lengths have decided whether {} is "
    "self-attention (as many keys as queries) or cross-attention: give the model, capture(model), or say which is "
    "cross-attention, capture(cross=…)"
)


class ForwardRecords(dict[str, Record]):
    """The records of a forward pass, or of several that continue one another, by module name.

    Attributes:
        number: which of the forward passes it is, those among them that are not kept.
        has_whole: whether the model itself was called for it, not only parts of it.
        base: of a branch, the records that it left, and after which the names that continue it are added.
    """

    def __init__(self, number: int, base: ForwardRecords | None = None, left: ModelCall | None = None) -> None:
        super().__init__()
        self.number = number
        self.has_whole: bool = base is not None and base.has_whole
        self.base = base
        if base is not None:  # what the branch has in common with it to the end: an encoder
            self.update((name, record) for name, record in base.items() if record.last_step is not left)


@dataclass
class ForwardPass:
    """A forward pass that is running in one thread.

    Attributes:
        step: the call of the model.
        calls: how often each name has called.
        records: where its calls go; None before the first.
        how: how it continues an earlier one; None if it does not.
        is_fresh: whether a self-attention that is not recorded was seen without a past; None: none was seen.
        repeated: calls of its layers that the next ones may repeat.
        seen: by module, queries and keys of its calls; where there are several processes.
        depth: how many calls of the model, and parts of it, are running within one another.
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
    """What one thread runs."""

    forward: ForwardPass | None = None
    last: ForwardRecords | None = None  # where its last call went
    added: Record | None = None  # that its last call was added to
    rejects = 0  # how many searches that try tokens and reject some are running
    search: list[list[int]] | None = None  # of each token of a beam search, the numbers of the calls that gave it
    opening: str | None = None  # the layer whose call was noted first in a step

    def __init__(self) -> None:
        self.kinds: dict[
            str, RepeatedStep
        ] = {}  # the calls that were noted in a step before others like them, by layer


class BeamSearch:
    """A beam search that is running: which rows of the model's calls are the sequences that it returns.

    Args:
        calls: of each token that was searched for, the numbers of the calls that gave it; added to as they begin.
    """

    def __init__(self, calls: list[list[int]]) -> None:
        self._calls = calls
        self.chosen: dict[int, ChosenRows] = {}

    def next_token(self) -> None:
        """Note that the model has been called for one more token."""
        self._calls.append([])

    def returned(self, rows: Tensor, batch: int) -> None:
        """Note what the search has returned.

        Args:
            rows: (sequences, tokens), of each token the row of the batch that gave it; -1 where a sequence had ended.
            batch: how many rows the calls had.
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
        remarks: what is to be told of the records in the end.
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
    ) -> None:
        self.forwards: list[ForwardRecords] = []
        self.begun = False
        self.remarks: dict[str, None] = {}
        self.by_length: dict[str, None] = {}  # names of modules whose kind of attention their lengths have decided
        self._keeper, self._wanted, self._heads_of, self._is_cross = keeper, wanted, heads_of, is_cross
        self._last, self._every, self._new_record = last, every, new_record
        self._on_new_text = on_new_text  # called in a forward pass that continues no other
        self._count = 0  # of forward passes, those that are not kept too
        self._lock = threading.RLock()
        self._thread = _ThreadPasses()
        self._step_count = itertools.count()
        self._chosen: dict[int, ChosenRows] = {}  # of a step, by its number, the rows that a search has returned

    def begin(self, inputs: Any = None, part: str = "") -> None:
        """Begin a forward pass in this thread: the model is called, or a part of it is called alone.

        Args:
            inputs: what is kept of the arguments.
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
        """End the forward pass, also where it has failed."""
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
        """End a forward pass whose model is no longer running, for an interrupt ended it and torch ran no hooks."""
        if self._thread.forward is not None:
            self._thread.forward.depth = 1
            self.end()

    @property
    def running_step(self) -> ModelCall | None:
        """Return the call of the model that is running in this thread."""
        return None if self._thread.forward is None else self._thread.forward.step

    def has_opened(self, name: str) -> bool:
        """Return whether a step of a text began with the call of this module in this thread."""
        return self._thread.opening == name

    @property
    def last_added(self) -> Record | None:
        """Return the record to which the last call of this thread was added."""
        return self._thread.added

    @contextlib.contextmanager
    def rejecting(self) -> Iterator[None]:
        """Take what is left out of a cache inside the block as tokens that were tried and rejected."""
        self._thread.rejects += 1
        try:
            yield
        finally:
            self._thread.rejects -= 1

    def reject_beyond(self, length: int) -> None:
        """Drop what the last call of this thread has put into a cache that holds no more than so many positions."""
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
        """Follow a beam search that is run inside the block, in this thread."""
        outer, self._thread.search = self._thread.search, [[]]
        search = BeamSearch(self._thread.search)
        try:
            yield search
        finally:
            self._thread.search = outer
        with self._lock:
            self._chosen.update(search.chosen)

    def settle(self) -> None:
        """Put the rows of all records in order, and verify their outputs, now that all is recorded."""
        every = [record for records in self.forwards for record in records.values()]
        for record in every:
            record.settle(self._chosen)
        self._chosen = {}
        with torch.no_grad():
            verify(check for record in every for check in record.take_checks())

    def add(self, name: str, read: Callable[[], ObservedCall]) -> OutputCallback | None:
        """Record a call of a module, if it is wanted.

        Args:
            name: of the module.
            read: returns the call; what it raises is raised.

        Returns:
            A function that takes the call's output; None if the call is not recorded.
        """
        if in_backward():
            return None  # a checkpoint computes again what was recorded before
        with self._lock:
            forward = self._thread.forward
            if forward is None:  # a module called alone is a pass of its own
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
                return None
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
            grown = call.grown  # the cache's word: its keys stay as they are until the model's call has ended
            in_step = forward is self._thread.forward and forward.how is not None and forward.calls[module] == 1
            in_step = in_step and grown is not None and not grown.cuts and self._keeper.device is None
            in_step = in_step and not record.keeps_outputs
            return record.output_callback(call, first, in_step=in_step)

    def _refuse_keys_in_turn(self, forward: ForwardPass, module: str, call: ObservedCall) -> None:
        """Refuse all calls of a module that has the same queries for one part of the keys after the other."""
        try:
            refuse_keys_in_turn(call, forward.seen.setdefault(module, []))
        except Unreadable:
            records = forward.records if forward.records is not None else {}
            for name in [name for name in records if name.partition(" #")[0] == module]:
                del records[name]
            raise

    def note_step(self, name: str, implementation: Any, arguments: Sequence[Any], settings: Mapping[str, Any]) -> None:
        """Note what was settled for a call of transformers' interface that was recorded just now: see `repeat`."""
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
        """Note a call that others in this pass may repeat, and that one token later of its own layer."""
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
        """Record a call of transformers' interface that is like that of an earlier layer in this step; None if not.

        The first layer's call is one like that of the step before, if the cache says that it has one new token.

        Args:
            name: of the module.
            implementation, arguments, settings: with which the interface was called, after the module.
            text_of: returns what stands at the positions of a module's call, as `TextWatcher.text_of` does.
        """
        thread = self._thread
        forward = thread.forward
        if forward is None or name in forward.calls or _current_graph() != -1:  # the last as `in_backward`
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
        samples, room = step.shapes[0][0], step.shapes[1][2]  # to ask tensors for them takes longer
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
        """Return the call that a layer noted in the step before, one token later; None if it is no such layer."""
        before = self._thread.kinds.get(name)
        if before is None or (not forward.repeated and self._thread.opening != name) or len(arguments) != 4:
            return None
        grown = grown_keys(arguments[1])
        return before.next_one(implementation, arguments, settings, grown, self._keeper.mask, forward.step)

    def _records_of(self, forward: ForwardPass, name: str, call: ObservedCall) -> ForwardRecords:
        """Return where the calls of a forward pass go, by the first of them; settle how it continues an earlier one."""
        last = self._thread.last
        is_of_step = call.cross and forward.is_fresh is not False  # whose keys are those of any text from this source
        try:
            found = None if is_of_step else self._continued(name, call, last)
        except Unreadable:  # it would continue what is not kept, and so does the rest of this pass
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
        """Return what a call continues, and how: at its end, or else from an earlier place; None if nothing."""
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
        """Record a call, of all heads or of some, which was given so many keys, and return its record."""
        record = _record_of(records, name)
        how = None if record is None or forward.how is None else record.continued_by(call, forward.how)
        if record is not None and how is None and forward.how is not None:
            raise Unreadable(LATER)
        memory, before = self._keeper.memory, 0
        needed = self._new_record.needed(call, self._keeper, how)
        if not memory.has_room(needed, self._keeper.device or call.k.device):
            raise OverLimit
        if record is None or how is None:
            by_length = name.partition(" #")[0] in self.by_length
            refuse_keys_of_others(call, call.k.shape[2] if call.cached else given, by_length=by_length)
            if record is not None:
                forward.records = records = self._begin_records()
            record = records[name] = self._new_record(name, call, self._keeper, forward.step, heads)
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
        """Begin the records of another forward pass, and drop those that are not to be kept."""
        for record in () if self._thread.last is None else self._thread.last.values():
            record.confirm_keys()
        records = ForwardRecords(self._count, base, left)
        self._count += 1
        self.forwards.append(records)
        self.drop_unwanted(running=records)
        return records

    def drop_unwanted(self, running: ForwardRecords | None = None) -> None:
        """Drop the forward passes that are not to be kept, but for the one that is running."""
        if self._last is None and self._every is None:
            return
        wanted = [one for one in self.forwards if one.number % (self._every or 1) == 0]
        kept = wanted if self._last is None else wanted[-self._last :]
        self.forwards[:] = [one for one in self.forwards if one is running or any(one is other for other in kept)]
        self._keeper.memory.recount(record for records in self.forwards for record in records.values())

    def remove_faulty(self) -> dict[str, str]:
        """Remove the records that cannot be shown, and return their names, each with the reason."""
        reasons = {}
        for records in self.forwards:
            faults = {name: why for name, record in records.items() if (why := record.fault()) is not None}
            reasons.update(faults)
            for name in faults:
                del records[name]
        self.forwards[:] = [records for records in self.forwards if records]
        return reasons

    def _resolve(self, module: str, call: ObservedCall, record: Record | None) -> None:
        """Settle where the text in a cache ends, and, where nothing else has told it, whether it is cross-attention."""
        Q, K = call.q.shape[2], call.k.shape[2]
        mask = self._keeper.mask(call.mask) if K > Q and isinstance(call.mask, Tensor | Spans) else None
        if not keep_what_is_filled(call, mask, continues=record is not None):
            self.by_length.setdefault(module)


def keep_what_is_filled(call: ObservedCall, mask: Any, *, continues: bool) -> bool:
    """Settle whether a call is cross-attention, where nothing told it, and leave out keys that are not filled yet.

    Args:
        call: the call, which is changed.
        mask: its mask in its smallest form, where it has more keys than queries; else None.
        continues: whether it may continue an earlier one.

    Returns:
        Whether its kind was told by more than its lengths.
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


def _first_like(
    steps: Sequence[RepeatedStep], implementation: Any, arguments: Sequence[Any], settings: Mapping[str, Any]
) -> RepeatedStep | None:
    """Return the first of some steps that a call of transformers' interface is like; None if none is."""
    for one in steps:
        if one.is_like(implementation, arguments, settings):
            return one
    return None


def _record_of(records: ForwardRecords, name: str) -> Record | None:
    """Return a record by its name, also of what a branch has left and not yet continued."""
    found = records.get(name)
    return found if found is not None or records.base is None else records.base.get(name)
