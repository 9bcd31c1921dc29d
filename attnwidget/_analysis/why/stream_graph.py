"""The linear way from the residual stream to q, k and v, as a graph of tensors.

A tensor on the way is a sum of what writers put into the stream, passed through linear steps. Norms are linear once
their scale is held at the value that it had when the model ran (Elhage et al. 2021, "A Mathematical Framework for
Transformer Circuits"). Nothing is computed here: `linear_steps` applies the steps, and `pullback` follows the graph
backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

WriterKind = Literal["token", "position", "type", "input", "head", "attention", "writer", "bias", "parameter"]


class NotLinear(ValueError):
    """A way from the residual stream that is not linear, or cannot be followed; the message says where."""


@dataclass(eq=False)
class Writer:
    """What wrote into the residual stream.

    Attributes:
        kind: "head" for the outputs of an attention's heads, side by side; "attention" for an attention as a whole.
        module: its module's name, or its parameter's.
        layer: the number of attention records before it, in this forward pass.
        record: the name of its attention record.
    """

    kind: WriterKind
    module: str
    layer: int = 0
    record: str | None = None
    names: list[str] = field(default_factory=list)  # of all modules that returned it


class Node:
    """A tensor on the way; `shape` is its shape in the model."""

    __slots__ = ("shape",)

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)


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
        super().__init__(shape)
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
    """

    __slots__ = ("how", "parent")

    def __init__(self, shape: Sequence[int], parent: Node, how: Any) -> None:
        super().__init__(shape)
        self.parent, self.how = parent, how


class Sum(Node):
    """The sum of tensors of one shape."""

    __slots__ = ("parents",)

    def __init__(self, shape: Sequence[int], parents: Sequence[Node]) -> None:
        super().__init__(shape)
        self.parents = tuple(parents)


class Join(Node):
    """Tensors side by side along an axis: positions of a cache, or features such as a rotated half."""

    __slots__ = ("axis", "parents")

    def __init__(self, shape: Sequence[int], parents: Sequence[Node], axis: int) -> None:
        super().__init__(shape)
        self.parents, self.axis = tuple(parents), axis


class Lost(Node):
    """A tensor that depends on the stream in a way that is not linear.

    Args:
        shape: of the tensor.
        by: the function that made it.
        module: the name of the module in which it was made.
    """

    __slots__ = ("by", "module", "names")

    def __init__(self, shape: Sequence[int], by: str, module: str) -> None:
        super().__init__(shape)
        self.by, self.module = by, module
        self.names: list[str] = []

    def refusal(self) -> NotLinear:
        """Return the error for a way that passes it."""
        return NotLinear(
            f"the way from the residual stream cannot be followed through {self.by} in module {self.module!r}, "
            f"because it is not a linear map there (a gate, a convolution or another function): the score cannot be "
            f"split into parts"
        )


def version_of(x: Any) -> int | None:
    """Return how often a tensor was changed in place; None if torch does not count it."""
    return None if not isinstance(x, Tensor) or x.is_inference() else x._version


def parents_of(node: Node) -> tuple[Node, ...]:
    """Return the tensors that a tensor is made from."""
    if isinstance(node, StreamStep):
        return (node.parent,)
    return node.parents if isinstance(node, Sum | Join) else ()


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


def as_double(x: Tensor) -> Tensor:
    """Return a tensor in float64, or complex128, on the CPU, where all parts are computed."""
    kind = torch.complex128 if x.is_complex() else torch.float64
    return x.detach().to("cpu", kind, memory_format=torch.contiguous_format)
