"""Samples of a padded batch with padding removed: the same attention without the padded positions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..._engine.base import Part
from ..._engine.kept_levels import only_overviews
from ..._engine.sources import Given
from ..._rules.row_spans import Spans, as_spans, simplify
from ..._segments.segments import Segments
from ..._widget.stores.named_stacks import LabeledStack, StackKey
from ...attention import Attention
from ...masks import Band
from ...stack import AttentionStack
from ..call.flex_attention import ScoreMod
from .stacks import NamedStack, Side

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LabelsOf = Callable[[str], tuple[Any, Any, Sequence[Segments] | None]]
CAUSAL = Band(low=None, high=0)
TITLE = "padding is removed: positions count from each sample's own first token"

ATTENDS_TO_PADDING = "sample {} attends to its padding, so its weights would change without it: leave out padding=False"


@dataclass(frozen=True)
class UnpaddedSample:
    """A sample of a stack, and its positions from the first to the last that is not padding.

    Attributes:
        stack: of the whole batch.
        batch: the sample.
    """

    stack: NamedStack
    batch: int

    @cached_property
    def queries(self) -> range:
        """The positions of its own queries among all."""
        return unpadded_positions(self.stack.queries, self.batch)

    @cached_property
    def keys(self) -> range:
        """The positions of its own keys among all."""
        return unpadded_positions(self.stack.keys, self.batch)

    def labeled(self, tokens: Any, key_tokens: Any, segments: Sequence[Segments] | None) -> LabeledStack:
        """Return it as a widget takes it.

        Args:
            tokens, key_tokens: of the whole batch: a list, or one for each sample; None: positions are shown.
            segments: of the keys of each sample, or None.
        """
        layers = [part_of(att, self.batch, self.queries, self.keys) for att in self.stack.attention]
        own = self.of_list(tokens, self.queries)
        if key_tokens is None and self.stack.keys.length == self.stack.queries.length:
            key_tokens = tokens
        return LabeledStack(
            AttentionStack(layers, self.stack.attention.names),
            tokens=own,
            key_tokens=self.of_list(key_tokens, self.keys),
            segments=None if segments is None else part_of_segments(segments[self.batch], self.keys),
            **self.grids(),
        )

    def of_list(self, labels: Any, where: range) -> Any:
        """Return this sample's labels at some positions, from the labels of a batch."""
        if labels is None:
            return None
        many = labels.tolist() if isinstance(labels, Tensor) else list(labels)
        own = many[self.batch if len(many) > 1 else 0] if many and not isinstance(many[0], str | int) else many
        return [own[at] for at in where]

    def grids(self) -> dict[str, Any]:
        """Return the keywords of a widget for an image's patches."""
        found = self.stack.grids()
        if "grid_start" not in found:
            return found
        start = found["grid_start"] - (self.keys if found["grid_side"] == "key" else self.queries).start
        return {**found, "grid_start": start} if start >= 0 else {}


def has_padding(stacks: Iterable[NamedStack]) -> bool:
    """Return whether any sample is known to be shorter than its batch."""
    return any(
        len(unpadded_positions(side, batch)) < side.length
        for stack in stacks
        for side in (stack.queries, stack.keys)
        for batch in range(side.batches)
    )


def by_sample(
    keys: Mapping[str, tuple[int, str]], stacks: Mapping[str, NamedStack], labels: LabelsOf
) -> dict[StackKey, Callable[[], LabeledStack]]:
    """Return each sample of some stacks with padding removed, by forward pass and a name such as "sample 1".

    Args:
        keys: the forward pass of each stack, and its name there.
        stacks: by name.
        labels: returns the tokens, the keys' tokens and the segments of a stack, of the whole batch.
    """
    found: dict[StackKey, Callable[[], LabeledStack]] = {}
    for name, key in keys.items():
        stack = stacks[name]
        for batch in range(stack.queries.batches):
            own = UnpaddedSample(stack, batch)
            found[sample_key(key, batch, stack)] = lambda own=own, name=name: own.labeled(*labels(name))  # type: ignore[misc]
    return found


def sample_key(key: tuple[int, str], batch: int, stack: NamedStack) -> StackKey:
    """Return the forward pass and the name of a sample of a stack: "decoder, sample 1"."""
    own = f"sample {batch}" if stack.queries.batches > 1 else ""
    return StackKey(key[0], ", ".join(filter(None, (key[1], own))))


def sample_named(name: str | None) -> tuple[str | None, int | None]:
    """Return the stack and the sample in a name such as "decoder, sample 1"; None for a part that it lacks."""
    found = None if name is None else re.fullmatch(r"(?:(.*), )?sample (\d+)", name)
    return (name, None) if found is None else (found[1], int(found[2]))


def unpadded_positions(side: Side, batch: int) -> range:
    """Return the positions of a sample from its first to its last that is not padding; all if padding is unknown."""
    real = None if side.real is None else side.real[batch].nonzero().flatten()
    if real is None or not len(real):
        return range(side.length)
    return range(int(real[0]), int(real[-1]) + 1)


