"""Names of the package: one name, one class."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "attnwidget"


def test_no_two_classes_have_one_name() -> None:
    classes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(str(path.relative_to(PACKAGE)))
    assert len(classes) > 100
    assert {name: files for name, files in classes.items() if len(files) > 1} == {}


def test_no_two_test_modules_have_one_name() -> None:
    names = [path.name for path in Path(__file__).parents[1].rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []  # pytest imports them by these
