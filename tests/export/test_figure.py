"""`figure`: what is drawn, that text stays text, and what is refused."""

from __future__ import annotations

import io
import re
import sys
import zlib
from typing import Any

import numpy as np
import pytest
import torch

from attnwidget import Attention, AttentionWidget, compare
from attnwidget._export.figure.canvas import Canvas
from attnwidget._export.look import colors
from attnwidget._export.look.numbers import list_number
from attnwidget._tokens.characters import clusters

pytest.importorskip("matplotlib")

WORDS = ["[CLS]", "the", "river", "bank", "##s", "$x_1$", "<b>", "the"]


def widget(n: int = 8, **show: Any) -> AttentionWidget:
    q, k, v = torch.randn(3, 1, 3, n, 8, generator=torch.Generator().manual_seed(1))
    return AttentionWidget(q, k, v, **show)


def svg(w: AttentionWidget, **keywords: Any) -> str:
    page = io.StringIO()
    w.figure(**keywords).savefig(page, format="svg")
    return page.getvalue()


def texts(page: str) -> list[str]:
    """The words of an SVG, in the order in which they were drawn."""
    found = re.findall(r"<text [^>]*>([^<]*)</text>", page)
    return [text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") for text in found]


def pixels(w: AttentionWidget, dpi: float = 96) -> np.ndarray[Any, Any]:
    figure = w.figure(dpi=dpi)
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3]


def shows(image: np.ndarray[Any, Any], color: str, near: int = 1) -> int:
    """How many pixels have a color."""
    return int((np.abs(image.astype(int) - colors.rgb_of(color)).max(-1) <= near).sum())


def test_text_stays_text_in_svg() -> None:
    words = texts(svg(widget(tokens=WORDS, query=3, key=2, title="Two <senses>")))
    assert words[0] == "Two <senses>"
    assert {"[CLS]", "river", "bank", "‐s", "$x_1$", "<b>"} <= set(words)
    assert words.count("the") == 4  # two queries and two keys, each with its position
    assert words.count("7") == 2
    assert "Weight" in words
    assert any(word.startswith("bank 3 → river 2   weight 0.") for word in words)
    assert "head 0 · 8 × 8 · float32" in words


def test_text_stays_text_in_pdf() -> None:
    page = io.BytesIO()
    widget(tokens=WORDS, title="Banks").figure().savefig(page, format="pdf")
    data = page.getvalue()
    assert data.startswith(b"%PDF")
    assert b"/FontFile2" in data  # TrueType, as fonttype 42 embeds it: letters that can be searched and copied
    streams = [
        zlib.decompress(part) for part in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", data, re.S) if part[:1] == b"x"
    ]
    assert any(b"Tj" in stream or b"TJ" in stream for stream in streams)


def test_settings_of_matplotlib_are_left_alone() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    svg(widget())
    assert dict(matplotlib.rcParams) == before


def test_every_number_of_a_small_head_is_written() -> None:
    w = widget(tokens=WORDS)
    written = texts(svg(w))
    for row in range(8):
        for weight in w.weights(row).tolist():
            assert weight < 0.005 or f"{weight:.2f}".removeprefix("0") in written


@pytest.mark.parametrize("theme", ["auto", "dark"])
def test_page_and_ramp_are_those_of_the_theme(theme: str) -> None:
    image = pixels(widget(theme=theme))
    look, table = colors.look_of(theme), colors.table("sequential", "attnwidget", theme)
    assert colors.hex_of(image[0, 0]) == look.page
    assert shows(image, colors.hex_of(table[255])) > 40  # the strongest cell, and the ramp's end


def test_masked_cells_have_no_tile_and_nan_a_red_one() -> None:
    q, k = torch.randn(2, 1, 1, 6, 8)
    q[0, 0, 5, 0] = float("nan")
    w = AttentionWidget(q, k, is_causal=True)
    tint = colors.mixed("#ffffff", colors.LOOKS["light"].bad, 0.16)
    assert shows(pixels(w), tint) > 500
    words = texts(svg(w))
    assert "masked" in words
    assert "NaN, 6 cells" in words


def test_a_figure_is_as_wide_as_was_asked_for_or_as_what_is_drawn() -> None:
    for width in (3.3, 6.5, 12):
        figure = widget(30).figure(width=width, dpi=120)
        assert 0.9 * width < figure.get_size_inches()[0] <= width
        assert figure.dpi == 120
    narrow = AttentionWidget(*torch.randn(2, 3, 8)).figure(width=12)
    assert narrow.get_size_inches()[0] < 4


