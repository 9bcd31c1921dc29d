"""One color for each segment wherever it is drawn: margins, small map, text, bundles and bars of the graph, list."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from gallery import Gallery, show
from lab import OfflinePages
from lanes import mostly_thorough
from test_segments_in_heatmap import FLAT, NESTED, made, names_of

DOCUMENTS = [f"doc {at}" for at in range(1, 6)]
PLACE: dict[str, Any] = {"segment_path": ["documents"], "asking": ["documents", "doc 4"], "segment": "doc 2"}

MARGINS = """(within) => [...document.querySelectorAll(`${within} .aw-segment-bars`)].map((svg) => {
  const { width, height } = svg.closest(within).querySelector("canvas").getBoundingClientRect();
  return { width, height, bars: [...svg.querySelectorAll("path")].map((path) =>
    ({ shape: path.getAttribute("d"), color: getComputedStyle(path).fill })) };
})"""
NAMED = """(part) => [...document.querySelectorAll(part)].map((node) =>
  [node.title, getComputedStyle(node.querySelector(".aw-seg-mark") ?? node).backgroundColor])"""


def by_name(margins: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Of each margin the color of each document, told by where its bars stand."""
    found = []
    for margin in margins:
        colors: dict[str, str] = {}
        for bar in margin["bars"]:
            for x, y, width, height in re.findall(r"M([\d.-]+) ([\d.-]+)h([\d.]+)v([\d.]+)h", bar["shape"]):
                is_down = float(height) > float(width)
                start, long = (y, height) if is_down else (x, width)
                share = (float(start) + float(long) / 2) / margin["height" if is_down else "width"]
                names = [name for name in DOCUMENTS if FLAT[name][0] < share * 285 < FLAT[name][1]]
                if names:
                    assert colors.setdefault(names[0], bar["color"]) == bar["color"]
        found.append(colors)
    return found


def documents(shown: Gallery, part: str) -> dict[str, str]:
    pairs = [(name, color) for name, color in shown.page.evaluate(NAMED, part) if name in DOCUMENTS]
    colors = dict(pairs)
    assert all(colors[name] == color for name, color in pairs)
    return colors


@pytest.mark.parametrize(
    "host", mostly_thorough("plain-light", "plain-dark", "jupyter-contrast", "vscode-contrast-light", "sepia")
)
def test_a_nested_segment_has_one_color_in_every_place(offline_page: OfflinePages, host: str) -> None:
    def shown_in(view: str, **more: Any) -> Gallery:
        shown = show(
            offline_page, made(segments=NESTED, view=view, **{**PLACE, **more}), width=900, height=3000, host=host
        )
        shown.finish()
        shown.wait_for_lines()
        return shown

    segments = shown_in("segments")
    listed = documents(segments, "button.aw-seg-row:not(.aw-seg-key)")
    assert set(listed) == set(DOCUMENTS)
    assert len(set(listed.values())) == 5

    heatmap = shown_in("heatmap")
    across, down = by_name(heatmap.page.evaluate(MARGINS, ".aw-figure"))
    assert across == down == listed
    names = names_of(heatmap)
    assert all(names.count(name) == 2 for name in DOCUMENTS), names
    heatmap.check()
    heatmap.zoom(150, 100, 4)
    heatmap.wait_for_lines()
    small = by_name(heatmap.page.evaluate(MARGINS, "[data-aw=minimap]"))
    assert small == [listed, listed]
    heatmap.screenshot(f"segment-colors-minimap-{host}")

    text = documents(shown_in("text", query=270), ".aw-line-segment")
    assert text
    assert text == {name: listed[name] for name in text}

    graph = shown_in("graph", query=270)
    margin = documents(graph, ".aw-graph-segment")
    assert margin
    assert margin == {name: listed[name] for name in margin}
    check_bundles(graph, listed)


GRAPH = """() => {
  const box = document.querySelector(".aw-graph canvas").getBoundingClientRect();
  const keys = [...document.querySelectorAll(".aw-graph-segment")].map((node) => {
    const { top, bottom, left } = node.getBoundingClientRect();
    return { name: node.title, color: getComputedStyle(node).backgroundColor, top, bottom, left };
  });
  const bars = [...document.querySelectorAll(".aw-graph-row > i")].map((node) => {
    const { top, height, width } = node.getBoundingClientRect();
    return { at: top + height / 2, width, color: getComputedStyle(node).backgroundColor };
  });
  return { box: [box.left, box.top, box.width, box.height], keys, bars };
}"""
PIXEL = """([x, y]) => {
  const canvas = document.querySelector(".aw-graph canvas");
  const box = canvas.getBoundingClientRect();
  const scale = canvas.width / box.width;
  return [...canvas.getContext("2d").getImageData(Math.round((x - box.left) * scale), Math.round((y - box.top) * scale),
    1, 1).data];
}"""


def check_bundles(graph: Gallery, colors: dict[str, str]) -> None:
    """Compare bars and bundles with the margin of the keys beside them."""
    drawn = graph.page.evaluate(GRAPH)
    right = max(one["left"] for one in drawn["keys"])
    keys = [one for one in drawn["keys"] if one["left"] == right]
    bars = [(bar, key) for bar in drawn["bars"] for key in keys if key["top"] <= bar["at"] <= key["bottom"]]
    of_documents = [(bar, key) for bar, key in bars if key["name"] in colors]
    assert of_documents
    assert [(bar["color"], key["name"]) for bar, key in bars] == [(key["color"], key["name"]) for _, key in bars]
    bar, key = max(of_documents, key=lambda one: one[0]["width"])
    *pixel, alpha = graph.page.evaluate(PIXEL, [right - 8, bar["at"]])
    wanted = np.array([int(one) for one in re.findall(r"\d+", colors[key["name"]])[:3]])
    assert alpha > 60
    assert np.abs(np.array(pixel) - wanted).max() <= 255 / alpha * 4
