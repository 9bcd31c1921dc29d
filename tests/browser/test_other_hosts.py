"""The widget in marimo and in Voila, as their own servers show it, and in an HTML page that nbconvert has made."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from lab import Browser, Page
from served import served

pytestmark = pytest.mark.thorough

CELL = """
import torch
from attnwidget import AttentionWidget
torch.manual_seed(0)
w = AttentionWidget(*torch.randn(3, 1, 4, 8, 8), tokens=list("abcdefgh"), is_causal=True)
"""

APP = """
import marimo
app = marimo.App()

@app.cell
def _():
    import marimo as mo
    import torch
    from attnwidget import AttentionWidget
    torch.manual_seed(0)
    made = [AttentionWidget(*torch.randn(3, 1, 4, 8, 8), tokens=list("abcdefgh")) for _ in range(2)]
    shown, other = [mo.ui.anywidget(one) for one in made]
    return mo, shown, other

@app.cell
def _(mo, shown, other):
    mo.vstack([shown, other])
    return

@app.cell
def _(mo, shown):
    mo.md(f"The other cell sees {shown.value['head']}.")
    return

if __name__ == "__main__":
    app.run()
"""

# Errors that hosts put on the console themselves: modules in two versions (Voila), fonts from afar (both).
NOISE = ("RUNTIME-012", "satisfying version", "Unsatisfied version", "net::ERR_FAILED")


def errors(page: Page) -> list[str]:
    found = [text for kind, text in page.problems if kind != "warning"]
    return [text for text in found if not any(part in text for part in NOISE)]


def choose_and_pin(page: Page) -> None:
    """Choose head 2 and pin a cell in the first widget: locators see through marimo's shadow roots."""
    first = page.page.locator(".attnwidget").first
    first.locator("[data-aw=status]").get_by_text("float32").wait_for(timeout=60_000)
    first.get_by_role("radio", name="head 2", exact=True).click()
    first.locator("[data-aw=status]").get_by_text("head 2").wait_for()
    first.locator("[data-aw=picture]").click(position={"x": 12, "y": 60})
    first.locator("[data-aw=status]").get_by_text("weight").wait_for()
    first.get_by_text("Stages", exact=True).click()
    first.get_by_text("Dot product").wait_for()


def save_and_copy(page: Page) -> None:
    """Save Python's file from the menu of the first widget, and copy the call."""
    first = page.page.locator(".attnwidget").first

    def choose(section: str, item: str) -> None:
        first.locator(".aw-menu[aria-label='More'] > button").first.click()
        first.get_by_role("group", name=section, exact=True).get_by_role("menuitem", name=item).click()

    with page.page.expect_download() as coming:
        choose("Save", "as SVG")
    assert Path(coming.value.path()).read_bytes().startswith(b"<?xml")
    choose("Copy", "as Python")
    first.get_by_text("The call is on the clipboard.").wait_for()


def test_marimo(browser: Browser, tmp_path: Path) -> None:
    pytest.importorskip("marimo", reason="marimo is not installed: it is in the extra `dev`")
    app = tmp_path / "app.py"
    app.write_text(APP)
    arguments = ["-q", "run", str(app), "--headless", "--no-token", "-p", "{port}", "--host", "127.0.0.1"]
    with served("marimo", arguments, ready="/health") as base:
        page = Page(browser.context(width=1000, height=1800))
        try:
            page.page.goto(base, wait_until="load", timeout=60_000)
            choose_and_pin(page)
            page.screenshot("marimo")
            page.page.get_by_text("The other cell sees 2.").wait_for()
            assert page.page.locator(".attnwidget").count() == 2
            ground = page.page.locator(".attnwidget").first.evaluate("(one) => getComputedStyle(one).backgroundColor")
            assert ground != "rgba(0, 0, 0, 0)"  # its style is in the shadow root
            save_and_copy(page)
            assert errors(page) == []
        finally:
            page.close()


def test_voila(browser: Browser, tmp_path: Path) -> None:
    pytest.importorskip("voila", reason="Voila is not installed: it is in the extra `dev`")
    path = tmp_path / "page.ipynb"
    box = "import ipywidgets\nipywidgets.HBox([AttentionWidget(*torch.randn(3, 1, 4, 8, 8)) for _ in range(2)])"
    cells = [nbformat.v4.new_code_cell(source) for source in (CELL, "w", box)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    arguments = [str(path), "--no-browser", "--port={port}", "--Voila.ip=127.0.0.1", "--show_tracebacks=True"]
    with served("voila", arguments, ready="/voila/static/") as base:
        page = Page(browser.context(width=1000, height=1800))
        try:
            page.page.goto(base, wait_until="load", timeout=120_000)
            choose_and_pin(page)
            page.screenshot("voila")
            widgets = page.page.locator(".attnwidget")
            assert widgets.count() == 3
            widgets.nth(2).locator("[data-aw=status]").get_by_text("float32").wait_for()
            alone, left, right = (widgets.nth(at).bounding_box() for at in range(3))
            assert alone is not None
            assert left is not None
            assert right is not None
            assert alone["width"] / 2 - 40 <= left["width"] == right["width"] <= alone["width"] / 2
            assert left["x"] + left["width"] + 16 <= right["x"]
            assert errors(page) == []
        finally:
            page.close()
