"""What Python and TypeScript must agree on: names, and the very bytes of messages.

`tests/contract` is made from here, `ATTNWIDGET_CONTRACT=write pytest tests/contract`, and read by
`js/tests/contract/contract.test.ts`. Its numbers are whole or dyadic, so that they are the same on every machine.
"""

from __future__ import annotations

import base64
from typing import Any

import anywidget
import numpy as np
import pytest
import torch
from front_end import Array, Desk, attached, decode, decode_cells, decode_tokens
from golden import check

from attnwidget import Attention, AttentionStack, AttentionWidget
from attnwidget._engine.level_cache import LevelKey
from attnwidget._messages.answers import requests
from attnwidget._messages.codec import encoding
from attnwidget._messages.pictures.tiles import Address, TileRow, encoded, last_of
from attnwidget._widget.comparison.comparison_widget import ComparisonWidget
from attnwidget._widget.traits.keywords import SETTABLE, WRITABLE, names_of

NAN, INF = float("nan"), float("inf")
TOKENS = ["[CLS]", "", "</script>", "naïve", "日本", "\ufeffא", "👩‍👧", " ", "\n", "e\u0301", "Ġthe"]


def portable(value: Any) -> Any:
    """For JSON: bytes as {"$bytes": base64}."""
    if isinstance(value, bytes | memoryview):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: portable(inner) for name, inner in value.items()}
    return [portable(inner) for inner in value] if isinstance(value, list | tuple) else value


