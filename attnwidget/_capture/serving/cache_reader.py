"""Keys and values in the cache of an engine, read by its blocks.

Kernels lay a block out in their own ways. The layout is not assumed: numbers that were just written are read back in
each known layout, and the layout that gives them is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .vllm_names import NULL_BLOCK, CacheBlocks, ServedLayer, cache_type, is_rounded_alike

LAYOUT_CHECKED = 8  # tokens that are read back
UNKNOWN_LAYOUT = (
    "the cache of its attention backend has a layout that is not read, and the first keys of the text are only there: "
    "start the engine with enable_prefix_caching=False"
)

Halves = tuple[Tensor, Tensor]
Layout = Callable[[Tensor], Halves]  # from blocks (n, G, block, 2 D) to keys and values (n, G, block, D)


class CachedKeys(NamedTuple):
    """Keys and values (positions, G, D) from the cache, and which of them are still there, (positions,) bool."""

    keys: Tensor
    values: Tensor
    there: Tensor


def _side_by_side(blocks: Tensor) -> Halves:
    """Each key beside its value, as kernels for accelerators have them."""
    keys, values = blocks.chunk(2, -1)
    return keys, values


def _one_after_the_other(blocks: Tensor) -> Halves:
    """All keys of a block, then all its values."""
    n, groups, size, content = blocks.shape
    keys, values = blocks.reshape(n, groups, 2 * size, content // 2).chunk(2, 2)
    return keys, values


def _keys_transposed(blocks: Tensor) -> Halves:
    """The same with keys as columns, as kernels for processors have them."""
    keys, values = _one_after_the_other(blocks)
    n, groups, size, width = keys.shape
    return keys.reshape(n, groups, width, size).mT, values


LAYOUTS: tuple[Layout, ...] = (_side_by_side, _keys_transposed, _one_after_the_other)


class CacheReader:
    """Reads the cache of one layer."""

    def __init__(self, layer: ServedLayer) -> None:
        self._layer = layer
        self._layout: Layout | None = None

    def prefix(
        self, cache: Tensor, blocks: CacheBlocks, count: int, written: tuple[Tensor, Tensor]
    ) -> CachedKeys | None:
        """Return the first keys and values of a text; None if the layout is unknown.

        Args:
            cache: of the layer, (blocks, G, block, 2 D).
            blocks: of the text.
            count: the number of keys.
            written: keys and values (tokens, G, D) of the running step, which are in the cache too.
        """
        if not self._knows_layout(cache, blocks.slots, written):
            return None
        size = cache.shape[2]
        positions = torch.arange(count, device=cache.device)
        numbers = blocks.table[: -(-count // size)].long()[positions // size]
        keys, values = self._read(cache, numbers * size + positions % size)
        return CachedKeys(keys, values, numbers != NULL_BLOCK)

    def written(self, cache: Tensor, slots: Tensor, given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor] | None:
        """Return the keys and values of a step as the cache has rounded them; None if the layout is unknown."""
        if not self._knows_layout(cache, slots, given):
            return None
        return self._read(cache, slots[: len(given[0])].long())

    def _knows_layout(self, cache: Tensor, slots: Tensor, given: tuple[Tensor, Tensor]) -> bool:
        """Find the layout by numbers that were just written."""
        if cache.ndim != 4 or not len(given[0]):
            return False
        at = torch.linspace(0, len(given[0]) - 1, LAYOUT_CHECKED, device="cpu").long().unique().to(slots.device)
        own = slots[at].long()
        at, own = at[own >= 0], own[own >= 0]
        if not len(own):
            return False
        for layout in LAYOUTS if self._layout is None else (self._layout,):
            read = self._read(cache, own, layout)
            pairs = zip(read, given, strict=True)
            if all(self._is_same(x, y[at.to(y.device)]) for x, y in pairs):
                self._layout = layout
                return True
        return False

    def _is_same(self, read: Tensor, given: Tensor) -> bool:
        return is_rounded_alike(read, given, rounded=self._layer.cache_is_rounded)

    def _read(self, cache: Tensor, slots: Tensor, layout: Layout | None = None) -> tuple[Tensor, Tensor]:
        """Return keys and values (positions, G, D) at some slots."""
        chosen, size = layout or self._layout, cache.shape[2]
        assert chosen is not None  # found before
        own, place = (slots // size).unique(return_inverse=True)
        blocks = cache[own]
        if self._layer.cache_is_rounded:
            blocks = blocks.view(cache_type(self._layer))
        found = []
        for x, scale in zip(chosen(blocks), self._layer.cache_scales, strict=True):
            rows = x[place, :, slots % size]
            found.append(rows.float() * scale if self._layer.cache_is_rounded else rows)
        return found[0], found[1]
