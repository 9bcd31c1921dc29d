"""Calls of one step of a text that is generated, which are alike in all layers: settled for the first, taken by others.

Where one layer has taken one new token, by the cache's own word after those of the step before, the next layers do the
same: with the same mask and settings, the same tensors' shapes, and records that are as long. For these nothing is read
or decided again: their tensors are copied, and joined to their records when those are asked for, or when there are
many. A call that is unlike in any of this is read as any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .call_rules import CallRules
from .lineage import RecordedCall
from .text import CallText


@dataclass(frozen=True, eq=False, slots=True)
class RepeatedStep:
    """What the calls of one step have in common.

    Attributes:
        implementation: of transformers.
        mask: the very object that was given.
        settings: the other keywords.
        shapes: of q, k and v as they were given.
        kinds: their types and devices.
        keys: how many keys are filled, the new one too.
        queries: how many queries the records had before.
        scale: of the scores.
        softcap: of the scaled scores.
        rules: of the call.
        recorded: the call of the model that it is a part of.
        nbytes: how many bytes the new positions of q, k and v take.
        in_one: whether these can be copied into one tensor.
    """

    implementation: Any
    mask: Any
    settings: Mapping[str, Any]
    shapes: tuple[torch.Size, ...]
    kinds: tuple[Any, ...]
    keys: int
    queries: int
    scale: float | None
    softcap: float | None
    rules: CallRules
    recorded: RecordedCall
    nbytes: int
    in_one: bool

    def is_like(self, implementation: Any, arguments: Sequence[Any], settings: Mapping[str, Any]) -> bool:
        """Return whether a call of transformers' interface is alike, as far as its arguments tell."""
        if implementation != self.implementation or len(arguments) != 4 or arguments[3] is not self.mask:
            return False
        q, k, v = arguments[:3]
        return (
            type(q) is type(k) is type(v) is Tensor
            and (q.shape, k.shape, v.shape) == self.shapes
            and kinds_of(q, k, v) == self.kinds
            and _are_same(self.settings, settings)
            and not (torch.is_grad_enabled() or torch.is_inference_mode_enabled())
            and not torch.is_autocast_enabled(q.device.type)
        )


def kinds_of(q: Tensor, k: Tensor, v: Tensor) -> tuple[Any, ...]:
    """Return the types and the devices of a call's tensors."""
    return q.dtype, k.dtype, v.dtype, q.device, k.device, v.device


def _are_same(settings: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Return whether settings have the same names and values; tensors that are not the very same are not compared."""
    try:
        return settings == others
    except (RuntimeError, TypeError, ValueError):  # of more numbers than one: neither True nor False
        return False


class NotedCall:
    """One layer's call of a step, with copies of the new positions of its q, k and v, and of its output.

    Args:
        step: what it has in common with that of other layers.
        text: what stands at its position.
        given: q, k and v, the latter two with all keys.
    """

    __slots__ = ("copies", "output", "step", "text")

    def __init__(self, step: RepeatedStep, text: CallText | None, given: Sequence[Tensor]) -> None:
        self.step, self.text = step, text
        self.output: Tensor | None = None  # (B, H, 1, Dv); None: it has not been seen
        q, k, v = given
        new = step.keys - 1
        parts = q, k.narrow(2, new, 1), v.narrow(2, new, 1)
        self.copies = (torch.cat(parts, 1),) if step.in_one else tuple(x.clone() for x in parts)

    def take_output(self, output: Any) -> None:
        """Keep a copy of the output; one that has not the shape (B, H, 1, Dv) counts as not seen."""
        (B, H, _, _), _, (_, _, _, size) = self.step.shapes
        if isinstance(output, Tensor) and output.shape == (B, H, 1, size):
            self.output = output.clone()

    @staticmethod
    def joined(calls: Sequence[NotedCall]) -> list[Tensor]:
        """Return the new positions of q, k and v of calls of one layer, (B, heads, calls, size)."""
        together = [torch.cat(own, 2) for own in zip(*(one.copies for one in calls), strict=True)]
        return together if len(together) > 1 else list(together[0].split([n[1] for n in calls[0].step.shapes], 1))
