"""Which functions of torch are linear in a tensor of the residual stream, and the steps that they are.

Each rule takes the function, its result, its arguments, and what is known about the tensors among them. It returns the
result's place on the way; None if the function is not linear there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._analysis.why.linear_steps import Assigned, Center, Matrix, Times, View
from ..._analysis.why.stream_graph import Join, Lost, Node, StreamSource, StreamStep, Sum, Writer, in_order

PROPERTY: Any = torch._C.TensorBase  # whose properties torch's modes see as functions
SAME = {
    *(Tensor.contiguous, Tensor.to, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.type_as),
    *(Tensor.type, Tensor.clone, torch.clone, Tensor.detach, Tensor.cpu, Tensor.cuda, Tensor.requires_grad_),
}
VIEWS = {
    *(Tensor.view, Tensor.reshape, Tensor.flatten, Tensor.unflatten, Tensor.unsqueeze, Tensor.squeeze),
    *(Tensor.view_as, Tensor.reshape_as, torch.reshape, torch.flatten, torch.unflatten, torch.unsqueeze),
    *(torch.squeeze, Tensor.transpose, Tensor.permute, Tensor.movedim, Tensor.swapaxes, Tensor.t, torch.transpose),
    *(
        torch.permute,
        torch.movedim,
        torch.swapaxes,
        torch.t,
        PROPERTY.mT.__get__,
        PROPERTY.T.__get__,
        Tensor.__getitem__,
    ),
    *(Tensor.narrow, torch.narrow, Tensor.select, torch.select, Tensor.expand, Tensor.expand_as, torch.broadcast_to),
    *(torch.view_as_complex, torch.view_as_real, torch.repeat_interleave, Tensor.repeat_interleave),
}
PARTS = {
    *(Tensor.chunk, torch.chunk, Tensor.split, torch.split, Tensor.unbind, torch.unbind, torch.tensor_split),
    *(Tensor.tensor_split, Tensor.split_with_sizes, torch.functional.split),
}
ADD = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__}
SUBTRACT = {torch.sub, torch.subtract, Tensor.sub, Tensor.sub_, Tensor.__sub__, Tensor.__isub__}
MULTIPLY = {
    *(torch.mul, torch.multiply, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__),
}
DIVIDE = {torch.div, torch.true_divide, Tensor.div, Tensor.div_, Tensor.__truediv__, Tensor.__itruediv__}
NEGATE = {torch.neg, Tensor.neg, Tensor.__neg__}
JOIN = {torch.cat, torch.concat}
PRODUCT = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm}
MEAN = {torch.mean, Tensor.mean}
DROP = {F.dropout, torch.dropout}
BEGINS = 16  # tensors on the way before the first layer, at most


class LinearRules:
    """The rules, by functions of torch; a subclass keeps what is written."""

    def __init__(self) -> None:
        self._parameters: dict[int, str] = {}  # names of the model's parameters and buffers, by their memory
        self._rules: dict[Any, Callable[..., Any]] = {
            **dict.fromkeys(SAME, self._same),
            **dict.fromkeys(VIEWS, self._view),
            **dict.fromkeys(PARTS, self._parts),
            **dict.fromkeys(ADD, self._add),
            **dict.fromkeys(SUBTRACT, self._subtract),
            **dict.fromkeys(MULTIPLY, self._multiply),
            **dict.fromkeys(DIVIDE, self._divide),
            **dict.fromkeys(NEGATE, self._negate),
            **dict.fromkeys(JOIN, self._join),
            **dict.fromkeys(PRODUCT, self._product),
            **dict.fromkeys(MEAN, self._mean),
            **dict.fromkeys(DROP, self._drop),
            torch.stack: self._stack,
            Tensor.copy_: self._copy,
            torch.rsub: self._rsub,
            Tensor.__rsub__: self._rsub,
            torch.addmm: self._addmm,
            F.linear: self._linear,
            F.embedding: self._embedding,
            F.layer_norm: self._layer_norm,
            F.rms_norm: self._rms_norm,
            F.normalize: self._normalize,
        }

    @property
    def _module(self) -> str:
        """The name of the module that runs."""
        raise NotImplementedError

    def _layer(self) -> int:
        """Return how many attentions have run."""
        raise NotImplementedError

    def _node(self, x: Any) -> Node | None:
        """Return what is known about a tensor."""
        raise NotImplementedError

    def _set(self, x: Tensor, node: Node) -> None:
        """Note what a tensor is."""
        raise NotImplementedError

    def _written(self, x: Tensor, node: Node | None) -> Node:
        """Return a tensor that is added to the stream as a source, if it is not on the way."""
        raise NotImplementedError

    def _bias(self, x: Tensor) -> StreamSource:
        writer = Writer("bias", self._parameters.get(x.data_ptr(), self._module), self._layer())
        return StreamSource(x.shape, x.detach(), writer)

    def _assigned(self, x: Tensor, index: Any, value: Any, known: KnownTensors) -> Node | None:
        """Return a tensor after an assignment to a part of it; the rest of a new tensor does not count."""
        node, before = known.of(value), known.of(x)
        if begins(before) and not _is_assigned(before):
            return None
        plain = all(one is None or one is Ellipsis or isinstance(one, slice | int) for one in _as_tuple(index))
        if not plain or not is_on_way(node) or not _is_assigned(before):
            return Lost(x.shape, "an assignment to a part of a tensor", self._module)
        put = StreamStep(x.shape, spread(node, x[index].shape), Assigned(index))
        return put if before is None else Sum(x.shape, [before, put])

    def _same(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        node = known.of(args[0])
        return node if node is not None and tuple(result.shape) == node.shape else None

    def _drop(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
        return known.of(args[0]) if not training or not p else None

    def _view(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        node = known.of(args[0])
        return StreamStep(result.shape, node, View(func, args[1:], kwargs)) if is_on_way(node) else None

    def _parts(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        node = known.of(args[0])
        if not is_on_way(node):
            return None
        return [StreamStep(x.shape, node, View(func, args[1:], kwargs, i)) for i, x in enumerate(result)]

    def _add(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        other = args[1] if len(args) > 1 else kwargs.get("other")
        return self._sum(result, args[0], other, known) if kwargs.get("alpha", 1) == 1 and len(args) < 3 else None

    def _subtract(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        other = args[1] if len(args) > 1 else kwargs.get("other")
        return self._sum(result, args[0], other, known, sign=-1.0) if kwargs.get("alpha", 1) == 1 else None

    def _rsub(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        other = args[1] if len(args) > 1 else kwargs.get("other")
        return self._sum(result, other, args[0], known, sign=-1.0) if kwargs.get("alpha", 1) == 1 else None

    def _sum(self, result: Tensor, one: Any, other: Any, known: KnownTensors, sign: float = 1.0) -> Node | None:
        nodes = known.of(one), known.of(other)
        begins = result.ndim in (2, 3) and any(
            isinstance(x, Tensor) and x.ndim > 1 and x.data_ptr() in self._parameters for x in (one, other)
        )  # a learned table of positions is added to the input
        is_bias = result.ndim > 3 and not all(
            is_on_way(node) or (isinstance(x, Tensor) and x.data_ptr() in self._parameters)
            for x, node in zip((one, other), nodes, strict=True)
        )
        if is_bias or not (begins or any(map(is_on_way, nodes))):
            return None
        parts: list[Node] = []
        for x, node in zip((one, other), nodes, strict=True):
            if not isinstance(x, Tensor):
                x = torch.full((1,), float(x), dtype=result.dtype, device=result.device)
            given = known.before if x is result and known.before is not None else x
            parts.append(spread(self._written(given, node), result.shape))
        if sign != 1:
            parts[1] = StreamStep(result.shape, parts[1], Times(sign))
        return Sum(result.shape, parts)

    def _multiply(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        other = args[1] if len(args) > 1 else kwargs.get("other")
        if not is_on_way(known.of(args[0])):
            return self._times(result, other, args[0], known)
        return self._times(result, args[0], other, known)

    def _divide(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        other = args[1] if len(args) > 1 else kwargs.get("other")
        return None if kwargs.get("rounding_mode") else self._times(result, args[0], other, known, divides=True)

    def _times(self, result: Tensor, x: Any, other: Any, known: KnownTensors, *, divides: bool = False) -> Node | None:
        node, factor = known.of(x), known.of(other)
        if not is_on_way(node) or is_on_way(factor):
            return None
        if not isinstance(other, Tensor):
            return StreamStep(result.shape, node, Times(float(other), divides=divides))
        is_scale = other.ndim == 0 or other.shape[-1] == 1 < result.shape[-1]
        if factor is not None and not is_scale:
            return None  # a gate
        return StreamStep(
            result.shape, spread(node, result.shape), Times(other, divides=divides, is_norm=factor is not None)
        )

    def _negate(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        node = known.of(args[0])
        return StreamStep(result.shape, node, Times(-1.0)) if is_on_way(node) else None

    def _joined(self, shape: Any, given: Any, known: KnownTensors, axis: int, shape_of: Any = None) -> Node | None:
        given = [x for x in given if x.numel()]
        nodes = [known.of(x) for x in given]
        if not any(map(is_on_way, nodes)):
            return None
        parts = [node if node is not None else self._written(x, node) for x, node in zip(given, nodes, strict=True)]
        if shape_of is not None:
            parts = [
                StreamStep(shape_of(x), node, View(torch.unsqueeze, (axis,)))
                for x, node in zip(given, parts, strict=True)
            ]
        return Join(shape, parts, axis % len(shape))

    def _join(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        axis = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
        return self._joined(result.shape, args[0] if args else kwargs["tensors"], known, axis)

    def _stack(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        axis = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % result.ndim
        given = args[0] if args else kwargs["tensors"]
        return self._joined(result.shape, given, known, axis, lambda x: x.unsqueeze(axis).shape)

    def _copy(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        """Note an assignment to a part of a tensor by way of a view of it."""
        view, value, base = args[0], args[1], args[0]._base
        node = known.of(value)
        if base is not None:
            index = _part_of(base, view)
            known.adds(base, self._node(base))
            found = None if index is None else self._assigned(base, index, value, known)
            self._set(base, found or Lost(base.shape, "copy_", self._module))
        return spread(node, result.shape) if is_on_way(node) else None

    def _mean(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        node, x = known.of(args[0]), args[0]
        axes = kwargs.get("dim", args[1] if len(args) > 1 else None)
        axes = axes[0] if isinstance(axes, tuple | list) and len(axes) == 1 else axes
        is_last = isinstance(axes, int) and axes % x.ndim == x.ndim - 1 and result.ndim == x.ndim
        return StreamStep(result.shape, node, Center(only_mean=True)) if is_on_way(node) and is_last else None

    def _begun(self, x: Tensor, known: KnownTensors) -> Node | None:
        """Return a tensor as part of the stream; one that no function on the way has made begins it."""
        node = known.of(x)
        if isinstance(node, Lost):
            return None
        return node if node is not None else self._written(x, None) if x.ndim in (2, 3) else None

    def _linear(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        x, weight, bias = (*args, kwargs.get("weight"), kwargs.get("bias"))[:3] if len(args) < 3 else args[:3]
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        return self._mapped(result, x, weight, bias, known)

    def _mapped(self, result: Tensor, x: Tensor, weight: Any, bias: Any, known: KnownTensors) -> Node | None:
        node = None if known.of(weight) is not None or weight.ndim != 2 else self._begun(x, known)
        if node is None:
            return None
        return self._plus(StreamStep(result.shape, node, Matrix(weight)), bias)

    def _plus(self, node: Node, bias: Any) -> Node:
        return node if bias is None else Sum(node.shape, [node, self._bias(bias).spread(node.shape)])

    def _product(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        other = args[1] if len(args) > 1 else next(iter(kwargs.values()))
        is_map = is_on_way(known.of(args[0])) and args[0].ndim > 1
        return self._mapped(result, args[0], other.mT, None, known) if is_map and other.ndim == 2 else None

    def _addmm(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        return None if kwargs else self._mapped(result, args[1], args[2].mT, args[0], known)

    def _embedding(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        name = self._parameters.get(weight.data_ptr(), self._module)
        writer = Writer(kind_of(name, "token"), name, self._layer())
        return StreamSource(result.shape, None, writer, lookup=(args[0].clone(), weight))

    def _layer_norm(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        x, shape, weight, bias, eps = _norm_arguments(args, kwargs, ("weight", "bias", "eps"), (None, None, 1e-5))
        node = self._begun(x, known) if len(shape) == 1 else None
        if node is None:
            return None
        _, _, inverse = torch.native_layer_norm(x.detach(), list(shape), None, None, eps)  # faster than a variance
        held = Times(inverse, is_norm=True)
        return self._plus(self._gained(StreamStep(x.shape, node, Center()), held, weight), bias)

    def _rms_norm(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        x, shape, weight, eps = _norm_arguments(args, kwargs, ("weight", "eps"), (None, None))
        node = self._begun(x, known) if len(shape) == 1 else None
        if node is None:
            return None
        wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
        least = torch.finfo(x.dtype).eps if eps is None else eps
        scale = wide.square().mean(-1, keepdim=True).add_(least).sqrt_()
        return self._gained(node, Times(scale, divides=True, is_norm=True), weight)

    def _gained(self, node: Node, held: Times, weight: Tensor | None) -> Node:
        found = StreamStep(node.shape, node, held)
        return found if weight is None else StreamStep(node.shape, found, Times(weight))

    def _normalize(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        p, axis, eps = (
            kwargs.get(name, args[i] if len(args) > i else usual)
            for i, name, usual in ((1, "p", 2.0), (2, "dim", 1), (3, "eps", 1e-12))
        )
        x, node = args[0], known.of(args[0])
        if not is_on_way(node) or p != 2 or axis % x.ndim != x.ndim - 1:
            return None
        return StreamStep(
            x.shape, node, Times(x.detach().norm(dim=-1, keepdim=True).clamp_min(eps), divides=True, is_norm=True)
        )


class KnownTensors:
    """What is known about the tensors of a function's arguments, before it ran."""

    def __init__(self, nodes: list[tuple[Tensor, Node | None]]) -> None:
        self._nodes = {id(x): node for x, node in nodes}
        self.any = any(node is not None for _, node in nodes)
        self.before: Tensor | None = None  # the first tensor, if the function changes it and it is not on the way
        self.first_lost = next((node for _, node in nodes if isinstance(node, Lost)), None)

    @property
    def only_begins(self) -> bool:
        """Whether those on the way are made of embeddings and inputs alone."""
        return all(node is None or begins(node) for node in self._nodes.values())

    def adds(self, x: Tensor, node: Node | None) -> None:
        """Add a tensor that is not an argument."""
        self._nodes[id(x)] = node

    def of(self, x: Any) -> Any:
        """Return what is known about an argument; None for nothing."""
        return self._nodes.get(id(x))


