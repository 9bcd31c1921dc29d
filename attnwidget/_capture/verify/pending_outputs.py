"""The outputs of calls with one query, kept until they can be verified together: one product has all their rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..call.lineage import take_rows

AT_ONCE = 64  # calls whose outputs are verified together


class KeptOutputs:
    """Outputs that a record has not verified yet, and calls whose output has not been seen yet.

    Calls are known by their first query in the record.
    """

    def __init__(self) -> None:
        self._expected: set[int] = set()
        self._kept: list[tuple[int, Tensor]] = []  # (B, H, 1, Dv)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def expected(self) -> list[int]:
        """Return the calls whose output has not been seen, ascending."""
        return sorted(self._expected)

    @property
    def nbytes(self) -> int:
        """Return how many bytes the outputs take."""
        return sum(x.nbytes for _, x in self._kept)

    def expect(self, query: int) -> None:
        """Note that the output of a call is to come."""
        self._expected.add(query)

    def has_seen(self, query: int) -> None:
        """Note that the output of a call has come, and is verified elsewhere."""
        self._expected.discard(query)

    def add(self, query: int, output: Any, shape: tuple[int, ...]) -> None:
        """Keep a copy of an output; one that has not the shape (B, H, 1, Dv) counts as not seen."""
        if isinstance(output, Tensor) and output.shape == shape:
            self._expected.discard(query)
            self._kept.append((query, output.detach().clone(memory_format=torch.contiguous_format)))

    def take_over(self, query: int, output: Tensor | None) -> None:
        """Keep an output (B, H, 1, Dv) without a copy; None: it is still to come."""
        if output is None:
            self._expected.add(query)
        else:
            self._kept.append((query, output))

    def shorten(self, queries: int) -> None:
        """Forget the calls from a query on."""
        self._expected = {query for query in self._expected if query < queries}
        self._kept = [one for one in self._kept if one[0] < queries]

    def take(self, rows: Tensor) -> None:
        """Take of each output the rows that `rows` (samples, all queries) names."""
        self._kept = [(query, take_rows(x, rows[:, query : query + 1])) for query, x in self._kept]

    def copy(self) -> KeptOutputs:
        """Return the same, to go on apart."""
        other = KeptOutputs()
        other._expected, other._kept = set(self._expected), list(self._kept)
        return other

    def pop(self) -> tuple[list[int], Tensor] | None:
        """Return the queries of all outputs and these as one, (B, H, n, Dv), and keep them no longer; None: none."""
        kept, self._kept = self._kept, []
        return ([query for query, _ in kept], torch.cat([x for _, x in kept], 2)) if kept else None
