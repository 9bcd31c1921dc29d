"""Several layers and forward passes as one map: how they are chosen, checked and combined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..._engine.combined_heads import HOW, combined_layers
from ..._messages.codec.patches import Grid, of_layer
from ..._utils.indexing import as_index
from ..._utils.validation import as_choice, told
from ...attention import Attention
from ...stack import AttentionStack

NAMES = ("how", "layers", "heads", "forwards")
FORM = (
    'give "mean" or "max", or a dict such as {"how": "mean", "layers": [0, 1], "heads": None, "forwards": "all"}; '
    "None shows single layers"
)


class AcrossLayers(NamedTuple):
    """Several layers as one: a stack of one layer, and the number of the largest of them, whose patches it has."""

    stack: AttentionStack
    largest: int


@dataclass(frozen=True)
class Across:
    """Which layers and forward passes are one map.

    Attributes:
        how: "mean" or "max".
        layers, heads: their numbers; None: all.
        forwards: the numbers of forward passes; None: the one on display, "all": all.
    """

    how: str
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    forwards: tuple[int, ...] | str | None = None

    def combine(
        self, attention: Sequence[Attention], grid: Grid | None, others: Callable[[], list[Sequence[Attention]]]
    ) -> AcrossLayers:
        """Return one layer with one head.

        Args:
            attention: the layers of the forward pass on display.
            grid: of their patches, or None.
            others: returns the layers of each chosen forward pass.

        Raises:
            IndexError, ValueError, TypeError: they do not exist, or cannot be combined.
        """
        numbers = [as_index(layer, len(attention), "layer", "layers") for layer in self.layers or range(len(attention))]
        passes = [attention] if self.forwards is None else others()
        chosen = [layers[number] for layers in passes for number in numbers]
        grids = self._grids(attention, numbers * len(passes), grid)
        of_passes = "" if self.forwards is None else f", {len(passes)} forward passes"
        found = combined_layers(chosen, numbers * len(passes), self.heads, self.how, grids, of_passes)
        told_as = f"layers {', '.join(map(str, numbers))}" if self.layers is not None else "all layers"
        name = f"{'mean' if self.how == 'mean' else 'maximum'} of {told_as}{of_passes}"
        largest = max(numbers, key=lambda number: attention[number].shape.Q)
        return AcrossLayers(AttentionStack([found], [name]), largest)

    def _grids(
        self, attention: Sequence[Attention], numbers: Sequence[int], grid: Grid | None
    ) -> list[tuple[int, int]] | None:
        """Return the grids of layers that differ in size, if every query is a patch; None if they do not differ."""
        own = None if grid is None else [of_layer(grid, number, None, "auto") for number in numbers]
        if own is None or not any(own):
            return None
        if any(one is not None and one.windows is not None for one in own):
            raise ValueError("samples are windows of an image, which lie elsewhere in another layer: show one layer")
        if len({attention[number].shape.Q for number in numbers}) == 1:
            return None
        if any(one is None or one.many != attention[number].shape.Q for one, number in zip(own, numbers, strict=True)):
            return None
        return [(one.frames * one.rows, one.columns) for one in own if one is not None]


def as_across(value: Any) -> Across | None:
    """Return a user's value; None shows single layers.

    Raises:
        TypeError, ValueError: it is not one of the forms.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return Across(as_choice(value, HOW, "across"))
    if not isinstance(value, Mapping) or {*value} - {*NAMES}:
        raise TypeError(f"across is {told(value)}: {FORM}")
    layers, heads = (_numbers(value.get(name), name) for name in ("layers", "heads"))
    forwards = value.get("forwards")
    of_passes = "all" if forwards == "all" else _numbers(forwards, "forwards")
    return Across(as_choice(value.get("how", "mean"), HOW, "across['how']"), layers, heads, of_passes)


def _numbers(value: Any, name: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    numbers = tuple(value) if isinstance(value, Sequence | range) and not isinstance(value, str) else ()
    if not numbers or not all(type(one) is int for one in numbers):
        raise TypeError(f"across[{name!r}] is {told(value)}: give a list of numbers, such as [0, 1], or None for all")
    return numbers


def message_of(across: Across | None) -> dict[str, Any] | None:
    """Return it as JSON."""
    if across is None:
        return None
    found = {name: getattr(across, name) for name in NAMES}
    return {name: [*value] if isinstance(value, tuple) else value for name, value in found.items()}
