"""The layers and words that `why` and `composition` of a capture ask about."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from ..._analysis.why.reasons import run
from ..._utils.progress_bars import progress_bar
from ...stack import AttentionStack
from ..call.memory_limit import as_size, free_bytes
from ..text.stacks import NamedStack

T = TypeVar("T")
WEIGHTS_ALONE = "{} is known by its weights alone, without q and k, so its scores have no parts"
COPIES = 3  # of a row's parts, while they are computed
BESIDE = 4  # parts of a layer besides its heads


def run_with_bar(steps: Generator[float, None, T], *, progress: bool) -> T:
    """Return the result of steps, which yield the share that is done; draw a bar if wanted."""
    if not progress:
        return run(steps)
    with progress_bar()(total=100) as bar:
        return run(steps, lambda share: bar.update(round(share * 100) - bar.n))


def number_of(stack: AttentionStack, layer: int | str) -> int:
    """Return the number of a layer in a stack, from its number or its name.

    Raises:
        IndexError, KeyError: there is no such layer.
    """
    att = stack[layer]
    return next(i for i, one in enumerate(stack) if one is att)


def numbers_of(stack: AttentionStack, layers: Any) -> list[int]:
    """Return the numbers of layers, from a number, a name, a slice or several; None for all.

    Raises:
        ValueError, IndexError, KeyError: there are no such layers.
    """
    if layers is None or isinstance(layers, slice):
        found = list(range(len(stack)))[slice(None) if layers is None else layers]
    else:
        found = [number_of(stack, one) for one in ([layers] if isinstance(layers, int | str) else layers)]
    if not found:
        there = f"0 to {len(stack) - 1}"
        raise ValueError(f"layers is {layers!r}, which holds no layer: give some of {there}, or None for all")
    return found


def refuse_weights_alone(stack: AttentionStack, number: int) -> None:
    """Refuse a layer whose q and k are unknown.

    Raises:
        ValueError: it has only weights.
    """
    if stack[number].source.gives == "weights":
        raise ValueError(WEIGHTS_ALONE.format(stack.names[number]))


def with_scores(stack: AttentionStack, layers: Any) -> list[int]:
    """Return the numbers of layers as `numbers_of` does, without those that have only weights, if all are meant.

    Raises:
        ValueError, IndexError, KeyError: as `numbers_of`; or one that was asked for, or each, has only weights.
    """
    numbers = numbers_of(stack, layers)
    left_out = [one for one in numbers if stack[one].source.gives == "weights"]
    if left_out and (layers is not None or left_out == numbers):
        refuse_weights_alone(stack, left_out[0])
    if left_out:
        others = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        warnings.warn(f"{WEIGHTS_ALONE.format(stack.names[left_out[0]])}: it is left out{others}", stacklevel=3)
    return [one for one in numbers if one not in left_out]


def refuse_too_long(stack: AttentionStack, number: int) -> None:
    """Refuse a row whose parts do not fit into memory.

    Raises:
        ValueError: it would take more than half of the free memory.
    """
    keys, parts = (
        stack[number].shape.K,
        sum(att.shape.H + BESIDE for att in map(stack.__getitem__, range(number))) + BESIDE,
    )
    needed, free = COPIES * 8 * keys * parts, free_bytes(torch.device("cpu"))
    if free is not None and needed > free / 2:
        raise ValueError(
            f"a row of {keys:,} keys × {parts} parts takes {as_size(needed)}, and {as_size(free)} are free: ask for "
            f"pairs, cap.why(layer, head, query, key)"
        )


def words_at(stacks: Mapping[str, NamedStack], name: str, batch: int, query: int, keys: Sequence[int]) -> list[str]:
    """Return the texts of a query and of some keys of a layer; an empty list if they are not all known."""
    stack = next((one for one in stacks.values() if name in one.records), None)
    if stack is None:
        return []
    queries, others = (own.tokens(stack.tokenizer) for own in (stack.queries, stack.keys))
    if queries is None or others is None:
        return []
    try:
        found = [queries[batch][query], *(others[batch][key] for key in keys)]
    except IndexError:
        return []
    return [one for one in found if isinstance(one, str)] if all(isinstance(one, str) for one in found) else []