@pytest.mark.parametrize("n", [20, 600, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 2, 60, 200))])
@pytest.mark.parametrize("view", ["heatmap", "graph", "stages", "text", "heads"])
def test_nothing_sticks_out_and_no_labels_collide(n: int, view: str) -> None:
    w = widget(n, tokens=[f"word{i}" for i in range(n)], is_causal=True, query=n - 1, key=n // 2, view=view)
    figure = w.figure()
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    width, height = canvas.get_width_height()
    boxes = []
    for text in figure.axes[0].texts:
        box = text.get_window_extent(canvas.get_renderer())
        assert box.x0 >= -1, text.get_text()
        assert box.x1 <= width + 1, text.get_text()
        assert box.y0 >= -1, text.get_text()
        assert box.y1 <= height + 1, text.get_text()
        if text.get_rotation() == 0 and view != "stages":
            boxes.append((text.get_text(), box))
    for at, (one, box) in enumerate(boxes):
        for other, beside in boxes[at + 1 :]:
            across = min(box.x1, beside.x1) - max(box.x0, beside.x0)
            down = min(box.y1, beside.y1) - max(box.y0, beside.y0)
            apart = across <= 2 or down <= 0.45 * min(box.height, beside.height)
            assert apart, f"{one} over {other}"


def test_a_long_head_says_what_a_cell_is() -> None:
    words = texts(svg(widget(1500)))
    assert "each cell: the maximum of 3 × 3" in words
    long = AttentionWidget(*torch.randn(2, 10_000, 4))
    words = texts(svg(long))
    assert f"1 of {long.picture['sampled']['every']} rows" in words


def test_the_graph_has_bands_of_all_heads_and_their_numbers() -> None:
    w = widget(tokens=WORDS, view="graph", heads=[0, 2], query=3)
    page = svg(w)
    words = texts(page)
    assert {"Query", "Key", "head 0", "head 2", "Mean"} <= set(words)
    means = (w._selected.block(head=0, queries=3)[0] + w._selected.block(head=2, queries=3)[0]) / 2
    assert all(weight < 0.0005 or list_number(weight, "scores").removeprefix("0") in words for weight in means.tolist())
    assert colors.head_colors("light")[1] in page
    w.query = None
    assert "the strongest links of each token, width = weight" in texts(svg(w))


def test_the_graph_of_a_key_and_of_long_heads() -> None:
    w = widget(300, view="graph", key=150)
    words = texts(svg(w))
    assert any(re.match(r"⋯ \d+ tokens", word) for word in words)
    w.key = None
    assert len(texts(svg(w))) > 10


def test_top_k_and_threshold_hold_for_bands() -> None:
    def bands(**show: Any) -> int:
        drawn = widget(tokens=WORDS, view="graph", query=3, **show).figure().axes[0].patches
        return sum(patch.get_alpha() is not None and patch.get_alpha() > 0.3 for patch in drawn)

    row = widget().weights(3)
    assert bands(threshold=0) == 8
    assert bands(threshold=0.1) == int((row >= 0.1).sum())
    assert bands(threshold=0, top_k=2) == 2


def test_stages_and_their_values() -> None:
    w = widget(tokens=WORDS, view="stages", query=3, key=2)
    words = texts(svg(w))
    assert {"Scores", "Scaled", "Masked", "Weights", "Output", "softmax"} <= set(words)
    assert list_number(float(w._selected.block("scores", queries=3, keys=2)), "scores") in words


def test_a_cell_shows_the_figure_itself() -> None:
    png, size = widget().figure()._repr_png_()
    assert png.startswith(b"\x89PNG")
    assert size["width"] > 100


def test_a_comparison_has_three_pictures() -> None:
    q, k, v = torch.randn(3, 1, 2, 6, 8)
    w = compare({"no mask": Attention(q, k, v), "causal": Attention(q, k, v, is_causal=True)})
    w.view = "compare"
    assert {"A  no mask", "B  causal", "B − A"} <= set(texts(svg(w)))


def test_scores_log_rows_and_own_ranges() -> None:
    assert "Scaled" in texts(svg(widget(stage="scaled")))
    assert "Weight, log" in texts(svg(widget(color_scale="log")))
    assert "row's maximum" in texts(svg(widget(color_range="row")))
    assert "2" in texts(svg(widget(color_range=(0, 2))))


def test_what_cannot_be_drawn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="width is 0: give 1 to 100 inches"):
        widget().figure(width=0)
    with pytest.raises(TypeError, match="dpi is str: give a number of dots per inch"):
        widget().figure(dpi="high")  # type: ignore[arg-type]
    w = widget()
    w.picture = {**w.picture, "values": None, "error": "out of memory"}
    with pytest.raises(ValueError, match="out of memory"):
        w.figure()


