"""Values lie on a ramp where the front-end puts them: its js/tests/contract/scales.test.ts writes `scales.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnwidget._export.look import colors
from attnwidget._messages.codec.decoding import NUMBER, DecodedMatrix

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "scales.json").read_text(encoding="utf-8"))


def check(found: Any, wanted: Any, *, log: bool) -> None:
    """Linear places are quotients of dyadic numbers, alike on both sides; a logarithm's last bit is the machine's."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9 if log else 0)


@pytest.mark.parametrize(
    "of", GOLDEN["scales"], ids=lambda of: f"{of['kind']}, {of['scale']}, {of['low']}, {of['high']}"
)
def test_a_value_lies_where_the_front_end_puts_it(of: dict[str, Any]) -> None:
    scale = colors.scale_of(of["kind"], of["scale"] == "log", of["low"], of["high"])
    values = np.array([float(value) for value, _ in of["places"]])
    check(scale.position(values), [place for _, place in of["places"]], log=scale.log)


@pytest.mark.parametrize("of", GOLDEN["pictures"], ids=lambda of: f"{of['stage']}, {of['scale']}, {of['range']}")
def test_a_picture_has_the_same_colors(of: dict[str, Any]) -> None:
    values = np.array(of["rows"], np.float32)
    rows, columns = values.shape
    kinds = np.full(values.shape, NUMBER, np.uint8)
    matrix = DecodedMatrix(values, kinds, of["stage"], "max", rows, columns, 1, 1, of["low"], of["high"], 1)
    first, steps = (0, 255) if of["stage"] == "weights" else (1, 254)
    wanted = first + steps * np.array(of["places"])
    found = colors.entries(matrix, of["scale"], of["range"]).astype(float)
    # Half a step, for an entry is the nearest; where a place lies between two of them, a logarithm's last bit chooses.
    assert np.abs(found - wanted).max() <= 0.5 + 1e-6
    if of["range"] != "row":
        scale = colors.matrix_scale(matrix, of["scale"], of["range"])
        check(scale.position(values.astype(np.float64)), of["places"], log=scale.log)
