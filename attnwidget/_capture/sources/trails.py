"""What made a tensor that cannot be followed: its functions, and the module that returned it; so it has a true name.

A module is an MLP if its name or its class says so (MLP, FFN, feed-forward, experts), or if it computes as one: linear
maps with functions of single numbers between them, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from ..._analysis.why.linear_steps import Matrix, Times, View
from ..._analysis.why.stream_graph import Lost, Node, StreamSource, StreamStep, Sum

MLP = re.compile(
    r"mlp(?!_?mixer)|ffn|ffwd|feed_?forward|dense_?relu_?dense|swi_?glu|ge_?glu|(?:^|[^a-z])(?:ffw?|moe|experts?)(?![a-z])"
)
MATRIX = "linear"
SINGLE_NUMBERS = {  # functions of single numbers, of one tensor or of several
    *("relu", "relu6", "gelu", "silu", "sigmoid", "tanh", "elu", "selu", "celu", "leaky_relu", "mish", "softplus"),
    *("hardswish", "hardsigmoid", "hardtanh", "glu", "logsigmoid", "softsign", "prelu", "pow", "square", "exp", "erf"),
    *("clamp", "clamp_min", "clamp_max", "abs", "sqrt", "sin", "cos", "mul", "add", "sub", "div", "minimum", "maximum"),
    *("neg", "threshold", "rsub", "multiply", "addcmul", "gelu_", "silu_"),
}
COMBINE = {"mul", "add", "sub", "div", "neg", "rsub", "multiply", "addcmul"}  # no activation alone
OF_NORMS = {  # functions that the scale of a norm is made of
    *(
        "pow",
        "square",
        "mean",
        "sum",
        "var",
        "var_mean",
        "std",
        "std_mean",
        "norm",
        "vector_norm",
        "linalg_vector_norm",
    ),
    *("abs", "amax", "max", "rsqrt", "sqrt", "reciprocal", "add", "sub", "mul", "div", "clamp", "clamp_min", "neg"),
    *("rsub", "multiply", "maximum", "to", "float", "float_power", "type_as", "linalg_norm", "einsum"),
}


class Running(NamedTuple):
    """A module that runs, or ran.

    name: its name.
    kind: the name of its class.
    call: the number of its call.
    """

    name: str
    kind: str
    call: int


@dataclass(frozen=True)
class Trail:
    """The functions that made a tensor since the way ended.

    Attributes:
        made: their names, in order, without linear ones that only scale, move or shift.
        at: the modules that ran during the last of them, the innermost last.
        home: the outermost module that has returned it since, perhaps scaled; None for none.
        after_matrix: whether a linear map led to the first of them.
        terms: the tensors whose sum it is, if modules of their own returned them.
    """

    made: tuple[str, ...]
    at: tuple[Running, ...]
    home: Running | None = None
    after_matrix: bool = False
    terms: tuple[tuple[Tensor, Lost], ...] = ()

    def returned_by(self, module: Running) -> Trail:
        """Return it after a module has ended and returned the tensor."""
        return replace(self, home=module, terms=()) if module in self.at else self

    @property
    def is_norm(self) -> bool:
        """Whether it is made as the scale of a norm is."""
        return all(name in OF_NORMS for name in self.made)

    @property
    def mlp(self) -> int:
        """2 if a name says that an MLP wrote it, 1 if it was computed as by one, else 0."""
        own = self.home
        if own is not None and any(map(_says_mlp, (own.kind, *_last_words(own.name)))):
            return 2
        activations = [i for i, name in enumerate(self.made) if name in SINGLE_NUMBERS - COMBINE]
        computes = self.after_matrix and bool(activations) and MATRIX in self.made[activations[0] :]
        return int(computes and all(name == MATRIX or name in SINGLE_NUMBERS for name in self.made))


def joined(trails: Sequence[Trail], function: str, at: tuple[Running, ...], *, after_matrix: bool = False) -> Trail:
    """Return the trail of what a function makes of tensors with trails."""
    made = dict.fromkeys(name for trail in trails for name in trail.made)
    made.pop(function, None)  # the last is last
    after = all(trail.after_matrix for trail in trails) if trails else after_matrix
    return Trail((*made, function), at, None, after)


def is_after_matrix(node: Node | None) -> bool:
    """Return whether a tensor of the stream is what a linear map with weights gave, perhaps moved or scaled."""
    for _ in range(8):
        if isinstance(node, StreamStep):
            if isinstance(node.how, Matrix):
                return True
            if not isinstance(node.how, View | Times):
                return False
            node = node.parent
        elif isinstance(node, Sum):
            rest = [one for one in node.parents if not (isinstance(one, StreamSource) and one.writer.kind == "bias")]
            if len(rest) != 1:
                return False
            node = rest[0]
        else:
            return False
    return False


def _says_mlp(name: str) -> bool:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return MLP.search(words) is not None or MLP.search(name.lower()) is not None


def _last_words(module: str) -> list[str]:
    """Return the last part of a module's name, and the one before, if that is not the number of a block."""
    parts = module.split(".")
    return parts[-2:] if not parts[-2:-1] or not parts[-2].isdigit() else parts[-1:]
