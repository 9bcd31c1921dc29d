"""What the notebook asks of a worker, as text: JSON, because a server's endpoint takes nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..._utils.choices import Numbers
from ..modules.selection import Heads, Layer, read_heads, read_layers

ROWS = ("prompt", "answer")
TYPES = {str(one).removeprefix("torch."): one for one in (torch.float16, torch.bfloat16, torch.float32)}


@dataclass(frozen=True)
class ServedOptions:
    """What a worker keeps.

    Attributes:
        layers: to record; None: all.
        heads: to keep, by their numbers in the model; None: all.
        queries: the rows to keep: some numbers, or those of the prompt or of the answer; None: all.
        keep: "tensors", or "overview" to reduce each text once it has ended.
        values: whether to keep v.
        dtype: the type in which to keep tensors; None: as they are.
        limit: the most bytes that each worker keeps; None: a share of the free memory.
        requests: globs of the ids of requests; None: all.
        folder: of the workers' machine, for files that stay; None: files that vanish once they are read.
    """

    layers: tuple[Layer, ...] | None = None
    heads: Heads | None = None
    queries: Numbers | Literal["prompt", "answer"] | None = None
    keep: str = "tensors"
    values: bool = True
    dtype: torch.dtype | None = None
    limit: int | None = None
    requests: tuple[str, ...] | None = None
    folder: str | None = None


def as_json(**given: Any) -> dict[str, Any]:
    """Return options as a user gave them to `capture`, named as those of `ServedOptions`, as JSON."""
    heads, dtype = given["heads"], given["dtype"]
    by_layer = isinstance(heads, Mapping)
    told = [[_plain(layer), _plain(one)] for layer, one in heads.items()] if by_layer else _plain(heads)
    return {
        **given,
        "layers": _plain(given["layers"]),
        "queries": _plain(given["queries"]),
        "heads": told,
        "by_layer": by_layer,
        "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
    }


def options_of(told: Mapping[str, Any]) -> ServedOptions:
    """Return the options that `as_json` described."""
    heads = told["heads"]
    heads = {_given(key): _given(one) for key, one in heads} if told["by_layer"] else _given(heads)
    queries = _given(told["queries"])
    rows = queries if queries is None or queries in ROWS else Numbers(queries, "queries")
    requests = None if told["requests"] is None else tuple(map(str, told["requests"]))
    return ServedOptions(
        read_layers(_given(told["layers"])),
        read_heads(heads),
        rows,
        told["keep"],
        bool(told["values"]),
        TYPES.get(told["dtype"]),
        told["limit"],
        requests,
        told["folder"],
    )


def _plain(value: Any) -> Any:
    """Return numbers and names as JSON: slices, ranges and regular expressions as dicts."""
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    if isinstance(value, re.Pattern):
        return {"regex": value.pattern, "flags": value.flags}
    if value is None or isinstance(value, str | bool):
        return value
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__index__"):
        return int(value)
    return [_plain(one) for one in value]


def _given(told: Any) -> Any:
    if isinstance(told, dict):
        return slice(*told["slice"]) if "slice" in told else re.compile(told["regex"], told["flags"])
    return [_given(one) for one in told] if isinstance(told, list) else told


def command(do: str, session: str, **more: Any) -> str:
    """Return a command as text."""
    return json.dumps({"do": do, "session": session, **more})
