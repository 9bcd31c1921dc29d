"""Attention that a model writes out itself, traced from the product of q and k to its softmax, and on to v.

Operations on the scores in between are read as a scale, a softcap, a mask or a bias. Where one of them cannot be read
so, no call is reported; where one is read wrongly, the output contradicts the record (`verification.py`).
"""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .._utils.validation import FLOATS
from .records import ObservedCall, Unreadable

BLOCKING = -9e3  # models add -10,000 or less to a score to block it
USE_RETURNED_WEIGHTS = (
    "call it with output_attentions=True, if it has that, and give output.attentions to AttentionWidget.from_weights"
)
UNTRACED_SOFTMAX = (
    "its softmax is not of a product of q and k with a scale, a mask and a bias (it may be sparse): "
    f"{USE_RETURNED_WEIGHTS}"
)
BLOCKED_QUERIES = f"its queries and keys are taken in blocks, which are no places in the text: {USE_RETURNED_WEIGHTS}"
CHANGED_WEIGHTS = f"its weights are multiplied by something before they meet v: {USE_RETURNED_WEIGHTS}"
Sizes = tuple[int, ...]
ReportCall = Callable[[Callable[[], ObservedCall], Tensor, Sizes], None]  # reader of a call, output, output's shape


@dataclass(frozen=True)
class AddedTensor:
    """A tensor that was added to the scores, or masked or multiplied them, when they had these sizes."""

    tensor: Tensor
    sizes: Sizes
    factor: float = 1.0


@dataclass(frozen=True)
class TracedScores:
    """A tensor of scores: their q and k, and what was done to the product."""

    q: Tensor  # (…, Q, D)
    k: Tensor  # (…, K, D)
    dtype: torch.dtype  # of their product
    sizes: Sizes
    four_axes: Sizes | None = None  # the sizes (B, H, Q, K), if it has had four axes
    scale: float = 1.0
    softcap: float | None = None
    added: tuple[AddedTensor, ...] = ()
    blocked: tuple[AddedTensor, ...] = ()  # True where a key is blocked
    factors: tuple[AddedTensor, ...] = ()  # 0 where a key is blocked, else 1


@dataclass(frozen=True)
class TracedWeights:
    """A tensor of weights: a softmax of scores."""

    scores: TracedScores
    sizes: Sizes
    dropout: bool = False


