"""The script and the style are sent once for each kernel, and every widget of a page finds them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbformat
import pytest
import torch
from ipywidgets.embed import dependency_state, embed_data
from lab import Lab, LabNotebook
from playwright.sync_api import Route

from attnwidget import AttentionWidget
from attnwidget._utils.assets import bundled

pytestmark = pytest.mark.thorough

MAKE = """
import torch
from attnwidget import AttentionWidget
from IPython.display import display
torch.manual_seed(0)
def make(seed):
    torch.manual_seed(seed)
    return AttentionWidget(*torch.randn(3, 1, 4, 8, 8), tokens=list("abcdefgh"))
"""
VIEW = "application/vnd.jupyter.widget-view+json"
COUNT_SCRIPTS = """() => {
  window.scripts = [];
  const create = URL.createObjectURL;
  URL.createObjectURL = (blob) => {
    if (blob.type === "text/javascript") window.scripts.push(blob.size);
    return create.call(URL, blob);
  };
}"""
# The first script that the page makes comes over the network instead, which a test can hold up.
FROM_NETWORK = """(address) => {
  const create = URL.createObjectURL;
  let first = true;
  URL.createObjectURL = (blob) => {
    if (!first || blob.type !== "text/javascript") return create.call(URL, blob);
    first = false;
    return address;
  };
}"""
PLACES = {  # of each view that is loaded when it is opened
    "Graph": ".aw-stage .aw-graph",
    "Text": ".aw-stage .aw-passages",
    "Heads": ".aw-stage .aw-all-heads",
    "Segments": ".aw-stage .aw-segments",
    "Stages": ".aw-stage .aw-steps-row",
}
SHOW = "shown = [make(seed) for seed in range(3)]\nfor one in shown: display(one)"


def test_three_widgets_carry_it_once_and_come_back_with_the_page(lab: Lab) -> None:
    notebook = lab.open([MAKE, SHOW])
    notebook.run_all()
    drawn(notebook, 3)
    sent = notebook.evaluate("import json; print(sum(len(str(one.get_state())) for one in shown))")
    whole = notebook.evaluate("from attnwidget._utils.assets import bundled; print(len(bundled('widget.js')))")
    assert int(sent) < int(whole)  # all three together are less than one script
    assert notebook.page.locator("style[id^=attnwidget-]").count() == 1
    notebook.command("docmanager:save")
    notebook.load()  # the kernel lives on
    drawn(notebook, 3)
    answers(notebook)
    assert not notebook.problems


def test_a_closed_one_takes_nothing_from_the_others(lab: Lab) -> None:
    notebook = lab.open([MAKE, "first = make(0)\nfirst", "first.close()\nsecond = make(1)\nsecond"])
    notebook.run_all()
    drawn(notebook, 1)
    answers(notebook)
    # Where all was closed, and the page knows of no model: another one is made for the next.
    notebook.evaluate("import ipywidgets; ipywidgets.Widget.close_all()")
    notebook.set_source(2, "make(2)")
    notebook.run_cell(2)
    drawn(notebook, 1)
    assert not notebook.problems


def test_a_page_that_does_not_know_the_model_asks_the_kernel(lab: Lab) -> None:
    notebook = lab.open([MAKE, "w = make(0)\nw"])
    notebook.run_all()
    drawn(notebook, 1)
    notebook.save()
    notebook.evaluate("w._front_end.close()")
    notebook.load()  # the widget is there, the model is not
    drawn(notebook, 1)
    answers(notebook)


def test_a_notebook_that_was_saved_with_its_state_draws_and_says_that_nobody_answers(lab: Lab) -> None:
    made = [AttentionWidget(*torch.randn(3, 1, 4, 8, 8), head=seed) for seed in range(2)]
    notebook = lab.open_file(with_state(lab, made))
    trust(notebook)
    drawn(notebook, 2)
    page, widget = notebook.page, notebook.page.locator(".attnwidget").first
    widget.get_by_role("radio", name="head 2").click()
    widget.get_by_text("No kernel has this widget").wait_for(timeout=20_000)
    chosen = widget.get_by_role("radio", name="head 0")
    assert chosen.get_attribute("aria-checked") == "true"  # which is the one that is drawn
    assert "head 0" in widget.locator("[data-aw=status]").inner_text()
    widget.get_by_text("Graph", exact=True).click()
    page.wait_for_function(
        """() => {
          const canvas = document.querySelector(".attnwidget .aw-graph canvas, .attnwidget canvas[data-aw=picture]");
          const { width, height } = canvas;
          const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
          copy.drawImage(canvas, 0, 0);
          const { data } = copy.getImageData(0, 0, width, height);
          return document.querySelector(".aw-lanes, .aw-graph") !== null && data.some((value) => value > 0);
        }"""
    )
    assert "were not saved" not in widget.inner_text()  # a picture of all numbers has the links
    assert not notebook.problems


def test_a_widget_whose_script_starts_late_still_hears_python(lab: Lab) -> None:
    """Where that takes more than two seconds, anywidget keeps every message to the model from it."""
    notebook = lab.open([MAKE, "w = make(0)\nw", "w.head = 3"])
    notebook.load()  # other tests may have left the script in this page
    page, address, asked = notebook.page, f"{lab.server.base}/late.js", []

    def late(route: Route) -> None:
        asked.append(route.request.url)
        page.wait_for_timeout(3000)  # anywidget waits for two seconds, and tells nobody that it has given up
        route.fulfill(content_type="text/javascript", body=bundled("loader.js"))

    page.route(address, late)
    page.evaluate(FROM_NETWORK, address)
    notebook.run_all()
    drawn(notebook, 1)
    page.locator(".attnwidget [data-aw=status]", has_text="head 3").wait_for()  # which was sent before it started
    answers(notebook)
    assert asked == [address]
    assert not notebook.problems


def test_a_view_is_unpacked_when_it_is_opened_and_once_for_all_widgets(lab: Lab) -> None:
    notebook = lab.open([MAKE, "for seed in range(2): display(make(seed))"])
    notebook.load()  # other tests may have left the script in this page
    notebook.page.evaluate(COUNT_SCRIPTS)
    notebook.run_all()
    drawn(notebook, 2)
    first = notebook.page.evaluate("() => window.scripts.splice(0).length")
    assert first >= 2  # what unpacks the core, and the core
    widgets = notebook.page.locator(".attnwidget")
    opened = []
    for at in range(2):
        widgets.nth(at).get_by_role("tab", name="Graph").click()
        widgets.nth(at).locator(PLACES["Graph"]).wait_for()
        opened.append(notebook.page.evaluate("() => window.scripts.splice(0).length"))
    assert opened == [1, 0]
    assert not notebook.problems


def test_every_view_opens_in_a_notebook_that_was_saved_with_its_state(lab: Lab) -> None:
    tokens = list("abcdefgh")
    made = AttentionWidget(*torch.randn(3, 1, 4, 8, 8), tokens=tokens, segments={"one": (1, 4), "two": (4, 8)})
    notebook = lab.open_file(with_state(lab, [made]))
    trust(notebook)
    drawn(notebook, 1)
    widget = notebook.page.locator(".attnwidget")
    for name, place in PLACES.items():
        widget.get_by_role("tab", name=name).click()
        widget.locator(place).wait_for(timeout=20_000)
    assert "could not be loaded" not in widget.inner_text()
    assert not notebook.problems


def trust(notebook: LabNotebook) -> None:
    """As a reader does who trusts a notebook: JupyterLab draws no widgets in one of others."""
    notebook.page.evaluate(
        """() => {
          const { cells } = window.jupyterapp.shell.currentWidget.content.model;
          for (const cell of cells) cell.trusted = true;
        }"""
    )


def with_state(lab: Lab, made: Sequence[AttentionWidget]) -> Path:
    """A notebook as `jupyter nbconvert --execute` or "Save Widget State" leaves it."""
    cells = []
    for one in made:
        data = {VIEW: {"model_id": one.model_id, "version_major": 2, "version_minor": 0}}
        cells.append(nbformat.v4.new_code_cell("w", outputs=[nbformat.v4.new_output("display_data", data)]))
    state = embed_data(views=made, state=dependency_state(made, drop_defaults=False))["manager_state"]
    metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "widgets": {"application/vnd.jupyter.widget-state+json": state},
    }
    path = Path(tempfile.mkdtemp(dir=lab.server.root)) / "saved.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)
    return path


def drawn(notebook: LabNotebook, count: int) -> None:
    notebook.page.wait_for_function(
        """(count) => {
          const all = [...document.querySelectorAll(".attnwidget")].filter((one) => one.offsetWidth > 0);
          const isDrawn = (one) => one.querySelector("[data-aw=status]")?.textContent.includes("8 × 8");
          return all.length === count && all.every(isDrawn);
        }""",
        arg=count,
        timeout=20_000,
    )


def answers(notebook: LabNotebook) -> None:
    """The first widget of the page changes its head."""
    notebook.page.locator(".attnwidget").first.get_by_role("radio", name="head 2").click()
    notebook.page.wait_for_function(
        "() => document.querySelector('.attnwidget [data-aw=status]').textContent.includes('head 2')", timeout=10_000
    )
