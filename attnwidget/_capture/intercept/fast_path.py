"""Switch off torch's fast paths for inference, and keep their other effects on a model's output.

`nn.MultiheadAttention` and `nn.TransformerEncoder` have a fast path around torch's own functions. Given padding, the
encoder's fast path leaves padded places out, and puts zeros there before its last norm.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


@contextlib.contextmanager
def without_fast_path() -> Iterator[None]:
    """Make torch's own modules call its functions inside the block, and write the zeros of their fast path."""
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    forward = nn.TransformerEncoder.forward
    if was_enabled:
        nn.TransformerEncoder.forward = _writing_zeros(forward)  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.TransformerEncoder.forward = forward  # type: ignore[method-assign]
        torch.backends.mha.set_fastpath_enabled(was_enabled)


def _writing_zeros(forward: Any) -> Any:
    """Return the forward of an encoder that writes zeros at padded places when its fast path would."""

    @functools.wraps(forward)
    def writing_zeros(self: nn.TransformerEncoder, src: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        mask, padding = (
            args[i] if len(args) > i else kwargs.get(name) for i, name in enumerate(("mask", "src_key_padding_mask"))
        )
        with contextlib.ExitStack() as stack:
            if mask is None and isinstance(padding, Tensor) and _leaves_padding_out(self, src, padding):
                stack.enter_context(_zeros_after(self.layers[-1], padding != 0))
            output: Tensor = forward(self, src, *args, **kwargs)
        return output

    return writing_zeros


def _leaves_padding_out(encoder: nn.TransformerEncoder, src: Tensor, padding: Tensor) -> bool:
    """Return whether the fast path of an encoder would take its inputs: the tests of its forward, in the same order."""
    first = encoder.layers[0]
    if not getattr(encoder, "use_nested_tensor", False) or first.training or src.dim() != 3 or src.is_nested:
        return False
    if torch.is_autocast_enabled() or src.device.type not in ("cpu", "cuda", "xpu"):
        return False
    given = [src, *first.parameters()]
    if any(type(x) not in (Tensor, nn.Parameter) for x in given):
        return False
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        return False
    padded = padding != 0
    return not getattr(encoder, "mask_check", True) or bool((padded[:, 1:] >= padded[:, :-1]).all())


@contextlib.contextmanager
def _zeros_after(layer: nn.Module, padded: Tensor) -> Iterator[None]:
    """Write zeros at padded places of a layer's output, for calls of this thread inside the block."""
    thread = threading.get_ident()

    def write(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        return output.masked_fill(padded[..., None], 0.0) if threading.get_ident() == thread else None

    with contextlib.ExitStack() as stack:
        stack.callback(layer.register_forward_hook(write).remove)
        yield
