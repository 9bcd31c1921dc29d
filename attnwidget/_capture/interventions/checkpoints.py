"""Repeat edits when `torch.utils.checkpoint` recomputes parts of a model in the backward pass.

Torch keeps the function that it will call in the backward pass in the context of `CheckpointFunction`, or in a
`_CheckpointFrame`. That function is wrapped in a `Recomputation`, which makes the same edits whenever it runs: inside
the block of the intervention, after the block, or in another thread.
"""

from __future__ import annotations

import contextlib
import inspect
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
    """The edits of one call, without its tensors.

    Attributes:
        by_head: the edits by head and sample.
        shapes: the shapes of its q and k.
        place: the fields of `SeenCall` after the call.
        continues: whether its cache was known before.
    """

    by_head: ByHead
    shapes: tuple[torch.Size, torch.Size]
    place: tuple[Any, ...]
    continues: bool


class Repeated(dict[str, list[EditedCall | None]]):
    """The calls in a part of a model, in order, by module name; None for calls that are not edited."""


class Repeats(Protocol):
    """An intervention that edits calls when they are computed again."""

    order: int

    def repeating(self, calls: Repeated) -> contextlib.AbstractContextManager[None]:
        """Edit only these calls inside the block."""


class Recomputation:
    """A function that a backward pass calls, with the edits that were made in it.

    Args:
        function: recomputes a part of a model.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._calls: dict[Repeats, Repeated] = {}

    def note(self, by: Repeats, module: str, edited: EditedCall | None) -> None:
        """Record a call of a module in the forward pass."""
        self._calls.setdefault(by, Repeated()).setdefault(module, []).append(edited)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Recompute the part with the same edits."""
        with contextlib.ExitStack() as stack:
            for one in sorted(self._calls, key=lambda one: one.order):
                stack.enter_context(one.repeating(self._calls[one]))
            return self._function(*args, **kwargs)


@dataclass
class CheckpointsAround:
    """The checkpoints around a call.

    Attributes:
        parts: the checkpoints, innermost first.
        is_unknown: whether something else will recompute the call.
    """

    parts: list[Recomputation]
    is_unknown: bool = False


def checkpoints_around() -> CheckpointsAround:
    """Return the functions on the calling stack that a backward pass will run again."""
    found = CheckpointsAround([])
    for frame in _frames():
        is_torchs = frame.f_globals.get("__name__") == checkpoint.__name__
        kept = _kept_by_torch(frame) if is_torchs else None
        if kept is not None:
            found.parts.append(_recomputation(*kept))
        elif _has_own_backward(frame) or (is_torchs and _is_checkpoint(frame) and torch.is_grad_enabled()):
            found.is_unknown = True
    found.is_unknown |= _is_kept_elsewhere(found.parts)
    return found


_autograd: Any = getattr(torch._C, "_autograd", None)
_top_hooks: Any = getattr(_autograd, "_top_saved_tensors_default_hooks", lambda _: None)


def _is_kept_elsewhere(parts: list[Recomputation]) -> bool:
    """Return whether tensors are kept for another checkpoint of torch, such as one that hooks have begun."""
    hooks = _top_hooks(True)
    pack: Any = hooks[0] if hooks else None
    if getattr(pack, "__module__", "") != checkpoint.__name__ or not pack.__qualname__.startswith("_checkpoint_hook."):
        return False
    known = inspect.getclosurevars(pack).nonlocals.get("frame")
    return not any(getattr(known, "recompute_fn", None) is part for part in parts)


def _frames() -> Iterator[types.FrameType]:
    """Yield the frames of the calling stack, up to one that is being recomputed."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not Recomputation.__call__.__code__:
        yield frame
        frame = frame.f_back


def _kept_by_torch(frame: types.FrameType) -> tuple[Any, str] | None:
    """Return the object that keeps the function to recompute, and its attribute; None if nothing does."""
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
    """Return whether a frame is torch's `checkpoint` of the non-reentrant kind."""
    return frame.f_code.co_name == "checkpoint" and not frame.f_locals.get("use_reentrant")


def _recomputation(kept: Any, name: str) -> Recomputation:
    """Return the kept function as a `Recomputation`, wrapping it if needed."""
    found = getattr(kept, name)
    if not isinstance(found, Recomputation):
        found = Recomputation(found)
        setattr(kept, name, found)
        if name == "recompute_fn":
            kept.early_stop = False  # only at its end is it known whether every call was repeated
    return found


def _has_own_backward(frame: types.FrameType) -> bool:
    """Return whether a frame is the forward of a `torch.autograd.Function` that needs gradients."""
    if frame.f_code.co_name != "forward" or not frame.f_code.co_argcount:
        return False
    first = frame.f_locals.get(frame.f_code.co_varnames[0])
    return isinstance(first, torch.autograd.function.FunctionCtx) and any(getattr(first, "needs_input_grad", ()))
