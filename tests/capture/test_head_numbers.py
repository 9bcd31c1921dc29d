"""Where a capture has kept some heads, the model's own numbers of them are told wherever a head is named."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from captured import GPT2, build

from attnwidget import AttentionWidget, Capture, capture
from attnwidget._export.numbers import in_model
from attnwidget._export.preview import _words_of
from attnwidget._messages.decoding import of_picture

pytest.importorskip("transformers")
IDS = torch.randint(3, 50, (1, 9), generator=torch.Generator().manual_seed(5))


def captured(heads: Any) -> Capture:
    model = build(GPT2, "sdpa")
    with torch.no_grad(), capture(model, heads=heads) as cap:
        model(IDS)
    return cap


def drawn(w: AttentionWidget) -> list[str]:
    page = io.StringIO()
    w.figure().savefig(page, format="svg")
    return re.findall(r"<text [^>]*>([^<]*)</text>", page.getvalue())


def test_facts_have_the_numbers_of_each_layer() -> None:
    w = captured({0: [1, 3], 1: slice(None)}).widget()
    assert w.facts["head_numbers"] == [1, 3]
    w.layer = 1
    assert w.facts["head_numbers"] is None


def test_a_figure_and_the_small_picture_name_them() -> None:
    pytest.importorskip("matplotlib")
    w = captured([1, 3]).widget(head=1)
    assert any("head 1 (3 in the model)" in text for text in drawn(w))
    view = w._export_view()
    assert any("head 1 (3 in the model)" in line for line in _words_of(view, of_picture(view.picture)).lines)
    whole = captured(None).widget(head=1)
    assert not any("in the model" in text for text in drawn(whole))


def test_a_single_head_is_named_too() -> None:
    pytest.importorskip("matplotlib")
    assert any("head 0 (2 in the model)" in text for text in drawn(captured([2]).widget()))


def test_a_file_keeps_them(tmp_path: Path) -> None:
    captured([1, 3]).save(tmp_path / "two.safetensors")
    assert Capture.load(tmp_path / "two.safetensors").widget().facts["head_numbers"] == [1, 3]


def test_words() -> None:
    assert in_model([0, 1], [5, 7]) == " (5, 7 in the model)"
    assert in_model([0, 1], None) == in_model([], [5, 7]) == ""
