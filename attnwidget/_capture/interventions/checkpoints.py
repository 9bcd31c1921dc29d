"""Parts of a model that `torch.utils.checkpoint` computes again in the backward pass: edited as they were before.

Torch keeps what it will call in the backward pass in the context of `CheckpointFunction`, or in a `_CheckpointFrame`.
What is kept there is put into a `Recomputation`, which edits the same calls in the same way whenever it is run: inside
of the block of the intervention, after its end, in any thread.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils import checkpoint

from .edits import ByHead


@dataclass(frozen=True)
class EditedCall:
    """What is done to one call, without its tensors.

    Attributes:
        by_head: the edits of each head that has any, of each sample.
        shapes: of its q and k.
        place: the fields of `SeenCall` after the call.
        continues: whether its cache was known before.
    """

    by_head: ByHead
    shapes: tuple[torch.Size, torch.Size]
    place: tuple[Any, ...]
    continues: bool


class Repeated(dict[str, list[EditedCall | None]]):
    """The calls of a part of a model, by the name of their module, in their order; None for those not edited."""


class Repeats(Protocol):
    """An intervention that edits calls when they are computed again."""

    order: int

    def repeating(self, calls: Repeated) -> contextlib.AbstractContextManager[None]:
        """Edit these calls inside the block, and no others."""


class Recomputation:
    """A function that a backward pass calls, with what interventions have edited in it.

    Args:
        function: that computes a part of a model again.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._calls: dict[Repeats, Repeated] = {}

    def note(self, by: Repeats, module: str, edited: EditedCall | None) -> None:
        """Note a call of a module in the forward pass."""
        self._calls.setdefault(by, Repeated()).setdefault(module, []).append(edited)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute it again, with the same edits."""
        with contextlib.ExitStack() as stack:
            for one in sorted(self._calls, key=lambda one: one.order):
                stack.enter_context(one.repeating(self._calls[one]))
            return self._function(*args, **kwargs)


@dataclass
class Surroundings:
    """What a call stands in.

    Attributes:
        parts: the checkpoints, the innermost first.
        is_unknown: whether it is computed again by anything else.
    """

    parts: list[Recomputation]
    is_unknown: bool = False


def surroundings() -> Surroundings:
    """Return which functions of the calling stack a backward pass will run again."""
    found = Surroundings([])
    for frame in _frames():
        is_torchs = frame.f_globals.get("__name__") == checkpoint.__name__
        kept = _kept_by_torch(frame) if is_torchs else None
        if kept is not None:
            found.parts.append(_recomputation(*kept))
        elif _has_own_backward(frame) or (is_torchs and _is_checkpoint(frame) and torch.is_grad_enabled()):
            found.is_unknown = True
    return found


def _frames() -> Iterator[types.FrameType]:
    """Yield the frames of the calling stack, up to one that is computed again itself."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not Recomputation.__call__.__code__:
        yield frame
        frame = frame.f_back


def _kept_by_torch(frame: types.FrameType) -> tuple[Any, str] | None:
    """Return what keeps the function that is to be called again, and its name there; None where nothing does."""
    if frame.f_code.co_name == "forward" and _has_own_backward(frame):
        context = frame.f_locals[frame.f_code.co_varnames[0]]
        return (context, "run_function") if hasattr(context, "run_function") else None
    if not _is_checkpoint(frame):
        return None
    variables = frame.f_locals
    generator = variables.get("gen")
    if variables.get("context_fn") is not checkpoint.noop_context_fn or not isinstance(generator, types.GeneratorType):
        return None
    inner = {} if generator.gi_frame is None else generator.gi_frame.f_locals
    kept = inner.get("new_frame")
    return (kept, "recompute_fn") if hasattr(kept, "recompute_fn") and hasattr(kept, "early_stop") else None


def _is_checkpoint(frame: types.FrameType) -> bool:
    """Return whether a frame of torch is `checkpoint`, but for the kind that calls `CheckpointFunction`."""
    return frame.f_code.co_name == "checkpoint" and not frame.f_locals.get("use_reentrant")


def _recomputation(kept: Any, name: str) -> Recomputation:
    """Return the function that is kept, as one that can be edited."""
    found = getattr(kept, name)
    if not isinstance(found, Recomputation):
        found = Recomputation(found)
        setattr(kept, name, found)
        if name == "recompute_fn":
            kept.early_stop = False  # it is known only at its end whether every call was met again
    return found


def _has_own_backward(frame: types.FrameType) -> bool:
    """Return whether a frame is the forward of a `torch.autograd.Function` that gradients are to flow through."""
    if frame.f_code.co_name != "forward" or not frame.f_code.co_argcount:
        return False
    first = frame.f_locals.get(frame.f_code.co_varnames[0])
    return isinstance(first, torch.autograd.function.FunctionCtx) and any(getattr(first, "needs_input_grad", ()))
