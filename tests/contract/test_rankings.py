"""Rows are ranked as the front-end ranks them: js/tests/contract/rankings.test.ts writes `rankings.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attnwidget._messages.answers.ranking import rank

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "rankings.json").read_text(encoding="utf-8"))
ROWS = {part["name"]: part["row"] for part in GOLDEN["rows"]}


def near(value: float | str) -> Any:
    """Equal but for the last digits: those of a logarithm or a quotient are the machine's own."""
    return pytest.approx(float(value), rel=1e-9, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("wanted", GOLDEN["rankings"], ids=lambda one: f"{one['name']}, {one['count']}")
def test_a_row_is_ranked_alike(wanted: dict[str, Any]) -> None:
    row = ROWS[wanted["name"]]
    values = torch.tensor([float("nan") if value is None else float(value) for value in row])
    blocked = torch.tensor([value is None for value in row])
    found = rank(
        values.masked_fill(blocked, 0), blocked if bool(blocked.any()) else None, wanted["count"], wanted.get("sink")
    )
    assert found.positions.tolist() == wanted["top"]
    assert found.values.tolist() == [float(value) for value in wanted["values"]]
    assert (found.allowed, found.blocked, found.nan) == (wanted["allowed"], wanted["blocked"], wanted["nan"])
    assert found.allowed - len(found.positions) == wanted["rest"]["count"]
    assert found.ninety == wanted["ninety"]
    assert found.sum == near(wanted["sum"])
    assert found.rest_sum == near(wanted["rest"]["sum"])
    assert found.entropy == near(wanted["entropy"])
    assert found.max_entropy == near(wanted["max_entropy"])
    assert found.sink == wanted.get("sink")
