"""Parts of scores and weights, such as x[…], x.chunk(…) and x.unbind(…), and weights that meet v part by part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .heads_axis import UNBINDS, functions
from .traced_scores import Index, TracedWeights

GETITEMS, WITH_AXIS_FIRST = functions("__getitem__"), functions("narrow", "select")


def is_all(index: Any) -> bool:
    return isinstance(index, slice) and index in (slice(None), slice(0, None))


def parts_of(
    func: Any, result: Any, x: Tensor, others: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[Tensor, Index]]:
    """Yield each part of x that a function returns, with its index: slices and numbers, one for each axis."""
    if func in GETITEMS:
        index = others[0] if isinstance(others[0], tuple) else (others[0],)
        if any(not isinstance(one, int | slice) and one is not Ellipsis and one is not None for one in index):
            return
        if Ellipsis in index:
            i = index.index(Ellipsis)
            left = x.ndim - sum(one is not Ellipsis and one is not None for one in index)
            index = (*index[:i], *[slice(None)] * left, *index[i + 1 :])
        used = sum(one is not None for one in index)
        yield result, (*index, *[slice(None)] * (x.ndim - used))
        return
    first = func in WITH_AXIS_FIRST
    place = 0 if first or func in UNBINDS else 1
    axis = int(kwargs.get("dim", others[place] if len(others) > place else 0)) % x.ndim
    given = {name: value for name, value in kwargs.items() if name != "dim"}
    rest = others[1:] if first else others[:1] if place else ()
    places = func(torch.arange(x.shape[axis], device="cpu"), *((0, *rest) if first else rest), **given)
    for part, where in zip(*(((result,), (places,)) if isinstance(result, Tensor) else (result, places)), strict=True):
        one = int(where) if where.ndim == 0 else slice(int(where[0]), int(where[-1]) + 1)
        if isinstance(one, slice) and one == slice(0, x.shape[axis]):
            one = slice(None)
        yield part, (*[slice(None)] * axis, one, *[slice(None)] * (x.ndim - axis - 1))


def marked(x: Tensor, index: Any) -> Tensor | None:
    """Return the place of x[index], as a mask that broadcasts to x, of one sample and head if the index names none."""
    entries = index if isinstance(index, tuple) else (index,)
    leading = 0
    for one in entries:
        if one is Ellipsis:
            leading = max(0, x.ndim - 2)
            break
        if not is_all(one):
            break
        leading += 1
    small = tuple(1 if i < min(leading, x.ndim - 2) else size for i, size in enumerate(x.shape))
    for sizes in dict.fromkeys((small, tuple(x.shape))):
        mask = torch.zeros(sizes, dtype=torch.bool, device=x.device)
        try:
            mask[index] = True
        except (IndexError, RuntimeError):
            continue
        return mask
    return None


def gather(
    known: TracedWeights, weights: Tensor, v: Tensor, result: Tensor
) -> tuple[TracedWeights, Tensor, Tensor, Tensor] | None:
    """Add a part of some weights, its values and output, to the earlier parts; return all once they are complete."""
    softmax, sizes, part = known.softmax, known.scores.sizes, known.part
    assert part is not None
    if softmax.seen is None:
        softmax.seen = torch.zeros(sizes[:-1], dtype=torch.bool, device="cpu")
    softmax.seen[part] = True
    softmax.parts.append((part, v, weights if known.dropout else result))
    if not bool(softmax.seen.all()):
        return None
    with torch.no_grad():
        values = v.new_empty(*sizes[:-2], *v.shape[-2:])
        output = weights.new_empty(*sizes[:-1], softmax.parts[0][2].shape[-1])
        for index, one, shown in softmax.parts:
            values[index[:-1]] = one
            output[index] = shown
    softmax.parts.clear()
    whole = replace(known, sizes=sizes, part=None)
    return (whole, output, values, result) if known.dropout else (whole, weights, values, output)
