"""Decode steps, which are alike in all layers: the first layer's call is read, and the others repeat it.

If the cache reports that one layer has added one new token since the last step, the next layers do the same: same
mask, same settings, same shapes, records of the same length. For these layers nothing is read or decided again. Their
tensors are copied, and joined to their records when the records are used or there are many of them. A call that
differs in any of this is read like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..._rules.row_spans import Spans
from ..call.cache_growth import GrownKeys
from ..call.call_rules import CallRules, KeptMask
from ..call.call_text import CallText
from ..call.lineage import ModelCall, RecordedCall

# Keywords of transformers' interface that `transformers.read_call` reads; it ignores all others.
READ = (
    "scaling", "softcap", "is_causal", "sliding_window", "position_bias", "dropout", "cache", "read_index",
    "s_aux", "sinks", "cu_seq_lens_q",
)  # fmt: skip
NOT_COMPARED = RuntimeError, TypeError, ValueError  # of tensors of more numbers than one: neither True nor False


@dataclass(frozen=True, eq=False, slots=True)
class RepeatedStep:
    """The properties that the calls of one step share.

    Attributes:
        implementation: of transformers.
        mask: the object that was given.
        settings: the other keywords.
        shapes: of q, k and v as given.
        kinds: their types and devices.
        first: where its keys begin in the record.
        keys: the number of filled keys, with the new one.
        queries: the number of queries that the records had before.
        scale: of the scores.
        softcap: of the scaled scores.
        rules: of the call.
        recorded: the model's call that it belongs to.
        kept: the kind of the kept q, k and v, see `GrowingTensor.kind`.
        device: the kind of the device.
        nbytes: the bytes of the new positions of q, k and v.
        in_one: whether these can be copied into one tensor.
        keeps_values: whether v is kept.
        cuts: whether the cache has a window, so that a key may be seen for the last time.
        row: the mask, if the next token's mask is the same with one more key.
    """

    implementation: Any
    mask: Any
    settings: Mapping[str, Any]
    shapes: tuple[torch.Size, ...]
    kinds: tuple[Any, ...]
    first: int
    keys: int
    queries: int
    scale: float | None
    softcap: float | None
    rules: CallRules
    recorded: RecordedCall
    kept: tuple[Any, ...]
    device: str
    nbytes: int
    in_one: bool
    keeps_values: bool
    cuts: bool
    row: Tensor | None = None

    def is_like(self, implementation: Any, arguments: Sequence[Any], settings: Mapping[str, Any]) -> bool:
        """Return whether a call of transformers' interface is alike, judged by its arguments."""
        if len(arguments) != 4 or arguments[3] is not self.mask or implementation != self.implementation:
            return False
        q, k, v, _ = arguments
        alike = (
            type(q) is type(k) is type(v) is Tensor
            and (q.shape, k.shape, v.shape) == self.shapes
            and (q.dtype, k.dtype, v.dtype, q.device, k.device, v.device) == self.kinds
            and _is_plain(self.device)
        )
        try:
            return alike and self.settings == settings
        except NOT_COMPARED:
            return False

    def next_one(
        self,
        implementation: Any,
        arguments: Sequence[Any],
        settings: Mapping[str, Any],
        grown: GrownKeys | None,
        mask_of: Callable[[Tensor], KeptMask],
        step: ModelCall,
    ) -> RepeatedStep | None:
        """Return the same layer's step one token later, if the cache reports one; None if it may be another.

        Args:
            implementation, arguments, settings: of the layer's call, as `is_like` takes them.
            grown: the cache's report on its keys.
            mask_of: returns a mask in its smallest form.
            step: the call of the model.
        """
        if grown is None or grown.kept != grown.length - 1 or grown.cuts is not self.cuts:
            return None
        if implementation != self.implementation or len(arguments) != 4:
            return None
        q, k, v, mask = arguments
        is_plain = type(q) is type(k) is type(v) is Tensor and kinds_of(q, k, v) == self.kinds
        if not is_plain or not _is_plain(self.device) or q.shape != self.shapes[0]:
            return None
        if not _are_read_alike(self.settings, settings):
            return None
        keys = grown.length
        first = self.first + self.keys + 1 - keys
        found = self._next_mask(mask, mask_of, k.shape[2], keys, first)
        if found is None or not self.first <= first <= self.first + 1:
            return None
        kept, row = found
        if self.rules.bias is not None or self.rules.is_causal or type(self.rules.mask) is not type(kept):
            return None
        how: dict[str, Any] = {"mask": mask, "settings": settings, "shapes": (q.shape, k.shape, v.shape), "keys": keys}
        rules = CallRules(1, keys, first, False, kept, None)
        how |= {"first": first, "rules": rules, "row": row, "recorded": replace(self.recorded, step=step)}
        return replace(self, queries=self.queries + 1, **how)

    def _next_mask(
        self, mask: Any, mask_of: Callable[[Tensor], KeptMask], room: int, keys: int, first: int
    ) -> tuple[Spans | None, Tensor | None] | None:
        """Return the mask of the next token in its smallest form, and `row`; None if it does not reach its own key.

        Args:
            mask: that was given.
            mask_of: as `next_one` takes it.
            room: the number of given keys.
            keys: the number of filled keys.
            first: where they begin in the record.
        """
        if not isinstance(mask, Tensor):
            return (None, None) if mask is None and room == keys else None
        known = self._with_one_more(mask, keys) if first == self.first else None
        if known is not None:
            return known, self.row
        kept = mask_of(mask) if mask.ndim == 4 and mask.shape[3] == room else None
        if not isinstance(kept, Spans) or kept.reach[0] != keys:
            return None
        return kept, _row_of(mask, kept, keys)

    def _with_one_more(self, mask: Tensor, keys: int) -> Spans | None:
        """Return a mask in its smallest form, if it is the previous token's mask with one more key in every row."""
        row, before = self.row, self.rules.mask
        if row is None or not isinstance(before, Spans) or row.shape != mask.shape or row.dtype is not mask.dtype:
            return None
        row.select(3, keys - 1).fill_(True)
        return Spans(before.starts, before.stops + 1) if torch.equal(row, mask) else None


