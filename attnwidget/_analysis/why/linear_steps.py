"""The linear steps on the way from the residual stream to q, k and v, at some positions of one sample.

Each step maps vectors forward (`apply`) and covectors backward (`pull`). Both have one more axis than the tensor in the
model, the first, and only the sample and the positions of a `StreamPlace`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from .function_names import function_name
from .stream_graph import NotLinear, StreamStep, as_double, plain_numbers, version_of

CHANGED = "the weights of the model, or another tensor that it used, were changed after the capture: capture it again"
RESHAPES = {
    *(Tensor.view, Tensor.reshape, Tensor.flatten, Tensor.unflatten, Tensor.unsqueeze, Tensor.squeeze),
    *(Tensor.view_as, Tensor.reshape_as, torch.reshape, torch.flatten, torch.unflatten, torch.unsqueeze, torch.squeeze),
}
EXPANDS = {Tensor.expand, Tensor.expand_as, torch.broadcast_to}
COMPLEX = {torch.view_as_complex, torch.view_as_real}
REPEATS = {torch.repeat_interleave, Tensor.repeat_interleave}
KEEPS_AXES = {*COMPLEX, *REPEATS}


@dataclass(frozen=True)
class StreamPlace:
    """One sample and some positions of a tensor.

    Attributes:
        sample: the axis of samples, perhaps with heads after them in the same axis; None if there is one sample.
        position: the axis of positions; the same as `sample` where both are merged; None if the tensor has none.
        samples: the number of samples in the tensor.
        which: the sample.
        at: (m,) the positions, on the CPU.
        sample_first: whether samples come before positions in a merged axis.
        head: an axis of heads with only some of them; None: all features are there.
        heads: their numbers.
    """

    sample: int | None
    position: int | None
    samples: int
    which: int
    at: Tensor
    sample_first: bool = True
    head: int | None = None
    heads: tuple[int, ...] = ()

    def is_as(self, other: StreamPlace) -> bool:
        """Return whether it is the same place."""
        own = [(x.sample, x.position, x.samples, x.which, x.sample_first, x.head, x.heads) for x in (self, other)]
        return own[0] == own[1] and torch.equal(self.at, other.at)

    @property
    def is_merged(self) -> bool:
        """Whether samples and positions are one axis."""
        return self.position is not None and self.sample == self.position

    def part(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of these positions of a tensor, of one sample."""
        found = list(shape)
        if self.sample is not None:
            found[self.sample] = 1 if self.is_merged else shape[self.sample] // self.samples
        if self.position is not None:
            found[self.position] = len(self.at)
        if self.head is not None:
            found[self.head] = len(self.heads)
        return tuple(found)

    def features(self, shape: Sequence[int]) -> list[int]:
        """Return the axes that are neither samples nor positions."""
        alone = self.sample is not None and (self.is_merged or shape[self.sample] <= self.samples)
        return [i for i in range(len(shape)) if i != self.position and not (alone and i == self.sample)]

    def rows(self, size: int) -> Tensor:
        """Return the rows of an axis of positions, or of both."""
        if not self.is_merged:
            return self.at
        positions = size // self.samples
        return self.which * positions + self.at if self.sample_first else self.at * self.samples + self.which

    def take(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the part of a tensor that can be broadcast to `shape`, at these positions."""
        before = len(shape) - x.ndim
        for axis, chosen in ((self.sample, None), (self.position, self.at)):
            own = None if axis is None else axis - before
            if own is None or own < 0 or x.shape[own] == 1 or (chosen is None and self.is_merged):
                continue
            inner = x.shape[own] // self.samples
            own_rows = torch.arange(self.which * inner, (self.which + 1) * inner, device="cpu")
            rows = own_rows if chosen is None else self.rows(x.shape[own])
            first, last = int(rows[0]), int(rows[-1])
            is_run = last - first + 1 == len(rows) and bool((rows[1:] > rows[:-1]).all())
            x = x.narrow(own, first, len(rows)) if is_run else x.index_select(own, rows.to(x.device))
        own = None if self.head is None else self.head - before
        if own is not None and own >= 0 and x.shape[own] > 1:
            x = x.index_select(own, torch.tensor(self.heads, device=x.device))
        return x

    def varies(self, x: Tensor, shape: Sequence[int]) -> bool:
        """Return whether a tensor that is broadcast to `shape` differs between positions."""
        own = None if self.position is None else self.position - len(shape) + x.ndim
        return own is not None and own >= 0 and x.shape[own] > 1

    def is_scalar(self, x: Tensor, shape: Sequence[int]) -> bool:
        """Return whether a tensor that is broadcast to `shape` has one number at each position."""
        before = len(shape) - x.ndim
        return all(x.shape[axis - before] == 1 for axis in self.features(shape) if axis >= before)


class AllHeads(Exception):
    """A step that can be followed for all heads together only."""


class LinearStep(Protocol):
    """A step from a tensor to another one."""

    @property
    def name(self) -> str:
        """Its function, in words."""

    def before(self, node: StreamStep, place: StreamPlace) -> StreamPlace:
        """Return the place in the tensor before it."""

    def apply(self, node: StreamStep, x: Tensor, before: StreamPlace, place: StreamPlace) -> Tensor:
        """Return the result for vectors x, (P, …)."""

    def pull(self, node: StreamStep, y: Tensor, before: StreamPlace, place: StreamPlace) -> Tensor:
        """Return covectors of the tensor before it, from covectors of its result, (P, …)."""


class HeldTensor:
    """A tensor of the model that a step reads; it notices a later change."""

    def __init__(self, x: Tensor) -> None:
        self._x, self._version = x.detach(), version_of(x)

    def read(self) -> Tensor:
        """Return it.

        Raises:
            NotLinear: it was changed in place.
        """
        if version_of(self._x) != self._version:
            raise NotLinear(CHANGED)
        return plain_numbers(self._x)


class Matrix:
    """y = x Wᵀ on the last axis, with W (out, in)."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = HeldTensor(weight)

    name = "a linear layer"

    def before(self, node: StreamStep, place: StreamPlace) -> StreamPlace:
        """Return the same place."""
        if len(node.shape) - 1 in (place.sample, place.position):
            raise NotLinear("a linear layer mixes positions, so the score cannot be split into parts")
        return place

    def apply(self, node: StreamStep, x: Tensor, before: StreamPlace, place: StreamPlace) -> Tensor:
        """Return x Wᵀ."""
        return x @ self._weight.read().to(x).mT

    def pull(self, node: StreamStep, y: Tensor, before: StreamPlace, place: StreamPlace) -> Tensor:
        """Return y W."""
        return y @ self._weight.read().to(y)


class Times:
    """y = x · c for numbers c that are held: a gain, the scale of a norm, cos and sin of a rotation, a factor.

    Args:
        other: c.
        divides: whether y = x / c.
        is_norm: whether c depends on the stream, as the scale of a norm does.
    """

    def __init__(self, other: Tensor | float, *, divides: bool = False, is_norm: bool = False) -> None:
        self._other = HeldTensor(other) if isinstance(other, Tensor) else other
        self._divides, self.is_norm = divides, is_norm

    name = "a product"

    def before(self, node: StreamStep, place: StreamPlace) -> StreamPlace:
        """Return the same place."""
        return place

    def numbers(self, node: StreamStep, place: StreamPlace) -> Tensor | float:
        """Return c at a place, in float64."""
        other = self._other
        if isinstance(other, HeldTensor):
            found = as_double(place.take(other.read(), node.shape))
            return 1 / found if self._divides else found
        return 1 / other if self._divides else other

    def is_scale(self, node: StreamStep, place: StreamPlace) -> bool:
        """Return whether c is one number for each position, as the scale of a norm."""
        other = self._other.read() if isinstance(self._other, HeldTensor) else None
        return other is not None and place.varies(other, node.shape) and place.is_scalar(other, node.shape)

    def turns(self, node: StreamStep, place: StreamPlace) -> bool:
        """Return whether c differs between positions in another way than one factor."""
        other = self._other.read() if isinstance(self._other, HeldTensor) else None
        return other is not None and place.varies(other, node.shape) and not place.is_scalar(other, node.shape)

    def apply(self, node: StreamStep, x: Tensor, before: StreamPlace, place: StreamPlace) -> Tensor:
        """Return x · c."""
        found = self.numbers(node, place)
        return x * (found.to(x.device) if isinstance(found, Tensor) else found)

    def pull(self, node: StreamStep, y: Tensor, before: StreamPlace, place: StreamPlace) -> Tensor:
        """Return y · c."""
        found = self.numbers(node, place)
        return y * (found.conj().to(y.device) if isinstance(found, Tensor) else found)


class Center:
    """y = x − its mean over the last axis, or only that mean."""

    def __init__(self, *, only_mean: bool = False) -> None:
        self._only_mean = only_mean

    name = "a mean"

    def before(self, node: StreamStep, place: StreamPlace) -> StreamPlace:
        """Return the same place."""
        return place

    def apply(self, node: StreamStep, x: Tensor, before: StreamPlace, place: StreamPlace) -> Tensor:
        """Return x less its mean."""
        mean = x.mean(-1, keepdim=True)
        return mean if self._only_mean else x - mean

    def pull(self, node: StreamStep, y: Tensor, before: StreamPlace, place: StreamPlace) -> Tensor:
        """Return y less its mean, because the map is symmetric."""
        if self._only_mean:
            size = node.parent.shape[-1]
            return (y / size).expand(*y.shape[:-1], size)
        return y - y.mean(-1, keepdim=True)


class Assigned:
    """y = 0, but for a part that is assigned: y[index] = x."""

    def __init__(self, index: Any) -> None:
        self._index = index

    name = "an assignment to a part of a tensor"

    def before(self, node: StreamStep, place: StreamPlace) -> StreamPlace:
        """Return the place in the part.

        Raises:
            NotLinear: the part does not have all positions.
        """
        own = View(Tensor.__getitem__, (self._index,))
        there = torch.empty(1, device="meta").expand(node.shape)[self._index].shape
        axes = [None if axis is None else own.result_axis(node.shape, axis) for axis in (place.sample, place.position)]
        pairs = zip(axes, (place.sample, place.position), strict=True)
        if any(a is None or there[a] != node.shape[b] for a, b in pairs if b is not None):
            raise mixed(self.name, node.module)
        return replace(place, sample=axes[0], position=axes[1])

    def apply(self, node: StreamStep, x: Tensor, before: StreamPlace, place: StreamPlace) -> Tensor:
        """Return zeros with x in its part."""
        found = x.new_zeros(len(x), *place.part(node.shape))
        found[self._at(node, place)] = x
        return found

    def pull(self, node: StreamStep, y: Tensor, before: StreamPlace, place: StreamPlace) -> Tensor:
        """Return the covectors of the part."""
        return y[self._at(node, place)]

    def _at(self, node: StreamStep, place: StreamPlace) -> Any:
        own = View(Tensor.__getitem__, (self._index,))
        return (slice(None), *own.features_only(node.shape, place))


def _with_slices(index: Any) -> tuple[Any, ...]:
    """Return an index with a slice in place of a list of one number, which takes the same numbers as a view."""
    parts = index if isinstance(index, tuple) else (index,)
    return tuple(
        slice(one[0], one[0] + 1 or None) if isinstance(one, list) and len(one) == 1 and type(one[0]) is int else one
        for one in parts
    )


class View:
    """A view or a copy with axes in another order, a part of the features, or features repeated.

    Args:
        func: torch's function.
        args, kwargs: its arguments after the tensor.
        index: which result, if it gives several.
    """

    def __init__(
        self, func: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None, index: Any = None
    ) -> None:
        args = (_with_slices(args[0]),) if func is Tensor.__getitem__ else tuple(args)
        self._func, self._args, self._kwargs, self._index = func, args, kwargs or {}, index

    @property
    def name(self) -> str:
        """Its function, in words."""
        return function_name(self._func)

    def _call(self, x: Tensor) -> Tensor:
        found = self._func(x, *self._args, **self._kwargs)
        result: Tensor = found if self._index is None else found[self._index]
        return result

    def before(self, node: StreamStep, place: StreamPlace) -> StreamPlace:
        """Return the place in the tensor before it.

        Raises:
            NotLinear: it mixes positions.
        """
        given = node.parent.shape
        if self._func in KEEPS_AXES:
            if place.head is not None and given[place.head] != node.shape[place.head]:
                raise AllHeads
            return place
        if self._func in RESHAPES:
            before = before_reshape(given, node.shape, place)
            if before is None:
                raise mixed(self.name, node.module)
            return before
        if place.head is not None:
            found = self._source(given, place.head)
            if found is None:
                raise AllHeads
            own, first, step = found
            place = replace(place, head=own, heads=tuple(first + step * head for head in place.heads))
        sample, position = (
            None if axis is None else self._source(given, axis) for axis in (place.sample, place.position)
        )
        if position is None and place.position is not None and node.shape[place.position] > 1:
            raise mixed(self.name, node.module)
        at = place.at if position is None else position[1] + position[2] * place.at
        return replace(
            place,
            sample=None if sample is None else sample[0],
            position=None if position is None else position[0],
            at=at,
        )

    def _source(self, given: Sequence[int], axis: int) -> tuple[int, int, int] | None:
        """Return the axis of its input that an axis of the result shows, its first number and its step."""
        for own, size in enumerate(given):
            strides = [int(i == own) for i in range(len(given))]
            probe = torch.empty(size, device="meta").as_strided(tuple(given), strides)
            found = self._call(probe)
            if found.shape[axis : axis + 1] and found.stride(axis):
                return own, int(found.storage_offset()), int(found.stride(axis))
        return None

    def result_axis(self, given: Sequence[int], axis: int) -> int | None:
        """Return the axis of the result that shows an axis of the input."""
        strides = [int(i == axis) for i in range(len(given))]
        found = self._call(torch.empty(given[axis], device="meta").as_strided(tuple(given), strides))
        return next((i for i, stride in enumerate(found.stride()) if stride), None)

    @property
    def is_complex(self) -> bool:
        """Whether the result is complex."""
        return self._func is torch.view_as_complex

    def _apply_one(self, node: StreamStep, x: Tensor, before: StreamPlace, place: StreamPlace) -> Tensor:
        if self._func in RESHAPES:
            return x.reshape(place.part(node.shape))
        if self._func in EXPANDS:
            return x.expand(place.part(node.shape))
        if self._func is Tensor.__getitem__:
            return x[self.features_only(node.parent.shape, before)]
        if self._func in COMPLEX or self._func in REPEATS or self._is_permutation(node):
            return self._call(x)
        if self._cuts(node, before, place):
            return x
        return self._call(x)

    def _is_permutation(self, node: StreamStep) -> bool:
        return math.prod(node.shape) == math.prod(node.parent.shape)

    def _cuts(self, node: StreamStep, before: StreamPlace, place: StreamPlace) -> bool:
        """Return whether it takes a part of the positions or samples."""
        pairs = ((before.sample, place.sample), (before.position, place.position), (before.head, place.head))
        return any(a is not None and b is not None and node.parent.shape[a] != node.shape[b] for a, b in pairs)

    def features_only(self, given: Sequence[int], before: StreamPlace) -> tuple[Any, ...]:
        """Return its index with all samples, positions and heads of the part."""
        index = self._args[0] if isinstance(self._args[0], tuple) else (self._args[0],)
        taken = sum(1 for one in index if one is not None and one is not Ellipsis)
        found: list[Any] = []
        axis = 0
        for one in (*index, *([] if Ellipsis in [i for i in index if i is Ellipsis] else [Ellipsis])):
            if one is Ellipsis:
                rest = len(given) - taken
                found += [slice(None)] * rest
                axis += rest
            elif one is None:
                found.append(None)
            else:
                chosen = axis in (before.sample, before.position, before.head) and isinstance(one, slice)
                found.append(slice(None) if chosen else one)
                axis += 1
        return tuple(found)

    def apply(self, node: StreamStep, x: Tensor, before: StreamPlace, place: StreamPlace) -> Tensor:
        """Return the view of each vector."""
        found: Tensor = torch.vmap(lambda one: self._apply_one(node, one, before, place))(x)
        return found

    def pull(self, node: StreamStep, y: Tensor, before: StreamPlace, place: StreamPlace) -> Tensor:
        """Return the covectors before it."""
        kind = torch.complex128 if self._func is torch.view_as_real else y.dtype
        kind = torch.float64 if self._func is torch.view_as_complex else kind
        with torch.inference_mode(False), torch.enable_grad():
            x = torch.zeros(len(y), *before.part(node.parent.shape), dtype=kind, device=y.device, requires_grad=True)
            (found,) = torch.autograd.grad(self.apply(node, x, before, place), x, y)
        return found


def mixed(by: str, module: str = "") -> NotLinear:
    """Return the error for a way that changes the order of positions.

    Args:
        by: the function, in words.
        module: the name of its module.
    """
    where = f" in module {module!r}" if module else ""
    return NotLinear(
        f"the model changes the order of positions on the way from the residual stream, by {by}{where} (windows, "
        "merged or packed positions): the score cannot be split into parts"
    )


def before_reshape(given: Sequence[int], result: Sequence[int], place: StreamPlace) -> StreamPlace | None:
    """Return the place in a tensor that was reshaped; None if positions were split, or merged with other axes."""
    if place.head is not None:
        there = [i for i in _same_start(given, result, place.head) if given[i] == result[place.head]]
        if not there:
            raise AllHeads
        place = replace(place, head=there[-1])
    if place.position is None:
        return replace(place, sample=None)
    position = next((i for i in _same_start(given, result, place.position) if given[i] == result[place.position]), None)
    if place.is_merged:
        if position is not None:
            return replace(place, sample=position, position=position)
        return _before_merging(given, result, place)
    if place.sample is None and position is not None:
        return replace(place, position=position)
    if place.sample is not None and position is not None:
        there = [i for i in _same_start(given, result, place.sample) if i != position]
        fits = [i for size in (result[place.sample], place.samples) for i in there if given[i] == size]
        fits += [i for i in there if given[i] % place.samples == 0]  # with heads after the samples
        if fits:
            return replace(place, sample=fits[0], position=position)
    if place.sample is not None and position is None:
        return _before_splitting(given, result, place)
    return None


def _same_start(given: Sequence[int], result: Sequence[int], axis: int) -> list[int]:
    """Return the axes of the input that begin where an axis of the result does."""
    start = math.prod(result[:axis])
    return [i for i in range(len(given)) if math.prod(given[:i]) == start]


def _before_merging(given: Sequence[int], result: Sequence[int], place: StreamPlace) -> StreamPlace | None:
    """Return the place in a tensor whose samples and positions became one axis."""
    assert place.position is not None
    pair = place.samples, result[place.position] // place.samples
    pair = pair if place.sample_first else pair[::-1]
    for axis in _same_start(given, result, place.position):
        if tuple(given[axis : axis + 2]) == pair:
            first, second = (axis, axis + 1) if place.sample_first else (axis + 1, axis)
            return replace(place, sample=first, position=second)
    return None


def _before_splitting(given: Sequence[int], result: Sequence[int], place: StreamPlace) -> StreamPlace | None:
    """Return the place in a tensor with one axis of samples and positions."""
    assert place.sample is not None
    assert place.position is not None
    first = min(place.sample, place.position)
    if abs(place.sample - place.position) == 1 and result[place.sample] == place.samples:
        for axis in _same_start(given, result, first):
            if given[axis] == result[first] * result[first + 1]:
                return replace(place, sample=axis, position=axis, sample_first=place.sample < place.position)
    return None
