"""Scores and weights that a model writes out itself, and how they become q, k, v and rules."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..._utils.validation import FLOATS
from ..call.hidden_rows import BLOCKING, with_hidden_rows
from ..call.observed_call import ObservedCall, Unreadable
from .heads_axis import HeadsAxis

Sizes = tuple[int, ...]
Index = tuple[Any, ...]


@dataclass(frozen=True)
class AddedTensor:
    """A tensor that was added to, masked or multiplied scores of these sizes."""

    tensor: Tensor  # its last two axes are queries and keys, as in the sizes
    sizes: Sizes
    factor: float = 1.0
    number: float = -math.inf  # that replaces blocked scores


@dataclass(frozen=True)
class TracedScores:
    """A tensor of scores: their q and k, and the operations on the product."""

    q: Tensor  # (…, Q, D)
    k: Tensor  # (…, K, D)
    dtype: torch.dtype  # of their product
    sizes: Sizes  # (…, Q, K)
    order: Sizes | None = None  # for each axis of the tensor, its number in `sizes`; None: the same order
    four_axes: Sizes | None = None  # the sizes (B, H, Q, K), if it has had four axes
    scale: float = 1.0
    softcap: float | None = None
    added: tuple[AddedTensor, ...] = ()
    blocked: tuple[AddedTensor, ...] = ()  # True for a blocked key
    factors: tuple[AddedTensor, ...] = ()  # 0 for a blocked key, else 1
    heads: HeadsAxis | None = None  # the axis of heads, if known
    touched: bool = False  # whether some may have changed without a count
    reordered: str | None = None  # the function that put positions of q or k into another order

    @property
    def shape(self) -> Sizes:
        """Return the sizes of the tensor as it is."""
        return self.sizes if self.order is None else tuple(self.sizes[i] for i in self.order)

    def is_product(self) -> bool:
        """Return whether only a scale was applied to it."""
        return not (self.added or self.blocked or self.factors or self.softcap)

    def given(self, x: Tensor, factor: float = 1.0) -> AddedTensor:
        """Return a tensor that broadcasts to this one, with its axes in the order of `sizes`."""
        if self.order is not None:
            x = x[(None,) * (len(self.order) - x.ndim)].permute(inverse(self.order))
        return AddedTensor(x, self.sizes, factor)


@dataclass(eq=False)
class SeenSoftmax:
    """One softmax of followed scores, until its weights have met their values."""

    caller: Any  # that computed it
    certain: bool = True  # whether it is attention: of a product of q and k, or in a module of such a name
    origin: str | None = None  # why its scores are not those of q and k; None: they are
    why: str | None = None  # the first operation on its weights that is not followed
    by_column: bool = False  # whether it ran along another axis than the last, of no product
    met: bool = False  # whether its weights have met values
    parts: list[tuple[Index, Tensor, Tensor]] = field(default_factory=list)  # of weights, their values, their output
    seen: Tensor | None = None  # the rows that have met values, if they meet them part by part


@dataclass(frozen=True)
class TracedWeights:
    """A tensor of weights: a softmax of scores."""

    scores: TracedScores
    sizes: Sizes
    softmax: SeenSoftmax
    order: Sizes | None = None
    is_normalized: bool = True  # each row sums to 1
    dropout: float = 0.0  # the share that was set to 0
    part: Index | None = None  # the part of these scores' weights; None: all
    touched: bool = False  # whether some weights may have changed, such as to 0

    @property
    def shape(self) -> Sizes:
        """Return the sizes of the tensor as it is."""
        return self.sizes if self.order is None else tuple(self.sizes[i] for i in self.order)


@dataclass(frozen=True)
class TracedMatrix:
    """Weights that only their own numbers describe: of another softmax, or changed after it."""

    softmaxes: tuple[SeenSoftmax, ...]  # that they are made from
    axis: int  # of the keys
    adds_up: bool = True  # False: rows must be seen to sum to 1

    def moved(self, axis: int) -> TracedMatrix:
        """Return the same with its keys along another axis."""
        return replace(self, axis=axis)


@dataclass(frozen=True)
class WeightedValues:
    """Weights times values, before the sum over the keys."""

    matrix: TracedMatrix
    weights: Tensor
    values: Tensor
    axis: int  # of the keys, in the product


@dataclass(frozen=True)
class RowSums:
    """The sums of the rows of weights, to divide them by."""

    of: TracedWeights


@dataclass(frozen=True)
class RowNumbers:
    """The log-sum-exp of the rows of scores, or numbers made from it, to merge partial attentions by."""


@dataclass(frozen=True)
class Unfollowed:
    """A tensor made from scores by an operation that is not followed."""

    shape: Sizes
    why: str
    caller: Any  # of the operation


Traced = TracedScores | TracedWeights | TracedMatrix | WeightedValues | RowSums | RowNumbers | Unfollowed


def inverse(order: Sizes) -> Sizes:
    """Return the order that undoes an order of axes."""
    return tuple(order.index(i) for i in range(len(order)))


def with_sizes(known: TracedScores | TracedWeights, sizes: Sizes) -> TracedScores | TracedWeights:
    """Return scores or weights in another shape, with the same rows."""
    if isinstance(known, TracedWeights):
        return replace(known, sizes=sizes)
    return replace(known, sizes=sizes, four_axes=sizes if len(sizes) == 4 else known.four_axes)


def scaled(known: TracedScores, factor: float) -> TracedScores:
    """Return scores times a number."""
    added = tuple(replace(one, factor=one.factor * factor) for one in known.added)
    softcap = None if known.softcap is None else known.softcap * factor
    return replace(known, scale=known.scale * factor, softcap=softcap, added=added)


def with_queries_last(known: TracedScores) -> TracedScores:
    """Return the same scores with queries and keys exchanged, as k · q."""
    *batch, Q, K = known.sizes
    axes = known.order or tuple(range(len(known.sizes)))
    n = len(axes)
    swapped = {n - 2: n - 1, n - 1: n - 2}
    added, blocked, factors = (
        tuple(AddedTensor(_wide(one).mT, (*one.sizes[:-2], one.sizes[-1], one.sizes[-2]), one.factor) for one in given)
        for given in (known.added, known.blocked, known.factors)
    )
    return replace(
        known, q=known.k, k=known.q, sizes=(*batch, K, Q), order=tuple(swapped.get(i, i) for i in axes),
        four_axes=None, added=added, blocked=blocked, factors=factors,
    )  # fmt: skip


def _wide(one: AddedTensor) -> Tensor:
    return one.tensor[(None,) * (len(one.sizes) - one.tensor.ndim)]


def expanded(known: TracedScores, batch: Sizes) -> TracedScores:
    """Return scores whose axes before queries and keys are broadcast."""
    return replace(
        known, q=known.q.expand(*batch, *known.q.shape[-2:]), sizes=(*batch, *known.sizes[-2:]), four_axes=None
    )


def part_of(known: TracedScores, index: Index) -> TracedScores | None:
    """Return a part of scores, for an index of slices and numbers, one for each axis; None if it is not followed."""
    *batch, rows, columns = index
    if not isinstance(rows, slice) or not isinstance(columns, slice):
        return None
    given = (*known.added, *known.blocked, *known.factors)
    if any(one.sizes != known.sizes for one in given):
        return None
    sizes = known.sizes[:-2]
    of_queries, of_keys = (*batch, rows), (*batch, columns)
    q = known.q.expand(*sizes, *known.q.shape[-2:])[of_queries]
    k = known.k.expand(*sizes, *known.k.shape[-2:])[of_keys]
    left = tuple(torch.empty(known.sizes, device="meta")[index].shape)
    added, blocked, factors = (
        tuple(AddedTensor(one.tensor.expand(one.sizes)[index], left, one.factor) for one in group)
        for group in (known.added, known.blocked, known.factors)
    )
    whole = all(one == slice(None) for one in batch)
    return replace(
        known, q=q, k=k, sizes=left, four_axes=None, added=added, blocked=blocked, factors=factors,
        heads=known.heads if whole else None,
    )  # fmt: skip


# From traced weights to q, k, v and rules.


@dataclass(frozen=True)
class Layout:
    """Which of the axes of scores before queries and keys holds heads; all others hold samples."""

    batch: Sizes  # the sizes of these axes
    axis: int  # of `batch`

    @property
    def heads(self) -> int:
        """Return the number of heads."""
        return self.batch[self.axis]

    @property
    def samples(self) -> int:
        """Return the number of samples."""
        return math.prod(self.batch) // max(1, self.heads)

    @property
    def is_plain(self) -> bool:
        """Return whether they are samples and heads, in this order."""
        return math.prod(self.batch[self.axis + 1 :]) == 1

    def unmerge(self, x: Tensor) -> Tensor:
        """Return x (…, rows, size), whose leading axes have the size of `batch`, as (B, H, rows, size)."""
        rows = x.shape[-2:]
        if x.ndim == 4 and self.is_plain and x.shape[:2] == (self.samples, self.heads):
            return x  # reshape would change the steps of axes of size 1
        return x.reshape(*self.batch, *rows).movedim(self.axis, -3).reshape(self.samples, self.heads, *rows)


def broadcast(one: Sizes, other: Sizes) -> Sizes:
    """Return the sizes to which both broadcast; torch's own function is slow."""
    return one if one == other else tuple(torch.broadcast_shapes(one, other))


