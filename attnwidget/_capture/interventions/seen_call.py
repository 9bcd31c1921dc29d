"""A call as interventions see it, with the places of its queries and keys in the text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ..call.observed_call import ObservedCall


@dataclass(frozen=True)
class SeenCall:
    """A call as interventions see it.

    Attributes:
        call: with tensors of the model.
        name: of its module.
        number: of its layer.
        cross: whether it is cross-attention.
        queries, keys: the positions of its queries and keys in the text.
        query_length, key_length: of the text that was read first, from whose end negative positions count.
        first_head: the number in the model of its head 0, where other processes have the heads before.
        kept: which keys policies leave, by the edits that ask for it: found once for all heads.
    """

    call: ObservedCall
    name: str
    number: int
    cross: bool
    queries: range
    keys: range
    query_length: int
    key_length: int
    first_head: int = 0
    kept: dict[Any, Any] = field(default_factory=dict, compare=False)

    @property
    def shapes(self) -> tuple[torch.Size, torch.Size]:
        """Return the shapes of its q and k."""
        return self.call.q.shape, self.call.k.shape

    @property
    def place(self) -> tuple[Any, ...]:
        """Return its fields after the call, without what was found for it."""
        lengths = self.query_length, self.key_length
        return (self.name, self.number, self.cross, self.queries, self.keys, *lengths, self.first_head)

    @property
    def samples(self) -> int:
        """Return how many samples it has."""
        return self.call.q.shape[0]
