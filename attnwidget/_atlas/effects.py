"""The effect of each head on the loss: the change of a text's mean loss when the head's output is zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .._capture.interventions.sweep import sweep

Loss = Callable[[Any, Any], Any]
NO_LOGITS = (
    "effects=True compares the loss of the next token, and the model gave no logits (1, tokens, vocabulary): give a "
    "model that predicts tokens, or effects=function(output, inputs), which returns one number"
)
NOT_CAUSAL = (
    "effects=True compares the loss of the next token, and this model reads the tokens after it too: give "
    "effects=function(output, inputs), which returns one number"
)


def next_token_loss(output: Any, inputs: Any) -> Tensor:
    """Return −log p of each next token, the mean over a text, in nats.

    Args:
        output: of the model, with logits (1, n, vocabulary).
        inputs: the model's arguments; `input_ids`, (1, n).

    Raises:
        ValueError: there are no logits, no ids, or only one token.
    """
    logits = getattr(output, "logits", output)
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
    if not isinstance(logits, Tensor) or logits.ndim != 3 or not isinstance(ids, Tensor):
        raise ValueError(NO_LOGITS)
    if logits.shape[:2] != ids.shape:
        raise ValueError(NO_LOGITS)
    if ids.shape[1] < 2:
        raise ValueError("a text of one token has no next token, so its loss is unknown")
    return torch.nn.functional.cross_entropy(logits[0, :-1].float(), ids[0, 1:].to(logits.device))


def effects_of(module: torch.nn.Module, inputs: Any, loss: Loss) -> dict[tuple[str, int], float]:
    """Return the change of the loss, after − before, by layer's name and head.

    Args:
        module: the model.
        inputs: its arguments for one text.
        loss: takes the model's output and these arguments.
    """
    found = sweep(module, inputs, over="heads", target=lambda output: loss(output, inputs))
    return {(one["name"], one["head"]): one["change"] for one in found}


def reads_ahead(allowed: Tensor) -> bool:
    """Return whether a query may attend to a later key, from (queries, keys) bool."""
    return bool(allowed.triu(1).any())
