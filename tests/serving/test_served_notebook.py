"""The notebook of examples/ that needs vLLM runs from top to bottom, as the others do elsewhere."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

PATH = Path(__file__).parents[2] / "examples" / "serving.ipynb"
WIDGET = "application/vnd.jupyter.widget-view+json"


def test_the_notebook_runs_from_top_to_bottom() -> None:
    notebook = nbformat.read(PATH, as_version=4)
    NotebookClient(
        notebook, timeout=400, kernel_name="python3", resources={"metadata": {"path": PATH.parent}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum(WIDGET in output.get("data", {}) for output in outputs) >= 2  # and bars of progress
