"""The built front-end, as text."""

from __future__ import annotations

import functools
import json
import pathlib
import re
from typing import Any

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


@functools.cache
def names() -> dict[str, Any]:
    """Return the words for stages and metrics that Python and the front-end share."""
    found: dict[str, Any] = json.loads(bundled("names.json"))
    return found


def stage_names(stage: str) -> dict[str, str]:
    """Return the words for a stage: `one` number, `many`, the `legend`, and a `sum` by segment if there is one."""
    found: dict[str, str] = names()["stages"][stage]
    return found


@functools.cache
def parts() -> dict[str, str]:
    """Return the parts of the script that views load when they are opened, packed, by their names.

    Raises:
        RuntimeError: they were built from other sources than `widget.js`, as it was read; the message says what to do.
    """
    made = json.loads(bundled("parts.json"))
    if made["digest"] != _digest():
        raise RuntimeError(
            "the front-end on disk is of two versions: restart the kernel, and in a checkout run `make bundle` before"
        )
    found: dict[str, str] = made["parts"]
    return found


@functools.cache
def whole_script() -> str:
    """Return the script with all its parts, where a page can get nothing later."""
    held = f'Object.assign(globalThis[Symbol.for("attnwidget parts {_digest()}")] ??= {{}}, {json.dumps(parts())});'
    return f"{bundled('widget.js')}{held}\n"


def _digest() -> str:
    """Return the name of the sources from which `widget.js` was built."""
    found = re.match(r"/\* attnwidget, built from ([0-9a-f]+) \*/", bundled("widget.js"))
    return "" if found is None else found[1]
