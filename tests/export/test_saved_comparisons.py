"""Comparisons of several sides in one file: each side looks where it looked, and nothing is begun for a file."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnwidget import Attention, AttentionStack, compare
from attnwidget._engine import cost
from attnwidget._messages.pictures import comparison


def layers(count: int, n: int = 6, heads: int = 3) -> AttentionStack:
    source = torch.Generator().manual_seed(3)
    return AttentionStack([Attention(*torch.randn(3, 1, heads, n, 4, generator=source)) for _ in range(count)])


def saved(path: Path) -> dict[str, Any]:
    found = re.search(r'id="attnwidget-data">([^<]*)<', path.read_text())
    assert found is not None
    whole = zlib.decompress(base64.b64decode(found[1]))
    (length,) = struct.unpack("<I", whole[:4])
    made: dict[str, Any] = json.loads(whole[4 : 4 + length])
    return made | {"bytes": whole[4 + length :]}


def numbers(whole: dict[str, Any], envelope: dict[str, Any]) -> Any:
    start, length = envelope["data"]["$bytes"]
    raw = whole["bytes"][start : start + length]
    raw = zlib.decompress(raw) if envelope["deflated"] else raw
    return np.frombuffer(raw, envelope["dtype"]).reshape(envelope["shape"])


def test_each_side_is_saved_at_its_own_place(tmp_path: Path) -> None:
    stack = layers(2)
    places = {"b": (1, 0, 2), "c": (0, 0, 1), "d": None}
    w = compare({"a": (stack, 0, 0), "b": (stack, 1, 2), "c": (stack, 0, 1), "d": (stack, 0, 0)}, view="compare")
    whole = saved(w.to_html(tmp_path / "a.html", layers="all", heads="all"))
    assert whole["derived"]["against_at"] == {
        "by": ["against"],
        "values": {json.dumps([name]): None if at is None else list(at) for name, at in places.items()},
    }
    assert (whole["state"]["against"], whole["state"]["against_at"]) == ("b", [1, 0, 2])
    known = whole["derived"]["comparison"]
    assert known["by"] == ["layer", "batch", "head", "stage", "pool", "against", "against_at"]
    for name, at in places.items():
        for layer, head in ((0, 0), (1, 2), (0, 1)):
            key = json.dumps([layer, 0, head, "weights", "max", name, at], separators=(",", ":"))
            layer_of_b, _, head_of_b = at or (layer, 0, head)
            made = known["values"][key]
            assert made["error"] is None
            for part, of in (("a", (layer, head)), ("b", (layer_of_b, head_of_b))):
                wanted = stack[of[0]].block(head=of[1]).numpy()
                assert np.array_equal(numbers(whole, made[part]["values"]), wanted)


def test_a_file_begins_no_comparison_that_nobody_looks_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "AT_ONCE", 1000)  # heads of 530 are long
    monkeypatch.setattr(comparison, "MAX_SAMPLED_CELLS", 1 << 16)
    stack = layers(1, n=530, heads=2)

    async def main() -> None:
        w = compare({"a": stack, "b": (stack, 0, 1), "c": (stack, 0, 0)}, view="compare")
        before = w.comparison
        job = w._pass._rest
        w.to_html(tmp_path / "a.html", heads="all")
        assert w.comparison is before
        assert w._pass._rest is job
        w.finish()
        assert (w.comparison["against"], w.comparison["sampled"]) == ("b", None)

    asyncio.run(main())


def one(layer: int, heads: int, samples: int = 1) -> AttentionStack:
    return AttentionStack([Attention(*torch.zeros(3, samples, heads, 4, 2)) for _ in range(layer)])


@pytest.mark.parametrize(
    ("sides", "said"),
    [
        ((one(2, 2), one(3, 2)), "A has 2 layers but B has 3: give as many of both, such as stack[:2] for B, or one "
         "layer of each, such as a[0] and b[0]"),
        ((one(2, 2), one(2, 4)), "layer 0 of A has 2 heads but B has 4: give as many of both, or one head of each, "
         "such as a[0].combine([3]) and b[0].combine([1])"),
        ((one(1, 2), one(1, 2, 3)), "A has 1 sample but B has 3: give the same samples of both, such as "
         "Attention(q[:1], k[:1], v[:1])"),
        (({"a": one(1, 2)}, one(1, 2)), "A is a dict next to other sides: give one dict of all, such as {'no mask': a, "
         "'mask': b}"),
    ],
)  # fmt: skip
def test_sides_that_do_not_fit_are_refused_with_what_was_given_wanted_and_the_next_step(sides: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        compare(*sides)


def test_the_next_steps_work() -> None:
    few, many = one(2, 2), one(3, 4)
    assert len(compare(one(2, 4), many[:2])._shown.stack) == 2
    compare(one(2, 4)[0], many[2])
    w = compare(few[0].combine([1]), many[2].combine([3]), view="compare")
    assert w.comparison["error"] is None
