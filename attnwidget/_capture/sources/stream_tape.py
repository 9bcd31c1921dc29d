"""Record the linear way from the residual stream to q, k and v, while a model runs.

Each function of torch that maps a tensor of the stream linearly becomes a step of `stream_graph`; any other function
ends the way. A tensor that is added to the stream and is not on the way becomes a source: what a writer wrote.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.weak import WeakIdKeyDictionary

from ..._analysis.why.function_names import function_name
from ..._analysis.why.linear_steps import View
from ..._analysis.why.stream_graph import (
    Beginning,
    Join,
    Lost,
    Moved,
    Node,
    StreamSource,
    StreamStep,
    Sum,
    Writer,
    WriterKey,
    WriterKind,
    in_order,
    version_of,
)
from ..._utils.quietly import quietly
from ..call.memory_limit import MemoryLimit
from ..tracing.torch_mode import WatchingMode
from .linear_rules import ADD, MATRICES, MULTIPLY, PROPERTY, SCALES, KnownTensors, is_on_way, spread
from .moving_rules import MovingRules, part_of
from .origins import (
    EMPTY,
    FROM_NUMBERS,
    LEAVES,
    MadeOf,
    memory_of,
    names_by_memory,
    origin_of_result,
    plain_attributes,
    tensors_in,
)
from .trails import MATRIX, Running, Trail, is_after_matrix, joined

NO_ROOM = (
    "what was written into the residual stream was not kept, because the capture had reached its limit: raise limit=, "
    "or run a shorter text"
)
NOT_READ = "its q, k or v is not a tensor that the capture followed, so its sources are unknown"
UNSEEN = (
    "a tensor there was made in a way that torch does not show (compiled or scripted code, another library, numbers "
    "that left torch), after an attention had run: whether it depends on that attention is unknown"
)

ADD_IN_PLACE = {
    *(Tensor.add_, Tensor.__iadd__, Tensor.sub_, Tensor.__isub__, Tensor.index_add_, Tensor.scatter_add_, Tensor.lerp_),
    Tensor.addcmul_,
}
INSIDE = {  # give no numbers of a tensor
    *(
        PROPERTY.shape.__get__,
        PROPERTY.device.__get__,
        PROPERTY.dtype.__get__,
        PROPERTY._base.__get__,
        PROPERTY.grad.__get__,
        Tensor.size,
        Tensor.dim,
    ),
}
LIKE = {  # new tensors that are like one, but for its numbers
    *(Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_tensor, Tensor.new_empty, torch.zeros_like),
    *(torch.empty_like, torch.ones_like, torch.full_like, torch.rand_like, torch.randn_like),
}
ATTENDS = re.compile(r"attention|softmax|flash")  # in the names of functions that mix positions by weights
WRONG = (Exception,)  # of arguments that no rule knows; it never reaches the model
OF_TWO = " of two"  # tensors of the stream
MOST_TERMS = 4  # writers whose outputs are added before they are added to the stream
ATTENTION = re.compile(r"att(?:entio)?n", re.IGNORECASE)
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
        writers: what wrote, by its key.
        nbytes: the bytes of what was kept.
        dtypes: of the tensors that were followed.
    """

    ways: dict[str, Ways] = field(default_factory=dict)
    places: dict[str, Node] = field(default_factory=dict)
    layers: dict[str, bool] = field(default_factory=dict)
    writers: dict[WriterKey, Writer] = field(default_factory=dict)
    turns: Counter[tuple[str, str]] = field(default_factory=Counter)  # of each writer so far
    nbytes: int = 0
    dtypes: set[torch.dtype] = field(default_factory=set)


