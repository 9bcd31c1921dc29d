"""Captures and pages that earlier versions have saved still open, with the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attnwidget import AttentionWidget, Capture

VERSIONS = sorted(path.parent for path in (Path(__file__).parents[1] / "fixtures").glob("*/capture.safetensors"))


def test_files_of_a_version_are_kept() -> None:
    assert VERSIONS


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda path: path.name)
def test_an_old_capture_opens_with_its_numbers(folder: Path) -> None:
    held: Any = json.loads((folder / "weights.json").read_text(encoding="utf-8"))
    cap = Capture.load(folder / "capture.safetensors")
    assert len(cap.attention) == len(held["weights"])
    for att, heads in zip(cap.attention, held["weights"], strict=True):
        for head, weights in enumerate(heads):
            torch.testing.assert_close(att.block("weights", head=head), torch.tensor(weights, device="cpu"))
    assert isinstance(cap.widget(tokens=held["words"]), AttentionWidget)
