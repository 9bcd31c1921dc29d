"""Answers in files: what was asked for stays, and what cannot be asked any more is said."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attnwidget import Capture, capture
from attnwidget._analysis.why.reasons import run
from attnwidget._export.page import snapshot as snapshots
from attnwidget._export.view import SavedHead


@pytest.fixture
def cap() -> Capture:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    return capture(model, sources=True).run(torch.randn(2, 9, 16))


def test_what_was_asked_is_in_the_file(cap: Capture, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"layer": 1, "head": 1, "query": 8, "key": 3, "against": "mean"}
    pair, row, composition = cap.why(**asked), cap.why_row(1, 0, 4, batch=1), cap.composition(at=5)
    cap.save(tmp_path / "run.safetensors")
    loaded = Capture.load(tmp_path / "run.safetensors")
    assert str(loaded.why(**asked)) == str(pair)
    assert torch.equal(loaded.why(**asked).terms, pair.terms)
    again = loaded.why_row(1, 0, 4, batch=1)
    assert (again.parts, again.rounding) == (row.parts, row.rounding)
    assert torch.equal(again.terms, row.terms)
    assert loaded.composition(at=5).records() == composition.records()
    with pytest.raises(
        ValueError, match="only the answers that were asked for before it was saved, 2 of them about this layer"
    ):
        loaded.why(1, 1, 8, 2)
    with pytest.raises(ValueError, match="only the answers"):
        loaded.composition()
    loaded.save(tmp_path / "again.safetensors")
    assert torch.equal(Capture.load(tmp_path / "again.safetensors").why(**asked).terms, pair.terms)


def test_a_file_of_a_capture_without_sources_says_how_to_get_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 5, 8)
    capture(model).run(x, x, x).save(tmp_path / "run.safetensors")
    with pytest.raises(ValueError, match="sources=True"):
        Capture.load(tmp_path / "run.safetensors").why(0, 0, 1, 2)


def test_the_bytes_of_the_sources_count(cap: Capture) -> None:
    hidden = 2 * 9 * 16 * 4
    qkv = 2 * 3 * hidden
    assert cap.nbytes == qkv + 6 * hidden  # the input in two orders of axes, and of each layer its heads and its MLP


def test_a_saved_page_has_the_answers(cap: Capture) -> None:
    """Those that were asked for, and those of the pinned pair."""
    w = cap.widget(layer=1, head=1, query=8, key=3, view="why")
    cap.why_row(1, 1, 2)
    cap.composition()
    view = w._export_view()
    steps = snapshots.saving(view, [SavedHead(layer, 0, head) for layer in range(2) for head in range(2)])
    saved = run(steps)
    of = {"batch": 0, "head": 1, "layer": 1}

    def name(**request: Any) -> str:
        return json.dumps(request, sort_keys=True, separators=(",", ":"))

    assert name(kind="why_row", query=8, keys=[], **of) in saved.replies
    assert name(kind="why_row", query=2, keys=[], **of) in saved.replies
    assert name(kind="why", query=8, key=3, against="mean", **of) in saved.replies
    assert name(kind="why_heads", batch=0, at=None) in saved.replies


def test_a_row_with_a_score_near_zero_has_its_parts(cap: Capture) -> None:
    """In the first layer a score is one part. If its dimensions cancel, only ‖q‖ ‖k‖ says how it is rounded."""
    for head, query in itertools.product(range(2), range(9)):
        row = cap.why_row(0, head, query)
        assert float((row.terms.sum(0) - row.scores).abs().max()) < 1e-5
