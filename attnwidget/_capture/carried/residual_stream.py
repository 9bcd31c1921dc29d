"""Follow the outputs of attention through additions and norms to the logits, while a model runs.

A layer's contribution to the residual stream stays a term of it through additions, multiplications by a number, and
changes of a tensor's shape or dtype. A norm before the addition (Gemma 2) or after it (post-norm models) is linear once
its scale is fixed at its value at each position. Anything else ends the path.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from ..._utils.quietly import keep_from_model, quietly
from ..tracing.torch_mode import WatchingMode

# Functions that keep the numbers of a tensor.
SAME = {
    *(Tensor.view, Tensor.reshape, Tensor.contiguous, Tensor.to, Tensor.float, Tensor.double, Tensor.half),
    *(Tensor.bfloat16, Tensor.type_as, Tensor.type, Tensor.clone, Tensor.flatten, Tensor.unflatten, Tensor.unsqueeze),
    *(Tensor.squeeze, Tensor.__getitem__, Tensor.detach, Tensor.cpu),
    *(Tensor.view_as, Tensor.reshape_as, Tensor.cuda, Tensor.narrow, Tensor.select, Tensor.index_select),
    *(torch.reshape, torch.flatten, torch.unflatten, torch.unsqueeze, torch.squeeze),
    *(torch.clone, torch.narrow, torch.select, torch.index_select),
}
MOVE = {  # functions that permute axes
    *(Tensor.transpose, Tensor.permute, Tensor.movedim, torch.transpose, torch.permute, torch.movedim)
}
ADD = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__}
MULTIPLY = {torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__, torch.multiply}
DIVIDE = {torch.div, Tensor.div, Tensor.div_, Tensor.__truediv__, Tensor.__itruediv__, torch.true_divide}
BEND = {torch.tanh, Tensor.tanh, Tensor.tanh_}
DROP = {F.dropout, torch.dropout}
PRODUCT = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm}


class StreamPath(NamedTuple):
    """How an attention's contribution reaches a tensor.

    factor: its factor; NaN if it arrives by two paths that do not add up.
    norms: the calls of norms that it passes, in order.
    transposed: whether positions come before samples anywhere on the path.
    """

    factor: float = 1.0
    norms: tuple[str, ...] = ()
    transposed: bool = False

    def times(self, factor: float) -> StreamPath:
        """Return the path with another factor multiplied in."""
        return self._replace(factor=self.factor * factor)

    def through(self, call: str) -> StreamPath:
        """Return the path after one more norm."""
        return self._replace(norms=(*self.norms, call))

    @property
    def is_one(self) -> bool:
        """Whether it is a single path."""
        return not math.isnan(self.factor)


NO_STREAM_PATH = StreamPath(float("nan"))
Terms = dict[str, StreamPath]  # by attention that is a term of a tensor's sum


@dataclass(frozen=True, eq=False)
class NormCall:
    """A call of a norm.

    call: its name, numbered from its second call in this pass.
    module: the norm.
    given: its input.
    rows: copies of the last row of its input and output.
    terms: the attention terms of its input.
    factor: the factor of its result since then.
    transposed: whether samples and positions of its result have been transposed since then.
    """

    call: str
    module: nn.Module
    given: Tensor
    rows: tuple[Tensor, Tensor]
    terms: Terms | None = None
    factor: float = 1.0
    transposed: bool = False


@dataclass(frozen=True)
class LinearMap:
    """A call of a linear map.

    given: its input.
    weight: (out, in) its matrix.
    factor: the factor of its result since then.
    softcap: whether a tanh followed.
    transposed: whether samples and positions of its result have been transposed since then.
    """

    given: Tensor
    weight: Tensor
    factor: float = 1.0
    softcap: bool = False
    transposed: bool = False


class Known(NamedTuple):
    """Where a tensor comes from.

    terms: its attention terms.
    norm: the call of a norm whose result it is.
    product: the linear map whose result it is.
    """

    terms: Terms | None = None
    norm: NormCall | None = None
    product: LinearMap | None = None

    def transpose(self) -> Known:
        """Return the facts of the tensor with samples and positions transposed."""
        terms, norm, product = self
        return Known(
            terms and {name: path._replace(transposed=True) for name, path in terms.items()},
            norm
            and replace(
                norm,
                transposed=not norm.transposed,
                terms=norm.terms and {name: path._replace(transposed=True) for name, path in norm.terms.items()},
            ),
            product and replace(product, transposed=not product.transposed),
        )


NOTHING = Known()


class StreamWatcher(WatchingMode):
    """Follows attention terms and the results of norms and linear maps, in the thread that entered it.

    Args:
        understand: records what a norm in a sum computes; returns False if this is unknown.
    """

    def __init__(self, understand: Callable[[NormCall], bool]) -> None:
        super().__init__()
        self._understand = understand
        self._known: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._rules: dict[Any, Callable[..., None]] = {
            **dict.fromkeys(SAME, self._same),
            **dict.fromkeys(MOVE, self._move),
            **dict.fromkeys(ADD, self._add),
            **dict.fromkeys(MULTIPLY, self._multiply),
            **dict.fromkeys(DIVIDE, self._divide),
            **dict.fromkeys(BEND, self._bend),
            **dict.fromkeys(DROP, self._drop),
            **dict.fromkeys(PRODUCT, self._product),
            F.linear: self._linear,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        follow = self._rules.get(func)
        if follow is None:
            result = func(*args, **kwargs)
            if args and isinstance(args[0], Tensor) and (result is args[0] or func is Tensor.__setitem__):
                self._set(args[0], NOTHING)  # changed in place
            return result
        before = quietly(None, self.known, args[0]) if args else NOTHING  # before a change in place
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            try:
                follow(before or NOTHING, result, args, kwargs)
            except Exception as error:
                self._known.pop(result, None)
                keep_from_model(error)  # it then counts as not followed
        return result

    def known(self, x: Any) -> Known:
        """Return everything known about a tensor."""
        found: Known = self._known.get(x, NOTHING) if isinstance(x, Tensor) else NOTHING
        return found

    def adds(self, x: Any, terms: Terms) -> None:
        """Record that a tensor is the contribution of attention."""
        if isinstance(x, Tensor):
            self._set(x, Known(terms))

    def is_normed(self, x: Tensor, made: NormCall) -> None:
        """Record that a tensor is the result of a norm."""
        self._set(x, Known(norm=replace(made, terms=self.terms_of(made.given))))

    def terms_of(self, x: Any) -> Terms:
        """Return the attention terms of a tensor, including those before a norm whose result it is."""
        terms, norm, _ = self.known(x)
        if terms is not None or norm is None or not norm.terms or not self._understand(norm):
            return terms or {}
        return {name: path.times(norm.factor).through(norm.call) for name, path in norm.terms.items()}

    def _set(self, x: Tensor, known: Known) -> None:
        """Replace everything known about a tensor."""
        if known != NOTHING:
            self._known[x] = known
        elif x in self._known:
            del self._known[x]

    def _same(self, before: Known, result: Tensor, args: Any, kwargs: Any) -> None:
        self._set(result, before)

    def _move(self, before: Known, result: Tensor, args: Any, kwargs: Any) -> None:
        self._set(result, before.transpose() if _is_transposed(args[0], result) else before)

    def _drop(self, before: Known, result: Tensor, args: Any, kwargs: Any) -> None:
        p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
        if not training or not p:
            self._set(result, before)

    def _add(self, before: Known, result: Tensor, args: Any, kwargs: Any) -> None:
        other = args[1] if len(args) > 1 else kwargs.get("other")
        if kwargs.get("alpha", 1) != 1 or len(args) > 2:
            return self._set(result, NOTHING)
        one, another = self.terms_of(args[0]), self.terms_of(other)
        found = {**one, **another, **{name: _sum(one[name], another[name]) for name in one.keys() & another.keys()}}
        return self._set(result, Known(found or None))

    def _multiply(self, before: Known, result: Tensor, args: Any, kwargs: Any) -> None:
        other = args[1] if len(args) > 1 else kwargs.get("other")
        if _number(other) is None:
            before, other = self.known(other), args[0]
        self._scaled(before, result, other)

    def _divide(self, before: Known, result: Tensor, args: Any, kwargs: Any) -> None:
        by = _number(args[1] if len(args) > 1 else kwargs.get("other"))
        self._scaled(before, result, None if not by or kwargs.get("rounding_mode") else 1 / by)

    def _scaled(self, before: Known, result: Tensor, factor: Any) -> None:
        times = _number(factor)
        terms, norm, product = before
        if times is None:
            return self._set(result, NOTHING)
        product = product and replace(product, factor=product.factor * times)
        norm = norm and replace(norm, factor=norm.factor * times)
        return self._set(
            result, Known(terms and {name: path.times(times) for name, path in terms.items()}, norm, product)
        )

    def _bend(self, before: Known, result: Tensor, args: Any, kwargs: Any) -> None:
        """Record a softcap c · tanh(x / c); the readout gives x, so factors before and after tanh are multiplied."""
        product = before.product
        self._set(result, Known(product=product and replace(product, softcap=True)))

    def _linear(self, before: Known, result: Tensor, args: Any, kwargs: Any) -> None:
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        if args and isinstance(weight, Tensor) and weight.ndim == 2:
            self._set(result, Known(product=LinearMap(args[0], weight.detach())))

    def _product(self, before: Known, result: Tensor, args: Any, kwargs: Any) -> None:
        other = args[1] if len(args) > 1 else next(iter(kwargs.values()), None)
        if args and isinstance(other, Tensor) and other.ndim == 2:
            self._set(result, Known(product=LinearMap(args[0], other.detach().mT)))


def _sum(one: StreamPath, another: StreamPath) -> StreamPath:
    """Return the path of the sum of two contributions."""
    if one.norms != another.norms:
        return NO_STREAM_PATH
    return one._replace(factor=one.factor + another.factor, transposed=one.transposed or another.transposed)


def _is_transposed(x: Any, result: Tensor) -> bool:
    """Return whether a view has transposed the first two of three axes."""
    if not isinstance(x, Tensor) or x.ndim != 3 or x.is_nested:
        return False
    (a, b, c), (d, e, f) = zip(x.shape, x.stride(), strict=True), zip(result.shape, result.stride(), strict=True)
    return (a, b, c) == (e, d, f) and a != b


def _number(x: Any) -> float | None:
    """Return a number, or the value of a one-element tensor on the CPU; None for anything else."""
    if isinstance(x, Tensor):
        return float(x.detach()) if x.numel() == 1 and x.device.type == "cpu" else None
    return float(x) if isinstance(x, int | float) and not isinstance(x, bool) else None
