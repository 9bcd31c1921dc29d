"""The direction of imports: `make lint` holds it, by the contracts in pyproject.toml."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT = Path(sys.executable).with_name("lint-imports.exe" if sys.platform == "win32" else "lint-imports")
pytestmark = pytest.mark.skipif(not LINT.exists(), reason="import-linter is not here: pip install -e '.[dev]'")
TYPES = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    "


def contracts_of(root: Path) -> tuple[int, str]:
    """Return the exit status of import-linter in a checkout, and what it says."""
    done = subprocess.run([LINT, "--no-cache"], cwd=root, capture_output=True, text=True, encoding="utf-8")
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the package's modules and of their contracts."""
    shutil.copytree(
        ROOT / "attnwidget", tmp_path / "attnwidget", ignore=shutil.ignore_patterns("static", "__pycache__")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_imports_run_downward(checkout: Path) -> None:
    status, said = contracts_of(checkout)
    assert status == 0, said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            {"_engine/softmax.py": "from .._analysis import statistics"},
            "attnwidget._engine is not allowed to import attnwidget._analysis",
        ),
        (
            {"_export/colors.py": TYPES + "from .._widget.widget import AttentionWidget"},
            "attnwidget._export is not allowed to import attnwidget._widget",
        ),
        (
            {"scaling.py": "from .stack import AttentionStack"},
            "attnwidget.scaling is not allowed to import attnwidget.stack",
        ),
        (
            {"_utils/scheduler.py": "from . import throttle", "_utils/throttle.py": "from . import scheduler"},
            "No cycles are allowed in attnwidget._utils",
        ),
        ({"_messages/tiles.py": "import traitlets"}, "attnwidget._messages is not allowed to import traitlets"),
        ({"_engine/softmax.py": "import matplotlib"}, "attnwidget._engine is not allowed to import matplotlib"),
        ({"misc.py": "import torch"}, "attnwidget.misc"),
    ],
    ids=["upward", "upward for a type", "beside", "cycle", "notebook", "figures", "a module in no layer"],
)
def test_a_forbidden_import_is_refused(checkout: Path, lines: dict[str, str], says: str) -> None:
    for name, line in lines.items():
        with (checkout / "attnwidget" / name).open("a", encoding="utf-8") as module:
            module.write(f"\n{line}\n")
    status, said = contracts_of(checkout)
    assert status == 1
    assert says in " ".join(said.split()), said
