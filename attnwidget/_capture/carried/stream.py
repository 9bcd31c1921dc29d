"""Which way outputs of attention take to the logits: followed through additions, while a model runs.

What a layer adds to the residual stream stays in it by additions, multiplications by a number, and what changes only
the shape or the type of a tensor. Anything else, as a norm between (post-norm models), ends it: then there is no direct
path, or not one that is a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ..watching_mode import WatchingMode

# What leaves the numbers of a tensor as they are.
SAME = {
    *(Tensor.view, Tensor.reshape, Tensor.contiguous, Tensor.to, Tensor.float, Tensor.double, Tensor.half),
    *(Tensor.bfloat16, Tensor.type_as, Tensor.type, Tensor.clone, Tensor.flatten, Tensor.unflatten, Tensor.unsqueeze),
    *(Tensor.squeeze, Tensor.transpose, Tensor.permute, Tensor.movedim, Tensor.__getitem__, Tensor.detach, Tensor.cpu),
    *(Tensor.view_as, Tensor.reshape_as, Tensor.cuda, Tensor.narrow, Tensor.select, Tensor.index_select),
    *(torch.reshape, torch.flatten, torch.unflatten, torch.unsqueeze, torch.squeeze, torch.transpose, torch.permute),
    *(torch.clone, torch.movedim, torch.narrow, torch.select, torch.index_select),
}
ADD = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__}
MULTIPLY = {torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__, torch.multiply}
DIVIDE = {torch.div, Tensor.div, Tensor.div_, Tensor.__truediv__, Tensor.__itruediv__, torch.true_divide}
BEND = {torch.tanh, Tensor.tanh, Tensor.tanh_}
DROP = {F.dropout, torch.dropout}
PRODUCT = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm}

Terms = dict[str, float]  # of each attention, with which factor what it adds is in a tensor


@dataclass(frozen=True)
class LinearMap:
    """What a linear map gave.

    given: what it was given.
    weight: (out, in) its matrix.
    factor: what its result was multiplied by afterwards.
    softcap: whether it was bent by tanh afterwards.
    """

    given: Tensor
    weight: Tensor
    factor: float = 1.0
    softcap: bool = False


class Known(NamedTuple):
    """What is known of a tensor.

    terms: what attention has added to it.
    norm: the norm whose result it is, and what that was given.
    product: the linear map that it comes from.
    """

    terms: Terms | None = None
    norm: Any = None
    product: LinearMap | None = None


NOTHING = Known()


class StreamWatcher(WatchingMode):
    """Follows what attention adds, what norms give and what linear maps give, in the thread that entered it."""

    def __init__(self) -> None:
        super().__init__()
        self._known: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._ways: dict[Any, Callable[..., None]] = {
            **dict.fromkeys(SAME, self._same),
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

    def is_normed(self, x: Any, made: Any) -> None:
        """Note that a tensor is the result of a norm."""
        if isinstance(x, Tensor):
            self._set(x, Known(norm=made))

    def _set(self, x: Tensor, known: Known) -> None:
        """Know this of a tensor, and nothing else."""
        if known != NOTHING:
            self._known[x] = known
        elif x in self._known:
            del self._known[x]

    def _same(self, before: Known, result: Tensor, args: Any, kwargs: Any) -> None:
        self._set(result, before)

    def _drop(self, before: Known, result: Tensor, args: Any, kwargs: Any) -> None:
        p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
        if not training or not p:
            self._set(result, before)

    def _add(self, before: Known, result: Tensor, args: Any, kwargs: Any) -> None:
        other = args[1] if len(args) > 1 else kwargs.get("other")
        if kwargs.get("alpha", 1) != 1 or len(args) > 2:
            return self._set(result, NOTHING)
        one, another = before.terms or {}, self.known(other).terms or {}
        found = {name: one.get(name, 0.0) + another.get(name, 0.0) for name in {**one, **another}}
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
        terms, _, product = before
        if times is None:
            return self._set(result, NOTHING)
        if product is not None and not product.softcap:
            product = replace(product, factor=product.factor * times)
        return self._set(result, Known(terms and {name: x * times for name, x in terms.items()}, None, product))

    def _bend(self, before: Known, result: Tensor, args: Any, kwargs: Any) -> None:
        product = before.product
        self._set(result, Known(product=product and replace(product, factor=1.0, softcap=True)))

    def _linear(self, before: Known, result: Tensor, args: Any, kwargs: Any) -> None:
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        if args and isinstance(weight, Tensor) and weight.ndim == 2:
            self._set(result, Known(product=LinearMap(args[0], weight.detach())))

    def _product(self, before: Known, result: Tensor, args: Any, kwargs: Any) -> None:
        other = args[1] if len(args) > 1 else next(iter(kwargs.values()), None)
        if args and isinstance(other, Tensor) and other.ndim == 2:
            self._set(result, Known(product=LinearMap(args[0], other.detach().mT)))


def _number(x: Any) -> float | None:
    """Return a number, or that of a tensor of one; None of anything else."""
    if isinstance(x, Tensor):
        return float(x) if x.numel() == 1 and x.device.type == "cpu" else None
    return float(x) if isinstance(x, int | float) and not isinstance(x, bool) else None
