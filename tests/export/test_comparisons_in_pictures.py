"""The small PNG and figures of a comparison: what changes from A to B, or of which side they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from figure_text import texts

from attnwidget import Attention, AttentionWidget, compare
from attnwidget._export.still import preview
from attnwidget._messages.codec import decoding
from attnwidget._widget.comparison.comparison_widget import ComparisonWidget


def tensors(n: int) -> torch.Tensor:
    return torch.randn(3, 1, 2, n, 8, generator=torch.Generator().manual_seed(3))


def compared(**show: Any) -> ComparisonWidget:
    q, k, v = tensors(12)
    sides = {"no mask": Attention(q, k, v), "causal": Attention(q, k, v, is_causal=True)}
    return compare(sides, tokens=[f"t{at}" for at in range(9)] + ["[PAD]"] * 3, **show)


class Drawn:
    """What the small PNG of a widget is made of: its numbers, what is written beside it, and every text in it."""

    def __init__(self, w: AttentionWidget, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: list[str] = []
        written, still_of = preview.written, preview.still_of

        def noted(text: str, *most: Any) -> Any:
            self.texts.append(text)
            return written(text, *most)

        def kept(matrix: Any, words: Any, **how: Any) -> Any:
            self.matrix, self.words = matrix, words
            return still_of(matrix, words, **how)

        with monkeypatch.context() as patch:
            patch.setattr(preview, "written", noted)
            patch.setattr(preview, "still_of", kept)
            assert preview.preview_of(w._export_view()) is not None


def test_a_comparison_draws_what_changes_from_a_to_b(monkeypatch: pytest.MonkeyPatch) -> None:
    w = compared(head=1, query=3, key=2)
    q, k, _ = tensors(12)
    a, b = (Attention(q, k, is_causal=causal).block(head=1) for causal in (False, True))
    found = Drawn(w, monkeypatch)
    np.testing.assert_allclose(found.matrix.values, (b - a).numpy(), atol=1e-6)
    assert (found.words.query, found.words.key) == (3, 2)
    assert found.words.padded.tolist() == [False] * 9 + [True] * 3
    most = float((b - a).abs().max())
    assert {"B − A", "A no mask · B causal", "head 1 · 12 × 12", f"{most:.2f}".lstrip("0")} <= {*found.texts}
    assert f"−{most:.2f}".replace("0.", ".") in found.texts


def test_at_the_places_that_both_have(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(12)
    sides = {"long": Attention(q, k, v), "short": Attention(*(x[:, :, 2:] for x in (q, k, v)))}
    own = [f"t{at}" for at in range(12)]
    w = compare(sides, tokens={"long": own, "short": own[2:]}, query=5, key=2)
    found = Drawn(w, monkeypatch)
    a, b = (sides[name].block(head=0) for name in ("long", "short"))
    np.testing.assert_allclose(found.matrix.values, (b - a[2:, 2:]).numpy(), atol=1e-6)
    assert (found.words.queries, found.words.query, found.words.key) == (own[2:], 3, 0)
    assert "10 × 10 positions shared by A and B" in found.texts
    w.query, w.key = 5, 1
    assert (Drawn(w, monkeypatch).words.query, w.key) == (None, 1)


@pytest.mark.parametrize("view", ["heatmap", "graph", "text", "heads"])
def test_in_other_views_it_says_of_which_side_it_is(view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    w = compared(view=view)
    assert "A no mask · head 0 · 12 × 12" in Drawn(w, monkeypatch).texts
    assert "A no mask · head 0 · 12 × 12 · float32" in texts(w)


def test_a_figure_says_whose_number_is_pinned_and_whose_facts_are_told() -> None:
    q, k, v = tensors(12)
    w = compare({"causal": Attention(q, k, v, is_causal=True), "no mask": Attention(q, k, v)}, query=3, key=2)
    found = " ".join(texts(w))
    assert " in A" in found
    assert "A causal · head 0 · 12 × 12 · causal · float32 · B no mask" in found
    w.key = 5
    assert "masked in A" in " ".join(texts(w))


def test_another_head_of_b_is_named() -> None:
    q, k, v = tensors(12)
    w = compare((Attention(q, k, v), 0, 0), (Attention(q, k, v), 0, 1))
    assert "(layer 0, head 1)" in " ".join(texts(w))


def test_of_one_attention_nothing_of_two_sides_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    w = AttentionWidget(*tensors(12), query=3, key=2)
    assert "head 0 · 12 × 12" in Drawn(w, monkeypatch).texts
    assert " in A" not in " ".join(texts(w))


@pytest.mark.parametrize("stage", ["weights", "scaled"])
def test_the_ends_of_the_ramp_are_those_of_the_colors(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.tensor([[1.5, -2.0], [0.25, 3.0]])
    w = AttentionWidget.from_attention(
        Attention.from_scores(scores), stage=stage, color_range="head", tokens=["a", "b"]
    )
    found = Drawn(w, monkeypatch).texts
    wanted = ["0", ".97"] if stage == "weights" else ["−3", "3"]
    assert [text for text in found if text in ("0", ".97", "−3", "3")][:2] == wanted  # then those of the cells


def test_what_cells_are_is_written_below_the_small_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(4)
    assert "slash: masked" in Drawn(AttentionWidget(q, k, v, is_causal=True), monkeypatch).texts
    plain = Drawn(AttentionWidget(q, k, v), monkeypatch)
    assert not any("masked" in text for text in plain.texts)
    noted: list[str] = []
    monkeypatch.setattr(preview, "written", lambda text, *_: noted.append(text))
    monkeypatch.setattr(preview, "_written", lambda _: np.zeros((preview.height(), 1), int))
    values = np.array([[np.nan, 1.0]])
    kinds = np.array([[decoding.NAN, decoding.NUMBER]], np.uint8)
    matrix = replace(plain.matrix, values=values, kinds=kinds, every=7, query_bin=3, key_bin=2)
    preview._legend(matrix, 1, "linear", "head", plain.words)
    assert noted == ["red: NaN, 1 · each cell: the strongest of 3 × 2 · 1 of 7 rows"]
