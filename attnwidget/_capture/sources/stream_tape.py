"""Record the linear way from the residual stream to q, k and v, while a model runs.

Each function of torch that maps a tensor of the stream linearly becomes a step of `stream_graph`; any other function
ends the way. A tensor that is added to the stream and is not on the way becomes a source: what a writer wrote.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.weak import WeakIdKeyDictionary

from ..._analysis.why.linear_steps import View
from ..._analysis.why.stream_graph import Join, Lost, Node, StreamSource, StreamStep, Sum, Writer, WriterKind
from ..call.memory_limit import MemoryLimit
from ..tracing.torch_mode import WatchingMode
from .linear_rules import PROPERTY, KnownTensors, LinearRules, is_on_way, kind_of

NO_ROOM = (
    "what was written into the residual stream was not kept, because the capture had reached its limit: raise limit=, "
    "or run a shorter text"
)
NOT_READ = "its q, k or v is not a tensor that the capture followed, so its sources are unknown"

ADD_IN_PLACE = {Tensor.add_, Tensor.__iadd__, Tensor.sub_, Tensor.__isub__}
INSIDE = {  # give no numbers of a tensor
    *(
        PROPERTY.shape.__get__,
        PROPERTY.device.__get__,
        PROPERTY.dtype.__get__,
        Tensor.size,
        Tensor.dim,
        Tensor.new_empty,
    ),
    *(Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_tensor, torch.zeros_like, torch.empty_like),
    *(torch.ones_like, torch.full_like, torch.arange),
}
REPLACES = {  # some positions of a tensor
    *(Tensor.masked_fill, Tensor.masked_fill_, Tensor.masked_scatter, Tensor.masked_scatter_, torch.where),
    *(Tensor.where, Tensor.index_put, Tensor.index_put_, Tensor.index_copy, Tensor.index_copy_, Tensor.scatter),
}
WRONG = (RuntimeError, TypeError, IndexError, ValueError, AttributeError, KeyError)  # of arguments that no rule knows
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
        nbytes: the bytes of what was kept.
        dtypes: of the tensors that were followed.
    """

    ways: dict[str, Ways] = field(default_factory=dict)
    places: dict[str, Node] = field(default_factory=dict)
    layers: dict[str, bool] = field(default_factory=dict)
    nbytes: int = 0
    dtypes: set[torch.dtype] = field(default_factory=set)


