"""A call as interventions see it, with the places of its queries and keys in the text."""

from __future__ import annotations

from dataclasses import dataclass

from ..observed_call import ObservedCall


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

    @property
    def samples(self) -> int:
        """Return how many samples it has."""
        return self.call.q.shape[0]
