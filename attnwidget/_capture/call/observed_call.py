"""One observed attention call; its tensors are not copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from .cache_growth import GrownKeys
from .call_text import CallText

EAGER = (
    "load the model with attn_implementation='eager', call it with output_attentions=True, and give "
    "output.attentions to AttentionWidget.from_weights"
)

FAILED = (
    "it could not be read, because attnwidget failed in it ({}: {}). The model has computed what it computes without a "
    f"capture. Please report this; until it is mended, {EAGER}"
)


class Unreadable(Exception):
    """An attention call that cannot be expressed as q, k, v and rules; the message says why, and what to do."""


@dataclass(frozen=True)
class ProcessHeads:
    """The heads that one process computes: `count` of `total`, from `first` on."""

    first: int
    count: int
    total: int

    @property
    def numbers(self) -> range:
        """Their numbers in the model."""
        return range(self.first, self.first + self.count)

    def describe(self) -> str:
        """Return them in words."""
        return f"heads {self.first} to {self.first + self.count - 1} of {self.total}, in this process"


class HeadsApart(NamedTuple):
    """An axis of heads, or of heads merged with samples, that a tensor is a slice of.

    Its index is (before · heads + head) · inside + after, where before and after are numbers of samples.
    """

    step: int | None  # how far apart in memory its entries are; None: no such axis is known
    heads: int = 0  # 0: whether its entries are heads is unknown
    inside: int = 1
    entries: int = 0


@dataclass
class ObservedCall:
    """One observed attention call, with the model's own tensors."""

    q: Tensor  # (B, H, Q, D)
    k: Tensor  # (B, G, K, D)
    v: Tensor | None  # (B, G, K, Dv)
    scale: float | None = None
    softcap: float | None = None
    mask: Any = None  # (B or 1, H or 1, Q or 1, K) bool or floats to add, or a function
    bias: Any = None  # the same, floats, or a function of the score
    is_causal: bool = False  # key ≤ query from the upper left
    cross: bool | None = None  # None: unknown
    inputs: tuple[Tensor, Tensor] | None = None  # the sources of q and k before their projections; None: unknown
    cached: bool = False  # of a decoder: k may be a buffer longer than the text
    dropout: bool = False  # some weights were set to 0 before they met v
    sinks: Tensor | None = None  # (H,) learned sink logits
    grown: GrownKeys | None = None  # the cache's report on its keys
    text: CallText | None = None  # the text at its positions, if known
    after: int = 0  # the number of keys after those of its queries, as the module reports
    heads: ProcessHeads | None = None  # if other processes have the model's other heads
    reordered: str | None = None  # the function that put its positions into another order than the text
    heads_apart: Callable[[], HeadsApart] | None = None  # of the tensor that q may be a part of
    maps: bool = False  # its samples are not those of the module's input: they may be windows, groups or heads
    as_multiplied: bool = False  # q, k and v have the dtypes in which the model multiplied them, autocast's included
    weights: Tensor | None = None  # (B, H, Q, K), if only these are known: D of q and k is then 0

    @classmethod
    def of_weights(cls, weights: Tensor, v: Tensor) -> ObservedCall:
        """Return a call with weights (B, H, Q, K) and v (B, H or 1, K, Dv), whose q and k are unknown."""
        B, H, Q, K = weights.shape
        empty = weights.new_empty(B, H, max(Q, K), 0)
        v = v.expand(B, -1, -1, -1)
        return cls(empty[:, :, :Q], empty[:, : v.shape[1], :K], v, 1.0, weights=weights)

    def numbers_of(self, kept: Sequence[int] | None) -> Sequence[int] | None:
        """Return the numbers of the kept heads in the model; None if all are kept.

        Args:
            kept: the kept heads, counted in this process; None for all.
        """
        if self.heads is None:
            return kept
        return [*self.heads.numbers] if kept is None else [self.heads.first + head for head in kept]
