"""A learned sink in every view: its column beside the picture, its place among the keys, its words."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from gallery import Gallery, show
from lab import Lab, OfflinePages, Theme
from lanes import mostly_thorough

from attnwidget import AttentionStack, AttentionWidget, compare, segments
from attnwidget.samples import load_sample


def bank(**more: Any) -> AttentionWidget:
    q, k, v, tokens, mask = load_sample("bank")
    sinks = torch.linspace(-1, 4, q.shape[2])
    return AttentionWidget(q, k, v, **{"tokens": tokens, "mask": mask, "layer": 5, "head": 7, "sinks": sinks, **more})


def text_of(shown: Gallery, part: str) -> str:
    return " ".join(shown.page.locator(f"[data-aw={part}]").first.inner_text().split())


def said(shown: Gallery, pattern: str) -> float:
    """The number in the status line."""
    found = re.search(pattern, text_of(shown, "status"))
    assert found is not None, text_of(shown, "status")
    return float(found[1])


def sink_place(shown: Gallery, query: int) -> tuple[float, float]:
    box = shown.page.locator("[data-aw=sink]").first.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] * (query + 0.5) / shown.widgets[0].facts["queries"]


@pytest.mark.parametrize("host", mostly_thorough("jupyter-light", "jupyter-dark", "jupyter-contrast", "sepia"))
@pytest.mark.parametrize("width", mostly_thorough(860, 360, 600, 1240))
def test_the_column_beside_the_picture(offline_page: OfflinePages, host: str, width: int) -> None:
    w = bank(query=5)
    shown = show(offline_page, [w], host=host, width=width)
    shown.wait_for_lines()
    assert isinstance(w.attention, AttentionStack)
    exact = w.attention[5].sink_weights(0, 7)
    assert said(shown, r"sink (\S+)") == pytest.approx(float(exact[5]), rel=1e-4)
    assert "sink" in text_of(shown, "panel")
    shown.screenshot(f"sinks-{host}-{width}")
    shown.check()
    shown.page.mouse.move(*sink_place(shown, 9))
    shown.settle()
    assert said(shown, r"9 → sink weight (\S+)") == pytest.approx(float(exact[9]), rel=1e-4)
    shown.check()
    shown.page.mouse.click(*sink_place(shown, 9))
    shown.settle()
    assert (w.query, w.key) == (9, None)


@pytest.mark.parametrize("host", mostly_thorough("jupyter-light", "jupyter-dark"))
@pytest.mark.parametrize("width", mostly_thorough(900, 360))
def test_the_graph_has_a_node_for_it(offline_page: OfflinePages, host: str, width: int) -> None:
    w = bank(query=5, view="graph", heads=[7, 11])
    shown = show(offline_page, [w], host=host, width=width)
    shown.wait_for_lines()
    assert isinstance(w.attention, AttentionStack)
    assert shown.page.locator(".aw-graph-columns .aw-sink-name").inner_text() == "sink"
    shown.screenshot(f"sinks-graph-{host}-{width}")
    shown.check()
    w.query = None
    shown.settle()
    shown.screenshot(f"sinks-graph-all-{host}-{width}")
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize("host", ["jupyter-light", "jupyter-dark"])
@pytest.mark.parametrize("width", [360, 900])
def test_the_stages_have_the_column_and_the_step(offline_page: OfflinePages, host: str, width: int) -> None:
    w = bank(query=5, key=8, view="stages")
    shown = show(offline_page, [w], host=host, width=width)
    shown.wait_for_lines()
    assert shown.page.locator(".aw-small-sink").count() == len(w.stages["pictures"]) - 1  # scores have none
    assert "the learned sink, so that the row with the sink sums to 1" in shown.page.locator(".aw-ladder").inner_text()
    shown.screenshot(f"sinks-stages-{host}-{width}")
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize("view", ["text", "image"])
def test_the_list_beside_a_text_or_an_image_has_it(offline_page: OfflinePages, view: Any) -> None:
    w = bank(query=5, view=view, grid=(4, 5) if view == "image" else None)
    shown = show(offline_page, [w], host="jupyter-light", width=900)
    shown.wait_for_lines()
    assert isinstance(w.attention, AttentionStack)
    listed = re.search(r"sink (0?\.\d+)", text_of(shown, "panel"))
    assert listed is not None, text_of(shown, "panel")
    assert float(listed[1]) == pytest.approx(float(w.attention[5].sink_weights(0, 7)[5]), abs=6e-4)
    shown.screenshot(f"sinks-{view}")
    shown.check()


@pytest.mark.thorough
def test_the_heads_are_told_apart_by_it(offline_page: OfflinePages) -> None:
    shown = show(offline_page, [bank(query=5, view="heads", bar="learned_sink")], host="jupyter-light", width=900)
    shown.wait_for_lines()
    assert "learned sink" in shown.page.locator(".attnwidget").inner_text().lower()
    shown.screenshot("sinks-heads")
    shown.check()


def test_segments_have_it_beside_them(offline_page: OfflinePages) -> None:
    parts = segments({"first": (0, 10), "second": (10, 20)}, length=20)
    w = bank(segments=parts, asking="second", view="segments")
    shown = show(offline_page, [w], host="jupyter-light", width=900)
    shown.wait_for_lines()
    assert isinstance(w.attention, AttentionStack)
    mass = w.attention[5].by_segment("second", parts, head=7)
    assert w.mass["keys"][-1] == mass.keys[-1] == "learned sink"
    found = " ".join(shown.page.locator(".attnwidget").inner_text().split())
    number = re.search(r"\bsink (0?\.\d+)", found)
    assert number is not None, found
    first, *_, sink = mass.values[0].tolist()  # the first token is set aside
    assert float(number[1]) == pytest.approx(sink / (1 - first), abs=6e-4)
    shown.screenshot("sinks-segments")
    shown.check()


@pytest.mark.thorough
def test_a_long_head_has_it_at_any_zoom(offline_page: OfflinePages) -> None:
    make = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 1, 1500, 16, generator=make)
    w = AttentionWidget(q * 2, k, is_causal=True, sinks=torch.tensor([3.0]))
    shown = show(offline_page, [w], host="jupyter-light", width=1000)
    shown.wait_for_lines()
    shown.screenshot("sinks-long")
    shown.check()
    shown.zoom(700, 300, 12)
    shown.wait_for_lines()
    shown.page.mouse.move(*sink_place(shown, 700))
    shown.settle()
    shown.screenshot("sinks-long-zoomed")
    assert "→ sink" in text_of(shown, "status")
    shown.check()


@pytest.mark.thorough
def test_a_comparison_says_it(offline_page: OfflinePages) -> None:
    w = bank()
    assert isinstance(w.attention, AttentionStack)
    shown_one = w.attention[5]
    both = compare({"with": shown_one, "without": shown_one.what_if({"sinks": None})}, head=7, query=5)
    shown = show(offline_page, [both], host="jupyter-light", width=1100)
    shown.wait_for_lines()
    assert "without the weight of learned sinks" in shown.page.locator(".attnwidget").inner_text()
    shown.screenshot("sinks-compare")
    shown.check()


@pytest.mark.thorough
def test_what_if_takes_it_away(offline_page: OfflinePages) -> None:
    w = bank(query=5, key=8, view="stages")
    shown = show(offline_page, [w], host="jupyter-light", width=1000)
    shown.page.get_by_role("button", name="What if").click()
    shown.page.get_by_role("radio", name="without the sink").click()
    shown.wait_for_lines()
    assert w.what_if == {"sinks": False}
    assert shown.page.locator(".aw-small-sink").count() == 0
    assert "What if: no sink" in shown.page.locator(".aw-rules-line").inner_text()
    shown.check()


MADE = """
import torch
from attnwidget import AttentionWidget
from attnwidget.samples import load_sample
q, k, v, tokens, mask = load_sample("bank")
w = AttentionWidget(q, k, v, tokens=tokens, mask=mask, sinks=torch.linspace(-1, 4, 12), layer=5, head=7)
w
"""


@pytest.mark.thorough
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_in_jupyterlab_a_click_on_the_column_reaches_python(lab: Lab, theme: Theme) -> None:
    notebook = lab.open([MADE, "print(w.query, w.key)"], theme=theme)
    notebook.run_cell(0)
    column = notebook.page.locator("[data-aw=sink]")
    column.wait_for()
    notebook.page.locator(".aw-sink-name").first.wait_for()
    box = column.bounding_box()
    assert box is not None
    column.click(position={"x": box["width"] / 2, "y": box["height"] * 5.5 / 20})
    notebook.page.locator("[data-aw=status]").get_by_text("sink").first.wait_for()
    notebook.run_cell(1)
    assert notebook.output(1) == "5 None\n"
    notebook.screenshot(f"sinks-lab-{theme}", of=".attnwidget")
    assert notebook.problems == []
