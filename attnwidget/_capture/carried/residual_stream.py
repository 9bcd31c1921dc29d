"""Which way outputs of attention take to the logits: followed through additions and norms, while a model runs.

What a layer adds to the residual stream stays in it by additions, multiplications by a number, and what changes only
the shape or the type of a tensor. A norm on the way, before it is added (Gemma 2) or after (post-norm models), is
linear once its scale is held at what it was at each position. Anything else ends it: then there is no direct path.
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

from ..tracing.torch_mode import WatchingMode

# What leaves the numbers of a tensor as they are.
SAME = {
    *(Tensor.view, Tensor.reshape, Tensor.contiguous, Tensor.to, Tensor.float, Tensor.double, Tensor.half),
    *(Tensor.bfloat16, Tensor.type_as, Tensor.type, Tensor.clone, Tensor.flatten, Tensor.unflatten, Tensor.unsqueeze),
    *(Tensor.squeeze, Tensor.__getitem__, Tensor.detach, Tensor.cpu),
    *(Tensor.view_as, Tensor.reshape_as, Tensor.cuda, Tensor.narrow, Tensor.select, Tensor.index_select),
    *(torch.reshape, torch.flatten, torch.unflatten, torch.unsqueeze, torch.squeeze),
    *(torch.clone, torch.narrow, torch.select, torch.index_select),
}
MOVE = {  # and what lets axes change places
    *(Tensor.transpose, Tensor.permute, Tensor.movedim, torch.transpose, torch.permute, torch.movedim)
}
ADD = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__}
MULTIPLY = {torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__, torch.multiply}
DIVIDE = {torch.div, Tensor.div, Tensor.div_, Tensor.__truediv__, Tensor.__itruediv__, torch.true_divide}
BEND = {torch.tanh, Tensor.tanh, Tensor.tanh_}
DROP = {F.dropout, torch.dropout}
PRODUCT = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm}


class Way(NamedTuple):
    """How what an attention adds has come to be in a tensor.

    factor: what it was multiplied by; NaN where it has come by two ways that are not one sum.
    norms: the calls of norms that it went through, in their order.
    turned: whether positions came before samples anywhere on it.
    """

    factor: float = 1.0
    norms: tuple[str, ...] = ()
    turned: bool = False

    def times(self, factor: float) -> Way:
        """Return the same, multiplied."""
        return self._replace(factor=self.factor * factor)

    def through(self, call: str) -> Way:
        """Return the same, after one more norm."""
        return self._replace(norms=(*self.norms, call))

    @property
    def is_one(self) -> bool:
        """Whether it is one way."""
        return not math.isnan(self.factor)


NO_WAY = Way(float("nan"))
Terms = dict[str, Way]  # of each attention that is in a tensor as a sum


@dataclass(frozen=True, eq=False)
class NormCall:
    """What a norm gave.

    call: its name, with a number where it was called before in this pass.
    module: the norm.
    given: what it was given.
    rows: the last row of that and of what it gave, as they were then.
    terms: what attention had added to what it was given.
    factor: what its result was multiplied by afterwards.
    turned: whether samples and positions of its result changed places afterwards.
    """

    call: str
    module: nn.Module
    given: Tensor
    rows: tuple[Tensor, Tensor]
    terms: Terms | None = None
    factor: float = 1.0
    turned: bool = False


@dataclass(frozen=True)
class LinearMap:
    """What a linear map gave.

    given: what it was given.
    weight: (out, in) its matrix.
    factor: what its result was multiplied by afterwards.
    softcap: whether it was bent by tanh afterwards.
    turned: whether samples and positions of its result changed places afterwards.
    """

    given: Tensor
    weight: Tensor
    factor: float = 1.0
    softcap: bool = False
    turned: bool = False


class Known(NamedTuple):
    """What is known of a tensor.

    terms: what attention has added to it.
    norm: the call of a norm whose result it is.
    product: the linear map that it comes from.
    """

    terms: Terms | None = None
    norm: NormCall | None = None
    product: LinearMap | None = None

    def turn(self) -> Known:
        """Return the same of a tensor whose samples and positions have changed places."""
        terms, norm, product = self
        return Known(
            terms and {name: way._replace(turned=True) for name, way in terms.items()},
            norm
            and replace(
                norm,
                turned=not norm.turned,
                terms=norm.terms and {name: way._replace(turned=True) for name, way in norm.terms.items()},
            ),
            product and replace(product, turned=not product.turned),
        )


NOTHING = Known()


class StreamWatcher(WatchingMode):
    """Follows what attention adds, what norms give and what linear maps give, in the thread that entered it.

    Args:
        understand: notes what a norm computes whose result is added to something; False where that is not known.
    """

    def __init__(self, understand: Callable[[NormCall], bool]) -> None:
        super().__init__()
        self._understand = understand
        self._known: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._ways: dict[Any, Callable[..., None]] = {
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
        follow = self._ways.get(func)
        if follow is None:
            result = func(*args, **kwargs)
            if args and isinstance(args[0], Tensor) and (result is args[0] or func is Tensor.__setitem__):
                self._set(args[0], NOTHING)  # changed in place
            return result
        before = self.known(args[0]) if args else NOTHING  # it may be changed in place
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            follow(before, result, args, kwargs)
        return result

    def known(self, x: Any) -> Known:
        """Return all that is known of a tensor."""
        found: Known = self._known.get(x, NOTHING) if isinstance(x, Tensor) else NOTHING
        return found

    def adds(self, x: Any, terms: Terms) -> None:
        """Note that a tensor is what attention adds."""
        if isinstance(x, Tensor):
            self._set(x, Known(terms))

    def is_normed(self, x: Tensor, made: NormCall) -> None:
        """Note that a tensor is the result of a norm."""
        self._set(x, Known(norm=replace(made, terms=self.terms_of(made.given))))

    def terms_of(self, x: Any) -> Terms:
        """Return what attention has added to a tensor, also before a norm whose result it is."""
        terms, norm, _ = self.known(x)
        if terms is not None or norm is None or not norm.terms or not self._understand(norm):
            return terms or {}
        return {name: way.times(norm.factor).through(norm.call) for name, way in norm.terms.items()}

    def _set(self, x: Tensor, known: Known) -> None:
        """Know this of a tensor, and nothing else."""
        if known != NOTHING:
            self._known[x] = known
        elif x in self._known:
            del self._known[x]

    def _same(self, before: Known, result: Tensor, args: Any, kwargs: Any) -> None:
        self._set(result, before)

    def _move(self, before: Known, result: Tensor, args: Any, kwargs: Any) -> None:
        self._set(result, before.turn() if _is_turned(args[0], result) else before)

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
            result, Known(terms and {name: way.times(times) for name, way in terms.items()}, norm, product)
        )

    def _bend(self, before: Known, result: Tensor, args: Any, kwargs: Any) -> None:
        """Note a softcap c · tanh(x / c): what is read before it is x, so that later factors multiply the earlier."""
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


def _sum(one: Way, another: Way) -> Way:
    """Return the way of a sum of two."""
    if one.norms != another.norms:
        return NO_WAY
    return one._replace(factor=one.factor + another.factor, turned=one.turned or another.turned)


def _is_turned(x: Any, result: Tensor) -> bool:
    """Return whether the first two axes of three have changed places in a view."""
    if not isinstance(x, Tensor) or x.ndim != 3 or x.is_nested:
        return False
    (a, b, c), (d, e, f) = zip(x.shape, x.stride(), strict=True), zip(result.shape, result.stride(), strict=True)
    return (a, b, c) == (e, d, f) and a != b


def _number(x: Any) -> float | None:
    """Return a number, or that of a tensor of one; None of anything else."""
    if isinstance(x, Tensor):
        return float(x) if x.numel() == 1 and x.device.type == "cpu" else None
    return float(x) if isinstance(x, int | float) and not isinstance(x, bool) else None