def number(value: float) -> float | str:
    """As JavaScript writes what JSON has no number for."""
    return float(value) if np.isfinite(value) else {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")


def as_read(values: Array, kinds: Array) -> dict[str, Any]:
    """What is to be read of a matrix: all of it, or of a large one every 1009th cell and how many of each kind."""
    flat, kind = np.atleast_2d(values).ravel(), kinds.ravel()
    every = 1 if flat.size <= 1000 else 1009
    return {
        "rows": np.atleast_2d(values).shape[0],
        "columns": np.atleast_2d(values).shape[1],
        "every": every,
        "values": [number(value) for value in flat[::every]],
        "kinds": kind[::every].tolist(),
        "counts": np.bincount(kind, minlength=5).tolist(),
    }


# Names.


def test_the_role_of_every_trait() -> None:
    """What js/src/contract/traits.ts has as a table: each trait that is sent, and what it is to the front-end."""
    theirs = anywidget.AnyWidget.class_traits(sync=True)
    ours = {name: trait for name, trait in ComparisonWidget.class_traits(sync=True).items() if name not in theirs}
    roles = {name: trait.metadata.get("role") for name, trait in sorted(ours.items()) if not name.startswith("_")}
    assert set(roles.values()) == {"derived", "identity", *SETTABLE}, "a role, or a trait, is missing"
    check("traits.json", roles)


def test_a_front_end_may_set_the_selection_the_looks_and_which_numbers_are_shown() -> None:
    """What it may not set is what it would make false, or what only Python can check."""
    writable = names_of(ComparisonWidget, *WRITABLE)
    assert {"query", "theme", "stage", "what_if", "against"} <= set(writable)
    assert not {"uid", "sides", "title", "tokens", "tokenizer", "image", "facts", "picture", "errors"} & set(writable)
    assert "against" not in names_of(AttentionWidget, *WRITABLE)


# Bytes.


def picture_of(values: Any, blocked: Any = None, *, stage: str = "weights") -> dict[str, Any]:
    values = torch.as_tensor(values)
    hidden = None if blocked is None else torch.as_tensor(blocked)
    encoded = encoding.encode_picture(values, hidden, signed=stage != "weights")
    (Q, K), of = values.shape, {"layer": 1, "batch": 2, "head": 3, "stage": stage, "pool": "max"}
    return {**of, "queries": Q, "keys": K, "query_bin": 1, "key_bin": 1, "sampled": None, **encoded, "error": None}


def picture_and_reading(message: dict[str, Any]) -> dict[str, Any]:
    return {"message": portable(message), "grid": as_read(*decode_cells(message["values"], message["blocked"]))}


def exact_picture() -> dict[str, Any]:
    values = np.float32([[0.5, 0, NAN, 1 / 3], [INF, 0.25, -INF, 2.0**-149], [1, -0.0, 2.0**-20, 0.75]])
    blocked = np.array([[0, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 0]], bool)
    return picture_of(values, blocked)


def exact_picture_without_blocked() -> dict[str, Any]:
    return picture_of(np.float32([[-1.5, 0, 2.25]]), stage="scores")


def log_picture() -> dict[str, Any]:
    cells = 2.0 ** -(np.arange(300 * 300, dtype=np.float32) // 25 % 7).reshape(300, 300)
    cells[0, :7] = [0, 2.0**-30, NAN, INF, -INF, 1, 2.0**-16]
    return picture_of(cells, np.triu(np.ones((300, 300), bool), 200))


def linear_picture() -> dict[str, Any]:
    """Through the widget itself: whole scores, masked, of queries in bins of two."""
    rows, columns = torch.arange(540.0)[:, None], torch.arange(300.0)[:, None]
    q, k = torch.cat([rows % 5 - 2, rows % 3 - 1], 1), torch.cat([columns % 7 - 3, columns % 2], 1)
    w = AttentionWidget(q, k, is_causal=True, scale=0.5, stage="masked")
    return dict(w.picture)


def failed_picture() -> dict[str, Any]:
    message = exact_picture()
    return {**message, "values": None, "blocked": None, "low": None, "high": None, "error": "CUDA out of memory"}


def thumbnails() -> dict[str, Any]:
    first = torch.tensor([[1, 0, 0], [0.5, 0.5, 0]]), torch.tensor([[True, False, False], [True, True, False]])
    second = torch.tensor([[2.0**-7, 2.0**-8, NAN], [0, INF, -INF]]), torch.ones(2, 3, dtype=torch.bool)
    return {"layer": 4, "batch": 1, "values": encoding.encode_thumbnails([first, second])}


def replies() -> dict[str, Any]:
    q, k = torch.tensor([[1.0, 0], [0, 2], [INF, 1]]), torch.tensor([[3.0, -1], [0, 4]])
    allowed = torch.tensor([[True, False], [True, True], [True, True]])
    stack = AttentionStack([Attention(q, k, mask=allowed, scale=1.0)])
    of = {"layer": 0, "batch": 0, "head": 0, "stage": "masked"}
    rows, keys = [0, 3], [0, 2]
    asked = [
        {"id": "row", "kind": "row", "query": 0, **of},
        {"id": "column", "kind": "column", "key": 1, **of},
        {"id": "cells", "kind": "cells", "queries": [1, 3], "keys": keys, **of},
        {"id": "unblocked", "kind": "cells", "queries": [0, 2], "keys": keys, **of, "stage": "scores"},
        {"id": "peak", "kind": "peak", "queries": [0, 2], "keys": keys, **of},
        {"id": "infinite peak", "kind": "peak", "queries": rows, "keys": [0, 1], **of},
        {"id": "nan peak", "kind": "peak", "queries": rows, "keys": keys, **of},
        {"id": "blocked peak", "kind": "peak", "queries": [0, 1], "keys": [1, 2], **of},
        {"id": "ping", "kind": "ping"},
        {"id": "refused", "kind": "row", "query": 3, **of},
    ]
    answered = requests.answer(Desk(stack), {"requests": asked})
    assert answered is not None
    message, buffers = answered
    grids: dict[str, Any] = {}
    for reply in message["replies"]:
        if "values" in reply:
            attached = [
                part and {**part, "data": buffers[part["data"]]} for part in (reply["values"], reply["blocked"])
            ]
            grids[reply["id"]] = as_read(*decode_cells(*attached))
    return {"message": message, "buffers": portable(buffers), "grids": grids}


def long_replies() -> dict[str, Any]:
    """What a front-end asks of a long head: tiles, exact and sampled, what is strongest, a page of tokens."""
    rows, columns = torch.arange(600.0)[:, None], torch.arange(300.0)[:, None]
    q, k = torch.cat([rows % 5 - 2, rows % 3 - 1], 1), torch.cat([columns % 7 - 3, columns % 2], 1)
    desk = Desk(AttentionStack([Attention(q, k, is_causal=True, scale=0.5)]), TOKENS)
    of = {"layer": 0, "batch": 0, "head": 0, "stage": "masked"}
    asked = [
        {"id": "tiles", "kind": "tiles", **of, "pool": "max", "view": "a", "tiles": [[1, 0, 1, 2], [0, 1, 4, 0]]},
        {"id": "ranked", "kind": "ranked", **of, "queries": [20], "count": 5},
        {"id": "tokens", "kind": "tokens", "layer": 0, "batch": 0, "side": "key", "start": 2, "stop": 6},
        {"id": "find", "kind": "find", "layer": 0, "batch": 0, "side": "key", "text": "E", "start": 3, "count": 2},
    ]
    answered = requests.answer(desk, {"requests": asked})
    assert answered is not None
    message, buffers = answered
    for name in ("entropy", "max_entropy"):  # whose last digits are the machine's
        message["replies"][1][name] = round(message["replies"][1][name], 6)
    exact, ranked, page, _ = attached(message["replies"], buffers)
    key, address = LevelKey(0, 0, "masked", "max"), Address(3, 0, 0, 1)
    tile_row = TileRow(desk.levels(0), key, [address])
    sampled, sampled_buffers = encoded(last_of(tile_row.sampled(64)), "masked", 10.0)
    return {
        "message": message,
        "buffers": portable(buffers),
        "tiles": [as_read(*decode_cells(tile["values"])) for tile in exact["tiles"]],
        "ranked": {"positions": decode(ranked["positions"]).tolist(), "values": decode(ranked["values"]).tolist()},
        "tokens": decode_tokens(page),
        "sampled": {"tiles": sampled, "buffers": portable(sampled_buffers)},
        "sampled tiles": [as_read(*decode_cells(tile["values"])) for tile in attached(sampled, sampled_buffers)],
    }


def tokens(given: list[str]) -> dict[str, Any]:
    message = encoding.encode_tokens(given)
    assert decode_tokens(message) == given
    return {"message": portable(message), "tokens": given}


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    small = thumbnails()
    values, kinds = decode_cells(small["values"])
    made = {name: picture_and_reading(make()) for name, make in {
        "exact": exact_picture, "exact, none blocked": exact_picture_without_blocked, "log": log_picture,
        "linear": linear_picture,
    }.items()}  # fmt: skip
    return {
        "pictures": made,
        "failed": portable(failed_picture()),
        "thumbnails": {
            "message": portable(small),
            "heads": [as_read(*head) for head in zip(values, kinds, strict=True)],
        },
        "tokens": {"of any script": tokens(TOKENS), "many": tokens([f"t{n}" for n in range(1100)])},
        "replies": replies(),
        "long": long_replies(),
    }


def test_golden_bytes(golden: dict[str, Any]) -> None:
    check("golden.json", golden)


def test_golden_bytes_have_one_of_each_kind(golden: dict[str, Any]) -> None:
    """What the other side is held against is worth it."""
    pictures = {name: made["message"] for name, made in golden["pictures"].items()}
    assert [pictures[name]["values"]["dtype"] for name in ("exact", "log", "linear")] == ["float32", "uint8", "uint8"]
    assert [pictures[name]["values"]["deflated"] for name in ("exact", "log", "linear")] == [False, True, True]
    assert pictures["log"]["values"]["scale"] == {"kind": "log", "high": 1.0, "octaves": 16}
    assert pictures["linear"]["values"]["scale"] == {"kind": "linear", "high": 3.5}
    assert (pictures["linear"]["query_bin"], pictures["linear"]["low"]) == (2, -3.5)
    assert all(golden["pictures"]["exact"]["grid"]["counts"])
    assert all(golden["pictures"]["log"]["grid"]["counts"])
    assert golden["tokens"]["many"]["message"]["ends"]["deflated"]
    assert [tile["every"] for tile in golden["long"]["message"]["replies"][0]["tiles"]] == [1, 1]
    assert [tile["every"] for tile in golden["long"]["sampled"]["tiles"]] == [64]
    assert all(golden["long"]["tiles"][0]["counts"][kind] for kind in (0, 1)), "numbers, and blocked"
    assert golden["long"]["tokens"] == TOKENS[2:6]
    peaks = {r["id"]: r.get("value") for r in golden["replies"]["message"]["replies"] if r["id"].endswith("peak")}
    assert peaks == {"peak": 8.0, "infinite peak": "inf", "nan peak": "nan", "blocked peak": None}
