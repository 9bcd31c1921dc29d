"""From which key on a padding mask blocks: told for masks that are known to be padding, and for no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attnwidget import Attention, AttentionWidget, masks
from attnwidget._messages.pictures.picture import padding_from

PADDED = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])


@pytest.mark.parametrize(
    ("rules", "wanted"),
    [
        ({}, [None, None]),
        ({"mask": masks.padding([6, 4])}, [None, 4]),
        ({"mask": PADDED}, [None, 4]),
        ({"mask": PADDED[:, None, None]}, [None, 4]),
        ({"mask": masks.padding([6, 4]), "is_causal": True}, [None, 4]),
        ({"mask": masks.and_masks(masks.padding([5, 4]), masks.sliding_window(3))}, [5, 4]),
        ({"is_causal": True}, [None, None]),
        ({"mask": torch.ones(6, 6, dtype=torch.bool).tril(-1)}, [None, None]),
        ({"mask": masks.sliding_window(2)}, [None, None]),
    ],
)
def test_only_padding_is_padding(rules: dict[str, Any], wanted: list[int | None]) -> None:
    att = Attention(*torch.randn(2, 2, 1, 6, 4), **rules)
    assert [padding_from(att, batch) for batch in range(2)] == wanted


def test_the_picture_says_so() -> None:
    shown = AttentionWidget(*torch.randn(2, 2, 1, 6, 4), mask=masks.padding([6, 4]), batch=1)
    assert shown.picture["padding"] == 4
    shown.batch = 0
    assert shown.picture["padding"] is None


def test_small_pictures_tell_their_greatest_weights() -> None:
    q, k = torch.randn(2, 1, 3, 40, 4)
    shown = AttentionWidget(q, k)
    highs = np.frombuffer(shown.thumbnails["highs"]["data"], "<f4")
    wanted = [float(torch.softmax(q[0, head] @ k[0, head].mT / 2, -1).max()) for head in range(3)]
    assert np.allclose(highs, wanted, rtol=1e-5)
    assert shown.thumbnails["rows"] == 40


def test_an_image_opens_on_the_image() -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    q, k = torch.randn(2, 1, 1, 16, 4)
    assert AttentionWidget(q, k, grid=(4, 4), image=pixels).view == "image"
    assert AttentionWidget(q, k, grid=(4, 4), image=pixels, view="heatmap").view == "heatmap"
    assert AttentionWidget(q, k, grid=(4, 4)).view == "heatmap"
    assert AttentionWidget(q, k, image=pixels).view == "heatmap"
