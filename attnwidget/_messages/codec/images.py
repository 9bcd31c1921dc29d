"""An image, or a video, whose patches are tokens, encoded for the front-end.

Pillow encodes it as PNG, or as JPEG if the PNG would be too large.
"""

from __future__ import annotations

import io
import os
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from ..._utils.png import png_of_colors
from ..._utils.validation import told
from .patches import Patches

MAX_IMAGE_BYTES = 240 * 1024  # bytes in one image: an interaction sends at most 256 KiB
MAX_IMAGE_SIDE = 1024  # pixels along the longer side: it is drawn at half that size
SLACK = 1e-3  # how far rounding may take a float image outside 0 to 1

Pixels = np.ndarray[Any, np.dtype[np.uint8]]  # (height, width, 3)


def as_images(image: Any, batches: int, patches: Patches | None = None) -> list[Any] | None:
    """Return one image, or one video, per sample: the same for all, or one from each entry of a list or first axis.

    Args:
        image: as given.
        batches: the number of samples.
        patches: of a layer: it tells videos from images, and samples that are windows of one image.

    Raises:
        ValueError: there are not as many as samples.
    """
    if image is None:
        return None
    one = 3 if patches is None or patches.frames == 1 else 4  # axes of one image or video
    windows = 1 if patches is None or patches.windows is None else len(patches.windows)
    if _axes(image) <= one:
        return [image] * batches
    if len(image) * windows != batches:
        there = f"{batches} samples" if windows == 1 else f"{batches // windows} samples of {windows} windows each"
        kind = "image" if one == 3 else "video"
        raise ValueError(f"image has {len(image)} {kind}s but there are {there}: give one {kind}, or one per sample")
    return [own for own in image for _ in range(windows)]


def _axes(image: Any) -> int:
    """Return how many axes an image has, at least 3: a list has one more than what it holds."""
    if isinstance(image, list | tuple):
        return 1 + max((_axes(one) for one in image), default=2)
    return max(3, int(getattr(image, "ndim", 0)))


def check_images(image: Any, batches: int, patches: Patches | None = None) -> None:
    """Raise TypeError or ValueError unless all images can be shown."""
    for one in as_images(image, batches, patches) or ():
        _pixels(one, patches)
        if one is image:  # the same image for all samples
            break


class Illustration:
    """The widget's image: sent for one sample at a time, and encoded once."""

    def __init__(self) -> None:
        self._encoded: tuple[Any, Any, dict[str, Any] | None] = (None, None, None)  # encoded last, and its frames
        self._told: tuple[Any, Any] = (None, None)  # the patches and image sent last

    def message(self, image: Any, batch: int, batches: int, patches: Patches | None) -> dict[str, Any] | None:
        """Return a sample's image for the front-end; None if there is none, or it does not fit the layer's samples."""
        one, frames = self._own(image, batch, batches, patches), 1 if patches is None else patches.frames
        if self._encoded[0] is not one or self._encoded[1] != frames:
            self._encoded = one, frames, None if one is None else encode_image(one, frames=frames)
        return self._encoded[2]

    def is_new(self, patches: Patches | None, image: Any, batch: int, batches: int) -> bool:
        """Return whether the front-end lacks this image at this place, and record that it has it from now on."""
        one = self._own(image, batch, batches, patches)
        told = (patches, batch if patches is not None and patches.windows else 0), None if one is None else id(one)
        if self._told == told:
            return False
        self._told = told
        return True

    def _own(self, image: Any, batch: int, batches: int, patches: Patches | None) -> Any:
        """Return a sample's image; None if a layer has other samples than the images."""
        try:
            samples = as_images(image, batches, patches)
            if samples is not None and patches is not None and patches.frames > 1:
                _frames_of(samples[batch], patches.frames)
        except ValueError:
            return None
        return None if samples is None else samples[min(batch, len(samples) - 1)]


def _pixels(image: Any, patches: Patches | None) -> Any:
    """Return the pixels of an image, or of the frames of a video."""
    if patches is None or patches.frames == 1:
        return as_pixels(image)
    return [as_pixels(one) for one in _frames_of(image, patches.frames)]


