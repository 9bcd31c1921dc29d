"""Indices along an axis: what a user may give, and the two forms that the engine knows."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .validation import told

Indices = range | Tensor  # an ascending range, which cuts views, or a 1-D integer tensor, which copies


class Block(NamedTuple):
    """Name a block of one head: some queries × some keys."""

    batch: int
    head: int
    queries: Indices
    keys: Indices


def as_index(where: Any, count: int, what: str, plural: str) -> int:
    """Return an index from 0 to count − 1; a negative one counts from the end.

    Args:
        where: as a user gives it.
        count: how many there are.
        what, plural: what errors call one of them, and several.

    Raises:
        TypeError: it is no integer.
        IndexError: it is not there.

    >>> as_index(-1, 12, "head", "heads")
    11
    """
    try:
        index = operator.index(where)
    except TypeError:
        click = (
            f"; the widget's {what} is None until a cell is clicked"
            if where is None and what in ("query", "key")
            else ""
        )
        raise TypeError(f"{what} is {told(where)}: give an integer{click}") from None
    if isinstance(where, bool):
        raise TypeError(f"{what} is {where}: give an integer")
    if not -count <= index < count:
        there = f"{plural} 0 to {count - 1}" if count > 1 else f"{what} 0 only"
        raise IndexError(f"{what} {told(index)} is not there: this attention has {there}")
    return index % count


def as_indices(where: Any, count: int, what: str, plural: str, device: torch.device) -> Indices:
    """Return an int, slice, range or sequence of ints as indices from 0 to count − 1.

    Args:
        where: as a user gives it.
        count: how many there are.
        what, plural: what errors call one of them, and several.
        device: of the tensor, if it is not one of the ranges.

    Returns:
        An ascending range, or (n,) int64.

    >>> as_indices(slice(-2, None), 5, "query", "queries", torch.device("cpu"))
    range(3, 5)
    """
    if isinstance(where, slice):
        where = range(*where.indices(count))
    if isinstance(where, range) and where.step > 0 and (not where or (where[0] >= 0 and where[-1] < count)):
        return where
    if isinstance(where, Tensor | np.ndarray):
        if where.ndim > 1:
            raise TypeError(f"{plural} have {where.ndim} axes: give one axis of integers")
        where = where.tolist()
    if isinstance(where, str) or not isinstance(where, Iterable):
        index = as_index(where, count, what, plural)
        return range(index, index + 1)
    indices = [as_index(index, count, what, plural) for index in where]
    return torch.tensor(indices, dtype=torch.int64, device=device)


def take(x: Tensor, indices: Indices, axis: int) -> Tensor:
    """Return x at some indices of an axis: a view for a range, a copy for others."""
    if isinstance(indices, range):
        at = slice(indices.start, indices.stop, indices.step)
        return x[(slice(None),) * axis + (at,)] if axis else x[at]
    return x.index_select(axis, indices)


def positions(indices: Indices, device: torch.device) -> Tensor:
    """Return indices as a tensor, (n,) int64."""
    if isinstance(indices, range):
        return torch.arange(indices.start, indices.stop, indices.step, device=device)
    return indices


def hull(indices: Indices) -> range:
    """Return the shortest range without gaps that holds all indices."""
    if isinstance(indices, range):
        return range(indices[0], indices[-1] + 1) if indices else range(0)
    return range(int(indices.min()), int(indices.max()) + 1) if len(indices) else range(0)


def cuts(whole: range, width: int, limit: int) -> Iterator[range]:
    """Yield a range cut at multiples of width, in pieces of at most limit: several bins each, or a part of one."""
    start = whole.start // width * width
    step = limit // width * width
    while start < whole.stop:
        stop = start + step if step else min(start + limit, (start // width + 1) * width)
        yield range(start, min(stop, whole.stop))
        start = stop
