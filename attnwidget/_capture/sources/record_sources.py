"""The ways from the residual stream to the q, k and v of a record, over all of its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..._analysis.why.pullback import Bundle, Cut, bundles_of
from ..._analysis.why.stream_graph import NotLinear, Writer
from ..call.lineage import ENDED, RecordedCall
from .stream_tape import NOT_READ, StreamFacts

NOT_KEPT = "this call was made outside of a forward pass of the model, so its residual stream was not followed"


@dataclass(frozen=True, eq=False)
class RecordSources:
    """The ways to a record's q, k and v.

    Attributes:
        name: of the record.
        calls: the model's calls that it consists of.
        heads: the model's heads that it has; None: all.
        positions: the queries of all calls that it has; None: all.
        keys: the number of its keys.
        cross: whether it is cross-attention.
        answers: those so far, by what was asked.
        padding: returns whether a query is a token and not padding, (B, queries); None if unknown.
    """

    name: str
    calls: Sequence[RecordedCall]
    heads: Sequence[int] | None
    positions: Sequence[int] | None
    keys: int
    cross: bool
    padding: Callable[[], Tensor | None]
    answers: dict[Any, Any] = field(default_factory=dict)

    @property
    def streams(self) -> list[StreamFacts]:
        """What the forward passes have shown."""
        return [call.step.stream for call in self.calls if call.step.stream is not None]

    @property
    def real(self) -> Tensor | None:
        """Whether a query of a sample is a token and not padding, (B, Q) bool; None if unknown."""
        found = self.padding()
        return found if found is None or self.positions is None else found[:, list(self.positions)]

    @property
    def layers(self) -> dict[str, bool]:
        """Whether each attention of the forward pass is cross-attention, by the names of the records."""
        return self._stream(self.calls[0]).layers

    @property
    def dtypes(self) -> set[torch.dtype]:
        """The dtypes of the tensors on the ways."""
        return set().union(*(stream.dtypes for stream in self.streams))

    @property
    def writers(self) -> list[tuple[Writer, list[str]]]:
        """What wrote into the residual stream, with the records of its forward pass in the order of their calls."""
        return [(writer, [*stream.layers]) for stream in self.streams for writer in stream.writers.values()]

    def _stream(self, call: RecordedCall) -> StreamFacts:
        found: StreamFacts | None = call.step.stream
        if found is None:
            raise NotLinear(NOT_KEPT)
        return found

    def bundles(
        self, side: str, heads: Sequence[int], batch: int, positions: Tensor, cuts: Sequence[str] = ()
    ) -> Iterator[Bundle]:
        """Yield what reaches heads' vectors at some positions; `rows` of each count among all that are asked for.

        Args:
            side: "q", "k" or "v".
            heads: the heads, as the record counts its queries' heads; of k and v one for each key head.
            batch: the sample.
            positions: (m,) queries or keys of the record.
            cuts: names of modules whose features have names.

        Raises:
            NotLinear: a way cannot be followed, or a module did not return a tensor of the stream.
        """
        numbers = [head if self.heads is None else self.heads[head] for head in heads]
        for call, rows, at in self._by_call(side, positions):
            if call.rows[batch] == ENDED:
                raise NotLinear("this sample had ended before this position was generated")
            ways = self._stream(call).ways.get(self.name)
            operand = NOT_READ if ways is None else getattr(ways, side)
            if ways is None or isinstance(operand, str):
                raise NotLinear(operand)
            own = [number if side == "q" else number // ways.group for number in numbers]
            if side != "q":
                at = at + (0 if self.cross or call is self.calls[0] else operand.shape[2] - call.queries)
            for bundle in bundles_of(operand, own, call.rows[batch], at, self._cuts(call, cuts)):
                bundle.rows = rows[bundle.rows]
                yield bundle

    def _cuts(self, call: RecordedCall, names: Sequence[str]) -> list[Cut]:
        places = self._stream(call).places
        missing = next((name for name in names if name not in places), None)
        if missing is not None:
            there = ", ".join(map(repr, [*places][:12]))
            raise NotLinear(
                f"features names {missing!r}, but no module of that name returns a part of the residual stream: give "
                f"one of these, or another that model.named_modules() lists: {there}"
            )
        return [Cut(name, places[name]) for name in names]

    def _by_call(self, side: str, positions: Tensor) -> Iterator[tuple[RecordedCall, Tensor, Tensor]]:
        """Yield the calls that have some of the positions, which these are, and their places in the call."""
        if side == "q" and self.positions is not None:
            positions = torch.tensor(self.positions, device="cpu")[positions]
        if side != "q" and self.cross:
            yield self.calls[0], torch.arange(len(positions), device="cpu"), positions
            return
        before = 0 if side == "q" else self.keys - sum(call.queries for call in self.calls)
        start = 0
        for call in self.calls:
            stop = start + call.queries + (before if call is self.calls[0] else 0)
            rows = ((positions >= start) & (positions < stop)).nonzero()[:, 0]
            if len(rows):
                yield call, rows, positions[rows] - start
            start = stop
