"""An attention call in an intervention, with the positions of its queries and keys in the text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ..call.observed_call import ObservedCall


@dataclass(frozen=True)
class SeenCall:
    """An attention call in an intervention.

    Attributes:
        call: the call, with tensors of the model.
        name: the name of its module.
        number: the number of its layer; None if it has none.
        cross: whether it is cross-attention.
        queries, keys: the positions of its queries and keys in the text.
        query_length, key_length: the lengths of the text that was read first; negative positions count from its end.
        first_head: the model's number of its head 0, if heads are sharded over processes.
        kept: the keys that cache policies keep, by edit; computed once for all heads.
    """

    call: ObservedCall
    name: str
    number: int | None
    cross: bool
    queries: range
    keys: range
    query_length: int
    key_length: int
    first_head: int = 0
    kept: dict[Any, Any] = field(default_factory=dict, compare=False)

    @property
    def shapes(self) -> tuple[torch.Size, torch.Size]:
        """The shapes of its q and k."""
        return self.call.q.shape, self.call.k.shape

    @property
    def place(self) -> tuple[Any, ...]:
        """The fields after the call, except computed ones."""
        lengths = self.query_length, self.key_length
        return (self.name, self.number, self.cross, self.queries, self.keys, *lengths, self.first_head)

    @property
    def samples(self) -> int:
        """The number of samples."""
        return self.call.q.shape[0]
