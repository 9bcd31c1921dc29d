"""An image whose patches are tokens: where its patches lie, and the image encoded for the front-end.

Pillow encodes it as PNG, or as JPEG if the PNG would be too large.
"""

from __future__ import annotations

import io
import os
from math import ceil, isqrt
from typing import Any, NamedTuple

import numpy as np

from ..._utils.png import png_of_colors
from ..._utils.validation import as_size

MAX_IMAGE_BYTES = 240 * 1024  # bytes in one image: an interaction sends at most 256 KiB
MAX_IMAGE_SIDE = 1024  # pixels along the longer side: it is drawn at half that size
SIDES = ("auto", "query", "key", "both")
SLACK = 1e-3  # how far rounding may take a float image outside 0 to 1

Pixels = np.ndarray[Any, np.dtype[np.uint8]]  # (height, width, 3)


class Patches(NamedTuple):
    """A grid of patches in row order, and the position of the first among queries and keys; None where it is absent."""

    rows: int
    columns: int
    query: int | None
    key: int | None


def as_grid(grid: Any) -> tuple[int, int]:
    """Return rows and columns of patches; raise TypeError or ValueError for anything else.

    >>> as_grid([14, 14])
    (14, 14)
    """
    try:
        rows, columns = grid
    except (TypeError, ValueError):
        raise TypeError(f"grid is {grid!r:.40}: give (rows, columns) of patches, such as (14, 14)") from None
    return as_size(rows, "grid rows"), as_size(columns, "grid columns")


def place(grid: tuple[int, int], side: str, start: int | None, queries: int, keys: int) -> Patches:
    """Return where the patches of a grid lie.

    Args:
        grid: rows, columns.
        side: "query", "key" or "both"; "auto" means every side with room for them.
        start: the position of the first patch; None means the last rows · columns positions, which skips [CLS].
        queries, keys: how many positions there are.

    Raises:
        ValueError: they do not fit.

    >>> place((14, 14), "auto", None, 197, 197)
    Patches(rows=14, columns=14, query=1, key=1)
    """
    rows, columns = grid
    many, lengths = rows * columns, {"query": queries, "key": keys}
    needed = many + (start or 0)
    wanted = ("query", "key") if side in ("auto", "both") else (side,)
    fitting = [name for name in wanted if needed <= lengths[name]]
    if not fitting or (side != "auto" and len(fitting) < len(wanted)):
        there = " and ".join(f"{lengths[name]:,} {'queries' if name == 'query' else 'keys'}" for name in wanted)
        after = f" after the first {start}" if start else ""
        given = f"grid is {rows} × {columns} = {many:,} patches{after}"
        raise ValueError(f"{given} but there are {there}: {_advice(max(lengths.values()))}")
    first = {name: lengths[name] - many if start is None else start for name in fitting}
    return Patches(rows, columns, first.get("query"), first.get("key"))


def fitting(grid: tuple[int, int], side: str, start: int | None, queries: int, keys: int) -> Patches | None:
    """Return what `place` returns, or None if the patches do not fit."""
    try:
        return place(grid, side, start, queries, keys)
    except ValueError:
        return None


def _advice(length: int) -> str:
    """Return advice, with a likely grid if the number of patches is a square after a few leading positions."""
    for special in (1, 0, 2, 5):
        side = isqrt(max(0, length - special))
        if side > 1 and side * side == length - special:
            return f"give the (rows, columns) into which the model cuts its image, here perhaps ({side}, {side})"
    return "give the (rows, columns) into which the model cuts its image"


def as_images(image: Any, batches: int) -> list[Any] | None:
    """Return one image per sample: the same for all, or one from each entry of a list or a fourth axis."""
    if image is None:
        return None
    several = isinstance(image, list | tuple) or getattr(image, "ndim", 0) == 4
    if not several:
        return [image] * batches
    if len(image) != batches:
        raise ValueError(
            f"image has {len(image)} images but there are {batches} samples: give one image, or one per sample"
        )
    return list(image)


def check_images(image: Any, batches: int) -> None:
    """Raise TypeError or ValueError unless all images can be shown."""
    for one in as_images(image, batches) or ():
        as_pixels(one)
        if one is image:  # the same image for all samples
            break


class Illustration:
    """The widget's image: sent for one sample at a time, and encoded once."""

    def __init__(self) -> None:
        self._encoded: tuple[Any, dict[str, Any] | None] = (None, None)  # encoded last
        self._told: tuple[Any, Any] = (None, None)  # the patches and image sent last

    def message(self, image: Any, batch: int, batches: int) -> dict[str, Any] | None:
        """Return a sample's image for the front-end; None if there is none."""
        samples = as_images(image, batches)
        one = None if samples is None else samples[min(batch, len(samples) - 1)]
        if self._encoded[0] is not one:
            self._encoded = one, None if one is None else encode_image(one)
        return self._encoded[1]

    def is_new(self, patches: Patches | None, image: Any, batch: int, batches: int) -> bool:
        """Return whether the front-end lacks this image at this place, and record that it has it from now on."""
        samples = as_images(image, batches)
        told = patches, None if samples is None else id(samples[batch])
        if self._told == told:
            return False
        self._told = told
        return True


