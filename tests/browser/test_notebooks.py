"""Every notebook of examples/ in real JupyterLab: it runs from top to bottom, and each of its widgets draws.

`make test` runs the notebooks here only; tests/project/test_examples.py runs them where there is no browser.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import nbformat
import notebooks
import pytest
from lab import Lab
from playwright.sync_api import Locator, expect

pytestmark = pytest.mark.thorough

NOTEBOOKS = [
    path for path in sorted((Path(__file__).parents[2] / "examples").rglob("*.ipynb")) if notebooks.lacks(path) is None
]
# Of the part that is marked as the picture, and of all pictures in it: how many colors each has.
COUNT_COLOURS = """part => [part, ...part.querySelectorAll("canvas")]
  .filter(element => element instanceof HTMLCanvasElement && element.width * element.height > 0)
  .map(canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size;
  })"""
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_widgets_are_drawn(lab: Lab, path: Path) -> None:
    if path.stem == "cluster":
        pytest.importorskip("distributed", reason="Dask is not installed: pip install 'attnwidget[dask]'")
    folder = Path(tempfile.mkdtemp(dir=lab.server.root))
    notebook = lab.open_file(Path(shutil.copy(path, folder)), width=1250, height=1000)
    notebook.run_all()
    page = notebook.page
    cells = nbformat.read(path, as_version=4).cells
    outputs = {
        index: notebook.outputs_json(index)
        for index, cell in enumerate(cells)
        if cell.cell_type == "code" and cell.source
    }
    assert [output for some in outputs.values() for output in some if output.get("name") == "stderr"] == []
    shown = [index for index, some in outputs.items() if any(WIDGET in output.get("data", {}) for output in some)]
    assert shown, "the notebook shows no widget"
    for index in shown:
        cell = page.locator(".jp-Cell").nth(index)
        cell.scroll_into_view_if_needed()
        widgets = cell.locator(".attnwidget")
        widgets.first.wait_for()
        for place in range(widgets.count()):
            widget = widgets.nth(place)
            check_drawn(widget, f"{path.stem}, cell {cells[index].id}")
            notebook.screenshot(f"example-{path.stem}-{index:02d}-{cells[index].id}-{place}", of=widget)
    assert notebook.problems == []
    assert notebook.blocked == []


def check_drawn(widget: Locator, where: str) -> None:
    """A widget has at least one picture, none of them is blank, and none says that it could not be made."""
    pictures = widget.locator("[data-aw=picture]")
    pictures.first.wait_for()
    for picture in pictures.all():
        rows = picture.locator("[data-at]")
        if not picture.locator("canvas").count() and rows.count():  # bars, which are no canvas
            widths = rows.evaluate_all("rows => rows.map((row) => row.getBoundingClientRect().width)")
            assert min(widths) > 100, f"{where}: a row is not drawn"
            continue
        colors = picture.evaluate(COUNT_COLOURS)
        assert colors, f"{where}: nothing is drawn"
        assert min(colors) >= 2, f"{where}: a picture is blank"
        assert max(colors) > 2, f"{where}: every picture is of two colors"
    waiting = widget.locator(".aw-message").get_by_text("Waiting for the kernel")
    expect(waiting, where).to_have_count(0, timeout=60_000)  # it may be at work on what stands above
    assert widget.locator(".aw-message").count() == 0, f"{where}: {widget.locator('.aw-message').all_inner_texts()}"
