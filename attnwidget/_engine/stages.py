"""The stages of attention, block by block, and their properties.

Blocks are transposed, (keys, queries), so that pooling over keys runs along rows of memory. Numbers are float64 for
float64 tensors, otherwise float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import torch
from torch import Tensor

from .._rules.rules import Allowed, Rules, both, settled
from .._utils.indexing import Block, Indices, cuts, take
from .base import AttentionBase, Head
from .carried import Of, carried, factor
from .matmul import LOG2_E, Scratch
from .sources import CARRIED, SourceRows

NORMALIZED = ("weights", "contribution", *CARRIED)  # stages that need a whole row
BY_SIZE = ("logit", "saliency")  # stages that "max" pools to the largest absolute value, with its sign
SIGNED = ("scores", "scaled", "capped", "masked", *BY_SIZE)  # stages with negative numbers
MASKED = ("masked", *NORMALIZED)  # stages in which blocked cells have no number of their own
QUERIES, KEYS = 512, 2048  # in one block
FEW_CELLS = 1 << 17  # in a block of few queries


def new(att: AttentionBase, *shape: int) -> Tensor:
    """Return uninitialized memory for results."""
    return torch.empty(shape, dtype=att.result_dtype, device=att.device)


def streamed(att: AttentionBase, stage: str) -> str:
    """Return the stage to compute block by block for a stage: weights need whole rows of masked scores."""
    return "masked" if att.source.gives == "scores" and stage in NORMALIZED else stage


def excludes(att: AttentionBase, stage: str) -> bool:
    """Return whether blocks that known rules exclude can be skipped for a streamed stage."""
    return stage == "masked" or (stage == "weights" and att.source.zero_where_blocked)


def keys_at_once(att: AttentionBase, queries: int) -> int:
    """Return the most keys in a block of some queries, which limits the numbers to cast at once.

    Combined heads and merged words get longer blocks, since each block has a fixed cost there.
    """
    return max(KEYS, FEW_CELLS // max(1, queries)) if att.source.derived else KEYS


def rows_of(head: Head, queries: Indices, stage: str) -> SourceRows:
    """Return the rows of some queries, scaled as a stage needs them."""
    att = head.att
    return att.source.rows(head.batch, head.head, queries, 1.0 if stage in ("scores", *NORMALIZED) else att.scale)


def plain(
    att: AttentionBase, cells: Block, stage: str, scratch: Scratch | None = None, rows: SourceRows | None = None
) -> Tensor:
    """Compute a stage that follows from single cells, without masks.

    Args:
        att: the attention.
        cells: which cells.
        stage: which stage, except "masked".
        scratch: optional memory for the result.
        rows: the result of `rows_of` for the queries, to share between blocks.

    Returns:
        (keys, queries).
    """
    head = Head(att, cells.batch, cells.head)
    rows = rows_of(head, cells.queries, stage) if rows is None else rows
    S = rows.block(cells.keys, scratch)
    if stage != "weights" and stage in NORMALIZED:
        return valued(S, head, cells.queries, cells.keys, stage)
    if att.softcap is not None and stage == "capped":
        S = capped(S, att.softcap)
    return S


def capped(S: Tensor, softcap: float) -> Tensor:
    """Limit scores to ± softcap, in place."""
    return S.div_(softcap).tanh_().mul_(softcap)


def masked(
    att: AttentionBase, cells: Block, allowed: Allowed, scratch: Scratch | None = None, rows: SourceRows | None = None
) -> tuple[Tensor, Allowed]:
    """Compute the stage masked: the scores after softcap, biases and masks.

    Args:
        att: the attention.
        cells: which cells.
        allowed: which of them the rules allow.
        scratch: optional memory for the result.
        rows: the result of `rows_of` for the queries, to share between blocks.

    Returns:
        (keys, queries), −∞ in blocked cells; and which cells are allowed, since functions of the scores may block more.
    """
    if allowed is False:
        return new(att, len(cells.keys), len(cells.queries)).fill_(-inf), False
    S = plain(att, cells, "capped", scratch, rows)
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
    """Return which cells are allowed by the rules and by functions of the scores."""
    allowed = att.rules.allowed(cells)
    if att.rules.by_score and allowed is not False and len(cells.queries) and len(cells.keys):
        return masked(att, cells, allowed)[1]
    return allowed


def blocks(
    head: Head,
    queries: Indices,
    stage: str,
    width: int = 1,
    *,
    within: range | None = None,
    zeros: bool = True,
) -> Iterator[tuple[range, Tensor, Allowed]]:
    """Iterate over the blocks of some queries along the keys; for the stage "masked", skip blocked blocks.

    Args:
        head: which head.
        queries: which queries.
        stage: "masked", or a stage that follows from single cells.
        width: keys in a bin; a block has whole bins or a part of one.
        within: only these keys; None for all.
        zeros: whether to include weights that known rules make 0.

    Yields:
        The keys of a block; its numbers, (keys, queries), which the caller may overwrite and the next block reuses; and
        which cells are allowed.
    """
    att = head.att
    rows = rows_of(head, queries, "capped" if stage == "masked" else stage)
    limit = keys_at_once(att, len(queries))
    scratch = Scratch(len(queries) * limit, att.result_dtype, att.device)
    rules = att.rules if stage == "masked" or (not zeros and excludes(att, stage)) else Rules()
    row = head.block(queries, within)
    for keys in rules.pieces(row, width, limit):
        cells = row._replace(keys=keys)
        if stage != "masked":
            yield keys, plain(att, cells, stage, scratch, rows), True
            continue
        allowed = rules.allowed(cells)
        if allowed is not False:
            yield keys, *masked(att, cells, allowed, scratch, rows)


def exponentials(
    head: Head, queries: Indices, width: int = 1, *, within: range | None = None
) -> Iterator[tuple[range, Tensor, Allowed]]:
    """Iterate over blocks of exp(masked), with 0 in blocked cells, for scores that `softmax.is_small`: see `blocks`."""
    att = head.att
    rows = att.source.rows(head.batch, head.head, queries, att.scale * LOG2_E)
    scratch = Scratch(len(queries) * KEYS, att.result_dtype, att.device)
    row = head.block(queries, within)
    limits = att.rules.band_limits(head.batch)
    if limits is not None and isinstance(queries, range) and queries.step == 1:
        for keys in cuts(att.rules.span(row), width, KEYS):
            yield keys, limits.zero_(rows.block(keys, scratch).exp2_(), queries, keys), True
        return
    for keys in att.rules.pieces(row, width, KEYS):
        allowed = att.rules.allowed(row._replace(keys=keys))
        if allowed is False:
            continue
        e = rows.block(keys, scratch).exp2_()
        if isinstance(allowed, Tensor):
            e.masked_fill_(allowed.logical_not().mT, 0)
        yield keys, e, allowed
        del e


# Values.


def values(head: Head, keys: Indices) -> Tensor:
    """Return the values of some keys, (keys, Dv)."""
    assert head.v is not None  # `check_stage` guarantees it
    return take(head.v, keys, 0).to(head.att.result_dtype)


def norms(head: Head, keys: Indices) -> Tensor:
    """Return ‖v‖ of some keys, (keys, 1)."""
    return torch.linalg.vector_norm(values(head, keys), dim=1, keepdim=True)


def valued(weights: Tensor, head: Head, queries: Indices, keys: Indices, stage: str) -> Tensor:
    """Return a stage after the weights, (keys, queries), from weights."""
    if stage == "contribution":
        return by_value(weights, norms(head, keys))
    if stage not in CARRIED:
        return weights
    assert head.att.carries is not None  # `check_stage` guarantees it
    of = Of(head.batch, head.head)
    return carried(weights, factor(head.att.carries, stage, of, queries, values(head, keys)))


def by_value(weights: Tensor, norms: Tensor) -> Tensor:
    """Return weight × ‖v‖, (keys, queries); 0 for a weight of 0, even if v is NaN or infinite."""
    found = weights * norms
    return found if bool(norms.isfinite().all()) else found.masked_fill_(weights == 0, 0)


def log_by_value(S: Tensor, norms: Tensor) -> Tensor:
    """Return log(e^S × ‖v‖), (keys, queries); −∞ where S is −∞."""
    found = S + norms.log()
    return found if bool(norms.isfinite().all()) else found.masked_fill_(S.isneginf(), -inf)
