"""Which record a call belongs to: forward passes told apart, and those that continue one another put together."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from .recording import Keeper, Record, Seen
from .spans import Spans

CROSS = re.compile(r"cross|encoder_attn|encdec|enc_dec", re.IGNORECASE)
Pages = dict[str, Record]  # the records of a forward pass, or of several that continue one another


@dataclass
class Turn:
    """One forward pass of the model: how often each name has come, and where its calls go."""

    times: Counter[str] = field(default_factory=Counter)
    pages: Pages | None = None


class Book:
    """All records of a capture, in the order in which they were begun."""

    def __init__(self, keeper: Keeper, wanted: Callable[[str, int, bool], bool]) -> None:
        self.forwards: list[Pages] = []
        self._keeper, self._wanted = keeper, wanted
        self._turn: Turn | None = None
        self._numbers: dict[bool, dict[str, int]] = {False: {}, True: {}}
        self._lock = threading.RLock()

    def begin(self) -> None:
        """The model's forward pass begins."""
        self._turn = Turn()

    def end(self) -> None:
        """It has ended, or failed."""
        self._turn = None
        self._keeper.forget()

    def add(self, name: str, read: Callable[[], Seen]) -> None:
        """A call of a module; what raises while it is read is raised."""
        with self._lock:
            if self._turn is None:
                self._keeper.forget()
            turn = self._turn or Turn()  # a part of the model, called alone, is a pass of its own
            turn.times[name] += 1
            if turn.times[name] > 1:
                name = f"{name} #{turn.times[name]}"
            seen = read()
            here = turn.pages if turn.pages is not None else (self.forwards[-1] if self.forwards else None)
            record = None if here is None else here.get(name)
            self._settle(name, seen, record)
            if not self._is_wanted(name, bool(seen.cross)):
                return
            order = None
            if record is not None and not (turn.pages is None and seen.cross):
                order = record.order_of(seen)
            if record is not None and order is not None:
                record.extend(seen, order)
            else:
                if here is None or record is not None:
                    here = {}
                    self.forwards.append(here)
                here[name] = Record(name, seen, self._keeper)
            turn.pages = here

    def _settle(self, name: str, seen: Seen, record: Record | None) -> None:
        """What a call alone does not tell: whether it is cross-attention, and where the text in a cache ends."""
        Q, K = seen.q.shape[2], seen.k.shape[2]
        if record is not None:
            seen.cross = record.cross
        elif seen.cross is None:
            seen.cross = bool(CROSS.search(name)) or (Q != K and not seen.cached and not seen.is_causal)
        if seen.cross or K <= Q or not isinstance(seen.mask, torch.Tensor | Spans):
            return
        rows = self._keeper.mask(seen.mask)
        if not isinstance(rows, Spans):
            return
        used, grows = rows.reach
        if Q <= used < K and (seen.cached or grows):  # the rest of a buffer is not filled yet
            seen.mask, seen.k = rows, seen.k[:, :, :used]
            seen.v = None if seen.v is None else seen.v[:, :, :used]
            seen.bias = seen.bias[..., :used] if isinstance(seen.bias, torch.Tensor) else seen.bias

    def _is_wanted(self, name: str, cross: bool) -> bool:
        number = self._numbers[cross].setdefault(name, len(self._numbers[cross]))
        return self._wanted(name, number, cross)
