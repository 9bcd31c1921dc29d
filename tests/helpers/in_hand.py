"""What a user has in hand after a first line or two: its names are those that `dir` offers."""

from __future__ import annotations

from typing import Any

import torch

import attnwidget

WEIGHTS = torch.eye(2, device="cpu")


def in_hand() -> dict[str, Any]:
    """Return one of each, by the name of its class."""
    return {
        "Attention": attnwidget.Attention.from_weights(WEIGHTS),
        "AttentionStack": attnwidget.AttentionStack([attnwidget.Attention.from_weights(WEIGHTS)]),
        "AttentionWidget": attnwidget.AttentionWidget.from_weights(WEIGHTS),
        "Capture": attnwidget.capture(),
        "Segments": attnwidget.segments({"a": (1, 2)}, length=2),
    }
