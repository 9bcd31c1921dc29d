"""docs/models.md says what the last sweep over models found."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sweep_table() -> Any:
    """The module that writes the tables."""
    spec = importlib.util.spec_from_file_location("sweep_table", ROOT / "benchmarks" / "sweep_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_results(sweep_table: Any) -> None:
    found = json.loads(sweep_table.RESULTS.read_text(encoding="utf-8"))
    document = sweep_table.DOCUMENT.read_text(encoding="utf-8")
    _, begin, rest = document.partition(sweep_table.BEGIN)
    made, end, _ = rest.partition(sweep_table.END)
    assert begin
    assert end
    assert made.strip() == sweep_table.table(found).strip()


def test_the_results_are_of_models_that_are_enough(sweep_table: Any) -> None:
    found = json.loads(sweep_table.RESULTS.read_text(encoding="utf-8"))
    assert len(found["cases"]) >= 450
    statuses = {status for one in found["cases"].values() for status in one["options"].values()}
    assert statuses <= set(sweep_table.STATUSES)
    assert {option for one in found["cases"].values() for option in one["options"]} == set(sweep_table.OPTIONS)


def test_a_reason_is_told_without_the_name_and_the_advice(sweep_table: Any) -> None:
    why = "none of 2 attention calls can be shown; the first is 'layers.0': its weights go through mul: call it with …"
    assert sweep_table.reason(why) == "its weights go through mul"