def _frames_of(video: Any, frames: int) -> list[Any]:
    """Return a picture for each frame: of a video with several pictures for each frame, the first; or one for all.

    Raises:
        ValueError: the pictures are not a multiple of the frames.
    """
    if _axes(video) <= 3:
        return [video] * frames
    if len(video) % frames or not len(video):
        raise ValueError(
            f"image is a video of {len(video)} pictures but the grid has {frames} frames: give {frames} pictures, or "
            "a multiple, from which the first of each frame is shown"
        )
    return [video[at] for at in range(0, len(video), len(video) // frames)]


def encode_image(image: Any, name: str = "image", frames: int = 1) -> dict[str, Any]:
    """Encode an image for the front-end, or the frames of a video side by side.

    Args:
        image: a path, a Pillow image, or a numpy array or torch tensor (H, W, 3), (3, H, W) or (H, W), uint8 or
            floating point from 0 to 1.
        name: the argument's name, for errors.
        frames: of a video; 1: it is an image.

    Returns:
        `mime`, `data` (at most 240 KiB, at a lower resolution if needed), and `width` and `height` as given, of one
        frame; for a video also `across`, the number of frames in a row of the picture.

    Raises:
        TypeError, ValueError: it is not such an image; the message says what to give.

    >>> made = encode_image(np.zeros((2, 3, 3), np.uint8))
    >>> made["mime"], made["width"], made["height"]
    ('image/png', 3, 2)
    """
    if frames > 1:
        return _encoded_video([as_pixels(one, name) for one in _frames_of(image, frames)])
    pixels = as_pixels(image, name)
    height, width = pixels.shape[:2]
    mime, data = _encoded(pixels)
    return {"mime": mime, "data": data, "width": width, "height": height}


def _encoded_video(pictures: list[Pixels]) -> dict[str, Any]:
    """Encode the frames of a video as one picture, row by row, each frame as large as all others."""
    across = ceil(len(pictures) ** 0.5)
    height, width = pictures[0].shape[:2]
    longest = max(height, width, MAX_IMAGE_SIDE // across)
    side = MAX_IMAGE_SIDE // across * max(height, width) // longest  # pixels of the longer side of a frame
    small = [_at_most(one, side) for one in pictures]
    if any(one.shape != small[0].shape for one in small):
        raise ValueError("the pictures of a video have several sizes: give pictures of one size")
    blank = np.zeros_like(small[0])
    filled = small + [blank] * (-len(small) % across)
    rows = [np.concatenate(filled[at : at + across], 1) for at in range(0, len(filled), across)]
    mime, data = _encoded(np.concatenate(rows))
    return {"mime": mime, "data": data, "width": width, "height": height, "across": across}


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


class Boxes(NamedTuple):
    """Boxes on an image, (n, 4) as shares of its width and height, and the sides whose positions they are."""

    places: np.ndarray[Any, Any]
    query: bool
    key: bool

    def message(self) -> dict[str, Any]:
        """Return it for the front-end."""
        return {
            "places": [[round(float(x), 5) for x in one] for one in self.places],
            "query": self.query,
            "key": self.key,
        }


def boxes_of(boxes: Any, image: Any, batch: int, batches: int, queries: int, keys: int) -> Boxes:
    """Return the boxes of a sample on its image.

    Args:
        boxes: (n, 4) numbers, left, top, right and bottom in pixels of the image; or (B, n, 4), or a list of these.
        image: as given, one or one for each sample.
        batch, batches: the sample, and the number of samples.
        queries, keys: how many there are; boxes belong to each side with as many.

    Raises:
        TypeError, ValueError: they are not boxes on the image, or not as many as queries or keys.
    """
    samples = as_images(image, batches)
    if samples is None:
        raise ValueError("boxes are in pixels of an image, but there is none: give image= as well")
    own = boxes
    if _depth(boxes) == 3:
        if len(boxes) != batches:
            raise ValueError(f"boxes are given for {len(boxes)} samples but there are {batches}: give as many lists")
        own = boxes[batch]
    own = own.detach().cpu() if callable(getattr(own, "detach", None)) else own
    try:
        found = np.asarray(own, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"boxes is {told(boxes)}: {BOXES}") from None
    if found.ndim != 2 or found.shape[1] != 4 or not np.isfinite(found).all():
        raise ValueError(f"boxes have shape {found.shape}: {BOXES}")
    sides = [len(found) == queries, len(found) == keys]
    if not any(sides):
        raise ValueError(
            f"there are {len(found)} boxes, but {queries:,} queries and {keys:,} keys: give one for each query or key"
        )
    height, width = as_pixels(samples[batch]).shape[:2]
    outside = (found[:, :2] < -1) | (found[:, 2:] > (width + 1, height + 1)) | (found[:, 2:] <= found[:, :2])
    if outside.any():
        at = int(outside.any(1).argmax())
        raise ValueError(f"box {at} is {[*map(float, found[at])]} on an image of {width} × {height} pixels: {BOXES}")
    places = np.clip(found / (width, height, width, height), 0, 1)
    return Boxes(places, *sides)


BOXES = "give left, top, right and bottom in pixels for each, (n, 4)"


def _depth(boxes: Any) -> int:
    """Return how many axes boxes have."""
    if hasattr(boxes, "ndim"):
        return int(boxes.ndim)
    return 1 + _depth(boxes[0]) if isinstance(boxes, list | tuple) and len(boxes) else 0