class StreamTape(WatchingMode, MovingRules):
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
        MovingRules.__init__(self)
        self._names, self._memory, self._clone, self._device = names, memory, clone, device
        self._nodes: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._by_memory: dict[int, list[Any]] = {}
        self._origins: WeakIdKeyDictionary = WeakIdKeyDictionary()  # of tensors that do not depend on the stream
        self._new_writers: list[Writer] = []  # of the function that runs now
        self._running: list[Running] = []  # modules that run now, the innermost last
        self._calls = itertools.count()
        self._facts: StreamFacts | None = None
        self._ways: Ways | None = None  # of the call that is recorded now
        self._outputs: tuple[Tensor, str] | None = None  # of the last call's heads, until a function reads it
        self._thread = threading.get_ident()
        self._followed: set[str] = set()  # records whose heads' outputs are sources

    # Beginning and end.

    @contextlib.contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch a model inside the block."""
        self._parameters = names_by_memory(model)
        with torch._C.DisableTorchFunction():
            for x in plain_attributes(model):
                self._made_of(x, MadeOf())
        with contextlib.ExitStack() as stack:
            began, ended = self._quiet(self._module_began), self._quiet(self._module_ended)
            stack.callback(model.register_forward_pre_hook(self._model_began, prepend=True, with_kwargs=True).remove)
            stack.callback(torch_module.register_module_forward_pre_hook(began).remove)
            stack.callback(torch_module.register_module_forward_hook(ended, always_call=True).remove)
            stack.enter_context(self)
            yield
        self.end()

    def begin(self, facts: StreamFacts) -> None:
        """Begin a forward pass of the model."""
        if self._facts is None and threading.get_ident() == self._thread:
            self._facts, self._running, self._followed, self._has_left = facts, [], set(), ""

    def end(self) -> None:
        """End the forward pass. What a cache keeps is still known in the next one."""
        self._facts, self._outputs, self._running = None, None, []
        self._by_memory.clear()

    def _model_began(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Note what the model is given."""
        if threading.get_ident() == self._thread and len(self._running) <= 1:
            with contextlib.suppress(*WRONG), torch._C.DisableTorchFunction():
                for x in tensors_in((args, kwargs)):
                    if x not in self._nodes:
                        self._made_of(x, MadeOf(given=True))

    def _quiet(self, note: Callable[..., None]) -> Callable[..., None]:
        """Return a hook whose errors stay out of the model: the rest of the pass is then not followed."""
        return lambda *given: quietly(lambda _: self.end(), note, *given)

    def _module_began(self, module: nn.Module, args: Any) -> None:
        if self._facts is not None and threading.get_ident() == self._thread:
            kind = type(module).__name__
            self._running.append(Running(self._names.get(id(module), kind), kind, next(self._calls)))

    def _module_ended(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._facts is None or threading.get_ident() != self._thread or not self._running:
            return
        ended = self._running.pop()
        given = output[0] if isinstance(output, tuple | list) and output else output
        if not isinstance(given, Tensor) or isinstance(module, nn.Dropout | nn.Identity):
            return
        with contextlib.suppress(*WRONG), torch._C.DisableTorchFunction():
            node = self._node(given)
            if isinstance(node, Lost):
                node.names.append(ended.name)
                node.trail = node.trail.returned_by(ended)
            elif node is not None:
                self._facts.places[ended.name] = node

    @property
    def _module(self) -> str:
        return self._running[-1].name if self._running else ""

    @property
    def _in_attention(self) -> bool:
        return any(ATTENTION.search(f"{one.kind} {one.name.rpartition('.')[2]}") for one in self._running)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._facts is None or func in INSIDE:
            return func(*args, **kwargs)
        known = quietly(None, self._before, func, args, kwargs)
        result = func(*args, **kwargs)
        if known is not None:
            quietly(lambda _: self._forget(result, args), self._note_result, func, result, args, kwargs, known)
        return result

    def _note_result(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> None:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            if known.is_plain and func is not Tensor.__setitem__:
                with contextlib.suppress(*WRONG):
                    self._forget(result)
                    self._plain(func, result, args, kwargs)
            else:
                self._after(func, result, args, kwargs, known)

    def _forget(self, *given: Any) -> None:
        """Forget what is known about tensors."""
        for x in _tensors(*given):
            self._nodes.pop(x, None)

    def _before(self, func: Any, args: Any, kwargs: Any) -> KnownTensors:
        """Return what is known about a function's tensors before it may change one."""
        known = KnownTensors([])
        with contextlib.suppress(*WRONG), torch.no_grad(), torch._C.DisableTorchFunction():
            nodes = [(x, self._node(x)) for x in _tensors(args, kwargs)]
            known = KnownTensors(nodes)
            known.is_plain = func in LIKE or not (known.any or func in self._rules)
            if func in ADD_IN_PLACE and known.any and not is_on_way(known.of(args[0])):
                known.before = args[0].clone()
            if known.any:
                known.versions = [(x, version_of(x)) for x, _ in nodes]
        return known  # nothing, of a tensor without memory, as under a transform of functions

    def _plain(self, func: Any, result: Any, args: Any, kwargs: Any) -> None:
        """Note what the results of a function are made of that reads nothing of the stream."""
        if func in EMPTY or (self._has_left and func in FROM_NUMBERS):
            return
        given = [] if func in LIKE else [self._origin(x) for x in _tensors(args, kwargs)]
        if any(one is None for one in given):
            return
        found = origin_of_result(func, [one for one in given if one is not None])
        for x in result if isinstance(result, tuple | list) else (result,):
            if isinstance(x, Tensor) and x not in self._nodes:
                self._made_of(x, found)

    def _made_of(self, x: Tensor, origin: MadeOf) -> None:
        self._origins[x] = origin, version_of(x)

    def _origin(self, x: Any) -> MadeOf | None:
        name = self._parameters.get(memory_of(x))
        if name is not None:
            return MadeOf((name,))
        found, version = self._origins.get(x, (None, None))
        if self._facts is not None and not self._facts.layers:  # nothing could depend on an attention before the first
            found = found or MadeOf(given=True)
            self._made_of(x, found)
        elif version != version_of(x):
            return None  # something was written into it since
        result: MadeOf | None = found
        return result

    def _after(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> None:
        """Note what the result of a function is."""
        found = None
        if func is Tensor.__setitem__:
            with contextlib.suppress(*WRONG):
                self._assigns(args[0], args[1], args[2], known)
            return
        if isinstance(result, Tensor | tuple | list):
            rule = self._rules.get(func)
            if rule is not None:
                found = self._asked(rule, func, result, args, kwargs, known)
            with contextlib.suppress(*WRONG):
                self._note(func, result, found, args, kwargs, known)
        if func == PROPERTY.data.__set__ and known.any:
            self._nodes[args[0]] = self._lost(func, args[0], known)
        if known.attended and func in LEAVES:
            self._has_left = self._has_left or function_name(func)
        with contextlib.suppress(*WRONG):
            self._note_changes(func, result, args, known)

    def _note_changes(self, func: Any, result: Any, args: Any, known: KnownTensors) -> None:
        """Note tensors that a function has changed and not returned, such as the one that its result is a view of."""
        if isinstance(result, Tensor) and args and result is args[0] and result._base is not None:
            base, index = result._base, part_of(result._base, result)
            if known.any and index is not None and base.numel() != result.numel():
                known.adds(base, self._node(base))
                known.adds(result, self._nodes.get(result))
                self._changed(base, index, result, known)
            elif known.any:
                self._nodes[base] = self._lost(func, base, known)
        for x, version in known.versions:
            if (
                x is not result
                and version is not None
                and version_of(x) != version
                and not any(x is one for one in _tensors(result))
            ):
                self._nodes[x] = self._lost(func, x, known)

    def _assigns(self, x: Tensor, index: Any, value: Any, known: KnownTensors) -> None:
        """Note an assignment to a part of a tensor, and to what the tensor is a view of."""
        if not known.any:
            given = [self._origin(one) for one in _tensors(index, value)]
            origin, _ = self._origins.get(x, (None, None))
            if origin is not None and all(one is not None for one in given):
                self._made_of(x, origin_of_result(None, [origin, *(one for one in given if one is not None)]))
            return
        self._changed(x, index, value, known)
        base = x._base
        if base is not None:
            part = part_of(base, x)
            known.adds(base, self._node(base))
            known.adds(x, self._nodes.get(x))
            if part is None:
                self._nodes[base] = self._lost(Tensor.__setitem__, base, known)
            else:
                self._changed(base, part, x, known)

    def _changed(self, x: Tensor, index: Any, value: Any, known: KnownTensors) -> None:
        """Note an assignment to a part of a tensor."""
        node = None
        if known.any:
            for own in (known, known.beginning()):
                if own is not None:
                    node = self._asked(self._assigned, x, index, value, own, x, is_certain=own is known)
                if node is not None:
                    break
        if node is not None and own is known:
            self._set(x, node)
        else:
            self._nodes[x] = self._lost(Tensor.__setitem__, x, known)
            if node is not None:
                self._nodes[x].way, self._nodes[x].begins_at = node, known.begins_at

    def _note(self, func: Any, result: Any, found: Any, args: Any, kwargs: Any, known: KnownTensors) -> None:
        results = result if isinstance(result, tuple | list) else (result,)
        nodes = found if isinstance(found, list) else [found] * len(results)
        ways: Any = None
        for i, (x, node) in enumerate(zip(results, nodes, strict=False)):
            if not isinstance(x, Tensor):
                continue
            is_number = x.is_floating_point() or x.is_complex()
            if isinstance(node, Node) and is_number:
                self._set(x, node)
            elif known.any:
                lost = self._lost(func, x, known, args)
                if is_number and not lost.attended and x.ndim in (2, 3, 4):
                    if ways is None:
                        ways = self._ways_from_beginning(func, result, args, kwargs, known)
                    own = ways[i] if isinstance(ways, list) else ways
                    lost.begins_at = known.begins_at if isinstance(own, Node) else Beginning(x, lost)
                    lost.way = own if isinstance(own, Node) else lost.begins_at
                self._nodes[x] = lost
            else:
                self._nodes.pop(x, None)
        if not known.any:
            self._plain(func, result, args, kwargs)

    def _ways_from_beginning(self, func: Any, result: Any, args: Any, kwargs: Any, known: KnownTensors) -> Any:
        """Return the result's place on a way that begins at what its arguments are made from; False if it has none."""
        rule, begun = self._rules.get(func), known.beginning()
        if rule is not None and begun is not None:
            return self._asked(rule, func, result, args, kwargs, begun, is_certain=False) or False
        return False

    def _lost(self, func: Any, x: Tensor, known: KnownTensors, args: Any = ()) -> Lost:
        """Return what is known about a result that is not on the way."""
        name, lost = function_name(func), known.lost
        mixes = bool(ATTENDS.search(name)) or (name in ("matmul", "einsum", "baddbmm") and known.count > 1)
        attended = known.attended or mixes
        on_way = [node for node in known.nodes if node is not None and not isinstance(node, Lost)]
        begins = not lost or (bool(on_way) and func not in MULTIPLY)
        by, module = (name, self._module) if begins else (lost[0].by, lost[0].module)
        why = "" if begins else lost[0].why
        scaled = self._scaled(func, x, known)
        if scaled is not None:
            found = Lost(x.shape, by, module, attended=attended, trail=scaled.trail, why=why)
        else:
            is_map = func in MATRICES and known.count == 1
            own = MATRIX if is_map else name + OF_TWO if mixes and name == "matmul" else name
            after = bool(on_way) and is_after_matrix(on_way[0])
            trail = joined([one.trail for one in lost], own, tuple(self._running), after_matrix=after)
            terms = self._terms(func, args, known)
            found = Lost(x.shape, by, module, attended=attended, trail=replace(trail, terms=terms), why=why)
        return found

    def _scaled(self, func: Any, x: Tensor, known: KnownTensors) -> Lost | None:
        """Return the one tensor that a result is, but for a scale, a shift, a norm or an order of its numbers."""
        if func not in SCALES or func in MATRICES or not known.lost:
            return None
        wide = [one for one in known.lost if func not in MULTIPLY or one.shape[-1:] != (1,)]
        rest = [node for node in known.nodes if node is not None and node not in known.lost]
        return wide[0] if len(wide) == 1 and not rest else None

    def _terms(self, func: Any, args: Any, known: KnownTensors) -> tuple[tuple[Tensor, Lost], ...]:
        """Return the tensors whose sum a result is, if modules of their own returned them."""
        if func not in ADD or len(args) < 2 or len(known.lost) != 2:
            return ()
        found: list[tuple[Tensor, Lost]] = []
        for x in args[:2]:
            node = known.of(x)
            if not isinstance(node, Lost) or (node.trail.home is None and not node.trail.terms):
                return ()
            found += node.trail.terms or [(x if known.before is None or x is not args[0] else known.before, node)]
        return tuple(found) if len(found) <= MOST_TERMS else ()

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
        if isinstance(found, Lost) and found.begins_at is not None and found.begins_at.source is not None:
            self._begun_at(found)
            found = self._nodes[x] = found.way
        waits = self._outputs
        if waits is not None and not isinstance(found, StreamSource | StreamStep | Sum | Join | Moved | Beginning):
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
            return self._begun_at(known) or str(known.refusal())
        if known is not None:
            return known
        for shape, strides, node in reversed(self._by_memory.get(x.data_ptr(), [])):
            found = _as_view(node, shape, strides, x)
            if found is not None:
                return found
        return NOT_READ

    def _begun_at(self, lost: Lost) -> Node | None:
        """Return the way to a tensor if the stream begins before the attention that runs now; None if it does not."""
        begins = lost.begins_at
        if begins is None or lost.way is None:
            return None
        if begins.source is None:
            x, at = begins.tensor, begins.lost.trail.at
            if x is None or not self._running or self._running[-1] in at:
                return None
            begins.source = self._source(x.shape, x, self._writer("input", ""))
            self._nodes[x] = begins
        sources = (one for one in in_order(lost.way) if isinstance(one, StreamSource))
        self._count(one.writer for one in sources if one.writer.kind != "head")
        return lost.way

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
        if memory_of(x) in self._parameters:
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
        if isinstance(node, Lost) and node.trail.terms:
            return Sum(x.shape, [spread(self._written(*term), x.shape) for term in node.trail.terms])
        found = self._written_as(x, node, x)
        if isinstance(found, StreamSource):
            if isinstance(node, Lost) and self._facts is not None:
                self._facts.places.update(dict.fromkeys(node.names, found))
            self._set(x, found)
        return found

    def _written_as(self, x: Tensor, node: Node | None, values: Tensor) -> Node:
        """Return what wrote a tensor as a source with other numbers: those that arrived at their positions."""
        if isinstance(node, Lost):
            return node if node.why else self._source(values.shape, values, self._writer_of(node))
        origin = self._origin(x)
        if origin is None:
            if not bool(x.any()):
                return Sum(values.shape, [])
            return Lost(values.shape, function_name(Tensor.__iadd__), self._module, why=UNSEEN)
        kind, module = origin.kind() or ("input", "")
        kind = "bias" if kind == "parameter" and x.ndim == 1 else kind
        writer = self._writer(kind, module)
        return self._source(values.shape, values, writer)

    def _writer(self, kind: Any, module: str, **how: Any) -> Writer:
        found = Writer(kind, module, self._layer(), **how)
        self._new_writers.append(found)
        return found

    def _count(self, writers: Iterable[Writer]) -> None:
        """Note what wrote, once it is known to be on a way."""
        for one in writers:
            if self._facts is None or self._facts.writers.get(one.key) is one:
                continue
            if one.kind in ("writer", "attention", "bias"):
                one.turn = self._facts.turns[one.kind, one.module]
                self._facts.turns[one.kind, one.module] += 1
            self._facts.writers.setdefault(one.key, one)

    def _asked(self, rule: Callable[..., Any], *given: Any, is_certain: bool = True) -> Any:
        """Return what a rule says; what it took for writers counts if it is certain."""
        self._new_writers, found = [], None
        with contextlib.suppress(*WRONG):
            found = rule(*given)
        if is_certain and isinstance(found, Node | list):
            self._count(self._new_writers)
        return found

    def _writer_of(self, lost: Lost) -> Writer:
        """Return what wrote a tensor that is not on the way."""
        trail: Trail = lost.trail
        own = trail.home or (trail.at[-1] if trail.at else Running("", "", 0))
        record = self._record_in(own.name, trail)
        kind: WriterKind = "writer" if record is None else "attention"
        how: dict[str, Any] = {"record": record, "names": [*lost.names], "attended": lost.attended}
        if trail.home is None and record is None:
            how["function"] = trail.made[-1].removesuffix(OF_TWO)
        return self._writer(kind, own.name, mlp=0 if record is not None else trail.mlp, **how)

    def _record_in(self, module: str, trail: Trail) -> str | None:
        """Return the record of the attention that a module's output is as a whole; None if it is another module's."""
        running = {one.name for one in self._running}
        for record in reversed({} if self._facts is None else self._facts.layers):
            own = record.partition(" #")[0]
            if own in running:  # an attention written in the block itself
                if any(ATTENDS.search(name) for name in trail.made) and trail.mlp < 2:
                    return record
            elif own and (f"{module}.".startswith(f"{own}.") or _attention_of_both(module, own)):
                return record
        return None


def _attention_of_both(module: str, record: str) -> bool:
    """Return whether both modules are parts of one that is named an attention."""
    both = []
    for one, other in zip(module.split("."), record.split("."), strict=False):
        if one != other:
            break
        both.append(one)
    return bool(both) and ATTENTION.search(both[-1]) is not None


def _tensors(*given: Any) -> Iterator[Tensor]:
    """Yield the tensors among a function's arguments or results, also in a list."""
    for one in given:
        for x in one.values() if isinstance(one, dict) else one if isinstance(one, tuple | list) else (one,):
            if isinstance(x, Tensor):
                yield x
            elif isinstance(x, tuple | list):
                yield from (inner for inner in x if isinstance(inner, Tensor))


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
