"""The text at the positions of a call, and of a record as it grows: ids, padding, image patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .patch_grid import MOST, PatchGrid, size_of_image

UNKNOWN = -1  # in place of an id


@dataclass(frozen=True)
class ImageTokens:
    """Tokens that stand for patches of images, or of the frames of videos.

    Attributes:
        token: their id.
        grids: rows and columns of each image, or frame, of the batch, in order; None if unknown.
        each: possible rows and columns of every image, if all are alike.
        frames: the number of frames of each video; None: they are images.
    """

    token: int
    grids: tuple[tuple[int, int], ...] | None = None
    each: tuple[tuple[int, int], ...] = ()
    frames: tuple[int, ...] | None = None

    @classmethod
    def of_entry(cls, entry: Mapping[str, Any]) -> ImageTokens:
        """Return the image tokens in a file, as `asdict` has written them."""
        token, many, each, frames = (entry.get(name) for name in ("token", "grids", "each", "frames"))
        grids = None if many is None else tuple(_sizes_of(*one) for one in many)
        counts = None if frames is None else tuple(map(size_of_image, frames))
        if counts is not None and sum(counts) > (MOST if grids is None else len(grids)):
            raise ValueError(f"videos of {sum(counts):,} frames, more than it has grids")
        return cls(int(token), grids, tuple(_sizes_of(*one) for one in each or ()), counts)  # type: ignore[arg-type]


def _sizes_of(rows: Any, columns: Any) -> tuple[int, int]:
    return size_of_image(rows), size_of_image(columns)


@dataclass(eq=False)
class Claim:
    """The tower of a text whose table belongs to none: two towers that read it make it ambiguous.

    Attributes:
        path: of the first tower that may have read it.
        is_of_several: whether another tower may have read it too.
    """

    path: str | None = None
    is_of_several: bool = False

    def add(self, path: str) -> None:
        """Note that a tower may have read it."""
        self.is_of_several |= self.path not in (None, path)
        self.path = path if self.path is None else self.path


@dataclass
class CallText:
    """The text at the positions of one call, if known."""

    ids: Tensor | None = None  # (B, Q)
    real: Tensor | None = None  # (B, Q) bool, False for padding
    key_ids: Tensor | None = None  # (B, K), of a cross-attention
    key_real: Tensor | None = None  # (B, K)
    types: Tensor | None = None  # (B, Q), token_type_ids: which sentence each token belongs to
    patches: PatchGrid | None = None
    key_patches: PatchGrid | None = None
    images: ImageTokens | None = None
    videos: ImageTokens | None = None
    claim: Claim | None = None
    key_claim: Claim | None = None


class GrowingNumbers:
    """Integers (B, positions) of the calls of a record, each call's part as given; layers share the parts."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, Tensor | None]] = []
        self.batches = 0

    def append(self, x: Tensor | None, batches: int, length: int) -> None:
        """Append the integers of a call; None if unknown."""
        self._parts.append((length, x))
        self.batches = batches

    def shorten(self, length: int) -> None:
        """Keep the first positions."""
        while self._parts and sum(n for n, _ in self._parts[:-1]) >= length:
            self._parts.pop()
        left = length - sum(n for n, _ in self._parts[:-1])
        if self._parts:
            x = self._parts[-1][1]
            self._parts[-1] = left, None if x is None else x[:, :left]

    def take(self, rows: Tensor, ended: int = UNKNOWN) -> None:
        """Take at each position the rows that `rows` (samples, positions) names; -1 gives `ended`."""
        whole = self.joined()
        self.batches = len(rows)
        if whole is None:
            self._parts = [(rows.shape[1], None)]
            return
        taken = whole[rows.clamp(min=0), torch.arange(rows.shape[1], device=rows.device)]
        self._parts = [(rows.shape[1], taken.masked_fill(rows < 0, ended))]

    def copy(self) -> GrowingNumbers:
        """Return a copy that continues separately."""
        other = GrowingNumbers()
        other._parts, other.batches = list(self._parts), self.batches
        return other

    def joined(self) -> Tensor | None:
        """Return all, (B, positions) int64 on the CPU, with `UNKNOWN` for unknown ones; None if all are unknown."""
        if all(x is None for _, x in self._parts):
            return None
        device = next(x.device for _, x in self._parts if x is not None)
        unknown = torch.tensor(UNKNOWN, device=device)
        parts = [unknown.expand(self.batches, n) if x is None else x.to(torch.int64) for n, x in self._parts]
        whole = torch.cat(parts, 1).cpu()  # in one copy: each copy from an accelerator waits for it
        self._parts = [(whole.shape[1], whole)]
        return whole


