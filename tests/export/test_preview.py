"""The small picture beside the widget, and the colors that it and figures share with the front-end."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from front_end import decode_cells
from golden import check
from tolerance import sums

from attnwidget import AttentionWidget, segments
from attnwidget._export.look import colors
from attnwidget._export.still import preview
from attnwidget._export.still.glyphs import written
from attnwidget._messages.codec import decoding, encoding
from attnwidget._messages.codec.decoding import BLOCKED, NAN

THEME = Path(__file__).parents[2] / "js" / "src" / "styles" / "theme.css"


def read_png(data: bytes) -> np.ndarray[Any, Any]:
    """(height, width, 4) of an indexed PNG whose rows have no filter."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        length, name = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(name + body)
        chunks[name] = body
        at += 12 + length
    width, height, depth, kind = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert kind == 3
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    bits = np.unpackbits(rows[:, 1:], axis=1)[:, : width * depth].reshape(height, width, depth)
    indices = bits @ (1 << np.arange(depth)[::-1])
    colors_there = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
    alpha = np.frombuffer(chunks[b"tRNS"], np.uint8)[:, None]
    return np.concatenate([colors_there, alpha], axis=1)[indices]


def still_of(w: AttentionWidget) -> np.ndarray[Any, Any]:
    made = w._repr_mimebundle_()
    assert made is not None
    return read_png(base64.b64decode(made[0]["image/png"]))


def test_the_bundle_has_widget_text_and_picture() -> None:
    w = AttentionWidget(*torch.randn(3, 20, 8))
    made = w._repr_mimebundle_()
    assert made is not None
    data, _ = made
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "text/plain", "image/png"}
    assert data["text/plain"] == repr(w)
    assert len(data["image/png"]) < 40_000


