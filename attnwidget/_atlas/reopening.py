"""A text of an atlas, run again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .._capture.api.capture import Capture, capture
from .._capture.api.texts import inputs_of
from .worker import read_model


def capture_of_text(model: Any, tokenizer: Any, text: Any) -> Capture:
    """Run the model on a text, as the atlas did, and return the capture."""
    model, tokenizer = read_model(model, tokenizer)
    module = getattr(model, "model", model)
    module = module if isinstance(module, torch.nn.Module) else model
    inputs = inputs_of(text, tokenizer, module)
    cap = capture(model, tokenizer=tokenizer)
    with torch.no_grad(), cap:
        module(**inputs) if isinstance(inputs, Mapping) else module(inputs)
    return cap
