"""FlexAttention's masks and score functions as functions of index tensors, as the engine calls them.

FlexAttention calls them for one cell at a time, under vmap, and they may use operations that need vmap: so does this.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def per_cell(function: Callable[..., Any], *arguments: Any) -> Tensor:
    """Return a function of numbers as one of tensors: arguments broadcast, and each cell is computed under vmap."""
    device = next(x.device for x in arguments if isinstance(x, Tensor) and x.ndim)
    tensors = [torch.as_tensor(x, device=device) for x in arguments]
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    with _indexing():
        found: Tensor = torch.vmap(function)(*(x.expand(shape).reshape(-1) for x in tensors))
    return found.reshape(shape)


@contextlib.contextmanager
def _indexing() -> Iterator[None]:
    """Let a function index tensors by numbers under vmap: torch 2.5 needs a mode for this, later versions do not."""
    mode = getattr(sys.modules.get("torch._higher_order_ops.flex_attention"), "TransformGetItemToIndex", None)
    if mode is None:
        yield
        return
    with torch._C._EnableTorchFunction(), mode():  # noqa: SLF001  # what verifies a call has switched modes off
        yield


class ScoreMod:
    """A score function of FlexAttention: score_mod(score, b, h, q_idx, kv_idx) -> score."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", "score_mod")

    def __call__(self, score: Tensor, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Tensor:
        return per_cell(self.function, score, b, h, q_idx, kv_idx)


class MaskMod:
    """A mask function of FlexAttention within the blocks of its block mask: mask_mod(b, h, q_idx, kv_idx) -> bool.

    Args:
        function: mask_mod; None if it allows all.
        partial: blocks in which the function decides, bool (B or 1, H or 1, block rows, block columns).
        full: fully allowed blocks, the same shape, or None.
        block_size: queries and keys of a block.
    """

    def __init__(
        self, function: Callable[..., Any] | None, partial: Tensor, full: Tensor | None, block_size: tuple[int, int]
    ) -> None:
        self.function, self._partial, self._full, self._block_size = function, partial, full, block_size
        self.sizes = tuple(partial.shape[:2])  # the samples and heads that differ
        self.__name__ = getattr(function, "__name__", "mask_mod")

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Tensor:
        rows, columns = self._block_size
        B, H = self.sizes
        block = (b * (B > 1), h * (H > 1), q_idx // rows, kv_idx // columns)
        allowed = self._partial[block]
        if self.function is not None:
            allowed = allowed & per_cell(self.function, b, h, q_idx, kv_idx)
        return allowed if self._full is None else allowed | self._full[block]


def is_block_mask(mask: Any) -> bool:
    """Return whether a mask is a `BlockMask` of FlexAttention."""
    return hasattr(mask, "kv_num_blocks") and hasattr(mask, "mask_mod")


def read_block_mask(mask: Any) -> MaskMod | None:
    """Return a `BlockMask` as a function; None if it blocks nothing."""
    parts = (mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices)
    return read_blocks(parts, mask.BLOCK_SIZE, mask.mask_mod)


def read_tuple(mask: Sequence[Any]) -> MaskMod | None:
    """Return FlexAttention's mask tuple, which ends with block sizes and mask_mod, as a function."""
    tensors = [x for x in mask if x is None or isinstance(x, Tensor)]
    *_, rows, columns, function = mask
    return read_blocks(tensors[:4], (rows, columns), function)


def read_blocks(parts: Sequence[Any], block_size: Any, function: Callable[..., Any]) -> MaskMod | None:
    """Return a block mask as a function; None if it blocks nothing.

    Args:
        parts: counts and indices of partial blocks, then of full ones, each a tensor or None.
        block_size: queries and keys of a block.
        function: mask_mod, which decides within partial blocks.
    """
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    noop = function is None or function is getattr(flex, "noop_mask", None)
    partial, full = (_listed_blocks(counts, indices) for counts, indices in (parts[:2], parts[2:4]))
    assert partial is not None
    if noop and bool((partial if full is None else partial | full).all()):
        return None
    return MaskMod(None if noop else function, partial, full, (int(block_size[0]), int(block_size[1])))


def _listed_blocks(counts: Tensor | None, indices: Tensor | None) -> Tensor | None:
    """Return which blocks are listed, bool (B or 1, H or 1, block rows, block columns)."""
    if counts is None or indices is None:
        return None
    columns = indices.shape[-1]
    listed = torch.arange(columns, device=counts.device) < counts[..., None]
    found = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool, device=counts.device)
    index = torch.where(listed, indices.long().clamp(max=columns), columns)
    return found.scatter_(-1, index, torch.ones_like(listed))[..., :columns]