@pytest.mark.parametrize("n", [1, 64, 300, 2000])
@pytest.mark.parametrize(("stage", "theme"), [("scores", "auto"), ("weights", "dark")])
def test_noise_of_any_size_takes_at_most_64_kib_of_a_notebook(n: int, stage: str, theme: str) -> None:
    w = AttentionWidget(*3 * torch.randn(2, n, 8), stage=stage, theme=theme, title="t" * 500, query=0, key=n - 1)
    made = w._repr_mimebundle_()
    assert made is not None
    assert len(made[0]["image/png"]) <= 64 * 1024
    height, width, _ = still_of(w).shape
    assert made[1]["image/png"] == {"width": width // 2, "height": height // 2}
    assert max(height, width) < 1400


@pytest.mark.parametrize("tokens", [["x" * 10**5] * 300, ["日本"] * 300, ["a\u0301\x00\ud800"] * 300, None])
def test_labels_of_any_kind_take_no_more(tokens: Any) -> None:
    w = AttentionWidget(*torch.randn(2, 300, 8), tokens=tokens)
    made = w._repr_mimebundle_()
    assert made is not None
    assert len(made[0]["image/png"]) <= 64 * 1024


def corner_of(w: AttentionWidget) -> tuple[int, int]:
    """The row and column of pixels where the picture of a widget begins."""
    page = still_of(w)
    dense = (page[:, :, :3] != page[0, 0, :3]).any(2)
    side = preview.LARGEST_CELL * preview.SCALE
    for y in range(page.shape[0] - side):
        for x in range(page.shape[1] - side):
            if dense[y, x : x + side - 2].all() and dense[y : y + side - 2, x].all():  # its number is inside
                return y, x
    raise AssertionError("there is no cell")


def cell(w: AttentionWidget, row: int, column: int) -> list[int]:
    """The color of a cell, (red, green, blue, alpha)."""
    (y, x), side = corner_of(w), preview.LARGEST_CELL * preview.SCALE
    found: list[int] = still_of(w)[y + row * side + 5, x + column * side + 5].tolist()
    return found


WEIGHTS = torch.tensor([[1.0, 0.0], [0.25, 0.75]])


@pytest.mark.parametrize("theme", ["light", "dark", "contrast"])
def test_cells_have_the_colors_of_a_theme(theme: Any) -> None:
    w = AttentionWidget.from_weights(WEIGHTS, theme=theme)
    table = colors.table("sequential", "attnwidget", theme)
    for row in range(2):
        for column in range(2):
            entry = round(255 * float(WEIGHTS[row, column])) // 2 * 2
            assert cell(w, row, column) == [*table[entry].tolist(), 255]


def contrast(a: Any, b: Any) -> float:
    light = [float(colors._linear(np.array(one, float)) @ np.array([0.2126, 0.7152, 0.0722])) + 0.05 for one in (a, b)]
    return max(light) / min(light)


def test_on_a_page_of_unknown_theme_it_has_a_ground_of_its_own() -> None:
    auto, light = (still_of(AttentionWidget.from_weights(WEIGHTS, theme=theme)) for theme in ("auto", "light"))
    assert (auto == light).all()
    assert (auto[:, :, 3] == 255).all()


def test_numbers_stand_in_cells_and_can_be_read() -> None:
    w = AttentionWidget.from_weights(WEIGHTS)
    for row, column, text in ((0, 0, "1.00"), (1, 0, ".25"), (1, 1, ".75")):
        (y, x), side = corner_of(w), preview.LARGEST_CELL * preview.SCALE
        tile = still_of(w)[y + row * side :, x + column * side :][: side - 2, : side - 2, :3].astype(int)
        wanted = written(text)
        assert wanted is not None
        marks = (tile != tile[0, 0]).any(2)
        assert marks.sum() == (wanted > 3).sum(), text
        assert contrast(tile[marks][0], tile[0, 0]) > 4.5


def test_the_strongest_keys_of_the_pinned_query_are_listed() -> None:
    tokens = ["river", "bank", "money", "lent"]
    q, k = torch.eye(4) * 3, torch.eye(4) * 3
    w = AttentionWidget(q, k, tokens=tokens, query=2, theme="light")
    found = preview._words_of(w._export_view(), decoding.of_picture(w._export_view().picture)).ranked
    assert found[0] == ("money 2", pytest.approx(float(w.weights(2)[2])))
    assert len(found) == 4
    assert still_of(w).shape[1] > still_of(AttentionWidget(q, k, tokens=tokens, theme="light")).shape[1]


def test_masked_has_a_slash_and_nan_is_red() -> None:
    q = torch.randn(3, 4)
    q[2, 0] = float("nan")
    w = AttentionWidget(q, torch.randn(3, 4), is_causal=True)
    (y, x), side = corner_of(w), preview.LARGEST_CELL * preview.SCALE
    tile = still_of(w)[y:, x + 2 * side :][: side - 4, : side - 4]
    assert 0 < (tile != still_of(w)[0, 0]).any(2).mean() < 0.1
    assert cell(w, 2, 0)[:3] == colors.rgb_of(colors.LOOKS["light"].bad).astype(int).tolist()


def padded(keep: int, words: Any, **show: Any) -> AttentionWidget:
    length = 6 if words is None else len(words)
    q, k = torch.randn(2, 1, 1, length, 8, generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(length) < keep).long()[None]
    return AttentionWidget(q, k, mask=mask, mask_means="keep", tokens=words, **show)


@pytest.mark.parametrize(
    ("theme", "words"),
    [("auto", ["a", "dog", "ran", ".", "[PAD]", "[PAD]"]), ("dark", ["a", "dog", "ran", ".", "x", "x"])],
)
def test_rows_of_padding_are_hatched_and_pale(theme: Any, words: list[str]) -> None:
    w = padded(4, words, theme=theme)
    y, x = corner_of(w)
    side = preview.LARGEST_CELL * preview.SCALE
    page = still_of(w)[y : y + 6 * side, x : x + 6 * side].astype(int)
    ground = still_of(w)[0, 0].astype(int)
    shade = np.abs(page - ground)[:, :, :3].max(-1)
    rows = [shade[row * side : (row + 1) * side] for row in range(6)]
    for row in range(6):
        corner = rows[row][2:18, 4 * side : 4 * side + 18]  # of a masked cell, beside its slash
        assert (corner > 0).any() == (row >= 4), "lines are over what is masked too, of padding alone"
    told, untold = (shades(w, theme), shades(padded(4, None, theme=theme), theme))  # without tokens nothing tells it
    assert (told[:4] == untold[:4]).all()
    assert (told[4:] < 0.6 * untold[4:] + 2).all()


def shades(w: AttentionWidget, theme: str) -> np.ndarray[Any, Any]:
    """How far the color of each of 6 × 4 cells is from the page."""
    (y, x), side = corner_of(w), preview.LARGEST_CELL * preview.SCALE
    page = still_of(w).astype(int)
    away = np.abs(page - page[0, 0])[:, :, :3]
    cells = away.max(-1)[y : y + 6 * side, x : x + 4 * side].reshape(6, side, 4, side)
    return np.median(cells.swapaxes(1, 2).reshape(6, 4, -1), axis=2)


def test_the_small_picture_says_that_rows_are_padding() -> None:
    def lines(w: AttentionWidget) -> str:
        words = preview._words_of(w._export_view(), decoding.of_picture(w._export_view().picture))
        assert words.padded is not None
        return "".join(map(str, words.padded.astype(int)))

    assert lines(padded(4, ["a", "dog", "ran", ".", "[PAD]", "[PAD]"])) == "000011"
    assert lines(padded(4, ["a", "dog", "ran", ".", "x", "x"])) == "000011"
    long = [f"t{at}" for at in range(1500)]
    assert lines(padded(1000, long)) == "0" * 1000 + "1" * 500
    assert lines(AttentionWidget(*torch.randn(2, 6, 8), tokens=list("abcdef"))) == "0" * 6


def test_the_pinned_cell_has_a_ring_and_its_labels_a_line() -> None:
    tokens = ["river", "bank", "money", "lent"]
    plain = AttentionWidget(*torch.zeros(3, 4, 8), tokens=tokens, theme="light")
    pinned = AttentionWidget(*torch.zeros(3, 4, 8), tokens=tokens, theme="light", query=1, key=2)
    ink = [*colors.rgb_of(colors.LOOKS["light"].ink).astype(int).tolist(), 255]
    (y, x), side = corner_of(plain), preview.LARGEST_CELL * preview.SCALE
    now, before = ((still_of(w) == ink).all(2) for w in (pinned, plain))
    assert not before.any()
    rows, columns = np.nonzero(now[y - 8 :, x - 8 :])
    assert (rows.min(), columns.min()) == (8 + side - 6, 8 + 2 * side - 6)
    assert now[:, : x - 8].sum() > 20
    assert now[: y - 8].sum() > 20


def test_tokens_and_numbers_are_written() -> None:
    w = AttentionWidget(*torch.zeros(3, 4, 8), tokens=["river", "日本", "", "lent"])
    grays = letters(still_of(w))
    for text in ("river", "1", "∅", "lent", "Weight", ".25", "4 × 4"):  # what no letters are here for has its position
        wanted = written(text)
        assert wanted is not None
        assert holds(grays, wanted), text


def letters(page: Any) -> Any:
    """The grays of letters, 0 to 7, of a light picture."""
    look = colors.LOOKS["light"]
    ink, ground = colors.rgb_of(look.ink2).astype(float), colors.rgb_of(look.page).astype(float)
    return np.rint((ground - page[:, :, :3]) / (ground - ink) * 7).mean(2)


def holds(page: Any, part: Any) -> bool:
    """Whether some pixels occur in others."""
    height, width = part.shape
    fullest = int((part != 0).sum(1).argmax())
    wanted = part[fullest].astype(np.uint8).tobytes()
    for top in range(len(page) - height + 1):
        row = page[top + fullest].astype(np.uint8).tobytes()
        left = row.find(wanted)
        while left >= 0:
            if (page[top : top + height, left : left + width] == part).all():
                return True
            left = row.find(wanted, left + 1)
    return False


def test_a_strong_link_is_not_lost_where_pixels_are_few() -> None:
    weights = torch.full((1000, 1000), 1e-4)
    weights[401, 703] = 0.9
    w = AttentionWidget.from_weights(weights)
    strongest = [*colors.table("sequential", "attnwidget", "light")[254].tolist(), 255]
    y, _ = np.nonzero((still_of(w) == strongest).all(-1))
    ramp = y > y.min() + 100
    assert (~ramp).any()


def test_the_segments_view_has_a_picture_of_its_own() -> None:
    given = {"system": (1, 4), "doc 1": (4, 11), "question": (11, 16), "answer": (16, 21)}
    q, k = torch.randn(2, 21, 8, generator=torch.Generator().manual_seed(1))
    w = AttentionWidget(q, k, is_causal=True, segments=given, view="segments", theme="light")
    seen = still_of(w)
    w.view = "heatmap"
    assert seen.shape != still_of(w).shape, "not the heatmap"
    w.view = "segments"
    cells = [preview.LARGEST_CELL * preview.SCALE * at + 5 for at in range(4)]  # beside the number of each
    shade = colors.rgb_of(colors.look_of("light").page)
    at = np.argwhere((seen[:, :, :3] != shade).any(2))  # where anything is drawn
    assert len(at)
    mass = w.attention.by_segment(segments(given, length=21), head=0, without="sink").mass[1:]
    high = float(mass.nan_to_num().max())
    table = colors.table("sequential", w.palette, "light")[::2]
    corner = _corner_of(seen, table[127])
    for row in range(4):
        for column in range(row + 1):
            found = seen[corner[0] + cells[row], corner[1] + cells[column], :3]
            wanted = table[round(float(mass[row, column]) / high * 255) >> 1]
            assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 6
    w.measure = "lift"
    assert not np.array_equal(still_of(w), seen)
    w.segments = None
    assert still_of(w).shape != seen.shape, "without segments the heatmap is drawn"


@pytest.mark.parametrize("parts", [pytest.param(40, marks=pytest.mark.thorough), 41])
def test_many_segments_are_on_the_log_scale_of_the_view(parts: int) -> None:
    """As on the page and in figures: of more than 40, a few cells hold most, and a linear scale shows no others."""
    given = {f"part {at}": (2 * at - 1, 2 * at + 1) for at in range(1, parts)}  # the first token is one more
    q, k = torch.randn(2, 2 * parts - 1, 8, generator=torch.Generator().manual_seed(1))
    w = AttentionWidget(q, k, is_causal=True, segments=given, view="segments", theme="light", aside=[])
    seen = still_of(w)
    mass = w.attention.by_segment(segments(given, length=2 * parts - 1), head=0).mass.nan_to_num()
    assert len(mass) == parts
    high, table = float(mass.max()), colors.table("sequential", w.palette, "light")[::2]
    top, left = _corner_of(seen, table[127])
    size = np.flatnonzero((seen[top:, left, :3] != table[127]).any(1))[0]
    size += np.flatnonzero((seen[top + size :, left, :3] != 255).any(1))[0]  # and the line between two
    is_log = parts > 40
    for row in range(parts):
        for column in range(row + 1):
            share = float(mass[row, column]) / high
            place = max(0.0, 1 + float(np.log(share)) / np.log(1000)) if is_log else share
            found = seen[top + row * size + size // 3, left + column * size + size // 3, :3]
            near = table[max(0, round(255 * place) - 3) >> 1 : (min(255, round(255 * place) + 3) >> 1) + 1]  # 125 steps
            assert np.abs(found.astype(int) - near.astype(int)).max(1).min() <= 6, (row, column)
    said = written("Mass, log")
    assert said is not None
    assert holds(letters(seen), said) is is_log


def _corner_of(seen: np.ndarray[Any, Any], darkest: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Where the first cell begins: the first segment gives all it has left to itself, the largest mass."""
    where = np.argwhere((seen[:, :, :3] == darkest).all(2))
    return int(where[:, 0].min()), int(where[:, 1].min())


def test_it_can_be_left_out_and_never_breaks_the_display() -> None:
    w = AttentionWidget(*torch.randn(3, 4, 8))
    w.still = False
    made = w._repr_mimebundle_()
    assert made is not None
    assert "image/png" not in made[0]
    w.still, w.picture = True, {"values": None, "error": "out of memory"}
    made = w._repr_mimebundle_()
    assert made is not None
    assert "image/png" not in made[0]


def test_a_mistake_in_the_small_picture_is_logged_and_the_widget_is_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    w = AttentionWidget(*torch.randn(3, 4, 8))
    monkeypatch.setattr(preview, "still_of", lambda *_, **__: [][0])
    made = w._repr_mimebundle_()
    assert made is not None
    assert "image/png" not in made[0]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("stage", ["weights", "scores"])
@pytest.mark.parametrize("n", [5, 300])
def test_what_is_sent_is_read_as_the_front_end_reads_it(stage: str, n: int) -> None:
    values = torch.randn(n, n).softmax(-1) if stage == "weights" else torch.randn(n, n)
    values[0, 0], values[1, 1], values[2, 2] = float("nan"), float("inf"), -float("inf")
    blocked = torch.rand(n, n) < 0.2
    made = encoding.encode_picture(values, blocked, signed=stage == "scores")
    mine, kinds = decoding.decode_cells(made["values"], made["blocked"])
    theirs, _ = decode_cells(made["values"], made["blocked"])
    number = kinds == decoding.NUMBER
    np.testing.assert_allclose(mine[number], theirs[number], **sums(1, size=0))
    assert (kinds == BLOCKED).sum() == int(blocked.sum())
    assert kinds[0, 0] == NAN or bool(blocked[0, 0])


def test_colors_are_those_of_the_front_end() -> None:
    made = {}
    for theme, look in colors.LOOKS.items():
        for kind, palette in (("sequential", "attnwidget"), ("diverging", "attnwidget"), ("sequential", "viridis")):
            name = " ".join([kind, palette, theme, look.page, look.ink])
            made[name] = " ".join(colors.hex_of(color)[1:] for color in colors.table(kind, palette, theme))
    check("colors.json", made)


def test_grays_are_those_of_the_style_sheet() -> None:
    css = THEME.read_text(encoding="utf-8")
    names = {"page": "bg", "ink": "ink", "ink2": "ink2", "ink3": "ink3", "line": "line", "data": "data", "bad": "bad"}
    for theme, selector in (("light", ".attnwidget {"), ("dark", '.attnwidget[data-theme="dark"] {')):
        block = css[css.index(selector) :].split("}")[0]
        for field, name in names.items():
            found = re.search(rf"--aw-{name}:\s*(#[0-9a-f]{{3,6}});", block)
            assert found is not None, (theme, name)
            assert found[1].replace("#fff;", "#ffffff;") in (getattr(colors.LOOKS[theme], field), "#fff"), (theme, name)


def test_scales() -> None:
    linear = colors.scale_of("sequential", False, 0, 0.5)
    assert linear.entry(np.array([0, 0.25, 0.5, 9])).tolist() == [0, 128, 255, 255]
    both = colors.scale_of("diverging", False, -1, 4)
    assert both.entry(np.array([-4, 0, 4, np.nan])).tolist() == [1, 128, 255, 128]
    log = colors.scale_of("sequential", True, 0, 1)
    assert log.position(np.array([1e-9, 1e-3, (1e-1).real, 1])) == pytest.approx([0, 0, 2 / 3, 1])
    assert colors.scale_of("sequential", False, 0, 0).entry(np.array([0.0])).tolist() == [0]