def encode_image(image: Any, name: str = "image") -> dict[str, Any]:
    """Encode an image for the front-end.

    Args:
        image: a path, a Pillow image, or a numpy array or torch tensor (H, W, 3), (3, H, W) or (H, W), uint8 or
            floating point from 0 to 1.
        name: the argument's name, for errors.

    Returns:
        `mime`, `data` (at most 240 KiB, at a lower resolution if needed), and `width` and `height` as given.

    Raises:
        TypeError, ValueError: it is not such an image; the message says what to give.

    >>> made = encode_image(np.zeros((2, 3, 3), np.uint8))
    >>> made["mime"], made["width"], made["height"]
    ('image/png', 3, 2)
    """
    pixels = as_pixels(image, name)
    height, width = pixels.shape[:2]
    mime, data = _encoded(pixels)
    return {"mime": mime, "data": data, "width": width, "height": height}


def as_pixels(image: Any, name: str = "image") -> Pixels:
    """Return the pixels, (height, width, 3) uint8, of any image that `encode_image` accepts."""
    if isinstance(image, str | os.PathLike):
        image = _opened(image, name)
    if callable(getattr(image, "convert", None)):  # a Pillow image
        image = np.asarray(image.convert("RGB"))
    if callable(getattr(image, "detach", None)):  # a tensor
        image = image.detach().cpu()
        image = (image.float() if image.is_floating_point() else image).numpy()
    if not hasattr(image, "__array__"):
        raise TypeError(f"{name} is {type(image).__name__}: give a path, a Pillow image, or an array (H, W, 3)")
    return _as_bytes(_as_hwc(np.asarray(image), name), name)


def _opened(path: str | os.PathLike[str], name: str) -> Any:
    from PIL import Image

    try:
        return Image.open(path)
    except OSError as error:
        raise ValueError(f"Pillow cannot open {name} {os.fspath(path)!r}: {error}") from None


def _as_hwc(x: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Return the array as (height, width, channels)."""
    given = x.shape
    x = x[..., None] if x.ndim == 2 else x
    if x.ndim == 3 and x.shape[2] not in (1, 3, 4) and x.shape[0] in (1, 3, 4):
        x = np.moveaxis(x, 0, 2)
    if x.ndim != 3 or x.shape[2] not in (1, 3, 4) or 0 in x.shape:
        raise ValueError(f"{name} has shape {given}: give (H, W, 3), (3, H, W) or (H, W)")
    return x


def _as_bytes(x: np.ndarray[Any, Any], name: str) -> Pixels:
    if x.dtype == np.bool_:
        x = x.astype(np.float32)
    if x.dtype.kind == "f":
        low, high = float(x.min()), float(x.max())
        if not (low >= -SLACK and high <= 1 + SLACK):  # also catches NaN
            raise ValueError(
                f"{name} holds numbers from {low:.3g} to {high:.3g}: give numbers from 0 to 1, or uint8; "
                "to undo a model's normalization, give x * std + mean"
            )
        x = np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8)
    if x.dtype != np.uint8:
        raise TypeError(f"{name} holds {x.dtype}: give uint8 from 0 to 255, or floating point from 0 to 1")
    if x.shape[2] == 4:  # blend onto white
        alpha = x[..., 3:].astype(np.uint16)
        x = ((x[..., :3] * alpha + 255 * (255 - alpha)) // 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(x, (*x.shape[:2], 3)))


def _encoded(pixels: Pixels) -> tuple[str, bytes]:
    """Compress as PNG, else as JPEG, and reduce the resolution until it is small enough."""
    from PIL import Image

    pixels = _at_most(pixels, MAX_IMAGE_SIDE)
    while True:
        data = png_of_colors(pixels)
        if len(data) <= MAX_IMAGE_BYTES:
            return "image/png", data
        for quality in (90, 75, 60, 40, 20):
            encoded = io.BytesIO()
            Image.fromarray(pixels).save(encoded, "JPEG", quality=quality)
            if encoded.tell() <= MAX_IMAGE_BYTES:
                return "image/jpeg", encoded.getvalue()
        pixels = _at_most(pixels, max(1, max(pixels.shape) * 3 // 4))


def _at_most(pixels: Pixels, side: int) -> Pixels:
    """Reduce to at most `side` pixels per side by averaging."""
    height, width = pixels.shape[:2]
    longest = max(height, width)
    if longest <= side:
        return pixels
    rows, columns = (max(1, ceil(length * side / longest)) for length in (height, width))
    return _averaged(_averaged(pixels, 0, rows), 1, columns)


def _averaged(pixels: Pixels, axis: int, wanted: int) -> Pixels:
    length = pixels.shape[axis]
    if wanted == length:
        return pixels
    starts = np.arange(wanted) * length // wanted
    counts = np.diff([*starts, length])
    sums = np.add.reduceat(pixels.astype(np.uint32), starts, axis=axis)
    return (sums // counts.reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))).astype(np.uint8)
