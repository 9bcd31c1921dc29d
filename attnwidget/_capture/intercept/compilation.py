"""Run compiled models uncompiled, because compiled code cannot be seen; FlexAttention stays compiled."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch

EVAL_FRAME = "torch._dynamo.eval_frame"
SETTER = "_maybe_set_eval_frame"  # with which torch 2.5 turns the compilation of frames on and off


def without_compilation() -> contextlib.AbstractContextManager[Any]:
    """Run compiled code uncompiled, inside the block."""
    return torch.compiler.set_stance("force_eager") if _has_stances() else _frames_of_2_5(compiled=False)


def with_compilation() -> contextlib.AbstractContextManager[Any]:
    """Compile again, inside a block `without_compilation`."""
    return torch.compiler.set_stance("default") if _has_stances() else _frames_of_2_5(compiled=True)


def _has_stances() -> bool:
    return hasattr(torch.compiler, "set_stance")


@contextlib.contextmanager
def _frames_of_2_5(*, compiled: bool) -> Iterator[None]:
    """Turn torch 2.5's compilation of frames on or off."""
    module = importlib.import_module(EVAL_FRAME)
    before = getattr(module, SETTER)
    own = getattr(before, "own", before)

    def none_is_compiled(callback: Any) -> Any:
        return own(None)

    none_is_compiled.own = own  # type: ignore[attr-defined]
    setattr(module, SETTER, own if compiled else none_is_compiled)
    try:
        yield
    finally:
        setattr(module, SETTER, before)
