"""Heads like one stand in one order in Python and on the page: `similar.json` and js/tests/contract/similar.test.ts.

`similar.json` is made from here, `ATTNWIDGET_CONTRACT=write pytest tests/contract`.
"""

from __future__ import annotations

import json
import os
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch

from attnwidget._analysis.metrics import NAMES
from attnwidget._analysis.similar_heads import metric_distances, order_of, picture_distances

PATH = Path(__file__).parent / "similar.json"
COMPARED = ("entropy", "first_token", "previous_token", "mean_distance")
HEADS = 12


def made() -> dict[str, Any]:
    """Two layers of six heads, with ties, a metric that hardly differs, heads without some, and other sizes."""
    source = torch.Generator().manual_seed(5)
    metrics = {name: (torch.rand(HEADS, generator=source) * 64).round() / 64 for name in COMPARED}
    metrics["entropy"] *= 8
    metrics["first_token"][3] = metrics["first_token"][4] = nan
    metrics["itself"] = torch.full((HEADS,), 0.5)
    metrics["sink"] = (torch.rand(HEADS, generator=source) * 64).round() / 64  # follows from others: not compared
    pictures = [(torch.rand(4, 6 if head < 9 else 5, generator=source) * 64).round() / 64 for head in range(HEADS)]
    for values in metrics.values():
        values[7] = values[2]
    pictures[7] = pictures[2].clone()  # the same twice
    table = torch.stack([metrics[name].double() for name in metrics if name in NAMES], 1)
    orders = []
    for own in range(HEADS):
        apart = metric_distances(table, own), picture_distances([one.double() for one in pictures], own)
        orders.append(order_of(*apart, own))
    return {
        "metrics": {name: [None if x != x else x for x in values.tolist()] for name, values in metrics.items()},
        "pictures": [one.tolist() for one in pictures],
        "orders": orders,
    }


if os.environ.get("ATTNWIDGET_CONTRACT") == "write":
    PATH.write_text(json.dumps(made()) + "\n", encoding="utf-8")
GOLDEN: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))


def test_the_orders_are_those_of_the_file() -> None:
    assert made() == GOLDEN


@pytest.mark.parametrize("own", range(HEADS))
def test_the_head_itself_is_first_and_its_twin_second(own: int) -> None:
    order = GOLDEN["orders"][own]
    assert sorted(order) == [*range(HEADS)]
    assert order[0] == own
    if own in (2, 7):
        assert order[1] == 9 - own
