"""Every view as a figure: none is left out, none sticks out, and labels are small before they are gone."""

from __future__ import annotations

import io
import re
import xml.dom.minidom
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from attnwidget import Attention, AttentionStack, AttentionWidget, compare
from attnwidget._export import figure
from attnwidget._export.figure.canvas import LEAST, POINT
from attnwidget._export.figure.reading import LEAST_SHARE
from attnwidget._export.look.numbers import status_number
from attnwidget._widget.traits.keywords import View

pytest.importorskip("matplotlib")

VIEWS = ("heatmap", "graph", "text", "heads", "stages")
WIDE = ["internationalization", "antidisestablishmentarianism", "the", "supercalifragilistic"] * 4


def widget(n: int = 8, layers: int = 2, **show: Any) -> AttentionWidget:
    q, k, v = torch.randn(3, layers, 1, 3, n, 8, generator=torch.Generator().manual_seed(1))
    return AttentionWidget(q, k, v, **{"tokens": [f"t{i}" for i in range(n)], **show})


def svg(w: AttentionWidget, **keywords: Any) -> str:
    page = io.BytesIO()
    w.figure(**keywords).savefig(page, format="svg")
    xml.dom.minidom.parseString(page.getvalue())
    return page.getvalue().decode()


def texts(w: AttentionWidget, **keywords: Any) -> list[str]:
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg(w, **keywords))


def image_of(figure: Any) -> np.ndarray[Any, Any]:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    ("width", "tokens"),
    [(3.3, WIDE), *(pytest.param(*one, marks=pytest.mark.thorough) for one in ((3.3, None), (7, WIDE), (7, None)))],
)
def test_nothing_sticks_out_of_any_view(view: str, width: float, tokens: Any) -> None:
    figure = widget(16, tokens=tokens, view=view, query=3, key=1, is_causal=True).figure(width=width)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    across, down = canvas.get_width_height()
    for text in figure.axes[0].texts:
        box = text.get_window_extent(canvas.get_renderer())
        assert -2 <= box.x0 <= box.x1 <= across + 2, text.get_text()
        assert -2 <= box.y0 <= box.y1 <= down + 2, text.get_text()
        assert text.get_fontsize() >= LEAST * POINT - 1e-9, text.get_text()


@pytest.mark.parametrize("view", VIEWS)
def test_the_page_ends_where_what_is_drawn_ends(view: str) -> None:
    figure = widget(4, layers=1, view=view, theme="light").figure(width=20, dpi=50)
    used = np.argwhere((image_of(figure) != 255).any(2))
    height, width = image_of(figure).shape[:2]
    assert width - used[:, 1].max() < 0.25 * 50
    assert height - used[:, 0].max() < 0.25 * 50


def test_wide_labels_shrink_to_6_pt_before_any_is_dropped() -> None:
    figure = widget(16, tokens=WIDE, layers=1).figure(width=3.3)
    upright = [text for text in figure.axes[0].texts if text.get_rotation() == 90]
    assert sum(text.get_text() == "the" for text in upright) == 4
    assert len([text for text in upright if not text.get_text().isdigit()]) == 16
    beside = [text for text in figure.axes[0].texts if text.get_ha() == "right" and text.get_rotation() == 0]
    assert sum(text.get_text().startswith(("the", "int", "ant", "sup")) for text in beside) == 16
    assert min(text.get_fontsize() for text in beside) == LEAST * POINT


def test_all_heads_are_drawn_in_the_order_of_the_widget() -> None:
    words = texts(widget(view="heads"))
    assert "Rows are layers, columns are heads." in words
    assert any(re.fullmatch(r"the bar is entropy, 0 to 3\.00 bits\.", word) for word in words)
    assert [word for word in words if word in "012"][:5] == ["0", "1", "2", "0", "1"]
    w = widget(view="heads", order="itself", bar="itself")
    words = texts(w)
    assert "Ordered by itself, largest first." in words
    names = [word for word in words if re.fullmatch(r"\d·\d", word)]
    assert sorted(names) == [f"{layer}·{head}" for layer in range(2) for head in range(3)]
    axes = w.figure().axes[0]
    left = {text.get_text(): text.get_position() for text in axes.texts if "·" in text.get_text()}
    best = max(w.metrics(), key=lambda one: one["itself"])
    first = min((name for name in left if name in names), key=lambda name: (left[name][1], left[name][0]))
    assert first == f"{best['layer']}·{best['head']}"


def named(words: list[str]) -> list[str]:
    """The heads that have their name below them."""
    return [word for word in words if re.fullmatch(r"\d+·\d+", word)]


