"""The text at the positions of attention: ids, padding and image patches, read from the model's own calls.

The source is the lookups of ids in embedding tables. They are the text whatever the arguments are called, even if
`generate` calls an encoder separately, a model shifts its labels, or a library sorts its sentences. Each lookup belongs
to a tower: the tower that made it, else the owner of the table, else the tower in the table's name (`src_embed`). It
labels attention of its tower with as many queries as it has ids, in the same forward pass only. If two lookups fit and
differ, or the model was given features of as many positions, positions have no names. Tables of positions and of kinds
of tokens are left out, and so are tables with far fewer rows than another. Of models of transformers only
`get_input_embeddings()` is watched; of other models, ids that the model was called with come first. A model that
looks nothing up, but is called with ids and has one tower, is labeled by those ids.

Its `attention_mask` says which ids are padding. A grid of patches is the shape of a convolution's output, if
its steps are as wide as its kernel, or that of the features around a call (`SpatialInputs`); models with image tokens
report it in their arguments (`image_grid_thw`) or in their config.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..._utils.quietly import keep_from_model, quietly
from ..call.call_text import UNKNOWN, CallText, Claim, ImageTokens
from ..call.patch_grid import PatchGrid
from ..modules.module_walk import has_children, modules, named_modules, own_parameters
from ..modules.towers import ATTENTION, Towers
from .spatial_inputs import SpatialInputs

NOT_TEXT = re.compile(r"pos|wpe|type|segment|relative|bias|bucket|time|step|class_emb|label|distance", re.IGNORECASE)
NO_IDS = re.compile(rf"mask|{NOT_TEXT.pattern}", re.IGNORECASE)  # integer arguments that are not a text
NO_FEATURES = re.compile(  # floating-point arguments that have no positions in a self-attention
    r"mask|bias|pos|rotary|rope|freq|encoder|memory|context|cross|past|label|state", re.IGNORECASE
)
FEW = 16  # a table with so many times fewer rows than another holds features, not words
TABLE = re.compile(r"embed", re.IGNORECASE)
NO_TEXT = re.compile(r"vis|image|img|pixel|video|audio|speech", re.IGNORECASE)  # towers that read no ids
SIDES = (
    (re.compile(r"src|source|enc", re.IGNORECASE), re.compile(r"(^|[._])enc", re.IGNORECASE)),
    (re.compile(r"tgt|trg|target|dec", re.IGNORECASE), re.compile(r"(^|[._])dec", re.IGNORECASE)),
)
CLASS_TOKENS = re.compile(r"(^|[._])(cls|class)_?(token|embed)", re.IGNORECASE)
OTHER_TOKENS = {
    "[DIST]": re.compile(r"dist\w*_token", re.IGNORECASE),
    "[REG]": re.compile(r"reg\w*_token", re.IGNORECASE),
}
VIDEO_TOKENS = "video_token_id", "video_token_index"
IMAGE_TOKENS = ("image_token_id", "image_token_index", "img_token_id")
GRIDS = ("image_grid_thw", "video_grid_thw")  # arguments of models
OF_PICTURES = re.compile(r"Transformer[23]D")  # in the names of classes
OF_SPECTROGRAMS = ("whisper", "speech_to_text")  # models, by their type
SAMPLING_RATE = 16_000  # of all speech models of transformers whose config has none
FINGERPRINT = 8  # numbers of an encoder's output that identify it
FAILED = (
    "the text could not be read, because attnwidget failed in it ({}), so positions have no tokens. Please report "
    "this, and give the tokens yourself, cap.widget(tokens=[…])"
)
SQUARE = (
    "the positions of {} have no names: its input has positions before samples (batch_first=False), and here as many "
    "samples as positions ({}), so the two axes cannot be told apart. Name the positions yourself, "
    "cap.widget(tokens=[[...], ...]) with a list for each sample, or capture one sample more or less"
)


class Lookup(NamedTuple):
    """Ids that were looked up.

    Attributes:
        ids: (B, n).
        rank: how likely they are the text: the larger, the likelier.
        table: the name of the table.
        claim: the tower of the lookup, if its table belongs to none.
        is_row: whether they came as (n,), which is one sample, or one number for each sample.
    """

    ids: Tensor
    rank: tuple[int, int]
    table: str
    claim: Claim
    is_row: bool = False

    def fitting(self, batches: int, length: int, *, copies: bool = False) -> Tensor | None:
        """Return the ids for so many samples and positions, as `_fitting` does; None if they do not fit."""
        return None if self.is_row and batches > 1 else _fitting(self.ids, batches, length, copies=copies)


@dataclass
class Pictures:
    """The images and video frames that a tower is about to see: each call of a layer is for one of them.

    Attributes:
        sizes: rows and columns of the patches of each, in order.
        block: as in `PatchGrid`.
        first: the number of pictures that the tower has seen before, in the same forward pass.
        calls: the number of calls of each module; None after a call of another size.
    """

    sizes: list[tuple[int, int]]
    block: int
    first: int = 0
    calls: dict[str, int | None] = field(default_factory=dict)

    def next_of(self, name: str, samples: int, queries: int, keys: int) -> PatchGrid | None:
        """Return the picture of a module's next call; None if the call does not have its size."""
        count = self.calls.get(name, 0)
        if count is None:
            return None
        rows, columns = self.sizes[count] if count < len(self.sizes) else (0, 0)
        if samples != 1 or not queries == keys == rows * columns:
            self.calls[name] = None
            return None
        self.calls[name] = count + 1
        return PatchGrid(rows, columns, block=self.block, picture=self.first + count)


