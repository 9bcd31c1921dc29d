"""The pages about accuracy and speed say what the kept results say, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["accuracy", "performance"])
def test_pages_are_made_from_the_latest_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import pages
    from kept import FOLDER, latest

    made = getattr(pages, name)(latest(FOLDER))
    assert (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") == made, "run python benchmarks/pages.py"
