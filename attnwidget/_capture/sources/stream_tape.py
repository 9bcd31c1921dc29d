"""Record the linear way from the residual stream to q, k and v, while a model runs.

Each function of torch that maps a tensor of the stream linearly becomes a step of `stream_graph`; any other function ends
the way. A tensor that is added to the stream and is not on the way becomes a source: what a writer wrote.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.weak import WeakIdKeyDictionary

from ..._analysis.why.linear_steps import Center, Matrix, Put, Times, View
from ..._analysis.why.stream_graph import Join, Lost, Node, Source, Step, Sum, Writer, in_order
from ..call.memory_limit import MemoryLimit
from ..tracing.torch_mode import WatchingMode

NO_ROOM = (
    "what was written into the residual stream was not kept, because the capture had reached its limit: raise limit=, or "
    "run a shorter text"
)
NOT_READ = "its q, k or v is not a tensor that the capture followed, so its sources are unknown"

SAME = {
    *(Tensor.contiguous, Tensor.to, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.type_as),
    *(Tensor.type, Tensor.clone, torch.clone, Tensor.detach, Tensor.cpu, Tensor.cuda, Tensor.requires_grad_),
}
VIEWS = {
    *(Tensor.view, Tensor.reshape, Tensor.flatten, Tensor.unflatten, Tensor.unsqueeze, Tensor.squeeze),
    *(Tensor.view_as, Tensor.reshape_as, torch.reshape, torch.flatten, torch.unflatten, torch.unsqueeze),
    *(torch.squeeze, Tensor.transpose, Tensor.permute, Tensor.movedim, Tensor.swapaxes, Tensor.t, torch.transpose),
    *(torch.permute, torch.movedim, torch.swapaxes, torch.t, Tensor.mT.__get__, Tensor.T.__get__, Tensor.__getitem__),
    *(Tensor.narrow, torch.narrow, Tensor.select, torch.select, Tensor.expand, Tensor.expand_as, torch.broadcast_to),
    *(torch.view_as_complex, torch.view_as_real, torch.repeat_interleave, Tensor.repeat_interleave),
}
PARTS = {
    *(Tensor.chunk, torch.chunk, Tensor.split, torch.split, Tensor.unbind, torch.unbind, torch.tensor_split),
    *(Tensor.tensor_split, Tensor.split_with_sizes, torch.functional.split),
}
ADD = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__}
ADD_IN_PLACE = {Tensor.add_, Tensor.__iadd__, Tensor.sub_, Tensor.__isub__}
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
INSIDE = {  # give no numbers of a tensor
    *(Tensor.shape.__get__, Tensor.device.__get__, Tensor.dtype.__get__, Tensor.size, Tensor.dim, Tensor.new_empty),
    *(Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_tensor, torch.zeros_like, torch.empty_like),
    *(torch.ones_like, torch.full_like, torch.arange),
}
REPLACES = {  # some positions of a tensor
    *(Tensor.masked_fill, Tensor.masked_fill_, Tensor.masked_scatter, Tensor.masked_scatter_, torch.where),
    *(Tensor.where, Tensor.index_put, Tensor.index_put_, Tensor.index_copy, Tensor.index_copy_, Tensor.scatter),
}
BEGINS = 16  # tensors on the way before the first layer, at most
ORDERS = [*itertools.permutations(range(4))]


@dataclass
class Ways:
    """The ways to q, k and v of a call; a text where one is unknown."""

    q: Node | str = NOT_READ
    k: Node | str = NOT_READ
    v: Node | str = NOT_READ
    group: int = 1  # heads that share a key head


@dataclass
class StreamFacts:
    """What a forward pass has shown about its residual stream.

    Attributes:
        ways: to q, k and v of each call, by the name of its record.
        places: the tensors that modules returned, by their names.
        layers: whether each attention is cross-attention, by the names of the records, in the order of their calls.
    """

    ways: dict[str, Ways] = field(default_factory=dict)
    places: dict[str, Node] = field(default_factory=dict)
    layers: dict[str, bool] = field(default_factory=dict)


class StreamTape(WatchingMode):
    """Records the graph of a model's residual stream, in the thread that entered it.

    Args:
        names: the names of the model's modules, by identity.
        memory: limits what is kept.
        clone: whether what is written is copied.
        device: where it is kept; None: where it is.
    """

    def __init__(
        self, names: Mapping[int, str], memory: MemoryLimit, *, clone: bool, device: torch.device | None
    ) -> None:
        super().__init__()
        self._names, self._memory, self._clone, self._device = names, memory, clone, device
        self._nodes: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._by_memory: dict[int, list[Any]] = {}
        self._modules: list[str] = []  # that run now, the innermost last
        self._facts: StreamFacts | None = None
        self._ways: Ways | None = None  # of the call that is recorded now
        self._outputs: tuple[Tensor, str] | None = None  # of the last call's heads, until a function reads it
        self._parameters: dict[int, str] = {}
        self._thread = threading.get_ident()
        self._followed: set[str] = set()  # records whose heads' outputs are sources
        self.nbytes = 0
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

    # Beginning and end.

    @contextlib.contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch a model inside the block."""
        self._parameters = {x.data_ptr(): name for name, x in [*model.named_parameters(), *model.named_buffers()]}
        with contextlib.ExitStack() as stack:
            stack.callback(torch_module.register_module_forward_pre_hook(self._module_began).remove)
            stack.callback(torch_module.register_module_forward_hook(self._module_ended, always_call=True).remove)
            stack.enter_context(self)
            yield
        self.end()

    def begin(self, facts: StreamFacts) -> None:
        """Begin a forward pass of the model."""
        if self._facts is None and threading.get_ident() == self._thread:
            self._facts, self._modules, self._followed = facts, [], set()

    def end(self) -> None:
        """End the forward pass. What a cache keeps is still known in the next one."""
        self._facts, self._outputs, self._modules = None, None, []
        self._by_memory.clear()

    def _module_began(self, module: nn.Module, args: Any) -> None:
        if self._facts is not None and threading.get_ident() == self._thread:
            self._modules.append(self._names.get(id(module), type(module).__name__))

    def _module_ended(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._facts is None or threading.get_ident() != self._thread or not self._modules:
            return
        name = self._modules.pop()
        given = output[0] if isinstance(output, tuple | list) and output else output
        if not isinstance(given, Tensor):
            return
        with torch._C.DisableTorchFunction():
            node = self._node(given)
            if isinstance(node, Lost):
                node.names.append(name)
            elif node is not None:
                self._facts.places[name] = node

    @property
    def _module(self) -> str:
        return self._modules[-1] if self._modules else ""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._facts is None or func in INSIDE:
            return func(*args, **kwargs)
        rule = self._rules.get(func)
        with torch._C.DisableTorchFunction():
            known = Known([(x, self._node(x)) for x in _tensors(args, kwargs)])  # before a change in place
            if func in ADD_IN_PLACE and known.any and not _is_on_way(known.of(args[0])):
                known.before = args[0].clone()
        result = func(*args, **kwargs)
        if rule is None and not known.any:
            return result
        if isinstance(result, Tensor | tuple | list):
            with torch.no_grad(), torch._C.DisableTorchFunction():
                found = None
                if rule is not None:
                    with contextlib.nullcontext() if __import__("os").environ.get("DBG") else contextlib.suppress(RuntimeError, TypeError, IndexError, ValueError, AttributeError):
                        found = rule(func, result, args, kwargs, known)
                self._note(func, result, found, known)
        elif func is Tensor.__setitem__ and known.any:
            with torch._C.DisableTorchFunction():
                node = self._assigned(args[0], args[1], args[2], known)
                if node is None:
                    self._nodes.pop(args[0], None)
                else:
                    self._set(args[0], node)
        return result

    def _note(self, func: Any, result: Any, found: Any, known: Known) -> None:
        results = result if isinstance(result, tuple | list) else (result,)
        nodes = found if isinstance(found, list) else [found] * len(results)
        for x, node in zip(results, nodes, strict=False):
            if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_complex()):
                continue
            if isinstance(node, Node):
                self._set(x, node)
            elif func in REPLACES and known.only_begins:
                self._nodes.pop(x, None)  # some words are replaced before the first layer: the stream begins after it
            elif known.any:
                first = known.first_lost  # where the way ended
                by = str(getattr(func, "__name__", func)) if first is None else first.by
                self._nodes[x] = Lost(x.shape, by, self._module if first is None else first.module)
            elif x in self._nodes:
                del self._nodes[x]

    def _set(self, x: Tensor, node: Node) -> None:
        self._nodes[x] = node
        if x.ndim >= 3:
            kept = self._by_memory.setdefault(x.data_ptr(), [])
            kept[:] = [*kept[-5:], (x.shape, x.stride(), node)]

    def _assigned(self, x: Tensor, index: Any, value: Any, known: Known) -> Node | None:
        """Return a tensor after an assignment to a part of it; the rest of a new tensor does not count."""
        node, before = known.of(value), known.of(x)
        if _begins(before):
            return None
        plain = all(one is None or one is Ellipsis or isinstance(one, slice | int) for one in _as_tuple(index))
        if not plain or not _is_on_way(node) or not _is_assigned(before):
            return Lost(x.shape, "an assignment to a part of a tensor", self._module)
        put = Step(x.shape, _spread(node, x[index].shape), Put(index))
        return put if before is None else Sum(x.shape, [before, put])

    def _layer(self) -> int:
        return len(self._facts.layers) if self._facts is not None else 0

    def _node(self, x: Any) -> Node | None:
        """Return what is known about a tensor."""
        if not isinstance(x, Tensor):
            return None
        found: Node | None = self._nodes.get(x)
        waits = self._outputs
        if waits is not None and not isinstance(found, Source | Step | Sum | Join):
            seen, record = waits
            if x.numel() == seen.numel() and x.data_ptr() == seen.data_ptr():
                node = self._output_as(x, seen, record)
                if node is not None:
                    self._outputs = None
                    self._nodes[x] = found = node
        return found

    # Attention.

    def reads(self, q: Tensor, k: Tensor, v: Tensor | None) -> None:
        """Note the ways to an attention call's q, k and v, until its record is known."""
        if self._facts is not None:
            with torch._C.DisableTorchFunction():
                ways = (NOT_READ if x is None else self._way_to(x) for x in (q, k, v))
                self._ways = Ways(*ways, max(1, q.shape[1] // k.shape[1]))

    def following(self, record: str, cross: bool, callback: Callable[[Any], None]) -> Callable[[Any], None]:
        """Note the record of the call whose q, k and v were noted last, and return a function that takes its output."""
        if self._facts is not None and self._ways is not None:
            self._facts.ways[record], self._ways = self._ways, None
            self._facts.layers.setdefault(record, cross)

        def take(output: Any) -> None:
            self._gives(record, output)
            callback(output)

        return take

    def _gives(self, record: str, output: Any) -> None:
        """Note the output (B, H, Q, Dv) of an attention call."""
        if self._facts is None or not isinstance(output, Tensor) or output.ndim != 4:
            return
        self._outputs = output, record

    def _way_to(self, x: Tensor) -> Node | str:
        """Return the way to a tensor of 4 axes, which may be a view of one that was followed."""
        known = self._nodes.get(x)
        if isinstance(known, Lost):
            return str(known.refusal())
        if known is not None:
            return known
        for shape, strides, node in reversed(self._by_memory.get(x.data_ptr(), [])):
            found = _as_view(node, shape, strides, x)
            if found is not None:
                return found
        return NOT_READ

    def _output_as(self, x: Tensor, seen: Tensor, record: str) -> Node | None:
        """Return the outputs of heads as a tensor that a function reads; None if that has another order."""
        for order in ORDERS:
            moved = seen.permute(order)
            with contextlib.suppress(RuntimeError):
                if _same_strides(moved.view(x.shape), x):
                    writer = Writer("head", record, self._layer() - 1, record)
                    source = self._source(seen.shape, seen, writer, heads_axis=1)
                    self._followed.add(record)
                    return _reshaped(_permuted(source, order), x.shape)
        return None

    # Sources.

    def _source(self, shape: Any, x: Tensor, writer: Writer, *, heads_axis: int | None = None) -> Source:
        """Keep what a writer wrote."""
        x = x.detach()
        name = self._parameters.get(x.data_ptr())
        if name is not None:
            return Source(shape, x, writer)
        size = x.numel() * x.element_size()
        if not self._memory.has_room(size, self._device or x.device):
            return Source(shape, None, writer, heads_axis=heads_axis, why_missing=NO_ROOM)
        self._memory.add(size)
        self.nbytes += size
        with torch.inference_mode(False):
            kept = x.clone() if self._clone and self._device is None else x if self._device is None else x.to(self._device)
        return Source(shape, kept, writer, heads_axis=heads_axis)

    def _written(self, x: Tensor, node: Node | None) -> Node:
        """Return a tensor that is added to the stream as a source, if it is not on the way."""
        if node is not None and not isinstance(node, Lost):
            return node
        name = self._parameters.get(x.data_ptr())
        if name is not None:
            kind = _kind_of(name, "parameter")
            writer = Writer(kind, name, self._layer(), names=[name])
        elif isinstance(node, Lost):
            own = node.names[-1] if node.names else node.module
            record = self._record_in(own)
            kind = "writer" if record is None else "attention"
            writer = Writer(kind, own, max(0, self._layer() - 1), record, [*node.names])
        else:
            writer = Writer("input", self._module, self._layer())
        found = self._source(x.shape, x, writer)
        if isinstance(node, Lost) and self._facts is not None:
            self._facts.places.update(dict.fromkeys(node.names, found))
        self._set(x, found)
        return found

    def _record_in(self, module: str) -> str | None:
        """Return the record of the attention that a module belongs to, if the outputs of its heads were not followed."""
        for record in reversed({} if self._facts is None else self._facts.layers):
            own = record.partition(" #")[0]
            if record not in self._followed and own and f"{module}.".startswith(f"{own}."):
                return record
        return None

    def _bias(self, x: Tensor) -> Source:
        return Source(x.shape, x.detach(), Writer("bias", self._parameters.get(x.data_ptr(), self._module), self._layer()))

    # Rules: each takes the function, its result, its arguments, and what is known about its tensors.

    def _same(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        node = known.of(args[0])
        return node if _is_on_way(node) and tuple(result.shape) == node.shape else None

    def _drop(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
        return known.of(args[0]) if _is_on_way(known.of(args[0])) and (not training or not p) else None

    def _view(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        node = known.of(args[0])
        return Step(result.shape, node, View(func, args[1:], kwargs)) if _is_on_way(node) else None

    def _parts(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        node = known.of(args[0])
        if not _is_on_way(node):
            return None
        return [Step(x.shape, node, View(func, args[1:], kwargs, i)) for i, x in enumerate(result)]

    def _add(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        other = args[1] if len(args) > 1 else kwargs.get("other")
        return self._sum(result, args[0], other, known) if kwargs.get("alpha", 1) == 1 and len(args) < 3 else None

    def _subtract(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        other = args[1] if len(args) > 1 else kwargs.get("other")
        return self._sum(result, args[0], other, known, sign=-1.0) if kwargs.get("alpha", 1) == 1 else None

    def _rsub(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        other = args[1] if len(args) > 1 else kwargs.get("other")
        return self._sum(result, other, args[0], known, sign=-1.0) if kwargs.get("alpha", 1) == 1 else None

    def _sum(self, result: Tensor, one: Any, other: Any, known: Known, sign: float = 1.0) -> Node | None:
        nodes = known.of(one), known.of(other)
        begins = result.ndim in (2, 3) and any(
            isinstance(x, Tensor) and x.ndim > 1 and x.data_ptr() in self._parameters for x in (one, other)
        )  # a learned table of positions is added to the input
        is_bias = result.ndim > 3 and not all(
            _is_on_way(node) or (isinstance(x, Tensor) and x.data_ptr() in self._parameters)
            for x, node in zip((one, other), nodes, strict=True)
        )
        if is_bias or not (begins or any(map(_is_on_way, nodes))):
            return None
        parts: list[Node] = []
        for x, node in zip((one, other), nodes, strict=True):
            if not isinstance(x, Tensor):
                x = torch.full((1,), float(x), dtype=result.dtype, device=result.device)
            given = known.before if x is result and known.before is not None else x
            parts.append(_spread(self._written(given, node), result.shape))
        if sign != 1:
            parts[1] = Step(result.shape, parts[1], Times(sign))
        return Sum(result.shape, parts)

    def _multiply(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        other = args[1] if len(args) > 1 else kwargs.get("other")
        if not _is_on_way(known.of(args[0])):
            return self._times(result, other, args[0], known)
        return self._times(result, args[0], other, known)

    def _divide(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        other = args[1] if len(args) > 1 else kwargs.get("other")
        return None if kwargs.get("rounding_mode") else self._times(result, args[0], other, known, divides=True)

    def _times(self, result: Tensor, x: Any, other: Any, known: Known, *, divides: bool = False) -> Node | None:
        node, factor = known.of(x), known.of(other)
        if not _is_on_way(node) or _is_on_way(factor):
            return None
        if not isinstance(other, Tensor):
            return Step(result.shape, node, Times(float(other), divides=divides))
        is_scale = other.ndim == 0 or other.shape[-1] == 1 < result.shape[-1]
        if factor is not None and not is_scale:
            return None  # a gate
        return Step(result.shape, _spread(node, result.shape), Times(other, divides=divides, is_norm=factor is not None))

    def _negate(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        node = known.of(args[0])
        return Step(result.shape, node, Times(-1.0)) if _is_on_way(node) else None

    def _joined(self, shape: Any, given: Any, known: Known, axis: int, shape_of: Any = None) -> Node | None:
        given = [x for x in given if x.numel()]
        nodes = [known.of(x) for x in given]
        if not any(map(_is_on_way, nodes)):
            return None
        parts = [node if node is not None else self._written(x, node) for x, node in zip(given, nodes, strict=True)]
        if shape_of is not None:
            parts = [Step(shape_of(x), node, View(torch.unsqueeze, (axis,))) for x, node in zip(given, parts, strict=True)]
        return Join(shape, parts, axis % len(shape))

    def _join(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        axis = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
        return self._joined(result.shape, args[0] if args else kwargs["tensors"], known, axis)

    def _stack(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        axis = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % result.ndim
        given = args[0] if args else kwargs["tensors"]
        return self._joined(result.shape, given, known, axis, lambda x: x.unsqueeze(axis).shape)

    def _copy(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        """Note an assignment to a part of a tensor by way of a view of it."""
        view, value, base = args[0], args[1], args[0]._base
        node = known.of(value)
        if base is not None:
            index = _part_of(base, view)
            known.adds(base, self._nodes.get(base))
            self._set(base, Lost(base.shape, "copy_", self._module) if index is None else self._assigned(base, index, value, known) or Lost(base.shape, "copy_", self._module))
        return _spread(node, result.shape) if _is_on_way(node) else None

    def _mean(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        node, x = known.of(args[0]), args[0]
        axes = kwargs.get("dim", args[1] if len(args) > 1 else None)
        axes = axes[0] if isinstance(axes, tuple | list) and len(axes) == 1 else axes
        is_last = isinstance(axes, int) and axes % x.ndim == x.ndim - 1 and result.ndim == x.ndim
        return Step(result.shape, node, Center(only_mean=True)) if _is_on_way(node) and is_last else None

    def _begun(self, x: Tensor, known: Known) -> Node | None:
        """Return a tensor as part of the stream; one that no function on the way has made begins it."""
        node = known.of(x)
        if isinstance(node, Lost):
            return None
        return node if node is not None else self._written(x, None) if x.ndim in (2, 3) else None

    def _linear(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        x, weight, bias = (*args, kwargs.get("weight"), kwargs.get("bias"))[:3] if len(args) < 3 else args[:3]
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        return self._mapped(result, x, weight, bias, known)

    def _mapped(self, result: Tensor, x: Tensor, weight: Any, bias: Any, known: Known) -> Node | None:
        node = None if known.of(weight) is not None or weight.ndim != 2 else self._begun(x, known)
        if node is None:
            return None
        return self._plus(Step(result.shape, node, Matrix(weight)), bias)

    def _plus(self, node: Node, bias: Any) -> Node:
        return node if bias is None else Sum(node.shape, [node, self._bias(bias).spread(node.shape)])

    def _product(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        other = args[1] if len(args) > 1 else next(iter(kwargs.values()))
        is_map = _is_on_way(known.of(args[0])) and args[0].ndim > 1
        return self._mapped(result, args[0], other.mT, None, known) if is_map and other.ndim == 2 else None

    def _addmm(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        return None if kwargs else self._mapped(result, args[1], args[2].mT, args[0], known)

    def _embedding(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        name = self._parameters.get(weight.data_ptr(), self._module)
        writer = Writer(_kind_of(name, "token"), name, self._layer())
        return Source(result.shape, None, writer, lookup=(args[0].clone(), weight))

    def _layer_norm(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        x, shape, weight, bias, eps = _norm_arguments(args, kwargs, ("weight", "bias", "eps"), (None, None, 1e-5))
        node = self._begun(x, known) if len(shape) == 1 else None
        if node is None:
            return None
        wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
        scale = wide.var(-1, keepdim=True, correction=0).add_(eps).sqrt_()
        return self._plus(self._gained(Step(x.shape, node, Center()), scale, weight), bias)

    def _rms_norm(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        x, shape, weight, eps = _norm_arguments(args, kwargs, ("weight", "eps"), (None, None))
        node = self._begun(x, known) if len(shape) == 1 else None
        if node is None:
            return None
        wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
        least = torch.finfo(x.dtype).eps if eps is None else eps
        return self._gained(node, wide.square().mean(-1, keepdim=True).add_(least).sqrt_(), weight)

    def _gained(self, node: Node, scale: Tensor, weight: Tensor | None) -> Node:
        found = Step(node.shape, node, Times(scale, divides=True, is_norm=True))
        return found if weight is None else Step(node.shape, found, Times(weight))

    def _normalize(self, func: Any, result: Any, args: Any, kwargs: Any, known: Known) -> Any:
        p, axis, eps = (kwargs.get(name, args[i] if len(args) > i else usual) for i, name, usual in ((1, "p", 2.0), (2, "dim", 1), (3, "eps", 1e-12)))
        x, node = args[0], known.of(args[0])
        if not _is_on_way(node) or p != 2 or axis % x.ndim != x.ndim - 1:
            return None
        return Step(x.shape, node, Times(x.detach().norm(dim=-1, keepdim=True).clamp_min(eps), divides=True, is_norm=True))


class Known:
    """What is known about the tensors of a function's arguments, before it ran."""

    def __init__(self, nodes: list[tuple[Tensor, Node | None]]) -> None:
        self._nodes = {id(x): node for x, node in nodes}
        self.any = any(node is not None for _, node in nodes)
        self.before: Tensor | None = None  # the first tensor, if the function changes it and it is not on the way
        self.first_lost = next((node for _, node in nodes if isinstance(node, Lost)), None)

    @property
    def only_begins(self) -> bool:
        """Whether those on the way are made of embeddings and inputs alone."""
        return all(node is None or _begins(node) for node in self._nodes.values())

    def adds(self, x: Tensor, node: Node | None) -> None:
        """Add a tensor that is not an argument."""
        self._nodes[id(x)] = node

    def of(self, x: Any) -> Any:
        """Return what is known about an argument; None for nothing."""
        return self._nodes.get(id(x))


def _is_on_way(node: Any) -> bool:
    """Return whether a tensor is a linear function of sources."""
    return node is not None and not isinstance(node, Lost)


def _begins(node: Any) -> bool:
    """Return whether a tensor is made of embeddings and inputs alone."""
    if node is None or isinstance(node, Lost):
        return False
    found = in_order(node)
    return len(found) < BEGINS and not any(
        isinstance(one, Source) and one.writer.kind in ("head", "attention", "writer") for one in found
    )


def _is_assigned(node: Any) -> bool:
    """Return whether a tensor is new, or has only parts that were assigned to it."""
    if isinstance(node, Sum):
        return all(map(_is_assigned, node.parents))
    return node is None or (isinstance(node, Step) and isinstance(node.how, Put))


def _part_of(base: Tensor, view: Tensor) -> tuple[slice, ...] | None:
    """Return the index of a view with the same axes; None if it has others."""
    if base.ndim != view.ndim or base.stride() != view.stride():
        return None
    rest, found = view.storage_offset() - base.storage_offset(), [slice(None)] * base.ndim
    for axis in sorted(range(base.ndim), key=lambda axis: -base.stride(axis)):
        start, rest = divmod(rest, max(1, base.stride(axis)))
        found[axis] = slice(start, start + view.shape[axis])
    return tuple(found)


def _as_tuple(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _tensors(args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Yield the tensors among a function's arguments, also in a list."""
    for x in (*args, *kwargs.values()):
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, tuple | list):
            yield from (one for one in x if isinstance(one, Tensor))


def _norm_arguments(args: Any, kwargs: Any, names: Any, usual: Any) -> list[Any]:
    given = dict(zip(("input", "normalized_shape", *names), args, strict=False)) | kwargs
    defaults = dict(zip(names, usual, strict=True))
    return [given.get(name, defaults.get(name)) for name in ("input", "normalized_shape", *names)]


def _kind_of(name: str, otherwise: Any) -> Any:
    """Return the kind of an embedding or a parameter, by its name."""
    own = name.lower()
    if "type" in own or "segment" in own:
        return "type"
    return "position" if "pos" in own or "wpe" in own.split(".") else otherwise


def _spread(node: Node, shape: Any) -> Node:
    """Return a tensor broadcast to a shape."""
    if node.shape == tuple(shape):
        return node
    return node.spread(shape) if isinstance(node, Source) else Step(shape, node, View(Tensor.expand, (tuple(shape),)))


def _permuted(node: Node, order: Any) -> Node:
    if tuple(order) == tuple(range(len(order))):
        return node
    return Step([node.shape[axis] for axis in order], node, View(torch.permute, (tuple(order),)))


def _reshaped(node: Node, shape: Any) -> Node:
    return node if node.shape == tuple(shape) else Step(shape, node, View(torch.reshape, (tuple(shape),)))


def _as_view(node: Node, shape: Any, strides: Any, x: Tensor) -> Node | None:
    """Return a view x, of 4 axes, of a tensor that was followed; None if it is none."""
    like = torch.empty_strided(tuple(shape), tuple(strides), device="meta")
    for order in ORDERS:
        moved = x.permute(order)
        with contextlib.suppress(RuntimeError):
            if _same_strides(like.view(moved.shape), moved):
                back = [order.index(axis) for axis in range(4)]
                return _permuted(_reshaped(node, moved.shape), back)
    return None


def _same_strides(one: Tensor, other: Tensor) -> bool:
    pairs = zip(one.shape, other.shape, one.stride(), other.stride(), strict=True)
    return all(a == b and (a == 1 or c == d) for a, b, c, d in pairs)
