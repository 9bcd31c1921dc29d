"""Every notebook of examples/ in real JupyterLab: each of its widgets draws, and is kept as a picture."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import nbformat
import pytest
from lab import SCREENSHOTS, Lab

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))
COUNT_COLOURS = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size;
}"""
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_widgets_of_a_notebook_are_drawn(lab: Lab, path: Path) -> None:
    folder = Path(tempfile.mkdtemp(dir=lab.server.root))
    notebook = lab.open_file(Path(shutil.copy(path, folder)), width=1250, height=1000)
    notebook.run_all()
    page = notebook.page
    cells = nbformat.read(path, as_version=4).cells
    shown = [
        index
        for index, cell in enumerate(cells)
        if cell.cell_type == "code" and any(WIDGET in output.get("data", {}) for output in notebook.outputs_json(index))
    ]
    assert shown, "the notebook shows no widget"
    for index in shown:
        widgets = page.locator(".jp-Cell").nth(index).locator(".attnwidget")
        page.locator(".jp-Cell").nth(index).scroll_into_view_if_needed()
        widgets.first.locator("[data-aw=picture]").wait_for()
        for place in range(widgets.count()):
            picture = widgets.nth(place).locator("[data-aw=picture]")
            picture.wait_for()
            colours = picture.evaluate(COUNT_COLOURS)
            assert colours > 2, f"the picture of cell {index} is blank"
            assert widgets.nth(place).locator(".aw-message").count() == 0
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            widgets.nth(place).screenshot(path=SCREENSHOTS / f"example-{path.stem}-{index:02d}-{place}.png")
    assert notebook.problems == []
    assert notebook.blocked == []