class Sound(NamedTuple):
    """A sound that a tower hears: how many parts it has after the last convolution, and their distance in seconds."""

    length: int
    seconds: float


@dataclass
class TowerText:
    """The text that a tower is reading."""

    lookups: list[Lookup] = field(default_factory=list)
    used: bool = False  # whether attention of the tower has run since
    mask: Tensor | None = None  # (B, n)
    types: Tensor | None = None  # (B, n), token_type_ids
    grid: tuple[int, ...] | None = None  # rows and columns, after frames in a video
    sound: Sound | None = None
    pictures: Pictures | None = None  # that it is about to see, in order
    output: Tensor | None = None  # some numbers of its output, (B, FINGERPRINT)
    read: dict[int, Lookup | None] = field(default_factory=dict)  # in this forward pass, by the number of positions
    last: list[Lookup] = field(default_factory=list)  # its last lookups, kept for cross-attention of later passes
    last_mask: Tensor | None = None
    last_grid: tuple[int, ...] | None = None
    last_sound: Sound | None = None

    def begin(self) -> None:
        """Forget the text of an earlier forward pass."""
        self.lookups, self.used, self.mask, self.grid, self.pictures = [], False, None, None, None
        self.sound = None
        self.read, self.types = {}, None

    def forget_source(self) -> None:
        """Forget also the text that later forward passes could attend to."""
        self.last, self.last_mask, self.last_grid, self.last_sound = [], None, None, None


class ThreadText(threading.local):
    """The text that a model is reading in one thread: several threads may run it, each with its own text."""

    def __init__(self) -> None:
        self.texts: dict[str, TowerText] = {}  # by the path of the tower
        self.of_no_tower: list[Lookup] = []
        self.arguments: list[Tensor] = []  # integer arguments of the model, without masks and the like
        self.features: set[tuple[int, int]] = set()  # samples and positions of floating-point arguments
        self.is_of_text_alone = True  # whether the model was called without pictures, sounds or features
        self.images: ImageTokens | None = None
        self.videos: ImageTokens | None = None
        self.has_told_grids = False  # whether the running call has reported the grids of its images or videos
        self.encoded: weakref.ref[Tensor] | None = None  # that was given as the output of an encoder
        self.looked_up: Lookup | None = None  # by the table that is running
        self.embedded: list[tuple[Lookup, Tensor]] = []  # the last lookups, with their embeddings (B, n, D)
        self.known: dict[tuple[Any, ...], CallText] = {}  # since the last lookup
        self.spatial = SpatialInputs()
        self.seconds: float | None = None  # between two numbers of the sound that the model was given
        self.running = 0