def test_without_matplotlib_the_way_to_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnwidget._export.figure import canvas

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    canvas._figure_class.cache_clear()
    with pytest.raises(ImportError, match=r'pip install "attnwidget\[figure\]"'):
        widget().figure()


# Each position once, as its own label (what labels are is held by tests/contract/test_labels.py).
VOCABULARIES = {
    "byte-level BPE": (
        ["<|eot_id|>", "ĠcafÃ©", "ĠæĹ¥æľ¬", "ĠÐ¿ÑĢÐ¸", "âĤ", "¬", "Ċ", "ĠĠĠ"],
        ["<|eot_id|>", "café", "日本", "при", "€ 1/2", "€ 2/2", "↵", "···"],
    ),
    "CLIP": (
        ["<|startoftext|>", "a</w>", "river", "bank</w>", "café</w>", ".</w>", "x", "<|endoftext|>"],
        ["<|startoftext|>", "a", "river", "bank", "café", ".", "x", "<|endoftext|>"],
    ),
    "SentencePiece": (
        ["<s>", "▁The", "▁café", "▁", "<0xC3>", "<0xA9>", "<0x0A>", "<extra_id_0>"],
        ["<s>", "The", "café", "·", "é 1/2", "é 2/2", "↵", "<extra_id_0>"],
    ),
    "WordPiece": (
        ["[CLS]", "em", "##bed", "##ding", "日", "שלום", "[unused12]", "[SEP]"],
        ["[CLS]", "em", "‐bed", "‐ding", "日", "שלום", "[unused12]", "[SEP]"],
    ),
}


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("view", ["heatmap", "graph"])
def test_tokens_of_any_vocabulary_are_drawn_as_the_widget_shows_them(vocabulary: str, view: str) -> None:
    tokens, shown = VOCABULARIES[vocabulary]
    words = texts(svg(widget(tokens=tokens, view=view)))
    for text in shown:
        assert words.count(text) == 2, text  # a query and a key


def test_the_tokenizer_says_how_its_vocabulary_is_written() -> None:
    class Plain:
        """Whose Ġ is a letter of its own: nothing of it is byte-level."""

        def convert_ids_to_tokens(self, ids: int) -> str:
            return ["Ġa", "Ġb", "ĠcafÃ©"][ids]

    w = AttentionWidget(*torch.randn(2, 3, 4), tokens=[0, 1, 2], tokenizer=Plain())
    assert {"Ġa", "Ġb", "ĠcafÃ©"} <= set(texts(svg(w)))


def test_image_patches_are_named_by_row_and_column() -> None:
    words = texts(svg(AttentionWidget(*torch.randn(2, 7, 4), grid=(2, 3), query=3, key=0)))
    assert words.count("row 0, 1") == words.count("row 1, 2") == 2
    assert any(word.startswith("row 0, 2 3 → key 0 ") for word in words)


def test_a_token_read_from_the_right_leaves_its_neighbors_where_they_are() -> None:
    tokens = ["שלום", "bank", "مرحبا"]
    figure = AttentionWidget(*torch.randn(2, 3, 4), tokens=tokens, query=0, key=2).figure()
    footer = figure.axes[0].texts[-7:-1]  # the last one says which head it is
    parts = [text.get_text() for text in footer]
    assert parts[:4] == ["שלום", " 0", " → ", "مرحبا"]
    assert [text.get_position()[0] for text in footer] == sorted(text.get_position()[0] for text in footer)


def test_a_long_token_is_shortened_between_characters() -> None:
    family = "👩\u200d👩\u200d👧"
    canvas = Canvas(6.5, 100, colors.look_of("light"))
    canvas.measure = lambda text, size=12, bold=False: len(clusters(text))  # type: ignore[method-assign]
    assert canvas.shorten(f"{family}{family}abcdef{family}{family}", 5) == f"{family}{family}…{family}{family}"
    assert canvas.shorten("counted", 6) == "cou…ed"
    assert canvas.shorten("counted", 1) == "…"
