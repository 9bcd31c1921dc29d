"""The block of weights that a custom function receives to edit a model's attention while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .._utils.readable import Readable


@dataclass(frozen=True, repr=False)
class WeightsBlock(Readable):
    """A block of weights, passed to a custom function.

    Attributes:
        weights: of these queries to all keys of the call, (samples, heads, queries, keys). Rows sum to 1; to less if a
            learned sink takes the rest; to 0 for a fully masked query.
        allowed: which cells the rules allow, bool, same shape.
        name: the name of the module.
        layer: its number.
        samples, heads: their numbers.
        queries, keys: their positions in the text.

    >>> import torch
    >>> from attnwidget import intervene
    >>> model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(1, 5, 8)
    >>> with intervene(model, {(0, 1): lambda block: block.weights.flip(-1)}) as run:
    ...     _ = model(x, x, x)
    >>> run.edited
    {'MultiheadAttention': (1,)}
    """

    weights: Tensor
    allowed: Tensor
    name: str
    layer: int
    samples: tuple[int, ...]
    heads: tuple[int, ...]
    queries: range
    keys: range