class TextWatcher:
    """Watches the text that a model reads while a capture is open; it changes nothing, and its errors stay inside.

    Args:
        model: that is captured.
        names: of its modules, by identity.
        modules_on_stack: yields the modules whose methods are running, the innermost first.
    """

    def __init__(
        self,
        model: nn.Module,
        names: dict[int, str],
        modules_on_stack: Callable[[FrameType | None], Iterator[nn.Module]],
    ) -> None:
        self.model, self._names, self._modules_on_stack = model, names, modules_on_stack
        self.towers = Towers.of_model(model, names)
        self._own_tokens: dict[str, tuple[str, ...]] = {}
        self._paths: dict[str, str] = {}  # the tower of each module that has called
        self._failed: str | None = None  # the first error of reading the text
        self._unnamed: dict[str, int] = {}  # modules whose axes are ambiguous, with their size
        self._now = ThreadText()
        self._has_images = _may_see_images(model)

    def text_of(
        self, name: str, batches: int, queries: int, keys: int, values: Tensor | None = None
    ) -> CallText | None:
        """Return the text at the positions of a module's call; None if unknown.

        Args:
            name: of the module.
            batches, queries, keys, values: of the call; values (B, H, K, Dv), or None.
        """
        return None if self._failed else quietly(self._fail, self._find_text, name, batches, queries, keys, values)

    def _find_text(self, name: str, batches: int, queries: int, keys: int, values: Tensor | None) -> CallText | None:
        """Return the text as `text_of` does."""
        self._now.embedded.clear()  # they were found in the input before the first attention, or are not in it
        if 1 < batches == queries and self._is_positions_first(name):
            self._leave_unnamed(name, batches, queries, keys)
            return None
        found = None if self._has_images else self._now.known.get((self._paths.get(name), batches, queries, keys, None))
        if found is not None:  # layers of a tower share it
            return found
        return self._text_of(name, batches, queries, keys, values)

    def _leave_unnamed(self, name: str, batches: int, queries: int, keys: int) -> None:
        """Note that positions have no names, because ids of (samples, positions) would fit the other way too.

        Args:
            name, batches, queries, keys: as `text_of` takes them.
        """
        with contextlib.suppress(Exception):
            text = self._text_of(name, batches, queries, keys)
            if text is not None and any(x is not None for x in (text.ids, text.key_ids, text.patches)):
                self._unnamed.setdefault(name, queries)

    def pop_remarks(self) -> list[str]:
        """Return why positions have no names though the model read a text, and forget it."""
        unnamed, self._unnamed = [*self._unnamed.items()], {}
        if self._failed:
            return [FAILED.format(self._failed)]
        if not unnamed:
            return []
        (name, count), others = unnamed[0], len(unnamed) - 1
        return [SQUARE.format(f"{name!r}{f' and {others} more' if others else ''}", count)]

    def _is_positions_first(self, name: str) -> bool:
        """Return whether a module's input is (positions, samples, size)."""
        modules = (module for module in self.model.modules() if self._names.get(id(module)) == name)
        found = next(modules, None)
        return isinstance(found, nn.MultiheadAttention) and not found.batch_first

    def _text_of(
        self, name: str, batches: int, queries: int, keys: int, values: Tensor | None = None
    ) -> CallText | None:
        path = self._paths.get(name)
        if path is None:
            inner = self.towers.given_inside(name)
            if inner is None and name not in self.towers:
                self._add_to_towers(name)
            path = self._paths[name] = self.towers.path_of(inner or name) or ""
        now = self._now
        own = now.texts.get(path)
        if own is None:
            own = now.texts[path] = TowerText()
        own.used = True
        if own.pictures is not None:  # each call is for one picture: layers share nothing
            patches = own.pictures.next_of(name, batches, queries, keys)
            return (
                self._read_positions(path, own, batches, queries, keys)
                if patches is None
                else CallText(patches=patches)
            )
        around = now.spatial.patches_of(name, batches, queries, values)
        key = path, batches, queries, keys, around
        found = now.known.get(key)
        if found is None:
            found = now.known[key] = self._read_positions(path, own, batches, queries, keys)
            if found.ids is None and found.patches is None:
                found.patches = around or _parts_of(own.sound, queries)
                own.last_grid = (around.rows, around.columns) if around is not None else own.last_grid
        return found

    def _add_to_towers(self, name: str) -> None:
        """Add a module that computes attention: the towers, and their texts, may change."""
        self.towers = self.towers.with_name(name)
        self._paths.clear()
        for path in [path for path in self._now.texts if path not in self.towers.paths]:
            self._now.of_no_tower += self._now.texts.pop(path).lookups

    def _read_positions(self, path: str, own: TowerText, batches: int, queries: int, keys: int) -> CallText:
        lookup = self._lookup_of(path, own.lookups, queries)
        ids = None if lookup is None else lookup.fitting(batches, queries)
        own.read[queries] = lookup if ids is not None else None
        text = CallText(ids, None if own.mask is None else _fitting(own.mask, batches, queries, last=True))
        if ids is not None and own.types is not None:
            text.types = _fitting(own.types, batches, queries)
        if lookup is not None and ids is not None and self._may_be_of_another(path, lookup, own.lookups):
            lookup.claim.add(path)
            text.claim = lookup.claim
        text.patches = self._patches(path, own.grid, queries) if ids is None else None
        text.images, text.videos = (self._now.images, self._now.videos) if ids is not None else (None, None)
        if keys != queries or len(self.towers.paths) > 1:
            self._add_source(text, path, batches, queries, keys)
        return text

    def _add_source(self, text: CallText, path: str, batches: int, queries: int, keys: int) -> None:
        """Add the text at the keys, if they belong to another tower."""
        ids: list[tuple[Lookup, Tensor | None]] = []
        patches: set[PatchGrid] = set()
        for other in self.towers.paths:
            theirs = self._now.texts.get(other) if other != path or keys != queries else None
            lookup = None if theirs is None else self._source_of(other, theirs, keys)
            if theirs is not None and lookup is not None and lookup.fitting(batches, keys, copies=True) is not None:
                if not any(lookup.ids is known.ids for known, _ in ids):  # a lookup outside all towers may fit each
                    ids.append((lookup, theirs.last_mask))
            elif theirs is not None:
                grid = self._patches(other, theirs.last_grid, keys) or _parts_of(theirs.last_sound, keys)
                patches |= set() if grid is None else {grid}
        if len(ids) + len(patches) != 1:  # a text and an image of the same length cannot be told apart as the source
            return
        if patches:
            text.key_patches = patches.pop()
            return
        found, mask = ids[0]
        text.key_ids, text.key_claim = found.fitting(batches, keys, copies=True), found.claim
        text.key_real = None if mask is None else _fitting(mask, batches, keys, copies=True)

    def _source_of(self, path: str, theirs: TowerText, length: int) -> Lookup | None:
        """Return the lookups of a tower that others attend to: in this forward pass if it has run, else earlier."""
        if length in theirs.read:
            return theirs.read[length]
        return None if theirs.read else self._lookup_of(path, theirs.last, length)

    def _lookup_of(self, path: str, own: list[Lookup], length: int) -> Lookup | None:
        """Return a tower's text at so many positions: from its own lookups, or else from those outside all towers."""
        found = _only_text(own, length) if own else self._lookup_of_no_tower(path, length)
        if found is None or not self._may_be_of_another(path, found, own):
            return found
        return None if tuple(found.ids.shape) in self._now.features else found

    def _may_be_of_another(self, path: str, lookup: Lookup, own: list[Lookup]) -> bool:
        """Return whether the tower may read something else of the same length that the model was given: a picture.

        Args:
            path: of the tower.
            lookup: its likely text.
            own: its own lookups, in tables that belong to no other tower.
        """
        is_shared = len(self.towers.paths) == 1 or not own
        return is_shared and not self._now.is_of_text_alone and not self._is_named_as(lookup, path)

    def _is_named_as(self, lookup: Lookup, path: str) -> bool:
        """Return whether a table has the name of a tower, such as `src_embed` for an encoder."""
        name = self.towers.names[path]
        return any(of_tower.search(name) and of_table.search(lookup.table) for of_table, of_tower in SIDES)

    def _lookup_of_no_tower(self, path: str, length: int) -> Lookup | None:
        """Return the one lookup outside all towers that can belong to a tower."""
        name = self.towers.names[path]
        if NO_TEXT.search(name):
            return None
        fitting = [one for one in self._now.of_no_tower if one.ids.shape[-1] == length]
        for of_table, of_tower in SIDES:
            if of_tower.search(name) and any(of_table.search(one.table) for one in fitting):
                fitting = [one for one in fitting if of_table.search(one.table)]
            elif not of_tower.search(name) and any(of_tower.search(other) for other in self.towers.names.values()):
                fitting = [one for one in fitting if not of_table.search(one.table)]
        return _only_text(fitting, length)

    def _patches(self, path: str, grid: tuple[int, ...] | None, length: int) -> PatchGrid | None:
        """Return the patches of a tower, if they and the tokens before them are all its positions."""
        if grid is None:
            return None
        *frames, rows, columns = grid
        for named in ((), self._tokens_before(path)):
            found = PatchGrid(rows, columns, named, frames=frames[0] if frames else 1)
            if found.length == length:
                return found
        return None

    def _tokens_before(self, path: str) -> tuple[str, ...]:
        """Return the names of a tower's own tokens, which come before its patches."""
        if path not in self._own_tokens:
            self._own_tokens[path] = self._find_tokens_before(path)
        return self._own_tokens[path]

    def _find_tokens_before(self, path: str) -> tuple[str, ...]:
        found: dict[str, tuple[str, ...]] = {}
        for name, parameter in self.model.named_parameters():
            if self.towers.path_of(name) != path:
                continue
            if CLASS_TOKENS.search(name):
                found["[CLS]"] = ("[CLS]",)
            for label, pattern in OTHER_TOKENS.items():
                if pattern.search(name):
                    count = parameter.shape[-2] if parameter.ndim > 1 else 1
                    found[label] = tuple(f"[REG {i}]" for i in range(count)) if label == "[REG]" else (label,)
        return tuple(token for label in ("[CLS]", "[DIST]", "[REG]") for token in found.get(label, ()))

    # Hooks: they only read.

    def _quiet(self, reads: Callable[..., None]) -> Callable[..., None]:
        """Return a hook that returns nothing, and keeps its errors from the model."""

        def hook(*args: Any) -> None:
            try:
                reads(*args)
            except Exception as error:
                keep_from_model(error, self._fail)

        return hook

    def _fail(self, error: Exception) -> None:
        """Leave all positions unnamed: after an error the words of another text might name them."""
        self._failed = self._failed or f"{type(error).__name__}: {error}"

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Watch the model until the block ends."""
        with contextlib.ExitStack() as stack:
            for module, reads, after in self._watched():
                with contextlib.suppress(Exception):  # a scripted module takes no hooks
                    register: Any = module.register_forward_hook if after else module.register_forward_pre_hook
                    stack.callback(register(self._quiet(reads), with_kwargs=True).remove)
            stack.enter_context(self._root_hooks())
            yield

    @contextlib.contextmanager
    def _root_hooks(self) -> Iterator[None]:
        begin, end = self._quiet(self._begin), self._quiet(self._end)
        with contextlib.ExitStack() as stack:
            stack.callback(self.model.register_forward_pre_hook(begin, prepend=True, with_kwargs=True).remove)
            stack.callback(self.model.register_forward_hook(end, with_kwargs=True, always_call=True).remove)
            yield

    def _watched(self) -> Iterator[tuple[nn.Module, Callable[..., None], bool]]:
        """Yield the modules whose calls are read, with the reader, and whether it runs after the call."""
        homes = _homes(self.model, self.towers)
        for module, rank in _tables(self.model, self._names).items():
            yield module, functools.partial(self._looked_up, rank=rank, home=homes.get(id(module))), False
            yield module, self._embedded, True
        by_name = {name: module for module in modules(self.model) if (name := self._names.get(id(module))) is not None}
        for path, root in self.towers.territories.items():
            for name in _way(root, path):
                inner = by_name.get(name)
                if inner is not None and inner is not self.model:
                    yield inner, functools.partial(self._tower_begins, path=path, outermost=name == root), False
            if root in by_name and len(self.towers.paths) > 1:
                yield by_name[root], functools.partial(self._tower_ends, path=path), True
        if self._has_images:
            yield from self._watched_images(by_name)
        for name, module in by_name.items():
            hears = isinstance(module, nn.Conv1d) and not ATTENTION.search(name)
            if hears and (path_of := self.towers.path_of(name)) is not None:
                yield module, functools.partial(self._heard, path=path_of), True

    def _watched_images(
        self, by_name: Mapping[str, nn.Module]
    ) -> Iterator[tuple[nn.Module, Callable[..., None], bool]]:
        for name, module in by_name.items():
            if has_children(module):
                yield module, functools.partial(self._given_features, name="" if module is self.model else name), False
            if not isinstance(module, nn.Conv2d | nn.Conv3d):
                continue
            yield module, self._convolved, True
            cuts = module.kernel_size == module.stride and max(module.stride) > 1
            if cuts and not ATTENTION.search(name) and (path_of := self.towers.path_of(name)) is not None:
                yield module, functools.partial(self._cut_into_patches, path=path_of), True

    def _begin(self, _: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Begin a forward pass of the model."""
        self._now.known.clear()
        self._now.running += 1
        if self._now.running > 1:
            return
        for text in self._now.texts.values():
            text.begin()
        self._now.of_no_tower.clear()
        self._now.embedded.clear()
        self._now.spatial.begin()
        self._now.has_told_grids = any(_are_grids(named.get(name)) for name in GRIDS)
        self._read_images(named)
        self._now.seconds = _seconds_of(self.model, named, args)
        given = _arguments(self.model, args, named)
        others = [x for name, x in given if x.is_floating_point() and x.ndim > 1 and not NO_FEATURES.search(name)]
        self._now.arguments = [x for name, x in given if x.ndim == 2 and _are_ids(x) and not NO_IDS.search(name)]
        self._now.features = {(x.shape[0], x.shape[1]) for x in others if x.ndim == 3}
        self._now.is_of_text_alone = not others
        encoded = named.get("encoder_outputs")
        if encoded is not None:
            self._is_known(encoded)
        if len(self.towers.paths) == 1:
            (path,) = self.towers.paths
            text = self._now.texts.setdefault(path, TowerText())
            self._read_mask(text, named)
            ids = named.get("input_ids", self._now.arguments[0] if len(self._now.arguments) == 1 else None)
            if isinstance(ids, Tensor) and ids.ndim == 2 and _are_ids(ids):
                text.lookups = [Lookup(ids.detach().clone(), (-1, 0), "", Claim())]

    def forget_running(self) -> None:
        """Forget the running calls of this thread: an interrupt has ended them."""
        self._now.running = 0

    def _end(self, *_: Any) -> None:
        self._now.running = max(0, self._now.running - 1)

    def _is_known(self, encoded: Any) -> None:
        """Forget what encoders read, if a forward pass is given an output that none of them gave."""
        hidden = encoded[0] if isinstance(encoded, list | tuple) else getattr(encoded, "last_hidden_state", None)
        if not isinstance(hidden, Tensor) or (self._now.encoded is not None and self._now.encoded() is hidden):
            return
        self._now.encoded = weakref.ref(hidden)
        sample = _fingerprint(hidden)
        for text in self._now.texts.values():
            if text.output is None or sample is None or not _is_of(sample, text.output):
                text.forget_source()

    def _tower_begins(
        self, _: Any, args: tuple[Any, ...], named: dict[str, Any], *, path: str, outermost: bool
    ) -> None:
        self._now.known.clear()
        text = self._now.texts.setdefault(path, TowerText())
        if outermost and not self._now.running:  # called directly, as by `generate`
            text.begin()
            self._now.seconds = _seconds_of(self.model, named, args)
        if NO_TEXT.search(self.towers.names[path]) and not (self._now.running and self._now.has_told_grids):
            self._read_images(named, *args)  # otherwise its images may belong to a video
        if NO_TEXT.search(self.towers.names[path]) and outermost:
            text.pictures = self._pictures(text.pictures, [*named.values(), *args])
        self._read_mask(text, named)
        self._place_in_embeddings(text, [x for x in (*args, *named.values()) if isinstance(x, Tensor)])

    def _place_in_embeddings(self, text: TowerText, given: list[Tensor]) -> None:
        """Find a text in embeddings that are longer: prompt tuning puts learned vectors before those of the ids."""
        for lookup, embeddings in self._now.embedded:
            for x in given:
                ids = _placed_ids(lookup.ids, embeddings, x)
                if ids is not None:
                    text.lookups = text.last = [*text.lookups, lookup._replace(ids=ids, is_row=False)]
                    return

    def _pictures(self, seen: Pictures | None, given: list[Any]) -> Pictures | None:
        """Return the images and frames that a tower is about to see; None if unknown.

        Args:
            seen: those of its earlier calls in the same forward pass.
            given: its arguments.
        """
        sizes = next((x for x in given if _are_grids(x)), None)
        if sizes is None:
            return None
        vision = getattr(getattr(self.model, "config", None), "vision_config", None)
        block = getattr(vision, "spatial_merge_size", None)
        is_known = isinstance(block, int) and getattr(vision, "window_size", None) is None  # windows reorder patches
        each = [(int(h), int(w)) for t, h, w in sizes.tolist() for _ in range(int(t))]
        fits = is_known and all(h % block == w % block == 0 for h, w in each)  # type: ignore[operator]
        before = 0 if seen is None else seen.first + len(seen.sizes)
        return Pictures(each, int(block) if fits else 0, before)  # type: ignore[arg-type]

    def _read_mask(self, text: TowerText, named: dict[str, Any]) -> None:
        mask = named.get("attention_mask")
        if isinstance(mask, Tensor) and mask.ndim == 2:
            text.mask = text.last_mask = mask.detach().clone()
        types = named.get("token_type_ids")
        if isinstance(types, Tensor) and types.ndim == 2:
            text.types = types.detach().clone()

    def _tower_ends(self, _: Any, args: tuple[Any, ...], named: dict[str, Any], output: Any, *, path: str) -> None:
        first = output[0] if isinstance(output, list | tuple) else getattr(output, "last_hidden_state", output)
        text = self._now.texts.setdefault(path, TowerText())
        text.output = _fingerprint(first)

    def _cut_into_patches(self, _: Any, args: tuple[Any, ...], named: Any, output: Any, *, path: str) -> None:
        text = self._now.texts.setdefault(path, TowerText())
        self._now.known.clear()
        if isinstance(output, Tensor) and output.ndim in (4, 5) and (text.grid is None or text.used):
            text.grid = text.last_grid = tuple(output.shape[2:])

    def _heard(self, module: nn.Conv1d, args: tuple[Any, ...], named: Any, output: Any, *, path: str) -> None:
        text = self._now.texts.setdefault(path, TowerText())
        so_far = None if text.used else text.sound
        if so_far is not None and module.stride[0] == 1:
            return  # such as an embedding of positions, which pads
        before = self._now.seconds if so_far is None else so_far.seconds
        if before is not None and isinstance(output, Tensor) and output.ndim == 3:
            self._now.known.clear()
            text.sound = text.last_sound = Sound(output.shape[2], before * module.stride[0])

    def _given_features(self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], *, name: str) -> None:
        self._now.spatial.note_input(name, module, args, named)

    def _convolved(self, _: Any, args: tuple[Any, ...], named: Any, output: Any) -> None:
        self._now.spatial.note_convolution(output)

    def _looked_up(
        self, table: nn.Module, args: tuple[Any, ...], named: dict[str, Any], *, rank: tuple[int, int], home: str | None
    ) -> None:
        self._now.known.clear()
        self._now.looked_up = None
        ids = args[0] if args else next(iter(named.values()), None)
        if not isinstance(ids, Tensor) or not _are_ids(ids) or ids.ndim not in (1, 2) or not ids.numel():
            return
        is_row = ids.ndim == 1
        ids = ids[None] if is_row else ids
        if not rank[0]:
            rank = self._rank(ids, rank)
            if rank[0] < 0:
                return
        lookup = Lookup(ids.detach().clone(), rank, self._names.get(id(table), ""), Claim(), is_row)
        self._now.looked_up = lookup
        path = home if len(self.towers.paths) == 1 else self._path_of_caller(home)
        if path is None:
            self._now.of_no_tower.append(lookup)
            return
        text = self._now.texts.setdefault(path, TowerText())
        known = text.lookups
        if text.used:
            if any(one.rank[0] > lookup.rank[0] for one in known):
                return  # such as positions, which a layer may look up itself
            known, text.used = [], False
        text.lookups = text.last = [*known, lookup]
        if text.mask is None:
            text.last_mask = None

    def _embedded(self, _: Any, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        lookup, self._now.looked_up = self._now.looked_up, None
        if lookup is not None and isinstance(output, Tensor) and output.shape[:-1] == lookup.ids.shape:
            self._now.embedded = [*self._now.embedded[-1:], (lookup, output.detach())]

    def _rank(self, ids: Tensor, rank: tuple[int, int]) -> tuple[int, int]:
        """Rank a lookup in a table of unknown kind: the model's arguments first, consecutive numbers last."""
        given = any(x.shape == ids.shape and x.data_ptr() == ids.data_ptr() for x in self._now.arguments)
        given = given or any(x.shape == ids.shape and torch.equal(x, ids) for x in self._now.arguments)
        in_a_row = ids.shape[1] > 1 and bool((ids[:, 1:] - ids[:, :-1] == 1).all())
        return int(given) - int(in_a_row), rank[1]

    def _path_of_caller(self, home: str | None) -> str | None:
        """Return the tower in which a table is being called, else its owner."""
        for module in self._modules_on_stack(sys._getframe(3)):
            name = self._names.get(id(module))
            path = None if name is None or isinstance(module, nn.Embedding) else self.towers.path_of(name)
            if path is not None and not _is_table(module):
                return path
            if module is self.model:
                break
        return home

    def _read_images(self, named: dict[str, Any], *more: Any) -> None:
        """Note the token that stands for images, and their grids, from arguments or the config.

        Args:
            named: arguments of the model, or of a tower.
            more: positional arguments, of a tower that takes the grids by position.
        """
        config = getattr(self.model, "config", None)
        vision = getattr(config, "vision_config", None)
        merge = int(getattr(vision, "spatial_merge_size", 1) or 1)
        videos = named.get("video_grid_thw")
        if (of_video := _token(config, VIDEO_TOKENS)) is not None and _are_grids(videos):
            frames = tuple(int(t) for t, _, _ in videos.tolist())  # type: ignore[union-attr]
            self._now.videos = ImageTokens(of_video, _merged(videos, merge), frames=frames)
        token = _token(config, IMAGE_TOKENS)
        if token is None:
            return
        sizes = next((x for x in (named.get("image_grid_thw"), named.get("grid_thw"), *more) if _are_grids(x)), None)
        grids = None if self._now.images is None else self._now.images.grids
        if sizes is not None:
            grids = _merged(sizes, merge)
        self._now.images = ImageTokens(token, grids, _grids_of_config(config, vision))


def _seconds_of(model: nn.Module, named: Mapping[str, Any], args: tuple[Any, ...]) -> float | None:
    """Return the seconds between two numbers of the sound that a model of transformers is given; None if unknown.

    A waveform has the sampling rate of its config, else 16 kHz, as all speech models of transformers. Whisper and
    Speech2Text are given 100 columns of a spectrogram a second.
    """
    config = getattr(model, "config", None)
    first = args[0] if args else None
    if isinstance(x := named.get("input_features", first), Tensor) and x.ndim == 3:
        return 0.01 if getattr(config, "model_type", None) in OF_SPECTROGRAMS else None
    x = named.get("input_values", first if getattr(model, "main_input_name", None) == "input_values" else None)
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim not in (2, 3):
        return None
    rate = getattr(config, "sampling_rate", None) or SAMPLING_RATE
    return 1 / rate


def _parts_of(sound: Sound | None, length: int) -> PatchGrid | None:
    """Return the parts of a sound, if they are all positions."""
    return None if sound is None or sound.length != length else PatchGrid(1, length, seconds=sound.seconds)


def _may_see_images(model: nn.Module) -> bool:
    """Return whether a model has a convolution of images, or is a diffusion model of diffusers, such as Flux."""
    return any(
        isinstance(one, nn.Conv2d | nn.Conv3d) or OF_PICTURES.search(type(one).__name__) for one in modules(model)
    )


def _token(config: Any, names: tuple[str, ...]) -> int | None:
    """Return the id that a config has under one of some names."""
    return next((found for name in names if isinstance(found := getattr(config, name, None), int)), None)


def _merged(sizes: Any, merge: int) -> tuple[tuple[int, int], ...]:
    """Return rows and columns of the tokens of each image and frame; each token covers merge × merge patches."""
    return tuple((int(h) // merge, int(w) // merge) for t, h, w in sizes.tolist() for _ in range(int(t)))


def _are_grids(x: Any) -> bool:
    """Return whether x has frames, rows and columns of each of some images, (images, 3)."""
    return isinstance(x, Tensor) and _are_ids(x) and x.ndim == 2 and x.shape[1] == 3


def _grids_of_config(config: Any, vision: Any) -> tuple[tuple[int, int], ...]:
    """Return the possible grids of an image, if the config says how many tokens it has and that it is not cut."""
    if getattr(config, "image_grid_pinpoints", None) is not None:
        return ()
    counts = [getattr(config, name, None) for name in ("mm_tokens_per_image", "image_seq_length")]
    size, patch = getattr(vision, "image_size", None), getattr(vision, "patch_size", None)
    if isinstance(size, int) and isinstance(patch, int) and patch:
        counts.append((size // patch) ** 2)
    sides = [round(count**0.5) for count in counts if isinstance(count, int) and count > 1]
    return tuple((side, side) for side in dict.fromkeys(sides) if side * side in counts)


def _are_ids(x: Tensor) -> bool:
    return x.dtype in (torch.int64, torch.int32)


def _placed_ids(ids: Tensor, embeddings: Tensor, given: Tensor) -> Tensor | None:
    """Return the ids at their places in longer embeddings, (B, Q), UNKNOWN elsewhere; None if they are not there once.

    Args:
        ids: (B, n).
        embeddings: of the ids, (B, n, D).
        given: (B, Q, D), which must hold the same numbers at n adjacent positions.
    """
    n = ids.shape[1]
    if given.ndim != 3 or given.shape[::2] != embeddings.shape[::2] or given.shape[1] <= n:
        return None
    if not given.is_floating_point() or given.device != embeddings.device:
        return None
    x, own = given.detach(), embeddings.to(given.dtype)
    starts = (x[:, : x.shape[1] - n + 1] == own[:, :1]).all(2).all(0).nonzero()[:, 0].tolist()
    starts = [at for at in starts if torch.equal(x[:, at : at + n], own)]
    if len(starts) != 1:
        return None
    placed = torch.full(given.shape[:2], UNKNOWN, dtype=ids.dtype, device=ids.device)
    placed[:, starts[0] : starts[0] + n] = ids
    return placed


def _fitting(x: Tensor, batches: int, length: int, *, last: bool = False, copies: bool = False) -> Tensor | None:
    """Return x (B, n) for so many samples, repeated if there are more; None if it does not fit.

    Args:
        x: ids or a mask.
        batches: the number of samples.
        length: the number of positions.
        last: whether the last of more positions are accepted.
        copies: whether the copies of a sample are side by side, as a search by beams makes them.
    """
    B, n = x.shape
    if n != length and not (last and n > length):
        return None
    if not B or batches % B:
        return None
    x = x[:, n - length :]
    if batches == B:
        return x
    alike = copies or bool((x == x[:1]).all())  # else which sample is whose copy is unknown
    return x.repeat_interleave(batches // B, 0) if alike else None


def _fingerprint(hidden: Any) -> Tensor | None:
    """Return a few numbers of each sample of (B, n, size)."""
    if not isinstance(hidden, Tensor) or hidden.ndim != 3 or not hidden.numel():
        return None
    return hidden.detach()[:, -1, :FINGERPRINT].clone()


def _is_of(sample: Tensor, output: Tensor) -> bool:
    """Return whether given numbers have the fingerprint of a tower's output, with samples repeated or not."""
    times, rest = divmod(len(sample), len(output))
    return not rest and torch.equal(sample, output.to(sample.device).repeat_interleave(times, 0))


def _only_text(lookups: Iterable[Lookup], length: int) -> Lookup | None:
    """Return the lookup of a text with so many positions; None if there is none, or several that differ."""
    fitting = [one for one in lookups if one.ids.shape[-1] == length]
    best = max((one.rank for one in fitting), default=(0, 0))
    fitting = [one for one in fitting if one.rank[0] == best[0] and one.rank[1] * FEW >= best[1]]
    first = fitting[0] if fitting else None
    return first if all(torch.equal(one.ids, fitting[0].ids) for one in fitting[1:]) else None


def _arguments(model: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    """Return the tensors that a model was called with, by name; "" if the name is unknown."""
    names: list[str] = []
    if any(isinstance(x, Tensor) for x in args):
        with contextlib.suppress(TypeError, ValueError):
            parameters = inspect.signature(model.forward).parameters.values()
            kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
            names = [one.name for one in parameters if one.kind in kinds]
    by_position = zip_longest(names[: len(args)], args, fillvalue="")
    return [(str(name), x) for name, x in (*by_position, *named.items()) if isinstance(x, Tensor)]


def _is_table(module: nn.Module) -> bool:
    """Return whether a module looks ids up in a table: torch's own, or one with such a name and table."""
    if isinstance(module, torch.jit.ScriptModule):
        return False
    if isinstance(module, nn.Embedding):
        return True
    if not _is_named_table(type(module).__name__):
        return False
    own = list(own_parameters(module).values())
    return len(own) == 1 and own[0].ndim == 2


@functools.cache
def _is_named_table(kind: str) -> bool:
    return TABLE.search(kind) is not None


def _tables(model: nn.Module, names: dict[int, str]) -> dict[nn.Module, tuple[int, int]]:
    """Return the tables that may hold words, with their size and rank: 2 if transformers names them, else 0."""
    known: dict[nn.Module, tuple[int, int]] = {}
    inside: set[int] = set()  # modules of transformers, which name their table
    every = modules(model)
    kinds = set(map(type, every))  # only a few
    telling = {kind for kind in kinds if any(one.__name__ == "PreTrainedModel" for one in kind.__mro__)}
    for module in every:
        if type(module) not in telling:
            continue
        with contextlib.suppress(Exception):
            table = module.get_input_embeddings()  # type: ignore[operator]
            if isinstance(table, nn.Module) and id(table) in names and _is_table(table):
                known[table] = 2, _size(table)
                if id(module) not in inside:  # otherwise all that it holds is known already
                    inside.update(map(id, modules(module)))
    for module in every:
        if id(module) not in inside and _is_table(module) and not NOT_TEXT.search(_last_name(names[id(module)])):
            known[module] = 0, _size(module)
    return known


def _last_name(name: str) -> str:
    """Return the last part of a name that is not a number."""
    return next((part for part in reversed(name.split(".")) if not part.isdigit()), "")


def _size(table: nn.Module) -> int:
    return max((x.shape[0] for x in table.parameters(recurse=True)), default=0)


def _homes(model: nn.Module, towers: Towers) -> dict[int, str | None]:
    """Return the tower of each table; None if several use it, or it lies outside all towers."""
    homes: dict[int, str | None] = {}
    for name, module in named_modules(model, each_once=False):
        if _is_table(module):
            path = towers.path_of(name.replace("_orig_mod.", ""))
            homes[id(module)] = path if homes.get(id(module), path) == path else None
    return homes


def _way(root: str, path: str) -> list[str]:
    """Return the names of the modules from a territory's root down to the holder of the layers."""
    parts, first = (path.split(".") if path else []), (len(root.split(".")) if root else 0)
    return [".".join(parts[:n]) for n in range(first, len(parts) + 1)]
