"""Which record a call belongs to: forward passes told apart, and those that continue one another put together."""

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
from .records import ObservedCall, Record, TensorKeeper, Unreadable

LATER = (
    "its later calls do not continue the first, whose keys they do not have, so only that is kept: capture the whole "
    "text in one forward pass, without a cache"
)
CROSS = re.compile(r"cross|encoder_attn|encdec|enc_dec", re.IGNORECASE)
Answer = Callable[[Any], None]
Pages = dict[str, Record]  # the records of a forward pass, or of several that continue one another


def in_backward() -> bool:
    """Whether this is run by a backward pass."""
    return bool(getattr(torch._C, "_current_graph_task_id", lambda: -1)() != -1)


def as_computed(seen: ObservedCall) -> ObservedCall:
    """The call with q, k and v in the type that autocast gives them on their way."""
    kind = seen.q.device.type
    if torch.is_autocast_enabled(kind):
        wanted = torch.get_autocast_dtype(kind)
        seen.q, seen.k = (x if x.dtype is torch.float64 else x.to(wanted) for x in (seen.q, seen.k))
        seen.v = seen.v if seen.v is None or seen.v.dtype is torch.float64 else seen.v.to(wanted)
    return seen


@dataclass
class ForwardPass:
    """One forward pass of the model: how often each name has come, and where its calls go."""

    times: Counter[str] = field(default_factory=Counter)
    pages: Pages | None = None
    continues: bool = False  # what was there before it


class RecordMatcher:
    """All records of a capture, in the order in which they were begun."""

    def __init__(self, keeper: TensorKeeper, wanted: Callable[[str, int, bool], bool]) -> None:
        self.forwards: list[Pages] = []
        self.begun = False  # whether there was a forward pass of the model
        self._keeper, self._wanted = keeper, wanted
        self._turn: ForwardPass | None = None
        self._numbers: dict[bool, dict[str, int]] = {False: {}, True: {}}
        self._lock = threading.RLock()

    def begin(self) -> None:
        """The model's forward pass begins."""
        self._turn, self.begun = ForwardPass(), True

    def end(self) -> None:
        """It has ended, or failed."""
        self._turn = None
        self._keeper.forget()

    def add(self, name: str, read: Callable[[], ObservedCall]) -> Answer | None:
        """A call of a module; what raises while it is read is raised. Returns whom to give its output if it is kept."""
        if in_backward():
            return None  # a checkpoint computes again what was heard before
        with self._lock:
            if self._turn is None:
                self._keeper.forget()
            turn = self._turn or ForwardPass()  # a part of the model, called alone, is a pass of its own
            turn.times[name] += 1
            if turn.times[name] > 1:
                name = f"{name} #{turn.times[name]}"
            seen = as_computed(read())
            here = turn.pages if turn.pages is not None else (self.forwards[-1] if self.forwards else None)
            record = None if here is None else here.get(name)
            self._settle(name, seen, record)
            if not self._is_wanted(name, bool(seen.cross)):
                return None
            how, first = None, 0
            if record is not None and not (turn.pages is None and seen.cross):
                how = record.continued_by(seen)
            if record is not None and how is None and turn.continues:
                raise Unreadable(LATER)
            if record is not None and how is not None:
                turn.continues = True
                record.extend(seen, how)
                first = record.q.length - seen.q.shape[2]
            else:
                if here is None or record is not None:
                    here = {}
                    self.forwards.append(here)
                record = here[name] = Record(name, seen, self._keeper)
            turn.pages = here
            return partial(record.hear_output, seen, first)

    def doubtful(self) -> list[str]:
        """The names of records whose calls gave something else than what is kept of them says; they are taken out."""
        names = []
        for pages in self.forwards:
            for name in [name for name, record in pages.items() if record.is_otherwise()]:
                names.append(name)
                del pages[name]
        self.forwards[:] = [pages for pages in self.forwards if pages]
        return names

    def _settle(self, name: str, seen: ObservedCall, record: Record | None) -> None:
        """What a call alone does not tell: whether it is cross-attention, and where the text in a cache ends."""
        Q, K = seen.q.shape[2], seen.k.shape[2]
        rows = self._keeper.mask(seen.mask) if K > Q and isinstance(seen.mask, torch.Tensor | Spans) else None
        used, grows = rows.reach if isinstance(rows, Spans) else (0, False)
        if record is not None:
            seen.cross = record.cross
        elif seen.cross is None:
            seen.cross = bool(CROSS.search(name)) or not (Q == K or seen.cached or seen.is_causal or grows)
        if seen.cross or not isinstance(rows, Spans):
            return
        if Q <= used < K and (seen.cached or grows or record is not None):  # the rest of a buffer is not filled yet
            seen.mask, seen.k = rows, seen.k[:, :, :used]
            seen.v = None if seen.v is None else seen.v[:, :, :used]
            seen.bias = seen.bias[..., :used] if isinstance(seen.bias, torch.Tensor) else seen.bias

    def _is_wanted(self, name: str, cross: bool) -> bool:
        number = self._numbers[cross].setdefault(name, len(self._numbers[cross]))
        return self._wanted(name, number, cross)
