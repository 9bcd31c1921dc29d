"""Which living tensors of a model are scores and weights, and the reports about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ..._utils.validation import FLOATS
from ..call.observed_call import ObservedCall
from ..verify.verification import DroppedWeights
from .heads_axis import HeadsAxes, functions
from .positions_order import PositionOrder
from .traced_scores import RowNumbers, SeenSoftmax, Sizes, Traced, TracedMatrix, TracedScores, TracedWeights, Unfollowed

USE_RETURNED_WEIGHTS = (
    "call it with output_attentions=True, if it has that, and give output.attentions to AttentionWidget.from_weights"
)
UNTRACED_SOFTMAX = (
    "its softmax is not of a product of q and k with a scale, a mask and a bias (it may be sparse): "
    f"{USE_RETURNED_WEIGHTS}"
)
BLOCKED_QUERIES = f"its queries and keys come in blocks, which are not places in the text: {USE_RETURNED_WEIGHTS}"
CHANGED_SCORES = "its scores go through {}, which is not a scale, mask or bias: " + USE_RETURNED_WEIGHTS
CHANGED_WEIGHTS = "its weights go through {} before they meet v: " + USE_RETURNED_WEIGHTS
NO_VALUES = f"its weights were not seen to meet v, or only a part of them: {USE_RETURNED_WEIGHTS}"
VALUES_BY_QUERY = (
    "each of its queries has values of its own, gathered or in a band, so its weights are not queries × keys: "
    + USE_RETURNED_WEIGHTS
)
MERGED = (
    "it merges partial attentions by their log-sum-exp, and no map of a part is its attention: call it with all keys "
    "at once, or give its q, k and v to AttentionWidget"
)
NEGATIVE = f"some of its weights are below 0: {USE_RETURNED_WEIGHTS}"
NOT_NORMALIZED = f"the rows of its weights do not sum to 1: {USE_RETURNED_WEIGHTS}"
NO_SOFTMAX = (
    "between its scores and v there is no softmax that can be followed (the last step seen is {}): "
    + USE_RETURNED_WEIGHTS
)
MIN_AXES = 3  # of tensors that count as attention in any module


@dataclass(frozen=True)
class Caller:
    """The module, or function, that calls a function of torch.

    Attributes:
        name: under which its calls are recorded; None if it does not belong to the model.
        is_attention: whether its name, or the name of its class, says so.
    """

    name: str | None
    is_attention: bool


class Reports(Protocol):
    """Takes the calls that a tracer finds."""

    def record_traced(
        self, read: Callable[[], ObservedCall], seen: Tensor | DroppedWeights, written: Tensor | None
    ) -> None:
        """Record a call.

        Args:
            read: returns the call.
            seen: its output (B, H, Q, Dv), to verify it.
            written: the result of the traced function as (B, H, Q, Dv); None if it is only a part of it.
        """

    def report_unreadable(
        self, why: str, caller: Caller | None = None, *, certain: bool = False, unused: bool = False
    ) -> None:
        """Note that a module, by default the calling one, may compute attention that cannot be read.

        Args:
            why: the reason.
            caller: the module.
            certain: it is attention; otherwise it counts only in a module with such a name.
            unused: nothing used these weights, because another call gives the output.
        """

    def caller(self) -> Caller:
        """Return the module that calls."""

    def head_count(self) -> int | None:
        """Return the number of heads that the calling module reports."""

    def record_weights(self, weights: Tensor, v: Tensor, output: Tensor, written: Tensor, why: str) -> None:
        """Record weights whose q and k are unknown.

        Args:
            weights: (B, H, Q, K).
            v: (B, H or 1, K, Dv).
            output: their product, (B, H, Q, Dv).
            written: the same with the model's gradients; a view of the traced function's result if there is one.
            why: the reason to give where they cannot be kept.
        """

    def report_merged(self) -> None:
        """Note that the calling module merges the outputs of its calls, so that none of them is its attention."""

    def reading_failed(self, error: Exception) -> None:
        """Note that our own reading of a call has failed."""

    def is_over_positions(self, keys: int, rows: int) -> bool:
        """Return whether the calling module was given so many positions, and so many samples or a multiple.

        Args:
            keys: the number of keys of a softmax.
            rows: the number of samples and heads.
        """


class TracedTensors:
    """Knows which of a model's living tensors are scores or weights, or made from them."""

    def __init__(self, reports: Reports) -> None:
        self._reports, self._heads, self.order = reports, HeadsAxes(), PositionOrder()
        self._traced: Any = WeakIdKeyDictionary()  # the description of each tensor, and its version then
        self._outputs: Any = WeakIdKeyDictionary()  # of attention calls
        self._has_numbers = False  # whether the log-sum-exp of rows was computed
        self._waiting: dict[SeenSoftmax, None] = {}  # whose weights have not met their values yet

    def _follow_change(self, x: Tensor) -> bool:
        """Note that the traced function changed a tensor in place; return whether it was unchanged before."""
        entry = self._traced.get(x)
        if entry is None or _version(x) - entry[1] not in (0, 1):
            return False
        self._traced[x] = entry[0], _version(x)
        return True

    def _note(self, x: Tensor, found: Traced) -> None:
        self._has_numbers |= isinstance(found, RowNumbers)
        self._traced[x] = found, _version(x)

    @property
    def follows_any(self) -> bool:
        """Whether there are scores or weights that have not met values yet."""
        return bool(self._traced) or bool(self._waiting)

    def of(self, x: Any) -> Traced | None:
        """Return the description of a tensor; None if it is neither scores nor weights nor made from them."""
        found = self._traced.get(x) if isinstance(x, Tensor) and self._traced else None
        if found is None:
            return None
        known, version = found
        if version == _version(x):
            return known
        return self._changed(x, known)

    def _changed(self, x: Tensor, known: Traced) -> Traced | None:
        """Return the description of a tensor that was changed in place, by a view of it or unseen."""
        if isinstance(known, TracedMatrix):
            return known
        if isinstance(known, TracedWeights):
            self._give_up(known, "a change in place")
            return None
        return Unfollowed(tuple(x.shape), "a change in place", None) if isinstance(known, TracedScores) else None

    def note_output(self, output: Any, log_sum_exp: Any = None) -> None:
        """Note the output of an attention call, and the log-sum-exp of its rows if it is returned."""
        if isinstance(output, Tensor):
            self._outputs[output] = None
        if isinstance(log_sum_exp, Tensor):
            self._note(log_sum_exp, RowNumbers())

    def _find_merge(self, func: Any, result: Tensor, given: list[Tensor]) -> None:
        """Report partial attentions that are merged by their log-sum-exp: their outputs times numbers made from it."""
        numbers = [x for x in given if isinstance(self.of(x), RowNumbers)]
        outputs = {x.untyped_storage()._cdata for x in list(self._outputs)}
        is_output = [x for x in given if x.untyped_storage()._cdata in outputs]
        if numbers and is_output:
            self._reports.report_merged()
        elif numbers and (result.shape[-1] == 1 or result.numel() == numbers[0].numel() or func in JOINS):
            self._note(result, RowNumbers())
        elif is_output and func in JOINS:
            self._outputs[result] = None

    def _lose(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that something was made from scores or weights and is not followed."""
        if func in CHOICES and isinstance(result, tuple):
            result = result[0]
        if not isinstance(result, Tensor) or result.dtype not in FLOATS or result.ndim < 2:
            return
        name = getattr(func, "__name__", str(func))
        if name in FRESH:
            return
        given = list(tensors_in((*args, *kwargs.values())))
        if self._outputs or self._has_numbers:
            self._find_merge(func, result, given)
        for x in given:
            known = self._traced.get(x)
            known = None if known is None else known[0]
            if isinstance(known, TracedWeights):
                self._give_up(known, name)
            elif isinstance(known, TracedScores | Unfollowed) and (
                func in JOINS or func in CHOICES or _is_alike(result, known.shape)
            ):
                made = known if isinstance(known, Unfollowed) else Unfollowed((), name, self._reports.caller())
                self._note(result, replace(made, shape=tuple(result.shape)))

    def _give_up(self, known: TracedWeights, name: str) -> None:
        known.softmax.why = known.softmax.why or CHANGED_WEIGHTS.format(name)

    def finish(self) -> None:
        """Report weights that have met no values."""
        waiting, self._waiting = self._waiting, {}
        for softmax in waiting:
            unused = softmax.why is None and not softmax.parts
            why = softmax.why or softmax.origin or NO_VALUES
            self._reports.report_unreadable(why, softmax.caller, certain=softmax.certain, unused=unused)


def _version(x: Tensor) -> int:
    return -1 if x.is_inference() else x._version


def tensors_in(given: Any) -> Iterator[Tensor]:
    """Yield the tensors among arguments."""
    for x in given:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, tuple | list):
            yield from (one for one in x if isinstance(one, Tensor))


def _is_alike(result: Tensor, shape: Sizes) -> bool:
    """Return whether a tensor may hold scores of the same queries and keys."""
    return tuple(result.shape[-2:]) == shape[-2:] or result.numel() == math.prod(shape)


# Functions that make new numbers in the shape of scores.
FRESH = {f"{name}_like" for name in ("zeros", "ones", "empty", "full", "rand", "randn")} | {
    "new_zeros", "new_ones", "new_full", "new_empty", "new_tensor",
}  # fmt: skip
CHOICES = functions("topk", "sort", "gather", "take_along_dim", "index_select")
JOINS = functions("cat", "concat", "stack") | {F.pad}
