"""Attention that a model writes out itself: followed from the product of q and k to its softmax, and on to v.

What is done to the scores on the way is told as a scale, a softcap, a mask or a bias. Of what cannot be told so,
nothing is heard, and what is told wrongly shows in the output (`verification.py`).
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

BLOCKS = -9e3  # what models add to a score that is not to count: -10,000 and below
GIVEN = (
    "call it with output_attentions=True, if it has that, and give output.attentions to AttentionWidget.from_weights"
)
OTHER = f"its softmax is not of a product of q and k with a scale, a mask and a bias (it may be sparse): {GIVEN}"
IN_BLOCKS = f"its queries and keys are taken in blocks, which are no places in the text: {GIVEN}"
CHANGED = f"its weights are multiplied by something before they meet v: {GIVEN}"
Sizes = tuple[int, ...]
Tell = Callable[
    [Callable[[], ObservedCall], Tensor, Sizes], None
]  # a call, its output, and as what shape it is to be read


@dataclass(frozen=True)
class AddedTensor:
    """A tensor that came to the scores when they had these sizes."""

    tensor: Tensor
    sizes: Sizes
    factor: float = 1.0


@dataclass(frozen=True)
class TracedScores:
    """A tensor that came from q and k."""

    q: Tensor  # (…, Q, D)
    k: Tensor  # (…, K, D)
    dtype: torch.dtype  # of their product
    sizes: Sizes
    four: Sizes | None = None  # the sizes (B, H, Q, K) that it has had
    scale: float = 1.0
    softcap: float | None = None
    added: tuple[AddedTensor, ...] = ()
    blocked: tuple[AddedTensor, ...] = ()  # True where a key is not to count
    kept: tuple[AddedTensor, ...] = ()  # 0 where a key is not to count: factors


@dataclass(frozen=True)
class TracedWeights:
    """A tensor that came of a softmax of scores."""

    scores: TracedScores
    sizes: Sizes
    dropout: bool = False


class ScoreTracer:
    """Which of a model's tensors are scores or weights, as long as they live."""

    def __init__(self, tell: Tell, miss: Callable[[str], None], heads: Callable[[], int | None]) -> None:
        self._tell, self._miss, self._heads = tell, miss, heads
        self._known: Any = WeakIdKeyDictionary()

    def follow(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """One call of a function of torch."""
        step = STEPS.get(func)
        if step is None or not (self._known or step in STARTS):
            return
        if isinstance(result, Tensor) and args:
            try:
                found = step(self, result, *args, **kwargs)
            except (TypeError, ValueError, RuntimeError):  # called in a way that is not known here: the model goes on
                found = None
            if found is not None:
                self._known[result] = found
            elif self._known:
                self._known.pop(result, None)  # changed in place to what it is not any more

    def of(self, x: Any) -> TracedScores | TracedWeights | None:
        return self._known.get(x) if isinstance(x, Tensor) and self._known else None

    # Products.

    def matmul(self, result: Tensor, x: Tensor, other: Tensor, **_: Any) -> TracedScores | None:
        known = self.of(x)
        if isinstance(known, TracedWeights):
            self._finish(known, other, result)
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
        one, two, out = _spelled(one, two, parts[1], given)
        for (x, names), (y, others) in itertools.permutations(zip(given, (one, two), strict=True)):
            known = self.of(x)
            if isinstance(known, TracedWeights):
                self._values_by_name(known, names, y, others, result, out)
                return None
        return _product_by_name(result, out, (one, given[0]), (two, given[1]))

    def _values_by_name(
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
        self._finish(known, v, result.permute([out.index(n) for n in (*batch, query, *size)]))

    # What is done to scores and to weights.

    def same(self, result: Tensor, x: Any, *_: Any, **__: Any) -> TracedScores | TracedWeights | None:
        """Other sizes or another type, the same rows."""
        known = self.of(x)
        if known is None or tuple(result.shape[-2:]) != known.sizes[-2:] or result.numel() != math.prod(known.sizes):
            return None
        return _sized(known, tuple(result.shape))

    def dropout(
        self, result: Tensor, x: Any, p: float = 0.5, training: bool = True, *_: Any, **named: Any
    ) -> TracedScores | TracedWeights | None:
        known = self.of(named.get("input", x))
        if isinstance(known, TracedWeights):
            return replace(known, dropout=known.dropout or bool(named.get("training", training) and p))
        return None if training and p else known

    def mul(self, result: Tensor, x: Any, by: Any, **_: Any) -> TracedScores | None:
        if self.of(x) is None:
            x, by = by, x
        known = self.of(x)
        if isinstance(known, TracedWeights):
            self._miss(CHANGED)
        if not isinstance(known, TracedScores):
            return None
        number = _number(by)
        if number is not None:
            return _times(known, number)
        if tuple(result.shape) != known.sizes or not isinstance(by, Tensor):
            return None
        if by.shape[-1] == 1 and not (known.added or known.blocked or known.kept or known.softcap):
            with torch.no_grad():  # a scale for each head, or for each query
                return replace(known, q=known.q * by)
        return replace(known, kept=(*known.kept, AddedTensor(by, known.sizes)))

    def div(self, result: Tensor, x: Any, by: Any, **named: Any) -> TracedScores | None:
        known, number = self.of(x), _number(by)
        if not isinstance(known, TracedScores) or not number or named.get("rounding_mode") is not None:
            return None
        return _times(known, 1 / number)

    def add(self, result: Tensor, x: Any, other: Any, *, alpha: float = 1) -> TracedScores | None:
        known = self.of(x)
        if not isinstance(known, TracedScores):
            x, other, known = other, x, self.of(other)
        return self._plus(known, other, result, float(alpha)) if x is not other else None

    def sub(self, result: Tensor, x: Any, other: Any, *, alpha: float = 1) -> TracedScores | None:
        return self._plus(self.of(x), other, result, -float(alpha))

    def _plus(self, known: Any, other: Any, result: Tensor, factor: float) -> TracedScores | None:
        if not isinstance(known, TracedScores) or tuple(result.shape) != known.sizes:
            return None
        if not isinstance(other, Tensor) or other.numel() == 1:
            return known  # the same to all scores: no weight changes
        return replace(known, added=(*known.added, AddedTensor(other, known.sizes, factor)))

    def tanh(self, result: Tensor, x: Any) -> TracedScores | None:
        known = self.of(x)
        if not isinstance(known, TracedScores) or known.added or known.blocked or known.kept or known.softcap:
            return None
        return replace(known, softcap=1.0)

    def masked_fill(self, result: Tensor, x: Any, mask: Any, value: Any) -> TracedScores | TracedWeights | None:
        known, number = self.of(x), _number(value)
        if isinstance(known, TracedWeights):
            return known if number == 0 else None
        if known is None or number is None or number > BLOCKS or tuple(result.shape) != known.sizes:
            return None
        return replace(known, blocked=(*known.blocked, AddedTensor(mask, known.sizes)))

    def where(self, result: Tensor, condition: Any, x: Any = None, other: Any = None) -> TracedScores | None:
        for one, another, allowed in ((x, other, True), (other, x, False)):
            known, number = self.of(one), _number(another)
            if isinstance(known, TracedScores) and number is not None and number <= BLOCKS:
                mask = AddedTensor(~condition if allowed else condition, known.sizes)
                there = tuple(result.shape) == known.sizes
                return replace(known, blocked=(*known.blocked, mask)) if there else None
        return None

    def at_least(self, result: Tensor, x: Any, other: Any = None, *_: Any, **named: Any) -> TracedScores | None:
        """Scores that are kept from −∞."""
        known, number = self.of(x), _number(named.get("min", other))
        if not isinstance(known, TracedScores) or number is None or number > BLOCKS or named.get("max") is not None:
            return None
        return known

    def softmax(self, result: Tensor, x: Any, dim: Any = None, *_: Any, **named: Any) -> TracedWeights | None:
        known = self.of(named.get("input", x))
        last = named.get("dim", dim) in (-1, result.ndim - 1)
        if isinstance(known, TracedScores) and last:
            return TracedWeights(known, tuple(result.shape))
        if result.ndim > 2 and result.shape[-1] > 1:
            self._miss(OTHER)
        return None

    def _finish(self, known: TracedWeights, v: Tensor, result: Tensor) -> None:
        """Weights have met v: a call is complete."""
        B, H, Q, K = _four(known.scores)
        if len(known.scores.sizes) > 4 and Q != K:
            self._miss(IN_BLOCKS)
            return
        if H == 1 and len(known.scores.sizes) == 3 and known.scores.four is None:
            heads = self._heads() or 1
            B, H = (B // heads, heads) if B % heads == 0 else (B, 1)
        self._tell(lambda: _seen(known, v, (B, H, Q, K)), result, (B, H, Q, v.shape[-1]))


def _sized(known: TracedScores | TracedWeights, sizes: Sizes) -> TracedScores | TracedWeights:
    if isinstance(known, TracedWeights):
        return replace(known, sizes=sizes)
    return replace(known, sizes=sizes, four=sizes if len(sizes) == 4 else known.four)


def _times(known: TracedScores, by: float) -> TracedScores:
    added = tuple(replace(one, factor=one.factor * by) for one in known.added)
    if known.softcap is not None and known.added:
        return replace(known, scale=known.scale * by, softcap=known.softcap * by, added=added)
    softcap = None if known.softcap is None else known.softcap * by
    return replace(known, scale=known.scale * by, softcap=softcap, added=added)


def _number(x: Any) -> float | None:
    if isinstance(x, Tensor):
        return float(x) if x.numel() == 1 else None
    return float(x) if isinstance(x, int | float) else None


def _spelled(one: str, two: str, out: str, given: list[Tensor]) -> tuple[str, str, str]:
    """The names of an einsum with letters in the place of its dots."""
    rest = [x.ndim - len(names.replace(".", "")) for x, names in zip(given, (one, two), strict=True) if "." in names]
    unused = [letter for letter in string.ascii_letters if letter not in f"{one}{two}{out}"]
    letters = "".join(unused[: max(rest, default=0)])
    return (
        one.replace("...", letters[len(letters) - given[0].ndim + len(one.replace(".", "")) :]),
        two.replace("...", letters[len(letters) - given[1].ndim + len(two.replace(".", "")) :]),
        out.replace("...", letters),
    )


def _product_by_name(result: Tensor, out: str, one: tuple[str, Tensor], two: tuple[str, Tensor]) -> TracedScores | None:
    """Scores of an einsum, whose last two names are those of queries and keys."""
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


# From what was followed to q, k, v and rules.


def _four(scores: TracedScores) -> tuple[int, int, int, int]:
    """(B, H, Q, K), read from the sizes that the scores had."""
    for sizes in (scores.sizes, scores.four or ()):
        if len(sizes) == 4:
            B, H, Q, K = sizes
            return B, H, Q, K
    *batch, Q, K = scores.sizes
    return (math.prod(batch[:-1]), batch[-1], Q, K) if len(batch) > 1 else (math.prod(batch), 1, Q, K)


def _seen(known: TracedWeights, v: Tensor, sizes: tuple[int, int, int, int]) -> ObservedCall:
    scores, (B, H, _, _) = known.scores, sizes
    batch = torch.broadcast_shapes(scores.q.shape[:-2], scores.k.shape[:-2])
    try:
        q, k = (_by_head(x.to(scores.dtype), batch, B, H) for x in (scores.q, scores.k))
        v = _by_head(v, known.sizes[:-2], B, H)
        q = q.expand(B, H, -1, -1)
        if k.shape[1] != v.shape[1]:
            k, v = k.expand(B, H, -1, -1), v.expand(B, H, -1, -1)
    except RuntimeError as error:
        raise Unreadable(f"its q, k and v do not fit together ({error})") from None
    mask, bias = _rules(scores, sizes)
    first, last = (None, None) if mask is None else (mask[:, :, :1], mask[:, :, -1:])
    grows = first is not None and last is not None and not torch.equal(first, last)
    return ObservedCall(q, k, v, scores.scale, scores.softcap, mask, bias, cached=grows, dropout=known.dropout)


def _by_head(x: Tensor, batch: Sizes, B: int, H: int) -> Tensor:
    """x (…, n, size) as (B, H or 1, n, size)."""
    if len(batch) == 2 and tuple(batch) == (B, H) and x.ndim == 4 and x.shape[1] == 1:
        return x.expand(B, -1, -1, -1)
    return x.expand(*batch, *x.shape[-2:]).reshape(B, H, *x.shape[-2:])


def _rules(scores: TracedScores, sizes: tuple[int, int, int, int]) -> tuple[Tensor | None, Tensor | None]:
    """The mask and the bias that all that was done to the scores comes to."""
    blocked = [_fitted(one, sizes).bool() for one in scores.blocked]
    for one in scores.kept:
        factors = _fitted(one, sizes)
        if not bool(((factors == 0) | (factors == 1)).all()):
            raise Unreadable("its scores are multiplied by a tensor, which is no scale and no mask")
        blocked.append(factors == 0)
    masks, biases = [], []
    for one in scores.added:
        x = _fitted(one, sizes)
        if x.shape[-1] == 1 and sizes[-1] > 1:
            continue  # the same to all keys of a row: no weight changes
        if x.dtype not in FLOATS:
            x = x.to(scores.dtype)
        low = x <= BLOCKS
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


def _fitted(one: AddedTensor, sizes: tuple[int, int, int, int]) -> Tensor:
    """What was added as (B or 1, H or 1, Q or 1, K or 1)."""
    x, then = one.tensor if one.factor == 1 else one.tensor * one.factor, one.sizes
    x = x[(None,) * (len(then) - x.ndim)]
    if tuple(then) == tuple(sizes):
        return x
    if math.prod(x.shape[:-2]) == 1:
        return x.reshape(1, 1, *x.shape[-2:])
    return x.expand(*then[:-2], *x.shape[-2:]).reshape(*sizes[:2], *x.shape[-2:])


def _functions(*names: str) -> set[Any]:
    owners = (torch, Tensor, F)
    return {getattr(owner, name) for name in names for owner in owners if hasattr(owner, name)}


SAME = (
    "view", "reshape", "unflatten", "flatten", "squeeze", "unsqueeze", "contiguous", "to", "float", "half", "bfloat16",
    "double", "type", "type_as", "clone", "view_as", "reshape_as", "nan_to_num",
)  # fmt: skip
Step = Callable[..., TracedScores | TracedWeights | None]
STEPS_BY_NAME: dict[Step, tuple[str, ...]] = {
    ScoreTracer.matmul: ("matmul", "bmm", "mm", "__matmul__"),
    ScoreTracer.baddbmm: ("baddbmm",),
    ScoreTracer.einsum: ("einsum",),
    ScoreTracer.same: SAME,
    ScoreTracer.dropout: ("dropout",),
    ScoreTracer.mul: ("mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__"),
    ScoreTracer.div: ("div", "div_", "divide", "true_divide", "__div__", "__truediv__", "__idiv__", "__itruediv__"),
    ScoreTracer.add: ("add", "add_", "__add__", "__radd__", "__iadd__"),
    ScoreTracer.sub: ("sub", "sub_", "subtract", "__sub__", "__isub__"),
    ScoreTracer.tanh: ("tanh", "tanh_"),
    ScoreTracer.masked_fill: ("masked_fill", "masked_fill_"),
    ScoreTracer.where: ("where",),
    ScoreTracer.at_least: ("clamp", "clamp_min", "max", "maximum"),
    ScoreTracer.softmax: ("softmax",),
}
STARTS = {
    ScoreTracer.matmul,
    ScoreTracer.baddbmm,
    ScoreTracer.einsum,
    ScoreTracer.softmax,
}  # of others nothing comes where nothing is known
STEPS: dict[Any, Step] = {function: step for step, names in STEPS_BY_NAME.items() for function in _functions(*names)}
