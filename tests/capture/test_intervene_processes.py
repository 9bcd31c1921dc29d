"""Edits of a model whose heads are split over processes: each edits its own, by their numbers in the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import edited_copies as copies
import pytest
import torch
from test_processes import IDS, by_heads, in_processes, llama, two_processes
from torch.testing import assert_close

from attnwidget import capture, intervene
from attnwidget.results import WeightsBlock

# On each commit test_intervene_words.py has a process of three without the others.
pytestmark = [two_processes, pytest.mark.thorough, pytest.mark.processes]
FIRST_KEYS = torch.zeros(2, 9, 9).index_fill(-1, torch.tensor([0]), 1.0) * torch.tensor([1.0, 2.0])[:, None, None]


def turned(block: WeightsBlock) -> torch.Tensor:
    """Weights that differ by the number of their head."""
    scale = torch.tensor(block.heads)[:, None, None] + 1.0
    return block.weights.flip(-1) * scale


def edits_of(other: Any) -> dict[Any, Any]:
    return {
        (0, (1, 6)): FIRST_KEYS,
        (0, (2, 5)): {"from": other},
        (1, 5): "zero",
        (1, (0, 7)): turned,
        (2, (3, 4)): {"drop_keys": [2], "temperature": 3.0},
    }


def other_run() -> Any:
    with torch.no_grad(), capture(copies.sharpened(llama(), 3.0)) as cap:
        cap._model(IDS.flip(1))
    return cap


def edit_by_heads(rank: int, mesh: Any, path: Path) -> None:
    torch.manual_seed(0)
    other = other_run()
    model = by_heads(copies.sharpened(llama(), 3.0), mesh)
    with torch.no_grad(), intervene(model, edits_of(other)) as run:
        logits = model(IDS).logits
    if rank == 0:
        torch.save((logits, run.edited), path / "first.pt")
    expected = {0: [(1, 2), (0,), (3,)], 1: [(5, 6), (5, 7), (4,)]}[rank]
    assert list(run.edited.values()) == expected, run.edited
    with pytest.raises(ValueError, match="and no head 8"), intervene(model, {(0, 8): "zero"}):
        model(IDS)


def test_heads_of_all_processes_are_edited_as_in_one(tmp_path: Path) -> None:
    in_processes(edit_by_heads, tmp_path)
    found, _ = torch.load(tmp_path / "first.pt")
    model = copies.sharpened(llama(), 3.0)
    with torch.no_grad(), intervene(model, edits_of(other_run())):
        assert_close(found, model(IDS).logits, rtol=1e-4, atol=1e-4)
