"""Every head of a layer, small."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from .._analysis.head_sampling import HeadSampler, sample
from .._engine import overview
from ..attention import Attention
from . import encoding, picture

SIZE = 32  # rows and columns, at most
ROOM = 1 << 20  # cells of one head that are held at once; of more, block by block
CELLS = 1 << 29  # of the sampled rows of all heads together: fewer rows of very long ones


def thumbnails(att: Attention, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Every head small, and where any cell is allowed: all of it, or of a long one exact queries, evenly spread."""
    shape = att.shape
    size = min(SIZE, math.isqrt(encoding.BUDGET // shape.H))
    most = max(1, min(size, CELLS // (shape.H * shape.K)))
    if most * shape.K > ROOM:
        long = (overview.sampled(att, batch, head, rows=most, columns=size) for head in range(shape.H))
        return ((seen.values, seen.allowed) for seen in long)
    queries = sample(shape.Q, shape.Q if shape.Q * shape.K <= picture.SIZE * picture.SIZE else most)
    seen = HeadSampler(att, batch, range(shape.H), queries, size=size, measured=False)
    for _ in seen.steps():
        pass
    return zip(seen.values, seen.allowed, strict=True)
