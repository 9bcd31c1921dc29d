"""The built front-end, as text."""

from __future__ import annotations

import functools
import pathlib

STATIC = pathlib.Path(__file__).parent.parent / "static"


@functools.cache
def bundled(name: str) -> str:
    """Return the text of a built file of the front-end.

    Raises:
        FileNotFoundError: it is not built; the message says what to do.
    """
    try:
        return (STATIC / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(
            "the front-end is not built: run `make bundle` in the checkout, or install attnwidget from a wheel"
        ) from None
