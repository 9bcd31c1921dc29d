"""Outputs of attention calls with the edits of interventions: before and after."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ..._utils.quietly import Deliberate


class EditRefused(Deliberate, ValueError):
    """An edit that is impossible; the message says why, and what to do."""


class LayerRefused(EditRefused):
    """A layer that cannot be edited, whatever its head.

    Args:
        layer: the name of its module, or of its call.
        why: the message, which names it.
        reason: the same without advice for code; None: the message.
    """

    def __init__(self, layer: str, why: str, reason: str | None = None) -> None:
        super().__init__(why)
        self.layer, self.reason = layer, why if reason is None else reason


class OutputEdit(abc.ABC):  # not a protocol, which is slow to check for each call of a model
    """An intervention's edit of the output of one call."""

    @property
    @abc.abstractmethod
    def layer(self) -> str:
        """The name of its layer."""

    @abc.abstractmethod
    def write(
        self, kernel: Any, output: Tensor, earlier: tuple[OutputEdit, ...], weights: Tensor | None = None
    ) -> None:
        """Write it.

        Args:
            kernel: the output of the call, in a form that `verification.sample_output` takes; None if it was not seen.
            output: the same, (B, H, Q, Dv), a view of the tensor with which the model goes on.
            earlier: the edits of interventions that were opened before.
            weights: (B, H, Q, K), returned beside the output, to be edited too; None if there are none.

        Raises:
            EditRefused: it cannot be made.
        """


@dataclass(frozen=True)
class Edited:
    """An edited output and its history."""

    kernel: Any
    edits: tuple[OutputEdit, ...]


_edited: Any = WeakIdKeyDictionary()  # by the tensor with which the model goes on


def kernel_output(output: Any, seen: Any) -> Any:
    """Return the kernel's own output of a call, if the output was edited; else the given one."""
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
        edit: to write.
        seen: the same as `OutputEdit.write` takes it, if the output was not edited before.
        view: returns a tensor like `output` as (B, H, Q, Dv).
        weights: as `OutputEdit.write` takes them.
        keep: whether others will need the unedited output.
    """
    found = _edited.get(output) or Edited(seen, ())
    copied = output.clone()
    if not _shares_memory(view(copied), copied):
        copied = output.clone(memory_format=torch.contiguous_format)
    written = view(copied)
    if not _shares_memory(written, copied):
        raise LayerRefused(
            edit.layer,
            f"the output of {edit.layer}, of shape {tuple(output.shape)}, is not laid out by heads in memory, so it "
            "cannot be edited: leave this layer out",
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
    """Write an edit into a call's output, a new result of a product.

    Args:
        output: as the model has it.
        edit: to write.
        seen: as `with_edit` takes it.
        written: a view of the output as (B, H, Q, Dv); None if it is only a part of one, or has no such view.
        weights: as `OutputEdit.write` takes them.
        keep: whether others will need the unedited output.
    """
    found = _edited.get(output) or Edited(seen, ())
    if written is None or not _shares_memory(written, output):
        raise LayerRefused(
            edit.layer,
            f"{edit.layer} computes its attention in parts, or merges heads with other axes, so it cannot be edited: "
            "leave this layer out",
        )
    kernel = found.kernel
    if keep and isinstance(kernel, Tensor) and _shares_memory(kernel, output):
        kernel = kernel.detach().clone()
    edit.write(found.kernel, written, found.edits, weights)
    if keep:
        _edited[output] = Edited(kernel, (*found.edits, edit))


def _shares_memory(x: Tensor, other: Tensor) -> bool:
    return x is other or x.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
