"""What a test may leave behind in its process, for all that run after it: hooks of captures, torch's own settings."""

from __future__ import annotations

import sys
from typing import Any

import torch


def switched() -> dict[str, tuple[object, object]]:
    """Return how some settings of the process are, and how they are where nothing is switched."""
    hooks: Any = sys.modules.get("attnwidget._capture.intercept.hooks")
    of_captures = (
        {}
        if hooks is None
        else {
            "open captures and edits": (len(hooks._listeners), 0),
            "attention functions it is inside of": (hooks._thread.depth + hooks._thread.heads, 0),
        }
    )
    return {
        **of_captures,
        "function modes of torch": (torch._C._len_torch_function_stack(), 0),
        "gradients": (torch.is_grad_enabled(), True),
        "inference mode": (torch.is_inference_mode_enabled(), False),
        "default dtype": (torch.get_default_dtype(), torch.float32),
        "deterministic algorithms": (torch.are_deterministic_algorithms_enabled(), False),
    }  # fmt: skip


def put_right() -> None:
    """Switch all of it back."""
    hooks: Any = sys.modules.get("attnwidget._capture.intercept.hooks")
    if hooks is not None:
        for listener in list(hooks._listeners):
            hooks.remove_listener(listener)
        hooks.forget_interrupted()
    while torch._C._len_torch_function_stack():
        torch._C._pop_torch_function_stack()
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
