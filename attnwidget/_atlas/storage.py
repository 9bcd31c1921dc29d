"""An atlas on disk: a folder with one safetensors file, which any library reads, and an empty file to lock it.

Its header has one entry of metadata, "attnwidget.atlas": JSON with the version and all facts. Tensors of layer 3 begin
with "3.". The tokens of the texts that links show are UTF-8: `text.bytes`, cut at `text.offsets`, at `text.places` of
the text; text number `text.numbers[i]` has the tokens from `text.first[i]`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor

from .._utils import files
from .._utils.tensor_file import nbytes_of, read_tensors, write_tensors
from .._utils.untrusted import as_whole, part_of
from .checked_store import check_store
from .totals import LayerTotals
from .worker import ChunkTotals, TextRead

FILE = "atlas.safetensors"
ENTRY = "attnwidget.atlas"
VERSION = 2
LOCK = ".atlas.lock"
# Errors of reading a file with wrong contents: any but a lack of memory or an interrupt.
WRONG_CONTENT = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


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
        "text.named": torch.tensor([totals.texts[one].named for one in numbers], dtype=torch.bool, device="cpu"),
    }


def facts_of(totals: ChunkTotals) -> dict[str, Any]:
    """Return the facts beside the tensors, for the file's JSON."""
    return {
        "layers": [*totals.layers],
        "heads": [one.heads for one in totals.layers.values()],
        "links": next((one.count for one in totals.layers.values()), 0),
        "texts": totals.read,
        "tokens": totals.tokens,
        "named": totals.named,
        "skipped": {str(number): why for number, why in sorted(totals.skipped.items())},
        "unseen": totals.unseen,
    }


def writing(folder: Path) -> AbstractContextManager[None]:
    """Hold a folder alone until the end of the block, so that no other process writes an atlas there.

    Raises:
        RuntimeError: another one does.
        OSError: the folder cannot be made or written.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: give the name of a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise OSError(error.errno, f"{folder} cannot be made ({reason}): give another folder") from error
    return files.alone(
        folder / LOCK,
        f"another process writes the atlas in {folder} now: wait for its end, read the atlas with Atlas.open, or give "
        "another folder",
    )


def write(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write an atlas, all of it or nothing; whoever reads meanwhile has the old one."""
    folder.mkdir(parents=True, exist_ok=True)
    target = files.writable(folder / FILE, FILE)
    with files.replacing(target, nbytes_of(tensors)) as file:
        write_tensors(file, tensors, {ENTRY: json.dumps({"version": VERSION, **facts})})


def load(folder: Path) -> tuple[dict[str, Any], InMemory]:
    """Return the facts and the tensors of an atlas, all checked; raise as `read` does."""
    facts, tensors = read(folder)
    try:
        check_store(facts, tensors.all())
    except WRONG_CONTENT as error:
        raise damaged(folder, error) from error
    return facts, tensors


def read(folder: Path) -> tuple[dict[str, Any], InMemory]:
    """Return the facts and the tensors of a store; only the version is checked.

    Raises:
        FileNotFoundError: there is none.
        PermissionError: it may not be read.
        ValueError: it is not an atlas, or of another version.
    """
    path = folder / FILE
    try:
        if not path.is_file():
            what = "is not a file" if path.exists() else "is not there"
            raise FileNotFoundError(
                f"{path} {what}: give the folder of an atlas, as in atlas(model, texts, store=folder)"
            )
        header, tensors = read_tensors(path, ENTRY)
        facts = json.loads(header) if header is not None else {}
        version = as_whole(part_of(facts, "version"), "the version", least=1)
    except PermissionError as error:
        raise PermissionError(f"{path} may not be read: change its permissions") from error
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError, *WRONG_CONTENT) as error:
        raise damaged(folder, error) from error
    if version > VERSION:
        raise ValueError(
            f"{path} has version {version}, and this attnwidget reads version {VERSION}: update attnwidget"
        )
    if version < VERSION:
        raise ValueError(
            f"{path} has version {version}, whose shares are not means over texts; this attnwidget reads version "
            f"{VERSION}: measure the texts again, into another folder"
        )
    return facts, InMemory(tensors)


def damaged(folder: Path, error: Exception) -> ValueError:
    """Return the error of a file that is not an atlas."""
    return ValueError(
        f"{folder / FILE} is not an atlas, or damaged ({str(error)[:200]}): make it again with atlas(model, texts, "
        "store=folder)"
    )


def totals_from(facts: Mapping[str, Any], tensors: Tensors) -> ChunkTotals:
    """Return the totals of a file, to add to."""
    found = ChunkTotals(read=facts["texts"], tokens=facts["tokens"], named=facts["named"], unseen=dict(facts["unseen"]))
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
    found = {name: x for name, x in tensors.all().items() if name.startswith("text.")}
    raw, (cuts, starts, places) = (
        found["text.bytes"].numpy().tobytes(),
        (found[f"text.{part}"].tolist() for part in ("offsets", "first", "places")),
    )
    about = (found[f"text.{part}"].tolist() for part in ("numbers", "lengths", "named"))
    for i, (number, length, named) in enumerate(zip(*about, strict=True)):
        span = range(starts[i], starts[i + 1])
        tokens = {places[one]: raw[cuts[one] : cuts[one + 1]].decode("utf-8", "replace") for one in span}
        yield number, TextRead(length, tokens, named)
