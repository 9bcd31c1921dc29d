"""Which functions of torch are linear in a tensor of the residual stream, and the steps that they are.

Each rule takes the function, its result, its arguments, and what is known about the tensors among them. It returns the
result's place on the way; None if the function is not linear there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._analysis.why.linear_steps import Center, Matrix, Times, View
from ..._analysis.why.stream_graph import Join, Lost, Node, StreamSource, StreamStep, Sum, Writer
from .origins import MadeOf, kind_of, memory_of

PROPERTY: Any = torch._C.TensorBase  # whose properties torch's modes see as functions
SAME = {
    *(Tensor.contiguous, Tensor.to, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.type_as),
    *(Tensor.type, Tensor.clone, torch.clone, Tensor.detach, Tensor.cpu, Tensor.cuda, Tensor.requires_grad_),
    *(torch.detach, PROPERTY.data.__get__),
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
JOIN = {torch.cat, torch.concat, torch.concatenate}
PRODUCT = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm}
MEAN = {torch.mean, Tensor.mean}
DROP = {F.dropout, torch.dropout}
NORMS = {F.layer_norm, F.rms_norm, F.normalize}
MATRICES = {F.linear, torch.addmm, *PRODUCT}
SCALES = {*SAME, *VIEWS, *PARTS, *ADD, *SUBTRACT, *MULTIPLY, *DIVIDE, *NEGATE, *DROP, *NORMS}


class LinearRules:
    """The rules, by functions of torch; a subclass keeps what is written."""

    def __init__(self) -> None:
        self._parameters: dict[int, str] = {}  # names of the model's parameters and buffers, by their memory
        self._has_left = ""  # the function by which numbers that depend on an attention have left torch
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
            **dict.fromkeys((torch.lerp, Tensor.lerp, Tensor.lerp_), self._mixture),
            **dict.fromkeys((torch.addcmul, Tensor.addcmul, Tensor.addcmul_), self._plus_product),
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

    @property
    def _in_attention(self) -> bool:
        """Whether a module that is named an attention runs."""
        raise NotImplementedError

    def _step(self, shape: Any, parent: Node, how: Any) -> StreamStep:
        return StreamStep(shape, parent, how, self._module)

    def _writer(self, kind: Any, module: str, **how: Any) -> Writer:
        """Return a writer, and note it for the names of parts."""
        raise NotImplementedError

    def _origin(self, x: Any) -> MadeOf | None:
        """Return what a tensor is made of that does not depend on the stream; None if that is not known."""
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
        name = self._parameters.get(memory_of(x))
        return StreamSource(x.shape, x.detach(), self._writer("bias", self._module if name is None else name))

    def _same(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        node = known.of(args[0])
        return node if node is not None and tuple(result.shape) == node.shape else None

    def _drop(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
        return known.of(args[0]) if not training or not p else None

    def _view(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        node = known.of(args[0])
        return self._step(result.shape, node, View(func, args[1:], kwargs)) if is_on_way(node) else None

    def _parts(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        node = known.of(args[0])
        if not is_on_way(node):
            return None
        return [self._step(x.shape, node, View(func, args[1:], kwargs, i)) for i, x in enumerate(result)]

    def _add(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        other = args[1] if len(args) > 1 else kwargs.get("other")
        return self._sum(result, args[0], other, known, kwargs.get("alpha", 1)) if len(args) < 3 else None

    def _subtract(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        other = args[1] if len(args) > 1 else kwargs.get("other")
        return self._sum(result, args[0], other, known, -kwargs.get("alpha", 1))

    def _rsub(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        other = args[1] if len(args) > 1 else kwargs.get("other")
        return self._sum(result, other, args[0], known, -1) if kwargs.get("alpha", 1) == 1 else None

    def _mixture(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        """Note x + w · (y − x)."""
        x, y, weight = (*args, kwargs.get("weight"))[:3]
        if not any(is_on_way(known.of(one)) for one in (x, y)) or known.of(weight) is not None:
            return None
        if isinstance(weight, Tensor) and self._origin(weight) is None:
            return None
        return self._weighted(result, ((x, 1 - weight), (y, weight)), known)

    def _plus_product(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        """Note x + value · y · factor."""
        x, y, factor = args[:3]
        if known.of(y) is None and known.of(factor) is not None:
            y, factor = factor, y
        if not is_on_way(known.of(x)) or known.of(factor) is not None or self._origin(factor) is None:
            return None
        return self._weighted(result, ((x, 1.0), (y, factor * kwargs.get("value", 1))), known)

    def _weighted(self, result: Tensor, terms: Any, known: KnownTensors) -> Node:
        parts = []
        for x, factor in terms:
            given = known.before if x is result and known.before is not None else x
            node = spread(self._written(given, known.of(x)), result.shape)
            is_one = not isinstance(factor, Tensor) and factor == 1
            parts.append(node if is_one else self._step(result.shape, node, Times(factor)))
        return Sum(result.shape, parts)

    def _sum(self, result: Tensor, one: Any, other: Any, known: KnownTensors, sign: float = 1.0) -> Node | None:
        nodes = known.of(one), known.of(other)
        begins = (
            result.ndim in (2, 3)
            and not known.lost
            and any(isinstance(x, Tensor) and x.ndim > 1 and memory_of(x) in self._parameters for x in (one, other))
        )  # a learned table of positions is added to the input
        is_bias = result.ndim > 3 and not all(
            is_on_way(node) or (isinstance(x, Tensor) and memory_of(x) in self._parameters)
            for x, node in zip((one, other), nodes, strict=True)
        )
        if is_bias or not (begins or any(map(is_on_way, nodes))):
            return None
        parts: list[Node] = []
        for x, node in zip((one, other), nodes, strict=True):
            if not isinstance(x, Tensor):
                if x == 0:
                    continue
                if self._has_left:
                    return None  # the number may depend on the stream
                x, node = self._constant(x, result)
            given = known.before if x is result and known.before is not None else x
            parts.append(spread(self._written(given, node), result.shape))
        if sign != 1 and len(parts) == 2:
            parts[1] = self._step(result.shape, parts[1], Times(sign))
        elif sign != 1 and not isinstance(one, Tensor):
            parts[0] = self._step(result.shape, parts[0], Times(sign))
        return Sum(result.shape, parts)

    def _constant(self, number: Any, like: Tensor) -> tuple[Tensor, Node]:
        """Return a number of Python that is added, as a tensor and as a source."""
        x = torch.full((1,), float(number), dtype=like.dtype, device=like.device)
        return x, StreamSource(x.shape, x, self._writer("parameter", f"{self._module}.constant".lstrip(".")))

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
            return self._step(result.shape, node, Times(float(other), divides=divides))
        if factor is None and self._origin(other) is None:
            return None  # it may depend on the stream
        is_scale = other.ndim == 0 or other.shape[-1] == 1 < result.shape[-1]
        if factor is not None and not (is_scale and factor.trail is not None and factor.trail.is_norm):
            return None  # a gate
        how = Times(other, divides=divides, is_norm=factor is not None)
        return self._step(result.shape, spread(node, result.shape), how)

    def _negate(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        node = known.of(args[0])
        return self._step(result.shape, node, Times(-1.0)) if is_on_way(node) else None

    def _joined(self, shape: Any, given: Any, known: KnownTensors, axis: int, shape_of: Any = None) -> Node | None:
        given = [x for x in given if x.numel()]
        nodes = [known.of(x) for x in given]
        if not any(map(is_on_way, nodes)):
            return None
        joins_positions = axis % len(shape) != len(shape) - 1 and len(shape) <= 3 and not self._in_attention
        parts = [
            self._written(x, node) if node is None or (joins_positions and isinstance(node, Lost)) else node
            for x, node in zip(given, nodes, strict=True)
        ]
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

    def _mean(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        node, x = known.of(args[0]), args[0]
        axes = kwargs.get("dim", args[1] if len(args) > 1 else None)
        axes = axes[0] if isinstance(axes, tuple | list) and len(axes) == 1 else axes
        is_last = isinstance(axes, int) and axes % x.ndim == x.ndim - 1 and result.ndim == x.ndim
        return self._step(result.shape, node, Center(only_mean=True)) if is_on_way(node) and is_last else None

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
        return self._plus(self._step(result.shape, node, Matrix(weight)), bias)

    def _plus(self, node: Node, bias: Any) -> Node:
        return node if bias is None else Sum(node.shape, [node, self._bias(bias).spread(node.shape)])

    def _product(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        other = args[1] if len(args) > 1 else next(iter(kwargs.values()))
        is_map = is_on_way(known.of(args[0])) and args[0].ndim > 1
        if is_map and known.of(other) is None and self._origin(other) is None:
            return None  # it may depend on the stream
        return self._mapped(result, args[0], other.mT, None, known) if is_map and other.ndim == 2 else None

    def _addmm(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        return None if kwargs else self._mapped(result, args[1], args[2].mT, args[0], known)

    def _embedding(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        ids = args[0] if args else kwargs["input"]
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        if known.of(ids) is not None or known.of(weight) is not None:
            return None  # the stream has decided which rows
        name, origin = self._parameters.get(memory_of(weight)), self._origin(ids)
        name = self._module if name is None else name
        is_given = origin is None or origin.given  # else the model's code has chosen the rows, such as a step's
        usual = "position" if origin is not None and origin.counts else "token" if is_given else "parameter"
        kind = kind_of(name, usual)
        return StreamSource(result.shape, None, self._writer(kind, name), lookup=(ids.clone(), weight))

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
        self.is_plain = not nodes  # nothing on the way, and no rule
        self.any = any(node is not None for _, node in nodes)
        self.before: Tensor | None = None  # the first tensor, if the function changes it and it is not on the way
        self.versions: list[tuple[Tensor, int | None]] = []
        self.lost = [node for node in dict.fromkeys(node for _, node in nodes) if isinstance(node, Lost)]
        self.attended = any(node is not None and node.attended for _, node in nodes)

    @property
    def nodes(self) -> list[Node]:
        """All that are known."""
        return [node for node in self._nodes.values() if node is not None]

    @property
    def count(self) -> int:
        """How many tensors are known."""
        return len(self.nodes)

    @property
    def begins_at(self) -> Any:
        """The tensor at which the stream may begin."""
        return next((one.begins_at for one in self.lost if one.begins_at is not None), None)

    def adds(self, x: Tensor, node: Node | None) -> None:
        """Add a tensor that is not an argument."""
        self._nodes[id(x)] = node

    def of(self, x: Any) -> Any:
        """Return what is known about an argument; None for nothing."""
        return self._nodes.get(id(x))

    def beginning(self) -> KnownTensors | None:
        """Return the same with ways to the tensors that have none, as if the stream began at what they are made from.

        What is made of such a tensor as the scale of a norm stays without a way. None: the stream cannot begin there.
        """
        first = next((one for one in self.lost if one.begins_at is self.begins_at), None)
        if first is None or first.begins_at is None:
            return None
        nodes: dict[int, Node | None] = {}
        for key, node in self._nodes.items():
            if not isinstance(node, Lost) or node.begins_at is first.begins_at:
                nodes[key] = node.way if isinstance(node, Lost) else node
            elif node.trail is not None and first.trail is not None and node.shape[-1:] == (1,):
                made = tuple(name for name in node.trail.made if name not in first.trail.made)
                nodes[key] = Lost(node.shape, node.by, node.module, trail=replace(node.trail, made=made or ("?",)))
            else:
                return None
        found = KnownTensors([])
        found._nodes, found.any, found.before = nodes, True, self.before
        return found


def is_on_way(node: Any) -> bool:
    """Return whether a tensor is a linear function of sources."""
    return node is not None and not isinstance(node, Lost)


def _norm_arguments(args: Any, kwargs: Any, names: Any, usual: Any) -> list[Any]:
    given = dict(zip(("input", "normalized_shape", *names), args, strict=False)) | kwargs
    defaults = dict(zip(names, usual, strict=True))
    return [given.get(name, defaults.get(name)) for name in ("input", "normalized_shape", *names)]


def spread(node: Node, shape: Any) -> Node:
    """Return a tensor broadcast to a shape."""
    if node.shape == tuple(shape):
        return node
    return (
        node.spread(shape)
        if isinstance(node, StreamSource)
        else StreamStep(shape, node, View(Tensor.expand, (tuple(shape),)))
    )
