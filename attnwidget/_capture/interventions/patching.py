"""Patching: weights and outputs of heads from another run replace those of this run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..._engine.base import AttentionBase
from ..._utils.validation import told
from ...stack import AttentionStack
from ..intercept.output_edits import EditRefused


class OtherRun:
    """Another, captured run of the same model.

    Args:
        source: a `Capture` or `Forward`, whose calls are found by module name; an `AttentionStack`, whose layers are
            found by name or number; or one `Attention`, for any layer.

    Raises:
        TypeError: anything else.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self.ends: dict[str, tuple[int, Any]] = {}  # by name: this run's number of queries, and the other's attention
        is_capture = isinstance(getattr(type(source), "calls", None), property)
        if not isinstance(source, AttentionStack | AttentionBase) and not is_capture:
            raise TypeError(f"'from' is {told(source)}: give a capture, an AttentionStack or an Attention")

    def __str__(self) -> str:
        return type(self._source).__name__

    def attention(self, name: str, number: int | None) -> Any:
        """Return the attention of a layer.

        Raises:
            EditRefused: the other run has no such layer.
        """
        source = self._source
        if isinstance(source, AttentionBase):
            return source
        if isinstance(source, AttentionStack):
            if name in source.names:
                return source[name]
            if number is not None and number < len(source):
                return source[number]
            raise EditRefused(f"the stack of 'from' has {len(source)} layers, but none is {name!r} or number {number}")
        calls: Mapping[str, Any] = source.calls
        if name not in calls:
            raise EditRefused(f"the capture of 'from' has no call of {name!r}: it has {_listed(list(calls))}")
        return calls[name]

    def weights(self, where: Any, sample: int, head: int, rows: range) -> Tensor:
        """Return the weights (rows, K) of some queries of a head; `where` is the `SeenCall`."""
        att, own_sample, own_head = self._find(where, sample, head)
        queries, keys = self._rows(att, where, rows), where.keys
        if keys.stop > att.shape.K or (where.cross and len(keys) != att.shape.K):
            raise EditRefused(_lengths(where, att))
        found: Tensor = att.block("weights", batch=own_sample, head=own_head, queries=queries, keys=keys)
        return found

    def outputs(self, where: Any, sample: int, head: int, rows: range) -> Tensor:
        """Return the outputs (rows, Dv) of some queries of a head."""
        att, own_sample, own_head = self._find(where, sample, head)
        if att.v is None:
            raise EditRefused("the capture of 'from' has no values, so it has no outputs: capture with values=True")
        queries = self._rows(att, where, rows)
        found: Tensor = att.output(batch=own_sample, head=own_head)[queries.start : queries.stop]
        return found

    def _find(self, where: Any, sample: int, head: int) -> tuple[Any, int, int]:
        """Return the attention of the same layer, with its indices of the sample and the head."""
        att = self.attention(where.name, where.number)
        part = att.part
        if part is not None and part.queries is not None:
            raise EditRefused("the capture of 'from' has only some queries: capture without queries=")
        heads: Sequence[int] = range(att.shape.H) if part is None or part.heads is None else part.heads
        if head not in heads:
            raise EditRefused(f"the capture of 'from' has no head {head} of {where.name!r}: it has {_listed(heads)}")
        if att.shape.B not in (1, where.samples):
            raise EditRefused(
                f"the capture of 'from' has {att.shape.B} samples, but this run has {where.samples}: capture one "
                "sample, or as many as here"
            )
        return att, sample if att.shape.B > 1 else 0, list(heads).index(head)

    def _rows(self, att: Any, where: Any, rows: range) -> range:
        known = None if att.part is None else att.part.keys_before
        before = 0 if where.cross else max(0, att.shape.K - att.shape.Q) if known is None else known
        found = range(rows.start - before, rows.stop - before)
        if found.start < 0 or found.stop > att.shape.Q:
            raise EditRefused(_lengths(where, att))
        self.ends[where.name] = max(self.ends.get(where.name, (0, att))[0], found.stop), att
        return found

    def unmatched(self) -> str | None:
        """Return how the other run's number of queries differs in some layer; None if all are equal."""
        for name, (end, att) in self.ends.items():
            if end != att.shape.Q:
                return f"the capture of 'from' has {att.shape.Q} queries in {name!r}, but this run had {end}"
        return None


def _lengths(where: Any, att: Any) -> str:
    return (
        f"{where.name!r} has {len(where.queries)} queries and {len(where.keys)} keys, but the capture of 'from' has "
        f"{att.shape.Q} and {att.shape.K}: capture a run of the same lengths"
    )


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(map(repr, names[:8])) + (", …" if len(names) > 8 else "")
