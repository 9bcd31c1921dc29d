"""Texts for a model, and the samples of a forward pass with the tokens of each layer's keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._analysis.metrics import as_ids
from ..._utils.validation import told
from ...attention import Attention
from ..call.call_text import UNKNOWN
from ..modules.module_walk import device_of
from ..text.labels import Labels, can_spell
from .capture import Forward


class TextSample(NamedTuple):
    """One text: its layers by number and name, each with a number for each token of its keys.

    words: of each layer, the tokens of its keys as strings; None if unknown.
    """

    layers: list[tuple[int, str, Attention, Tensor | None]]
    batch: int
    text: TextOfSample
    forward: Forward | None = None
    words: list[list[str] | None] = []  # noqa: RUF012  a default of a tuple


class TextOfSample(NamedTuple):
    """What segments are found by: ids with a tokenizer, or a string for each token."""

    tokenizer: Any = None
    ids: Tensor | None = None
    tokens: list[str] | None = None


def samples_of_forward(forward: Forward, *, main: bool, ids: Tensor | None = None) -> Iterator[TextSample]:
    """Yield the samples of one forward pass; `ids` were read by the model, if the capture does not know them."""
    numbers = {name: number for number, name in enumerate(forward.attention.names)}
    stacks = [one for one in forward.stacks().values() if not one.cross]
    if main and (of_text := forward._main_stack()) is not None:  # noqa: SLF001
        stacks = [of_text]
    layers: list[tuple[int, str, Attention, Sequence[Tensor | None] | None, Labels | None]] = []
    side = stacks[-1].keys
    raw = ids if side.ids is None else side.ids
    for one in stacks:
        words = one.keys.as_words(forward.tokenizer)
        known: list[Tensor | None] | None = None if words is None else [as_ids(sample) for sample in words]
        for name, att in zip(one.records, one.attention, strict=True):
            if known is None and ids is not None and ids.shape == (att.shape.B, att.shape.K):
                known = [*ids]
            layers.append((numbers[name], name, att, known, words))
    layers.sort(key=lambda layer: layer[0])
    for batch in range(max(layer[2].shape.B for layer in layers)):
        there = [layer for layer in layers if batch < layer[2].shape.B]
        text = TextOfSample(
            forward.tokenizer if can_spell(forward.tokenizer) else None,
            None if raw is None or batch >= len(raw) or bool((raw[batch] == UNKNOWN).any()) else raw[batch],
        )
        of_layers = [(i, name, att, None if k is None else k[batch]) for i, name, att, k, _ in there]
        yield TextSample(of_layers, batch, text, forward, [None if w is None else w[batch] for *_, w in there])


def inputs_of(text: Any, tokenizer: Any, module: torch.nn.Module) -> Any:
    """Return the model's arguments for a text: by name, or ids (1, n)."""
    device = device_of(module)
    if isinstance(text, str):
        if not can_spell(tokenizer):
            raise ValueError(f"texts holds a string, {told(text)}: give the tokenizer as well, as tokenizer=, or ids")
        if not callable(tokenizer):
            found = tokenizer.encode(text)
            return torch.tensor([list(getattr(found, "ids", found))], device=device)
        text = tokenizer(text, return_tensors="pt")
    if isinstance(text, Mapping) or hasattr(text, "keys"):
        return {name: x.to(device) if isinstance(x, Tensor) else x for name, x in dict(text).items()}
    ids = torch.as_tensor(text, device=device)
    if ids.ndim not in (1, 2) or ids.is_floating_point():
        raise TypeError(f"a text is {told(text)}: give a string, ids, or a dict of the model's arguments")
    return ids[None] if ids.ndim == 1 else ids