def part_of(att: Attention, batch: int, queries: range, keys: range) -> Attention:
    """Return one sample of an attention at some of its positions; its tensors are views.

    Args:
        att: of a whole batch.
        batch: the sample.
        queries, keys: of the sample. Its queries must not attend to other keys.

    Raises:
        ValueError: there are only overviews, no q and k; or a query attends to a key that is left out.
    """
    if isinstance(att.source, Given):
        found = _part_of_weights(att, batch, queries, keys)
        return found.as_part((att.part or Part()).heads, None, None, (att.part or Part()).elsewhere)
    if att.q is None or att.k is None or only_overviews(att) is not None:
        raise ValueError(
            "padding=False takes parts of q and k, which were not kept (keep='overview'): leave it out, or capture "
            "them with keep='tensors'"
        )
    mask, bias = _rules_of(att, batch, queries, keys)
    is_causal = isinstance(mask, Band) and mask == CAUSAL  # known by name, and cheaper
    q = att.q[batch : batch + 1, :, queries.start : queries.stop]
    k, v = (None if x is None else x[batch : batch + 1, :, keys.start : keys.stop] for x in (att.k, att.v))
    assert k is not None
    how: dict[str, Any] = {"scale": att.scale, "softcap": att.softcap, "sinks": att.sinks}
    found = Attention(q, k, v, mask=None if is_causal else mask, bias=bias, is_causal=is_causal, **how)
    part = att.part or Part()
    before, rows = part.keys_before, part.queries
    if before is None and rows is None and not part.elsewhere and att.shape.Q == att.shape.K:
        before = 0
    if before is not None:
        before += (queries.start if rows is None else 0) - keys.start
        before = None if before == 0 and rows is None and len(queries) == len(keys) else before
    own = None if rows is None else rows[queries.start : queries.stop]
    return found.as_part(part.heads, own, before, part.elsewhere)


def _part_of_weights(att: Attention, batch: int, queries: range, keys: range) -> Attention:
    """Return one sample's weights at some of its positions; the weights outside must be 0."""
    assert isinstance(att.source, Given)
    weights = att.source.matrix[batch : batch + 1, :, queries.start : queries.stop]
    inside = weights[..., keys.start : keys.stop]
    outside = torch.ones(weights.shape[-1], dtype=torch.bool, device=weights.device)
    outside[keys.start : keys.stop] = False
    if bool(weights[..., outside].any()):
        raise ValueError(ATTENDS_TO_PADDING.format(batch))
    v = None if att.v is None else att.v[batch : batch + 1, :, keys.start : keys.stop]
    return Attention.from_weights(inside, v)


def _rules_of(att: Attention, batch: int, queries: range, keys: range) -> tuple[Any, Any]:
    """Return the mask and the bias of a sample at some positions."""
    per_head = [_allowed(att, batch, head, queries, keys) for head in _heads_that_differ(att)]
    cells = torch.stack(per_head)[None]
    spans = as_spans(cells)
    mask: Any = cells if spans is None else simplify(spans, 1, len(queries), len(keys))
    given = att.options.mask
    added = [x for x in (given, att.options.bias) if isinstance(x, Tensor) and x.dtype in FLOATS]
    own = [_cells(x, batch, queries, keys) for x in added]
    bias: Any = sum(own[1:], start=own[0]) if own else None
    if bias is not None:
        bias = torch.where(cells, bias, torch.zeros((), dtype=bias.dtype, device=bias.device))
    elif callable(att.options.bias):
        bias = _ScorePart(att.options.bias, batch, queries.start, keys.start)
        bias = ScoreMod(bias) if isinstance(att.options.bias, ScoreMod) else bias
    return mask, bias


def _heads_that_differ(att: Attention) -> range:
    """Return the heads to ask for their rules: only the first, if all are alike."""
    given = (att.options.mask, att.options.bias)
    alike = all(
        x is None
        or (isinstance(x, Tensor) and (x.ndim < 4 or x.shape[1] == 1))
        or (isinstance(x, Spans) and x.starts.shape[1] == 1)
        for x in given
    )
    return range(1) if alike else range(att.shape.H)


def _allowed(att: Attention, batch: int, head: int, queries: range, keys: range) -> Tensor:
    """Return which cells of a sample's unpadded positions are allowed, (queries, keys) bool.

    Raises:
        ValueError: one of its queries may attend to a key that is left out.
    """
    found = att.block("allowed", batch=batch, head=head, queries=queries).bool()
    outside = torch.ones(found.shape[1], dtype=torch.bool, device=found.device)
    outside[keys.start : keys.stop] = False
    if bool((found & outside).any()):
        raise ValueError(ATTENDS_TO_PADDING.format(batch))
    return found[:, keys.start : keys.stop]


def _cells(x: Tensor, batch: int, queries: range, keys: range) -> Tensor:
    """Return the bias of a sample at some positions, (1, H or 1, queries or 1, keys or 1)."""
    whole = x.reshape((1,) * (4 - x.ndim) + tuple(x.shape))
    sample = whole if whole.shape[0] == 1 else whole[batch : batch + 1]
    rows = sample if sample.shape[2] == 1 else sample[:, :, queries.start : queries.stop]
    return rows if rows.shape[3] == 1 else rows[..., keys.start : keys.stop]


class _ScorePart:
    """A score function of one sample at some of its positions."""

    def __init__(self, function: Any, batch: int, query: int, key: int) -> None:
        self.function, self._offsets = function, (batch, 0, query, key)
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, score: Any, *indices: Any) -> Any:
        moved = (index + offset for index, offset in zip(indices, self._offsets, strict=True))
        return self.function(score, *moved)


def part_of_segments(segments: Segments, keys: range) -> Segments:
    """Return the segments of some positions, counted from the first of them; others are left out."""
    entries = tuple(
        one._replace(start=max(one.start, keys.start) - keys.start, stop=min(one.stop, keys.stop) - keys.start)
        for one in segments.entries
        if one.start < keys.stop and one.stop > keys.start
    )
    outer = [one.name for one in entries if one.level == 0]
    answer = segments.answer if segments.answer in outer else outer[-1]
    return replace(segments, entries=entries, length=len(keys), answer=answer, _text=None)
