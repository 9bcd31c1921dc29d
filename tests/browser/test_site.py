"""The site, built strictly and offline, as `make docs` builds it: every public name, every figure alive."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from filelock import FileLock
from in_hand import in_hand
from lab import OfflinePages

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
OURS = re.compile(r'(?:src|href)="(?!https?://|data:|#|mailto:)([^"#?]+)')


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once for all workers; a warning is an error."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "site"
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / "objects.inv").exists():
            build(folder)
    return folder


def build(folder: Path) -> None:
    """Build the site strictly and leave nothing of one that failed."""
    program = Path(sys.executable).parent / "sphinx-build"
    command = [program, "-q", "-W", "--keep-going", "-b", "html", ROOT / "docs", folder]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)  # else the next test would take it for whole
    assert done.returncode == 0, done.stderr[-6000:]


def names_in(inventory: Path) -> set[str]:
    """Return the names of Python that Sphinx has an entry for."""
    data = inventory.read_bytes()
    text = zlib.decompress(data.split(b"\n", 4)[4]).decode()
    return {line.split(" ")[0] for line in text.splitlines() if " py:" in line}


def test_the_reference_has_every_public_name(site: Path) -> None:
    known = names_in(site / "objects.inv")
    interface = json.loads((ROOT / "tests" / "project" / "interface.json").read_text(encoding="utf-8"))
    modules = {"masks", "results", "scaling", "samples", "__version__"}
    wanted = {name for name, kind in interface.items() if kind not in ("trait", "field", "value")} - modules
    methods = {name for name in wanted if name.rpartition(".")[0] not in {"", *modules}}
    tops = {name.partition(".")[2] if name.startswith("samples.") else name for name in wanted - methods}
    assert len(tops) > 40
    assert sorted(name for name in tops if f"attnwidget.{name}" not in known) == []


def methods_and_properties(value: object) -> set[str]:
    """Return those of ours that a user is offered; fields stand in the text of their class."""
    found = set()
    for name in dir(value):
        member = inspect.getattr_static(type(value), name, None)
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name[0] != "_" and inspect.isfunction(function) and function.__module__.startswith("attnwidget"):
            found.add(name)
    return found


def test_the_reference_has_what_a_user_is_offered(site: Path) -> None:
    """With what a class inherits: a reader looks for `Capture.tokens` below `Capture`."""
    known = names_in(site / "objects.inv")
    offered = {f"{owner}.{name}" for owner, value in in_hand().items() for name in methods_and_properties(value)}
    assert {"Attention.device", "Attention.block", "Capture.tokens", "AttentionWidget.figure"} <= offered
    assert sorted(name for name in offered if not {f"attnwidget.{name}", f"attnwidget.results.{name}"} & known) == []


def test_every_page_stands_by_itself(site: Path) -> None:
    """No file is missing, and no script, style, font or picture comes from elsewhere."""
    missing, fetched = [], []
    for page in site.rglob("*.html"):
        if page.parent.name == "live":
            continue
        text = page.read_text(encoding="utf-8")
        missing += [(page.name, link) for link in OURS.findall(text) if not (page.parent / link).exists()]
        fetched += re.findall(r'<(?:script|img|iframe|link rel="stylesheet")[^>]*(?:src|href)="https?://[^"]*', text)
    assert missing == []
    assert fetched == []


def test_figures_are_alive_and_follow_the_page(site: Path, offline_page: OfflinePages) -> None:
    made = sorted((site / "live").glob("*.html"))
    assert len(made) >= 8
    for path in made:
        for theme in ("light", "dark"):
            assert "<svg" in path.with_name(f"{path.stem}-{theme}.svg").read_text(encoding="utf-8")

    page = offline_page("<p>", over="file", offline=True).page
    page.goto((site / "start.html").as_uri())
    page.evaluate("document.body.dataset.theme = 'dark'")
    poster = page.locator(".live-poster").first
    assert "only-light" in (poster.locator("img").first.get_attribute("class") or "")
    poster.click()
    root = page.frame_locator("figure.live iframe").first.locator(".attnwidget")
    root.locator("[data-aw=picture][aria-label]").wait_for(timeout=20_000)
    assert root.get_attribute("data-theme") == "dark"
    page.evaluate("document.body.dataset.theme = 'light'")
    page.frame_locator("figure.live iframe").first.locator(".attnwidget[data-theme=light]").wait_for(timeout=20_000)
    assert "0.228342" in root.locator("[data-aw=status]").inner_text()


@pytest.mark.parametrize("name", ["index", "start", "masks", "segments"])
def test_a_frame_is_as_tall_as_its_page_and_nothing_below_moves(
    site: Path, offline_page: OfflinePages, name: str
) -> None:
    page = offline_page("<p>", over="file", offline=True, width=1280).page
    page.goto((site / f"{name}.html").as_uri())
    figure = page.locator("figure.live").first
    before = figure.bounding_box()
    figure.locator(".live-poster").click()
    figure.locator("iframe").wait_for()
    inside = page.frame_locator("figure.live iframe").first
    inside.locator(".attnwidget [data-aw=status]").wait_for(timeout=20_000)
    for _ in range(50):  # until the widget has its last part
        page.wait_for_timeout(200)
        if not inside.locator("html").evaluate("(html) => html.scrollHeight > html.clientHeight + 1"):
            break
    else:
        pytest.fail("the frame scrolls")
    after = figure.bounding_box()
    assert before is not None
    assert after is not None
    assert abs(after["height"] - before["height"]) < 60  # by other fonts than those of the machine that measured
