"""Calls of one step of a text that is generated, which are alike in all layers: settled for the first, taken by others.

Where one layer has taken one new token, by the cache's own word after those of the step before, the next layers do the
same: with the same mask and settings, the same tensors' shapes, and records that are as long. For these nothing is read
or decided again. A call that is unlike in any of this is read as any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .call_rules import CallRules
from .grown_keys import GrownKeys, grown_keys
from .lineage import RecordedCall

PLAIN = (bool, int, float, str, type(None))


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

    def is_like(self, implementation: Any, arguments: Sequence[Any], settings: Mapping[str, Any]) -> bool:
        """Return whether a call of transformers' interface is alike, as far as its arguments tell."""
        if implementation != self.implementation or len(arguments) != 4 or arguments[3] is not self.mask:
            return False
        q, k, v = arguments[:3]
        return (
            type(q) is type(k) is type(v) is Tensor
            and (q.shape, k.shape, v.shape) == self.shapes
            and (q.dtype, k.dtype, v.dtype, q.device) == self.kinds
            and settings.keys() == self.settings.keys()
            and all(_is_same(x, settings[name]) for name, x in self.settings.items())
            and not (torch.is_grad_enabled() or torch.is_inference_mode_enabled())
            and not torch.is_autocast_enabled(q.device.type)
        )

    def grown(self, keys: Tensor) -> GrownKeys | None:
        """Return what the cache has told of a layer's keys; None if it has not, or not that so many are filled."""
        found = grown_keys(keys)
        return found if found is not None and found.length == self.keys else None


def kinds_of(q: Tensor, k: Tensor, v: Tensor) -> tuple[Any, ...]:
    """Return the types and the device of a call's tensors."""
    return q.dtype, k.dtype, v.dtype, q.device


def _is_same(x: Any, other: Any) -> bool:
    return x is other or (isinstance(x, PLAIN) and type(x) is type(other) and x == other)
