"""Figures draw the graph where the front-end does: its js/tests/contract/graph.test.ts writes `graph.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnwidget._export.figure.graph_geometry import Lane, Link, bands, curves, keep_links, lane, strongest_last

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "graph.json").read_text(encoding="utf-8"))
LINKS = {part["name"]: [Link(*link) for link in part["links"]] for part in GOLDEN["links"]}
COLUMNS = {part["name"]: (part["queries"], part["keys"]) for part in GOLDEN["columns"]}


def near(wanted: Any) -> Any:
    """Equal but for some steps of rounding: both sides add in the same order, but 12.5 / 3 need not end alike."""
    return pytest.approx(wanted, rel=1e-12, abs=1e-12)


def lanes(columns: str) -> tuple[Lane, Lane]:
    queries, keys = COLUMNS[columns]
    return lane(*queries), lane(*keys)


@pytest.mark.parametrize("wanted", GOLDEN["lanes"], ids=lambda one: f"{one['total']}, {one['keep']}"[:40])
def test_a_column_has_the_same_rows(wanted: dict[str, Any]) -> None:
    found = lane(wanted["total"], wanted["keep"])
    rows = [{"gap": row.count} if row.index is None else row.index for row in found.rows]
    assert rows == wanted["rows"]
    assert (found.pitch, found.height, found.step) == (near(wanted["pitch"]), near(wanted["height"]), wanted["step"])
    assert [found.y(index) for index, _ in wanted["y"]] == [None if y is None else near(y) for _, y in wanted["y"]]
    assert all(found.y(index) is not None for index in found.labeled)


@pytest.mark.parametrize("wanted", GOLDEN["bands"], ids=lambda one: f"{one['links']}, {one['columns']}, {one['side']}")
def test_bands_lie_alike(wanted: dict[str, Any]) -> None:
    found, stems = bands(LINKS[wanted["links"]], wanted["side"], *lanes(wanted["columns"]))
    assert [band.link[:4] for band in found] == [tuple(link) for link, _ in wanted["bands"]]
    assert [list(band[1:]) for band in found] == [near(numbers) for _, numbers in wanted["bands"]]
    assert [list(stem) for stem in stems] == [near(stem) for stem in wanted["stems"]]


@pytest.mark.parametrize("wanted", GOLDEN["curves"], ids=lambda one: f"{one['links']}, {one['columns']}")
def test_curves_lie_alike(wanted: dict[str, Any]) -> None:
    found = curves(LINKS[wanted["links"]], *lanes(wanted["columns"]))
    assert [curve.link[:4] for curve in found] == [tuple(link) for link, _ in wanted["curves"]]
    assert [list(curve[1:5]) for curve in found] == [near(numbers) for _, numbers in wanted["curves"]]


@pytest.mark.parametrize("wanted", GOLDEN["kept"], ids=lambda one: f"{one['links']}, {one['top']}, {one['threshold']}")
def test_the_same_links_are_kept_and_drawn_last(wanted: dict[str, Any]) -> None:
    links = LINKS[wanted["links"]]
    kept = [link[:4] for link in keep_links(links, wanted["top"], wanted["threshold"])]
    assert kept == [tuple(link) for link in wanted["kept"]]
    assert [link[:4] for link in strongest_last(links, 3)] == [tuple(link) for link in wanted["strongest"]]
