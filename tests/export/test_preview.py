"""The small picture beside the widget, and the colours that it and figures share with the front-end."""

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

from attnwidget import AttentionWidget
from attnwidget._export import colors, preview
from attnwidget._messages import decoding, encoding
from attnwidget._messages.decoding import BLOCKED, NAN

THEME = Path(__file__).parents[2] / "js" / "src" / "styles" / "theme.css"


def read_png(data: bytes) -> np.ndarray[Any, Any]:
    """(height, width, 3) of an indexed PNG whose rows have no filter."""
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
    return np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)[indices]


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
    assert len(data["image/png"]) < 8_000


@pytest.mark.parametrize("n", [2, 20, 100, 300, 600])
def test_noise_of_any_size_takes_at_most_64_kib_of_a_notebook(n: int) -> None:
    w = AttentionWidget(*3 * torch.randn(2, n, 8), stage="scores")
    made = w._repr_mimebundle_()
    assert made is not None
    assert len(made[0]["image/png"]) <= 64 * 1024
    height, width, _ = still_of(w).shape
    assert 20 <= height == width <= 700


def test_cells_have_their_colours() -> None:
    weights = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    w = AttentionWidget.from_weights(weights)
    pixels = still_of(w)
    table = colors.table("sequential", "attnwidget", "light")
    side = preview.LARGEST_CELL
    for row in range(2):
        for column in range(2):
            at = preview.BESIDE + row * side + side // 2, preview.BESIDE + column * side + side // 2
            assert pixels[at].tolist() == table[round(255 * float(weights[row, column]))].tolist()


def test_masked_is_no_tile_and_nan_is_red() -> None:
    q = torch.randn(3, 4)
    q[2, 0] = float("nan")
    pixels = still_of(AttentionWidget(q, torch.randn(3, 4), is_causal=True))
    middle = preview.BESIDE + preview.LARGEST_CELL // 2
    assert pixels[middle, middle + 2 * preview.LARGEST_CELL].tolist() == [255, 255, 255]
    red = [int(c) for c in colors.rgb_of(colors.LOOKS["light"].bad)]
    assert pixels[middle + 2 * preview.LARGEST_CELL, middle].tolist() == red


def test_a_strong_link_is_not_lost_where_pixels_are_few() -> None:
    weights = torch.full((1000, 1000), 1e-4)
    weights[401, 703] = 0.9
    w = AttentionWidget.from_weights(weights)
    table = colors.table("sequential", "attnwidget", "light")
    assert (still_of(w) == table[255]).all(-1).any()


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
    monkeypatch.setattr(preview, "png_of", lambda *_, **__: [][0])
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


def test_greys_are_those_of_the_style_sheet() -> None:
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
