"""Match each call with its record: tell forward passes apart, and join those that continue one another."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from .._rules.row_spans import Spans
from .limit import OverLimit
from .records import Continuation, ObservedCall, Record, TensorKeeper, Unreadable
from .reduced import ReducedRecord
from .selection import with_heads

LATER = (
    "its later calls do not continue the first, whose keys they do not have, so only that is kept: capture the whole "
    "text in one forward pass, without a cache"
)
CROSS = re.compile(r"cross|encoder_attn|encdec|enc_dec", re.IGNORECASE)
OutputCallback = Callable[[Any], None]  # takes the output (B, H, Q, Dv) of a call that was recorded


AnyRecord = Record | ReducedRecord


class ForwardRecords(dict[str, AnyRecord]):
    """The records of a forward pass, or of several that continue one another, by the name of the module.

    Attributes:
        number: which of the forward passes it is, those among them that are not kept.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def in_backward() -> bool:
    """Return whether a backward pass is running this."""
    return bool(getattr(torch._C, "_current_graph_task_id", lambda: -1)() != -1)


def as_autocast(call: ObservedCall) -> ObservedCall:
    """Convert q, k and v of a call to the type that autocast gives them."""
    device = call.q.device.type
    if torch.is_autocast_enabled(device):
        wanted = torch.get_autocast_dtype(device)
        call.q, call.k = (x if x.dtype is torch.float64 else x.to(wanted) for x in (call.q, call.k))
        call.v = call.v if call.v is None or call.v.dtype is torch.float64 else call.v.to(wanted)
    return call


@dataclass
class ForwardPass:
    """The forward pass that is running."""

    calls: Counter[str] = field(default_factory=Counter)  # how often each name has called
    records: ForwardRecords | None = None  # where its calls go; None before the first
    continues: bool = False  # an earlier one


def _continuation(record: AnyRecord, call: ObservedCall, forward: ForwardPass) -> Continuation | None:
    """Return how a call continues a record; where it would but cannot, raise, as for all calls of this pass."""
    try:
        return record.continued_by(call)
    except Unreadable:
        forward.continues = True
        raise


class RecordMatcher:
    """All records of a capture, in the order in which they were begun.

    Attributes:
        forwards: the records of each forward pass, or of several that continue one another.
        begun: whether the model's forward has been called.
    """

    def __init__(
        self,
        keeper: TensorKeeper,
        wanted: Callable[[str, bool], bool],
        heads_of: Callable[[str, ObservedCall], list[int] | None],
        last: int | None = None,
        every: int | None = None,
        new_record: type[Record] | type[ReducedRecord] = Record,
    ) -> None:
        self.forwards: list[ForwardRecords] = []
        self.begun = False
        self._keeper, self._wanted, self._heads_of = keeper, wanted, heads_of
        self._last, self._every, self._new_record = last, every, new_record
        self._forward_pass: ForwardPass | None = None
        self._count = 0  # of forward passes, those that are not kept too
        self._lock = threading.RLock()

    def begin(self) -> None:
        """Begin a forward pass of the model."""
        self._forward_pass, self.begun = ForwardPass(), True

    def end(self) -> None:
        """End the forward pass, also where it has failed."""
        self._forward_pass = None
        self._keeper.forget_masks()

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
            if self._forward_pass is None:
                self._keeper.forget_masks()
            forward = self._forward_pass or ForwardPass()  # a part of the model, called alone, is a pass of its own
            forward.calls[name] += 1
            if forward.calls[name] > 1:
                name = f"{name} #{forward.calls[name]}"
            call = as_autocast(read())
            records = forward.records if forward.records is not None else (self.forwards[-1] if self.forwards else None)
            record = None if records is None else records.get(name)
            self._resolve(name, call, record)
            if not self._wanted(name, bool(call.cross)):
                return None
            heads = self._heads_of(name, call)
            part = call if heads is None else with_heads(call, heads)
            how, first = None, 0
            if record is not None and not (forward.records is None and call.cross):
                how = _continuation(record, part, forward)
            if record is not None and how is None and forward.continues:
                raise Unreadable(LATER)
            memory, before = self._keeper.memory, 0
            needed = self._new_record.needed(part, self._keeper, how)
            if not memory.has_room(needed, self._keeper.device or call.k.device):
                raise OverLimit
            if record is not None and how is not None:
                forward.continues, before = True, record.size
                record.extend(part, how)
                first = record.queries - call.q.shape[2]
            else:
                if records is None or record is not None:
                    records = self._begin_records()
                record = records[name] = self._new_record(name, part, self._keeper, heads)
            memory.add(record.size - before)
            forward.records = records
            return partial(record.add_output, call, first)

    def _begin_records(self) -> ForwardRecords:
        """Begin the records of another forward pass, and drop those that are not to be kept."""
        records = ForwardRecords(self._count)
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

    def _resolve(self, name: str, call: ObservedCall, record: AnyRecord | None) -> None:
        """Settle what a call alone does not say: whether it is cross-attention, and where the text in a cache ends."""
        Q, K = call.q.shape[2], call.k.shape[2]
        mask = self._keeper.mask(call.mask) if K > Q and isinstance(call.mask, torch.Tensor | Spans) else None
        used, grows = mask.reach if isinstance(mask, Spans) else (0, False)
        if record is not None:
            call.cross = record.cross
        elif call.cross is None:
            call.cross = bool(CROSS.search(name)) or not (Q == K or call.cached or call.is_causal or grows)
        if call.cross or not isinstance(mask, Spans):
            return
        if Q <= used < K and (call.cached or grows or record is not None):  # the rest of a buffer is not filled yet
            call.mask, call.k = mask, call.k[:, :, :used]
            call.v = None if call.v is None else call.v[:, :, :used]
            call.bias = call.bias[..., :used] if isinstance(call.bias, torch.Tensor) else call.bias