def is_on_way(node: Any) -> bool:
    """Return whether a tensor is a linear function of sources."""
    return node is not None and not isinstance(node, Lost)


def begins(node: Any) -> bool:
    """Return whether a tensor is made of embeddings and inputs alone."""
    if node is None or isinstance(node, Lost):
        return False
    found = in_order(node)
    return len(found) < BEGINS and not any(
        isinstance(one, StreamSource) and one.writer.kind in ("head", "attention", "writer") for one in found
    )


def _is_assigned(node: Any) -> bool:
    """Return whether a tensor is new, or has only parts that were assigned to it."""
    if isinstance(node, Sum):
        return all(map(_is_assigned, node.parents))
    return node is None or (isinstance(node, StreamStep) and isinstance(node.how, Assigned))


def _part_of(base: Tensor, view: Tensor) -> tuple[slice, ...] | None:
    """Return the index of a view with the same axes; None if it has others."""
    if base.ndim != view.ndim or base.stride() != view.stride():
        return None
    rest, found = int(view.storage_offset()) - int(base.storage_offset()), [slice(None)] * base.ndim
    strides = [int(one) for one in base.stride()]
    for axis in sorted(range(base.ndim), key=lambda axis: -strides[axis]):
        start, rest = divmod(rest, max(1, strides[axis]))
        found[axis] = slice(start, start + view.shape[axis])
    return tuple(found)


def _as_tuple(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _norm_arguments(args: Any, kwargs: Any, names: Any, usual: Any) -> list[Any]:
    given = dict(zip(("input", "normalized_shape", *names), args, strict=False)) | kwargs
    defaults = dict(zip(names, usual, strict=True))
    return [given.get(name, defaults.get(name)) for name in ("input", "normalized_shape", *names)]


def kind_of(name: str, otherwise: Any) -> Any:
    """Return the kind of an embedding or a parameter, by its name."""
    own = name.lower()
    if "type" in own or "segment" in own:
        return "type"
    return "position" if "pos" in own or "wpe" in own.split(".") else otherwise


def spread(node: Node, shape: Any) -> Node:
    """Return a tensor broadcast to a shape."""
    if node.shape == tuple(shape):
        return node
    return (
        node.spread(shape)
        if isinstance(node, StreamSource)
        else StreamStep(shape, node, View(Tensor.expand, (tuple(shape),)))
    )
