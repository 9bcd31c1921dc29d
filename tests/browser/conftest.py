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

from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path

import pytest
from gallery import Gallery, show
from lab import Browser, Lab, LabServer, OfflinePages, Page, PagePool, chromium

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark these tests and run them last: Playwright keeps an event loop running, and others could not start theirs.

    Those in JupyterLab come first among them: where several workers share the tests, none is left with a long one. Each
    worker has a Chromium and a JupyterLab of its own. The site is built by the first test that wants it, long before
    the second one: no worker waits for another.
    """
    ours = [item for item in items if HERE in item.path.parents]
    in_lab = [item for item in ours if {"demo", "lab_server"} & {*getattr(item, "fixturenames", ())}]
    for item in ours:
        item.add_marker(pytest.mark.browser)
    others = [item for item in items if item not in ours]
    on_site = [item for item in ours if "site" in getattr(item, "fixturenames", ())]
    plain = [item for item in ours if item not in in_lab and item not in on_site]
    items[:] = [*others, *on_site[:1], *in_lab, *plain, *on_site[1:]]


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember which tests have failed: nobody uses their pages again."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(scope="session")
def browser(pytestconfig: pytest.Config) -> Iterator[Browser]:
    Page.keeps_pictures = pytestconfig.getoption("screenshots")
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="session")
def pool() -> PagePool:
    return PagePool()


@pytest.fixture(scope="session")
def lab_server() -> Iterator[LabServer]:
    with LabServer() as server:
        yield server


@pytest.fixture(scope="session")
def offline_pages(browser: Browser, pool: PagePool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfflinePages]:
    with OfflinePages(browser, tmp_path_factory.mktemp("pages"), pool) as opener:
        yield opener


@pytest.fixture
def lab(browser: Browser, lab_server: LabServer, pool: PagePool, request: pytest.FixtureRequest) -> Iterator[Lab]:
    opener = Lab(browser, lab_server, pool)
    yield opener
    opener.close(keep=not request.node.stash[FAILED])


@pytest.fixture
def offline_page(offline_pages: OfflinePages, request: pytest.FixtureRequest) -> Iterator[OfflinePages]:
    yield offline_pages
    offline_pages.close(keep=not request.node.stash[FAILED])


@pytest.fixture
def gallery(offline_page: OfflinePages) -> Callable[..., Gallery]:
    """Show widgets on a plain page: `gallery(widget, width=900)`, with the keywords of `gallery.show`."""
    return partial(show, offline_page)