def layout_of(scores: TracedScores, heads: HeadsAxis | None, head_count: int | None) -> Layout:
    """Return which axes of scores are samples and heads, without guessing: unknown axes are samples.

    Args:
        scores: with two axes or more.
        heads: the axis of heads of q, k or v, if known.
        head_count: the number of heads that the module reports.
    """
    *batch, _, _ = scores.sizes
    n = math.prod(batch)
    if heads is not None and heads.axis < len(batch):
        stop = heads.axis + heads.axes
        each, rest = divmod(math.prod(batch[heads.axis : stop]), heads.heads * heads.inside)
        if not rest and each and stop <= len(batch):
            return Layout((*batch[: heads.axis], each, heads.heads, heads.inside, *batch[stop:]), heads.axis + 1)
    four = scores.sizes if len(scores.sizes) == 4 else scores.four_axes
    if four is not None:
        return Layout(four[:2], 1)
    if len(batch) > 1:
        return Layout(tuple(batch), len(batch) - 1)
    return Layout((1, n), 1) if n == head_count else Layout((n, 1), 1)


def observed_call(known: TracedWeights, v: Tensor, layout: Layout) -> ObservedCall:
    """Return the call that has these weights.

    Raises:
        Unreadable: q, k and v do not fit together, or an operation on the scores is neither a mask nor a bias.
    """
    scores, B, H = known.scores, layout.samples, layout.heads
    batch = broadcast(tuple(scores.q.shape[:-2]), tuple(scores.k.shape[:-2]))
    try:
        q, k = (_as_heads(x.to(scores.dtype), batch, layout) for x in (scores.q, scores.k))
        v = _as_heads(v, known.sizes[:-2], layout)
        q = q.expand(B, H, -1, -1)
        if k.shape[1] != v.shape[1]:
            k, v = k.expand(B, H, -1, -1), v.expand(B, H, -1, -1)
    except RuntimeError as error:
        raise Unreadable(f"its q, k and v do not fit together ({error})") from None
    mask, bias = _rules(scores, layout)
    first, last = (None, None) if mask is None else (mask[:, :, :1], mask[:, :, -1:])
    grows = first is not None and last is not None and not torch.equal(first, last)
    how: dict[str, Any] = {"cached": grows, "dropout": known.dropout > 0, "reordered": scores.reordered}
    how["as_multiplied"] = True
    return ObservedCall(q, k, v, scores.scale, scores.softcap, mask, bias, **how)


