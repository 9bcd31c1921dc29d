"""Files that are written: all of one or nothing of it, with what was there in its place until the end."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", None), errno.EFBIG)  # a full disk, or the end of what may be written
KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def as_path(path: str | os.PathLike[str], example: str) -> Path:
    """Return the path of a file, `~` and links followed.

    Args:
        path: of a file, there or not.
        example: the name of one, for what an error says.

    Raises:
        TypeError, ValueError: it is not a path.

    >>> as_path("~/run.html", "attention.html").name
    'run.html'
    """
    try:
        found = Path(path)
    except TypeError:
        raise TypeError(f'path is {type(path).__name__}: give the name of a file, such as "{example}"') from None
    if "\0" in str(found):
        raise ValueError(f'path holds a NUL character: give the name of a file, such as "{example}"')
    try:
        found = found.expanduser().resolve()
        if os.path.islink(found):  # from Python 3.13 on no error comes of it
            raise OSError("its links go round in a circle")
    except (OSError, RuntimeError) as error:  # nobody's home, or links that go round in a circle
        raise ValueError(f'{path} leads nowhere ({error}): give the name of a file, such as "{example}"') from error
    return found


def writable(path: str | os.PathLike[str], example: str) -> Path:
    """Return the path of a file that can be written, `~` and links followed.

    Args:
        path: of a file, there or not.
        example: the name of one, for what an error says.

    Raises:
        TypeError, ValueError: it is not a path, or the path of a pipe or device.
        IsADirectoryError, FileNotFoundError: it is a directory, or would be in one that is not there.
        PermissionError: it may not be written.
    """
    target = as_path(path, example)
    advice = f'give the name of a file, such as "{example}"'
    try:
        mode = os.stat(target).st_mode
    except OSError:
        mode = 0
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{path} is a directory: {advice}")
    for is_of_kind, kind in KINDS:
        if mode and is_of_kind(mode):
            raise ValueError(f"{path} is {kind}, which cannot be replaced by a file: {advice}")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target.parent} is not there: make the directory first, or save elsewhere")
    if mode and not os.access(target, os.W_OK):
        raise PermissionError(f"{path} may not be written: change its permissions, or save elsewhere")
    return target


@contextlib.contextmanager
def replacing(target: Path, size: int | None = None) -> Iterator[IO[bytes]]:
    """Open a file beside another, whose place it takes once all of it is written; it keeps the other's permissions.

    Args:
        target: as `writable` returns it.
        size: the bytes that it will have, about; for an error.

    Raises:
        OSError: it could not be written, with the reason; then nothing has changed.

    >>> import tempfile
    >>> target = writable(f"{tempfile.mkdtemp()}/bank.txt", "bank.txt")
    >>> with replacing(target) as file:
    ...     _ = file.write(b"river")
    >>> target.read_text()
    'river'
    """
    part = target.with_name(f".attnwidget-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(part, "xb") as file:
            if target.exists():
                os.chmod(part, stat.S_IMODE(target.stat().st_mode))
            yield file
        os.replace(part, target)
    except OSError as error:
        reason = error.strerror or error
        part.unlink(missing_ok=True)  # before the free space is measured
        room = "" if size is None or error.errno not in FULL else _room(target, size)
        raise _with_words(error, f"{target} was not written ({reason}{room}): free space, or save elsewhere") from error
    finally:
        part.unlink(missing_ok=True)


def _room(target: Path, size: int) -> str:
    """Return in words the space that a file needs and the free space, and whether an earlier file is still there."""
    kept = "; the file before is still there" if target.exists() else ""
    return f": it needs {size:,} bytes, and {shutil.disk_usage(target.parent).free:,} are free{kept}"


@contextlib.contextmanager
def alone(lock: Path, busy: str) -> Iterator[None]:
    """Hold a lock that one process has at a time; it is free again when the process ends, however it ends.

    Args:
        lock: the path of an empty file.
        busy: what the error says if another process holds it.

    Raises:
        RuntimeError: another process, or another thread, holds it.
        OSError: the file cannot be made.
    """
    import filelock  # imported here: only stores need it

    held = filelock.FileLock(lock, timeout=0)
    try:
        held.acquire()
    except filelock.Timeout:
        raise RuntimeError(busy) from None
    except NotImplementedError:  # a file system without locks
        pass
    except OSError as error:
        reason = error.strerror or error
        raise _with_words(error, f"{lock.parent} cannot be written ({reason}): give another folder") from error
    try:
        yield
    finally:
        held.release()


def _with_words(error: OSError, words: str) -> OSError:
    """Return an error of the same kind that says more."""
    return OSError(error.errno, words) if error.errno is not None else OSError(words)


def write(target: Path, content: bytes) -> None:
    """Write a file, all of it or nothing: see `replacing`."""
    with replacing(target, len(content)) as file:
        file.write(content)
