"""Masses are read as `by_segment` reads them: what is sent, `segments.json`, and js/tests/contract/segments.test.ts.

`segments.json` is made from here, `ATTNWIDGET_CONTRACT=write pytest tests/contract`. Last digits are the machine's own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from front_end import decode

from attnwidget import Attention, AttentionWidget, segments
from attnwidget._messages.segments.segment_reading import MEASURES, is_logarithmic, read

PATH = Path(__file__).parent / "segments.json"
PARTS = ("mass", "even", "self", "self_even")
SETS: list[list[str]] = [[], ["first token"], ["sink", "self"], ["doc", "self"]]
N = 9


def shown() -> tuple[Any, AttentionWidget]:
    found = segments({"doc": (1, 4), "question": (4, 6), "answer": (6, N)}, length=N)
    q, k = torch.randn(2, 1, 1, N, 4, generator=torch.Generator().manual_seed(7))
    return found, AttentionWidget.from_attention(
        Attention(q, k, is_causal=True, sinks=0.25), segments=found, view="segments"
    )


def made() -> dict[str, Any]:
    """What is sent of a head with a learned sink, and what `by_segment` says of it."""
    found, w = shown()
    cases = []
    for aside in SETS:
        for measure in MEASURES:
            mass = w.attention.by_segment(found, head=0, measure=measure, without=tuple(aside))  # type: ignore[union-attr]
            rows = [[None if np.isnan(x) else float(x) for x in row] for row in mass.values.numpy()]
            cases.append({"aside": aside, "measure": measure, "keys": [*mass.keys], "values": rows})
    sent = {name: decode(w.mass[name]).tolist() for name in PARTS}
    sides = [(rows, columns) for rows in (1, 39, 40, 41, 300) for columns in (1, 40, 41)]
    scales = [[*of, signed, is_logarithmic(*of, signed=signed)] for of in sides for signed in (False, True)]
    return {"keys": w.mass["keys"], "sizes": w.mass["key_sizes"], **sent, "readings": cases, "scales": scales}


if os.environ.get("ATTNWIDGET_CONTRACT") == "write":
    PATH.write_text(json.dumps(made(), indent=1) + "\n", encoding="utf-8")
GOLDEN: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))


def near(value: Any) -> Any:
    return pytest.approx(np.array(value, np.float64), rel=1e-4, abs=1e-6, nan_ok=True)


def test_what_is_sent_and_what_by_segment_says_are_those_of_the_file() -> None:
    now = made()
    for name in ("keys", "sizes", "scales"):
        assert now[name] == GOLDEN[name], name
    for name in PARTS:
        assert np.array(now[name]) == near(GOLDEN[name]), name
    for one, kept in zip(now["readings"], GOLDEN["readings"], strict=True):
        assert (one["aside"], one["measure"], one["keys"]) == (kept["aside"], kept["measure"], kept["keys"])
        assert np.array(one["values"], np.float64) == near(kept["values"])


@pytest.mark.parametrize("case", GOLDEN["readings"], ids=lambda one: f"{one['measure']} without {one['aside']}")
def test_the_reading_of_what_is_sent_is_that_of_by_segment(case: dict[str, Any]) -> None:
    parts = {name: np.array(GOLDEN[name]) for name in PARTS}
    found = read(parts, GOLDEN["keys"], GOLDEN["sizes"], case["aside"], case["measure"])[0]
    columns = [GOLDEN["keys"].index(name) for name in case["keys"]]
    assert found[:, columns] == near(case["values"])
    gone = [at for at in range(len(GOLDEN["keys"])) if at not in columns]
    assert np.isnan(found[:, gone]).all()


def test_the_largest_masses_of_several_heads_are_shares_too() -> None:
    parts = {name: np.array(GOLDEN[name]) * (2 if name == "mass" else 1) for name in PARTS}
    found = read(parts, GOLDEN["keys"], GOLDEN["sizes"], [], "mass")[0]
    np.testing.assert_allclose(found.sum(1), 1)