def test_only_the_chosen_heads_are_drawn() -> None:
    w = widget(view="heads", bar="itself", order="itself", only_heads=(1, None, None))
    words = texts(w)
    assert "3 of 6 heads of layers 1 to 1." in words
    names = named(words)
    assert {name.split("·")[0] for name in names} == {"1"}
    assert len(names) == 3
    values = {f"{one['layer']}·{one['head']}": one["itself"] for one in w.metrics(0)}
    least = sorted(values.values())[2]
    w.only_heads = (None, None, least)
    words = texts(w)
    assert set(named(words)) == {name for name, value in values.items() if value > least}
    assert f"3 of 6 heads with itself above {least:g}." in words
    w.order = "layer"
    assert set(named(texts(w))) == {name for name, value in values.items() if value > least}


def test_heads_like_the_selected_one_come_first() -> None:
    w = widget(view="heads", order="similar", layer=1, head=2)
    assert "Most similar to 1·2 first, by metrics and picture." in texts(w)
    names = [text for text in w.figure().axes[0].texts if re.fullmatch(r"\d·\d", text.get_text())]
    drawn = [
        text.get_text() for text in sorted(names, key=lambda text: (text.get_position()[1], text.get_position()[0]))
    ]
    stack = w.attention
    assert isinstance(stack, AttentionStack)
    nearest = stack.similar(1, 2, top=None, tokens=w.tokens)
    assert drawn == ["1·2", *(f"{one['layer']}·{one['head']}" for one in nearest)]


def test_every_head_of_a_large_model_is_drawn() -> None:
    q = torch.randn(8, 1, 40, 6, 4)
    figure = AttentionWidget(q, q, view="heads").figure(width=3.3)
    assert len(figure.axes[0].images) == 320


def test_a_text_has_its_spaces_and_colors() -> None:
    tokens = ["[CLS]", "the", "river", "##s", "'", "s", "bank", ".", "[SEP]"]
    w = widget(9, tokens=tokens, view="text", query=6)
    axes = w.figure().axes[0]
    drawn = [text for text in axes.texts if text.get_text() in ("the", "river", "s", "'", "bank", ".")]
    assert [text.get_text() for text in drawn][:7] == ["the", "river", "s", "'", "s", "bank", "."]
    starts = [text.get_position()[0] for text in drawn[:7]]
    gaps = [after - before for before, after in pairwise(starts)]
    assert gaps[2] < 8  # of 's, before which no space stands
    words = texts(w)
    assert "special tokens are left out of the text, not of the sum" in words
    row = w.weights(6)[1:8]
    colored = int((row / row.max() >= LEAST_SHARE).sum()) - (1 if row[5] / row.max() >= LEAST_SHARE else 0)
    boxes = sum(len(one.get_paths()) for one in axes.collections if hasattr(one, "get_paths"))
    assert boxes == 2 * colored + 1  # a tint and its full color, and what is pinned
    assert any(word.startswith("bank 6") for word in words)
    w.query = None
    assert any(word.startswith("Mean weight received") for word in texts(w))
    w.stage = "scores"
    assert any(word.startswith("nothing is pinned") for word in texts(w))


def test_a_long_text_is_drawn_around_what_is_pinned() -> None:
    w = AttentionWidget(*torch.randn(2, 6000, 4), tokens=[f"t{i}" for i in range(6000)], view="text", query=5000)
    words = texts(w, width=20)
    assert "t5000" in words
    assert "t100" not in words
    assert "tokens 4,096–5,999 of 6,000" in words


def test_an_image_is_drawn_with_its_patches() -> None:
    image = np.zeros((20, 30, 3), np.uint8) + np.array([200, 20, 20], np.uint8)
    w = AttentionWidget(*torch.randn(2, 7, 4), grid=(2, 3), image=image, view="image", query=2)
    images = w.figure().axes[0].images
    assert [one.get_array().shape[:2] for one in images[:2]] == [(20, 30), (2, 3)]
    assert images[0].get_array()[0, 0, :3].tolist() == [200, 20, 20]


@pytest.mark.parametrize("combine", ["mean", "max"])
@pytest.mark.parametrize("view", ["heatmap", "graph", "text"])
def test_several_heads_as_one_are_what_is_drawn_and_said(view: str, combine: str) -> None:
    w = widget(view=view, heads=[0, 2], combine=combine, query=3, key=2)
    words = texts(w)
    both = torch.stack([w._selected.block(head=head, queries=3, keys=2) for head in (0, 2)])
    number = both.mean() if combine == "mean" else both.max()
    assert any(status_number(float(number)) in word for word in words)
    assert any(("maximum" if combine == "max" else "mean") + " of heads 0, 2" in word for word in words)
    assert "head 2" not in words