class ScoreTracer:
    """Knows which of a model's living tensors are scores or weights, and reports a call where weights meet v.

    Args:
        report_call: called with what reads the call, its output, and the shape to read the output in.
        report_unreadable: called with the reason where a softmax may be attention, but cannot be read.
        head_count: returns how many heads the calling module says it has.
    """

    def __init__(
        self, report_call: ReportCall, report_unreadable: Callable[[str], None], head_count: Callable[[], int | None]
    ) -> None:
        self._report_call, self._report_unreadable, self._head_count = report_call, report_unreadable, head_count
        self._traced: Any = WeakIdKeyDictionary()

    def trace(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of one call of a function of torch, and of its result."""
        step = STEPS.get(func)
        if step is None or not (self._traced or step in STARTS):
            return
        if isinstance(result, Tensor) and args:
            try:
                found = step(self, result, *args, **kwargs)
            except (TypeError, ValueError, RuntimeError):  # called in a way that is not known here: the model goes on
                found = None
            if found is not None:
                self._traced[result] = found
            elif self._traced:
                self._traced.pop(result, None)  # a result in place: the tensor is no longer what it was

    def of(self, x: Any) -> TracedScores | TracedWeights | None:
        """Return what is known of a tensor; None if it is neither scores nor weights."""
        return self._traced.get(x) if isinstance(x, Tensor) and self._traced else None

    # Steps: what a function of torch makes of its arguments, as scores or weights; None if neither. First products.

    def matmul(self, result: Tensor, x: Tensor, other: Tensor, **_: Any) -> TracedScores | None:
        known = self.of(x)
        if isinstance(known, TracedWeights):
            self._meet_values(known, other, result)
            return None
        if x.ndim != other.ndim or x.ndim < 2 or isinstance(other, torch.nn.Parameter) or result.dtype not in FLOATS:
            return None
        return TracedScores(x, other.mT, result.dtype, tuple(result.shape))

    def baddbmm(
        self, result: Tensor, x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
    ) -> TracedScores:
        sizes = tuple(result.shape)
        added = (AddedTensor(x, sizes, float(beta)),) if beta else ()
        return TracedScores(batch1, batch2.mT, result.dtype, sizes, scale=float(alpha), added=added)

    def einsum(self, result: Tensor, equation: Any, *operands: Any) -> TracedScores | None:
        given = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else list(operands)
        parts = str(equation).replace(" ", "").split("->")
        if len(parts) != 2 or len(given) != 2 or parts[0].count(",") != 1:
            return None
        one, two = parts[0].split(",")
        one, two, out = _without_dots(one, two, parts[1], given)
        for (x, names), (y, others) in itertools.permutations(zip(given, (one, two), strict=True)):
            known = self.of(x)
            if isinstance(known, TracedWeights):
                self._einsum_with_values(known, names, y, others, result, out)
                return None
        return _einsum_scores(result, out, (one, given[0]), (two, given[1]))

    def _einsum_with_values(
        self, known: TracedWeights, names: str, v: Tensor, others: str, result: Tensor, out: str
    ) -> None:
        batch, query, key = names[:-2], names[-2], names[-1]
        size = [name for name in others if name not in names]
        if len(size) != 1 or set(others) != {*size, key, *(n for n in batch if n in others)}:
            return
        if sorted(out) != sorted(f"{batch}{query}{size[0]}") or len(known.sizes) != len(names):
            return
        there = [n for n in batch if n in others]
        v = v.permute([others.index(n) for n in (*there, key, *size)])
        v = v.reshape([known.sizes[i] if n in others else 1 for i, n in enumerate(batch)] + list(v.shape[-2:]))
        self._meet_values(known, v, result.permute([out.index(n) for n in (*batch, query, *size)]))

    # Then operations on scores and on weights.

    def reshape(self, result: Tensor, x: Any, *_: Any, **__: Any) -> TracedScores | TracedWeights | None:
        """Follow a change of sizes or of type that keeps the rows."""
        known = self.of(x)
        if known is None or tuple(result.shape[-2:]) != known.sizes[-2:] or result.numel() != math.prod(known.sizes):
            return None
        return _with_sizes(known, tuple(result.shape))

    def dropout(
        self, result: Tensor, x: Any, p: float = 0.5, training: bool = True, *_: Any, **named: Any
    ) -> TracedScores | TracedWeights | None:
        known = self.of(named.get("input", x))
        if isinstance(known, TracedWeights):
            return replace(known, dropout=known.dropout or bool(named.get("training", training) and p))
        return None if training and p else known

    def mul(self, result: Tensor, x: Any, factor: Any, **_: Any) -> TracedScores | None:
        if self.of(x) is None:
            x, factor = factor, x
        known = self.of(x)
        if isinstance(known, TracedWeights):
            self._report_unreadable(CHANGED_WEIGHTS)
        if not isinstance(known, TracedScores):
            return None
        number = _number(factor)
        if number is not None:
            return _scaled(known, number)
        if tuple(result.shape) != known.sizes or not isinstance(factor, Tensor):
            return None
        if factor.shape[-1] == 1 and not (known.added or known.blocked or known.factors or known.softcap):
            with torch.no_grad():  # a scale for each head, or for each query
                return replace(known, q=known.q * factor)
        return replace(known, factors=(*known.factors, AddedTensor(factor, known.sizes)))

    def div(self, result: Tensor, x: Any, divisor: Any, **named: Any) -> TracedScores | None:
        known, number = self.of(x), _number(divisor)
        if not isinstance(known, TracedScores) or not number or named.get("rounding_mode") is not None:
            return None
        return _scaled(known, 1 / number)

    def add(self, result: Tensor, x: Any, other: Any, *, alpha: float = 1) -> TracedScores | None:
        known = self.of(x)
        if not isinstance(known, TracedScores):
            x, other, known = other, x, self.of(other)
        return self._added(known, other, result, float(alpha)) if x is not other else None

    def sub(self, result: Tensor, x: Any, other: Any, *, alpha: float = 1) -> TracedScores | None:
        return self._added(self.of(x), other, result, -float(alpha))

    def _added(self, known: Any, other: Any, result: Tensor, factor: float) -> TracedScores | None:
        if not isinstance(known, TracedScores) or tuple(result.shape) != known.sizes:
            return None
        if not isinstance(other, Tensor) or other.numel() == 1:
            return known  # the same number to all scores changes no weight
        return replace(known, added=(*known.added, AddedTensor(other, known.sizes, factor)))

    def tanh(self, result: Tensor, x: Any) -> TracedScores | None:
        known = self.of(x)
        if not isinstance(known, TracedScores) or known.added or known.blocked or known.factors or known.softcap:
            return None
        return replace(known, softcap=1.0)

    def masked_fill(self, result: Tensor, x: Any, mask: Any, value: Any) -> TracedScores | TracedWeights | None:
        known, number = self.of(x), _number(value)
        if isinstance(known, TracedWeights):
            return known if number == 0 else None
        if known is None or number is None or number > BLOCKING or tuple(result.shape) != known.sizes:
            return None
        return replace(known, blocked=(*known.blocked, AddedTensor(mask, known.sizes)))

    def where(self, result: Tensor, condition: Any, x: Any = None, other: Any = None) -> TracedScores | None:
        for one, another, allowed in ((x, other, True), (other, x, False)):
            known, number = self.of(one), _number(another)
            if isinstance(known, TracedScores) and number is not None and number <= BLOCKING:
                mask = AddedTensor(~condition if allowed else condition, known.sizes)
                there = tuple(result.shape) == known.sizes
                return replace(known, blocked=(*known.blocked, mask)) if there else None
        return None

    def clamp(self, result: Tensor, x: Any, other: Any = None, *_: Any, **named: Any) -> TracedScores | None:
        """Follow a lower limit that only blocked scores can reach."""
        known, number = self.of(x), _number(named.get("min", other))
        if not isinstance(known, TracedScores) or number is None or number > BLOCKING or named.get("max") is not None:
            return None
        return known

    def softmax(self, result: Tensor, x: Any, dim: Any = None, *_: Any, **named: Any) -> TracedWeights | None:
        known = self.of(named.get("input", x))
        last = named.get("dim", dim) in (-1, result.ndim - 1)
        if isinstance(known, TracedScores) and last:
            return TracedWeights(known, tuple(result.shape))
        if result.ndim > 2 and result.shape[-1] > 1:
            self._report_unreadable(UNTRACED_SOFTMAX)
        return None

    def _meet_values(self, known: TracedWeights, v: Tensor, result: Tensor) -> None:
        """Report a call, which is complete where weights are multiplied by v."""
        B, H, Q, K = _four_sizes(known.scores)
        if len(known.scores.sizes) > 4 and Q != K:
            self._report_unreadable(BLOCKED_QUERIES)
            return
        if H == 1 and len(known.scores.sizes) == 3 and known.scores.four_axes is None:
            heads = self._head_count() or 1
            B, H = (B // heads, heads) if B % heads == 0 else (B, 1)
        self._report_call(lambda: _observed_call(known, v, (B, H, Q, K)), result, (B, H, Q, v.shape[-1]))


def _with_sizes(known: TracedScores | TracedWeights, sizes: Sizes) -> TracedScores | TracedWeights:
    if isinstance(known, TracedWeights):
        return replace(known, sizes=sizes)
    return replace(known, sizes=sizes, four_axes=sizes if len(sizes) == 4 else known.four_axes)


def _scaled(known: TracedScores, factor: float) -> TracedScores:
    added = tuple(replace(one, factor=one.factor * factor) for one in known.added)
    softcap = None if known.softcap is None else known.softcap * factor
    return replace(known, scale=known.scale * factor, softcap=softcap, added=added)


def _number(x: Any) -> float | None:
    if isinstance(x, Tensor):
        return float(x) if x.numel() == 1 else None
    return float(x) if isinstance(x, int | float) else None


def _without_dots(one: str, two: str, out: str, given: list[Tensor]) -> tuple[str, str, str]:
    """Return the three terms of an einsum with letters in place of "...", aligned at the right."""
    rest = [x.ndim - len(names.replace(".", "")) for x, names in zip(given, (one, two), strict=True) if "." in names]
    unused = [letter for letter in string.ascii_letters if letter not in f"{one}{two}{out}"]
    letters = "".join(unused[: max(rest, default=0)])
    return (
        one.replace("...", letters[len(letters) - given[0].ndim + len(one.replace(".", "")) :]),
        two.replace("...", letters[len(letters) - given[1].ndim + len(two.replace(".", "")) :]),
        out.replace("...", letters),
    )


def _einsum_scores(result: Tensor, out: str, one: tuple[str, Tensor], two: tuple[str, Tensor]) -> TracedScores | None:
    """Return the scores that an einsum of q and k gives; the last two letters of `out` are queries and keys."""
    if len(out) < 2 or result.dtype not in FLOATS:
        return None
    batch, query, key = out[:-2], out[-2], out[-1]
    if key in one[0]:
        one, two = two, one
    sums = [name for name in one[0] if name in two[0] and name not in out]
    found = []
    for (names, x), own in ((one, query), (two, key)):
        if len(sums) != 1 or set(names) != {*sums, own, *(n for n in batch if n in names)} or len(names) != x.ndim:
            return None
        x = x.permute([names.index(n) for n in (*(n for n in batch if n in names), own, *sums)])
        sizes = [result.shape[i] if n in names else 1 for i, n in enumerate(batch)]
        found.append(x.reshape(*sizes, *x.shape[-2:]))
    return TracedScores(found[0], found[1], result.dtype, tuple(result.shape))


# From traced weights to q, k, v and rules.


def _four_sizes(scores: TracedScores) -> tuple[int, int, int, int]:
    """Return B, H, Q and K, read from the sizes that the scores have had."""
    for sizes in (scores.sizes, scores.four_axes or ()):
        if len(sizes) == 4:
            B, H, Q, K = sizes
            return B, H, Q, K
    *batch, Q, K = scores.sizes
    return (math.prod(batch[:-1]), batch[-1], Q, K) if len(batch) > 1 else (math.prod(batch), 1, Q, K)


def _observed_call(known: TracedWeights, v: Tensor, sizes: tuple[int, int, int, int]) -> ObservedCall:
    scores, (B, H, _, _) = known.scores, sizes
    batch = torch.broadcast_shapes(scores.q.shape[:-2], scores.k.shape[:-2])
    try:
        q, k = (_as_heads(x.to(scores.dtype), batch, B, H) for x in (scores.q, scores.k))
        v = _as_heads(v, known.sizes[:-2], B, H)
        q = q.expand(B, H, -1, -1)
        if k.shape[1] != v.shape[1]:
            k, v = k.expand(B, H, -1, -1), v.expand(B, H, -1, -1)
    except RuntimeError as error:
        raise Unreadable(f"its q, k and v do not fit together ({error})") from None
    mask, bias = _rules(scores, sizes)
    first, last = (None, None) if mask is None else (mask[:, :, :1], mask[:, :, -1:])
    grows = first is not None and last is not None and not torch.equal(first, last)
    return ObservedCall(q, k, v, scores.scale, scores.softcap, mask, bias, cached=grows, dropout=known.dropout)


def _as_heads(x: Tensor, batch: Sizes, B: int, H: int) -> Tensor:
    """Return x (…, n, size) as (B, H or 1, n, size)."""
    if len(batch) == 2 and tuple(batch) == (B, H) and x.ndim == 4 and x.shape[1] == 1:
        return x.expand(B, -1, -1, -1)
    return x.expand(*batch, *x.shape[-2:]).reshape(B, H, *x.shape[-2:])


def _rules(scores: TracedScores, sizes: tuple[int, int, int, int]) -> tuple[Tensor | None, Tensor | None]:
    """Return the mask and the bias, each (B or 1, H or 1, Q or 1, K) or None, that amount to all that was traced."""
    blocked = [_as_four_axes(one, sizes).bool() for one in scores.blocked]
    for one in scores.factors:
        factors = _as_four_axes(one, sizes)
        if not bool(((factors == 0) | (factors == 1)).all()):
            raise Unreadable("its scores are multiplied by a tensor, which is no scale and no mask")
        blocked.append(factors == 0)
    masks, biases = [], []
    for one in scores.added:
        x = _as_four_axes(one, sizes)
        if x.shape[-1] == 1 and sizes[-1] > 1:
            continue  # the same number to all keys of a row changes no weight
        if x.dtype not in FLOATS:
            x = x.to(scores.dtype)
        low = x <= BLOCKING
        if bool((low | (x == 0)).all()):
            masks.append(x)
            blocked.append(low)
        else:
            biases.append(x)
    bias = sum(biases[1:], biases[0]) if biases else None
    if len(blocked) == len(masks) == 1 and bool((masks[0][blocked[0]] <= torch.finfo(masks[0].dtype).min).all()):
        return masks[0], bias  # the same object in all layers
    if not blocked:
        return None, bias
    found = blocked[0]
    for more in blocked[1:]:
        found = found | more
    return ~found, bias


def _as_four_axes(one: AddedTensor, sizes: tuple[int, int, int, int]) -> Tensor:
    """Return an added tensor as (B or 1, H or 1, Q or 1, K or 1)."""
    x = one.tensor if one.factor == 1 else one.tensor * one.factor
    x = x[(None,) * (len(one.sizes) - x.ndim)]
    if tuple(one.sizes) == tuple(sizes):
        return x
    if math.prod(x.shape[:-2]) == 1:
        return x.reshape(1, 1, *x.shape[-2:])
    return x.expand(*one.sizes[:-2], *x.shape[-2:]).reshape(*sizes[:2], *x.shape[-2:])


def _functions(*names: str) -> set[Any]:
    owners = (torch, Tensor, F)
    return {getattr(owner, name) for name in names for owner in owners if hasattr(owner, name)}


RESHAPES = (
    "view", "reshape", "unflatten", "flatten", "squeeze", "unsqueeze", "contiguous", "to", "float", "half", "bfloat16",
    "double", "type", "type_as", "clone", "view_as", "reshape_as", "nan_to_num",
)  # fmt: skip
Step = Callable[..., TracedScores | TracedWeights | None]
STEPS_BY_NAME: dict[Step, tuple[str, ...]] = {
    ScoreTracer.matmul: ("matmul", "bmm", "mm", "__matmul__"),
    ScoreTracer.baddbmm: ("baddbmm",),
    ScoreTracer.einsum: ("einsum",),
    ScoreTracer.reshape: RESHAPES,
    ScoreTracer.dropout: ("dropout",),
    ScoreTracer.mul: ("mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__"),
    ScoreTracer.div: ("div", "div_", "divide", "true_divide", "__div__", "__truediv__", "__idiv__", "__itruediv__"),
    ScoreTracer.add: ("add", "add_", "__add__", "__radd__", "__iadd__"),
    ScoreTracer.sub: ("sub", "sub_", "subtract", "__sub__", "__isub__"),
    ScoreTracer.tanh: ("tanh", "tanh_"),
    ScoreTracer.masked_fill: ("masked_fill", "masked_fill_"),
    ScoreTracer.where: ("where",),
    ScoreTracer.clamp: ("clamp", "clamp_min", "max", "maximum"),
    ScoreTracer.softmax: ("softmax",),
}
# Where nothing is traced yet, only these matter.
STARTS = {ScoreTracer.matmul, ScoreTracer.baddbmm, ScoreTracer.einsum, ScoreTracer.softmax}
STEPS: dict[Any, Step] = {function: step for step, names in STEPS_BY_NAME.items() for function in _functions(*names)}
