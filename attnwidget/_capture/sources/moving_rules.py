"""Rules for functions that put vectors of the stream at other positions: an index, an assignment, a mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._analysis.why.linear_steps import Assigned, Times
from ..._analysis.why.stream_graph import Lost, Moved, Node, StreamStep, Sum
from .linear_rules import KnownTensors, LinearRules, is_on_way, spread
from .moved_positions import NotMoved, moves_of

PICKS = {
    *(
        torch.index_select,
        Tensor.index_select,
        torch.gather,
        Tensor.gather,
        torch.take_along_dim,
        Tensor.take_along_dim,
    ),
    *(torch.roll, Tensor.roll, torch.flip, Tensor.flip, torch.fliplr, torch.flipud),
}
PUTS = {  # some positions of a tensor
    *(Tensor.masked_fill, Tensor.masked_fill_, torch.masked_fill, torch.where, Tensor.where),
    *(Tensor.masked_scatter, Tensor.masked_scatter_, torch.masked_scatter, Tensor.index_put, Tensor.index_put_),
    *(torch.index_put, torch.index_put_, Tensor.index_copy, Tensor.index_copy_, torch.index_copy),
    *(Tensor.scatter, Tensor.scatter_, torch.scatter, Tensor.index_fill, Tensor.index_fill_, torch.index_fill),
    *(torch.slice_scatter, Tensor.slice_scatter, torch.select_scatter, Tensor.select_scatter),
}
TAKES_PLACE = {torch.slice_scatter, Tensor.slice_scatter, torch.select_scatter, Tensor.select_scatter}
ADDS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.index_add, Tensor.index_add, Tensor.index_add_), Tensor.index_copy),
    **dict.fromkeys((torch.scatter_add, Tensor.scatter_add, Tensor.scatter_add_), Tensor.scatter),
}
CHANGES_FIRST: dict[Any, Any] = {  # the function that does the same to a copy
    Tensor.masked_fill_: Tensor.masked_fill,
    Tensor.masked_scatter_: Tensor.masked_scatter,
    Tensor.index_put_: Tensor.index_put,
    torch.index_put_: Tensor.index_put,
    Tensor.index_copy_: Tensor.index_copy,
    Tensor.scatter_: Tensor.scatter,
    Tensor.index_fill_: Tensor.index_fill,
}


class MovingRules(LinearRules):
    """The rules of `LinearRules`, and those for vectors that change their positions."""

    def __init__(self) -> None:
        super().__init__()
        self._rules |= {
            **dict.fromkeys(PICKS, self._picked),
            **dict.fromkeys(PUTS, self._put),
            **dict.fromkeys(ADDS, self._added_at),
            Tensor.__getitem__: self._indexed,
            F.pad: self._padded,
            Tensor.copy_: self._copied,
        }

    def _written_as(self, x: Tensor, node: Node | None, values: Tensor) -> Node:
        """Return what wrote a tensor as a source with other numbers: those that arrived at their positions."""
        raise NotImplementedError

    def _indexed(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        if any(isinstance(one, Tensor | list) and not _is_one(one) for one in _as_tuple(args[1])):
            return self._picked(func, result, args, kwargs, known)
        return self._view(func, result, args, kwargs, known)

    def _picked(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        if not is_on_way(known.of(args[0])):
            return None
        return self._moved(func, result, args, kwargs, known, args[:1])

    def _put(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        func, given, kwargs = CHANGES_FIRST.get(func, func), list(args), dict(kwargs)
        if kwargs.get("accumulate") or "reduce" in kwargs or (func is Tensor.index_put and len(given) > 3):
            return None
        if type(kwargs.get("value")) is int:
            kwargs["value"] = float(kwargs["value"])
        if type(given[-1]) is int and func not in TAKES_PLACE:
            given[-1] = float(given[-1])
        if func in (torch.where, Tensor.where):
            if len(given) < 3:
                return None
            places = (1, 2) if func is torch.where else (0, 2)
            condition = given[3 - sum(places)]
            for i in places:  # broadcast
                if isinstance(given[i], Tensor) and given[i].ndim:
                    wide = given[i].expand(result.shape)
                    known.adds(wide, None if known.of(given[i]) is None else spread(known.of(given[i]), wide.shape))
                    given[i] = wide
                else:
                    given[i] = float(given[i])
            if known.of(condition) is None and self._origin(condition) is None:
                return None
        given = [float(x) if isinstance(x, Tensor) and not x.ndim and x.is_floating_point() else x for x in given]
        values = [x for x in _flat(given) if isinstance(x, Tensor) and x.is_floating_point()]
        if not any(is_on_way(known.of(x)) for x in values):
            return None
        return self._moved(func, result, given, kwargs, known, values)

    def _added_at(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        """Note x plus vectors at some positions, each at another one."""
        x, axis, at, values = (*args, *kwargs.values())[:4] if len(args) < 4 else args[:4]
        index = at if at.ndim == 1 else at.select(-1, 0).movedim(axis, -1).flatten(0, -2)
        apart = index.sort(-1).values.diff(dim=-1)
        if (
            kwargs.get("alpha", 1) != 1
            or bool((apart == 0).any())
            or not any(map(is_on_way, map(known.of, (x, values))))
        ):
            return None
        base, put = torch.zeros_like(x), ADDS[func]
        placed = put(base, axis, at, values)
        node = self._moved(put, placed, [base, axis, at, values], {}, known, [base, values], adds=True)
        given = known.before if x is result and known.before is not None else x
        return None if node is None else Sum(result.shape, [self._written(given, known.of(x)), node])

    def _padded(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        how = dict(zip(("pad", "mode", "value"), args[1:], strict=False)) | kwargs
        if how.get("mode", "constant") != "constant" or how.get("value") or not is_on_way(known.of(args[0])):
            return None

        def padded(x: Tensor) -> Tensor:
            return F.pad(x, how["pad"], value=-1)

        return self._moved(padded, result, args[:1], {}, known, args[:1])

    def _copied(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        node = known.of(args[1])
        return spread(node, result.shape) if is_on_way(node) else None

    def _moved(
        self,
        func: Callable[..., Any],
        result: Tensor,
        args: Any,
        kwargs: Any,
        known: KnownTensors,
        values: Sequence[Any],
        *,
        adds: bool = False,
    ) -> Node | None:
        """Return the result of a function that moves vectors; None if it takes them apart.

        A vector that no way leads to counts where it arrives, as what its writer wrote. If it takes the place of the
        stream and no module returned it, its writer is not known, and may be the stream itself.
        """
        whole = [is_on_way(known.of(x)) for x in values]
        try:
            moves = moves_of(func, args, kwargs, values, result, whole)
        except NotMoved:
            return None
        parents: list[Node] = []
        for number, (x, is_whole) in enumerate(zip(values, whole, strict=True)):
            node = known.of(x)
            here = (moves.owner == number).expand(result.shape[:-1])
            if is_whole:
                parents.append(node)
            elif not bool(here.any()) or (node is None and not bool(result[here.to(result.device)].any())):
                moves.owner[moves.owner == number] = -1
                parents.append(Sum(result.shape, []))
            elif not adds and isinstance(node, Lost) and node.attended and not (node.trail.home or node.trail.mlp):
                parents.append(node)
            else:
                parents.append(self._written_as(x, node, result))
        return Moved(result.shape, parents, moves.axis, moves.owner, moves.places)

    def _assigned(self, x: Tensor, index: Any, value: Any, known: KnownTensors, after: Tensor) -> Node | None:
        """Return what a tensor is after an assignment to a part of it.

        Args:
            x: the tensor.
            index, value: of the assignment.
            known: of x as it was before, and of the value.
            after: the tensor as it is now.
        """
        node, before = known.of(value), known.of(x)
        there = torch.empty(1, device="meta").expand(x.shape)[index] if _is_plain(index) else after[index]
        if _is_plain(index) and _takes_features(index, x.shape):
            return self._features_assigned(x, index, node, before, tuple(there.shape))
        if isinstance(value, Tensor) and value.ndim:
            if value.dim() < 2 or value.shape != there.shape:
                wide = value.expand(there.shape)
                known.adds(wide, None if node is None else spread(node, wide.shape))
                value = wide
            values = [x, value]
        elif float(value) == 0:
            value, values = 0.0, [x]
        else:
            return None
        if not any(is_on_way(known.of(one)) for one in values):
            return None

        def assigned(base: Tensor, given: Any) -> Tensor:
            base = base.clone()
            base[index] = given
            return base

        return self._moved(assigned, after, [x, value], {}, known, values)

    def _features_assigned(
        self, x: Tensor, index: Any, node: Node | None, before: Node | None, shape: tuple[int, ...]
    ) -> Node | None:
        """Return a tensor some of whose features were assigned; the rest of a new tensor does not count."""
        if node is None or not is_on_way(node) or isinstance(before, Lost):
            return None
        put = self._step(x.shape, spread(node, shape), Assigned(index))
        if before is None:
            return put
        if _is_assigned(before):
            return Sum(x.shape, [before, put])
        keep = torch.ones(x.shape[-1], dtype=x.dtype, device=x.device)
        last = _as_tuple(index)[-1]
        if not isinstance(last, slice | int) or any(not _is_whole(one) for one in _as_tuple(index)[:-1]):
            return None
        keep[last] = 0
        return Sum(x.shape, [self._step(x.shape, before, Times(keep)), put])


def _is_one(x: Any) -> bool:
    """Return whether an index is a list of one number, which a view can take."""
    return isinstance(x, list) and len(x) == 1 and type(x[0]) is int


def _as_tuple(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _is_whole(one: Any) -> bool:
    return one is Ellipsis or one == slice(None)


def _is_plain(index: Any) -> bool:
    return all(one is None or one is Ellipsis or isinstance(one, slice | int) for one in _as_tuple(index))


def _takes_features(index: Any, shape: Sequence[int]) -> bool:
    """Return whether an index of slices and numbers takes a part of the last axis."""
    parts = [one for one in _as_tuple(index) if one is not None]
    if any(one is Ellipsis for one in parts):
        last = parts[-1] if parts[-1] is not Ellipsis else slice(None)
    else:
        last = parts[-1] if len(parts) == len(shape) else slice(None)
    return not (isinstance(last, slice) and last.indices(shape[-1]) == (0, shape[-1], 1))


def _flat(args: Sequence[Any]) -> list[Any]:
    return [one for x in args for one in (x if isinstance(x, tuple | list) else [x])]


def _is_assigned(node: Any) -> bool:
    """Return whether a tensor has only features that were assigned to it."""
    if isinstance(node, Sum):
        return bool(node.parents) and all(map(_is_assigned, node.parents))
    return isinstance(node, StreamStep) and isinstance(node.how, Assigned)


def part_of(base: Tensor, view: Tensor) -> tuple[slice, ...] | None:
    """Return the index of a view with the same axes; None if it has others."""
    if base.ndim != view.ndim or base.stride() != view.stride():
        return None
    rest, found = int(view.storage_offset()) - int(base.storage_offset()), [slice(None)] * base.ndim
    strides = [int(one) for one in base.stride()]
    for axis in sorted(range(base.ndim), key=lambda axis: -strides[axis]):
        start, rest = divmod(rest, max(1, strides[axis]))
        found[axis] = slice(start, start + view.shape[axis])
    return tuple(found)
