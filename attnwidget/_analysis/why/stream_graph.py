"""The linear way from the residual stream to q, k and v, as a graph of tensors.

A tensor on the way is a sum of what writers put into the stream, passed through linear steps. Norms are linear once
their scale is held at the value that it had when the model ran (Elhage et al. 2021, "A Mathematical Framework for
Transformer Circuits"). Nothing is computed here: `linear_steps` applies the steps, and `pullback` follows the graph
backward.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

WriterKind = Literal["token", "position", "type", "input", "head", "attention", "writer", "bias", "parameter"]


class NotLinear(ValueError):
    """A way from the residual stream that is not linear, or cannot be followed; the message says where."""


WriterKey = tuple[str, str, int]


@dataclass(eq=False)
class Writer:
    """What wrote into the residual stream.

    Attributes:
        kind: "head" for the outputs of an attention's heads, side by side; "attention" for an attention as a whole;
            "writer" for any other module or function.
        module: its module's name, or its parameter's; of a function that no module returned, where it ran.
        layer: the number of attention records before it, in this forward pass.
        record: the name of its attention record.
        names: of all modules that returned exactly what it wrote.
        turn: how often this module wrote before, in this forward pass.
        function: the last function of torch that made it; "" if a module returned it.
        mlp: 2 if its name or its class says that it is an MLP, 1 if it computes as one, else 0.
        attended: whether it depends on what an attention wrote.
    """

    kind: WriterKind
    module: str
    layer: int = 0
    record: str | None = None
    names: list[str] = field(default_factory=list)
    turn: int = 0
    function: str = ""
    mlp: int = 0
    attended: bool = False

    @property
    def key(self) -> WriterKey:
        """What tells it from other writers of a forward pass; all inputs are one."""
        return (self.kind, "", 0) if self.kind == "input" else (self.kind, self.module, self.turn)


class Node:
    """A tensor on the way.

    Attributes:
        shape: its shape in the model.
        attended: whether it depends on what an attention wrote.
    """

    __slots__ = ("attended", "shape")

    def __init__(self, shape: Sequence[int], *, attended: bool = False) -> None:
        self.shape, self.attended = tuple(shape), attended


class StreamSource(Node):
    """What a writer wrote.

    Args:
        shape: its shape where it is added, after broadcasting.
        values: its numbers, of a shape that can be broadcast to it; or a function that looks rows up.
        writer: that wrote it.
        heads_axis: the axis of heads, if its parts are heads.
    """

    __slots__ = ("heads_axis", "lookup", "values", "version", "why_missing", "writer")

    def __init__(
        self,
        shape: Sequence[int],
        values: Tensor | None,
        writer: Writer,
        *,
        heads_axis: int | None = None,
        lookup: tuple[Tensor, Tensor] | None = None,
        why_missing: str = "",
    ) -> None:
        super().__init__(shape, attended=writer.kind in ("head", "attention") or writer.attended)
        self.values, self.writer, self.heads_axis, self.lookup = values, writer, heads_axis, lookup
        self.why_missing = why_missing
        self.version = version_of(values if lookup is None else lookup[1])

    def spread(self, shape: Sequence[int]) -> StreamSource:
        """Return the same source, broadcast to another shape."""
        if tuple(shape) == self.shape:
            return self
        found = StreamSource(
            shape,
            self.values,
            self.writer,
            heads_axis=self.heads_axis,
            lookup=self.lookup,
            why_missing=self.why_missing,
        )
        found.version = self.version
        return found

    @property
    def own_shape(self) -> tuple[int, ...]:
        """The shape of its numbers."""
        if self.lookup is not None:
            return (*self.lookup[0].shape, self.lookup[1].shape[1])
        return self.shape if self.values is None else tuple(self.values.shape)


class StreamStep(Node):
    """A linear step from one tensor to another.

    Args:
        shape: of the result.
        parent: what it reads.
        how: the step: see `linear_steps`.
        module: the name of the module in which it was made.
    """

    __slots__ = ("how", "module", "parent")

    def __init__(self, shape: Sequence[int], parent: Node, how: Any, module: str = "") -> None:
        super().__init__(shape, attended=parent.attended)
        self.parent, self.how, self.module = parent, how, module


class Sum(Node):
    """The sum of tensors of one shape."""

    __slots__ = ("parents",)

    def __init__(self, shape: Sequence[int], parents: Sequence[Node]) -> None:
        super().__init__(shape, attended=any(one.attended for one in parents))
        self.parents = tuple(parents)


class Join(Node):
    """Tensors side by side along an axis: positions of a cache, or features such as a rotated half."""

    __slots__ = ("axis", "parents")

    def __init__(self, shape: Sequence[int], parents: Sequence[Node], axis: int) -> None:
        super().__init__(shape, attended=any(one.attended for one in parents))
        self.parents, self.axis = tuple(parents), axis


class Moved(Node):
    """Positions of one or several tensors in another order, such as a tensor after an assignment to some positions.

    Args:
        shape: of the result.
        parents: what it is made from.
        axis: of the positions, in the result and in the parents; None if all stay at their positions.
        owner: the number of the parent of each position, −1 for none; of the shape of the result without its last
            axis, with 1 where it is the same along an axis.
        index: the position there, of the same shape.
    """

    __slots__ = ("axis", "index", "owner", "parents")

    def __init__(
        self, shape: Sequence[int], parents: Sequence[Node], axis: int | None, owner: Tensor, index: Tensor
    ) -> None:
        super().__init__(shape, attended=any(one.attended for one in parents))
        self.parents, self.axis, self.owner, self.index = tuple(parents), axis, owner, index


class Beginning(Node):
    """A tensor that no attention had a part in, at which the stream begins once an attention reads it.

    Args:
        x: the tensor.
        lost: how it was made.
    """

    __slots__ = ("_x", "lost", "source", "version")

    def __init__(self, x: Tensor, lost: Lost) -> None:
        super().__init__(x.shape)
        self._x, self.lost, self.version = weakref.ref(x), lost, version_of(x)
        self.source: StreamSource | None = None

    @property
    def tensor(self) -> Tensor | None:
        """The tensor; None if it is gone or was changed."""
        x = self._x()
        return None if x is None or version_of(x) != self.version else x


class Lost(Node):
    """A tensor that depends on the stream in a way that is not linear, or in an unknown one.

    Args:
        shape: of the tensor.
        by: the function that ended the way.
        module: the name of the module in which it ran.
        attended: whether the tensor depends on what an attention wrote.
        trail: the functions since, and the modules that returned it; see `sources.trails`.
        why: the reason, if it is another one than a function that is not linear.
    """

    __slots__ = ("begins_at", "by", "module", "names", "trail", "way", "why")

    def __init__(
        self, shape: Sequence[int], by: str, module: str, *, attended: bool = True, trail: Any = None, why: str = ""
    ) -> None:
        super().__init__(shape, attended=attended)
        self.by, self.module, self.trail, self.why = by, module, trail, why
        self.names: list[str] = []  # of all modules that returned it
        self.way: Node | None = None  # the way to it, if the stream begins at `begins_at`
        self.begins_at: Beginning | None = None

    def refusal(self) -> NotLinear:
        """Return the error for a way that passes it."""
        return not_followed(self.by, self.module, self.why)


NOT_A_MAP = "it is not a linear map, or one that is not followed there (a gate, a convolution or another function)"


def not_followed(by: str, module: str, why: str = "") -> NotLinear:
    """Return the error for a way that ends at a function.

    Args:
        by: the function.
        module: the name of its module; "" for the model itself.
        why: the reason.
    """
    where = f"module {module!r}" if module else "the model itself"
    return NotLinear(
        f"the way from the residual stream cannot be followed through {by} in {where}, because {why or NOT_A_MAP}: the "
        f"score cannot be split into parts"
    )


def version_of(x: Any) -> int | None:
    """Return how often a tensor was changed in place; None if torch does not count it."""
    return None if not isinstance(x, Tensor) or x.is_inference() else x._version


def parents_of(node: Node) -> tuple[Node, ...]:
    """Return the tensors that a tensor is made from."""
    if isinstance(node, StreamStep):
        return (node.parent,)
    if isinstance(node, Beginning):
        return () if node.source is None else (node.source,)
    return node.parents if isinstance(node, Sum | Join | Moved) else ()


def in_order(node: Node, enters: Callable[[Node], bool] = lambda node: True) -> list[Node]:
    """Return all tensors on the way to one, each after those it is made from.

    Args:
        node: the last.
        enters: whether to go on from a tensor to its parents.
    """
    found: list[Node] = []
    seen: set[int] = set()
    waiting: list[tuple[Node, bool]] = [(node, False)]
    while waiting:
        one, is_done = waiting.pop()
        if is_done:
            found.append(one)
            continue
        if id(one) in seen:
            continue
        seen.add(id(one))
        waiting.append((one, True))
        if enters(one):
            waiting += [(parent, False) for parent in reversed(parents_of(one))]
    return found


def plain_numbers(x: Tensor) -> Tensor:
    """Return a tensor's numbers; those of a compressed tensor, such as quantized weights, are unpacked.

    Raises:
        NotLinear: they cannot be unpacked.
    """
    if type(x) in (Tensor, torch.nn.Parameter, torch.nn.Buffer) or not hasattr(type(x), "__tensor_flatten__"):
        return x
    kind = type(x).__name__
    if not hasattr(x, "dequantize"):
        raise NotLinear(f"weights of the type {kind} cannot be unpacked, so the score cannot be split into parts")
    try:
        found: Tensor = x.dequantize()
    except Exception as error:
        raise NotLinear(
            f"weights of the type {kind} could not be unpacked ({type(error).__name__}), so the score cannot be split "
            f"into parts"
        ) from error
    return found


def as_double(x: Tensor) -> Tensor:
    """Return a tensor in float64, or complex128, on the CPU, where all parts are computed."""
    kind = torch.complex128 if x.is_complex() else torch.float64
    return x.detach().to("cpu", kind, memory_format=torch.contiguous_format)
