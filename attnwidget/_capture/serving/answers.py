"""What the workers answer, checked: the one door for answers, of an engine in this process and of a server.

A server is another machine, and may be broken or hostile: no field is used before its type and range are known.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..._utils.validation import kind_of

MOST_WORKERS = 1024
MOST_SKIPPED = 100_000
MOST_BYTES = 1 << 53  # of a file
MOST_PATH = 4096  # characters
WORDS, NAME = 300, 150  # characters of an error or a reason, and of a name
OTHER = "the answer of a worker cannot be read ({}): give engine and notebook the same attnwidget"


class EndedRecording(NamedTuple):
    """What a worker has kept.

    Attributes:
        path: of its file, as the worker's machine names it; None: it has none.
        size: of the file, in bytes.
        skipped: what it could not keep: the reason by module or by request.
        others: requests that ran and were not wanted.
    """

    path: str | None
    size: int
    skipped: dict[str, str]
    others: list[str]


def of_workers(answers: Any, count: int | None = None) -> list[Mapping[str, Any]]:
    """Return the answers of all workers.

    Args:
        answers: as they came.
        count: how many workers there are; None: as many as answer.

    Raises:
        ValueError: a worker refuses, with its reason; or something else has come.
    """
    if not isinstance(answers, list) or not 1 <= len(answers) <= MOST_WORKERS:
        raise ValueError(OTHER.format(f"there are {len(answers) if isinstance(answers, list) else 'no'} answers"))
    if count is not None and len(answers) != count:
        raise ValueError(OTHER.format(f"{len(answers)} workers answer, and {count} began"))
    for one in answers:
        if not isinstance(one, Mapping):
            raise ValueError(OTHER.format(f"it sent {kind_of(one)}"))
        if "error" in one:
            raise ValueError(_words(_text(one["error"], "its error"), WORDS) or OTHER.format("its error is empty"))
    return list(answers)


def skipped_of(answer: Mapping[str, Any]) -> dict[str, str]:
    """Return what a worker cannot record: the reason by module."""
    found = answer.get("skipped")
    if not isinstance(found, Mapping) or len(found) > MOST_SKIPPED:
        raise ValueError(OTHER.format(f"its skipped is {kind_of(found)}"))
    return {_words(_text(name, "a name"), NAME): _words(_text(why, "a reason"), WORDS) for name, why in found.items()}


def ended_of(answer: Mapping[str, Any]) -> EndedRecording:
    """Return what a worker has kept."""
    path, size = answer.get("path", 0), _number(answer.get("size"), "its size")
    if path is not None and (not _text(path, "its path").isprintable() or not 1 <= len(path) <= MOST_PATH):
        raise ValueError(OTHER.format("its path is not a path"))
    if (size == 0) is not (path is None):
        raise ValueError(OTHER.format(f"its file has {size} bytes"))
    return EndedRecording(path, size, skipped_of(answer), [_words(x, NAME) for x in _texts(answer.get("others"))])


def piece_of(answer: Mapping[str, Any]) -> bytes:
    """Return a piece of a worker's file."""
    text = _text(answer.get("bytes"), "a piece of its file")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(OTHER.format("a piece of its file is not base64")) from error


def sessions_of(answer: Mapping[str, Any]) -> list[str]:
    """Return the recordings that a worker has ended."""
    return [_words(one, NAME) for one in _texts(answer.get("ended", []))]


def _number(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value <= MOST_BYTES:
        raise ValueError(OTHER.format(f"{name} is {kind_of(value) if type(value) is not int else 'out of range'}"))
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(OTHER.format(f"{name} is {kind_of(value)}"))
    return value


def _texts(value: Any) -> Sequence[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError(OTHER.format(f"its requests are {kind_of(value)}"))
    return value


def _words(text: str, most: int) -> str:
    """Return a text of a worker as it may be shown: short, and without signs that steer a terminal."""
    shown = text if len(text) <= most else f"{text[:most]}…"
    return shown if shown.isprintable() else "".join(sign if sign.isprintable() else " " for sign in shown)
