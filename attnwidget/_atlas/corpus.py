"""The texts of an atlas: read one after another, in portions that do not depend on how the work is shared out."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import count, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._utils.validation import kind_of

FIRST_CHUNKS = (4, 4, 8, 8, 16, 16, 32, 32)  # texts; small ones first, so that few texts occupy several workers
CHUNK = 64
ADVICE = "give a list of strings, of ids, or of dicts of the model's arguments"


class Chunk(NamedTuple):
    """Some consecutive texts.

    number: of the chunk.
    first: the number of its first text.
    texts: strings, ids, or dicts of arguments.
    """

    number: int
    first: int
    texts: tuple[Any, ...]


class Corpus:
    """Reads texts in chunks, and remembers which texts were read.

    Args:
        texts: a string or another single text, or any iterable of texts, read once.

    Attributes:
        total: the number of texts, if known before they are read.
        begin: the first texts.
    """

    def __init__(self, texts: Any) -> None:
        if isinstance(texts, str | Mapping | Tensor):
            texts = [texts]
        if not isinstance(texts, Iterable):
            raise TypeError(f"texts is {kind_of(texts)}: {ADVICE}")
        self.total = len(texts) if isinstance(texts, Sized) else None
        if self.total == 0:
            raise ValueError(f"there are no texts: {ADVICE}")
        self._texts = iter(texts)
        self._digest = hashlib.sha256()
        self.begin: list[Any] = []

    def skip(self, number: int) -> str:
        """Read so many texts without using them, and return the digest of what was read."""
        there = 0
        for text in islice(self._texts, number):
            self._note(text)
            there += 1
        if there < number:
            raise ValueError(
                f"the store has {number:,} texts, but {there:,} are given: give the same texts again, or another store"
            )
        return self.digest

    @property
    def digest(self) -> str:
        """The digest of all texts that were read."""
        return self._digest.hexdigest()

    def chunks(self, first: int = 0) -> Iterator[tuple[Chunk, str]]:
        """Yield the chunks from text number `first`, each with the digest of all texts up to its end."""
        for number in count():
            size = FIRST_CHUNKS[number] if number < len(FIRST_CHUNKS) else CHUNK
            texts = tuple(islice(self._texts, size))
            if not texts:
                return
            for text in texts:
                self._note(text)
            yield Chunk(number, first, texts), self.digest
            first += len(texts)

    def _note(self, text: Any) -> None:
        if len(self.begin) < sum(FIRST_CHUNKS):
            self.begin.append(text)
        self._digest.update(hashlib.sha256(as_bytes(text)).digest())


def as_bytes(text: Any) -> bytes:
    """Return a text as bytes, the same for the same text."""
    if isinstance(text, str):
        return b"text " + text.encode("utf-8", "surrogatepass")
    if isinstance(text, Mapping):
        return b"dict " + b"".join(str(name).encode() + as_bytes(text[name]) for name in sorted(text, key=str))
    if isinstance(text, Tensor):
        return (
            f"{text.dtype} {tuple(text.shape)} ".encode()
            + text.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    if isinstance(text, list | tuple) and all(isinstance(one, int) for one in text):
        return b"ids " + repr([*text]).encode()
    return b"other " + pickle.dumps(text, protocol=4)


def digest_of_model(module: torch.nn.Module) -> str:
    """Return a digest of a model's class, and of some numbers of each parameter and buffer."""
    found = hashlib.sha256(type(module).__qualname__.encode())
    for name, x in module.state_dict().items():
        found.update(f"{name} {x.dtype} {tuple(x.shape)}".encode() if isinstance(x, Tensor) else name.encode())
        if isinstance(x, Tensor) and x.numel() and x.device.type != "meta":
            flat = x.detach().flatten()
            found.update(flat[:: max(1, len(flat) // 64)].float().cpu().numpy().tobytes())
    return found.hexdigest()
