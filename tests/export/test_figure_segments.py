"""The segments view as a figure: its words and numbers, its colors, and nothing that sticks out."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from figure_text import page, texts
from matplotlib.backends.backend_agg import FigureCanvasAgg

from attnwidget import AttentionWidget, segments

pytest.importorskip("matplotlib")

WORDS = [
    "<s>",
    "You",
    "answer",
    ".",
    "The",
    "key",
    "hangs",
    "on",
    "a",
    "nail",
    ".",
    "Where",
    "is",
    "the",
    "key",
    "?",
    "The",
    "key",
    "hangs",
    "there",
    ".",
]
SEGMENTS = {"system": (1, 4), "doc 1": (4, 11), "question": (11, 16), "answer": (16, 21)}


def widget(given: Any = SEGMENTS, **show: Any) -> AttentionWidget:
    q, k, v = torch.randn(3, 1, 2, len(WORDS), 8, generator=torch.Generator().manual_seed(1))
    return AttentionWidget(q, k, v, is_causal=True, **{"tokens": WORDS, "segments": given, "view": "segments", **show})


def test_tokens_list_and_matrix_are_there_with_the_numbers_of_the_widget() -> None:
    w = widget(segment="doc 1", aside=["sink"])
    written = texts(w)
    assert {"Where did the answer look", "From each segment to each", "hangs", "doc 1", "question"} <= {*written}
    weights = w.attention.block("weights")  # type: ignore[union-attr]
    rest = weights[16:, 1:].double().sum(1).mean()
    share = float(weights[16:, 4:11].double().sum(1).mean() / rest)
    assert f"{share:.4f}"[1:] in written
    assert any(text.startswith("excluded: first token, ") for text in written)
    w.asking = "question"
    assert "Where did question look" in texts(w)
    w.measure = "lift"
    assert f"{share:.4f}"[1:] not in texts(w)


@pytest.mark.parametrize("measure", [pytest.param("mass", marks=pytest.mark.thorough), "lift"])
def test_among_many_segments_the_cells_have_the_pages_log_scale(measure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `placing` of js/src/views/segments/matrix/matrix.tsx: of more than 40 segments most numbers are small."""
    from attnwidget._export.figure import segments as drawn
    from attnwidget._export.look import colors

    rows: list[tuple[Any, list[str]]] = []
    cells = drawn._cells

    def record(context: Any, found: Any, at: Any, shades: list[str], place: Any) -> None:
        rows.append((found.values[at[0], at[1]], shades))
        cells(context, found, at, shades, place)

    monkeypatch.setattr(drawn, "_cells", record)
    q, k, v = torch.randn(3, 1, 1, 90, 8, generator=torch.Generator().manual_seed(1))
    given = {f"part {at}": (2 * at, 2 * at + 2) for at in range(45)}
    w = AttentionWidget(
        q, k, v, is_causal=True, segments=given, view="segments", measure=measure, aside=["first token"]
    )
    written = texts(w)
    assert {f"{measure.capitalize()}, log", "one color below 1/1,000 of the largest"} <= {*written}
    table = colors.table("sequential", w.palette, "light")
    most = max(float(np.nanmax(values)) for values, _ in rows)
    for values, shades in rows:
        for value, shade in zip(values, shades, strict=True):
            place = max(0.0, 1 + math.log(value / most) / math.log(1000)) if value > 0 else 0.0
            around = [max(0, round(255 * place + by)) for by in (-0.01, 0, 0.01)]  # a rounding apart
            assert shade in [colors.hex_of(table[min(255, entry)]) for entry in around]
    few = {f"part {at}": (2 * at, 2 * at + 2) for at in range(12)}
    w = AttentionWidget(q[..., :24, :], k[..., :24, :], v[..., :24, :], segments=few, view="segments", measure=measure)
    assert measure.capitalize() in texts(w)
    assert not any("thousandth" in text for text in texts(w))


def test_the_heads_that_read_the_pinned_segment_stand_below() -> None:
    q, k, v = torch.randn(3, 2, 1, 7, len(WORDS), 8, generator=torch.Generator().manual_seed(2))
    w = AttentionWidget(q, k, v, is_causal=True, tokens=WORDS, segments=SEGMENTS, view="segments", segment="question")
    assert w.attention is not None
    parts = segments(SEGMENTS, tokens=WORDS)
    found = w.attention.by_segment("answer", parts, without=("first token",))
    column = found.keys.index("question")
    best = [(float(found.mass[layer, head, 0, column]), f"{layer}·{head}") for layer in range(2) for head in range(7)]
    written = texts(w)
    assert "Which heads read question" in written
    drawn = [text for text in written if re.fullmatch(r"\d·\d", text)]
    assert drawn == [name for _, name in sorted(best, reverse=True)[:10]]
    assert {f"{value:.3f}"[1:] for value, _ in sorted(best, reverse=True)[:10]} <= {*written}
    assert any(text.startswith("4 more heads, at most .") for text in written)
    assert "excluded: first token" in written
    w.aside = ["self"]
    assert "excluded: own key" in texts(w)
    w.aside = []
    assert not any(text.startswith("set aside") for text in texts(w))
    alone = AttentionWidget(q[0, 0, 0], k[0, 0, 0], tokens=WORDS, segments=SEGMENTS, view="segments")
    assert not any(text.startswith("Which heads") for text in texts(alone))


