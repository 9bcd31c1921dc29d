"""Two outputs of a model, without and with edits, and what lies between them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from ..._analysis.effect import Effect, MovedToken, divergences, log_probabilities, most_moved
from ..._utils.indexing import as_index
from .model_call import RepeatableCall
from .targets import (
    ComparedTarget,
    find_logits,
    read_at,
    read_target,
    refuse_positions_first,
    text_before,
    texts_of,
)

TargetLike = str | SupportsIndex | Callable[[Any], Any] | None


def compare_outputs(
    call: RepeatableCall,
    before: Any,
    after: Any,
    edits: str,
    target: TargetLike = None,
    at: SupportsIndex = -1,
    batch: SupportsIndex | None = None,
    *,
    first_piece: bool = False,
    sizes: Collection[tuple[int, int]] = (),
) -> Effect:
    """Return the effect of edits by the outputs without and with them.

    Args:
        call: of which both are.
        before, after: the outputs.
        edits: in words.
        target, at, batch, first_piece: as in `attnwidget.effect`.
        sizes: how many samples and queries calls of self-attention had.

    Raises:
        TypeError, ValueError, IndexError: as `attnwidget.effect`.
    """
    if callable(target):
        goal = function_target(target)
        return Effect(edits, goal.name, None, None, goal.number(before), goal.number(after))
    refuse_positions_first(call, sizes)
    first, second = find_logits(before, call).detach(), find_logits(after, call).detach()
    if first.shape != second.shape:
        raise ValueError(f"the output without the edits is {tuple(first.shape)}, with them {tuple(second.shape)}")
    sample = read_sample(batch, len(first))
    place = read_at(at, call, sample, first.shape[1])
    goal = read_target(target, call, first[sample, place], place, first_piece=first_piece)
    kl = kl_of_sample(call, first[sample], second[sample], sample)
    return effect_on(call, goal, first[sample, place], second[sample, place], kl, edits, sample)


def effect_on(
    call: RepeatableCall,
    target: ComparedTarget,
    before: Tensor,
    after: Tensor,
    kl: Tensor | None,
    edits: str,
    batch: int,
) -> Effect:
    """Return the effect on a token, by the rows of logits (V,) at its position."""
    assert target.token is not None
    assert target.at is not None
    p, q = log_probabilities(before), log_probabilities(after)
    moved = most_moved(p, q)
    named = zip(moved, texts_of(moved, call, len(p)), p[moved].exp().tolist(), q[moved].exp().tolist(), strict=True)
    return Effect(
        edits,
        target.name,
        target.token,
        target.at,
        float(p[target.token]),
        float(q[target.token]),
        kl,
        tuple(MovedToken(*one) for one in named),
        text_before(call, batch, target.at),
    )


def kl_of_sample(call: RepeatableCall, before: Tensor, after: Tensor, batch: int) -> Tensor:
    """Return the divergence at each position (n,); NaN at those of padding."""
    found = divergences(before, after).cpu()
    real = call.real(batch)
    if real is not None and len(real) == len(found):
        found[~real.cpu()] = torch.nan
    return found


def function_target(target: Any) -> ComparedTarget:
    """Return a user's own function as what is compared."""
    name = getattr(target, "__name__", type(target).__name__)
    return ComparedTarget("target" if name == "<lambda>" else name, function=target)


def read_sample(batch: Any, count: int) -> int:
    """Return which sample is meant.

    Raises:
        ValueError: there are several and none is named.
        IndexError: there is no such sample.
    """
    if batch is None:
        if count > 1:
            raise ValueError(f"inputs have {count} samples: say which, such as batch=0")
        return 0
    return as_index(batch, count, "batch", "samples")


def effect_of_run(
    call: RepeatableCall,
    edited: Any,
    without: AbstractContextManager[Any],
    edits: str,
    target: TargetLike = None,
    at: SupportsIndex = -1,
    batch: SupportsIndex | None = None,
    *,
    first_piece: bool = False,
    sizes: Collection[tuple[int, int]] = (),
) -> Effect:
    """Run a model once more without edits, and return their effect.

    Args:
        call: the call that was made with them.
        edited: its output.
        without: a block in which the model runs without the edits.
        edits: in words.
        target, at, batch, first_piece, sizes: as of `compare_outputs`.
    """
    with without:
        plain = call()
    return compare_outputs(call, plain, edited, edits, target, at, batch, first_piece=first_piece, sizes=sizes)


def words_of_edits(edits: Any) -> str:
    """Return edits in one line."""
    text = repr(edits)
    return text if len(text) <= 120 else f"{text[:119]}…"
