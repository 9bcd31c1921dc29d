"""The images of features that a model's modules are given: where the patches of a call lie.

A U-Net gives its blocks (B, C, rows, columns), a Swin (B, rows · columns, C) with (rows, columns) beside it. A call
whose queries are as many belongs to that image. Where a call has more samples than the image, they may be windows of
it: rows of the image, cut as `Windows` describes, are compared with the rows that the attention was given. A call that
joins an image with a text, as in Stable Diffusion 3 and Flux, shows by its values which comes first.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..call.patch_grid import MOST, PatchGrid, Windows

COMPARED = 16  # channels of a patch that are compared
FEW = 16  # places of an image that are compared
SAMPLED = 160  # places of windows that are compared
CLOSE = 1e-3  # of the largest number
PLACE = 3  # numbers of a place: of the image, the row, the column
Size = tuple[int, int]


class Seen(NamedTuple):
    """What a module was given last.

    Attributes:
        module: the module.
        features: its tensors of features, with 3 to 5 axes.
        sizes: its pairs of whole numbers, such as (rows, columns).
    """

    module: nn.Module
    features: tuple[weakref.ref[Tensor], ...]
    sizes: tuple[Size, ...]

    def tensors(self) -> list[Tensor]:
        """Return the tensors that are still there."""
        return [x for ref in self.features if (x := ref()) is not None]


class Convolved(NamedTuple):
    """The output of a convolution: its rows and columns, and the features (B, n, channels) of a few places."""

    size: Size
    places: list[int]
    rows: Tensor

    def is_start_of(self, x: Tensor) -> bool:
        """Return whether features (B, rows · columns, C) are this output, place by place."""
        if x.shape[1] != math.prod(self.size) or x.shape[0] != len(self.rows):
            return False
        given = x.detach()[:, self.places, :COMPARED].float()
        return bool((given - self.rows.float()).abs().max() <= CLOSE * self.rows.abs().max())


class SpatialInputs:
    """Notes the images of features that modules are given, and finds the patches of a call among them."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}
        self._convolved: dict[int, Convolved] = {}  # the last images with so many channels
        self._joined: dict[tuple[int, int], PatchGrid] = {}  # of an image and a text, by samples and queries
        self._found: dict[tuple[Any, ...], PatchGrid] = {}  # by module and sizes

    def begin(self) -> None:
        """Forget an earlier forward pass."""
        self._seen.clear()
        self._convolved.clear()
        self._joined.clear()

    def note_input(self, name: str, module: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Note what a module is given."""
        given = (*args, *named.values())
        tensors = [x for x in given if isinstance(x, Tensor) and x.is_floating_point()]
        features = tuple(weakref.ref(x) for x in tensors if 3 <= x.ndim <= 5)
        if features:
            self._seen[name] = Seen(module, features, (*_pairs(given), *filter(None, map(_size_of_places, tensors))))

    def note_convolution(self, output: Any) -> None:
        """Note the size of an image of features."""
        if isinstance(output, Tensor) and output.ndim == 4 and output.numel():
            places = range(0, output.shape[2] * output.shape[3], -(-output.shape[2] * output.shape[3] // FEW))
            rows = output.detach()[:, :COMPARED].flatten(2)[..., list(places)].mT.clone()
            self._convolved[output.shape[1]] = Convolved((output.shape[2], output.shape[3]), list(places), rows)

    def patches_of(self, name: str, batches: int, queries: int, values: Tensor | None = None) -> PatchGrid | None:
        """Return the patches of a call, if the images around it show them.

        Args:
            name: of the module.
            batches, queries, values: of the call; values (B, H, K, Dv), or None.
        """
        around = [seen for at in _outwards(name) if (seen := self._seen.get(at)) is not None]
        asked = name, batches, queries, *((*x.shape, seen.sizes) for seen in around for x in seen.tensors())
        found = self._found.get(asked) or self._find(around, batches, queries, values)
        if found is not None:
            self._found[asked] = found
        return found

    def _find(self, around: list[Seen], batches: int, queries: int, values: Tensor | None) -> PatchGrid | None:
        images = [one for seen in around for one in _images(seen)]
        outer = images[-1].samples if images else batches
        if outer < batches and not any(one.samples == batches and one.is_video_of(outer) for one in images):
            return self._times(around, batches, queries) or self._windows(around, batches, queries)
        for seen in around:
            sizes = {one.size for one in _images(seen) if one.samples == batches and math.prod(one.size) == queries}
            if len(sizes) == 1:
                return PatchGrid(*sizes.pop())
            if sizes:
                return None
        for x in (x for seen in around for x in seen.tensors() if x.ndim == 3 and x.shape[:2] == (batches, queries)):
            made = self._convolved.get(x.shape[2])
            if made is not None and made.is_start_of(x):
                return PatchGrid(*made.size)
        return self._join(around, batches, queries, values)

    def _join(self, around: list[Seen], batches: int, queries: int, values: Tensor | None) -> PatchGrid | None:
        """Return the patches of a call that joins an image with a text; None if its values do not show where."""
        sizes = {math.prod(size): size for seen in around for size in seen.sizes} | {
            math.prod(one.size): one.size for one in self._convolved.values()
        }
        for seen in around:
            for x in seen.tensors():
                others = queries - x.shape[1]
                if x.ndim != 3 or x.shape[0] != batches or others < 1 or x.shape[1] not in sizes or values is None:
                    continue
                names = tuple(f"text {i}" for i in range(others))
                starts = [at for at in (0, others) if _values_are(seen.module, x[:, :1], values[:, :, at])]
                if len(starts) == 1:
                    before, after = (names, ()) if starts[0] else ((), names)
                    found = PatchGrid(*sizes[x.shape[1]], before, after=after)
                    return self._joined.setdefault((batches, queries), found)
        return self._joined.get((batches, queries))

    def _times(self, around: list[Seen], batches: int, queries: int) -> PatchGrid | None:
        """Return the frames of a video, if each sample of a call is one place in all of them."""
        for x in (x for seen in around for x in seen.tensors() if x.ndim == 5):
            places, rest = divmod(batches, x.shape[0])
            if (
                queries in x.shape[1:3]
                and not rest
                and places in (math.prod(one.size) for one in self._convolved.values())
            ):
                return PatchGrid(1, 1, frames=queries)
        return None

    def _windows(self, around: list[Seen], batches: int, queries: int) -> PatchGrid | None:
        """Return the windows of an image that the samples of a call are; None if its rows do not show it."""
        given = next((x for seen in around for x in seen.tensors() if _rows_are(x, batches, queries)), None)
        if given is None:
            return None
        found: set[PatchGrid] = set()
        for seen in around:
            for one in _images(seen):
                if one.samples < batches and not batches % one.samples:
                    found |= _fitting(one, _norms(seen.module), given, batches // one.samples, queries)
            if found:
                break
        return found.pop() if len(found) == 1 else None


class Image(NamedTuple):
    """An image of features: its samples, rows and columns, with its tensor as (samples, rows, columns, C)."""

    samples: int
    size: Size
    features: Tensor | None

    def is_video_of(self, samples: int) -> bool:
        """Return whether these may be the frames of so many videos: nothing tells them from windows but their size."""
        return self.features is None and not self.samples % samples


def _images(seen: Seen) -> Iterator[Image]:
    """Yield what may be an image of features among a module's inputs."""
    for x in seen.tensors():
        if x.ndim == 3:
            for size in seen.sizes:
                if math.prod(size) == x.shape[1]:
                    yield Image(x.shape[0], size, x.detach().unflatten(1, size))
        elif x.ndim == 4:
            yield Image(x.shape[0], (x.shape[2], x.shape[3]), x.detach().movedim(1, 3))
            yield Image(x.shape[0], (x.shape[1], x.shape[2]), x.detach())
        else:  # a video, (B, frames, C, rows, columns) or with frames and channels swapped
            for frames in {x.shape[1], x.shape[2]}:
                yield Image(x.shape[0] * frames, (x.shape[3], x.shape[4]), None)
            yield Image(x.shape[0], (x.shape[3], x.shape[4]), None)


def _fitting(image: Image, norms: list[nn.Module], given: Tensor, count: int, queries: int) -> set[PatchGrid]:
    """Return the ways to cut an image into so many windows whose rows are those that an attention was given."""
    (rows, columns), found = image.size, set[PatchGrid]()
    if image.features is None or image.features.shape[-1] != given.shape[-1]:
        return found
    source, theirs = image.features.flatten(1, 2), given.detach().reshape(len(image.features), -1, given.shape[-1])
    for windows in _ways(rows, columns, count, given, queries):
        many, some, theirs_at = _compared(windows, rows, columns)
        if theirs.shape[1] != many or not some:
            continue
        mine, wanted = source[:, list(some)], theirs[:, list(theirs_at)]
        if any(_are_same(mine if norm is None else _normed(norm, mine), wanted) for norm in (None, *norms)):
            found.add(PatchGrid(rows, columns, windows=windows))
    return found


@functools.lru_cache(maxsize=64)
def _compared(windows: Windows, rows: int, columns: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return how many patches all windows have, and cells to compare, with their places among these patches."""
    flat = [cell for own in windows.cells(rows, columns) for cell in own]
    places = [place for place, cell in enumerate(flat) if cell >= 0]
    some = places[:: max(1, -(-len(places) // SAMPLED))]  # evenly spread
    return len(flat), tuple(flat[place] for place in some), tuple(some)


def _ways(rows: int, columns: int, count: int, given: Tensor, queries: int) -> Iterator[Windows]:
    """Yield the ways to cut an image into so many windows of so many patches."""
    heights = (given.shape[1],) if given.ndim == 4 else range(1, queries + 1)
    for height in heights:
        width = queries // height
        if height * width != queries or Windows(height, width).many(rows, columns) != count:
            continue
        yield Windows(height, width)
        if height > 1 or width > 1:
            down, across = height // 2, width // 2
            shifts = {(down if height < rows else 0, across if width < columns else 0), (down, across)} - {(0, 0)}
            for shift in sorted(shifts):
                yield Windows(height, width, *shift)
        if not rows % height and not columns % width:
            yield Windows(height, width, spread=True)


def _are_same(mine: Tensor, theirs: Tensor) -> bool:
    """Return whether rows of an image (B, n, C) are those that an attention was given."""
    mine, theirs = mine[..., :COMPARED].float(), theirs[..., :COMPARED].float()
    return bool((mine - theirs).abs().max() <= CLOSE * theirs.abs().max())


def _values_are(module: nn.Module, x: Tensor, values: Tensor) -> bool:
    """Return whether a projection of a module takes a row of features (B, 1, C) to these values (B, H, Dv)."""
    wanted = values.flatten(1)
    for child in module.children():
        if isinstance(child, nn.Linear) and child.in_features == x.shape[-1]:
            made = nn.functional.linear(x[:, 0], child.weight, child.bias)[:, -wanted.shape[1] :]
            if made.shape == wanted.shape and bool((made - wanted).abs().max() <= CLOSE * wanted.abs().max()):
                return True
    return False


def _norms(module: nn.Module) -> list[nn.Module]:
    """Return the normalizations that a block has."""
    return [child for child in module.children() if "norm" in type(child).__name__.lower()]


def _normed(norm: nn.Module, x: Tensor) -> Tensor:
    """Return a normalization of features, without the hooks of its module."""
    try:
        return type(norm).forward(norm, x)
    except Exception:  # of another size
        return x


def _rows_are(x: Tensor, batches: int, queries: int) -> bool:
    """Return whether a tensor holds a row of features for each position of each sample."""
    return x.shape[0] == batches and x.ndim in (3, 4) and math.prod(x.shape[1:-1]) == queries


def _pairs(given: Sequence[Any]) -> Iterator[Size]:
    """Yield the pairs of whole numbers among arguments, such as (rows, columns), as one argument or two in turn."""
    for pair in (*given, *pairwise(given)):
        if isinstance(pair, tuple | list) and len(pair) == 2 and all(type(one) is int and one > 0 for one in pair):
            yield pair[0], pair[1]


def _size_of_places(x: Tensor) -> Size | None:
    """Return rows and columns of places (n, 3) or (1, n, 3), as Flux is given them; None for other tensors."""
    if x.shape[-1] != PLACE or x.ndim not in (2, 3) or (x.ndim == 3 and x.shape[0] != 1) or not 1 < x.shape[-2] <= MOST:
        return None
    rows, columns = (x.detach().reshape(-1, PLACE)[:, axis] for axis in (1, 2))
    width = int(columns.max()) + 1
    in_order = torch.arange(len(rows), device=x.device)
    is_grid = width > 0 and not len(rows) % width and torch.equal((rows * width + columns).long(), in_order)
    return (len(rows) // width, width) if is_grid else None


def _outwards(name: str) -> Iterator[str]:
    """Yield a module's name and those of the modules that hold it, the nearest first."""
    name = name.partition(" #")[0]
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield ""
