"""Outputs of attention calls into which interventions write: as they were, and with what was written."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary


class EditRefused(ValueError):
    """An edit that cannot be made; the message says why, and what to do."""


class OutputEdit(abc.ABC):  # not a protocol, for which each call of a model would be asked slowly
    """What an intervention writes into the output of one call."""

    @abc.abstractmethod
    def write(
        self, kernel: Any, output: Tensor, earlier: tuple[OutputEdit, ...], weights: Tensor | None = None
    ) -> None:
        """Write it.

        Args:
            kernel: the output as the call gave it, in the forms that `verification.sample_output` takes; None if it was
                not seen.
            output: the same, (B, H, Q, Dv), a view of what the model goes on with.
            earlier: what interventions that were opened before have written into it.
            weights: (B, H, Q, K), which are returned beside the output, to be edited too; None where there are none.

        Raises:
            EditRefused: it cannot be made.
        """


@dataclass(frozen=True)
class Edited:
    """How an output came about into which something was written."""

    kernel: Any
    edits: tuple[OutputEdit, ...]


_edited: Any = WeakIdKeyDictionary()  # by the tensor that the model goes on with


def kernel_output(output: Any, seen: Any) -> Any:
    """Return the output of a call as its kernel gave it, where something was written into it; else what was seen."""
    found = _edited.get(output) if isinstance(output, Tensor) and _edited else None
    return seen if found is None else found.kernel


def with_edit(
    output: Tensor,
    edit: OutputEdit,
    seen: Any,
    view: Callable[[Tensor], Tensor],
    weights: Tensor | None = None,
    *,
    keep: bool,
) -> Tensor:
    """Return a copy of a call's output into which an edit is written.

    Args:
        output: as the model has it.
        edit: what to write.
        seen: the same as `OutputEdit.write` takes it, if nothing was written into it before.
        view: returns a tensor like `output` as (B, H, Q, Dv).
        weights: as `OutputEdit.write` takes them.
        keep: whether others will ask for the output as it was.
    """
    found = _edited.get(output) or Edited(seen, ())
    copied = output.clone()
    if not _shares_memory(view(copied), copied):
        copied = output.clone(memory_format=torch.contiguous_format)
    written = view(copied)
    if not _shares_memory(written, copied):
        raise EditRefused(
            f"its output of shape {tuple(output.shape)} does not lie in memory as heads, so that nothing can be "
            "written into it: leave this layer out"
        )
    edit.write(found.kernel, written, found.edits, weights)
    if keep:
        _edited[copied] = Edited(found.kernel, (*found.edits, edit))
    return copied


def edit_in_place(
    output: Tensor,
    edit: OutputEdit,
    seen: Any,
    written: Tensor | None,
    weights: Tensor | None = None,
    *,
    keep: bool,
) -> None:
    """Write an edit into a call's output, a fresh result of a product.

    Args:
        output: as the model has it.
        edit: what to write.
        seen: as `with_edit` takes it.
        written: a view of the output as (B, H, Q, Dv); None if it is only a part of one, or has no such view.
        weights: as `OutputEdit.write` takes them.
        keep: whether others will ask for the output as it was.
    """
    found = _edited.get(output) or Edited(seen, ())
    if written is None or not _shares_memory(written, output):
        raise EditRefused("it computes its attention in parts, or merges heads with other axes: leave this layer out")
    kernel = found.kernel
    if keep and isinstance(kernel, Tensor) and _shares_memory(kernel, output):
        kernel = kernel.detach().clone()
    edit.write(found.kernel, written, found.edits, weights)
    if keep:
        _edited[output] = Edited(kernel, (*found.edits, edit))


def _shares_memory(x: Tensor, other: Tensor) -> bool:
    return x is other or x.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
