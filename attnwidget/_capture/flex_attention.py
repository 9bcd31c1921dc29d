"""FlexAttention's masks and score functions as functions of indices that the engine can ask.

FlexAttention asks them one cell at a time, under vmap, so they may hold what only works so: here too they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def per_cell(function: Callable[..., Any], *arguments: Any) -> Tensor:
    """A function of numbers, of each cell of tensors that broadcast."""
    device = next(x.device for x in arguments if isinstance(x, Tensor) and x.ndim)
    tensors = [torch.as_tensor(x, device=device) for x in arguments]
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    found = torch.vmap(function)(*(x.expand(shape).reshape(-1) for x in tensors))
    return found.reshape(shape)


class ScoreMod:
    """score_mod(score, b, h, q_idx, kv_idx) -> score."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", "score_mod")

    def __call__(self, score: Tensor, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Tensor:
        return per_cell(self.function, score, b, h, q_idx, kv_idx)


class MaskMod:
    """mask_mod(b, h, q_idx, kv_idx) -> bool, within the blocks that a block mask leaves."""

    def __init__(
        self, function: Callable[..., Any] | None, partial: Tensor, full: Tensor | None, block: tuple[int, int]
    ) -> None:
        self.function, self._partial, self._full, self._block = function, partial, full, block
        self.sizes = tuple(partial.shape[:2])  # for how many samples and heads it differs
        self.__name__ = getattr(function, "__name__", "mask_mod")

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Tensor:
        rows, columns = self._block
        B, H = self.sizes
        at = (b * (B > 1), h * (H > 1), q_idx // rows, kv_idx // columns)
        found = self._partial[at]
        if self.function is not None:
            found = found & per_cell(self.function, b, h, q_idx, kv_idx)
        return found if self._full is None else found | self._full[at]


def is_block_mask(mask: Any) -> bool:
    """Whether this is FlexAttention's own kind of mask."""
    return hasattr(mask, "kv_num_blocks") and hasattr(mask, "mask_mod")


def read_block_mask(mask: Any) -> MaskMod | None:
    """A `BlockMask` as a function; None if it blocks nothing."""
    parts = (mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices)
    return read_blocks(parts, mask.BLOCK_SIZE, mask.mask_mod)


def read_tuple(mask: Sequence[Any]) -> MaskMod | None:
    """A block mask as FlexAttention hands it on: a tuple that ends with the size of blocks and mask_mod."""
    tensors = [x for x in mask if x is None or isinstance(x, Tensor)]
    *_, rows, columns, function = mask
    return read_blocks(tensors[:4], (rows, columns), function)


def read_blocks(parts: Sequence[Any], block: Any, function: Callable[..., Any]) -> MaskMod | None:
    """Blocks as counts and indices, and the function within those that are not full."""
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    noop = function is None or function is getattr(flex, "noop_mask", None)
    partial, full = (_blocks(counts, indices) for counts, indices in (parts[:2], parts[2:4]))
    assert partial is not None
    if noop and bool((partial if full is None else partial | full).all()):
        return None
    return MaskMod(None if noop else function, partial, full, (int(block[0]), int(block[1])))


def _blocks(counts: Tensor | None, indices: Tensor | None) -> Tensor | None:
    """(B, H, rows, columns) of blocks: which are there."""
    if counts is None or indices is None:
        return None
    columns = indices.shape[-1]
    listed = torch.arange(columns, device=counts.device) < counts[..., None]
    found = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool, device=counts.device)
    places = torch.where(listed, indices.long().clamp(max=columns), columns)
    return found.scatter_(-1, places, torch.ones_like(listed))[..., :columns]
