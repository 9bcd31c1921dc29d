"""The package as a user installs it: built, put into an index, installed; its quickstart draws in JupyterLab."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from lab import Browser, Lab, LabServer
from rehearse import ROOT, install, run
from test_notebooks import WIDGET, check_drawn

pytestmark = [pytest.mark.packaging, pytest.mark.thorough]
KERNEL = "installed"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Python of an environment that has attnwidget from its wheel, and is a kernel of JupyterLab, without Node."""
    run(sys.executable, ROOT / "tools" / "dist.py", "--to", tmp_path / "dist", cwd=tmp_path)
    python = install(tmp_path / "dist", tmp_path)
    spec = tmp_path / "share" / "kernels" / KERNEL
    spec.mkdir(parents=True)
    command = [str(python), "-I", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    about = {"argv": command, "display_name": "Installed", "language": "python", "env": {"PATH": os.devnull}}
    (spec / "kernel.json").write_text(json.dumps(about), encoding="utf-8")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share"))
    return python


@pytest.fixture
def lab_of_installed(browser: Browser, installed: Path) -> Iterator[Lab]:
    with LabServer() as server:
        opener = Lab(browser, server)
        yield opener
        opener.close()


def test_the_quickstart_of_an_installed_release_draws_in_jupyterlab(lab_of_installed: Lab, installed: Path) -> None:
    quickstart = nbformat.read(ROOT / "examples" / "quickstart.ipynb", as_version=4)
    quickstart.metadata["kernelspec"] = {"name": KERNEL, "display_name": "Installed", "language": "python"}
    path = lab_of_installed.server.root / "quickstart.ipynb"
    nbformat.write(quickstart, path)
    notebook = lab_of_installed.open_file(path, width=1250, height=1000)
    notebook.run_all()
    imported = Path(notebook.evaluate("import attnwidget; print(attnwidget.__file__)"))
    assert installed.parents[1] in imported.parents, "from the wheel, not from the checkout"
    shown = [
        index
        for index, cell in enumerate(quickstart.cells)
        if cell.cell_type == "code" and any(WIDGET in one.get("data", {}) for one in notebook.outputs_json(index))
    ]
    assert shown, "the notebook shows no widget"
    for index in shown:
        cell = notebook.page.locator(".jp-Cell").nth(index)
        cell.scroll_into_view_if_needed()
        widget = cell.locator(".attnwidget").first
        widget.wait_for()
        check_drawn(widget, f"cell {index}")
    assert notebook.problems == []
    assert notebook.blocked == []
