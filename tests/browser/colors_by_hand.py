"""The colors of a matrix of weights and one of scores, worked out from the look once more, and read from a picture."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
from playwright.sync_api import Locator

WEIGHT = {
    "light": "f3f5f3 e9f3e2 dbefd4 c8eac6 b1e2b8 9ad9ab 7ecca4 5dbea0 3dae9c 239e99 0f8b98 097894 1a6390 2c4c8a 31377c "
    "2f236a 2a1055",
    "dark": "202026 2a2343 32295b 36336f 363f82 344e91 305e9a 26709f 1a82a2 0793a3 00a6a1 26b79a 56c68e 7ed478 9ee269 "
    "c9ed62 f8f562",
}
SCORE = {
    "light": "0f3072 0c4083 115297 2167ac 3b7fc1 5d9cd0 83bbe0 b9daef f5f3f0 f6d4b3 f4b176 e79156 d7723b c25921 aa4611 "
    "933511 7b2717",
    "dark": "92ddfb 7fd0fd 6abff6 56abe6 4693ce 3a75af 2d578e 243b5c 222123 53321c 7f4522 a55b25 c97326 e48938 f5a051 "
    "fdb96b f9d28a",
}
PAGE = {"light": (255, 255, 255), "dark": (17, 17, 17)}
INK = {"light": (0x16, 0x18, 0x1D), "dark": (0xEC, 0xEE, 0xF2)}
PLATE = {"light": 0.045, "dark": 0.07}
WEIGHTS = np.array([[0.70, 0.20, 0.07, 0.03], [0, 0.5, 0.3, 0.2], [0.25] * 4, [0.01, 0.04, 0.15, 0.80]])
SCORES = np.array([[8.0, -8, 6, -6], [4, -4, 5, -5], [0, 7, -7, 3.5], [0, 0, -3.5, 4.5]])

# Ottosson 2020: linear sRGB to the responses of three cones, and their cube roots to OKLab.
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def oklab(rgb: Any) -> npt.NDArray[np.float64]:
    share = np.asarray(rgb) / 255
    light = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    result: npt.NDArray[np.float64] = np.cbrt(light @ TO_CONES.T) @ TO_LAB.T
    return result


def srgb(lab: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    light = np.clip((lab @ np.linalg.inv(TO_LAB).T) ** 3 @ np.linalg.inv(TO_CONES).T, 0, 1)
    return 255 * np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)


def stops_of(text: str) -> npt.NDArray[np.float64]:
    return oklab([[int(stop[i : i + 2], 16) for i in (0, 2, 4)] for stop in text.split()])


def along(stops: npt.NDArray[np.float64], share: Any) -> npt.NDArray[np.float64]:
    places = np.linspace(0, 1, len(stops))
    return np.stack([np.interp(share, places, stops[:, axis]) for axis in range(3)], -1)


def plate(theme: str) -> npt.NDArray[np.float64]:
    page, ink = np.array(PAGE[theme]), np.array(INK[theme])
    return np.round(page + (ink - page) * PLATE[theme])


def weight_colors(shares: npt.NDArray[np.float64], theme: str) -> npt.NDArray[np.float64]:
    table = along(stops_of(WEIGHT[theme]), np.arange(256) / 255)
    zero = oklab(plate(theme))
    for entry in range(31):
        table[entry] = zero + (table[31] - zero) * entry / 31
    return srgb(table[np.rint(255 * shares).astype(int)])


def color_at(picture: Locator, query: int, key: int, size: int) -> npt.NDArray[np.int64]:
    """Red, green and blue of a cell, beside its number."""
    rgb = picture.evaluate(
        """(canvas, [x, y]) => {
          const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
          pixel.drawImage(canvas, Math.floor(x * canvas.width), Math.floor(y * canvas.height), 1, 1, 0, 0, 1, 1);
          return [...pixel.getImageData(0, 0, 1, 1).data.slice(0, 3)];
        }""",
        [(key + 0.2) / size, (query + 0.2) / size],
    )
    return np.array(rgb)


def wrong_colors(weights: Locator, scores: Locator, theme: str) -> list[Any]:
    """The cells that have another color than the one worked out here: where, which, and which it should be."""
    wrong: list[Any] = []
    expected, stops = weight_colors(WEIGHTS / WEIGHTS.max(), theme), stops_of(SCORE[theme])
    for query, key in itertools.product(range(4), range(4)):
        found = color_at(weights, query, key, 4)
        if np.abs(found - expected[query, key]).max() > 2:
            wrong.append((theme, "weights", query, key, found, expected[query, key]))
        share = SCORES[query, key] / 8
        wanted = plate(theme) if share == 0 else srgb(along(stops, (share + 1) / 2))
        found = color_at(scores, query, key, 4)
        if np.abs(found - wanted).max() > 4:
            wrong.append((theme, "scores", query, key, found, wanted))
    return wrong
