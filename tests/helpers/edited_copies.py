"""The same edits made in an eager copy of a model, where the weights of each softmax are at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from captured import AllInFloat64, doubled, widened
from torch import Tensor
from torch.overrides import TorchFunctionMode

Edit = Callable[[Tensor], Tensor]  # from the scores (B, K or K + 1 with a sink) of a head to its weights


def sharpened(model: Any, factor: float = 5.0) -> Any:
    """The same model with larger matrices, so that its attention is far from even."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter *= factor
    return model


class EditedWeights(TorchFunctionMode):
    """Edits the weights that a model's softmax gives, of scores (B, H, Q, K) in the order in which they are computed.

    Args:
        edits: by the number of the softmax and the head.
        sinks: whether the last column is no key.
    """

    def __init__(self, edits: Mapping[tuple[int, int], Edit], *, sinks: bool = False) -> None:
        super().__init__()
        self._edits, self._sinks, self.count = edits, sinks, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.softmax or args[0].ndim != 4:
            return func(*args, **kwargs)
        scores, weights = args[0], func(*args, **kwargs)
        for (number, head), edit in self._edits.items():
            if number == self.count:
                weights[:, head] = edited(scores[:, head].to(weights.dtype), edit, self._sinks).to(weights.dtype)
        self.count += 1
        return weights


def edited(scores: Tensor, edit: Edit, sinks: bool) -> Tensor:
    """The weights that an edit makes of scores, with the column of a sink if there is one."""
    if not sinks:
        return edit(scores)
    found = edit(scores)
    return found if found.shape == scores.shape else F.pad(found, (0, 1))


def allowed(scores: Tensor) -> Tensor:
    return scores > torch.finfo(torch.float32).min / 2


def zero(scores: Tensor) -> Tensor:
    return torch.zeros_like(scores)


def even_of(keys: int) -> Edit:
    """Even weights over the keys that are allowed, of so many; none for a sink."""

    def even(scores: Tensor) -> Tensor:
        found = allowed(scores) & (torch.arange(scores.shape[-1]) < keys)
        return found / found.sum(-1, keepdim=True).clamp(min=1)

    return even


def without(cells: Callable[[Tensor, Tensor], Tensor]) -> Edit:
    """Softmax without the cells of which a function of queries and keys is true."""

    def edit(scores: Tensor) -> Tensor:
        rows, keys = torch.arange(scores.shape[-2])[:, None], torch.arange(scores.shape[-1])
        return scores.masked_fill(cells(rows, keys), -torch.inf).softmax(-1).nan_to_num()

    return edit


def run(model: Any, inputs: Mapping[str, Tensor], edits: Mapping[tuple[int, int], Edit], *, sinks: bool = False) -> Any:
    """The output of an eager model whose weights are edited."""
    with torch.no_grad(), EditedWeights(edits, sinks=sinks):
        return model(**inputs)


def run_in_float64(
    model: Any, inputs: Mapping[str, Tensor], edits: Mapping[tuple[int, int], Edit], *, sinks: bool = False
) -> Any:
    wide = {name: widened(x) for name, x in inputs.items()}
    with torch.no_grad(), AllInFloat64(), EditedWeights(edits, sinks=sinks):
        return doubled(model)(**wide)
