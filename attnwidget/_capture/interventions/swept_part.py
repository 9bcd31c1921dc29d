"""One part that a sweep edits: a head, a layer, an edge, or keys in all heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._utils.validation import nearest, told

OF_KEYS = ("zero", "cut", "uniform")


@dataclass(frozen=True)
class SweptPart:
    """A part of the model or the text that is edited alone.

    Attributes:
        layer, head: the layer and head; None: all.
        queries: the queries of an edge; None: all.
        keys: positions of keys; None: a whole head or layer.
        layers: where keys are edited; None: all.
    """

    layer: int | None = None
    head: int | None = None
    queries: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None
    layers: tuple[int, ...] | None = None

    def numbers(self, layers: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers of the layers that are edited, among those that can be."""
        wanted = layers if self.layers is None else self.layers
        return tuple(one for one in (wanted if self.layer is None else (self.layer,)) if one in layers)

    def edits(self, edit: Any, layers: Sequence[int]) -> dict[Any, Any]:
        """Return the edit of this part, in the form that `intervene` takes.

        Args:
            edit: for a head or layer, any edit of `intervene`, or "cut", here a synonym of "zero". For keys, "zero": no
                query attends to them, and the other keys take over their weight; "cut": their weights become 0, and
                the other weights stay; "uniform": their total weight is spread evenly over them.
            layers: the numbers of the layers that can be edited.

        Raises:
            ValueError: keys do not have this edit.
        """
        if self.keys is None:
            edit = "zero" if isinstance(edit, str) and edit == "cut" else edit  # weights of 0 give an output of 0
            return {self.layer if self.head is None else (self.layer, self.head): edit}
        own = self._of_keys(edit, list(self.keys))
        which = self.numbers(layers)
        return {layer if self.head is None else (layer, self.head): own for layer in which}

    def _of_keys(self, edit: Any, keys: list[int]) -> Any:
        queries = None if self.queries is None else list(self.queries)
        if edit == "zero":
            return {"drop_keys": keys} if queries is None else {"block": (queries, keys)}
        if edit == "cut":
            return {"block": (queries, keys), "renormalize": False}
        if edit == "uniform" and queries is None:
            return spread_over(keys)
        raise ValueError(
            f"edit is {told(edit)}: {nearest(edit, OF_KEYS)}keys and segments take 'zero', 'cut' and 'uniform'; for "
            "other edits call effect(model, inputs, edits) for each"
        )


def spread_over(keys: Sequence[int]) -> Callable[[Any], Tensor]:
    """Return an edit that spreads the total weight on some keys evenly over the allowed ones."""

    def spread(block: Any) -> Tensor:
        weights: Tensor = block.weights
        places = [key - block.keys.start for key in keys if key in block.keys]
        index = torch.tensor(places, dtype=torch.int64, device=weights.device)
        allowed = block.allowed.expand_as(weights)[..., index].to(weights.dtype)
        mass = weights[..., index].sum(-1, keepdim=True)
        return weights.index_copy(-1, index, mass * allowed / allowed.sum(-1, keepdim=True).clamp_min(1))

    spread.__name__ = f"spread over {len(keys)} keys"
    return spread


def name_of_edit(edit: Any) -> str:
    """Return a short name of an edit, for records."""
    if isinstance(edit, str):
        return edit
    if isinstance(edit, Mapping):
        return ", ".join(f"{name} {told(value)}" for name, value in edit.items())
    return getattr(edit, "__name__", type(edit).__name__)
