"""Fixtures for tests in a real browser.

    def test_it(lab):
        notebook = lab.open(["import attnwidget as aw", "aw.AttentionWidget(q, k)"], theme="dark", width=800)
        notebook.run_all()
        notebook.page.wait_for_selector(".attnwidget")
        notebook.screenshot("dark", of=".attnwidget")

    def test_export(offline_page):
        page = offline_page("<p>hello", over="file")

Every notebook and page has `.page` (Playwright's), `.console`, `.problems` and `.blocked`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import Browser, Lab, LabServer, OfflinePages, chromium

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark these tests and run them last: Playwright keeps an event loop running, and others could not start theirs."""
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.browser)
    items[:] = [item for item in items if item not in ours] + ours


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="session")
def lab_server() -> Iterator[LabServer]:
    with LabServer() as server:
        yield server


@pytest.fixture
def lab(browser: Browser, lab_server: LabServer) -> Iterator[Lab]:
    opener = Lab(browser, lab_server)
    try:
        yield opener
    finally:
        opener.close()


@pytest.fixture
def offline_page(browser: Browser, tmp_path: Path) -> Iterator[OfflinePages]:
    with OfflinePages(browser, tmp_path) as opener:
        yield opener
