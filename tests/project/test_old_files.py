"""Captures and pages that earlier versions have saved still open, with the same numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import attnwidget
from attnwidget import AttentionWidget, Capture

FIXTURES = Path(__file__).parents[1] / "fixtures"
VERSIONS = sorted(path.parent for path in FIXTURES.glob("*/capture.safetensors"))
CHANGELOG = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
KEPT = {
    "capture.safetensors",
    "page.html",
    "weights.json",
    "told.safetensors",
    "reduced.safetensors",
    "told.json",
    "notebook.ipynb",
}


def wanted(version: str, changelog: str) -> set[str]:
    """Return of which versions files are to be kept: of each release, and of this version once it is one.

    Before the first release they are those of this version.
    """
    released = set(re.findall(r"^## \[(\d[^\]]*)\]", changelog, re.M))
    return released | ({version} if ".dev" not in version or not released else set())


def test_files_of_every_version_are_kept() -> None:
    folders = (path for path in FIXTURES.glob("[0-9]*") if path.is_dir())  # and none of what Python compiles beside
    kept = {path.name: {one.name for one in path.iterdir()} for path in folders}
    missing = wanted(attnwidget.__version__, CHANGELOG) - kept.keys()
    assert missing == set(), "run tests/fixtures/make.py"
    assert {version: KEPT - names for version, names in kept.items() if KEPT - names} == {}


def test_files_are_wanted_of_each_release_and_of_what_becomes_one() -> None:
    begun, later = "## [Unreleased]\n", "## [Unreleased]\n\n## [0.2.0] - 2027-01-02\n\n## [0.1.0] - 2026-12-01\n"
    assert wanted("0.1.0.dev0", begun) == {"0.1.0.dev0"}
    assert wanted("0.1.0", begun) == {"0.1.0"}
    assert wanted("0.3.0.dev0", later) == {"0.2.0", "0.1.0"}
    assert wanted("0.3.0", later) == {"0.3.0", "0.2.0", "0.1.0"}


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda path: path.name)
def test_an_old_capture_opens_with_its_numbers(folder: Path) -> None:
    held: Any = json.loads((folder / "weights.json").read_text(encoding="utf-8"))
    cap = Capture.load(folder / "capture.safetensors")
    assert len(cap.attention) == len(held["weights"])
    for att, heads in zip(cap.attention, held["weights"], strict=True):
        for head, weights in enumerate(heads):
            torch.testing.assert_close(att.block("weights", head=head), torch.tensor(weights, device="cpu"))
    assert isinstance(cap.widget(tokens=held["words"]), AttentionWidget)


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda path: path.name)
def test_an_old_capture_of_a_text_opens_with_all_that_it_was_told(folder: Path) -> None:
    """Ids, a padding mask, and what its weights carry: a token's logit, and the gradients."""
    held: Any = json.loads((folder / "told.json").read_text(encoding="utf-8"))
    cap = Capture.load(folder / "told.safetensors")
    assert [list(one) for one in cap.tokens or []] == held["tokens"]
    for stage, blocks in held["stages"].items():
        for of, numbers in blocks.items():
            layer, batch, head = map(int, of.split())
            found = cap.attention[layer].block(stage, batch=batch, head=head)
            torch.testing.assert_close(found, torch.tensor(numbers, device="cpu"))
    assert isinstance(cap.widget(stage="logit"), AttentionWidget)


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda path: path.name)
def test_old_pictures_without_q_and_k_open(folder: Path) -> None:
    held: Any = json.loads((folder / "told.json").read_text(encoding="utf-8"))
    cap = Capture.load(folder / "reduced.safetensors")
    for of, numbers in held["overviews"].items():
        layer, batch, head = map(int, of.split())
        found = cap.attention[layer].overview(batch, head, size=7).values
        torch.testing.assert_close(found, torch.tensor(numbers, device="cpu"))
    assert [one["entropy"] for one in cap.metrics()] == pytest.approx(held["entropies"], rel=1e-6)
    assert isinstance(cap.widget(), AttentionWidget)
