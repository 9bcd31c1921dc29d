"""The files of the workers: opened where they lie, if that is this machine, else copied piece by piece."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from ..files import capture_file
from ..files.capture_file import WRONG_CONTENT, LoadedCapture
from ..files.merge_processes import join
from . import answers
from .answers import EndedRecording
from .command import command
from .worker import CHUNK

SMALL = 8 << 20  # bytes of an answer that brings no piece of a file
LARGE = 256 << 20  # bytes of one that does
LEAST_PIECES, PIECES = 64, 16  # answers that bring a file; the second for each CHUNK of it and each worker
HEADER = 8  # bytes at the beginning of a file, with the length of what describes it
MOST_HEADER = 100_000_000  # bytes, as safetensors has it
KEPT = "the recording stays on the server until attnwidget.serving.release(address)"


class Ask(NamedTuple):
    """A question to all workers.

    Attributes:
        told: the command.
        wants: a function of a request, as bytes.
        most: bytes of the answer.
    """

    told: str
    wants: bytes | None = None
    most: int = SMALL


Asking = Generator[Ask, Any, None]  # yields questions, and takes the answers of all workers


def own_file(one: EndedRecording, session: str, folder: str | None) -> Path | None:
    """Return the path of a worker's file, if a worker on this machine has written it in this very recording; else None.

    Its name has the session, which only this recording and its workers know. A link is not followed.
    """
    name = rf"{session}(-\d+)?" if folder is not None else rf"attnwidget-{session}(-\d+)?-[0-9a-f]{{8}}"
    path = Path(one.path or "")
    if not path.is_absolute() or not re.fullmatch(rf"{name}\.safetensors", path.name):
        return None
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError):
        return None
    try:
        found = os.fstat(file)
    finally:
        os.close(file)
    return path if stat.S_ISREG(found.st_mode) and found.st_size == one.size else None


def copy_files(session: str, told: Sequence[EndedRecording], folder: Path) -> Generator[Ask, Any, list[Path]]:
    """Copy the files of all workers into a folder, and return their paths.

    Args:
        session: the recording.
        told: what each worker has kept; one without a file is asked, and its answers are ignored.
        folder: an empty one.

    Raises:
        ValueError: there is no room for them, or what comes is not what was announced.
    """
    sizes = [one.size for one in told]
    free = shutil.disk_usage(folder).free
    if sum(sizes) > free:
        raise ValueError(
            f"the files of the workers are announced with {sum(sizes):,} bytes, and {free:,} are free in "
            f"{folder.parent}: name another folder by TMPDIR; {KEPT}"
        )
    try:
        return (yield from _copied(session, sizes, folder))
    except OSError as error:
        raise ValueError(f"the files of the workers cannot be written ({error.strerror}); {KEPT}") from error


def _copied(session: str, sizes: Sequence[int], folder: Path) -> Generator[Ask, Any, list[Path]]:
    paths = {i: folder / f"worker-{i}.safetensors" for i, size in enumerate(sizes) if size}
    pieces = LEAST_PIECES + PIECES * len(sizes) * -(-max(sizes) // CHUNK)
    ends = dict.fromkeys(paths, 0)
    with ExitStack() as stack:
        files = {i: stack.enter_context(path.open("wb")) for i, path in paths.items()}
        while unfinished := {i: end for i, end in ends.items() if end < sizes[i]}:
            start, pieces = min(unfinished.values()), pieces - 1
            if pieces < 0:
                raise ValueError(_wrong("comes in too many small pieces"))
            due = sum(min(CHUNK, sizes[i] - start) for i in unfinished)
            most = min(LARGE, due + due // 2 + (len(sizes) << 12))
            found = yield Ask(command("fetch", session, start=start), most=most)
            for i, answer in _with_files(found, len(sizes), paths):
                piece = answers.piece_of(answer)
                _refuse_wrong_piece(piece, start, sizes[i])
                files[i].seek(start)
                files[i].write(piece)
                ends[i] = max(ends[i], start + len(piece))
    return [*paths.values()]


def _with_files(found: Any, count: int, files: dict[int, Path]) -> list[tuple[int, Any]]:
    """Return the answers of the workers that have files: the others have nothing to send, and say so."""
    both = isinstance(found, list) and len(found) == count
    kept = answers.of_workers([found[i] for i in files] if both else found, len(files) if both else count)
    return list(zip(files, kept, strict=True))


def _refuse_wrong_piece(piece: bytes, start: int, size: int) -> None:
    left = max(0, size - start)
    if len(piece) > min(left, CHUNK):
        raise ValueError(_wrong("is longer than announced"))
    if left and not piece:
        raise ValueError(_wrong(f"ends after {start:,} of {size:,} bytes"))
    if start == 0 and len(piece) >= HEADER:
        header = int.from_bytes(piece[:HEADER], "little")
        if not 2 <= header <= min(MOST_HEADER, size - HEADER):
            raise ValueError(_wrong("is not one of a capture"))


def _wrong(what: str) -> str:
    return f"the file of a worker {what}; {KEPT}"


def read_files(paths: Sequence[Path]) -> LoadedCapture:
    """Return what the files of all workers hold together.

    Raises:
        ValueError: they cannot be read.
    """
    parts = {}
    for number, path in enumerate(paths):
        try:
            parts[f"worker {number}"] = capture_file.load(path)
        except (ValueError, OSError) as error:
            told = str(error).replace(str(path), "the file of a worker").removesuffix(f": {capture_file.ADVICE}")
            raise ValueError(f"{told[:300]}: give engine and notebook the same attnwidget") from error
    if len(parts) == 1:
        return next(iter(parts.values()))
    try:
        return join(parts, are_all=True)
    except WRONG_CONTENT as error:
        raise ValueError(f"the files of the workers do not go together: {str(error)[:300]}") from error
