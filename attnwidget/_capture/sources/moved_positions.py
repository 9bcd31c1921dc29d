"""Functions that put vectors of a tensor at other positions, or into another tensor: an index, an assignment, a mask.

Such a function is run once more, on numbers of positions in place of vectors: its result says where each vector comes
from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

COLUMNS = 2  # features that are run; they must move alike


class NotMoved(ValueError):
    """The function does not move whole vectors along one axis."""


class Moves(NamedTuple):
    """Where the vectors of a result come from; see `stream_graph.Moved`.

    axis: along which they move; None: they stay at their positions.
    owner, places: `owner` and `index` of `stream_graph.Moved`.
    """

    axis: int | None
    owner: Tensor
    places: Tensor


def moves_of(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    values: Sequence[Tensor],
    result: Tensor,
    whole: Sequence[bool],
) -> Moves:
    """Return where the vectors of a function's result come from.

    Args:
        func: the function, which must not change its arguments but for the first, which is copied.
        args, kwargs: its arguments, as they were.
        values: the tensors among them that hold vectors; others are indices and masks.
        result: its result.
        whole: for each of the values, whether its vectors are to be found again; others count where they arrive.

    Raises:
        NotMoved: vectors are taken apart, or moved along several axes.
    """
    width, starts, total = result.shape[-1], [], 0
    codes: dict[int, Tensor] = {}
    for x in values:
        if x.ndim < 2 or x.shape[-1] != width:
            raise NotMoved
        starts.append(total)
        rows = math.prod(x.shape[:-1])
        own = torch.arange(total, total + rows, device=x.device).reshape(*x.shape[:-1], 1)
        own = own * COLUMNS + torch.arange(COLUMNS, device=x.device)
        codes[id(x)] = own
        total += rows

    def coded(x: Any) -> Any:
        if isinstance(x, Tensor):
            if id(x) in codes:
                return codes[id(x)]
            return _narrow(x, width) if x.ndim == result.ndim else x
        if isinstance(x, float):  # a constant in place of vectors
            if x != 0:
                raise NotMoved
            return -1
        return type(x)(map(coded, x)) if isinstance(x, list) or type(x) is tuple else x

    found = func(*map(coded, args), **{name: coded(x) for name, x in kwargs.items()})
    if tuple(found.shape) != (*result.shape[:-1], COLUMNS) or found.dtype != torch.long:
        raise NotMoved
    rows = found[..., 0].div(COLUMNS, rounding_mode="floor")
    own = found >= 0
    columns = torch.where(own, found % COLUMNS, torch.arange(COLUMNS, device=found.device))
    if not bool((columns == torch.arange(COLUMNS, device=found.device)).all() & (own[..., 0] == own[..., 1]).all()):
        raise NotMoved
    return _read(rows.cpu(), starts, [tuple(x.shape[:-1]) for x in values], whole)


def _narrow(x: Tensor, width: int) -> Tensor:
    """Return an index or a mask for the features that are run."""
    if x.shape[-1] != width or width <= COLUMNS:
        return x
    if not bool((x == x[..., :1]).all()):
        raise NotMoved
    return x[..., :COLUMNS]


def _read(rows: Tensor, starts: list[int], shapes: list[tuple[int, ...]], whole: Sequence[bool]) -> Moves:
    """Return the moves from the numbers of rows among all."""
    owner, index = torch.full_like(rows, -1), torch.zeros_like(rows)
    places = torch.meshgrid([torch.arange(size, device=rows.device) for size in rows.shape], indexing="ij")
    found: list[tuple[Tensor, tuple[Tensor, ...]]] = []
    for number, (start, shape, is_whole) in enumerate(zip(starts, shapes, whole, strict=True)):
        own = (rows >= start) & (rows < start + math.prod(shape))
        owner[own] = number
        if is_whole and len(shape) != rows.ndim:
            raise NotMoved
        found.append((own, torch.unravel_index((rows - start) * own, shape) if is_whole else places))
    axes = {i for own, there in found for i in range(rows.ndim) if bool(((there[i] != places[i]) & own).any())}
    if len(axes) > 1:
        raise NotMoved
    axis = next(iter(axes), None)
    if axis is not None:
        for own, there in found:
            index = torch.where(own, there[axis], index)
    for other in range(rows.ndim):
        if other != axis and all(bool((x == x.narrow(other, 0, 1)).all()) for x in (owner, index)):
            owner, index = owner.narrow(other, 0, 1), index.narrow(other, 0, 1)
    return Moves(axis, owner.contiguous(), index.contiguous())