def _as_heads(x: Tensor, batch: Sizes, layout: Layout) -> Tensor:
    """Return x (…, n, size) as (B, H or 1, n, size)."""
    if tuple(batch) == (layout.samples, layout.heads) and x.ndim == 4 and x.shape[1] == 1 and layout.is_plain:
        return x.expand(layout.samples, -1, -1, -1)
    return layout.unmerge(x.expand(*batch, *x.shape[-2:]))


def _rules(scores: TracedScores, layout: Layout) -> tuple[Tensor | None, Tensor | None]:
    """Return the mask and the bias, each (B or 1, H or 1, Q or 1, K) or None, equivalent to all operations."""
    replaced = [(_as_four_axes(one, layout).bool(), one.number) for one in scores.blocked]
    zeroed = [_of_factors(one, layout) for one in scores.factors]
    masks: list[Tensor] = []
    biases: list[Tensor] = []
    for one in scores.added:
        x = _as_four_axes(one, layout)
        if x.shape[-1] == 1 and scores.sizes[-1] > 1:
            continue  # the same number added to all keys of a row changes no weight
        if x.dtype not in FLOATS:
            x = x.to(scores.dtype)
        is_mask = bool(((x <= BLOCKING) | (x == 0)).all())
        (masks if is_mask else biases).append(x)
    bias = functools.reduce(torch.add, biases) if biases else None
    if (
        len(masks) == 1
        and not replaced
        and not zeroed
        and bool((masks[0][masks[0] < 0] <= torch.finfo(masks[0].dtype).min).all())
    ):
        return masks[0], bias  # the same object in all layers
    blocked = [x <= BLOCKING for x in masks] + [cells for cells, _ in replaced] + zeroed
    if not blocked:
        return None, bias
    found = functools.reduce(torch.logical_or, blocked)
    if not bool(found.all(-1).any()):
        return ~found, bias
    return _numbers_in_hidden_rows(scores, found, masks, replaced, zeroed), bias


