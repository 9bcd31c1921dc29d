"""Figures and small pictures of what a model loses: the page's rows, numbers and words; or words on what is missing."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from figure_text import texts

from attnwidget import Attention, AttentionStack, AttentionWidget, segments
from attnwidget._export.figure import heads
from attnwidget._export.figure.canvas import Canvas
from attnwidget._export.figure.sheet import FigureContext
from attnwidget._export.look.colors import look_of
from attnwidget._export.look.effects import LOOKED_AT, NEEDED, disagreement, loss_text, scales_of
from attnwidget._export.still import preview

pytest.importorskip("matplotlib")

# The numbers of js/tests/data/effects.test.ts.
MASSES = [0.2446, 0.0597, 0.1477, 0.1626, 0.0567, 0.1333, 0.0962, 0.0993]
LOST = [2.38, 1.9, 0.41, 0.09, 0.06, 0.04, 0.02, -0.08]

PARTS = {"doc 1": (0, 4), "doc 2": (4, 8), "answer": (8, 12)}
BY_SEGMENT = {"doc 1": 2.38, "doc 2": -0.08, "answer": 0.41}
HEADS: list[Any] = [0.24, -0.13, 0.61, None]


def shown(view: str = "segments", **more: Any) -> AttentionWidget:
    """A widget of two layers of two heads that has been told what each segment and head does."""
    q, k = torch.randn(2, 2, 1, 2, 12, 8, generator=torch.Generator().manual_seed(1))
    stack = AttentionStack([Attention(*x, is_causal=True) for x in zip(q, k, strict=True)])
    effects = more.pop("effects", {})
    w = AttentionWidget.from_attention(
        stack, segments=PARTS, view="segments", segments_show="effect", segment="doc 1", layer=1, **more
    )
    w.finish()
    names = ["first token", *BY_SEGMENT]
    sent = {
        "error": None,
        "batch": 0,
        "at": 11,
        "text": " The key hangs on a",
        "target": {"token": 17, "text": " nail"},
        "targets": [],
        "edit": "zero",
        "edits": [
            {"value": "zero", "name": "without it", "of": "set to zero"},
            {"value": "uniform", "name": "even", "of": "made even"},
        ],
        "unit": "nats",
        "segments": {"path": [], "names": names, "lost": [BY_SEGMENT.get(name, 0.01) for name in names], "dropped": ""},
        "heads": {"counts": [2, 2], "lost": HEADS},
        "done": 7,
        "total": 8,
        "run_seconds": 0.4,
        "seconds_left": None,
        "state": "stopped",
        **effects,
    }
    w._effects.__dict__["bring"] = lambda: None  # which would find no model
    w.set_trait("effects", sent)
    detail = {"of": {"segment": "doc 1", "path": []}, "at": 11, "token": 17, "edit": sent["edit"], "error": None}
    w.set_trait("effect_details", [{**detail, "before": -0.207784, "after": -2.587784}])
    w.view = view
    return w


@pytest.mark.parametrize("width", [3.3, 7.0])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_segments_view_has_mass_and_loss_of_each_segment_and_head(width: float, theme: Any) -> None:
    found = texts(shown(theme=theme), width=width)
    assert {"2.38", "−.08", ".41", ".61", "−.13", "lost without it", "Each head set to zero"} <= set(found)
    where = "“The k…gs on a”" if width < 7 else "“The key hangs on a”"
    assert f"loss of “nail” after {where}, position 11, nats" in found
    assert "7 of 8 runs so far" in found
    names = [text for text in found if text in BY_SEGMENT]
    assert names == ["doc 1", "answer", "doc 2"], "by effect, the largest first"
    rows = [text for text in found if re.fullmatch(r"\d·\d", text)]
    assert rows == ["1·0", "0·0", "0·1", "1·1"], "what has not run is last"
    assert bool({NEEDED, LOOKED_AT} & {*found}) == (width == 7.0), "words where there is room"


def test_the_mass_is_the_mean_over_all_heads() -> None:
    w = shown(aside=[])
    named = segments(PARTS, length=12)
    masses = [
        w.attention[layer].by_segment(named, head=head, without=()).mass[-1, -1] for layer in (0, 1) for head in (0, 1)
    ]
    mean = float(torch.stack(masses).mean())
    assert f"{mean:.4f}".removeprefix("0") in texts(w)


def test_another_edit_is_named_and_what_it_does_to_the_pinned_segment_is_told() -> None:
    found = texts(shown(effects={"edit": "uniform"}))
    assert "doc 1 made even: log probability −0.207784 to −2.587784" in found
    assert {"Each head made even", "lost it made even"} <= set(found)
    assert "without doc 1: log probability −0.207784 to −2.587784" in texts(shown())


def test_without_results_the_figure_says_so_and_without_a_model_it_shows_attention() -> None:
    none: dict[str, Any] = {
        "error": "the model is in training mode",
        "target": None,
        "at": None,
        "heads": None,
        "total": 0,
    }
    found = texts(shown(effects={**none, "segments": None}))
    assert "nothing was run: the model is in training mode" in found
    w = shown()
    w.set_trait("effects", None)
    assert "Where did the answer look" in texts(w)


def test_all_heads_can_be_ordered_by_what_is_lost() -> None:
    w = shown("heads", bar="effect", order="effect")
    found = texts(w)
    assert "Ordered by loss without it, largest first." in found
    assert "the bar is loss without it, −.61 to .61 nats." in found
    context = FigureContext(w._export_view(), Canvas(3.3, 96, look_of("light")), "light")
    places = [(layer, head) for layer in (0, 1) for head in (0, 1)]
    assert heads._order(context, heads._survey(context), places) == [2, 0, 1, 3]
    w.set_trait("effects", None)
    assert not any("loss" in text for text in texts(w))


@pytest.mark.parametrize("theme", ["auto", "dark"])
def test_the_small_picture_has_the_loss_of_each_head_and_names_the_token(theme: Any, monkeypatch: Any) -> None:
    seen: list[Any] = []
    draw = preview.still_of
    monkeypatch.setattr(preview, "still_of", lambda *args, **more: seen.append(args) or draw(*args, **more))
    assert preview.preview_of(shown(theme=theme)._export_view()) is not None
    ((matrix, words),) = seen
    assert matrix.values.flatten().tolist() == pytest.approx([0.24, -0.13, 0.61, 0.0])
    assert (matrix.kinds == preview.BLOCKED).tolist() == [[False, False], [False, True]]
    assert (words.ramp, words.none) == ("Lost without each head", "not yet run")
    assert words.lines == [
        "of “nail” after “The key hangs on a”, position 11, nats",
        "lost without segments: doc 1 2.38, answer .41, first token .01, doc 2 −.08",
        "7 of 8 runs so far",
    ]


def test_before_any_run_the_small_picture_is_that_of_attention(monkeypatch: Any) -> None:
    seen: list[Any] = []
    draw = preview.still_of
    monkeypatch.setattr(preview, "still_of", lambda *args, **more: seen.append(args) or draw(*args, **more))
    preview.preview_of(shown(effects={"heads": {"counts": [2, 2], "lost": [None] * 4}})._export_view())
    assert seen[0][1].ramp == "Mass"


def test_scales_and_words_are_those_of_the_page() -> None:
    scales = scales_of(MASSES, LOST, in_nats=True)
    assert scales == pytest.approx((0.25, 2.5, 5, 0.032))
    assert scales_of([0.3265], [0.61], in_nats=True)[:3] == (0.4, 0.8, 4)
    for losses, least, in_nats in (([0.001, -0.0004], 0.05, True), ([None], 0.05, True), ([0.0003], 0.0003, False)):
        assert least <= scales_of([0.2], losses, in_nats=in_nats).lost <= 2 * least
    gains = scales_of([0.25], [1, -3], in_nats=True)
    assert (gains.lost, gains.left) == (3, 1)
    assert [gains.place(share) for share in (-1, 0, 1, -math.inf)] == [0, 0.5, 1, 0]
    assert scales_of([0.2], [1, -math.inf], in_nats=True).left == 1
    words = [disagreement(scales, mass, lost) for mass, lost in zip(MASSES, LOST, strict=True)]
    assert words == ["", NEEDED, "", LOOKED_AT, "", LOOKED_AT, "", ""]
    assert [disagreement(scales, *one) for one in ((0.2, None), (math.nan, 2.0), (0.2, math.nan))] == [""] * 3
    assert [loss_text(one) for one in (-0.001, 0.0, 123.4, math.nan, -math.inf)] == [">−.01", "0", "123", "–", "−∞"]
