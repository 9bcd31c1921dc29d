"""Every stage of attention, by block: what follows from some cells alone, and what is in force there.

A block lies transposed, (keys, queries): pooling over keys then runs along rows of memory. Numbers are float32, or
float64 where the tensors are.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import torch
from torch import Tensor

from .._rules.rules import Allowed, Rules, both, settled
from .._utils.indexing import Block, Indices, cuts, take
from .base import AttentionBase
from .matmul import LOG2_E, Scratch
from .sources import SourceRows

NORMALIZED = ("weights", "contribution")  # stages that take a whole row
SIGNED = ("scores", "scaled", "capped", "masked")  # stages whose numbers may be negative
MASKED = ("masked", "weights", "contribution")  # stages in which a blocked cell has no number of its own
QUERIES, KEYS = 512, 2048  # of one block


def new(att: AttentionBase, *shape: int) -> Tensor:
    """Room for results."""
    return torch.empty(shape, dtype=att.result_dtype, device=att.device)


def streamed(att: AttentionBase, stage: str) -> str:
    """The stage whose blocks lead to a stage: weights come of masked, once all of a row has been seen."""
    return "masked" if att.source.gives == "scores" and stage in NORMALIZED else stage


def rows_of(att: AttentionBase, batch: int, head: int, queries: Indices, stage: str) -> SourceRows:
    """Some queries, multiplied as far as a stage asks for."""
    return att.source.rows(batch, head, queries, 1.0 if stage in ("scores", *NORMALIZED) else att.scale)


def plain(
    att: AttentionBase, cells: Block, stage: str, room: Scratch | None = None, rows: SourceRows | None = None
) -> Tensor:
    """A stage that follows from these cells alone, before any mask: (keys, queries), in float32 or float64."""
    rows = rows_of(att, cells.batch, cells.head, cells.queries, stage) if rows is None else rows
    S = rows.block(cells.keys, room)
    if stage == "contribution":
        return by_value(S, norms(att, cells.batch, cells.head, cells.keys))
    if att.softcap is not None and stage == "capped":
        S = S.div_(att.softcap).tanh_().mul_(att.softcap)
    return S


def masked(
    att: AttentionBase, cells: Block, allowed: Allowed, room: Scratch | None = None, rows: SourceRows | None = None
) -> tuple[Tensor, Allowed]:
    """The stage masked of cells of which the rules allow some, (keys, queries), and which are then allowed."""
    if allowed is False:
        return new(att, len(cells.keys), len(cells.queries)).fill_(-inf), False
    S = plain(att, cells, "capped", room, rows)
    for bias in att.rules.biases:
        S = bias.apply(S, cells)
    if att.rules.by_score:
        allowed = both(allowed, settled((torch.finfo(S.dtype).min >= S).logical_not_().mT))
    if isinstance(allowed, Tensor):
        S.masked_fill_(allowed.logical_not().mT, -inf)  # unlike adding −∞, this stops NaN
    elif not allowed:
        S.fill_(-inf)
    return S, allowed


def allowed_cells(att: AttentionBase, cells: Block) -> Allowed:
    """Which cells are allowed, by the rules and by what a function makes of their scores."""
    allowed = att.rules.allowed(cells)
    if att.rules.by_score and allowed is not False and len(cells.queries) and len(cells.keys):
        return masked(att, cells, allowed)[1]
    return allowed


def blocks(
    att: AttentionBase,
    batch: int,
    head: int,
    queries: Indices,
    stage: str,
    width: int = 1,
    *,
    within: range | None = None,
) -> Iterator[tuple[range, Tensor, Allowed]]:
    """The blocks of some queries along the keys, or those `within` a range of them, whole bins of `width` keys or parts
    of one; for the stage masked, blocked ones are left out.

    The numbers, (keys, queries), are the consumer's to overwrite; the next block reuses their memory.
    """
    rows = rows_of(att, batch, head, queries, "capped" if stage == "masked" else stage)
    room = Scratch(len(queries) * KEYS, att.result_dtype, att.device)
    rules = att.rules if stage == "masked" else Rules()
    row = Block(batch, head, queries, range(att.shape.K) if within is None else within)
    for keys in rules.pieces(row, width, KEYS):
        cells = row._replace(keys=keys)
        if stage != "masked":
            yield keys, plain(att, cells, stage, room, rows), True
            continue
        allowed = rules.allowed(cells)
        if allowed is not False:
            yield keys, *masked(att, cells, allowed, room, rows)


def exponentials(
    att: AttentionBase, batch: int, head: int, queries: Indices, width: int = 1, *, within: range | None = None
) -> Iterator[tuple[range, Tensor, Allowed]]:
    """As `blocks` of the stage masked, but exp of it, 0 where a cell is blocked: for scores to which a mask alone is
    done, and which are so small that exp needs no maximum taken off."""
    rows = att.source.rows(batch, head, queries, att.scale * LOG2_E)
    room = Scratch(len(queries) * KEYS, att.result_dtype, att.device)
    row = Block(batch, head, queries, range(att.shape.K) if within is None else within)
    strip = att.rules.strip(batch)
    if strip is not None and isinstance(queries, range) and queries.step == 1:
        for keys in cuts(att.rules.span(row), width, KEYS):
            yield keys, strip.zero_(rows.block(keys, room).exp2_(), queries, keys), True
        return
    for keys in att.rules.pieces(row, width, KEYS):
        allowed = att.rules.allowed(row._replace(keys=keys))
        if allowed is False:
            continue
        e = rows.block(keys, room).exp2_()
        if isinstance(allowed, Tensor):
            e.masked_fill_(allowed.logical_not().mT, 0)
        yield keys, e, allowed
        del e


# Values.


def values(att: AttentionBase, batch: int, head: int, keys: Indices) -> Tensor:
    """The values of some keys, (keys, Dv)."""
    assert att.v is not None  # asked for at the door
    return take(att.v[batch, att.group(head)], keys, 0).to(att.result_dtype)


def norms(att: AttentionBase, batch: int, head: int, keys: Indices) -> Tensor:
    """‖v‖ of some keys, (keys, 1)."""
    return torch.linalg.vector_norm(values(att, batch, head, keys), dim=1, keepdim=True)


def by_value(weights: Tensor, norms: Tensor) -> Tensor:
    """weight × ‖v‖, (keys, queries); 0 where the weight is 0, whatever the value."""
    found = weights * norms
    return found if bool(norms.isfinite().all()) else found.masked_fill_(weights == 0, 0)


def log_by_value(S: Tensor, norms: Tensor) -> Tensor:
    """The logarithm of e^S × ‖v‖, (keys, queries); −∞ where S is."""
    found = S + norms.log()
    return found if bool(norms.isfinite().all()) else found.masked_fill_(S.isneginf(), -inf)
