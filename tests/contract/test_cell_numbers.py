"""Numbers stand in the same cells of a figure and of the widget: js/tests/contract/cell-numbers.test.ts writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnwidget._export.figure.heatmap import number_size

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "cell-numbers.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("of", GOLDEN["made"], ids=lambda of: f"letters of {of['wide']}")
@pytest.mark.parametrize("kind", ["unsigned", "signed"])
def test_numbers_begin_where_the_widget_begins(of: dict[str, Any], kind: str) -> None:
    def measure(text: str, size: float) -> float:
        return len(text) * size * float(of["wide"])

    found = [number_size(cell, kind == "signed", measure) for cell in GOLDEN["cells"]]
    assert found == of[kind]
    assert any(size is None for size in found)
    assert any(size is not None for size in found)
