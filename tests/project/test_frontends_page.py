"""docs/frontends.md, as far as it can be checked: the tests that it names, the messages that it quotes, its sizes."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path

import pytest
import torch

from attnwidget import AttentionWidget
from attnwidget._utils.assets import STATIC

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "frontends.md").read_text(encoding="utf-8")
TESTS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "browser").glob("test_*.py")}
SOURCES = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "js" / "src").rglob("*.ts*")))


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, row by row."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    found = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in found[2:]]


def test_every_test_that_is_named_is_there() -> None:
    files = set(re.findall(r"`(test_\w+\.py)`", PAGE))
    functions = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(files) > 8
    assert files <= TESTS.keys()
    assert functions
    assert [name for name in functions if not any(f"def {name}(" in text for text in TESTS.values())] == []


def test_what_is_said_to_be_tested_names_its_test() -> None:
    tested = [line for line in PAGE.splitlines() if line.startswith("|") and "| tested" in line]
    assert len(tested) > 8
    assert [line for line in tested if not re.search(r"`test_\w+", line)] == []


def test_messages_that_are_quoted_are_those_of_the_page() -> None:
    quoted = [row[0].strip('"') for row in rows("Without a kernel")]
    own = [text for text in quoted if "model not found" not in text]  # which is JupyterLab's
    assert len(own) >= 4
    assert [text for text in own if text not in SOURCES] == []
    assert all(len(row) == 3 and row[2] for row in rows("Without a kernel")), "each has its remedy"


def test_messages_that_troubleshooting_quotes_are_those_that_are_said() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    of_others = {"Error displaying widget: model not found", "Failed to load ESM", "anywidget: module not found"}
    quoted = set(re.findall(r'"([^"`]+)"', page.replace('`keep="overview"`', ""))) - of_others
    package = (path.read_text(encoding="utf-8") for path in (ROOT / "attnwidget" / "_capture").rglob("*.py"))
    said = SOURCES + "".join(package)
    assert len(quoted) >= 5
    assert sorted(text for text in quoted if text not in said) == []


def test_sizes_are_those_of_what_was_built() -> None:
    (told,) = re.findall(r"Script, its views and style are (\d+) KB", PAGE)
    built = sum((STATIC / name).stat().st_size for name in ("widget.js", "parts.json", "widget.css"))
    assert int(told) == pytest.approx(built / 1000, rel=0.15)
    (own,) = re.findall(r"a widget\s+itself carries (\d+) KB", PAGE)
    assert (STATIC / "loader.js").stat().st_size < (int(own) + 1) * 1000


def test_stages_take_as_much_as_is_said() -> None:
    told = re.findall(r"for (\d+)\s+tokens(?: they take)? (\d+) KB", PAGE)
    assert len(told) == 2
    for length, kilobytes in told:
        q, k, v = torch.randn(3, 1, 1, int(length), 32, generator=torch.Generator().manual_seed(1))
        w = AttentionWidget(q, k, v, view="stages")
        sent = w.get_state(["stages"])["stages"]
        assert size_of(sent) == pytest.approx(1000 * int(kilobytes), rel=0.25)


def size_of(value: object) -> int:
    """Bytes of what is sent, its buffers as base64."""
    if isinstance(value, bytes | bytearray | memoryview):
        return len(bytes(value)) * 4 // 3
    if isinstance(value, dict):
        return sum(len(str(name)) + 4 + size_of(one) for name, one in value.items())
    if isinstance(value, list | tuple):
        return sum(2 + size_of(one) for one in value)
    return len(json.dumps(value))


def test_the_option_of_nbconvert_is_one_that_there_is() -> None:
    pytest.importorskip("nbconvert")
    from nbconvert.preprocessors import ExecutePreprocessor

    (name,) = set(re.findall(r"--ExecutePreprocessor\.(\w+)=", PAGE))
    assert name in ExecutePreprocessor.class_traits()


def test_versions_are_of_packages_that_are_named_in_the_constraints() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    for name, version in re.findall(r"(anywidget|ipywidgets) (\d+\.\d+\.\d+)", PAGE):
        assert f"{name}=={version}" in text or importlib.metadata.version(name) == version
