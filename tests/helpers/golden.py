"""Golden files: what one side writes and the other reads, kept in `tests/contract`."""

from __future__ import annotations

import base64
import json
import os
import zlib
from pathlib import Path
from typing import Any

CONTRACT = Path(__file__).parents[1] / "contract"


def check(name: str, made: Any) -> None:
    path = CONTRACT / name
    if os.environ.get("ATTNWIDGET_CONTRACT") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(as_lines(made), encoding="utf-8")
    kept = json.loads(path.read_text(encoding="utf-8"))
    again = json.loads(json.dumps(made))
    stale = f"{name} is out of date: run ATTNWIDGET_CONTRACT=write pytest tests/contract"
    assert inflated(kept) == inflated(again), stale


def as_lines(made: Any) -> str:
    """JSON with a line for each part, so that a diff says which one changed."""
    parts = made.items() if isinstance(made, dict) else ((None, part) for part in made)
    lines = [(f"{json.dumps(name)}: " if name else "") + json.dumps(part) for name, part in parts]
    return ("{\n%s\n}\n" if isinstance(made, dict) else "[\n%s\n]\n") % ",\n".join(lines)


def inflated(value: Any) -> Any:
    """With all bytes inflated: zlib's versions differ in how they deflate."""
    if isinstance(value, dict):
        value = {name: inflated(inner) for name, inner in value.items()}
        if value.get("deflated") is True and isinstance(value["data"], bytes):
            value["data"] = zlib.decompress(value["data"])
        return base64.b64decode(value["$bytes"]) if "$bytes" in value else value
    if isinstance(value, list):
        return [inflated(inner) for inner in value]
    return value
