"""A block of weights as a function of the user's own is given it, to edit a model's attention while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .._utils.readable import Readable


@dataclass(frozen=True, repr=False)
class WeightsBlock(Readable):
    """A block of weights, as a function of one's own is given it.

    Attributes:
        weights: of these queries to all keys of the call, (samples, heads, queries, keys); rows sum to 1, or to less
            where a learned sink takes the rest, or to 0 where a query may attend to nothing.
        allowed: which cells the rules allow, bool, the same shape.
        name: of the module.
        layer: its number.
        samples, heads: which they are.
        queries, keys: the positions in the text.
    """

    weights: Tensor
    allowed: Tensor
    name: str
    layer: int
    samples: tuple[int, ...]
    heads: tuple[int, ...]
    queries: range
    keys: range
