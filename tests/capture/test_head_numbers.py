"""Where a capture has kept some heads, the model's own numbers of them are told wherever a head is named."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from captured import GPT2, build

from attnwidget import Attention, AttentionWidget, Capture, capture, compare
from attnwidget._export.look.numbers import brief_head, in_model
from attnwidget._export.still.preview import _words_of
from attnwidget._messages.codec.decoding import of_picture

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


def test_facts_have_the_numbers_of_all_layers() -> None:
    assert captured({0: [1, 3], 1: slice(None)}).widget().facts["model_heads"] == [[1, 3], None]
    assert captured(None).widget().facts["model_heads"] is None


def test_words_for_little_room() -> None:
    facts = {"layers": ["a", "b"], "model_heads": [[1, 3], None]}
    assert [brief_head(0, 1, facts), brief_head(1, 1, facts)] == ["0·1 (3)", "1·1"]
    assert brief_head(0, 1, {"layers": ["a"], "model_heads": [[1, 3]]}) == "1 (3)"
    assert brief_head(1, 1, {"layers": ["a", "b"], "model_heads": None}) == "1·1"


def test_a_repr_names_them() -> None:
    cap = captured([1, 3])
    w = cap.widget(head=1)
    assert "head 1 of 2 (3 in the model)" in repr(w)
    w.pieces = "pieces"
    assert "in the model" not in repr(captured(None).widget())
    both = compare({"some": cap.attention, "same": cap.attention}, head=0)
    both.against_at = (1, 0, 1)
    assert "head 0 of 2 (1 in the model)" in repr(both)
    assert "head 1 (3 in the model)" in repr(both)


def test_words_keep_them() -> None:
    tokens = ["▁a", "b", "▁c", "▁d", "▁e", "▁f", "▁g", "▁h", "▁i"]
    w = captured([1, 3]).widget(tokens, pieces="words", head=1)
    assert {(one["head"], one["model_head"]) for one in w.metrics()} == {(0, 1), (1, 3)}
    assert "(3 in the model)" in repr(w)


def test_figures_of_heads_and_graphs_name_them() -> None:
    pytest.importorskip("matplotlib")
    cap = captured([1, 3])
    texts = drawn(cap.widget(view="heads"))
    assert {"0 (1)", "1 (3)"} <= set(texts)
    named = drawn(cap.widget(view="heads", order="entropy"))
    assert {"0·0 (1)", "0·1 (3)", "1·0 (1)", "1·1 (3)"} <= set(named)
    assert {"head 0 (1 in the model)", "head 1 (3 in the model)"} <= set(drawn(cap.widget(view="graph", heads=[0, 1])))
    uneven = drawn(captured({0: [1, 3], 1: slice(None)}).widget(view="heads"))
    assert not any("(" in one for one in uneven if one[:1].isdigit() and len(one) < 6)


def test_a_table_of_segments_names_them() -> None:
    pytest.importorskip("matplotlib")
    w = captured([1, 3]).widget(view="segments", segments={"a": (0, 4), "b": (4, 9)}, segment="a")
    assert {"0·0 (1)", "1·1 (3)"} <= set(drawn(w))


def test_a_comparison_has_the_numbers_of_both() -> None:
    some, others = captured([1, 3]).attention, captured([0, 2]).attention
    w = compare({"some": some, "others": others}, head=1)
    assert w.comparison is not None
    assert w.comparison["head_numbers"] == (3, 2)
    w.against_at = (1, 0, 0)
    assert w.comparison["head_numbers"] == (3, 0)
    whole = Attention(*torch.randn(3, 1, 2, 9, 8))
    one = compare({"kept": some[0], "whole": whole}, head=1)
    assert one.comparison is not None
    assert one.comparison["head_numbers"] == (3, None)


def test_an_error_names_them() -> None:
    cap = captured([1, 3])
    told = r"head 3 is not there: .* heads 0 to 1, counted from 0 among the kept heads: heads 1, 3 of the model"
    w = cap.widget()
    asks: tuple[Any, ...] = (
        lambda: cap.attention[0].block(head=3),
        lambda: cap.weights(0, head=3),
        lambda: cap.widget(head=3),
    )
    for ask in asks:
        with pytest.raises(IndexError, match=told):
            ask()
    with pytest.raises(IndexError, match=told):
        w.head = 3
    with pytest.raises(IndexError, match=r"heads 0 to 3$"):
        captured(None).attention[0].block(head=4)