def test_names_above_the_columns_are_whole_where_they_are_many() -> None:
    """Nothing can be pointed at in a figure: part 1 and part 10 may not both be called p…"""
    q, k, v = torch.randn(3, 1, 2, 40, 8, generator=torch.Generator().manual_seed(1))
    given = {f"part {at}": (2 * at, 2 * at + 2) for at in range(20)}
    w = AttentionWidget(q, k, v, segments=given, view="segments", segment="part 17")
    written = texts(w, width=6.5)
    assert "part 17 ▾" in written
    assert {f"part {at}" for at in range(10)} <= {*written}
    assert not any("…" in text for text in written if text.startswith("p"))


def test_segments_have_the_widgets_colors_in_both_themes() -> None:
    for theme, color in (("light", "#c6823b"), ("dark", "#a76404")):
        assert color in page(widget(aside=[]), theme=theme), "of the third, which is the question"


@pytest.mark.parametrize("width", [3.3, pytest.param(7, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "given", [SEGMENTS, {f"a very long name of segment {n}": (1 + n, 2 + n) for n in range(20)}], ids=["few", "many"]
)
def test_nothing_sticks_out(width: float, given: Any) -> None:
    figure = widget(given).figure(width=width)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    across, down = canvas.get_width_height()
    for text in figure.axes[0].texts:
        box = text.get_window_extent(canvas.get_renderer())
        assert -2 <= box.x0 <= box.x1 <= across + 2, text.get_text()
        assert -2 <= box.y0 <= box.y1 <= down + 2, text.get_text()


NESTED: dict[str, Any] = {
    "system": (1, 30),
    "documents": {"doc 1": (30, 80), "doc 2": (80, 150)},
    "question": (150, 170),
    "answer": (170, 200),
}


def long_heatmap(given: Any = NESTED, **show: Any) -> AttentionWidget:
    q, k = torch.randn(2, 200, 8, generator=torch.Generator().manual_seed(3))
    return AttentionWidget(q, k, is_causal=True, segments=given, **show)


def test_a_heatmap_has_names_of_segments_instead_of_positions() -> None:
    written = texts(long_heatmap())
    for name in ("system", "doc 1", "doc 2", "question", "answer", "documents"):
        assert written.count(name) == 2, f"{name} on either axis, the outer one at its bracket"
    assert not {"100", "20", "50"} & {*written}
    assert "100" in texts(long_heatmap(None))
    assert page(long_heatmap()).count("#4f82c7") > page(long_heatmap(None)).count("#4f82c7"), "colors beside it"
    assert "doc 1" not in texts(long_heatmap(), width=1.5), "what is inside has no room for its name"


def test_tokens_keep_their_labels_and_segments_their_borders() -> None:
    tokens, plain = widget(view="heatmap"), widget(None, view="heatmap")
    assert texts(tokens) == texts(plain)
    figure = tokens.figure()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    edges = [path for one in figure.axes[0].collections if hasattr(one, "get_segments") for path in one.get_segments()]
    before = plain.figure()
    fewer = [path for one in before.axes[0].collections if hasattr(one, "get_segments") for path in one.get_segments()]
    assert len(edges) - len(fewer) == 8, "four borders between five segments, on either axis"


@pytest.mark.parametrize("width", [1.5, 3.3, pytest.param(7, marks=pytest.mark.thorough)])
def test_names_beside_a_heatmap_stay_inside(width: float) -> None:
    long = {f"a very long name of segment {n}": (1 + 20 * n, 21 + 20 * n) for n in range(9)}
    for given in (NESTED, long):
        figure = long_heatmap(given).figure(width=width)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        across, down = canvas.get_width_height()
        for text in figure.axes[0].texts:
            box = text.get_window_extent(canvas.get_renderer())
            assert -2 <= box.x0 <= box.x1 <= across + 2, text.get_text()
            assert -2 <= box.y0 <= box.y1 <= down + 2, text.get_text()


def test_without_segments_the_way_to_them_is_told() -> None:
    w = widget(None)
    with pytest.raises(ValueError, match="there are no segments: give segments="):
        w.figure()


def strips(shown: AttentionWidget) -> list[str]:
    """The colors beside the heatmap, those of the keys last."""
    from attnwidget._export.look import colors

    drawn = page(shown)
    slots = {colors.segment_color(slot, "light") for slot in range(8)}
    return [color for color in re.findall(r"fill: (#[0-9a-f]{6})", drawn) if color in slots]


@pytest.mark.parametrize("view", ["segments", "heatmap"])
def test_inside_a_segment_the_heatmap_has_the_colors_of_those_inside(view: str) -> None:
    from attnwidget._export.look import colors

    w = long_heatmap(view=view, segment_path=["documents"])
    w.view = "heatmap"
    first, second, *others = (colors.segment_color(slot, "light") for slot in (0, 1, 2, 3, 7))
    assert {*strips(w)} == {first, second}, "doc 1 and doc 2; all else is gray"
    assert strips(w).count(first) == strips(w).count(second) == 2, "on either axis"
    w.segment_path = []
    assert {*strips(w)} >= {first, second, *others[:1]}, "the outermost ones have theirs again"
    narrow = long_heatmap(segment_path=["documents"])
    assert {first, second} <= set(re.findall("#[0-9a-f]{6}", page(narrow, width=1.5))), "also without room for names"
