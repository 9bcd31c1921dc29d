"""Image patches: where they are, and the image as it goes to the front-end, byte by byte what went in."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from traitlets import TraitError

from attnwidget import AttentionWidget
from attnwidget._messages.codec import images, patches
from attnwidget._messages.codec.patches import LayerGrid

PIXELS = np.random.default_rng(3).integers(0, 256, (12, 20, 3), dtype=np.uint8)


def opened(made: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(made["data"])).convert("RGB"))


FORMS = {
    "uint8": PIXELS,
    "float": PIXELS / 255,
    "float32": (PIXELS / 255).astype(np.float32),
    "channels first": np.moveaxis(PIXELS, 2, 0),
    "torch": torch.from_numpy(PIXELS),
    "torch, channels first": torch.from_numpy(PIXELS).permute(2, 0, 1) / 255,
    "Pillow": Image.fromarray(PIXELS),
    "opaque": np.concatenate([PIXELS, np.full((12, 20, 1), 255, np.uint8)], axis=2),
    "bfloat16 of black": torch.zeros(3, 12, 20, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("form", FORMS)
def test_any_form_goes_over_as_it_is(form: str) -> None:
    made = images.encode_image(FORMS[form])
    assert (made["mime"], made["width"], made["height"]) == ("image/png", 20, 12)
    expected = np.zeros_like(PIXELS) if form.endswith("black") else PIXELS
    assert np.array_equal(opened(made), expected)


def test_a_path_is_opened(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    assert np.array_equal(opened(images.encode_image(tmp_path / "a.png")), PIXELS)
    assert np.array_equal(opened(images.encode_image(str(tmp_path / "a.png"))), PIXELS)


def test_gray_is_gray_and_what_can_be_seen_through_is_on_white() -> None:
    gray = opened(images.encode_image(np.array([[0, 128], [255, 7]], np.uint8)))
    assert gray[..., 0].tolist() == [[0, 128], [255, 7]]
    assert (gray == gray[..., :1]).all()
    assert opened(images.encode_image(np.zeros((2, 2, 4), np.uint8))).min() == 255


def test_however_large_it_takes_no_more_than_the_budget() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (900, 2400, 3), dtype=np.uint8)
    made = images.encode_image(noise)
    assert len(made["data"]) <= images.MAX_IMAGE_BYTES
    assert made["mime"] == "image/jpeg"
    assert (made["width"], made["height"]) == (2400, 900)
    height, width = opened(made).shape[:2]
    assert width / height == pytest.approx(2400 / 900, rel=0.02)
    assert opened(made).mean() == pytest.approx(noise.mean(), abs=2)


@pytest.mark.parametrize(
    ("image", "error", "says"),
    [
        (
            np.random.default_rng(0).normal(size=(4, 4, 3)),
            ValueError,
            r"give numbers from 0 to 1, or uint8; .* x \* std \+ mean",
        ),
        (np.full((4, 4, 3), np.nan), ValueError, "numbers from nan"),
        (np.zeros((5, 4, 5)), ValueError, r"shape \(5, 4, 5\): give \(H, W, 3\)"),
        (np.zeros((0, 4, 3)), ValueError, "shape"),
        (np.zeros((4, 4, 3), np.int64), TypeError, "holds int64: give uint8"),
        ("nowhere.png", ValueError, "Pillow cannot open"),
        (7, TypeError, "image is int: give a path"),
    ],
)
def test_what_is_no_image(image: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        images.encode_image(image)


# Where the patches are.


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (((14, 14), "auto", None, 197, 197), (14, 14, 1, 1)),
        (((2, 3), "auto", None, 6, 6), (2, 3, 0, 0)),
        (((2, 3), "auto", None, 4, 6), (2, 3, None, 0)),
        (((2, 3), "query", None, 9, 9), (2, 3, 3, None)),
        (((2, 3), "both", 1, 9, 9), (2, 3, 1, 1)),
        (((2, 3), "key", 0, 9, 9), (2, 3, None, 0)),
    ],
)
def test_where_patches_are(given: tuple[Any, ...], found: tuple[Any, ...]) -> None:
    grid, side, start, queries, keys = given
    assert patches.place(LayerGrid(*grid, start=start, side=side), queries, keys)[:4] == found


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            ((20, 20), "auto", None, 197, 197),
            r"400 patches but there are 197 queries and 197 keys: .* perhaps \(14, 14\)",
        ),
        (((20, 20), "both", None, 16, 16), r"perhaps \(4, 4\)"),
        (((20, 20), "both", None, 27, 27), r"perhaps \(5, 5\)"),
        (((20, 20), "both", None, 15, 15), "into which the model cuts its image$"),
        (((2, 3), "both", None, 4, 6), "4 queries and 6 keys"),
        (((2, 3), "key", 4, 6, 6), "after the first 4 but there are 6 keys"),
    ],
)
def test_patches_that_do_not_fit(given: tuple[Any, ...], says: str) -> None:
    grid, side, start, queries, keys = given
    of_layer = LayerGrid(*grid, start=start, side=side)
    with pytest.raises(ValueError, match=says):
        patches.place(of_layer, queries, keys)


# In the widget.


def shown(**more: Any) -> AttentionWidget:
    return AttentionWidget(*torch.randn(2, 2, 1, 7, 4), grid=(2, 3), **more)


def test_the_widget_says_where_patches_are_and_sends_the_image_of_the_sample() -> None:
    other = 255 - PIXELS
    w = shown(image=[PIXELS, other])
    assert w.get_state("grid")["grid"] == {"rows": 2, "columns": 3, "query": 1, "key": 1}
    assert np.array_equal(opened(w.get_state("image")["image"]), PIXELS)
    w.batch = 1
    assert np.array_equal(opened(w.get_state("image")["image"]), other)
    w.grid_start = 0
    assert w.get_state("grid")["grid"]["query"] == 0


def test_one_image_is_that_of_all_samples() -> None:
    w = shown(image=PIXELS, batch=1)
    assert np.array_equal(opened(w.get_state("image")["image"]), PIXELS)


def test_an_image_can_be_taken_away_again() -> None:
    w = shown(image=PIXELS)
    assert w.get_state("image")["image"] is not None
    w.image = None
    assert w.get_state("image")["image"] is None
    w.image = PIXELS
    assert np.array_equal(opened(w.get_state("image")["image"]), PIXELS)
    w.grid = None
    assert w.get_state("image")["image"] is None


def test_without_a_grid_no_image_is_sent() -> None:
    w = AttentionWidget(*torch.randn(2, 1, 7, 4), image=PIXELS)
    assert w.get_state("image")["image"] is None


@pytest.mark.parametrize(
    ("more", "error", "says"),
    [
        ({"grid": (3, 3)}, ValueError, "9 patches but there are 7 queries"),
        ({"grid": 3}, TypeError, "give .rows, columns. of patches"),
        ({"grid": (0, 3)}, ValueError, "1 or more"),
        ({"image": [PIXELS]}, ValueError, "1 images but there are 2 samples"),
        ({"image": np.zeros((2, 2, 9))}, ValueError, "shape"),
        ({"grid_side": "keys"}, ValueError, "did you mean 'key'"),
    ],
)
def test_what_the_widget_refuses(more: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        AttentionWidget(*torch.randn(2, 2, 1, 7, 4), **{"grid": (2, 3), **more})


def test_a_front_end_cannot_set_grid_or_image() -> None:
    w = shown(image=PIXELS)
    w.set_state({"grid": [1, 1], "image": {"data": b"x"}})
    assert w.grid == (2, 3)


def test_the_opening_state_stays_small() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1000, 1000, 3), dtype=np.uint8)
    sent = shown(image=noise).get_state("image")["image"]
    assert len(sent["data"]) <= 256 * 1024


def test_the_image_view_needs_patches() -> None:
    q, k = torch.randn(2, 1, 2, 16, 4)
    with pytest.raises(TraitError, match=r"view is 'image' but no positions are patches: give grid"):
        AttentionWidget(q, k, view="image")
    w = AttentionWidget(q, k)
    with pytest.raises(TraitError, match="give grid"):
        w.view = "image"
    assert w.view == "heatmap"
    w.grid = (4, 4)
    w.view = "image"
    w.grid = None
    assert w.view == "heatmap"


def test_boxes_lie_on_the_image_of_their_sample() -> None:
    boxes = [[0, 0, 2, 1], [1, 0, 3, 2], [0, 0, 3, 2]]
    height, width = PIXELS.shape[:2]
    w = AttentionWidget(torch.randn(2, 1, 7, 4), torch.randn(2, 1, 3, 4), image=PIXELS, boxes=[boxes, boxes[::-1]])
    assert w.view == "image"
    sent = w.get_state("boxes")["boxes"]
    assert (sent["query"], sent["key"]) == (False, True)
    assert sent["places"][0] == [0, 0, round(2 / width, 5), round(1 / height, 5)]
    w.batch = 1
    assert w.get_state("boxes")["boxes"]["places"][-1] == sent["places"][0]
    w.boxes = None
    assert (w.view, w.get_state("boxes")["boxes"]) == ("heatmap", None)


@pytest.mark.parametrize(
    ("boxes", "error", "says"),
    [
        ([[0, 0, 1, 1]] * 4, TraitError, "there are 4 boxes, but 7 queries and 3 keys"),
        ([[0, 0, 999, 1]] * 3, TraitError, "box 0 is .* on an image of"),
        ([[1, 1, 0, 0]] * 3, TraitError, "give left, top, right and bottom"),
        ("box", TraitError, "give left, top, right and bottom"),
        ([[[0, 0, 1, 1]] * 3] * 3, TraitError, "for 3 samples but there are 2"),
    ],
)
def test_boxes_that_are_refused(boxes: Any, error: type[Exception], says: str) -> None:
    w = AttentionWidget(torch.randn(2, 1, 7, 4), torch.randn(2, 1, 3, 4), image=PIXELS)
    with pytest.raises(error, match=says):
        w.boxes = boxes
    w.image = None
    with pytest.raises(error, match="give image= as well"):
        w.boxes = [[0, 0, 1, 1]] * 3