def test_clipped_cells_are_counted_as_in_the_widget() -> None:
    weights = torch.tensor([[0.5, 0.5], [0.1, 0.9]])
    w = AttentionWidget.from_weights(weights, color_range=(0.2, 0.6))
    words = texts(w)
    assert "above .6: 1 cell" in words
    assert "below .2: 1 cell" in words
    w = AttentionWidget(*3 * torch.ones(2, 3, 4), stage="scores", color_range="unit")
    assert any(re.fullmatch(r"beyond ±1(\.0+)?: 9 cells", word) for word in texts(w))


@pytest.mark.parametrize(
    "theme", ["dark", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("light", "contrast"))]
)
@pytest.mark.parametrize("view", VIEWS)
def test_the_page_has_the_theme(view: str, theme: str) -> None:
    corner = image_of(widget(view=view, theme=theme).figure(dpi=40))[0, 0].tolist()
    assert corner == {"light": [255, 255, 255], "dark": [17, 18, 19], "contrast": [0, 0, 0]}[theme]


def test_a_figure_draws_itself_in_a_cell() -> None:
    from IPython.core.formatters import DisplayFormatter

    data, metadata = DisplayFormatter().format(widget().figure(width=5))
    assert {name for name in data if name.startswith("image")} == {"image/png"}  # one picture, not two
    assert data["image/png"].startswith(b"\x89PNG")
    assert metadata["image/png"]["width"] <= 5 * 96


HOSTILE = {
    "nothing that is seen": "\u200b\u2060",
    "control characters": "a\x00\x07\x1b[31mb\n\tc",
    "half a surrogate pair": "\ud800 x",
    "noncharacters": "\ufffe\uffff\U0010ffff",
    "line separators": "a\u2028b",
    "markup": "<script>alert(1)</script> $x^2$ & ]]>",
    "a mark alone": "\u0301",
    "the other direction": "\u202eabc",
}


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_texts_of_all_kinds_together_make_files_that_open(kind: str) -> None:
    every = [*HOSTILE.values()]
    w = AttentionWidget(*torch.randn(3, len(every), 8), title="".join(every), tokens=every, query=0, key=3)
    assert_opens(w, kind)


@pytest.mark.thorough
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_any_text_makes_files_that_open(name: str, kind: str) -> None:
    text = HOSTILE[name]
    q = torch.randn(3, 4, 8)
    shown = [
        AttentionWidget(*q, title=text, tokens=[text, "a", "b", text], query=0, key=3),
        AttentionWidget.from_attention({f"{text}1": Attention(*q), "b": Attention(*q)}),
        compare({f"{text}1": Attention(*q), "b": Attention(*q)}),
    ]
    for w in shown:
        assert_opens(w, kind)


def assert_opens(w: AttentionWidget, kind: str) -> None:
    into = io.BytesIO()
    w.figure().savefig(into, format=kind)
    if kind == "svg":
        xml.dom.minidom.parseString(into.getvalue())
    assert into.getvalue().startswith({"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}[kind])


@pytest.mark.parametrize(
    "long",
    [
        "a" + "\u0301" * 10**5,
        *(
            pytest.param(text, marks=pytest.mark.thorough)
            for text in ("a" * 10**6, "👩\u200d👩\u200d👧" * 10**5, "\u200b" * 10**6)
        ),
    ],
    ids=["marks", "letters", "joined", "nothing"],
)
def test_of_a_very_long_text_only_what_can_be_seen_is_measured(long: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnwidget._export.figure import canvas
    from attnwidget._tokens import display

    seen, divided = [], []
    measured, clusters = canvas._width.__wrapped__, display.clusters

    def count(text: str, *rest: Any) -> Any:
        seen.append(len(text))
        return measured(text, *rest)

    def divide(text: str) -> list[str]:
        divided.append(len(text))
        return clusters(text)

    monkeypatch.setattr(canvas, "_width", count)
    monkeypatch.setattr(display, "clusters", divide)
    w = AttentionWidget(*torch.randn(3, 4, 8), tokens=[long, "b", "c", "d"], title=long, query=0, key=0)
    for view in ("heatmap", "graph", "text"):
        w.view = view
        w.figure()
    assert sum(seen) < 200_000  # the whole text of 1 MB took 47 s
    assert sum(divided) < 200_000  # and of what cannot be seen a minute


def test_boxes_on_an_image_are_drawn_with_their_names() -> None:
    q, k = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 3, 4)
    image = np.zeros((20, 30, 3), np.uint8)
    boxes = [[0, 0, 30, 20], [2, 2, 28, 18], [20, 5, 29, 15]]
    w = AttentionWidget(q, k, key_tokens=["all", "most", "some"], image=image, boxes=boxes, query=1)
    drawn = texts(w)
    assert {"all", "most", "some"} <= {*drawn}
    assert drawn.index("all") < drawn.index("most") < drawn.index("some")  # large ones below


def test_each_view_has_a_figure() -> None:
    assert figure.VIEWS.keys() == {*get_args(View), "compare"}
