"""Compare a model's outputs without and with edits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
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


@dataclass(frozen=True)
class TargetArguments:
    """The arguments of `attnwidget.effect` that choose the compared number."""

    target: TargetLike = None
    at: SupportsIndex = -1
    batch: SupportsIndex | None = None
    first_piece: bool = False


def compare_outputs(
    call: RepeatableCall,
    before: Any,
    after: Any,
    edits: str,
    choice: TargetArguments,
    sizes: Collection[tuple[int, int]] = (),
) -> Effect:
    """Return the effect of edits, from the outputs without and with them.

    Args:
        call: the call that gave both outputs.
        before, after: the outputs.
        edits: the edits as text.
        choice: the number to compare.
        sizes: the numbers of samples and queries of self-attention calls.

    Raises:
        TypeError, ValueError, IndexError: as in `attnwidget.effect`.
    """
    if callable(choice.target):
        goal = function_target(choice.target)
        return Effect(edits, goal.name, None, None, goal.number(before), goal.number(after))
    refuse_positions_first(call, sizes)
    first, second = find_logits(before, call).detach(), find_logits(after, call).detach()
    if first.shape != second.shape:
        raise ValueError(
            f"the output has shape {tuple(first.shape)} without the edits and {tuple(second.shape)} with them: "
            "both must have the same shape"
        )
    sample = read_sample(choice.batch, len(first))
    place = read_at(choice.at, call, sample, first.shape[1])
    goal = read_target(choice.target, call, first[sample, place], place, first_piece=choice.first_piece)
    assert goal.token is not None
    p, q = log_probabilities(first[sample, place]), log_probabilities(second[sample, place])
    moved = most_moved(p, q)
    named = zip(moved, texts_of(moved, call, len(p)), p[moved].exp().tolist(), q[moved].exp().tolist(), strict=True)
    return Effect(
        edits,
        goal.name,
        goal.token,
        place,
        float(p[goal.token]),
        float(q[goal.token]),
        _divergences(call, first[sample], second[sample], sample),
        tuple(MovedToken(*one) for one in named),
        text_before(call, sample, place),
    )


def _divergences(call: RepeatableCall, before: Tensor, after: Tensor, batch: int) -> Tensor:
    """Return the KL divergence at each position (n,); NaN at padding."""
    found = divergences(before, after).cpu()
    real = call.real(batch)
    if real is not None and len(real) == len(found):
        found[~real.cpu()] = torch.nan
    return found


def function_target(target: Any) -> ComparedTarget:
    """Return a user's function as the compared target."""
    name = getattr(target, "__name__", type(target).__name__)
    return ComparedTarget("target" if name == "<lambda>" else name, function=target)


def read_sample(batch: Any, count: int) -> int:
    """Return the number of the sample.

    Raises:
        ValueError: there are several samples and none is named.
        IndexError: there is no such sample.
    """
    if batch is None:
        if count > 1:
            raise ValueError(f"inputs have {count} samples: say which, such as batch=0")
        return 0
    return as_index(batch, count, "batch", "samples")


def text_of_edits(edits: Any) -> str:
    """Return edits as one line of at most 120 characters."""
    text = repr(edits)
    return text if len(text) <= 120 else f"{text[:119]}…"
