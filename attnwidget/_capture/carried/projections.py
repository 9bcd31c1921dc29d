"""The output projection of an attention: the linear map that reads the outputs of its heads.

It is recognized by its input and output, never by its name: some rows of a module's input equal the heads' outputs, and
the same rows of its output equal these times its weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

NOT_SEEN = (
    "no module was found that reads the outputs of the heads directly, without a gate, norm or dropout between, and "
    "multiplies them by one matrix: give it by att.carrying(w_o=…)"
)
NOT_LINEAR = (
    "{} reads the outputs of the heads, but its output is not these times its weight, as with an adapter or quantized "
    "weights: merge or undo these, or give att.carrying(w_o=…)"
)
ELSEWHERE = (
    "{} has its weights elsewhere between its calls, as a device map of accelerate brings them: load the model without "
    "one, or give att.carrying(w_o=…)"
)
SEVERAL = (
    "{} and {} both read the outputs of the heads, as with an adapter next to the projection: merge it, or give "
    "att.carrying(w_o=…)"
)
COMPARED = 64  # of a module's outputs, evenly spread
LEAST = 32.0  # tolerance of a product, in units of the rounding of a sum


@dataclass(frozen=True)
class Projection:
    """The output projection of a module's attention.

    weight: (H, Dv, d_model), a view of the module's weight.
    name: the name of the module.
    """

    weight: Tensor
    name: str


@dataclass
class HeadOutputs:
    """Some rows of an attention call's output, which identify the module that reads it.

    name: the name of the attention's module.
    shape: B, H, Q and Dv.
    rows: (samples, rows, H · Dv): the first and last of each.
    found: the module that reads it, or the reason why it is unknown.
    """

    name: str
    shape: tuple[int, int, int, int]
    rows: Tensor
    found: Projection | str = NOT_SEEN

    @classmethod
    def of(cls, name: str, output: Tensor) -> HeadOutputs:
        """Keep some rows of an output, (B, H, Q, Dv)."""
        B, H, Q, Dv = output.shape
        rows = output.detach()[:, :, [0, Q - 1]][[0, B - 1]].transpose(1, 2).flatten(2).clone()  # few rows first
        return cls(name, (B, H, Q, Dv), rows)

    def rows_of(self, x: Any, *, sequence_first: bool = False) -> Tensor | None:
        """Return the same rows of a tensor, (samples, rows, size); None if it does not have B · Q rows."""
        B, _, Q, _ = self.shape
        if not isinstance(x, Tensor) or x.ndim < 2 or x.shape[:-1].numel() != B * Q:
            return None
        whole = x.detach().reshape(Q, B, -1).transpose(0, 1) if sequence_first else x.detach().reshape(B, Q, -1)
        return whole[:, [0, Q - 1]][[0, B - 1]]

    def are_read_as(self, x: Any) -> bool:
        """Return whether a tensor has the outputs of the heads side by side."""
        _, H, _, Dv = self.shape
        if not isinstance(x, Tensor) or x.shape[-1] != H * Dv:
            return False
        rows = self.rows_of(x)
        return rows is not None and torch.equal(rows.to(self.rows.dtype), self.rows)

    def read_by(self, module: nn.Module, name: str, output: Any, *, sequence_first: bool = False) -> None:
        """Record a module that reads them, if it multiplies them by its weight.

        Args:
            module: the module with the projection's weight.
            name: its name.
            output: its output.
            sequence_first: whether the output is (Q, B, d_model).
        """
        if isinstance(self.found, Projection):
            self.found = SEVERAL.format(self.found.name, name)
            return
        if self.found is not NOT_SEEN:
            return
        if module.weight.is_meta:  # a product with it on the CPU is uninitialized memory, without an error
            self.found = ELSEWHERE.format(name)
            return
        _, H, _, Dv = self.shape
        rows = self.rows_of(output, sequence_first=sequence_first)
        weight = None if rows is None else _weight_of(module, self.rows, rows)
        if weight is None:
            self.found = NOT_LINEAR.format(name)
        else:
            self.found = Projection(weight.unflatten(0, (H, Dv)), name)


def is_linear(module: nn.Module) -> bool:
    """Return whether a module has one matrix as its weight, so that it may be a linear map."""
    weight = getattr(module, "weight", None)
    if isinstance(module, nn.Embedding) or not isinstance(weight, Tensor):
        return False
    return weight.ndim == 2 and weight.is_floating_point()


def _weight_of(module: nn.Module, x: Tensor, y: Tensor) -> Tensor | None:
    """Return a module's matrix W, (in, out), if y = x W + bias; None if not.

    Linear stores it as (out, in), and GPT-2's Conv1D as (in, out).
    """
    weight, bias = module.weight, getattr(module, "bias", None)
    if not isinstance(weight, Tensor):
        return None
    some = slice(None, None, max(1, y.shape[-1] // COMPARED))  # checking all outputs would take as long as the product
    added: Tensor | float = bias.detach()[some].double() if isinstance(bias, Tensor) else 0.0
    for found in (weight.detach().mT, weight.detach()):
        if found.shape != (x.shape[-1], y.shape[-1]):
            continue
        columns, given = found[:, some].double(), x.double()
        again = given @ columns + added
        size = given.abs() @ columns.abs() + torch.as_tensor(added, device=x.device).abs()
        bound = LEAST * coarsest(x.dtype, y.dtype, found.dtype) * found.shape[0] ** 0.5 * size
        if bool(((again - y[..., some].double()).abs() <= bound).all()):
            return found
    return None


def coarsest(*dtypes: torch.dtype) -> float:
    """Return the largest eps of some dtypes, and at least that of products on a GPU."""
    return max(2.0**-23, *(torch.finfo(one).eps for one in dtypes))