def _row_of(mask: Tensor, kept: Spans, keys: int) -> Tensor | None:
    """Return a copy of a mask of one query, if each of its rows ends with the last filled key; else None."""
    if mask.dtype is not torch.bool or mask.shape[2] != 1:
        return None
    return mask.clone() if bool((kept.stops == keys).all()) else None


def _is_plain(device: str) -> bool:
    """Return whether torch computes on a device without gradients, inference mode or autocast."""
    return not (torch.is_grad_enabled() or torch.is_inference_mode_enabled() or torch.is_autocast_enabled(device))


def kinds_of(q: Tensor, k: Tensor, v: Tensor) -> tuple[Any, ...]:
    """Return the types and the devices of a call's tensors."""
    return q.dtype, k.dtype, v.dtype, q.device, k.device, v.device


def _are_same(settings: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Return whether settings have the same names and values; different tensor objects count as different."""
    if settings is others:
        return True
    try:
        return settings == others
    except NOT_COMPARED:
        return False


def _are_read_alike(settings: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Return whether two calls' settings are read alike; other keywords, such as positions, do not count."""
    return _are_same(*({name: x for name in READ if (x := one.get(name)) is not None} for one in (settings, others)))


class NotedCall:
    """One layer's call in a step, with copies of the new positions of its q, k and v, and of its output.

    Args:
        step: shared with the other layers.
        text: at its position.
        given: q, k and v, k and v with all keys.

    Attributes:
        verify: if v is not kept, takes the output and verifies it with the present q, k and v.
    """

    __slots__ = ("copies", "has_output", "output", "step", "text", "verify")

    def __init__(self, step: RepeatedStep, text: CallText | None, given: Sequence[Tensor]) -> None:
        self.step, self.text = step, text
        self.verify: Callable[[Tensor], bool] | None = None
        self.output: Tensor | None = None  # (B, H, 1, Dv), until it is verified
        self.has_output = False
        q, k, v = given
        new = step.keys - 1
        if step.in_one and step.keeps_values and not step.cuts:
            self.copies: tuple[Tensor, ...] = (torch.cat((q, k.narrow(2, new, 1), v.narrow(2, new, 1)), 1),)
            return
        parts = [q, k.narrow(2, new, 1)]
        if step.keeps_values:
            parts.append(v.narrow(2, new, 1))
        if step.cuts:
            parts.append(k.narrow(2, 0, 1))
        self.copies = (torch.cat(parts, 1),) if step.in_one else tuple(x.clone() for x in parts)

    def __call__(self, output: Any) -> None:
        """Keep a copy of the output; an output of another shape than (B, H, 1, Dv) counts as not seen."""
        (B, H, _, _), _, (_, _, _, size) = self.step.shapes
        if isinstance(output, Tensor) and output.shape == (B, H, 1, size):
            self._keep(output)

    def take_result(self, result: Any) -> bool:
        """Keep a copy of the output that transformers' interface returned; False if it has another form."""
        output = result[0] if type(result) is tuple and len(result) == 2 else result
        (B, H, _, _), _, (_, _, _, size) = self.step.shapes
        if type(output) is not Tensor or output.shape != (B, 1, H, size):
            return False
        with torch._C.DisableTorchFunction():
            if self.verify is None:
                self.output = output.transpose(1, 2).clone(memory_format=torch.contiguous_format)
                self.has_output = True
            else:
                self._keep(output.transpose(1, 2))
        return True

    def _keep(self, output: Tensor) -> None:
        if self.verify is None:
            self.output, self.has_output = output.clone(memory_format=torch.contiguous_format), True
        else:
            verify, self.verify = self.verify, None  # it holds q, k and v
            self.has_output = verify(output)

    @staticmethod
    def joined(calls: Sequence[NotedCall]) -> list[Tensor]:
        """Return the new positions of q, k, v (if kept), and the first keys, of calls of one layer.

        Each is (B, heads, calls, size); the first keys exist if the cache has a window.
        """
        together = [torch.cat(own, 2) for own in zip(*(one.copies for one in calls), strict=True)]
        if len(together) > 1:
            return together
        step = calls[0].step
        (_, H, *_), (_, G, *_), _ = step.shapes
        return list(together[0].split([H, G, *([G] if step.keeps_values else []), *([G] if step.cuts else [])], 1))