class StreamTape(WatchingMode, LinearRules):
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
        WatchingMode.__init__(self)
        LinearRules.__init__(self)
        self._names, self._memory, self._clone, self._device = names, memory, clone, device
        self._nodes: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._by_memory: dict[int, list[Any]] = {}
        self._modules: list[str] = []  # that run now, the innermost last
        self._facts: StreamFacts | None = None
        self._ways: Ways | None = None  # of the call that is recorded now
        self._outputs: tuple[Tensor, str] | None = None  # of the last call's heads, until a function reads it
        self._thread = threading.get_ident()
        self._followed: set[str] = set()  # records whose heads' outputs are sources

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
        if not isinstance(given, Tensor) or isinstance(module, nn.Dropout | nn.Identity):
            return
        with contextlib.suppress(*WRONG), torch._C.DisableTorchFunction():
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
        known = self._before(func, args, kwargs)
        result = func(*args, **kwargs)
        if known is not None:
            with contextlib.suppress(*WRONG), torch.no_grad(), torch._C.DisableTorchFunction():
                self._after(func, result, args, kwargs, known)
        return result

    def _before(self, func: Any, args: Any, kwargs: Any) -> KnownTensors | None:
        """Return what is known about a function's tensors before it may change one; None if it need not be followed."""
        with contextlib.suppress(*WRONG), torch.no_grad(), torch._C.DisableTorchFunction():
            known = KnownTensors([(x, self._node(x)) for x in _tensors(args, kwargs)])
            if not known.any and func not in self._rules:
                return None
            if func in ADD_IN_PLACE and known.any and not is_on_way(known.of(args[0])):
                known.before = args[0].clone()
            return known
        return None  # a tensor without memory, as under a transform of functions

    def _after(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> None:
        """Note what the result of a function is."""
        if isinstance(result, Tensor | tuple | list):
            rule, found = self._rules.get(func), None
            if rule is not None:
                with contextlib.suppress(*WRONG):
                    found = rule(func, result, args, kwargs, known)
            self._note(func, result, found, known)
        elif func is Tensor.__setitem__ and known.any:
            node = self._assigned(args[0], args[1], args[2], known)
            if node is None:
                self._nodes.pop(args[0], None)
            else:
                self._set(args[0], node)

    def _note(self, func: Any, result: Any, found: Any, known: KnownTensors) -> None:
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
        if self._facts is not None:
            self._facts.dtypes.add(x.dtype)
        if x.ndim >= 3:
            kept = self._by_memory.setdefault(x.data_ptr(), [])
            kept[:] = [*kept[-5:], (x.shape, x.stride(), node)]

    def _layer(self) -> int:
        return len(self._facts.layers) if self._facts is not None else 0

    def _node(self, x: Any) -> Node | None:
        """Return what is known about a tensor."""
        if not isinstance(x, Tensor):
            return None
        found: Node | None = self._nodes.get(x)
        waits = self._outputs
        if waits is not None and not isinstance(found, StreamSource | StreamStep | Sum | Join):
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
        self._ways = None
        if self._facts is not None:
            with contextlib.suppress(*WRONG), torch._C.DisableTorchFunction():
                ways = [NOT_READ if x is None else self._way_to(x) for x in (q, k, v)]
                self._ways = Ways(ways[0], ways[1], ways[2], max(1, q.shape[1] // k.shape[1]))

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

    def _source(self, shape: Any, x: Tensor, writer: Writer, *, heads_axis: int | None = None) -> StreamSource:
        """Keep what a writer wrote."""
        x = x.detach()
        name = self._parameters.get(x.data_ptr())
        if name is not None:
            return StreamSource(shape, x, writer)
        size = x.numel() * x.element_size()
        if not self._memory.has_room(size, self._device or x.device):
            return StreamSource(shape, None, writer, heads_axis=heads_axis, why_missing=NO_ROOM)
        self._memory.add(size)
        if self._facts is not None:
            self._facts.nbytes += size
        with torch.inference_mode(False):
            kept = x if self._device is None else x.to(self._device)
            kept = kept.clone() if self._clone and kept is x else kept
        return StreamSource(shape, kept, writer, heads_axis=heads_axis)

    def _written(self, x: Tensor, node: Node | None) -> Node:
        """Return a tensor that is added to the stream as a source, if it is not on the way."""
        if node is not None and not isinstance(node, Lost):
            return node
        name = self._parameters.get(x.data_ptr())
        if name is not None:
            writer = Writer(kind_of(name, "parameter"), name, self._layer(), names=[name])
        elif isinstance(node, Lost):
            own = node.names[-1] if node.names else node.module
            record = self._record_in(own)
            kind: WriterKind = "writer" if record is None else "attention"
            writer = Writer(kind, own, max(0, self._layer() - 1), record, [*node.names])
        else:
            writer = Writer("input", self._module, self._layer())
        found = self._source(x.shape, x, writer)
        if isinstance(node, Lost) and self._facts is not None:
            self._facts.places.update(dict.fromkeys(node.names, found))
        self._set(x, found)
        return found

    def _record_in(self, module: str) -> str | None:
        """Return the record of a module's attention, if the outputs of its heads were not followed."""
        for record in reversed({} if self._facts is None else self._facts.layers):
            own = record.partition(" #")[0]
            if record not in self._followed and own and f"{module}.".startswith(f"{own}."):
                return record
        return None


def _tensors(args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Yield the tensors among a function's arguments, also in a list."""
    for x in (*args, *kwargs.values()):
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, tuple | list):
            yield from (one for one in x if isinstance(one, Tensor))


def _permuted(node: Node, order: Any) -> Node:
    if tuple(order) == tuple(range(len(order))):
        return node
    return StreamStep([node.shape[axis] for axis in order], node, View(torch.permute, (tuple(order),)))


def _reshaped(node: Node, shape: Any) -> Node:
    return node if node.shape == tuple(shape) else StreamStep(shape, node, View(torch.reshape, (tuple(shape),)))


def _as_view(node: Node, shape: Any, strides: Any, x: Tensor) -> Node | None:
    """Return a view x, of 4 axes, of a tensor that was followed; None if it is another tensor."""
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
