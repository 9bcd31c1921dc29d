"""What a newcomer does first: `make demo`, run the quickstart in JupyterLab, click a cell, read the click in Python."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import Browser, LabNotebook, LabServer
from reference import dense
from test_lab import View, python, soon

from attnwidget import load_sample

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "examples" / "quickstart.ipynb"
LAYER, HEAD, QUERY, KEY = 5, 7, 14, 8  # the later "bank" to "river": no cell of the notebook selects this pair


class Demo(LabServer):
    """JupyterLab as `make demo` starts it: it asks for a token and serves examples/; here it also saves nothing."""

    token = "newcomer"

    def __init__(self) -> None:
        super().__init__()
        self.root, self.folder = QUICKSTART.parent, ROOT

    def command(self, port: int) -> list[str]:
        installed = Path(os.environ.get("VENV", sys.prefix))
        return [
            *("make", "demo", f"ARGS=--no-browser --port={port} --ServerApp.token={self.token}"),
            *(f"--old-file={installed / stamp}" for stamp in (".demo", ".node")),  # a test installs nothing
        ]

    def environment(self) -> dict[str, str]:
        """With VENV and PYTHON as `make test` exports them, and nothing else of a make that runs this test."""
        self._configure()
        own = {name: value for name, value in super().environment().items() if not name.startswith(("MAKE", "MFLAGS"))}
        return {**own, "VENV": own.get("VENV", sys.prefix)}

    def settings(self) -> dict[tuple[str, str], dict[str, Any]]:
        return {**super().settings(), ("docmanager", "plugin"): {"autosave": False}}

    def _configure(self) -> None:
        """Write what `make demo` has no argument for: no copy beside the notebook; the test may talk to JupyterLab."""
        server: Any = {
            "FileCheckpoints": {"checkpoint_dir": os.fspath(self.home / "checkpoints")},
            "ServerApp": {"port_retries": 0, "shutdown_no_activity_timeout": 1800},  # should the test be killed
            "MappingKernelManager": {"cull_idle_timeout": 1800, "cull_connected": True},
        }
        folder = self.home / "config"
        folder.mkdir()
        for name, settings in (("server", server), ("lab", {"LabApp": {"expose_app_in_browser": True}})):
            (folder / f"jupyter_{name}_config.json").write_text(json.dumps(settings), encoding="utf-8")


class Quickstart(LabNotebook):
    """The notebook, opened by the page that the server writes for a browser."""

    @property
    def url(self) -> str:
        (page,) = (self.server.home / "runtime").glob("jpserver-file-to-run-*-open.html")
        return page.as_uri()


@pytest.fixture
def demo() -> Iterator[LabServer]:
    with Demo() as server:
        yield server
        processes = server.processes
    assert [process for process in processes if process.is_running()] == []


def test_from_make_demo_to_a_clicked_cell(browser: Browser, demo: LabServer) -> None:
    stored = QUICKSTART.read_bytes()
    notebook = Quickstart(browser.context(width=1400, height=1100), demo, QUICKSTART)
    try:
        notebook.load()
        notebook.run_all()
        imported = Path(notebook.evaluate("import attnwidget; print(attnwidget.__file__)"))
        assert imported.is_relative_to(ROOT)
        notebook.page.locator(".jp-Cell").nth(cell(notebook, "w = AttentionWidget(")).scroll_into_view_if_needed()
        view = View(notebook)  # the first widget: the sentence model's
        view.click(QUERY, KEY)
        soon(notebook, "w.layer, w.head, w.query, w.key, w.pins", f"{LAYER} {HEAD} {QUERY} {KEY} [({QUERY}, {KEY})]")

        sample = load_sample("bank")
        one = (LAYER, 0, HEAD)
        weight = float(dense(sample.q[one], sample.k[one], scale=sample.q.shape[-1] ** -0.5)["weights"][QUERY, KEY])
        assert float(python(notebook, f"w.weights({QUERY})[{KEY}].item()")) == pytest.approx(weight, rel=1e-5)
        assert view.root.locator(".aw-ring[data-pinned]").count() == 1
        said = re.match(rf"bank {QUERY} → river {KEY} weight ([.0-9]+)", view.text("status"))
        assert said is not None, view.text("status")
        assert float(said[1]) == pytest.approx(weight, abs=2e-6)
        assert view.text("panel").startswith("bank14 attends to")
        assert f"{KEY} river .{round(10_000 * weight):04}" in view.text("panel")

        read = cell(notebook, "w.layer, w.head, w.query, w.key")  # under "Read the click back"
        notebook.run_cell(read)
        assert notebook.output(read) == f"({LAYER}, {HEAD}, {QUERY}, {KEY})"
        notebook.screenshot("demo-clicked")
        assert notebook.problems == []
        assert notebook.blocked == []
        assert demo.exceptions(since=0) == []
        assert QUICKSTART.read_bytes() == stored
    finally:
        notebook.close()


def cell(notebook: LabNotebook, begins: str) -> int:
    """The number of the first cell that begins so."""
    at: int = notebook.page.evaluate(
        """(begins) => window.jupyterapp.shell.currentWidget.content.widgets.findIndex(
             (cell) => cell.model.sharedModel.getSource().startsWith(begins))""",
        begins,
    )
    return at
