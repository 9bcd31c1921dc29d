"""What a report for an issue says, and what it keeps of what pages say."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
import torch

import attnwidget
from attnwidget import AttentionWidget
from attnwidget._utils import report as reports


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> reports.Pages:
    fresh = reports.Pages()
    monkeypatch.setattr(reports, "PAGES", fresh)
    return fresh


def test_names_what_is_installed_and_where_it_runs(pages: reports.Pages) -> None:
    found = attnwidget.report()
    assert found.versions["attnwidget"] == attnwidget.__version__
    assert found.versions["torch"] == version("torch")
    assert found.versions["anywidget"] == version("anywidget")
    text = str(found)
    assert f"torch {version('torch')}" in text
    assert f"torch: {torch.get_num_threads()} threads" in text
    assert "page: none has shown a widget of this kernel" in text
    assert repr(found) == text


HEAVY = ("transformers", "matplotlib", "jupyterlab", "marimo", "distributed", "pandas")


def test_imports_nothing_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It only looks into what is installed: importing transformers takes seconds."""
    for name in HEAVY:
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert str(attnwidget.report())
    assert not {*HEAVY} & {*sys.modules}


@pytest.mark.thorough
def test_imports_nothing_in_a_process_of_its_own() -> None:
    program = (
        "import sys, attnwidget\n"
        "before = set(sys.modules)\n"
        "str(attnwidget.report())\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        f"print(sorted(new & set({HEAVY})))\n"
        "print(attnwidget.report().host)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["[]", "Python"]


def test_a_page_says_what_it_is_and_what_went_wrong(pages: reports.Pages) -> None:
    widget = AttentionWidget(torch.zeros(2, 2, device="cpu"), torch.zeros(2, 2, device="cpu"))
    widget._receive(None, {"page": {"front_end": "JupyterLab 4.5", "browser": "Chromium 140"}}, [])
    widget._receive(
        None, {"page": {"front_end": "JupyterLab 4.5", "browser": "Chromium 140", "error": "x is not a function"}}, []
    )
    (page,) = attnwidget.report().pages
    assert page == {"front_end": "JupyterLab 4.5", "browser": "Chromium 140", "errors": ["x is not a function"]}
    assert "page: JupyterLab 4.5, Chromium 140\n  error: x is not a function" in str(attnwidget.report())


@pytest.mark.parametrize("said", [None, 3, [], "x", {}, {"front_end": 3, "browser": [], "error": {}}])
def test_what_is_no_page_does_no_harm(pages: reports.Pages, said: object) -> None:
    assert reports.take_page({"page": said})
    assert all(page["errors"] == [] for page in attnwidget.report().pages)


def test_what_pages_say_is_bounded_and_stays_on_its_line(pages: reports.Pages) -> None:
    for at in range(100):
        for which in range(20):
            pages.note({"front_end": f"page {at}", "browser": "b\x1b[2J\nc", "error": f"{which}" + "x" * 10**5})
    text = str(attnwidget.report())
    assert len(text) < 60_000
    assert "\x1b" not in text
    assert len(attnwidget.report().pages) == reports.MAX_PAGES
    assert attnwidget.report().pages[-1]["front_end"] == "page 99"
    assert [error[:2] for error in attnwidget.report().pages[-1]["errors"]][-1] == "19"
