"""Weights that a model computes in another way than softmax(q kᵀ under rules): the matrix itself is kept."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..._engine.base import witnessed
from ...attention import Attention
from ..call.lineage import ChosenRows, ModelCall
from ..call.observed_call import ObservedCall, Unreadable
from ..call.rule_slices import QUERIES, take_part
from ..verify.batched import OutputCheck
from ..verify.noise import Precision
from .decode_steps import RepeatedStep
from .kept_tensors import GrowingTensor, TensorKeeper
from .record import CONTRADICTED, UNVERIFIED, Continuation, OutputCallback, Record

ROUNDINGS = 16  # of an output's type: how far it may be from weights · v


class WeightsRecord(Record):
    """The weights of one call, as they met v. Its q and k have no features, and no call continues it."""

    def __init__(
        self, name: str, call: ObservedCall, keeper: TensorKeeper, step: ModelCall, heads: Sequence[int] | None = None
    ) -> None:
        super().__init__(name, call, keeper, step, heads)
        assert call.weights is not None
        self._queries = None
        self._weights = call.weights.detach().to(keeper.device, keeper.dtype, copy=True)
        self._wanted = keeper.queries
        self._whole = step, call.weights.shape[2]
        self._differs: Tensor | None = None
        self._rows: list[int] | None = None  # the kept queries; None: all

    @staticmethod
    def needed(call: ObservedCall, keeper: TensorKeeper, how: Continuation | None) -> int:
        """Return the bytes that a call will take."""
        assert call.weights is not None
        return Record.needed(call, keeper, how) + call.weights.numel() * (keeper.dtype or call.weights.dtype).itemsize

    @property
    def queries(self) -> int:
        """Return the number of queries of its call, with those that are not kept."""
        return self._whole[1]

    @property
    def size(self) -> int:
        """Return the bytes of its weights and v."""
        return super().size + self._weights.nbytes

    def continued_by(self, call: ObservedCall, wanted: Continuation | None = None) -> None:
        """Return None: nothing continues this."""

    def continued_earlier(self, call: ObservedCall) -> None:
        """Return None: nothing continues this."""

    def continues_but_for_samples(self, call: ObservedCall) -> bool:
        """Return False: nothing continues this."""
        return False

    def extend(self, call: ObservedCall, how: Continuation, step: ModelCall) -> NoReturn:
        """Raise Unreadable: nothing continues this."""
        raise Unreadable("its weights are kept for one call: capture the whole text in one forward pass")

    def repeating(self, step: RepeatedStep, keys: Tensor) -> None:
        """Return None: nothing continues this."""

    def settle(self, chosen: Mapping[int, ChosenRows] | None = None) -> None:
        """Put the samples in order, so that each is one text."""
        rows = self._lineage.rows(chosen)[0]
        super().settle(chosen)
        if rows != [*range(len(rows))]:
            self._weights = self._weights[[max(0, row) for row in rows]]

    def keep_queries(self) -> None:
        """Keep only the wanted queries, now that the forward pass has ended."""
        if self._wanted is None or self._rows is not None:
            return
        self._rows = [*self._wanted.of(self.queries)]
        if not self._rows:
            raise Unreadable(f"queries={self._wanted!r} names none of its {self.queries:,} queries: ask for others")
        self._weights = take_part(self._weights, QUERIES, self._rows).clone()
        self._attention = None

    @property
    def positions(self) -> list[int] | None:
        """Return the kept queries among all; None if all are kept."""
        return self._rows

    def output_callback(self, call: ObservedCall, first: int, *, in_step: bool = False) -> OutputCallback:
        """Return a function that takes the output of the call."""
        return functools.partial(self.add_output, call, first)

    def add_output(self, call: ObservedCall, first: int, output: Any, *, in_step: bool = False) -> None:
        """Verify the call: weights · v is its output."""
        if call.v is not None and call.weights is not None and isinstance(output, Tensor):
            self._differs = weights_differ(call.weights, call.v, output)

    def take_checks(self) -> list[OutputCheck]:
        """Return none: its call was verified at once."""
        return []

    def pop_checks(self) -> list[OutputCheck]:
        """Return none, as `take_checks` does."""
        return []

    def fault(self) -> str | None:
        """Return why this record cannot be shown, such as a contradicted output; None if it can."""
        if self._differs is None:
            return UNVERIFIED
        return CONTRADICTED if bool(self._differs) else None

    def _kept(self) -> dict[str, GrowingTensor]:
        return {} if self.v is None else {"v": self.v}

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights, and v if it is kept."""
        return {"weights": self._weights, **super().tensors()}

    @property
    def attention(self) -> Attention:
        """Return the attention of its weights."""
        if self._attention is None:
            kept = self.tensors()
            att = Attention.from_weights(kept["weights"], kept.get("v"))
            att = att.as_part(self._head_numbers, self.positions, None, self.cross)
            self._attention = witnessed(att, self._witness())
        return self._carrying(self._attention)


def weights_differ(weights: Tensor, v: Tensor, output: Tensor) -> Tensor:
    """Return whether an output (B, H, Q, Dv) is not weights (B, H, Q, K) · v (B, H or 1, K, Dv), (), bool."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        rows = sorted({0, weights.shape[2] // 2, weights.shape[2] - 1})
        some = weights[:, :, rows].to(torch.float64)
        if output.shape != (*weights.shape[:3], v.shape[-1]):
            return torch.ones((), dtype=torch.bool, device=output.device)
        values, found = v.to(torch.float64), output[:, :, rows].to(torch.float64)
        precision = Precision.of(output, weights, v)
        slack = ROUNDINGS * (precision.kept + precision.factors)
        tolerance = slack * (some.abs() @ values.abs()) + 2 * precision.least
        return ((some @ values - found).abs() > tolerance + torch.finfo(torch.float32).tiny).any()