def _of_factors(one: AddedTensor, layout: Layout) -> Tensor:
    """Return which keys a factor of 0 blocks."""
    factors = _as_four_axes(one, layout)
    if not bool(((factors == 0) | (factors == 1)).all()):
        raise Unreadable("its scores are multiplied by a tensor, which is neither a scale nor a mask")
    return factors == 0


def _numbers_in_hidden_rows(
    scores: TracedScores,
    blocked: Tensor,
    masks: list[Tensor],
    replaced: list[tuple[Tensor, float]],
    zeroed: list[Tensor],
) -> Tensor:
    """Return a mask with the numbers of rows whose keys are all hidden; a bool mask if these numbers are −∞."""
    hiding = torch.zeros(blocked.shape, device=blocked.device)
    for x in masks:
        hiding = (hiding + x.float()).clamp_min(torch.finfo(torch.float32).min).masked_fill(x.isinf(), -math.inf)
    if not masks:
        hiding = hiding.masked_fill(functools.reduce(torch.logical_or, zeroed, blocked & False), -math.inf)
    for cells, number in replaced:  # a number replaces those before it
        hiding = hiding.masked_fill(cells, number)
    if scores.dtype in (torch.float16, torch.bfloat16):
        largest = (scores.q @ scores.k.mT).abs().amax()
    else:
        largest = scores.q.norm(dim=-1).amax() * scores.k.norm(dim=-1).amax()  # which is at least as large
    of_factors = functools.reduce(torch.logical_or, zeroed) if zeroed else None
    found = with_hidden_rows(hiding, float(largest) * abs(scores.scale), scores.dtype, of_factors)
    return ~blocked if found is None else found


def _as_four_axes(one: AddedTensor, layout: Layout) -> Tensor:
    """Return an added tensor as (B or 1, H or 1, Q or 1, K or 1)."""
    x = one.tensor if one.factor == 1 else one.tensor * one.factor
    x = x[(None,) * (len(one.sizes) - x.ndim)]
    if layout.is_plain and x.ndim == 4 and x.shape[0] in (1, layout.samples) and x.shape[1] in (1, layout.heads):
        return x
    if math.prod(x.shape[:-2]) == 1:
        return x.reshape(1, 1, *x.shape[-2:])
    return layout.unmerge(x.expand(*one.sizes[:-2], *x.shape[-2:]))