@dataclass
class RecordText:
    """The text at the positions of a record, as it grows."""

    _ids: GrowingNumbers = field(default_factory=GrowingNumbers)
    _real: GrowingNumbers = field(default_factory=GrowingNumbers)
    _key_ids: Tensor | None = None
    _key_real: Tensor | None = None
    _types: Tensor | None = None  # of a record of one call
    patches: PatchGrid | None = None
    key_patches: PatchGrid | None = None
    images: ImageTokens | None = None
    videos: ImageTokens | None = None
    calls: list[int] = field(default_factory=list)  # the number of queries in each call
    claims: list[Claim] = field(default_factory=list)  # of the ids, if other towers may have read them
    key_claim: Claim | None = None

    @classmethod
    def of(cls, text: CallText | None, batches: int, queries: int, *, cross: bool) -> RecordText:
        """Return the text of a record's first call."""
        found = cls()
        found.append(text, batches, queries)
        if text is not None:
            found.patches, found.images, found.videos = text.patches, text.images, text.videos
            found._types = text.types
        if text is not None and cross:
            found._key_ids, found._key_real, found.key_patches = text.key_ids, text.key_real, text.key_patches
            found.key_claim = text.key_claim
        return found

    def append(self, text: CallText | None, batches: int, queries: int) -> None:
        """Append the text of a call with so many queries."""
        text = text or CallText()
        self.calls.append(queries)
        self._ids.append(text.ids, batches, queries)
        self._real.append(text.real, batches, queries)
        if text.claim is not None and text.claim not in self.claims[-1:]:
            self.claims.append(text.claim)

    def shorten(self, queries: int) -> None:
        """Keep the first queries."""
        while self.calls and sum(self.calls[:-1]) >= queries:
            self.calls.pop()
        if self.calls:
            self.calls[-1] = queries - sum(self.calls[:-1])
        self._ids.shorten(queries)
        self._real.shorten(queries)

    def take(self, rows: Tensor) -> None:
        """Take at each query the rows that `rows` (samples, queries) names; -1: the sample had ended."""
        if bool((rows < 0).any()) and self._real.joined() is None:
            self._real = GrowingNumbers()
            ones = torch.ones(self._ids.batches, rows.shape[1], dtype=torch.int64, device="cpu")
            self._real.append(ones, *rows.shape)
            self._real.batches = self._ids.batches
        self._ids.take(rows)
        self._real.take(rows, ended=0)
        first = rows[:, 0].clamp(min=0)
        self._key_ids, self._key_real = (None if x is None else x.cpu()[first] for x in (self._key_ids, self._key_real))

    def copy(self) -> RecordText:
        """Return a copy that continues separately."""
        ids, real = self._ids.copy(), self._real.copy()
        return replace(self, _ids=ids, _real=real, calls=[*self.calls], claims=[*self.claims])

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors over positions, by name."""
        found = {"ids": self.ids, "real": self.real, "key_ids": self.key_ids, "key_real": self.key_real}
        found["types"] = self.types
        return {name: x for name, x in found.items() if x is not None}

    def all_ids(self) -> list[Tensor]:
        """Return all known ids, of queries and of keys."""
        return [x for x in (self.ids, self.key_ids) if x is not None]

    def facts(self) -> dict[str, Any]:
        """Return the facts about images, as a file holds them: see `loaded`."""
        found = {"patches": self.patches, "key_patches": self.key_patches}
        facts: dict[str, Any] = {name: list(grid) for name, grid in found.items() if grid is not None}
        facts |= {} if self.prompt is None else {"prompt": self.prompt}
        tokens = {"images": self.images, "videos": self.videos}
        return facts | {name: asdict(one) for name, one in tokens.items() if one is not None}

    @classmethod
    def loaded(cls, entry: Mapping[str, Any], tensors: Mapping[str, Tensor], batches: int, queries: int) -> RecordText:
        """Return the text from a file.

        Args:
            entry: the names of `tensors()`, and `facts()`.
            tensors: of the file, by the names in the entry.
            batches, queries: of the record.
        """
        given = {name: tensors[entry[name]] for name in ("ids", "real", "key_ids", "key_real") if name in entry}
        text = CallText(given.get("ids"), given.get("real"), given.get("key_ids"), given.get("key_real"))
        text.types = tensors[entry["types"]] if "types" in entry else None
        text.patches, text.key_patches = (PatchGrid.of_entry(entry.get(name)) for name in ("patches", "key_patches"))
        text.images, text.videos = (
            ImageTokens.of_entry(entry[name]) if name in entry else None for name in ("images", "videos")
        )
        queries = next((x.shape[1] for x in (text.ids, text.real) if x is not None), queries)
        made = cls.of(text, batches, queries, cross=True)
        prompt = int(entry.get("prompt", 0))
        if 0 < prompt < queries:
            made.calls = [prompt, *[1] * (queries - prompt)]
        return made

    @property
    def prompt(self) -> int | None:
        """The number of queries before the first generated token; None if the calls do not show it.

        A text is generated token by token, after one or several calls with its prompt. Several tokens that are read at
        once later may be another question.
        """
        generated = next((i for i, count in enumerate(self.calls) if count == 1), 0)
        only_single = all(count == 1 for count in self.calls[generated:])
        return sum(self.calls[:generated]) if generated and only_single else None

    @property
    def ids(self) -> Tensor | None:
        """The ids of the queries, (B, Q) int64 on the CPU; `UNKNOWN` for an unknown one, None if all are unknown."""
        return None if any(one.is_of_several for one in self.claims) else self._ids.joined()

    @property
    def has_images(self) -> bool:
        """Whether some of its ids stand for patches of images, or of the frames of videos."""
        kinds = [one.token for one in (self.images, self.videos) if one is not None]
        ids = self.ids if kinds else None
        return ids is not None and any(bool((ids == token).any()) for token in kinds)

    @property
    def real(self) -> Tensor | None:
        """Whether each query is not padding, (B, Q) bool on the CPU; None if unknown."""
        found = self._real.joined()
        return None if found is None else found != 0

    @property
    def types(self) -> Tensor | None:
        """The number of the sentence of each query, (B, Q) on the CPU; None if unknown, or if all are of one."""
        found, ids = self._types, self._ids.joined()
        if found is None or ids is None or found.shape != ids.shape or found.is_floating_point():
            return None
        found = self._types = found.to("cpu", torch.int64)
        return found if bool((found != found[:, :1]).any()) else None

    @property
    def key_ids(self) -> Tensor | None:
        """The ids of the keys of a cross-attention, (B, K), as `ids`."""
        is_another = self.key_claim is not None and self.key_claim.is_of_several
        return None if self._key_ids is None or is_another else self._key_ids.cpu()

    @property
    def key_real(self) -> Tensor | None:
        """Whether each key of a cross-attention is not padding, (B, K)."""
        return None if self._key_real is None else self._key_real.cpu() != 0
