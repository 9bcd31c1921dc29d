"""Calls of one step of a text that is generated, which are alike in all layers: settled for the first, taken by others.

Where one layer has taken one new token, by the cache's own word after those of the step before, the next layers do the
same: with the same mask and settings, the same tensors' shapes, and records that are as long. For these nothing is read
or decided again: their tensors are copied, and joined to their records when those are asked for, or when there are
many. A call that is unlike in any of this is read as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .._rules.row_spans import Spans
from .call_rules import CallRules, KeptMask
from .lineage import ModelCall, RecordedCall
from .text import CallText

# Keywords of transformers' interface of which `transformers.read_call` makes a call; all others it leaves alone.
READ = (
    "scaling", "softcap", "is_causal", "sliding_window", "position_bias", "dropout", "cache", "s_aux", "sinks",
    "cu_seq_lens_q",
)  # fmt: skip


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
        q, k, v, _ = arguments
        return (
            (q.shape, k.shape, v.shape) == self.shapes
            and self._is_plain(q, k, v)
            and _are_same(self.settings, settings)
        )

    def _is_plain(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """Return whether a call's tensors are of the same kinds, and torch computes with them as it did."""
        return (
            type(q) is type(k) is type(v) is Tensor
            and kinds_of(q, k, v) == self.kinds
            and not (torch.is_grad_enabled() or torch.is_inference_mode_enabled())
            and not torch.is_autocast_enabled(q.device.type)
        )

    def next_one(
        self,
        implementation: Any,
        arguments: Sequence[Any],
        settings: Mapping[str, Any],
        mask_of: Callable[[Tensor], KeptMask],
        step: ModelCall,
    ) -> RepeatedStep | None:
        """Return the step of the same layer one token later, should its cache say so; None if it may be another.

        Args:
            implementation, arguments, settings: of the layer's call, as `is_like` takes them.
            mask_of: returns a mask in its smallest form.
            step: the call of the model.
        """
        if implementation != self.implementation or len(arguments) != 4:
            return None
        q, k, v, mask = arguments
        if not self._is_plain(q, k, v) or q.shape != self.shapes[0] or not _are_read_alike(self.settings, settings):
            return None
        kept, keys = None, self.keys + 1
        if isinstance(mask, Tensor):
            kept = mask_of(mask) if mask.ndim == 4 and mask.shape[3] == k.shape[2] else None
            if not isinstance(kept, Spans) or kept.reach[0] != keys:
                return None
        elif mask is not None or k.shape[2] != keys:
            return None
        if self.rules.bias is not None or self.rules.is_causal or type(self.rules.mask) is not type(kept):
            return None
        how: dict[str, Any] = {"mask": mask, "settings": settings, "shapes": (q.shape, k.shape, v.shape), "keys": keys}
        how |= {"rules": CallRules(1, keys, 0, False, kept, None), "recorded": replace(self.recorded, step=step)}
        return replace(self, queries=self.queries + 1, **how)


def kinds_of(q: Tensor, k: Tensor, v: Tensor) -> tuple[Any, ...]:
    """Return the types and the devices of a call's tensors."""
    return q.dtype, k.dtype, v.dtype, q.device, k.device, v.device


def _are_same(settings: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Return whether settings have the same names and values; tensors that are not the very same are not compared."""
    try:
        return settings == others
    except (RuntimeError, TypeError, ValueError):  # of more numbers than one: neither True nor False
        return False


def _are_read_alike(settings: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Return whether two calls' settings are read as the same, whatever else is among them, such as positions."""
    return _are_same(*({name: x for name in READ if (x := one.get(name)) is not None} for one in (settings, others)))


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

    def __call__(self, output: Any) -> None:
        """Keep a copy of the output; one that has not the shape (B, H, 1, Dv) counts as not seen."""
        (B, H, _, _), _, (_, _, _, size) = self.step.shapes
        if isinstance(output, Tensor) and output.shape == (B, H, 1, size):
            self.output = output.clone()

    def take_result(self, result: Any) -> bool:
        """Keep a copy of the output in what transformers' interface returned; False if that is of another form."""
        output = result[0] if type(result) is tuple and len(result) == 2 else result
        (B, H, _, _), _, (_, _, _, size) = self.step.shapes
        if type(output) is not Tensor or output.shape != (B, 1, H, size):
            return False
        with torch._C.DisableTorchFunction():
            self.output = output.clone().transpose(1, 2)
        return True

    @staticmethod
    def joined(calls: Sequence[NotedCall]) -> list[Tensor]:
        """Return the new positions of q, k and v of calls of one layer, (B, heads, calls, size)."""
        together = [torch.cat(own, 2) for own in zip(*(one.copies for one in calls), strict=True)]
        return together if len(together) > 1 else list(together[0].split([n[1] for n in calls[0].step.shapes], 1))
