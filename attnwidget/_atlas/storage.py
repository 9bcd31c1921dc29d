"""An atlas on disk: a folder with one safetensors file, which any library reads, and which is opened lazily.

Its header has one entry of metadata, "attnwidget.atlas": JSON with the version and all facts. Tensors of layer 3 begin
with "3.". The tokens of the texts that links show are UTF-8: `text.bytes`, cut at `text.offsets`, at `text.places` of
the text; text number `text.numbers[i]` has the tokens from `text.first[i]`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from .totals import LayerTotals
from .worker import ChunkTotals, TextRead

FILE = "atlas.safetensors"
ENTRY = "attnwidget.atlas"
VERSION = 1


class Tensors(Protocol):
    """Tensors by name, in memory or in a file."""

    def get(self, name: str, head: int | None = None, axis: int = 0) -> Tensor | None: ...
    def all(self) -> dict[str, Tensor]: ...


class InMemory:
    """Tensors in memory."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def get(self, name: str, head: int | None = None, axis: int = 0) -> Tensor | None:
        """Return a tensor, or one head of it; None if there is none."""
        found = self._tensors.get(name)
        return found if found is None or head is None else found.select(axis, head)

    def all(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        return dict(self._tensors)


class InFile:
    """Tensors of a file, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        self._file: Any = safe_open(str(path), "pt")
        self._names: frozenset[str] = frozenset(self._file.keys())  # type: ignore[no-untyped-call]

    def get(self, name: str, head: int | None = None, axis: int = 0) -> Tensor | None:
        """Return a tensor, or one head of it; None if there is none."""
        if name not in self._names:
            return None
        if head is None:
            found: Tensor = self._file.get_tensor(name)
            return found
        place = (slice(None),) * axis + (slice(head, head + 1),)
        found = self._file.get_slice(name)[place]
        return found.squeeze(axis)

    def all(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        return {name: self._file.get_tensor(name) for name in sorted(self._names)}


def tensors_of(totals: ChunkTotals) -> dict[str, Tensor]:
    """Return all totals as tensors by name."""
    found: dict[str, Tensor] = {}
    for number, layer in enumerate(totals.layers.values()):
        found |= {f"{number}.{name}": x for name, x in layer.tensors().items()}
    numbers = sorted(totals.texts)
    pieces = [piece.encode("utf-8", "replace") for one in numbers for piece in totals.texts[one].tokens.values()]
    lengths = torch.tensor([0, *map(len, pieces)], device="cpu")
    counts = torch.tensor([0, *(len(totals.texts[one].tokens) for one in numbers)], device="cpu")
    places = [place for one in numbers for place in totals.texts[one].tokens]
    joined = bytearray(b"".join(pieces))
    return {
        **found,
        "text.bytes": torch.frombuffer(joined, dtype=torch.uint8)
        if joined
        else torch.zeros(0, dtype=torch.uint8, device="cpu"),
        "text.offsets": lengths.cumsum(0),
        "text.first": counts.cumsum(0),
        "text.places": torch.tensor(places, dtype=torch.int64, device="cpu"),
        "text.numbers": torch.tensor(numbers, dtype=torch.int64, device="cpu"),
        "text.lengths": torch.tensor([totals.texts[one].length for one in numbers], dtype=torch.int64, device="cpu"),
    }


def facts_of(totals: ChunkTotals) -> dict[str, Any]:
    """Return the facts beside the tensors, for the file's JSON."""
    return {
        "layers": [*totals.layers],
        "heads": [one.heads for one in totals.layers.values()],
        "links": next((one.count for one in totals.layers.values()), 0),
        "texts": totals.read,
        "tokens": totals.tokens,
        "skipped": {str(number): why for number, why in sorted(totals.skipped.items())},
        "unseen": totals.unseen,
    }


def write(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write an atlas; whoever reads meanwhile has the old one."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{FILE}.new"
    whole = {name: x.contiguous() for name, x in tensors.items()}
    save_file(whole, str(new), {ENTRY: json.dumps({"version": VERSION, **facts})})
    os.replace(new, folder / FILE)


def read(folder: Path) -> tuple[dict[str, Any], InFile]:
    """Return the facts and the tensors of an atlas.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is not an atlas, or of a newer version.
    """
    path = folder / FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} has no {FILE}: give the folder of an atlas, as in atlas(model, texts, store=folder)"
        )
    try:
        tensors = InFile(path)
        facts = json.loads((tensors._file.metadata() or {})[ENTRY])  # noqa: SLF001
        version = int(facts["version"])
    except Exception as error:
        raise damaged(folder, error) from error
    if version > VERSION:
        raise ValueError(f"{path} has version {version}, and this attnwidget reads up to {VERSION}: update attnwidget")
    return facts, tensors


def damaged(folder: Path, error: Exception) -> ValueError:
    """Return the error of a file that is not an atlas."""
    return ValueError(
        f"{folder / FILE} is not an atlas, or damaged ({error}): make it again with atlas(model, texts, store=folder)"
    )


def totals_from(facts: Mapping[str, Any], tensors: InFile) -> ChunkTotals:
    """Return the totals of a file, to add to."""
    found = ChunkTotals(read=facts["texts"], tokens=facts["tokens"], unseen=dict(facts["unseen"]))
    found.skipped = {int(number): why for number, why in facts["skipped"].items()}
    known = tensors.all()
    for number, name in enumerate(facts["layers"]):
        start = f"{number}."
        own = {one.removeprefix(start): x for one, x in known.items() if one.startswith(start)}
        found.layers[name] = LayerTotals.of(name, facts["links"], own)
    found.texts = dict(texts_from(tensors))
    return found


def texts_from(tensors: Tensors) -> Iterator[tuple[int, TextRead]]:
    """Yield the texts that links show, with their numbers."""
    parts = ("bytes", "offsets", "first", "places", "numbers", "lengths")
    whole, offsets, first, places, numbers, lengths = (tensors.get(f"text.{part}") for part in parts)
    if whole is None or offsets is None or first is None or places is None or numbers is None or lengths is None:
        return
    raw, cuts, at, starts = whole.numpy().tobytes(), offsets.tolist(), places.tolist(), first.tolist()
    for i, (number, length) in enumerate(zip(numbers.tolist(), lengths.tolist(), strict=True)):
        span = range(starts[i], starts[i + 1])
        tokens = {at[one]: raw[cuts[one] : cuts[one + 1]].decode("utf-8", "replace") for one in span}
        yield number, TextRead(length, tokens)
