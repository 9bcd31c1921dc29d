"""Keys that are pressed in the widget, in JupyterLab and Notebook 7: they are its own, and none edits the notebook."""

from __future__ import annotations

import string
from typing import Any

import pytest
from lab import Kind, Lab, LabNotebook
from playwright.sync_api import TimeoutError as TookTooLong
from test_lab import BANK, View, python, soon

pytestmark = pytest.mark.thorough

CELLS = ["before = 1", BANK.replace("**shown)", "segments='sentences', **shown)"), "after = 2", "after = 3"]

NOTEBOOK = """() => {
  const { content, context } = window.jupyterapp.shell.currentWidget;
  const cells = content.widgets.map((cell) => [cell.model.type, cell.model.sharedModel.getSource()]);
  return { cells, active: content.activeCellIndex, mode: content.mode, dirty: context.model.dirty };
}"""

# Whatever edits, runs, moves or changes a cell in command mode, and all letters.
KEYS = [
    *string.ascii_lowercase,
    *string.digits,
    *(f"Shift+{letter}" for letter in "ACJKLMOVZ"),
    *["Delete", "Backspace", "ArrowDown", "ArrowUp", "Home", "End", "Enter", "Space", "=", "-", ";", ","],
    *["Shift+Enter", "Control+Enter", "Alt+Enter", "Shift+ArrowDown", "Shift+Space"],
    *["Control+Shift+ArrowDown", "Control+Shift+ArrowUp", "Control+a", "Control+x", "Control+v"],
]

# Of these the ones that are pressed after every other click.
FEW = ["x", "d", "d", "b", "a", "Shift+V", "Enter", "ArrowDown", "Delete"]

# What is clicked in each view before the keys are pressed: what takes the focus, and what does not.
TARGETS = {
    "heatmap": [
        *["[data-aw=picture]", ".aw-label", "[aria-label='head 3']", "[role=tab][aria-selected=true]"],
        *["[aria-label='layer 2']", "[data-aw=status]", "[data-aw=legend]", "[data-aw=panel]"],
    ],
    "graph": ["[data-aw=picture]", ".aw-graph-columns .aw-label", "[data-aw=legend]"],
    "text": ["[data-aw=picture]", "[data-aw=legend]"],
    "heads": ["[data-aw=picture]"],
    "stages": ["[data-aw=picture] canvas", ".aw-operation", "[data-aw=status]"],
    "segments": [".aw-seg-rows", ".aw-heading", "[data-aw=status]"],
}


@pytest.fixture
def opened(lab: Lab) -> Any:
    """Opens a notebook with a widget in its second cell; in the end nothing must have gone wrong in it."""
    notebooks: list[LabNotebook] = []

    def open_(kind: Kind) -> tuple[LabNotebook, View]:
        notebook = lab.open(CELLS, kind=kind, width=1400, height=1200)
        notebooks.append(notebook)
        notebook.run_cell(1)
        return notebook, View(notebook)

    yield open_
    for notebook in notebooks:
        assert notebook.problems == []
        assert notebook.blocked == []


def is_in_widget(notebook: LabNotebook) -> bool:
    return bool(notebook.page.evaluate("() => document.activeElement.closest('.attnwidget') !== null"))


def open_view(notebook: LabNotebook, shown: View, view: str) -> None:
    """Show a view; again, if a key that was pressed before has opened another one since."""
    for _ in range(5):
        notebook.evaluate(f"w.view = {view!r}")
        try:
            shown.root.locator(f"[role=tab][aria-selected=true]:text-is('{view.title()}')").wait_for(timeout=10_000)
        except TookTooLong:
            if python(notebook, "w.view") == view:
                raise
            continue
        return
    raise AssertionError(f"{view} is not shown")


@pytest.mark.parametrize("kind", ["lab", "notebook"])
def test_no_key_in_the_widget_changes_the_notebook(opened: Any, kind: Kind) -> None:
    notebook, shown = opened(kind)
    before = {**notebook.page.evaluate(NOTEBOOK), "dirty": True}
    assert (len(before["cells"]), before["active"], before["mode"]) == (4, 1, "command")
    ran = notebook.page.locator(".jp-InputPrompt").all_inner_texts()
    for view, targets in TARGETS.items():
        for target in targets:
            open_view(notebook, shown, view)
            shown.root.locator(target).first.click()
            assert is_in_widget(notebook), f"{view}: after a click on {target} keys go to the notebook"
            for key in KEYS if target == targets[0] else FEW:
                notebook.page.keyboard.press(key)
            assert {**notebook.page.evaluate(NOTEBOOK), "dirty": True} == before, f"{view}: keys, after {target}"
            notebook.page.keyboard.press("Escape")
            if view == "heads":  # a click or Enter opens one
                soon(notebook, "w.view", "heatmap")
    assert notebook.page.locator(".jp-InputPrompt").all_inner_texts() == ran


@pytest.mark.parametrize("kind", ["lab", "notebook"])
def test_keys_reach_the_widget(opened: Any, kind: Kind) -> None:
    notebook, view = opened(kind)
    press = notebook.page.keyboard.press
    view.click(5, 8)
    soon(notebook, "w.query, w.key", "5 8")
    press("ArrowRight")
    soon(notebook, "w.query, w.key", "5 9")
    press("ArrowDown")
    soon(notebook, "w.query, w.key", "6 9")
    press("]")
    soon(notebook, "w.head", "8")
    press("{")
    soon(notebook, "w.layer", "4")

    # The way that was tried first: a slash, a word and Enter.
    notebook.page.keyboard.type("/bank")
    press("Enter")
    soon(notebook, "w.query, w.key", "5 None")
    press("Enter")
    soon(notebook, "w.query, w.key", "14 None")
    notebook.screenshot(f"{kind}-go-to", of=".attnwidget")
    press("Escape")
    assert view.root.locator("[role=dialog]").count() == 0
    press("ArrowDown")
    soon(notebook, "w.query, w.key", "15 0")

    press("?")
    view.root.locator("[role=dialog][aria-label=Tour]").get_by_text("1 of 4").wait_for()
    press("?")
    keys = view.root.locator("[role=dialog][aria-label='Keyboard shortcuts']")
    keys.get_by_text("go to a token").wait_for()
    notebook.screenshot(f"{kind}-keys", of=".attnwidget")
    press("?")
    keys.wait_for(state="detached")
    press("Escape")
    soon(notebook, "w.query, w.key", "None None")
    state = notebook.page.evaluate(NOTEBOOK)
    assert [source for _, source in state["cells"]] == CELLS
    assert (state["active"], state["mode"]) == (1, "command")


@pytest.mark.parametrize("kind", ["lab", "notebook"])
def test_to_save_is_still_the_notebooks(opened: Any, kind: Kind) -> None:
    notebook, view = opened(kind)
    view.click(5, 8)
    assert notebook.page.evaluate(NOTEBOOK)["dirty"]
    notebook.page.keyboard.press("Control+s")
    notebook.page.wait_for_function(f"() => !({NOTEBOOK})().dirty")
    assert is_in_widget(notebook)
    notebook.page.keyboard.press("x")
    assert len(notebook.page.evaluate(NOTEBOOK)["cells"]) == 4
    assert python(notebook, "w.query, w.key") == "5 8"
