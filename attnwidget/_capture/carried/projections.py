"""The output projection of an attention: the linear map that reads the outputs of its heads.

A module is taken for it by what it is given and what it gives, never by its name: some rows of its input are the call's
output, and some rows of its output are that times its weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

NOT_SEEN = (
    "no module was seen that reads the outputs of the heads as they are, with no gate, norm or dropout between, and "
    "multiplies them by one matrix: give it by att.carrying(w_o=…)"
)
NOT_LINEAR = (
    "{} reads the outputs of the heads, and gives something else than these times its weight, as an adapter or "
    "quantized numbers make it: merge or undo these, or give att.carrying(w_o=…)"
)
SEVERAL = (
    "{} and {} both read the outputs of the heads, as with an adapter beside the projection: merge it, or give "
    "att.carrying(w_o=…)"
)
COMPARED = 64  # of a module's outputs, evenly spread
LEAST = 32.0  # times the rounding of a sum, that a product of the same numbers may be off


@dataclass(frozen=True)
class Projection:
    """The output projection of a module's attention.

    weight: (H, Dv, d_model), a view of the module's own.
    name: of the module.
    """

    weight: Tensor
    name: str


@dataclass
class HeadOutputs:
    """Some rows of the output of an attention call, by which who reads it is known.

    name: of the module whose attention it is.
    shape: B, H, Q and Dv.
    rows: (samples, rows, H · Dv): the first and the last of each.
    found: who reads it; in words, why it is not known.
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
        """Return the same rows of what has a row for each of them, (samples, rows, size); None of anything else."""
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
        """Note a module that reads them, if it multiplies them by its weight.

        Args:
            module: the module, of whose `weight` the projection is.
            name: its name.
            output: what it gave.
            sequence_first: whether its output is (Q, B, d_model).
        """
        if isinstance(self.found, Projection):
            self.found = SEVERAL.format(self.found.name, name)
            return
        if self.found is not NOT_SEEN:
            return
        _, H, _, Dv = self.shape
        rows = self.rows_of(output, sequence_first=sequence_first)
        weight = None if rows is None else _weight_of(module, self.rows, rows)
        if weight is None:
            self.found = NOT_LINEAR.format(name)
        else:
            self.found = Projection(weight.unflatten(0, (H, Dv)), name)


def is_linear(module: nn.Module) -> bool:
    """Return whether a module may be a linear map: it has one matrix as its weight."""
    weight = getattr(module, "weight", None)
    if isinstance(module, nn.Embedding) or not isinstance(weight, Tensor):
        return False
    return weight.ndim == 2 and weight.is_floating_point()


def _weight_of(module: nn.Module, x: Tensor, y: Tensor) -> Tensor | None:
    """Return the matrix W of a module, (in, out), of which y = x W + bias; None if it is not that.

    Linear has it as (out, in), the Conv1D of GPT-2 as (in, out).
    """
    weight, bias = module.weight, getattr(module, "bias", None)
    if not isinstance(weight, Tensor):
        return None
    some = slice(None, None, max(1, y.shape[-1] // COMPARED))  # of its outputs: all would take as long as the product
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
    """Return the largest rounding of some number types, or that of products on a GPU, if it is larger."""
    return max(2.0**-23, *(torch.finfo(one).eps for one in dtypes))
