"""A notebook that is opened again without its widget's model: what JupyterLab shows of what lies in the output."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import nbformat
import pytest
import torch
from lab import Lab

from attnwidget import AttentionWidget

SAVED = sorted((Path(__file__).parents[1] / "fixtures").glob("*/notebook.ipynb"))

pytestmark = pytest.mark.thorough


def notebook(path: Path) -> Path:
    """A notebook as JupyterLab saves it by default: outputs, and no widget state."""
    made = AttentionWidget(*torch.randn(3, 6, 8), query=2, key=1)._repr_mimebundle_()
    assert made is not None
    output = nbformat.v4.new_output("display_data", data=made[0], metadata=made[1])
    saved = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("w", outputs=[output], execution_count=1)])
    saved.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(saved, path)
    return path


def test_a_notebook_from_elsewhere_shows_the_still_in_jupyterlab(lab: Lab) -> None:
    shown = lab.open_file(notebook(Path(tempfile.mkdtemp(dir=lab.server.root)) / "again.ipynb"))
    area = shown.page.locator(".jp-OutputArea-output").first
    area.wait_for()
    still = area.locator("img")  # of a notebook that nobody has trusted no widget is tried
    still.wait_for()
    assert str(still.get_attribute("src")).startswith("data:image/png")
    width, natural = still.evaluate("(img) => [img.getBoundingClientRect().width, img.naturalWidth]")
    assert abs(2 * width - natural) <= 2
    assert "model not found" not in area.inner_text()


@pytest.mark.parametrize("notebook", SAVED, ids=lambda path: path.parent.name)
def test_a_notebook_saved_with_its_widgets_opens_alive_and_runs_again(lab: Lab, notebook: Path) -> None:
    """First with the script of the version that saved it, and a kernel that knows nothing of the widget; then run."""
    path = Path(shutil.copy(notebook, tempfile.mkdtemp(dir=lab.server.root)))
    shown = lab.open_file(path)
    shown.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:trust'); }")
    shown.page.locator(".jp-Dialog .jp-mod-accept").click()
    picture = shown.page.locator("[data-aw=picture][aria-label]")
    picture.wait_for()
    assert "mill" in shown.page.locator(".attnwidget").inner_text()
    shown.run_cell(0)
    picture.wait_for()
    assert shown.evaluate("print(round(float(w.weights(4).sum()), 4), w.query, w.key)").strip() == "1.0 4 1"
    assert [one for one in shown.problems if "attnwidget" in str(one)] == []
